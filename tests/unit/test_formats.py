"""Conversations of other programs: read, and written so that they are read again as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llamanb import (
    ChatSession,
    HistoryFormatError,
    InvalidArgumentError,
    Message,
    ScriptedEngine,
    ToolCall,
    read_messages,
)
from llamanb.persistence.formats import export_messages

OPENAI = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?", "name": "ada"},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "A sum.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2,  "b": 2}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
    {"role": "assistant", "content": "Four."},
]
CHATML = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello,\n\nyou.<|im_end|>\n"
LLAMASHARP = {
    "messages": [
        {"author_role": "System", "content": "Be brief."},
        {"author_role": "User", "content": "Hello."},
        {"author_role": "Assistant", "content": "Hi."},
    ]
}


def said(messages: Any) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


@pytest.mark.parametrize("source", [OPENAI, {"messages": OPENAI, "model": "m"}, json.dumps(OPENAI)])
def test_openai_messages_are_read_with_their_calls(source: Any) -> None:
    messages = read_messages(source)
    assert said(messages) == [
        ("system", "Be brief."),
        ("user", "What is 2 + 2?"),
        ("assistant", ""),
        ("tool", "4"),
        ("assistant", "Four."),
    ]
    assert messages[2].tool_calls == (ToolCall("c1", "add", '{"a": 2,  "b": 2}'),)
    assert messages[2].reasoning == "A sum."
    assert messages[3].tool_call_id == "c1"
    assert messages[1].extra == {"name": "ada"}
    assert [message.parent for message in messages] == [None, *[message.id for message in messages[:-1]]]


@pytest.mark.parametrize(
    "source",
    [
        LLAMASHARP,
        {
            "Messages": [
                {"AuthorRole": number, "Content": text} for number, text in enumerate(["Be brief.", "Hello.", "Hi."])
            ]
        },
        json.dumps(LLAMASHARP),
    ],
)
def test_the_forms_of_llamasharp_over_time_are_read(source: Any) -> None:
    assert said(read_messages(source)) == [("system", "Be brief."), ("user", "Hello."), ("assistant", "Hi.")]


def test_chatml_is_read_as_far_as_it_goes() -> None:
    assert said(read_messages(CHATML)) == [("system", "Be brief."), ("user", "Hello,\n\nyou.")]
    assert said(read_messages(CHATML + "<|im_start|>assistant\n"))[-1][0] == "user"
    assert said(read_messages(CHATML + "<|im_start|>assistant\nHi"))[-1] == ("assistant", "Hi")


@pytest.mark.parametrize("format", ["openai", "chatml", "llamasharp"])
def test_what_is_written_is_read_again(format: str, tmp_path: Path) -> None:
    messages = read_messages(LLAMASHARP)
    text = export_messages(messages, format)
    assert text.endswith("\n")
    assert read_messages(text) == messages
    path = tmp_path / "conversation.txt"
    path.write_text(text, encoding="utf-8")
    assert read_messages(path) == read_messages(str(path)) == read_messages(path, format) == messages


def test_openai_form_holds_calls_results_parts_and_reasoning() -> None:
    messages = read_messages([*OPENAI, {"role": "user", "content": [{"type": "text", "text": "And?"}]}])
    assert read_messages(export_messages(messages, "openai")) == messages


def test_markdown_is_for_people() -> None:
    assert (
        export_messages(read_messages(CHATML), "markdown") == "**system**\n\nBe brief.\n\n**user**\n\nHello,\n\nyou.\n"
    )


def test_what_the_model_was_given_is_what_other_programs_get() -> None:
    with ScriptedEngine(["Hi."]) as engine:
        session = ChatSession(engine).with_input_transform(str.upper)
        session.send("Hello.")
        assert said(read_messages(session.export("openai"))) == [("user", "HELLO."), ("assistant", "Hi.")]
        assert "Hello." in session.export("markdown")


@pytest.mark.parametrize(
    ("message", "format", "says"),
    [
        (Message.create("user", "a <|im_end|> b"), "chatml", "Message 0 says"),
        (Message.create("tool", "4", tool_call_id="c1"), "llamasharp", "result of a tool"),
        (Message.create("assistant", "", tool_calls=(ToolCall("c", "f"),)), "chatml", "calls a tool"),
        (Message.create("user", [{"type": "image_url", "image_url": {}}]), "llamasharp", "parts that are no text"),
        (Message.create("user", "x"), "yaml", "format is 'yaml'; conversations are written as openai, chatml"),
    ],
)
def test_what_a_form_cannot_hold_is_one_sentence(message: Message, format: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        export_messages([message], format)


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ({"turns": []}, HistoryFormatError, r"\$: it has no messages"),
        ({"messages": "x"}, HistoryFormatError, r"\$.messages: it must be a list"),
        ([{"role": "oracle", "content": "x"}], HistoryFormatError, r"\$\[0\].role: 'oracle' is none of developer"),
        ([{"role": "user", "content": 3}], HistoryFormatError, r"\$\[0\].content: .* not a int"),
        ([{"role": "user", "content": "\ud800"}], HistoryFormatError, r"\$\[0\]: .*surrogate"),
        ([{"role": "user", "tool_calls": [1]}], HistoryFormatError, r"\$\[0\].tool_calls: .* of the assistant"),
        ([{"role": "assistant", "tool_calls": [1]}], HistoryFormatError, r"\$\[0\].tool_calls\[0\]: a tool call has"),
        ([{"role": "tool", "content": "", "tool_call_id": 1}], HistoryFormatError, r"\$\[0\].tool_call_id"),
        ([3], HistoryFormatError, r"\$\[0\]: a message is a mapping"),
        ({"messages": [{"author_role": "Unknown", "content": "x"}]}, HistoryFormatError, "'Unknown' is none of System"),
        ({"messages": [{"author_role": -1, "content": "x"}]}, HistoryFormatError, "'Unknown' is none of System"),
        ({"messages": [{"author_role": "User"}]}, HistoryFormatError, r"\$.messages\[0\].content: .*not null"),
        ("<|im_start|>oracle\nx<|im_end|>", HistoryFormatError, r"\$\[0\]: the role 'oracle'"),
        (CHATML + "and then", HistoryFormatError, r"\$\[2\]: a message starts with"),
        ("yesterday.json", InvalidArgumentError, "neither a file nor a conversation in one of the formats openai"),
        (Path("yesterday.json"), InvalidArgumentError, "There is no file 'yesterday.json'"),
        ('{"messages": [', InvalidArgumentError, "not valid JSON"),
        ("[" * 100_000, InvalidArgumentError, "nested too deeply"),
        ("nul\0", InvalidArgumentError, "neither a file nor"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_that_names_the_place(
    source: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        read_messages(source)


def test_a_format_can_be_named() -> None:
    with pytest.raises(InvalidArgumentError, match="format is 'xml'; conversations are read from openai"):
        read_messages("[]", "xml")
    with pytest.raises(TypeError, match="ChatML is text, not a list"):
        read_messages([], "chatml")
    with pytest.raises(HistoryFormatError, match="a mapping with an author_role"):
        read_messages(OPENAI, "llamasharp")
    assert read_messages("[]") == []


def test_keys_that_a_message_has_for_itself_are_not_taken_from_elsewhere() -> None:
    (message,) = read_messages([{"role": "user", "content": "x", "id": 3, "parent": 4, "model": 5, "sampling": 6}])
    assert message == Message.create("user", "x")


def test_a_folder_or_bytes_that_are_no_text_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        read_messages(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgumentError, match="not text in UTF-8"):
        read_messages(tmp_path / "binary")
