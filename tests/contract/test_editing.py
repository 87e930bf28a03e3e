"""Messages that are given, changed and taken off: the model is given exactly the path, and reads only what is new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import llamanb
from llamanb import ChatSession, Message, PlainTextHistory, ScriptedEngine
from llamanb.engine.base import Engine, GenerationRequest

SHOTS = [
    {"role": "user", "content": "sea"},
    {"role": "assistant", "content": "blue"},
    {"role": "user", "content": "grass"},
    {"role": "assistant", "content": "green"},
]


@pytest.fixture
def requests(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What the engine is asked for."""
    made: list[GenerationRequest] = []
    submit = engine.submit

    def noting(request: GenerationRequest) -> Any:
        made.append(request)
        return submit(request)

    monkeypatch.setattr(engine, "submit", noting)
    return made


def said(conversation: Any) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in conversation.messages]


def _edit_first(session: ChatSession) -> None:
    session.edit(session.messages[1].id, "lake")


def _edit_answer(session: ChatSession) -> None:
    session.edit(session.messages[2].id, "grey")


def _continue(session: ChatSession) -> None:
    session.remove_last()
    session.add_message("assistant", "It is")
    session.continue_answer(max_tokens=3)


CHANGES: dict[str, Callable[[ChatSession], object]] = {
    "add_message": lambda session: session.add_message("assistant", "Yes."),
    "add_messages": lambda session: session.add_messages(SHOTS),
    "edit a question": _edit_first,
    "edit an answer": _edit_answer,
    "rewind": lambda session: session.rewind(1),
    "remove_last": lambda session: session.remove_last(1),
    "regenerate": lambda session: session.regenerate(),
    "continue": _continue,
    "answer_start": lambda session: session.send("sky", answer_start="The sky is"),
    "a tool's result": lambda session: session.add_message("tool", "7", tool_call_id="c1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_every_change_the_model_is_given_exactly_the_path(
    session: ChatSession, engine: Engine, requests: list[GenerationRequest], change: str
) -> None:
    session.add_messages(SHOTS)
    session.send("snow", max_tokens=4)
    CHANGES[change](session)
    if session.messages[-1].role == "user":
        session.add_message("assistant", "Well.")
    reply = session.send("What now?", max_tokens=4)
    fresh = ChatSession(engine, sampling=session.sampling)
    expected = [{"role": message.role, "content": message.text} for message in session.messages[:-1]]
    for one in expected[:-1]:
        fresh.add_message(one["role"], one["content"])
    assert requests[-1].tokens == engine.encode(session.messages[:-1])
    assert fresh.send("What now?", max_tokens=4).text == reply.text
    assert requests[-1].tokens == requests[-2].tokens


@pytest.mark.parametrize("change", CHANGES)
def test_only_what_a_change_made_different_is_read_again(session: ChatSession, engine: Engine, change: str) -> None:
    session.add_messages(SHOTS)
    session.send("snow", max_tokens=4)
    session.prefill()
    before = [engine.encode(session.messages, add_generation_prompt=False)]
    CHANGES[change](session)
    before.append(engine.encode(session.messages, add_generation_prompt=False))
    if session.messages[-1].role == "user":
        session.add_message("assistant", "Well.")
    usage = session.send("What now?", max_tokens=4).usage
    tokens = engine.encode(session.messages[:-1])
    shared = 0
    while shared < min(len(before[0]), len(tokens)) and before[0][shared] == tokens[shared]:
        shared += 1
    assert usage.n_cached >= shared
    assert usage.n_cached + usage.n_prefilled == usage.n_prompt == len(tokens)


# -- a history from elsewhere ------------------------------------------------------------------------------------


def test_a_list_of_messages_is_added_and_its_last_is_answered(session: ChatSession, engine: Engine) -> None:
    reply = session.send([*SHOTS, {"role": "user", "content": "snow"}])
    one_by_one = ChatSession(engine, system="Be brief.", sampling=session.sampling)
    for shot in SHOTS:
        one_by_one.add_message(shot["role"], shot["content"])
    assert one_by_one.send("snow").text == reply.text
    assert one_by_one.messages == session.messages
    assert [message.role for message in reply.messages] == ["user", "assistant"]
    assert session.send([*reply.messages, Message.create("user", "rain")], max_tokens=3).usage.n_cached > 0


def test_a_list_brings_its_system_prompt_where_there_is_none(engine: Engine) -> None:
    session = ChatSession(engine)
    told = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    session.send(told, max_tokens=3)
    assert session.system == "Be brief."
    assert said(session)[0] == ("system", "Be brief.")
    session.send(told, max_tokens=3)
    assert [role for role, _ in said(session)] == ["system", "user", "assistant", "user", "assistant"]


def test_a_list_can_be_asked_on_several_branches(session: ChatSession) -> None:
    replies = session.fan_out([*SHOTS, {"role": "user", "content": "snow"}], ["a", "b"], max_tokens=3)
    assert said(session.branches["a"])[:-1] == said(session.branches["b"])[:-1]
    assert set(replies) == {"a", "b"}
    assert len(session.branches["a"].messages) == 7


@pytest.mark.parametrize(
    ("messages", "error", "says"),
    [
        ([*SHOTS], llamanb.InvalidArgumentError, "last of the messages is the assistant's"),
        ([SHOTS[0], {"type": "text", "text": "x"}], llamanb.InvalidArgumentError, "Item 1 of the list is no message"),
        ([{"role": "narrator", "content": "x"}], llamanb.HistoryFormatError, r"\$\[0\].role: 'narrator'"),
        ([{"role": "user"}], llamanb.HistoryFormatError, r"\$\[0\].content: it must be text .* not null"),
        ([{"role": "user", "content": " "}], llamanb.InvalidArgumentError, "The prompt is empty"),
        ([{"role": "system", "content": "Be long."}, SHOTS[0]], llamanb.BranchError, "another system prompt"),
        ([SHOTS[0], {"role": "system", "content": "Be brief."}, SHOTS[0]], llamanb.BranchError, "only the first"),
    ],
)
def test_a_list_that_cannot_be_asked_is_one_sentence_and_nothing_is_added(
    scripted_engine: ScriptedEngine, messages: Any, error: type[Exception], says: str
) -> None:
    session = ChatSession(scripted_engine, system="Be brief.")
    before = session.to_dict()
    with pytest.raises(error, match=says):
        session.send(messages)
    assert session.to_dict() == before


def test_what_was_asked_in_vain_leaves_no_messages(scripted_engine: ScriptedEngine) -> None:
    session = ChatSession(scripted_engine)
    with pytest.raises(llamanb.ContextWindowExceededError):
        session.send([*SHOTS, {"role": "user", "content": "x" * 5000}])
    assert not session.history.messages


def test_few_shots_are_added_without_an_answer(session: ChatSession) -> None:
    added = session.add_messages(SHOTS)
    assert added == session.messages[1:]
    session.fork("again", at=0).add_messages(added)
    assert session.branches["again"].messages == session.messages
    with pytest.raises(llamanb.HistoryFormatError, match=r"\$\[1\]"):
        session.add_messages([SHOTS[0], 3])  # type: ignore[list-item]
    assert session.messages[1:] == added
    with pytest.raises(TypeError, match="a list of messages, not a str"):
        session.add_messages("hello")  # type: ignore[arg-type]


# -- answering for the assistant ---------------------------------------------------------------------------------


def test_an_answer_can_be_begun(session: ChatSession, requests: list[GenerationRequest]) -> None:
    reply = session.send("Name a colour.", answer_start="The colour is")
    assert reply.text == session.messages[-1].text
    assert reply.text.startswith("The colour is")
    assert len(reply.text) > len("The colour is")
    assert said(session)[1:] == [("user", "Name a colour."), ("assistant", reply.text)]
    engine = session.engine
    assert requests[-1].tokens == [*engine.encode(session.messages[:2]), *engine.tokenize("The colour is")]
    again = session.regenerate(answer_start="My colour is")
    assert again.text.startswith("My colour is")
    assert len(session.history.siblings(again.messages[-1].id)) == 2


def test_an_answer_can_be_written_by_hand_and_gone_on_with(
    session: ChatSession, requests: list[GenerationRequest]
) -> None:
    session.add_message("user", "Name a colour.")
    written = session.add_message("assistant", "The colour is")
    reply = session.continue_answer()
    assert reply.text.startswith("The colour is")
    assert said(session)[1:] == [("user", "Name a colour."), ("assistant", reply.text)]
    assert written.id in session.history.messages
    other = session.fork("other", at=0)
    assert other.send("Name a colour.", answer_start="The colour is").text == reply.text
    assert requests[-1].tokens == requests[-2].tokens


def test_an_answer_is_gone_on_with_behind_all_that_stands_before_it(
    session: ChatSession, requests: list[GenerationRequest]
) -> None:
    session.add_message("user", "Name two colours.")
    session.add_message("assistant", "Red is one.")
    session.add_message("assistant", "And the other")
    session.continue_answer()
    assert [text for _, text in said(session)][:3] == ["Be brief.", "Name two colours.", "Red is one."]
    engine = session.engine
    assert requests[-1].tokens == [*engine.encode(session.messages[:3]), *engine.tokenize("And the other")]


def test_an_answer_is_begun_in_plain_text_too(session: ChatSession, requests: list[GenerationRequest]) -> None:
    session.history_transform = PlainTextHistory()
    reply = session.send("Name a colour.", answer_start="The colour is")
    prompt = "System: Be brief.\nUser: Name a colour.\nAssistant: The colour is"
    assert requests[-1].tokens == session.engine.tokenize(prompt)
    assert reply.text.startswith("The colour is")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"answer_start": ""}, llamanb.InvalidArgumentError, "answer_start is empty"),
        ({"answer_start": 3}, TypeError, "answer_start is text, not a int"),
        (
            {"answer_start": "{", "json_schema": {"type": "object"}},
            llamanb.InvalidArgumentError,
            "json_schema; leave out",
        ),
        ({"answer_start": "a", "grammar": 'root ::= "a"'}, llamanb.InvalidArgumentError, "grammar; leave out"),
    ],
)
def test_a_start_that_cannot_be_one_is_refused(
    scripted_engine: ScriptedEngine, options: Any, error: type[Exception], says: str
) -> None:
    session = ChatSession(scripted_engine)
    with pytest.raises(error, match=says):
        session.send("Hello.", **options)
    assert not session.messages


# -- taking off, evaluating, going back --------------------------------------------------------------------------


def test_the_last_messages_are_taken_off(session: ChatSession) -> None:
    session.add_messages(SHOTS)
    session.remove_last()
    assert said(session)[-1] == ("user", "grass")
    session.remove_last(3)
    assert said(session) == [("system", "Be brief.")]
    for n, error in ((1, llamanb.BranchError), (-1, llamanb.BranchError), ("1", TypeError)):
        with pytest.raises(error):
            session.remove_last(n)  # type: ignore[arg-type]
    assert len(session.history.messages) == 5


def test_a_path_can_be_evaluated_before_it_is_needed(session: ChatSession, engine: Engine) -> None:
    assert ChatSession(engine).prefill().n_prompt == 0
    session.add_messages([{"role": "user", "content": "Only said for this test."}, *SHOTS[1:]])
    first = session.prefill()
    assert first.n_prompt == session.n_tokens
    assert first.n_generated == 0
    assert session.prefill().n_prefilled == 1
    assert session.send("snow").usage.n_cached >= first.n_prompt - 1
    assert said(session)[:5] == [
        ("system", "Be brief."),
        ("user", "Only said for this test."),
        *[(shot["role"], shot["content"]) for shot in SHOTS[1:]],
    ]


def test_a_path_that_does_not_fit_cannot_be_evaluated(session: ChatSession) -> None:
    session.add_message("user", "word " * 5000)
    with pytest.raises(llamanb.ContextWindowExceededError):
        session.prefill()


def test_a_state_stays_and_brings_back_everything(session: ChatSession) -> None:
    session.input_transforms.append(str.strip)
    session.output_transform = llamanb.KeywordRemover(["zzz"])
    session.send("Name a colour.", max_tokens=8)
    session.fork("side").send("Another?", max_tokens=4)
    state, then = session.state(), session.to_dict()
    assert "6 messages" in repr(state) or "5 messages" in repr(state)
    session.send("And then?", max_tokens=4)
    session.switch("side")
    session.sampling = session.sampling.replace(temperature=1.0)
    session.input_transforms.append(str.upper)
    session.output_transform = None
    for _ in range(2):
        session.restore(state)
        assert session.to_dict() == then
        assert session.input_transforms == [str.strip]
        assert session.output_transform is not None
        usage = session.send("And then?", max_tokens=4).usage
        assert usage.n_prefilled <= 4 + len(session.engine.tokenize("And then?"))
    session.output_transform = None
    session.restore(state, transforms=False)
    assert session.to_dict() == then
    assert session.output_transform is None
    other = ChatSession(session.engine)
    other.restore(state)
    other.send("Only here.", max_tokens=3)
    session.restore(state)
    assert session.to_dict() == then


def test_a_state_cannot_be_restored_while_a_branch_answers(session: ChatSession) -> None:
    state = session.state()
    answer = session.stream("Count to ten.")
    with answer, pytest.raises(llamanb.SessionBusyError, match="restore a state when it has ended"):
        session.restore(state)
    with pytest.raises(TypeError, match="what state"):
        session.restore({})  # type: ignore[arg-type]


def test_two_sessions_take_turns_without_reading_again(engine: Engine) -> None:
    one = ChatSession(engine, system="You are the first.")
    two = ChatSession(engine, system="You are the second.")
    n_read = [session.send("Hello.", max_tokens=4).usage.n_prompt for session in (one, two)]
    for _ in range(2):
        usages = [session.send("Go on.", max_tokens=4).usage for session in (one, two)]
        assert [usage.n_cached >= n for usage, n in zip(usages, n_read, strict=True)] == [True, True]
        n_read = [usage.n_prompt for usage in usages]
