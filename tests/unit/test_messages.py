"""Messages, tool calls and what of them can be stored."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from llamanb.errors import HistoryFormatError, InvalidArgumentError, ToolError
from llamanb.messages import ROLES, FinishReason, Message, ToolCall, message_id, preview, storable

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(ToolCall, text, text, text)
messages = st.builds(
    Message.create,
    st.sampled_from(ROLES),
    text | st.lists(json_values, max_size=3),
    parent=st.none() | st.just("0" * 16),
    reasoning=st.none() | text,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=st.none() | text,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    model=st.none() | text,
    sampling=st.none() | st.dictionaries(text, json_values, max_size=2),
    extra=st.dictionaries(text.map("x-{}".format), json_values, max_size=2),
)


def through_a_browser(value: Any) -> Any:
    """What JSON.parse and JSON.stringify make of a value: every number is a double, whole ones lose their point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    if isinstance(value, dict):
        return {key: through_a_browser(item) for key, item in value.items()}
    if isinstance(value, list):
        return [through_a_browser(item) for item in value]
    return value


@given(messages)
@settings(max_examples=200, deadline=None)
def test_the_id_is_the_hash_of_every_stored_key_but_the_id(message: Message) -> None:
    stored = message.to_dict()
    assert message.id == hashlib.sha256(rfc8785.dumps(stored)).hexdigest()[:16]
    assert "id" not in stored


@given(messages)
@settings(max_examples=200, deadline=None)
def test_the_stored_form_reads_back_as_the_same_message(message: Message) -> None:
    stored = json.loads(json.dumps(message.to_dict(), allow_nan=False))
    assert Message.from_dict(message.id, stored) == message


@given(messages)
@settings(max_examples=200, deadline=None)
def test_a_browser_that_rewrites_numbers_leaves_the_id_right(message: Message) -> None:
    assert message_id(through_a_browser(message.to_dict())) == message.id


@given(messages, st.none() | st.just("f" * 16))
@settings(max_examples=100, deadline=None)
def test_below_another_parent_a_message_says_the_same_with_the_id_of_that_place(message: Message, parent: Any) -> None:
    moved = message.below(parent)
    assert moved.to_dict() == {**message.to_dict(), "parent": parent}
    assert (moved.id == message.id) == (parent == message.parent)


@given(json_values)
@settings(max_examples=200, deadline=None)
def test_what_is_storable_stays_as_it_is_when_stored_again(value: Any) -> None:
    once = storable(value)
    assert storable(once) == once
    assert storable(through_a_browser(once)) == once
    rfc8785.dumps(once)


def test_the_same_message_has_the_same_id_and_any_difference_another() -> None:
    first = Message.create("user", "Hello")
    assert first == Message.create("user", "Hello")
    others = [
        Message.create("user", "Hello."),
        Message.create("system", "Hello"),
        Message.create("user", ["Hello"]),
        Message.create("user", "Hello", parent=first.id),
        Message.create("user", "Hello", model="m"),
        Message.create("user", "Hello", sampling={}),
    ]
    assert len({first.id, *(other.id for other in others)}) == 7


def test_the_id_does_not_depend_on_the_order_of_keys() -> None:
    one = Message.create("user", [{"type": "text", "text": "a"}], sampling={"a": 1, "b": 2})
    two = Message.create("user", [{"text": "a", "type": "text"}], sampling={"b": 2, "a": 1})
    assert one.id == two.id


def test_the_form_that_ids_are_made_of_has_not_changed() -> None:
    canonical = b'{"content":"Hello \xe2\x82\xac","parent":null,"role":"user"}'
    assert Message.create("user", "Hello €").id == hashlib.sha256(canonical).hexdigest()[:16]


@pytest.mark.parametrize(
    ("number", "stored"),
    [
        (2**53 - 1, 2**53 - 1),
        (2**53, str(2**53)),
        (-(2**53), str(-(2**53))),
        (10**30, str(10**30)),
        (1e20, "1e+20"),
        (-1e300, "-1e+300"),
        (0.5, 0.5),
        (1e-07, 1e-07),
        (True, True),
    ],
)
def test_numbers_that_a_browser_would_change_are_stored_as_text(number: Any, stored: Any) -> None:
    assert storable([number]) == [stored]
    assert type(storable(number)) is type(stored)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": ["\ud800"]}, "$.a[0]"),
        ({"\udfff": 1}, "$"),
        ({"a": float("nan")}, "$.a"),
        ([float("inf")], "$[0]"),
        ({"a": {"b": b"bytes"}}, "$.a.b"),
        ({"a": {1: 2}}, "$.a"),
        ([{1, 2}], "$[0]"),
        (object(), "$"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: Any, path: str) -> None:
    with pytest.raises(HistoryFormatError) as caught:
        storable(value)
    assert caught.value.path == path


@pytest.mark.parametrize("content", ["half \ud83d", [{"type": "text", "text": "\udc00"}], [float("nan")], [object()]])
def test_a_message_that_cannot_be_stored_is_refused(content: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be stored"):
        Message.create("user", content)


def test_roles_and_contents_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="no role 'robot'"):
        Message.create("robot", "x")
    with pytest.raises(TypeError, match="not int"):
        Message.create("user", 3)  # type: ignore[arg-type]


def test_values_may_be_nested_deep_but_not_beyond_measure() -> None:
    deep: list[Any] = []
    for _ in range(99):
        deep = [deep]
    message = Message.create("user", deep)
    assert message.below("0" * 16).content == deep
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(InvalidArgumentError, match="nested"):
        Message.create("user", deep)


def test_a_message_cannot_be_changed_from_outside() -> None:
    part = {"type": "text", "text": "a"}
    content = [part]
    message = Message.create("user", content)
    part["text"] = "b"
    content.append({})
    message.to_dict()["content"].append("c")
    assert message.content == [{"type": "text", "text": "a"}]
    with pytest.raises(FrozenInstanceError):
        message.content = "b"  # type: ignore[misc]


def test_keys_that_are_empty_are_not_stored() -> None:
    assert Message.create("user", "a").to_dict() == {"parent": None, "role": "user", "content": "a"}


def test_the_text_of_parts_is_that_of_the_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "text": "no"}, {"text": "b"}, "c", 3]
    assert Message.create("user", parts).text == "ab"
    assert Message.create("user", "ab").text == "ab"


def test_arguments_are_the_json_that_the_model_wrote() -> None:
    call = ToolCall("1", "f", '{"b": 1.0,  "a": "é"}')
    assert call.arguments == {"b": 1.0, "a": "é"}
    assert ToolCall.from_dict(call.to_dict()) == call
    assert ToolCall.from_dict({"id": "1", "name": "f", "arguments": {"a": "é"}}).arguments_text == '{"a": "é"}'
    assert ToolCall.from_dict({"id": "1", "name": "f"}).arguments == {}


@pytest.mark.parametrize("written", ["", "{", "[1]", "null", "3", '"x"', "{'a': 1}", "[" * 100_000])
def test_arguments_that_are_no_object_are_a_tool_error(written: str) -> None:
    with pytest.raises(ToolError, match="'f'"):
        _ = ToolCall("1", "f", written).arguments


def test_a_finish_reason_is_its_text() -> None:
    assert f"{FinishReason.LENGTH}" == str(FinishReason.LENGTH) == FinishReason.LENGTH == "length"
    assert {str(reason) for reason in FinishReason} == {"stop", "length", "tool_calls", "cancelled", "error"}


@given(st.text(max_size=40), st.integers(2, 20))
@settings(deadline=None)
def test_a_preview_is_one_line_of_the_first_words(words: str, width: int) -> None:
    line = preview(words, width)
    assert len(line) <= width
    assert len(line.splitlines()) <= 1
    assert " ".join(re.sub("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", " ", words).split()).startswith(
        line.removesuffix("…")
    )
