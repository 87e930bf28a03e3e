"""Saving a session to a directory, and loading it from there, into a new session or a live one."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, overload

from llamanb.engine.base import Engine
from llamanb.errors import LlamanbError
from llamanb.messages import Message
from llamanb.persistence.cache_file import CacheFile
from llamanb.persistence.directory import check_target, has_cache, read_cache, read_session, save_session
from llamanb.persistence.stored_transforms import Known, dump_transforms, load_transforms
from llamanb.wording import counted, sentence

if TYPE_CHECKING:
    from llamanb.session import ChatSession

__all__ = ["Loading", "held_for", "save_to"]

Listed = bool | Iterable[Any]
"""Whether saved transforms are used, or what they may be beside what the user's code has imported."""

_MAGICS = ("llamanb", "IPython")


def save_to(session: ChatSession, path: str | Path, *, cache: bool) -> None:
    """Save a session, as its `save` does."""
    path = _saved_path(path)
    check_target(path)
    with session.changing() as history:
        stored = session.to_dict()
        transforms = dump_transforms(session.transforms)
        active = history.branch_path(history.active)
    cached = held_for(session, active, session.engine) if cache and active else None
    save_session(path, {**stored, "transforms": transforms} if transforms else stored, cached)


def held_for(session: ChatSession, path: Sequence[Message], engine: Engine) -> CacheFile | None:
    """Evaluate a path, and return what the cache of an engine then holds for it; ``None`` where it cannot be kept."""
    tokens, result = session.evaluate(path, engine, keep_state=True)
    return None if result.state is None else CacheFile(engine.cache_fingerprint, tokens, result.state)


class Loading:
    """The method `load` of sessions: of the class, it makes one; of a session, it replaces what that holds."""

    @overload
    def __get__(self, session: None, cls: type[ChatSession]) -> Callable[..., ChatSession]: ...
    @overload
    def __get__(self, session: ChatSession, cls: type[ChatSession]) -> Callable[..., None]: ...
    def __get__(self, session: ChatSession | None, cls: type[ChatSession]) -> Callable[..., ChatSession | None]:
        return types.MethodType(_make, cls) if session is None else types.MethodType(_replace, session)


def _make(cls: type[ChatSession], path: str | Path, engine: Engine, transforms: Listed = True) -> ChatSession:
    """Make a session of one that was saved.

    A cache that was saved with it is used where it fits the engine. Where it does not, the active path is evaluated,
    and a warning says so.

    Parameters
    ----------
    path
        The directory.
    engine
        Who answers.
    transforms
        Whether to use the saved transforms. Of these, only what your code has imported or defined is found; a list
        names modules, functions or classes that may be used beside that. Nothing else is ever imported.

    Raises
    ------
    InvalidArgumentError
        There is no saved session.
    HistoryFormatError
        It is damaged; the error names the place.
    SchemaVersionError
        It was saved by a newer llamanb.
    TransformError
        A saved transform cannot be found; the error names it.
    """
    path = _saved_path(path)
    session = _saved(cls, path, engine, transforms)
    _use_cache(session, path)
    return session


def _replace(session: ChatSession, path: str | Path, transforms: Listed = True) -> None:
    """Replace what this session holds by one that was saved: all of it, or where that fails, nothing.

    A cache that was saved with it is used where it fits the engine. Where it does not, the active path is evaluated,
    and a warning says so.

    Parameters
    ----------
    path
        The directory.
    transforms
        Whether to replace the transforms too. Of the saved ones, only what your code has imported or defined is found;
        a list names modules, functions or classes that may be used beside that. Nothing else is ever imported.

    Raises
    ------
    InvalidArgumentError
        There is no saved session.
    HistoryFormatError
        It is damaged; the error names the place.
    SchemaVersionError
        It was saved by a newer llamanb.
    TransformError
        A saved transform cannot be found; the error names it.
    SessionBusyError
        A branch is answering.
    """
    path = _saved_path(path)
    other = _saved(type(session), path, session.engine, transforms)
    session.restore(other.state(), transforms=transforms is not False)
    _use_cache(session, path)


def _saved(cls: type[ChatSession], path: Path, engine: Engine, transforms: Listed) -> ChatSession:
    """Make a session of a saved one, of whose cache nothing is used yet."""
    stored = read_session(path)
    session = cls.from_dict(stored, engine)
    if transforms is not False:
        known = Known(_callers_names(), () if transforms is True else transforms)
        session.transforms = load_transforms(stored.get("transforms", {}), known)
    return session


def _use_cache(session: ChatSession, path: Path) -> None:
    """Use the cache that was saved with a session; where it does not fit, evaluate the active path, and say so."""
    active = session.messages
    if not active or not has_cache(path):
        return
    engine = session.engine
    try:
        tokens = session.transforms.encode(engine, active, add_generation_prompt=False)
        state = read_cache(path, engine.cache_fingerprint, tokens)
        if state is not None and engine.load_state(tokens, state):
            return
        session.evaluate(active)
        outcome = f"the {counted(len(tokens), 'token')} of the active path were evaluated instead"
    except LlamanbError as error:
        outcome = f"and the active path cannot be evaluated: {sentence(error).removesuffix('.')}"
    _warn_caller(f"The cache saved in {str(path)!r} is damaged, or of another model or other settings; {outcome}.")


def _saved_path(path: str | Path) -> Path:
    """Return where a session is saved; raise where that is no path."""
    if not isinstance(path, (str, Path)):
        raise TypeError(f"The folder of a session is a path, not a {type(path).__name__}.")
    return Path(path).expanduser()


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _MAGICS


def _callers_names() -> list[Mapping[str, Any]]:
    """Return the names of the user's code that called: those where it stands, and those of the notebook or script."""
    caller = next((frame for frame in _frames() if not _is_own(frame)), None)
    main = vars(sys.modules["__main__"])
    return [main] if caller is None else [caller.f_locals, caller.f_globals, main]


def _warn_caller(message: str) -> None:
    """Warn in the name of the line of the user's code that called."""
    level = next((number for number, frame in enumerate(_frames()) if not _is_own(frame)), 1)
    warnings.warn(message, stacklevel=max(level - 1, 1))
