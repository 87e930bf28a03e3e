"""What a session promises, on the scripted engine and on llama.cpp with the embedded model."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import llamanb
from llamanb import ChatSession, FinishReason, SamplingParams
from llamanb.engine.base import Engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=16)


def roles(conversation: Any) -> list[str]:
    return [message.role for message in conversation.messages]


def test_send_keeps_the_exchange_and_says_how_it_ended(session: ChatSession) -> None:
    reply = session.send("Name a colour.")
    assert reply.text
    assert [message.role for message in reply.messages] == ["user", "assistant"]
    assert session.messages[1:] == list(reply.messages)
    answer = reply.messages[-1]
    assert answer.content == reply.text
    assert answer.finish_reason is reply.finish_reason
    assert answer.model == session.engine.fingerprint
    assert answer.sampling == {"temperature": 0.0, "max_tokens": 16}


def test_stream_gives_the_same_as_send(session: ChatSession) -> None:
    stream = session.fork("streamed").stream("Name a colour.")
    text = "".join(chunk.text for chunk in stream)
    assert text == stream.reply.text == session.send("Name a colour.").text


def test_asend_and_astream_give_the_same_as_send(session: ChatSession) -> None:
    async def ask() -> tuple[str, str]:
        sent = await session.fork("sent").asend("Name a colour.")
        streamed = [chunk.text async for chunk in session.fork("streamed").astream("Name a colour.")]
        return sent.text, "".join(streamed)

    expected = session.fork("plain").send("Name a colour.").text
    assert asyncio.run(ask()) == (expected, expected)


def test_cancelling_a_task_cancels_its_answer_and_the_branch_is_free_again(session: ChatSession) -> None:
    async def ask() -> None:
        stream = session.astream("Count to one hundred.", max_tokens=400)
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(ask())
    assert session.messages[-1].finish_reason in (FinishReason.CANCELLED, FinishReason.STOP)
    assert session.send("Name a colour.").text


def test_a_stream_that_is_dropped_unread_leaves_the_branch_free(session: ChatSession) -> None:
    for _ in session.stream("Count to one hundred."):
        break
    gc.collect()
    assert session.send("Name a colour.").text


def test_a_second_interrupt_while_a_dropped_stream_closes_leaves_the_branch_usable(
    session: ChatSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(stream: llamanb.ReplyStream) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llamanb.ReplyStream, "close", interrupted)
        stream = session.stream("Count to one hundred.")
        first = next(stream).text
        del stream
        gc.collect()
    assert session.send("Name a colour.").text
    assert session.messages[2].text.startswith(first)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [{"stop": ["\ud800"]}, {"json_schema": {"enum": [float("nan")]}}])
def test_an_option_that_cannot_be_stored_is_refused_before_anything_is_said(
    session: ChatSession, options: dict[str, Any]
) -> None:
    with pytest.raises(llamanb.InvalidArgumentError, match=next(iter(options))):
        session.send("Hello", **options)
    assert roles(session) == ["system"]
    assert session.send("Hello").text


def test_leaving_an_async_loop_leaves_the_branch_free(session: ChatSession) -> None:
    async def ask() -> str:
        async for _ in session.astream("Count to one hundred."):
            break
        return (await session.asend("Name a colour.")).text

    assert asyncio.run(ask())
    assert roles(session) == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.fork("x", at=1.0), "not a float"),
        (lambda s: s.fork("x", at=[]), "not a list"),
        (lambda s: s.edit(1.5, "new"), "not a float"),
        (lambda s: s.rewind(1.5), "not a float"),
        (lambda s: s.rewind("a"), "not a str"),
        (lambda s: s.send("Hello", stop=5), "stop is text or a list"),
        (lambda s: s.send(["Hello"]), "a mapping with a 'type'"),
        (lambda s: s.send(5), "text or a list of parts"),
        (lambda s: s.add_message("user", "Hello", colour="red"), "no field 'colour'"),
        (lambda s: ChatSession(None), "LlamaCppEngine"),
        (lambda s: llamanb.ScriptedEngine(None), "list of replies"),
        (lambda s: llamanb.LlamaCppEngine(5), "path of a .gguf"),
        (lambda s: llamanb.LlamaCppEngine(chat_template=5), "text of a template"),
        (lambda s: llamanb.LlamaCppEngine(n_gpu_layers="a"), "whole number or None"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(session: ChatSession, call: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call(session)
    assert roles(session) == ["system"]
    assert list(session.branches) == ["main"]


@pytest.mark.parametrize("empty", ["", " \n", []])
def test_no_way_of_saying_nothing_is_accepted(session: ChatSession, empty: Any) -> None:
    asked = session.send("Hello").messages[0]
    for call in (
        lambda: session.send(empty),
        lambda: session.add_message("user", empty),
        lambda: session.edit(asked.id, empty),
    ):
        with pytest.raises(llamanb.InvalidArgumentError, match="The prompt is empty"):
            call()
    assert roles(session) == ["system", "user", "assistant"]


@pytest.mark.parametrize("name", ["", " a", "-a", "a\x00", "\ud800", "a,b", 'say "a"', "1", "-2"])
def test_a_name_that_could_not_be_typed_is_no_branch(session: ChatSession, name: str) -> None:
    with pytest.raises(llamanb.BranchError, match="cannot be a branch's name"):
        session.fork(name)
    assert list(session.branches) == ["main"]


def test_fan_out_answers_on_every_branch(session: ChatSession) -> None:
    session.send("Hello")
    replies = session.fan_out("Name a colour.", ["a", "b", "c"], max_tokens=12, temperature=1.0)
    assert list(replies) == ["a", "b", "c"]
    for name, reply in replies.items():
        assert reply.branch == name
        assert session.branches[name].messages[-2:] == list(reply.messages)
    assert len({reply.messages[0].id for reply in replies.values()}) == 1
    seeds = [dict(reply.messages[1].sampling or {})["seed"] for reply in replies.values()]
    assert seeds == [seeds[0], seeds[0] + 1, seeds[0] + 2]
    assert roles(session) == ["system", "user", "assistant"]
    again = session.fan_out("And another?", ["c", "d"], max_tokens=4)
    assert [m.text for m in session.branches["c"].messages if m.role == "user"][-1] == "And another?"
    assert len(session.branches["c"].messages) == len(session.branches["d"].messages) + 2
    assert again["c"].text


def test_fan_out_gives_what_forks_asked_one_by_one_give(session: ChatSession) -> None:
    replies = session.fan_out("Name a colour.", ["a", "b"], max_tokens=12, temperature=0.0)
    assert session.fork("alone").send("Name a colour.", max_tokens=12, temperature=0.0).text == replies["b"].text


@pytest.mark.parametrize(
    ("names", "options"), [(["a", "a"], {}), (["a", "b c,"], {}), ([], {}), (["a"], {"top_p": 3}), (["main", "-"], {})]
)
def test_fan_out_that_cannot_start_leaves_no_branch(session: ChatSession, names: Any, options: Any) -> None:
    with pytest.raises(llamanb.LlamanbError):
        session.fan_out("Hello", names, **options)
    with pytest.raises(llamanb.EngineError):
        session.fan_out("word " * 5000, ["x", "y"])
    assert list(session.branches) == ["main"]
    assert session.send("Hello").text


def test_alternatives_are_siblings_and_the_branch_goes_on_from_the_first(session: ChatSession) -> None:
    replies = session.alternatives("Name a colour.", 3, max_tokens=12, temperature=1.0)
    answers = session.history.children(replies[0].messages[0].id)
    assert [answer.id for answer in answers] == list(dict.fromkeys(r.messages[1].id for r in replies))
    assert len(answers) == 3
    assert session.messages[-1].id == replies[0].messages[1].id
    alone = session.fork("alone", at=0).send("Name a colour.", max_tokens=12, temperature=1.0)
    assert alone.messages == replies[0].messages
    for wrong in (0, -1, 101):
        with pytest.raises(llamanb.InvalidArgumentError, match="from 1 to 100"):
            session.alternatives("x", wrong)


def test_one_branch_gives_one_answer_at_a_time(session: ChatSession) -> None:
    with session.stream("Count to one hundred."):
        with pytest.raises(llamanb.SessionBusyError):
            session.send("Name a colour.")
        with pytest.raises(llamanb.SessionBusyError):
            session.rewind()
        other = session.fork("other")
        assert other.send("Name a colour.").text


def test_an_option_holds_for_one_call_alone(session: ChatSession) -> None:
    assert session.send("Count to one hundred.", max_tokens=2).usage.n_generated == 2
    assert session.sampling == GREEDY
    with pytest.raises(TypeError, match="max_tokens"):
        session.send("Hello", max_token=2)
    with pytest.raises(llamanb.InvalidArgumentError, match="temperature is -1"):
        session.send("Hello", temperature=-1)


@pytest.mark.parametrize("prompt", ["", "  \n", []])
def test_an_empty_prompt_is_refused(session: ChatSession, prompt: Any) -> None:
    before = session.to_dict()
    with pytest.raises(llamanb.InvalidArgumentError, match="empty"):
        session.send(prompt)
    assert session.to_dict() == before


def test_half_a_surrogate_pair_is_refused(session: ChatSession) -> None:
    with pytest.raises(llamanb.InvalidArgumentError, match="surrogate"):
        session.send("half \ud83d of it")
    assert roles(session) == ["system"]


def test_forking_does_not_switch_and_branches_go_on_separately(session: ChatSession) -> None:
    session.send("Name a colour.")
    branch = session.fork("other", at=-1)
    assert session.active.name == "main"
    branch.send("Another one.")
    assert roles(session) == ["system", "user", "assistant"]
    assert roles(branch) == ["system", "user", "assistant", "user", "assistant"]
    assert branch.messages[:3] == session.messages
    session.switch("other")
    assert session.messages == branch.messages
    assert list(session.branches) == ["main", "other"]


def test_a_fork_can_start_at_a_message_an_index_or_a_branch(session: ChatSession) -> None:
    reply = session.send("Name a colour.")
    assert session.fork("by-id", at=reply.messages[0].id).tip == reply.messages[0].id
    assert session.fork("by-start-of-id", at=reply.messages[0].id[:6]).tip == reply.messages[0].id
    assert session.fork("by-index", at=0).tip == session.messages[0].id
    assert session.fork("by-branch", at="by-index").tip == session.messages[0].id
    with pytest.raises(llamanb.BranchError, match="already"):
        session.fork("by-id")
    with pytest.raises(llamanb.MessageNotFoundError, match="99"):
        session.fork("nowhere", at=99)
    with pytest.raises(llamanb.BranchError, match="'main'"):
        session.switch("nowhere")


def test_another_system_prompt_is_a_fork(session: ChatSession) -> None:
    session.send("Name a colour.")
    with pytest.raises(llamanb.BranchError, match="fork"):
        session.system = "Be verbose."
    with pytest.raises(llamanb.BranchError, match="fork"):
        session.add_message("system", "Be verbose.")
    branch = session.fork("verbose", system="Be verbose.")
    assert branch.messages[0].text == "Be verbose."
    assert [m.text for m in branch.messages[1:]] == [m.text for m in session.messages[1:]]
    assert not {m.id for m in branch.messages} & {m.id for m in session.messages}


def test_the_system_prompt_can_be_set_while_nothing_was_said(engine: Engine) -> None:
    session = ChatSession(engine)
    session.system = "Be brief."
    assert [message.text for message in session.messages] == ["Be brief."]
    session.system = None
    assert session.messages == []


def test_rewind_takes_exchanges_off_and_the_messages_stay(session: ChatSession) -> None:
    session.send("Name a colour.")
    session.send("Another one.")
    session.rewind(2)
    assert roles(session) == ["system"]
    assert len(session.history.messages) == 5
    with pytest.raises(llamanb.BranchError, match="0 exchanges"):
        session.rewind()


def test_edit_makes_a_sibling_that_can_be_answered(session: ChatSession) -> None:
    reply = session.send("Name a colour.")
    edited = session.edit(reply.messages[0].id, "Name an animal.")
    assert edited.parent == reply.messages[0].parent
    assert roles(session) == ["system", "user"]
    answer = session.regenerate()
    assert [message.text for message in session.messages[1:]] == ["Name an animal.", answer.text]
    assert reply.messages[0].id in session.history.messages


def test_regenerating_counts_the_seed_up_and_greedy_gives_the_same(session: ChatSession) -> None:
    greedy = session.send("Name a colour.")
    assert session.regenerate().messages == greedy.messages
    branch = session.fork("warm", at=0)
    first = branch.send("Name a colour.", temperature=1.5)
    second = branch.regenerate(temperature=1.5)
    seeds = [dict(reply.messages[-1].sampling or {})["seed"] for reply in (first, second)]
    assert seeds[1] == seeds[0] + 1
    assert first.messages[0] == second.messages[0]


def test_an_unseeded_conversation_runs_again_with_the_same_ids(engine: Engine) -> None:
    def run() -> dict[str, Any]:
        session = ChatSession(engine, sampling=SamplingParams(max_tokens=8))
        session.send("Name a colour.")
        session.send("Another one.")
        return session.to_dict()

    assert run() == run()


def test_a_random_seed_is_stored_as_the_number_that_took_effect(session: ChatSession) -> None:
    reply = session.send("Name a colour.", temperature=1.0, seed="random")
    seed = dict(reply.messages[-1].sampling or {})["seed"]
    assert isinstance(seed, int)
    again = session.fork("again", at=0).send("Name a colour.", temperature=1.0, seed=seed)
    assert again.messages == reply.messages


def test_messages_can_be_added_without_an_answer(session: ChatSession) -> None:
    session.add_message("user", "2 + 2?")
    session.add_message("assistant", "4")
    session.add_message("user", "3 + 3?")
    reply = session.regenerate()
    assert roles(session) == ["system", "user", "assistant", "user", "assistant"]
    assert session.messages[-1].text == reply.text


def test_a_session_goes_on_from_what_to_dict_returned(session: ChatSession, engine: Engine) -> None:
    session.send("Name a colour.")
    session.fork("other").send("Another one.")
    twin = ChatSession.from_dict(session.to_dict(), engine)
    assert twin.to_dict() == session.to_dict()
    assert (twin.system, twin.sampling) == (session.system, session.sampling)
    assert twin.send("And one more.").messages == session.send("And one more.").messages


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"sampling": {"temperature": "hot"}}, "$.sampling"),
        ({"sampling": {"temperature": -1}}, "$.sampling"),
        ({"sampling": [1]}, "$.sampling"),
        ({"system": 3}, "$.system"),
        ({"messages": None}, "$.messages"),
    ],
)
def test_a_session_that_was_tampered_with_names_the_place(
    session: ChatSession, engine: Engine, change: dict[str, Any], place: str
) -> None:
    with pytest.raises(llamanb.HistoryFormatError) as raised:
        ChatSession.from_dict(session.to_dict() | change, engine)
    assert raised.value.path == place


def test_a_closed_session_says_so(session: ChatSession) -> None:
    session.close()
    for use in (lambda: session.send("Hello"), session.rewind, lambda: session.fork("x")):
        with pytest.raises(llamanb.SessionClosedError):
            use()


def test_what_the_model_sees_can_be_shown_and_counted(session: ChatSession) -> None:
    session.send("Name a colour.")
    preface = session.render_preface()
    assert "Be brief." in preface
    assert "Name a colour." in preface
    assert preface == session.engine.render(session.messages, add_generation_prompt=False)
    assert session.n_tokens == len(session.engine.encode(session.messages, add_generation_prompt=False))
    assert session.count_tokens("Be brief.") > 1


def test_an_earlier_question_is_answered_again_and_the_branch_ends_there(session: ChatSession) -> None:
    first = session.send("Name a colour.")
    session.send("Another one.")
    again = session.regenerate(at=first.messages[-1].id, temperature=1.5)
    assert roles(session) == ["system", "user", "assistant"]
    assert again.messages[0] == first.messages[0]
    assert session.messages[-1] == again.messages[-1]
    assert session.regenerate(at=1, temperature=1.5).messages[0] == first.messages[0]
    with pytest.raises(llamanb.BranchError, match="no user message"):
        session.regenerate(at=0)


def test_a_cut_off_answer_goes_on_as_if_it_had_not_been_cut_off(engine: Engine) -> None:
    session = ChatSession(engine, sampling=SamplingParams(temperature=0.0, max_tokens=6))
    cut = session.send("Count from one to twenty in words.")
    assert cut.finish_reason is FinishReason.LENGTH
    whole = session.fork("whole", at=0).regenerate(max_tokens=12)
    rest = session.continue_answer()
    if engine.name == "scripted":  # which says its whole script again
        assert session.messages[-1].text.startswith(cut.text)
    else:
        assert session.messages[-1].text == whole.text
        assert rest.usage.n_cached > len(engine.encode(session.messages[:1]))
    assert roles(session) == ["user", "assistant"]
    assert rest.messages[0] == cut.messages[0]
    assert cut.messages[-1].id in session.history.messages


def test_only_an_answer_that_was_cut_off_can_be_gone_on_with(session: ChatSession) -> None:
    session.send("Name a colour.", max_tokens=2)
    with pytest.raises(llamanb.BranchError, match="last message of an answer"):
        session.continue_answer(at=1)
    session.send("Say it.", max_tokens=200)
    with pytest.raises(llamanb.BranchError, match="ended by itself"):
        session.continue_answer()


def test_those_who_watch_are_told_of_every_change(session: ChatSession) -> None:
    n_told = 0

    def watcher() -> None:
        nonlocal n_told
        n_told += 1

    session.watch(watcher)
    for act in (
        lambda: session.send("Name a colour."), lambda: session.fork("side"), lambda: session.switch("side"),
        lambda: session.rewind(1), lambda: session.go_to(session.branches["main"].messages[-1].id),
        lambda: session.rename("side", "other"), lambda: session.add_message("user", "hello"),
    ):  # fmt: skip
        before = n_told
        act()
        assert n_told > before
    session.unwatch(watcher)
    before = n_told
    session.switch("other")
    assert n_told == before


def test_a_running_answer_can_be_looked_at_and_stopped_by_its_branch(session: ChatSession) -> None:
    stream = session.stream("Count from one to a hundred.", max_tokens=400)
    next(stream)
    _, (answer,) = session.snapshot()
    assert answer.branch == "main"
    assert answer.path[-1].text == "Count from one to a hundred."
    assert answer.generation.so_far()
    progress = answer.generation.progress
    assert progress.n_read == progress.n_prompt >= 1
    assert session.cancel("nowhere") == 0
    assert session.cancel() == 1
    reply = stream.reply
    assert reply.finish_reason in (FinishReason.CANCELLED, FinishReason.STOP)
    assert session.snapshot()[1] == []
