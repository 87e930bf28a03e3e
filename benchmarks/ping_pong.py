"""Ping-pong: ten messages that alternate between two branches of one conversation.

The same work is done through llamanb, with and without its deterministic mode, and through
`llama_cpp.Llama.create_chat_completion`, which remembers one conversation. Each runs in a process of its own, with the
same model, number of threads, messages and greedy sampling, and answers that are as long. The very first of the ten
reads the trunk that both branches share. Prints a table and writes ``ping_pong.json`` beside this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from measuring import report

N_ROUNDS = 3
N_ANSWER = 45
TRUNK = (
    "You are a helpful guide to an old town by the sea. " + "Remember this about the harbour and its lighthouse. " * 46
)
QUESTIONS = [
    "What would you see first?", "Where would you eat?", "What would you leave out?", "When would you go?",
    "How would you get there?", "What would it cost?", "Whom would you take along?", "What would you read before?",
    "What would you bring home?", "Would you come again?",
]  # fmt: skip


def llamanb_run(deterministic: bool) -> dict[str, Any]:
    """Do the work with a session and two branches."""
    import llamanb

    with llamanb.LlamaCppEngine(n_ctx=4096, deterministic=deterministic) as engine:
        session = llamanb.ChatSession(engine, TRUNK, llamanb.SamplingParams(temperature=0.0, max_tokens=N_ANSWER))
        branches = [session.fork("ping"), session.fork("pong")]
        n_prefilled, firsts, started = 0, [], time.perf_counter()
        for number, question in enumerate(QUESTIONS):
            asked = time.perf_counter()
            stream = branches[number % 2].stream(question)
            next(stream)
            firsts.append(time.perf_counter() - asked)
            n_prefilled += stream.reply.usage.n_prefilled
        seconds = time.perf_counter() - started
        n_distinct = len(engine.encode(branches[0].messages, add_generation_prompt=False))
        n_distinct += len(engine.encode(branches[1].messages, add_generation_prompt=False))
        n_distinct -= len(engine.encode(branches[0].messages[:1], add_generation_prompt=False))
    return {
        "n_prefilled": n_prefilled,
        "first_seconds": sum(firsts),
        "later_first_seconds": sum(firsts[1:]),
        "seconds": seconds,
        "n_distinct": n_distinct,
    }


def llama_cpp_run() -> dict[str, Any]:
    """Do the work with `create_chat_completion`, which is given the whole conversation each time."""
    import os

    import llama_cpp

    from llamanb.models import resolve

    threads = len(os.sched_getaffinity(0))
    llama = llama_cpp.Llama(str(resolve().path), n_ctx=4096, n_threads=threads, n_threads_batch=threads, verbose=False)
    n_evaluated = 0
    evaluate = llama.eval

    def counted(tokens: Any) -> None:
        nonlocal n_evaluated
        n_evaluated += len(tokens)
        evaluate(tokens)

    llama.eval = counted  # type: ignore[method-assign]
    paths = [[{"role": "system", "content": TRUNK}], [{"role": "system", "content": TRUNK}]]
    n_decoded, firsts, started = 0, [], time.perf_counter()
    for number, question in enumerate(QUESTIONS):
        path = paths[number % 2]
        path.append({"role": "user", "content": question})
        asked, text, first = time.perf_counter(), "", 0.0
        stream = llama.create_chat_completion(path, temperature=0.0, max_tokens=N_ANSWER, stream=True)  # type: ignore[arg-type]
        n_before = n_evaluated
        for part in stream:
            piece = part["choices"][0]["delta"].get("content")  # type: ignore[index]
            if piece:
                if not first:
                    first = time.perf_counter() - asked
                    n_decoded -= n_evaluated - n_before
                text += piece
        n_decoded += n_evaluated - n_before
        firsts.append(first)
        path.append({"role": "assistant", "content": text})
    seconds = time.perf_counter() - started
    return {
        "n_prefilled": n_evaluated - n_decoded,
        "first_seconds": sum(firsts),
        "later_first_seconds": sum(firsts[1:]),
        "seconds": seconds,
    }


RUNS = {
    "llamanb": lambda: llamanb_run(True),
    "llamanb, deterministic=False": lambda: llamanb_run(False),
    "create_chat_completion": llama_cpp_run,
}


def main() -> None:
    """Measure, print and write; given the name of a run, do it once and print what it gave."""
    if len(sys.argv) > 1:
        print(json.dumps(RUNS[sys.argv[1]]()))
        return
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    for number in range(N_ROUNDS):
        for name in [*list(RUNS)[number % 3 :], *list(RUNS)[: number % 3]]:
            command = [sys.executable, __file__, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for name, runs in found.items():
        middle = sorted(runs, key=lambda run: run["first_seconds"])[len(runs) // 2]
        rows.append({"way": name, **middle})
    for row in rows:
        row["ratio"] = rows[-1]["first_seconds"] / row["first_seconds"]
        row["later_ratio"] = rows[-1]["later_first_seconds"] / row["later_first_seconds"]
    columns = {
        "ten messages through": "{way}",
        "tokens prefilled": "{n_prefilled:,}",
        "to the ten first tokens": "{first_seconds:.2f} s",
        "ratio": "{ratio:.1f}",
        "to all but the very first": "{later_first_seconds:.2f} s",
        "ratio ": "{later_ratio:.1f}",
        "with the answers": "{seconds:.2f} s",
    }
    report(__file__, columns, rows)


if __name__ == "__main__":
    main()
