"""What the groups of commands have in common: the runtime, the displays, and how a line is parsed."""

from __future__ import annotations

import argparse
import shlex

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics

from llamanb.errors import InvalidArgumentError
from llamanb.magics.arguments import line_parser
from llamanb.magics.chat import current_request
from llamanb.magics.display import Displays
from llamanb.runtime import Runtime
from llamanb.session import ChatSession
from llamanb.wording import quoted

__all__ = ["ChatCommands"]


class ChatCommands(Magics):
    """A group of commands of a notebook that talks."""

    def __init__(self, shell: InteractiveShell, runtime: Runtime, displays: Displays) -> None:
        super().__init__(shell)
        self.runtime = runtime
        self.displays = displays

    @property
    def ipython(self) -> InteractiveShell:
        """The shell, of which there is one."""
        shell = self.shell
        assert isinstance(shell, InteractiveShell)
        return shell

    def parse(self, name: str, line: str) -> argparse.Namespace:
        """Read the line of a magic; the errors name it."""
        parser = line_parser(name)
        try:
            words = shlex.split(line)
        except ValueError:
            parser.error("a quote is not closed")
        return parser.parse_line(words)

    def session(self, arguments: argparse.Namespace) -> ChatSession:
        """Return the session that the arguments name; `%%chat -s` alone makes new ones."""
        self.runtime.meet()
        name, there = arguments.session, self.runtime.names
        if name is not None and name not in there:
            listed = f"; there is {', '.join(map(repr, there))}" if there else ""
            raise InvalidArgumentError(f"There is no session {name!r}{listed}. %%chat -s {quoted(name)} makes it.")
        return self.runtime.session(name)

    def confirmed(self, question: str, *, yes: bool) -> bool:
        """Ask before something is gone for good; where nobody can answer, that is refused unless `yes` was given."""
        if yes:
            return True
        in_kernel = hasattr(self.ipython, "get_parent")
        if in_kernel and not current_request(self.ipython).watched:
            raise InvalidArgumentError(f"{question} Nobody can be asked here; say yes with -y.")
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
