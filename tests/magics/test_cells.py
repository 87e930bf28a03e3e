"""Which cell is this? The rules of running cells again, with execute requests that carry cell ids."""

from __future__ import annotations

from typing import Any

import pytest

import llamanb
from llamanb import runtime


def test_running_an_unchanged_notebook_again_is_silent(notebook: Any) -> None:
    cells = {"a": "%%chat\none", "b": "%%chat\ntwo", "f": "%chat_fork side --at 2", "c": "%%chat -b side\nthree",
             "d": "%%chat --fork more --at 1\nfour", "e": "%%chat\nfive"}  # fmt: skip
    for cell, source in cells.items():
        assert notebook.run(source, cell).success
    before = notebook.session.to_dict()
    for cell, source in cells.items():
        assert notebook.run(source, cell).success
        assert notebook.session.to_dict() == before
        assert not notebook.session.history.stale
    assert len(notebook.next_inputs) == 1


def test_a_changed_cell_replaces_its_exchange_and_later_cells_are_stale_until_they_run(notebook: Any) -> None:
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        notebook.run(f"%%chat\n{text}", cell)
    notebook.run("%%chat --fork side\nfour", "d")
    notebook.run("%%chat\nother", "a")
    assert notebook.texts() == ["other"]
    assert notebook.session.history.stale == {"b", "c", "d"}
    notebook.run("%%chat\ntwo", "b")
    assert notebook.texts() == ["other", "two"]
    assert notebook.session.history.stale == {"c", "d"}
    notebook.run("%%chat\nthree", "c")
    notebook.run("%%chat --fork side\nfour", "d")
    assert notebook.texts() == ["other", "two", "three"]
    assert notebook.texts("side") == ["other", "two", "three", "four"]
    assert not notebook.session.history.stale
    assert "one" in [message.text for message in notebook.session.history.messages.values()]


def test_a_cell_in_the_middle_rewinds_its_branch(notebook: Any) -> None:
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        notebook.run(f"%%chat\n{text}", cell)
    notebook.run("%%chat\nother", "b")
    assert notebook.texts() == ["one", "other"]


def test_a_cell_off_the_path_whose_parent_is_on_it_answers_there(notebook: Any) -> None:
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        notebook.run(f"%%chat\n{text}", cell)
    notebook.session.rewind(2)
    notebook.run("%%chat\nelsewhere", "d")
    notebook.run("%%chat\ntwo", "b")
    assert notebook.texts() == ["one", "two"]


def test_a_cell_whose_place_is_gone_appends(notebook: Any) -> None:
    for cell, text in (("a", "one"), ("b", "two")):
        notebook.run(f"%%chat\n{text}", cell)
    notebook.run("%%chat\nother", "a")
    notebook.run("%%chat\nmore", "c")
    notebook.run("%%chat\ntwo", "b")
    assert notebook.texts() == ["other", "more", "two"]


def test_a_failing_rerun_leaves_everything_as_it_was(notebook: Any) -> None:
    for cell, text in (("a", "one"), ("b", "two")):
        notebook.run(f"%%chat\n{text}", cell)
    before = notebook.session.to_dict()
    for bad in ("%%chat\n", "%%chat -t hot\nx", "%%chat --fork main\nx", "%%chat --max-tokens -1\nx"):
        assert not notebook.run(bad, "a").success
        assert notebook.session.to_dict() == before
    assert not notebook.session.history.stale


def test_a_cell_answers_again_on_its_recorded_branch(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.session.fork("side")
    notebook.run("%chat_switch side")
    notebook.run("%%chat\ntwo", "b")
    notebook.run("%%chat\nother", "a")
    assert notebook.texts("main") == ["other"]
    assert notebook.texts("side") == ["one", "two"]
    assert notebook.session.active.name == "side"


def test_branch_and_fork_never_change_the_active_branch(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run("%%chat --fork side\ntwo", "b")
    notebook.run("%%chat -b side\nthree", "c")
    notebook.run("%chat_fork again", "d")
    assert notebook.session.active.name == "main"
    notebook.run("%chat_switch side")
    assert notebook.session.active.name == "side"


def test_a_cell_that_moves_to_another_branch_leaves_the_old_one(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.session.fork("side")
    notebook.run("%%chat\ntwo", "b")
    notebook.run("%%chat -b side\ntwo", "b")
    assert notebook.texts("main") == ["one"]
    assert notebook.texts("side") == ["one", "two"]


def test_a_cell_that_moves_to_another_session_leaves_the_old_one(notebook: Any) -> None:
    with llamanb.ScriptedEngine(lambda r: "other") as engine:
        other = llamanb.runtime.get_runtime().sessions["other"] = llamanb.ChatSession(engine)
        notebook.run("%%chat\none", "a")
        notebook.run("%%chat -s other\none", "a")
        assert notebook.texts("main") == []
        assert [message.text for message in other.messages] == ["one", "other"]
        assert "a" not in notebook.session.history.cells


def test_a_fork_cell_runs_again_from_its_recorded_point(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run("%%chat --fork side\ntwo", "b")
    notebook.run("%%chat\nthree", "c")
    notebook.run("%%chat --fork side\nchanged", "b")
    assert notebook.texts("side") == ["one", "changed"]
    outcome = notebook.run("%%chat --fork side\nx", "other-cell")
    assert "already" in outcome.error
    assert notebook.texts("side") == ["one", "changed"]


def test_a_fork_cell_goes_to_the_tip_when_its_point_is_gone(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run("%%chat --fork side\ntwo", "b")
    notebook.run("%%chat\nother", "a")
    notebook.run("%%chat --fork side\ntwo", "b")
    assert notebook.texts("side") == ["other", "two"]


def test_a_fork_cell_with_an_index_starts_there_when_its_point_is_gone(notebook: Any) -> None:
    for cell, text in zip("abc", ["one", "two", "three"], strict=True):
        notebook.run(f"%%chat\n{text}", cell)
    notebook.run("%%chat --fork side --at 2\nother", "d")
    notebook.run("%%chat\nfirst", "a")
    notebook.run("%%chat --fork side --at 2\nother", "d")
    assert notebook.texts("side") == ["first", "other"]
    notebook.run("%chat_rewind")
    notebook.run("%%chat --fork side --at 2\nother", "d")
    assert notebook.texts("side") == ["other"]  # there is no such index any more: at the tip


def test_a_fork_cell_goes_to_the_tip_when_its_point_was_pruned(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run("%%chat --fork side\ntwo", "b")
    notebook.run("%%chat\nfirst", "a")
    notebook.run("%chat_adopt main -b side")
    assert notebook.run("%chat_prune -y").text == "Removed 4 messages.\n"
    notebook.run("%%chat --fork side\ntwo", "b")
    assert notebook.texts("side") == ["first", "two"]
    assert notebook.session.branches["side"].messages[0].text == "Be brief."


def test_a_fork_cell_with_another_system_prompt_copies_the_path_below_it(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    line = "%%chat --fork loud --system 'SHOUT!'"
    assert notebook.run(f"{line}\ntwo", "b").success
    before = notebook.session.to_dict()
    messages = notebook.session.branches["loud"].messages
    assert [m.text for m in messages] == ["SHOUT!", "one", "one", "two", "two"]
    assert notebook.session.system == "Be brief."
    assert notebook.run(f"{line}\ntwo", "b").success
    assert notebook.session.to_dict() == before
    refused = notebook.run("%%chat --system 'SHOUT!'\nthree", "c")
    assert "--fork NAME --system TEXT" in refused.error


def test_a_session_that_is_not_there_is_a_mistake_and_none_is_made(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    for line in ("%chat_tree -s typo", "%chat_switch -s typo main", "%%chat -s typo --fork a --at zzz\nx"):
        assert not notebook.run(line, "b").success
        assert "typo" not in runtime.get_runtime().sessions
    assert "there is 'default'" in notebook.run("%chat_tree -s typo").error


def test_a_hint_to_go_on_with_a_branch_can_be_copied(notebook: Any) -> None:
    notebook.session.fork("sweet pea")
    refused = notebook.run("%%chat --fork 'sweet pea'\nhello", "a")
    assert "go on with -b 'sweet pea'." in refused.error
    assert notebook.run("%%chat -b 'sweet pea'\nhello", "a").success


def test_a_fork_cell_with_another_place_starts_there(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run("%%chat\ntwo", "b")
    notebook.run("%%chat --fork side --at 2\nthree", "c")
    assert notebook.texts("side") == ["one", "three"]
    notebook.run("%%chat --fork side --at 0\nthree", "c")
    assert notebook.texts("side") == ["three"]


def test_chat_fork_makes_the_branch_and_a_cell_once(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run('%chat_fork cheap --prompt "Half of it?"', "f")
    assert notebook.next_inputs == ["%%chat --branch cheap\nHalf of it?"]
    notebook.run("%%chat --branch cheap\nHalf of it?", "g")
    before = notebook.session.to_dict()
    notebook.run('%chat_fork cheap --prompt "Half of it?"', "f")
    assert notebook.session.to_dict() == before
    assert len(notebook.next_inputs) == 1
    notebook.run("%%chat\nother", "a")
    notebook.run('%chat_fork cheap --prompt "Half of it?"', "f")
    assert notebook.texts("cheap") == ["other"]
    assert notebook.session.history.stale == {"g"}
    assert len(notebook.next_inputs) == 1


def test_two_answers_of_one_cell_are_one_exchange_of_it(notebook: Any) -> None:
    source = "%chat one\n%chat two"
    notebook.run(source, "a")
    notebook.run("%%chat\nthree", "b")
    before = notebook.session.to_dict()
    assert notebook.texts() == ["one", "two", "three"]
    notebook.run(source, "a")
    assert notebook.session.to_dict() == before
    notebook.run("%chat one\n%chat 2", "a")
    assert notebook.texts() == ["one", "2"]
    assert notebook.session.history.stale == {"b"}


def test_what_python_says_in_a_cell_belongs_to_no_cell(notebook: Any) -> None:
    source = "import llamanb\nllamanb.active_session().send('one')"
    notebook.run(source, "a")
    notebook.run(source, "a")
    assert notebook.texts() == ["one", "one"]
    assert notebook.session.history.cells == {}


def test_without_cell_ids_every_run_appends(notebook: Any) -> None:
    notebook.run("%%chat\none")
    notebook.run("%%chat\none")
    assert notebook.texts() == ["one", "one"]
    assert notebook.session.history.cells == {}


def test_a_copied_cell_appends(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run("%%chat\none", "copy-of-a")
    assert notebook.texts() == ["one", "one"]


def test_ids_that_are_uris_work_and_are_not_stored(notebook: Any) -> None:
    cell = "vscode-notebook-cell:/home/someone/secret.ipynb#W0sZmlsZQ"
    notebook.run("%%chat\none", cell)
    notebook.run("%%chat\nother", cell)
    notebook.run("%chat_fork side", cell.replace("W0", "W1"))
    assert notebook.texts() == ["other"]
    assert "secret" not in str(notebook.session.to_dict())


@pytest.mark.parametrize("options", ["", "--fork side"])
def test_a_deleted_cell_leaves_its_branch_and_what_followed_stays(notebook: Any, options: str) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run(f"%%chat {options}\ntwo", "b")
    notebook.run("%%chat -b side\nthree" if options else "%%chat\nthree", "c")
    history = notebook.session.history
    assert history.take_off("b") == 1
    branch = "side" if options else "main"
    assert notebook.texts(branch) == ["one", "three"]
    assert history.stale == {"c"}
    assert history.take_off("b") == 0
    assert "two" in [message.text for message in history.messages.values()]


def test_sessions_in_one_notebook_do_not_disturb_each_other(notebook: Any) -> None:
    cells = {
        "a": "%%chat{}\none",
        "b": "%%chat{} -n 2\ntwo",
        "c": "%%chat{} --fork side,more --at 1\nthree",
        "d": "%chat_rewind{}",
        "e": "%%chat{}\nfour",
        "f": "%chat_switch{} side",
        "g": "%%chat{}\nfive",
    }
    with llamanb.ScriptedEngine(lambda r: " ".join(reversed(r.messages[-1].text.split()))) as engine:
        sessions = llamanb.runtime.get_runtime().sessions
        sessions["other"] = llamanb.ChatSession(engine, system="Be brief.")
        for cell, source in cells.items():
            assert notebook.run(source.format(""), cell).success
            assert notebook.run(source.format(" -s other"), f"other-{cell}").success
        notebook.run("%%chat\nchanged", "a")
        assert notebook.texts("main") == ["changed"]
        other = sessions["other"]
        assert [m.text for m in other.branches["main"].messages if m.role == "user"] == ["one", "four"]
        assert other.active.name == "side"
        assert other.history.stale == {"other-b"}  # rewound
        assert notebook.session.history.stale == {"b", "c", "e", "g"}


def test_a_cell_that_is_run_and_asks_nothing_any_more_is_off_the_branch(notebook: Any) -> None:
    notebook.run("%%chat\none", "a")
    notebook.run("%%chat\ntwo", "b")
    assert not notebook.run("1 / 0", "a").success
    assert not notebook.run("%%chat --temprature 1\none", "a").success
    assert notebook.texts() == ["one", "two"]  # a cell that failed changes nothing
    assert notebook.run("# %%chat\n# one", "a").success
    assert notebook.texts() == ["two"]
    assert notebook.session.history.stale == {"b"}
    notebook.run("%%chat\none", "a")
    assert notebook.texts() == ["two", "one"]


def test_a_half_of_a_cell_that_was_split_replaces_what_the_whole_had_said(notebook: Any) -> None:
    notebook.run("%%chat\nbefore", "a")
    notebook.run("%%chat --fork side\none two", "b")
    history = notebook.session.history
    history.move_cell("b", "upper")
    history.move_cell("b", "again")
    history.move_cell("a", "upper")  # which owns something
    assert list(history.cells) == ["a", "upper"]
    assert notebook.run("%%chat --fork side\none", "upper").success
    assert notebook.run("%%chat -b side\ntwo", "b").success
    assert notebook.texts("side") == ["before", "one", "two"]


def test_a_cell_within_a_cell_is_not_yet_the_end_of_it(notebook: Any) -> None:
    for _ in range(2):
        notebook.run("%chat one\nget_ipython().run_cell('1')\n%chat two", "a")
        notebook.run("%%capture shown\n%chat three", "b")
        assert notebook.texts() == ["one", "two", "three"]
    assert not notebook.session.history.stale
    notebook.run("get_ipython().run_cell('1')\n%chat first", "a")
    assert notebook.texts() == ["first"]
    assert notebook.session.history.stale == {"b"}
