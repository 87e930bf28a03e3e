"""The chat panel, driven by mouse and keyboard in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from front_ends import LOAD, SCRIPTED, OpenNotebook, Panel
from playwright.sync_api import Page, expect

import llamanb
from llamanb.widgets.transcript import Transcript

SLOW = SCRIPTED.replace("r.messages[-1].text)", "r.messages[-1].text + ' word' * 40, seconds_per_token=0.01)")
SCRIPT = """%load_ext llamanb
import llamanb

def answer(request):
    asked = request.messages[-1].text
    if asked == "code":
        return "Like this:\\n\\n```python\\nprint(6 * 7)\\n```\\n\\nThat prints 42."
    if asked == "think":
        return {"reasoning": "Somebody asks.\\n\\nI answer.", "text": "Thought through."}
    if asked == "tool":
        return {"text": "Let me look.", "tool_calls": [{"id": "1", "name": "weather", "arguments": {"city": "Rome"}}]}
    if asked == "fail":
        return ValueError("the model has failed")
    if asked == "long":
        return "All of it. " + "word " * 400
    if asked == "table":
        return "| a | b |\\n|---|--:|\\n| 1 | 2 |\\n\\n$$\\\\frac{1}{2}$$"
    if request.messages[-1].role == "assistant":
        return " And the rest."
    return f"So: {asked}" + f" ({request.sampling.seed})" * (asked == "again")

engine = llamanb.ScriptedEngine(answer)
session = llamanb.use_session(llamanb.ChatSession(engine));
"""


def opened(notebook: OpenNotebook, setup: str = SCRIPT, *more: str) -> Panel:
    """Open a notebook whose second cell shows the panel, and run both."""
    notebook.write(setup, "%chat_panel", *more)
    notebook.open()
    notebook.run(0, 1)
    panel = Panel(notebook.page)
    expect(panel.area).to_be_enabled()
    expect(panel.root.locator(".branch")).to_have_text("main")
    return panel


@pytest.fixture
def in_lab(page: Page, server: str, folder: Path) -> OpenNotebook:
    return OpenNotebook(page, server, folder)


def test_cells_and_the_panel_are_one_conversation_on_the_real_model(notebook: OpenNotebook) -> None:
    panel = opened(
        notebook, LOAD, "%%chat -t 0 --max-tokens 12\nWhat is the capital of France?", "%%chat -t 0 --max-tokens 5\nHi."
    )
    notebook.run(2)
    expect(notebook.cell(2).locator(".jp-InputPrompt")).to_have_text(re.compile(r"\d"))
    answer = notebook.cell(2).locator(".jp-RenderedMarkdown").inner_text().strip()
    panel.says("What is the capital of France?", answer)
    panel.send("And of Spain?")
    panel.says("What is the capital of France?", answer, "And of Spain?", re.compile(r"\w"))
    expect(panel.root.locator(".speed")).to_have_text(re.compile(r"^\d+ cached · \d+ read · [\d.,]+ tokens/s$"))
    expect(panel.root.get_by_role("meter")).to_have_text(re.compile(r"^\d+ / 4,096$"))
    notebook.run(3)
    notebook.shows(3, re.compile(r"\w"))
    expect(panel.log.locator(".message")).to_have_count(6)
    notebook.saved(lambda metadata: "Spain" in json.dumps(metadata) and "Hi." in json.dumps(metadata))
    assert notebook.said() == ["What is the capital of France?", "And of Spain?", "Hi."]


def test_writing_in_the_composer(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab)
    expect(panel.button("Send")).to_be_disabled()
    panel.area.press_sequentially("one")
    panel.area.press("Shift+Enter")
    panel.area.press_sequentially("two")
    expect(panel.area).to_have_value("one\ntwo")
    panel.area.press("Enter")
    panel.says("one two", "So: one two")
    expect(panel.area).to_have_value("")
    panel.area.evaluate(
        "area => { const data = new DataTransfer(); data.setData('text/plain', 'x\\ny\\nz'); area.focus();"
        " area.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }));"
        " document.execCommand('insertText', false, 'x\\ny\\nz'); }"
    )
    expect(panel.area).to_have_value("x\ny\nz")
    panel.button("Send").click()
    panel.says("one two", "So: one two", "x y z", "So: x y z")
    panel.area.fill("draft")
    panel.area.press("ArrowUp")
    expect(panel.area).to_have_value("x\ny\nz")
    panel.area.press("ArrowUp")  # the cursor is at the end of three lines: it goes up first
    panel.area.press("ArrowUp")
    panel.area.press("ArrowUp")
    expect(panel.area).to_have_value("one\ntwo")
    for _ in range(5):
        panel.area.press("ArrowDown")
    expect(panel.area).to_have_value("draft")
    panel.area.fill("   ")
    panel.area.press("Enter")
    expect(panel.log.locator(".message")).to_have_count(4)


def test_stop_works_in_prefill_and_while_a_cell_runs(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab, LOAD, "import time; time.sleep(200)")
    panel.send("Hi.")
    panel.says("Hi.", re.compile(r"\w"))
    in_lab.run(2)
    text = "The sea is wide. " * 700
    panel.send(text)
    panel.note(re.compile(r"^Reading: [\d,]+ of [\d,]+ tokens"))
    panel.button("Stop").click()
    expect(panel.button("Send")).to_be_visible(timeout=10_000)
    panel.status("Stopped before the first word.")
    expect(panel.log.locator(".message")).to_have_count(2)
    expect(panel.area).to_have_value(text)
    expect(in_lab.cell(2).locator(".jp-InputPrompt")).to_have_text("[*]:")
    panel.send("Count to one hundred in words.")
    expect(panel.log.locator(".writing .block")).not_to_have_count(0)
    panel.button("Stop").click()
    expect(panel.button("Send")).to_be_visible(timeout=10_000)
    panel.note("The answer was stopped.")
    expect(in_lab.cell(2).locator(".jp-InputPrompt")).to_have_text("[*]:")


def test_stop_ends_what_a_cell_asked_and_keeps_it(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab, SLOW.replace("0.01", "0.1"), "%%chat\nsay much")
    in_lab.run(2)
    expect(panel.log.locator(".writing")).to_contain_text("So: say much word")
    panel.button("Stop").click()
    panel.note("The answer was stopped.")
    expect(in_lab.cell(2).locator(".jp-RenderedMarkdown")).to_have_text(re.compile("^So: say much"))
    in_lab.saved(lambda metadata: "cancelled" in json.dumps(metadata))


def test_a_reader_keeps_the_place_while_the_model_writes_and_nothing_jumps(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab, SLOW)
    for number in range(6):
        panel.send(f"question {number}")
        expect(panel.log.locator(".message")).to_have_count(2 * number + 2)
        expect(panel.button("Send")).to_be_visible()
    panel.send("last one")
    expect(panel.log.locator(".writing .block")).not_to_have_count(0)
    end = "log => log.scrollHeight - log.scrollTop - log.clientHeight"
    assert panel.log.evaluate(end) < 2
    panel.log.hover()
    in_lab.page.mouse.wheel(0, -400)
    expect(panel.button("Latest")).to_be_visible()
    before = panel.message(5).bounding_box()
    in_lab.page.wait_for_timeout(800)
    assert panel.message(5).bounding_box() == before
    panel.button("Latest").click()
    expect(panel.button("Send")).to_be_visible()
    assert panel.log.evaluate(end) < 2
    written = panel.message(-1).bounding_box()
    in_lab.page.wait_for_timeout(500)
    assert panel.message(-1).bounding_box() == written


def test_siblings_their_pager_and_the_leaf_of_each(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab)
    panel.send("again")
    panel.says("again", re.compile(r"So: again \(\d+\)"))
    first = panel.message(1).locator(".text").inner_text().strip()
    panel.send("more")
    panel.says("again", first, "more", "So: more")
    panel.act(1, "Regenerate")
    expect(panel.message(1).locator(".pager")).to_have_text("2/2")
    second = panel.message(1).locator(".text").inner_text().strip()
    assert second != first
    panel.says("again", second)
    panel.send("other")
    panel.says("again", second, "other", "So: other")
    panel.act(1, "The one before")
    panel.says("again", first, "more", "So: more")
    expect(panel.message(1).get_by_role("button", name="The one before")).to_be_disabled()
    panel.act(1, "The next one")
    panel.says("again", second, "other", "So: other")
    panel.act(2, "Edit")
    panel.message(2).get_by_role("textbox", name="The message anew").fill("another")
    panel.message(2).get_by_role("button", name="Ask", exact=True).click()
    panel.says("again", second, "another", "So: another")
    expect(panel.message(2).locator(".pager")).to_have_text("2/2")
    panel.act(3, "Edit")
    panel.message(3).get_by_role("textbox", name="The message anew").fill("What I wanted to hear.")
    in_lab.page.keyboard.press("Control+Enter")
    panel.says("again", second, "another", "What I wanted to hear.")
    in_lab.saved(lambda metadata: "wanted to hear" in json.dumps(metadata))
    assert in_lab.said() == ["again", "another"]


def test_forking_makes_a_branch_and_a_cell_below_the_panel(notebook: OpenNotebook) -> None:
    panel = opened(notebook, SCRIPT, "1 + 1")
    panel.send("one")
    panel.says("one", "So: one")
    panel.act(1, "Fork here")
    panel.message(1).get_by_role("textbox", name="Name of the new branch").fill("side")
    notebook.page.keyboard.press("Enter")
    panel.status("Branch ‘side’ starts here; its cell is below.")
    expect(notebook.cell(2)).to_contain_text("%%chat --branch side")
    notebook.retype(2, "%%chat --branch side\ntwo")
    notebook.run(2)
    notebook.shows(2, "So: two")
    panel.says("one", "So: one")
    panel.choose("side")
    panel.says("one", "So: one", "two", "So: two")
    panel.act(2, "Fork here")
    panel.message(2).get_by_role("button", name="Fork", exact=True).click()
    expect(notebook.cell(2)).to_contain_text("%%chat --branch branch-3")
    expect(notebook.cell(2)).to_contain_text("two")
    panel.act(3, "Fork here")
    panel.message(3).get_by_role("textbox", name="Name of the new branch").fill("side")
    panel.message(3).get_by_role("button", name="Fork", exact=True).click()
    panel.status(re.compile("There is a branch 'side' already"))


def test_a_cut_off_answer_can_be_gone_on_with_and_copied(in_lab: OpenNotebook) -> None:
    in_lab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel = opened(in_lab)
    panel.button("Settings").click()
    panel.root.get_by_label("Most tokens").fill("10")
    panel.root.get_by_label("Most tokens").press("Enter")
    in_lab.page.keyboard.press("Escape")
    panel.send("long")
    panel.says("long", "All of it.")
    expect(panel.message(1).locator("p.note")).to_contain_text("cut off")
    panel.act(1, "Continue")
    panel.says("long", re.compile(r"All of it\. And the r"))
    expect(panel.message(1).locator(".pager")).to_have_text("2/2")
    panel.act(1, "Copy")
    panel.status("Copied.")
    assert str(in_lab.page.evaluate("navigator.clipboard.readText()")).startswith("All of it.")


def test_branches_are_switched_renamed_adopted_removed_and_pruned(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab, SCRIPT, "%%chat --fork side\naside", "%%chat\nin a cell")
    panel.send("one")
    panel.says("one", "So: one")
    in_lab.run(2)
    in_lab.shows(2, "So: aside")
    panel.choose("side")
    panel.says("one", "So: one", "aside", "So: aside")
    in_lab.run(3)  # cells go on with the branch that the panel has made the active one
    in_lab.shows(3, "So: in a cell")
    panel.root.locator(".branch").click()
    menu = panel.root.get_by_role("group", name="Branches")
    menu.get_by_role("button", name="Rename side").click()
    menu.get_by_role("textbox").fill("main")
    menu.get_by_role("textbox").press("Enter")
    panel.status(re.compile("There is a branch 'main' already"))
    menu.get_by_role("textbox").fill("detour")
    menu.get_by_role("textbox").press("Enter")
    expect(panel.root.locator(".branch")).to_have_text("detour")
    menu.get_by_role("button", name="Let detour go on from where main ends").click()
    panel.says("one", "So: one")
    menu.get_by_role("button", name=re.compile("Remove the name main")).click()
    expect(menu.get_by_role("listitem")).to_have_count(1)
    menu.get_by_role("button", name="Prune 4 messages that no branch leads to …").click()
    menu.get_by_role("button", name="Keep").click()
    menu.get_by_role("button", name=re.compile("^Prune 4")).click()
    menu.get_by_role("button", name="Remove", exact=True).click()
    panel.status("Removed 4 messages.")
    expect(menu).to_contain_text("Every message is on a branch.")
    expect(in_lab.cell(2)).not_to_contain_text("So: aside")
    in_lab.saved(lambda metadata: "detour" in json.dumps(metadata) and "aside" not in json.dumps(metadata))
    menu.get_by_role("button", name=re.compile("^detour")).focus()
    in_lab.page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(panel.root.locator(".branch")).to_be_focused()


def test_the_tree_by_mouse_and_keyboard(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab, SCRIPT, "%%chat --fork side\naside")
    panel.send("one")
    panel.says("one", "So: one")
    in_lab.run(2)
    in_lab.shows(2, "So: aside")
    panel.send("two")
    panel.says("one", "So: one", "two", "So: two")
    panel.button("Conversation tree").click()
    tree = panel.root.get_by_role("tree", name="Conversation tree")
    items = tree.get_by_role("treeitem")
    expect(items).to_have_count(3)
    expect(tree.locator("[aria-current]")).to_have_count(2)
    tree.get_by_role("treeitem", name=re.compile("aside")).click()
    panel.says("one", "So: one", "aside", "So: aside")
    expect(panel.root.locator(".branch")).to_have_text("side")
    items.first.focus()
    keyboard = in_lab.page.keyboard
    keyboard.press("End")
    keyboard.press("ArrowUp")
    keyboard.press("ArrowDown")
    expect(tree.locator(".row:focus")).to_have_attribute("aria-label", re.compile("two|aside"))
    while "two" not in (tree.locator(".row:focus").get_attribute("aria-label") or ""):
        keyboard.press("ArrowUp")
    keyboard.press("Enter")
    panel.says("one", "So: one", "two", "So: two")
    keyboard.press("Escape")
    expect(tree).to_be_hidden()


def test_settings_are_checked_as_they_are_typed_and_act(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab, SCRIPT, "session.sampling.temperature, session.system")
    panel.button("Settings").click()
    drawer = panel.root.get_by_role("group", name="Settings")
    field = drawer.get_by_label("Temperature")
    field.fill("")
    field.press_sequentially("hot")
    expect(drawer.get_by_role("alert").first).to_have_text("'hot' is not a number.")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("1000")
    expect(drawer.get_by_role("alert").first).to_contain_text("0 (greedy) to 100")
    field.fill("0.25")
    expect(drawer.get_by_role("alert").first).to_be_empty()
    field.press("Tab")
    drawer.get_by_label("System prompt").fill("Be kind.")
    drawer.get_by_label("System prompt").press("Tab")
    panel.says("Be kind.")
    in_lab.run(2)
    expect(in_lab.cell(2)).to_contain_text("(0.25, 'Be kind.')")
    panel.send("one")
    panel.says("Be kind.", "one", "So: one")
    expect(drawer.get_by_label("System prompt")).not_to_be_editable()


def test_code_math_tables_reasoning_and_tool_calls(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab)
    panel.send("code")
    block = panel.message(1).locator(".llamanb-code")
    expect(block.locator(".tok-nb")).to_have_text("print")
    block.get_by_role("button", name="Insert as a new cell below").click()
    expect(in_lab.cell(2)).to_contain_text("print(6 * 7)")
    in_lab.run(2)
    expect(in_lab.cell(2)).to_contain_text("42")
    panel.send("table")
    expect(panel.message(-1).locator("td")).to_have_text(["1", "2"])
    expect(panel.message(-1).locator("math mfrac")).to_be_visible()
    panel.send("think")
    expect(panel.message(-1).locator(".reasoning summary")).to_have_text("Reasoning · 25 tokens")
    expect(panel.message(-1).get_by_text("I answer.")).to_be_hidden()
    panel.message(-1).locator(".reasoning summary").click()
    expect(panel.message(-1).get_by_text("I answer.")).to_be_visible()
    panel.send("tool")
    card = panel.message(-1).locator(".card")
    expect(card.locator("summary")).to_have_text("Calls weather")
    card.locator("summary").click()
    expect(card.locator("pre")).to_have_text('{"city": "Rome"}')


HOSTILE = r"""
<img src=x onerror="window.hacked = 1"> <script>window.hacked = 2</script> [link](javascript:window.hacked=3)

![picture](http://127.0.0.1:9/picture.png) $\text{<img src=x onerror="window.hacked = 4">}$

```html
<b onclick="window.hacked = 5">code</b>
```
"""


def test_nothing_that_a_model_writes_runs_or_loads(in_lab: OpenNotebook) -> None:
    asked: list[str] = []
    in_lab.page.on("request", lambda request: asked.append(request.url))
    setup = SCRIPTED.replace("lambda r: 'So: ' + r.messages[-1].text", f"[{HOSTILE!r}]")
    panel = opened(in_lab, setup)
    panel.send("<img src=x onerror='window.hacked = 6'>")
    expect(panel.message(1).locator(".llamanb-code")).to_contain_text("onclick")
    expect(panel.message(1)).to_contain_text('<img src=x onerror="window.hacked = 1">')
    expect(panel.message(0).locator(".text")).to_have_text("<img src=x onerror='window.hacked = 6'>")
    in_lab.page.wait_for_timeout(500)
    assert in_lab.page.evaluate("window.hacked === undefined")
    assert not [url for url in asked if "picture" in url or url.endswith("/x")]


def test_what_fails_is_said_and_the_question_is_given_back(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab)
    panel.send("fail")
    panel.status("The engine failed: ValueError: the model has failed.")
    expect(panel.area).to_have_value("fail")
    expect(panel.log.locator(".message")).to_have_count(0)
    panel.send("x" * 5000)
    panel.status(re.compile("The prompt has 5[0-9]+ tokens and the context window holds 4096"))
    expect(panel.area).to_have_value("x" * 5000)
    panel.send("one")
    panel.says("one", "So: one")
    panel.status("")


def test_panels_agree(in_lab: OpenNotebook) -> None:
    one = opened(in_lab, SCRIPT, "%chat_panel", "llamanb.ChatPanel(session)")
    in_lab.run(2, 3)
    two, three = Panel(in_lab.page, 1), Panel(in_lab.page, 2)
    two.send("hello")
    for panel in (one, two, three):
        panel.says("hello", "So: hello")
    three.act(1, "Regenerate")
    three.send("more")
    three.act(0, "Fork here")
    three.message(0).get_by_role("button", name="Fork", exact=True).click()
    for panel in (one, two, three):
        panel.says("hello", "So: hello", "more", "So: more")
        panel.root.locator(".branch").click()
        expect(panel.root.get_by_role("listitem")).to_have_count(2)


def test_a_restart_leaves_a_panel_that_says_so_and_a_transcript_in_the_file(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab, SCRIPT, "%%chat\nfrom a cell")
    in_lab.run(2)
    in_lab.shows(2, "So: from a cell")
    panel.says("from a cell", "So: from a cell")
    file = in_lab.saved()
    assert ["".join(output["data"]["text/plain"]) for output in file["cells"][1]["outputs"]] == ["<ChatPanel>", ""]
    size = len(json.dumps(file))
    panel.send("from the panel")
    panel.says("from a cell", "So: from a cell", "from the panel", "So: from the panel")
    expect(in_lab.cell(1).locator(".jp-RenderedMarkdown")).to_contain_text("So: from the panel")
    file = in_lab.saved(lambda metadata: "from the panel" in json.dumps(metadata))
    view, copy = file["cells"][1]["outputs"]
    assert "So: from the panel" in "".join(copy["data"]["text/markdown"])
    assert "text/markdown" not in view["data"]
    assert len(json.dumps(file)) < size + 1500
    expect(in_lab.cell(1).locator(".jp-RenderedMarkdown")).to_be_hidden()
    in_lab.restart()
    expect(in_lab.page.get_by_text("Run this cell again to go on")).to_be_visible()
    in_lab.page.reload()
    in_lab.page.wait_for_selector(".jp-Notebook .jp-Cell")
    expect(in_lab.cell(1).locator(".jp-RenderedMarkdown")).to_contain_text("So: from the panel")
    in_lab.wait_idle()
    in_lab.run(0, 1)
    Panel(in_lab.page).says("from a cell", "So: from a cell", "from the panel", "So: from the panel")


def test_a_notebook_with_the_state_of_its_widgets_holds_no_script_and_nothing_that_was_said(
    in_lab: OpenNotebook,
) -> None:
    in_lab.page.goto(f"{in_lab.address}/lab")
    in_lab.page.wait_for_selector(".jp-Launcher")
    settings = "window.jupyterapp.serviceManager.settings"
    in_lab.page.evaluate(f"{settings}.save('@jupyter-widgets/jupyterlab-manager:plugin', '{{\"saveState\": true}}')")
    panel = opened(in_lab)
    panel.send("one")
    panel.says("one", "So: one")
    file = in_lab.saved(lambda metadata: "ChatPanel" in json.dumps(metadata.get("widgets", {})))
    states = json.dumps([state for state in file["metadata"]["widgets"].values() if "ChatPanel" in json.dumps(state)])
    assert "So: one" not in states
    assert "class MessageView" not in states


def test_where_no_notebook_can_be_reached_the_panel_works_without_its_buttons(page: Page) -> None:
    static = Path(llamanb.__file__).parent / "widgets" / "static"
    with llamanb.ScriptedEngine(["```python\nx = 1\n```"]) as engine:
        session = llamanb.ChatSession(engine)
        session.send("code")
        transcript = Transcript(session)
        view = transcript.view()
        update = {"kind": "view", "items": transcript.items(view["path"]), **view}
    page.goto("about:blank")
    page.evaluate(
        """async ([module, style, update]) => {
          const { connect } = await import(URL.createObjectURL(new Blob([module], { type: "text/javascript" })));
          window.sent = [];
          let receive;
          const model = { on: (_, listener) => (receive = listener), send: (message) => window.sent.push(message) };
          const panel = connect(model, style);
          panel.show(document.body);
          receive(update);
          window.answer = (id, result) => receive({ kind: "done", request: id, result });
        }""",
        [(static / "chat_panel.js").read_text(), (static / "chat_panel.css").read_text(), update],
    )
    panel = Panel(page)
    panel.says("code", "pythonx = 1")
    expect(panel.button("Copy code")).to_have_count(1)
    expect(panel.button("Insert as a new cell below")).to_have_count(0)
    panel.act(1, "Fork here")
    panel.message(1).get_by_role("button", name="Fork", exact=True).click()
    sent = page.evaluate("window.sent.at(-1)")
    assert sent["kind"] == "fork"
    page.evaluate("id => window.answer(id, { branch: 'branch-2', source: '%%chat --branch branch-2' })", sent["id"])
    panel.status("Branch ‘branch-2’ starts here; switch to it above.")


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which checks what people with disabilities need."""
    if shutil.which("npm") is None:
        if os.environ.get("LLAMANB_REQUIRE_BROWSER") == "1":
            pytest.fail("LLAMANB_REQUIRE_BROWSER is set, and there is no npm on this machine to get axe-core with.")
        pytest.skip("There is no npm on this machine to get axe-core with.")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "pack", "--silent", "axe-core@4.10.3"]
    packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
    with tarfile.open(folder / packed) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def violations(page: Page, axe: str) -> list[Any]:
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found = page.evaluate("axe.run('.llamanb-panel')")["violations"]
    return [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in found
        if violation["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_axe_finds_no_serious_violation(in_lab: OpenNotebook, axe: str, theme: str, folder: Path) -> None:
    panel = opened(in_lab)
    page = in_lab.page
    page.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {theme}' }})")
    page.set_viewport_size({"width": 1100, "height": 1100})
    assert violations(page, axe) == []
    for text in ("code", "table", "think", "tool"):
        n_messages = panel.log.locator(".message").count()
        panel.send(text)
        expect(panel.log.locator(".message")).to_have_count(n_messages + 2)
        expect(panel.button("Send")).to_be_visible()
    panel.act(1, "Regenerate")
    expect(panel.message(1).locator(".pager")).to_be_visible()
    panel.send("think")
    expect(panel.message(-1).locator(".reasoning")).to_be_visible()
    panel.button("Conversation tree").click()
    expect(panel.root.get_by_role("treeitem").first).to_be_visible()
    panel.act(0, "Edit")
    panel.act(1, "Fork here")
    assert violations(page, axe) == []
    panel.root.locator(".branch").click()
    panel.root.get_by_role("button", name=re.compile("^Prune")).click()
    assert violations(page, axe) == []
    panel.button("Settings").click()
    panel.root.get_by_label("Top p").fill("7")
    expect(panel.root.get_by_role("alert").filter(has_text="top_p")).to_be_visible()
    assert violations(page, axe) == []
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 620, "height": 1100})
    panel.send("fail")
    panel.status(re.compile("failed"))
    assert violations(page, axe) == []
    panel.root.screenshot(path=str(folder / f"narrow-{theme}.png"))


def test_the_keyboard_alone_does_it_all(in_lab: OpenNotebook) -> None:
    panel = opened(in_lab)
    panel.send("again")
    panel.says("again", re.compile("So: again"))
    keyboard = in_lab.page.keyboard
    panel.area.focus()

    def go_to(name: str) -> None:
        for _ in range(30):
            if in_lab.page.evaluate("document.activeElement.getAttribute('aria-label')") == name:
                return
            keyboard.press("Shift+Tab")
        raise AssertionError(f"The keyboard does not get to {name!r}.")

    go_to("Regenerate")
    keyboard.press("Enter")
    expect(panel.message(1).locator(".pager")).to_have_text("2/2")
    panel.area.focus()
    go_to("The one before")
    keyboard.press("Space")
    expect(panel.message(1).locator(".pager")).to_have_text("1/2")
    panel.area.focus()
    go_to("Settings")
    keyboard.press("Enter")
    expect(panel.root.get_by_label("Temperature")).to_be_focused()
    keyboard.press("Escape")
    expect(panel.button("Settings")).to_be_focused()
    expect(in_lab.page.locator(".jp-Notebook:visible .jp-Cell")).to_have_count(2)  # no key was the notebook's
