"""What fits into the context window: plans, overflow policies, pins, and why an answer ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import llamanb
from llamanb import ChatSession, SamplingParams
from llamanb.engine.base import Engine
from llamanb.errors import ContextWindowExceededError, EngineError, InvalidArgumentError
from llamanb.messages import FinishReason
from llamanb.summarising import SUMMARY_PROMPT

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


def small(replies: Any = None, n_ctx: int = 600) -> llamanb.ScriptedEngine:
    """An engine with a small window that answers with the last word of a question."""
    script = replies or (lambda request: request.messages[-1].text.split()[-1])
    return llamanb.ScriptedEngine(script, n_ctx=n_ctx)


def words(messages: Any) -> list[str]:
    return [message.text for message in messages]


@pytest.fixture
def short_llama() -> Iterator[llamanb.LlamaCppEngine]:
    with llamanb.LlamaCppEngine(n_ctx=256) as engine:
        yield engine


def talked(session: ChatSession, n: int) -> ChatSession:
    for i in range(n):
        session.send(f"Question {i} about number{i}")
    return session


# -- the plan of a send ------------------------------------------------------------------------------------------


def test_a_plan_counts_what_the_send_then_costs(engine: Engine) -> None:
    session = ChatSession(engine, "Be brief.", GREEDY)
    plan = session.plan("Name a colour.", max_tokens=5)
    reply = session.send("Name a colour.", max_tokens=5)
    assert reply.plan == plan
    assert plan.n_prompt == reply.usage.n_prompt
    assert (plan.n_ctx, plan.max_tokens, plan.left_out) == (engine.n_ctx, 5, ())
    assert words(session.messages)[1] == "Name a colour."


def test_the_cap_of_a_plan_is_what_is_left_where_that_is_less_and_the_answer_ends_there() -> None:
    session = ChatSession(small(lambda _: "x" * 1000), sampling=SamplingParams(max_tokens=500))
    plan = session.plan("Write much. " * 20)
    assert plan.max_tokens == 600 - plan.n_prompt < 500
    reply = session.send("Write much. " * 20)
    assert (reply.finish_reason, reply.usage.n_generated) == (FinishReason.LENGTH, plan.max_tokens)


def test_a_window_that_ends_in_a_tool_call_is_told_as_length() -> None:
    calls = [{"id": str(n), "name": "look", "arguments": '{"at": "the weather"}'} for n in range(2)]
    session = ChatSession(small([{"text": "So: ", "tool_calls": calls}] * 2))
    cut = session.send("What is it?", max_tokens=40)
    assert cut.finish_reason is FinishReason.LENGTH
    assert [call.id for call in cut.tool_calls] == ["0"]
    assert session.send("What is it?", max_tokens=100).finish_reason is FinishReason.TOOL_CALLS


def test_planning_says_and_evaluates_nothing_and_refuses_what_the_send_would(engine: Engine) -> None:
    session = ChatSession(engine, "Be brief.", GREEDY)
    before, cells = session.to_dict(), engine.stats().n_cells_used
    session.plan("Name a colour.")
    with pytest.raises(ContextWindowExceededError) as caught:
        session.plan("word " * 2 * engine.n_ctx)
    assert caught.value.n_ctx == engine.n_ctx < caught.value.n_prompt
    with pytest.raises(InvalidArgumentError, match=r"There is no overflow policy 'shrink'; it is one of 'error'"):
        session.plan("Name a colour.", overflow="shrink")
    with pytest.raises(InvalidArgumentError, match="prompt is empty"):
        session.plan(" ")
    assert (session.to_dict(), engine.stats().n_cells_used) == (before, cells)


# -- error -------------------------------------------------------------------------------------------------------


def test_by_default_a_prompt_that_does_not_fit_is_refused_with_the_numbers_and_nothing_changes() -> None:
    session = talked(ChatSession(small(), "Be brief.", GREEDY), 5)
    before = session.to_dict()
    with pytest.raises(ContextWindowExceededError, match=r"prompt has \d+ tokens and the context window holds 600"):
        session.send("And " * 60)
    assert session.to_dict() == before


# -- drop_oldest -------------------------------------------------------------------------------------------------


def test_the_oldest_exchanges_are_left_out_of_the_prompt_but_not_of_the_tree() -> None:
    given: list[list[str]] = []

    def answer(request: llamanb.GenerationRequest) -> str:
        given.append(words(request.messages))
        return "Yes."

    session = ChatSession(small(answer), "Be brief.", GREEDY, overflow="drop_oldest")
    replies = [session.send(f"Question {i}") for i in range(30)]
    assert len(session.messages) == 61
    for i, (reply, texts) in enumerate(zip(replies, given, strict=True)):
        assert reply.plan is not None
        assert texts[0] == "Be brief."
        assert texts[-1] == f"Question {i}"
        n_gone = reply.plan.n_left_out
        assert words(reply.plan.left_out) == [t for k in range(n_gone) for t in (f"Question {k}", "Yes.")]
        assert texts[1:-1] == [t for k in range(n_gone, i) for t in (f"Question {k}", "Yes.")]
        assert reply.plan.n_prompt == reply.usage.n_prompt <= 600 - 40
        assert reply.messages[-1].left_out == n_gone
    assert replies[-1].plan is not None
    assert replies[-1].plan.n_left_out > 10


def test_most_prompts_go_on_from_the_last_one_so_that_its_cache_is_used() -> None:
    session = ChatSession(small(lambda _: "Yes."), "Be brief.", GREEDY, overflow="drop_oldest")
    replies = [session.send(f"Question {i}") for i in range(40)]
    cuts = [reply.plan.n_left_out for reply in replies if reply.plan is not None]
    assert cuts == sorted(cuts)
    moved = [i for i in range(1, 40) if cuts[i] != cuts[i - 1]]
    assert 2 <= len(moved) <= 12
    for i in set(range(1, 40)) - set(moved):
        assert replies[i].usage.n_prefilled < 100
    again = ChatSession.from_dict(session.to_dict(), small(lambda _: "Yes."))
    assert again.overflow == "drop_oldest"
    assert again.plan("Question 40") == session.plan("Question 40")


def test_a_tool_call_is_never_parted_from_its_result() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turn = [
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "content": "Sunny.", "tool_call_id": "1"},
        {"role": "assistant", "content": "It is sunny."},
    ]
    for n in range(2, 12):
        seen: list[list[str]] = []
        engine = small(lambda request, seen=seen: seen.append([m.role for m in request.messages]) or "Yes.")
        session = ChatSession(engine, history=turn * n, sampling=GREEDY, overflow="drop_oldest")
        session.send("And tomorrow?")
        roles = seen[0]
        assert roles == ["user", "assistant", "tool", "assistant"] * (len(roles) // 4) + ["user"]


def test_pinned_exchanges_stay_in_the_prompt_whole() -> None:
    seen: list[list[str]] = []
    engine = small(lambda request: seen.append(words(request.messages)) or "Yes.")
    session = ChatSession(engine, "Be brief.", GREEDY, overflow="drop_oldest")
    session.send("Question 0")
    session.send("My name is Ada.", pin=True)
    for i in range(2, 30):
        session.send(f"Question {i}")
    assert seen[-1][:3] == ["Be brief.", "My name is Ada.", "Yes."]
    assert "Question 2" not in seen[-1]
    assert words(session.pinned) == ["My name is Ada."]
    stored = ChatSession.from_dict(session.to_dict(), engine)
    assert words(stored.pinned) == ["My name is Ada."]
    assert "pin" not in str(session.to_dict()["messages"])
    session.unpin(session.pinned[0].id)
    session.send("Question 30")
    assert "My name is Ada." not in seen[-1]
    with pytest.raises(llamanb.MessageNotFoundError):
        session.pin("nowhere")


def test_what_cannot_be_left_out_and_does_not_fit_is_refused() -> None:
    session = talked(ChatSession(small(), "Be brief.", GREEDY, overflow="drop_oldest"), 5)
    with pytest.raises(ContextWindowExceededError):
        session.send("And " * 200)
    for message in session.messages:
        session.pin(message.id)
    with pytest.raises(ContextWindowExceededError):
        session.send("And " * 60)
    assert len(session.messages) == 11


def test_what_the_model_has_is_what_is_shown_of_the_context(short_llama: llamanb.LlamaCppEngine) -> None:
    session = ChatSession(short_llama, "Be brief.", GREEDY.replace(max_tokens=20), overflow="drop_oldest")
    for i in range(8):
        reply = session.send(f"Tell me something about the number {i}.")
        assert reply.usage.n_prompt <= 256 - 20
    assert reply.plan is not None
    assert reply.plan.n_left_out > 1
    gone = reply.plan.left_out[0].text
    assert gone in words(session.messages)
    assert gone not in session.render_preface()
    parts = session.context()
    assert sum(part.n_tokens for part in parts) == session.n_tokens < 256
    assert session.prefill().n_prompt == session.n_tokens
    added = session.render_message("And then?")
    assert session.send("And then?", max_tokens=1).usage.n_prompt <= 256
    assert added.count("And then?") == 1


def test_an_answer_that_is_written_again_or_gone_on_with_fits_too() -> None:
    session = ChatSession(small(lambda _: "Yes " * 20), "Be brief.", GREEDY, overflow="drop_oldest")
    for i in range(12):
        session.send(f"Question {i}")
    again = session.regenerate(temperature=0.5)
    assert again.plan is not None
    assert again.plan.left_out
    on = session.continue_answer()
    assert on.text.startswith(again.text)
    assert on.plan is not None
    assert on.plan.left_out


# -- summarise ---------------------------------------------------------------------------------------------------


def summing_up(request: llamanb.GenerationRequest) -> str:
    if request.messages[-1].text == SUMMARY_PROMPT:
        names = [m.text.split()[-1] for m in request.messages if m.text.startswith("Question")]
        return f"We spoke of {names[0]} to {names[-1]}."
    return "Yes."


def summed_up(n: int, n_ctx: int = 900) -> tuple[ChatSession, list[llamanb.Reply]]:
    session = ChatSession(small(summing_up, n_ctx), "Be brief.", GREEDY, overflow="summarise")
    return session, [session.send(f"Question about {i}") for i in range(n)]


def test_the_model_sums_up_and_the_branch_goes_on_from_a_copy_of_the_recent_exchanges() -> None:
    session, replies = summed_up(1)
    while not replies[-1].plan.summarised:  # type: ignore[union-attr]
        replies.append(session.send(f"Question about {len(replies)}"))
    first = len(replies) - 1
    original = [message.id for reply in replies[:first] for message in reply.messages]
    path = session.messages
    assert path[0].text == "Be brief."
    assert path[1].text == SUMMARY_PROMPT
    assert path[2].text.startswith("We spoke of 0 to")
    assert path[2].finish_reason is FinishReason.STOP
    plan = replies[first].plan
    assert plan is not None
    n_gone = plan.n_left_out
    assert words(plan.left_out)[0] == "Question about 0"
    rest = [text for k in range(n_gone, first + 1) for text in (f"Question about {k}", "Yes.")]
    assert words(path[3:]) == rest
    assert plan.n_prompt == replies[first].usage.n_prompt
    for id in original:
        assert id in session.history.messages
    assert session.prune() == 0
    assert session.system == "Be brief."


def test_what_is_said_later_is_summed_up_with_the_summary() -> None:
    session, replies = summed_up(60)
    n_summaries = sum(reply.plan is not None and reply.plan.summarised for reply in replies)
    assert n_summaries > 3
    assert words(session.messages).count(SUMMARY_PROMPT) == 1
    assert all(reply.usage.n_prompt <= 900 - 40 for reply in replies)
    line = words(session.history.line(session.active.tip))
    for i in range(60):
        assert f"Question about {i}" in line


def test_pinned_exchanges_are_copied_and_stay_pinned() -> None:
    session = ChatSession(small(summing_up, 900), "Be brief.", GREEDY, overflow="summarise")
    session.send("My name is Ada.", pin=True)
    for i in range(60):
        session.send(f"Question about {i}")
    assert words(session.messages)[1] == SUMMARY_PROMPT
    assert words(session.messages)[3:5] == ["My name is Ada.", "Yes."]
    assert words(session.pinned) == ["My name is Ada."]


def test_several_answers_at_once_go_on_from_one_summary() -> None:
    session, _ = summed_up(9)
    n_before = len(session.history.messages)
    calls = session.engine.n_calls  # type: ignore[attr-defined]
    replies = session.fan_out("Question, a long one, " + "about this and that " * 12, ["a", "b"])
    assert all(reply.plan is not None and reply.plan.summarised for reply in replies.values())
    assert session.engine.n_calls - calls == 3  # type: ignore[attr-defined]
    path_a, path_b = (session.branches[name].messages for name in ("a", "b"))
    assert [m.id for m in path_a[:-1]] == [m.id for m in path_b[:-1]]
    assert SUMMARY_PROMPT in words(path_a)
    assert SUMMARY_PROMPT not in words(session.branches["main"].messages)
    assert len(session.history.messages) > n_before


def test_a_summary_that_is_cancelled_or_fails_leaves_the_tree_as_it_was() -> None:
    failing = llamanb.ScriptedEngine(
        lambda r: RuntimeError("no") if r.messages[-1].text == SUMMARY_PROMPT else "Yes.", n_ctx=900
    )
    silent = llamanb.ScriptedEngine(lambda r: "" if r.messages[-1].text == SUMMARY_PROMPT else "Yes.", n_ctx=900)
    for engine, match in ((failing, "no"), (silent, "said nothing when it was asked to sum up")):
        session = ChatSession(engine, "Be brief.", GREEDY, overflow="summarise")
        with pytest.raises(EngineError, match=match):
            talked(session, 30)
        before = session.to_dict()
        with pytest.raises(EngineError, match=match):
            session.send("Question " * 50)
        assert session.to_dict() == before
        assert session.send("Short.", overflow="drop_oldest").text == "Yes."
    slow = llamanb.ScriptedEngine(lambda _: "Yes, and so on.", n_ctx=900, seconds_per_token=0.02)
    session = ChatSession(slow, "Be brief.", GREEDY, history=[*session.messages[1:]], overflow="summarise")
    before = session.to_dict()
    stream = session.stream("Question " * 50)
    stream.close()
    assert stream.reply.finish_reason is FinishReason.CANCELLED
    assert session.to_dict() == before


def test_what_summing_up_cannot_make_fit_is_refused_before_anything_is_decoded() -> None:
    session, _ = summed_up(5)
    calls = session.engine.n_calls  # type: ignore[attr-defined]
    with pytest.raises(ContextWindowExceededError):
        session.send("word " * 300)
    assert session.engine.n_calls == calls  # type: ignore[attr-defined]


def test_the_real_model_sums_up(short_llama: llamanb.LlamaCppEngine) -> None:
    session = ChatSession(short_llama, "Be brief.", GREEDY.replace(max_tokens=24), overflow="summarise")
    for i in range(10):
        reply = session.send(f"Tell me something about the number {i}.")
        assert reply.usage.n_prompt + reply.usage.n_generated <= 256
        if reply.plan is not None and reply.plan.summarised:
            break
    assert reply.plan is not None
    assert reply.plan.summarised
    path = session.messages
    assert path[1].text == SUMMARY_PROMPT
    assert path[2].text.strip()
    assert path[2].model == short_llama.fingerprint
    assert session.regenerate(temperature=1.0).messages[0].id == path[-2].id
