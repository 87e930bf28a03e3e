"""The running kernel's sessions: their names, the engines they share, and the cell that is running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llamanb.cells import CellRun
from llamanb.engine.base import Engine
from llamanb.errors import InvalidArgumentError
from llamanb.models import resolve
from llamanb.session import ChatSession
from llamanb.settings import ChatConfig

__all__ = ["Request", "Runtime", "active_session", "get_runtime", "use_session"]

DEFAULT = "default"


class Request:
    """The execute request that a cell runs in.

    Parameters
    ----------
    parent
        The message as the kernel received it; empty outside of a kernel.
    """

    def __init__(self, parent: dict[str, Any]) -> None:
        self.id: str | None = parent.get("header", {}).get("msg_id")
        cell = parent.get("metadata", {}).get("cellId")
        self.cell: str | None = cell if isinstance(cell, str) and cell else None
        self.watched = bool(parent.get("content", {}).get("allow_stdin", False))


class Runtime:
    """What one kernel knows of its conversations."""

    def __init__(self) -> None:
        self.sessions: dict[str, ChatSession] = {}
        self.active_name = DEFAULT
        self.settings = ChatConfig()
        self._engines: dict[Path, Engine] = {}
        self._request: Request | None = None
        self._runs: dict[str, CellRun] = {}

    # -- sessions and engines -----------------------------------------------------------------------------------

    def engine(self, model: str | None = None) -> Engine:
        """Return the engine of a model, loading it once; by default that of the settings."""
        model = self.settings.model if model is None else model
        path = resolve(model).path.resolve()
        engine = self._engines.get(path)
        if engine is None or engine.closed:
            from llamanb.engine.llama import LlamaCppEngine  # not before a chat: it takes a while to import

            engine = self._engines[path] = LlamaCppEngine(
                model, n_ctx=self.settings.n_ctx, deterministic=self.settings.deterministic
            )
        return engine

    def session(self, name: str | None = None, model: str | None = None) -> ChatSession:
        """Return a session by name, by default the active one; a new name makes a new session."""
        name = self.active_name if name is None else name
        if name not in self.sessions:
            settings = self.settings
            self.sessions[name] = ChatSession(self.engine(model), settings.system, settings.sampling())
        return self.sessions[name]

    def forget(self, session: ChatSession) -> None:
        """Drop a session in which nothing was said."""
        name = self.name_of(session)
        del self.sessions[name]
        self._runs.pop(name, None)

    def name_of(self, session: ChatSession) -> str:
        """Return the name that a session has here."""
        return next(name for name, other in self.sessions.items() if other is session)

    def use_session(self, session: ChatSession, name: str = DEFAULT, *, replace: bool = False) -> ChatSession:
        """Let cells talk to a session of one's own."""
        there = self.sessions.get(name)
        if there is not None and there is not session and there.history.messages and not replace:
            if any(message.role != "system" for message in session.history.messages.values()):
                raise InvalidArgumentError(
                    f"There is a session {name!r} with {len(there.history.messages)} messages already, and the new one "
                    "has messages too. Use another name, or replace=True to put the new one in its place."
                )
            session.history = there.history
        self.sessions[name] = session
        self.active_name = name
        return session

    def carried(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return what an output is to carry: nothing where conversations are to stay out of the file."""
        return metadata if self.settings.persist else {}

    def export(self) -> str:
        """Return every session as JSON; the headless runner asks for it after each cell."""
        self.finish_request()
        kept = self.sessions if self.settings.persist else {}
        return json.dumps({name: session.to_dict() for name, session in kept.items()})

    # -- the cell that is running -------------------------------------------------------------------------------

    def cell_run(self, session: ChatSession, request: Request) -> CellRun:
        """Return what the running cell does to a session's history; its former exchanges are off their branches."""
        if self._request is None or request.id is None or request.id != self._request.id:
            self.finish_request()
            self._request = request
        for name, other in self.sessions.items():
            run = self._runs.get(name)
            if run is None or run.history is not other.history:
                run = self._runs[name] = CellRun(other.history, request.cell)
            run.begin()
        return self._runs[self.name_of(session)]

    def finish_request(self, *_: object) -> None:
        """Settle what the last cell did, after its last answer."""
        made_somewhere = any(run.answered for run in self._runs.values())
        for run in self._runs.values():
            run.finish(moved=made_somewhere)
        self._runs = {}
        self._request = None


_runtime: Runtime | None = None


def get_runtime() -> Runtime:
    """Return this process's runtime."""
    global _runtime
    if _runtime is None:
        _runtime = Runtime()
    return _runtime


def active_session() -> ChatSession:
    """Return the session that cells talk to; the first call makes one on the default model."""
    return get_runtime().session()


def use_session(session: ChatSession, name: str = DEFAULT, *, replace: bool = False) -> ChatSession:
    """Let cells talk to a session of one's own, and return it.

    Where a session of that name has messages, one without takes them over.

    Raises
    ------
    InvalidArgumentError
        Both have messages, and `replace` is not set.
    """
    return get_runtime().use_session(session, name, replace=replace)
