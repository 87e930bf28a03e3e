"""Transforms: of an answer's text as it is written, and of messages to text and back."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from llamanb.engine.base import Engine
from llamanb.engine.parsing import open_from
from llamanb.engine.template import ChatTemplate, as_seen
from llamanb.errors import InvalidArgumentError, LlamanbError, TransformError
from llamanb.messages import Content, Message
from llamanb.wording import sentence

__all__ = [
    "Composed",
    "HistoryTransform",
    "InputTransform",
    "KeywordRemover",
    "OutputTransform",
    "PlainTextHistory",
    "RoleNameStripper",
    "TemplateHistory",
    "Transforms",
    "check_history_transform",
    "check_input_transform",
    "check_output_transform",
    "compose",
    "failed",
    "is_async",
    "transform_name",
]

InputTransform = Callable[[str], str]
"""What a person typed to what the model is given."""

OutputTransform = Callable[[Iterator[str]], Iterator[str]] | Callable[[AsyncIterator[str]], AsyncIterator[str]]
"""The answer's text, in pieces as it is written, to the text that is shown and stored; such as a generator function."""


class HistoryTransform(Protocol):
    """Messages to the text that a model goes on with, and what it wrote back to messages.

    It may have two things more: ``stop``, strings that end an answer, and ``to_prompt(messages, answer_start)``, the
    text with which the model is asked for an answer, where that is more than `to_text` and the start of the answer.
    """

    def to_text(self, messages: Sequence[Message]) -> str:
        """Return the text of a conversation."""

    def from_text(self, role: str, text: str) -> list[Message]:
        """Return the messages that a text of that role holds."""


# -- all of a session's ------------------------------------------------------------------------------------------


@dataclass
class Transforms:
    """The transforms of a session."""

    input: list[InputTransform] = field(default_factory=list)
    output: OutputTransform | None = None
    history: HistoryTransform | None = None

    @property
    def any(self) -> bool:
        """Whether there is one at all."""
        return bool(self.input) or self.output is not None or self.history is not None

    def copy(self) -> Transforms:
        """Return a copy; the transforms themselves are shared."""
        return replace(self, input=list(self.input))

    def model_input(self, content: Content) -> str | None:
        """Return what the model is given in place of what a person typed; ``None`` where that is the same.

        Raises
        ------
        TransformError
            A transform fails, or returns something else than text, or nothing.
        """
        if not isinstance(content, str):
            return None
        text = functools.reduce(_input, self.input, content)
        return None if text == content else text

    def encode(
        self,
        engine: Engine,
        path: Sequence[Message],
        *,
        begun: Message | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Return the tokens of a path as the model is given it.

        Parameters
        ----------
        engine
            Whose model.
        path
            The messages.
        begun
            The start of an answer to them.
        add_generation_prompt
            Whether the model is to answer. Where it is not, an empty path has no tokens.
        """
        if not path and not add_generation_prompt:
            return []
        if self.history is None:
            tokens = engine.encode(path, add_generation_prompt=add_generation_prompt)
            return tokens if begun is None else [*tokens, *engine.tokenize(begun.text)]
        if not add_generation_prompt:
            return engine.encode(path, render=self._text)
        if begun is None:
            return engine.encode(path, render=lambda messages: self._prompt(messages, ""))
        return engine.encode([*path, begun], render=lambda messages: self._prompt(messages[:-1], messages[-1].text))

    def render(self, engine: Engine, path: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Return the text of a path as the model is given it; an empty one without the start of an answer has none."""
        if not path and not add_generation_prompt:
            return ""
        if self.history is None:
            return engine.render(path, add_generation_prompt=add_generation_prompt)
        seen = as_seen(path)
        return self._prompt(seen, "") if add_generation_prompt else self._text(seen)

    def _text(self, messages: Sequence[Message]) -> str:
        return _called(self.history, "to_text", messages)

    def _prompt(self, messages: Sequence[Message], answer_start: str) -> str:
        if hasattr(self.history, "to_prompt"):
            return _called(self.history, "to_prompt", messages, answer_start)
        return self._text(messages) + answer_start

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings that end an answer by the history transform."""
        stop = getattr(self.history, "stop", ())
        return (stop,) if isinstance(stop, str) else tuple(stop)

    def answer_messages(self, text: str) -> list[Message]:
        """Return the messages that an answer's text holds: at least one, the last of them by the assistant.

        Raises
        ------
        TransformError
            The history transform fails, or returns something else.
        """
        if self.history is None:
            return [Message.create("assistant", text)]
        try:
            messages = list(self.history.from_text("assistant", text))
        except Exception as error:
            raise failed("history", self.history, error) from error
        roles = [message.role if isinstance(message, Message) else None for message in messages]
        if not set(roles) <= {"assistant", "tool"} or (roles and roles[-1] != "assistant"):
            raise TransformError(
                f"The history transform {transform_name(self.history)!r} must make messages of the assistant, or of "
                "tools before one of the assistant, of an answer."
            )
        return messages or [Message.create("assistant", "")]


def _input(text: str, transform: InputTransform) -> str:
    check_input_transform(transform)
    try:
        changed = transform(text)
    except Exception as error:
        raise failed("input", transform, error) from error
    if not isinstance(changed, str):
        raise TransformError(
            f"The input transform {transform_name(transform)!r} must return text, not {type(changed).__name__}."
        )
    if not changed.strip():
        raise TransformError(f"The input transform {transform_name(transform)!r} leaves nothing of the prompt.")
    return changed


def _called(history: object, method: str, *arguments: object) -> str:
    try:
        text = getattr(history, method)(*arguments)
    except LlamanbError:
        raise
    except Exception as error:
        raise failed("history", history, error) from error
    if not isinstance(text, str):
        raise TransformError(
            f"The history transform {transform_name(history)!r} must return text from {method}, not "
            f"{type(text).__name__}."
        )
    return text


def check_input_transform(transform: object) -> None:
    """Raise where something cannot be an input transform."""
    if isinstance(transform, type):
        raise TypeError(f"{transform.__name__} is a class; an input transform is a function of a text.")
    if not callable(transform):
        raise TypeError(f"An input transform is a function of a text, not a {type(transform).__name__}.")


def check_history_transform(transform: object) -> None:
    """Raise where something cannot be a history transform."""
    if isinstance(transform, type):
        raise TypeError(f"{transform.__name__} is a class; make one of it: {transform.__name__}(…).")
    for method in ("to_text", "from_text"):
        if not callable(getattr(transform, method, None)):
            raise TypeError(
                f"A history transform has to_text(messages) and from_text(role, text); {transform!r} has no {method}."
            )


def transform_name(transform: object) -> str:
    """Return how a transform is called in a sentence."""
    name = getattr(transform, "__qualname__", None)
    return name if isinstance(name, str) else type(transform).__qualname__


def failed(kind: str, transform: object, error: BaseException) -> TransformError:
    """Return what is said where a transform failed, with where that was."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {frames[-1].name})" if len(frames) > 1 else ""
    problem = sentence(error).removesuffix(".") if str(error) else ""
    said = TransformError(
        f"The {kind} transform {transform_name(transform)!r} failed: {type(error).__name__}"
        f"{': ' if problem else ''}{problem}{where}."
    )
    said.__cause__ = error
    return said


# -- the stream of an answer -------------------------------------------------------------------------------------


def is_async(transform: object) -> bool:
    """Whether an output transform can only be waited for."""
    while isinstance(transform, functools.partial):
        transform = transform.func
    if isinstance(transform, Composed):
        return any(is_async(stage) for stage in transform.transforms)
    call = transform if inspect.isroutine(transform) else type(transform).__call__
    return inspect.isasyncgenfunction(call) or inspect.iscoroutinefunction(call)


def check_output_transform(transform: object) -> None:
    """Raise where something cannot be an output transform."""
    if isinstance(transform, type):
        raise TypeError(f"{transform.__name__} is a class; make one of it: {transform.__name__}(…).")
    if not callable(transform):
        raise TypeError(
            f"An output transform is a function of the pieces of an answer's text, not a {type(transform).__name__}."
        )


class Composed:
    """Output transforms one after the other; `compose` makes one.

    Parameters
    ----------
    transforms
        The first one gets what the model wrote.
    """

    def __init__(self, transforms: Sequence[OutputTransform]) -> None:
        self.transforms = tuple(transforms)

    def __call__(self, stream: Any) -> Any:
        """Pass a stream through all of them; they must all be of one kind, sync or async."""
        for transform in self.transforms:
            stream = transform(stream)
        return stream

    def __repr__(self) -> str:
        return f"compose({', '.join(map(transform_name, self.transforms))})"


def compose(*transforms: OutputTransform) -> OutputTransform:
    """Return one output transform that applies several, the first one to what the model wrote.

    Raises
    ------
    InvalidArgumentError
        There is none.
    """
    if not transforms:
        raise InvalidArgumentError("compose needs at least one transform.")
    for transform in transforms:
        check_output_transform(transform)
    flat = [stage for t in transforms for stage in (t.transforms if isinstance(t, Composed) else (t,))]
    return flat[0] if len(flat) == 1 else Composed(flat)


class KeywordRemover:
    """Removes keywords from an answer, wherever its text is cut.

    The text is read once, from its start: at each place the longest keyword that stands there goes. Nothing is held
    back but what may become one.

    Parameters
    ----------
    keywords
        The texts to remove, at least one; upper and lower case are different.
    drop_window
        Whether to drop the pieces that a keyword stands in, or touches, as a whole.

    Raises
    ------
    InvalidArgumentError
        There is no keyword, or one is empty.
    """

    def __init__(self, keywords: Iterable[str], drop_window: bool = False) -> None:
        self.keywords = _names(keywords, "keywords", "keyword")
        self.drop_window = drop_window
        longest_first = sorted(self.keywords, key=len, reverse=True)
        self._keyword = re.compile("|".join(map(re.escape, longest_first)))

    def __call__(self, stream: Iterator[str]) -> Iterator[str]:
        """Yield the text without the keywords."""
        held = ""
        waiting: deque[_Window] = deque()
        for chunk in itertools.chain(stream, (None,)):
            parts, held = self._decided(held + (chunk or ""), ended=chunk is None)
            if self.drop_window:
                if chunk:
                    waiting.append(_Window(chunk, len(chunk)))
                yield from _untouched(waiting, parts)
            elif text := "".join(part for part, is_keyword in parts if not is_keyword):
                yield text

    def _decided(self, text: str, *, ended: bool) -> tuple[list[tuple[str, bool]], str]:
        """Return what is certain of a text, in parts of which each is a keyword or is not, and what is left."""
        parts: list[tuple[str, bool]] = []
        at = 0
        while True:
            found = self._keyword.search(text, at)
            end = len(text) if ended else open_from(text, self.keywords, at)
            if found is None or found.start() >= end:
                break
            parts += [(text[at : found.start()], False), (found[0], True)]
            at = found.end()
        parts.append((text[at:end], False))
        return [(part, is_keyword) for part, is_keyword in parts if part], text[end:]


@dataclass
class _Window:
    text: str
    n_undecided: int
    touched: bool = False


def _untouched(waiting: deque[_Window], parts: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Take what has become certain off the windows that wait, and yield those that no keyword touched."""
    for part, is_keyword in parts:
        n = len(part)
        while n:
            window = waiting[0]
            taken = min(n, window.n_undecided)
            window.n_undecided -= taken
            window.touched |= is_keyword
            n -= taken
            if not window.n_undecided:
                waiting.popleft()
                if not window.touched:
                    yield window.text


class RoleNameStripper:
    """Removes the name of a role with its colon from the start of an answer, and from a line of its own at its end.

    Models without a chat template write such names: ``Assistant: Sure.`` becomes ``Sure.``

    Parameters
    ----------
    names
        The names, without the colon.

    Raises
    ------
    InvalidArgumentError
        There is no name, or one is empty.
    """

    def __init__(self, names: Iterable[str] = ("User", "Assistant", "System")) -> None:
        self.names = _names(names, "names", "name")
        self._labels = sorted((f"{name}:" for name in self.names), key=len, reverse=True)
        label = "|".join(map(re.escape, self._labels))
        starts = {text[:n] for text in self._labels for n in range(1, len(text))}
        start = "|".join(map(re.escape, sorted(starts, key=len, reverse=True)))
        self._first = re.compile(rf"\s*(?:{label})\s*")
        self._last = re.compile(rf"\n\s*(?:{label})\s*\Z")
        self._open_end = re.compile(rf"\n\s*(?:(?:{label})\s*|{start})?\Z")

    def __call__(self, stream: Iterator[str]) -> Iterator[str]:
        """Yield the text without the names."""
        held = ""
        begun = False
        for chunk in stream:
            held += chunk
            if not begun:
                start = self._start(held)
                if start is None:
                    continue
                held, begun = held[start:], True
            found = self._open_end.search(held)
            shown = held[: found.start()] if found else held
            held = held[len(shown) :]
            if shown:
                yield shown
        if not begun and (found := self._first.match(held)):
            held = held[found.end() :]
        if held := self._last.sub("", held):
            yield held

    def _start(self, text: str) -> int | None:
        """Return where the answer starts behind a name; ``None`` while that is not certain."""
        word = text.lstrip()
        if any(label.startswith(word) and len(word) < len(label) for label in self._labels):
            return None
        found = self._first.match(text)
        if found is None:
            return 0
        return found.end() if found.end() < len(text) else None


def _names(texts: Iterable[str], what: str, one: str) -> list[str]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise TypeError(f"{what} is a list of texts, not a {type(texts).__name__}.")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"A {one} is text, not a {type(text).__name__}.")
        if not text:
            raise InvalidArgumentError(f"A {one} is empty; every text would hold it.")
    if not texts:
        raise InvalidArgumentError(f"{what} is empty; give at least one {one}.")
    return texts


# -- messages and text -------------------------------------------------------------------------------------------


class PlainTextHistory:
    """Conversations as lines of ``Name: text``, for models that were not trained on chats.

    Parameters
    ----------
    user, assistant, system
        The names of the roles.
    unknown
        The name of every other role.
    instruct
        Whether the model marks where the person is to write with ``> `` on a line of its own.
    """

    def __init__(
        self,
        user: str = "User",
        assistant: str = "Assistant",
        system: str = "System",
        unknown: str = "??",
        instruct: bool = False,
    ) -> None:
        for role, name in (("user", user), ("assistant", assistant), ("system", system), ("unknown", unknown)):
            if not isinstance(name, str):
                raise TypeError(f"The name of a role is text, not a {type(name).__name__}.")
            if not name.strip() or "\n" in name:
                raise InvalidArgumentError(f"{role}={name!r} cannot be a name: it must be words on one line.")
        self.user = user
        self.assistant = assistant
        self.system = system
        self.unknown = unknown
        self.instruct = instruct

    @property
    def stop(self) -> tuple[str, ...]:
        """What ends an answer: the start of another message."""
        names = dict.fromkeys((self.user, self.system, self.assistant))
        return (*(f"\n{name}:" for name in names), *(("\n> ",) if self.instruct else ()))

    def to_text(self, messages: Sequence[Message]) -> str:
        """Return a line for each message, with its role's name."""
        names = {"user": self.user, "assistant": self.assistant, "system": self.system}
        return "".join([f"{names.get(message.role, self.unknown)}: {message.text}\n" for message in messages])

    def to_prompt(self, messages: Sequence[Message], answer_start: str = "") -> str:
        """Return the conversation, and the name of the assistant for the model to go on behind."""
        return f"{self.to_text(messages)}{self.assistant}:{' ' if answer_start else ''}{answer_start}"

    def from_text(self, role: str, text: str) -> list[Message]:
        """Return one message, without a user's name before it, or an assistant's behind it."""
        if role == "user":
            name = f"{self.user}:"
            text = text[len(name) :].lstrip() if text.startswith(name) else text
        elif role == "assistant":
            text = text.lstrip()
            for end in (f"{self.assistant}:", *(("\n> ",) if self.instruct else ())):
                text = text[: -len(end)].rstrip() if text.endswith(end) else text
        return [Message.create(role, text)]


class TemplateHistory:
    """Conversations by a Jinja template of one's own, in place of the model's.

    Parameters
    ----------
    jinja
        The template; it is given ``messages``, ``add_generation_prompt``, ``bos_token`` and ``eos_token``.
    bos, eos
        What it is given for the last two.
    stop
        Strings that end an answer, where the model's own end-of-generation tokens do not.

    Raises
    ------
    TemplateError
        It is not valid Jinja.
    """

    def __init__(self, jinja: str, bos: str = "", eos: str = "", stop: Iterable[str] = ()) -> None:
        if not isinstance(jinja, str):
            raise TypeError(f"jinja is the text of a template, not a {type(jinja).__name__}.")
        self.jinja = jinja
        self.bos = bos
        self.eos = eos
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        self._template = ChatTemplate(jinja, bos=bos, eos=eos)

    def to_text(self, messages: Sequence[Message]) -> str:
        """Return the text of the template."""
        return self._template.render(messages, add_generation_prompt=False)

    def to_prompt(self, messages: Sequence[Message], answer_start: str = "") -> str:
        """Return the text of the template with the start of an answer."""
        return self._template.render(messages) + answer_start

    def from_text(self, role: str, text: str) -> list[Message]:
        """Return one message."""
        return [Message.create(role, text)]
