"""The kinds of messages between Python and JavaScript. Every message is ``{"kind": …, "id": …, …}``.

A request of the kernel's to the bridge carries the `client` that it is for, and is answered with ``done`` or
``failed``, which name it as `request`. A request of a panel's is answered in the same way by the kernel.
"""

from __future__ import annotations

__all__ = ["BRIDGE_REPORTS", "BRIDGE_REQUESTS", "PANEL_REQUESTS", "PANEL_UPDATES"]

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

PANEL_REQUESTS = {
    "hello": "a front end shows the panel and needs its script, or what the session holds",
    "send": "ask the model on the active branch",
    "stop": "stop the answers of the active branch, a cell's too",
    "edit": "write a message anew, as a sibling; a question is then answered",
    "regenerate": "answer the question that an answer belongs to again",
    "continue": "go on with an answer that was cut off",
    "fork": "make a branch that starts at a message; returns the source of its cell",
    "go": "go to a message: another one at its place, or one in the tree",
    "switch": "make a branch the active one",
    "rename": "give a branch another name",
    "adopt": "let the active branch go on from where another one ends",
    "remove": "forget a branch",
    "prune": "remove for good the messages that no branch leads to, if there are as many as the person was told",
    "check": "say whether a value is one for a setting",
    "set": "change a setting of the session",
    "tree": "draw the conversation tree",
}
"""What a panel asks of the kernel. Each is answered with ``done`` and its result, or ``failed`` and why."""

PANEL_UPDATES = {
    "script": "the module and the style that draw the panel",
    "view": "the session as it is now, with the messages that were not sent before",
    "stream": "what is new of the answer that is being written, and how far it is",
    "notice": "a sentence for the person, such as why an answer failed; with the question, where that was not kept",
    "done": "a request was carried out; its result",
    "failed": "a request was not carried out, and why",
}
"""What the kernel tells a panel."""
