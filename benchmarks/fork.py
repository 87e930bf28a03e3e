"""Fork and first token: what a new branch costs at 100, 1,000 and 3,000 tokens.

Prints a table and writes ``fork.json`` beside this file. Each row is the median over several forks, beside the
same question asked of an engine that has nothing cached, in the same run: on a shared machine only the ratio holds.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from measuring import conversation, report

import llamanb

LENGTHS = (100, 1_000, 3_000)
N_COLD = 3
WORDS = ("what", "who", "where", "when", "why", "how", "which", "whose", "whom")
QUESTION = "{} comes after that?"


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
        "fork_microseconds": statistics.median(forks) * 1e6,
        "first_token_milliseconds": statistics.median(firsts) * 1e3,
        "cold_first_token_milliseconds": statistics.median(cold) * 1e3,
        "ratio": statistics.median(cold) / statistics.median(firsts),
        "n_prefilled": usage.n_prefilled,
        "n_question": own,
    }


def main() -> None:
    """Measure, print and write."""
    columns = {
        "tokens before": "{n_tokens:,}",
        "the fork itself": "{fork_microseconds:.0f} µs",
        "first token on it": "{first_token_milliseconds:.0f} ms",
        "with nothing cached": "{cold_first_token_milliseconds:,.0f} ms",
        "ratio": "{ratio:.0f}",
        "tokens read": "{n_prefilled}",
    }
    report(__file__, columns, [measure(n_tokens) for n_tokens in LENGTHS])


if __name__ == "__main__":
    main()
