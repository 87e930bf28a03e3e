"""Random sequences of what people do to cells, against a model of the rules, in a real IPython shell."""

from __future__ import annotations

import _thread
import dataclasses
import pkgutil
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from IPython.core.interactiveshell import InteractiveShell

import llamanb
from llamanb import runtime
from llamanb.magics.display import AnswerDisplay
from llamanb.persistence.schema import load_history
from tests.magics.conftest import Notebook

Path = tuple[tuple[str, str], ...]
"""A message, told by all that is said up to it: that is what a content hash does."""

WORDS = st.sampled_from(["a b", "c d", "e f"])
NAMES = st.sampled_from(["main", "side", "more"])
CELLS = [f"cell-{n}" for n in range(4)]


def told(message: llamanb.Message) -> tuple[str, str]:
    cut = message.finish_reason is llamanb.FinishReason.CANCELLED
    return message.role, message.text + " (cut off)" * cut


def answered(text: str) -> str:
    return " ".join(reversed(text.split()))


@dataclass
class Entry:
    branch: str
    first: Path
    last: Path


@dataclass
class Branch:
    tip: Path
    point: Path = ()
    origin: str | None = None
    maker: str | None = None


@dataclass
class Model:
    """The rules of "Which cell is this?", with paths in place of trees."""

    branches: dict[str, Branch] = field(default_factory=dict)
    active: str = "main"
    cells: dict[str, list[Entry]] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)

    def holds(self, branch: str, path: Path) -> bool:
        return self.branches[branch].tip[: len(path)] == path

    def run(  # noqa: C901 - the rules, one by one
        self, cell: str, text: str, *, branch: str | None, fork: str | None, said: str | None
    ) -> bool:
        """Run a chat cell; `said` is what there is of the answer, ``None`` where it was stopped before a word."""
        before = {name: dataclasses.replace(b) for name, b in self.branches.items()}
        former = self.cells.get(cell, [])
        was_on_path = {entry.branch for entry in former if self.holds(entry.branch, entry.first)}
        for entry in former:
            if self.holds(entry.branch, entry.first[:-1]):
                self.branches[entry.branch].tip = entry.first[:-1]
        target = fork or branch or (former[0].branch if former else self.active)
        origin = branch or self.active
        if fork is not None and fork not in self.branches:
            point = self.branches[origin].tip
            self.branches[fork] = Branch(point, point, origin, cell)
        elif fork is not None and self.branches[fork].maker == cell:
            made = self.branches[fork]
            assert made.origin is not None
            if not self.holds(made.origin, made.point):
                made.point = self.branches[made.origin].tip
            made.tip = made.point
        elif fork is not None:
            said = None
        if said is None or target not in self.branches:
            self.branches = before
            return False
        first = (*self.branches[target].tip, ("user", text))
        last = (*first, ("assistant", said))
        self.branches[target].tip = last
        new = Entry(target, first, last)
        self.cells[cell] = [new]
        stale: set[str] = set()
        for entry in former:
            if entry.branch not in was_on_path:
                old, now = before[entry.branch].tip, self.branches[entry.branch].tip
                n_kept = next((n for n in range(len(old), -1, -1) if old[:n] == now[:n]), 0)
                stale |= set() if n_kept == len(old) else self.below(old[: n_kept + 1])
                continue
            if entry == new:
                self.branches[target].tip = before[target].tip
            else:
                shared = next((n for n in range(len(entry.last), -1, -1) if last[:n] == entry.last[:n]), 0)
                replaced = entry.last[: max(shared + 1, len(entry.first))] if shared < len(entry.last) else entry.last
                stale |= self.below(replaced)
        self.stale = (self.stale | stale) - {cell}
        return True

    def below(self, path: Path) -> set[str]:
        return {cell for cell, entries in self.cells.items() if any(e.first[: len(path)] == path for e in entries)}

    def mark(self, branch: str) -> None:
        for cell, entries in self.cells.items():
            on = [self.holds(branch, e.last) for e in entries if e.branch == branch]
            if on and not all(on):
                self.stale.add(cell)
            elif on and len(on) == len(entries):
                self.stale.discard(cell)

    def delete(self, cell: str) -> None:
        for entry in self.cells.pop(cell, []):
            if self.holds(entry.branch, entry.last):
                tip = self.branches[entry.branch].tip
                start, end = len(entry.first) - 1, len(entry.last)
                self.branches[entry.branch].tip = tip[:start] + tip[end:]
                for other, entries in self.cells.items():
                    for e in entries:
                        moved = tip[: len(e.last)] == e.last and len(e.first) > end
                        if e.branch == entry.branch and moved:
                            e.first = tip[:start] + e.first[end:]
                            e.last = tip[:start] + e.last[end:]
                            self.stale.add(other)
        self.stale.discard(cell)


class Rules(RuleBasedStateMachine):
    """A person and two documents with a kernel."""

    @initialize()
    def start(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.engine = llamanb.ScriptedEngine(self.reply, seconds_per_token=0.0)
        self.interrupt: str | None = None
        self.model = Model({"main": Branch(())})
        self.sources: dict[str, tuple[str, str | None, str | None]] = {}
        self.n_copies = 0
        # Greedy, so that a message is told by what is said up to it alone: a seed would be part of it too.
        self.boot(llamanb.ChatSession(self.engine, sampling=llamanb.SamplingParams(temperature=0)))

    def boot(self, session: llamanb.ChatSession) -> None:
        shell = InteractiveShell.instance()
        shell.run_line_magic("unload_ext", "llamanb")
        self.patch.setattr(runtime, "_runtime", None)
        shell.run_line_magic("load_ext", "llamanb")
        llamanb.use_session(session)
        self.notebook = Notebook(shell)

    def teardown(self) -> None:
        InteractiveShell.instance().run_line_magic("unload_ext", "llamanb")
        self.patch.undo()
        InteractiveShell.instance().run_line_magic("load_ext", "llamanb")

    def reply(self, request: llamanb.GenerationRequest) -> str:
        if self.interrupt == "before a word":
            (generation,) = self.engine._running.values()
            _thread.interrupt_main()
            generation.wait_cancelled(10)
        return answered(request.messages[-1].text)

    @rule(cell=st.sampled_from(CELLS), text=WORDS, branch=st.none() | NAMES, fork=st.none() | NAMES)
    def run(self, cell: str, text: str, branch: str | None, fork: str | None) -> None:
        self.sources[cell] = (text, branch, fork)
        self.rerun(cell)

    @rule(cell=st.sampled_from(CELLS))
    def rerun(self, cell: str, said: str | None = "") -> None:
        if cell not in self.sources:
            return
        text, branch, fork = self.sources[cell]
        line = "%%chat" + (f" -b {branch}" if branch else "") + (f" --fork {fork}" if fork else "")
        outcome = self.notebook.run(f"{line}\n{text}", cell)
        known = branch is None or branch in self.model.branches
        expected = known and self.model.run(
            cell, text, branch=branch, fork=fork, said=answered(text) if said == "" else said
        )
        assert outcome.success == bool(expected), outcome

    @rule(cell=st.sampled_from(CELLS))
    def interrupt_before_a_word(self, cell: str) -> None:
        if cell in self.sources:
            self.interrupt = "before a word"
            try:
                self.rerun(cell, None)
            finally:
                self.interrupt = None

    @rule(cell=st.sampled_from(CELLS))
    def interrupt_in_an_answer(self, cell: str) -> None:
        if cell not in self.sources:
            return
        text, branch, fork = self.sources[cell]
        known = branch is None or branch in self.model.branches
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.engine, "_seconds_per_token", 0.05)
            patch.setattr(AnswerDisplay, "add", stopped)
            line = "%%chat" + (f" -b {branch}" if branch else "") + (f" --fork {fork}" if fork else "")
            outcome = self.notebook.run(f"{line}\n{text}", cell, watched=True)
        assert not outcome.success
        if known and "answer so far is kept" in outcome.error:
            (entry,) = self.notebook.session.history.cells[cell]
            message = self.notebook.session.history.messages[entry.last]
            assert message.text
            assert answered(text).startswith(message.text)
            said = told(message)[1]
            assert self.model.run(cell, text, branch=branch, fork=fork, said=said)
        else:
            assert not (known and self.model.run(cell, text, branch=branch, fork=fork, said=None))

    @rule(cell=st.sampled_from(CELLS))
    def copy(self, cell: str) -> None:
        if cell in self.sources and self.sources[cell][2] is None:
            self.n_copies += 1
            twin = f"copy-{self.n_copies}"
            self.sources[twin] = self.sources[cell]
            self.rerun(twin)

    @rule(cell=st.sampled_from(CELLS))
    def delete(self, cell: str) -> None:
        self.notebook.session.history.take_off(cell)
        self.model.delete(cell)
        self.sources.pop(cell, None)

    @rule(name=NAMES)
    def switch(self, name: str) -> None:
        assert self.notebook.run(f"%chat_switch {name}").success == (name in self.model.branches)
        if name in self.model.branches:
            self.model.active = name

    @rule(name=NAMES)
    def adopt(self, name: str) -> None:
        assert self.notebook.run(f"%chat_adopt {name}").success == (name in self.model.branches)
        if name in self.model.branches:
            self.model.branches[self.model.active].tip = self.model.branches[name].tip
            self.model.mark(self.model.active)

    @rule(name=NAMES)
    def rewind(self, name: str) -> None:
        able = name in self.model.branches and bool(self.model.branches[name].tip)
        assert self.notebook.run(f"%chat_rewind -b {name}").success == able
        if able:
            tip = self.model.branches[name].tip
            start = max(n for n, (role, _) in enumerate(tip) if role == "user")
            self.model.branches[name].tip = tip[:start]
            self.model.mark(name)

    @rule()
    def restart(self) -> None:
        stored = self.notebook.session.to_dict()
        self.boot(llamanb.ChatSession.from_dict(stored, self.engine))

    @invariant()
    def the_session_is_as_the_rules_say(self) -> None:
        history = self.notebook.session.history

        def path(id: str | None) -> Path:
            return tuple(told(message) for message in history.path(id))

        assert {name: path(record.tip) for name, record in history.branches.items()} == {
            name: branch.tip for name, branch in self.model.branches.items()
        }
        assert history.active == self.model.active
        assert {
            cell: [Entry(e.branch, path(e.first), path(e.last)) for e in entries]
            for cell, entries in history.cells.items()
        } == self.model.cells
        assert history.stale == self.model.stale

    @invariant()
    def the_tree_is_whole_and_nothing_was_lost(self) -> None:
        session = self.notebook.session
        stored = session.to_dict()
        again = load_history(stored)
        assert list(again.messages) == list(session.history.messages)
        seen = getattr(self, "seen", set())
        assert seen <= set(again.messages)
        self.seen = set(again.messages)


def stopped(display: AnswerDisplay, pieces: list[tuple[int, str]]) -> None:
    raise KeyboardInterrupt


def test_whatever_is_done_to_cells_the_session_is_as_the_rules_say(notebook: Any) -> None:
    run_state_machine_as_test(
        Rules,
        settings=settings(
            max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("llamanb.session:ChatSession", "ask_many"),
        ("llamanb.magics.chat", "_display"),
        ("llamanb.magics.chat", "_branches"),
        ("llamanb.runtime:Runtime", "cell_run"),
    ],
)
def test_an_interrupt_at_any_moment_is_one_line_and_leaves_the_conversation_as_it_was(
    notebook: Any, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    notebook.run("%%chat\none", "a")
    before = notebook.session.to_dict()
    where = pkgutil.resolve_name(module)
    original = getattr(where, name)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        returned = original(*arguments, **options)
        del returned
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, name, interrupted)
        outcome = notebook.run("%%chat\ntwo", "a")
    assert not outcome.success
    assert outcome.error in (
        "nothing was said yet, and the conversation is as it was.",
        "the command was stopped.",
    )
    if notebook.session.to_dict() != before:  # the answer may have been quicker; then it is in the tree
        assert "two" in [message.text for message in notebook.session.history.messages.values()]
    assert notebook.run("%%chat\nthree", "b").success


def test_an_interrupt_while_another_answer_is_asked_for_leaves_the_branch_ready(
    notebook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run("%%chat\none", "a")
    before = notebook.session.to_dict()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(notebook.session, "_stream", interrupted)
        assert notebook.run("%chat_regenerate -t 1", "r").error.startswith("nothing was said yet")
        assert notebook.session.to_dict() == before
        assert notebook.run("%%chat\ntwo", "b").error.startswith("nothing was said yet")
        assert notebook.session.to_dict() == before
    assert notebook.run("%chat_regenerate -t 1", "r").success
