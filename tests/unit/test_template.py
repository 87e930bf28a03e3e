"""Chat templates: the sandbox, a template's own refusals, old reasoning, and control strings in what people say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamanb.engine.template import CHATML, ChatTemplate, ControlStrings
from llamanb.errors import TemplateError
from llamanb.messages import Message, ToolCall

CONTROL = ["<|im_start|>", "<|im_end|>", "<|", "</s>", "[INST]", "x"]

# Writes out everything that a message has, in the manner of templates for tools.
EVERYTHING = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m.content if m.content is string else m.content | tojson }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "{{ m.tool_call_id or '' }}{{ '<|im_end|>\n' }}{% endfor %}"
)

texts = st.lists(st.sampled_from([*CONTROL, "a", " ", "<", "im_end|>", "\n", "|", "\ufdd0", "é"]), max_size=6).map(
    "".join
)
conversations = st.lists(
    st.builds(
        Message.create,
        st.sampled_from(["user", "assistant", "tool"]),
        texts | st.lists(texts.map(lambda text: {"type": "image", "url": text}), max_size=2),
        reasoning=st.none() | texts,
        tool_calls=st.lists(
            st.builds(ToolCall, texts, texts, texts | texts.map(lambda text: json.dumps({text: [text]}))), max_size=2
        ).map(tuple),
        tool_call_id=st.none() | texts,
    ),
    min_size=1,
    max_size=4,
)


def said(role: str, content: str, **fields: object) -> Message:
    return Message.create(role, content, **fields)


def test_chatml_is_written_as_its_description_says() -> None:
    messages = [said("system", "Be brief."), said("user", "Hi")]
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert ChatTemplate(CHATML).render(messages, add_generation_prompt=False) == expected
    assert ChatTemplate(CHATML).render(messages) == expected + "<|im_start|>assistant\n"


@given(conversations)
@settings(max_examples=200, deadline=None)
def test_joined_segments_are_what_render_gives(messages: list[Message]) -> None:
    template = ChatTemplate(EVERYTHING, bos="<s>", control=ControlStrings(CONTROL))
    assert "".join(template.segments(messages)) == template.render(messages)


@given(st.lists(texts, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_segments_hold_control_strings_only_where_the_template_wrote_them(contents: list[str]) -> None:
    control = [text for text in CONTROL if len(text) > 1]
    template = ChatTemplate(CHATML, control=ControlStrings(CONTROL))
    segments = template.segments([said("user", content) for content in contents])
    for text in control:
        written = 2 * len(contents) + 1 if text == "<|" else len(contents) + (text == "<|im_start|>")
        assert sum(segment.count(text) for segment in segments) == (written if text.startswith("<|") else 0)


@pytest.mark.parametrize(
    "field", ["content", "reasoning", "name", "arguments", "argument key", "call id", "part", "role"]
)
def test_a_control_string_is_cut_wherever_a_message_carries_it(field: str) -> None:
    evil = "<|im_end|>"
    call = ToolCall("1", "f", "{}")
    message = {
        "content": said("assistant", evil),
        "reasoning": said("assistant", "a", reasoning=evil),
        "name": said("assistant", "a", tool_calls=(ToolCall("1", evil, "{}"),)),
        "arguments": said("assistant", "a", tool_calls=(ToolCall("1", "f", json.dumps({"a": [evil]})),)),
        "argument key": said("assistant", "a", tool_calls=(ToolCall("1", "f", json.dumps({evil: 1})),)),
        "call id": said("tool", "a", tool_call_id=evil),
        "part": Message.create("assistant", [{"type": "image", "url": evil}]),
        "role": said("assistant", "no control", tool_calls=(call,)),
    }[field]
    template = ChatTemplate(EVERYTHING, control=ControlStrings([evil]))
    segments = template.segments([message])
    assert "".join(segments).count(evil) == (1 if field == "role" else 2)
    assert sum(segment.count(evil) for segment in segments) == 1
    assert segments[-1].endswith(evil + "\n")


def test_control_strings_that_stand_in_one_another_or_overlap_are_all_cut() -> None:
    template = ChatTemplate("{{ messages[0].content }}", control=ControlStrings(["<|tool|>", "|tool|", "|>\n[", "<|"]))
    segments = template.segments([said("user", "a<|tool|>\n[b")])
    assert "".join(segments) == "a<|tool|>\n[b"
    assert not [text for text in ("<|tool|>", "|tool|", "|>\n[", "<|") if any(text in part for part in segments)]


def test_text_without_control_strings_is_one_segment() -> None:
    template = ChatTemplate(CHATML, control=ControlStrings(["<|im_end|>"]))
    assert template.segments([said("user", "a <b> | c")]) == [template.render([said("user", "a <b> | c")])]
    assert len(ChatTemplate(CHATML).segments([said("user", "<|im_end|>")])) == 1


def test_the_mark_between_segments_is_no_character_of_the_messages() -> None:
    template = ChatTemplate(CHATML, control=ControlStrings(["<|im_end|>"]))
    messages = [said("user", "\ufdd0<|im_end|>\ufdd1")]
    assert "".join(template.segments(messages)) == template.render(messages)
    everything = "".join(chr(code) for code in range(0xFDD0, 0xFDF0))
    with pytest.raises(TemplateError, match="every character"):
        template.segments([said("user", everything + "<|im_end|>")])


@pytest.mark.parametrize(
    "trick",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ messages[0]['__class__'] or messages[0].__class__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{% set x = messages.append(1) %}",
        "{% set x = messages[0].update({'role': 'system'}) %}",
        "{{ messages[0].pop('role') }}",
        "{{ range(999999999) | list }}",
        "{% include '/etc/hostname' %}",
        "{% import 'os' as os %}",
    ],
)
def test_the_sandbox_refuses_tricks(trick: str) -> None:
    template = ChatTemplate(trick + "{{ messages[0].content }}")
    messages = [said("user", "Hi")]
    try:
        written = template.render(messages)
    except TemplateError:
        written = "Hi"
    assert written == "Hi", "either it is refused, or the trick gave nothing"
    assert messages == [said("user", "Hi")]


@pytest.mark.parametrize("trick", ["{{ ''.__class__.__mro__ }}", "{% set x = messages.append(1) %}"])
def test_what_the_sandbox_refuses_is_a_template_error_that_says_so(trick: str) -> None:
    with pytest.raises(TemplateError, match="not allowed"):
        ChatTemplate(trick).render([said("user", "Hi")])


def test_a_template_refuses_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('Roles must alternate user/assistant') }}")
    with pytest.raises(TemplateError, match="refuses these messages: Roles must alternate user/assistant"):
        template.render([said("user", "a"), said("user", "b")])


@pytest.mark.parametrize(
    "source",
    ["{{ messages[9].role + 1 }}", "{{ 1 / 0 }}", "{{ strftime_now('%Y') }}", "{{ nothing() }}", "{{ 'a' + 1 }}"],
)
def test_a_template_that_fails_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError, match="failed on these messages"):
        ChatTemplate(source).render([said("user", "a")])


@pytest.mark.parametrize("source", ["{% if %}", "{{ messages", "{% nothing %}", "{{ a | no_such_filter }}"])
def test_a_source_that_is_no_template_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source)


def test_the_prompt_knows_no_date() -> None:
    source = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}"
    assert ChatTemplate(source).render([]) == "26 Jul 2024"


def test_json_is_written_as_templates_expect_it() -> None:
    source = "{{ {'é': '<a>', 'b': 1} | tojson }}{{ [1] | tojson(indent=2) }}"
    assert ChatTemplate(source).render([]) == '{"é": "<a>", "b": 1}[\n  1\n]'


def test_blocks_are_trimmed_and_loops_may_break() -> None:
    source = "{% for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m.content }}\n{% endfor %}\n"
    assert ChatTemplate(source).render([said("user", "a"), said("user", "b")]) == "a\n"


def test_reasoning_is_left_out_once_a_later_user_message_exists() -> None:
    template = ChatTemplate(EVERYTHING)
    asked, thought = said("user", "q"), said("assistant", "a", reasoning="old thought")
    assert "old thought" in template.render([asked, thought])
    assert "old thought" not in template.render([asked, thought, said("user", "again")])
    assert "old thought" not in "".join(template.segments([asked, thought, said("user", "again")]))


def test_inside_a_tool_loop_reasoning_stays() -> None:
    call = said("assistant", "beside it", reasoning="I need the tool", tool_calls=(ToolCall("1", "f", '{"a": 1}'),))
    loop = [said("user", "q"), call, said("tool", "42", tool_call_id="1")]
    written = ChatTemplate(EVERYTHING).render(loop)
    assert "<think>I need the tool</think>beside itf" + '{"a": 1}' in written
    later = ChatTemplate(EVERYTHING).render([*loop, said("assistant", "It is 42."), said("user", "Thanks")])
    assert "I need the tool" not in later
    assert 'beside itf{"a": 1}' in later
    assert "421<|im_end|>" in later


def test_leaving_reasoning_out_keeps_all_that_stands_beside_it() -> None:
    source = "{% for m in messages %}{{ m.tool_call_id or '' }}{{ m.content }};{% endfor %}"
    messages = [said("tool", "r", tool_call_id="call-7", reasoning="x"), said("user", "q")]
    assert ChatTemplate(source).render(messages) == "call-7r;q;"


def test_parts_that_are_all_text_are_given_as_text() -> None:
    parts = Message.create("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert ChatTemplate("{{ messages[0].content }}").render([parts]) == "ab"


def test_arguments_that_are_no_json_are_given_as_they_were_written() -> None:
    call = said("assistant", "", tool_calls=(ToolCall("1", "f", "{oops"),))
    assert ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}").render([call]) == "{oops"


def test_the_tokens_for_the_ends_are_known_to_the_template() -> None:
    assert ChatTemplate("{{ bos_token }}|{{ eos_token }}", bos="<s>", eos="</s>").render([]) == "<s>|</s>"
