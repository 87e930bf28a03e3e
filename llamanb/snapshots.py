"""Snapshots: what a model's cache holds for the tips of branches, kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from llamanb.engine.base import Engine
from llamanb.engine.cache import common_prefix
from llamanb.persistence.cache_file import CacheFile, read_cache_file, read_tokens, write_cache_file

__all__ = ["SnapshotInfo", "Snapshots", "snapshot_folder"]

MIN_TOKENS = 64
"""Fewer tokens are read again in less time than a snapshot is worth."""

_SUFFIX = ".kv"
_QUIET_SECONDS = 0.3
_IDLE_SECONDS = 5.0  # after which the thread that writes ends
_ABANDONED_SECONDS = 3600.0


def snapshot_folder() -> Path:
    """Return the folder of this user's snapshots."""
    return platformdirs.user_cache_path("llamanb") / "snapshots"


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot on disk.

    Parameters
    ----------
    path
        Its file.
    n_bytes
        Its size.
    used_at
        When it was last written or read, in seconds since the epoch.
    """

    path: Path
    n_bytes: int
    used_at: float


@dataclass
class _Wanted:
    take: Callable[[], CacheFile | None]
    is_busy: Callable[[], bool]
    since: float


class Snapshots:
    """A folder of snapshots.

    They are found by how a prompt begins, verified when they are read, and thrown away where they are damaged. A thread
    of its own writes them while nothing is being answered. What goes wrong with the disk costs a prefill and nothing
    else.

    Parameters
    ----------
    folder
        Where they are; by default `snapshot_folder`.
    max_bytes
        How much of the disk they may take; beyond it those go that were unused longest.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = 2 * 10**9) -> None:
        self.folder = snapshot_folder() if folder is None else folder
        self.max_bytes = max_bytes
        self._known: dict[Path, list[int]] = {}
        self._wanted: dict[Hashable, _Wanted] = {}
        self._writing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._disk = threading.Lock()
        self._n_forgotten = 0

    # -- using them ---------------------------------------------------------------------------------------------

    def supply(self, engine: Engine, prompt: Sequence[int]) -> None:
        """Give an engine the snapshot that holds most of a prompt, where that is more than it holds itself."""
        n_cached = engine.count_cached(prompt)
        if len(prompt) - n_cached < MIN_TOKENS:
            return
        wanted = list(prompt)
        found = [(common_prefix(tokens, wanted), path, tokens) for path, tokens in self._of(engine.cache_fingerprint)]
        for n_common, path, tokens in sorted(found, reverse=True):
            if n_common - n_cached < MIN_TOKENS:
                return
            state = read_cache_file(path, engine.cache_fingerprint, tokens)
            if state is None:
                self._remove(path)
            elif engine.load_state(tokens, state):
                with contextlib.suppress(OSError):
                    os.utime(path)
                return

    def keep(
        self, key: Hashable, take: Callable[[], CacheFile | None], is_busy: Callable[[], bool] = lambda: False
    ) -> None:
        """Have a snapshot written as soon as nothing is being answered.

        Parameters
        ----------
        key
            What it is of, such as a branch; of several that wait under one key only the last is written.
        take
            Makes it.
        is_busy
            Whether to wait.
        """
        with self._changed:
            self._wanted[key] = _Wanted(take, is_busy, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="llamanb-snapshots", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until everything is written that is to be; false where that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and not self._writing, seconds)

    # -- looking after them -------------------------------------------------------------------------------------

    def entries(self) -> list[SnapshotInfo]:
        """Return the snapshots of all models, the last used first."""
        found = []
        for path in self.folder.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append(SnapshotInfo(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda info: info.used_at, reverse=True)

    def clear(self) -> int:
        """Remove all snapshots; return how many there were."""
        with self._forgetting():
            entries = self.entries()
            for info in entries:
                self._remove(info.path)
        return len(entries)

    def forget(self, engine: Engine, gone: Iterable[Sequence[int]], kept: Iterable[Sequence[int]]) -> None:
        """Remove the snapshots that hold something of prompts that are gone and of none that stays."""
        lost = [list(tokens) for tokens in gone]
        stays = [list(tokens) for tokens in kept]
        with self._forgetting():
            for path, tokens in list(self._of(engine.cache_fingerprint)):
                n_lost = max((common_prefix(tokens, other) for other in lost), default=0)
                if n_lost > max((common_prefix(tokens, other) for other in stays), default=0):
                    self._remove(path)

    @contextlib.contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Hold the disk, and let nothing be written that was taken before."""
        with self._changed:
            self._wanted.clear()
        with self._disk:
            self._n_forgotten += 1
            yield

    # -- files --------------------------------------------------------------------------------------------------

    def _home(self, fingerprint: str) -> Path:
        return self.folder / fingerprint[:16]

    def _of(self, fingerprint: str) -> Iterator[tuple[Path, list[int]]]:
        """Yield the snapshots for an engine, and their tokens; other processes write and remove some too."""
        for path in self._home(fingerprint).glob(f"*{_SUFFIX}"):
            tokens = self._known.get(path)
            if tokens is None:
                tokens = read_tokens(path, fingerprint)
                if tokens is None:
                    self._remove(path)
                    continue
                self._known[path] = tokens
            yield path, tokens

    def _remove(self, path: Path) -> None:
        self._known.pop(path, None)
        with contextlib.suppress(OSError):
            path.unlink()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._wanted:
                    if not self._changed.wait(_IDLE_SECONDS) and not self._wanted:
                        self._thread = None
                        return
                key, wanted = next(iter(self._wanted.items()))
                quiet = time.monotonic() - wanted.since
            if quiet < _QUIET_SECONDS or wanted.is_busy():
                time.sleep(_QUIET_SECONDS / 3)
                continue
            with self._changed:
                if self._wanted.get(key) is not wanted:
                    continue
                del self._wanted[key]
                self._writing = True
            # Whatever fails, such as an engine that was closed or a disk that is full: nothing depends on a snapshot.
            with contextlib.suppress(Exception):
                n_forgotten = self._n_forgotten
                cache = wanted.take()
                with self._disk:
                    if cache is not None and n_forgotten == self._n_forgotten:
                        self._write(cache)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _write(self, cache: CacheFile) -> None:
        tokens = list(cache.tokens)
        if len(tokens) < MIN_TOKENS or cache.state.nbytes > self.max_bytes:
            return
        home = self._home(cache.fingerprint)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = home / f"{hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]}{_SUFFIX}"
        shorter = [other for other, held in self._of(cache.fingerprint) if 0 < common_prefix(held, tokens) == len(held)]
        if path not in shorter:
            write_cache_file(path, cache)
        self._known[path] = tokens
        for other in shorter:
            if other != path:
                self._remove(other)
        self._stay_in_bounds()

    def _stay_in_bounds(self) -> None:
        left = self.max_bytes
        for info in self.entries():
            left -= info.n_bytes
            if left < 0:
                self._remove(info.path)
        for path in self.folder.glob("*/.*.tmp"):  # of processes that died while they wrote
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
