"""An answer of the deterministic engine is the same bit for bit, whatever came before and whatever runs beside it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import pytest

import llamanb
from llamanb import ChatSession, Message, SamplingParams
from llamanb.engine import llama
from llamanb.engine.base import GenerationRequest

SYSTEM = "You are a careful assistant who knows a lot about ships, the sea, the weather and the stars. Be brief."
QUESTIONS = ["Which star shows the north?", "How does a sextant work?", "What is a knot?"]


class Recorder:
    """Remembers a digest of the logits behind every token that was drawn, by the prompt and what was drawn before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.digests: dict[llama._Sampler, list[str]] = {}
        sample = llama._Sampler.sample

        def recording(sampler: llama._Sampler, row: int) -> int:
            digest = hashlib.sha256(sampler._native.logits(row).tobytes()).hexdigest()
            self.digests.setdefault(sampler, []).append(digest)
            return sample(sampler, row)

        monkeypatch.setattr(llama._Sampler, "sample", recording)

    def take(self) -> list[str]:
        """Return the digests since the last call, of answers that came one after another."""
        digests = [digest for answer in self.digests.values() for digest in answer]
        self.digests.clear()
        return digests


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture
def engine() -> Iterator[llamanb.LlamaCppEngine]:
    with llamanb.LlamaCppEngine(n_ctx=1024, n_cells=2048, n_seq_max=4) as engine:
        yield engine


def conversation(engine: llamanb.LlamaCppEngine, temperature: float = 0.0) -> ChatSession:
    return ChatSession(engine, SYSTEM, SamplingParams(temperature=temperature, max_tokens=20, seed=7))


def fill(engine: llamanb.LlamaCppEngine, text: str, n_words: int = 120) -> None:
    """Put something else into the cache."""
    ChatSession(engine, sampling=SamplingParams(temperature=0.0, max_tokens=3)).send(f"{text} " * n_words)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_logits_are_equal_however_the_prefix_came_to_be(
    engine: llamanb.LlamaCppEngine, recorder: Recorder, temperature: float
) -> None:
    session = conversation(engine, temperature)
    for question in QUESTIONS[:2]:
        session.send(question)
    recorder.take()

    def ask() -> tuple[str, list[str], int]:
        reply = session.fork(f"f{len(session.branches)}").send(QUESTIONS[2])
        return reply.text, recorder.take(), reply.usage.n_cached

    text, digests, n_cached = ask()
    assert n_cached > 0
    shared = ask()
    assert shared[:2] == (text, digests)

    for word in ("storm", "harbour", "anchor", "compass", "rudder"):
        fill(engine, word)
    recorder.take()
    assert engine.stats().n_parked > 0
    restored = ask()
    assert restored[:2] == (text, digests)
    assert restored[2] > 0

    with llamanb.LlamaCppEngine(n_ctx=1024) as fresh:
        path = [*session.messages, Message.create("user", QUESTIONS[2], parent=session.messages[-1].id)]
        sampling = session.sampling if temperature else session.sampling.replace(seed=None)
        result = fresh.submit(GenerationRequest(path, fresh.encode(path), sampling)).result()
        assert result.usage.n_cached == 0
        assert (result.text, recorder.take()) == (text, digests)


def test_logits_are_equal_whatever_is_decoded_beside(engine: llamanb.LlamaCppEngine, recorder: Recorder) -> None:
    session = conversation(engine)
    alone = {}
    for number, question in enumerate(QUESTIONS):
        text = session.fork(f"alone{number}").send(question).text
        alone[text] = recorder.take()
    streams = [session.fork(f"beside{number}").stream(question) for number, question in enumerate(QUESTIONS)]
    together = [stream.reply.text for stream in streams]
    assert together == list(alone)
    assert sorted(map(tuple, recorder.digests.values())) == sorted(map(tuple, alone.values()))


def test_texts_are_those_of_a_fresh_engine_after_any_history_of_the_cache(engine: llamanb.LlamaCppEngine) -> None:
    """A small cache is filled, forked, cancelled, parked and written anew, and every answer is compared."""
    chance = random.Random(5)
    session = conversation(engine)
    words = ["north", "south", "wind", "rain", "sun", "moon", "tide", "wave", "sail", "mast"]
    asked: list[tuple[list[Message], str]] = []
    for step in range(30):
        branch = session.branches[chance.choice(list(session.branches))]
        action = chance.random()
        if action < 0.25 and branch.messages:
            session.fork(f"b{step}", at=branch.messages[chance.randrange(len(branch.messages))].id)
        elif action < 0.35:
            with branch.stream(" ".join(chance.choices(words, k=70))) as stream:
                next(stream, None)
            branch.rewind()
        elif branch.n_tokens < 450:
            reply = branch.send(" ".join(chance.choices(words, k=chance.randrange(3, 60))))
            asked.append((session.history.path(reply.messages[0].id), reply.text))
        else:
            branch.rewind(2)
    assert len(asked) > 12
    with llamanb.LlamaCppEngine(n_ctx=1024, n_cells=2048) as fresh:
        for path, text in asked:
            sampling = session.sampling.replace(seed=None)
            assert fresh.submit(GenerationRequest(path, fresh.encode(path), sampling)).result().text == text


def test_gaps_in_the_cache_are_closed_and_nothing_is_prefilled_again(engine: llamanb.LlamaCppEngine) -> None:
    session = conversation(engine)
    first = session.send(QUESTIONS[0])
    for number in range(12):
        fill(engine, f"gap{number}", 40)
    again = session.fork("again", at=0).send(QUESTIONS[0])
    assert again.text == first.text
    assert again.usage.n_prefilled == 1
    stats = engine.stats()
    assert stats.n_cells_used <= stats.n_cells
