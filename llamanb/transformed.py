"""Transformed: a generation whose answer passes through an output transform while it is written."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import inspect
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from llamanb.engine.base import Generation, GenerationResult, Progress
from llamanb.errors import InvalidArgumentError, TransformError
from llamanb.messages import Chunk, FinishReason
from llamanb.transforms import Composed, OutputTransform, compose, failed, is_async, transform_name

__all__ = ["require_waitable", "transformed"]

_GRACE_SECONDS = 0.5
"""How long an async transform may take to end by itself once the answer was cancelled."""


def require_waitable(transform: OutputTransform | None, loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise where an output transform can only be waited for, and nobody waits in an event loop."""
    stages = transform.transforms if isinstance(transform, Composed) else (transform,)
    waits = next((stage for stage in stages if is_async(stage)), None)
    if waits is not None and loop is None:
        raise InvalidArgumentError(
            f"The output transform {transform_name(waits)!r} is async: only astream and asend can wait for it, not "
            "stream, send, a cell or a panel. Written as a plain generator it works everywhere."
        )


def transformed(
    generation: Generation, transform: OutputTransform | None, loop: asyncio.AbstractEventLoop | None = None
) -> Generation:
    """Return a generation that hands on what a transform makes of another one's answer.

    Parameters
    ----------
    generation
        It is read here, and by nobody else.
    transform
        Sync stages of a composed one run in a thread, async ones in `loop`.
    loop
        The event loop of who reads the answer.
    """
    if transform is None:
        return generation
    stages = transform.transforms if isinstance(transform, Composed) else (transform,)
    for waits, some in itertools.groupby(stages, is_async):
        generation = Transformed(generation, compose(*some), loop if waits else None)
    return generation


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Transformed(Generation):
    """A generation that reads another one, and hands on its answer as a transform makes it.

    Reasoning and tool calls pass by. Where the transform ends early, the generation is cancelled and the answer is
    whole; where it fails, what it made until then is kept.
    """

    def __init__(self, source: Generation, transform: OutputTransform, loop: asyncio.AbstractEventLoop | None) -> None:
        super().__init__(source.cancel)
        self._source = source
        self._transform: Any = transform
        self._loop = loop
        self._exhausted = False
        self._cut = False
        threading.Thread(target=self._run, name="llamanb-transform", daemon=True).start()

    @property
    def progress(self) -> Progress:
        """How far the generation is that it reads."""
        return self._source.progress

    def result(self) -> GenerationResult:
        """Wait for the end, as every generation does.

        Raises
        ------
        InvalidArgumentError
            That would keep the event loop from running which the transform needs.
        """
        if not (self._result or self.cancelled) and (loop := _running_loop()) is not None and self._needs(loop):
            raise InvalidArgumentError(
                f"The output transform {transform_name(self._transform)!r} is async, and waiting here would stop the "
                "event loop that it runs in: read the answer to its end with async for first, or use asend."
            )
        return super().result()

    def _needs(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop is loop or (isinstance(self._source, Transformed) and self._source._needs(loop))

    def _run(self) -> None:
        error: Exception | None = None
        try:
            if self._loop is None:
                self._hand_on()
            else:
                self._wait_for(self._loop)
        except TransformError as problem:
            error = problem
        except BaseException as problem:  # whatever a person's function raises; somebody waits for the end
            error = failed("output", self._transform, problem)
        if not self._exhausted:
            self._source.cancel()
        result = self._source.result()
        reason = result.finish_reason
        if error is not None and result.error is None:
            reason = FinishReason.ERROR
        elif self.cancelled and (self._cut or not self._exhausted):
            reason = FinishReason.CANCELLED
        elif not self._exhausted and reason in (FinishReason.CANCELLED, FinishReason.LENGTH):
            reason = FinishReason.STOP
        self.finish(dataclasses.replace(result, text=self.so_far(), finish_reason=reason, error=result.error or error))

    def _texts(self) -> Iterator[str]:
        """Yield the answer of the generation that it reads; the rest passes by."""
        for chunk in self._source:
            if chunk.kind == "answer":
                yield chunk.text
            else:
                self.emit(chunk)
        self._exhausted = True

    def _show(self, piece: object) -> None:
        if not isinstance(piece, str):
            raise TransformError(
                f"The output transform {transform_name(self._transform)!r} must yield text, not {type(piece).__name__}."
            )
        if piece:
            self.emit(Chunk("answer", piece))

    def _require(self, pieces: object, kind: type) -> None:
        if not isinstance(pieces, kind) or isinstance(pieces, str):
            raise TransformError(
                f"The output transform {transform_name(self._transform)!r} must return an iterator of text, not "
                f"{type(pieces).__name__}; one that yields is simplest."
            )

    # -- in this thread -----------------------------------------------------------------------------------------

    def _hand_on(self) -> None:
        pieces = self._transform(self._texts())
        self._require(pieces, Iterator)
        for piece in pieces:
            self._show(piece)

    # -- in the reader's event loop -----------------------------------------------------------------------------

    def _wait_for(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass the texts to a task in the loop, and wait until it has made the last of them into something."""
        texts: asyncio.Queue[str | None] = asyncio.Queue()
        task = self._make(texts)
        try:
            future = asyncio.run_coroutine_threadsafe(task, loop)
        except RuntimeError:  # the loop is closed: nobody reads any more
            task.close()
            self._cut = True
            self.cancel()
            return
        future.add_done_callback(lambda _: None if self._exhausted else self._source.cancel())
        try:
            for text in self._texts():
                loop.call_soon_threadsafe(texts.put_nowait, text)
            loop.call_soon_threadsafe(texts.put_nowait, None)
            self._await(future, loop)
        except RuntimeError:
            if not loop.is_closed():
                raise
            self._cut = True
            self.cancel()

    def _await(self, future: concurrent.futures.Future[None], loop: asyncio.AbstractEventLoop) -> None:
        until: float | None = None
        while not future.done() and not loop.is_closed():
            concurrent.futures.wait([future], 0.1)
            if self.cancelled and until is None:
                until = time.monotonic() + _GRACE_SECONDS
            if until is not None and time.monotonic() > until:
                self._cut = future.cancel()
        if loop.is_closed():
            self._cut = True
            self.cancel()
        elif not future.cancelled():
            future.result()

    async def _make(self, texts: asyncio.Queue[str | None]) -> None:
        async def coming() -> AsyncIterator[str]:
            while (text := await texts.get()) is not None:
                yield text

        pieces = self._transform(coming())
        if inspect.isawaitable(pieces):
            pieces = await pieces
        self._require(pieces, AsyncIterator)
        async for piece in pieces:
            self._show(piece)
