"""Fixtures that several kinds of tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import llamanb


def echo(request: llamanb.GenerationRequest) -> str:
    """Answer with the question, so that the same question on the same path gets the same answer."""
    return f"You said: {request.messages[-1].text}"


@pytest.fixture(scope="session")
def shared_llama_engine() -> Iterator[llamanb.LlamaCppEngine]:
    """The embedded model, loaded once."""
    with llamanb.LlamaCppEngine(n_ctx=1024, n_cells=4096) as engine:
        yield engine


@pytest.fixture
def scripted_engine() -> Iterator[llamanb.ScriptedEngine]:
    with llamanb.ScriptedEngine(echo) as engine:
        yield engine
