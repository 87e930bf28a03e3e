"""Questions and the answers that are being written to them, and what may be asked."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llamanb.engine.base import Generation
from llamanb.errors import BranchError, InvalidArgumentError
from llamanb.history import check_branch_name
from llamanb.messages import Content, FinishReason, Message
from llamanb.reply import ReplyStream
from llamanb.sampling import MAX_SEED, SamplingParams, derive_seed

MAX_ALTERNATIVES = 100
"""The most answers at one place; more than anybody reads, and few enough that a slip of the finger costs little."""

__all__ = [
    "Answering",
    "Question",
    "check_count",
    "check_names",
    "require_cut_off",
    "require_words",
    "seeded",
]


@dataclass
class Question:
    """A path that ends in a user message, to be answered on a branch.

    `seeds` gave the answers that are there; `moved` holds the branches that go on from an answer already, and is shared
    by questions that are asked together. `replaced` ends the answer that gives way, and `begun` is one to go on with.
    """

    branch: str
    path: list[Message]
    seeds: set[Any] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    replaced: str | None = None
    begun: Message | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(eq=False)
class Answering:
    """An answer that is not in the tree yet.

    Parameters
    ----------
    branch
        The branch that it will be on.
    path
        What it answers, root first.
    begun
        The cut-off answer that it goes on with.
    generation
        How far it is.
    stream, settle
        Who reads it, and what puts it into the tree if nobody does.
    """

    branch: str
    path: tuple[Message, ...]
    begun: Message | None
    generation: Generation
    stream: Callable[[], ReplyStream | None] = lambda: None
    settle: Callable[[], None] = lambda: None


def seeded(sampling: SamplingParams, path_id: str, seeds: set[Any]) -> SamplingParams:
    """Return `sampling` with a seed that is a number and none of `seeds`, or with none where it is greedy."""
    if sampling.seed == "random" and not sampling.greedy:
        sampling = sampling.replace(seed=secrets.randbelow(MAX_SEED + 1))
    counted = (derive_seed(sampling, path_id, n) for n in itertools.count())
    return next(candidate for candidate in counted if candidate.seed not in seeds)


def check_names(branches: Sequence[str]) -> None:
    """Raise unless `branches` is a list of names of branches, each named once."""
    if isinstance(branches, str) or not isinstance(branches, Sequence):
        raise TypeError(f"branches is a list of names, not a {type(branches).__name__}.")
    if not branches:
        raise InvalidArgumentError("branches is empty; name at least one.")
    for index, name in enumerate(branches):
        check_branch_name(name)
        if name in branches[:index]:
            raise BranchError(f"The branch {name!r} is named twice; each gives one answer.")


def check_count(n: int) -> int:
    """Return a number of answers at one place; raise where it is none."""
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"The number of answers is a whole number, not a {type(n).__name__}.")
    if not 1 <= n <= MAX_ALTERNATIVES:
        raise InvalidArgumentError(f"The number of answers is {n}; it must be from 1 to {MAX_ALTERNATIVES}.")
    return n


def require_cut_off(answer: Message) -> None:
    """Raise unless an answer can be gone on with."""
    if answer.finish_reason not in (FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.ERROR):
        raise BranchError("This answer ended by itself; there is nothing to go on with. Ask for more instead.")
    sampling = dict(answer.sampling or {})
    if sampling.get("json_schema") is not None or sampling.get("grammar") is not None:
        raise InvalidArgumentError(
            "An answer that is held to a schema or a grammar cannot be gone on with; regenerate it with a larger "
            "max_tokens."
        )
    if answer.reasoning is not None and not answer.text:
        raise InvalidArgumentError(
            "This answer was cut off while the model was reasoning; regenerate it with a larger max_tokens."
        )


def require_words(role: str, content: Content) -> None:
    """Raise where a user message says nothing, or where content has parts of another form."""
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, Mapping):
            raise TypeError(f"A part of a message is a mapping with a 'type', not a {type(part).__name__}.")
    if role == "user" and (content == [] or (isinstance(content, str) and not content.strip())):
        raise InvalidArgumentError("The prompt is empty; write what the model should answer.")
