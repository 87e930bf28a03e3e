"""Running a cell again: what is put back, what becomes stale, and where forks start."""

from __future__ import annotations

import pytest

from llamanb.cells import CellRun
from llamanb.errors import BranchError
from llamanb.history import Exchange, History
from llamanb.persistence.schema import dump_history


def run(
    history: History, cell: str | None, text: str, branch: str | None = None, answer: str | None = None
) -> set[str]:
    """What one execute request of a `%%chat` cell does; returns the cells that became stale."""
    request = CellRun(history, cell)
    request.begin()
    answered(request, branch or request.recorded_branch() or history.active, text, answer)
    return request.finish()


def run_fork(history: History, cell: str | None, name: str, text: str, at: str | None = None) -> set[str]:
    request = CellRun(history, cell)
    request.begin()
    request.fork(name, history.active, at)
    answered(request, name, text)
    return request.finish()


def answered(request: CellRun, branch: str, text: str, answer: str | None = None) -> None:
    history = request.history
    asked = history.append(branch, "user", text)
    reply = history.append(branch, "assistant", text.upper() if answer is None else answer)
    request.own(Exchange(branch, (asked, reply)))


def said(history: History, branch: str = "main") -> str:
    return " ".join(message.text for message in history.branch_path(branch) if message.role == "user")


@pytest.fixture
def three() -> History:
    """Cells 1, 2 and 3 said a, b and c."""
    history = History()
    for cell, text in (("1", "a"), ("2", "b"), ("3", "c")):
        assert run(history, cell, text) == set()
    return history


def test_running_everything_again_unchanged_is_silent(three: History) -> None:
    before = dump_history(three)
    for cell, text in (("1", "a"), ("2", "b"), ("3", "c"), ("2", "b")):
        assert run(three, cell, text) == set()
        assert dump_history(three) == before
    assert three.stale == set()


def test_a_changed_cell_ends_the_branch_and_makes_later_cells_stale(three: History) -> None:
    assert run(three, "2", "x") == {"3"}
    assert said(three) == "a x"
    assert three.stale == {"3"}


def test_another_answer_to_the_same_question_is_a_change_too(three: History) -> None:
    assert run(three, "2", "b", answer="another") == {"3"}
    assert said(three) == "a b"


def test_a_stale_cell_that_runs_is_stale_no_more(three: History) -> None:
    run(three, "1", "x")
    assert three.stale == {"2", "3"}
    run(three, "2", "b")
    assert three.stale == {"3"}
    run(three, "3", "c")
    assert three.stale == set()
    assert said(three) == "x b c"


def test_cells_of_branches_that_descend_from_what_was_replaced_are_stale_too(three: History) -> None:
    run_fork(three, "4", "side", "d")
    run(three, "5", "e", branch="side")
    run_fork(three, "6", "early", "f", at="1")
    assert run(three, "2", "x") == {"3", "4", "5"}
    assert said(three, "side") == "a b c d e"
    assert said(three, "early") == "a f"


def test_off_the_path_with_its_parent_on_it_a_cell_rewinds_to_the_parent(three: History) -> None:
    three.rewind("main", 2)  # cell 2 and 3 are off; 1 is on
    assert run(three, "4", "y") == set()
    assert run(three, "2", "x") == {"4"}  # its exchange came in place of what was off, and is off itself now
    assert said(three) == "a x"


def test_off_the_path_the_former_tip_does_not_come_back(three: History) -> None:
    three.rewind("main", 2)
    run(three, "2", "b")
    assert said(three) == "a b"


def test_with_neither_exchange_nor_parent_on_the_path_a_cell_appends(three: History) -> None:
    three.rewind("main", 3)
    run(three, "4", "y")
    run(three, "3", "c")
    assert said(three) == "y c"


@pytest.mark.parametrize("cell", ["1", "2", "3"])
def test_a_run_that_fails_leaves_everything_as_before(three: History, cell: str) -> None:
    before = dump_history(three)
    request = CellRun(three, cell)
    request.begin()
    request.fork("side", "main", None)
    assert request.finish() == set()
    assert dump_history(three) == before
    assert three.stale == set()


def test_a_fork_cell_that_fails_when_it_runs_again_leaves_its_branch_as_before(three: History) -> None:
    run_fork(three, "4", "side", "d")
    before = dump_history(three)
    request = CellRun(three, "4")
    request.begin()
    request.fork("side", "main", "0")
    request.finish()
    assert dump_history(three) == before


def test_without_an_id_every_run_appends_and_owns_nothing(three: History) -> None:
    run(three, None, "c")
    run(three, None, "c")
    assert said(three) == "a b c c c"
    assert list(three.cells) == ["1", "2", "3"]


def test_a_cell_runs_again_on_its_recorded_branch_and_a_new_one_on_the_active_one(three: History) -> None:
    three.fork("side", three.tip("main"))
    three.switch("side")
    run(three, "3", "c")
    run(three, "4", "d")
    assert (said(three), said(three, "side")) == ("a b c", "a b c d")


def test_a_cell_whose_branch_is_gone_answers_on_the_active_one(three: History) -> None:
    run_fork(three, "4", "side", "d")
    three.remove_branch("side")
    assert CellRun(three, "4").recorded_branch() is None
    run(three, "4", "d")
    assert said(three) == "a b c d"


def test_a_fork_cell_restarts_its_branch_from_the_recorded_point(three: History) -> None:
    run_fork(three, "4", "side", "d")
    run(three, "5", "e")
    before = dump_history(three)
    assert run_fork(three, "4", "side", "d") == set()
    assert dump_history(three) == before
    assert run_fork(three, "4", "side", "x") == set()
    assert (said(three), said(three, "side")) == ("a b c e", "a b c x")


def test_a_fork_cell_unchanged_puts_back_what_followed_on_its_branch(three: History) -> None:
    run_fork(three, "4", "side", "d")
    run(three, "5", "e", branch="side")
    assert run_fork(three, "4", "side", "d") == set()
    assert said(three, "side") == "a b c d e"
    assert run_fork(three, "4", "side", "x") == {"5"}
    assert said(three, "side") == "a b c x"


def test_a_fork_cell_whose_point_is_gone_starts_at_the_tip_of_the_origin(three: History) -> None:
    run_fork(three, "4", "side", "d")
    run(three, "2", "x")
    run_fork(three, "4", "side", "d")
    assert said(three, "side") == "a x d"
    assert three.branch("side").forked_from == three.tip("main")


def test_a_fork_cell_with_another_reference_starts_there(three: History) -> None:
    run_fork(three, "4", "side", "d", at="1")
    assert said(three, "side") == "a d"
    run_fork(three, "4", "side", "d", at="3")
    assert said(three, "side") == "a b d"


@pytest.mark.parametrize("cell", ["5", "2", None])
def test_the_name_of_another_cells_branch_is_refused(three: History, cell: str | None) -> None:
    run_fork(three, "4", "side", "d")
    for name in ("side", "main"):
        before = dump_history(three)
        request = CellRun(three, cell)
        request.begin()
        with pytest.raises(BranchError, match=f"'{name}' already"):
            request.fork(name, "main", None)
        request.finish()
        assert dump_history(three) == before


def test_a_fork_of_a_branch_by_its_name_comes_from_that_branch(three: History) -> None:
    run_fork(three, "4", "side", "d")
    run_fork(three, "5", "deeper", "e", at="side")
    assert three.branch("deeper").from_branch == "side"
    assert said(three, "deeper") == "a b c d e"


def test_two_answers_in_one_request_join_in_one_entry() -> None:
    history = History()
    for _ in range(2):
        request = CellRun(history, "1")
        request.begin()
        answered(request, "main", "a")
        request.begin()
        answered(request, "main", "b")
        assert request.finish() == set()
        assert said(history) == "a b"
        path = history.branch_path("main")
        assert [(e.first, e.last) for e in history.cells["1"]] == [(path[0].id, path[3].id)]


def test_answers_on_two_branches_are_two_entries(three: History) -> None:
    three.fork("side", three.tip("main"))
    for _ in range(2):
        request = CellRun(three, "4")
        request.begin()
        answered(request, "main", "d")
        answered(request, "side", "e")
        assert request.finish() == set()
        assert [entry.branch for entry in three.cells["4"]] == ["main", "side"]
        assert (said(three), said(three, "side")) == ("a b c d", "a b c e")


def test_a_second_answer_that_is_new_leaves_the_first_and_makes_later_cells_stale() -> None:
    history = History()
    for second in ("b", "x"):
        request = CellRun(history, "1")
        request.begin()
        answered(request, "main", "a")
        answered(request, "main", second)
        stale = request.finish()
        if second == "b":
            assert run(history, "2", "c") == set()
    assert stale == {"2"}
    assert said(history) == "a x"


def test_a_cell_that_answers_in_another_session_leaves_this_one(three: History) -> None:
    request = CellRun(three, "2")
    request.begin()
    assert request.finish(moved=True) == {"3"}
    assert "2" not in three.cells
    assert said(three) == "a"
