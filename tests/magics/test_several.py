"""Several answers of one cell: `--fork a,b` and `-n`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import llamanb
from llamanb.persistence.notebook import fold_outputs
from llamanb.persistence.schema import Document, load_history


def test_several_forks_answer_side_by_side_and_the_origin_stays(seeded: Any) -> None:
    seeded.run("%%chat\nfirst", "a")
    outcome = seeded.run("%%chat --fork x,y,z -o replies\nsecond", "b")
    assert outcome.success
    replies = seeded.shell.user_ns["replies"]
    assert list(replies) == ["x", "y", "z"]
    assert len({reply.text for reply in replies.values()}) == 3
    (shown,) = outcome.outputs
    assert shown.data["text/plain"] == "\n\n".join(f"{name}:\n{reply.text}" for name, reply in replies.items())
    for kind in ("text/html", "text/markdown"):
        places = [shown.data[kind].index(reply.text) for reply in replies.values()]
        assert places == sorted(places)
    assert seeded.texts() == ["first"]
    assert seeded.texts("y") == ["first", "second"]
    assert seeded.session.active.name == "main"


def test_alternatives_stand_at_one_place_and_the_first_goes_on(seeded: Any) -> None:
    outcome = seeded.run("%%chat -n 3 -o replies\nfirst", "a")
    replies = seeded.shell.user_ns["replies"]
    assert outcome.outputs[0].data["text/plain"].startswith(f"1 (goes on):\n{replies[0].text}\n\n2:\n")
    assert [m.text for m in seeded.session.messages[1:]] == ["first", replies[0].text]
    siblings = seeded.session.history.siblings(seeded.session.messages[-1].id)
    assert [m.text for m in siblings] == [reply.text for reply in replies]
    seeded.run("%%chat\nsecond", "b")
    assert [m.text for m in seeded.session.messages[1:3]] == ["first", replies[0].text]


def test_equal_alternatives_are_shown_once_and_said_to_be_equal(seeded: Any) -> None:
    same = seeded.run("%%chat -n 3 -t 0\nfirst", "a").outputs[0].data
    assert same["text/plain"] == "All 3 answers are the same:\nfirst by None"
    assert same["text/html"].count("first by None") == 1
    answers = iter(["p", "q", "p", "q"])
    engine = llamanb.ScriptedEngine(lambda r: next(answers))
    llamanb.use_session(llamanb.ChatSession(engine), replace=True)
    some = seeded.run("%%chat -n 4\nfirst", "b").outputs[0].data
    assert sorted(some["text/plain"].split("\n\n")) in (
        ["1, 3 (the same, goes on):\np", "2, 4 (the same):\nq"],
        ["1, 4 (the same, goes on):\np", "2, 3 (the same):\nq"],  # the threads of a scripted engine may overtake
        ["1, 2 (the same, goes on):\np", "3, 4 (the same):\nq"],
        ["1, 3 (the same, goes on):\nq", "2, 4 (the same):\np"],
    )


def test_running_a_cell_of_several_answers_again_is_silent(seeded: Any) -> None:
    cells = {"a": "%%chat -n 3\none", "b": "%%chat --fork x,y\ntwo", "c": "%%chat -b y\nthree", "d": "%%chat\nfour"}
    for cell, source in cells.items():
        assert seeded.run(source, cell).success
    before = seeded.session.to_dict()
    for cell, source in cells.items():
        assert seeded.run(source, cell).success
        assert seeded.session.to_dict() == before
    assert not seeded.session.history.stale
    seeded.run("%%chat --fork x,y\nother", "b")
    assert seeded.session.history.stale == {"c"}
    assert seeded.texts("x") == ["one", "other"]


def test_the_first_alternative_is_what_the_same_cell_without_n_says(seeded: Any) -> None:
    seeded.run("%%chat -n 2\none", "a")
    first = seeded.session.messages[-1].id
    seeded.run("%%chat\none", "a")
    assert seeded.session.messages[-1].id == first


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--fork x,y -n 2", "-n gives answers at one place"),
        ("--fork x,x", "named twice"),
        ("--fork x,", "cannot be a branch's name"),
        ("--fork x,main", "a branch 'main' already"),
        ("-n 0", "from 1 to 100"),
        ("-n two", "whole number"),
    ],
)
def test_several_answers_that_cannot_start_leave_everything_as_it_was(seeded: Any, line: str, says: str) -> None:
    seeded.run("%%chat\none", "a")
    before = seeded.session.to_dict()
    for cell in ("a", "b"):
        outcome = seeded.run(f"%%chat {line}\ntwo", cell)
        assert not outcome.success
        assert says in outcome.error
        assert seeded.session.to_dict() == before


def test_one_failing_answer_of_several_fails_the_cell_and_the_others_are_kept(seeded: Any) -> None:
    def answer(request: llamanb.GenerationRequest) -> str:
        if request.sampling.seed == 2:
            raise llamanb.DecodeError("it broke.")
        return f"by {request.sampling.seed}"

    llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine(answer)), replace=True)
    outcome = seeded.run("%%chat --fork x,y,z --seed 1\none", "a")
    assert not outcome.success
    assert "it broke." in outcome.error
    assert outcome.outputs[0].data["text/plain"] == "x:\nby 1\n\nz:\nby 3"
    assert seeded.texts("x") == seeded.texts("z") == ["one"]
    assert seeded.texts("y") == []


def test_where_the_first_alternative_fails_the_branch_goes_on_from_the_next(seeded: Any) -> None:
    def answer(request: llamanb.GenerationRequest) -> str:
        if request.sampling.seed == 1:
            raise llamanb.DecodeError("it broke.")
        return f"by {request.sampling.seed}"

    llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine(answer)), replace=True)
    outcome = seeded.run("%%chat -n 3 --seed 1\none", "a")
    assert not outcome.success
    assert outcome.outputs[0].data["text/plain"] == "2 (goes on):\nby 2\n\n3:\nby 3"
    assert [message.text for message in seeded.session.messages] == ["one", "by 2"]
    assert [entry.last for entry in seeded.session.history.cells["a"]] == [seeded.session.messages[-1].id]


def test_outputs_alone_rebuild_the_tree(seeded: Any, tmp_path: Path) -> None:
    cells = {"a": "%%chat -n 3\none", "b": "%%chat --fork x,y\ntwo", "c": "%%chat\nthree"}
    document = new_notebook()
    for cell, source in cells.items():
        (output,) = seeded.run(source, cell).outputs
        shown = new_output("display_data", output.data, metadata=output.metadata)
        document.cells.append(new_code_cell(source, id=cell, outputs=[shown]))
    nbformat.write(document, tmp_path / "n.ipynb")
    folded = Document()
    fold_outputs(nbformat.read(tmp_path / "n.ipynb", as_version=4), folded)
    rebuilt, live = load_history(folded.sessions["default"]), seeded.session.history
    assert set(rebuilt.messages) == set(live.messages)
    assert rebuilt.cells == live.cells
    for name in live.branches:
        assert rebuilt.tip(name) == live.tip(name)
    assert json.dumps(folded.to_dict())


def test_a_grammar_is_a_variable_that_holds_text(seeded: Any) -> None:
    seeded.run("shape = 'root ::= \"yes\"'\nnumber = 3")
    assert seeded.run("%%chat --grammar shape -o r\none").success
    assert dict(seeded.shell.user_ns["r"].messages[-1].sampling)["grammar"] == 'root ::= "yes"'
    assert "there is no variable 'nope'" in seeded.run("%%chat --grammar nope\none").error
    assert "'number' is a int" in seeded.run("%%chat --grammar number\none").error
