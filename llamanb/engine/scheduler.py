"""Scheduler: one thread that owns a device and decodes all running requests together, in one batch a step."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from llamanb.engine.base import Clock, Generation, GenerationRequest, GenerationResult, Progress
from llamanb.engine.cache import CacheBook, Compact, Drop, Park, Placement, Restore, Share, Step, Trim, common_prefix
from llamanb.engine.parsing import TextAssembler
from llamanb.errors import DecodeError, LlamanbError, SessionClosedError
from llamanb.messages import Chunk, FinishReason
from llamanb.sampling import SamplingParams
from llamanb.wording import sentence

__all__ = ["Device", "Outcome", "Row", "Sampler", "Scheduler"]


class Outcome(Enum):
    """How a step on the device ended."""

    DONE = "done"
    ABORTED = "aborted"
    NO_ROOM = "no room"


@dataclass(frozen=True)
class Row:
    """One token of a batch."""

    token: int
    position: int
    seq_id: int
    wants_logits: bool


class Sampler(Protocol):
    """Chooses the tokens of one answer."""

    def sample(self, row: int) -> int:
        """Return the token that follows the given row of the last batch."""

    def close(self) -> None:
        """Free it."""


class Device(Protocol):
    """What the scheduler needs of a loaded model. Only `abort` is called from other threads than the scheduler's."""

    n_batch: int
    n_ubatch: int

    def decode(self, rows: Sequence[Row]) -> Outcome:
        """Evaluate a batch. Raises `DecodeError`."""

    def sampler(self, sampling: SamplingParams, prompt: Sequence[int]) -> Sampler:
        """Make a fresh sampler for one request."""

    def is_end(self, token: int) -> bool:
        """Whether a token ends an answer."""

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""

    def share(self, source: int, target: int, n: int) -> None:
        """Let a sequence hold the first `n` cells of another."""

    def remove(self, seq_id: int, start: int) -> bool:
        """Remove a sequence's tokens from a position on; false where the model's memory cannot be cut."""

    def save(self, seq_id: int, start: int = 0) -> Any:
        """Return a copy of a sequence's state from a position on, something with a length in bytes."""

    def load(self, state: Any, seq_id: int) -> bool:
        """Put a saved state at the end of a sequence; false where it does not fit."""

    def length(self, seq_id: int) -> int:
        """Return how many tokens a sequence holds."""

    def clear(self) -> None:
        """Remove everything from the cache."""

    def abort(self) -> None:
        """Make a decode that runs return at once."""

    def clear_abort(self) -> None:
        """Let decodes run again."""

    def close(self) -> None:
        """Free the model."""


@dataclass
class _Slot:
    """A request that has a sequence."""

    request: GenerationRequest
    generation: Generation
    budget: int
    placement: Placement
    sampler: Sampler
    clock: Clock
    assembler: TextAssembler
    tokens: list[int]
    n_done: int
    n_generated: int = 0

    @property
    def seq_id(self) -> int:
        return self.placement.seq_id

    def note_progress(self) -> None:
        n_prompt = len(self.request.tokens)
        n_read = min(self.n_done, n_prompt)
        self.generation.report(Progress(n_prompt, n_read, self.placement.n_cached, self.n_generated))

    @property
    def decoding(self) -> bool:
        return self.n_generated > 0 and len(self.tokens) - self.n_done == 1


@dataclass
class _Waiting:
    request: GenerationRequest
    generation: Generation
    budget: int
    clock: Clock = field(default_factory=lambda: Clock(time.perf_counter()))


class Scheduler:
    """Runs requests on a device, many at once.

    A step decodes one token of every answer that is being written. While there are such answers, at most one
    micro-batch of prompt goes along; otherwise as much as a batch holds.
    """

    def __init__(self, device: Device, book: CacheBook) -> None:
        self._device = device
        self._book = book
        self._states: dict[int, Any] = {}
        self._slots: list[_Slot] = []
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition(threading.RLock())
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="llamanb-engine", daemon=True)
        self._thread.start()

    # -- called from any thread ---------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, budget: int) -> Generation:
        """Queue a request."""
        generation = Generation(self._on_cancel, len(request.tokens))
        with self._changed:
            if self._closing:
                raise SessionClosedError("The engine is closed; make a new one.")
            self._waiting.append(_Waiting(request, generation, budget))
            self._changed.notify()
        return generation

    def count_cached(self, tokens: Sequence[int]) -> int:
        """Return how many tokens at the start of a prompt are held."""
        with self._changed:
            return self._book.longest_prefix(tokens)

    def load_state(self, tokens: Sequence[int], state: Any) -> bool:
        """Keep a saved sequence for the next prompt that starts with its tokens; false where there is no room."""
        with self._changed:
            if self._book.longest_prefix(tokens) == len(tokens):
                return True
            taken = self._book.take_in(tokens, len(state))
            if taken is None:
                return False
            key, forgotten = taken
            self._states[key] = state
            for other in forgotten:
                self._states.pop(other, None)
            return True

    def counts(self) -> dict[str, int]:
        """Return how many cells, sequences, bytes and requests there are."""
        with self._changed:
            return {
                "n_cells_used": self._book.n_used,
                "n_sequences": self._book.n_sequences,
                "n_parked": self._book.n_parked,
                "parked_bytes": self._book.parked_bytes,
                "n_running": len(self._slots),
                "n_waiting": len(self._waiting),
            }

    def close(self) -> None:
        """Cancel everything, end the thread and free the device."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._device.abort()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _on_cancel(self) -> None:
        # The flag of the generation is set already: whatever the abort stops, the next step sees it.
        self._device.abort()
        with self._changed:
            self._changed.notify()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._slots or self._waiting or self._closing):
                    self._changed.wait()
                # First allow decodes, then look for cancellations: in the other order one could be lost.
                self._device.clear_abort()
                self._end_cancelled()
                if self._closing:
                    break
                self._admit()
            if self._slots:
                self._guarded_step()
        self._device.close()

    def _end_cancelled(self) -> None:
        for slot in [s for s in self._slots if s.generation.cancelled or self._closing]:
            self._finish(slot, FinishReason.CANCELLED)
        for waiting in [w for w in self._waiting if w.generation.cancelled or self._closing]:
            self._waiting.remove(waiting)
            waiting.clock.ended = time.perf_counter()
            usage = waiting.clock.usage(len(waiting.request.tokens), 0, 0)
            waiting.generation.finish(GenerationResult("", FinishReason.CANCELLED, usage))

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as error:  # the thread must outlive every failure; each request is told of it
            with self._changed:
                for slot in list(self._slots):
                    self._drop(slot.seq_id)
                    self._finish(slot, FinishReason.ERROR, _known(error))

    # -- admission ----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        for waiting in list(self._waiting):
            if self._shares_what_is_coming(waiting):
                continue
            prompt = list(waiting.request.tokens)
            placement = self._book.place(prompt, waiting.budget)
            if placement is None:
                return  # first come, first served: nobody overtakes one that waits for room
            self._waiting.remove(waiting)
            self._start(waiting, placement, prompt)

    def _shares_what_is_coming(self, waiting: _Waiting) -> bool:
        """Whether a running prefill is about to evaluate tokens that this prompt starts with too."""
        prompt = list(waiting.request.tokens)
        coming = max(
            (common_prefix(s.tokens, prompt) for s in self._slots if not s.decoding and s.n_done < len(s.tokens)),
            default=0,
        )
        return coming > self._book.longest_prefix(prompt)

    def _start(self, waiting: _Waiting, placement: Placement, prompt: list[int]) -> None:
        n_cached = placement.n_cached
        try:
            # What came from elsewhere may hold another number of tokens than it was said to.
            if not self._carry_out(placement.steps) or self._device.length(placement.seq_id) != n_cached:
                self._device.remove(placement.seq_id, 0)
                self._book.cut(placement.seq_id, 0)
                n_cached = 0
            sampler = self._device.sampler(waiting.request.sampling, prompt)
        except Exception as error:  # as in a step: the thread must outlive it, and the request is told of it
            self._drop(placement.seq_id)
            self._book.release(placement.seq_id)
            waiting.clock.ended = time.perf_counter()
            usage = waiting.clock.usage(len(prompt), n_cached, 0)
            waiting.generation.finish(GenerationResult("", FinishReason.ERROR, usage, error=_known(error)))
            return
        self._slots.append(
            _Slot(
                waiting.request,
                waiting.generation,
                waiting.budget,
                Placement(placement.seq_id, n_cached, ()),
                sampler,
                waiting.clock,
                TextAssembler(waiting.request.sampling.stop),
                prompt,
                n_cached,
            )
        )
        self._slots[-1].note_progress()

    def _carry_out(self, steps: Sequence[Step]) -> bool:
        """Do on the device what the book decided; false where the sequence must be filled from its start instead."""
        done = True
        for step in steps:
            if isinstance(step, Park):
                state = self._states[step.key] = self._device.save(step.seq_id)
                for key in self._book.parked(step.key, len(state)):
                    self._states.pop(key, None)
            elif isinstance(step, Drop):
                self._device.remove(step.seq_id, 0)
            elif isinstance(step, Share):
                self._device.share(step.source, step.target, step.n)
            elif isinstance(step, Restore):
                state = self._states.get(step.key) if step.keep else self._states.pop(step.key, None)
                done = done and state is not None and self._device.load(state, step.target)
            elif isinstance(step, Trim):
                done = done and self._device.remove(step.seq_id, step.n)
            elif isinstance(step, Compact):
                self._compact(step)
        return done

    def _compact(self, step: Compact) -> None:
        """Write the cache anew; what cannot be put back is evaluated again when it is needed."""
        states = {part.seq_id: self._device.save(part.seq_id, part.n_shared) for part in step.parts if part.n_own}
        self._device.clear()
        for part in step.parts:
            if part.donor is not None:
                self._device.share(part.donor, part.seq_id, part.n_shared)
            if part.n_own and not self._device.load(states[part.seq_id], part.seq_id):
                self._book.cut(part.seq_id, part.n_shared)
                for slot in self._slots:
                    if slot.seq_id == part.seq_id:
                        slot.n_done = part.n_shared

    # -- a step -------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        batch = self._batch()
        rows: list[Row] = []
        logits_at: dict[int, int] = {}
        for slot, n in batch:
            for offset in range(n):
                index = slot.n_done + offset
                last = index == len(slot.tokens) - 1
                if last:
                    logits_at[id(slot)] = len(rows)
                rows.append(Row(slot.tokens[index], index, slot.seq_id, last))
        outcome = self._device.decode(rows)
        with self._changed:
            if outcome is not Outcome.DONE:
                self._reconcile([slot for slot, _ in batch])
                self._book.waste(len(rows))
                if outcome is Outcome.NO_ROOM:
                    self._make_room()
                return
            for slot, n in batch:
                self._book.extend(slot.seq_id, slot.tokens[slot.n_done : slot.n_done + n])
                slot.n_done += n
                slot.note_progress()
        for slot, _ in batch:
            if id(slot) not in logits_at:
                continue
            if slot.request.prefill_only:
                state = memoryview(self._device.save(slot.seq_id)) if slot.request.keep_state else None
                self._finish(slot, FinishReason.LENGTH, state=state)
            else:
                self._take(slot, slot.sampler.sample(logits_at[id(slot)]))

    def _make_room(self) -> None:
        """Close gaps, or else evict what is idle."""
        steps = self._book.compact() or self._book.evict_oldest()
        if not steps:
            raise DecodeError("The cache has no room left for the answers that are being written.")
        self._carry_out([*steps, *self._book.compact()])

    def _batch(self) -> list[tuple[_Slot, int]]:
        batch = [(slot, len(slot.tokens) - slot.n_done) for slot in self._slots if slot.decoding]
        room = self._device.n_batch - sum(n for _, n in batch)
        if batch:
            room = min(room, self._device.n_ubatch)
        for slot in self._slots:
            if not slot.decoding and room > 0:
                n = min(room, len(slot.tokens) - slot.n_done)
                batch.append((slot, n))
                room -= n
        return [(slot, n) for slot, n in batch if n > 0]

    def _reconcile(self, slots: list[_Slot]) -> None:
        """After an aborted batch: take out of the cache what of it was evaluated, so that it can be tried again."""
        for slot in slots:
            if not self._device.remove(slot.seq_id, slot.n_done):
                self._device.remove(slot.seq_id, 0)
                self._book.cut(slot.seq_id, 0)
                slot.n_done = 0

    def _take(self, slot: _Slot, token: int) -> None:
        """Use a sampled token: show its text, and end the answer or go on with it."""
        if slot.clock.first_token is None:
            slot.clock.first_token = time.perf_counter()
        if self._device.is_end(token):
            self._finish(slot, FinishReason.STOP)
            return
        slot.n_generated += 1
        slot.note_progress()
        self._show(slot, slot.assembler.feed(self._device.piece(token)))
        if slot.assembler.stopped:
            self._finish(slot, FinishReason.STOP)
        elif slot.n_generated == slot.budget:
            self._finish(slot, FinishReason.LENGTH)
        else:
            slot.tokens.append(token)

    @staticmethod
    def _show(slot: _Slot, text: str) -> None:
        if text:
            slot.generation.emit(Chunk("answer", text))

    def _drop(self, seq_id: int) -> None:
        """Empty a sequence whose contents are in doubt."""
        with contextlib.suppress(Exception):  # the device has failed once already
            self._device.remove(seq_id, 0)
        self._book.cut(seq_id, 0)

    def _finish(
        self, slot: _Slot, reason: FinishReason, error: Exception | None = None, state: memoryview | None = None
    ) -> None:
        self._show(slot, slot.assembler.finish())
        if slot.assembler.stopped and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP
        slot.clock.ended = time.perf_counter()
        usage = slot.clock.usage(len(slot.request.tokens), slot.placement.n_cached, slot.n_generated)
        with self._changed:
            self._book.release(slot.seq_id)
            self._slots.remove(slot)
            slot.sampler.close()
        slot.generation.finish(GenerationResult(slot.assembler.text, reason, usage, error=error, state=state))


def _known(error: Exception) -> LlamanbError:
    return error if isinstance(error, LlamanbError) else DecodeError(f"The engine failed: {sentence(error)}")
