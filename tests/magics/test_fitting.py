"""What cells show and own where a conversation does not fit any more."""

from __future__ import annotations

from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import llamanb
from llamanb.persistence.notebook import fold_outputs
from llamanb.persistence.schema import Document, load_history
from llamanb.summarising import SUMMARY_PROMPT


def answer(request: llamanb.GenerationRequest) -> str:
    if request.messages[-1].text == SUMMARY_PROMPT:
        return f"We said {len(request.messages)} things."
    return f"I was told {sum(len(m.text) for m in request.messages)} characters."


@pytest.fixture
def small(notebook: Any) -> Any:
    """A notebook whose model has a small window."""
    engine = llamanb.ScriptedEngine(answer, n_ctx=900)
    sampling = llamanb.SamplingParams(max_tokens=60)
    llamanb.use_session(llamanb.ChatSession(engine, "Be brief.", sampling), replace=True)
    return notebook


def run_all(notebook: Any, n: int = 9) -> list[Any]:
    return [notebook.run(f"%%chat\nTell me more about the number {i}.", f"c{i}") for i in range(n)]


def test_a_conversation_that_does_not_fit_fails_in_one_line_and_a_setting_mends_it(small: Any) -> None:
    outcomes = run_all(small)
    failed = next(i for i, outcome in enumerate(outcomes) if not outcome.success)
    assert "context window holds 900" in outcomes[failed].error
    assert small.run("%chat_config overflow=drop_oldest").success
    mended = small.run(f"%%chat -o reply\nTell me more about the number {failed}.", f"c{failed}")
    gone = small.shell.user_ns["reply"].plan.left_out
    note = f"({len(gone)} earlier messages did not fit: left out of the prompt.)"
    assert mended.markdown.endswith(f"*{note}*")
    assert mended.outputs[0].data["text/plain"].endswith(note)
    assert note not in small.session.messages[-1].text
    shown = small.run("%chat_context").outputs[0].data
    assert f"on branch 'main' ({len(gone)} earlier messages left out):" in shown["text/plain"]
    assert gone[0].text not in shown["text/plain"]
    wrong = small.run("%chat_config overflow=shrink")
    assert "error, drop_oldest" in wrong.error
    assert small.session.overflow == "drop_oldest"


@pytest.mark.parametrize("overflow", ["drop_oldest", "summarise"])
def test_running_everything_again_changes_nothing(small: Any, overflow: str) -> None:
    small.run(f"%chat_config overflow={overflow}")
    first = run_all(small)
    assert all(outcome.success for outcome in first)
    assert "did not fit" in first[-3].markdown + first[-2].markdown + first[-1].markdown
    before = small.session.to_dict()
    again = run_all(small)
    assert [outcome.markdown for outcome in again] == [outcome.markdown for outcome in first]
    assert small.session.to_dict() == before
    assert not small.session.history.stale


def test_a_changed_cell_above_a_summary_makes_the_cells_below_it_stale(small: Any) -> None:
    small.run("%chat_config overflow=summarise")
    run_all(small)
    small.run("%%chat\nSomething else.", "c1")
    assert small.session.history.stale == {f"c{i}" for i in range(2, 9)}
    assert [m.text for m in small.session.messages if m.role == "user"][1:] == ["Something else."]
    assert small.session.messages[1].text.startswith("Tell me")


def test_a_rewind_below_a_summary_leaves_the_cells_above_it_alone(small: Any) -> None:
    small.run("%chat_config overflow=summarise")
    run_all(small)
    small.run("%chat_rewind")
    assert small.session.history.stale == {"c8"}


def test_a_fork_from_what_was_summed_up_starts_there(small: Any) -> None:
    small.run("%chat_config overflow=summarise")
    run_all(small)
    third = next(m for m in small.session.history.messages.values() if m.text == "Tell me more about the number 2.")
    source = f"%%chat --fork other --at {third.parent}\nAnd now?"
    assert small.run(source, "f").success
    path = small.session.branches["other"].messages
    assert [m.text for m in path if m.role == "user"] == [
        "Tell me more about the number 0.",
        "Tell me more about the number 1.",
        "And now?",
    ]
    assert small.session.history.branches["other"].from_branch == "main"
    tip = small.session.branches["other"].tip
    assert small.run(source, "f").success
    assert small.session.branches["other"].tip == tip


def test_outputs_alone_rebuild_a_conversation_that_was_summed_up(small: Any) -> None:
    small.run("%chat_config overflow=summarise")
    document = new_notebook()
    for i, outcome in enumerate(run_all(small)):
        (output,) = outcome.outputs
        shown = new_output("display_data", output.data, metadata=output.metadata)
        document.cells.append(new_code_cell("%%chat", id=f"c{i}", outputs=[shown]))
    folded = Document()
    fold_outputs(document, folded)
    rebuilt, live = load_history(folded.sessions["default"]), small.session.history
    assert rebuilt.branch_path("main") == live.branch_path("main")
    assert rebuilt.cells == live.cells


def test_what_is_pinned_stays_and_is_marked(small: Any) -> None:
    small.run("%chat_config overflow=drop_oldest")
    small.run("%%chat --pin\nMy name is Ada.", "p")
    run_all(small, 10)
    shown = small.run("%chat_context").outputs[0].data
    assert "My name is Ada." in shown["text/plain"]
    assert shown["text/plain"].count(", pinned") == 1
    assert shown["text/html"].count("· pinned") == 1
    assert small.run("%chat_pin 1 --off").text == "The user message 'My name is Ada.' may be left out again.\n"
    small.run("%%chat\nTell me more about the number 10.", "c10")
    assert "Ada" not in small.run("%chat_context").outputs[0].data["text/plain"]
    said = small.run("%chat_pin").text
    assert said.startswith("The assistant message 'I was told")
    assert said.endswith("stays in the prompt.\n")
    assert "nowhere" in small.run("%chat_pin nowhere").error
