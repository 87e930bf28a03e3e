"""The stored form: it reads back as it was, names what is wrong, keeps what it does not know, and merges."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamanb.cells import CellRun
from llamanb.errors import HistoryFormatError, InvalidArgumentError, SchemaVersionError
from llamanb.history import BranchRecord, Exchange, History
from llamanb.messages import FinishReason, Message, ToolCall, message_id
from llamanb.persistence.notebook import (
    DAMAGED,
    KEY,
    exchange_metadata,
    fold_outputs,
    read_document,
    read_notebook,
    strip_outputs,
    write_document,
)
from llamanb.persistence.schema import SCHEMA, Document, dump_history, load_history, merge, merge_sessions

NAMES = ["main", "x", "main@2"]
numbers = st.sampled_from(
    [0.0, -0.0, 1.0, 1e-07, 0.1, 5e-324, 1e15, 1e20, 1e21, 1e300, 2**53, 2**53 - 1, 10**25, -3, 7]
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    numbers | text | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)


def changed(draw: st.DrawFn, history: History, most: int) -> History:  # noqa: C901 - one case for each command
    """Put some commands of a notebook's life to a copy of a history."""
    history = history.copy()
    for _ in range(draw(st.integers(0, most))):
        branch = draw(st.sampled_from(list(history.branches)))
        command = draw(
            st.sampled_from(["ask", "ask", "ask", "rewind", "fork", "switch", "remove", "prune", "cell", "adopt"])
        )
        if command == "ask":
            asked = history.append(branch, "user", draw(st.sampled_from("abc")))
            answer = history.append(branch, "assistant", draw(st.sampled_from("AB")))
            if draw(st.booleans()):
                cell = draw(st.sampled_from(["c1", "c2"]))
                history.cells[cell] = [Exchange(branch, (asked, answer)).entry]
        elif command == "rewind" and history.exchanges(branch):
            history.rewind(branch)
        elif command == "fork":
            name = draw(st.sampled_from(NAMES))
            if name not in history.branches:
                path = [message.id for message in history.branch_path(branch)]
                history.fork(name, draw(st.sampled_from([None, *path])), from_branch=branch, made_by="c1", at="0")
        elif command == "switch":
            history.switch(branch)
        elif command == "remove" and branch != history.active:
            history.remove_branch(branch)
        elif command == "prune":
            history.prune()
        elif command == "cell":
            history.take_off(draw(st.sampled_from(["c1", "c2"])))
        elif command == "adopt":
            history.adopt(branch, draw(st.sampled_from(list(history.branches))))
    return history


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Histories with messages of every kind and unknown keys at every level."""
    history = changed(draw, History(), 6)
    extra = st.dictionaries(text.map("x-{}".format), values, max_size=2)
    for _ in range(draw(st.integers(0, 2))):
        history.append(
            draw(st.sampled_from(list(history.branches))),
            draw(st.sampled_from(["user", "assistant", "tool"])),
            draw(text | st.lists(values, max_size=2)),
            reasoning=draw(st.none() | text),
            tool_calls=tuple(ToolCall("1", "f", written) for written in draw(st.lists(text, max_size=2))),
            tool_call_id=draw(st.none() | text),
            finish_reason=draw(st.none() | st.sampled_from(FinishReason)),
            model=draw(st.none() | text),
            sampling=draw(st.none() | st.dictionaries(text, values, max_size=2)),
            extra=draw(extra),
        )
    history.extra = {key: json.loads(json.dumps(value)) for key, value in draw(extra).items()}
    return history


@st.composite
def forked_histories(draw: st.DrawFn) -> tuple[History, History, History]:
    base = changed(draw, History(), 5)
    return base, changed(draw, base, 4), changed(draw, base, 4)


def through_a_browser(value: Any) -> Any:
    """What JSON.parse and JSON.stringify make of a value: doubles, written as ECMAScript writes them."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < 1e21 else number
    if isinstance(value, dict):
        return {key: through_a_browser(item) for key, item in value.items()}
    if isinstance(value, list):
        return [through_a_browser(item) for item in value]
    return value


def same(a: History, b: History) -> bool:
    """Equal but for the order of what was made on different sides."""
    one, two = dump_history(a), dump_history(b)
    for stored in (one, two):
        stored["order"].sort()
        stored["branches"].sort(key=lambda branch: branch["name"])
    return one == two


# -- reading and writing ----------------------------------------------------------------------------------------


@given(histories())
@settings(max_examples=100, deadline=None)
def test_a_history_reads_back_as_it_was(history: History) -> None:
    stored = json.loads(json.dumps(dump_history(history)))
    again = load_history(stored)
    assert again.messages == history.messages
    assert again.order == history.order
    assert (again.branches, again.active, again.cells) == (history.branches, history.active, history.cells)
    assert dump_history(again) == stored


@given(histories())
@settings(max_examples=100, deadline=None)
def test_a_trip_through_a_browser_changes_no_id_and_no_message(history: History) -> None:
    stored = dump_history(history)
    history = load_history(through_a_browser({key: stored[key] for key in stored if key not in history.extra}))
    for id, message in history.messages.items():
        assert message_id(message.to_dict()) == id
        assert through_a_browser(message.to_dict()) == message.to_dict() == stored["messages"][id]


@given(histories(), st.dictionaries(st.sampled_from(["default", "other session"]), st.just(None)), values)
@settings(max_examples=50, deadline=None)
def test_a_document_reads_back_as_it_was(history: History, names: dict[str, None], unknown: Any) -> None:
    document = Document({name: dump_history(history) for name in names}, {"of tomorrow": unknown})
    metadata: dict[str, Any] = {"kernelspec": {}}
    write_document(metadata, document)
    assert json.loads(json.dumps(metadata)) == metadata
    assert read_document(metadata) == document
    assert metadata[KEY]["schema"] == SCHEMA
    assert metadata["kernelspec"] == {}


def test_nothing_that_was_given_or_returned_is_shared() -> None:
    document = Document({"default": stored_history()}, {"k": [1]})
    document.to_dict()["sessions"]["default"]["order"].clear()
    document.to_dict()["k"].append(2)
    assert document == Document({"default": stored_history()}, {"k": [1]})


def stored_history() -> dict[str, Any]:
    history = History()
    asked = history.append("main", "user", "a")
    answer = history.append("main", "assistant", "A", tool_calls=(ToolCall("1", "f", "{}"),), sampling={"seed": 1})
    history.fork("x", asked.id, from_branch="main", made_by="c1", at="0")
    history.cells["c1"] = [Exchange("main", (asked, answer)).entry]
    return json.loads(json.dumps(dump_history(history)))  # type: ignore[no-any-return]


FIRST, LAST = stored_history()["order"]


def test_unknown_keys_are_kept_at_every_level() -> None:
    stored = stored_history()
    document: dict[str, Any] = {"schema": 1, "sessions": {"default": stored}}
    places = [document, stored, stored["branches"][0], stored["cells"]["c1"][0], stored["messages"][FIRST]]
    for number, place in enumerate(places):
        place["of tomorrow"] = {"deep": [number, None]}
    assert Document.from_dict(document).to_dict() == document
    history = load_history(stored)
    history.append("main", "user", "more")
    history.append("x", "user", "more")
    kept = dump_history(history)
    assert kept["of tomorrow"] == {"deep": [1, None]}
    assert kept["branches"][0]["of tomorrow"] == {"deep": [2, None]}
    assert kept["cells"]["c1"][0]["of tomorrow"] == {"deep": [3, None]}
    assert kept["messages"][FIRST]["of tomorrow"] == {"deep": [4, None]}


def test_cells_that_only_one_kernel_knows_are_not_written() -> None:
    history = load_history(stored_history())
    uri = "vscode-notebook-cell:/home/someone/a.ipynb#W0sZmlsZQ=="
    history.cells[uri] = history.cells["c1"]
    history.branches["x"] = BranchRecord("x", made_by=uri)
    stored = dump_history(history)
    assert list(stored["cells"]) == ["c1"]
    assert "vscode" not in json.dumps(stored)


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def damage(stored: Any) -> None:
        for key in path[:-1]:
            stored = stored[key]
        stored[path[-1]] = value

    return damage


def without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def damage(stored: Any) -> None:
        for key in path[:-1]:
            stored = stored[key]
        del stored[path[-1]]

    return damage


DAMAGE = [
    (".messages", without("messages")),
    (".messages", put("messages", value=[])),
    (".order", without("order")),
    (".order", put("order", value={})),
    (".order[0]", put("order", 0, value="nope")),
    (".order[0]", put("order", 0, value=3)),
    (".order[0]", put("order", 0, value=["list"])),
    (".order[1]", put("order", 1, value=FIRST)),
    (f".messages.{LAST}", without("order", 1)),
    (f".messages.{LAST}.parent", put("order", value=[LAST, FIRST])),
    (f".messages.{FIRST}", put("messages", FIRST, value="text")),
    (f".messages.{FIRST}.role", put("messages", FIRST, "role", value="robot")),
    (f".messages.{FIRST}.role", put("messages", FIRST, "role", value=["user"])),
    (f".messages.{FIRST}.role", without("messages", FIRST, "role")),
    (f".messages.{FIRST}.content", put("messages", FIRST, "content", value=3)),
    (f".messages.{FIRST}.content", without("messages", FIRST, "content")),
    (f".messages.{FIRST}.content", put("messages", FIRST, "content", value="\ud800")),
    (f".messages.{FIRST}.parent", put("messages", FIRST, "parent", value=FIRST)),
    (f".messages.{FIRST}.parent", put("messages", FIRST, "parent", value=[FIRST])),
    (f".messages.{FIRST}.reasoning", put("messages", FIRST, "reasoning", value=3)),
    (f".messages.{FIRST}.model", put("messages", FIRST, "model", value={})),
    (f".messages.{FIRST}.tool_call_id", put("messages", FIRST, "tool_call_id", value=3)),
    (f".messages.{FIRST}.finish_reason", put("messages", FIRST, "finish_reason", value="bored")),
    (f".messages.{FIRST}.finish_reason", put("messages", FIRST, "finish_reason", value=["stop"])),
    (f".messages.{FIRST}.sampling", put("messages", FIRST, "sampling", value=[])),
    (f".messages.{LAST}.sampling.seed", put("messages", LAST, "sampling", "seed", value=float("nan"))),
    (f".messages.{LAST}.tool_calls", put("messages", LAST, "tool_calls", value={})),
    (f".messages.{LAST}.tool_calls", put("messages", LAST, "tool_calls", value=None)),
    (f".messages.{LAST}.tool_calls[0]", put("messages", LAST, "tool_calls", 0, value="f()")),
    (f".messages.{LAST}.tool_calls[0].name", without("messages", LAST, "tool_calls", 0, "name")),
    (f".messages.{LAST}.tool_calls[0].arguments", put("messages", LAST, "tool_calls", 0, "arguments", value=3)),
    (".branches", without("branches")),
    (".branches", put("branches", value=[])),
    (".branches", put("branches", value={})),
    (".branches[0]", put("branches", 0, value="main")),
    (".branches[0].name", without("branches", 0, "name")),
    (".branches[0].name", put("branches", 0, "name", value="7")),
    (".branches[1].name", put("branches", 1, "name", value="main")),
    (".branches[0].tip", put("branches", 0, "tip", value="nope")),
    (".branches[0].tip", put("branches", 0, "tip", value=3)),
    (".branches[1].forked_from", put("branches", 1, "forked_from", value="nope")),
    (".branches[1].from_branch", put("branches", 1, "from_branch", value=3)),
    (".branches[1].made_by", put("branches", 1, "made_by", value=[])),
    (".branches[1].at", put("branches", 1, "at", value=0)),
    (".active", without("active")),
    (".active", put("active", value="nope")),
    (".active", put("active", value=["main"])),
    (".cells", put("cells", value=[])),
    (".cells.c1", put("cells", "c1", value={})),
    (".cells.c1[0]", put("cells", "c1", 0, value=3)),
    (".cells.c1[0].branch", without("cells", "c1", 0, "branch")),
    (".cells.c1[0].first", put("cells", "c1", 0, "first", value="nope")),
    (".cells.c1[0].last", put("cells", "c1", 0, "last", value=None)),
    (".remade", put("remade", value=[])),
    (".remade.c1", put("remade", value={"c1": "nope"})),
    (".stale", put("stale", value={"c1": True})),
    (".stale[0]", put("stale", value=[3])),
]


@pytest.mark.parametrize(("path", "damage"), DAMAGE, ids=[f"{i}{path}" for i, (path, _) in enumerate(DAMAGE)])
def test_damage_is_named_by_its_place_and_set_aside(path: str, damage: Callable[[dict[str, Any]], None]) -> None:
    stored = stored_history()
    damage(stored)
    metadata: dict[str, Any] = {KEY: {"schema": 1, "sessions": {"default": stored}}}
    before = copy.deepcopy(metadata[KEY])
    with pytest.raises(HistoryFormatError) as caught:
        read_document(metadata)
    assert caught.value.path == f"$.sessions.default{path}"
    assert repr(metadata) == repr({DAMAGED: before})
    write_document(metadata, Document())
    assert repr(metadata[DAMAGED]) == repr(before)


@pytest.mark.parametrize(
    ("stored", "path"),
    [
        (None, "$"),
        ([], "$"),
        ("text", "$"),
        ({}, "$.schema"),
        ({"schema": "1"}, "$.schema"),
        ({"schema": 0}, "$.schema"),
        ({"schema": True}, "$.schema"),
        ({"schema": 1}, "$.sessions"),
        ({"schema": 1, "sessions": []}, "$.sessions"),
        ({"schema": 1, "sessions": {"a": 3}}, "$.sessions.a"),
    ],
)
def test_a_damaged_document_is_named_by_its_place(stored: Any, path: str) -> None:
    with pytest.raises(HistoryFormatError) as caught:
        Document.from_dict(stored)
    assert caught.value.path == path
    assert str(caught.value).startswith(path + ": ")


def test_a_history_nested_beyond_measure_is_damaged_and_no_crash() -> None:
    stored = stored_history()
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    stored["messages"][FIRST]["content"] = deep
    with pytest.raises(HistoryFormatError, match="nested"):
        load_history(stored)


def test_metadata_damaged_twice_is_kept_twice() -> None:
    metadata: dict[str, Any] = {}
    for number in range(3):
        metadata[KEY] = {"broken": number}
        with pytest.raises(HistoryFormatError):
            read_document(metadata)
    assert metadata == {DAMAGED: {"broken": 0}, f"{DAMAGED}_2": {"broken": 1}, f"{DAMAGED}_3": {"broken": 2}}


def test_damaged_metadata_that_nobody_read_is_not_overwritten_either() -> None:
    metadata: dict[str, Any] = {KEY: {"broken": 1}}
    write_document(metadata, Document())
    assert metadata == {DAMAGED: {"broken": 1}, KEY: {"schema": SCHEMA, "sessions": {}}}


def test_a_newer_schema_is_read_only() -> None:
    newer = {"schema": SCHEMA + 1, "sessions": "in another form", "more": 1}
    metadata: dict[str, Any] = {KEY: copy.deepcopy(newer)}
    with pytest.raises(SchemaVersionError, match="update llamanb"):
        read_document(metadata)
    with pytest.raises(SchemaVersionError):
        write_document(metadata, Document())
    assert metadata == {KEY: newer}


def test_a_notebook_without_a_history_has_an_empty_one() -> None:
    assert read_document({}) == Document()


# -- merging ----------------------------------------------------------------------------------------------------


@given(histories())
@settings(max_examples=60, deadline=None)
def test_merging_what_is_the_same_changes_nothing(history: History) -> None:
    stored = dump_history(history)
    assert dump_history(merge(history, history, history)) == stored
    assert dump_history(merge(History(), history, history)) == stored
    assert merge_sessions(stored, stored, stored) == stored


@given(forked_histories())
@settings(max_examples=250, deadline=None)
def test_what_one_side_alone_changed_is_taken(sides: tuple[History, History, History]) -> None:
    base, ours, _ = sides
    assert same(merge(base, ours, base), ours)
    assert same(merge(base, base, ours), ours)


@given(forked_histories())
@settings(max_examples=400, deadline=None)
def test_a_merge_is_a_sound_history_that_loses_nothing(sides: tuple[History, History, History]) -> None:
    base, ours, theirs = sides
    merged = merge(base, ours, theirs)
    assert dump_history(load_history(dump_history(merged))) == dump_history(merged)

    united = ours.messages | theirs.messages
    pruned = {id for id in base.messages if id not in ours.messages or id not in theirs.messages}
    needed = {m.id for name in merged.branches for m in merged.branch_path(name)}
    for kept in united.keys() - pruned:
        id: str | None = kept
        while id is not None and id not in needed:
            needed.add(id)
            id = united[id].parent
    assert merged.messages == {id: message for id, message in united.items() if id in needed}

    for side in (ours, theirs):
        for name, record in side.branches.items():
            if name not in base.branches or base.branches[name].tip != record.tip:
                assert any(merged.on_path(record.tip, other.tip) for other in merged.branches.values())
    for name, record in ours.branches.items():
        if name not in base.branches and name not in theirs.branches:
            assert merged.branches[name] == record


@given(forked_histories())
@settings(max_examples=400, deadline=None)
def test_merging_again_with_either_side_changes_nothing(sides: tuple[History, History, History]) -> None:
    base, ours, theirs = sides
    merged = merge(base, ours, theirs)
    for since, side in itertools.product((base, ours, theirs), (ours, theirs)):
        if since in (base, side):
            assert same(merge(since, merged, side), merged)


def sides_of(*, ours: str, theirs: str) -> tuple[History, History, History]:
    base = History()
    base.append("main", "user", "start")
    sides = []
    for words in (ours, theirs):
        side = base.copy()
        for word in words.split():
            side.append("main", "user", word)
        sides.append(side)
    return base, sides[0], sides[1]


def said(history: History, branch: str) -> str:
    return " ".join(message.text for message in history.branch_path(branch))


def test_a_tip_that_descends_from_the_other_wins() -> None:
    base, ours, theirs = sides_of(ours="a", theirs="a b")
    for merged in (merge(base, ours, theirs), merge(base, theirs, ours)):
        assert list(merged.branches) == ["main"]
        assert said(merged, "main") == "start a b"


def test_in_a_conflict_ours_keeps_the_name_and_theirs_stands_beside_it() -> None:
    merged = merge(*sides_of(ours="a", theirs="b"))
    assert {name: said(merged, name) for name in merged.branches} == {"main": "start a", "main@2": "start b"}
    assert merged.branches["main@2"].name == "main@2"


def test_a_name_beside_that_is_taken_is_passed_over() -> None:
    base, ours, theirs = sides_of(ours="a", theirs="b")
    for history in (base, ours, theirs):
        history.fork("main@2", None)
        history.append("main@2", "user", "mine")
    merged = merge(base, ours, theirs)
    assert {name: said(merged, name) for name in merged.branches} == {
        "main": "start a",
        "main@2": "mine",
        "main@3": "start b",
    }


def test_a_branch_that_one_side_removed_and_the_other_changed_stays() -> None:
    base, ours, theirs = sides_of(ours="", theirs="b")
    ours.fork("x", None)
    ours.switch("x")
    ours.remove_branch("main")
    assert said(merge(base, ours, theirs), "main") == "start b"
    assert list(merge(base, ours, base).branches) == ["x"]


def test_what_one_side_pruned_is_gone_unless_the_other_needs_it() -> None:
    base, ours, theirs = sides_of(ours="", theirs="")
    dropped = base.append("main", "user", "dropped")
    for side in (ours, theirs):
        side.add(dropped)
    assert ours.prune() == 1
    assert dropped.id not in merge(base, ours, theirs).messages
    theirs.set_tip("main", dropped.id)
    theirs.append("main", "user", "goes on")
    assert said(merge(base, ours, theirs), "main") == "start dropped goes on"


def test_settings_of_a_session_are_taken_from_the_side_that_changed() -> None:
    base = {**stored_history(), "system": "a", "sampling": {"top_k": 1}, "gone": 1}
    ours = {**base, "system": "b"}
    theirs = {**base, "sampling": {"top_k": 2}, "new": [1]}
    del theirs["gone"]
    merged = merge_sessions(base, ours, theirs)
    assert (merged["system"], merged["sampling"], merged["new"]) == ("b", {"top_k": 2}, [1])
    assert "gone" not in merged


# -- notebooks --------------------------------------------------------------------------------------------------


def run(
    history: History, notebook: nbformat.NotebookNode, cell: str, branch: str, *words: str, fork: bool = False
) -> None:
    """A chat cell that says each word in turn; its outputs carry what it made."""
    request = CellRun(history, cell)
    request.begin()
    if fork:
        request.fork(branch, history.active, None)
    node = nbformat.v4.new_code_cell(f"%%chat\n{words}", id=cell)
    for word in words:
        asked = history.append(branch, "user", word)
        answer = history.append(
            branch, "assistant", word.upper(), finish_reason=FinishReason.STOP, sampling={"seed": 1}
        )
        exchange = Exchange(branch, (asked, answer))
        request.own(exchange)
        carried = json.loads(json.dumps(exchange_metadata("default", history, [exchange])))
        node.outputs.append(nbformat.v4.new_output("display_data", {"text/markdown": word}, metadata=carried))
    request.finish()
    notebook.cells.append(node)


def notebook_and_history() -> tuple[nbformat.NotebookNode, History]:
    history, notebook = History(), nbformat.v4.new_notebook()
    history.set_system("main", "Be brief.")
    run(history, notebook, "one", "main", "a")
    history.append("main", "user", "added and not answered")
    run(history, notebook, "two", "main", "b", "c")
    run(history, notebook, "three", "side", "d", fork=True)
    run(history, notebook, "four", "side", "e")
    run(history, notebook, "five", "main", "f")
    return notebook, history


def test_outputs_alone_give_the_same_history() -> None:
    notebook, history = notebook_and_history()
    document = Document()
    fold_outputs(nbformat.from_dict(json.loads(json.dumps(notebook))), document)
    folded = load_history(document.sessions["default"])
    assert folded.messages == history.messages
    assert folded.order == history.order
    assert folded.cells == history.cells
    assert {n: r.tip for n, r in folded.branches.items()} == {n: r.tip for n, r in history.branches.items()}
    assert {n: r.forked_from for n, r in folded.branches.items()} == {
        n: r.forked_from for n, r in history.branches.items()
    }


def test_folding_twice_or_into_what_is_there_changes_nothing() -> None:
    notebook, history = notebook_and_history()
    document = Document({"default": dump_history(history)})
    for _ in range(2):
        fold_outputs(notebook, document)
        assert document.sessions == {"default": dump_history(history)}


def test_an_output_that_differs_from_the_entry_of_its_cell_wins() -> None:
    notebook, history = notebook_and_history()
    document = Document({"default": dump_history(history)})
    run(history, notebook, "one", "main", "new")
    notebook.cells[0] = notebook.cells.pop()
    fold_outputs(notebook, document)
    folded = load_history(document.sessions["default"])
    assert folded.cells["one"] == history.cells["one"]
    assert folded.cells["five"]


@pytest.mark.parametrize(
    "damage",
    [
        put("messages", value=3),
        put("messages", value=[3]),
        put("messages", 1, "role", value="robot"),
        put("messages", 1, "content", value=7),
        put("messages", 1, "content", value="\ud800"),
        put("messages", 1, "finish_reason", value="bored"),
        put("messages", 1, "tool_calls", value=[3]),
        put("messages", 1, "sampling", value=[1]),
        put("messages", 1, "parent", value="nope"),
        put("messages", 1, "parent", value=None),
        put("branch", value="7"),
        put("first", value="nope"),
        without("first"),
        without("session"),
        without("messages", 1, "id"),
        put("session", value={}),
    ],
)
def test_an_output_that_is_damaged_is_passed_over(damage: Callable[[Any], None]) -> None:
    notebook, history = History(), History()
    notebook = nbformat.v4.new_notebook()
    run(history, notebook, "one", "main", "a")
    run(history, notebook, "two", "main", "b")
    expected = Document()
    fold_outputs(notebook, expected)
    history.rewind("main")
    run(history, notebook, "bad", "main", "x")
    damage(notebook.cells[-1].outputs[0].metadata[KEY])
    document = Document()
    fold_outputs(notebook, document)
    if document.sessions.keys() == {"default"}:
        assert document == expected
    else:  # the session's name was the damage, and nothing of that name can stand alone
        assert "default" in document.sessions
        assert document.sessions["default"] == expected.sessions["default"]
    Document.from_dict(document.to_dict())


@pytest.mark.parametrize("carried", [3, "text", [], {}, {"session": "default"}])
def test_what_an_output_carries_may_be_anything(carried: Any) -> None:
    notebook = nbformat.v4.new_notebook()
    output = nbformat.v4.new_output("display_data", {"text/plain": "x"}, metadata={KEY: carried})
    notebook.cells.append(nbformat.v4.new_code_cell("x", outputs=[output]))
    document = Document()
    fold_outputs(notebook, document)
    assert document == Document()


def test_outputs_are_stripped_of_what_the_notebook_holds() -> None:
    notebook, _ = notebook_and_history()
    notebook.cells.append(nbformat.v4.new_markdown_cell("text"))
    notebook.cells[0].outputs[0].metadata["other"] = 1
    strip_outputs(notebook)
    assert KEY not in json.dumps(notebook.cells)
    assert notebook.cells[0].outputs[0].metadata == {"other": 1}


def test_notebooks_of_older_formats_get_the_same_cell_ids_each_time(tmp_path: Path) -> None:
    path = tmp_path / "old.ipynb"
    cell = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": None}
    path.write_text(json.dumps({"cells": [cell, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
    ids = [node.id for node in read_notebook(path).cells]
    assert ids == [node.id for node in read_notebook(path).cells]
    assert len(set(ids)) == 2
    nbformat.validate(read_notebook(path))


@pytest.mark.parametrize("content", [None, "", "{", "[]", "3", '{"nbformat": 4}', '{"nbformat": 99, "cells": []}'])
def test_what_is_no_notebook_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "bad.ipynb"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidArgumentError, match=r"bad\.ipynb"):
        read_notebook(path)
    with pytest.raises(InvalidArgumentError):
        read_notebook(tmp_path)


def test_ids_are_names_and_are_kept_even_where_the_form_they_are_made_of_changed() -> None:
    stored = {"active": "main", "branches": [{"name": "main", "tip": "old-name"}], "order": ["old-name"], "cells": {}}
    stored["messages"] = {"old-name": {"parent": None, "role": "user", "content": "a"}}
    history = load_history(stored)
    assert history.messages["old-name"] == Message("old-name", None, "user", "a")
    assert dump_history(history) == stored
