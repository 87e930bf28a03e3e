"""The conversation tree as a picture: an SVG in which nothing is live, the same bytes for the same history. No I/O."""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Iterable

from llamanb.history import History
from llamanb.messages import Message, preview
from llamanb.tree_rows import Row, TreeRows
from llamanb.wording import counted

__all__ = ["tree_svg"]

WIDTH = 700
EDGE, LANE, INDENT = 14, 16, 14  # the border, from one lane to the next, from a dot to its text
LINE, GAP, LABEL = 18, 9, 17  # a line of text, the space between rows, a branch's label

# JupyterLab shows the picture as an image, which the page's style does not reach but the colour scheme of its theme
# does; other front ends put it into the page, where the scheme may be the system's and not the page's. So it stands on
# a background of its own, and its rules hold for it alone.
_PAINT = [
    # what, how, in the light, in the dark
    (".card", "fill", "#ffffff", "#111111"),
    (".card", "stroke", "#d8dee4", "#30363d"),
    ("text", "fill", "#1f2328", "#e6edf3"),
    (".answer", "fill", "#4d5761", "#aab4be"),
    ("text.lost, text.fold, text.note, text.key", "fill", "#6e7781", "#848d97"),
    ("text.stale", "fill", "#9a6700", "#d29922"),
    (".rail", "stroke", "#8c959f", "#6e7681"),
    (".rail.active", "stroke", "#0969da", "#4493f8"),
    (".gap", "fill", "#ffffff", "#111111"),
    (".dot", "fill", "#6e7781", "#848d97"),
    (".dot.active, .label.active", "fill", "#0969da", "#4493f8"),
    (".dot.lost", "fill", "#ffffff", "#111111"),
    (".dot.lost, .label", "stroke", "#8c959f", "#6e7681"),
    (".name.active", "fill", "#ffffff", "#0d1117"),
    (".cell", "stroke", "#8c959f", "#6e7681"),
    (".cell.stale", "stroke", "#9a6700", "#d29922"),
]
_SHAPE = [
    ("", "font: 12.5px system-ui, -apple-system, 'Segoe UI', sans-serif"),
    (".active", "font-weight: 600"),
    (".answer", "font-weight: 400"),
    (".fold", "font-style: italic; font-weight: 400"),
    (".note", "text-anchor: end"),
    (".small", "font-size: 11px"),
    (".rail", "fill: none; stroke-width: 1.5"),
    (".rail.active", "stroke-width: 3"),
    (".rail.lost", "stroke-dasharray: 3 2"),
    (".label, .cell", "fill: none"),
    (".label.active", "stroke: none"),
    (".cell.stale", "stroke-dasharray: 2 1.5; stroke-width: 1.5"),
]

# Controls and characters that XML 1.0 (section 2.2) forbids, and invisible ones that reorder or hide what stands beside
# them; the joiners U+200C and U+200D stay, because Persian and emoji need them.
_UNSHOWN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\uffff\U000e0000-\U000e0fff]"
)
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff\U0001e800-\U0001efff]")

# Widths in em that common fonts stay below (DejaVu Sans and Verdana are the widest of them). By ranges and not by
# Python's Unicode tables, so that every version of Python cuts a text at the same place.
_EMS = [
    (re.compile("[\u0300-\u036f\u200c\u200d\ufe00-\ufe0f]"), 0.0),
    (re.compile("[ !'(),./:;I\\[\\]`fijlrt|-]"), 0.42),
    (re.compile("[\u00b7\u2018-\u201f]"), 0.55),
    (re.compile("[mwMW@%\u2014\u2026]"), 1.02),
    (re.compile("[A-Z#&+<=>^~]"), 0.86),
    (re.compile("[ -~]"), 0.64),
    (re.compile("[\u00a0-\u024f]"), 0.86),
    (re.compile("[\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001ffff]"), 1.5),
]
_OTHER_EMS = 1.1


def _owned(history: History, cells: Iterable[str]) -> set[str]:
    """Return the ids of the messages that cells own."""
    owned: set[str] = set()
    for entry in (entry for cell in cells for entry in history.cells.get(cell, ())):
        ids = []
        for message in history.ancestors(entry.last if entry.last in history.messages else None):
            ids.append(message.id)
            if message.id == entry.first:
                owned.update(ids)
                break
    return owned


def tree_svg(history: History, width: int = WIDTH, *, interactive: bool = False) -> str:
    """Return the conversation tree as an SVG document.

    It is `width` pixels wide. A row is an exchange; the active path is bold and goes straight down on the left, other
    branches turn off to the right, and what no branch leads to is dim and dashed. In a large history straight runs
    are folded into one row each, and if that is not enough, what no branch leads to is only counted.

    Nothing in it is live and it refers to nothing outside; it depends on the history alone. With `interactive` it is
    for a page that has colours of its own and acts on clicks: each row is an item of a tree, and names the last of its
    messages in ``data-message``.
    """
    return _Picture(history, width, interactive=interactive).svg()


class _Picture:
    """Draws from top to bottom; `y` is where the next row begins."""

    def __init__(self, history: History, width: int, *, interactive: bool) -> None:
        self.history = history
        self.width = width
        self.interactive = interactive
        self.tree = TreeRows(history)
        self.owned = _owned(history, history.cells)
        self.stale = _owned(history, history.stale)
        self.rails: dict[str, list[str]] = {"lost": [], "": [], "active": []}
        self.marks: list[str] = []
        self.y = EDGE - 2

    def svg(self) -> str:
        for row in self.tree.rows:
            self._row(row)
        self._what_has_no_row()
        self._legend()
        height = self.y + EDGE
        size = f'width="{self.width}" height="{height}" viewBox="0 0 {self.width} {height}"'
        role, style = ("tree", _SHAPES) if self.interactive else ("img", _STYLE)
        name = "" if not self.interactive else ' aria-label="Conversation tree"'
        title = "" if self.interactive else "<title>Conversation tree</title>"
        pieces = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="llamanb-tree" role="{role}"{name} {size}>',
            f"{title}<desc>{_escaped(_summary(self.history))}</desc>",
            f"<style>{style}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{self.width - 1}" height="{height - 1}" rx="6"/>',
            *(rail for rails in self.rails.values() for rail in rails),
            *self.marks,
            "</svg>\n",
        ]
        return "\n".join(pieces)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _row(self, row: Row) -> None:
        x = EDGE + 6 + row.lane * LANE
        if self.marks:
            gap = 2 if self.tree.crowded else GAP
            self.y += gap if row.parent else 2 * gap  # another root stands apart
        row.y = self.y + LINE // 2
        start, top = len(self.marks), self.y
        self._rail(row, x)
        self._dot(x, row.y, row)
        lines = _lines(row)
        if self.tree.crowded:
            del lines[1:]
        left, right = x + INDENT, self._note(row)
        for index, (style, text) in enumerate(lines):
            self._text(left, self.y, (self.width - EDGE if index else right) - left, text, f"{style} {row.style}")
            self.y += LINE
        self._labels(left, row.tips)
        if self.interactive:
            self.marks[start:] = self._item(row, top, self.marks[start:])

    def _item(self, row: Row, top: int, marks: list[str]) -> list[str]:
        """Return the marks of a row as an item that can be chosen."""
        said = " ".join(text for _, text in _lines(row)) + (f" ({', '.join(row.tips)})" if row.tips else "")
        current = ' aria-current="true"' if row.active else ""
        names = f'aria-label="{_escaped(_clean(said))}" data-message="{_escaped(row.messages[-1].id)}"'
        return [
            f'<g class="row" role="treeitem" tabindex="-1" aria-level="{row.lane + 1}"{current} {names}>',
            f'<rect class="hit" x="2" y="{top - 3}" width="{self.width - 4}" height="{self.y - top + 4}" rx="4"/>',
            *marks,
            "</g>",
        ]

    def _rail(self, row: Row, x: int) -> None:
        """Draw the line to a row from the one before it."""
        above = row.parent
        if above is None:
            return
        if above.lane == row.lane:
            path = f"M{x} {above.y}V{row.y}"
        else:
            path = f"M{x - LANE} {row.y - 12}Q{x - LANE} {row.y} {x} {row.y}"
        self.rails[row.style].append(f'<path class="{_class("rail", row.style)}" d="{path}"/>')

    def _dot(self, x: int, y: int, row: Row) -> None:
        style = _class("dot", row.style)
        if row.folded:
            self.marks.append(f'<rect class="gap" x="{x - 2}" y="{y - 9}" width="4" height="18"/>')
            self.marks += [f'<circle class="{style}" cx="{x}" cy="{y + step}" r="1.5"/>' for step in (-5, 0, 5)]
        else:
            self.marks.append(f'<circle class="{style}" cx="{x}" cy="{y}" r="{5 if row.active else 4}"/>')

    def _note(self, row: Row) -> int:
        """Draw what is said about a row at its right; return where that begins."""
        ids = {message.id for message in row.messages}
        stale = sum(message.role == "user" for message in row.messages if message.id in self.stale)
        is_stale = not ids.isdisjoint(self.stale)
        if not ids.isdisjoint(self.owned):
            self._cell(self.width - EDGE - 8, row.y, "stale" if is_stale else "")
        words = [f"{max(stale, 1)} stale" if row.folded else "stale"] if is_stale else []
        note = " · ".join([*words, row.choice] if row.choice else words)
        style = "note small stale" if is_stale else "note small"
        width = _width(note, style)
        left = self.width - EDGE - 16 - width
        if note:
            self._text(left, row.y - LINE // 2, width, note, style)
        return left - 6

    def _cell(self, x: int, y: int, style: str) -> None:
        self.marks.append(f'<rect class="{_class("cell", style)}" x="{x}" y="{y - 4}" width="8" height="8" rx="2"/>')

    def _labels(self, left: int, names: Iterable[str]) -> None:
        """Draw the names of branches, side by side as far as there is room."""
        x = self.width
        for name in names:
            whole = _clean(name)
            style = "active" if name == self.history.active else ""
            written = f"name small {style}"
            shown = _shortened(whole, self.width - EDGE - left - 16, written)
            width = _width(shown, written) + 16
            if x + width > self.width - EDGE:
                x = left
                self.y += LABEL + 3
            top = self.y - LABEL
            self.marks.append(
                f'<g><title>{_escaped(whole)}</title><rect class="{_class("label", style)}" x="{x}" y="{top}" '
                f'width="{width}" height="{LABEL}" rx="8"/>'
            )
            self._text(x + 8, top, width - 16, shown, written)
            self.marks.append("</g>")
            x += width + 6

    def _text(self, x: int, y: int, width: int, text: str, style: str) -> None:
        """Draw one line in a box that also cuts off what a font makes wider or higher than expected."""
        letter = next((c for c in text if c.isalpha()), "")
        # A line that starts from right to left is laid out so, and stands at the left like every other.
        turned = ' direction="rtl" text-anchor="end"' if _RIGHT_TO_LEFT.match(letter) else ""
        if "note" in style:
            turned = f' x="{width}"'
        self.marks.append(
            f'<svg x="{x}" y="{y}" width="{width}" height="{LINE}"><text class="{_class(style)}" y="13"{turned}>'
            f"{_escaped(_shortened(text, width, style))}</text></svg>"
        )

    # -- below the rows -----------------------------------------------------------------------------------------

    def _what_has_no_row(self) -> None:
        left = EDGE + 6 + INDENT
        sayings: list[tuple[str, list[str]]] = []
        if self.tree.left_out:
            sayings.append((f"… {counted(self.tree.left_out, 'message')} that no branch leads to", []))
        empty = [record.name for record in self.history.branches.values() if record.tip is None]
        if empty:
            sayings.append(("No messages yet", empty))
        for text, names in sayings:
            self.y += GAP if self.marks else 0
            self._text(left, self.y, self.width - EDGE - left, text, "fold")
            self.y += LINE
            self._labels(left, names)

    def _legend(self) -> None:
        """Say what the marks mean, where there are any but those of the active path."""
        rows = self.tree.rows
        ids = {message.id for row in rows for message in row.messages}
        active, choice = any(row.active for row in rows), next((row.choice for row in rows if row.choice), "")
        lost = any(not row.reached for row in rows)
        cell, stale = not ids.isdisjoint(self.owned), not ids.isdisjoint(self.stale)
        if not (choice or lost or cell):
            return
        self.y += 2 * GAP + LINE
        x, y = EDGE + 2, self.y - LINE // 2
        for is_there, mark, saying in (
            (active, "active", "active path"),
            (lost, "lost", "no branch leads there"),
            (choice, "", f"{choice} one of several"),
            (cell, "cell", "from a cell"),
            (stale, "stale", "from a cell that is stale"),
        ):
            if not is_there:
                continue
            width = _width(saying, "small")
            if x > EDGE + 2 and x + 22 + width > self.width - EDGE:
                x, y = EDGE + 2, y + LINE
                self.y += LINE
            if mark in ("active", "lost"):
                self.marks.append(f'<path class="{_class("rail", mark)}" d="M{x} {y}h16"/>')
                self.marks.append(f'<circle class="{_class("dot", mark)}" cx="{x + 8}" cy="{y}" r="4"/>')
                x += 22
            elif mark:
                self._cell(x, y, "" if mark == "cell" else mark)
                x += 14
            self._text(x, y - LINE // 2, width, saying, "key small")
            x += width + 12


def _lines(row: Row) -> list[tuple[str, str]]:
    """Return the texts of a row, each with its style."""
    first, *rest = row.messages
    if row.folded:
        asked = sum(message.role == "user" for message in row.messages)
        inside = counted(asked, "exchange") if first.role == "user" else counted(len(row.messages), "message")
        return [("fold", f"… {inside}")]
    style = "" if first.role == "user" else "answer"
    return [(style, _said([first]))] + ([("answer", _said(rest))] if rest else [])


def _said(messages: list[Message]) -> str:
    """Return what the last of some messages says, after the tools that they call."""
    last = messages[-1]
    calls = dict.fromkeys(call.name for message in messages for call in message.tool_calls)
    text = preview(_clean(last.text), 300)
    if calls:
        return preview(_clean(f"called {', '.join(calls)}"), 100) + (f": {text}" if text else "")
    return (f"{last.role}: " if last.role in ("system", "tool") else "") + (text or "(no text)")


def _summary(history: History) -> str:
    said = f"{counted(len(history.messages), 'message')} on {counted(len(history.branches), 'branch', 'branches')}; "
    said += f"the active branch is {history.active}."
    lost = len(history.unreachable())
    return _clean(said + (f" No branch leads to {counted(lost, 'message')}." if lost else ""))


# -- text -------------------------------------------------------------------------------------------------------


def _clean(text: str) -> str:
    return " ".join(_UNSHOWN.sub("", text).split())


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)


def _class(*names: str) -> str:
    return " ".join(" ".join(names).split())


def _width(text: str, style: str) -> int:
    """Return a width in pixels that a line of text stays below in common fonts."""
    return math.ceil(_size(style) * sum(_ems(character) for character in text))


def _size(style: str) -> float:
    """Return the size of a font, and a little more where it is bold."""
    words = style.split()
    return (11.0 if "small" in words else 12.5) * (1.12 if "active" in words and "answer" not in words else 1.0)


def _ems(character: str) -> float:
    return next((ems for characters, ems in _EMS if characters.match(character)), _OTHER_EMS)


def _shortened(text: str, width: int, style: str) -> str:
    """Return as much of a text as stays below a width, with a mark where something is left out."""
    widths = list(itertools.accumulate((_ems(character) for character in text[:WIDTH]), initial=0.0))
    room = width / _size(style)
    if len(text) <= WIDTH and math.ceil(widths[-1] * _size(style)) <= width:
        return text
    room -= _ems("…")
    end = max(index for index, ems in enumerate(widths) if ems <= room or index == 0)
    return text[:end].rstrip(" \u200d") + "…"


def _rule(selectors: str, declarations: str) -> str:
    scoped = ",".join(f".llamanb-tree {selector}".strip() for selector in selectors.split(", "))
    return f"{scoped}{{{declarations}}}"


def _stylesheet() -> str:
    light = [_rule(selectors, f"{what}:{colour}") for selectors, what, colour, _ in _PAINT]
    dark = [_rule(selectors, f"{what}:{colour}") for selectors, what, _, colour in _PAINT]
    return "".join([_SHAPES, *light, "@media (prefers-color-scheme:dark){", *dark, "}"])


_SHAPES = "".join(_rule(selectors, declarations) for selectors, declarations in _SHAPE)
_STYLE = _stylesheet()
