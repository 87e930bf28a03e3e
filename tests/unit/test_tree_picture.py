"""The picture of a tree shows every branch and what is active, stays legible at any size, and nothing in it is live."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamanb.history import BranchRecord, CellEntry, History
from llamanb.messages import Message, ToolCall
from llamanb.persistence.schema import dump_history, load_history
from llamanb.tree_picture import _PAINT, tree_svg

SVG = "{http://www.w3.org/2000/svg}"
ELEMENTS = {"svg", "title", "desc", "style", "rect", "path", "circle", "text", "g"}
ATTRIBUTES = {
    "class", "role", "width", "height", "viewBox", "x", "y", "rx", "cx", "cy", "r", "d", "direction", "text-anchor",
}  # fmt: skip
HOSTILE = [
    "<script>alert(1)</script>", "</text></svg><img src=x onerror=alert(1)>", "]]>", "<![CDATA[", "<!--", "-->",
    "&amp;", "&#60;b>", "\" onload=\"alert(1)", "'", "</style>", "<a href='javascript:x'>", "<?xml?>", "<!DOCTYPE x>",
    "\x00\x0b", "\ufffe", "\u202eevil", "\n", "\t", "word", "W" * 400, "日本語の長い文章" * 30, "👩\u200d👧🇫🇷" * 20,
    "مرحبا بالعالم " * 30, "שלום", "e" + "\u0301" * 900, "\ufdfd" * 40, " ",
]  # fmt: skip
texts = st.lists(st.sampled_from(HOSTILE), max_size=4).map("".join) | st.text(max_size=30)
names = st.text(min_size=1, max_size=90) | st.sampled_from(HOSTILE)


@dataclass(frozen=True)
class Box:
    """A line of text and the box that it is cut off at."""

    text: str
    style: str
    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        apart = self.x + self.width <= other.x or other.x + other.width <= self.x
        return not (apart or self.y + self.height <= other.y or other.y + other.height <= self.y)


def parsed(history: History) -> ET.Element:
    return ET.fromstring(tree_svg(history))


def boxes(history: History) -> list[Box]:
    """The lines of the picture in the order in which they are read."""
    found = []
    for box in parsed(history).iter(f"{SVG}svg"):
        line = box.find(f"{SVG}text")
        if line is not None:
            x, y, width, height = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            found.append(Box("".join(line.itertext()), line.attrib["class"], x, y, width, height))
    return sorted(found, key=lambda box: (box.y, box.x))


def lines(history: History) -> list[str]:
    return [box.text for box in boxes(history) if "key" not in box.style.split()]


def style_of(text: str, history: History) -> set[str]:
    [box] = [box for box in boxes(history) if box.text == text]
    return set(box.style.split())


def height(history: History) -> int:
    return int(parsed(history).attrib["height"])


def ask(history: History, branch: str, question: str, answer: str, cell: str | None = None) -> tuple[Message, Message]:
    asked, answered = history.append(branch, "user", question), history.append(branch, "assistant", answer)
    if cell is not None:
        history.cells.setdefault(cell, []).append(CellEntry(branch, asked.id, answered.id))
    return asked, answered


def long_history(n_messages: int, n_forks: int) -> History:
    """A tree whose forks are spread over it; every seventh exchange is answered twice."""
    history = History()
    history.append("main", "system", "Be brief.")
    branch, every = "main", max(n_messages // (2 * n_forks + 2), 1)
    for number in range(n_messages // 2):
        if number and number % every == 0 and len(history.branches) <= n_forks:
            path = history.branch_path(branch)
            branch = f"idea-{number}"
            history.fork(branch, path[number * 7 % len(path)].id)
        asked, _ = ask(history, branch, f"Question {number}?", f"Answer {number}.", f"cell-{number}")
        if number % 7 == 0:
            history.set_tip(branch, asked.id)
            history.append(branch, "assistant", f"Another answer {number}.")
    return history


def step(draw: st.DrawFn, history: History, number: int) -> None:
    """Do something that a conversation, or a file, may do to a tree."""
    branch = draw(st.sampled_from(list(history.branches)))
    path = history.branch_path(branch)
    match draw(st.sampled_from(["ask", "ask", "fork", "again", "rewind", "tool", "parts", "root"])):
        case "ask":
            ask(history, branch, draw(texts), draw(texts), draw(st.sampled_from([None, "c1", "c2", f"n{number}"])))
        case "fork":
            name, point = draw(names), draw(st.sampled_from([None, *(message.id for message in path)]))
            history.branches.setdefault(name, BranchRecord(name, point))  # also a name that no command would take
        case "again" if path:
            history.edit(branch, path[-1].id, draw(texts) + str(number))
        case "rewind" if history.exchanges(branch):
            history.rewind(branch)
        case "tool":
            history.append(branch, "assistant", "", tool_calls=(ToolCall("1", draw(texts) or "f", "{}"),))
            history.append(branch, "tool", draw(texts))
        case "parts":
            history.append(branch, "user", [{"type": "text", "text": draw(texts)}, {"type": "image"}])
        case "root":
            history.add(Message.create("system", f"root {number}"))


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    if draw(st.booleans()):
        history.append("main", "system", draw(texts))
    for number in range(draw(st.integers(0, 14))):
        step(draw, history, number)
    history.stale = set(draw(st.lists(st.sampled_from(["c1", "c2", "gone"]))))
    history.active = draw(st.sampled_from(list(history.branches)))
    return history


# -- any history at all -----------------------------------------------------------------------------------------


@given(histories())
@settings(max_examples=150, deadline=None)
def test_nothing_is_live_in_it_and_lines_never_overlap_or_leave_it(history: History) -> None:
    picture = parsed(history)
    width, tall = (float(picture.attrib[key]) for key in ("width", "height"))
    assert {element.tag.removeprefix(SVG) for element in picture.iter()} <= ELEMENTS
    assert {name for element in picture.iter() for name in element.attrib} <= ATTRIBUTES
    assert len(list(picture.iter(f"{SVG}style"))) == 1
    assert "url(" not in (picture.findtext(f"{SVG}style") or "url(")
    found = boxes(history)
    assert all(box.x >= 0 and box.y >= 0 for box in found)
    assert all(box.x + box.width <= width and box.y + box.height <= tall for box in found)
    assert not [(one, other) for i, one in enumerate(found) for other in found[:i] if one.overlaps(other)]


@given(histories())
@settings(max_examples=60, deadline=None)
def test_put_into_a_page_it_brings_no_other_elements(history: History) -> None:
    class Tags(HTMLParser):
        found: set[str]

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.found.add(tag)

        def handle_decl(self, decl: str) -> None:
            raise AssertionError(decl)

        handle_comment = handle_pi = unknown_decl = handle_decl

    page = Tags()
    page.found = set()
    page.feed(tree_svg(history))
    page.close()
    assert page.found <= ELEMENTS


@given(histories())
@settings(max_examples=60, deadline=None)
def test_the_same_history_gives_the_same_bytes_also_after_it_was_saved(history: History) -> None:
    assert tree_svg(history) == tree_svg(history.copy())
    history.stale = set()  # what is stale is not stored, and a name that no command would take is refused
    records = [replace(record, name=f"b{number}") for number, record in enumerate(history.branches.values())]
    history.active = f"b{list(history.branches).index(history.active)}"
    history.branches = {record.name: record for record in records}
    assert tree_svg(load_history(dump_history(history))) == tree_svg(history)


@given(histories())
@settings(max_examples=60, deadline=None)
def test_every_branch_has_a_label_that_tells_its_whole_name(history: History) -> None:
    titles = [title.text or "" for title in parsed(history).iter(f"{SVG}title")][1:]
    assert len(titles) == len(history.branches)
    assert {name for name in history.branches if name.isascii() and name.isidentifier()} <= set(titles)


# -- what it shows ----------------------------------------------------------------------------------------------


def test_a_label_stands_below_the_message_that_its_branch_ends_with() -> None:
    history = History()
    history.append("main", "system", "Be brief.")
    ask(history, "main", "France?", "Paris.")
    ask(history, "main", "The river?", "The Seine.")
    history.fork("middle", history.branch_path("main")[2].id)
    history.fork("question", history.branch_path("main")[3].id)
    history.fork("london", history.branch_path("main")[2].id)
    ask(history, "london", "England?", "London.")
    history.fork("twin", history.tip("london"))
    history.fork("empty", None)
    assert lines(history) == [
        "system: Be brief.",
        *("France?", "Paris.", "middle"),
        *("England?", "2/2", "London.", "london", "twin"),
        *("The river?", "1/2", "question", "The Seine.", "main"),
        *("No messages yet", "empty"),
    ]


def test_the_active_path_stands_out_and_what_no_branch_leads_to_is_dim() -> None:
    history = History()
    asked, _ = ask(history, "main", "A slogan?", "first try")
    history.set_tip("main", asked.id)
    history.append("main", "assistant", "second try")
    history.fork("side", asked.id)
    history.append("side", "assistant", "third try")
    assert "active" in style_of("A slogan?", history)
    assert "lost" in style_of("first try", history)
    assert "active" in style_of("second try", history)
    assert style_of("third try", history) == {"answer"}
    assert "active" in style_of("main", history)
    assert "active" not in style_of("side", history)
    history.switch("side")
    assert "active" in style_of("third try", history)
    assert style_of("second try", history) == {"answer"}
    rails = [path.attrib["class"] for path in parsed(history).iter(f"{SVG}path")]
    assert rails[:3] == ["rail lost", "rail", "rail active"]  # the active one is drawn over the others


def test_an_exchange_says_that_a_cell_made_it_and_that_the_cell_is_stale() -> None:
    def marks() -> list[str]:
        return [box.attrib["class"] for box in parsed(history).iter(f"{SVG}rect") if "cell" in box.attrib["class"]]

    history = History()
    ask(history, "main", "by hand", "yes")
    assert marks() == []
    ask(history, "main", "in a cell", "yes", "7f3a-random")
    assert marks() == ["cell", "cell"]  # the row's and the legend's
    history.stale = {"7f3a-random"}
    assert set(marks()) == {"cell stale", "cell"}
    assert "stale" in lines(history)
    assert "7f3a" not in tree_svg(history)


def test_calls_of_tools_and_other_content_are_shown_as_words() -> None:
    history = History()
    history.append("main", "user", [{"type": "text", "text": "What is\n\n2 + 3?"}, {"type": "image"}])
    history.append("main", "assistant", "", tool_calls=(ToolCall("1", "add", "{}"),))
    history.append("main", "tool", "5")
    assert lines(history)[:2] == ["What is 2 + 3?", "called add: 5"]
    history.append("main", "assistant", "It is 5.")
    history.append("main", "user", [{"type": "image"}])
    assert lines(history)[:3] == ["What is 2 + 3?", "called add: It is 5.", "(no text)"]


def test_several_roots_stand_below_each_other() -> None:
    history = History()
    history.append("main", "system", "Be brief.")
    history.fork("pirate", history.add(Message.create("system", "Be a pirate.")).id)
    assert lines(history) == ["system: Be brief.", "1/2", "main", "system: Be a pirate.", "2/2", "pirate"]


def test_an_empty_history_says_so() -> None:
    assert lines(History()) == ["No messages yet", "main"]


def test_text_reads_as_it_was_written_and_from_right_to_left_where_it_is() -> None:
    history = History()
    ask(history, "main", 'if a<b && "c": List<int>', "שלום עולם")
    assert lines(history)[:2] == ['if a<b && "c": List<int>', "שלום עולם"]
    assert [line.get("direction") for line in parsed(history).iter(f"{SVG}text")][:2] == [None, "rtl"]


def test_a_reader_of_the_screen_is_told_what_it_is() -> None:
    history = History()
    ask(history, "main", "a", "b")
    history.rewind("main")
    ask(history, "main", "c", "d")
    picture = parsed(history)
    assert picture.attrib["role"] == "img"
    assert picture.findtext(f"{SVG}title") == "Conversation tree"
    assert picture.findtext(f"{SVG}desc") == (
        "4 messages on 1 branch; the active branch is main. No branch leads to 2 messages."
    )


@pytest.mark.parametrize("scheme", [2, 3], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme: int) -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
        return (lighter + 0.05) / (darker + 0.05)

    fills = {paint[0]: paint[scheme] for paint in _PAINT if paint[1] == "fill"}
    for what, colour in fills.items():
        if "text" in what or what == ".answer":
            assert contrast(colour, fills[".card"]) >= 4.5, what
    assert contrast(fills[".name.active"], fills[".dot.active, .label.active"]) >= 4.5


# -- its size ---------------------------------------------------------------------------------------------------


def test_a_small_tree_shows_every_message() -> None:
    history = long_history(30, 2)
    shown = lines(history)
    assert all(message.text in shown for message in history.messages.values() if message.role == "user")


@pytest.mark.parametrize(("n_messages", "n_forks", "at_most"), [(5, 1, 260), (40, 3, 1200), (500, 6, 1800)])
def test_its_height_stays_sensible(n_messages: int, n_forks: int, at_most: int) -> None:
    history = long_history(n_messages, n_forks)
    assert len(history.messages) >= n_messages
    assert height(history) <= at_most
    assert set(history.branches) <= set(lines(history))


def test_many_branches_take_a_row_or_three_each() -> None:
    history = long_history(500, 60)
    assert len(history.branches) > 50
    assert height(history) <= 130 * len(history.branches)
    assert set(history.branches) <= set(lines(history))


def test_a_long_straight_run_is_one_row_between_its_first_and_its_last() -> None:
    history = History()
    history.append("main", "system", "Be brief.")
    for number in range(250):
        ask(history, "main", f"Question {number}?", f"Answer {number}.", f"cell-{number}")
    history.stale = {"cell-100", "cell-101"}
    assert lines(history) == [
        "system: Be brief.",
        *("Question 0?", "Answer 0."),
        *("… 248 exchanges", "2 stale"),
        *("Question 249?", "Answer 249.", "main"),
    ]


def test_alternatives_that_no_branch_leads_to_are_counted_where_there_are_too_many() -> None:
    history = History()
    for number in range(100):
        asked, _ = ask(history, "main", f"Question {number}?", "no")
        history.set_tip("main", asked.id)
        history.append("main", "assistant", f"Answer {number}.")
    shown = lines(history)
    assert "… 100 messages that no branch leads to" in shown
    assert "2/2" in shown
    assert height(history) < 400


def test_depth_has_no_limit_and_lanes_stay_few() -> None:
    history = History()
    for number in range(3000):
        ask(history, "main", f"{number}", "a")
        if number % 100 == 0:
            history.fork(f"b{number}", history.tip("main"))
            ask(history, f"b{number}", "aside", "b")
            history.fork(f"c{number}", history.tip(f"b{number}"))
            history.append(f"b{number}", "user", "x")
            history.append(f"c{number}", "user", "y")
    picture = parsed(history)
    assert max(float(dot.attrib["cx"]) for dot in picture.iter(f"{SVG}circle")) < 120
    history.active = "b0"
    assert max(float(dot.attrib["cx"]) for dot in parsed(history).iter(f"{SVG}circle")) < 120


def test_long_lines_and_names_end_with_a_mark() -> None:
    history = History()
    name = "a-very-long-name-" * 20
    history.fork(name, None)
    ask(history, name, "word " * 200, "x" * 100_000)
    cut = [line for line in lines(history) if line.endswith("…")]
    assert [line[:5] for line in cut] == ["word ", "xxxxx", "a-ver"]
    assert re.search(f"<title>{name}</title>", tree_svg(history))
