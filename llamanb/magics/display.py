"""One display an answer: streamed while somebody watches, shown once when nobody does."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from IPython.display import DisplayHandle, display

from llamanb.messages import FinishReason
from llamanb.rendering import answer_markdown, code_block, first_code_block, markdown_html, side_by_side
from llamanb.reply import Reply

__all__ = ["AnswerDisplay", "bundle"]

_SECONDS_BETWEEN_UPDATES = 0.1
_CHARACTERS_PER_UPDATE_RATE = 20_000


class AnswerDisplay:
    """The display of one answer, or of several beside each other.

    Parameters
    ----------
    form
        ``"md"``, ``"text"``, ``"json"`` or ``"code"``.
    live
        Whether to show the answers while they are written.
    titles
        What stands above each of several answers.
    alternatives
        Whether they answer at one place: then equal ones are shown once.
    """

    def __init__(self, form: str, *, live: bool, titles: Sequence[str], alternatives: bool = False) -> None:
        self._form = form
        self._live = live
        self._titles = titles
        self._alternatives = alternatives
        self._handle: DisplayHandle | None = None
        self._texts = [""] * len(titles)
        self._shown_at = 0.0

    def add(self, index: int, text: str) -> None:
        """Show more of an answer, about ten times a second and less often as they grow."""
        self._texts[index] += text
        if not self._live:
            return
        pause = _SECONDS_BETWEEN_UPDATES * (1 + sum(map(len, self._texts)) / _CHARACTERS_PER_UPDATE_RATE)
        if time.monotonic() - self._shown_at >= pause:
            self._show(_beside(self._titles, [bundle(text, self._form, whole=False) for text in self._texts]), {})

    def finish(self, replies: Sequence[Reply], metadata: dict[str, Any]) -> None:
        """Show the whole answers, with what a notebook needs to know about them in the output's metadata."""
        kept = [(title, reply) for title, reply in zip(self._titles, replies, strict=True) if reply.messages]
        titles, shown = _merged(kept) if self._alternatives else ([t for t, _ in kept], [r for _, r in kept])
        bundles = [bundle(r.text, self._form, whole=r.finish_reason is FinishReason.STOP) for r in shown]
        self._show(_beside(titles, bundles), metadata)

    def _show(self, data: dict[str, str], metadata: dict[str, Any]) -> None:
        if self._handle is not None:
            self._handle.update(data, raw=True, metadata=metadata)
        else:
            self._handle = display(data, raw=True, metadata=metadata, display_id=True if self._live else None)
        self._shown_at = time.monotonic()


def _merged(answers: Sequence[tuple[str, Reply]]) -> tuple[list[str], list[Reply]]:
    """Return the different ones of some numbered alternatives, and titles that say which they are."""
    numbers: dict[str, list[str]] = {}
    firsts: dict[str, Reply] = {}
    for number, reply in answers:
        numbers.setdefault(reply.text, []).append(number)
        firsts.setdefault(reply.text, reply)
    if len(firsts) == 1 and len(answers) > 1:
        return [f"All {len(answers)} answers are the same"], list(firsts.values())
    titles = []
    for found in numbers.values():
        remarks = ["the same"] * (len(found) > 1) + ["goes on"] * ("1" in found)
        titles.append(", ".join(found) + (f" ({', '.join(remarks)})" if remarks else ""))
    return titles, list(firsts.values())


def _beside(titles: Sequence[str], bundles: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return one MIME bundle of several; that of a single answer without a title as it is."""
    if len(bundles) == 1 and not titles[0]:
        return bundles[0]
    plain = "\n\n".join(f"{title}:\n{data['text/plain']}" for title, data in zip(titles, bundles, strict=True))
    if "text/markdown" not in bundles[0]:
        return {"text/plain": plain}
    columns = [data["text/markdown"] for data in bundles]
    headed = [f"**{answer_markdown(title)}**\n\n{column}" for title, column in zip(titles, columns, strict=True)]
    return {
        "text/html": side_by_side(titles, [markdown_html(column) for column in columns]),
        "text/markdown": "\n\n".join(headed),
        "text/plain": plain,
    }


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
