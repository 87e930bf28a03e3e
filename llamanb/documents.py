"""Documents: the notebooks that are open on this kernel, and what is said to the front ends that show them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from llamanb.persistence.live import LiveDocument, Sessions

__all__ = ["Bridge", "Documents"]

_SECONDS_TO_FIRST = 1.0


class Bridge(Protocol):
    """Carries messages to all front ends that show a notebook of this kernel."""

    def send(self, content: dict[str, Any]) -> None:
        """Send a message."""


class Documents:
    """The open notebooks by the front end that shows them; more than one where a notebook is open in two tabs.

    What comes from a front end comes in any thread, and is kept until the kernel is between two cells or two commands.
    Nothing here waits for a front end but `wait`, and that once.
    """

    def __init__(self) -> None:
        self.make_bridge: Callable[[Documents], Bridge] | None = None
        self.arrived: Callable[[], None] = lambda: None
        self._bridge: Bridge | None = None
        self._lock = threading.RLock()
        self._open: dict[str, LiveDocument] = {}
        self._first = threading.Event()
        self._n_requests = 0
        self._stale: list[str] = []
        self._told: set[str] = set()
        self._removed: set[str] = set()  # cells that some document held, and then no longer
        self._moves: list[tuple[str, str]] = []

    # -- connecting ---------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Make the bridge, if that was not done before."""
        if self._bridge is None and self.make_bridge is not None:
            self._bridge = self.make_bridge(self)

    def wait(self) -> None:
        """Wait until a front end has sent its document, at most a second and only the first time."""
        if self._bridge is not None and not self._first.is_set():
            self._first.wait(_SECONDS_TO_FIRST)
            self._first.set()

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take a message of a front end's; those that another version of it sends are passed over."""
        kind, client = message.get("kind"), str(message.get("id"))
        with self._lock:
            if kind == "document":
                document = self._open.setdefault(client, LiveDocument(client))
                document.arrive(message)
                self._note_cells(document, message["cells"])
                self._mark(document)
            elif client in self._open and kind == "cells":
                self._note_cells(self._open[client], message["cells"])
                self._moves += [(str(cell), str(to)) for cell, to in message["moved"]]
            elif client in self._open and kind == "done":
                self._open[client].confirm(int(message["request"]))
        if kind == "document":
            self._first.set()
        if kind == "document" or self._moves:
            self.arrived()

    @property
    def connected(self) -> bool:
        """Whether there is a document that takes what is written to it."""
        return any(document.takes_writes for document in self._open.values())

    def of(self, session: str | None) -> LiveDocument | None:
        """Return the document in the front end that sent a request, or else the one that came last."""
        with self._lock:
            documents = list(self._open.values())[::-1]
            same = [document for document in documents if session is not None and document.session == session]
            return next(iter([*same, *documents]), None)

    def deleted(self, session: str | None, cells: Iterable[str]) -> list[str]:
        """Return those cells that were deleted, as the document knows in the front end that sent a request.

        One that is in another open document, and was not removed from any, is only not in this one: two tabs without
        collaboration each have their own, and two notebooks may share a kernel.
        """
        document = self.of(session)
        if document is None:
            return []
        with self._lock:
            elsewhere = {cell for other in self._open.values() for cell in other.cells} - self._removed
            return [cell for cell in cells if cell not in document.cells and cell not in elsewhere]

    def take_moves(self) -> list[tuple[str, str]]:
        """Return, once, which cell has become which: the half of one that was split that still asks has a new id."""
        with self._lock:
            moves, self._moves = self._moves, []
        return moves

    def _note_cells(self, document: LiveDocument, cells: Iterable[str]) -> None:
        now = [str(cell) for cell in cells]
        self._removed |= set(document.cells) - set(now)
        self._removed -= set(now) - set(document.cells)
        document.cells = now

    # -- the conversations --------------------------------------------------------------------------------------

    @property
    def connecting(self) -> bool:
        """Whether the bridge has been made."""
        return self._bridge is not None

    @property
    def have_news(self) -> bool:
        """Whether a document has come that was not merged yet."""
        return any(document.has_arrived for document in self._open.values())

    def merge(self, ours: Sessions, restored: Sessions) -> Sessions | None:
        """Return the kernel's sessions with what has arrived since the last time; ``None`` where nothing has."""
        changed = False
        with self._lock:
            for document in self._open.values():
                merged = document.merge(ours, restored)
                if merged is not None:
                    ours, changed = merged, True
                    if document.problem is not None and document.problem not in self._told:
                        self._told.add(document.problem)
                        self._send(document, "notice", text=document.problem)
        return ours if changed else None

    def publish(self, sessions: Sessions, *, strip: bool) -> None:
        """Write what changed into the open documents; with `strip`, outputs too are to carry nothing."""
        with self._lock:
            for document in self._open.values():
                if strip and not document.stripped:
                    self._send(document, "strip", cells=[], carried=True)
                document.stripped = strip
                patch = document.changes(self._n_requests + 1, sessions)
                if patch:
                    self._send(document, "write", revision=document.revision, patch=patch)

    # -- what a person sees -------------------------------------------------------------------------------------

    def insert_cell(self, session: str | None, below: str | None, source: str) -> bool:
        """Insert a cell below another one; false where no document is known that holds that."""
        document = self.of(session)
        if document is None or below not in document.cells:
            return False
        self._send(document, "insert", below=below, source=source)
        return True

    def clear_outputs(self, cells: Iterable[str]) -> None:
        """Remove the outputs of the given cells."""
        cells = sorted(cells)
        if cells:
            for document in list(self._open.values()):
                self._send(document, "strip", cells=cells, carried=False)

    def mark(self, stale: Iterable[str]) -> None:
        """Mark the cells that answer to something that is gone, and no others."""
        with self._lock:
            if self._stale != (stale := sorted(stale)):
                self._stale = stale
                for document in self._open.values():
                    self._mark(document)

    def _mark(self, document: LiveDocument) -> None:
        self._send(document, "mark", stale=self._stale)

    def notify(self, session: str | None, text: str) -> None:
        """Show a sentence in the front end that sent a request; where no document is open, nowhere."""
        document = self.of(session)
        if document is not None:
            self._send(document, "notice", text=text)

    def _send(self, document: LiveDocument, kind: str, **content: Any) -> None:
        if self._bridge is None:
            return
        with self._lock:
            self._n_requests += 1
            self._bridge.send({"kind": kind, "id": self._n_requests, "client": document.client, **content})
