"""Commands that change the conversation, and the settings."""

from __future__ import annotations

import builtins
import dataclasses
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell, new_notebook, new_output
from traitlets.config import Config

import llamanb
from llamanb import runtime
from llamanb.persistence.notebook import fold_outputs
from llamanb.persistence.schema import Document, dump_history, load_history
from llamanb.settings import PER_ANSWER, ChatConfig
from llamanb.snapshots import SnapshotInfo, Snapshots


def test_another_answer_stands_beside_the_old_one_and_the_cell_owns_it(seeded: Any) -> None:
    seeded.run("%%chat --seed 5\none", "a")
    outcome = seeded.run("%chat_regenerate --seed 5 -o again", "r")
    assert outcome.success
    again = seeded.shell.user_ns["again"]
    assert outcome.outputs[0].data["text/plain"] == again.text == "one by 6"
    history = seeded.session.history
    assert [m.text for m in history.siblings(again.messages[-1].id)] == ["one by 5", "one by 6"]
    assert [entry.last for entry in history.cells["a"]] == [again.messages[-1].id]
    assert "r" not in history.cells
    assert not history.stale
    seeded.run("%%chat --seed 5\nother", "a")
    assert seeded.texts() == ["other"]


def test_outputs_alone_rebuild_a_regenerated_answer(seeded: Any) -> None:
    cells = {"a": "%%chat\none", "b": "%chat_regenerate", "c": "%%chat\ntwo"}
    document = new_notebook()
    for cell, source in cells.items():
        (output,) = seeded.run(source, cell).outputs
        shown = new_output("display_data", output.data, metadata=output.metadata)
        document.cells.append(new_code_cell(source, id=cell, outputs=[shown]))
    folded = Document()
    fold_outputs(document, folded)
    rebuilt, live = load_history(folded.sessions["default"]), seeded.session.history
    assert set(rebuilt.messages) == set(live.messages)
    assert rebuilt.tip("main") == live.tip("main")


def test_running_all_cells_again_gives_the_same_other_answers(seeded: Any) -> None:
    cells = {"a": "%%chat -n 2 --seed 5\none", "b": "%chat_regenerate", "c": "%chat_regenerate", "d": "%%chat\ntwo"}
    for cell, source in cells.items():
        seeded.run(source, cell)
    before = seeded.session.to_dict()
    answer = next(m.text for m in seeded.session.messages if m.role == "assistant")
    for _ in range(2):
        for cell, source in cells.items():
            assert seeded.run(source, cell).success
        assert seeded.session.to_dict() == before
        assert next(m.text for m in seeded.session.messages if m.role == "assistant") == answer
    assert load_history(before).remade == seeded.session.history.remade
    seeded.run("%chat_rewind")
    seeded.run("%chat_regenerate", "c")  # what it gave stands there: a person who asks again wants another one
    assert seeded.session.messages[-1].text not in [m["content"] for m in before["messages"].values()]


def test_rewinding_takes_exchanges_off_and_marks_their_cells(seeded: Any) -> None:
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        seeded.run(f"%%chat\n{text}", cell)
    outcome = seeded.run("%chat_rewind 2")
    assert "after the assistant message 'one by" in outcome.text
    assert seeded.texts() == ["one"]
    assert seeded.session.history.stale == {"b", "c"}
    seeded.run("%%chat\ntwo", "b")
    assert seeded.session.history.stale == {"c"}
    for wrong in ("0", "-1", "x", "1.5"):
        assert "not a number of exchanges" in seeded.run(f"%chat_rewind {wrong}").error
    assert "has 2 exchanges" in seeded.run("%chat_rewind 3").error


def test_adopting_goes_on_from_where_another_branch_ends(seeded: Any) -> None:
    seeded.run("%%chat\none", "a")
    seeded.run("%%chat --fork side --at 0\ntwo", "b")
    outcome = seeded.run("%chat_adopt side")
    assert "Branch 'main' ends after the assistant message 'two by" in outcome.text
    assert seeded.texts() == ["two"]
    assert seeded.session.history.stale == {"a"}
    seeded.run("%%chat\nthree", "c")
    assert seeded.texts("side") == ["two"]
    assert "no branch 'nowhere'" in seeded.run("%chat_adopt nowhere").error


def test_resetting_begins_again_and_loses_nothing(seeded: Any) -> None:
    for cell, text in (("a", "one"), ("b", "two")):
        seeded.run(f"%%chat\n{text}", cell)
    before = set(seeded.session.history.messages)
    assert seeded.run("%chat_reset").success
    assert [m.role for m in seeded.session.messages] == ["system"]
    assert set(seeded.session.history.messages) == before
    assert seeded.session.history.stale == {"a", "b"}
    seeded.run("%%chat\none", "a")
    assert seeded.texts() == ["one"]


def test_pruning_says_how_many_asks_and_clears_outputs(seeded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers = iter(["n", "y"])
    monkeypatch.setattr(builtins, "input", lambda question: asked.append(question) or next(answers))
    seeded.run("%%chat -n 3\nsecret", "a", watched=True)
    seeded.run("%%chat\nwhisper", "b", watched=True)
    seeded.run("%chat_rewind")
    before = seeded.session.to_dict()
    refused = seeded.run("%chat_prune", watched=True)
    assert refused.text == "Nothing was removed.\n"
    assert seeded.session.to_dict() == before
    pruned = seeded.run("%chat_prune", watched=True)
    assert asked == ["Remove 4 messages for good? [y/N] "] * 2
    assert pruned.text == "Removed 4 messages.\n"
    several, single = pruned.outputs
    kept = seeded.session.messages[-1]
    assert several.data["text/plain"] == f"1 (goes on):\n{kept.text}"
    assert [m["id"] for m in several.metadata["llamanb"]["messages"]][-1] == kept.id
    assert single.data["text/plain"] == "(removed)"
    assert single.metadata == {}
    assert "nothing to remove" in seeded.run("%chat_prune").text
    assert "secret" not in str(seeded.session.to_dict()["cells"])


def test_where_nobody_can_be_asked_pruning_needs_a_yes(seeded: Any) -> None:
    seeded.run("%%chat\none", "a")
    seeded.run("%chat_rewind")
    outcome = seeded.run("%chat_prune")
    assert not outcome.success
    assert outcome.error == "Remove 2 messages for good? Nobody can be asked here; say yes with -y."
    assert seeded.run("%chat_prune -y").text == "Removed 2 messages.\n"


def test_resetting_all_removes_everything_but_the_system_prompt(seeded: Any) -> None:
    seeded.run("%%chat\none", "a")
    seeded.run("%%chat --fork side\ntwo", "b")
    assert not seeded.run("%chat_reset --all").success
    outcome = seeded.run("%chat_reset --all -y")
    assert "Removed 5 messages." in outcome.text
    assert [output.data["text/plain"] for output in outcome.outputs] == ["(removed)", "(removed)"]
    assert list(seeded.session.branches) == ["main"]
    assert [m.text for m in seeded.session.messages] == ["Be brief."]
    assert not seeded.session.history.cells
    assert seeded.run("%%chat\none", "a").success


def test_the_last_answers_are_shown_again_and_carry_nothing(seeded: Any) -> None:
    seeded.run("%%chat\none", "a")
    first = seeded.run("%%chat --fork x,y\ntwo", "b")
    (again,) = seeded.run("%chat_show").outputs
    assert again.data == first.outputs[0].data
    assert again.metadata == {}
    (of_branch,) = seeded.run("%chat_show main").outputs
    assert of_branch.data["text/plain"].startswith("one by")


def test_what_was_pruned_is_not_shown_again(seeded: Any) -> None:
    seeded.run("%%chat\none", "a")
    seeded.run("%%chat\ntwo", "b")
    seeded.run("%chat_rewind")
    assert seeded.run("%chat_prune -y").success
    assert seeded.run("%chat_show").outputs[0].data["text/plain"].startswith("one by ")
    assert seeded.run("%chat_reset --all -y").success
    assert seeded.run("%chat_show").outputs[0].data["text/plain"] == "(no answers yet)"


@pytest.mark.parametrize("view", ["%chat_show", "%chat_show main", "%chat_history", "%chat_tree", "%chat_context"])
def test_pruning_reaches_whatever_shows_what_was_said(seeded: Any, view: str) -> None:
    seeded.run("%%chat\nsecret", "a")
    (shown,) = seeded.run(view, "b").outputs
    assert "secret" in shown.data["text/plain"]
    seeded.run("%chat_rewind")
    redrawn = seeded.run("%chat_prune -y").outputs
    assert [output.data["text/plain"] for output in redrawn] == ["(removed)"] * 2


@pytest.mark.parametrize("command", ["%chat_rewind\n%chat_prune -y", "%chat_reset --all -y"])
def test_a_cell_that_prunes_what_it_said_owns_what_it_says_next(seeded: Any, command: str) -> None:
    assert seeded.run(f"%chat one\n{command}\n%chat two", "a").success
    (entry,) = seeded.session.history.cells["a"]
    assert seeded.session.history.messages[entry.first].text == "two"
    load_history(dump_history(seeded.session.history))
    assert seeded.run(f"%chat one\n{command}", "a").success
    assert "a" not in seeded.session.history.cells
    assert seeded.texts() == []


def test_a_cell_that_answers_again_owns_the_new_answer_and_what_it_says_next(seeded: Any) -> None:
    source = "%chat one\n%chat_regenerate\n%chat two"
    assert seeded.run(source, "a").success
    (entry,) = seeded.session.history.cells["a"]
    path = seeded.session.messages
    assert (entry.first, entry.last) == (path[1].id, path[-1].id)
    assert seeded.run(source, "a").success
    assert seeded.texts() == ["one", "two"]


def test_after_pruning_an_output_claims_no_answer_that_the_branch_does_not_go_on_from(seeded: Any) -> None:
    seeded.run("%%chat -n 3 --seed 1\none", "a")
    second = seeded.session.history.siblings(seeded.session.messages[-1].id)[1]
    assert seeded.run(f"%%chat --fork side --at {second.id}\ntwo", "b").success
    seeded.run("%chat_rewind")
    (shown, *_) = seeded.run("%chat_prune -y").outputs
    assert shown.data["text/plain"] == "2:\none by 2"
    assert "branch" not in shown.metadata["llamanb"]


def test_settings_are_listed_shown_changed_and_put_back(seeded: Any) -> None:
    listed = seeded.run("%chat_config").text
    for field in dataclasses.fields(llamanb.SamplingParams):
        assert (field.name in listed) == (field.name not in PER_ANSWER)
    changed = seeded.run("%chat_config temperature=0 max_tokens=7 persist=off")
    assert changed.text.splitlines() == [
        "temperature        0  *",
        "max_tokens         7  *",
        "persist            False  *",
    ]
    assert seeded.session.sampling == llamanb.SamplingParams(temperature=0, max_tokens=7)
    assert "SamplingParams" in seeded.run("%chat_config temperature").text
    seeded.run("%chat_config temperature --default")
    assert seeded.session.sampling == llamanb.SamplingParams(max_tokens=7)
    seeded.run("%chat_config --default")
    assert "  *" not in seeded.run("%chat_config").text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("temprature=1", "Did you mean 'temperature'?"),
        ("temperature=hot", "temperature must be a number"),
        ("top_p=3", "top_p is 3; it must be"),
        ("persist=maybe", "persist cannot be 'maybe'"),
        ("n_ctx=0", "n_ctx cannot be '0'"),
        ("deterministic=3", "deterministic cannot be '3'"),
        ("temperature = 1", "without spaces around the sign"),
        ('stop=["a", 5]', "stop"),
        ("max_tokens=5 top_p=3", "top_p is 3; it must be"),
    ],
)
def test_a_setting_that_is_wrong_is_one_sentence_and_nothing_changes(seeded: Any, line: str, says: str) -> None:
    before = seeded.run("%chat_config").text
    outcome = seeded.run(f"%chat_config {line}")
    assert not outcome.success
    assert says in outcome.error
    assert seeded.run("%chat_config").text == before


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ('stop=["a", "b c"]', "stop", ("a", "b c")),
        ("stop=###", "stop", ("###",)),
        ("system=3", "system", "3"),
        ("system='Be nice.'", "system", "Be nice."),
        ("system=None", "system", None),
        ("temperature='0.2'", "temperature", 0.2),
        ("persist='off'", "persist", False),
    ],
)
def test_a_setting_is_read_as_it_is_meant(seeded: Any, line: str, name: str, value: Any) -> None:
    assert seeded.run(f"%chat_config {line}").success
    assert getattr(runtime.get_runtime().settings, name) == value


def test_the_configuration_of_ipython_reaches_new_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_runtime", None)
    InteractiveShell.clear_instance()
    config = Config({"ChatConfig": {"temperature": 0.25, "system": "Be kind.", "n_ctx": 512}})
    shell = InteractiveShell.instance(config=config)
    try:
        shell.run_line_magic("load_ext", "llamanb")
        session = llamanb.active_session()
        assert session.sampling == llamanb.SamplingParams(temperature=0.25)
        assert session.system == "Be kind."
        assert session.engine.n_ctx == 512
        session.engine.close()
    finally:
        InteractiveShell.clear_instance()


def test_without_persistence_outputs_and_file_carry_nothing(seeded: Any) -> None:
    seeded.run("%chat_config persist=off")
    (output,) = seeded.run("%%chat\none", "a").outputs
    assert output.metadata == {}
    assert seeded.run("%chat_regenerate", "b").outputs[0].metadata == {}
    assert runtime.get_runtime().export() == "{}"
    seeded.run("%chat_config persist=on")
    assert "llamanb" in seeded.run("%%chat\none", "a").outputs[0].metadata


def test_every_setting_of_the_sampling_is_a_field(seeded: Any) -> None:
    assert ChatConfig().sampling() == llamanb.SamplingParams()


def test_another_notebooks_conversation_is_taken_in_and_nothing_here_is_lost(seeded: Any, tmp_path: Path) -> None:
    seeded.run("%%chat\nhere", "a")
    other = llamanb.ChatSession(llamanb.ScriptedEngine(["there"]), system="Be brief.")
    other.send("elsewhere")
    other.fork("side")
    other.history.cells["a"] = [other.history.exchanges("main")[0].entry]
    stored = {"schema": 1, "sessions": {"default": other.to_dict(), "second": other.to_dict()}}
    nbformat.write(new_notebook(metadata={"llamanb": stored}), tmp_path / "other.ipynb")
    loaded = seeded.run(f"%chat_load '{tmp_path / 'other.ipynb'}'")
    assert loaded.success, loaded.error
    assert loaded.text.splitlines() == [
        "Session 'default' has 5 messages on 3 branches now: main, side, main@2.",
        "Session 'second' has 3 messages on 2 branches now: main, side.",
    ]
    assert seeded.texts() == ["here"]
    assert seeded.texts("main@2") == ["elsewhere"]
    assert list(seeded.session.history.cells) == ["a"]
    runtime.get_runtime().engine = lambda model=None: other.engine  # type: ignore[method-assign]
    assert "elsewhere" in seeded.run("%chat_history -s second").outputs[0].data["text/plain"]


def test_a_notebook_that_is_not_there_or_says_nothing_is_a_mistake(seeded: Any, tmp_path: Path) -> None:
    nbformat.write(new_notebook(), tmp_path / "silent.ipynb")
    assert "no conversation" in seeded.run(f"%chat_load {tmp_path / 'silent.ipynb'}").error
    assert "There is no notebook" in seeded.run(f"%chat_load {tmp_path / 'nowhere.ipynb'}").error
    assert seeded.run("%chat_load").error.startswith("%chat_load: give the path of a notebook, or of a folder")


def test_a_session_is_saved_to_a_folder_and_goes_on_in_another_notebook(notebook: Any, tmp_path: Path) -> None:
    folder = tmp_path / "my talk"
    notebook.run("def low(text):\n    return text.lower()")
    notebook.session.input_transforms.append(notebook.shell.user_ns["low"])
    notebook.run("%%chat\nOne Two", "a")
    notebook.run("%%chat --fork side\nThree", "b")
    saved = notebook.run(f"%chat_save '{folder}' --cache")
    assert saved.text == f"Saved 5 messages on 2 branches to {str(folder)!r}, with the cache of its active path.\n"
    llamanb.use_session(llamanb.ChatSession(notebook.session.engine), replace=True)
    loaded = notebook.run(f"%chat_load '{folder}'")
    assert loaded.text == "Session 'default' has 5 messages on 2 branches now: main, side.\n"
    assert notebook.texts("side") == ["One Two", "Three"]
    assert notebook.session.system == "Be brief."
    assert notebook.run("%%chat\nFOUR Five", "c").markdown == "five four"
    again = notebook.run(f"%chat_load '{folder}'")
    assert again.text.splitlines() == [
        "Session 'default' has 7 messages on 2 branches now: main, side.",
        "The session keeps the transforms that it has; those in the folder were left out.",
    ]
    assert notebook.texts() == ["One Two", "FOUR Five"]


def test_a_saved_session_is_taken_in_beside_what_is_here_or_into_a_new_one(notebook: Any, tmp_path: Path) -> None:
    other = llamanb.ChatSession(notebook.session.engine, system="Be brief.")
    other.send("elsewhere")
    other.save(tmp_path / "talk")
    notebook.run("%%chat\nhere", "a")
    loaded = notebook.run(f"%chat_load {tmp_path / 'talk'}")
    assert loaded.text.splitlines()[0] == "Session 'default' has 5 messages on 2 branches now: main, main@2."
    assert loaded.text.splitlines()[1].startswith("No cache was saved with it: the next answer reads its ")
    assert notebook.texts() == ["here"]
    assert notebook.texts("main@2") == ["elsewhere"]
    fresh = notebook.run(f"%chat_load {tmp_path / 'talk'} -s fresh")
    assert fresh.text.startswith("Session 'fresh' has 3 messages on 1 branch now: main.")


def test_what_cannot_be_saved_or_loaded_is_one_sentence_and_changes_nothing(notebook: Any, tmp_path: Path) -> None:
    notebook.session.input_transforms.append(lambda text: text)
    assert "a lambda has no name" in notebook.run(f"%chat_save {tmp_path / 'talk'}").error
    notebook.session.input_transforms.clear()
    notebook.run("def low(text):\n    return text.lower()")
    notebook.session.input_transforms.append(notebook.shell.user_ns["low"])
    notebook.run(f"%chat_save {tmp_path / 'talk'}")
    notebook.session.input_transforms.clear()
    notebook.run("del low")
    assert "define low here first" in notebook.run(f"%chat_load {tmp_path / 'talk'} -s new").error
    assert runtime.get_runtime().names == ["default"]
    assert notebook.run(f"%chat_load {tmp_path / 'talk'} --no-transforms").success
    assert notebook.session.input_transforms == []
    nbformat.write(new_notebook(), tmp_path / "a.ipynb")
    assert "are for folders" in notebook.run(f"%chat_load {tmp_path / 'a.ipynb'} -s x").error
    assert "no session.json" in notebook.run(f"%chat_load {tmp_path}").error
    assert notebook.run("%chat_save").error.startswith("%chat_save: ")


def test_a_cache_that_does_not_fit_is_said_in_a_line(notebook: Any, tmp_path: Path) -> None:
    notebook.run("%%chat\nhere", "a")
    notebook.run(f"%chat_save {tmp_path / 'talk'} --cache")
    (cache,) = (tmp_path / "talk").glob("cache-*.bin")
    cache.write_bytes(b"")
    loaded = notebook.run(f"%chat_load {tmp_path / 'talk'}")
    assert "is damaged, or of another model or other settings" in loaded.text.splitlines()[1]


def test_where_cell_ids_are_addresses_loading_keeps_what_cells_own(seeded: Any, tmp_path: Path) -> None:
    """As VS Code does it, which also says where the notebook is."""
    a, b, c = (f"vscode-notebook-cell:/notebook.ipynb#W{number}sZmlsZQ" for number in range(3))
    yesterday = llamanb.ChatSession(llamanb.ScriptedEngine(["there"]), system="Be brief.")
    yesterday.fork("old").send("yesterday")
    stored = {"schema": 1, "sessions": {"default": yesterday.to_dict()}}
    nbformat.write(new_notebook(metadata={"llamanb": stored}), tmp_path / "notebook.ipynb")
    seeded.shell.user_ns["__vsc_ipynb_file__"] = str(tmp_path / "notebook.ipynb")
    seeded.run("%%chat\none", a)
    seeded.run("%%chat\ntwo", b)
    seeded.run("%%chat --fork side\nthree", c)
    seeded.run("%%chat\nfirst", a)
    assert seeded.run("%chat_load").success
    assert seeded.texts("old") == ["yesterday"]
    assert seeded.session.history.stale == {b, c}
    for cell, source in ((a, "%%chat\nanother"), (b, "%%chat\ntwo"), (c, "%%chat --fork side\nthree")):
        assert seeded.run(source, cell).success
    assert seeded.texts("main") == ["another", "two"]
    assert seeded.texts("side") == ["another", "two", "three"]


@pytest.mark.parametrize(
    ("said", "persists"), [("off", False), ("0", False), ("on", True), ("", True), ("perhaps", True)]
)
def test_the_environment_says_whether_conversations_are_kept(
    monkeypatch: pytest.MonkeyPatch, said: str, persists: bool
) -> None:
    monkeypatch.setenv("LLAMANB_PERSIST", said)
    assert ChatConfig().persist is persists
    assert ChatConfig(config=Config({"ChatConfig": {"persist": True}})).persist is True


LONG = " ".join(f"word{number}" for number in range(40))


def entries() -> list[SnapshotInfo]:
    return Snapshots().entries()


def test_a_conversation_of_a_person_is_kept_on_disk_and_shown_and_cleared(notebook: Any, own_cache: None) -> None:
    notebook.run(f"%%chat\n{LONG}", "one", watched=True)
    assert notebook.session.snapshots is not None
    assert notebook.session.snapshots.flush()
    shown = notebook.run("%chat_cache", watched=True).text
    assert re.search(r"In memory: [\d,]+ of [\d,]+ tokens in 1 sequence\.", shown)
    assert re.search(r"On disk: 1 snapshot, [\d.]+ \w+ of at most 2.0 GB\.", shown)
    assert notebook.run("%chat_cache --clear", watched=True).text == "Removed 1 snapshot.\n"
    assert entries() == []


def test_nothing_is_kept_on_disk_where_nobody_watches_or_it_is_off(notebook: Any, own_cache: None) -> None:
    notebook.run(f"%%chat\n{LONG}", "one")
    assert notebook.session.snapshots is None
    assert "On disk: off (nobody is at this notebook)." in notebook.run("%chat_cache").text
    notebook.run("%chat_config snapshots=off", watched=True)
    notebook.run(f"%%chat\n{LONG}", "two", watched=True)
    assert notebook.session.snapshots is None
    assert "On disk: off (%chat_config snapshots=on turns it on)." in notebook.run("%chat_cache", watched=True).text
    assert entries() == []


def test_how_much_of_the_disk_snapshots_take_is_a_setting(notebook: Any, own_cache: None) -> None:
    notebook.run("%chat_config --snapshot-cache 500MB", watched=True)
    assert "of at most 500.0 MB." in notebook.run("%chat_cache", watched=True).text
    notebook.run("%chat_config snapshot_cache=0", watched=True)
    notebook.run(f"%%chat\n{LONG}", "one", watched=True)
    assert notebook.session.snapshots is not None
    assert notebook.session.snapshots.flush()
    assert entries() == []
    error = notebook.run("%chat_config --snapshot-cache much", watched=True).error
    assert error == "snapshot_cache is 'much'; it must be a number of bytes, such as 500MB or 2GB."
