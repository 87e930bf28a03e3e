"""A real JupyterLab and a real browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from front_ends import ARGUMENTS, CHROMIUM, SECONDS, OpenNotebook, serving
from playwright.sync_api import Page, expect, sync_playwright


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the server shows."""
    path = tmp_path / "notebooks"
    path.mkdir()
    return path


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a running JupyterLab, with settings and state of its own."""
    with serving(folder, tmp_path) as address:
        yield address


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
