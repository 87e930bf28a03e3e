"""The running kernel's sessions: their names, the engines they share, and the cell that is running."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamanb.cells import CellRun
from llamanb.documents import Documents
from llamanb.engine.base import Engine
from llamanb.errors import InvalidArgumentError
from llamanb.history import History
from llamanb.models import resolve
from llamanb.persistence.live import Sessions, merged_sessions
from llamanb.persistence.notebook import restored_sessions
from llamanb.persistence.patch import same
from llamanb.persistence.schema import CELL_ID, dump_history, load_history, without_cells
from llamanb.session import ChatSession
from llamanb.settings import ChatConfig
from llamanb.snapshots import Snapshots
from llamanb.wording import counted

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult

__all__ = ["Request", "Runtime", "active_session", "get_runtime", "use_session"]

DEFAULT = "default"

_LARGE_BYTES = 1_000_000


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
        self.session: str | None = parent.get("header", {}).get("session")

    @property
    def in_document(self) -> bool:
        """Whether the cell's id is one that its document keeps; VS Code sends a URI, good for one kernel's life."""
        return self.cell is not None and CELL_ID.fullmatch(self.cell) is not None


class Runtime:
    """What one kernel knows of its conversations."""

    def __init__(self) -> None:
        self.sessions: dict[str, ChatSession] = {}
        self.active_name = DEFAULT
        self.settings = ChatConfig()
        self.documents = Documents()
        self.documents.arrived = self._on_arrival
        self.current_request: Callable[[], Request] = lambda: Request({})
        self.make_panel: Callable[[ChatSession], Any] | None = None
        self.removed: Callable[[ChatSession, set[str]], None] = lambda *_: None
        """Takes messages that are gone for good out of what cells show."""
        self._panels: dict[int, Any] = {}
        self._engines: dict[Path, Engine] = {}
        self._request: Request | None = None
        self._runs: dict[str, CellRun] = {}
        self._stored: Sessions = {}  # sessions of the document that nobody has used here yet
        self._restored: Sessions = {}  # as this kernel found them in the file
        self._gate = threading.RLock()
        self._snapshots: Snapshots | None = None
        self._depth = 0  # of cells that run; one may run another, as %%capture does
        self._said: set[str] = set()

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
        self.meet()
        name = self.active_name if name is None else name
        if name in self._stored:
            session = ChatSession.from_dict(self._stored[name], self.engine(model))
            self.sessions[name] = session
            del self._stored[name]
        elif name not in self.sessions:
            settings = self.settings
            self.sessions[name] = ChatSession(
                self.engine(model), settings.system, settings.sampling(), overflow=settings.overflow
            )
        self.sessions[name].snapshots = self.snapshots
        return self.sessions[name]

    @property
    def snapshots(self) -> Snapshots | None:
        """The snapshots on disk; none where they are off, or where a notebook runs without a person."""
        if not self.settings.snapshots or not self.current_request().watched:
            return None
        if self._snapshots is None:
            self._snapshots = Snapshots()
        self._snapshots.max_bytes = self.settings.snapshot_cache
        return self._snapshots

    @property
    def names(self) -> list[str]:
        """The names of the sessions that there are."""
        return [*self.sessions, *self._stored]

    def forget(self, session: ChatSession) -> None:
        """Drop a session, if nothing was said in it."""
        if not _says_something(session.to_dict(shared=True)):
            name = self.name_of(session)
            del self.sessions[name]
            self._runs.pop(name, None)

    def name_of(self, session: ChatSession) -> str:
        """Return the name that a session has here."""
        return next(name for name, other in self.sessions.items() if other is session)

    def use_session(self, session: ChatSession, name: str = DEFAULT, *, replace: bool = False) -> ChatSession:
        """Let cells talk to a session of one's own."""
        self.meet()
        there = load_history(self._stored[name]) if name in self._stored else None
        if name in self.sessions and self.sessions[name] is not session:
            there = self.sessions[name].history
        if there is not None and there.messages and not replace:
            if _says_something(session.to_dict(shared=True)):
                raise InvalidArgumentError(
                    f"There is a session {name!r} with {len(there.messages)} messages already, and the new one "
                    "has messages too. Use another name, or replace=True to put the new one in its place."
                )
            session.history = there
        self._stored.pop(name, None)
        self.sessions[name] = session
        self.active_name = name
        return session

    def panel(self, session: ChatSession) -> Any:
        """Return the panel on a session; there is one for each, shown in as many places as wanted.

        Raises
        ------
        InvalidArgumentError
            Nothing here can show a panel.
        """
        if self.make_panel is None:
            raise InvalidArgumentError("A panel needs a notebook; in a terminal, use %chat and %chat_history.")
        panel = self._panels.get(id(session))
        if panel is None or panel.comm is None:
            panel = self._panels[id(session)] = self.make_panel(session)
        return panel

    def remove(self, session: ChatSession, ids: list[str], act: Callable[[], Any]) -> None:
        """Remove messages of a session for good by `act`, and take them out of the outputs that show them."""
        gone = set(ids)
        emptied = session.history.cells_of(gone)
        act()
        if any(other is session for other in self.sessions.values()):
            self.removed(session, gone)
            self.documents.clear_outputs(emptied)  # those that earlier kernels made too

    def prune(self, session: ChatSession, expected: object = None) -> int:
        """Remove the messages that no branch leads to; return how many there were.

        Raises
        ------
        InvalidArgumentError
            There are not as many as `expected`, which the person was told.
        """
        gone = session.history.unreachable()
        if expected is not None and len(gone) != expected:
            raise InvalidArgumentError(f"By now {counted(len(gone), 'message')} would be removed; look again.")
        if gone:
            self.remove(session, gone, session.prune)
        return len(gone)

    def carried(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return what an output is to carry: nothing where the document has it, or is not to have it."""
        return metadata if self.settings.persist and not self.documents.connected else {}

    def export(self) -> str:
        """Return every session as JSON; the headless runner asks for it after each cell."""
        self.finish_request()
        return json.dumps(self._kept())

    # -- the cell that is running -------------------------------------------------------------------------------

    def cell_run(self, session: ChatSession, request: Request) -> CellRun:
        """Return what the running cell does to a session's history; its former exchanges are off their branches."""
        if self._request is None or request.id is None or request.id != self._request.id:
            self.finish_request()
            self._request = request
            self._take_off_deleted(request)
        for name, other in self.sessions.items():
            run = self._runs.get(name)
            if run is None or run.history is not other.history:
                run = self._runs[name] = CellRun(other.history, request.cell)
            with other.lock:
                run.begin()
        return self._runs[self.name_of(session)]

    def finish_request(self, *_: object) -> None:
        """Settle what the last cell did, after its last answer, and write it into the open documents."""
        answered_somewhere = any(run.answered for run in self._runs.values())
        left_behind: set[str] = set()
        for name, run in self._runs.items():
            with self.sessions[name].lock:
                left_behind |= run.finish(moved=answered_somewhere)
            if run.answered:
                self._say_if_out_of_order(run)
        if left_behind:
            cells, them = ("A later cell answers", "it") if len(left_behind) == 1 else ("Later cells answer", "them")
            self._notify(f"{cells} to something that is gone: run {them} again.")
        self._runs = {}
        self._request = None

    # -- the open documents -------------------------------------------------------------------------------------

    def loaded(self) -> None:
        """Reach the notebook from the cell that loads the extension, which no event announced."""
        if self.current_request().cell is not None:
            self._depth = max(self._depth, 1)
        self.open_document()

    def open_document(self) -> None:
        """Reach the notebook that a cell runs in, and restore what its file holds, where cell ids outlive kernels."""
        request = self.current_request()
        if self.documents.connecting or not request.in_document:
            return
        self.documents.connect()
        name = os.environ.get("JPY_SESSION_NAME")
        if name and not self.sessions and not self._stored:
            self._restored = restored_sessions(Path(name), str(request.cell))
            self._stored = dict(self._restored)

    def meet(self) -> None:
        """Take in what the open documents hold, once the first of them has been heard of; not while a cell answers."""
        if not self._runs:
            self.open_document()
            self.documents.wait()
            with self._gate:
                self._merge()

    def start_cell(self, *_: object) -> None:
        """Take in what the open documents hold before a cell runs."""
        with self._gate:
            self._depth += 1
            self._merge()

    def end_cell(self, result: ExecutionResult) -> None:
        """Settle what the cell did, and write it into the open documents; one within another is not yet the end."""
        with self._gate:
            self._depth = max(self._depth - 1, 0)
            if self._depth:
                return
            request = self.current_request()
            if result.success and (self._request is None or self._request.id != request.id):
                self._take_off_unasked(request)
            self.finish_request()
            self._merge()
            self.publish()
        for session in self.sessions.values():
            session.changed()

    def settle(self) -> None:
        """Write into the open documents what a panel has changed, unless a cell is answering, which does so itself."""
        with self._gate:
            if not self._runs:
                self.publish()

    def _on_arrival(self) -> None:
        """A document has come, in any thread: between two cells it is taken in at once, else when there is time."""
        with self._gate:
            if not self._depth:
                self._merge()
                self.publish()

    def _merge(self) -> None:
        self._move_cells()
        if not self.documents.have_news:
            return
        self._take_over(self.documents.merge(self._all(), self._restored) or {})

    def _take_over(self, sessions: Sessions) -> None:
        """Go on with other versions of the sessions that are here, and with more of them."""
        for name, stored in sessions.items():
            if name not in self.sessions:
                self._stored[name] = stored
            elif not same(stored, self.sessions[name].to_dict(shared=True)):
                self.sessions[name].take_over(stored)

    def take_in(self, sessions: Sessions) -> dict[str, History]:
        """Add the sessions of another notebook to those that are here, and return the histories of both.

        Its cells are not this notebook's: what they own, and the branches that they made, nobody owns here.
        """
        free = {name: without_cells(stored) for name, stored in sessions.items()}
        said = {name: stored for name, stored in self._all().items() if _says_something(stored)}
        merged = merged_sessions({}, said, free)
        self._take_over(merged)
        return {name: load_history(merged[name]) for name in sessions}

    def publish(self) -> None:
        """Write what changed into the open documents."""
        stale = [session.history.stale for session in self.sessions.values()]
        stale += [stored.get("stale", ()) for stored in self._stored.values()]
        self.documents.mark(set().union(*stale))
        kept = self._kept()
        self.documents.publish(kept, strip=not self.settings.persist)
        self._say_if_large(kept)

    def _all(self) -> Sessions:
        return {**self._stored, **{name: session.to_dict(shared=True) for name, session in self.sessions.items()}}

    def _kept(self) -> Sessions:
        """What is to be kept in the file."""
        return self._all() if self.settings.persist else {}

    def _take_off_deleted(self, request: Request) -> None:
        """Take the exchanges of cells that the document no longer holds off their branches."""
        self._move_cells()  # one that has another id now was not deleted
        for session in self.sessions.values():
            deleted = self.documents.deleted(request.session, session.history.cells.keys() - {request.cell})
            if sum(session.history.take_off(cell) for cell in deleted):
                cells = "a deleted cell" if len(deleted) == 1 else f"{len(deleted)} deleted cells"
                self._notify(
                    f"What {cells} said is off its branch; it stays in the tree, and in the file, until %chat_prune."
                )

    def _take_off_unasked(self, request: Request) -> None:
        """Take what a cell said that has run, and asks nothing any more, off its branch: it is not shown any more."""
        if request.cell is None:
            return
        histories = [session.history for session in self.sessions.values() if request.cell in session.history.cells]
        if sum(history.take_off(request.cell) for history in histories):
            self.documents.notify(
                request.session,
                "This cell asks nothing any more: what it said is off its branch, and stays in the tree until "
                "%chat_prune.",
            )

    def _move_cells(self) -> None:
        """Let what cells own follow them where splitting gave them other ids."""
        for cell, to in self.documents.take_moves():
            for session in self.sessions.values():
                session.history.move_cell(cell, to)
            for name, stored in self._stored.items():
                history = load_history(stored)
                history.move_cell(cell, to)
                self._stored[name] = dump_history(history)

    # -- what a person is told ----------------------------------------------------------------------------------

    def insert_cell(self, request: Request, source: str) -> bool:
        """Insert a cell below the one that asks; false where no open document is known."""
        return self.documents.insert_cell(request.session, request.cell, source)

    def _notify(self, text: str) -> None:
        self.documents.notify(self._request.session if self._request else None, text)

    def _say_if_out_of_order(self, run: CellRun) -> None:
        document = self.documents.of(self._request.session if self._request else None)
        if document is None or run.cell is None or not run.made or run.cell in self._said:
            return
        if document.order_differs(run.cells_before(), run.cell):
            self._said.add(run.cell)
            self._notify("This cell goes on from cells that stand below it: the order is that of running them.")

    def _say_if_large(self, kept: Sessions) -> None:
        if "large" in self._said or not self.documents.connected:
            return
        n_messages = sum(len(session["messages"]) for session in kept.values())
        n_text = sum(len(str(m["content"])) for session in kept.values() for m in session["messages"].values())
        if n_text + 200 * n_messages < _LARGE_BYTES // 2 or (size := len(json.dumps(kept))) < _LARGE_BYTES:
            return
        self._said.add("large")
        histories = [session.history for session in self.sessions.values()]
        gone = [history.messages[id].stored for history in histories for id in history.unreachable()]
        self._notify(
            f"The conversations in this notebook take {size / 1e6:.1f} MB; %chat_prune would free "
            f"{len(json.dumps(gone)) / 1e6:.1f} MB of that."
        )


def _says_something(stored: Mapping[str, Any]) -> bool:
    return any(message["role"] != "system" for message in stored["messages"].values())


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
