"""`%%chat` and `%chat` in a real IPython shell."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import llamanb
from llamanb.tree_picture import tree_svg


def test_the_answer_is_one_display_of_markdown_with_plain_text(notebook: Any) -> None:
    outcome = notebook.run("%%chat\nthree two one")
    assert outcome.success
    assert len(outcome.outputs) == 1
    assert outcome.outputs[0].data == {"text/markdown": "one two three", "text/plain": "one two three"}


def test_one_trailing_newline_is_not_part_of_the_prompt(notebook: Any) -> None:
    notebook.run("%%chat\nhello\n")
    notebook.run("%%chat\nhello\n\n")
    assert notebook.texts() == ["hello", "hello\n"]


def test_the_one_line_form_takes_its_text_as_written(notebook: Any) -> None:
    notebook.run('%chat -t 0 What\'s up, "doc"?')
    assert notebook.texts() == ['What\'s up, "doc"?']
    notebook.run("%chat -- --help is an option")
    assert notebook.texts()[-1] == "--help is an option"


def test_braces_are_variables_only_where_they_resolve(notebook: Any) -> None:
    notebook.run("class P: name = 'Ada'\nx = 3\np = P()")
    notebook.run('%%chat\n{x} {p.name} {nope} {p.nope} {{x}} {"a": {"b": 1}} {}')
    assert notebook.texts() == ['3 Ada {nope} {p.nope} {x} {"a": {"b": 1}} {}']
    notebook.run("%%chat --raw\n{x} {{x}}")
    assert notebook.texts()[-1] == "{x} {{x}}"
    notebook.run("x = 4")
    notebook.run("%chat {x} and $x")
    assert notebook.texts()[-1] == "4 and $x"


def test_out_puts_the_reply_into_a_variable(notebook: Any) -> None:
    notebook.run("%%chat -o r\nb a")
    reply = notebook.shell.user_ns["r"]
    assert isinstance(reply, llamanb.Reply)
    assert reply.text == "a b"


def test_options_reach_the_sampling(notebook: Any) -> None:
    notebook.run(
        "%%chat -o r -t 0.5 --top-p 0.9 --top-k 5 --min-p 0.1 --seed 3 --max-tokens 4 --stop zz --stop yy\nb a c d"
    )
    sampling = dict(notebook.shell.user_ns["r"].messages[-1].sampling)
    assert sampling == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "max_tokens": 4, "stop": ["zz", "yy"],
    }  # fmt: skip


def test_a_session_of_its_own_keeps_its_own_conversation(notebook: Any) -> None:
    with llamanb.ScriptedEngine(lambda r: "other") as engine:
        other = llamanb.ChatSession(engine)
        notebook.session  # noqa: B018
        llamanb.runtime.get_runtime().sessions["other"] = other
        notebook.run("%%chat\nb a")
        assert notebook.run("%%chat -s other\nhello").markdown == "other"
        assert notebook.texts() == ["b a"]
        assert [message.text for message in other.messages] == ["hello", "other"]


def test_nothing_a_model_writes_is_live(notebook: Any) -> None:
    notebook.run("%%chat\n<script>alert(1)</script>")
    markdown = notebook.run("%%chat\n<img src=x onerror=alert(1)>").markdown
    assert "<img" not in markdown
    assert "&lt;img" in notebook.run("%%chat\n<img>").markdown


def test_formats(notebook: Any) -> None:
    assert notebook.run("%%chat -f text\n<b> a").outputs[0].data == {"text/plain": "a <b>"}
    assert notebook.run("%%chat -f code\nprint(1)").markdown == "```\nprint(1)\n```"
    good = notebook.run('%%chat -f json\n{"a":1}')
    assert good.success
    assert good.markdown == '```json\n{\n  "a": 1\n}\n```'
    bad = notebook.run("%%chat -f json\nno json")
    assert not bad.success
    assert "not valid JSON" in bad.error


def test_a_schema_is_a_variable(notebook: Any) -> None:
    notebook.run("schema = {'type': 'object'}\nnumber = 3")
    assert notebook.run('%%chat --json-schema schema -o r\n{"a":1}').success
    assert notebook.shell.user_ns["r"].json() == {"a": 1}
    assert "no variable 'nope'" in notebook.run("%%chat --json-schema nope\nx").error
    assert "is a int, not a dict" in notebook.run("%%chat --json-schema number\nx").error


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("%%chat\n", "prompt is empty"),
        ("%%chat\n   \n", "prompt is empty"),
        ("%chat", "prompt is empty"),
        ("%%chat -b nowhere\nx", "no branch 'nowhere'"),
        ("%%chat --temprature 1\nx", "no option --temprature"),
        ("%%chat -t hot\nx", "'hot' is not a number"),
        ("%%chat -t 1000\nx", "temperature is 1000"),
        ("%%chat -t\nx", "-t needs a value"),
        ("%%chat hello\nx", "the prompt goes below"),
        ("%%chat --stop 'a\nx", "a quote is not closed"),
        ("%%chat --at 0\nx", "--fork NAME"),
        ("%%chat -f html\nx", "invalid choice"),
        ("%%chat -o 3x\nx", "cannot be the name of a variable"),
        ("%%chat --fork main\nx", "already"),
        ("%%chat --fork 'a,'\nx", "cannot be a branch's name"),
        ("%%chat --fork 7\nx", "--at would read it"),
        ("%%chat --fork f --at zzzz\nx", "no branch, index or message id"),
        ("%%chat -m /nowhere/model.gguf\nx", "no model file"),
        ("%chat_switch nowhere", "no branch 'nowhere'"),
        ("%chat_switch", "required"),
        ("%chat_fork main", "already"),
        ("%chat_history nowhere", "no branch 'nowhere'"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_lost(notebook: Any, source: str, words: str) -> None:
    notebook.run("%%chat\nfirst")
    before = notebook.session.to_dict()
    outcome = notebook.run(source, "cell-1")
    assert not outcome.success
    assert words in outcome.error
    assert "\n" not in outcome.error
    assert "Traceback" not in outcome.text
    assert notebook.session.to_dict() == before


def test_a_prompt_that_is_too_long_is_one_line(notebook: Any) -> None:
    notebook.run("long = 'x' * 5000")
    outcome = notebook.run("%%chat\n{long}")
    assert not outcome.success
    assert "4096" in outcome.error
    assert notebook.texts() == []


def test_the_system_prompt_can_be_set_while_the_branch_is_empty(notebook: Any) -> None:
    notebook.run("%%chat --system 'Be kind.'\nhello", "a")
    assert notebook.session.messages[0].text == notebook.session.system == "Be kind."
    outcome = notebook.run("%%chat --system 'Be rude.'\nhello", "b")
    assert "fork" in outcome.error
    assert notebook.session.system == "Be kind."
    notebook.run("%%chat --system 'Be very kind.'\nhello", "a")
    assert notebook.session.messages[0].text == "Be very kind."


def test_a_watched_answer_streams_into_one_display(notebook: Any) -> None:
    with llamanb.ScriptedEngine(lambda r: "a fairly long answer " * 4, seconds_per_token=0.005) as engine:
        llamanb.use_session(llamanb.ChatSession(engine), replace=True)
        shown = notebook.run("%%chat\nx", watched=True).outputs
        at_once = notebook.run("%%chat --no-stream\nx", watched=True).outputs
        unwatched = notebook.run("%%chat\nx").outputs
    texts = [output.data["text/plain"] for output in shown]
    assert len(texts) > 2
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == "a fairly long answer " * 4
    assert [output.update for output in shown] == [False] + [True] * (len(shown) - 1)
    assert len({output.transient["display_id"] for output in shown}) == 1
    assert len(at_once) == len(unwatched) == 1
    assert set(unwatched[0].data) == set(shown[-1].data) == {"text/markdown", "text/plain"}


def test_an_output_carries_its_exchange_and_nothing_that_varies(notebook: Any) -> None:
    outcome = notebook.run("%%chat\nb a")
    carried = outcome.outputs[0].metadata["llamanb"]
    assert carried["session"] == "default"
    assert carried["branch"] == "main"
    assert [message["role"] for message in carried["messages"]] == ["system", "user", "assistant"]
    assert carried["first"] == carried["messages"][1]["id"]
    text = json.dumps(carried)
    assert "seconds" not in text
    assert "n_cached" not in text


@pytest.mark.parametrize(
    "name",
    ["chat", "chat_fork", "chat_switch", "chat_branches", "chat_tree", "chat_history", "chat_context"],
)
def test_help_fits_on_one_screen_and_has_an_example(notebook: Any, name: str) -> None:
    before = notebook.session.to_dict()
    for source in (f"%{name} -h", f"%{name} --help"):
        outcome = notebook.run(source)
        assert outcome.success
        assert "Example:" in outcome.text
        assert len(outcome.text.splitlines()) <= 30
        assert max(map(len, outcome.text.splitlines())) <= 100
    assert notebook.shell.find_line_magic(name).__doc__.strip() in outcome.text.strip() or name != "chat"
    assert notebook.session.to_dict() == before


def test_a_model_error_in_the_middle_keeps_what_was_said_and_fails_the_cell(notebook: Any) -> None:
    with llamanb.ScriptedEngine([RuntimeError("the disk is on fire"), "fine"]) as engine:
        llamanb.use_session(llamanb.ChatSession(engine), replace=True)
        outcome = notebook.run("%%chat\nhello", "a")
        assert not outcome.success
        assert "the disk is on fire" in outcome.error
        assert notebook.texts() == []
        assert notebook.run("%%chat\nhello", "a").markdown == "fine"


def test_the_line_magics_show_the_conversation(notebook: Any) -> None:
    notebook.run("%%chat\nb a")
    notebook.run("%%chat --fork side\nd c")
    shown = notebook.run("%chat_tree").outputs[0].data
    assert shown["image/svg+xml"] == tree_svg(notebook.session.history)
    tree = shown["text/plain"]
    assert "● assistant: a b  ◀ main (active)" in tree
    assert "○ assistant: c d  ◀ side" in tree
    branches = notebook.run("%chat_branches").text.splitlines()
    assert branches[0].startswith("* main")
    assert "side" in branches[1]
    assert "from main" in branches[1]
    assert "c d" in notebook.run("%chat_history side").outputs[0].data["text/markdown"]
    context = notebook.run("%chat_context").outputs[0].data["text/plain"]
    assert context.startswith(f"{notebook.session.n_tokens} of 4096 tokens on branch 'main':")
    assert notebook.session.render_preface() in context


def test_commands_before_the_first_message_say_so(notebook: Any) -> None:
    with llamanb.ScriptedEngine([]) as engine:
        llamanb.use_session(llamanb.ChatSession(engine), replace=True)
        assert "(empty)" in notebook.run("%chat_tree").outputs[0].data["text/plain"]
        assert "no messages yet" in notebook.run("%chat_history").outputs[0].data["text/plain"]
        assert "(empty)" in notebook.run("%chat_branches").text
        assert notebook.run("%chat_context").outputs[0].data["text/plain"].startswith("0 of 4096")


def test_use_session_refuses_to_lose_a_conversation(notebook: Any) -> None:
    notebook.run("%%chat\nb a")
    with llamanb.ScriptedEngine(lambda r: "x") as engine:
        empty = llamanb.ChatSession(engine)
        assert llamanb.use_session(empty) is empty
        assert notebook.texts() == ["b a"]
        full = llamanb.ChatSession(engine)
        full.send("hello")
        with pytest.raises(llamanb.InvalidArgumentError, match="replace=True"):
            llamanb.use_session(full)
        llamanb.use_session(full, replace=True)
        assert notebook.texts() == ["hello"]


def test_a_panel_needs_a_notebook_and_a_session_that_is_there(notebook: Any) -> None:
    outcome = notebook.run("%chat_panel")
    assert not outcome.success
    assert outcome.error == "A panel needs a notebook; in a terminal, use %chat and %chat_history."
    outcome = notebook.run("%chat_panel -s nowhere")
    assert "There is no session 'nowhere'" in outcome.error


def test_a_cell_shows_and_stores_what_the_output_transform_makes_of_the_answer(notebook: Any) -> None:
    notebook.session.output_transform = llamanb.KeywordRemover(["secret "])
    assert notebook.run("%%chat\nword secret a", "one").markdown == "a word"
    assert notebook.session.messages[-1].text == "a word"
    assert notebook.run("%%chat --no-stream\nword secret another", "two").markdown == "another word"
    assert notebook.session.messages[-1].text == "another word"


def test_a_transform_that_has_to_be_waited_for_is_one_sentence_and_nothing_is_asked(notebook: Any) -> None:
    notebook.run("async def slow(stream):\n    async for piece in stream:\n        yield piece")
    notebook.session.output_transform = notebook.shell.user_ns["slow"]
    error = notebook.run("%%chat\none", "one").error
    assert "slow" in error
    assert "is async" in error
    assert [message.role for message in notebook.session.messages] == ["system"]


def test_the_context_is_drawn_by_role_and_says_what_is_cached_when_asked(notebook: Any) -> None:
    notebook.run("%%chat\nfive $ and <b>six</b>", "one")
    data = notebook.run("%chat_context").outputs[0].data
    parts = notebook.session.context()
    assert f"user: {parts[1].n_tokens} tokens" in data["text/plain"]
    assert "cached" not in data["text/plain"] + data["text/html"]
    assert "&lt;b&gt;six" in data["text/html"]
    assert "<b>" not in data["text/html"]
    data = notebook.run("%chat_context --cached").outputs[0].data
    assert f"user: {parts[1].n_tokens} tokens, {parts[1].n_cached} cached" in data["text/plain"]
    assert data["text/html"].count("cached") == len(parts)


def test_a_cell_that_asks_for_no_tokens_only_reads(notebook: Any) -> None:
    notebook.run("%%chat\none", "one")
    before = notebook.session.to_dict()
    outcome = notebook.run("%%chat --max-tokens 0\ntwo", "two")
    assert outcome.success
    assert not outcome.outputs
    notebook.run("%%chat --max-tokens 0\nthree", "one")
    assert notebook.session.to_dict() == before
