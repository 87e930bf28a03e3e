"""ScriptedEngine: a deterministic engine that needs no model, for tests and for authors of tutorials."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llamanb.engine.base import (
    Clock,
    EngineStats,
    Generation,
    GenerationRequest,
    GenerationResult,
    Progress,
    answer_budget,
    require_open,
    token_bias,
)
from llamanb.engine.cache import CacheBook, Placement
from llamanb.engine.constraint import check_schema
from llamanb.engine.parsing import TextAssembler
from llamanb.engine.template import CHATML, ChatTemplate, Render, as_seen
from llamanb.errors import EngineError, InvalidArgumentError
from llamanb.messages import Chunk, FinishReason, Message, ToolCall

__all__ = ["ScriptedEngine", "ScriptedReply"]

ScriptedReply = str | Mapping[str, Any] | Exception | Callable[[GenerationRequest], Any]
"""Text; a mapping with any of ``text``, ``reasoning``, ``tool_calls``, ``finish_reason``; an exception to raise; or a
function of the request that returns one of these."""

_REPLY_KEYS = {"text", "reasoning", "tool_calls", "finish_reason"}


@dataclass(frozen=True)
class _Script:
    text: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass
class _Progress:
    """How far a generation got, kept where an exception in the middle of it cannot lose it."""

    assembler: TextAssembler
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    n_generated: int = 0


class ScriptedEngine:
    """An engine whose answers are written in advance.

    Its template is ChatML and its tokens are the bytes of UTF-8, so that counts are easy to work out by hand; a tool
    call takes those of its name and arguments. It keeps the same account of its cache as a real engine: what is
    reported as cached would have been.

    Parameters
    ----------
    replies
        One reply for each call, in turn, or one function that answers every call.
    n_ctx
        Tokens (bytes) that the context window of one branch may hold.
    n_seq_max
        How many sequences its cache can tell apart.
    n_cells
        Cells of the whole cache; by default ``2 * n_ctx``.
    seconds_per_token
        How long a token takes; 0 is as fast as possible.
    """

    def __init__(
        self,
        replies: Sequence[ScriptedReply] | Callable[[GenerationRequest], Any],
        *,
        n_ctx: int = 4096,
        n_seq_max: int = 16,
        n_cells: int | None = None,
        seconds_per_token: float = 0.0,
    ) -> None:
        if isinstance(replies, (str, Mapping)) or not (callable(replies) or isinstance(replies, Sequence)):
            raise TypeError(
                f"replies is a list of replies, or a function, not a {type(replies).__name__}; "
                "put a single reply into a list."
            )
        self._replies = replies if callable(replies) else list(replies)
        self._n_calls = 0
        self._n_ctx = n_ctx
        self._n_seq_max = n_seq_max
        self._book = CacheBook(n_seq_max, n_cells or 2 * n_ctx)
        self._seconds_per_token = seconds_per_token
        self._template = ChatTemplate(CHATML)
        self._lock = threading.Condition()
        self._running: dict[threading.Thread, Generation] = {}
        self._closed = False

    name = "scripted"

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the name; every scripted engine is the same model."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    @property
    def cache_fingerprint(self) -> str:
        """That of the model: there is nothing else that its cache depends on."""
        return self.fingerprint

    @property
    def n_ctx(self) -> int:
        """Tokens (bytes) that the context window of one branch may hold."""
        return self._n_ctx

    @property
    def closed(self) -> bool:
        """Whether the engine was closed."""
        return self._closed

    @property
    def n_calls(self) -> int:
        """How many generations were started."""
        return self._n_calls

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation in ChatML."""
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def encode(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, render: Render | None = None
    ) -> list[int]:
        """Return the bytes of the ChatML text, or of what `render` writes."""
        if render is not None:
            return self.tokenize(render(as_seen(messages)))
        return self.tokenize(self.render(messages, add_generation_prompt=add_generation_prompt))

    def tokenize(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode())

    def _single(self, text: str) -> list[int]:
        tokens = self.tokenize(text)
        return tokens if len(tokens) == 1 else []

    def submit(self, request: GenerationRequest) -> Generation:
        """Start a generation in a thread of its own; of its sampling, `max_tokens` and `stop` act."""
        require_open(self._closed)
        if request.sampling.json_schema is not None:
            check_schema(request.sampling.json_schema)
        token_bias(request.sampling.logit_bias, self._single, self.tokenize)
        budget = answer_budget(request, self._n_ctx)
        with self._lock:
            reply = {"finish_reason": "length"} if request.prefill_only else self._next_reply()
        generation = Generation(n_prompt=len(request.tokens))
        thread = threading.Thread(
            target=self._run, args=(request, generation, reply, budget), name="llamanb-scripted", daemon=True
        )
        with self._lock:
            self._running[thread] = generation
        thread.start()
        return generation

    def _next_reply(self) -> ScriptedReply:
        self._n_calls += 1
        if callable(self._replies):
            return self._replies
        if self._n_calls > len(self._replies):
            raise EngineError(
                f"The ScriptedEngine has no reply left for call {self._n_calls}: it was given {len(self._replies)}."
            )
        return self._replies[self._n_calls - 1]

    def _run(self, request: GenerationRequest, generation: Generation, reply: ScriptedReply, budget: int) -> None:
        clock = Clock(time.perf_counter())
        progress = _Progress(TextAssembler(request.sampling.stop))
        prompt = list(request.tokens)
        n_cached = 0
        error: Exception | None = None
        finish = FinishReason.ERROR
        placement = None
        try:
            placement = self._place(prompt, budget, generation)
            if placement is None:
                finish = FinishReason.CANCELLED
            else:
                n_cached = placement.n_cached
                generation.report(Progress(len(prompt), len(prompt), n_cached))
                script = _script(reply, request)
                clock.first_token = time.perf_counter()
                finish = self._speak(script, budget, generation, progress)
        except Exception as problem:  # whatever a script raises is the generation's error
            error = problem
        text = progress.assembler.text
        with self._lock:
            if placement is not None:
                self._book.extend(placement.seq_id, [*prompt[n_cached:], *text.encode()])
                self._book.release(placement.seq_id)
            self._running.pop(threading.current_thread(), None)
            self._lock.notify_all()
        clock.ended = time.perf_counter()
        usage = clock.usage(len(prompt), n_cached, progress.n_generated)
        kept = request.prefill_only and request.keep_state and placement is not None
        state = memoryview(bytes(prompt)) if kept else None
        generation.finish(
            GenerationResult(text, finish, usage, progress.reasoning, tuple(progress.tool_calls), error, state)
        )

    def _place(self, prompt: list[int], budget: int, generation: Generation) -> Placement | None:
        with self._lock:
            while (placement := self._book.place(prompt, budget)) is None and not generation.cancelled:
                self._lock.wait(0.05)
        return placement

    def _speak(self, script: _Script, budget: int, generation: Generation, progress: _Progress) -> FinishReason:
        if script.reasoning:
            progress.reasoning = script.reasoning
            generation.emit(Chunk("reasoning", script.reasoning))
        for byte in script.text.encode():
            if generation.wait_cancelled(self._seconds_per_token) if self._seconds_per_token else generation.cancelled:
                return FinishReason.CANCELLED
            if progress.n_generated == budget:
                self._show(generation, progress.assembler.finish())
                return FinishReason.LENGTH
            progress.n_generated += 1
            generation.report(dataclasses.replace(generation.progress, n_generated=progress.n_generated))
            self._show(generation, progress.assembler.feed(bytes([byte])))
            if progress.assembler.stopped:
                return FinishReason.STOP
        if generation.cancelled:
            return FinishReason.CANCELLED
        self._show(generation, progress.assembler.finish())
        for call in script.tool_calls:
            progress.n_generated += len(self.tokenize(call.name + call.arguments_text))
            if progress.n_generated > budget:
                progress.n_generated = budget
                return FinishReason.LENGTH
            progress.tool_calls.append(call)
            generation.emit(Chunk("tool_call", "", call))
        if script.finish_reason is not None:
            return script.finish_reason
        return FinishReason.TOOL_CALLS if script.tool_calls else FinishReason.STOP

    @staticmethod
    def _show(generation: Generation, text: str) -> None:
        if text:
            generation.emit(Chunk("answer", text))

    def count_cached(self, tokens: Sequence[int]) -> int:
        """Return how many tokens at the start of a prompt a real cache would hold now."""
        with self._lock:
            return self._book.longest_prefix(tokens)

    def load_state(self, tokens: Sequence[int], state: memoryview) -> bool:
        """Keep what a cache held; the saved form of this one is its tokens."""
        require_open(self._closed)
        prompt = list(tokens)
        with self._lock:
            return list(state) == prompt and (
                self._book.longest_prefix(prompt) == len(prompt) or self._book.take_in(prompt, len(state)) is not None
            )

    def stats(self) -> EngineStats:
        """Return what a real cache would hold now."""
        with self._lock:
            return EngineStats(
                n_ctx=self._n_ctx,
                n_cells=self._book.n_cells,
                n_cells_used=self._book.n_used,
                n_seq_max=self._n_seq_max,
                n_sequences=self._book.n_sequences,
                n_parked=self._book.n_parked,
                parked_bytes=self._book.parked_bytes,
                n_running=len(self._running),
                n_waiting=0,
            )

    def close(self) -> None:
        """Cancel what runs. Closing twice changes nothing."""
        with self._lock:
            self._closed = True
            running = dict(self._running)
        for generation in running.values():
            generation.cancel()
        for thread in running:
            thread.join()

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ScriptedEngine, n_ctx={self._n_ctx}{', closed' if self._closed else ''}>"


def _script(reply: Any, request: GenerationRequest) -> _Script:
    if callable(reply):
        reply = reply(request)
    if isinstance(reply, Exception):
        raise reply
    if isinstance(reply, str):
        return _Script(reply)
    if not isinstance(reply, Mapping) or not set(reply) <= _REPLY_KEYS:
        raise InvalidArgumentError(
            f"A scripted reply is text, a mapping with any of {', '.join(sorted(_REPLY_KEYS))}, an exception or a "
            f"function, not {reply!r}."
        )
    finish = reply.get("finish_reason")
    return _Script(
        reply.get("text", ""),
        reply.get("reasoning"),
        tuple(ToolCall.from_dict(call) for call in reply.get("tool_calls", ())),
        None if finish is None else FinishReason(finish),
    )
