"""How names, numbers and other libraries' words are written in a sentence for a person."""

from __future__ import annotations

import re
import shlex

__all__ = ["counted", "quoted", "sentence", "size"]

_PLAIN_WORD = re.compile(r"[\w.:/+=@%-]+")

_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


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
    unit, name = next(((unit, name) for unit, name in _UNITS if n_bytes >= unit), (1, "bytes"))
    return f"{n_bytes / unit:.1f} {name}" if unit > 1 else f"{n_bytes} bytes"
