"""How names, numbers and other libraries' words are written in a sentence for a person."""

from __future__ import annotations

import re
import shlex

__all__ = ["counted", "quoted", "read_size", "sentence", "size"]

_PLAIN_WORD = re.compile(r"[\w.:/+=@%-]+")

_UNITS = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "bytes": 1}
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]b|bytes|b)?\s*", re.IGNORECASE)


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with what it counts; `several` where that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def quoted(name: str) -> str:
    """Return a name as it is written in a magic's line: in quotes where it would not be read as one word."""
    return name if _PLAIN_WORD.fullmatch(name) else shlex.quote(name)


def sentence(words: object) -> str:
    """Return what another library says as the end of a sentence: on one line, with one full stop."""
    text = " ".join(str(words).split())
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def size(n_bytes: int) -> str:
    """Return a number of bytes as a person reads it."""
    name = next((name for name, unit in _UNITS.items() if n_bytes >= unit), "bytes")
    return f"{n_bytes} bytes" if name == "bytes" else f"{n_bytes / _UNITS[name]:.1f} {name}"


def read_size(text: str) -> int | None:
    """Return the number of bytes that a person wrote, such as ``500MB``; ``None`` where it is none."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    units = {name.lower(): unit for name, unit in _UNITS.items()} | {"b": 1}
    return int(float(found["number"]) * units[(found["unit"] or "b").lower()])
