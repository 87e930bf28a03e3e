"""A conversation goes on after a restart without being read again, and nothing depends on what is on the disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import llamanb
from llamanb import ChatSession, SamplingParams
from llamanb.engine.base import Engine
from llamanb.persistence.cache_file import CacheFile, read_cache_file, read_tokens, write_cache_file
from llamanb.snapshots import Snapshots

SYSTEM = "You are a careful assistant who knows a lot about ships, the sea, the weather and the stars. Be brief."
QUESTION = "Which star shows the north, and how do sailors find it on a clear night without a compass?"


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "snapshots")


def conversation(engine: Engine, snapshots: Snapshots | None) -> ChatSession:
    session = ChatSession(engine, SYSTEM, SamplingParams(temperature=0.0, max_tokens=12))
    session.snapshots = snapshots
    return session


def another(engine: Engine) -> Engine:
    """What a new kernel has: the same model, and nothing in its cache."""
    return llamanb.ScriptedEngine(["Again."]) if engine.name == "scripted" else llamanb.LlamaCppEngine(n_ctx=1024)


def spoken(engine: Engine, snapshots: Snapshots) -> ChatSession:
    session = conversation(engine, snapshots)
    session.send(QUESTION)
    assert snapshots.flush()
    return session


def test_a_conversation_goes_on_in_a_new_kernel_without_being_read_again(engine: Engine, snapshots: Snapshots) -> None:
    stored = spoken(engine, snapshots).to_dict()
    with another(engine) as fresh:
        plain = ChatSession.from_dict(stored, fresh).send("Why?", max_tokens=12)
    with another(engine) as fresh:
        session = ChatSession.from_dict(stored, fresh)
        session.snapshots = Snapshots(snapshots.folder)
        n_before = session.n_tokens
        reply = session.send("Why?", max_tokens=12)
    assert plain.usage.n_cached == 0
    assert reply.usage.n_cached >= n_before - 1
    assert reply.text == plain.text


@pytest.mark.parametrize("at", ["header", "tokens", "state", "cut"])
def test_a_damaged_snapshot_is_thrown_away_and_the_prompt_read(engine: Engine, snapshots: Snapshots, at: str) -> None:
    stored = spoken(engine, snapshots).to_dict()
    (info,) = snapshots.entries()
    data = bytearray(info.path.read_bytes())
    start = data.index(b"\n") + 1
    place = {"header": 3, "tokens": start + 5, "state": len(data) - 7, "cut": 0}[at]
    data[place] ^= 0x55
    if at == "cut":
        data[place] ^= 0x55
        del data[-10:]
    info.path.write_bytes(data)
    with another(engine) as fresh:
        session = ChatSession.from_dict(stored, fresh)
        session.snapshots = Snapshots(snapshots.folder)
        reply = session.send("Why?")
        assert reply.usage.n_cached == 0
        assert not info.path.exists()


def test_a_snapshot_of_another_engine_is_not_used(engine: Engine, snapshots: Snapshots) -> None:
    stored = spoken(engine, snapshots).to_dict()
    (info,) = snapshots.entries()
    tokens = read_tokens(info.path, engine.cache_fingerprint)
    assert tokens is not None
    state = read_cache_file(info.path, engine.cache_fingerprint, tokens)
    assert state is not None
    write_cache_file(info.path, CacheFile("another", tokens, state))
    with another(engine) as fresh:
        session = ChatSession.from_dict(stored, fresh)
        session.snapshots = Snapshots(snapshots.folder)
        assert session.send("Why?").usage.n_cached == 0
    assert not info.path.exists()


def test_there_is_one_snapshot_for_each_end_and_the_oldest_go_first(
    scripted_engine: llamanb.ScriptedEngine, snapshots: Snapshots
) -> None:
    session = spoken(scripted_engine, snapshots)
    session.send("And the south?")
    assert snapshots.flush()
    (first,) = snapshots.entries()  # the longer one took the place of the shorter one
    fork = session.fork("b", at=0)
    fork.send("Another question, about the tides and the moon and how they hang together.")
    assert snapshots.flush()
    assert len(snapshots.entries()) == 2
    os.utime(first.path, (1, 1))
    snapshots.max_bytes = sum(info.n_bytes for info in snapshots.entries()) - 1
    fork.send("Why?")
    assert snapshots.flush()
    assert first.path not in [info.path for info in snapshots.entries()]
    assert sum(info.n_bytes for info in snapshots.entries()) <= snapshots.max_bytes
    snapshots.max_bytes = 10
    fork.send("And what else?")
    assert snapshots.flush()
    assert all(info.n_bytes > 0 for info in snapshots.entries())


def test_a_snapshot_that_is_used_counts_as_used(engine: Engine, snapshots: Snapshots) -> None:
    stored = spoken(engine, snapshots).to_dict()
    (info,) = snapshots.entries()
    os.utime(info.path, (1, 1))
    with another(engine) as fresh:
        session = ChatSession.from_dict(stored, fresh)
        session.snapshots = Snapshots(snapshots.folder)
        session.prefill()
    assert info.path.stat().st_mtime > 1


def test_what_is_pruned_leaves_the_disk(scripted_engine: llamanb.ScriptedEngine, snapshots: Snapshots) -> None:
    session = spoken(scripted_engine, snapshots)
    session.regenerate()
    assert snapshots.flush()
    kept = session.fork("kept", at=0)
    kept.send("A harmless question that may stay where it is.")
    assert snapshots.flush()
    session.rewind()
    session.prune()
    held = [read_tokens(info.path, scripted_engine.cache_fingerprint) or [] for info in snapshots.entries()]
    assert len(held) == 1
    assert b"harmless" in bytes(held[0])
    session.clear()
    assert snapshots.entries() == []


def test_what_is_being_written_while_it_is_pruned_does_not_come_to_the_disk(
    scripted_engine: llamanb.ScriptedEngine, snapshots: Snapshots
) -> None:
    session = conversation(scripted_engine, None)
    session.send(QUESTION)
    session.snapshots = snapshots
    taking, pruned = threading.Event(), threading.Event()
    path = session.messages

    def take() -> CacheFile:
        taking.set()
        pruned.wait(10)
        tokens = scripted_engine.encode(path)
        return CacheFile(scripted_engine.cache_fingerprint, tokens, memoryview(bytes(tokens)))

    snapshots.keep("main", take)
    assert taking.wait(10)
    session.rewind()
    session.prune()
    pruned.set()
    assert snapshots.flush()
    assert snapshots.entries() == []


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_snapshot(
    scripted_engine: llamanb.ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    session = conversation(scripted_engine, Snapshots(tmp_path / "file"))
    assert session.send(QUESTION).text
    assert session.snapshots is not None
    assert session.snapshots.flush()
    assert session.send("Why?").text
    assert session.snapshots.entries() == []


def test_nothing_is_written_while_an_answer_is(snapshots: Snapshots) -> None:
    with llamanb.ScriptedEngine(["One.", "Two. " * 40], seconds_per_token=0.01) as engine:
        session = conversation(engine, snapshots)
        session.send(QUESTION)
        with session.fork("slow").stream("Why?", max_tokens=200) as stream:
            next(stream)
            assert not snapshots.flush(0.8)
            assert snapshots.entries() == []
        assert snapshots.flush()
        assert snapshots.entries()
