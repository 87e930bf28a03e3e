"""ContextPart: what each message of a path adds to the prompt, and how much of it is in the cache."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from llamanb.engine.base import Engine
from llamanb.engine.cache import common_prefix
from llamanb.engine.template import as_seen
from llamanb.errors import TemplateError
from llamanb.messages import Message
from llamanb.transforms import Transforms

__all__ = ["ContextPart", "added_text", "context_parts"]


@dataclass(frozen=True)
class ContextPart:
    """What one message adds to the prompt.

    Parameters
    ----------
    messages
        The message; several where the chat template only writes them together.
    text
        What stands for it in the prompt, with the marks that the model was trained on.
    n_tokens
        How many tokens that is.
    n_cached
        How many of them need no prefill now.
    """

    messages: tuple[Message, ...]
    text: str
    n_tokens: int
    n_cached: int

    @property
    def role(self) -> str:
        """The role of the message; of several, their roles with a plus between them."""
        return " + ".join(message.role for message in self.messages)

    def holds(self, ids: Container[str]) -> bool:
        """Whether it is of one of these messages."""
        return any(message.id in ids for message in self.messages)


def context_parts(transforms: Transforms, engine: Engine, path: Sequence[Message]) -> list[ContextPart]:
    """Return what each message of a path adds to the prompt; together that is the prompt, and all of its tokens.

    Raises
    ------
    TemplateError
        The chat template refuses the path.
    """
    seen = as_seen(path)
    text = transforms.render(engine, seen)
    tokens = transforms.encode(engine, seen, add_generation_prompt=False)
    n_cached = engine.count_cached(tokens)
    parts: list[ContextPart] = []
    first = text_from = tokens_from = 0
    for end in range(1, len(seen) + 1):
        text_to, tokens_to = len(text), len(tokens)
        if end < len(seen):
            try:
                before = transforms.render(engine, seen[:end])
                held = transforms.encode(engine, seen[:end], add_generation_prompt=False)
            except TemplateError:  # such as a template that wants a user's message after the system prompt
                continue
            text_to, tokens_to = _n_common(before, text), common_prefix(held, tokens)
            if text_to <= text_from or tokens_to <= tokens_from:
                continue
        cached = min(max(n_cached - tokens_from, 0), tokens_to - tokens_from)
        parts.append(
            ContextPart(tuple(path[first:end]), text[text_from:text_to], tokens_to - tokens_from, cached),
        )
        first, text_from, tokens_from = end, text_to, tokens_to
    return parts


def added_text(transforms: Transforms, engine: Engine, path: Sequence[Message], said: Sequence[Message]) -> str:
    """Return what messages that are said next add to the text of a path, with the start of the answer."""
    before = transforms.render(engine, path)
    after = transforms.render(engine, [*path, *said], add_generation_prompt=True)
    return after[_n_common(before, after) :]


def _n_common(a: str, b: str) -> int:
    """Return how many characters two texts share at their start."""
    if b.startswith(a):
        return len(a)
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
