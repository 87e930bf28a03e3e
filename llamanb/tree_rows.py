"""The conversation tree as rows in lanes: what its picture shows, from top to bottom. Pure; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from llamanb.history import History
from llamanb.messages import Message

__all__ = ["Row", "TreeRows"]

FEW, MANY = 24, 48
"""Above so many rows, straight runs are folded; above so many even then, what no branch leads to is left out."""


@dataclass(eq=False)
class Row:
    """Messages that are drawn together: what was asked and all up to its answer, or a straight run that is folded."""

    messages: list[Message]
    parent: Row | None
    active: bool
    reached: bool
    children: list[Row] = field(default_factory=list)
    tips: list[str] = field(default_factory=list)
    choice: str = ""
    folded: bool = False
    lane: int = 0
    weight: int = 1
    y: int = 0

    @property
    def style(self) -> str:
        """What the row is to the person: ``active``, ``lost`` where no branch leads to it, or neither."""
        return "active" if self.active else "" if self.reached else "lost"

    @property
    def plain(self) -> bool:
        """Whether the conversation merely passes through: no branch ends here, and none parts before or after."""
        above = self.parent
        alone = above is not None and above.parent is not None and len(above.children) == 1
        return alone and len(self.children) == 1 and not self.tips


class TreeRows:
    """A history as rows in the order in which they are drawn. Nothing here recurses, so that depth has no limit.

    Attributes
    ----------
    rows
        From top to bottom; a row's lane says how far to the right it is.
    left_out
        How many messages have no row, because no branch leads to them and there are too many rows already.
    crowded
        There are still many rows, since there are many branches.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.tips: dict[str, list[str]] = {}
        for record in history.branches.values():
            if record.tip is not None:
                self.tips.setdefault(record.tip, []).append(record.name)
        self.active = {message.id for message in history.ancestors(history.tip(history.active))}
        self.lost = set(history.unreachable())
        self.left_out = 0
        rows = self._rows()
        if len(rows) > FEW:
            rows = _folded(rows)
        if len(rows) > MANY:
            self.left_out = len(self.lost)
            rows = _folded(self._rows(), shortest=2)
        self.crowded = len(rows) > MANY
        self.rows = _in_lanes(rows)

    def _rows(self) -> list[Row]:
        """Put the messages into rows, parents before their children, as the messages are."""
        messages = self.history.messages.values()
        shown = [message for message in messages if not self.left_out or message.id not in self.lost]
        n_below = Counter(message.parent for message in shown)
        n_alike = Counter((message.parent, message.role) for message in messages)
        number = _numbers(messages)
        rows: list[Row] = []
        row_of: dict[str | None, Row] = {}
        for message in shown:
            row = row_of.get(message.parent)
            if row is None or row.tips or message.role in ("system", "user") or n_below[message.parent] > 1:
                above, row = row, Row([], row, message.id in self.active, message.id not in self.lost)
                rows.append(row)
                if above is not None:
                    above.children.append(row)
            row.messages.append(message)
            row.tips = self.tips.get(message.id, [])
            if (total := n_alike[message.parent, message.role]) > 1:
                row.choice = f"{number[message.id]}/{total}"
            row_of[message.id] = row
        return rows


def _numbers(messages: Iterable[Message]) -> dict[str, int]:
    """Count each message among those of its role at its place."""
    seen: Counter[tuple[str | None, str]] = Counter()
    numbers = {}
    for message in messages:
        seen[message.parent, message.role] += 1
        numbers[message.id] = seen[message.parent, message.role]
    return numbers


def _folded(rows: list[Row], shortest: int = 3) -> list[Row]:
    """Put one row for each run of `shortest` or more that the conversation merely passes through."""
    folds: dict[Row, Row] = {}
    inside: set[Row] = set()
    for row in rows:
        if not row.plain or row in inside:
            continue
        run = [row]
        while (below := run[-1].children[0]).plain:
            run.append(below)
        if len(run) < shortest:
            continue
        inside.update(run)
        fold = Row([m for one in run for m in one.messages], row.parent, row.active, row.reached, folded=True)
        fold.children = [below]
        below.parent = fold
        if row.parent is not None:
            row.parent.children = [fold]
        folds[row] = fold
    return [folds.get(row, row) for row in rows if row in folds or row not in inside]


def _in_lanes(rows: list[Row]) -> list[Row]:
    """Order the rows from top to bottom and give each its lane.

    What goes on to the side comes first, a lane further right; what goes straight on comes last, in the same lane: the
    active path if there is a choice, else what a branch leads to, else the larger part. As every step to the side
    at least halves what is left, there are never more lanes than about twice the binary logarithm of the rows.
    """
    for row in reversed(rows):
        row.weight += sum(child.weight for child in row.children if child.reached == row.reached)
    ordered = []
    stack = [row for row in reversed(rows) if row.parent is None]
    while stack:
        row = stack.pop()
        ordered.append(row)
        if row.children:
            straight = max(row.children, key=lambda child: (child.active, child.reached, child.weight))
            straight.lane = row.lane
            sides = [child for child in row.children if child is not straight]
            for side in sides:
                side.lane = row.lane + 1
            stack += [straight, *reversed(sides)]
    return ordered
