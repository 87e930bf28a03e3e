"""CacheBook against a model of the cache that carries its steps out one by one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llamanb.engine.cache import CacheBook, Compact, Drop, Park, Restore, Share, Step, Trim, common_prefix

TOKEN_BYTES = 10


class Cache:
    """A unified KV cache as the device keeps it: sequences of (cell, token), and copies in host memory."""

    def __init__(self, book: CacheBook) -> None:
        self.book = book
        self.sequences: dict[int, list[tuple[int, int]]] = {}
        self.copies: dict[int, list[int]] = {}
        self.most_cells = 0
        self.n_taken = 0  # cells from the first one to the last one that was written since the cache was written anew
        self._cells = itertools.count()

    @property
    def n_cells(self) -> int:
        return len({cell for cells in self.sequences.values() for cell, _ in cells})

    def tokens(self, seq_id: int) -> list[int]:
        return [token for _, token in self.sequences.get(seq_id, [])]

    def held(self) -> list[list[int]]:
        return [self.tokens(seq_id) for seq_id in self.sequences] + list(self.copies.values())

    def evaluate(self, seq_id: int, tokens: list[int]) -> None:
        self.sequences.setdefault(seq_id, []).extend((next(self._cells), token) for token in tokens)
        self.n_taken += len(tokens)
        self.most_cells = max(self.most_cells, self.n_taken if self.book.ordered else self.n_cells)

    def write_anew(self, step: Compact) -> None:
        old, self.sequences, self.n_taken = self.sequences, {}, 0
        for part in step.parts:
            assert part.n_shared == 0 or part.donor in self.sequences, "a donor is written first"
            assert part.n_shared + part.n_own == len(old.get(part.seq_id, []))
            self.sequences[part.seq_id] = self.sequences.get(part.donor, [])[: part.n_shared]
            self.evaluate(part.seq_id, [token for _, token in old.get(part.seq_id, [])[part.n_shared :]])
        for seq_id, cells in old.items():
            assert self.tokens(seq_id) == [token for _, token in cells]

    def carry_out(self, steps: tuple[Step, ...] | list[Step]) -> None:
        for step in steps:
            if isinstance(step, Park):
                assert step.key not in self.copies, "a key is used once"
                self.copies[step.key] = self.tokens(step.seq_id)
                assert self.copies[step.key], "nothing is no sequence to park"
                for key in self.book.parked(step.key, TOKEN_BYTES * len(self.copies[step.key])):
                    del self.copies[key]
            elif isinstance(step, Drop):
                del self.sequences[step.seq_id]
            elif isinstance(step, Share):
                assert not self.sequences.get(step.target), "cells are shared with an empty sequence"
                assert 0 < step.n <= len(self.sequences[step.source])
                assert self.book.can_cut or step.n == len(self.sequences[step.source])
                self.sequences[step.target] = self.sequences[step.source][: step.n]
            elif isinstance(step, Restore):
                assert not self.sequences.get(step.target), "a copy is restored into an empty sequence"
                self.evaluate(step.target, self.copies[step.key] if step.keep else self.copies.pop(step.key))
            elif isinstance(step, Compact):
                self.write_anew(step)
            else:
                assert isinstance(step, Trim)
                assert self.book.can_cut
                assert step.n <= len(self.sequences[step.seq_id])
                del self.sequences[step.seq_id][step.n :]


tokens = st.lists(st.integers(0, 2), max_size=14)


class BookMachine(RuleBasedStateMachine):
    """Requests come, are evaluated bit by bit, end, fail and are evicted, in any order."""

    can_cut = True
    ordered = False

    @initialize(n_seq_max=st.integers(1, 4), n_cells=st.integers(8, 40), n_copies=st.sampled_from([0, 15, 60, 10_000]))
    def start(self, n_seq_max: int, n_cells: int, n_copies: int) -> None:
        bound = n_copies * TOKEN_BYTES
        self.book = CacheBook(n_seq_max, n_cells, can_cut=self.can_cut, ordered=self.ordered, max_parked_bytes=bound)
        self.cache = Cache(self.book)
        self.to_come: dict[int, list[int]] = {}
        self.n_cut = 0

    def expected_cached(self, prompt: list[int]) -> int:
        best = 0
        for held in self.cache.held():
            n = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(held, prompt, strict=False))))
            n = min(n, len(prompt) - 1)
            if self.can_cut or n == len(held):
                best = max(best, n)
        return best

    def place(self, prompt: list[int], n_new: int, answer: list[int]) -> bool:
        expected = self.expected_cached(prompt)
        busy_before = {seq_id: self.cache.tokens(seq_id) for seq_id in self.to_come}
        before = (self.book.n_used, self.book.n_reserved, self.book.n_sequences, self.book.n_parked)
        placement = self.book.place(prompt, n_new)
        if placement is None:
            assert before == (self.book.n_used, self.book.n_reserved, self.book.n_sequences, self.book.n_parked)
            self.check_no_room(prompt, n_new, expected)
            return False
        assert placement.seq_id not in busy_before
        assert 0 <= placement.seq_id < self.book.n_seq_max
        self.cache.carry_out(placement.steps)
        assert placement.n_cached == expected
        assert self.cache.tokens(placement.seq_id) == prompt[: placement.n_cached]
        for seq_id, held in busy_before.items():
            assert self.cache.tokens(seq_id) == held
        self.to_come[placement.seq_id] = prompt[placement.n_cached :] + answer[:n_new]
        return True

    def check_no_room(self, prompt: list[int], n_new: int, n_cached: int) -> None:
        """Even with every idle sequence gone, the running ones leave too little."""
        assert self.to_come, "without running requests there is always room"
        if len(self.to_come) == self.book.n_seq_max:
            return
        running = {cell for seq_id in self.to_come for cell, _ in self.cache.sequences.get(seq_id, [])}
        free = self.book.n_cells - len(running) - self.book.n_reserved
        needs = []  # for each holder of the longest prefix
        for seq_id, cells in self.cache.sequences.items():
            if common_prefix(self.cache.tokens(seq_id), prompt) >= n_cached > 0:
                kept = {cell for cell, _ in cells[:n_cached]}
                needs.append(len(kept - running) + len(prompt) + n_new - n_cached)
        copies = [copied for copied in self.cache.copies.values() if common_prefix(copied, prompt) >= n_cached > 0]
        needs += [max(len(copied), len(prompt) + n_new) for copied in copies]
        assert free < min(needs, default=len(prompt) + n_new)

    @rule(data=st.data(), prompt=tokens, n_new=st.integers(0, 8), answer=tokens)
    def ask(self, data: Any, prompt: list[int], n_new: int, answer: list[int]) -> None:
        held = self.cache.held()
        if held and data.draw(st.booleans(), "goes on from what is held"):
            old = data.draw(st.sampled_from(held), "held")
            prompt = old[: data.draw(st.integers(0, len(old)), "from")] + prompt[:4]
        prompt = (prompt or [0])[: self.book.n_cells]
        self.place(prompt, min(n_new, self.book.n_cells - len(prompt)), answer)

    @precondition(lambda self: self.to_come)
    @rule(data=st.data(), n=st.integers(1, 9))
    def evaluate(self, data: Any, n: int) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.to_come)))
        new, self.to_come[seq_id] = self.to_come[seq_id][:n], self.to_come[seq_id][n:]
        self.cache.evaluate(seq_id, new)
        self.book.extend(seq_id, new)

    @precondition(lambda self: self.to_come)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        self.release(data.draw(st.sampled_from(sorted(self.to_come))))

    def release(self, seq_id: int) -> None:
        self.book.release(seq_id)
        del self.to_come[seq_id]
        if not self.cache.sequences.get(seq_id):
            self.cache.sequences.pop(seq_id, None)

    @precondition(lambda self: self.to_come)
    @rule(data=st.data())
    def fail(self, data: Any) -> None:
        """What a request holds is in doubt: it is dropped, and the request ends."""
        seq_id = data.draw(st.sampled_from(sorted(self.to_come)))
        self.cache.sequences.pop(seq_id, None)
        self.book.cut(seq_id, 0)
        self.release(seq_id)

    @rule()
    def evict(self) -> None:
        idle = self.cache.sequences.keys() - self.to_come.keys()
        steps = self.book.evict_oldest()
        assert bool(steps) == bool(idle)
        self.cache.carry_out(steps)

    @precondition(lambda self: self.cache.copies)
    @rule(data=st.data())
    def lose_copy(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.cache.copies)))
        del self.cache.copies[key]
        self.book.forget_parked(key)

    @rule(prompt=tokens, answer=tokens)
    def everything_fits_when_all_is_idle(self, prompt: list[int], answer: list[int]) -> None:
        for seq_id in list(self.to_come):
            self.release(seq_id)
        prompt = (prompt or [0])[: self.book.n_cells]
        assert self.place(prompt, self.book.n_cells - len(prompt), answer)

    @invariant()
    def the_account_is_true(self) -> None:
        assert self.book.n_used == self.cache.n_cells
        assert self.cache.most_cells <= self.book.n_cells
        assert self.book.n_used + self.book.n_reserved <= self.book.n_cells
        assert self.book.n_sequences == len(self.cache.sequences.keys() | self.to_come.keys())
        assert self.book.n_parked == len(self.cache.copies)
        assert self.book.parked_bytes == TOKEN_BYTES * sum(map(len, self.cache.copies.values()))
        assert self.book.parked_bytes <= self.book.max_parked_bytes
        assert self.book.n_gaps == (self.cache.n_taken - self.cache.n_cells if self.ordered else 0)
        for seq_id in self.cache.sequences:
            assert self.book.tokens(seq_id) == self.cache.tokens(seq_id)
            assert self.book.n_tokens(seq_id) == len(self.cache.tokens(seq_id))


class WholeSequencesMachine(BookMachine):
    """The same for a model whose memory cannot be cut."""

    can_cut = False


class OrderedMachine(BookMachine):
    """The same for a cache in which tokens must lie in order, so that removed ones leave gaps."""

    ordered = True

    @rule()
    def write_anew(self) -> None:
        self.cache.carry_out(self.book.compact())
        assert self.book.n_gaps == 0

    @invariant()
    def new_tokens_find_room_behind_all_others(self) -> None:
        assert self.cache.n_taken + self.book.n_reserved <= self.book.n_cells


BookMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
WholeSequencesMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
OrderedMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestBook = BookMachine.TestCase
TestWholeSequences = WholeSequencesMachine.TestCase
TestOrdered = OrderedMachine.TestCase


def filled(book: CacheBook, cache: Cache, prompt: list[int]) -> int:
    """Ask with no answer, and return how many tokens had to be evaluated."""
    placement = book.place(prompt, 0)
    assert placement is not None
    cache.carry_out(placement.steps)
    cache.evaluate(placement.seq_id, prompt[placement.n_cached :])
    book.extend(placement.seq_id, prompt[placement.n_cached :])
    book.release(placement.seq_id)
    return len(prompt) - placement.n_cached


def test_a_parked_sequence_comes_back_with_one_token_to_evaluate() -> None:
    book = CacheBook(n_seq_max=4, n_cells=10)
    cache = Cache(book)
    first, second = [1] * 8, [2] * 8
    assert filled(book, cache, first) == 8
    assert filled(book, cache, second) == 8
    assert book.n_parked == 1
    assert filled(book, cache, first) == 1
    assert book.longest_prefix(second) == 8


def test_a_shared_prefix_takes_its_cells_once() -> None:
    book = CacheBook(n_seq_max=4, n_cells=1000)
    cache = Cache(book)
    prefix = list(range(200))
    assert filled(book, cache, [*prefix, -1, -2]) == 202
    assert filled(book, cache, [*prefix, -3, -4]) == 2
    assert filled(book, cache, [*prefix, -5, -6]) == 2
    assert book.n_sequences == 3
    assert book.n_used == cache.n_cells == 206


def test_a_sequence_that_goes_on_stays_where_it_is() -> None:
    book = CacheBook(n_seq_max=4, n_cells=100)
    cache = Cache(book)
    filled(book, cache, [1, 2, 3])
    placement = book.place([1, 2, 3, 4], 5)
    assert placement is not None
    assert (placement.n_cached, placement.steps) == (3, ())
    assert book.n_sequences == 1


def test_running_requests_share_what_they_have_in_common() -> None:
    book = CacheBook(n_seq_max=2, n_cells=20)
    first = book.place([1, 2, 3, 4], 4)
    assert first is not None
    book.extend(first.seq_id, [1, 2, 3, 4])
    second = book.place([1, 2, 3, 5], 4)
    assert second is not None
    assert second.steps == (Share(first.seq_id, second.seq_id, 3),)
    assert book.place([9], 0) is None, "both sequences are busy"


def test_copies_stay_within_their_bound_and_the_longest_unused_goes_first() -> None:
    book = CacheBook(n_seq_max=1, n_cells=10, max_parked_bytes=2 * 4 * TOKEN_BYTES)
    cache = Cache(book)
    for token in (1, 2, 3, 4):
        filled(book, cache, [token] * 4)
    assert book.parked_bytes == 8 * TOKEN_BYTES
    assert [book.longest_prefix([token] * 4) for token in (1, 2, 3, 4)] == [0, 4, 4, 4]
    assert len(cache.copies) == 2


def test_what_another_sequence_holds_too_is_dropped_without_a_copy() -> None:
    book = CacheBook(n_seq_max=2, n_cells=100)
    cache = Cache(book)
    filled(book, cache, [1, 2, 3, 4])
    held = book.place([1, 2, 9], 0)
    assert held is not None
    cache.carry_out(held.steps)
    book.release(held.seq_id)  # it ended before its first token: what it shares is all it holds
    filled(book, cache, [1, 2, 3, 4])
    filled(book, cache, [7, 7])
    assert (book.n_parked, book.n_sequences) == (0, 2)
    assert book.longest_prefix([1, 2, 3, 4]) == 4


def test_a_running_request_that_must_start_over_keeps_its_room() -> None:
    book = CacheBook(n_seq_max=2, n_cells=10)
    placement = book.place([1, 2, 3, 4, 5, 6], 2)
    assert placement is not None
    book.extend(placement.seq_id, [1, 2, 3, 4, 5, 6])
    book.cut(placement.seq_id, 0)
    assert book.n_used + book.n_reserved == 8
    assert book.place([7, 8, 9], 0) is None


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 128, 200])
def test_common_prefix_counts_to_the_first_difference(n: int) -> None:
    a, b = [0] * 200, [0] * n + [1] * (200 - n)
    assert common_prefix(a, b) == common_prefix(b, a) == n
    assert common_prefix(a, a[:n]) == n
