"""Chat templates: messages to the text that a model was trained on, in a sandbox.

A GGUF's chat template is code from a stranger, so it runs in Jinja's immutable sandbox. Strings in messages that look
like control tokens are kept apart from real ones by `ChatTemplate.segments`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llamanb.errors import TemplateError, ToolError
from llamanb.messages import Message
from llamanb.wording import sentence

__all__ = ["CHATML", "ChatTemplate"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The ChatML form, https://github.com/openai/openai-python/blob/v0.28.0/chatml.md, without a default system prompt."""

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Code points that Unicode reserves for use inside a program; text for interchange holds none."""


class ChatTemplate:
    """A chat template.

    Parameters
    ----------
    source
        Its Jinja source.
    bos, eos
        The text of the model's tokens for the beginning and the end, which some templates write out.
    control
        The texts of the model's control tokens.

    Raises
    ------
    TemplateError
        The source is not valid Jinja.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "", control: Iterable[str] = ()) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        # `strftime_now` is left undefined: templates that know it fall back to a fixed date, and prompts do not change
        # from day to day.
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = _to_json
        self.source = source
        self._variables = {"bos_token": bos, "eos_token": eos}
        texts = sorted({text for text in control if len(text) > 1})
        # The first character of each: they may stand in one another, and overlap.
        self._control = re.compile(f"(?={'|'.join(map(re.escape, texts))}).", re.DOTALL) if texts else None
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"The chat template is not valid Jinja, line {error.lineno}: {sentence(error.message)}"
            ) from None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation.

        Raises
        ------
        TemplateError
            The template refuses the messages, with its own words, or fails.
        """
        return self._render([_plain(m) for m in _without_old_reasoning(messages)], add_generation_prompt)

    def segments(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[str]:
        """Return the text of a conversation cut inside every control-token string that stands in a message.

        Tokenised one by one, the segments give control tokens only where the template itself wrote them: what a user,
        a tool or a file says can open no message of its own. Joined, they are the text that `render` returns.
        """
        dicts = [_plain(message) for message in _without_old_reasoning(messages)]
        if self._control is None or not any(self._control.search(text) for text in _texts(dicts)):
            return [self._render(dicts, add_generation_prompt)]
        everything = "".join(_texts(dicts))
        marker = next((mark for mark in _NONCHARACTERS if mark not in everything + self.source), None)
        if marker is None:
            raise TemplateError("The messages hold every character that could keep control tokens apart.")
        control = self._control

        def cut(text: str) -> str:
            return control.sub(lambda found: found[0] + marker, text)

        return self._render([_mapped(item, cut) for item in dicts], add_generation_prompt).split(marker)

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=None, **self._variables
            )
        except TemplateError:
            raise
        except SecurityError as error:
            raise TemplateError(f"The chat template tried something that is not allowed: {sentence(error)}") from None
        except Exception as error:  # a template may fail in any way that Python code can
            raise TemplateError(f"The chat template failed on these messages: {sentence(error)}") from error


def _refuse(text: object) -> str:
    raise TemplateError(f"The model's chat template refuses these messages: {text}")


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _without_old_reasoning(messages: Sequence[Message]) -> list[Message]:
    """Leave reasoning out once a later user message exists; inside a tool loop it stays."""
    last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    return [
        message
        if message.reasoning is None or i > last_user
        else dataclasses.replace(message, reasoning=None)  # it is only rendered; its id names the whole of it
        for i, message in enumerate(messages)
    ]


def _plain(message: Message) -> dict[str, Any]:
    """A message as templates expect it: arguments as a mapping, since several of them fail on text."""
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if isinstance(message.content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in message.content
    ):
        plain["content"] = message.text
    if message.reasoning is not None:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _arguments(call: Any) -> Any:
    try:
        return call.arguments
    except ToolError:
        return call.arguments_text


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key) if isinstance(key, str) else key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return value
