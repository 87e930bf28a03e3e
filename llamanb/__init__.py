"""Conversations with local models inside notebooks.

Names are imported when they are first used: loading the extension loads no model code.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from llamanb.conversation import Branch
    from llamanb.documents import Bridge, Documents
    from llamanb.engine.base import Engine, EngineStats, GenerationRequest
    from llamanb.engine.llama import LlamaCppEngine
    from llamanb.engine.scripted import ScriptedEngine
    from llamanb.errors import (
        BranchError,
        ContextWindowExceededError,
        DecodeError,
        EngineError,
        HistoryFormatError,
        InvalidArgumentError,
        LlamanbError,
        MessageNotFoundError,
        ModelLoadError,
        ModelNotFoundError,
        SchemaVersionError,
        SequenceLimitError,
        SessionBusyError,
        SessionClosedError,
        TemplateError,
        ToolError,
        TransformError,
    )
    from llamanb.history import History
    from llamanb.messages import Chunk, FinishReason, Message, ToolCall, Usage
    from llamanb.persistence.formats import read_messages
    from llamanb.reply import AsyncReplyStream, Reply, ReplyStream
    from llamanb.runtime import active_session, use_session
    from llamanb.sampling import SamplingParams
    from llamanb.session import ChatSession
    from llamanb.state import SessionState
    from llamanb.transforms import (
        KeywordRemover,
        PlainTextHistory,
        RoleNameStripper,
        TemplateHistory,
        compose,
    )
    from llamanb.widgets.panel import ChatPanel

__version__ = "0.1.0"

_HOMES = {
    "llamanb.conversation": ("Branch",),
    "llamanb.engine.base": ("Engine", "EngineStats", "GenerationRequest"),
    "llamanb.engine.llama": ("LlamaCppEngine",),
    "llamanb.engine.scripted": ("ScriptedEngine",),
    "llamanb.errors": (
        "BranchError",
        "ContextWindowExceededError",
        "DecodeError",
        "EngineError",
        "HistoryFormatError",
        "InvalidArgumentError",
        "LlamanbError",
        "MessageNotFoundError",
        "ModelLoadError",
        "ModelNotFoundError",
        "SchemaVersionError",
        "SequenceLimitError",
        "SessionBusyError",
        "SessionClosedError",
        "TemplateError",
        "ToolError",
        "TransformError",
    ),
    "llamanb.history": ("History",),
    "llamanb.messages": ("Chunk", "FinishReason", "Message", "ToolCall", "Usage"),
    "llamanb.persistence.formats": ("read_messages",),
    "llamanb.reply": ("AsyncReplyStream", "Reply", "ReplyStream"),
    "llamanb.runtime": ("active_session", "use_session"),
    "llamanb.sampling": ("SamplingParams",),
    "llamanb.session": ("ChatSession",),
    "llamanb.state": ("SessionState",),
    "llamanb.transforms": (
        "KeywordRemover",
        "PlainTextHistory",
        "RoleNameStripper",
        "TemplateHistory",
        "compose",
    ),
    "llamanb.widgets.panel": ("ChatPanel",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604  (the names are strings; they are kept with their modules above)
    *_HOME_OF,
    "__version__",
    "load_ipython_extension",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'llamanb' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; called by ``%load_ext llamanb``."""
    from llamanb.magics.changing import ChangeMagics
    from llamanb.magics.chat import current_request, take_out
    from llamanb.magics.commands import ChatMagics
    from llamanb.magics.completion import matcher
    from llamanb.magics.display import Displays
    from llamanb.magics.prompt import keep_questions
    from llamanb.runtime import get_runtime
    from llamanb.settings import ChatConfig

    runtime = get_runtime()
    runtime.settings = ChatConfig(parent=shell)
    runtime.current_request = lambda: current_request(shell)
    displays = Displays()
    runtime.removed = functools.partial(take_out, runtime, displays)
    shell.register_magics(ChatMagics(shell, runtime, displays), ChangeMagics(shell, runtime, displays))
    shell.Completer.custom_matchers.append(matcher(shell, runtime))
    shell.events.register("pre_run_cell", runtime.start_cell)
    shell.events.register("post_run_cell", runtime.end_cell)
    shell.input_transformers_cleanup.append(keep_questions)
    if getattr(shell, "kernel", None) is not None:
        runtime.documents.make_bridge = _make_bridge
        runtime.make_panel = _make_panel
        runtime.loaded()


def _make_bridge(documents: Documents) -> Bridge:
    from llamanb.widgets.bridge import NotebookBridge  # not where no notebook is open: it takes a while to import

    return NotebookBridge(documents)


def _make_panel(session: ChatSession) -> ChatPanel:
    from llamanb.widgets.panel import ChatPanel  # as above

    return ChatPanel(session)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Stop listening to the shell; called by ``%unload_ext llamanb``."""
    from llamanb.magics.completion import MATCHER
    from llamanb.magics.prompt import keep_questions
    from llamanb.runtime import get_runtime

    shell.events.unregister("pre_run_cell", get_runtime().start_cell)
    shell.events.unregister("post_run_cell", get_runtime().end_cell)
    shell.input_transformers_cleanup.remove(keep_questions)
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", None) != MATCHER]
