"""Real kernels, started and spoken to as a front end does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

SECONDS = 60


class Kernel:
    """A kernel and a client of it."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.connect()

    def connect(self) -> None:
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def send(self, source: str, cell: str | None = None, *, watched: bool = True) -> str:
        """Send an execute request, with a cell's id as JupyterLab does; return the message's id."""
        content = {"code": source, "silent": False, "store_history": True, "user_expressions": {},
                   "allow_stdin": watched, "stop_on_error": True}  # fmt: skip
        metadata = {} if cell is None else {"cellId": cell, "deletedCells": []}
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def wait_for(self, kind: str, request: str) -> dict[str, Any]:
        """Wait for an output of a kind."""
        while True:
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == request and message["msg_type"] == kind:
                return message

    def reply(self, request: str) -> dict[str, Any]:
        """Wait for the reply to a request."""
        while True:
            message: dict[str, Any] = self.client.get_shell_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == request:
                return message["content"]

    def outputs(self, request: str) -> list[dict[str, Any]]:
        """Collect the outputs of a request until it is done."""
        found: list[dict[str, Any]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found
            if message["msg_type"] in ("stream", "display_data", "update_display_data", "execute_result", "error"):
                found.append({"type": message["msg_type"], **message["content"]})

    def run(self, source: str, cell: str | None = None) -> list[dict[str, Any]]:
        """Run a cell to its end and return its outputs."""
        request = self.send(source, cell)
        outputs = self.outputs(request)
        self.reply(request)
        return outputs

    def value(self, expression: str) -> str:
        """Return what an expression shows."""
        outputs = self.run(expression)
        assert outputs, f"{expression} shows nothing"
        assert "data" in outputs[-1], outputs[-1]
        return str(outputs[-1]["data"]["text/plain"])

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.connect()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()
