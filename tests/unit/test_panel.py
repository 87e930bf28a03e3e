"""What the kernel's half of the panel answers, without a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import llamanb
from llamanb import runtime
from llamanb.widgets.panel import ChatPanel
from llamanb.widgets.protocol import PANEL_REQUESTS
from llamanb.widgets.transcript import Transcript


class Heard(ChatPanel):
    """A panel whose messages are kept."""

    def send(self, content: dict[str, Any], buffers: Any = None) -> None:
        self.messages.append(content)

    def ask(self, kind: str, **content: Any) -> dict[str, Any]:
        """Ask as a front end does, and return the answer."""
        self.receive({"kind": kind, "id": "7", **content})
        (answer,) = [message for message in self.messages if message.get("request") == "7"]
        self.messages.remove(answer)
        return answer

    def wait(self) -> None:
        """Wait until what was asked is answered."""
        for thread in threading.enumerate():
            if thread.name == "llamanb-panel-answer":
                thread.join()


@pytest.fixture
def panel(monkeypatch: pytest.MonkeyPatch, scripted_engine: llamanb.ScriptedEngine) -> Iterator[Heard]:
    monkeypatch.setattr(runtime, "_runtime", None)
    monkeypatch.setattr(Heard, "messages", [], raising=False)
    panel = Heard(llamanb.ChatSession(scripted_engine))
    yield panel
    panel.wait()
    panel.close()


def test_every_request_gets_one_answer_whatever_is_in_it(panel: Heard) -> None:
    panel.session.send("one")
    id = panel.session.messages[0].id
    for kind in [*PANEL_REQUESTS, "nonsense", None, 3]:
        for content in ({}, {"message": 3}, {"message": "nowhere", "text": "x", "name": "x"}, {"branch": "nowhere"}):
            answer = panel.ask(kind, **content)  # type: ignore[arg-type]
            if answer["kind"] == "failed":
                assert answer["error"].endswith(".")
                assert "Error" not in answer["error"]
    panel.wait()
    assert id in panel.session.history.messages


@pytest.mark.parametrize(
    ("kind", "content", "says"),
    [
        ("send", {"text": "  "}, "The prompt is empty"),
        ("switch", {"branch": "nowhere"}, "There is no branch 'nowhere'"),
        ("rename", {"branch": "main", "new": "-x"}, "cannot be a branch's name"),
        ("remove", {"branch": "main"}, "is the active branch"),
        ("prune", {"n": 5}, "0 messages would be removed; look again"),
        ("check", {"name": "temperature", "value": "-1"}, "temperature is -1; it must be"),
        ("check", {"name": "max_tokens", "value": "many"}, "'many' is not a number."),
        ("check", {"name": "max_tokens", "value": "1.5"}, "max_tokens must be a whole number"),
        ("check", {"name": "seed", "value": "soon"}, "seed"),
        ("set", {"name": "engine", "value": "1"}, "There is no setting 'engine'"),
        ("continue", {"message": "ffff"}, "no branch, index or message id"),
        ("fork", {"message": "ffff", "name": "x"}, "not in the tree"),
        ("edit", {}, "The panel's request has no message"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(panel: Heard, kind: str, content: dict[str, Any], says: str) -> None:
    answer = panel.ask(kind, **content)
    assert answer["kind"] == "failed"
    assert says in answer["error"]
    assert panel.session.messages == []


def test_what_is_asked_is_answered_and_shown(panel: Heard) -> None:
    assert panel.ask("send", text="one")["kind"] == "done"
    panel.wait()
    assert [message.text for message in panel.session.messages] == ["one", "You said: one"]
    view = Transcript(panel.session).view()
    assert view["path"] == [message.id for message in panel.session.messages]
    assert view["meter"]["n_tokens"] == panel.session.n_tokens


def test_a_fork_of_the_first_question_asks_it_again(panel: Heard) -> None:
    runtime.use_session(panel.session)
    panel.session.send("one")
    answer = panel.ask("fork", message=panel.session.messages[0].id, name="side")
    assert answer["result"] == {"branch": "side", "source": "%%chat --branch side\none"}
    assert panel.session.branches["side"].messages == []
    assert panel.session.active.name == "main"


def test_a_panel_shows_a_session_alone() -> None:
    with pytest.raises(TypeError, match="A panel shows a ChatSession, not a str"):
        ChatPanel("main")  # type: ignore[arg-type]


def test_two_panels_of_one_session_look_the_same_in_a_notebook(panel: Heard) -> None:
    assert repr(ChatPanel(panel.session)) == repr(ChatPanel(panel.session)) == "<ChatPanel>"


def test_an_answer_goes_through_the_output_transform(panel: Heard) -> None:
    panel.session.output_transform = llamanb.KeywordRemover(["said: "])
    panel.ask("send", text="one")
    panel.wait()
    assert panel.session.messages[-1].text == "You one"
    shown = Transcript(panel.session).items(message.id for message in panel.session.messages)
    assert "You one" in str(shown)
    assert "said:" not in str(shown)
