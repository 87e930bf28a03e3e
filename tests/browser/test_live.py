"""The conversation in the open notebook: in JupyterLab and in Notebook 7, with a real browser."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from front_ends import LOAD, SCRIPTED, OpenNotebook
from playwright.sync_api import Page, expect

REAL = "%%chat -t 0 --max-tokens 12"


def test_chat_fork_save_restart_and_go_on(notebook: OpenNotebook, folder: Path) -> None:
    notebook.write(
        LOAD,
        f"{REAL} --system 'Be brief.'\nWhat is the capital of France?",
        '%chat_fork italy --at 0 --prompt "What is the capital of Italy?"',
        "1 + 1",
        f"{REAL}\nAnd of Spain?",
    )
    notebook.open()
    notebook.run(0, 1, 2)
    forked = notebook.page.locator(".jp-Notebook:visible .jp-Cell", has_text="%%chat --branch italy")
    expect(forked).to_have_count(1)
    expect(notebook.cell(3)).to_contain_text("%%chat --branch italy")
    notebook.run(2)
    expect(notebook.cell(2)).to_contain_text("as before")
    expect(forked).to_have_count(1)
    notebook.run(3)
    notebook.shows(3, re.compile(r"\w"))
    file = notebook.saved(lambda metadata: "of Italy?" in json.dumps(metadata))
    assert [output.get("metadata") for cell in file["cells"][1:4:2] for output in cell["outputs"]] == [{}, {}]
    assert notebook.said() == ["What is the capital of France?"]
    assert notebook.said("italy") == ["What is the capital of Italy?"]
    notebook.page.screenshot(path=str(folder / "forked.png"))

    notebook.restart()
    notebook.run(0)
    notebook.run(5)
    notebook.shows(5, re.compile(r"\w"))
    notebook.saved(lambda metadata: "Spain" in json.dumps(metadata))
    assert notebook.said() == ["What is the capital of France?", "And of Spain?"]
    expect(forked).to_have_count(1)


def test_run_all_with_many_queued_cells_and_again_after_a_restart(notebook: OpenNotebook) -> None:
    notebook.write(SCRIPTED, *(f"%%chat\nnumber {number}" for number in range(10)), "%chat_fork side --prompt more")
    notebook.open()
    notebook.run_all()
    notebook.shows(10, "So: number 9")
    expect(notebook.cell(12)).to_contain_text("%%chat --branch side")
    first = notebook.saved(lambda metadata: "side" in json.dumps(metadata))["metadata"]["llamanb"]
    assert notebook.said() == [f"number {number}" for number in range(10)]
    notebook.restart()
    notebook.run_all()
    notebook.shows(12, "So: more")
    again = notebook.saved(lambda metadata: "more" in json.dumps(metadata))["metadata"]["llamanb"]
    assert notebook.said() == [f"number {number}" for number in range(10)]
    assert notebook.said("side") == [*(f"number {number}" for number in range(10)), "more"]
    before, after = (found["sessions"]["default"] for found in (first, again))
    assert before["messages"].items() <= after["messages"].items()
    assert len(after["messages"]) == len(before["messages"]) + 2
    assert len(after["branches"]) == 2
    expect(notebook.page.locator(".jp-Notebook:visible .jp-Cell", has_text="--branch side")).to_have_count(1)


def test_a_restart_right_after_an_exchange_that_was_not_saved_loses_nothing(notebook: OpenNotebook) -> None:
    notebook.write(SCRIPTED, "%%chat\none", "%%chat\ntwo")
    notebook.open()
    notebook.run(0, 1)
    notebook.shows(1, "So: one")
    notebook.restart()
    assert "llamanb" not in json.loads(notebook.file.read_text())["metadata"]
    notebook.run(0, 2)
    notebook.shows(2, "So: two")
    notebook.saved(lambda metadata: "two" in json.dumps(metadata))
    assert notebook.said() == ["one", "two"]


def test_running_again_in_the_middle_marks_what_is_left_behind(notebook: OpenNotebook, folder: Path) -> None:
    notebook.write(SCRIPTED, "%%chat\none", "%%chat\ntwo", "%%chat\nthree")
    notebook.open()
    notebook.run_all()
    notebook.shows(3, "So: three")
    notebook.retype(1, "%%chat\nfirst")
    notebook.run(1)
    notebook.shows(1, "So: first")
    notebook.notice("Later cells answer to something that is gone: run them again.")
    for index in (2, 3):
        expect(notebook.cell(index).locator(".jp-OutputArea-child")).to_have_css("opacity", "0.55")
    expect(notebook.cell(1).locator(".jp-OutputArea-child")).to_have_css("opacity", "1")
    notebook.page.set_viewport_size({"width": 1000, "height": 700})
    notebook.page.screenshot(path=str(folder / "stale.png"))
    assert notebook.said() == ["first"]
    notebook.run(2)
    expect(notebook.cell(2).locator(".jp-OutputArea-child")).to_have_css("opacity", "1")
    expect(notebook.cell(3).locator(".jp-OutputArea-child")).to_have_css("opacity", "0.55")
    notebook.saved(lambda metadata: len(metadata["llamanb"]["sessions"]["default"]["messages"]) == 10)
    assert notebook.said() == ["first", "two"]


def test_a_deleted_cell_takes_its_exchange_off_and_a_moved_one_does_not(notebook: OpenNotebook) -> None:
    notebook.write(SCRIPTED, "%%chat\none", "%%chat\ntwo", "%%chat\nthree", "%%chat\nfour")
    notebook.open()
    notebook.run(*range(4))
    notebook.shows(3, "So: three")
    notebook.command(1, "x")
    notebook.command(1, "v")  # cut, and pasted below the next one
    notebook.command(2, "d", "d")
    expect(notebook.page.locator(".jp-Notebook:visible .jp-Cell")).to_have_count(4)
    notebook.run(3)
    notebook.shows(3, "So: four")
    notebook.notice("What a deleted cell said is off its branch")
    notebook.saved(lambda metadata: "four" in json.dumps(metadata))
    left = [cell["source"][-1] for cell in json.loads(notebook.file.read_text())["cells"][1:]]
    assert notebook.said() == sorted(left, key=["one", "two", "three", "four"].index)


def test_another_writer_in_between_loses_nothing(notebook: OpenNotebook) -> None:
    notebook.write(SCRIPTED, "%%chat\none", "%%chat\ntwo")
    notebook.open()
    notebook.run(0, 1)
    notebook.shows(1, "So: one")
    other = notebook.saved()["metadata"]["llamanb"]["sessions"]["default"]
    other["branches"].append({"name": "theirs", "tip": other["branches"][0]["tip"]})
    file = json.loads(notebook.file.read_text())
    file["metadata"]["llamanb"]["sessions"]["default"] = other
    notebook.file.write_text(json.dumps(file))
    notebook.menu("File", "Reload Notebook from Disk")
    dialog = notebook.page.locator(".jp-Dialog .jp-mod-accept, .jp-Dialog .jp-mod-warn")
    time.sleep(1)
    if dialog.count():
        dialog.first.click()
    notebook.run(2)
    notebook.shows(2, "So: two")
    notebook.saved(lambda metadata: "two" in json.dumps(metadata) and "theirs" in json.dumps(metadata))
    assert notebook.said() == ["one", "two"]
    assert notebook.said("theirs") == ["one"]


def test_the_toolbar_interrupts_a_model_that_reads(notebook: OpenNotebook) -> None:
    notebook.write(
        LOAD + "\nlong = 'The sea is wide. ' * 700", "%%chat -t 0 --max-tokens 5\n{long}", f"{REAL}\nWhat is 1 + 1?"
    )
    notebook.open()
    notebook.run(0)
    notebook.run(1)
    time.sleep(2)
    notebook.page.locator(
        ".jp-NotebookPanel:visible .jp-Toolbar-item[data-jp-item-name='interrupt'] :is(button, jp-button)"
    ).first.click()
    expect(notebook.cell(1)).to_contain_text("nothing was said yet, and the conversation is as it was")
    notebook.run(2)
    notebook.shows(2, re.compile(r"\w"))
    notebook.saved()
    assert notebook.said() == ["What is 1 + 1?"]


def test_what_is_to_stay_out_of_the_file_is_taken_out(notebook: OpenNotebook) -> None:
    notebook.write(SCRIPTED, "%%chat\nsecret", "%chat_config persist=off", "%%chat\nwhisper")
    notebook.open()
    notebook.run(0, 1)
    notebook.shows(1, "So: secret")
    notebook.saved()
    notebook.run(2, 3)
    notebook.shows(3, "So: whisper")
    file = notebook.saved(lambda metadata: "llamanb" not in metadata)
    assert [output.get("metadata", {}) for cell in file["cells"] for output in cell["outputs"] if "data" in output] == [
        {},
        {},
    ]


def test_undoing_a_deletion_changes_nothing_and_a_copy_goes_on(notebook: OpenNotebook) -> None:
    notebook.write(SCRIPTED, "%%chat\none", "%%chat\ntwo", "%%chat\nthree")
    notebook.open()
    notebook.run(0, 1, 2)
    notebook.shows(2, "So: two")
    cells = notebook.page.locator(".jp-Notebook:visible .jp-Cell")
    notebook.command(1, "d", "d")
    expect(cells).to_have_count(3)
    notebook.page.keyboard.press("z")
    expect(cells).to_have_count(4)
    notebook.run(3)
    notebook.shows(3, "So: three")
    notebook.saved(lambda metadata: "three" in json.dumps(metadata))
    assert notebook.said() == ["one", "two", "three"]
    notebook.command(3, "c", "v")
    expect(cells).to_have_count(5)
    notebook.run(4)
    notebook.saved(lambda metadata: len(metadata["llamanb"]["sessions"]["default"]["messages"]) == 8)
    assert notebook.said() == ["one", "two", "three", "three"]


def test_a_damaged_conversation_is_set_aside_in_the_file_and_said(notebook: OpenNotebook, folder: Path) -> None:
    damaged = {"schema": 1, "sessions": {"default": {"branches": 3}}}
    notebook.write(SCRIPTED, "%%chat\none", metadata={"llamanb": damaged})
    notebook.open()
    notebook.run(0, 1)
    notebook.shows(1, "So: one")
    notebook.notice("The conversation in this notebook is damaged and is kept aside in its metadata")
    file = notebook.saved(lambda metadata: "llamanb_damaged" in metadata)
    assert file["metadata"]["llamanb_damaged"] == damaged
    assert notebook.said() == ["one"]


def test_two_tabs_on_one_notebook_hold_one_conversation(page: Page, server: str, folder: Path) -> None:
    first = OpenNotebook(page, server, folder)
    first.write(SCRIPTED, "%%chat\none", "%%chat\ntwo", "%chat_fork side --prompt three", "%%chat\nfour")
    first.open()
    assert page.context.browser is not None
    second = OpenNotebook(page.context.browser.new_page(), server, folder)
    second.url = second.url.replace("/lab/tree", "/lab/workspaces/second/tree")
    second.open()
    first.run(0, 1)
    first.shows(1, "So: one")
    second.run(2, 3)
    expect(second.cell(4)).to_contain_text("%%chat --branch side")
    expect(first.page.locator(".jp-Notebook:visible .jp-Cell")).to_have_count(5)  # the other one asked for the fork
    second.run(4, 5)
    second.shows(5, "So: four")
    second.saved(lambda metadata: "four" in json.dumps(metadata))
    assert second.said() == ["one", "two", "four"]
    assert second.said("side") == ["one", "two", "three"]


def test_a_notebook_that_is_renamed_keeps_its_conversation(page: Page, server: str, folder: Path) -> None:
    notebook = OpenNotebook(page, server, folder)
    notebook.write(SCRIPTED, "%%chat\none", "%%chat\ntwo")
    notebook.open()
    notebook.run(0, 1)
    notebook.shows(1, "So: one")
    assert notebook.said() == ["one"]
    notebook.menu("File", "Rename Notebook…")
    page.locator(".jp-Dialog input").fill("renamed.ipynb")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    notebook.file = folder / "renamed.ipynb"
    notebook.restart()
    notebook.run(0, 2)
    notebook.shows(2, "So: two")
    notebook.saved(lambda metadata: "two" in json.dumps(metadata))
    assert notebook.said() == ["one", "two"]


def test_the_half_of_a_split_cell_that_still_asks_owns_what_the_whole_had_said(notebook: OpenNotebook) -> None:
    notebook.write(SCRIPTED, "%%chat\none\ntwo", "%%chat\nlast")
    notebook.open()
    cells = notebook.page.locator(".jp-Notebook:visible .jp-Cell")
    notebook.run(0, 1)
    notebook.shows(1, re.compile("So: one"))

    def split() -> None:
        notebook.cell(1).locator(".cm-line").nth(1).click()
        notebook.page.keyboard.press("End")
        notebook.page.keyboard.press("Control+Shift+Minus")
        expect(cells).to_have_count(4)

    split()
    notebook.command(1, "z")
    expect(cells).to_have_count(3)
    notebook.run(1)
    notebook.saved()
    assert notebook.said() == ["one\ntwo"]
    split()
    notebook.run(1)
    notebook.shows(1, "So: one")
    notebook.retype(2, "%%chat\ntwo")
    notebook.run(2)
    notebook.shows(2, "So: two")
    notebook.saved(lambda metadata: len(metadata["llamanb"]["sessions"]["default"]["cells"]) == 2)
    assert notebook.said() == ["one", "two"]


def test_a_cell_that_becomes_markdown_is_off_the_branch_and_marks_outlive_a_restart(notebook: OpenNotebook) -> None:
    notebook.write(SCRIPTED, "%%chat\none", "%%chat\ntwo", "%%chat\nthree")
    notebook.open()
    notebook.run(0, 1, 2)
    notebook.shows(2, "So: two")
    notebook.command(1, "m")
    notebook.run(3)
    notebook.shows(3, "So: three")
    notebook.notice("What a deleted cell said is off its branch")
    expect(notebook.cell(2).locator(".jp-OutputArea-child")).to_have_css("opacity", "0.55")
    notebook.saved(lambda metadata: "three" in json.dumps(metadata))
    assert notebook.said() == ["two", "three"]
    notebook.restart()
    notebook.open()
    expect(notebook.cell(2).locator(".jp-OutputArea-child")).to_have_css("opacity", "1")
    notebook.run(0)
    expect(notebook.cell(2).locator(".jp-OutputArea-child")).to_have_css("opacity", "0.55")
    notebook.restart()
    notebook.run(0, 2)
    expect(notebook.cell(2).locator(".jp-OutputArea-child")).to_have_css("opacity", "1")
