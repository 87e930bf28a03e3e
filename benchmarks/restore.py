"""Restoring a session: from memory, from a directory with the model's cache, and from one without, at three lengths.

Prints a table and writes ``restore.json`` beside this file. Measured is the time until the path is in the cache, so
that the next answer begins at once: restoring or loading, and then `prefill`. What comes from a directory comes to an
engine that has nothing cached; loading the model is not counted. Medians; only the ratios hold on a shared machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from measuring import conversation, report

import llamanb

LENGTHS = (100, 1_000, 3_000)
N_TIMES = 5
N_COLD = 3
OPTIONS = {"n_ctx": 4096}


def from_memory(session: llamanb.ChatSession) -> list[float]:
    """Measure going back to a state while the engine goes on with something else in between."""
    state = session.state()
    seconds = []
    for number in range(N_TIMES):
        session.send(f"What comes after number {number}?")
        start = time.perf_counter()
        session.restore(state)
        session.prefill()
        seconds.append(time.perf_counter() - start)
    return seconds


def from_directory(folder: Path, times: int) -> tuple[list[float], int]:
    """Measure loading into an engine that has nothing cached; return also how many tokens it had to read."""
    seconds = []
    for _ in range(times):
        with llamanb.LlamaCppEngine(**OPTIONS) as engine:
            llamanb.ChatSession(engine).send("Warm up.", max_tokens=1)
            start = time.perf_counter()
            usage = llamanb.ChatSession.load(folder, engine).prefill()
            seconds.append(time.perf_counter() - start)
    return seconds, usage.n_prefilled


def measure(n_tokens: int) -> dict[str, Any]:
    """Measure the three ways at a length."""
    with llamanb.LlamaCppEngine(**OPTIONS) as engine, tempfile.TemporaryDirectory() as place:
        session = conversation(engine, n_tokens)
        with_cache, without = Path(place) / "with", Path(place) / "without"
        start = time.perf_counter()
        session.save(with_cache, cache=True)
        saved = time.perf_counter() - start
        session.save(without)
        n_tokens = session.n_tokens
        n_bytes = sum(path.stat().st_size for path in with_cache.iterdir())
        memory = from_memory(session)
        warnings.simplefilter("error", UserWarning)
        cached, n_read = from_directory(with_cache, N_TIMES)
        cold, n_read_cold = from_directory(without, N_COLD)
    return {
        "n_tokens": n_tokens,
        "memory_milliseconds": statistics.median(memory) * 1e3,
        "with_cache_milliseconds": statistics.median(cached) * 1e3,
        "without_milliseconds": statistics.median(cold) * 1e3,
        "ratio": statistics.median(cold) / statistics.median(cached),
        "n_read": n_read,
        "n_read_without": n_read_cold,
        "save_milliseconds": saved * 1e3,
        "megabytes": n_bytes / 1e6,
    }


def main() -> None:
    """Measure, print and write."""
    columns = {
        "tokens": "{n_tokens:,}",
        "from memory": "{memory_milliseconds:.0f} ms",
        "directory with the cache": "{with_cache_milliseconds:.0f} ms",
        "without": "{without_milliseconds:,.0f} ms",
        "ratio of the last two": "{ratio:.0f}",
        "tokens read": "{n_read} / {n_read_without:,}",
        "saving with the cache": "{save_milliseconds:.0f} ms",
        "size": "{megabytes:.1f} MB",
    }
    report(__file__, columns, [measure(n_tokens) for n_tokens in LENGTHS])


if __name__ == "__main__":
    main()
