"""The stored form of a history, version 1: validation, migration, reading, writing and merging."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from llamanb.errors import HistoryFormatError, InvalidArgumentError, LlamanbError, SchemaVersionError
from llamanb.history import BranchRecord, CellEntry, History, check_branch_name
from llamanb.messages import ROLES, FinishReason, Message, storable
from llamanb.sampling import SamplingParams

__all__ = [
    "CELL_ID",
    "SCHEMA",
    "Document",
    "dump_history",
    "keep_unstored",
    "load_defaults",
    "load_history",
    "merge",
    "merge_sessions",
    "without_cells",
]

SCHEMA = 1
"""The version of the stored form that this llamanb writes."""

_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From the version that is the key to the next one; applied in turn when an older document is read."""

# The form of a cell's id: https://nbformat.readthedocs.io/en/latest/format_description.html#cell-ids
CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What the id of a cell in a notebook file looks like."""

_HISTORY_KEYS = ("active", "branches", "cells", "order", "messages", "pins", "remade", "stale")
_BRANCH_KEYS = ("name", "tip", "forked_from", "from_branch", "made_by", "at")
_T = TypeVar("_T")


@dataclass
class Document:
    """The `llamanb` key of a notebook's metadata.

    Parameters
    ----------
    sessions
        Sessions by name, each in the form of `llamanb.ChatSession.to_dict`.
    extra
        Keys that this version does not know; they are kept.
    """

    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form."""
        return {**copy.deepcopy(self.extra), "schema": SCHEMA, "sessions": copy.deepcopy(self.sessions)}

    @classmethod
    def from_dict(cls, stored: Any) -> Document:
        """Read and validate the stored form.

        Raises
        ------
        SchemaVersionError
            It was written by a newer llamanb.
        HistoryFormatError
            It does not have the form of the schema; the error names the place.
        """
        data = dict(_mapping(stored, "$"))
        version = data.pop("schema", None)
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise HistoryFormatError("$.schema", f"{version!r} is not a version number")
        if version > SCHEMA:
            raise SchemaVersionError(
                f"This history has schema {version}, and this llamanb reads up to {SCHEMA}: update llamanb to use it. "
                "It is left as it is."
            )
        for step in range(version, SCHEMA):
            data = _MIGRATIONS[step](data)
        sessions = dict(_mapping(data.pop("sessions", None), "$.sessions"))
        for name, session in sessions.items():
            load_history(session, f"$.sessions.{name}")
            load_defaults(session, f"$.sessions.{name}")
        return cls(copy.deepcopy(sessions), copy.deepcopy(data))


def dump_history(history: History, *, shared: bool = False) -> dict[str, Any]:
    """Return the stored form of a history; with `shared`, its messages are what they all share, not to be changed.

    Cells whose ids no notebook format knows are left out: those of VS Code are URIs with a path in them.
    """
    marks = {
        "pins": sorted(history.pins),
        "stale": sorted(filter(CELL_ID.fullmatch, history.stale)),
        "remade": {cell: id for cell, id in history.remade.items() if CELL_ID.fullmatch(cell)},
    }
    return {
        **copy.deepcopy(history.extra),
        "active": history.active,
        "branches": [_dump_branch(record) for record in history.branches.values()],
        "cells": {
            cell: [
                {**copy.deepcopy(dict(e.extra)), "branch": e.branch, "first": e.first, "last": e.last} for e in entries
            ]
            for cell, entries in history.cells.items()
            if CELL_ID.fullmatch(cell)
        },
        **{key: value for key, value in marks.items() if value},
        "order": history.order,
        "messages": {id: m.stored if shared else m.to_dict() for id, m in history.messages.items()},
    }


def without_cells(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return a session in its stored form without what belongs to the cells of one notebook."""
    branches = [{k: v for k, v in branch.items() if k not in ("made_by", "at")} for branch in session["branches"]]
    kept = {key: value for key, value in session.items() if key not in ("remade", "stale")}
    return {**kept, "cells": {}, "branches": branches}


def keep_unstored(history: History, former: History) -> None:
    """Keep what a former version of a history knows that is good for one kernel's life, and not stored."""
    history.visited = dict(former.visited)
    for cell, entries in former.cells.items():
        if not CELL_ID.fullmatch(cell) and all({e.first, e.last} <= history.messages.keys() for e in entries):
            history.cells[cell] = list(entries)
    history.stale |= {cell for cell in former.stale & history.cells.keys() if not CELL_ID.fullmatch(cell)}
    history.remade |= {
        cell: id for cell, id in former.remade.items() if not CELL_ID.fullmatch(cell) and id in history.messages
    }
    for name, record in former.branches.items():
        if name in history.branches and record.made_by is not None and not CELL_ID.fullmatch(record.made_by):
            history.branches[name] = replace(history.branches[name], made_by=record.made_by)


def _dump_branch(record: BranchRecord) -> dict[str, Any]:
    stored = {**copy.deepcopy(dict(record.extra)), "name": record.name, "tip": record.tip}
    for key in ("forked_from", "from_branch", "made_by", "at"):
        value = getattr(record, key)
        if value is not None and (key != "made_by" or CELL_ID.fullmatch(value)):
            stored[key] = value
    return stored


def load_history(stored: Any, path: str = "$") -> History:
    """Read and validate the stored form of a history; keys that it does not know are kept in `History.extra`.

    Raises
    ------
    HistoryFormatError
        Something is wrong; the error names the place as a JSON path.
    """
    data = _mapping(stored, path)
    storable(data, path)
    history = History()
    _load_messages(history, data, path)
    _load_branches(history, data.get("branches"), f"{path}.branches")
    active = _text(data.get("active"), f"{path}.active")
    if active not in history.branches:
        raise HistoryFormatError(f"{path}.active", f"there is no branch {active!r}")
    history.active = active
    _load_cells(history, data.get("cells", {}), f"{path}.cells")
    for cell, id in _mapping(data.get("remade", {}), f"{path}.remade").items():
        if not isinstance(id, str) or id not in history.messages:
            raise HistoryFormatError(f"{path}.remade.{cell}", f"there is no message {id!r}")
        history.remade[cell] = id
    for index, cell in enumerate(_list(data.get("stale", []), f"{path}.stale")):
        history.stale.add(_text(cell, f"{path}.stale[{index}]"))
    history.stale &= history.cells.keys()
    for index, id in enumerate(_list(data.get("pins", []), f"{path}.pins")):
        history.pins.add(_text(id, f"{path}.pins[{index}]"))
    history.pins &= history.messages.keys()
    history.extra = {key: copy.deepcopy(value) for key, value in data.items() if key not in _HISTORY_KEYS}
    return history


def load_defaults(stored: Mapping[str, Any], path: str = "$") -> tuple[str | None, SamplingParams | None, str | None]:
    """Read and validate the system prompt, the sampling and the overflow policy of a stored session.

    Raises
    ------
    HistoryFormatError
        One of them does not have its form; the error names the place.
    """
    system = _optional_text(stored.get("system"), f"{path}.system")
    overflow = _optional_text(stored.get("overflow"), f"{path}.overflow")
    sampling = stored.get("sampling")
    if sampling is None:
        return system, None, overflow
    try:
        return system, SamplingParams.from_dict(_mapping(sampling, f"{path}.sampling")), overflow
    except (TypeError, InvalidArgumentError) as error:
        raise HistoryFormatError(f"{path}.sampling", str(error)) from None


def _load_messages(history: History, data: Mapping[str, Any], path: str) -> None:
    messages = _mapping(data.get("messages"), f"{path}.messages")
    order = _list(data.get("order"), f"{path}.order")
    for index, id in enumerate(order):
        where = f"{path}.order[{index}]"
        if not isinstance(id, str) or id not in messages:
            raise HistoryFormatError(where, f"there is no message {id!r}")
        if id in history.messages:
            raise HistoryFormatError(where, f"message {id!r} is listed twice")
        history.messages[id] = _load_message(history, id, messages[id], f"{path}.messages.{id}")
    for id in messages:
        if id not in history.messages:
            raise HistoryFormatError(f"{path}.messages.{id}", "it is missing from order")


def _load_message(history: History, id: str, stored: Any, path: str) -> Message:
    data = _mapping(stored, path)
    if data.get("role") not in ROLES:
        raise HistoryFormatError(f"{path}.role", f"{data.get('role')!r} is none of {', '.join(ROLES)}")
    if not isinstance(data.get("content"), (str, list)):
        raise HistoryFormatError(f"{path}.content", "it must be text or a list of parts")
    parent = _optional_text(data.get("parent"), f"{path}.parent")
    if parent is not None and parent not in history.messages:
        raise HistoryFormatError(f"{path}.parent", f"message {parent!r} does not come before it")
    for key in ("model_input", "reasoning", "tool_call_id", "model", "stands_for"):
        _optional_text(data.get(key), f"{path}.{key}")
    if data.get("finish_reason") not in (None, *(reason.value for reason in FinishReason)):
        raise HistoryFormatError(f"{path}.finish_reason", f"{data['finish_reason']!r} is not a finish reason")
    if data.get("sampling") is not None:
        _mapping(data["sampling"], f"{path}.sampling")
    left_out = data.get("left_out", 0)
    if isinstance(left_out, bool) or not isinstance(left_out, int) or left_out < 0:
        raise HistoryFormatError(f"{path}.left_out", f"{left_out!r} is not a number of exchanges")
    for index, call in enumerate(_list(data.get("tool_calls", []), f"{path}.tool_calls")):
        where = f"{path}.tool_calls[{index}]"
        for key in ("id", "name", "arguments"):
            _text(_mapping(call, where).get(key), f"{where}.{key}")
    return Message.from_dict(id, data)


def _load_branches(history: History, stored: Any, path: str) -> None:
    history.branches = {}
    for index, item in enumerate(_list(stored, path)):
        where = f"{path}[{index}]"
        data = _mapping(item, where)
        name = _text(data.get("name"), f"{where}.name")
        try:
            check_branch_name(name)
        except LlamanbError as error:
            raise HistoryFormatError(f"{where}.name", str(error)) from None
        if name in history.branches:
            raise HistoryFormatError(f"{where}.name", f"branch {name!r} is listed twice")
        values = {key: _optional_text(data.get(key), f"{where}.{key}") for key in _BRANCH_KEYS[1:]}
        for key in ("tip", "forked_from"):
            if values[key] is not None and values[key] not in history.messages:
                raise HistoryFormatError(f"{where}.{key}", f"there is no message {values[key]!r}")
        extra = {key: copy.deepcopy(value) for key, value in data.items() if key not in _BRANCH_KEYS}
        history.branches[name] = BranchRecord(name, extra=extra, **values)
    if not history.branches:
        raise HistoryFormatError(path, "there must be at least one branch")


def _load_cells(history: History, stored: Any, path: str) -> None:
    for cell, entries in _mapping(stored, path).items():
        loaded = []
        for index, item in enumerate(_list(entries, f"{path}.{cell}")):
            where = f"{path}.{cell}[{index}]"
            data = _mapping(item, where)
            values = {key: _text(data.get(key), f"{where}.{key}") for key in ("branch", "first", "last")}
            for key in ("first", "last"):
                if values[key] not in history.messages:
                    raise HistoryFormatError(f"{where}.{key}", f"there is no message {values[key]!r}")
            extra = {key: copy.deepcopy(value) for key, value in data.items() if key not in values}
            loaded.append(CellEntry(extra=extra, **values))
        history.cells[cell] = loaded


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise HistoryFormatError(path, "it must be an object" if value is not None else "it is missing")
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise HistoryFormatError(path, "it must be a list" if value is not None else "it is missing")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise HistoryFormatError(path, "it must be text" if value is not None else "it is missing")
    return value


def _optional_text(value: Any, path: str) -> str | None:
    return None if value is None else _text(value, path)


# -- merging ----------------------------------------------------------------------------------------------------


def merge(base: History, ours: History, theirs: History) -> History:
    """Merge two histories that both come from `base`; where both changed the same thing, `ours` keeps the name.

    Messages are united, less what one side pruned and nothing needs. A branch that moved on one side is where that side
    has it; one that moved on both is at the tip that descends from the other, else ours keeps the name and theirs is
    kept as ``NAME@2``. Merging the result again with either side changes nothing.
    """
    merged = History()
    merged.messages = {**ours.messages, **{i: m for i, m in theirs.messages.items() if i not in ours.messages}}
    names = [*ours.branches, *(name for name in theirs.branches if name not in ours.branches)]
    merged.branches = {}
    in_conflict = [
        name for name in names if not _merge_branch(merged, name, *(s.branches.get(name) for s in (base, ours, theirs)))
    ]
    for name in in_conflict:  # once all names that are taken are known
        _keep_beside(merged, name, theirs.branches[name])
    if not merged.branches:
        merged.branches = dict(ours.branches)
    merged.active = _changed_side(base.active, ours.active, theirs.active)
    if merged.active not in merged.branches:
        merged.active = ours.active if ours.active in merged.branches else next(iter(merged.branches))
    for cell in [*ours.cells, *(cell for cell in theirs.cells if cell not in ours.cells)]:
        entries = _changed_side(base.cells.get(cell), ours.cells.get(cell), theirs.cells.get(cell))
        if entries:
            merged.cells[cell] = list(entries)
    for cell in [*ours.remade, *theirs.remade]:
        answer = _changed_side(base.remade.get(cell), ours.remade.get(cell), theirs.remade.get(cell))
        if answer is not None:
            merged.remade[cell] = answer
    sides = (base.stale, ours.stale, theirs.stale)
    merged.stale = {cell for cell in merged.cells if _changed_side(*(cell in side for side in sides))}
    sides = (base.pins, ours.pins, theirs.pins)
    merged.pins = {id for id in merged.messages if _changed_side(*(id in side for side in sides))}
    merged.extra = {**theirs.extra, **ours.extra}
    _leave_out_pruned(merged, base, ours, theirs)
    return merged


def _changed_side(base: _T, ours: _T, theirs: _T) -> _T:
    return theirs if ours == base else ours


def _merge_branch(
    merged: History, name: str, base: BranchRecord | None, ours: BranchRecord | None, theirs: BranchRecord | None
) -> bool:
    """Give a branch the record of the side that changed it; return false where both did, and ours has the name."""
    if ours in (theirs, base) or theirs == base:
        winner = _changed_side(base, ours, theirs)
        if winner is not None:
            merged.branches[name] = winner
        return True
    if ours is None or theirs is None:  # removed on one side and changed on the other: the change stays
        changed = ours or theirs
        if changed is not None:
            merged.branches[name] = changed
        return True
    if merged.on_path(theirs.tip, ours.tip) or (base is not None and theirs.tip == base.tip):
        merged.branches[name] = ours
    elif merged.on_path(ours.tip, theirs.tip) or (base is not None and ours.tip == base.tip):
        merged.branches[name] = theirs
    else:
        merged.branches[name] = ours
        return False
    return True


def _keep_beside(merged: History, name: str, record: BranchRecord) -> None:
    number = 2
    while (other := merged.branches.get(f"{name}@{number}")) is not None:
        if other.tip == record.tip:
            return
        number += 1
    merged.branches[f"{name}@{number}"] = replace(record, name=f"{name}@{number}", made_by=None, at=None)


def _leave_out_pruned(merged: History, base: History, ours: History, theirs: History) -> None:
    pruned = {id for id in base.messages if id not in ours.messages or id not in theirs.messages}
    wanted = [record.tip for record in merged.branches.values()]
    wanted += [id for id in merged.messages if id not in pruned]
    kept = _closed_upwards(merged, wanted)
    merged.messages = {id: message for id, message in merged.messages.items() if id in kept}
    merged.pins &= kept
    merged.remade = {cell: id for cell, id in merged.remade.items() if id in kept}
    for cell in list(merged.cells):
        merged.cells[cell] = [e for e in merged.cells[cell] if e.first in kept and e.last in kept]
        if not merged.cells[cell]:
            del merged.cells[cell]
    merged.stale &= merged.cells.keys()
    for name, record in merged.branches.items():
        if record.forked_from is not None and record.forked_from not in kept:
            merged.branches[name] = replace(record, forked_from=merged.origin_tip(record))


def _closed_upwards(history: History, ids: Iterable[str | None]) -> set[str]:
    kept: set[str] = set()
    for id in ids:
        for message in history.ancestors(id):
            if message.id in kept:
                break
            kept.add(message.id)
    return kept


def merge_sessions(base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Merge sessions in their stored form; system prompt, model and sampling are taken from the side that changed."""
    sides = [load_history(side) for side in (base, ours, theirs)]
    merged = merge(*sides)
    keys = [*sides[1].extra, *(key for key in sides[2].extra if key not in sides[1].extra)]
    absent = object()
    values = {key: _changed_side(*(side.extra.get(key, absent) for side in sides)) for key in keys}
    merged.extra = {key: value for key, value in values.items() if value is not absent}
    return dump_history(merged)
