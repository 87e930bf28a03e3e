"""Transcript: what a panel shows of a session, worked out in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from llamanb.answering import Answering
from llamanb.engine.base import Generation
from llamanb.errors import LlamanbError
from llamanb.history import History
from llamanb.message_html import message_blocks, plain_block
from llamanb.messages import FinishReason, Message, preview
from llamanb.session import ChatSession
from llamanb.wording import counted

__all__ = ["SETTINGS", "Transcript"]

SETTINGS = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed")
"""The fields of `SamplingParams` that the panel's drawer shows."""

_FAST = 100  # tokens per second, from which on a decimal says nothing

_CUT_OFF = {
    FinishReason.LENGTH: "The answer was cut off where it had the most tokens it may have.",
    FinishReason.CANCELLED: "The answer was stopped.",
    FinishReason.ERROR: "The answer failed before its end.",
}


class Transcript:
    """A session as JSON values for a panel. Messages never change, so that each is rendered once."""

    def __init__(self, session: ChatSession) -> None:
        self.session = session
        self._rendered: dict[str, dict[str, Any]] = {}
        self._n_tokens: tuple[object, int | None] = (None, None)

    # -- the whole ----------------------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """Return what the panel shows beside the messages, and the ids of the path."""
        history, answering = self.session.snapshot()
        answer = next((a for a in answering if a.branch == history.active), None)
        path = list(answer.path) if answer is not None else history.branch_path(history.active)
        busy = {a.branch for a in answering}
        n_lost = len(history.unreachable())
        return {
            "model": self.session.engine.name,
            "branch": history.active,
            "branches": [self._branch(history, name, name in busy) for name in history.branches],
            "suggested": _free_name(history),
            "path": [message.id for message in path],
            "places": _places(history, path),
            "answering": answer is not None,
            "begun": answer.begun.id if answer and answer.begun and answer.begun.id in history.messages else None,
            "n_lost": n_lost,
            "lost": counted(n_lost, "message"),
            "meter": self._meter(path),
            "settings": {name: _shown(getattr(self.session.sampling, name)) for name in SETTINGS},
            "system": self.session.system or "",
            "system_fixed": any(message.role != "system" for message in path),
        }

    def items(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return messages of the tree, or of answers that are being written, by their ids."""
        history, answering = self.session.snapshot()
        asked = {message.id: message for answer in answering for message in answer.path}
        return {id: self._item(history, history.messages.get(id) or asked[id]) for id in ids}

    def _branch(self, history: History, name: str, busy: bool) -> dict[str, Any]:
        path = history.branch_path(name)
        words = next((preview(message.text, 60) for message in reversed(path) if message.role == "user"), "")
        n_said = sum(message.role != "system" for message in path)
        return {"name": name, "said": counted(n_said, "message"), "words": words, "busy": busy}

    def _meter(self, path: list[Message]) -> dict[str, Any]:
        """Return how much of the context window the path takes, and what the last answer cost."""
        transforms = self.session.transforms
        key = (path[-1].id if path else None, self.session.engine, transforms.history)
        if self._n_tokens[0] != key:
            try:
                n_tokens = len(transforms.encode(self.session.engine, path, add_generation_prompt=False))
            except LlamanbError:  # the template refuses the path, or the engine is closed: there is no count
                n_tokens = None
            self._n_tokens = (key, n_tokens)
        meter: dict[str, Any] = {"n_tokens": self._n_tokens[1], "n_ctx": self.session.engine.n_ctx, "usage": None}
        usage = self.session.last_usage
        if usage is not None:
            rate = usage.n_generated / usage.decode_seconds if usage.decode_seconds > 0 else 0.0
            meter["usage"] = {
                "n_cached": usage.n_cached,
                "n_prefilled": usage.n_prefilled,
                "n_generated": usage.n_generated,
                "tokens_per_second": f"{rate:,.{0 if rate >= _FAST else 1}f}",
            }
        return meter

    # -- messages -----------------------------------------------------------------------------------------------

    def _item(self, history: History, message: Message) -> dict[str, Any]:
        if message.id not in self._rendered:
            self._rendered[message.id] = self._rendering(history, message)
        return self._rendered[message.id]

    def _rendering(self, history: History, message: Message) -> dict[str, Any]:
        is_prose = message.role in ("assistant", "user")
        text = message.text
        item: dict[str, Any] = {
            "role": message.role,
            "text": text,
            "blocks": message_blocks(text) if is_prose else [plain_block(text)],
            "calls": [{"name": call.name, "arguments": call.arguments_text} for call in message.tool_calls],
        }
        if message.reasoning:
            item["reasoning"] = self.reasoning(message.reasoning)
        if message.role == "tool":
            item["tool"] = _called(history, message)
        if message.finish_reason in _CUT_OFF:
            item["cut"] = _CUT_OFF[message.finish_reason]
        return item

    def reasoning(self, text: str) -> dict[str, Any]:
        """Return what the model thought, with how many tokens that is."""
        try:
            n_tokens = len(self.session.engine.tokenize(text))
        except LlamanbError:
            return {"blocks": message_blocks(text), "title": "Reasoning"}
        return {"blocks": message_blocks(text), "title": f"Reasoning · {counted(n_tokens, 'token')}"}

    # -- the answer that is being written -----------------------------------------------------------------------

    def answering(self) -> Answering | None:
        """Return the answer that is being written on the active branch."""
        history, answering = self.session.snapshot()
        return next((answer for answer in answering if answer.branch == history.active), None)

    def writing(self, answer: Answering) -> dict[str, Any]:
        """Return an answer so far, and how far it is."""
        generation = answer.generation
        begun = "" if answer.begun is None else answer.begun.text
        text = generation.so_far()
        reasoning = generation.so_far("reasoning")
        return {
            "blocks": message_blocks(begun + text) if begun or text else [],
            "reasoning": self.reasoning(reasoning) if reasoning else None,
            "stage": "" if text or reasoning else _stage(generation),
        }


def _stage(generation: Generation) -> str:
    """Say what the model does before its first word."""
    progress = generation.progress
    if progress.n_generated or (progress.n_prompt and progress.n_read >= progress.n_prompt):
        return "Writing …"
    if not progress.n_read and not progress.n_cached:
        return f"Waiting to read {progress.n_prompt:,} tokens …"
    cached = f" ({progress.n_cached:,} were cached)" if progress.n_cached else ""
    return f"Reading: {progress.n_read:,} of {progress.n_prompt:,} tokens{cached} …"


def _places(history: History, path: list[Message]) -> dict[str, dict[str, Any]]:
    """Return, for messages with others at their place, which of them it is and its neighbours."""
    total = Counter((message.parent, message.role) for message in history.messages.values())
    places = {}
    for message in path:
        if total[message.parent, message.role] < 2 or message.role == "system" or message.id not in history.messages:
            continue
        alike = [other.id for other in history.siblings(message.id)]
        at = alike.index(message.id)
        places[message.id] = {
            "number": at + 1,
            "total": len(alike),
            "before": alike[at - 1] if at else None,
            "after": alike[at + 1] if at + 1 < len(alike) else None,
        }
    return places


def _called(history: History, message: Message) -> str:
    """Return the name of the tool whose result a message is."""
    for other in history.ancestors(message.parent):
        for call in other.tool_calls:
            if call.id == message.tool_call_id:
                return call.name
    return "tool"


def _free_name(history: History) -> str:
    number = len(history.branches) + 1
    while f"branch-{number}" in history.branches:
        number += 1
    return f"branch-{number}"


def _shown(value: object) -> str:
    return "" if value is None else str(value)
