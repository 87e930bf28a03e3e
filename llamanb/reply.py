"""Reply and ReplyStream: an answer, whole and as it is written."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llamanb.engine.base import Generation, GenerationResult
from llamanb.errors import DecodeError, InvalidArgumentError, LlamanbError
from llamanb.fitting import SendPlan
from llamanb.messages import Chunk, FinishReason, Message, ToolCall, Usage
from llamanb.rendering import answer_markdown
from llamanb.wording import sentence

__all__ = ["AsyncReplyStream", "Reply", "ReplyGroup", "ReplyStream", "finished", "known_error"]


@dataclass(frozen=True)
class Reply:
    """An answer.

    Parameters
    ----------
    text
        What the model said.
    messages
        The whole exchange, the user's message first; empty where nothing was kept.
    finish_reason
        Why it ended.
    usage
        What it cost: ``n_cached + n_prefilled == n_prompt``.
    branch
        The branch that it is on.
    reasoning
        What the model thought before it answered, if it shows that.
    tool_calls
        The calls that it made.
    plan
        How it fitted into the context window, and what was left out of its prompt.
    """

    text: str
    messages: tuple[Message, ...]
    finish_reason: FinishReason
    usage: Usage
    branch: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    plan: SendPlan | None = None

    def json(self) -> Any:
        """Return the answer read as JSON.

        Raises
        ------
        InvalidArgumentError
            It is not JSON; the message says so where the answer was cut off.
        """
        try:
            return json.loads(self.text)
        except ValueError as error:
            cut = " It was cut off: raise max_tokens." if self.finish_reason is FinishReason.LENGTH else ""
            raise InvalidArgumentError(f"The answer is not valid JSON: {sentence(error)}{cut}") from None

    def __repr__(self) -> str:
        return f"Reply({self.text!r}, finish_reason={self.finish_reason.value!r})"

    def _repr_markdown_(self) -> str:
        return answer_markdown(self.text)


class ReplyStream(Iterator[Chunk]):
    """An answer as it is written. Iterate over it for its chunks; then `reply` is the whole.

    What was said is put into the tree when the answer ends, is cancelled or fails; before that the tree is as it was.
    Closing it, or dropping it unread, cancels the answer and keeps what there is of it.
    """

    def __init__(
        self, generation: Generation, commit: Callable[[GenerationResult], tuple[Reply, Exception | None]]
    ) -> None:
        self._generation = generation
        self._commit = commit
        self._chunks = iter(generation)
        self._reply: Reply | None = None
        self._error: Exception | None = None
        self._ending = threading.RLock()

    def __next__(self) -> Chunk:
        try:
            return next(self._chunks)
        except StopIteration:
            self._end()
            self._raise_error()
            raise

    def cancel(self) -> None:
        """Ask the answer to stop at once; may be called from any thread. Iteration then comes to its end."""
        self._generation.cancel()

    def close(self) -> None:
        """Cancel the answer if it is still being written, and keep what there is of it."""
        if self._reply is None:
            self.cancel()
            self._end()

    @property
    def reply(self) -> Reply:
        """The whole answer; waits for it, passing over chunks that were not read.

        Raises
        ------
        LlamanbError
            The generation failed.
        """
        reply = self._end()
        self._raise_error()
        return reply

    def _end(self) -> Reply:
        with self._ending:
            if self._reply is None:
                self._reply, error = self._commit(self._generation.result())
                self._error = known_error(error)
            return self._reply

    def _raise_error(self) -> None:
        """Raise what the generation failed with, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error from error.__cause__

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Nothing that is raised here could be caught; what a second interrupt leaves undone the session settles later.
        with contextlib.suppress(BaseException):
            self.close()


class ReplyGroup(Iterator[tuple[int, Chunk]]):
    """Several answers that are written at once. Iterate over it for pairs of an answer's index and a chunk.

    They are put into the tree when the last one ends, in the order in which they were asked for.
    """

    def __init__(self, streams: Sequence[ReplyStream]) -> None:
        self._streams = list(streams)
        self._waiting = collections.deque[tuple[int, Chunk]]()
        self._woken = threading.Event()
        for stream in self._streams:
            stream._generation.listen(self._woken.set)

    def __next__(self) -> tuple[int, Chunk]:
        while not self._waiting:
            if all(stream._generation.ended for stream in self._streams):
                raise StopIteration
            self._woken.wait(0.2)
            self._woken.clear()
            for index, stream in enumerate(self._streams):
                self._waiting += [(index, chunk) for chunk in stream._generation.ready()]
        return self._waiting.popleft()

    def gathered(self, pause: Callable[[], float]) -> Iterator[list[tuple[int, Chunk]]]:
        """Iterate over what has come: at once for the first, then as often as `pause`, in seconds, allows.

        Whoever is woken for every token takes time from the threads that compute it.
        """
        for first in self:
            came = [first, *self._waiting]
            self._waiting.clear()
            yield came
            until = time.monotonic() + pause()
            for stream in self._streams:
                while (left := until - time.monotonic()) > 0 and not stream._generation.wait_finished(min(left, 0.2)):
                    pass

    def cancel(self) -> None:
        """Ask all of them to stop at once; may be called from any thread."""
        for stream in self._streams:
            stream.cancel()

    def close(self) -> None:
        """Cancel what is still being written, and keep what there is of it."""
        if any(stream._reply is None for stream in self._streams):
            self.cancel()
        for stream in self._streams:
            stream.close()

    @property
    def replies(self) -> list[Reply]:
        """The whole answers; waits for them. An interrupt cancels them and keeps what there is of them.

        Raises
        ------
        LlamanbError
            A generation failed; the others are kept, and reading this again returns what there is.
        """
        with self:
            for stream in self._streams:
                stream._end()
            errors = [stream._error for stream in self._streams if stream._error is not None]
            for stream in self._streams:
                stream._error = None
            if errors:
                raise errors[0] from errors[0].__cause__
            return [stream.reply for stream in self._streams]

    def __enter__(self) -> ReplyGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def finished(stream: ReplyStream) -> Reply:
    """Wait for an answer; an interrupt cancels it and keeps what there is of it."""
    with stream:
        return stream.reply


class AsyncReplyStream(AsyncIterator[Chunk]):
    """A `ReplyStream` for ``async for``: leaving the loop, or cancelling the task, cancels the answer too."""

    def __init__(self, stream: ReplyStream) -> None:
        self._stream = stream

    async def __anext__(self) -> Chunk:
        try:
            chunk = await asyncio.to_thread(next, self._stream, None)
        except asyncio.CancelledError:
            await asyncio.shield(self.aclose())
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def cancel(self) -> None:
        """Ask the answer to stop at once; may be called from any thread."""
        self._stream.cancel()

    async def aclose(self) -> None:
        """Cancel the answer if it is still being written, and keep what there is of it."""
        self._stream.cancel()  # wakes a thread that still waits for a chunk
        await asyncio.to_thread(self._stream.close)

    @property
    def reply(self) -> Reply:
        """The whole answer, once the loop over it has ended; before that, reading this waits for it."""
        return self._stream.reply

    async def __aenter__(self) -> AsyncReplyStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Not left to the stream itself: the thread that fetched the last chunk may hold it for a moment longer.
        with contextlib.suppress(BaseException):
            self._stream.close()


def known_error(error: Exception | None) -> Exception | None:
    """Let no error of another kind out of a session."""
    if error is None or isinstance(error, LlamanbError):
        return error
    known = DecodeError(f"The engine failed: {type(error).__name__}: {sentence(error)}")
    known.__cause__ = error
    return known
