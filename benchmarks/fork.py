"""Fork and first token: what a new branch costs at 100, 1,000 and 3,000 tokens.

Prints a table and writes ``fork.json`` beside this file. Each row is the median over several forks, beside the
same question asked of an engine that has nothing cached, in the same run: on a shared machine only the ratio holds.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import llamanb

LENGTHS = (100, 1_000, 3_000)
N_COLD = 3
WORDS = ("what", "who", "where", "when", "why", "how", "which", "whose", "whom")
QUESTION = "{} comes after that?"
SAMPLING = llamanb.SamplingParams(temperature=0.0, max_tokens=1)


def conversation(engine: llamanb.LlamaCppEngine, n_tokens: int) -> llamanb.ChatSession:
    """Return a session whose path has about so many tokens."""
    session = llamanb.ChatSession(engine, "You tell stories.", SAMPLING)
    per_word = session.count_tokens(" wave" * 100) / 100
    session.add_message("user", " wave" * int((n_tokens - session.n_tokens - 10) / per_word))
    session.regenerate()
    return session


def measure(n_tokens: int) -> dict[str, Any]:
    """Measure forks at a length, and the same question without a cache."""
    forks, firsts, cold = [], [], []
    with llamanb.LlamaCppEngine(n_ctx=4096) as engine:
        session = conversation(engine, n_tokens)
        own = len(engine.tokenize(QUESTION.format(WORDS[0])))
        for number in range(len(WORDS)):
            start = time.perf_counter()
            branch = session.fork(f"fork{number}")
            forked = time.perf_counter()
            usage = branch.send(QUESTION.format(WORDS[number])).usage
            firsts.append(time.perf_counter() - forked)
            forks.append(forked - start)
        n_tokens = session.n_tokens
        for _ in range(N_COLD):
            with llamanb.LlamaCppEngine(n_ctx=4096) as empty:
                twin = llamanb.ChatSession.from_dict(session.to_dict(), empty)
                start = time.perf_counter()
                twin.send(QUESTION.format(WORDS[0]))
                cold.append(time.perf_counter() - start)
    return {
        "n_tokens": n_tokens,
        "fork_seconds": statistics.median(forks),
        "first_token_seconds": statistics.median(firsts),
        "cold_first_token_seconds": statistics.median(cold),
        "ratio": statistics.median(cold) / statistics.median(firsts),
        "n_prefilled": usage.n_prefilled,
        "n_question": own,
    }


def main() -> None:
    """Measure, print and write."""
    rows = [measure(n_tokens) for n_tokens in LENGTHS]
    columns = ["tokens before", "the fork itself", "first token on it", "with nothing cached", "ratio", "tokens read"]
    print(f"| {' | '.join(columns)} |\n|{'---:|' * len(columns)}")
    for row in rows:
        print(
            f"| {row['n_tokens']:,} | {row['fork_seconds'] * 1e6:.0f} µs | {row['first_token_seconds'] * 1e3:.0f} ms "
            f"| {row['cold_first_token_seconds'] * 1e3:,.0f} ms | {row['ratio']:.0f} | {row['n_prefilled']} |"
        )
    result = {"machine": platform.processor() or platform.machine(), "rows": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
