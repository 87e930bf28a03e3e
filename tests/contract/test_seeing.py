"""What the model sees: restored histories, the rendered prompt, exact counts, and sends that only read."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llamanb
from llamanb.engine.base import Engine
from llamanb.errors import BranchError, HistoryFormatError, TemplateError
from llamanb.messages import FinishReason

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue.", "reasoning_content": "The sky."},
]
CALLING = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}},
        ],
    },
    {"role": "tool", "content": "Sunny.", "tool_call_id": "1"},
]


def test_a_history_is_restored_without_evaluating_anything(engine: Engine) -> None:
    cells = engine.stats().n_cells_used
    session = llamanb.ChatSession(engine, history_json=json.dumps(TALK))
    assert [m.text for m in session.messages] == ["Be brief.", "Name a colour.", "Blue."]
    assert session.system == "Be brief."
    assert session.messages[-1].reasoning == "The sky."
    assert engine.stats().n_cells_used == cells
    assert session.prefill().n_prompt == session.n_tokens
    reply = session.send("Another one.", max_tokens=4)
    assert reply.usage.n_cached > 0


def test_a_history_of_messages_wins_over_one_in_json_unless_it_is_empty(scripted_engine: Engine) -> None:
    other = json.dumps([{"role": "user", "content": "In JSON."}])
    session = llamanb.ChatSession(scripted_engine, history=TALK, history_json=other)
    assert [m.text for m in session.messages] == ["Be brief.", "Name a colour.", "Blue."]
    session = llamanb.ChatSession(scripted_engine, history=[], history_json=other)
    assert [m.text for m in session.messages] == ["In JSON."]
    assert llamanb.ChatSession(scripted_engine, history_json="[]").messages == []
    with pytest.raises(BranchError, match="another system prompt"):
        llamanb.ChatSession(scripted_engine, "Be long.", history=TALK)


def test_tool_calls_and_parts_of_messages_are_kept_as_they_are(scripted_engine: Engine) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    given = [*CALLING, {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": parts, "name": "Ann"}]
    session = llamanb.ChatSession(scripted_engine, history_json=json.dumps(given))
    call = session.messages[1].tool_calls[0]
    assert (call.id, call.name, call.arguments_text) == ("1", "weather", '{"city": "Rome"}')
    assert session.messages[2].tool_call_id == "1"
    assert session.messages[-1].content == parts
    assert session.messages[-1].extra == {"name": "Ann"}
    again = llamanb.ChatSession.from_dict(session.to_dict(), scripted_engine)
    assert again.messages == session.messages


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"role": "user", "content": "one"}', r"\$.*array.*object"),
        ("[1]", r"\$\[0\]"),
        ('[{"role": "nobody", "content": ""}]', r"\$\[0\]\.role"),
        ('[{"role": "user", "content": "one"}, {"role": "user"}]', r"\$\[1\]\.content"),
        ("[", r"\$.*not JSON"),
        ("null", r"\$.*array.*null"),
    ],
)
def test_a_history_that_is_no_array_of_messages_names_the_place(scripted_engine: Engine, text: str, path: str) -> None:
    with pytest.raises(HistoryFormatError, match=path):
        llamanb.ChatSession(scripted_engine, history_json=text)


def test_a_history_that_is_given_as_the_wrong_thing_says_what_is_right(scripted_engine: Engine) -> None:
    with pytest.raises(TypeError, match="give that as history"):
        llamanb.ChatSession(scripted_engine, history_json=TALK)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list of messages"):
        llamanb.ChatSession(scripted_engine, history="Hello.")


# -- what the next message adds ----------------------------------------------------------------------------------


def test_what_a_message_adds_is_exactly_what_the_next_send_evaluates(engine: Engine) -> None:
    session = llamanb.ChatSession(engine, history=TALK)
    before, cells = session.to_dict(), engine.stats().n_cells_used
    preface, added = session.render_preface(), session.render_message("Another one.")
    assert session.to_dict() == before
    assert engine.stats().n_cells_used == cells
    reply = session.send("Another one.", max_tokens=4)
    whole = [*llamanb.ChatSession(engine, history=TALK).messages, reply.messages[0]]
    assert preface + added == engine.render(whole, add_generation_prompt=True)
    assert reply.usage.n_prompt == len(engine.encode(whole))


def test_a_template_that_writes_an_answer_in_another_way_once_it_is_followed_up_adds_that_too() -> None:
    thinks = llamanb.TemplateHistory(
        "{% for m in messages %}[{{ m['reasoning_content'] or '' }}|{{ m['content'] }}]{% endfor %}"
    )
    session = llamanb.ChatSession(llamanb.ScriptedEngine([]), history=TALK).with_history_transform(thinks)
    assert session.render_preface() == "[|Be brief.][|Name a colour.][The sky.|Blue.]"
    assert session.render_message("Another one.") == "|Blue.][|Another one.]"


def test_what_a_message_adds_counts_input_and_history_transforms(scripted_engine: Engine) -> None:
    session = llamanb.ChatSession(scripted_engine).with_input_transform(str.upper)
    assert session.render_message("one") == "<|im_start|>user\nONE<|im_end|>\n<|im_start|>assistant\n"
    session = session.with_history_transform(llamanb.PlainTextHistory())
    assert session.render_message("one") == "User: ONE\nAssistant:"
    with pytest.raises(llamanb.InvalidArgumentError, match="prompt is empty"):
        session.render_message(" ")


def test_counts_are_exact(engine: Engine) -> None:
    session = llamanb.ChatSession(engine)
    assert session.n_tokens == 0
    assert session.render_preface() == ""
    session.add_messages(TALK[:2])
    assert session.count_tokens("Be brief.") == len(engine.tokenize("Be brief."))
    adds = session.count_tokens([{"role": "assistant", "content": "Blue."}])
    before = session.n_tokens
    session.add_message("assistant", "Blue.")
    assert session.n_tokens == before + adds
    usage = session.prefill()
    assert usage.n_prompt == session.n_tokens


# -- the parts of the prompt -------------------------------------------------------------------------------------


def test_the_parts_of_the_prompt_are_the_prompt(engine: Engine) -> None:
    session = llamanb.ChatSession(engine, "Parts of the prompt.", history=TALK[1:])
    session.add_messages([{"role": "user", "content": "More."}, {"role": "assistant", "content": "Red, then green."}])
    parts = session.context()
    assert [part.role for part in parts] == [message.role for message in session.messages]
    assert "".join(part.text for part in parts) == session.render_preface()
    assert sum(part.n_tokens for part in parts) == session.n_tokens
    assert all(message.text in part.text for part in parts for message in part.messages)
    assert parts[-1].n_cached == 0
    session.fork("short", at=1).prefill()
    parts = session.context()
    assert [part.n_cached == part.n_tokens for part in parts] == [True, True, False, False, False]
    session.prefill()
    assert all(part.n_cached == part.n_tokens for part in session.context())


def test_messages_that_a_template_only_writes_together_are_one_part() -> None:
    refuses = llamanb.TemplateHistory(
        "{% if messages | length % 2 %}{{ raise_exception('pairs') }}{% endif %}" + _PAIRS
    )
    session = llamanb.ChatSession(llamanb.ScriptedEngine([])).with_history_transform(refuses)
    session.add_messages([{"role": role, "content": role[0]} for role in ("user", "assistant", "user", "assistant")])
    parts = session.context()
    assert [(part.text, len(part.messages)) for part in parts] == [("[u][a]", 2), ("[u][a]", 2)]
    session.remove_last()
    with pytest.raises(TemplateError, match="pairs"):
        session.context()


_PAIRS = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


# -- sends that only read ----------------------------------------------------------------------------------------


def test_a_send_of_no_tokens_reads_the_prompt_and_stores_nothing(engine: Engine) -> None:
    session = llamanb.ChatSession(engine, history=TALK)
    before = session.to_dict()
    reply = session.send("Another one.", max_tokens=0)
    assert (reply.text, reply.messages, reply.finish_reason) == ("", (), FinishReason.LENGTH)
    assert reply.usage.n_generated == 0
    assert session.to_dict() == before
    answer = session.send("Another one.", max_tokens=4)
    assert answer.usage.n_prefilled == 1
    assert session.sampling == llamanb.SamplingParams()
    assert dict(answer.messages[-1].sampling or {})["max_tokens"] == 4


@pytest.mark.parametrize("n", [-1, False, 0.5])
def test_a_length_that_is_no_number_of_tokens_is_refused(scripted_engine: Engine, n: Any) -> None:
    session = llamanb.ChatSession(scripted_engine)
    with pytest.raises((llamanb.InvalidArgumentError, TypeError), match="max_tokens"):
        session.send("one", max_tokens=n)
    assert session.messages == []
