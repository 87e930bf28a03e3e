"""Notebooks that are open in unusual ways: read-only, untrusted, two at once, with IPython loading the extension."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from front_ends import SCRIPTED, OpenNotebook
from nbformat.v4 import new_output
from playwright.sync_api import Page, Route, expect

import llamanb


def test_a_read_only_notebook_works_and_says_that_nothing_is_kept(page: Page, server: str, folder: Path) -> None:
    def refuse_writing(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, json={**response.json(), "writable": False})

    notebook = OpenNotebook(page, server, folder)
    notebook.write(SCRIPTED, "%%chat\none", "%chat_fork side --prompt two")
    before = notebook.file.read_bytes()
    page.route(re.compile(r"/api/contents/chat\.ipynb(\?|$)"), refuse_writing)
    notebook.open()
    notebook.run(0, 1, 2)
    notebook.shows(1, "So: one")
    notebook.notice("This notebook is read-only: what is said here is lost when it is closed.")
    notebook.run(3)
    notebook.shows(3, "So: two")
    assert notebook.file.read_bytes() == before


def test_an_untrusted_notebook_goes_on_with_its_conversation(page: Page, server: str, folder: Path) -> None:
    with llamanb.ScriptedEngine(["So: one"]) as engine:
        session = llamanb.ChatSession(engine)
        session.send("one")
    notebook = OpenNotebook(page, server, folder)
    stored = {"schema": 1, "sessions": {"default": session.to_dict()}}
    notebook.write(SCRIPTED, "%%chat\ntwo", metadata={"llamanb": stored})
    foreign: Any = nbformat.read(notebook.file, 4)
    html = '<b onclick="window.hacked = 1">bold</b><script>window.hacked = 2</script>'
    foreign.cells[1].outputs = [new_output("display_data", {"text/html": html, "text/plain": "bold"})]
    nbformat.write(foreign, notebook.file)
    notebook.open()
    expect(notebook.cell(1)).to_contain_text("bold")
    notebook.run(0, 1)
    notebook.shows(1, "So: two")
    notebook.saved(lambda metadata: "two" in json.dumps(metadata))
    assert notebook.said() == ["one", "two"]
    assert page.evaluate("window.hacked === undefined")


def test_two_notebooks_on_two_kernels_know_nothing_of_each_other(page: Page, server: str, folder: Path) -> None:
    first = OpenNotebook(page, server, folder)
    first.write(SCRIPTED, "%%chat\none")
    second = OpenNotebook(page, server, folder, name="second")
    second.write(SCRIPTED, "%%chat\ntwo", "%chat_fork side --prompt three")
    first.open()
    first.run(0, 1)
    first.shows(1, "So: one")
    page.evaluate("window.jupyterapp.commands.execute('docmanager:open', { path: 'second.ipynb' })")
    expect(second.cell(2)).to_contain_text("%chat_fork")
    second.wait_idle(2)
    second.run(0, 1, 2)
    second.shows(1, "So: two")
    expect(second.cell(3)).to_contain_text("%%chat --branch side")
    second.saved(lambda metadata: "side" in json.dumps(metadata))
    assert second.said() == ["two"]
    page.evaluate("window.jupyterapp.commands.execute('docmanager:open', { path: 'chat.ipynb' })")
    expect(first.cell(1)).to_contain_text("So: one")
    expect(first.page.locator(".jp-Notebook:visible .jp-Cell")).to_have_count(2)
    first.retype(1, "%%chat\nfirst")
    first.run(1)
    first.shows(1, "So: first")
    first.saved(lambda metadata: "first" in json.dumps(metadata))
    assert first.said() == ["first"]
    assert second.said() == ["two"]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's own IPython settings, which load the extension."""
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text("c = get_config()\nc.InteractiveShellApp.extensions = ['llamanb']\n")
    monkeypatch.setenv("IPYTHONDIR", str(profile.parent))


def test_an_extension_that_ipython_loads_reaches_the_notebook_at_the_first_chat(
    configured: None, page: Page, server: str, folder: Path
) -> None:
    notebook = OpenNotebook(page, server, folder)
    notebook.write(SCRIPTED.split("\n", 1)[1], "%%chat\none", "%chat_fork side --prompt two")
    notebook.open()
    notebook.run(0, 1, 2)
    notebook.shows(1, "So: one")
    expect(notebook.cell(3)).to_contain_text("%%chat --branch side")
    notebook.saved(lambda metadata: "side" in json.dumps(metadata))
    assert notebook.said() == ["one"]
    notebook.restart()
    notebook.run(0, 3)
    notebook.shows(3, "So: two")
    notebook.saved(lambda metadata: "two" in json.dumps(metadata))
    assert notebook.said("side") == ["one", "two"]
