"""CellRun: what running a cell, for the first time or again, does to the history. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Container

from llamanb.history import BranchRecord, CellEntry, Exchange, History

__all__ = ["CellRun"]


class CellRun:
    """One execute request of one cell, seen by one history.

    Before its first answer the cell's former exchanges are taken off their branches; after its last one, `finish` puts
    the former tips back where nothing changed, and marks the cells that now follow something that is gone.

    Parameters
    ----------
    history
        The history that the cell talks to.
    cell
        The cell's id; ``None`` where front ends send none, and every run appends.
    """

    def __init__(self, history: History, cell: str | None) -> None:
        self.history = history
        self.cell = cell
        self.former: list[CellEntry] = list(history.cells.get(cell, ())) if cell is not None else []
        self.made: list[CellEntry] = []
        self.answered = False
        self._before: dict[str, BranchRecord] = {}
        self._was_on_path: set[str] = set()
        self._created: list[str] = []
        self._began = False

    def begin(self) -> None:
        """Rewind the branches of the cell's former exchanges; once, however many answers the cell makes."""
        if self._began:
            return
        self._began = True
        for entry in self.former:
            point = self.history.rerun_point(entry)
            if point is None:
                continue
            on_path, parent = point
            self._before.setdefault(entry.branch, self.history.branches[entry.branch])
            if on_path:
                self._was_on_path.add(entry.branch)
            self.history.set_tip(entry.branch, parent)

    def recorded_branch(self) -> str | None:
        """Return the branch that the cell answered on last time, if that is still there."""
        names = [entry.branch for entry in self.former if entry.branch in self.history.branches]
        return names[0] if names else None

    def fork(self, name: str, branch: str, at: str | None) -> None:
        """Make a branch for the cell, or put one that it made back to the point where it starts.

        Parameters
        ----------
        name
            The branch to make.
        branch
            The branch that it comes from, unless `at` names another one.
        at
            Where it starts, as the person wrote it; by default the tip of `branch`.

        Raises
        ------
        BranchError
            Another cell, or none, made a branch of that name.
        """
        history = self.history
        record = history.branches.get(name)
        if record is not None and self.cell is not None and record.made_by == self.cell:
            self._before.setdefault(name, record)
            history.restart(name, history.fork_point(name, at), at)
            return
        point = history.tip(branch) if at is None else history.resolve(at, branch)
        origin = at if at in history.branches else history.branch_with(point, branch)
        history.fork(name, point, from_branch=origin, made_by=self.cell, at=at)
        self._created.append(name)

    def own(self, exchange: Exchange) -> None:
        """Record an exchange that the cell made; one that follows on another of this run joins it."""
        entry = exchange.entry
        self.made = self._still_made()
        self.answered = True
        for index, earlier in enumerate(self.made):
            if earlier.branch == entry.branch and self.history.messages[entry.first].parent == earlier.last:
                self.made[index] = CellEntry(entry.branch, earlier.first, entry.last, earlier.extra)
                break
        else:
            self.made.append(entry)
        if self.cell is not None:
            self.history.cells[self.cell] = list(self.made)

    def finish(self, *, moved: bool = False) -> set[str]:
        """Settle the branches after the cell's last answer and return the cells that became stale.

        Parameters
        ----------
        moved
            The cell answered, if not here then in another session: its former exchanges here are not put back.
        """
        self.made = self._still_made()
        if not self.answered and not (moved and self.former):
            for name, record in self._before.items():
                if record.tip is None or record.tip in self.history.messages:
                    self.history.branches[name] = record
            for name in self._created:
                self.history.branches.pop(name, None)
            return set()
        stale: set[str] = set()
        for entry in self.former:
            if entry.branch not in self._was_on_path:
                stale |= self._dropped(entry.branch)
            elif not self._put_back(entry):
                stale |= self._left_behind(entry)
        if self.cell is not None:
            if not self.made:
                self.history.cells.pop(self.cell, None)
            stale.discard(self.cell)
            self.history.stale.discard(self.cell)
        self.history.stale |= stale
        return stale

    def cells_before(self) -> list[str]:
        """Return the cells whose exchanges stand on the cell's branch before its own."""
        history = self.history
        path = {message.id for message in history.line(history.messages[self.made[0].first].parent)}
        return [cell for cell, entries in history.cells.items() if any(entry.last in path for entry in entries)]

    def _still_made(self) -> list[CellEntry]:
        """What this run made, as commands of the same cell have left it: an answer may be another one, or pruned."""
        if self.cell is None or not self.answered:
            return self.made
        return list(self.history.cells.get(self.cell, ()))

    def _put_back(self, former: CellEntry) -> bool:
        """Where the new exchange has the old ids, let the branch go on to its old tip."""
        same = any((e.branch, e.first, e.last) == (former.branch, former.first, former.last) for e in self.made)
        tip = self._before[former.branch].tip
        if same and self.history.tip(former.branch) == former.last and tip in self.history.messages:
            self.history.set_tip(former.branch, tip)
        return same

    def _dropped(self, branch: str) -> set[str]:
        """The cells below what is no longer on a branch that was rewound to where the cell's exchange had been."""
        if branch not in self._before or branch not in self.history.branches:
            return set()
        kept = {message.id for message in self.history.ancestors(self.history.tip(branch))}
        first = self._first_gone(self._before[branch].tip, kept)
        return set() if first is None else self.history.cells_below(first)

    def _left_behind(self, former: CellEntry) -> set[str]:
        """The cells below the first message that was replaced; where none was, below the last one."""
        if former.last not in self.history.messages:  # pruned in the same run
            return set()
        kept = {message.id for e in self.made for message in self.history.ancestors(e.last)}
        above = self.history.messages[former.first].parent
        first = self._first_gone(former.last, kept | ({above} if above is not None else set()))
        return self.history.cells_below(former.last if first is None else first)

    def _first_gone(self, tip: str | None, kept: Container[str]) -> str | None:
        """The message nearest to the root, on the way up from `tip` to the first one that is kept; none once pruned."""
        gone = None
        for message in self.history.ancestors(tip if tip in self.history.messages else None):
            if message.id in kept:
                break
            gone = message.id
        return gone
