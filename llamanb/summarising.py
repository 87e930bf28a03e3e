"""Condenser and Summarising: the model sums up what does not fit, and the answer goes on from that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from llamanb.engine.base import Generation, GenerationResult, Progress
from llamanb.errors import ContextWindowExceededError, EngineError
from llamanb.fitting import Parts, SendPlan, Window
from llamanb.messages import FinishReason, Message, Usage

__all__ = ["SUMMARY_PROMPT", "Condensed", "Condenser", "Summarising", "planned_summary"]

SUMMARY_PROMPT = (
    "Sum up our conversation so far in a few sentences, so that we can go on from your summary alone. Keep names, "
    "numbers, decisions and open questions."
)
"""What the model is asked for a summary with; it stands in the conversation before it."""

_SUMMARY = 8
"""The part of the context window that a summary may take: one in so many tokens."""

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Condensed:
    """What a path is gone on from.

    Parameters
    ----------
    path
        The system prompt, the summary with its question, pinned exchanges, the recent ones, and what is asked now.
    plan
        How that fits.
    pins
        The ids of messages that are pinned, those of their copies on the path among them.
    """

    path: list[Message]
    plan: SendPlan
    pins: set[str]


def planned_summary(path: Sequence[Message], window: Window, pins: Container[str]) -> tuple[SendPlan, int]:
    """Return the plan of a send whose path may have to be summed up, and how many exchanges are summed up first.

    Raises
    ------
    ContextWindowExceededError
        Summing up cannot make it fit.
    """
    n_whole = window.count(path)
    if n_whole <= window.room:
        return window.plan(n_whole, window.reserve), 0
    parts = Parts(path, pins)
    n = _n_summed_up(parts, window)
    n_least = _n_after(parts, len(parts.groups), window) - _budget(window)
    if n is None or n_least >= window.n_ctx:
        raise ContextWindowExceededError(n_least if n_least >= window.n_ctx else n_whole, window.n_ctx)
    n_prompt = min(_n_after(parts, n, window), window.n_ctx - 1)
    gone = [message for group in parts.groups[:n] if not parts.is_pinned(group) for message in group]
    return window.plan(n_prompt, window.reserve, gone, summarised=True), n


def _budget(window: Window) -> int:
    """Return how many tokens a summary may have."""
    return max(16, window.n_ctx // _SUMMARY)


def _asked(parts: Parts, n: int) -> list[Message]:
    """Return the path on which the model is asked to sum up the first `n` exchanges."""
    said = [*parts.head, *(message for group in parts.groups[:n] for message in group)]
    return [*said, Message.create("user", SUMMARY_PROMPT, parent=said[-1].id)]


def _n_after(parts: Parts, n: int, window: Window) -> int:
    """Return the most tokens that the prompt has once the first `n` exchanges are summed up."""
    exchange = [Message.create("user", SUMMARY_PROMPT), Message.create("assistant", "…")]
    kept = [group for group in parts.groups[:n] if parts.is_pinned(group)] + parts.groups[n:]
    left = [*parts.head, *exchange, *(message for group in kept for message in group), *parts.question]
    return window.count(left) + _budget(window)


def _n_summed_up(parts: Parts, window: Window) -> int | None:
    """Return how many exchanges to sum up: as few as leave room for some time, of those that the model can read."""
    readable = [n for n in range(1, len(parts.groups) + 1) if not parts.is_pinned(parts.groups[n - 1])]
    readable = [n for n in readable if window.count(_asked(parts, n)) + _budget(window) <= window.n_ctx]
    for n in readable:
        if _n_after(parts, n, window) <= window.target:
            return n
    first = next((n for n in readable if not _is_summary(parts.groups[n - 1])), None)
    return readable[-1] if readable and first is not None else None


def _is_summary(group: Sequence[Message]) -> bool:
    return group[0].content == SUMMARY_PROMPT and group[-1].stands_for is not None


class Condenser:
    """Makes a path fit by summaries, once for all the answers that are to go on from it.

    Parameters
    ----------
    path
        The path with the question.
    window
        What it must fit into.
    pins
        The ids of messages that stay as they are.
    ask
        Starts the answer to a path with at most so many tokens.
    write
        Makes the message of a summary: of the question for it, what came of it, and the last message it sums up.
    """

    def __init__(
        self,
        path: Sequence[Message],
        window: Window,
        pins: Iterable[str],
        ask: Callable[[Sequence[Message], int], Generation],
        write: Callable[[Message, GenerationResult, Message], Message],
    ) -> None:
        self._path = list(path)
        self._window = window
        self._pins = set(pins)
        self._ask = ask
        self._write = write
        self._lock = threading.Lock()
        self._condensed: Condensed | None = None
        self._originals: dict[str, Message] = {}

    def condense(self, watch: Callable[[Generation | None], bool]) -> Condensed | None:
        """Return what to go on from; ``None`` where it was cancelled.

        Parameters
        ----------
        watch
            Is told of the generation that runs, if one does, and returns whether it is still wanted.

        Raises
        ------
        ContextWindowExceededError
            Summing up cannot make it fit.
        EngineError
            The model says nothing when it is asked for a summary.
        """
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            if not watch(None):
                return None
        try:
            if self._condensed is None:
                self._condensed = self._make(watch)
            return self._condensed
        finally:
            self._lock.release()

    def _make(self, watch: Callable[[Generation | None], bool]) -> Condensed | None:
        path, pins, own = self._path, set(self._pins), {message.id for message in self._path}
        gone: list[Message] = []
        while True:
            plan, n = planned_summary(path, self._window, pins)
            if not n:
                left_out = tuple(message for message in gone if message.id in own)
                return Condensed(path, replace(plan, left_out=left_out, summarised=True), pins)
            gone += [self._originals.get(message.id, message) for message in plan.left_out]
            parts = Parts(path, pins)
            generation = self._ask(_asked(parts, n), _budget(self._window))
            while not generation.wait_finished(_POLL_SECONDS):
                if not watch(generation):
                    generation.cancel()
            result = generation.result()
            if result.finish_reason is FinishReason.CANCELLED:
                return None
            if result.error is not None:
                raise result.error
            if not result.text.strip():
                raise EngineError(
                    "The model said nothing when it was asked to sum up the conversation, which does not fit any more. "
                    "Go on with the overflow policy drop_oldest, or fork further up."
                )
            path, moved = self._rebuilt(parts, n, result)
            pins |= {moved[id] for id in pins & moved.keys()}

    def _rebuilt(self, parts: Parts, n: int, result: GenerationResult) -> tuple[list[Message], dict[str, str]]:
        """Return the path with a summary in place of the first `n` exchanges, and the ids of the copies on it."""
        path = list(parts.head)
        path.append(Message.create("user", SUMMARY_PROMPT, parent=path[-1].id if path else None))
        last = parts.groups[n - 1][-1]
        path.append(self._write(path[-1], result, self._originals.get(last.id, last)))
        moved: dict[str, str] = {}
        pinned = [group for group in parts.groups[:n] if parts.is_pinned(group)]
        for message in [message for group in [*pinned, *parts.groups[n:], parts.question] for message in group]:
            original = self._originals.get(message.id, message)
            is_said = message not in parts.question
            copy = replace(message, stands_for=original.id if is_said else None).below(path[-1].id)
            self._originals[copy.id] = original
            moved[message.id] = copy.id
            path.append(copy)
        return path, moved


class Summarising(Generation):
    """An answer before which its path is summed up.

    Parameters
    ----------
    condenser
        Sums the path up.
    begin
        Starts the answer to what there is to go on from.
    """

    def __init__(self, condenser: Condenser, begin: Callable[[Condensed], Generation]) -> None:
        super().__init__(self._pass_on)
        self._condenser = condenser
        self._begin = begin
        self._running: Generation | None = None
        threading.Thread(target=self._run, name="llamanb-summary", daemon=True).start()

    def _pass_on(self) -> None:
        running = self._running
        if running is not None:
            running.cancel()

    @property
    def progress(self) -> Progress:
        """How far the generation is that runs now."""
        return super().progress if self._running is None else self._running.progress

    def _watch(self, generation: Generation | None) -> bool:
        self._running = generation
        return not self.cancelled

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            condensed = self._condenser.condense(self._watch)
            if condensed is None:
                self.finish(GenerationResult("", FinishReason.CANCELLED, Usage()))
                return
            waited = time.perf_counter() - started
            self._running = answer = self._begin(condensed)
            if self.cancelled:
                answer.cancel()
            for chunk in answer:
                self.emit(chunk)
            result = answer.result()
        except Exception as error:  # whatever goes wrong, somebody waits for the end
            self.finish(GenerationResult("", FinishReason.ERROR, Usage(), error=error))
            return
        usage = replace(result.usage, prefill_seconds=result.usage.prefill_seconds + waited)
        self.finish(replace(result, usage=usage))
