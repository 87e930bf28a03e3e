"""Writing into the open notebook: what one more exchange costs at 100, 1,000 and 10,000 messages.

Prints a table and writes ``live.json`` beside this file. Between the kernel and the notebook go only changes; the last
columns compare them with sending all that the notebook holds. What the browser does with a change is not in it.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from measuring import report

from llamanb.documents import Documents
from llamanb.history import History
from llamanb.persistence.schema import dump_history

LENGTHS = (100, 1_000, 10_000)
N_EXCHANGES = 21
TEXT = "Nothing that is said here is long, and nothing is short; it is about as long as what people ask. " * 2


class Wire:
    """Stands where the browser does: keeps what is sent, and says at once that it was carried out."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self.documents = Documents()
        self.documents.make_bridge = lambda _: self
        self.documents.connect()
        self.documents.receive(
            {"kind": "document", "id": "tab", "revision": 0, "content": {}, "cells": [], "session": None}
        )
        self.documents.merge({}, {})

    def send(self, content: dict[str, Any]) -> None:
        """Take a message."""
        if content["kind"] == "write":
            self.n_bytes = len(json.dumps(content))
            self.documents.receive({"kind": "done", "id": "tab", "request": content["id"]})


def measure(n_messages: int) -> dict[str, Any]:
    """Add exchanges to a conversation, and write each of them."""
    history = History()

    def exchange(number: int) -> None:
        history.append("main", "user", f"{number}: {TEXT}")
        history.append("main", "assistant", f"{number}: {TEXT}")

    for number in range(n_messages // 2):
        exchange(number)
    wire = Wire()
    wire.documents.publish({"default": dump_history(history, shared=True)}, strip=False)
    all_bytes = wire.n_bytes
    seconds, bytes_each, whole = [], [], []
    for number in range(N_EXCHANGES):
        exchange(n_messages + number)
        start = time.perf_counter()
        wire.documents.publish({"default": dump_history(history, shared=True)}, strip=False)
        seconds.append(time.perf_counter() - start)
        bytes_each.append(wire.n_bytes)
        start = time.perf_counter()
        json.dumps(dump_history(history))
        whole.append(time.perf_counter() - start)
    return {
        "n_messages": n_messages,
        "write_milliseconds": statistics.median(seconds) * 1e3,
        "whole_milliseconds": statistics.median(whole) * 1e3,
        "n_bytes": statistics.median(bytes_each),
        "whole_bytes": all_bytes,
        "ratio": all_bytes / statistics.median(bytes_each),
    }


def main() -> None:
    """Measure, print and write."""
    columns = {
        "messages": "{n_messages:,}",
        "to find and send what changed": "{write_milliseconds:.2f} ms",
        "to dump it all": "{whole_milliseconds:.1f} ms",
        "what is sent": "{n_bytes:,.0f} bytes",
        "all of it": "{whole_bytes:,} bytes",
        "ratio": "{ratio:,.0f}",
    }
    report(__file__, columns, [measure(n_messages) for n_messages in LENGTHS])


if __name__ == "__main__":
    main()
