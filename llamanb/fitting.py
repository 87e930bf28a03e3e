"""What fits: how a send is planned into the context window, and which exchanges are left out of its prompt. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from llamanb.errors import ContextWindowExceededError, InvalidArgumentError
from llamanb.messages import Message

__all__ = ["OVERFLOW_POLICIES", "Parts", "SendPlan", "Window", "check_overflow", "fitted"]

OVERFLOW_POLICIES = ("error", "drop_oldest", "summarise")
"""What may be done with a prompt that does not fit."""

_RESERVE = 4
"""The largest part of the window that is kept free for an answer: one in so many."""

_LEFT, _OF = 3, 4
"""How much of the room for a prompt is filled once something is left out.

Were as little as possible left out, the next send would leave out more, and each would be evaluated from its start.
"""


@dataclass(frozen=True)
class SendPlan:
    """How a send fits into the context window. Numbers are tokens.

    Parameters
    ----------
    n_ctx
        The context window.
    n_prompt
        The prompt, with the start of the answer.
    reserve
        What the overflow policy keeps free for the answer; with ``"error"`` that is one token.
    max_tokens
        The most that the answer may have: what was asked for, or what is left of the window where that is less.
    left_out
        Messages of the path that the prompt does not hold, since they did not fit.
    summarised
        Whether a summary that the model writes stands for them; `n_prompt` is then the most that there may be.
    """

    n_ctx: int
    n_prompt: int
    reserve: int
    max_tokens: int
    left_out: tuple[Message, ...] = ()
    summarised: bool = False

    @property
    def n_left_out(self) -> int:
        """How many exchanges are left out."""
        return sum(message.role == "user" or not index for index, message in enumerate(self.left_out))


class Window:
    """A context window and what is wanted of it.

    Parameters
    ----------
    n_ctx
        Tokens that it holds.
    max_tokens
        Tokens that the answer may have.
    encode
        Returns the tokens of a prompt of some messages.
    """

    def __init__(self, n_ctx: int, max_tokens: int, encode: Callable[[Sequence[Message]], list[int]]) -> None:
        self.n_ctx = n_ctx
        self.max_tokens = max_tokens
        self._encode = encode
        self._last: tuple[list[str], list[int]] | None = None

    def tokens(self, path: Sequence[Message]) -> list[int]:
        """Return the tokens of a prompt."""
        ids = [message.id for message in path]
        if self._last is None or self._last[0] != ids:
            self._last = (ids, self._encode(path))
        return self._last[1]

    def count(self, path: Sequence[Message]) -> int:
        """Return how many tokens a prompt has."""
        return len(self.tokens(path))

    @property
    def reserve(self) -> int:
        """Tokens that are kept free for the answer: all that it may have, up to a quarter of the window."""
        return min(self.max_tokens, max(1, self.n_ctx // _RESERVE))

    @property
    def room(self) -> int:
        """Tokens that a prompt may have."""
        return self.n_ctx - self.reserve

    @property
    def target(self) -> int:
        """Tokens that a prompt is to have at most once something is left out of it."""
        return max(1, self.room * _LEFT // _OF)

    def plan(
        self, n_prompt: int, reserve: int, left_out: Sequence[Message] = (), *, summarised: bool = False
    ) -> SendPlan:
        """Return the plan of a prompt with so many tokens.

        Raises
        ------
        ContextWindowExceededError
            It leaves no room for a token.
        """
        if n_prompt >= self.n_ctx:
            raise ContextWindowExceededError(n_prompt, self.n_ctx)
        cap = min(self.max_tokens, self.n_ctx - n_prompt)
        return SendPlan(self.n_ctx, n_prompt, reserve, cap, tuple(left_out), summarised)


class Parts:
    """A path in parts: the system prompt, exchanges, and what is asked now.

    Parameters
    ----------
    path
        The path, with the question.
    pins
        The ids of messages that are never left out, nor is the rest of their exchange.
    """

    def __init__(self, path: Sequence[Message], pins: Container[str]) -> None:
        n_head = 1 if path and path[0].role == "system" else 0
        self.head = list(path[:n_head])
        self.groups: list[list[Message]] = []
        for message in path[n_head:]:
            if message.role == "user" or not self.groups:
                self.groups.append([])
            self.groups[-1].append(message)
        self.question = self.groups.pop() if self.groups else []
        self._pins = pins

    def is_pinned(self, group: Sequence[Message]) -> bool:
        """Whether an exchange is never left out."""
        return any(message.id in self._pins for message in group)

    @property
    def n_droppable(self) -> int:
        """Exchanges that may be left out."""
        return sum(not self.is_pinned(group) for group in self.groups)

    def without(self, n: int) -> tuple[list[Message], list[Message]]:
        """Return the path without the `n` oldest exchanges that may be left out, and these."""
        kept, gone = list(self.head), list[Message]()
        for group in self.groups:
            if n and not self.is_pinned(group):
                n -= 1
                gone += group
            else:
                kept += group
        return [*kept, *self.question], gone


def check_overflow(policy: object) -> str:
    """Return an overflow policy; raise where it is none.

    Raises
    ------
    InvalidArgumentError
        There is no such policy.
    """
    if not isinstance(policy, str) or policy not in OVERFLOW_POLICIES:
        known = ", ".join(map(repr, OVERFLOW_POLICIES))
        raise InvalidArgumentError(f"There is no overflow policy {policy!r}; it is one of {known}.")
    return policy


def fitted(
    path: Sequence[Message], window: Window, policy: str, pins: Container[str]
) -> tuple[list[Message], SendPlan]:
    """Return the part of a path that the model is given, and the plan.

    By ``"drop_oldest"`` whole exchanges are left out, the oldest first. Once that has begun, a quarter more than needed
    goes, and what the last answer on the path was not given stays out while that still fits: so that most prompts go on
    from the last one, and what is in the cache for that can be used.

    Raises
    ------
    ContextWindowExceededError
        It leaves no room for a token, whatever may be left out.
    """
    n_whole = window.count(path)
    if policy != "drop_oldest":
        return list(path), window.plan(n_whole, 1)
    if n_whole <= window.target:
        return list(path), window.plan(n_whole, window.reserve)
    parts = Parts(path, pins)
    answers = [message for message in path if message.role == "assistant"]
    n_before = min(answers[-1].left_out if answers else 0, parts.n_droppable)
    kept, gone = parts.without(n_before)
    n_prompt = window.count(kept)
    if n_prompt > window.room:
        n = bisect.bisect_left(
            range(n_before, parts.n_droppable), True, key=lambda n: window.count(parts.without(n)[0]) <= window.target
        )
        kept, gone = parts.without(n_before + n)
        n_prompt = window.count(kept)
    return kept, window.plan(n_prompt, window.reserve, gone)
