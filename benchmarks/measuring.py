"""What the benchmarks share: a conversation, a table, a file beside the script, and what machine it was."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import llamanb


def machine() -> str:
    """Return the processor and how many threads this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {threads} threads"


def conversation(engine: llamanb.LlamaCppEngine, n_tokens: int) -> llamanb.ChatSession:
    """Return a session whose path has about so many tokens."""
    session = llamanb.ChatSession(engine, "You tell stories.", llamanb.SamplingParams(temperature=0.0, max_tokens=1))
    per_word = session.count_tokens(" wave" * 100) / 100
    session.add_message("user", " wave" * int((n_tokens - session.n_tokens - 10) / per_word))
    session.regenerate()
    return session


def report(script: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a Markdown table and write them as JSON beside a script.

    Parameters
    ----------
    script
        The script's ``__file__``.
    columns
        A column's title to the format of its value, such as ``"{seconds:.2f} s"``.
    rows
        The values.
    """
    print(f"{machine()}\n")
    print(f"| {' | '.join(columns)} |\n|{'---:|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(form.format(**row) for form in columns.values())} |")
    result = {"machine": machine(), "rows": list(rows)}
    Path(script).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
