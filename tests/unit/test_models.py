"""Finding models, their fingerprints, and headers that are damaged in every way a file can be."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamanb.errors import ModelLoadError, ModelNotFoundError
from llamanb.models import EMBEDDED, check_header, fingerprint, read_header, resolve

MIB = 1024 * 1024
Q = struct.Struct("<Q")


def text(value: str) -> bytes:
    return Q.pack(len(value.encode())) + value.encode()


def value(item: Any) -> bytes:
    if isinstance(item, bool):
        return struct.pack("<IB", 7, item)
    if isinstance(item, int):
        return struct.pack("<Iq", 11, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + text(item)
    if item and isinstance(item[0], str):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
    return struct.pack("<IIQ", 9, 4, len(item)) + struct.pack(f"<{len(item)}I", *item)


def gguf(keys: dict[str, Any], *, version: int = 3, n_tensors: int = 0, magic: bytes = b"GGUF") -> bytes:
    body = b"".join(text(key) + value(item) for key, item in keys.items())
    return magic + struct.pack("<IQQ", version, n_tensors, len(keys)) + body


SOUND: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "A model é",
    "llama.block_count": 4,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": ["<s>", "</s>", "é"],
    "tokenizer.ggml.token_type": [3, 3, 1],
    "tokenizer.ggml.add_bos_token": True,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some model.gguf"


def test_the_default_model_is_found_by_none_and_by_its_name_in_any_case() -> None:
    found = resolve()
    assert found.name == EMBEDDED
    assert found.path.is_file()
    assert resolve(EMBEDDED) == resolve(EMBEDDED.upper()) == found


def test_the_default_model_has_a_sound_header() -> None:
    header = check_header(resolve().path)
    assert header["general.architecture"] == "llama"
    assert header["llama.block_count"] == 30
    assert header["tokenizer.ggml.tokens"] == 49152


def test_a_model_file_is_found_by_its_path_and_named_after_it(file: Path) -> None:
    file.write_bytes(gguf(SOUND))
    for path in (file, str(file)):
        assert resolve(path).path == file
        assert resolve(path).name == "some model"


def test_a_name_that_is_nearly_that_of_the_default_model_is_told_so() -> None:
    with pytest.raises(ModelNotFoundError, match=f"Did you mean '{EMBEDDED}'"):
        resolve("SmolLM2-135M")


@pytest.mark.parametrize("name", ["/no/such/model.gguf", "zzz", ""])
def test_what_is_no_file_is_not_found(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve(name)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="folder"):
        resolve(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 4 * MIB, 4 * MIB + 1, 9 * MIB + 7])
def test_the_fingerprint_is_made_as_the_design_says(file: Path, size: int) -> None:
    content = os.urandom(size)
    file.write_bytes(content)
    digest = hashlib.sha256(str(size).encode() + content[: 4 * MIB] + content[max(0, size - 4 * MIB) :])
    for i in range(16):
        digest.update(content[size * i // 16 :][: 64 * 1024])
    assert fingerprint(file) == digest.hexdigest()


def test_the_fingerprint_tells_files_apart_and_not_their_names(file: Path) -> None:
    content = bytearray(9 * MIB)
    file.write_bytes(content)
    first = fingerprint(file)
    twin = file.with_name("twin")
    twin.write_bytes(content)
    assert fingerprint(twin) == first
    for place in (0, 4 * MIB - 1, len(content) * 8 // 16, len(content) - 1):
        content[place] ^= 1
        file.write_bytes(content)
        assert fingerprint(file) != first
        content[place] ^= 1
    file.write_bytes(content + b"\0")
    assert fingerprint(file) != first


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_is_read_with_lists_as_their_lengths(file: Path, version: int) -> None:
    file.write_bytes(gguf(SOUND, version=version))
    assert check_header(file) == {**SOUND, "tokenizer.ggml.tokens": 3, "tokenizer.ggml.token_type": 3}


def test_every_type_of_number_is_read(file: Path) -> None:
    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    body = b"".join(text(form) + struct.pack(f"<I{form}", kind, 1) for kind, form in forms.items())
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(forms)) + body)
    assert read_header(file) == dict.fromkeys(forms.values(), 1)


def test_a_header_that_ends_anywhere_too_soon_is_refused(file: Path) -> None:
    whole = gguf(SOUND)
    for n in range(len(whole)):
        file.write_bytes(whole[:n])
        with pytest.raises(ModelLoadError, match="some model"):
            read_header(file)
    file.write_bytes(whole)
    assert len(read_header(file)) == len(SOUND)


@given(place=st.integers(4, len(gguf(SOUND)) - 1), byte=st.integers(0, 255), more=st.binary(max_size=4))
@settings(max_examples=300, deadline=None)
def test_a_damaged_header_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, more: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.gguf"
    damaged = bytearray(gguf(SOUND))
    damaged[place : place + 1 + len(more)] = bytes([byte]) + more
    file.write_bytes(damaged)
    try:
        header = check_header(file)
    except ModelLoadError:
        return
    assert isinstance(header["general.architecture"], str)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a GGUF"),
        (b"GGU", "not a GGUF"),
        (gguf(SOUND, magic=b"GGML"), "not a GGUF"),
        (b"<!doctype html>", "not a GGUF"),
        (gguf(SOUND, version=1), "version 1"),
        (gguf(SOUND, version=3 << 24), "version"),
        (gguf(SOUND, n_tensors=2**40), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + Q.pack(2**63), "claims a text"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 13), "unknown type 13"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 2**62), "claims a list"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "unknown type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 2**64 - 1), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 12, 30) + bytes(80), "truncated"),
    ],
)
def test_a_damaged_header_is_refused_with_its_problem(file: Path, content: bytes, problem: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ModelLoadError, match=problem):
        read_header(file)


@pytest.mark.parametrize(
    "change",
    [
        {"general.architecture": 3},
        {"general.architecture": ""},
        {"llama.block_count": 0},
        {"llama.block_count": -1},
        {"llama.block_count": 513},
        {"llama.block_count": "many"},
        {"llama.block_count": 4.0},
        {"llama.block_count": True},
        {"llama.context_length": 2**31},
        {"llama.embedding_length": 0},
        {"llama.feed_forward_length": 2**40},
        {"llama.attention.head_count": 0},
        {"llama.attention.head_count_kv": 3},
        {"llama.attention.head_count": 128},
        {"llama.attention.key_length": 0},
        {"llama.rope.dimension_count": -2},
        {"llama.expert_count": 2**20},
        {"llama.vocab_size": 2**30},
    ],
)
def test_numbers_that_would_abort_the_process_are_refused(file: Path, change: dict[str, Any]) -> None:
    file.write_bytes(gguf(SOUND | change))
    with pytest.raises(ModelLoadError):
        check_header(file)


def test_a_header_that_names_no_architecture_is_refused(file: Path) -> None:
    file.write_bytes(gguf({"general.name": "x"}))
    with pytest.raises(ModelLoadError, match="what kind of model"):
        check_header(file)


def test_a_number_for_each_layer_is_let_through(file: Path) -> None:
    file.write_bytes(gguf(SOUND | {"llama.attention.head_count_kv": [2, 2, 4]}))
    assert check_header(file)["llama.attention.head_count_kv"] == 3


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_header(tmp_path)
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_header(tmp_path / "gone.gguf")
