"""LiveDocument: what the kernel knows of a notebook that is open, and what it may write there. Pure; no I/O."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from llamanb.errors import HistoryFormatError, SchemaVersionError
from llamanb.persistence.notebook import EMPTY, KEY, read_document
from llamanb.persistence.patch import make_patch, same
from llamanb.persistence.schema import SCHEMA, merge_sessions

__all__ = ["LiveDocument", "Sessions", "merged_sessions"]

Sessions = dict[str, dict[str, Any]]
"""Sessions by name, in the form of `llamanb.ChatSession.to_dict`."""


_N_UNANSWERED = 20
"""Changes that are remembered until they are answered; a front end that is gone never does."""

_READ_ONLY = "This notebook is read-only: what is said here is lost when it is closed."


class LiveDocument:
    """The notebook that is open in one front end.

    The kernel writes changes without waiting for an answer. The front end carries them out only over the revision that
    they were made for; otherwise it sends what it holds, under a new revision, and the kernel merges and writes again.

    Parameters
    ----------
    client
        Tells front ends apart.
    """

    def __init__(self, client: str) -> None:
        self.client = client
        self.session: str | None = None
        """The front end's part in the headers of its execute requests."""
        self.cells: list[str] = []
        self.stripped = False
        self.revision = -1  # of what was merged last; what has arrived since is not written over
        self.problem: str | None = None
        """What is wrong with what it holds, as a sentence; said once."""
        self._writable = True
        self._is_newer = False
        self._content: dict[str, Any] = {}  # as the front end holds it once it has carried out what was sent
        self._set_aside: dict[str, Any] = {}  # as it came, with what is damaged out of the way
        self._agreed: Sessions | None = None  # the last version that both had
        self._sent = collections.deque[tuple[int, dict[str, Any]]](maxlen=_N_UNANSWERED)
        self._arrived: tuple[int, dict[str, Any]] | None = None

    def arrive(self, report: Mapping[str, Any]) -> None:
        """Take what the front end says of its document; it is merged when the kernel comes to it.

        It says it again until it is answered; what comes under the same revision is older than what was written since.
        """
        revision = int(report["revision"])
        if revision <= (self.revision if self._arrived is None else self._arrived[0]):
            return
        self.session = report.get("session")
        self._writable = bool(report.get("writable", True))
        self._arrived = revision, dict(report["content"])

    @property
    def takes_writes(self) -> bool:
        """Whether what is written there comes into the file."""
        return self._writable and not self._is_newer

    def order_differs(self, before: Iterable[str], cell: str) -> bool:
        """Whether a cell goes on from some that stand below it."""
        places = {id: index for index, id in enumerate(self.cells)}
        return cell in places and any(places.get(other, -1) > places[cell] for other in before)

    @property
    def has_arrived(self) -> bool:
        """Whether something has come that was not merged yet."""
        return self._arrived is not None

    def confirm(self, request: int) -> None:
        """Take note that a change was carried out, and all those before it."""
        while self._sent and self._sent[0][0] <= request:
            self._agreed = _sessions(self._sent.popleft()[1])

    def merge(self, ours: Sessions, restored: Sessions) -> Sessions | None:
        """Return the kernel's sessions with what has arrived; ``None`` where nothing has.

        Parameters
        ----------
        ours
            The kernel's sessions.
        restored
            What the kernel started with, which stands for the last version that both had until there is one.
        """
        if self._arrived is None:
            return None
        (self.revision, content), self._arrived = self._arrived, None
        self._content = content
        self._sent.clear()
        self._is_newer = False
        self.problem = None if self._writable else _READ_ONLY
        theirs: Sessions = {}
        self._set_aside = dict(content)
        try:
            theirs = read_document(self._set_aside).sessions
        except SchemaVersionError as error:
            self._is_newer = True
            self.problem = str(error)
        except HistoryFormatError as error:
            self.problem = f"The conversation in this notebook is damaged and is kept aside in its metadata: {error}."
        merged = merged_sessions(restored if self._agreed is None else self._agreed, theirs, ours)
        self._agreed = theirs
        return merged

    def changes(self, request: int, sessions: Sessions) -> list[dict[str, Any]]:
        """Return the patch that makes the document hold these sessions, and count it as sent."""
        if self._is_newer or self._arrived is not None or self.revision < 0:
            return []
        wanted = dict(self._set_aside)
        if sessions:
            wanted[KEY] = {**wanted.get(KEY, {}), "schema": SCHEMA, "sessions": sessions}
        else:
            wanted.pop(KEY, None)
        patch = make_patch(self._content, wanted)
        if patch:
            self._content = wanted
            self._sent.append((request, wanted))
        return patch


def merged_sessions(base: Sessions, ours: Sessions, theirs: Sessions) -> Sessions:
    """Merge sessions by name; one that only one side has is kept, and in a conflict `ours` keeps the name."""
    merged: Sessions = {}
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name in ours and name in theirs and not same(ours[name], theirs[name]):
            merged[name] = merge_sessions(base.get(name, EMPTY), ours[name], theirs[name])
        else:
            merged[name] = ours[name] if name in ours else theirs[name]
    return merged


def _sessions(content: Mapping[str, Any]) -> Sessions:
    return dict(content.get(KEY, {}).get("sessions", {}))
