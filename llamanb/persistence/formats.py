"""Conversations in the forms of other programs: OpenAI's JSON, ChatML text, LLamaSharp's JSON, and Markdown. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llamanb.errors import HistoryFormatError, InvalidArgumentError
from llamanb.messages import ROLES, Message, ToolCall
from llamanb.rendering import transcript_markdown
from llamanb.wording import sentence

__all__ = ["export_messages", "message_of", "read_array", "read_messages"]

_READABLE = ("openai", "chatml", "llamasharp")
_LONGEST_NAME = 1024  # characters of a text that may be the name of a file

# The roles and keys of https://platform.openai.com/docs/api-reference/chat, and the names that servers of local models
# give to reasoning.
_OPENAI_ROLES = {"developer": "system", **{role: role for role in ROLES}}
_REASONING_KEYS = ("reasoning_content", "reasoning")

_OWN_KEYS = ("id", "parent", "model_input", "finish_reason", "model", "sampling", "left_out", "stands_for")
"""Keys of a stored message that say how it came about here."""

# https://github.com/SciSharp/LLamaSharp/blob/master/LLama/Common/ChatHistory.cs
_AUTHOR_ROLES = {"System": "system", "User": "user", "Assistant": "assistant"}
_AUTHOR_NUMBERS = {-1: "Unknown", 0: "System", 1: "User", 2: "Assistant"}

# https://github.com/openai/openai-python/blob/v0.28.0/chatml.md
_CHATML_START, _CHATML_END = "<|im_start|>", "<|im_end|>"
_CHATML = re.compile(r"\s*<\|im_start\|>([^\n]*)\n(.*?)(<\|im_end\|>|\Z)", re.DOTALL)


# -- reading -----------------------------------------------------------------------------------------------------


def read_messages(source: Any, format: str | None = None) -> list[Message]:
    """Read a conversation of another program.

    Parameters
    ----------
    source
        A `pathlib.Path`, the name of a file, text, or what a JSON reader made of it.
    format
        ``"openai"`` (JSON: a list of messages, or an object with one), ``"chatml"`` (text) or ``"llamasharp"`` (the
        JSON of its ``ChatHistory``); by default whichever it is.

    Returns
    -------
    messages
        One below the other, root first.

    Raises
    ------
    HistoryFormatError
        It does not have that form; the error names the place.
    InvalidArgumentError
        There is no such file, or it is in none of the formats.
    """
    if format is not None and format not in _READABLE:
        raise InvalidArgumentError(f"format is {format!r}; conversations are read from {', '.join(_READABLE)}.")
    if isinstance(source, (str, Path)):
        text = _text(source)
        if format == "chatml" or (format is None and text.lstrip().startswith(_CHATML_START)):
            return _chain(_chatml(text))
        source = _parsed(text, format)
    elif format == "chatml":
        raise TypeError(f"ChatML is text, not a {type(source).__name__}.")
    path, items = _items(source)
    if format is None:
        format = "llamasharp" if items and isinstance(items[0], Mapping) and _author(items[0]) else "openai"
    read = message_of if format == "openai" else _llamasharp
    return _chain([read(item, f"{path}[{index}]") for index, item in enumerate(items)])


def read_array(text: str | None) -> list[Message]:
    """Return the messages of a JSON array of them, in OpenAI's form; none where there is no text.

    Raises
    ------
    HistoryFormatError
        It is not JSON, or no array of messages; the error names the place.
    """
    if text is None:
        return []
    if not isinstance(text, str):
        raise TypeError(f"history_json is the text of a JSON array, not a {type(text).__name__}; give that as history.")
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HistoryFormatError("$", f"it is not JSON: {sentence(error).removesuffix('.')}") from None
    if not isinstance(items, list):
        raise HistoryFormatError("$", f"it must be an array of messages, not {_json_name(items)}")
    return read_messages(items, "openai")


def _text(source: str | Path) -> str:
    if isinstance(source, Path) or _is_file(source):
        try:
            return Path(source).expanduser().read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise InvalidArgumentError(f"There is no file {str(source)!r}.") from None
        except OSError as error:
            raise InvalidArgumentError(f"{str(source)!r} cannot be read: {error.strerror or error}.") from None
        except UnicodeDecodeError:
            raise InvalidArgumentError(f"{str(source)!r} is not text in UTF-8.") from None
    return source


def _is_file(text: str) -> bool:
    try:
        return "\n" not in text and len(text) <= _LONGEST_NAME and Path(text).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # what cannot be a name is none
        return False


def _parsed(text: str, format: str | None) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidArgumentError("The conversation is nested too deeply to be read.") from None
    except ValueError as error:
        if format is not None or text.lstrip().startswith(("{", "[")):
            raise InvalidArgumentError(f"The conversation is not valid JSON: {sentence(error)}") from None
        start = text if len(text) <= 60 else text[:59] + "…"
        raise InvalidArgumentError(
            f"{start!r} is neither a file nor a conversation in one of the formats {', '.join(_READABLE)}."
        ) from None


def _items(source: Any) -> tuple[str, Sequence[Any]]:
    path = "$"
    if isinstance(source, Mapping):
        key = next((key for key in source if str(key).lower() == "messages"), None)
        if key is None:
            raise HistoryFormatError("$", "it has no messages")
        path, source = f"$.{key}", source[key]
    if not isinstance(source, Sequence) or isinstance(source, (str, bytes)):
        raise HistoryFormatError(path, "it must be a list of messages")
    return path, source


def _chain(messages: Sequence[Message]) -> list[Message]:
    chained: list[Message] = []
    for message in messages:
        chained.append(message.below(chained[-1].id if chained else None))
    return chained


def _created(path: str, role: str, content: Any, **fields: Any) -> Message:
    if not isinstance(content, (str, list)):
        raise HistoryFormatError(f"{path}.content", f"it must be text or a list of parts, not {_json_name(content)}")
    try:
        return Message.create(role, content, **fields)
    except InvalidArgumentError as error:
        raise HistoryFormatError(path, sentence(error).removesuffix(".")) from None


def _json_name(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    return "null" if value is None else f"a {type(value).__name__}"


def message_of(item: Any, path: str = "$") -> Message:
    """Return a message of OpenAI's JSON form: a mapping with a role and content, and perhaps tool calls.

    Raises
    ------
    HistoryFormatError
        It does not have that form; the error names the place, which is `path` or below.
    """
    if not isinstance(item, Mapping):
        raise HistoryFormatError(path, f"a message is a mapping with a role and content, not a {type(item).__name__}")
    rest = {key: value for key, value in item.items() if value is not None}
    role = rest.pop("role", None)
    if not isinstance(role, str) or role not in _OPENAI_ROLES:
        raise HistoryFormatError(f"{path}.role", f"{role!r} is none of {', '.join(_OPENAI_ROLES)}")
    role = _OPENAI_ROLES[role]
    fields: dict[str, Any] = {}
    calls = rest.pop("tool_calls", None)
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise HistoryFormatError(f"{path}.tool_calls", "it must be a list, on a message of the assistant")
        fields["tool_calls"] = tuple(_call(call, f"{path}.tool_calls[{n}]") for n, call in enumerate(calls))
    content = rest.pop("content", "" if calls else None)
    for key in _REASONING_KEYS:
        if isinstance(rest.get(key), str) and role == "assistant":
            fields["reasoning"] = rest.pop(key)
    if "tool_call_id" in rest:
        if not isinstance(rest["tool_call_id"], str):
            raise HistoryFormatError(f"{path}.tool_call_id", "it must be text")
        fields["tool_call_id"] = rest.pop("tool_call_id")
    fields["extra"] = {key: value for key, value in rest.items() if key not in _OWN_KEYS and value != []}
    return _created(path, role, content, **fields)


def _call(call: Any, path: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise HistoryFormatError(path, "a tool call has an id and a function with a name and arguments")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(call.get("id", "")), function["name"], arguments)


def _author(item: Mapping[Any, Any]) -> str | None:
    """Return the key under which LLamaSharp keeps the role: it was written in several ways over time."""
    return next((key for key in item if str(key).replace("_", "").lower() == "authorrole"), None)


def _llamasharp(item: Any, path: str) -> Message:
    key = _author(item) if isinstance(item, Mapping) else None
    if key is None:
        raise HistoryFormatError(path, "a message is a mapping with an author_role and content")
    author = item[key]
    if isinstance(author, int) and not isinstance(author, bool):
        author = _AUTHOR_NUMBERS.get(author, author)
    names = {name.lower(): role for name, role in _AUTHOR_ROLES.items()}
    role = names.get(author.lower()) if isinstance(author, str) else None
    if role is None:
        raise HistoryFormatError(f"{path}.{key}", f"{author!r} is none of {', '.join(_AUTHOR_ROLES)}")
    return _created(path, role, next((value for name, value in item.items() if str(name).lower() == "content"), None))


def _chatml(text: str) -> list[Message]:
    messages: list[Message] = []
    end = 0
    while found := _CHATML.match(text, end):
        role, content, closed = found[1].strip(), found[2], bool(found[3])
        end = found.end()
        path = f"$[{len(messages)}]"
        if role not in ROLES:
            raise HistoryFormatError(path, f"the role {role!r} is none of {', '.join(ROLES)}")
        if closed or content:  # else it is where the model was to go on
            messages.append(_created(path, role, content))
    if text[end:].strip():
        raise HistoryFormatError(f"$[{len(messages)}]", f"a message starts with {_CHATML_START} and its role")
    return messages


# -- writing -----------------------------------------------------------------------------------------------------


def export_messages(messages: Sequence[Message], format: str) -> str:
    """Return a conversation as the text of another program.

    What the model was given is what is written; what it thought is left out, except in OpenAI's form.

    Parameters
    ----------
    messages
        The messages, root first.
    format
        ``"openai"``, ``"chatml"``, ``"llamasharp"`` or ``"markdown"``.

    Raises
    ------
    InvalidArgumentError
        There is no such format, or it cannot hold one of the messages.
    """
    writers: dict[str, Callable[[Sequence[Message]], str]] = {
        "openai": _to_openai,
        "chatml": _to_chatml,
        "llamasharp": _to_llamasharp,
        "markdown": lambda messages: transcript_markdown(messages) + "\n",
    }
    if format not in writers:
        raise InvalidArgumentError(f"format is {format!r}; conversations are written as {', '.join(writers)}.")
    return writers[format](messages)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _to_openai(messages: Sequence[Message]) -> str:
    return _json({"messages": [_openai(message) for message in messages]})


def _openai(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {**message.extra, "role": message.role, "content": _given(message)}
    if message.reasoning is not None:
        written["reasoning_content"] = message.reasoning
    if message.tool_calls:
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written


def _given(message: Message) -> Any:
    return message.content if message.model_input is None else message.model_input


def _to_chatml(messages: Sequence[Message]) -> str:
    written = []
    for index, message in enumerate(messages):
        text = _plain(message, index, "ChatML")
        if _CHATML_START in text or _CHATML_END in text:
            raise InvalidArgumentError(
                f"Message {index} says {_CHATML_START} or {_CHATML_END} itself, which ChatML text cannot hold; export "
                "it as openai instead."
            )
        written.append(f"{_CHATML_START}{message.role}\n{text}{_CHATML_END}\n")
    return "".join(written)


def _to_llamasharp(messages: Sequence[Message]) -> str:
    authors = {role: name for name, role in _AUTHOR_ROLES.items()}
    written = []
    for index, message in enumerate(messages):
        text = _plain(message, index, "LLamaSharp's form")
        if message.role not in authors:
            raise InvalidArgumentError(
                f"Message {index} is the result of a tool, which LLamaSharp's form cannot hold; export it as openai "
                "instead."
            )
        written.append({"author_role": authors[message.role], "content": text})
    return _json({"messages": written})


def _plain(message: Message, index: int, form: str) -> str:
    """Return what a message says; raise where that is more than text."""
    given = _given(message)
    if message.tool_calls or (not isinstance(given, str) and any(part.get("type") != "text" for part in given)):
        what = "calls a tool" if message.tool_calls else "has parts that are no text"
        raise InvalidArgumentError(f"Message {index} {what}, which {form} cannot hold; export it as openai instead.")
    return given if isinstance(given, str) else message.text
