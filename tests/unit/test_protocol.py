"""The kinds of messages are those that the JavaScript knows."""

from __future__ import annotations

import re
from pathlib import Path

import llamanb.widgets
from llamanb.widgets.panel import ChatPanel
from llamanb.widgets.protocol import BRIDGE_REPORTS, BRIDGE_REQUESTS, PANEL_REQUESTS, PANEL_UPDATES

STATIC = Path(llamanb.widgets.__file__).parent / "static"
BRIDGE = (STATIC / "notebook_bridge.js").read_text()
PANEL = (STATIC / "chat_panel.js").read_text()
LOADER = (STATIC / "panel_loader.js").read_text()
PANEL_PYTHON = (Path(llamanb.widgets.__file__).parent / "panel.py").read_text()


def handlers(script: str) -> set[str]:
    return set(re.findall(r"^  on_(\w+)\(", script, re.MULTILINE))


def test_what_the_kernel_asks_of_a_front_end_is_what_this_can_do() -> None:
    assert handlers(BRIDGE) == set(BRIDGE_REQUESTS)


def test_what_a_front_end_reports_is_listed() -> None:
    assert set(re.findall(r'kind: "(\w+)"', BRIDGE)) == set(BRIDGE_REPORTS)


def test_what_a_panel_asks_is_what_the_kernel_can_do() -> None:
    asked = set(re.findall(r'(?:ask|request|act)\("(\w+)"', PANEL)) | set(re.findall(r'kind: "(\w+)"', LOADER))
    assert asked == set(PANEL_REQUESTS)
    assert {name[4:] for name in vars(ChatPanel) if name.startswith("_on_")} == set(PANEL_REQUESTS)


def test_what_the_kernel_tells_a_panel_is_what_this_can_take() -> None:
    assert handlers(PANEL) | set(re.findall(r'message\.kind !== "(\w+)"', LOADER)) == set(PANEL_UPDATES)
    assert set(re.findall(r'_tell\("(\w+)"', PANEL_PYTHON)) == set(PANEL_UPDATES)
