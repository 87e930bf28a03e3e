"""The tree: nothing is overwritten, a failed command changes nothing, and branches are paths whatever is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llamanb.errors import BranchError, LlamanbError, MessageNotFoundError
from llamanb.history import CellEntry, Exchange, History
from llamanb.messages import Message
from llamanb.persistence.schema import dump_history

words = st.sampled_from(["a", "b", "c"])
names = st.sampled_from(["main", "x", "y", "z", "-bad", "7", "", "no such"])
cells = st.sampled_from(["c1", "c2", "c3"])


class HistoryMachine(RuleBasedStateMachine):
    """Any commands in any order, with good and bad arguments."""

    @initialize()
    def start(self) -> None:
        self.history = History()
        self.made: dict[str, Message] = {}
        self.pruned: set[str] = set()

    def tried(self, command: Callable[..., Any], *arguments: Any) -> Any:
        before = (dump_history(self.history), set(self.history.stale))
        try:
            result = command(*arguments)
        except LlamanbError:
            assert (dump_history(self.history), self.history.stale) == before
            return None
        self.made.update(self.history.messages)
        return result

    @rule(branch=names, role=st.sampled_from(["user", "assistant", "tool", "robot"]), text=words)
    def append(self, branch: str, role: str, text: str) -> None:
        self.tried(self.history.append, branch, role, text)

    @rule(branch=names, text=words, answer=words, cell=cells)
    def ask(self, branch: str, text: str, answer: str, cell: str) -> None:
        if branch in self.history.branches:
            asked = self.history.append(branch, "user", text)
            exchange = Exchange(branch, (asked, self.history.append(branch, "assistant", answer)))
            self.history.cells.setdefault(cell, []).append(exchange.entry)
            self.made.update(self.history.messages)

    @rule(name=names, branch=names, reference=st.integers(-3, 6) | names | st.just("abcd"))
    def fork(self, name: str, branch: str, reference: int | str) -> None:
        def command() -> None:
            self.history.fork(name, self.history.resolve(reference, branch), from_branch=branch)

        self.tried(command)

    @rule(name=names)
    def switch(self, name: str) -> None:
        self.tried(self.history.switch, name)

    @rule(branch=names, n=st.integers(-1, 4))
    def rewind(self, branch: str, n: int) -> None:
        before = self.history.exchanges(branch) if branch in self.history.branches else []
        if self.tried(lambda: self.history.rewind(branch, n) or True):
            assert self.history.exchanges(branch) == before[: len(before) - n]

    @rule(branch=names, data=st.data(), text=words)
    def edit(self, branch: str, data: Any, text: str) -> None:
        id = data.draw(st.sampled_from([*self.history.messages, "no such id"]))
        edited = self.tried(self.history.edit, branch, id, text)
        if edited is not None:
            assert (edited.parent, edited.role) == (self.made[id].parent, self.made[id].role)
            assert self.history.tip(branch) == edited.id

    @rule(branch=names, other=names)
    def adopt(self, branch: str, other: str) -> None:
        self.tried(self.history.adopt, branch, other)

    @rule(name=names)
    def remove_branch(self, name: str) -> None:
        self.tried(self.history.remove_branch, name)

    @rule(branch=names, system=st.none() | words)
    def set_system(self, branch: str, system: str | None) -> None:
        self.tried(self.history.set_system, branch, system)

    @rule(name=names, branch=names, system=st.none() | words)
    def fork_below_another_system_prompt(self, name: str, branch: str, system: str | None) -> None:
        if branch in self.history.branches:
            copied = self.history.copy_below(system, self.history.branch_path(branch))
            self.made.update(self.history.messages)
            self.tried(self.history.fork, name, copied)

    @rule(cell=cells)
    def take_off(self, cell: str) -> None:
        self.tried(self.history.take_off, cell)
        assert cell not in self.history.cells
        assert cell not in self.history.stale

    @rule()
    def prune(self) -> None:
        gone = set(self.history.unreachable())
        assert self.tried(self.history.prune) == len(gone)
        self.pruned |= gone
        assert self.history.unreachable() == []

    @invariant()
    def nothing_is_lost_or_changed(self) -> None:
        for id, message in self.made.items():
            if id in self.history.messages:
                assert self.history.messages[id] == message
                self.pruned.discard(id)  # what was pruned may be said again
            else:
                assert id in self.pruned
            assert Message.from_dict(id, message.to_dict()).below(message.parent).id == id == message.id

    @invariant()
    def branches_are_paths_and_parents_come_first(self) -> None:
        history = self.history
        assert history.active in history.branches
        seen: set[str | None] = {None}
        for message in history.messages.values():
            assert message.parent in seen
            seen.add(message.id)
        assert history.order == list(history.messages)
        for name, record in history.branches.items():
            path = history.branch_path(name)
            assert record.name == name
            assert [m.parent for m in path] == [None, *(m.id for m in path)][: len(path)]
            assert (path[-1].id if path else None) == record.tip
            exchanged = [m for exchange in history.exchanges(name) for m in exchange.messages]
            assert exchanged == path[len(path) - len(exchanged) :]
            assert record.forked_from is None or record.forked_from in history.messages
        for entries in history.cells.values():
            assert entries
            assert all(e.first in history.messages and e.last in history.messages for e in entries)

    @invariant()
    def a_copy_is_apart(self) -> None:
        twin = self.history.copy()
        assert dump_history(twin) == dump_history(self.history)
        twin.append(twin.active, "user", "only here, so the original has no such thing")
        twin.cells.setdefault("c1", []).append(CellEntry("main", "", ""))
        twin.stale.add("c9")
        assert len(twin.messages) == len(self.history.messages) + 1
        assert not [e for entries in self.history.cells.values() for e in entries if not e.first]
        assert "c9" not in self.history.stale


HistoryMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestHistory = HistoryMachine.TestCase


def history_of(*texts: str) -> History:
    """Questions and answers on `main`; cell `c0` made the first exchange, and so on."""
    history = History()
    for index, text in enumerate(texts):
        asked = history.append("main", "user", text)
        answered = history.append("main", "assistant", text.upper())
        history.cells[f"c{index}"] = [Exchange("main", (asked, answered)).entry]
    return history


def said(history: History, branch: str = "main") -> list[str]:
    return [message.text for message in history.branch_path(branch)]


def test_the_same_said_again_is_the_same_message() -> None:
    history = history_of("a", "b")
    order = history.order
    history.rewind("main")
    history.append("main", "user", "b")
    history.append("main", "assistant", "B")
    assert history.order == order


def test_an_edit_is_a_sibling_and_the_original_stays() -> None:
    history = history_of("a", "b")
    old = history.branch_path("main")[2]
    new = history.edit("main", old.id, "c")
    assert said(history) == ["a", "A", "c"]
    assert history.siblings(old.id) == [old, new]
    assert len(history.unreachable()) == 2


def test_a_reference_is_a_branch_an_index_an_id_or_the_start_of_one() -> None:
    history = history_of("a", "b")
    path = [message.id for message in history.branch_path("main")]
    history.fork("other", path[1])
    assert history.resolve("other", "main") == path[1]
    assert [history.resolve(i, "main") for i in (0, -1, "2", "-4")] == [path[0], path[3], path[2], path[0]]
    assert history.resolve(path[2], "other") == history.resolve(path[2][:12], "other") == path[2]
    history.fork("empty", None)
    assert history.resolve("empty", "main") is None


@pytest.mark.parametrize("reference", [4, -5, "4", "none", "", "abc", "ab c", "²", "-", "--1", "1.5"])
def test_a_reference_to_nothing_is_not_found(reference: int | str) -> None:
    with pytest.raises(MessageNotFoundError):
        history_of("a", "b").resolve(reference, "main")


def test_the_start_of_two_ids_is_refused() -> None:
    history = History()
    for id in ("abcd1", "abcd2"):
        history.add(Message(id, None, "user", id))
    with pytest.raises(MessageNotFoundError, match="start of 2"):
        history.resolve("abcd", "main")


def test_a_branch_that_is_unknown_is_told_those_that_there_are() -> None:
    with pytest.raises(BranchError, match=r"'nope'.*'main'"):
        History().branch("nope")


@pytest.mark.parametrize("name", ["", " a", "a,b", "-x", "3", "-3", "a\nb", 'a"b', "it's", "a "])
def test_a_name_that_could_be_misread_is_refused(name: str) -> None:
    with pytest.raises(BranchError, match="cannot be a branch's name"):
        History().fork(name, None)


def test_the_active_branch_and_unknown_ones_cannot_be_removed() -> None:
    history = history_of("a")
    for name in ("main", "nope"):
        with pytest.raises(BranchError):
            history.remove_branch(name)


def test_a_system_prompt_is_set_only_while_the_branch_has_no_other_message() -> None:
    history = History()
    history.set_system("main", "one")
    history.set_system("main", "two")
    assert said(history) == ["two"]
    history.append("main", "user", "a")
    history.set_system("main", "two")
    with pytest.raises(BranchError, match=r"fork\(name, system="):
        history.set_system("main", "three")
    history.fork("other", history.copy_below("three", history.branch_path("main")))
    assert said(history, "other") == ["three", "a"]
    assert said(history) == ["two", "a"]


def test_a_deleted_cell_leaves_its_branch_and_what_followed_closes_up() -> None:
    history = history_of("a", "b", "c")
    history.fork("side", history.tip("main"))
    assert history.take_off("c1") == 1
    assert said(history) == ["a", "A", "c", "C"]
    assert said(history, "side") == ["a", "A", "b", "B", "c", "C"]
    assert history.stale == {"c2"}
    assert history.cells["c2"][0].last == history.tip("main")
    assert history.take_off("c1") == 0
    history.remove_branch("side")
    assert history.prune() == 4


def test_pruning_takes_with_it_what_refers_to_what_is_gone() -> None:
    history = history_of("a", "b")
    history.fork("side", history.tip("main"))
    history.rewind("main")
    history.rewind("side")
    history.stale.add("c1")
    assert history.prune() == 2
    assert list(history.cells) == ["c0"]
    assert history.stale == set()
    assert history.branch("side").forked_from is None


def test_the_cells_below_a_message_are_those_of_every_branch() -> None:
    history = history_of("a", "b")
    history.fork("side", history.branch_path("main")[1].id)
    asked = history.append("side", "user", "x")
    history.cells["side cell"] = [Exchange("side", (asked, asked)).entry]
    assert history.cells_below(history.branch_path("main")[0].id) == {"c0", "c1", "side cell"}
    assert history.cells_below(history.branch_path("main")[2].id) == {"c1"}


def test_a_branch_with_a_message_is_the_preferred_one_or_the_oldest() -> None:
    history = history_of("a", "b")
    path = history.branch_path("main")
    history.fork("side", path[1].id)
    assert history.branch_with(path[0].id, "side") == "side"
    assert history.branch_with(path[3].id, "side") == "main"
    history.rewind("main")
    assert history.branch_with(path[3].id, "side") is None
    assert history.branch_with(None, "side") == "side"


def test_a_deep_tree_is_drawn_without_recursion() -> None:
    history = History()
    for _ in range(3000):
        history.append("main", "user", "again")
    assert len(history.tree_lines()) == 3000


def test_renaming_a_branch_takes_along_what_refers_to_it() -> None:
    history = History()
    asked = history.append("main", "user", "one")
    history.cells["cell"] = [CellEntry("main", asked.id, asked.id)]
    history.fork("side", asked.id, from_branch="main")
    history.rename_branch("main", "trunk")
    assert list(history.branches) == ["trunk", "side"]
    assert history.active == "trunk"
    assert history.branches["side"].from_branch == "trunk"
    assert history.cells["cell"] == [CellEntry("trunk", asked.id, asked.id)]
    for name, new in (("trunk", "side"), ("trunk", ""), ("nowhere", "x")):
        with pytest.raises(BranchError):
            history.rename_branch(name, new)
    assert list(history.branches) == ["trunk", "side"]


def test_going_to_another_message_comes_back_to_where_one_was() -> None:
    history = History()
    asked = history.append("main", "user", "one")
    first = history.append("main", "assistant", "first")
    more = history.append("main", "user", "more")
    history.append("main", "assistant", "end")
    history.set_tip("main", asked.id)
    second = history.append("main", "assistant", "second")
    history.go_to(first.id)
    assert [m.text for m in history.branch_path("main")] == ["one", "first", "more", "end"]
    history.set_tip("main", more.id)  # where one was last is not where most was said
    history.go_to(second.id)
    assert [m.text for m in history.branch_path("main")] == ["one", "second"]
    history.go_to(first.id)
    assert [m.text for m in history.branch_path("main")] == ["one", "first", "more"]
    assert history.active == "main"
    with pytest.raises(MessageNotFoundError):
        history.go_to("nowhere")


def test_going_to_what_another_branch_says_makes_that_the_active_one() -> None:
    history = History()
    asked = history.append("main", "user", "one")
    mine = history.append("main", "assistant", "mine")
    history.fork("side", asked.id)
    theirs = history.append("side", "assistant", "theirs")
    history.append("side", "user", "and on")
    history.go_to(theirs.id)
    assert history.active == "side"
    assert history.tip("main") == mine.id
    assert history.branch_path("side")[-1].text == "and on"
    history.go_to(mine.id)
    assert history.active == "main"
