"""Every exception that llamanb raises on purpose.

::

    LlamanbError
    ├── InvalidArgumentError (ValueError)       a value out of its range, an empty prompt
    ├── ModelLoadError
    │   └── ModelNotFoundError
    ├── TemplateError
    ├── TransformError
    ├── EngineError
    │   ├── ContextWindowExceededError
    │   ├── SequenceLimitError
    │   └── DecodeError
    ├── SessionBusyError
    ├── SessionClosedError
    ├── BranchError (ValueError)
    ├── MessageNotFoundError (LookupError)
    ├── HistoryFormatError (ValueError)
    ├── SchemaVersionError
    └── ToolError

Cancelling a generation is a finish reason, not an exception.
"""

from __future__ import annotations

__all__ = [
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
]


class LlamanbError(Exception):
    """The root of every error that llamanb raises on purpose."""


class InvalidArgumentError(LlamanbError, ValueError):
    """An argument has a value that cannot be used; the message names its range."""


class ModelLoadError(LlamanbError):
    """A model file cannot be loaded: damaged, truncated, of an unknown kind, or too large."""


class ModelNotFoundError(ModelLoadError):
    """No model has that name, or no file is at that path."""


class TemplateError(LlamanbError):
    """The chat template is missing, is broken, or refuses these messages."""


class TransformError(LlamanbError):
    """A transform fails, returns something of another kind, or cannot be stored or found."""


class EngineError(LlamanbError):
    """The engine cannot do what was asked of it."""


class ContextWindowExceededError(EngineError):
    """The prompt leaves no room for an answer in the context window.

    Parameters
    ----------
    n_prompt
        Tokens in the prompt.
    n_ctx
        Tokens that the context window of one branch may hold.
    """

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx
        super().__init__(
            f"The prompt has {n_prompt} tokens and the context window holds {n_ctx}, with at least one "
            "left for the answer. Shorten the prompt, rewind the branch, or load the model with a larger n_ctx."
        )

    def __reduce__(self) -> tuple[type[ContextWindowExceededError], tuple[int, int]]:
        return type(self), (self.n_prompt, self.n_ctx)


class SequenceLimitError(EngineError):
    """More sequences were asked for than the engine can hold."""


class DecodeError(EngineError):
    """The model failed while it evaluated tokens."""


class SessionBusyError(LlamanbError):
    """The branch is already answering; one branch gives one answer at a time."""


class SessionClosedError(LlamanbError):
    """The session or the engine was closed and cannot be used any more."""


class BranchError(LlamanbError, ValueError):
    """A branch is unknown, exists already, or has nothing to do this with."""


class MessageNotFoundError(LlamanbError, LookupError):
    """No message of this session has that id or index."""


class HistoryFormatError(LlamanbError, ValueError):
    """A stored history does not have the form of the schema.

    Parameters
    ----------
    path
        Where it is wrong, as a JSON path such as ``$.sessions.default.messages``.
    problem
        What is wrong there.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}")

    def __reduce__(self) -> tuple[type[HistoryFormatError], tuple[str, str]]:
        return type(self), (self.path, self.problem)


class SchemaVersionError(LlamanbError):
    """A stored history was written by a newer llamanb; it is left as it is."""


class ToolError(LlamanbError):
    """A tool call cannot be read or run."""
