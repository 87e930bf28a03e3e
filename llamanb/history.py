"""History: the tree of messages, the branches that name its tips, and the cells that own exchanges. Pure; no I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llamanb.errors import BranchError, MessageNotFoundError
from llamanb.messages import Content, Message, preview
from llamanb.wording import quoted

__all__ = ["BranchRecord", "CellEntry", "Exchange", "History", "Reference", "check_branch_name", "moved_entries"]

MAIN = "main"
Reference = str | int
"""A place in the tree: a message's id (or the start of one), an index into a path, or a branch's name."""


@dataclass(frozen=True)
class BranchRecord:
    """A branch as it is stored: a name and a tip.

    Parameters
    ----------
    name
        Its name.
    tip
        The id of its last message; ``None`` while it is empty.
    forked_from
        The message that it started at.
    from_branch
        The branch that it was forked from.
    made_by
        The cell that made it, which may run again.
    at
        The reference that the cell gave for the point, as it was written.
    extra
        Stored keys that this version does not know; they are kept.
    """

    name: str
    tip: str | None = None
    forked_from: str | None = None
    from_branch: str | None = None
    made_by: str | None = None
    at: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CellEntry:
    """What a cell owns on one branch: the messages from `first` to `last`."""

    branch: str
    first: str
    last: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Exchange:
    """A user message and all that follows it up to the final answer."""

    branch: str
    messages: tuple[Message, ...]

    @property
    def entry(self) -> CellEntry:
        """The entry of a cell that owns this exchange."""
        return CellEntry(self.branch, self.messages[0].id, self.messages[-1].id)


class History:
    """A tree of immutable messages in which nothing is ever overwritten, only pruned.

    Every command either succeeds or raises and leaves the history as it was.
    """

    def __init__(self) -> None:
        self.clear()
        self.extra: dict[str, Any] = {}

    def clear(self) -> None:
        """Remove all branches, cells and messages, for good."""
        self.messages: dict[str, Message] = {}
        self.branches: dict[str, BranchRecord] = {MAIN: BranchRecord(MAIN)}
        self.active = MAIN
        self.cells: dict[str, list[CellEntry]] = {}
        self.stale: set[str] = set()
        self.pins: set[str] = set()
        """The messages that stay in the prompt, whatever does not fit."""
        self.remade: dict[str, str] = {}
        """The cells that answered a question again, and the last answer that each of them gave."""
        self.visited: dict[str | None, str | None] = {}
        """Where one was last below a message; not stored."""

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def order(self) -> list[str]:
        """The ids of all messages, in the order in which they were made."""
        return list(self.messages)

    def branch(self, name: str) -> BranchRecord:
        """Return a branch by name.

        Raises
        ------
        BranchError
            There is none; the message lists those that there are.
        """
        try:
            return self.branches[name]
        except KeyError:
            raise BranchError(f"There is no branch {name!r}; there is {_listed(self.branches)}.") from None

    def tip(self, branch: str) -> str | None:
        """Return the id of a branch's last message."""
        return self.branch(branch).tip

    def ancestors(self, tip: str | None) -> Iterator[Message]:
        """Yield the messages from `tip` up to the root."""
        while tip is not None:
            message = self.messages[tip]
            yield message
            tip = message.parent

    def path(self, tip: str | None) -> list[Message]:
        """Return the messages from the root to `tip`."""
        return list(self.ancestors(tip))[::-1]

    def paths(self, ids: Iterable[str]) -> list[list[Message]]:
        """Return the paths to those of some messages that none of the others stands below."""
        wanted = list(ids)
        inner = {self.messages[id].parent for id in wanted}
        return [self.path(id) for id in wanted if id not in inner]

    def branch_path(self, branch: str) -> list[Message]:
        """Return the messages of a branch, root first."""
        return self.path(self.tip(branch))

    def on_path(self, id: str | None, tip: str | None) -> bool:
        """Whether `id` lies on the path to `tip`; ``None`` (before the root) lies on every path."""
        return id is None or any(message.id == id for message in self.ancestors(tip))

    def line(self, tip: str | None) -> Iterator[Message]:
        """Yield what leads to `tip`: its ancestors, and those of what summaries and copies among them stand for."""
        seen: set[str] = set()
        waiting = [tip]
        while waiting:
            for message in self.ancestors(waiting.pop()):
                if message.id in seen:
                    break
                seen.add(message.id)
                yield message
                if message.stands_for in self.messages:
                    waiting.append(message.stands_for)

    def leads_to(self, id: str | None, tip: str | None) -> bool:
        """Whether `id` is part of what leads to `tip`, as `line` tells it; ``None`` (before the root) always is."""
        return id is None or any(message.id == id for message in self.line(tip))

    def summed_up(self, tip: str | None) -> list[Message]:
        """Return the messages that are gone from the path since a summary right above `tip` stands for them."""
        said_again: list[str] = []
        for message in self.ancestors(tip):
            if message.stands_for not in self.messages:
                break
            said_again.append(message.stands_for)
        gone = self.path(said_again[-1]) if said_again else []
        return [message for message in gone if message.role != "system" and message.id not in said_again[:-1]]

    def children(self, parent: str | None) -> list[Message]:
        """Return the messages below `parent`, oldest first."""
        return [message for message in self.messages.values() if message.parent == parent]

    def siblings(self, id: str) -> list[Message]:
        """Return the messages at the same place with the same role, itself included, oldest first."""
        message = self.messages[id]
        return [other for other in self.children(message.parent) if other.role == message.role]

    def exchanges(self, branch: str) -> list[Exchange]:
        """Return the exchanges on a branch, oldest first; what comes before the first user message is in none."""
        groups: list[list[Message]] = []
        for message in self.branch_path(branch):
            if message.role == "user":
                groups.append([message])
            elif groups:
                groups[-1].append(message)
        return [Exchange(branch, tuple(group)) for group in groups]

    def resolve(self, reference: Reference, branch: str) -> str | None:
        """Return the message that a reference means; ``None`` for a branch that is empty.

        Parameters
        ----------
        reference
            A branch's name (its tip), an index into the path of `branch` (negative ones count from the tip), or a
            message's id or the first four or more characters of one.
        branch
            The branch that an index counts in.

        Raises
        ------
        MessageNotFoundError
            Nothing has that id or index, or more than one message has it.
        TypeError
            It is neither text nor a whole number.
        """
        if not isinstance(reference, (str, int)) or isinstance(reference, bool):
            raise TypeError(
                f"A place is a message's id, an index or a branch's name, not a {type(reference).__name__}."
            )
        if isinstance(reference, str) and reference in self.branches:
            return self.branches[reference].tip
        if isinstance(reference, str) and reference in self.messages:
            return reference
        if isinstance(reference, int) or _is_index(reference):
            path = self.branch_path(branch)
            index = int(reference)
            if not -len(path) <= index < len(path):
                raise MessageNotFoundError(
                    f"There is no message {index} on branch {branch!r}; it has {len(path)}, and 0 is the first."
                )
            return path[index].id
        found = [id for id in self.messages if id.startswith(reference)] if len(reference) >= 4 else []
        if len(found) == 1:
            return found[0]
        if found:
            raise MessageNotFoundError(f"{reference!r} is the start of {len(found)} message ids; give more of it.")
        raise MessageNotFoundError(
            f"{reference!r} is no branch, index or message id here; the branches are {_listed(self.branches)}."
        )

    # -- growing ------------------------------------------------------------------------------------------------

    def add(self, message: Message) -> Message:
        """Put a message into the tree, below its parent; one that is there already is left as it is.

        Raises
        ------
        MessageNotFoundError
            Its parent is not in the tree.
        """
        if message.parent is not None and message.parent not in self.messages:
            raise MessageNotFoundError(
                f"The message before {message.id!r}, {message.parent!r}, is not in this session."
            )
        return self.messages.setdefault(message.id, message)

    def append(self, branch: str, role: str, content: Content, **fields: Any) -> Message:
        """Add a message at the tip of a branch and move the tip there."""
        message = self.add(Message.create(role, content, parent=self.tip(branch), **fields))
        self.set_tip(branch, message.id)
        return message

    def extend(self, branch: str, messages: Iterable[Message]) -> list[Message]:
        """Add messages one below the other at the tip of a branch, with the ids that they have there."""
        added = []
        for message in messages:
            added.append(self.add(message.below(self.tip(branch))))
            self.set_tip(branch, added[-1].id)
        return added

    # -- pins ---------------------------------------------------------------------------------------------------

    def pin(self, id: str) -> None:
        """Keep a message, and the exchange that it is in, in the prompt whatever does not fit."""
        if id not in self.messages:
            raise MessageNotFoundError(f"There is no message {id!r} in this session.")
        self.pins.add(id)

    def unpin(self, id: str) -> None:
        """Let a message be left out again; one that is not pinned stays as it is."""
        self.pins.discard(id)

    # -- branches -----------------------------------------------------------------------------------------------

    def set_tip(self, branch: str, tip: str | None) -> None:
        """Move a branch to another message."""
        if tip is not None and tip not in self.messages:
            raise MessageNotFoundError(f"There is no message {tip!r} in this session.")
        self.branches[branch] = replace(self.branch(branch), tip=tip)

    def fork(
        self,
        name: str,
        point: str | None,
        *,
        from_branch: str | None = None,
        made_by: str | None = None,
        at: str | None = None,
    ) -> BranchRecord:
        """Make a branch whose tip is `point`; the rest says where it came from, as in `BranchRecord`.

        Raises
        ------
        BranchError
            The name is taken, is empty, or could be read as an index.
        """
        check_branch_name(name)
        if name in self.branches:
            raise BranchError(
                f"There is a branch {name!r} already; take another name, or go on with -b {quoted(name)}."
            )
        if point is not None and point not in self.messages:
            raise MessageNotFoundError(f"There is no message {point!r} in this session.")
        self.branches[name] = BranchRecord(name, point, point, from_branch, made_by, at)
        return self.branches[name]

    def fork_point(self, name: str, at: str | None) -> str | None:
        """Return where a branch starts when its maker runs again with the reference `at`.

        The recorded point, if that is still on the path of the branch that it was forked from; else the place that an
        index means there now, or that branch's tip. Another reference than last time is looked up anew.
        """
        record = self.branch(name)
        origin = record.from_branch if record.from_branch in self.branches else None
        if at is not None and at != record.at:
            return self.resolve(at, origin or self.active)
        if origin is None or self.leads_to(record.forked_from, self.tip(origin)):
            return record.forked_from
        if at is not None and _is_index(at):
            with contextlib.suppress(MessageNotFoundError):
                return self.resolve(at, origin)
        return self.tip(origin)

    def restart(self, name: str, point: str | None, at: str | None) -> None:
        """Put a forked branch back to the point where it starts."""
        self.branches[name] = replace(self.branch(name), tip=point, forked_from=point, at=at)

    def note_maker(self, name: str, cell: str | None, at: str | None) -> None:
        """Record the cell that made a branch and the reference it gave, so that it may run again."""
        self.branches[name] = replace(self.branch(name), made_by=cell, at=at)

    def branch_with(self, id: str | None, prefer: str) -> str | None:
        """Return a branch whose path holds a message: `prefer` if it does, else the oldest such branch."""
        names = [prefer, *(name for name in self.branches if name != prefer)]
        return next((name for name in names if self.leads_to(id, self.tip(name))), None)

    def remove_branch(self, name: str) -> None:
        """Forget a branch's name; its messages stay until they are pruned."""
        self.branch(name)
        if name == self.active:
            raise BranchError(f"{name!r} is the active branch; switch to another one first.")
        del self.branches[name]

    def rename_branch(self, name: str, new: str) -> None:
        """Give a branch another name; what refers to it follows.

        Raises
        ------
        BranchError
            There is no such branch, or the new name is taken or cannot be one.
        """
        record = self.branch(name)
        if new == name:
            return
        check_branch_name(new)
        if new in self.branches:
            raise BranchError(f"There is a branch {new!r} already; take another name.")
        renamed = [replace(record, name=new) if other is record else other for other in self.branches.values()]
        renamed = [replace(other, from_branch=new) if other.from_branch == name else other for other in renamed]
        self.branches = {other.name: other for other in renamed}
        for cell, entries in self.cells.items():
            self.cells[cell] = [replace(e, branch=new) if e.branch == name else e for e in entries]
        if self.active == name:
            self.active = new

    def switch(self, name: str) -> None:
        """Make a branch the active one."""
        self._remember_place()
        self.active = self.branch(name).name

    def go_to(self, id: str) -> None:
        """Make a message part of the active path, which then goes on to where one was last below it.

        Where a branch leads there, it becomes the active one; else the active one does.

        Raises
        ------
        MessageNotFoundError
            There is no such message.
        """
        if id not in self.messages:
            raise MessageNotFoundError(f"There is no message {id!r} in this session.")
        if self.on_path(id, self.tip(self.active)):
            return
        self._remember_place()
        leaf = self._last_leaf(id)
        names = [name for name, record in self.branches.items() if record.tip == leaf]
        names += [name for name in self.branches if self.on_path(id, self.tip(name))]
        if names:
            self.active = names[0]
        else:
            self.set_tip(self.active, leaf)
            self._mark_stale(self.active)

    def _remember_place(self) -> None:
        tip = self.tip(self.active)
        self.visited[tip] = None
        for message in self.ancestors(tip):
            self.visited[message.parent] = message.id

    def _last_leaf(self, id: str) -> str:
        """Return where one was last below a message, or else the end of what was said there last."""
        newest = {message.parent: message.id for message in self.messages.values()}
        while True:
            below = self.visited.get(id, newest.get(id))
            if below is None or below not in self.messages:
                return id
            id = below

    def adopt(self, branch: str, other: str) -> None:
        """Give `branch` the tip of `other`."""
        self.set_tip(branch, self.tip(other))
        self._mark_stale(branch)

    # -- changing what a branch says ----------------------------------------------------------------------------

    def rewind(self, branch: str, n: int = 1) -> None:
        """Take the last `n` exchanges off a branch.

        Raises
        ------
        BranchError
            It has fewer.
        """
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"The number of exchanges to take off is a whole number, not a {type(n).__name__}.")
        exchanges = self.exchanges(branch)
        if n < 0 or n > len(exchanges):
            raise BranchError(f"Branch {branch!r} has {len(exchanges)} exchanges; {n} of them cannot be taken off.")
        if n:
            self.set_tip(branch, exchanges[-n].messages[0].parent)
            self._mark_stale(branch)

    def remove_last(self, branch: str, n: int = 1) -> None:
        """Take the last `n` messages off a branch, but never the system prompt.

        Raises
        ------
        BranchError
            It has fewer.
        """
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"The number of messages to take off is a whole number, not a {type(n).__name__}.")
        said = [message for message in self.branch_path(branch) if message.role != "system"]
        if n < 0 or n > len(said):
            raise BranchError(f"Branch {branch!r} has {len(said)} messages; {n} of them cannot be taken off.")
        if n:
            self.set_tip(branch, said[-n].parent)
            self._mark_stale(branch)

    def edit(self, branch: str, id: str, content: Content, **fields: Any) -> Message:
        """Make a sibling of a message of this branch with other content; the branch ends there. The original stays."""
        if not self.on_path(id, self.tip(branch)):
            raise MessageNotFoundError(f"Message {id!r} is not on branch {branch!r}.")
        old = self.messages[id]
        edited = self.add(Message.create(old.role, content, parent=old.parent, **fields))
        self.set_tip(branch, edited.id)
        self._mark_stale(branch)
        return edited

    def set_system(self, branch: str, system: str | None) -> None:
        """Give an empty branch another system prompt.

        Raises
        ------
        BranchError
            The branch has messages; the error says how to get a copy below another system prompt.
        """
        path = self.branch_path(branch)
        current = path[0].text if path and path[0].role == "system" else None
        if system == current:
            return
        if len(path) > (current is not None):
            raise BranchError(
                f"Branch {branch!r} has messages below its system prompt. To ask the same under another one, fork it: "
                f"session.fork(name, system=…), or --fork NAME --system TEXT, copies the path below the new prompt."
            )
        self.set_tip(branch, None)
        if system is not None:
            self.append(branch, "system", system)

    def copy_below(self, system: str | None, path: list[Message]) -> str | None:
        """Copy a path below another system prompt (new ids; the originals stay) and return the copy's tip."""
        parent = self.add(Message.create("system", system)).id if system is not None else None
        for message in path[1:] if path and path[0].role == "system" else path:
            parent = self._copy(message, parent).id
        return parent

    def _copy(self, message: Message, parent: str | None) -> Message:
        """Add a copy of a message below another parent; it is pinned where the original is."""
        copy = self.add(message.below(parent))
        if message.id in self.pins:
            self.pins.add(copy.id)
        return copy

    def take_off(self, cell: str) -> int:
        """Take the exchanges of a deleted cell off their branches and return how many there were.

        What followed is copied below what came before; the entries of the cells that own it follow, and they are stale.
        """
        n_removed = 0
        self.remade.pop(cell, None)
        for entry in self.cells.pop(cell, []):
            if entry.branch not in self.branches:
                continue
            path = self.branch_path(entry.branch)
            ids = [message.id for message in path]
            if entry.first not in ids or entry.last not in ids:
                continue
            start, end = ids.index(entry.first), ids.index(entry.last) + 1
            renamed: dict[str, str] = {}
            parent = path[start].parent
            for message in path[end:]:
                parent = renamed[message.id] = self._copy(message, parent).id
            self.set_tip(entry.branch, parent)
            self._follow(entry.branch, renamed)
            n_removed += 1
        self.stale.discard(cell)
        return n_removed

    def move_cell(self, cell: str, to: str) -> None:
        """Give what a cell owns, and the branches that it made, to another one that owns nothing yet."""
        if cell not in self.cells or to in self.cells:
            return
        self.cells = {to if id == cell else id: entries for id, entries in self.cells.items()}
        self.stale = {to if id == cell else id for id in self.stale}
        self.remade = {to if id == cell else id: answer for id, answer in self.remade.items()}
        for name, record in self.branches.items():
            if record.made_by == cell:
                self.branches[name] = replace(record, made_by=to)

    def _follow(self, branch: str, renamed: Mapping[str, str]) -> None:
        for cell, entries in self.cells.items():
            moved = [
                replace(entry, first=renamed[entry.first], last=renamed[entry.last])
                if entry.branch == branch and entry.first in renamed and entry.last in renamed
                else entry
                for entry in entries
            ]
            if moved != entries:
                self.cells[cell] = moved
                self.stale.add(cell)

    # -- cells --------------------------------------------------------------------------------------------------

    def replace_answer(self, branch: str, old: str | None, new: str) -> None:
        """Move a branch to another answer to a question on it; the entry of the cell that asked it goes along.

        Parameters
        ----------
        branch
            Its name.
        old
            The last message of the former answer.
        new
            The last message of the new one.
        """
        was_tip = self.tip(branch) == old
        self.set_tip(branch, new)
        self.move_entries(branch, old, new)
        if not was_tip:
            self._mark_stale(branch)

    def move_entries(self, branch: str, old: str | None, last: str) -> None:
        """Let the entries on a branch that end at `old` end at `last`, which stands for it."""
        for cell, entries in self.cells.items():
            self.cells[cell] = moved_entries(entries, branch, old, last)

    def _mark_stale(self, branch: str) -> None:
        """Mark the cells whose exchange is no longer on a branch as stale, and those where it is again as not."""
        path = {message.id for message in self.line(self.tip(branch))}
        for cell, entries in self.cells.items():
            there = [entry.last in path for entry in entries if entry.branch == branch]
            if there and not all(there):
                self.stale.add(cell)
            elif there and len(there) == len(entries):
                self.stale.discard(cell)

    def rerun_point(self, entry: CellEntry) -> tuple[bool, str | None] | None:
        """Return whether an entry's exchange is on its branch, and where that rewinds to when its cell runs again.

        ``None`` where the cell appends: neither the exchange nor its parent is on the branch.
        """
        if entry.branch not in self.branches or entry.first not in self.messages:
            return None
        tip = self.tip(entry.branch)
        parent = self.messages[entry.first].parent
        if self.leads_to(entry.first, tip):
            return True, parent
        return (False, parent) if self.on_path(parent, tip) else None

    def cells_below(self, id: str) -> set[str]:
        """Return the cells whose exchanges descend from a message."""
        below = {id}
        for message in self.messages.values():  # parents, and what is summed up, come before
            if message.parent in below or message.stands_for in below:
                below.add(message.id)
        return {cell for cell, entries in self.cells.items() if any(entry.first in below for entry in entries)}

    def cells_of(self, ids: Container[str]) -> set[str]:
        """Return the cells whose exchanges begin or end with any of these messages."""
        return {cell for cell, entries in self.cells.items() if any(e.first in ids or e.last in ids for e in entries)}

    # -- pruning ------------------------------------------------------------------------------------------------

    def unreachable(self) -> list[str]:
        """Return the ids of the messages that no branch leads to, not even by a summary of them."""
        kept: set[str] = set()
        for record in self.branches.values():
            kept.update(message.id for message in self.line(record.tip))
        return [id for id in self.messages if id not in kept]

    def prune(self) -> int:
        """Remove the messages that no branch leads to, and what refers to them. Return how many there were."""
        gone = set(self.unreachable())
        for id in gone:
            del self.messages[id]
        for cell in list(self.cells):
            self.cells[cell] = [e for e in self.cells[cell] if e.first not in gone and e.last not in gone]
            if not self.cells[cell]:
                del self.cells[cell]
                self.stale.discard(cell)
        self.remade = {cell: id for cell, id in self.remade.items() if id not in gone}
        self.pins -= gone
        for name, record in self.branches.items():
            if record.forked_from in gone:
                self.branches[name] = replace(record, forked_from=self.origin_tip(record))
        return len(gone)

    def origin_tip(self, record: BranchRecord) -> str | None:
        """Return where a branch would start whose point is gone: at the tip of the one that it was forked from."""
        origin = self.branches.get(record.from_branch or "")
        return None if origin is None else origin.tip

    # -- all of it ----------------------------------------------------------------------------------------------

    def copy(self) -> History:
        """Return a copy that shares the messages, which are immutable, and nothing else."""
        twin = History()
        twin.messages = dict(self.messages)
        twin.branches = dict(self.branches)
        twin.active = self.active
        twin.cells = {cell: list(entries) for cell, entries in self.cells.items()}
        twin.stale = set(self.stale)
        twin.pins = set(self.pins)
        twin.remade = dict(self.remade)
        twin.extra = dict(self.extra)
        return twin

    def tree_lines(self, label: Callable[[Message], str] | None = None) -> list[str]:
        """Return the tree as lines of text: an exchange in a row, branches that part indented below it."""
        return _TreeText(self, label or _label).lines()


class _TreeText:
    """Draws a history as indented lines; without recursion, so that depth has no limit."""

    def __init__(self, history: History, label: Callable[[Message], str]) -> None:
        self.history = history
        self.label = label
        self.below: dict[str | None, list[Message]] = {}
        for message in history.messages.values():
            self.below.setdefault(message.parent, []).append(message)
        self.tips: dict[str, list[str]] = {}
        for record in history.branches.values():
            if record.tip is not None:
                self.tips.setdefault(record.tip, []).append(record.name)
        self.active_path = {message.id for message in history.ancestors(history.tip(history.active))}

    def lines(self) -> list[str]:
        lines = []
        stack = [(root, "", "") for root in reversed(self.below.get(None, []))]
        while stack:
            message, first, rest = stack.pop()
            mark = "●" if message.id in self.active_path else "○"
            names = "".join(
                f"  ◀ {name}" + (" (active)" if name == self.history.active else "")
                for name in self.tips.get(message.id, ())
            )
            lines.append(f"{first}{mark} {self.label(message)}{names}")
            children = self.below.get(message.id, [])
            if len(children) == 1:
                stack.append((children[0], rest, rest))
            else:
                last = len(children) - 1
                rows = [
                    (child, rest + ("└─ " if i == last else "├─ "), rest + ("   " if i == last else "│  "))
                    for i, child in enumerate(children)
                ]
                stack.extend(reversed(rows))
        empty = [record.name for record in self.history.branches.values() if record.tip is None]
        return lines + [f"(empty)  ◀ {name}" + (" (active)" if name == self.history.active else "") for name in empty]


def check_branch_name(name: object) -> None:
    """Raise where a name cannot be that of a branch."""
    if not isinstance(name, str):
        raise TypeError(f"A branch's name is a string, not {type(name).__name__}.")
    if not name or name != name.strip() or name.startswith("-"):
        raise BranchError(
            f"{name!r} cannot be a branch's name: it must not be empty, start with '-', or have outer spaces."
        )
    if not name.isprintable() or any(c in name for c in ",\"'"):
        raise BranchError(f"{name!r} cannot be a branch's name: quotes, commas and control characters are not allowed.")
    if _is_index(name):
        raise BranchError(f"{name!r} cannot be a branch's name: --at would read it as an index.")


def moved_entries(entries: Iterable[CellEntry], branch: str, old: str | None, last: str) -> list[CellEntry]:
    """Return entries of which those on a branch that end at `old` end at `last`."""
    return [replace(e, last=last) if (e.branch, e.last) == (branch, old) else e for e in entries]


def _is_index(text: str) -> bool:
    return text.lstrip("-").isdigit() and text.lstrip("-").isascii() and text.count("-") <= 1


def _label(message: Message) -> str:
    return f"{message.role}: {preview(message.text)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
