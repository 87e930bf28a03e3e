"""Execute a notebook without a browser and fold its conversations into its metadata."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from llamanb.errors import HistoryFormatError, InvalidArgumentError, LlamanbError
from llamanb.persistence.notebook import (
    DAMAGED,
    KEY,
    fold_outputs,
    read_document,
    read_notebook,
    strip_outputs,
    write_document,
)
from llamanb.persistence.schema import Document, load_history
from llamanb.rendering import tree_text
from llamanb.wording import sentence

__all__ = ["RunFailedError", "run"]

_EXPORT = "__import__('sys').modules['llamanb.runtime'].get_runtime().export()"
"""What the runner asks the kernel; it fails where the notebook has not loaded the extension, which is no fault."""


_KERNEL_LOG = re.compile(r"\s*$|.*\[IPKernelApp\]|.*(?:Warning|warn)\b")
"""What a kernel writes to stderr without dying of it."""


class RunFailedError(LlamanbError):
    """A cell failed; what was executed until then has been written."""


class _Client(NotebookClient):  # type: ignore[misc]
    """A client that asks the kernel for its sessions after every cell."""

    def __init__(self, notebook: nbformat.NotebookNode, report: Report, **options: Any) -> None:
        super().__init__(notebook, **options)
        self.report = report
        self.sessions: dict[str, Any] | None = None
        self.interrupted = False

    async def async_execute_cell(self, cell: Any, cell_index: int, *arguments: Any, **options: Any) -> Any:
        if cell.cell_type != "code" or not cell.source.strip():
            return cell
        self.report.cell_starts(cell)
        busy = False
        try:
            return await super().async_execute_cell(cell, cell_index, *arguments, **options)
        except CellTimeoutError:
            busy = True
            raise
        finally:
            if not (busy or self.interrupted) and await self._alive():
                await self._ask_for_sessions()
            self.report.cell_ends(cell)

    async def _alive(self) -> bool:
        return self.km is not None and bool(await _awaited(self.km.is_alive()))

    async def _ask_for_sessions(self) -> None:
        reply = await _awaited(
            self.kc.execute(
                "",
                silent=True,
                store_history=False,
                user_expressions={KEY: _EXPORT},
                allow_stdin=False,
                reply=True,
                timeout=self.timeout or 60,
            )
        )
        answer = reply["content"].get("user_expressions", {}).get(KEY, {})
        if answer.get("status") == "ok":
            self.sessions = json.loads(ast.literal_eval(answer["data"]["text/plain"]))


class Report:
    """Prints how far a run is, and what was said."""

    def __init__(self, n_cells: int, write: Callable[[str], Any]) -> None:
        self._n_cells = n_cells
        self._n_done = 0
        self._started = 0.0
        self._write = write

    def cell_starts(self, cell: Any) -> None:
        """Say which cell runs now."""
        self._n_done += 1
        self._started = time.monotonic()
        first, *rest = cell.source.strip().split("\n")
        more = "" if not rest else " …"
        self._write(f"[{self._n_done}/{self._n_cells}] {first}{'' if first.startswith('%%') else more}\n")
        if first.startswith("%%"):
            self._indented("\n".join(rest), "  > ")

    def cell_ends(self, cell: Any) -> None:
        """Print what the cell showed and how long it took."""
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                self._indented(output.text, "    ")
            elif output.output_type == "error":
                self._indented(f"{output.ename}: {output.evalue}", "  ! ")
            else:
                self._indented(str(output.get("data", {}).get("text/plain", "")), "    ")
        self._write(f"    ({time.monotonic() - self._started:.1f} s)\n\n")

    def _indented(self, text: str, margin: str) -> None:
        for line in text.rstrip("\n").split("\n"):
            self._write(f"{margin}{line}".rstrip() + "\n")


def run(
    source: Path, target: Path, *, timeout: float | None = 600.0, write: Callable[[str], Any] | None = None
) -> Document:
    """Execute a notebook from an empty tree and write it, with its conversations in `metadata.llamanb`.

    Running it twice gives the same bytes, and so does running its output: no times, no widget states and no counters
    are written.

    Parameters
    ----------
    source, target
        The .ipynb files to read and to write; they may be the same.
    timeout
        The most seconds that one cell may take; ``None`` for no limit.
    write
        Takes the text of the progress report; by default it is printed.

    Raises
    ------
    RunFailedError
        A cell failed or the kernel died; what was executed until then has been written.
    InvalidArgumentError
        The source is no notebook, or the target cannot be written; nothing is executed then.
    KeyboardInterrupt
        It was interrupted; what was executed until then has been written.
    SchemaVersionError
        The source's conversation was written by a newer llamanb; nothing is executed or written.
    """
    notebook = read_notebook(source)
    _check_target(target)
    say = write or _print
    try:
        read_document(notebook.metadata)
        notebook.metadata.pop(KEY, None)
    except HistoryFormatError as error:
        say(f"The conversation in {source.name} is damaged and is kept under {DAMAGED!r}: {error}.\n\n")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    n_cells = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
    client = _Client(
        notebook,
        Report(n_cells, say),
        timeout=timeout,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(source.resolve().parent)}},
        kernel_name=notebook.metadata.get("kernelspec", {}).get("name", "python3"),
    )
    failure = _executed(client)
    document = Document(client.sessions or {})
    fold_outputs(notebook, document, complete=client.sessions is not None)
    strip_outputs(notebook)
    if document.sessions:
        write_document(notebook.metadata, document)
    _write_notebook(notebook, target)
    if client.interrupted:
        raise KeyboardInterrupt(f"Interrupted. What was executed is in {target}.")
    if failure is not None:
        raise RunFailedError(f"{failure} What was executed is in {target}.")
    return document


def _executed(client: _Client) -> str | None:
    """Execute a notebook, until an interrupt, and return what went wrong, as a sentence.

    It runs in a thread of its own: nbclient cannot end in order when its event loop is interrupted from within.
    """
    outcome: list[str | None] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    started, done = threading.Event(), threading.Event()

    async def execute(log: Any) -> None:
        task = asyncio.ensure_future(client.async_execute(stderr=log))
        running.append((asyncio.get_running_loop(), task))
        started.set()
        await task

    def work() -> None:
        with tempfile.TemporaryFile() as log:  # a kernel talks about itself there; what it dies of is said there too
            try:
                asyncio.run(execute(log))
                outcome.append(None)
            except BaseException as error:
                log.seek(0)
                outcome.append(_failure(client, error, log.read().decode("utf-8", errors="replace")))
            finally:
                started.set()
                done.set()

    threading.Thread(target=work, name="llamanb-run").start()
    while not done.is_set():
        try:
            done.wait(0.2)  # not Thread.join: an interrupt there makes Python 3.10 to 3.12 take the thread for ended
        except KeyboardInterrupt:
            client.interrupted = True
            client.shutdown_kernel = "immediate"
            started.wait()
            loop, task = running[0]
            loop.call_soon_threadsafe(task.cancel)
    return outcome[0]


def _failure(client: _Client, error: BaseException, log: str) -> str:
    if isinstance(error, CellExecutionError):
        return f"A cell failed: {sentence(f'{error.ename}: {error.evalue}')}"
    if isinstance(error, CellTimeoutError):
        return f"A cell took longer than {client.timeout:g} seconds; give it more with --timeout."
    if isinstance(error, DeadKernelError):
        words = [line for line in log.strip().splitlines() if not _KERNEL_LOG.match(line)]
        return f"The kernel died: {sentence(words[-1] if words else 'it said nothing')}"
    if isinstance(error, NoSuchKernel):
        return f"There is no kernel {error.name!r}; the notebook's metadata names one that is not installed."
    return f"The notebook could not be executed: {sentence(f'{type(error).__name__}: {error}')}"


def describe(document: Document) -> str:
    """Return the branch trees of a document as text."""
    trees = []
    for name, session in document.sessions.items():
        tree = tree_text(load_history(session))
        trees.append(f"The conversation {name!r}:\n\n{tree}" if len(document.sessions) > 1 else tree)
    return "\n\n".join(trees)


def _check_target(target: Path) -> None:
    """Raise where a file cannot be written, before an hour's work is lost to that."""
    if target.is_dir():
        raise InvalidArgumentError(f"{str(target)!r} is a folder; name the file to write, such as out.ipynb.")
    with _named(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent):
            pass


def _write_notebook(notebook: nbformat.NotebookNode, target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    with _named(target):
        nbformat.write(notebook, partial)
        partial.replace(target)


@contextlib.contextmanager
def _named(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidArgumentError(f"{str(target)!r} cannot be written: {error.strerror or error}.") from None


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value
