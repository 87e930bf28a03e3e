"""The `llamanb` key of notebook metadata, and reading .ipynb files."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamanb.errors import HistoryFormatError, InvalidArgumentError, LlamanbError, SchemaVersionError
from llamanb.history import CellEntry, Exchange, History, moved_entries
from llamanb.messages import Message
from llamanb.persistence.schema import Document, dump_history, load_history

if TYPE_CHECKING:
    import nbformat

__all__ = [
    "DAMAGED",
    "EMPTY",
    "KEY",
    "exchange_metadata",
    "fold_outputs",
    "read_document",
    "read_notebook",
    "replacement_metadata",
    "restored_sessions",
    "strip_outputs",
    "write_document",
]

KEY = "llamanb"
"""The key of notebook and output metadata."""

DAMAGED = "llamanb_damaged"
"""Where metadata that cannot be read is moved to; it is never overwritten."""

EMPTY: dict[str, Any] = {
    "active": "main",
    "branches": [{"name": "main", "tip": None}],
    "cells": {},
    "order": [],
    "messages": {},
}
"""The stored form of a session in which nothing was said."""


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """Read an .ipynb file in the current format. Cells of older formats get ids made of their place and source.

    Raises
    ------
    InvalidArgumentError
        There is no such file, or it is not a notebook.
    """
    import nbformat  # not when the extension is loaded: its validator takes a second and a half to import

    try:
        notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
        old = (notebook.nbformat, notebook.get("nbformat_minor", 0)) < (4, 5)
        if old:
            notebook = nbformat.convert(notebook, 4)
    except FileNotFoundError:
        raise InvalidArgumentError(f"There is no notebook {str(path)!r}.") from None
    except OSError as error:
        raise InvalidArgumentError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None
    except Exception as error:  # nbformat raises whatever its readers do
        lines = str(error).strip().splitlines() if isinstance(error, (ValueError, nbformat.ValidationError)) else []
        reason = lines[0].rstrip(".") if lines else "its JSON does not have the form of one"
        raise InvalidArgumentError(f"{str(path)!r} is not a notebook: {reason}.") from None
    if old:
        notebook.nbformat_minor = 5
        for index, cell in enumerate(notebook.cells):
            cell.id = hashlib.sha256(f"{index}:{cell.source}".encode()).hexdigest()[:8]
    return notebook


def restored_sessions(path: Path, cell: str) -> dict[str, dict[str, Any]]:
    """Return the sessions in a notebook's file, if that is the notebook that a cell is in; else, or if damaged, none.

    The file may be older than the open document, or another notebook's that has taken its name. What it lacks comes
    with the document.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if not any(item.get("id") == cell for item in notebook["cells"]):
            return {}
        document = read_document(notebook.get("metadata", {}))
        fold_outputs(notebook, document)
    except (OSError, ValueError, LlamanbError, LookupError, TypeError, AttributeError):
        return {}
    return document.sessions


def read_document(metadata: MutableMapping[str, Any]) -> Document:
    """Read the history of a notebook's metadata; damaged metadata is set aside under `DAMAGED`, never lost.

    Raises
    ------
    SchemaVersionError
        It was written by a newer llamanb; it is left as it is.
    HistoryFormatError
        It is damaged and now stands under `DAMAGED`; the error names the place.
    """
    if KEY not in metadata:
        return Document()
    try:
        return Document.from_dict(metadata[KEY])
    except SchemaVersionError:
        raise
    except HistoryFormatError:
        name, number = DAMAGED, 2
        while name in metadata:
            name, number = f"{DAMAGED}_{number}", number + 1
        metadata[name] = metadata.pop(KEY)
        raise


def write_document(metadata: MutableMapping[str, Any], document: Document) -> None:
    """Put a history into a notebook's metadata; damaged metadata that is there is set aside first.

    Raises
    ------
    SchemaVersionError
        What is there was written by a newer llamanb, and is left as it is.
    """
    with contextlib.suppress(HistoryFormatError):
        read_document(metadata)
    metadata[KEY] = document.to_dict()


def exchange_metadata(session: str, history: History, exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """Return what a chat output carries in its metadata: its exchanges, and what no other output carries before them.

    That is the system prompt, messages that were added without being answered, and a summary with what was copied below
    it. Of exchanges on one branch, the
    first is what the branch goes on from, if it does, and the others only stand in the tree.
    """
    carried: list[dict[str, Any]] = []
    branches: set[str] = set()
    for exchange in exchanges:
        messages = list(exchange.messages)
        for message in history.ancestors(messages[0].parent):
            if message.role == "assistant" and message.stands_for is None:
                break
            messages.insert(0, message)
        is_on = exchange.branch in history.branches and history.on_path(
            exchange.messages[-1].id, history.tip(exchange.branch)
        )
        goes_on = is_on and exchange.branch not in branches
        place = {"branch": exchange.branch, "first": exchange.messages[0].id} if goes_on else {}
        branches.add(exchange.branch)
        stored = [{"id": message.id, **message.to_dict()} for message in messages]
        carried.append({"session": session, **place, "messages": stored})
    return {KEY: carried[0] if len(carried) == 1 else {"exchanges": carried}}


def replacement_metadata(
    session: str, branch: str, replaced: str | None, messages: Sequence[Message]
) -> dict[str, Any]:
    """Return what the output of another answer to a question carries: where it stands, and what it stands for."""
    stored = [{"id": message.id, **message.to_dict()} for message in messages]
    return {KEY: {"session": session, "branch": branch, "replaces": replaced, "messages": stored}}


def fold_outputs(notebook: Mapping[str, Any], document: Document, *, complete: bool = False) -> None:
    """Fold in what chat outputs carry: messages that the document lacks, and the entries of their cells.

    Where an output's exchange differs from its cell's entry, the output wins: it is what the notebook shows. An output
    that cannot be read is passed over.

    Parameters
    ----------
    notebook
        The notebook whose outputs are read.
    document
        What is folded into.
    complete
        Whether the document is what the kernel had at the end. Then outputs only tell which cells own what: messages
        that it lacks were pruned, and its branches were moved on purpose.
    """
    for cell in notebook["cells"]:
        made: dict[str, list[CellEntry]] = {}
        for output in cell.get("outputs", ()):
            carried = (output.get("metadata") or {}).get(KEY)
            exchanges = carried.get("exchanges", [carried]) if isinstance(carried, dict) else ()
            for exchange in exchanges if isinstance(exchanges, (list, tuple)) else ():
                try:
                    _fold(document, exchange, cell["id"], made, complete=complete)
                except (LlamanbError, ValueError, KeyError, TypeError, AttributeError):
                    continue
        for name, entries in made.items():
            history = load_history(document.sessions[name])
            history.cells[cell["id"]] = entries
            document.sessions[name] = dump_history(history)


def _fold(document: Document, carried: Any, cell: str, made: dict[str, list[CellEntry]], *, complete: bool) -> None:
    name = str(carried["session"])
    history = load_history(document.sessions[name] if complete else document.sessions.get(name, EMPTY))
    ids = [str(stored["id"]) if complete else _added(history, stored) for stored in carried["messages"]]
    if not ids or "branch" not in carried:
        document.sessions[name] = _checked(history)
        return
    branch = str(carried["branch"])
    last = history.messages[ids[-1]]
    if "replaces" in carried:
        if branch in history.branches and history.tip(branch) == carried["replaces"]:
            history.set_tip(branch, last.id)
        history.move_entries(branch, carried["replaces"], last.id)
        history.remade[cell] = last.id
        if name in made:
            made[name] = moved_entries(made[name], branch, carried["replaces"], last.id)
        document.sessions[name] = _checked(history)
        return
    first = history.messages[carried["first"]]
    if branch not in history.branches:
        if complete:
            return
        history.fork(branch, first.parent)
    if not complete and history.leads_to(history.tip(branch), last.id):
        history.set_tip(branch, last.id)
    if not history.on_path(first.id, last.id):
        raise HistoryFormatError("$.first", "it does not come before the last message")
    document.sessions[name] = _checked(history)
    entries = made.setdefault(name, [])
    if entries and entries[-1].branch == branch and entries[-1].last == first.parent:
        entries[-1] = CellEntry(branch, entries[-1].first, last.id)
    else:
        entries.append(CellEntry(branch, first.id, last.id))


def _added(history: History, stored: dict[str, Any]) -> str:
    """Put a message that an output carries into a history, if it is not there, and return its id."""
    id = str(stored["id"])
    if id not in history.messages:
        if stored.get("parent") is not None and stored["parent"] not in history.messages:
            raise HistoryFormatError("$.parent", "the message before it is not there")
        history.messages[id] = Message.from_dict(id, {k: v for k, v in stored.items() if k != "id"})
    return id


def _checked(history: History) -> dict[str, Any]:
    """Return a history as it is stored; raise where a message that an output carries is damaged."""
    folded = dump_history(history)
    load_history(folded)
    return folded


def strip_outputs(notebook: nbformat.NotebookNode) -> None:
    """Remove from outputs what they carry, where the notebook's own metadata holds it."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            (output.get("metadata") or {}).pop(KEY, None)
