"""Going on after a restart of the kernel: with a snapshot of what the cache held, and without, at two lengths.

Prints a table and writes ``restart.json`` beside this file. Measured is the time to the first token of the next answer,
from making the session anew of what the notebook holds; loading the model, which both need, is not counted. Medians;
only the ratios hold on a shared machine.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import conversation, report

import llamanb
from llamanb.snapshots import Snapshots

LENGTHS = (1_000, 4_000)
N_TIMES = 5
N_COLD = 2
OPTIONS = {"n_ctx": 5_120}


def restarted(data: dict[str, Any], folder: Path | None, times: int) -> tuple[list[float], int]:
    """Measure going on with an engine that has nothing cached; return also how many tokens it had to read."""
    seconds = []
    for _ in range(times):
        with llamanb.LlamaCppEngine(**OPTIONS) as engine, tempfile.TemporaryDirectory() as place:
            if folder:  # a copy: going on writes another one, which knows the answer
                shutil.copytree(folder, place, dirs_exist_ok=True)
            llamanb.ChatSession(engine).send("Warm up.", max_tokens=1)
            start = time.perf_counter()
            session = llamanb.ChatSession.from_dict(data, engine)
            session.snapshots = Snapshots(Path(place)) if folder else None
            with session.stream("And?") as stream:
                next(stream, None)
                seconds.append(time.perf_counter() - start)
            n_read = stream.reply.usage.n_prefilled
            if session.snapshots is not None:
                session.snapshots.flush()
    return seconds, n_read


def measure(n_tokens: int) -> dict[str, Any]:
    """Measure both ways at a length."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with llamanb.LlamaCppEngine(**OPTIONS) as engine:
            session = conversation(engine, n_tokens)
            session.snapshots = Snapshots(folder)
            session.prefill()
            session.snapshots.flush()
            data, n_tokens = session.to_dict(), session.n_tokens
            n_bytes = sum(info.n_bytes for info in Snapshots(folder).entries())
        with_snapshot, n_read = restarted(data, folder, N_TIMES)
        without, n_read_without = restarted(data, None, N_COLD)
    return {
        "n_tokens": n_tokens,
        "with_snapshot_milliseconds": statistics.median(with_snapshot) * 1e3,
        "without_milliseconds": statistics.median(without) * 1e3,
        "ratio": statistics.median(without) / statistics.median(with_snapshot),
        "n_read": n_read,
        "n_read_without": n_read_without,
        "megabytes": n_bytes / 1e6,
    }


def main() -> None:
    """Measure, print and write."""
    columns = {
        "tokens": "{n_tokens:,}",
        "with a snapshot": "{with_snapshot_milliseconds:.0f} ms",
        "without": "{without_milliseconds:,.0f} ms",
        "ratio": "{ratio:.0f}",
        "tokens read": "{n_read} / {n_read_without:,}",
        "size": "{megabytes:.1f} MB",
    }
    report(__file__, columns, [measure(n_tokens) for n_tokens in LENGTHS])


if __name__ == "__main__":
    main()
