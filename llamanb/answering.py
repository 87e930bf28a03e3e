"""Questions and the answers that are being written to them, and what may be asked."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llamanb.engine.base import Generation
from llamanb.errors import BranchError, InvalidArgumentError
from llamanb.fitting import SendPlan
from llamanb.history import check_branch_name
from llamanb.messages import Content, FinishReason, Message
from llamanb.persistence.formats import message_of
from llamanb.reply import ReplyStream
from llamanb.sampling import MAX_SEED, SamplingParams, derive_seed
from llamanb.transforms import Transforms

MAX_ALTERNATIVES = 100
"""The most answers at one place; more than anybody reads, and few enough that a slip of the finger costs little."""

__all__ = [
    "Answering",
    "Question",
    "check_count",
    "check_names",
    "placed",
    "read_given",
    "read_prompt",
    "require_cut_off",
    "require_words",
    "require_writable",
    "seeded",
]


@dataclass
class Question:
    """A path to be answered on a branch.

    Parameters
    ----------
    branch, path
        Where, and what is answered.
    seeds
        The seeds of the answers that are there.
    nth
        Which of the answers it is that are asked for together at one place.
    moved
        The branches that go on from an answer already; shared by questions that are asked together.
    replaced
        The end of an answer that gives way.
    begun
        An answer to go on with.
    sampling
        How it is sampled, with a seed.
    prefill_only
        Whether it is read, and not answered.
    transforms
        Those that the session had when it was asked.
    summed_up
        What a summary stands for that the path ends in, but for the question.
    plan
        How it fits.
    pins
        Copies on the path that are pinned once it is answered.
    pinned
        Whether the question is.
    """

    branch: str
    path: list[Message]
    seeds: set[Any] = field(default_factory=set)
    nth: int = 0
    moved: set[str] = field(default_factory=set)
    replaced: str | None = None
    begun: Message | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prefill_only: bool = False
    transforms: Transforms = field(default_factory=Transforms)
    summed_up: Sequence[Message] = ()
    plan: SendPlan | None = None
    pins: set[str] = field(default_factory=set)
    pinned: bool = False

    def begin(self, answer_start: object) -> None:
        """Let the answer begin with these words."""
        if not isinstance(answer_start, str):
            raise TypeError(f"answer_start is text, not a {type(answer_start).__name__}.")
        if not answer_start.strip():
            raise InvalidArgumentError("answer_start is empty; leave it out to let the model begin.")
        if self.begun is not None:
            raise InvalidArgumentError("An answer that is gone on with has a start already; leave out answer_start.")
        self.begun = Message.create("assistant", answer_start, parent=self.path[-1].id)

    @property
    def exchange(self) -> list[Message]:
        """The user message that is answered, and what stands between it and the answer."""
        start = max((n for n, message in enumerate(self.path) if message.role == "user"), default=len(self.path) - 1)
        return self.path[start:]


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
        The start of it that is given, such as a cut-off answer that it goes on with.
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
    """Raise unless an answer can be gone on with: it was cut off, or written by a person."""
    if answer.finish_reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        raise BranchError("This answer ended by itself; there is nothing to go on with. Ask for more instead.")
    require_writable(SamplingParams(), answer)
    if answer.reasoning is not None and not answer.text:
        raise InvalidArgumentError(
            "This answer was cut off while the model was reasoning; regenerate it with a larger max_tokens."
        )


def require_writable(sampling: SamplingParams, begun: Message) -> None:
    """Raise where an answer that is begun, or its rest, is held to a form that only a whole answer can have."""
    former = dict(begun.sampling or {})
    held = [form for form in ("json_schema", "grammar") if getattr(sampling, form) is not None]
    if held:
        raise InvalidArgumentError(f"An answer whose start is given cannot be held to a {held[0]}; leave out one.")
    if former.get("json_schema") is not None or former.get("grammar") is not None:
        raise InvalidArgumentError(
            "An answer that is held to a schema or a grammar cannot be gone on with; regenerate it with a larger "
            "max_tokens."
        )


def require_words(role: str, content: Content) -> None:
    """Raise where a user message says nothing, or where content has parts of another form."""
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, Mapping):
            raise TypeError(f"A part of a message is a mapping with a 'type', not a {type(part).__name__}.")
    if role == "user" and (content == [] or (isinstance(content, str) and not content.strip())):
        raise InvalidArgumentError("The prompt is empty; write what the model should answer.")


# -- messages that are given -------------------------------------------------------------------------------------


def read_prompt(prompt: object, transforms: Transforms) -> list[Message]:
    """Return what is said as messages that stand nowhere yet: one of the user, or those of a list of them.

    Raises
    ------
    InvalidArgumentError
        The user says nothing, a list mixes messages with something else, or its last one is not the user's.
    """
    if not _is_conversation(prompt):
        return [_typed(prompt, transforms)]
    messages = read_given(prompt, transforms)
    if messages[-1].role != "user":
        raise InvalidArgumentError(
            f"The last of the messages is the {messages[-1].role}'s; to be answered it must be the user's. To add "
            "them without an answer, use add_messages."
        )
    return messages


def read_given(messages: Any, transforms: Transforms) -> list[Message]:
    """Return messages that are given as such, or as mappings, as messages that stand nowhere yet."""
    if not isinstance(messages, Iterable) or isinstance(messages, (str, Mapping)):
        raise TypeError(f"messages is a list of messages, not a {type(messages).__name__}.")
    given = []
    for index, item in enumerate(messages):
        message = item if isinstance(item, Message) else message_of(item, f"$[{index}]")
        require_words(message.role, message.content)
        if message.role == "user" and not isinstance(item, Message):
            message = _typed(message.content, transforms, extra=message.extra)
        given.append(message)
    return given


def _typed(content: Any, transforms: Transforms, **fields: Any) -> Message:
    require_words("user", content)
    return Message.create("user", content, model_input=transforms.model_input(content), **fields)


def _is_conversation(prompt: object) -> bool:
    items = prompt if isinstance(prompt, (list, tuple)) else ()
    with_role = [isinstance(item, Message) or (isinstance(item, Mapping) and "role" in item) for item in items]
    if any(with_role) and not all(with_role):
        raise InvalidArgumentError(
            f"Item {with_role.index(False)} of the list is no message with a role, and others are; give either "
            "messages, or the parts of one."
        )
    return any(with_role)


def placed(messages: Sequence[Message], path: Sequence[Message]) -> list[Message]:
    """Return messages as they stand below a path; a system prompt that is there already is left out.

    Raises
    ------
    BranchError
        There is another system prompt, or one stands behind other messages.
    """
    for index, message in enumerate(messages):
        if message.role == "system" and index:
            raise BranchError(f"Message {index} of the list is a system prompt; only the first message can be one.")
    if messages and messages[0].role == "system" and path:
        current = path[0].text if path[0].role == "system" else None
        if current != messages[0].text:
            raise BranchError(
                "The messages start with another system prompt than this branch has; leave it out, or use a branch "
                "that is empty."
            )
        messages = messages[1:]
    below: list[Message] = []
    parent = path[-1].id if path else None
    for message in messages:
        below.append(message.below(parent))
        parent = below[-1].id
    return below
