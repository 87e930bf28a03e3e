"""Tab offers what can stand at a place, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

import llamanb


@pytest.fixture
def offered(notebook: Any) -> Any:
    notebook.run("my_schema = {}\nmy_number = 3\nimport json\n_hidden = 1")
    notebook.run("%%chat\none", "a")
    notebook.session.fork("side")
    notebook.session.fork("sweet pea")
    notebook.session.fork("été")
    engine = llamanb.ScriptedEngine(["x"])
    other = llamanb.runtime.get_runtime().sessions["other"] = llamanb.ChatSession(engine)
    other.fork("elsewhere")

    def offer(text: str) -> list[str]:
        with provisionalcompleter():
            found = list(notebook.shell.Completer.completions(text, len(text)))
        assert len({completion.start for completion in found}) <= 1
        return [text[: found[0].start] + completion.text for completion in found] if found else []

    return offer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%%chat -b ", ["main", "side", "'sweet pea'", "été"]),
        ("%%chat -b sw", ["'sweet pea'"]),
        ("%%chat -b é", ["été"]),
        ("%%chat -t 0 --branch si", ["side"]),
        ("%%chat --branch=si", ["side"]),
        ("%%chat -s 'other' -b e", ["elsewhere"]),
        ("%%chat --at m", ["main"]),
        ("%%chat -s o", ["other"]),
        ("%%chat -s other -b ", ["main", "elsewhere"]),
        ("%%chat --json-schema my_", ["my_number", "my_schema"]),
        ("%%chat -f ", ["md", "text", "json", "code"]),
        ("%%chat --max", ["--max-tokens"]),
        ("%%chat --fork ", []),
        ("%%chat -t ", []),
        ("%%chat\nimpo", []),
        ("%%chat\nTell me about {my_n", ["my_number"]),
        ("%%chat\nTell me about {my_number} and my_", []),
        ("%chat -b si", ["side"]),
        ("%chat imp", []),
        ("%chat_switch s", ["side", "'sweet pea'"]),
        ("%chat_adopt si", ["side"]),
        ("%chat_rewind ", ["--branch", "--help", "--session"]),
        ("%chat_regenerate --te", ["--temperature"]),
        ("%chat_config temp", ["temperature="]),
        ("%chat_config top_p=1 max", ["max_tokens="]),
        ("%chat_fork --p", ["--prompt"]),
        ("x = 1\n%chat_switch m", ["main"]),
    ],
)
def test_what_is_offered(offered: Any, text: str, expected: list[str]) -> None:
    cut = max(text.rfind(mark) for mark in (" ", "=", "{", "\n") if mark in text) + 1
    if text.startswith("%chat_config"):
        cut = text.rfind(" ") + 1
    assert offered(text) == [text[:cut] + word for word in expected]


@pytest.mark.parametrize("text", ["%%chat -b 'sw", "%%chat -b 'sweet p", '%%chat -b "sweet ', "%chat_switch 'sweet"])
def test_a_name_in_an_open_quote_is_completed_with_its_quotes(offered: Any, text: str) -> None:
    start = max(text.find(mark) for mark in "'\"")
    assert offered(text) == [f"{text[:start]}{text[start]}sweet pea{text[start]}"]


def test_every_option_of_the_help_is_offered(offered: Any) -> None:
    words = {word.split()[-1] for word in offered("%%chat --")}
    shown = {word.strip(",") for word in llamanb.magics.arguments.CHAT_HELP.split() if word.startswith("--")}
    assert shown - {"--"} <= words


def test_models_are_files(offered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").touch()
    (tmp_path / "notes.txt").touch()
    assert offered("%%chat -m ") == ["%%chat -m models/"]
    assert offered("%%chat -m models/") == ["%%chat -m models/a.gguf"]
    assert offered("%chat_save mod") == ["%chat_save models/"]
    assert offered("%chat_save models/") == []


def test_other_code_is_completed_as_always(offered: Any) -> None:
    assert "my_number" in offered("my_n")
    assert "%%chat" in offered("%%cha")
