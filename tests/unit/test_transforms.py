"""Transforms of text: keywords and role names out of a stream however it is cut, and conversations as text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamanb import (
    InvalidArgumentError,
    KeywordRemover,
    Message,
    PlainTextHistory,
    RoleNameStripper,
    TemplateHistory,
    compose,
)

KEYWORDS = [
    (["User:"], ["Hi", "\n", "User", ":"], "Hi\n"),
    (["User:", "Assistant:"], ["Assistant", ":", " Sure", ".", "\n", "User", ":"], " Sure.\n"),
    (["User:", "Assistant:"], ["User:Assistant:x"], "x"),
    (["User:"], ["abcdefgU", "ser:"], "abcdefg"),
    (["highlight"], ["\r\nhighligh", "t"], "\r\n"),
    (["User:"], ["User:Us", "er:"], ""),
    (["User:"], ["bye", " Us"], "bye Us"),
    (["User:"], [], ""),
    (["User:"], ["a long sentence User: more"], "a long sentence  more"),
    (["ab", "abc"], ["x", "a", "b", "c", "y"], "xy"),
    (["😀User:"], ["hi 😀", "User", ":!"], "hi !"),
]


def cuts(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(("keywords", "chunks", "joined"), KEYWORDS)
def test_keywords_are_removed_wherever_they_are_split(keywords: list[str], chunks: list[str], joined: str) -> None:
    text = "".join(chunks)
    remover = KeywordRemover(keywords)
    assert "".join(remover(iter(chunks))) == joined
    assert "".join(remover(iter(text))) == joined
    assert "".join(remover(iter([text]))) == joined


@given(
    st.lists(st.text("ab:", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("ab: ", max_size=30),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_what_is_left_does_not_hang_on_how_the_text_is_cut(keywords: list[str], text: str, places: list[int]) -> None:
    remover = KeywordRemover(keywords)
    assert "".join(remover(iter(cuts(text, places)))) == "".join(remover(iter([text])))


@pytest.mark.parametrize(("keywords", "problem"), [([], "at least one keyword"), ([""], "is empty")])
def test_there_must_be_a_keyword(keywords: list[str], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        KeywordRemover(keywords)


def test_a_text_is_no_list_of_keywords() -> None:
    with pytest.raises(TypeError, match="list of texts"):
        KeywordRemover("User:")


def shown_after(remover: KeywordRemover, chunk: str) -> str:
    """What has been shown once a chunk was read and no other has come."""
    shown: list[str] = []
    seen: list[str] = []

    def stream() -> Iterator[str]:
        yield chunk
        seen.extend(shown)

    pieces = remover(stream())
    while (piece := next(pieces, None)) is not None:
        shown.append(piece)
    return "".join(seen)


@pytest.mark.parametrize(
    ("chunk", "shown"), [("bye Us", "bye "), ("bye", "bye"), ("bye User", "bye "), ("User is", "User is"), ("UUs", "U")]
)
def test_nothing_is_held_back_but_what_may_become_a_keyword(chunk: str, shown: str) -> None:
    assert shown_after(KeywordRemover(["User:"]), chunk) == shown


def test_windows_that_a_keyword_touches_are_dropped_whole() -> None:
    remover = KeywordRemover(["User:"], drop_window=True)
    assert list(remover(iter(["one ", "two Us", "er: three", " four", " Us", "ing"]))) == [
        "one ",
        " four",
        " Us",
        "ing",
    ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Assistant: Sure.", "Sure."),
        ("\n Assistant:\n\nSure.\n\nUser:", "Sure."),
        ("Sure.\nUser: ", "Sure."),
        ("Ask the User: he knows.\nNext", "Ask the User: he knows.\nNext"),
        ("Assist", "Assist"),
        ("User:", ""),
        (" plain\n", " plain\n"),
        ("a\nUse", "a\nUse"),
    ],
)
def test_role_names_go_at_the_start_and_on_a_line_of_their_own_at_the_end(text: str, left: str) -> None:
    assert "".join(RoleNameStripper()(iter([text]))) == left
    assert "".join(RoleNameStripper()(iter(text))) == left


def upper(stream: Iterator[str]) -> Iterator[str]:
    for text in stream:
        yield text.upper()


def test_composed_transforms_apply_the_first_one_to_what_the_model_wrote() -> None:
    assert "".join(compose(KeywordRemover(["b"]), upper)(iter(["a", "b", "B"]))) == "AB"
    assert "".join(compose(upper, KeywordRemover(["b"]))(iter(["a", "b", "B"]))) == "ABB"
    assert compose(upper) is upper
    with pytest.raises(InvalidArgumentError, match="at least one"):
        compose()
    with pytest.raises(TypeError, match="is a class"):
        compose(KeywordRemover)
    with pytest.raises(TypeError, match="function of the pieces"):
        compose("User:")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "said", "text"),
    [
        ({}, [("system", "S"), ("user", "U"), ("assistant", "A")], "System: S\nUser: U\nAssistant: A\n"),
        ({}, [("unknown", "X")], "??: X\n"),
        ({"user": "Ada"}, [("user", "U"), ("user", "V")], "Ada: U\nAda: V\n"),
    ],
)
def test_plain_text_has_a_line_for_each_message(names: dict[str, str], said: list[tuple[str, str]], text: str) -> None:
    messages = [Message("", None, role, content) for role, content in said]
    assert PlainTextHistory(**names).to_text(messages) == text


@pytest.mark.parametrize(
    ("role", "text", "instruct", "content"),
    [
        ("user", "User:  hi ", False, "hi "),
        ("assistant", "Sure.\nAssistant:", False, "Sure."),
        ("assistant", "Assistant: Sure", False, "Assistant: Sure"),
        ("assistant", "Done\n> ", True, "Done"),
    ],
)
def test_plain_text_is_read_without_the_names_around_it(role: str, text: str, instruct: bool, content: str) -> None:
    (message,) = PlainTextHistory(instruct=instruct).from_text(role, text)
    assert (message.role, message.content) == (role, content)


def test_plain_text_asks_behind_the_assistants_name_and_stops_at_the_next_one() -> None:
    history = PlainTextHistory(user="Ada", instruct=True)
    asked = [Message.create("user", "Hi")]
    assert history.to_prompt(asked) == "Ada: Hi\nAssistant:"
    assert history.to_prompt(asked, "So") == "Ada: Hi\nAssistant: So"
    assert history.stop == ("\nAda:", "\nSystem:", "\nAssistant:", "\n> ")


@pytest.mark.parametrize("name", ["", " ", "two\nlines"])
def test_a_name_is_words_on_one_line(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="words on one line"):
        PlainTextHistory(user=name)


def test_a_template_writes_a_conversation_and_asks_for_an_answer() -> None:
    history = TemplateHistory(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    messages = [Message.create("user", "Hi", model_input="Hello")]
    assert history.to_text(messages) == "[user]Hello"
    assert history.to_prompt(messages, "So") == "[user]Hello[assistant]So"
