"""CacheFile: what a model's cache holds for some tokens, kept in a file and verified when it is read.

A file is one line of JSON, then the tokens, then the state. The tokens stand in the file so that one can be found by
how a prompt begins.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["CacheFile", "read_cache_file", "read_tokens", "write_cache_file", "write_whole"]

_VERSION = 2
_MOST_HEADER = 65_536  # bytes
_CHUNK = 4 * 1024**2  # bytes that have a checksum of their own, so that several processors can work them out


@dataclass(frozen=True)
class CacheFile:
    """What a cache holds for some tokens, as it is kept in a file.

    Parameters
    ----------
    fingerprint
        The `cache_fingerprint` of the engine.
    tokens
        What it was evaluated for.
    state
        The bytes, as the engine gives them.
    """

    fingerprint: str
    tokens: Sequence[int] = field(repr=False)
    state: memoryview = field(repr=False)


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file beside its place, and move it there when it is whole."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with unfinished.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def write_cache_file(path: Path, cache: CacheFile) -> None:
    """Write a cache to a file. Raises `OSError`."""
    tokens = struct.pack(f"<{len(cache.tokens)}I", *cache.tokens)
    header = {
        "version": _VERSION,
        "fingerprint": cache.fingerprint,
        "n_tokens": len(cache.tokens),
        "tokens_crc32": zlib.crc32(tokens),
        "state_bytes": cache.state.nbytes,
        "state_crc32": _checksums(cache.state),
    }
    write_whole(path, json.dumps(header).encode() + b"\n", tokens, cache.state)


def read_tokens(path: Path, fingerprint: str) -> list[int] | None:
    """Return the tokens of a file; ``None`` where it is damaged, or of another engine."""
    try:
        with path.open("rb") as file:
            _, tokens = _read_start(file, fingerprint)
    except (OSError, ValueError):
        return None
    return tokens


def read_cache_file(path: Path, fingerprint: str, tokens: Sequence[int]) -> memoryview | None:
    """Return the state in a file, in memory that may be written to.

    ``None`` where there is no such file, or it is damaged, of another engine or of other tokens.
    """
    try:
        with path.open("rb") as file:
            header, there = _read_start(file, fingerprint)
            size = header["state_bytes"]
            if os.fstat(file.fileno()).st_size - file.tell() != size or there != list(tokens):
                return None
            state = memoryview(mmap.mmap(-1, max(size, 1)))[:size]  # memory that nobody fills with zeros first
            if file.readinto(state) != size:
                return None
    except (OSError, ValueError):
        return None
    return state if _checksums(state) == header["state_crc32"] else None


def _read_start(file: BinaryIO, fingerprint: str) -> tuple[dict[str, Any], list[int]]:
    """Read a file up to its state. Raises `ValueError` where that cannot be used."""
    header = json.loads(file.readline(_MOST_HEADER))
    if not isinstance(header, dict) or (header.get("version"), header.get("fingerprint")) != (_VERSION, fingerprint):
        raise ValueError("of another version or engine")
    counts = [header.get(name) for name in ("n_tokens", "state_bytes")]
    size = os.fstat(file.fileno()).st_size
    if not all(isinstance(count, int) and 0 <= count <= size for count in counts):
        raise ValueError("damaged")
    data = file.read(4 * header["n_tokens"])
    if len(data) != 4 * header["n_tokens"] or zlib.crc32(data) != header.get("tokens_crc32"):
        raise ValueError("damaged")
    return header, list(struct.unpack(f"<{header['n_tokens']}I", data))


def _checksums(data: memoryview) -> list[int]:
    data = data.cast("B")
    chunks = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    if len(chunks) < 2:
        return [zlib.crc32(chunk) for chunk in chunks]
    with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(zlib.crc32, chunks))
