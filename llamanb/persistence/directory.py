"""A saved session: a directory with `session.json`, and perhaps what the model's cache held.

Every file is written beside its place and moved there when it is whole, `session.json` last. So at every moment the
directory holds the former session or the new one, and a cache belongs to the session whose tokens its name was made of.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llamanb.errors import HistoryFormatError, InvalidArgumentError
from llamanb.persistence.cache_file import CacheFile, read_cache_file, write_cache_file, write_whole
from llamanb.persistence.schema import Document, without_cells
from llamanb.wording import sentence

__all__ = ["SESSION_FILE", "check_target", "has_cache", "read_cache", "read_session", "save_session"]

SESSION_FILE = "session.json"
"""The file that makes a directory a saved session."""

_NAME = "default"
_CACHE_NAME = re.compile(r"cache-[0-9a-f]{16}\.bin")
_UNFINISHED = re.compile(r"\.(session\.json|cache-[0-9a-f]{16}\.bin)\.[0-9a-f]{8}\.tmp")
_ABANDONED_SECONDS = 3600.0
"""A file that is being written that long belongs to a process that has died."""


def _cache_name(fingerprint: str, tokens: Sequence[int]) -> str:
    """Return the name of the file with the cache of an engine for some tokens."""
    digest = hashlib.sha256(json.dumps([fingerprint, list(tokens)]).encode()).hexdigest()
    return f"cache-{digest[:16]}.bin"


# -- writing -----------------------------------------------------------------------------------------------------


def check_target(path: Path) -> None:
    """Raise unless a session can be saved at a path: nothing is there, or an empty directory, or a saved session.

    Raises
    ------
    InvalidArgumentError
        Something else is there, which is left as it is.
    SchemaVersionError
        A session of a newer llamanb is there.
    """
    try:
        names = os.listdir(path)  # noqa: PTH208  (names are all that is asked for)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise InvalidArgumentError(f"{str(path)!r} is a file; a session is saved as a folder of its own.") from None
    except OSError as error:
        raise _unwritable(path, error) from None
    if SESSION_FILE in names:
        try:
            read_session(path)
        except HistoryFormatError as error:
            raise InvalidArgumentError(
                f"The {SESSION_FILE} in {str(path)!r} is not that of a saved session ({error}), so it is left as it "
                "is; save to another folder."
            ) from None
    elif any(not _UNFINISHED.fullmatch(name) and not _CACHE_NAME.fullmatch(name) for name in names):
        raise InvalidArgumentError(
            f"{str(path)!r} is a folder with other things in it, which are left as they are; save to a new folder."
        )


def save_session(path: Path, session: Mapping[str, Any], cache: CacheFile | None = None) -> None:
    """Save a session, in the place of one that is there.

    Parameters
    ----------
    path
        The directory; it is made where there is none.
    session
        The form of `llamanb.ChatSession.to_dict`, and perhaps its transforms.
    cache
        What the engine's cache holds for its active path.

    Raises
    ------
    InvalidArgumentError
        Something else is there, or it cannot be written; what was there is as it was.
    """
    check_target(path)
    text = json.dumps(Document({_NAME: without_cells(session)}).to_dict(), ensure_ascii=False, indent=2) + "\n"
    try:
        path.mkdir(parents=True, exist_ok=True)
        kept = {SESSION_FILE}
        if cache is not None:
            kept.add(name := _cache_name(cache.fingerprint, cache.tokens))
            write_cache_file(path / name, cache)
        write_whole(path / SESSION_FILE, text.encode())
        _sync_directory(path)
        _tidy(path, kept)
    except OSError as error:
        raise _unwritable(path, error) from None


def _sync_directory(path: Path) -> None:
    """Make sure that the new names are on the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        place = os.open(path, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def _tidy(path: Path, kept: set[str]) -> None:
    """Remove caches of former sessions, and what processes that died left unfinished."""
    for entry in path.iterdir():
        with contextlib.suppress(OSError):
            abandoned = _UNFINISHED.fullmatch(entry.name) and (time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS)
            if abandoned or (_CACHE_NAME.fullmatch(entry.name) and entry.name not in kept):
                entry.unlink()


def _unwritable(path: Path, error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(f"{str(path)!r} cannot be written: {error.strerror or error}.")


# -- reading -----------------------------------------------------------------------------------------------------


def read_session(path: Path) -> dict[str, Any]:
    """Read a saved session, in the form of `llamanb.ChatSession.to_dict`, and perhaps with its transforms.

    Raises
    ------
    InvalidArgumentError
        There is none.
    HistoryFormatError
        It is damaged; the error names the place.
    SchemaVersionError
        It was written by a newer llamanb.
    """
    try:
        text = (path / SESSION_FILE).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        missing = f"it has no {SESSION_FILE}" if path.is_dir() else "there is no such folder"
        raise InvalidArgumentError(f"{str(path)!r} is no saved session: {missing}.") from None
    except NotADirectoryError:
        raise InvalidArgumentError(f"{str(path)!r} is no saved session: that is a folder, and this a file.") from None
    except UnicodeDecodeError:
        raise HistoryFormatError("$", f"{SESSION_FILE} is not text in UTF-8") from None
    except OSError as error:
        raise InvalidArgumentError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None
    try:
        stored = json.loads(text)
    except RecursionError:
        raise HistoryFormatError("$", f"{SESSION_FILE} is nested too deeply") from None
    except ValueError as error:
        problem = f"{SESSION_FILE} is not valid JSON: {sentence(error).removesuffix('.')}"
        raise HistoryFormatError("$", problem) from None
    sessions = Document.from_dict(stored).sessions
    if len(sessions) != 1:
        raise HistoryFormatError("$.sessions", f"a saved session is one, and here are {len(sessions)}")
    return next(iter(sessions.values()))


def has_cache(path: Path) -> bool:
    """Whether a cache was saved with a session."""
    return any(_CACHE_NAME.fullmatch(entry.name) for entry in path.iterdir())


def read_cache(path: Path, fingerprint: str, tokens: Sequence[int]) -> memoryview | None:
    """Return the cache of an engine for some tokens; ``None`` where there is none that is whole."""
    return read_cache_file(path / _cache_name(fingerprint, tokens), fingerprint, tokens)
