"""Planner: starts answers so that they fit into the context window, by a session's overflow policy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from llamanb.answering import Question
from llamanb.engine.base import Engine, Generation, GenerationRequest, GenerationResult
from llamanb.engine.template import as_seen
from llamanb.fitting import SendPlan, Window, fitted
from llamanb.messages import Message
from llamanb.sampling import SamplingParams, derive_seed
from llamanb.summarising import Condensed, Condenser, Summarising, planned_summary
from llamanb.transforms import Transforms

__all__ = ["Planner", "window_of"]


def window_of(
    engine: Engine,
    transforms: Transforms,
    max_tokens: int,
    *,
    begun: Message | None = None,
    add_generation_prompt: bool = True,
) -> Window:
    """Return the context window of an engine, for prompts as transforms make them of a path."""

    def encode(path: Sequence[Message]) -> list[int]:
        return transforms.encode(engine, path, begun=begun, add_generation_prompt=add_generation_prompt)

    return Window(engine.n_ctx, max_tokens, encode)


class Planner:
    """Plans and starts the answers to questions that are asked together.

    Parameters
    ----------
    engine
        Who answers.
    overflow
        What is done with a path that does not fit.
    pins
        The ids of messages that stay in the prompt.
    submit
        Starts a generation.
    derived
        Whether seeds are derived from what is answered.
    """

    def __init__(
        self,
        engine: Engine,
        overflow: str,
        pins: Iterable[str],
        submit: Callable[[GenerationRequest], Generation],
        *,
        derived: bool,
    ) -> None:
        self._engine = engine
        self._overflow = overflow
        self._pins = set(pins)
        self._submit = submit
        self._derived = derived
        self._condensers: dict[str, Condenser] = {}

    def _window(self, question: Question) -> Window:
        n_wanted = 1 if question.prefill_only else question.sampling.max_tokens
        return window_of(self._engine, question.transforms, n_wanted, begun=question.begun)

    def plan(self, question: Question) -> SendPlan:
        """Return how the answer to a question would fit; nothing is evaluated."""
        return self._planned(question, self._window(question))[1]

    def _planned(self, question: Question, window: Window) -> tuple[list[Message] | None, SendPlan]:
        """Return what the model is given of a path, or ``None`` where it is to be summed up first, and the plan."""
        given: list[Message] | None = question.path
        if self._sums_up(question):
            plan, n = planned_summary(question.path, window, self._pins)
            given = None if n else given
        else:
            policy = "drop_oldest" if self._overflow == "summarise" else self._overflow
            given, plan = fitted(question.path, window, policy, self._pins)
        if question.summed_up and not plan.left_out:
            plan = replace(plan, left_out=tuple(question.summed_up), summarised=True)
        return given, plan

    def begin(self, question: Question) -> Generation:
        """Start the answer to a question, and note its plan there.

        Raises
        ------
        ContextWindowExceededError
            It does not fit; nothing was decoded.
        """
        window = self._window(question)
        given, question.plan = self._planned(question, window)
        if given is not None:
            return self._ask(question, given, window.tokens(given))
        condenser = self._condensers.setdefault(question.path[-1].id, self._condenser(question, window))
        return Summarising(condenser, functools.partial(self._go_on, question))

    def _sums_up(self, question: Question) -> bool:
        """Whether a question may be answered on a copy of its path; what is written again stays where it is."""
        written_again = question.begun is not None or question.replaced is not None
        return self._overflow == "summarise" and not written_again and not question.prefill_only

    def _ask(self, question: Question, given: Sequence[Message], tokens: list[int]) -> Generation:
        messages = given if question.begun is None else [*given, question.begun]
        return self._submit(GenerationRequest(as_seen(messages), tokens, question.sampling, question.prefill_only))

    def _condenser(self, question: Question, window: Window) -> Condenser:
        engine, transforms = self._engine, question.transforms
        plain = SamplingParams(temperature=0.0, stop=transforms.stop)

        def ask(path: Sequence[Message], max_tokens: int) -> Generation:
            sampling = plain.replace(max_tokens=max_tokens)
            return self._submit(GenerationRequest(as_seen(path), transforms.encode(engine, path), sampling))

        def write(asked: Message, result: GenerationResult, last: Message) -> Message:
            return Message.create(
                "assistant",
                transforms.answer_messages(result.text)[-1].content,
                parent=asked.id,
                finish_reason=result.finish_reason,
                model=engine.fingerprint,
                sampling=plain.acting(),
                stands_for=last.id,
            )

        return Condenser(question.path, window, self._pins, ask, write)

    def _go_on(self, question: Question, condensed: Condensed) -> Generation:
        question.path, question.plan, question.pins = list(condensed.path), condensed.plan, condensed.pins
        if self._derived:  # as where the summary is there already
            unseeded = question.sampling.replace(seed=None)
            question.sampling = derive_seed(unseeded, question.path[-1].id, question.nth)
        tokens = question.transforms.encode(self._engine, question.path)
        return self._ask(question, question.path, tokens)
