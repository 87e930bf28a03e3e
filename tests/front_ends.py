"""A notebook that is open in a real JupyterLab or Notebook 7, as a person uses it."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, expect

LOAD = "%load_ext llamanb"
SCRIPTED = (
    f"{LOAD}\nimport llamanb\n"
    "engine = llamanb.ScriptedEngine(lambda r: 'So: ' + r.messages[-1].text)\n"
    "llamanb.use_session(llamanb.ChatSession(engine));"
)


class OpenNotebook:
    """A notebook that is open in JupyterLab (``app="lab"``) or in Notebook 7 (``app="notebook"``)."""

    def __init__(self, page: Page, address: str, folder: Path, app: str = "lab", name: str = "chat") -> None:
        self.page = page
        self.address = address
        self.file = folder / f"{name}.ipynb"
        self.url = f"{address}/{'lab/tree' if app == 'lab' else 'notebooks'}/{name}.ipynb"

    def write(self, *sources: str, metadata: dict[str, Any] | None = None) -> None:
        cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
        kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel, **(metadata or {})}), self.file)

    def open(self) -> None:
        self.page.set_viewport_size({"width": 1200, "height": 2600})  # JupyterLab draws only the cells that are in view
        self.page.goto(self.url)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.wait_idle()

    def wait_idle(self, n_kernels: int = 1) -> None:
        """Wait until the server says that the front end is connected to its kernels, and that these do nothing."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            kernels: list[dict[str, Any]] = []
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.address}/api/kernels", timeout=5) as said:
                kernels = json.load(said)
            ready = [kernel for kernel in kernels if kernel["connections"] and kernel["execution_state"] == "idle"]
            if len(ready) >= n_kernels:
                self.page.wait_for_timeout(1000)
                return
            self.page.wait_for_timeout(200)
        raise AssertionError("The kernel is not ready.")

    def menu(self, *names: str) -> None:
        self.page.get_by_role("menuitem", name=names[0], exact=True).click()
        for name in names[1:]:
            self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{name}$")).last.click()

    def run_all(self) -> None:
        self.menu("Run", "Run All Cells")

    def restart(self) -> None:
        self.page.locator("[data-jp-item-name='restart']:visible").click()
        self.page.locator(".jp-Dialog .jp-mod-warn").click()
        self.page.wait_for_timeout(1000)
        self.wait_idle()

    def cell(self, index: int) -> Any:
        return self.page.locator(".jp-Notebook:visible .jp-Cell").nth(index)

    def run(self, *indexes: int) -> None:
        """Run cells; keys that are pressed too early come to nothing, and are pressed again."""
        for index in indexes:
            self._run(index)

    def _run(self, index: int) -> None:
        prompt = self.cell(index).locator(".jp-InputPrompt")
        before = prompt.inner_text()
        for _ in range(10):
            self.cell(index).locator(".cm-content").click()
            self.page.keyboard.press("Control+Enter")
            with contextlib.suppress(AssertionError):
                expect(prompt).not_to_have_text(before, timeout=2000)
                return
        raise AssertionError(f"Cell {index} does not run.")

    def retype(self, index: int, source: str) -> None:
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)

    def command(self, index: int, *keys: str) -> None:
        """Press keys in command mode, with a cell selected."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Escape")
        for key in keys:
            self.page.keyboard.press(key)

    def shows(self, index: int, text: str | re.Pattern[str]) -> None:
        expect(self.cell(index).locator(".jp-RenderedMarkdown").last).to_have_text(text)

    def saved(self, is_so: Callable[[dict[str, Any]], bool] = lambda metadata: "llamanb" in metadata) -> Any:
        """Save until the file is as it should be, and return it as JSON."""
        deadline = time.monotonic() + 20
        while True:
            self.page.locator("[data-jp-item-name='save']:visible").click()
            self.page.wait_for_timeout(500)
            notebook = json.loads(self.file.read_text())
            if is_so(notebook["metadata"]):
                return notebook
            assert time.monotonic() < deadline, notebook["metadata"]

    def said(self, branch: str = "main") -> list[str]:
        """Return what was asked on a branch by the file."""
        session = self.saved()["metadata"]["llamanb"]["sessions"]["default"]
        (tip,) = [b["tip"] for b in session["branches"] if b["name"] == branch]
        texts = []
        while tip is not None:
            message = session["messages"][tip]
            texts += [message["content"]] * (message["role"] == "user")
            tip = message["parent"]
        return texts[::-1]

    def notice(self, text: str) -> None:
        expect(self.page.locator(".llamanb-notice", has_text=text)).to_be_visible()
