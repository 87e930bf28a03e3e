"""What the kernel writes into an open document, and how it merges what others write there."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llamanb
from llamanb.documents import Documents
from llamanb.history import CellEntry, History
from llamanb.persistence.live import LiveDocument, merged_sessions
from llamanb.persistence.notebook import DAMAGED, KEY
from llamanb.persistence.patch import make_patch, same
from llamanb.persistence.schema import dump_history, load_history
from llamanb.runtime import Runtime

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, width=16)
    | st.text("ab/~0", max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("ab/~0", max_size=3), inner, max_size=4),
    max_leaves=20,
)


def patched(value: Any, patch: list[dict[str, Any]]) -> Any:
    """Apply a patch as RFC 6902 says, to a copy that has been through JSON."""
    root = {"": json.loads(json.dumps(value))}
    for operation in patch:
        keys = [part.replace("~1", "/").replace("~0", "~") for part in ("", *operation["path"].split("/")[1:])]
        place: Any = root
        for key in keys[:-1]:
            place = place[int(key) if isinstance(place, list) else key]
        last: Any = int(keys[-1]) if isinstance(place, list) else keys[-1]
        if operation["op"] == "remove":
            del place[last]
        elif operation["op"] == "add" and isinstance(place, list):
            assert 0 <= last <= len(place)
            place.insert(last, operation["value"])
        else:
            assert operation["op"] == "add" or isinstance(place, list) or last in place
            place[last] = operation["value"]
    return root[""]


@given(JSON, JSON)
@settings(deadline=None, max_examples=300)
def test_a_patch_makes_the_new_value_of_the_old_one(old: Any, new: Any) -> None:
    before = copy.deepcopy((old, new))
    patch = make_patch(old, new)
    assert same(patched(old, patch), new)
    assert (patch == []) == same(old, new)
    assert (old, new) == before


def test_a_patch_for_one_more_message_of_ten_thousand_is_small() -> None:
    history = History()
    for number in range(10_000):
        history.append("main", "user" if number % 2 == 0 else "assistant", f"message {number}")
    before = dump_history(history, shared=True)
    history.append("main", "user", "one more")
    patch = make_patch(before, dump_history(history, shared=True))
    assert len(json.dumps(patch)) < 600
    assert sorted({operation["path"].split("/")[1] for operation in patch}) == ["branches", "messages", "order"]


class FrontEnd:
    """A document that keeps to the bridge's side of the agreement."""

    def __init__(self, content: dict[str, Any] | None = None, client: str = "client") -> None:
        self.content: dict[str, Any] = json.loads(json.dumps(content or {}))
        self.client = client
        self.revision = 0
        self.cells = ["cell-0", "cell-1", "cell-2"]

    def document(self) -> dict[str, Any]:
        content = json.loads(json.dumps(self.content))
        return {
            "kind": "document", "id": self.client, "revision": self.revision, "content": content, "cells": self.cells,
            "session": f"session of {self.client}", "writable": True,
        }  # fmt: skip

    def now(self, cells: list[str], *moved: tuple[str, str]) -> dict[str, Any]:
        self.cells = cells
        return {"kind": "cells", "id": self.client, "cells": cells, "moved": json.loads(json.dumps(moved))}

    def changed_by_another(self, content: dict[str, Any]) -> None:
        self.content = json.loads(json.dumps(content))
        self.revision += 1

    def write(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["revision"] != self.revision:
            return {"kind": "failed", "id": self.client, "request": message["id"], "error": "changed in between"}
        self.content = patched(self.content, json.loads(json.dumps(message["patch"])))
        return {"kind": "done", "id": self.client, "request": message["id"]}


def session(*texts: str, branch: str = "main") -> dict[str, Any]:
    history = History()
    for text in texts:
        first = history.append("main", "user", text)
        last = history.append("main", "assistant", f"So: {text}")
        history.cells[text] = [CellEntry("main", first.id, last.id)]
    return dump_history(history)


def texts(stored: dict[str, Any], branch: str = "main") -> list[str]:
    return [message.text for message in load_history(stored).branch_path(branch) if message.role == "user"]


class Kernel:
    """The kernel's side: what it sends is kept until it is delivered."""

    def __init__(self, sessions: dict[str, Any] | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.documents = Documents()
        self.documents.make_bridge = lambda _: self
        self.documents.connect()
        self.restored = dict(sessions or {})
        self.sessions = dict(sessions or {})

    def send(self, content: dict[str, Any]) -> None:
        self.sent.append(content)

    def settle(self) -> None:
        merged = self.documents.merge(self.sessions, self.restored)
        if merged is not None:
            self.sessions = merged
        self.documents.publish(self.sessions, strip=False)

    def deliver(self, *front_ends: FrontEnd) -> None:
        sent, self.sent = self.sent, []
        for message in sent:
            for front_end in front_ends:
                if message["client"] == front_end.client and message["kind"] == "write":
                    self.documents.receive(front_end.write(message))

    def notices(self) -> list[str]:
        return [message["text"] for message in self.sent if message["kind"] == "notice"]


def test_what_is_said_is_written_and_nothing_is_written_twice() -> None:
    kernel, front_end = Kernel(), FrontEnd({"llamanb_other": 1})
    kernel.documents.receive(front_end.document())
    kernel.settle()
    assert [message["kind"] for message in kernel.sent] == ["mark"]  # a document without a conversation stays as it is
    kernel.sessions = {"default": session("one")}
    kernel.settle()
    kernel.sessions = {"default": session("one", "two")}
    kernel.settle()  # nothing has answered yet
    kernel.deliver(front_end)
    assert front_end.content == {"llamanb_other": 1, KEY: {"schema": 1, "sessions": kernel.sessions}}
    kernel.settle()
    assert kernel.sent == []


def test_what_another_writes_in_between_is_merged_and_nothing_is_lost() -> None:
    stored = {"default": session("one")}
    kernel, front_end = Kernel(stored), FrontEnd({KEY: {"schema": 1, "sessions": stored, "of_tomorrow": 7}})
    kernel.documents.receive(front_end.document())
    kernel.settle()
    assert not [message for message in kernel.sent if message["kind"] == "write"]
    kernel.sessions = {"default": session("one", "two")}
    kernel.settle()
    front_end.changed_by_another(
        {KEY: {"schema": 1, "sessions": {"default": session("one", "three")}, "of_tomorrow": 7}}
    )
    kernel.deliver(front_end)  # refused
    assert texts(front_end.content[KEY]["sessions"]["default"]) == ["one", "three"]
    kernel.sessions = {"default": session("one", "two", "more")}
    kernel.settle()
    kernel.deliver(front_end)  # refused too
    kernel.documents.receive(front_end.document())
    kernel.settle()
    kernel.deliver(front_end)
    assert front_end.content[KEY]["sessions"] == kernel.sessions
    assert front_end.content[KEY]["of_tomorrow"] == 7
    assert texts(kernel.sessions["default"]) == ["one", "three"]  # the open document keeps the name
    assert texts(kernel.sessions["default"], "main@2") == ["one", "two", "more"]


def test_what_arrives_just_before_a_write_is_not_written_over() -> None:
    stored = {"default": session("one")}
    kernel, front_end = Kernel(stored), FrontEnd({KEY: {"schema": 1, "sessions": stored}})
    kernel.documents.receive(front_end.document())
    kernel.settle()
    kernel.sessions = {"default": session("one", "two")}
    front_end.changed_by_another({KEY: {"schema": 1, "sessions": {"default": session("one", "three")}}})
    kernel.documents.receive(front_end.document())
    kernel.documents.publish(kernel.sessions, strip=False)  # between two merges
    kernel.deliver(front_end)
    assert texts(front_end.content[KEY]["sessions"]["default"]) == ["one", "three"]
    kernel.settle()
    kernel.deliver(front_end)
    assert front_end.content[KEY]["sessions"] == kernel.sessions
    assert texts(kernel.sessions["default"], "main@2") == ["one", "two"]


def test_a_front_end_that_is_gone_takes_no_more_and_more_memory() -> None:
    kernel, front_end = Kernel(), FrontEnd()
    kernel.documents.receive(front_end.document())
    kernel.settle()
    for number in range(50):
        kernel.sessions = {"default": session(*map(str, range(number)))}
        kernel.settle()
    (document,) = kernel.documents._open.values()
    assert len(document._sent) <= 20
    kernel.deliver(front_end)
    assert front_end.content[KEY]["sessions"] == kernel.sessions
    assert not document._sent


def test_only_what_was_deleted_counts_as_deleted() -> None:
    kernel, first, second = Kernel(), FrontEnd(client="first"), FrontEnd(client="second")
    deleted = kernel.documents.deleted
    assert deleted("session of first", ["cell-0"]) == []  # no document is known
    kernel.documents.receive(first.document())
    assert deleted("session of first", ["cell-0", "gone"]) == ["gone"]
    second.cells = ["other-0"]
    kernel.documents.receive(second.document())
    assert deleted("session of second", ["cell-0", "other-0"]) == []
    kernel.documents.receive(first.now(["cell-1", "cell-2"]))
    assert deleted("session of second", ["cell-0", "other-0"]) == ["cell-0"]
    kernel.documents.receive(first.now(["cell-1", "cell-2", "cell-0"]))  # pasted
    assert deleted("session of first", ["cell-0", "cell-1"]) == []
    assert deleted("session of second", ["cell-0", "cell-1"]) == []


def test_a_restart_before_a_save_loses_nothing() -> None:
    in_file, in_document = {"default": session("one")}, {"default": session("one", "two")}
    kernel, front_end = Kernel(in_file), FrontEnd({KEY: {"schema": 1, "sessions": in_document}})
    kernel.documents.receive(front_end.document())
    kernel.settle()
    assert kernel.sessions == in_document
    assert not [message for message in kernel.sent if message["kind"] == "write"]


def test_what_was_pruned_here_is_pruned_there() -> None:
    stored = {"default": session("one", "two")}
    kernel, front_end = Kernel(stored), FrontEnd({KEY: {"schema": 1, "sessions": stored}})
    kernel.documents.receive(front_end.document())
    kernel.settle()
    history = load_history(stored["default"])
    history.rewind("main")
    history.prune()
    kernel.sessions = {"default": dump_history(history)}
    kernel.settle()
    kernel.deliver(front_end)
    front_end.changed_by_another({**front_end.content, "llamanb_other": 1})
    kernel.documents.receive(front_end.document())
    kernel.settle()
    assert kernel.sessions == front_end.content[KEY]["sessions"] == {"default": session("one")}


def test_a_document_that_says_the_same_again_is_not_taken_for_news() -> None:
    kernel, front_end = Kernel(), FrontEnd()
    early = front_end.document()
    kernel.documents.receive(early)
    kernel.sessions = {"default": session("one")}
    kernel.settle()
    kernel.deliver(front_end)
    kernel.documents.receive(early)
    kernel.settle()
    assert not [message for message in kernel.sent if message["kind"] == "write"]
    assert texts(front_end.content[KEY]["sessions"]["default"]) == ["one"]


def test_two_front_ends_of_one_notebook_hold_the_same() -> None:
    kernel, first, second = Kernel(), FrontEnd(client="first"), FrontEnd(client="second")
    kernel.documents.receive(first.document())
    kernel.sessions = {"default": session("one")}
    kernel.settle()
    kernel.documents.receive(second.document())
    kernel.settle()
    kernel.deliver(first, second)
    assert first.content == second.content
    assert kernel.documents.insert_cell("session of first", "cell-1", "x")
    assert [message["client"] for message in kernel.sent] == ["first"]
    assert not kernel.documents.insert_cell("session of first", "elsewhere", "x")


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": 1},
        3,
        {"schema": 1, "sessions": {"default": {"branches": []}}},
        {"schema": 1, "sessions": {"default": {**session("one"), "sampling": {"temperature": "hot"}}}},
        {"schema": 1, "sessions": {"default": {**session("one"), "system": 5}}},
    ],
)
def test_what_is_damaged_is_set_aside_and_said_once(damage: Any) -> None:
    kernel, front_end = Kernel(), FrontEnd({KEY: damage})
    kernel.documents.receive(front_end.document())
    kernel.settle()
    (said,) = kernel.notices()
    assert "damaged" in said
    kernel.sessions = {"default": session("one")}
    kernel.settle()
    assert kernel.notices() == [said]
    kernel.deliver(front_end)
    assert front_end.content[DAMAGED] == damage
    assert texts(front_end.content[KEY]["sessions"]["default"]) == ["one"]


def test_what_a_newer_llamanb_wrote_is_left_as_it_is() -> None:
    newer = {KEY: {"schema": 99, "sessions": "in another form"}}
    kernel, front_end = Kernel(), FrontEnd(newer)
    kernel.documents.receive(front_end.document())
    kernel.settle()
    assert "schema 99" in kernel.notices()[0]
    kernel.sessions = {"default": session("one")}
    kernel.settle()
    kernel.deliver(front_end)
    assert front_end.content == newer


def test_a_notebook_that_is_read_only_is_said_to_be_and_outputs_carry_what_is_said() -> None:
    kernel, front_end = Kernel(), FrontEnd()
    kernel.documents.receive({**front_end.document(), "writable": False})
    kernel.settle()
    assert "read-only" in kernel.notices()[0]
    assert not kernel.documents.connected
    kernel.documents.receive(front_end.document() | {"revision": 1})
    kernel.settle()
    assert kernel.documents.connected


def test_a_conversation_that_is_to_stay_out_is_taken_out_with_what_outputs_carry() -> None:
    stored = {"default": session("one")}
    kernel, front_end = Kernel(stored), FrontEnd({KEY: {"schema": 1, "sessions": stored}, "llamanb_other": 1})
    kernel.documents.receive(front_end.document())
    kernel.settle()
    for _ in range(2):
        kernel.documents.publish({}, strip=True)
    assert [m["kind"] for m in kernel.sent] == ["mark", "strip", "write"]
    kernel.deliver(front_end)
    assert front_end.content == {"llamanb_other": 1}


def test_sessions_that_one_side_has_are_kept() -> None:
    one, two = session("one"), session("two")
    assert merged_sessions({}, {"a": one}, {"b": two}) == {"a": one, "b": two}
    assert merged_sessions({"a": one}, {}, {"a": one}) == {"a": one}


def test_marks_and_notices_go_where_they_belong() -> None:
    kernel, front_end = Kernel(), FrontEnd()
    kernel.documents.notify(None, "nobody is there")
    kernel.documents.mark({"cell-1"})
    assert kernel.sent == []
    kernel.documents.receive(front_end.document())  # one that comes later is told what is marked
    assert [(message["kind"], message["stale"]) for message in kernel.sent] == [("mark", ["cell-1"])]
    kernel.documents.mark({"cell-1"})
    assert len(kernel.sent) == 1
    kernel.documents.notify("another front end's session", "hello")
    assert kernel.notices() == ["hello"]


@pytest.mark.parametrize(
    ("before", "differs"), [([], False), (["a"], False), (["a", "c"], True), (["deleted"], False), (["b"], False)]
)
def test_the_order_of_running_differs_where_a_later_cell_came_before(before: list[str], differs: bool) -> None:
    document = LiveDocument("client")
    document.cells = ["a", "b", "c"]
    assert document.order_differs(before, "b") is differs


def test_a_live_document_that_has_said_nothing_is_not_written_to() -> None:
    assert LiveDocument("client").changes(1, {"default": session("one")}) == []


def test_a_conversation_of_more_than_a_megabyte_is_said_once_with_what_pruning_frees(scripted_engine: Any) -> None:
    runtime = Runtime()
    kernel = Kernel()
    kernel.documents = runtime.documents
    kernel.documents.make_bridge = lambda _: kernel
    kernel.documents.connect()
    kernel.documents.receive(FrontEnd().document())
    session = runtime.use_session(llamanb.ChatSession(scripted_engine))
    session.add_message("user", "x" * 300_000)
    runtime.publish()
    assert kernel.notices() == []
    session.rewind(1)
    session.add_message("user", "y" * 800_000)
    runtime.publish()
    runtime.publish()
    (notice,) = kernel.notices()
    assert notice == "The conversations in this notebook take 1.1 MB; %chat_prune would free 0.3 MB of that."
