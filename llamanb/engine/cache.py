"""CacheBook: which tokens each sequence of the KV cache holds, and how a prompt gets its place. Pure; no I/O.

The book decides; the engine carries the steps out on the real cache in the order given. A cell of the cache holds one
token and may belong to several sequences, so shared prefixes count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = [
    "CacheBook",
    "Compact",
    "Drop",
    "Park",
    "Part",
    "Placement",
    "Restore",
    "Share",
    "Step",
    "Trim",
    "common_prefix",
]

_BLOCK = 64
_MANY_GAPS = 1024


@dataclass(frozen=True)
class Park:
    """Copy a whole sequence to host memory under `key`."""

    seq_id: int
    key: int


@dataclass(frozen=True)
class Drop:
    """Remove a whole sequence."""

    seq_id: int


@dataclass(frozen=True)
class Share:
    """Let the first `n` cells of `source` belong to the empty sequence `target` too."""

    source: int
    target: int
    n: int


@dataclass(frozen=True)
class Restore:
    """Copy what was parked under `key` into the empty sequence `target`; forget the copy unless `keep`."""

    key: int
    target: int
    keep: bool


@dataclass(frozen=True)
class Trim:
    """Keep the first `n` tokens of a sequence."""

    seq_id: int
    n: int


@dataclass(frozen=True)
class Part:
    """A sequence in a `Compact`: `n_shared` cells that are those of `donor`, and then `n_own` cells of its own."""

    seq_id: int
    donor: int | None
    n_shared: int
    n_own: int


@dataclass(frozen=True)
class Compact:
    """Write the cache anew without gaps: copy out what each sequence owns, clear all, put it back in this order."""

    parts: tuple[Part, ...]


Step = Park | Drop | Share | Restore | Trim | Compact


@dataclass(frozen=True)
class Placement:
    """Where a prompt goes: the sequence, how many of its tokens are there already, and the steps that make it so."""

    seq_id: int
    n_cached: int
    steps: tuple[Step, ...]


@dataclass
class _Sequence:
    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    reserved: int = 0
    busy: bool = False
    used_at: int = 0


@dataclass
class _Parked:
    tokens: list[int]
    n_bytes: int = 0
    used_at: int = 0


class CacheBook:
    """The account of a unified KV cache.

    Parameters
    ----------
    n_seq_max
        How many sequences the cache can tell apart.
    n_cells
        How many tokens it can hold, shared ones counted once.
    can_cut
        Whether a sequence can lose or share a part of its tokens. Recurrent models cannot: there, a sequence is
        continued from its end or not at all.
    ordered
        Whether cells must lie in the order of their tokens, whatever was removed between. Then removed cells stay taken
        until the cache is written anew, so that new tokens always come behind all others.
    max_parked_bytes
        How much host memory parked sequences may take; beyond it the longest unused are forgotten.
    """

    def __init__(
        self,
        n_seq_max: int,
        n_cells: int,
        *,
        can_cut: bool = True,
        ordered: bool = False,
        max_parked_bytes: int = 2 * 1024**3,
    ) -> None:
        self.n_seq_max = n_seq_max
        self.n_cells = n_cells
        self.can_cut = can_cut
        self.ordered = ordered
        self.max_parked_bytes = max_parked_bytes
        self._sequences: dict[int, _Sequence] = {}
        self._parked: dict[int, _Parked] = {}
        self._references: dict[int, int] = {}
        self._next_cell = 0
        self._n_taken = 0
        self._next_key = 0
        self._clock = 0

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def n_used(self) -> int:
        """Cells that hold a token."""
        return len(self._references)

    @property
    def n_reserved(self) -> int:
        """Cells that running requests may still fill."""
        return sum(sequence.reserved for sequence in self._sequences.values())

    @property
    def n_sequences(self) -> int:
        """Sequences that hold tokens or are being filled."""
        return len(self._sequences)

    @property
    def n_parked(self) -> int:
        """Sequences that wait in host memory."""
        return len(self._parked)

    @property
    def parked_bytes(self) -> int:
        """Host memory that parked sequences take, in bytes."""
        return sum(parked.n_bytes for parked in self._parked.values())

    def tokens(self, seq_id: int) -> list[int]:
        """Return the tokens that a sequence holds."""
        return list(self._sequences[seq_id].tokens)

    def n_tokens(self, seq_id: int) -> int:
        """Return how many tokens a sequence holds."""
        return len(self._sequences[seq_id].tokens)

    def longest_prefix(self, prompt: Sequence[int]) -> int:
        """Return how many tokens at the start of a prompt are held, in the cache or parked."""
        return max((n for n, _, _ in self._matches(prompt)), default=0)

    # -- placing a prompt ---------------------------------------------------------------------------------------

    def place(self, prompt: Sequence[int], n_new: int) -> Placement | None:
        """Give a prompt a sequence that holds as much of it as is cached anywhere, and mark that sequence busy.

        At least the prompt's last token is left to be evaluated, since only evaluating it gives logits.

        Parameters
        ----------
        prompt
            The tokens, at least one.
        n_new
            How many tokens the answer may add.

        Returns
        -------
        Placement or None
            ``None`` where there is no room until a running request ends; nothing has changed then.
        """
        self._clock += 1
        for n_cached, source, key in self._best_matches(list(prompt)):
            in_place = source is not None and self._may_continue(source, n_cached)
            victims = self._victims(n_cached, source, key, in_place, len(prompt) + n_new)
            if victims is not None:
                break
        else:
            return None
        steps: list[Step] = []
        if source in victims:  # no room for a second copy: what comes after the shared part is parked, then cut off
            victims.remove(source)
            steps += self._keep_copy(source)
            in_place = True
        for victim in victims:
            steps += self._evict(victim)
        seq_id = source if in_place and source is not None else self._free_id()
        if in_place:
            steps += self._fill(seq_id, n_cached, source, key)
        n_arriving = len(self._parked[key].tokens) if key is not None else n_cached
        steps += self._compact_for(len(prompt) + n_new - n_cached + (n_arriving if key is not None else 0))
        if not in_place:
            steps += self._fill(seq_id, n_cached, source, key)
            steps += self._compact_for(len(prompt) + n_new - n_cached)  # what was restored and trimmed left a gap
        sequence = self._sequences[seq_id]
        sequence.busy = True
        sequence.used_at = self._clock
        sequence.reserved = len(prompt) - n_cached + n_new
        return Placement(seq_id, n_cached, tuple(steps))

    def _fill(self, seq_id: int, n_cached: int, source: int | None, key: int | None) -> list[Step]:
        if source == seq_id and source is not None:
            if len(self._sequences[seq_id].tokens) == n_cached:
                return []
            self._cut(seq_id, n_cached)
            return [Trim(seq_id, n_cached)]
        target = self._sequences[seq_id] = _Sequence()
        if key is not None:
            parked = self._parked[key]
            keep = len(parked.tokens) > n_cached
            parked.used_at = self._clock
            self._append(target, parked.tokens[:n_cached])
            self._n_taken += len(parked.tokens) - n_cached
            if not keep:
                del self._parked[key]
            steps: list[Step] = [Restore(key, seq_id, keep)]
            return [*steps, Trim(seq_id, n_cached)] if keep else steps
        if source is None:
            return []
        held = self._sequences[source]
        held.used_at = self._clock
        target.tokens = held.tokens[:n_cached]
        target.cells = held.cells[:n_cached]
        for cell in target.cells:
            self._references[cell] += 1
        return [Share(source, seq_id, n_cached)]

    def _matches(self, prompt: Sequence[int]) -> list[tuple[int, int | None, int | None]]:
        wanted = list(prompt)
        found: list[tuple[int, int | None, int | None]] = []
        for seq_id, sequence in self._sequences.items():
            n = common_prefix(sequence.tokens, wanted)
            if n and (self.can_cut or n == len(sequence.tokens)):
                found.append((n, seq_id, None))
        for key, parked in self._parked.items():
            n = common_prefix(parked.tokens, wanted)
            if n and (self.can_cut or n == len(parked.tokens)):
                found.append((n, None, key))
        return found

    def _best_matches(self, prompt: list[int]) -> list[tuple[int, int | None, int | None]]:
        """The longest matches: first those that end there and can go on in place, then those that are in the cache."""
        usable = [(min(n, len(prompt) - 1), n, source, key) for n, source, key in self._matches(prompt)]
        longest = max((use for use, n, _, _ in usable if self.can_cut or use == n), default=0)
        if longest == 0:
            return [(0, None, None)]
        equals = [(use, source, key) for use, n, source, key in usable if use == longest and (self.can_cut or use == n)]
        return sorted(equals, key=lambda match: self._rank(match[1], longest))

    def _rank(self, source: int | None, n: int) -> int:
        if source is None:
            return 2
        return 0 if self._may_continue(source, n) else 1

    def _may_continue(self, seq_id: int, n: int) -> bool:
        """Whether a sequence can be continued without losing more than the token that must be evaluated again."""
        sequence = self._sequences[seq_id]
        if sequence.busy:
            return False
        return len(sequence.tokens) == n or (self.can_cut and len(sequence.tokens) == n + 1)

    def _victims(
        self, n_cached: int, source: int | None, key: int | None, in_place: bool, n_total: int
    ) -> list[int] | None:
        """The idle sequences that must leave, longest unused first; the source itself comes last."""
        idle = sorted(
            (s for s, sequence in self._sequences.items() if not sequence.busy and s != source),
            key=lambda s: self._sequences[s].used_at,
        )
        if source is not None and not in_place and not self._sequences[source].busy and self.can_cut:
            idle.append(source)
        needed = n_total - n_cached
        if key is not None:  # a restored sequence arrives whole, and is trimmed afterwards
            needed = max(n_total, len(self._parked[key].tokens))
        references = dict(self._references)
        if in_place and source is not None:  # the token that must be evaluated again leaves its cell first
            self._released(references, self._sequences[source].cells[n_cached:])
        n_ids = len(self._sequences) + (0 if in_place else 1)
        free = self.n_cells - len(references) - self.n_reserved
        victims: list[int] = []
        while n_ids > self.n_seq_max or free < needed:
            if not idle:
                return None
            victim = idle.pop(0)
            victims.append(victim)
            n_ids -= 1
            kept = n_cached if victim == source else 0
            self._released(references, self._sequences[victim].cells[kept:])
            free = self.n_cells - len(references) - self.n_reserved
        return victims

    # -- writing the cache anew ---------------------------------------------------------------------------------

    @property
    def n_gaps(self) -> int:
        """Cells that hold nothing and cannot be used before the cache is written anew."""
        return self._n_taken - self.n_used if self.ordered else 0

    def waste(self, n: int) -> None:
        """Record cells that may have been taken by tokens that were removed again."""
        self._n_taken += n

    def compact(self) -> list[Step]:
        """Return the step that closes the gaps; none where there are none."""
        if not self.n_gaps:
            return []
        parts: list[Part] = []
        for seq_id, sequence in self._sequences.items():
            shared = [(common_prefix(self._sequences[p.seq_id].cells, sequence.cells), p.seq_id) for p in parts]
            n_shared, donor = max(shared, default=(0, None), key=lambda pair: pair[0])
            parts.append(Part(seq_id, donor if n_shared else None, n_shared, len(sequence.cells) - n_shared))
        self._n_taken = self.n_used
        return [Compact(tuple(parts))]

    def _compact_for(self, n_needed: int) -> list[Step]:
        """Close the gaps where there is no room behind the last cell, or, while nothing runs, where they are many."""
        short = self.n_cells - self._n_taken - self.n_reserved < n_needed
        idle = not any(sequence.busy for sequence in self._sequences.values())
        return self.compact() if self.ordered and (short or (idle and self.n_gaps > _MANY_GAPS)) else []

    # -- what requests do ---------------------------------------------------------------------------------------

    def extend(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Record tokens that were evaluated at the end of a sequence."""
        sequence = self._sequences[seq_id]
        self._append(sequence, tokens)
        sequence.reserved = max(0, sequence.reserved - len(tokens))

    def release(self, seq_id: int) -> None:
        """Mark a sequence idle: its request ended, and what it holds may be shared, continued or parked."""
        sequence = self._sequences[seq_id]
        sequence.busy = False
        sequence.reserved = 0
        if not sequence.tokens:
            self.forget(seq_id)

    def cut(self, seq_id: int, n: int) -> None:
        """Keep the first `n` tokens of a sequence; a running request keeps room to evaluate the others again."""
        sequence = self._sequences[seq_id]
        if sequence.busy:
            sequence.reserved += max(0, len(sequence.tokens) - n)
        self._cut(seq_id, n)

    def forget(self, seq_id: int) -> None:
        """Remove a sequence from the account."""
        self._cut(seq_id, 0)
        del self._sequences[seq_id]

    def evict_oldest(self) -> list[Step]:
        """Evict the idle sequence that was unused longest; return no steps where none is idle."""
        idle = [s for s, sequence in self._sequences.items() if not sequence.busy]
        return self._evict(min(idle, key=lambda s: self._sequences[s].used_at)) if idle else []

    def forget_parked(self, key: int) -> None:
        """Forget a parked sequence that could not be kept or read."""
        self._parked.pop(key, None)

    def take_in(self, tokens: Sequence[int], n_bytes: int) -> tuple[int, list[int]] | None:
        """Record a sequence that comes from elsewhere as parked; return its key, and those that must be forgotten.

        ``None`` where there is no room for it.
        """
        if n_bytes > self.max_parked_bytes or len(tokens) > self.n_cells:
            return None
        self._clock += 1
        key = self._park(tokens, self._clock)
        return key, self.parked(key, n_bytes)

    def parked(self, key: int, n_bytes: int) -> list[int]:
        """Record the size of a sequence that was parked; return the keys that must be forgotten to stay in bounds."""
        if key in self._parked:
            self._parked[key].n_bytes = n_bytes
        forgotten = []
        while self.parked_bytes > self.max_parked_bytes:
            oldest = min(self._parked, key=lambda k: self._parked[k].used_at)
            del self._parked[oldest]
            forgotten.append(oldest)
        return forgotten

    # -- cells --------------------------------------------------------------------------------------------------

    def _append(self, sequence: _Sequence, tokens: Sequence[int]) -> None:
        cells = range(self._next_cell, self._next_cell + len(tokens))
        self._next_cell += len(tokens)
        self._n_taken += len(tokens)
        self._references.update(dict.fromkeys(cells, 1))
        sequence.cells.extend(cells)
        sequence.tokens.extend(tokens)

    def _cut(self, seq_id: int, n: int) -> None:
        sequence = self._sequences[seq_id]
        self._released(self._references, sequence.cells[n:])
        del sequence.cells[n:]
        del sequence.tokens[n:]

    @staticmethod
    def _released(references: dict[int, int], cells: list[int]) -> None:
        for cell in cells:
            references[cell] -= 1
            if references[cell] == 0:
                del references[cell]

    def _evict(self, seq_id: int) -> list[Step]:
        """Park a sequence, or only drop it where its tokens are held elsewhere too."""
        steps = self._keep_copy(seq_id)
        self.forget(seq_id)
        return [*steps, Drop(seq_id)]

    def _keep_copy(self, seq_id: int) -> list[Step]:
        sequence = self._sequences[seq_id]
        tokens = sequence.tokens
        others = [s.tokens for other, s in self._sequences.items() if other != seq_id]
        others += [parked.tokens for parked in self._parked.values()]
        if any(self._covers(held, tokens) for held in others):
            return []
        return [Park(seq_id, self._park(tokens, sequence.used_at))]

    def _park(self, tokens: Sequence[int], used_at: int) -> int:
        key = self._next_key
        self._next_key += 1
        self._parked[key] = _Parked(list(tokens), used_at=used_at)
        return key

    def _covers(self, held: list[int], tokens: list[int]) -> bool:
        long_enough = len(held) >= len(tokens) if self.can_cut else len(held) == len(tokens)
        return long_enough and common_prefix(held, tokens) == len(tokens)

    def _free_id(self) -> int:
        return next(i for i in range(self.n_seq_max) if i not in self._sequences)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Return how many tokens two lists share at their start."""
    n = min(len(a), len(b))
    start = 0
    while start < n:
        end = min(start + _BLOCK, n)
        if a[start:end] != b[start:end]:
            return next(i for i in range(start, end) if a[i] != b[i])
        start = end
    return n
