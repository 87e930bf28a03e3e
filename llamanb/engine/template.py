"""Chat templates: messages to the text that a model was trained on, in a sandbox.

A GGUF's chat template is code from a stranger, so it runs in Jinja's immutable sandbox. Strings in messages that look
like control tokens are kept apart from real ones by `ControlStrings`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llamanb.errors import TemplateError, ToolError
from llamanb.messages import Message
from llamanb.wording import sentence

__all__ = ["CHATML", "ChatTemplate", "ControlStrings", "Render", "as_seen"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The ChatML form, https://github.com/openai/openai-python/blob/v0.28.0/chatml.md, without a default system prompt."""

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Code points that Unicode reserves for use inside a program; text for interchange holds none."""


Render = Callable[[Sequence[Message]], str]
"""Writes a conversation as text, in place of a chat template."""


class ControlStrings:
    """The texts of a model's control tokens, which what a user, a tool or a file says must not be read as.

    Parameters
    ----------
    texts
        The texts; those of one character are no danger.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        known = sorted({text for text in texts if len(text) > 1})
        # The first character of each: they may stand in one another, and overlap.
        self._pattern = re.compile(f"(?={'|'.join(map(re.escape, known))}).", re.DOTALL) if known else None

    def segments(
        self, said: Iterable[str], write: Callable[[Callable[[str], str]], str], others: str = ""
    ) -> list[str]:
        """Return a text that holds what people say, cut inside every control string that stands in that.

        Parameters
        ----------
        said
            What people say.
        write
            Returns the text, when given what each thing that is said must be passed through.
        others
            Further characters that the text may hold.

        Raises
        ------
        TemplateError
            No character is left that could mark the cuts.
        """
        pattern = self._pattern
        texts = list(said)
        if pattern is None or not any(pattern.search(text) for text in texts):
            return [write(lambda text: text)]
        everything = "".join(texts) + others
        marker = next((mark for mark in _NONCHARACTERS if mark not in everything), None)
        if marker is None:
            raise TemplateError("The messages hold every character that could keep control tokens apart.")
        return write(lambda text: pattern.sub(lambda found: found[0] + marker, text)).split(marker)

    def segments_of(self, messages: Sequence[Message], render: Render) -> list[str]:
        """Return what `render` makes of a conversation, cut inside every control string that stands in a message."""
        seen = as_seen(messages)
        said = _texts([_plain(message) for message in seen])
        return self.segments(said, lambda cut: render([_cut(message, cut) for message in seen]))


class ChatTemplate:
    """A chat template.

    Parameters
    ----------
    source
        Its Jinja source.
    bos, eos
        The text of the model's tokens for the beginning and the end, which some templates write out.
    control
        The model's control strings.

    Raises
    ------
    TemplateError
        The source is not valid Jinja.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "", control: ControlStrings | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        # `strftime_now` is left undefined: templates that know it fall back to a fixed date, and prompts do not change
        # from day to day.
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = _to_json
        self.source = source
        self._variables = {"bos_token": bos, "eos_token": eos}
        self._control = control or ControlStrings()
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
        return self._render([_plain(m) for m in as_seen(messages)], add_generation_prompt)

    def segments(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[str]:
        """Return the text of a conversation cut inside every control-token string that stands in a message.

        Tokenised one by one, the segments give control tokens only where the template itself wrote them: what a user,
        a tool or a file says can open no message of its own. Joined, they are the text that `render` returns.
        """
        dicts = [_plain(message) for message in as_seen(messages)]

        def write(cut: Callable[[str], str]) -> str:
            return self._render([_mapped(item, cut) for item in dicts], add_generation_prompt)

        return self._control.segments(_texts(dicts), write, self.source)

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


def as_seen(messages: Sequence[Message]) -> list[Message]:
    """Return messages as the model sees them.

    Input transforms have changed what a person typed. Reasoning is left out once a later user message exists; inside a
    tool loop it stays. The ids are those of the messages as they are stored.
    """
    last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    return [_seen(message, with_reasoning=i > last_user) for i, message in enumerate(messages)]


def _seen(message: Message, *, with_reasoning: bool) -> Message:
    changes: dict[str, Any] = {}
    if message.model_input is not None:
        changes = {"content": message.model_input, "model_input": None}
    if message.reasoning is not None and not with_reasoning:
        changes["reasoning"] = None
    return dataclasses.replace(message, **changes) if changes else message


def _cut(message: Message, cut: Callable[[str], str]) -> Message:
    """Return a message whose strings have all been passed through `cut`."""
    calls = tuple(
        dataclasses.replace(call, id=cut(call.id), name=cut(call.name), arguments_text=cut(call.arguments_text))
        for call in message.tool_calls
    )
    return dataclasses.replace(
        message,
        content=_mapped(message.content, cut),
        reasoning=None if message.reasoning is None else cut(message.reasoning),
        tool_calls=calls,
        tool_call_id=None if message.tool_call_id is None else cut(message.tool_call_id),
    )


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


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key) if isinstance(key, str) else key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return value
