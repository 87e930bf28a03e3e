"""One display an answer: streamed while somebody watches, shown once when nobody does."""

from __future__ import annotations

import json
import time
from typing import Any

from IPython.display import DisplayHandle, display

from llamanb.messages import FinishReason
from llamanb.rendering import answer_markdown, code_block, first_code_block
from llamanb.reply import Reply

__all__ = ["AnswerDisplay", "bundle"]

_SECONDS_BETWEEN_UPDATES = 0.1
_CHARACTERS_PER_UPDATE_RATE = 20_000


class AnswerDisplay:
    """The display of one answer.

    Parameters
    ----------
    form
        ``"md"``, ``"text"``, ``"json"`` or ``"code"``.
    live
        Whether to show the answer while it is written.
    """

    def __init__(self, form: str, *, live: bool) -> None:
        self._form = form
        self._live = live
        self._handle: DisplayHandle | None = None
        self._text = ""
        self._shown_at = 0.0

    def add(self, text: str) -> None:
        """Show more of the answer, about ten times a second and less often as it grows."""
        self._text += text
        if not self._live:
            return
        pause = _SECONDS_BETWEEN_UPDATES * (1 + len(self._text) / _CHARACTERS_PER_UPDATE_RATE)
        if time.monotonic() - self._shown_at >= pause:
            self._show(bundle(self._text, self._form, whole=False), {})

    def finish(self, reply: Reply, metadata: dict[str, Any]) -> None:
        """Show the whole answer, with what a notebook needs to know about it in the output's metadata."""
        self._show(bundle(reply.text, self._form, whole=reply.finish_reason is FinishReason.STOP), metadata)

    def _show(self, data: dict[str, str], metadata: dict[str, Any]) -> None:
        if self._handle is not None:
            self._handle.update(data, raw=True, metadata=metadata)
        else:
            self._handle = display(data, raw=True, metadata=metadata, display_id=True if self._live else None)
        self._shown_at = time.monotonic()


def bundle(text: str, form: str, *, whole: bool = True) -> dict[str, str]:
    """Return the MIME bundle of an answer; `whole` says whether JSON in it can be expected to be complete."""
    if form == "text":
        return {"text/plain": text}
    if form == "json":
        shown = _pretty(text) if whole else text
        return {"text/markdown": code_block(shown, "json"), "text/plain": shown}
    if form == "code":
        code, language = first_code_block(text)
        return {"text/markdown": code_block(code, language), "text/plain": code}
    return {"text/markdown": answer_markdown(text) if text else "*(an empty answer)*", "text/plain": text}


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
