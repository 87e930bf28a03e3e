"""SessionState: all that a session holds at one time, kept in memory."""

from __future__ import annotations

from dataclasses import dataclass

from llamanb.history import History
from llamanb.sampling import SamplingParams
from llamanb.transforms import Transforms

__all__ = ["SessionState"]


@dataclass(frozen=True, repr=False)
class SessionState:
    """What a session holds at one time; it does not change with the session. `llamanb.ChatSession.state` makes one.

    Parameters
    ----------
    history
        The tree.
    system
        The system prompt of new branches.
    sampling
        How answers are sampled.
    transforms
        The transforms.
    overflow
        What is done with a prompt that does not fit.
    """

    history: History
    system: str | None
    sampling: SamplingParams
    transforms: Transforms
    overflow: str

    def copy(self) -> SessionState:
        """Return a copy that shares nothing that can change."""
        return SessionState(self.history.copy(), self.system, self.sampling, self.transforms.copy(), self.overflow)

    def __repr__(self) -> str:
        return f"<SessionState, {len(self.history.messages)} messages, active branch {self.history.active!r}>"
