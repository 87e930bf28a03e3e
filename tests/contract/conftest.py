"""The engines and sessions that contract tests run on."""

from __future__ import annotations

import pytest

from llamanb import ChatSession, SamplingParams
from llamanb.engine.base import Engine


@pytest.fixture(params=["scripted", "llama.cpp"])
def engine(request: pytest.FixtureRequest) -> Engine:
    name = "shared_llama_engine" if request.param == "llama.cpp" else "scripted_engine"
    engine: Engine = request.getfixturevalue(name)
    return engine


@pytest.fixture
def session(engine: Engine) -> ChatSession:
    return ChatSession(engine, system="Be brief.", sampling=SamplingParams(temperature=0.0, max_tokens=16))
