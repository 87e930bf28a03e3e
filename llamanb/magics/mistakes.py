"""A mistake of the user's: one line that says what is wrong, no traceback, and a cell that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from llamanb.errors import LlamanbError
from llamanb.magics.arguments import HelpRequest

__all__ = ["Interrupted", "one_line"]


class Interrupted(KeyboardInterrupt):
    """The person stopped an answer."""

    def _render_traceback_(self) -> list[str]:
        return [f"Interrupted: {self}"]


def one_line(magic: Callable[..., Any]) -> Callable[..., Any]:
    """Let a magic's mistakes be shown as one line; IPython asks an exception for its traceback, and this is all of it.

    A plain `UsageError` would print the line too, but sends no error message, so that nbclient and nbval would take
    the cell for one that succeeded.
    """

    @functools.wraps(magic)
    def wrapper(self: Any, *arguments: Any) -> Any:
        try:
            return magic(self, *arguments)
        except HelpRequest:
            print(inspect.cleandoc(wrapper.__doc__ or ""))
            return None
        except LlamanbError as error:
            line = f"{type(error).__name__}: {error}"
            error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
            raise
        except Interrupted:
            raise
        except KeyboardInterrupt:
            raise Interrupted("the command was stopped.") from None

    return wrapper
