"""Deterministic: what it costs that answers do not depend on what else the model reads and writes.

Engines with and without it take turns: reading a prompt that nothing of is cached, and writing an answer after a short
and after a long prompt. Prints a table of medians and writes ``deterministic.json`` beside this file.
"""

from __future__ import annotations

import statistics
from typing import Any

from measuring import report

import llamanb

N_ROUNDS = 5
N_ANSWER = 64
SHORT, LONG = 100, 1_000
SAMPLING = llamanb.SamplingParams(temperature=0.0, max_tokens=N_ANSWER)


def measure(deterministic: bool, number: int) -> dict[str, float]:
    """Return rates in tokens a second."""
    rates = {}
    with llamanb.LlamaCppEngine(n_ctx=2048, deterministic=deterministic) as engine:
        llamanb.ChatSession(engine, sampling=SAMPLING).send("Hi.")
        for n_tokens in (SHORT, LONG):
            session = llamanb.ChatSession(engine, f"{number} waves. " + "wave " * n_tokens, SAMPLING)
            usage = session.send("Write a long story about that.").usage
            rates[f"read_{n_tokens}"] = usage.n_prefilled / usage.prefill_seconds
            rates[f"write_{n_tokens}"] = (usage.n_generated - 1) / usage.decode_seconds
    return rates


def main() -> None:
    """Measure, print and write."""
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(N_ROUNDS):
        for deterministic in (True, False) if number % 2 else (False, True):
            found[deterministic].append(measure(deterministic, number))
    rows: list[dict[str, Any]] = []
    for deterministic, rates in found.items():
        middle = {name: statistics.median(rate[name] for rate in rates) for name in rates[0]}
        rows.append({"deterministic": str(deterministic), **middle})
    ratio = {name: rows[0][name] / rows[1][name] for name in rows[0] if name != "deterministic"}
    columns = {
        "deterministic": "{deterministic}",
        f"reads {LONG:,} tokens": f"{{read_{LONG}:.0f}} tokens/s",
        f"writes after {SHORT}": f"{{write_{SHORT}:.1f}} tokens/s",
        f"writes after {LONG:,}": f"{{write_{LONG}:.1f}} tokens/s",
    }
    report(__file__, columns, rows)
    print("\nDeterministic as a share of the other: " + ", ".join(f"{n} {share:.2f}" for n, share in ratio.items()))


if __name__ == "__main__":
    main()
