"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import llamanb


def echo(request: llamanb.GenerationRequest) -> str:
    """Answer with the question, so that the same question on the same path gets the same answer."""
    return f"You said: {request.messages[-1].text}"


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's cache folder of their own for the tests, and for the kernels that they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Path(os.environ["XDG_CACHE_HOME"])


@pytest.fixture(scope="session")
def shared_llama_engine() -> Iterator[llamanb.LlamaCppEngine]:
    """The embedded model, loaded once."""
    with llamanb.LlamaCppEngine(n_ctx=1024, n_cells=4096) as engine:
        yield engine


@pytest.fixture
def scripted_engine() -> Iterator[llamanb.ScriptedEngine]:
    with llamanb.ScriptedEngine(echo) as engine:
        yield engine
