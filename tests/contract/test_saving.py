"""Sessions that are saved to a directory and loaded from there."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import llamanb
from llamanb import (
    ChatSession,
    KeywordRemover,
    LlamaCppEngine,
    PlainTextHistory,
    RoleNameStripper,
    SamplingParams,
    ScriptedEngine,
    TemplateHistory,
    TransformError,
    compose,
)
from llamanb.engine.base import Engine


def shout(text: str) -> str:
    return text.upper()


class Prefix:
    def __init__(self, text: str, times: int = 1, *, marks: tuple[str, ...] = ("!",)) -> None:
        self.text, self.times, self.marks = text, times, marks

    def __call__(self, typed: str) -> str:
        return self.text * self.times + typed + self.marks[0]


@pytest.fixture(params=["scripted", "llama.cpp"])
def make_engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., Engine]]:
    """Makes engines whose caches are empty."""
    made: list[Any] = []

    def make(**options: Any) -> Engine:
        if request.param == "scripted":
            made.append(ScriptedEngine(lambda asked: f"You said: {asked.messages[-1].text}", **options))
        else:
            made.append(LlamaCppEngine(**{"n_ctx": 512, "n_cells": 1024, **options}))
        engine: Engine = made[-1]
        return engine

    yield make
    for engine in made:
        engine.close()


def talk(session: ChatSession) -> ChatSession:
    session.send("Name a colour.", max_tokens=8)
    session.fork("side", at=1).send("Another one?", max_tokens=8)
    return session


@pytest.fixture
def saved(session: ChatSession, tmp_path: Path) -> Path:
    talk(session).save(tmp_path / "talk")
    return tmp_path / "talk"


# -- what is saved is what is loaded -----------------------------------------------------------------------------


def test_a_saved_session_goes_on_in_another_one(session: ChatSession, engine: Engine, saved: Path) -> None:
    loaded = ChatSession.load(saved, engine)
    assert loaded.to_dict() == session.to_dict()
    assert loaded.system == "Be brief."
    assert loaded.sampling == session.sampling
    answers = [one.send("And now?", max_tokens=8).text for one in (session, loaded)]
    assert answers[0] == answers[1]


def test_the_file_is_for_people_and_for_git(session: ChatSession, saved: Path) -> None:
    text = (saved / "session.json").read_text(encoding="utf-8")
    assert text.startswith('{\n  "schema": 1,\n  "sessions": {\n    "default": {')
    assert text.endswith("}\n")
    before = text.splitlines()
    session.branch("side").add_message("user", "Über ☕?")
    session.save(saved)
    after = (saved / "session.json").read_text(encoding="utf-8").splitlines()
    assert any("Über ☕?" in line for line in after)
    assert len([line for line in before if line not in after]) <= 3
    assert sorted(path.name for path in saved.iterdir()) == ["session.json"]


def test_what_belongs_to_the_cells_of_a_notebook_stays_there(session: ChatSession, tmp_path: Path) -> None:
    talk(session)
    session.history.cells["c1"] = [session.history.exchanges("main")[0].entry]
    session.history.note_maker("side", "c1", "1")
    session.save(tmp_path / "talk")
    loaded = ChatSession.load(tmp_path / "talk", session.engine)
    assert not loaded.history.cells
    assert loaded.history.branch("side").made_by is None
    assert loaded.messages == session.messages


def test_a_live_session_is_replaced_whole_or_not_at_all(session: ChatSession, engine: Engine, saved: Path) -> None:
    live = ChatSession(engine, system="Other.")
    live.send("Hello.", max_tokens=3)
    before = live.to_dict()
    path = saved / "session.json"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace('"tip": "', '"tip": "x', 1), encoding="utf-8")
    with pytest.raises(llamanb.HistoryFormatError, match=r"\$\.sessions\.default\.branches\[0\]"):
        live.load(saved)
    assert live.to_dict() == before
    path.write_text(whole, encoding="utf-8")
    with live.stream("Count.", max_tokens=3), pytest.raises(llamanb.SessionBusyError):
        live.load(saved)
    live.load(str(saved))
    assert live.to_dict() == session.to_dict()
    assert live.send("And now?", max_tokens=3).branch == "main"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("{", llamanb.HistoryFormatError, "session.json is not valid JSON"),
        ("[" * 100_000, llamanb.HistoryFormatError, "nested too deeply"),
        ("{}", llamanb.HistoryFormatError, r"\$\.schema"),
        ('{"schema": 1, "sessions": {}}', llamanb.HistoryFormatError, "a saved session is one, and here are 0"),
        ('{"schema": 99, "sessions": {}}', llamanb.SchemaVersionError, "update llamanb"),
        ("\udcff", llamanb.HistoryFormatError, "not text in UTF-8"),
    ],
)
def test_a_damaged_file_is_one_sentence_and_is_not_written_over(
    scripted_engine: ScriptedEngine, tmp_path: Path, text: str, error: type[Exception], says: str
) -> None:
    path = tmp_path / "session.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(error, match=says):
        ChatSession.load(tmp_path, scripted_engine)
    with pytest.raises((llamanb.InvalidArgumentError, llamanb.SchemaVersionError)):
        ChatSession(scripted_engine).save(tmp_path)
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")


def test_only_a_saved_session_or_an_empty_folder_is_written_to(session: ChatSession, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, says in (("notes", "a folder with other things in it"), ("file", "is a file")):
        with pytest.raises(llamanb.InvalidArgumentError, match=says):
            session.save(tmp_path / name)
    assert (tmp_path / "notes" / "todo.txt").read_text() == (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["todo.txt"]
    (tmp_path / "empty").mkdir()
    session.save(tmp_path / "empty")
    (tmp_path / "empty" / "readme.txt").write_text("mine")
    session.save(tmp_path / "empty", cache=True)
    session.save(tmp_path / "new" / "deep")
    assert (tmp_path / "empty" / "readme.txt").read_text() == "mine"
    with pytest.raises(TypeError, match="is a path, not a int"):
        session.save(3)  # type: ignore[arg-type]


def test_where_nothing_was_saved_it_says_so(session: ChatSession, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("{}")
    for name, says in (("a.ipynb", "a folder, and this a file"), ("none", "no such folder"), (".", "no session.json")):
        with pytest.raises(llamanb.InvalidArgumentError, match=says):
            session.load(tmp_path / name)


def test_a_closed_session_is_not_saved(session: ChatSession, tmp_path: Path) -> None:
    session.close()
    with pytest.raises(llamanb.SessionClosedError):
        session.save(tmp_path / "talk")
    assert not (tmp_path / "talk").exists()


# -- the cache ---------------------------------------------------------------------------------------------------


def test_with_its_cache_a_session_goes_on_without_prefill(make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    session = talk(ChatSession(make_engine(), system="Be brief.", sampling=SamplingParams(temperature=0.0)))
    session.save(tmp_path, cache=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = ChatSession.load(tmp_path, make_engine())
    n_tokens = loaded.n_tokens
    expected = session.send("And now?", max_tokens=8)
    reply = loaded.send("And now?", max_tokens=8)
    assert reply.usage.n_cached >= n_tokens - 1
    assert reply.text == expected.text
    session.save(tmp_path, cache=True)
    assert len(list(tmp_path.glob("cache-*.bin"))) == 1
    session.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["session.json"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [_cut, _flip, lambda path: path.write_bytes(b""), lambda path: path.write_text("[1]")]
)
def test_a_damaged_cache_is_not_used_and_that_is_said(
    make_engine: Callable[..., Engine], tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    session = talk(ChatSession(make_engine(), sampling=SamplingParams(temperature=0.0)))
    session.save(tmp_path, cache=True)
    (cache,) = tmp_path.glob("cache-*.bin")
    damage(cache)
    with pytest.warns(UserWarning, match=rf"damaged, or of another .* {session.n_tokens} tokens .* instead") as caught:
        loaded = ChatSession.load(tmp_path, make_engine())
    assert caught[0].filename == __file__
    reply = loaded.send("And now?", max_tokens=8)
    assert reply.usage.n_cached >= session.n_tokens - 1
    assert reply.text == session.send("And now?", max_tokens=8).text


def test_the_cache_of_other_settings_is_not_used(tmp_path: Path) -> None:
    with (
        LlamaCppEngine(n_ctx=512, n_cells=512) as one,
        LlamaCppEngine(n_ctx=512, n_cells=512, deterministic=False) as two,
    ):
        session = ChatSession(one)
        session.add_message("user", "Name a colour.")
        session.save(tmp_path, cache=True)
        with pytest.warns(UserWarning, match="of another model or other settings"):
            ChatSession.load(tmp_path, two)


def test_a_session_that_is_too_long_for_the_engine_can_still_be_read(tmp_path: Path) -> None:
    with ScriptedEngine(["Hi."]) as large, ScriptedEngine([], n_ctx=64) as small:
        session = ChatSession(large)
        session.add_message("user", "word " * 100)
        session.save(tmp_path, cache=True)
        with pytest.warns(UserWarning, match="cannot be evaluated: The prompt has"):
            loaded = ChatSession.load(tmp_path, small)
        assert loaded.messages == session.messages


def test_a_cache_cannot_be_saved_for_a_path_that_does_not_fit(session: ChatSession, tmp_path: Path) -> None:
    session.add_message("user", "word " * 5000)
    with pytest.raises(llamanb.ContextWindowExceededError):
        session.save(tmp_path / "talk", cache=True)
    assert not (tmp_path / "talk").exists()


# -- transforms --------------------------------------------------------------------------------------------------


def test_transforms_are_saved_by_name_and_parameters(session: ChatSession, tmp_path: Path) -> None:
    session.input_transforms = [shout, str.strip, textwrap.dedent, Prefix("> ", 2, marks=("?", "!"))]
    session.output_transform = compose(KeywordRemover(["x"], drop_window=True), RoleNameStripper())
    session.history_transform = PlainTextHistory(assistant="Bot")
    session.save(tmp_path / "talk")
    stored = json.loads((tmp_path / "talk" / "session.json").read_text())["sessions"]["default"]["transforms"]
    assert stored["input"] == [
        {"import": f"{__name__}:shout"},
        {"import": "builtins:str.strip"},
        {"import": "textwrap:dedent"},
        {"import": f"{__name__}:Prefix", "parameters": {"text": "> ", "times": 2, "marks": ["?", "!"]}},
    ]
    assert stored["history"] == {"import": "llamanb.transforms:PlainTextHistory", "parameters": {"assistant": "Bot"}}
    loaded = ChatSession.load(tmp_path / "talk", session.engine, transforms=["textwrap"])
    assert loaded.input_transforms[:3] == [shout, str.strip, textwrap.dedent]
    assert loaded.input_transforms[3]("a") == "> > a?"
    session.send(" Name a colour. ", max_tokens=4)
    loaded.send(" Name a colour. ", max_tokens=4)
    assert loaded.messages == session.messages
    assert loaded.render_preface() == session.render_preface()
    assert "transforms" not in session.to_dict()


@pytest.mark.parametrize(
    "history", [PlainTextHistory(instruct=True), TemplateHistory("{{ messages }}", bos="<s>", stop=["x"])]
)
def test_history_transforms_come_back_as_they_were(session: ChatSession, tmp_path: Path, history: Any) -> None:
    session.with_history_transform(history).save(tmp_path)
    loaded: Any = ChatSession.load(tmp_path, session.engine).history_transform
    assert type(loaded) is type(history)
    assert loaded.stop == history.stop
    assert loaded.to_text([llamanb.Message.create("user", "a")]) == history.to_text(
        [llamanb.Message.create("user", "a")]
    )


class Forgetful:
    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, text: str) -> str:
        return text


class Odd:
    def __init__(self, table: object) -> None:
        self.table = table

    def __call__(self, text: str) -> str:
        return text


def _inner() -> Callable[[str], str]:
    def inside(text: str) -> str:
        return text

    return inside


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda text: text, "a lambda has no name"),
        (_inner(), "stands inside a function"),
        (partial(str.replace, "a"), "a function of its own, or a class"),
        (Prefix("x").__call__, "nothing of that name"),
        ("x".join, "nothing of that name"),
        (Forgetful("x"), "parameter 'text', and has no attribute of that name"),
        (Odd(object()), "parameter 'table', a object cannot be stored as JSON"),
    ],
)
def test_a_transform_that_could_not_be_found_again_is_refused_at_save(
    scripted_engine: ScriptedEngine, tmp_path: Path, transform: Any, says: str
) -> None:
    session = ChatSession(scripted_engine).with_input_transform(transform)
    with pytest.raises(TransformError, match=says):
        session.save(tmp_path / "talk")
    assert not (tmp_path / "talk").exists()


def stored_with(tmp_path: Path, engine: Engine, **transforms: Any) -> Path:
    """Save a session whose file names these transforms."""
    ChatSession(engine).save(tmp_path / "talk")
    path = tmp_path / "talk" / "session.json"
    stored = json.loads(path.read_text())
    stored["sessions"]["default"]["transforms"] = transforms
    path.write_text(json.dumps(stored))
    return tmp_path / "talk"


def test_nothing_is_imported_that_was_not_imported_or_listed(
    scripted_engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_shapes.py").write_text("def low(text):\n    return text.lower()\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = stored_with(tmp_path, scripted_engine, input=[{"import": "my_shapes:low"}])
    with pytest.raises(
        TransformError, match=r"'my_shapes:low' cannot be used: .* transforms=\['my_shapes'\]; .*=False"
    ):
        ChatSession.load(path, scripted_engine)
    assert "my_shapes" not in sys.modules
    live = ChatSession(scripted_engine).with_input_transform(shout)
    live.load(path, transforms=False)
    assert live.input_transforms == [shout]
    assert not ChatSession.load(path, scripted_engine, transforms=False).input_transforms
    live.load(path, transforms=["my_shapes"])
    assert live.input_transforms[0]("A") == "a"
    with pytest.raises(TransformError, match="'my_shapes:low' cannot be used"):  # another module's code imported it
        ChatSession.load(path, scripted_engine)
    import my_shapes  # type: ignore[import-not-found]  # noqa: F401  (what is imported where load is called is known)

    assert ChatSession.load(path, scripted_engine).input_transforms[0]("A") == "a"
    monkeypatch.delitem(sys.modules, "my_shapes")


@pytest.mark.parametrize(
    "place",
    ["os:system", "builtins:eval", "builtins:exec", "subprocess:Popen", "llamanb.models:find_model", "pytest:main",
     "__main__:__builtins__.eval", "__main__:__loader__", "importlib:import_module", "llamanb.transforms:sys.exit"],
)  # fmt: skip
def test_a_file_cannot_name_what_is_no_transform_of_the_users(
    scripted_engine: ScriptedEngine, tmp_path: Path, place: str
) -> None:

    path = stored_with(tmp_path, scripted_engine, input=[{"import": place}])
    with pytest.raises(TransformError, match="cannot be used"):
        ChatSession.load(path, scripted_engine)


@pytest.mark.parametrize(
    ("transforms", "error", "says"),
    [
        ({"input": [{"import": f"{__name__}:gone"}]}, TransformError, "there is no gone in"),
        ({"input": [{"import": "__main__:gone"}]}, TransformError, "define gone here first"),
        ({"output": {"import": f"{__name__}:Prefix", "parameters": {"no": 1}}}, TransformError, "making it failed"),
        ({"history": {"import": f"{__name__}:Prefix", "parameters": {"text": ""}}}, TransformError, "no history"),
        ({"input": {"import": "a:b"}}, llamanb.HistoryFormatError, r"\$.transforms.input: it must be a list"),
        ({"output": "a:b"}, llamanb.HistoryFormatError, r"\$.transforms.output.import: it must be the name"),
        ({"output": {"import": "a.b"}}, llamanb.HistoryFormatError, r"\$.transforms.output.import: it must be"),
        (
            {"input": [{"import": f"{__name__}:shout", "parameters": {"a": 1}}]},
            llamanb.HistoryFormatError,
            r"input\[0\].parameters: a function has none",
        ),
    ],
)
def test_saved_transforms_that_are_wrong_are_one_sentence(
    scripted_engine: ScriptedEngine, tmp_path: Path, transforms: Any, error: type[Exception], says: str
) -> None:
    path = stored_with(tmp_path, scripted_engine, **transforms)
    live = ChatSession(scripted_engine, system="Other.")
    before = live.to_dict()
    with pytest.raises(error, match=says):
        live.load(path, transforms=[__name__])
    assert live.to_dict() == before
    assert ChatSession.load(path, scripted_engine, transforms=False).messages == []


def test_what_a_notebook_defines_is_looked_up_in_the_notebook(
    scripted_engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    source = "def quiet(text):\n    return text.lower()\n"
    exec(source, notebook.__dict__)
    session = ChatSession(scripted_engine).with_input_transform(notebook.quiet)
    exec(source, notebook.__dict__)  # its cell runs again
    session.save(tmp_path / "talk")
    assert '"__main__:quiet"' in (tmp_path / "talk" / "session.json").read_text()
    assert ChatSession.load(tmp_path / "talk", scripted_engine).input_transforms == [notebook.quiet]
    del notebook.quiet
    with pytest.raises(TransformError, match="define quiet here first"):
        ChatSession.load(tmp_path / "talk", scripted_engine)


def test_transforms_is_a_list_of_names(scripted_engine: ScriptedEngine, tmp_path: Path) -> None:
    path = stored_with(tmp_path, scripted_engine)
    with pytest.raises(TypeError, match="a list of names of modules, not a str"):
        ChatSession.load(path, scripted_engine, transforms="textwrap")


def test_what_a_process_that_died_left_behind_is_in_nobodys_way(session: ChatSession, tmp_path: Path) -> None:
    names = [".session.json.0011aabb.tmp", ".cache-0123456789abcdef.bin.0011aabb.tmp"]
    for name in names:
        (tmp_path / name).write_text("{")
    session.save(tmp_path)  # the process that writes them may be alive
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "session.json"])
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    session.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["session.json"]
