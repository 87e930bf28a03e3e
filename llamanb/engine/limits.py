"""Limits of llama.cpp: what it would end the process for is refused before it is asked."""

from __future__ import annotations

import os
import re
from typing import Any

from llamanb.errors import InvalidArgumentError, ModelLoadError, SequenceLimitError
from llamanb.models import ListLength

__all__ = ["MIN_CELLS", "N_OWN_SEQUENCES", "check_counts", "check_grammar", "check_memory", "default_threads"]

MIN_CELLS = 256
"""Fewer cells than there are sequences make llama.cpp abort the process."""

N_OWN_SEQUENCES = 2
"""One sequence that holds removed cells, and one that parts of sequences pass through."""

_MAX_THREADS = 512  # GGML_MAX_N_THREADS in ggml.h; beyond it the library writes past its end
_MAX_GRAMMAR_DEPTH = 500  # llama.cpp's parser calls itself for every parenthesis, until the stack is full
_MAX_GRAMMAR_LENGTH = 1_000_000
_GRAMMAR_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[()]')


def check_grammar(source: str) -> None:
    """Refuse a grammar that would fill the stack of llama.cpp's parser and end the process."""
    if len(source) > _MAX_GRAMMAR_LENGTH:
        raise InvalidArgumentError(
            f"The grammar has {len(source):,} characters; it must have at most {_MAX_GRAMMAR_LENGTH:,}."
        )
    depth = 0
    for mark in _GRAMMAR_TOKEN.findall(source):
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if depth > _MAX_GRAMMAR_DEPTH:
            raise InvalidArgumentError(f"The grammar nests more than {_MAX_GRAMMAR_DEPTH} parentheses.")


def check_counts(
    n_parallel: int, n_ctx: int, n_cells: int | None, n_seq_max: int, n_batch: int, n_threads: int | None
) -> None:
    """Refuse numbers that are out of range; `n_parallel` is how many sequences the library can tell apart."""
    named = {"n_ctx": n_ctx, "n_cells": n_cells, "n_batch": n_batch, "n_threads": n_threads}
    for name, value in named.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidArgumentError(f"{name} is {value!r}; it must be a whole number of at least 1.")
    most = n_parallel - N_OWN_SEQUENCES
    if isinstance(n_seq_max, bool) or not isinstance(n_seq_max, int) or not 1 <= n_seq_max <= most:
        raise SequenceLimitError(f"n_seq_max is {n_seq_max!r}; it must be from 1 to {most}.")
    if n_batch < n_seq_max + N_OWN_SEQUENCES:
        least = n_seq_max + N_OWN_SEQUENCES
        raise InvalidArgumentError(f"n_batch is {n_batch}; with n_seq_max={n_seq_max} it must be at least {least}.")
    if n_threads is not None and n_threads > _MAX_THREADS:
        raise InvalidArgumentError(f"n_threads is {n_threads}; it must be at most {_MAX_THREADS}.")


def check_memory(name: str, header: dict[str, Any], n_cells: int) -> None:
    """Refuse a cache larger than all of the machine's memory, where the system would kill the process."""
    if not hasattr(os, "sysconf"):
        return
    architecture = header["general.architecture"]

    def number(key: str, default: int = 1) -> int:
        value = header.get(f"{architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, ListLength) and value > 0 else default

    heads = number("attention.head_count")
    per_head = number("attention.key_length", number("embedding_length") // heads)
    needed = 2 * 2 * n_cells * number("block_count") * per_head * number("attention.head_count_kv")
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ModelLoadError(
            f"{name} with {n_cells} cells needs {needed / 2**30:.0f} GiB for its cache, and this machine has "
            f"{there / 2**30:.0f} GiB. Use a smaller n_ctx or n_cells."
        )


def default_threads() -> int:
    """Return one thread for each processor of this process, or for half of them from eight on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return usable if usable < 8 else usable // 2
