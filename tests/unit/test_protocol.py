"""The kinds of messages are those that the JavaScript knows."""

from __future__ import annotations

import re
from pathlib import Path

import llamanb.widgets
from llamanb.widgets.protocol import BRIDGE_REPORTS, BRIDGE_REQUESTS

SCRIPT = (Path(llamanb.widgets.__file__).parent / "static" / "notebook_bridge.js").read_text()


def test_what_the_kernel_asks_of_a_front_end_is_what_this_can_do() -> None:
    assert set(re.findall(r"^  on_(\w+)\(", SCRIPT, re.MULTILINE)) == set(BRIDGE_REQUESTS)


def test_what_a_front_end_reports_is_listed() -> None:
    assert set(re.findall(r'kind: "(\w+)"', SCRIPT)) == set(BRIDGE_REPORTS)
