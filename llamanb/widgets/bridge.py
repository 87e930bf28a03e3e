"""NotebookBridge: reaches the notebook that is open in JupyterLab or Notebook 7. It has no view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget

from llamanb.documents import Documents

__all__ = ["NotebookBridge"]

_STATIC = Path(__file__).parent / "static"


class NotebookBridge(anywidget.AnyWidget):
    """Carries messages between the open documents and what the kernel knows of them."""

    _esm = _STATIC / "notebook_bridge.js"
    _css = _STATIC / "notebook_bridge.css"

    def __init__(self, documents: Documents) -> None:
        super().__init__()
        self._documents = documents
        self.on_msg(self._received)
        self._free_thread()

    def send(self, content: dict[str, Any], buffers: Any = None) -> None:
        """Send a message to every front end."""
        super().send(content, buffers)
        self._free_thread()

    def _received(self, _: Any, content: dict[str, Any], __: Any) -> None:
        self._documents.receive(content)

    def _free_thread(self) -> None:
        """Let what front ends send be received while a cell runs.

        ipykernel 7 hands a front end's message to the thread that published on its comm last, which is the main one
        and busy; without a note of that it goes to a thread of its own. (`BaseComm._reply_subshell_id` in
        ipykernel/comm/comm.py.) Where the note is not there, messages wait for the cell, and nothing depends on them.
        """
        self.comm.__dict__.pop("_reply_subshell_id", None)

    def __repr__(self) -> str:
        return "<NotebookBridge>"
