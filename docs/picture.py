"""Take the README's pictures: a notebook in JupyterLab, with the embedded model, in the light and in the dark theme.

Needs what the browser tests need. Writes ``notebook-light.png`` and ``notebook-dark.png`` beside this file.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, sync_playwright

CELLS = [
    "%load_ext llamanb",
    '%%chat -t 0 --system "You are a helpful assistant. Answer in one short sentence."\nWhat is the capital of France?',
    "%%chat -t 0\nWhich river flows through it?",
    "%%chat --fork keen,careful -t 0.8 --max-tokens 60\nShould I visit it in winter?",
    '%chat_fork london --at 2 --prompt "And what is the capital of England?"',
    "%chat_tree",
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def serve(folder: Path, theme: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a JupyterLab of its own on a folder, in a theme."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: str(folder / ".own" / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    own["JUPYTERLAB_SETTINGS_DIR"] = str(folder / ".own" / "settings")
    settings = folder / ".own" / "settings" / "@jupyterlab"
    for plugin, values in {
        "apputils-extension/themes": {"theme": f"JupyterLab {theme.title()}"},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }.items():
        file = settings / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1"]
    command += ["--ServerApp.token=", "--ServerApp.password=", f"--ServerApp.root_dir={folder}"]
    process = subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"{address}/api", timeout=5):
                return process, address
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("JupyterLab did not start.")


def take(page: Page, address: str, target: Path) -> None:
    """Run the notebook and write a picture of its cells."""
    page.goto(f"{address}/lab/tree/chat.ipynb")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.get_by_text("| Idle").wait_for()
    page.keyboard.press("Control+b")
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.locator(".jp-RenderedSVG img").wait_for()
    page.get_by_text("| Idle").wait_for()
    page.evaluate("document.activeElement.blur()")
    box = page.locator(".jp-Notebook").bounding_box()
    last = page.locator(".jp-Cell").last.bounding_box()
    assert box is not None
    assert last is not None
    clip = {"x": box["x"], "y": box["y"], "width": box["width"], "height": last["y"] + last["height"] - box["y"] + 12}
    page.screenshot(path=str(target), clip=clip)  # type: ignore[arg-type]


def main() -> None:
    """Take both pictures."""
    for theme in ("light", "dark"):
        with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
            folder = Path(name)
            cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(CELLS)]
            kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
            nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "chat.ipynb")
            process, address = serve(folder, theme)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            try:
                page = browser.new_page(viewport={"width": 920, "height": 1400}, color_scheme=theme)  # type: ignore[arg-type]
                page.set_default_timeout(90_000)
                take(page, address, Path(__file__).with_name(f"notebook-{theme}.png"))
            finally:
                browser.close()
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
