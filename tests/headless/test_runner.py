"""Notebooks executed without a browser: `python -m llamanb run`, nbclient and papermill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import llamanb
from llamanb.__main__ import main
from llamanb.persistence.notebook import fold_outputs
from llamanb.persistence.schema import Document, load_history
from llamanb.runner import RunFailedError, run

SCRIPTED = "llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine(lambda r: 'So: ' + r.messages[-1].text)));"


def notebook_of(*sources: str) -> Any:
    cells = [new_code_cell(source, id=f"cell-{index}") for index, source in enumerate(sources)]
    return new_notebook(
        cells=[new_markdown_cell("# Title", id="title"), *cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.ipynb"
    nbformat.write(
        notebook_of(
            "%load_ext llamanb\nimport llamanb\n" + SCRIPTED,
            "%%chat\none",
            "%chat two\n%chat three",
            "%%chat --fork side --at 1\nfour",
            "llamanb.active_session().send('from Python')",
            "%%chat -b side\nfive",
        ),
        path,
    )
    return path


def quiet(text: str) -> None:
    """Take a progress report and drop it."""


def test_the_tree_and_the_cells_are_in_the_metadata(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out.ipynb", write=quiet)
    stored = json.loads((tmp_path / "out.ipynb").read_text())["metadata"]["llamanb"]
    assert stored["schema"] == 1
    session = stored["sessions"]["default"]
    history = load_history(session)
    said = {name: [m.text for m in history.branch_path(name) if m.role == "user"] for name in history.branches}
    assert said == {"main": ["one", "two", "three", "from Python"], "side": ["one", "four", "five"]}
    assert sorted(history.cells) == ["cell-1", "cell-2", "cell-3", "cell-5"]
    (entry,) = history.cells["cell-2"]
    assert [history.messages[entry.first].text, history.messages[entry.last].text] == ["two", "So: three"]
    assert session["model"] == {"name": "scripted", "fingerprint": llamanb.ScriptedEngine([]).fingerprint}


def test_two_runs_and_a_run_of_the_output_give_the_same_bytes(source: Path, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.ipynb" for name in ("first", "second", "third"))
    run(source, first, write=quiet)
    run(source, second, write=quiet)
    run(first, third, write=quiet)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()
    run(first, first, write=quiet)
    assert first.read_bytes() == second.read_bytes()


SEEDED = "llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine(lambda r: str(r.sampling.seed))));"


@pytest.mark.parametrize(
    "sources",
    [
        ["%%chat\none", "%%chat\ntwo", "%chat_rewind"],
        ["%%chat\none", "%%chat --fork x\ntwo", "%chat_reset"],
        ["%%chat -n 2\none", "%chat_regenerate"],
        ["%chat one\n%chat_regenerate", "%%chat\ntwo"],
        ["%%chat -n 3\none", "%%chat --fork side\ntwo", "%chat_rewind", "%chat_prune -y"],
        ["%%chat\none", "%%chat --fork side\ntwo", "%chat_adopt side", "%chat_rewind 2", "%%chat\nthree"],
        ["%%chat\none", "%chat_reset --all -y", "%%chat\ntwo"],
    ],
)
def test_the_file_says_what_the_kernel_said(tmp_path: Path, sources: list[str]) -> None:
    last = "import json; print(json.dumps(llamanb.active_session().to_dict()))"
    nbformat.write(notebook_of("%load_ext llamanb\nimport llamanb\n" + SEEDED, *sources, last), tmp_path / "in.ipynb")
    (session,) = run(tmp_path / "in.ipynb", tmp_path / "out.ipynb", write=quiet).sessions.values()
    in_kernel = json.loads(nbformat.read(tmp_path / "out.ipynb", 4).cells[-1].outputs[0].text)
    of_cells = {"cells": {}, "remade": {}}  # the kernel was not told of cells, but the runner knows them
    assert {**session, **of_cells} == {**in_kernel, **of_cells}
    assert set(session["cells"]) <= {f"cell-{index}" for index, text in enumerate(sources, 1) if "%chat" in text}
    if sources[1] == "%chat_regenerate":
        (main,) = [branch["tip"] for branch in session["branches"] if branch["name"] == "main"]
        assert session["cells"]["cell-1"][0]["last"] == main == session["remade"]["cell-2"]


def test_a_conversation_that_is_to_stay_out_of_the_file_does(tmp_path: Path) -> None:
    sources = ["%%chat\nsecret", "%chat_config persist=off", "%%chat\nwhisper"]
    nbformat.write(notebook_of("%load_ext llamanb\nimport llamanb\n" + SCRIPTED, *sources), tmp_path / "in.ipynb")
    assert run(tmp_path / "in.ipynb", tmp_path / "out.ipynb", write=quiet).sessions == {}
    written = nbformat.read(tmp_path / "out.ipynb", 4)
    assert "llamanb" not in written.metadata
    assert [output.metadata for cell in written.cells[2:5:2] for output in cell.outputs] == [{}, {}]


def test_the_report_shows_progress_and_what_was_said(source: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["run", str(source), "-o", str(tmp_path / "out.ipynb")]) == 0
    printed = capsys.readouterr().out
    assert "[2/6] %%chat" in printed
    assert "So: one" in printed
    assert "◀ side" in printed
    assert f"-m jupyterlab {tmp_path / 'out.ipynb'}" in printed


def test_a_failing_cell_ends_the_run_and_what_was_executed_is_kept(tmp_path: Path, capsys: Any) -> None:
    path, out = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    setup = "%load_ext llamanb\nimport llamanb\n" + SCRIPTED
    nbformat.write(notebook_of(setup, "%%chat\none", "%%chat -b nowhere\ntwo", "%%chat\nthree"), path)
    with pytest.raises(RunFailedError, match="no branch 'nowhere'"):
        run(path, out, write=quiet)
    history = load_history(json.loads(out.read_text())["metadata"]["llamanb"]["sessions"]["default"])
    assert [m.text for m in history.branch_path("main")] == ["one", "So: one"]
    assert main(["run", str(path), "-o", str(out)]) == 1
    assert "no branch 'nowhere'" in capsys.readouterr().err


def test_a_kernel_that_dies_leaves_what_was_said(tmp_path: Path) -> None:
    path, out = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    setup = "%load_ext llamanb\nimport llamanb, os\n" + SCRIPTED
    nbformat.write(notebook_of(setup, "%%chat\none", "os._exit(1)"), path)
    with pytest.raises(RunFailedError, match=r"^The kernel died: it said nothing\. What was executed is in [^ ]*$"):
        run(path, out, write=quiet)
    history = load_history(json.loads(out.read_text())["metadata"]["llamanb"]["sessions"]["default"])
    assert [m.text for m in history.branch_path("main")] == ["one", "So: one"]


def test_an_interrupt_ends_the_run_in_a_sentence_and_what_was_executed_is_kept(tmp_path: Path) -> None:
    path, out = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    setup = "%load_ext llamanb\nimport llamanb, time\n" + SCRIPTED
    nbformat.write(notebook_of(setup, "%%chat\none", "print('now')\ntime.sleep(60)"), path)
    command = [sys.executable, "-u", "-m", "llamanb", "run", str(path), "-o", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        next(line for line in process.stdout if "[3/3]" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == f"Interrupted. What was executed is in {out}.\n"
    history = load_history(json.loads(out.read_text())["metadata"]["llamanb"]["sessions"]["default"])
    assert [m.text for m in history.branch_path("main")] == ["one", "So: one"]


@pytest.mark.parametrize("target", ["", "folder", "file.txt/out.ipynb"])
def test_a_target_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").touch()
    nbformat.write(notebook_of("open('ran', 'w').close()"), tmp_path / "in.ipynb")
    assert main(["run", "in.ipynb", "-o", target]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file.txt", "folder", "in.ipynb"]


def test_a_cell_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "in.ipynb"
    nbformat.write(notebook_of("import time\ntime.sleep(60)"), path)
    with pytest.raises(RunFailedError, match="--timeout"):
        run(path, tmp_path / "out.ipynb", timeout=1.0, write=quiet)


def test_what_an_old_run_left_is_not_gone_on_with(source: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(source, as_version=4)
    session = llamanb.ChatSession(llamanb.ScriptedEngine(["old"]))
    session.send("old")
    notebook.metadata["llamanb"] = Document({"default": session.to_dict()}).to_dict()
    nbformat.write(notebook, tmp_path / "old.ipynb")
    run(source, tmp_path / "a.ipynb", write=quiet)
    run(tmp_path / "old.ipynb", tmp_path / "b.ipynb", write=quiet)
    assert (tmp_path / "a.ipynb").read_bytes() == (tmp_path / "b.ipynb").read_bytes()


def test_a_damaged_conversation_is_set_aside_and_said(source: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(source, as_version=4)
    damaged = {"schema": 1, "sessions": "gone wrong"}
    notebook.metadata["llamanb"] = damaged
    path = tmp_path / "old.ipynb"
    nbformat.write(notebook, path)
    said: list[str] = []
    run(path, path, write=said.append)
    assert "damaged" in said[0]
    assert "$.sessions" in said[0]
    metadata = json.loads(path.read_text())["metadata"]
    assert metadata["llamanb_damaged"] == damaged
    assert load_history(metadata["llamanb"]["sessions"]["default"]).branches.keys() == {"main", "side"}
    before = path.read_bytes()
    run(path, path, write=quiet)
    assert path.read_bytes() == before


def test_a_conversation_of_a_newer_llamanb_is_left_as_it_is(source: Path, tmp_path: Path, capsys: Any) -> None:
    notebook = nbformat.read(source, as_version=4)
    notebook.metadata["llamanb"] = {"schema": 99, "sessions": {"default": {"new": "form"}}}
    path = tmp_path / "new.ipynb"
    nbformat.write(notebook, path)
    before = path.read_bytes()
    assert main(["run", str(path), "-o", str(path)]) == 1
    assert "schema 99" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_an_old_format_gets_the_same_ids_every_time(source: Path, tmp_path: Path) -> None:
    notebook = json.loads(source.read_text())
    notebook["nbformat_minor"] = 4
    for cell in notebook["cells"]:
        del cell["id"]
    (tmp_path / "old.ipynb").write_text(json.dumps(notebook))
    for name in ("a", "b"):
        run(tmp_path / "old.ipynb", tmp_path / f"{name}.ipynb", write=quiet)
    assert (tmp_path / "a.ipynb").read_bytes() == (tmp_path / "b.ipynb").read_bytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [("missing.ipynb", None), ("text.ipynb", "no notebook"), ("x.ipynb", "{}"), ("list.ipynb", "[]")],
)
def test_a_file_that_is_no_notebook_is_one_sentence(
    tmp_path: Path, capsys: Any, name: str, content: str | None
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["run", str(tmp_path / name), "-o", str(tmp_path / "out.ipynb")]) == 1
    error = capsys.readouterr().err
    assert name in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out.ipynb").exists()


def test_nbclient_shows_each_answer_once_and_outputs_alone_rebuild_the_tree(source: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(source, as_version=4)
    nbclient.NotebookClient(notebook, kernel_name="python3", record_timing=False).execute()
    chat = notebook.cells[2]
    assert [output.output_type for output in chat.outputs] == ["display_data"]
    assert chat.outputs[0].data == {"text/markdown": "So: one", "text/plain": "So: one"}
    run(source, tmp_path / "out.ipynb", write=quiet)
    stored = json.loads((tmp_path / "out.ipynb").read_text())["metadata"]["llamanb"]["sessions"]["default"]
    document = Document()
    fold_outputs(notebook, document)
    rebuilt = load_history(document.sessions["default"])
    expected = load_history(stored)
    said_by_cells = {id for id, m in expected.messages.items() if "from Python" not in m.text}
    assert set(rebuilt.messages) == said_by_cells
    assert rebuilt.cells == expected.cells
    assert [m.text for m in rebuilt.branch_path("side")] == [m.text for m in expected.branch_path("side")]


def test_papermill_executes_a_conversation(source: Path, tmp_path: Path) -> None:
    papermill.execute_notebook(str(source), str(tmp_path / "out.ipynb"), kernel_name="python3", progress_bar=False)
    notebook = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    answers = [
        o.data["text/plain"] for c in notebook.cells for o in c.get("outputs", ()) if o.output_type == "display_data"
    ]
    assert answers == ["So: one", "So: two", "So: three", "So: four", "So: five"]


def test_the_module_runs_from_a_command_line(tmp_path: Path) -> None:
    path = tmp_path / "in.ipynb"
    nbformat.write(notebook_of("1 + 1"), path)
    command = [sys.executable, "-m", "llamanb", "run", str(path), "-o", str(tmp_path / "out.ipynb")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Nothing was said." in result.stdout
    assert result.stderr == ""


def test_a_panel_in_a_notebook_that_nobody_watches_says_the_same_every_time(tmp_path: Path) -> None:
    setup = (
        "%load_ext llamanb\nimport llamanb\n"
        "llamanb.use_session(llamanb.ChatSession(llamanb.ScriptedEngine(lambda r: 'Kept apart.')));"
    )
    for run_number in range(2):
        notebook = notebook_of(setup, "%%chat\nHello.", "%chat_panel", "llamanb.ChatPanel()")
        nbclient.NotebookClient(notebook, kernel_name="python3", record_timing=False).execute()
        for cell in notebook.cells[-2:]:
            assert [output.data["text/plain"] for output in cell.outputs] == ["<ChatPanel>", ""], run_number
        (states,) = notebook.metadata["widgets"].values()
        assert "Kept apart" not in json.dumps(states)
        assert "class MessageView" not in json.dumps(states)
