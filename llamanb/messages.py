"""The values that conversations are made of: messages, tool calls, usage, chunks. All immutable; no I/O."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import rfc8785

from llamanb.errors import HistoryFormatError, InvalidArgumentError, ToolError
from llamanb.wording import sentence

__all__ = [
    "ROLES",
    "Chunk",
    "ChunkKind",
    "Content",
    "FinishReason",
    "Message",
    "ToolCall",
    "Usage",
    "message_id",
    "preview",
    "storable",
]

ROLES = ("system", "user", "assistant", "tool")
"""The roles that a message may have."""

Content = str | list[Any]
"""A message's content: text, or a list of parts that is kept as it is."""

ChunkKind = Literal["answer", "reasoning", "tool_call_delta", "tool_call", "tool_result"]

_MAX_EXACT = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 7493, section 2.2)."""

_MAX_DEPTH = 100
"""How deep stored values may be nested; copying and writing them takes several frames of Python's stack a level."""


class FinishReason(str, Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Usage:
    """What an answer cost. ``n_cached + n_prefilled == n_prompt``; durations are in seconds."""

    n_prompt: int = 0
    n_cached: int = 0
    n_prefilled: int = 0
    n_generated: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote.

    Parameters
    ----------
    id
        Names the call; its result refers to it.
    name
        The function to call.
    arguments_text
        The arguments as the JSON text that the model wrote; this is what is stored.
    """

    id: str
    name: str
    arguments_text: str = "{}"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as a mapping.

        Raises
        ------
        ToolError
            The model wrote something that is not a JSON object.
        """
        try:
            value = json.loads(self.arguments_text)
        except (ValueError, RecursionError) as error:
            raise ToolError(f"The arguments of the call {self.name!r} are not JSON: {sentence(error)}") from None
        if not isinstance(value, dict):
            raise ToolError(f"The arguments of the call {self.name!r} are not a JSON object.")
        return value

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments_text}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> ToolCall:
        """Read the stored form; arguments may be JSON text or a mapping."""
        arguments = stored.get("arguments", "{}")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return cls(str(stored["id"]), str(stored["name"]), arguments)


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer as it is written."""

    kind: ChunkKind
    text: str = ""
    tool_call: ToolCall | None = None


@dataclass(frozen=True)
class Message:
    """One node of the conversation tree. Make one with `Message.create`, which works out its id.

    Parameters
    ----------
    id
        The first 16 hex digits of the SHA-256 of the message's canonical JSON (RFC 8785), over every other stored key.
    parent
        The id of the message before it; ``None`` for the first.
    role
        One of `ROLES`.
    content
        Text, or a list of parts kept as it is.
    model_input
        On a user message, what the model was given in place of `content`, where input transforms changed that.
    reasoning
        What the model thought before it answered, if it shows that.
    tool_calls
        Calls that an assistant message makes.
    tool_call_id
        On a tool message, the call that this is the result of.
    finish_reason
        Why an assistant message ended.
    model
        On an assistant message, the fingerprint of the model that wrote it.
    sampling
        On an assistant message, the sampling that made it, with the seed that took effect.
    left_out
        On an assistant message, how many of the oldest exchanges on its path that are not pinned the model was not
        given, since they did not fit.
    stands_for
        The message that this one, with all that comes before it, says again or sums up.
    extra
        Stored keys that this version does not know; they are kept.
    """

    id: str
    parent: str | None
    role: str
    content: Content
    model_input: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    finish_reason: FinishReason | None = None
    model: str | None = None
    sampling: Mapping[str, Any] | None = None
    left_out: int = 0
    stands_for: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, role: str, content: Content, *, parent: str | None = None, **fields: Any) -> Message:
        """Make a message and work out its id.

        Raises
        ------
        InvalidArgumentError
            The role is unknown, or the content cannot be stored (a lone surrogate, a number that is not finite,
            lists in lists without end).
        """
        if role not in ROLES:
            raise InvalidArgumentError(f"There is no role {role!r}; a message is {', '.join(ROLES)}.")
        if not isinstance(content, (str, list)):
            raise TypeError(f"The content of a message is text or a list of parts, not {type(content).__name__}.")
        unknown = sorted(set(fields) - {f.name for f in dataclasses.fields(cls)})
        if unknown:
            raise TypeError(f"A message has no field {unknown[0]!r}; further keys go into extra={{…}}.")
        draft = cls("", parent, role, content, **fields)
        try:
            stored = storable(draft.to_dict())
        except HistoryFormatError as error:
            raise InvalidArgumentError(f"The message cannot be stored: {error.problem}.") from None
        except RecursionError:
            raise InvalidArgumentError("The message cannot be stored: it is nested too deeply.") from None
        return cls.from_dict(message_id(stored), stored)

    @property
    def text(self) -> str:
        """The content as text; of a list of parts, its text parts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(
            str(part.get("text", ""))
            for part in self.content
            if isinstance(part, Mapping) and part.get("type", "text") == "text"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form, without the id; keys that are empty are left out."""
        stored: dict[str, Any] = {**copy.deepcopy(dict(self.extra)), "parent": self.parent, "role": self.role}
        stored["content"] = copy.deepcopy(self.content)
        if self.model_input is not None:
            stored["model_input"] = self.model_input
        if self.reasoning is not None:
            stored["reasoning"] = self.reasoning
        if self.tool_calls:
            stored["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            stored["tool_call_id"] = self.tool_call_id
        if self.finish_reason is not None:
            stored["finish_reason"] = self.finish_reason.value
        if self.model is not None:
            stored["model"] = self.model
        if self.sampling is not None:
            stored["sampling"] = copy.deepcopy(dict(self.sampling))
        if self.left_out:
            stored["left_out"] = self.left_out
        if self.stands_for is not None:
            stored["stands_for"] = self.stands_for
        return stored

    @functools.cached_property
    def stored(self) -> Mapping[str, Any]:
        """The stored form, made once; it is shared, and not to be changed."""
        return self.to_dict()

    @classmethod
    def from_dict(cls, id: str, stored: Mapping[str, Any]) -> Message:
        """Read the stored form, which must be valid (see `llamanb.persistence.schema`)."""
        known = dict(stored)
        finish = known.pop("finish_reason", None)
        return cls(
            id,
            known.pop("parent", None),
            known.pop("role"),
            copy.deepcopy(known.pop("content")),
            model_input=known.pop("model_input", None),
            reasoning=known.pop("reasoning", None),
            tool_calls=tuple(ToolCall.from_dict(call) for call in known.pop("tool_calls", ())),
            tool_call_id=known.pop("tool_call_id", None),
            finish_reason=None if finish is None else FinishReason(finish),
            model=known.pop("model", None),
            sampling=copy.deepcopy(known.pop("sampling", None)),
            left_out=known.pop("left_out", 0),
            stands_for=known.pop("stands_for", None),
            extra=copy.deepcopy(known),
        )

    def below(self, parent: str | None) -> Message:
        """Return this message as a child of `parent`, with the id that it has there."""
        stored = self.to_dict() | {"parent": parent}
        return Message.from_dict(message_id(stored), stored)


def message_id(stored: Mapping[str, Any]) -> str:
    """Return the id of a message in its stored form: 16 hex digits of the SHA-256 of its RFC 8785 form."""
    return hashlib.sha256(rfc8785.dumps(dict(stored))).hexdigest()[:16]


def storable(value: Any, path: str = "$") -> Any:
    """Return `value` as JSON that survives every reader and writer, a browser's included.

    Numbers beyond 2^53 - 1 become strings, since JavaScript would round them or write them in another form.

    Raises
    ------
    HistoryFormatError
        It holds a lone surrogate, a number that is not finite, something that is not JSON, or is nested more than a
        hundred deep.
    """
    return _storable(value, path, 0)


def _storable(value: Any, path: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise HistoryFormatError(path, f"it is nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        _check_text(value, path)
        return str(value)
    if isinstance(value, int):
        return value if abs(value) <= _MAX_EXACT else str(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise HistoryFormatError(path, f"{value} is not a number that JSON can hold")
        return value if abs(value) <= _MAX_EXACT else repr(value)
    if isinstance(value, Mapping):
        for key in value:
            _check_key(key, path)
        return {key: _storable(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_storable(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise HistoryFormatError(path, f"a {type(value).__name__} cannot be stored as JSON")


def _check_key(key: object, path: str) -> None:
    if not isinstance(key, str):
        raise HistoryFormatError(path, f"the key {key!r} is not a string")
    _check_text(key, path)


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise HistoryFormatError(path, f"character {error.start} is half of a surrogate pair") from None


# A terminal acts on control characters, and the direction of what follows hangs on those for bidirectional text.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def preview(text: str, width: int = 48) -> str:
    """Return the first words of `text` on one line of at most `width` characters, without control characters."""
    line = " ".join(_CONTROLS.sub(" ", text).split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
