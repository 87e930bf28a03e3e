"""Transforms in a session: of what is typed, of what is answered, and of how the model reads a conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

import llamanb
from llamanb import (
    ChatSession,
    FinishReason,
    KeywordRemover,
    Message,
    PlainTextHistory,
    RoleNameStripper,
    SamplingParams,
    ScriptedEngine,
    TemplateHistory,
    TransformError,
    compose,
)
from llamanb.engine.base import Engine


def shout(text: str) -> str:
    return text.upper()


def polite(text: str) -> str:
    return f"Please: {text}"


def loud(stream: Iterator[str]) -> Iterator[str]:
    for piece in stream:
        yield piece.upper()


async def loud_later(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    async for piece in stream:
        await asyncio.sleep(0)
        yield piece.upper()


# -- what is typed -----------------------------------------------------------------------------------------------


def test_input_transforms_change_what_the_model_is_given_and_not_what_was_typed(session: ChatSession) -> None:
    plain = session.fork("plain")
    session.input_transforms.append(shout)
    assert session.with_input_transform(polite) is session
    reply = session.send("Name a colour.")
    asked = reply.messages[0]
    assert (asked.content, asked.model_input) == ("Name a colour.", "Please: NAME A COLOUR.")
    assert "Please: NAME A COLOUR." in session.render_preface()
    session.input_transforms = []
    assert plain.send("Please: NAME A COLOUR.").text == reply.text
    assert plain.messages[1].model_input is None


def test_answering_again_applies_no_transform_twice(session: ChatSession) -> None:
    session.input_transforms.append(polite)
    first = session.send("Name a colour.")
    again = session.regenerate(temperature=0.9)
    assert again.messages[0] == first.messages[0]
    assert session.render_preface().count("Please:") == 1
    assert ChatSession.from_dict(session.to_dict(), session.engine).messages == session.messages


def test_every_way_of_saying_something_as_the_user_is_transformed(session: ChatSession) -> None:
    session.input_transforms.append(polite)
    session.add_message("user", "One?")
    session.add_message("assistant", "Yes.")
    session.add_messages([{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "Yes."}])
    session.send([{"role": "user", "content": "Three?"}])
    edited = session.edit(session.messages[5].id, "Four?")
    given = [message.model_input for message in session.messages if message.role == "user"]
    assert given == ["Please: One?", "Please: Two?", "Please: Four?"]
    assert edited.content == "Four?"
    as_it_is = Message.create("user", "Five?")
    assert session.fork("other", at=0).send([as_it_is]).messages[0].model_input is None


def test_alternatives_are_asked_the_same_whatever_a_transform_does(session: ChatSession) -> None:
    numbers = iter(range(10))
    session.input_transforms.append(lambda text: f"{next(numbers)} {text}")
    replies = session.alternatives("Name a colour.", 2, temperature=0.9)
    assert replies[0].messages[0] == replies[1].messages[0]


@pytest.mark.parametrize(
    ("transform", "error", "says"),
    [
        (lambda text: text[99], TransformError, r"failed: IndexError: .*line \d+ of <lambda>"),
        (lambda text: None, TransformError, "must return text, not NoneType"),
        (lambda text: " ", TransformError, "leaves nothing of the prompt"),
        ("upper", TypeError, "a function of a text, not a str"),
        (KeywordRemover, TypeError, "is a class"),
    ],
)
def test_an_input_transform_that_fails_is_one_sentence_and_nothing_is_said(
    scripted_engine: ScriptedEngine, transform: Any, error: type[Exception], says: str
) -> None:
    session = ChatSession(scripted_engine)
    session.input_transforms.append(transform)
    before = session.to_dict()
    for act in (
        lambda: session.send("Hello."),
        lambda: session.add_message("user", "Hello."),
        lambda: session.fan_out("Hello.", ["a", "b"]),
    ):
        with pytest.raises(error, match=says):
            act()
    assert session.to_dict() == before


# -- what is answered --------------------------------------------------------------------------------------------


def test_an_output_transform_is_what_is_shown_and_stored(session: ChatSession) -> None:
    plain = session.fork("plain").send("Name a colour.").text
    assert session.with_output_transform(loud) is session
    stream = session.stream("Name a colour.")
    assert "".join(chunk.text for chunk in stream) == plain.upper()
    assert stream.reply.text == session.messages[-1].text == plain.upper()


@pytest.mark.parametrize("transform", [loud, loud_later, compose(loud, loud_later), compose(loud_later, loud)])
def test_sync_and_async_transforms_work_where_the_answer_is_awaited(session: ChatSession, transform: Any) -> None:
    expected = session.fork("plain").send("Name a colour.").text.upper()
    session.output_transform = transform

    async def ask() -> tuple[str, str]:
        sent = await session.fork("sent").asend("Name a colour.")
        stream = session.astream("Name a colour.")
        text = "".join([chunk.text async for chunk in stream])
        assert stream.reply.text == text
        return sent.text, text

    assert asyncio.run(ask()) == (expected, expected)
    assert session.messages[-1].text == expected


@pytest.mark.parametrize("transform", [loud_later, compose(loud, loud_later)])
def test_an_async_transform_where_nobody_awaits_is_refused_in_a_sentence(
    scripted_engine: ScriptedEngine, transform: Any
) -> None:
    session = ChatSession(scripted_engine)
    session.output_transform = transform
    for act in (session.stream, session.send, lambda text: session.alternatives(text, 2)):
        with pytest.raises(llamanb.InvalidArgumentError, match="'loud_later' is async: only astream and asend"):
            act("Hello.")
    assert not session.history.messages
    session.output_transform = loud
    assert session.send("Hello.").text == "YOU SAID: HELLO."


def test_reading_an_awaited_answer_too_early_says_so_and_loses_nothing(scripted_engine: ScriptedEngine) -> None:
    session = ChatSession(scripted_engine)
    session.output_transform = loud_later

    async def ask() -> str:
        stream = session.astream("Hello.")
        with pytest.raises(llamanb.InvalidArgumentError, match="read the answer to its end with async for"):
            _ = stream.reply
        async for _ in stream:
            pass
        return stream.reply.text

    assert asyncio.run(ask()) == "YOU SAID: HELLO."


def test_an_awaited_answer_with_an_async_transform_can_be_left(scripted_engine: ScriptedEngine) -> None:
    session = ChatSession(scripted_engine)

    async def stuck(stream: AsyncIterator[str]) -> AsyncIterator[str]:
        async for piece in stream:
            yield piece
            await asyncio.sleep(30)

    session.output_transform = stuck

    async def ask() -> None:
        async with session.astream("Count.") as stream:
            async for _ in stream:
                break

    began = time.monotonic()
    asyncio.run(ask())
    assert time.monotonic() - began < 10
    assert session.messages[-1].finish_reason is FinishReason.CANCELLED
    session.output_transform = None
    assert session.send("Again.").text


def test_a_transform_that_ends_early_ends_the_answer(session: ChatSession) -> None:
    def first_word(stream: Iterator[str]) -> Iterator[str]:
        text = ""
        for piece in stream:
            text += piece
            if " " in text.strip():
                break
        yield text.split()[0]

    session.output_transform = first_word
    reply = session.send("Count from one to twenty.", max_tokens=200)
    assert reply.text == session.messages[-1].text != ""
    assert " " not in reply.text
    assert reply.finish_reason is FinishReason.STOP


def test_a_transform_that_fails_keeps_what_there_is_and_says_where(scripted_engine: ScriptedEngine) -> None:
    session = ChatSession(scripted_engine)

    def broken(stream: Iterator[str]) -> Iterator[str]:
        yield next(stream)
        raise KeyError("colour")

    session.output_transform = broken
    with pytest.raises(TransformError, match=r"'.*broken' failed: KeyError: 'colour' \(line \d+ of broken\)") as caught:
        session.send("Hello.")
    assert isinstance(caught.value.__cause__, KeyError)
    answer = session.messages[-1]
    assert answer.finish_reason is FinishReason.ERROR
    assert "You said: Hello.".startswith(answer.text)
    session.output_transform = None
    assert session.regenerate().text == "You said: Hello."


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda stream: None, "must return an iterator of text, not NoneType"),
        (lambda stream: "text", "must return an iterator of text, not str"),
        (lambda stream: iter([3]), "must yield text, not int"),
    ],
)
def test_an_output_transform_of_another_kind_is_one_sentence(
    scripted_engine: ScriptedEngine, transform: Any, says: str
) -> None:
    session = ChatSession(scripted_engine)
    session.output_transform = transform
    with pytest.raises(TransformError, match=says):
        session.send("Hello.")
    assert not session.messages


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("output_transform", KeywordRemover, "is a class; make one of it"),
        ("output_transform", "upper", "not a str"),
        ("history_transform", PlainTextHistory, "is a class; make one of it"),
        ("history_transform", shout, "has no to_text"),
        ("input_transforms", [3], "not a int"),
    ],
)
def test_what_cannot_be_a_transform_is_refused_at_once(session: ChatSession, name: str, value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        setattr(session, name, value)


def test_a_keyword_never_shows_while_an_answer_is_written() -> None:
    with ScriptedEngine(["The secret word is secret."]) as engine:
        session = ChatSession(engine).with_output_transform(KeywordRemover(["secret"]))
        shown = ""
        for chunk in session.stream("Say it."):
            shown += chunk.text
            assert "secre" not in shown
        assert session.messages[-1].text == shown == "The  word is ."


# -- how the model reads a conversation --------------------------------------------------------------------------


def test_plain_text_is_what_a_base_model_reads(session: ChatSession) -> None:
    assert session.with_history_transform(PlainTextHistory()) is session
    session.add_message("user", "Name a colour.")
    session.add_message("assistant", "Blue.")
    assert session.render_preface() == "System: Be brief.\nUser: Name a colour.\nAssistant: Blue.\n"
    reply = session.send("Another one?")
    sampling = reply.messages[-1].sampling
    assert sampling is not None
    assert sampling["stop"] == ["\nUser:", "\nSystem:", "\nAssistant:"]
    assert "\nUser:" not in reply.text
    assert reply.text == reply.text.lstrip()
    assert reply.usage.n_prompt == len(
        session.engine.tokenize(
            "System: Be brief.\nUser: Name a colour.\nAssistant: Blue.\nUser: Another one?\nAssistant:"
        )
    )


def test_what_people_say_is_no_control_token_in_plain_text_either(shared_llama_engine: llamanb.LlamaCppEngine) -> None:
    session = ChatSession(shared_llama_engine).with_history_transform(PlainTextHistory())
    session.add_message("user", "<|im_end|>")
    control = shared_llama_engine.encode([Message.create("user", "x")])[0]
    assert session.n_tokens == len(shared_llama_engine.tokenize("User: <|im_end|>\n"))
    assert control not in shared_llama_engine.tokenize("User: <|im_end|>\n")


def test_a_template_of_ones_own(session: ChatSession) -> None:
    session.history_transform = TemplateHistory(
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] "
        "{% endif %}",
        stop="\n[",
    )
    reply = session.send("Name a colour.")
    assert session.render_preface() == f"[system] Be brief.\n[user] Name a colour.\n[assistant] {reply.text}\n"
    assert "\n[" not in reply.text


class Halved:
    """Gives every answer as two messages."""

    def to_text(self, messages: Sequence[Message]) -> str:
        return "|".join(message.text for message in messages)

    def from_text(self, role: str, text: str) -> list[Message]:
        half = len(text) // 2
        return [Message.create(role, text[:half]), Message.create(role, text[half:])]


def test_ones_own_history_transform_may_make_several_messages_of_an_answer(scripted_engine: ScriptedEngine) -> None:
    session = ChatSession(scripted_engine).with_history_transform(Halved())
    reply = session.send("Hello.")
    assert [message.text for message in session.messages] == ["Hello.", "You said", ": Hello."]
    assert list(reply.messages) == session.messages
    assert session.messages[-1].finish_reason is FinishReason.STOP
    assert session.render_preface() == "Hello.|You said|: Hello."
    again = session.regenerate()
    assert again.messages == reply.messages


class Broken(Halved):
    def __init__(self, method: str, value: Any) -> None:
        self.method, self.value = method, value

    def to_text(self, messages: Sequence[Message]) -> str:
        return self.made("to_text") or super().to_text(messages)

    def from_text(self, role: str, text: str) -> list[Message]:
        return self.made("from_text") or super().from_text(role, text)

    def made(self, method: str) -> Any:
        if isinstance(self.value, Exception) and method == self.method:
            raise self.value
        return self.value if method == self.method else None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (ZeroDivisionError("no"), "history transform 'Broken' failed: ZeroDivisionError: no"),
        ([Message.create("user", "x")], "must make messages of the assistant"),
        ("text", "must make messages of the assistant"),
    ],
)
def test_an_answer_is_kept_where_the_history_transform_cannot_read_it(
    scripted_engine: ScriptedEngine, value: Any, says: str
) -> None:
    session = ChatSession(scripted_engine).with_history_transform(Broken("from_text", value))
    with pytest.raises(TransformError, match=says):
        session.send("Hello.")
    assert session.messages[-1].text == "You said: Hello."
    assert session.messages[-1].finish_reason is FinishReason.ERROR


@pytest.mark.parametrize(("value", "says"), [(ZeroDivisionError("no"), "ZeroDivisionError"), (3, "text from to_text")])
def test_a_history_transform_that_cannot_write_is_one_sentence_and_nothing_is_said(
    engine: Engine, value: Any, says: str
) -> None:
    session = ChatSession(engine).with_history_transform(Broken("to_text", value))
    with pytest.raises(TransformError, match=says):
        session.send("Hello.")
    assert not session.messages


def test_names_of_roles_are_taken_off_an_answer() -> None:
    with ScriptedEngine(["Assistant: Sure.\nUser:"]) as engine:
        session = ChatSession(engine, sampling=SamplingParams(max_tokens=50))
        session.with_output_transform(RoleNameStripper())
        assert session.send("Well?").text == "Sure."
