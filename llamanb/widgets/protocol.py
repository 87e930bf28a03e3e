"""The kinds of messages between Python and JavaScript. Every message is ``{"kind": …, "id": …, …}``.

A request of the kernel's carries the `client` that it is for, and is answered with ``done`` or ``failed``, which name
it as `request`.
"""

from __future__ import annotations

__all__ = ["BRIDGE_REPORTS", "BRIDGE_REQUESTS"]

BRIDGE_REQUESTS = {
    "write": "change the document's metadata by a JSON Patch, over the revision that it was made for",
    "insert": "insert a code cell below another one, unless there is one with the same first line",
    "strip": "take what outputs carry of conversations out of them, and all outputs of some cells",
    "mark": "mark these cells, and no others, as answering to something that is gone",
    "notice": "show a person a sentence",
}
"""What the kernel asks of a front end with the notebook open."""

BRIDGE_REPORTS = {
    "document": "what the document holds, under a revision that counts up when another writer changes it; its cells",
    "cells": "the ids of the cells that the document holds now, and which has become which by splitting one",
    "done": "a request was carried out",
    "failed": "a request was not carried out, and why",
}
"""What a front end tells the kernel."""
