"""What every engine offers: the protocol, a request, and the running generation that answers it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from llamanb.engine.template import Render
from llamanb.errors import ContextWindowExceededError, InvalidArgumentError, SessionClosedError
from llamanb.messages import Chunk, ChunkKind, FinishReason, Message, ToolCall, Usage
from llamanb.sampling import SamplingParams

__all__ = [
    "Engine",
    "EngineStats",
    "Generation",
    "GenerationRequest",
    "GenerationResult",
    "Progress",
    "answer_budget",
    "token_bias",
]

_LONG_TEXT, _FEW_TOKENS = 40, 8  # how much of a text and of its tokens a message shows


@dataclass(frozen=True)
class GenerationRequest:
    """One answer to be generated.

    Parameters
    ----------
    messages
        The path as the model sees it, root first.
    tokens
        The path as the engine's `encode` gives it, with the generation prompt.
    sampling
        How to sample; its seed is a number unless it is greedy.
    prefill_only
        Whether the prompt is only to be evaluated, and nothing generated.
    keep_state
        Whether the result is to hold a copy of what the cache holds for the prompt, where it is only evaluated.
    """

    messages: Sequence[Message]
    tokens: Sequence[int]
    sampling: SamplingParams
    prefill_only: bool = False
    keep_state: bool = False


@dataclass(frozen=True)
class GenerationResult:
    """How a generation ended; `state` is what the cache holds for the prompt, where that was asked for."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    error: Exception | None = None
    state: memoryview | None = None


@dataclass(frozen=True)
class Progress:
    """How far a generation is, in tokens.

    Parameters
    ----------
    n_prompt
        Tokens of the prompt.
    n_read
        How many of them are in the cache by now, those that were there from the start included.
    n_cached
        How many were there from the start.
    n_generated
        Tokens of the answer so far.
    """

    n_prompt: int
    n_read: int = 0
    n_cached: int = 0
    n_generated: int = 0


@dataclass(frozen=True)
class EngineStats:
    """Where the cells of the cache are, counted in tokens, and how many requests run and wait."""

    n_ctx: int
    n_cells: int
    n_cells_used: int
    n_seq_max: int
    n_sequences: int
    n_parked: int
    parked_bytes: int
    n_running: int
    n_waiting: int


class Generation:
    """A generation that runs in the engine's thread; iterate over it for its chunks.

    The engine calls `emit` and, exactly once, `finish`. The consumer may call `cancel` from any thread, and others may
    look at how far it is.
    """

    def __init__(self, on_cancel: Callable[[], None] = lambda: None, n_prompt: int = 0) -> None:
        self._progress = Progress(n_prompt)
        self._so_far: list[Chunk] = []
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._on_cancel = on_cancel
        self._cancelled = threading.Event()
        self._finished = threading.Event()
        self._result: GenerationResult | None = None
        self._listener: Callable[[], None] = lambda: None

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._progress

    def report(self, progress: Progress) -> None:
        """Say how far it is; for the engine."""
        self._progress = progress

    @property
    def cancelled(self) -> bool:
        """Whether it was asked to stop."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask it to stop at once, in prefill too. It still ends with a result; cancelling twice changes nothing."""
        self._cancelled.set()
        self._on_cancel()

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait until it was asked to stop, at most so long; return whether it was."""
        return self._cancelled.wait(seconds)

    def emit(self, chunk: Chunk) -> None:
        """Hand a chunk to the consumer."""
        self._so_far.append(chunk)
        self._chunks.put(chunk)
        self._listener()

    def finish(self, result: GenerationResult) -> None:
        """End the generation."""
        self._result = result
        self._finished.set()
        self._chunks.put(None)
        self._listener()

    def so_far(self, kind: ChunkKind = "answer") -> str:
        """Return the text so far, whoever has read it."""
        return "".join([chunk.text for chunk in self._so_far if chunk.kind == kind])

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self._next()) is not None:
            yield chunk

    def _next(self) -> Chunk | None:
        while True:
            if self.ended:
                return None
            try:
                # The time-out lets Python act on an interrupt on systems where a blocking get cannot be woken.
                return self._chunks.get(timeout=0.2)
            except queue.Empty:
                continue

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called, in the engine's thread, when there is a chunk or the end."""
        self._listener = listener
        listener()

    def ready(self) -> list[Chunk]:
        """Return the chunks that are there, without waiting for more."""
        chunks = []
        with contextlib.suppress(queue.Empty):
            while True:
                if (chunk := self._chunks.get_nowait()) is not None:
                    chunks.append(chunk)
        return chunks

    @property
    def ended(self) -> bool:
        """Whether it has ended and every chunk was read."""
        return self._result is not None and self._chunks.empty()

    def wait_finished(self, seconds: float) -> bool:
        """Wait until the engine has ended it, at most so long; return whether it has."""
        return self._finished.wait(seconds)

    def result(self) -> GenerationResult:
        """Wait for the end, passing over chunks that were not read, and return how it ended."""
        while self._result is None:
            self._finished.wait(0.2)  # as in `_next`; whoever waits here is not woken for every token
        self.ready()
        return self._result


@runtime_checkable
class Engine(Protocol):
    """A loaded model that can generate. Its methods may be called from any thread."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def fingerprint(self) -> str:
        """Tells which model this is; stored on the messages that it writes."""

    @property
    def cache_fingerprint(self) -> str:
        """Tells whose saved cache can be used: the model, the settings, and the program that evaluates it."""

    @property
    def n_ctx(self) -> int:
        """Tokens that the context window of one branch may hold."""

    @property
    def closed(self) -> bool:
        """Whether the engine was closed."""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation by the chat template.

        Raises
        ------
        TemplateError
            The template refuses the messages.
        """

    def encode(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, render: Render | None = None
    ) -> list[int]:
        """Return the tokens of a conversation; control-token strings inside messages are plain text there.

        With `render`, that writes the text in place of the chat template.
        """

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of plain text, with nothing added."""

    def submit(self, request: GenerationRequest) -> Generation:
        """Start a generation.

        Raises
        ------
        ContextWindowExceededError
            The prompt leaves no room for a token; nothing was decoded.
        SessionClosedError
            The engine was closed.
        """

    def count_cached(self, tokens: Sequence[int]) -> int:
        """Return how many tokens at the start of a prompt need no prefill now: in the cache, or parked beside it."""

    def load_state(self, tokens: Sequence[int], state: memoryview) -> bool:
        """Keep what a cache held for some tokens, for the next prompt that starts with them; false where it cannot.

        The state must come from an engine with the same `cache_fingerprint`, and lie in memory that may be written to.
        """

    def stats(self) -> EngineStats:
        """Return where the cells of the cache are."""

    def close(self) -> None:
        """Cancel what runs and free the model. Closing twice changes nothing."""


def answer_budget(request: GenerationRequest, n_ctx: int) -> int:
    """Return how many tokens the answer may have: the smaller of what was asked and what is left of the window.

    It is 0 where the prompt is only to be evaluated.

    Raises
    ------
    ContextWindowExceededError
        Nothing is left.
    """
    left = n_ctx - len(request.tokens)
    if left < 1:
        raise ContextWindowExceededError(len(request.tokens), n_ctx)
    return 0 if request.prefill_only else min(request.sampling.max_tokens, left)


def token_bias(
    bias: Mapping[int | str, float],
    single: Callable[[str], Sequence[int]],
    tokenize: Callable[[str], Sequence[int]],
) -> dict[int, float]:
    """Return a logit bias by token ids alone; where two keys name a token, their numbers add up.

    Parameters
    ----------
    bias
        Token ids and texts to numbers. A text stands for itself and, unless it begins with white space, for itself
        after a space: a model has one token for a word that begins a text and another inside of it.
    single
        Gives the tokens whose text is exactly this.
    tokenize
        Gives the tokens of a text.

    Raises
    ------
    InvalidArgumentError
        A text is no single token, neither as it is nor after a space.
    """
    tokens: dict[int, float] = {}
    for key, value in bias.items():
        named = [key] if isinstance(key, int) else _single_tokens(key, single, tokenize)
        for token in named:
            tokens[token] = tokens.get(token, 0.0) + value
    return tokens


def _single_tokens(
    text: str, single: Callable[[str], Sequence[int]], tokenize: Callable[[str], Sequence[int]]
) -> list[int]:
    forms = [text] if text[0].isspace() else [text, " " + text]
    found = [token for form in forms for token in single(form)]
    if not found:
        parts = tokenize(text)
        shown = text if len(text) <= _LONG_TEXT else text[: _LONG_TEXT - 1] + "…"
        ids = [str(token) for token in parts[:_FEW_TOKENS]] + ["…"] * (len(parts) > _FEW_TOKENS)
        raise InvalidArgumentError(
            f"logit_bias names {shown!r}, which is {len(parts)} tokens in this model; a bias acts on single tokens, so "
            f"name one by its id: {', '.join(ids)}."
        )
    return found


def require_open(closed: bool) -> None:
    """Raise where an engine was closed."""
    if closed:
        raise SessionClosedError("The engine is closed; make a new one.")


@dataclass
class Clock:
    """Splits the time of a request into prefill and decode."""

    started: float
    first_token: float | None = None
    ended: float = field(default=0.0)

    def usage(self, n_prompt: int, n_cached: int, n_generated: int) -> Usage:
        """Return the usage so far."""
        first = self.ended if self.first_token is None else self.first_token
        return Usage(
            n_prompt=n_prompt,
            n_cached=n_cached,
            n_prefilled=n_prompt - n_cached,
            n_generated=n_generated,
            prefill_seconds=max(0.0, first - self.started),
            decode_seconds=max(0.0, self.ended - first),
        )
