"""A real JupyterLab and a real browser."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from front_ends import OpenNotebook
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 90


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the server shows."""
    path = tmp_path / "notebooks"
    path.mkdir()
    return path


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a running JupyterLab, with settings and state of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTERLAB_SETTINGS_DIR")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1"]
    command += ["--ServerApp.token=", "--ServerApp.password=", f"--ServerApp.root_dir={folder}"]
    command += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += ["--LabApp.expose_app_in_browser=True"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/api", process)
        yield address
    finally:
        process.terminate()
        process.wait()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            process_ended = process.poll() is not None
            if process_ended:
                break
            time.sleep(0.2)
    raise RuntimeError("JupyterLab did not start.")


@pytest.fixture
def page() -> Iterator[Page]:
    if CHROMIUM is None:
        if os.environ.get("LLAMANB_REQUIRE_BROWSER") == "1":
            pytest.fail("LLAMANB_REQUIRE_BROWSER is set, and there is no Chromium on this machine.")
        pytest.skip("There is no Chromium on this machine.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.set_default_timeout(SECONDS * 1000)
        expect.set_options(timeout=SECONDS * 1000)  # the model may have to be read from disk, by a busy machine
        yield page
        browser.close()


@pytest.fixture(params=["lab", "notebook"])
def notebook(request: pytest.FixtureRequest, page: Page, server: str, folder: Path) -> OpenNotebook:
    """A notebook in each of the two front ends."""
    return OpenNotebook(page, server, folder, request.param)
