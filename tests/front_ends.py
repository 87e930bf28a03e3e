"""A notebook that is open in a real JupyterLab or Notebook 7, as a person uses it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 90
"""How long to wait for a busy machine."""

LOAD = "%load_ext llamanb"
SCRIPTED = (
    f"{LOAD}\nimport llamanb\n"
    "engine = llamanb.ScriptedEngine(lambda r: 'So: ' + r.messages[-1].text)\n"
    "llamanb.use_session(llamanb.ChatSession(engine));"
)


@contextlib.contextmanager
def serving(folder: Path, own: Path, settings: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Run a JupyterLab that shows a folder, and give its address.

    Parameters
    ----------
    folder
        What it shows.
    own
        Where it keeps settings and state of its own.
    settings
        Settings of its plugins, by their names without ``@jupyterlab/``.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {name: str(own / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTERLAB_SETTINGS_DIR")}
    quiet = {"apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}
    for plugin, values in {**quiet, **(settings or {})}.items():
        file = own / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1"]
    command += ["--ServerApp.token=", "--ServerApp.password=", f"--ServerApp.root_dir={folder}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    with (own / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **places}, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api", process)
        yield address
    finally:
        process.terminate()
        process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("JupyterLab did not start.")


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


class Panel:
    """A chat panel, as a person uses it."""

    def __init__(self, page: Page, number: int = 0) -> None:
        self.page = page
        self.root = page.locator(".llamanb-panel").nth(number)
        self.area = self.root.get_by_role("textbox", name="Message", exact=True)
        self.log = self.root.get_by_role("log")

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    def message(self, index: int) -> Locator:
        """Return one of the messages that the panel shows; -1 is the last."""
        return self.log.locator(".message").nth(index)

    def act(self, index: int, name: str) -> None:
        """Press a button of a message."""
        self.message(index).hover()
        self.message(index).get_by_role("button", name=name, exact=True).click()

    def send(self, text: str) -> None:
        self.area.fill(text)
        self.area.press("Enter")

    def says(self, *texts: str | re.Pattern[str]) -> None:
        """Wait until the panel shows these messages, and has nothing more to say."""
        expect(self.log.locator(".message > .text")).to_have_text(list(texts))
        expect(self.button("Send")).to_be_visible()

    def note(self, text: str | re.Pattern[str]) -> None:
        """Wait until the last message says this about itself."""
        expect(self.message(-1).locator("p.note")).to_have_text(text)

    def status(self, text: str | re.Pattern[str]) -> None:
        expect(self.root.get_by_role("status")).to_have_text(text)

    def choose(self, branch: str) -> None:
        """Switch to a branch in the menu."""
        self.root.locator(".branch").click()
        self.root.get_by_role("group", name="Branches").get_by_role("button", name=re.compile(rf"^{branch}\b")).click()
        expect(self.root.locator(".branch")).to_have_text(branch)
