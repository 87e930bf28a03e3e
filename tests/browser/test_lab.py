"""A conversation in JupyterLab, as a person sees it."""

from __future__ import annotations

import re
from pathlib import Path

from front_ends import OpenNotebook
from playwright.sync_api import Page, expect

A_WORD = re.compile(r"\w+")
ADVERSARIAL = r"""
Code: `List<int> a` and $x<y$, **bold**, a < b && c > d, "quotes", $5 and $10.

<img src=x onerror="window.hacked = 1"> <script>window.hacked = 2</script> [link](javascript:window.hacked=3)

![picture](http://127.0.0.1:9/picture.png)

```html
<b onclick="window.hacked = 4">code</b>
```

`$` <img src=x onerror="window.hacked = 5"> `$` and $ ` $ <img src=x onerror="window.hacked = 6"> `
"""


def test_a_cell_answers_in_place_and_a_fork_makes_a_cell_below(page: Page, server: str, folder: Path) -> None:
    notebook = OpenNotebook(page, server, folder)
    notebook.write(
        "%load_ext llamanb",
        "%%chat -t 0 --max-tokens 30 --system 'Answer in one short sentence.'\nWhat is the capital of France?",
        '%chat_fork italy --at 0 --prompt "What is the capital of Italy?"',
        "%chat_tree",
    )
    notebook.open()
    notebook.run_all()
    answer = page.locator(".jp-Cell").nth(1).locator(".jp-RenderedMarkdown")
    expect(answer).to_have_text(A_WORD)
    expect(page.locator(".jp-Cell", has_text="%%chat --branch italy")).to_have_count(1)
    expect(page.locator(".jp-Cell").nth(3)).to_contain_text("%%chat --branch italy")
    picture = page.locator(".jp-RenderedSVG img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") == 700
    page.locator(".jp-Cell").nth(3).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-Cell").nth(3).locator(".jp-RenderedMarkdown")).to_have_text(A_WORD)
    page.screenshot(path=str(folder / "chat.png"))


def test_nothing_that_a_model_writes_is_live_and_it_reads_as_written(page: Page, server: str, folder: Path) -> None:
    notebook = OpenNotebook(page, server, folder)
    notebook.write(
        "%load_ext llamanb\nimport llamanb\n"
        f"llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine([{ADVERSARIAL!r}])));",
        "%%chat\nShow me.",
    )
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    notebook.open()
    notebook.run_all()
    shown = page.locator(".jp-Cell").nth(1).locator(".jp-RenderedMarkdown")
    expect(shown).to_contain_text("List<int> a")
    expect(shown).to_contain_text('a < b && c > d, "quotes", $5 and $10.')
    expect(shown).to_contain_text('<b onclick="window.hacked = 4">code</b>')
    expect(shown.locator("strong")).to_have_text("bold")
    expect(shown.locator("mjx-container").first).to_be_attached()
    assert shown.locator("img, script, iframe, [onerror], [onclick], a[href^='javascript']").count() == 0
    assert page.evaluate("window.hacked") is None
    assert not [url for url in loaded if "picture.png" in url]
    page.screenshot(path=str(folder / "adversarial.png"))


def test_several_answers_stand_side_by_side_and_nothing_in_them_is_live(page: Page, server: str, folder: Path) -> None:
    notebook = OpenNotebook(page, server, folder)
    notebook.write(
        "%load_ext llamanb\nimport llamanb\n"
        f"llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine([{ADVERSARIAL!r}] * 3)));",
        "%%chat\nShow me.",
        "%%chat --fork left,right\nShow me again.",
    )
    notebook.open()
    notebook.run_all()
    shown = page.locator(".jp-Cell").nth(2).locator(".jp-RenderedHTML")
    expect(shown.locator("strong").nth(1)).to_have_text("bold")
    expect(shown.locator("mjx-container").nth(1)).to_be_attached()
    expect(shown).to_contain_text('a < b && c > d, "quotes", $5 and $10.')
    expect(shown).to_contain_text('<b onclick="window.hacked = 4">code</b>')
    left, right = (shown.get_by_text(name, exact=True).bounding_box() for name in ("left", "right"))
    assert left is not None
    assert right is not None
    assert (left["y"], left["x"] + left["width"] <= right["x"]) == (right["y"], True)
    assert shown.locator("img, script, iframe, [onerror], [onclick], a[href^='javascript']").count() == 0
    assert page.evaluate("window.hacked") is None
    page.screenshot(path=str(folder / "several.png"))


def test_tab_offers_branches_where_a_branch_goes_and_nothing_else(page: Page, server: str, folder: Path) -> None:
    notebook = OpenNotebook(page, server, folder)
    notebook.write(
        "%load_ext llamanb\nimport llamanb\n"
        "session = llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine([])))\n"
        "for name in ('sample', 'second'): session.fork(name)",
        "%%chat -b s",
    )
    notebook.open()
    notebook.run_all()
    expect(page.locator(".jp-Cell").nth(1)).to_contain_text("the prompt is empty")
    page.locator(".jp-Cell").nth(1).locator(".cm-content").click()
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    expect(page.locator(".jp-Completer-match")).to_have_text(["sample", "second"])
    page.screenshot(path=str(folder / "tab.png"))
