"""Overhead: what `ChatSession` and `%%chat` add to a bare loop on llama.cpp's functions, with the same settings.

The three take turns on prompts that have nothing in common, so that each reads all of its own. The bare loop runs in a
process of its own, since OpenMP slows down all that compute in one process when they have more threads than there are
processors. First token is the time from the call to the first piece of the answer, decode the tokens a second after
it; its share of the loop's is the median over the rounds. Prints a table of medians and writes ``overhead.json`` beside
this file.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import llama_cpp
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from measuring import report

import llamanb
from llamanb.engine.llama import LlamaCppEngine  # also keeps llama.cpp's log to itself
from llamanb.models import resolve

N_ROUNDS = 30
N_TOKENS = 100
N_CTX = 2048
SAMPLING = llamanb.SamplingParams(temperature=0.0, max_tokens=N_TOKENS)


class Bare:
    """Decode and take the likeliest token, in a loop: what every program on llama.cpp does at least."""

    def __init__(self) -> None:
        model = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(resolve().path).encode(), model)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 2 * N_CTX, 512, 32, 18
        params.kv_unified = True
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.type_k = 30  # BF16, as the engine has it
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.greedy = llama_cpp.llama_sampler_init_greedy()
        self.buffer = ctypes.create_string_buffer(256)

    def decode(self, tokens: list[int], start: int) -> None:
        """Evaluate tokens from a position on, with logits for the last."""
        for at in range(0, len(tokens), 512):
            part = tokens[at : at + 512]
            self.batch.n_tokens = len(part)
            for i, token in enumerate(part):
                self.batch.token[i], self.batch.pos[i], self.batch.n_seq_id[i] = token, start + at + i, 1
                self.batch.seq_id[i][0] = 0
                self.batch.logits[i] = at + i == len(tokens) - 1
            llama_cpp.llama_decode(self.context, self.batch)

    def __call__(self, tokens: list[int]) -> tuple[float, float, int]:
        """Answer; return the seconds to the first token and after it, and how many tokens came after it."""
        memory = llama_cpp.llama_get_memory(self.context)
        self.decode(tokens[:30], 0)  # as the engine has answered once before it is asked
        started = time.perf_counter()
        llama_cpp.llama_memory_clear(memory, False)
        self.decode(tokens, 0)
        position, n, first = len(tokens), 0, 0.0
        while n < N_TOKENS:
            token = llama_cpp.llama_sampler_sample(self.greedy, self.context, -1)
            llama_cpp.llama_token_to_piece(self.vocab, token, self.buffer, 256, 0, False)
            first = first or time.perf_counter()
            if llama_cpp.llama_vocab_is_eog(self.vocab, token):
                break
            n += 1
            if n < N_TOKENS:
                self.decode([token], position)
                position += 1
        return first - started, time.perf_counter() - first, n - 1


def answer_requests(connection: Connection) -> None:
    """Run the bare loop in its process, for one prompt after another."""
    bare = Bare()
    while (prompt := connection.recv()) is not None:
        connection.send(bare(prompt))


class Clock(DisplayPublisher):  # type: ignore[misc]
    """Notes when something is displayed first."""

    first: float | None = None

    def publish(self, *_: Any, **__: Any) -> None:
        """Take a display."""
        self.first = self.first or time.perf_counter()


def through_session(session: llamanb.ChatSession, prompt: str) -> tuple[float, float, int]:
    """Answer by `ChatSession.stream`."""
    started = time.perf_counter()
    stream = session.stream(prompt)
    next(stream)
    first = time.perf_counter()
    reply = stream.reply
    return first - started, time.perf_counter() - first, reply.usage.n_generated - 1


def through_cell(shell: InteractiveShell, session: llamanb.ChatSession, prompt: str) -> tuple[float, float, int]:
    """Answer by a `%%chat` cell that somebody watches."""
    llamanb.use_session(session, replace=True)
    request = {"header": {"msg_id": prompt}, "metadata": {"cellId": "cell"}, "content": {"allow_stdin": True}}
    shell.get_parent = lambda: request  # type: ignore[attr-defined]
    shell.display_pub = clock = Clock()
    started = time.perf_counter()
    shell.run_cell(f"%%chat -o reply\n{prompt}")
    ended = time.perf_counter()
    assert clock.first is not None
    return clock.first - started, ended - clock.first, shell.user_ns["reply"].usage.n_generated - 1


def fresh(engine: LlamaCppEngine) -> llamanb.ChatSession:
    """Return a session on an engine that has answered once, and holds nothing of what is asked next."""
    llamanb.ChatSession(engine, sampling=SAMPLING.replace(max_tokens=1)).send("Hi.")
    return llamanb.ChatSession(engine, "You tell stories.", SAMPLING)


def main() -> None:
    """Measure, print and write."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answer_requests, args=(there,))
    process.start()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "llamanb")
    found: dict[str, list[tuple[float, float, int]]] = {"bare loop": [], "ChatSession": [], "%%chat": []}
    for number in range(N_ROUNDS):
        prompt = f"Write a long story about {number + 2} ships, their captains and the sea. " + "Take your time. " * 20
        for way in [*list(found)[number % 3 :], *list(found)[: number % 3]]:
            with LlamaCppEngine(n_ctx=N_CTX) as engine:
                session = fresh(engine)
                if way == "bare loop":
                    here.send(tokens(engine, prompt))
                    found[way].append(here.recv())
                elif way == "ChatSession":
                    found[way].append(through_session(session, prompt))
                else:
                    found[way].append(through_cell(shell, session, prompt))
    here.send(None)
    process.join()
    rows = []
    for way, times in found.items():
        first = statistics.median(time for time, _, _ in times)
        rate = statistics.median(n / seconds for _, seconds, n in times)
        rows.append({"way": way, "first_token_milliseconds": first * 1e3, "decode_rate": rate})
    for row in rows:
        row["more"] = row["first_token_milliseconds"] - rows[0]["first_token_milliseconds"]
        pairs = zip(found[row["way"]], found["bare loop"], strict=True)
        row["of_bare"] = statistics.median((n / took) / (n_bare / bare) for (_, took, n), (_, bare, n_bare) in pairs)
    columns = {
        "": "{way}",
        "first token": "{first_token_milliseconds:.0f} ms",
        "more than the loop": "{more:+.1f} ms",
        "decode": "{decode_rate:.1f} tokens/s",
        "of the loop's": "{of_bare:.3f}",
    }
    report(__file__, columns, rows)


def tokens(engine: LlamaCppEngine, prompt: str) -> list[int]:
    """Return the prompt that the engine makes, so that all three read the same number of tokens."""
    first = llamanb.Message.create("system", "You tell stories.")
    return engine.encode([first, llamanb.Message.create("user", prompt, parent=first.id)])


if __name__ == "__main__":
    main()
