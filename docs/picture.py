"""Take the README's pictures: a notebook in JupyterLab and the chat panel, each in the light and in the dark theme.

Needs what the browser tests need. Writes ``notebook-light.png``, ``panel-light.png`` and the same in dark beside this
file. In the notebook the embedded model answers; in the panel answers are scripted, to show what it can show.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from front_ends import ARGUMENTS, CHROMIUM, OpenNotebook, Panel, serving

CELLS = [
    "%load_ext llamanb",
    '%%chat -t 0 --system "You are a helpful assistant. Answer in one short sentence."\nWhat is the capital of France?',
    "%%chat -t 0\nWhich river flows through it?",
    "%%chat --fork keen,careful -t 0.8 --max-tokens 60\nShould I visit it in winter?",
    '%chat_fork london --at 2 --prompt "And what is the capital of England?"',
    "%chat_tree",
]

SCRIPT = """%load_ext llamanb
import llamanb

CITIES = '''Two that are two hours apart by train:

| city | people | known for |
|---|--:|---|
| Paris | 2,100,000 | its museums |
| Lyon | 520,000 | its kitchen |
'''
DISTANCE = '''About 390 km, on the great circle $d = 2r\\\\arcsin\\\\sqrt{h}$:

```python
def distance(h: float, radius: float = 6371) -> float:
    return 2 * radius * asin(sqrt(h))  # in km
```
'''
engine = llamanb.ScriptedEngine(lambda request: DISTANCE if "far" in request.messages[-1].text else CITIES,
    seconds_per_token=0.003)
llamanb.use_session(llamanb.ChatSession(engine, "You are a helpful guide."));
"""


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


def take_panel(page: Page, address: str, folder: Path, target: Path) -> None:
    """Talk in a panel and write a picture of it."""
    notebook = OpenNotebook(page, address, folder, name="panel")
    notebook.write(SCRIPT, "%chat_panel")
    notebook.open()
    notebook.run(0, 1)
    panel = Panel(page)
    for text, words in (("Which cities should I see?", "Lyon"), ("How far apart are they?", "def distance")):
        panel.send(text)
        panel.log.get_by_text(words).first.wait_for()
        panel.button("Send").wait_for()
    panel.act(1, "Edit")
    panel.message(1).get_by_role("textbox").fill("Which cities should I see in a week?")
    panel.message(1).get_by_role("button", name="Ask").click()
    panel.log.get_by_text("in a week?").first.wait_for()
    panel.log.get_by_text("Lyon").first.wait_for()
    panel.button("Send").wait_for()
    panel.send("How far apart are they?")
    panel.message(4).locator(".llamanb-code").wait_for()
    panel.button("Conversation tree").click()
    panel.root.get_by_role("treeitem").first.wait_for()
    page.mouse.move(0, 0)
    page.wait_for_timeout(1000)
    panel.root.screenshot(path=str(target))


def main() -> None:
    """Take both pictures."""
    for theme in ("light", "dark"):
        settings = {"apputils-extension/themes": {"theme": f"JupyterLab {theme.title()}"}}
        with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as own:
            folder = Path(name)
            cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(CELLS)]
            kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
            nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), folder / "chat.ipynb")
            with serving(folder, Path(own), settings) as address, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                page = browser.new_page(viewport={"width": 920, "height": 1400}, color_scheme=theme)  # type: ignore[arg-type]
                page.set_default_timeout(90_000)
                take(page, address, Path(__file__).with_name(f"notebook-{theme}.png"))
                take_panel(page, address, folder, Path(__file__).with_name(f"panel-{theme}.png"))
                browser.close()


if __name__ == "__main__":
    main()
