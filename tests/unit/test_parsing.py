"""Text is let go in whole characters, and never as part of a stop string."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llamanb.engine.parsing import StopFilter, TextAssembler

LETTERS = "abé€😀\n"
texts = st.text(LETTERS, max_size=14)
stops = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3)


def by_definition(text: str, stop: list[str]) -> str:
    """The text before the first place where any stop string stands."""
    places = [i for i in range(len(text)) if any(text.startswith(s, i) for s in stop)]
    return text[: min(places, default=len(text))]


def fed(assembler: TextAssembler, pieces: list[bytes]) -> list[str]:
    return [*(assembler.feed(piece) for piece in pieces), assembler.finish()]


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(text=texts, stop=stops, places=st.lists(st.integers(0, 60), max_size=12))
@example(text="aab", stop=["ab"], places=[1, 2])
@example(text="abab€", stop=["aba€", "b"], places=[1, 2, 3, 4, 5])
@example(text="ab", stop=["abc", "b"], places=[1])
@settings(max_examples=400, deadline=None)
def test_the_text_is_the_same_however_the_bytes_are_cut(text: str, stop: list[str], places: list[int]) -> None:
    assembler = TextAssembler(stop)
    shown = fed(assembler, cut_at(text.encode(), places))
    expected = by_definition(text, stop)
    assert "".join(shown) == assembler.text == expected
    assert assembler.stopped == (expected != text)


@given(text=texts, stop=stops)
@settings(max_examples=200, deadline=None)
def test_byte_by_byte_no_half_character_and_no_claimed_text_is_let_go(text: str, stop: list[str]) -> None:
    assembler = TextAssembler(stop)
    data = text.encode()
    for n in range(1, len(data) + 1):
        assembler.feed(data[n - 1 : n])
        assert "\ufffd" not in assembler.text
        # Whatever comes next, what was let go must be right: so it holds for each end that a stop string gives.
        for ending in ["", *stop, *(s[i:] for s in stop for i in range(len(s)))]:
            whole = data[:n].decode(errors="ignore") + ending
            assert by_definition(whole, stop).startswith(assembler.text)


@given(text=texts, stop=stops)
@settings(max_examples=200, deadline=None)
def test_nothing_is_held_back_longer_than_a_stop_string_may_claim_it(text: str, stop: list[str]) -> None:
    only = StopFilter(stop)
    shown = ""
    for n, character in enumerate(text, 1):
        shown += only.feed(character)
        if only.stopped:
            break
        held = text[len(shown) : n]
        assert not held or any(s.startswith(held) and s != held for s in stop) or by_definition(text[:n], stop) == shown


def test_a_character_cut_short_at_the_end_is_dropped() -> None:
    assembler = TextAssembler()
    assert fed(assembler, [b"ok \xf0\x9f", b"\x98"]) == ["ok ", "", ""]
    assert assembler.text == "ok "
    assert not assembler.stopped


def test_bytes_that_are_no_text_show_as_replacement_characters() -> None:
    assert TextAssembler().feed(b"a\xffb") == "a\ufffdb"


def test_a_stop_string_that_starts_earlier_wins_even_when_it_is_complete_later() -> None:
    for pieces in (["x", "ab", "c"], ["xabc"], ["xa", "bc"]):
        stop = StopFilter(["b", "abc"])
        assert "".join([*map(stop.feed, pieces), stop.finish()]) == "x"
        assert stop.stopped


def test_an_unfinished_stop_string_is_shown_when_the_answer_ends() -> None:
    stop = StopFilter(["###"])
    assert stop.feed("one ##") == "one "
    assert stop.finish() == "##"
    assert not stop.stopped


def test_a_complete_stop_string_waits_for_one_that_began_before_it() -> None:
    stop = StopFilter(["bc", "abcd"])
    assert stop.feed("xabc") == "x"
    assert not stop.stopped
    assert stop.finish() == "a"
    assert stop.stopped


@pytest.mark.parametrize("more", ["more", "", "END"])
def test_after_a_stop_string_nothing_more_is_shown(more: str) -> None:
    stop = StopFilter(["END"])
    assert stop.feed("a END b") == "a "
    assert stop.feed(more) == ""
    assert stop.finish() == ""
