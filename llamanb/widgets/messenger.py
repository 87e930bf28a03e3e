"""Messenger: a widget that exchanges messages with its front ends, also while a cell runs."""

from __future__ import annotations

from typing import Any

import anywidget

__all__ = ["Messenger"]


class Messenger(anywidget.AnyWidget):
    """The ground of the widgets: `receive` takes what front ends send, in any thread."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_msg(self._received)
        self._free_thread()

    def receive(self, content: dict[str, Any]) -> None:
        """Take a message of a front end's."""
        raise NotImplementedError

    def send(self, content: dict[str, Any], buffers: Any = None) -> None:
        """Send a message to every front end."""
        super().send(content, buffers)
        self._free_thread()

    def _received(self, _: Any, content: dict[str, Any], __: Any) -> None:
        self.receive(content)
        self._free_thread()

    def _free_thread(self) -> None:
        """Let what front ends send be received while a cell runs.

        ipykernel 7 hands a front end's message to the thread that published on its comm last, which is the main one
        and busy; without a note of that it goes to a thread of its own. (`BaseComm._reply_subshell_id` in
        ipykernel/comm/comm.py.) Where the note is not there, messages wait for the cell, and nothing depends on them.
        """
        if self.comm is not None:
            self.comm.__dict__.pop("_reply_subshell_id", None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"
