"""NotebookBridge: reaches the notebook that is open in JupyterLab or Notebook 7. It has no view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llamanb.documents import Documents
from llamanb.widgets.messenger import Messenger

__all__ = ["NotebookBridge"]

_STATIC = Path(__file__).parent / "static"


class NotebookBridge(Messenger):
    """Carries messages between the open documents and what the kernel knows of them."""

    _esm = _STATIC / "notebook_bridge.js"
    _css = _STATIC / "notebook_bridge.css"

    def __init__(self, documents: Documents) -> None:
        super().__init__()
        self._documents = documents

    def receive(self, content: dict[str, Any]) -> None:
        """Take a report of a front end's."""
        self._documents.receive(content)
