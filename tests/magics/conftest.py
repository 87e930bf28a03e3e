"""A real IPython shell that is told which cell it runs, as a kernel tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import llamanb
from llamanb import runtime


@dataclass
class Outcome:
    """What running a cell gave."""

    success: bool
    text: str
    error: str
    outputs: list[Any] = field(default_factory=list)

    @property
    def markdown(self) -> str:
        return self.outputs[-1].data["text/markdown"]


class Notebook:
    """Runs cells in a shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.request: dict[str, Any] = {}
        self.next_inputs: list[str] = []
        self._n = 0
        shell.get_parent = lambda: self.request  # type: ignore[attr-defined]
        shell.set_next_input = lambda text, replace=False: self.next_inputs.append(text)

    def run(self, source: str, cell: str | None = None, *, watched: bool = False) -> Outcome:
        self._n += 1
        metadata = {} if cell is None else {"cellId": cell}
        self.request = {"header": {"msg_id": str(self._n)}, "metadata": metadata, "content": {"allow_stdin": watched}}
        with capture_output() as captured:
            result = self.shell.run_cell(source, store_history=False)
        error = result.error_in_exec or result.error_before_exec
        return Outcome(bool(result.success), captured.stdout, str(error or ""), list(captured.outputs))

    @property
    def session(self) -> llamanb.ChatSession:
        return llamanb.active_session()

    def texts(self, branch: str | None = None) -> list[str]:
        path = self.session.branches[branch or self.session.active.name].messages
        return [message.text for message in path if message.role == "user"]


def reverse(request: llamanb.GenerationRequest) -> str:
    """Answer with the question's words the other way round."""
    return " ".join(reversed(request.messages[-1].text.split()))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setattr(runtime, "_runtime", None)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "llamanb")
    with llamanb.ScriptedEngine(reverse) as engine:
        llamanb.use_session(llamanb.ChatSession(engine, system="Be brief."))
        yield Notebook(shell)
    InteractiveShell.clear_instance()


@pytest.fixture
def seeded(notebook: Notebook) -> Notebook:
    """A notebook whose answers differ by their seed."""
    engine = llamanb.ScriptedEngine(lambda r: f"{r.messages[-1].text} by {r.sampling.seed}")
    llamanb.use_session(llamanb.ChatSession(engine, system="Be brief."), replace=True)
    return notebook


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user's cache folder with nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
