"""One display an answer: streamed while somebody watches, shown once when nobody does."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from IPython.display import DisplayHandle, display

from llamanb.messages import FinishReason
from llamanb.rendering import answer_markdown, code_block, first_code_block, markdown_html, plain_markdown, side_by_side
from llamanb.reply import Reply
from llamanb.wording import counted

__all__ = ["AnswerDisplay", "Displays", "View", "bundle"]

_REMOVED = {"text/markdown": "*(removed)*", "text/plain": "(removed)"}

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
        self.form = form
        self.live = live
        self._titles = titles
        self._alternatives = alternatives
        self._handle: DisplayHandle | None = None
        self._replies: list[Reply] = []
        self._texts = [""] * len(titles)
        self._goes_on = ""
        self._again: list[DisplayHandle] = []

    def add(self, pieces: Sequence[tuple[int, str]]) -> None:
        """Show more of the answers, given by their index."""
        for index, text in pieces:
            self._texts[index] += text
        if pieces:
            self._show(_beside(self._titles, [bundle(text, self.form, whole=False) for text in self._texts]), {})

    def pause(self) -> float:
        """Return how many seconds should pass before more is shown: a tenth, and longer as the answers grow."""
        return _SECONDS_BETWEEN_UPDATES * (1 + sum(map(len, self._texts)) / _CHARACTERS_PER_UPDATE_RATE)

    def finish(self, replies: Sequence[Reply], metadata: Mapping[str, Any]) -> None:
        """Show the whole answers, with what a notebook needs to know about them in the output's metadata."""
        self._replies = list(replies)
        self._goes_on = next((t for t, r in zip(self._titles, replies, strict=True) if r.messages), "")
        self._show(self._whole(), metadata)

    def show_again(self) -> None:
        """Show the whole answers in the cell that runs now; what they are to the conversation stays where it is."""
        self._again.append(display(self._whole(), raw=True, display_id=True))

    @property
    def shows_answers(self) -> bool:
        """Whether it still shows an answer: what was pruned is gone from it."""
        return any(reply.messages for reply in self._replies)

    def holds(self, ids: Container[str]) -> bool:
        """Whether it shows any of these messages."""
        return any(message.id in ids for reply in self._replies for message in reply.messages)

    def remove(self, ids: Container[str], metadata: Callable[[Sequence[Reply]], Mapping[str, Any]]) -> None:
        """Show no more of these messages, in the output where they stand."""
        gone = [any(message.id in ids for message in reply.messages) for reply in self._replies]
        self._replies = [replace(r, messages=()) if lost else r for r, lost in zip(self._replies, gone, strict=True)]
        left = [reply for reply in self._replies if reply.messages]
        shown = self._whole() if left else _REMOVED
        self._show(shown, metadata(left) if left else {})
        for handle in self._again:
            handle.update(shown, raw=True)

    def _whole(self) -> dict[str, str]:
        kept = [(title, reply) for title, reply in zip(self._titles, self._replies, strict=True) if reply.messages]
        titles, shown = (
            _merged(kept, self._goes_on) if self._alternatives else ([t for t, _ in kept], [r for _, r in kept])
        )
        return _beside(titles, [_noted(r, bundle(r.text, self.form, whole=_is_whole(r))) for r in shown])

    def _show(self, data: dict[str, str], metadata: Mapping[str, Any]) -> None:
        if self._handle is not None:
            self._handle.update(data, raw=True, metadata=dict(metadata))
        else:
            self._handle = display(data, raw=True, metadata=dict(metadata), display_id=True)


class View:
    """A display of what is in a conversation: a branch, the tree.

    Parameters
    ----------
    data
        The MIME bundle.
    ids
        The messages that it shows.
    """

    def __init__(self, data: dict[str, str], ids: Iterable[str]) -> None:
        self._handle: DisplayHandle = display(data, raw=True, display_id=True)
        self._ids = set(ids)

    def holds(self, ids: Container[str]) -> bool:
        """Whether it shows any of these messages."""
        return any(id in ids for id in self._ids)

    def remove(self, *_: Any) -> None:
        """Show no more of the conversation; run its cell again to see what there is."""
        self._ids.clear()
        self._handle.update(_REMOVED, raw=True)


class Displays:
    """What cells of this kernel show of conversations, the last thousand of them."""

    def __init__(self) -> None:
        self._shown: collections.deque[tuple[str, AnswerDisplay | View]] = collections.deque(maxlen=1000)

    def add(self, session: str, shown: AnswerDisplay | View) -> None:
        """Remember what a session's messages are shown in."""
        self._shown.append((session, shown))

    def last(self, session: str) -> AnswerDisplay | None:
        """Return the last display of a session's answers that still shows any."""
        answers = ((name, shown) for name, shown in reversed(self._shown) if isinstance(shown, AnswerDisplay))
        return next((shown for name, shown in answers if name == session and shown.shows_answers), None)

    def holding(self, session: str, ids: Container[str]) -> list[AnswerDisplay | View]:
        """Return the displays that show any of these messages of a session."""
        return [shown for name, shown in self._shown if name == session and shown.holds(ids)]


def _merged(answers: Sequence[tuple[str, Reply]], first: str) -> tuple[list[str], list[Reply]]:
    """Return the different ones of some numbered alternatives, and titles that say which they are.

    The branch went on from the one with the number `first`.
    """
    numbers: dict[str, list[str]] = {}
    firsts: dict[str, Reply] = {}
    for number, reply in answers:
        numbers.setdefault(reply.text, []).append(number)
        firsts.setdefault(reply.text, reply)
    if len(firsts) == 1 and len(answers) > 1:
        return [f"All {len(answers)} answers are the same"], list(firsts.values())
    titles = []
    for found in numbers.values():
        remarks = ["the same"] * (len(found) > 1) + ["goes on"] * (first in found)
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
    headed = [f"**{plain_markdown(title)}**\n\n{column}" for title, column in zip(titles, columns, strict=True)]
    return {
        "text/html": side_by_side(titles, [markdown_html(column) for column in columns]),
        "text/markdown": "\n\n".join(headed),
        "text/plain": plain,
    }


def _is_whole(reply: Reply) -> bool:
    return reply.finish_reason is FinishReason.STOP


def _noted(reply: Reply, data: dict[str, str]) -> dict[str, str]:
    """Return the MIME bundle of an answer with what is to be said about its prompt below it."""
    if reply.plan is None or not reply.plan.left_out:
        return data
    gone = counted(len(reply.plan.left_out), "earlier message")
    done = "the model went on from its own summary of them" if reply.plan.summarised else "left out of the prompt"
    note = f"{gone} did not fit: {done}."
    noted = {"text/plain": f"{data['text/plain']}\n\n({note})"}
    if "text/markdown" in data:
        noted["text/markdown"] = f"{data['text/markdown']}\n\n*({note})*"
    return noted


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
