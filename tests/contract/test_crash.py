"""A process that dies in the middle of saving leaves the former session or the new one, and nothing in between."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from llamanb import ChatSession, ScriptedEngine

N_KILLED = 200

# A process that forks those that are killed: what takes long, Python's start and the imports, is done once. Each child
# saves two sessions in turn, says so once it has begun, and is killed after a delay that differs from child to child.
_SAVING = """
import os, random, signal, sys, time
from llamanb import ChatSession, ScriptedEngine

folder, n = sys.argv[1], int(sys.argv[2])
random.seed(6)
for number in range(n):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with ScriptedEngine(["x"], n_ctx=100_000) as engine:
            sessions = []
            for name in ("one", "two"):
                session = ChatSession(engine, system=name)
                for count in range(40 if name == "one" else 60):
                    session.add_message("user", f"{name} {count} " * 20)
                    session.add_message("assistant", "Yes.")
                sessions.append(session)
            while True:
                for session in sessions:
                    session.save(folder, cache=number % 2 == 0)
                    os.write(write, b".")
    os.close(write)
    os.read(read, 1)
    time.sleep(random.random() * 0.03)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    print(flush=True)
    if sys.stdin.readline() == "":
        break
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_killed_while_it_saves_leaves_a_whole_session(tmp_path: Path) -> None:
    folder = tmp_path / "talk"
    saving = subprocess.Popen(
        [sys.executable, "-c", _SAVING, str(folder), str(N_KILLED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert saving.stdin is not None
    assert saving.stdout is not None
    found = {"one": 0, "two": 0}
    n_unfinished = n_with_cache = 0
    with ScriptedEngine([], n_ctx=100_000) as engine, saving:
        for _ in range(N_KILLED):
            assert saving.stdout.readline() == "\n"
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                loaded = ChatSession.load(folder, engine)
            name = loaded.system or ""
            found[name] += 1
            assert len(loaded.messages) == (81 if name == "one" else 121)
            assert all(message.text.startswith(name) for message in loaded.messages if message.role != "assistant")
            n_unfinished += any(path.suffix == ".tmp" for path in folder.iterdir())
            n_with_cache += any(path.suffix == ".bin" for path in folder.iterdir()) and not warned
            saving.stdin.write("\n")
            saving.stdin.flush()
    assert found["one"] > 0
    assert found["two"] > 0
    assert n_unfinished > 0, "no process was killed while it wrote"
    assert n_with_cache > 0
