"""ChatMagics: what IPython registers; each line command says what it does in its help."""

from __future__ import annotations

import argparse
import shlex

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from llamanb.history import History
from llamanb.magics.arguments import CHAT_HELP, line_parser
from llamanb.magics.chat import ask, current_request
from llamanb.magics.mistakes import one_line
from llamanb.messages import preview
from llamanb.rendering import transcript_markdown, tree_text
from llamanb.runtime import Runtime
from llamanb.session import ChatSession

__all__ = ["ChatMagics"]


@magics_class
class ChatMagics(Magics):
    """The commands of a notebook that talks."""

    def __init__(self, shell: InteractiveShell, runtime: Runtime) -> None:
        super().__init__(shell)
        self.runtime = runtime

    @line_cell_magic
    @no_var_expand
    @one_line
    def chat(self, line: str, cell: str | None = None) -> None:
        ask(self._interactive_shell, self.runtime, line, cell)

    chat.__doc__ = CHAT_HELP

    @line_magic
    @no_var_expand
    @one_line
    def chat_fork(self, line: str) -> None:
        """%chat_fork NAME [--at REF] [--prompt TEXT]     Make a branch, and a new cell on it below.

          --at REF        where it starts: a message id, an index into the active path
                          (-1 is the last message), or a branch's name; default: the tip
          --prompt TEXT   what the new cell asks
          -s NAME         in another session

        The active branch stays what it is; the new cell names its branch. Running this
        again does nothing while the conversation before the fork is the same.

          Example:   %chat_fork cheaper --at 2 --prompt "And for half the price?"
        """
        arguments = self._parse(line, "%chat_fork", self.chat_fork.__doc__, "name", options=("--at", "--prompt"))
        session = self._session(arguments)
        history = session.history
        cell = current_request(self._interactive_shell).cell
        record = history.branches.get(arguments.name)
        if record is not None and cell is not None and record.made_by == cell:
            print(_refork(history, arguments.name, arguments.at))
            return
        branch = session.fork(arguments.name, at=arguments.at)
        history.note_maker(branch.name, cell, arguments.at)
        print(f"Branch {branch.name!r} starts {_after(history, branch.tip)}.\nIts cell is below.")
        self._interactive_shell.set_next_input(_cell_source(arguments), replace=False)

    @line_magic
    @no_var_expand
    @one_line
    def chat_switch(self, line: str) -> None:
        """%chat_switch NAME     Make a branch the active one: new cells go on there.

        -s NAME     in another session

        Example:   %chat_switch cheaper
        """
        arguments = self._parse(line, "%chat_switch", self.chat_switch.__doc__, "name")
        branch = self._session(arguments).switch(arguments.name)
        print(f"New cells go on with branch {branch.name!r}.")

    @line_magic
    @no_var_expand
    @one_line
    def chat_branches(self, line: str) -> None:
        """%chat_branches     List the branches: how long they are, where they start, how they end.

        -s NAME     of another session

        Example:   %chat_branches
        """
        history = self._session(self._parse(line, "%chat_branches", self.chat_branches.__doc__)).history
        width = max(len(name) for name in history.branches)
        for name, record in history.branches.items():
            path = history.branch_path(name)
            mark = "*" if name == history.active else " "
            origin = f" from {record.from_branch}" if record.from_branch else ""
            last = f"  {path[-1].role}: {preview(path[-1].text)}" if path else "  (empty)"
            print(f"{mark} {name:<{width}}  {len(path):>3} messages{origin}{last}")

    @line_magic
    @no_var_expand
    @one_line
    def chat_tree(self, line: str) -> None:
        """%chat_tree     Draw the conversation as a tree: ● is on the active path, ◀ names a branch.

        -s NAME     of another session

        Example:   %chat_tree
        """
        session = self._session(self._parse(line, "%chat_tree", self.chat_tree.__doc__))
        display({"text/plain": tree_text(session.history)}, raw=True)

    @line_magic
    @no_var_expand
    @one_line
    def chat_history(self, line: str) -> None:
        """%chat_history [BRANCH]     Show a branch from its start; by default the active one.

        -s NAME     of another session

        Example:   %chat_history cheaper
        """
        arguments = self._parse(line, "%chat_history", self.chat_history.__doc__, "branch?")
        session = self._session(arguments)
        messages = session.branch(arguments.branch or session.active.name).messages
        plain = "\n\n".join(f"{message.role}: {message.text}" for message in messages)
        shown = transcript_markdown(messages) or "*(no messages yet)*"
        display({"text/markdown": shown, "text/plain": plain or "(no messages yet)"}, raw=True)

    @line_magic
    @no_var_expand
    @one_line
    def chat_context(self, line: str) -> None:
        """%chat_context [BRANCH]     Show the exact prompt that the model has before it, with its token count.

          -s NAME     of another session

        What comes next is added to it: your message and the start of the answer.

          Example:   %chat_context
        """
        arguments = self._parse(line, "%chat_context", self.chat_context.__doc__, "branch?")
        session = self._session(arguments)
        branch = session.branch(arguments.branch or session.active.name)
        print(f"{branch.n_tokens} of {session.engine.n_ctx} tokens on branch {branch.name!r}:\n")
        print(branch.render_preface())

    # -- shared -------------------------------------------------------------------------------------------------

    @property
    def _interactive_shell(self) -> InteractiveShell:
        shell = self.shell
        assert isinstance(shell, InteractiveShell)
        return shell

    def _parse(
        self, line: str, name: str, help_text: str | None, *positional: str, options: tuple[str, ...] = ()
    ) -> argparse.Namespace:
        parser = line_parser(name, help_text or "", *positional, options=options)
        try:
            words = shlex.split(line)
        except ValueError:
            parser.error("a quote is not closed")
        return parser.parse_line(words)

    def _session(self, arguments: argparse.Namespace) -> ChatSession:
        return self.runtime.session(arguments.session)


def _refork(history: History, name: str, at: str | None) -> str:
    """Run a fork again: move the branch where the conversation before it changed."""
    record = history.branch(name)
    point = history.fork_point(name, at)
    if point == record.forked_from:
        return f"Branch {name!r} starts {_after(history, point)}, as before."
    below = {cell for cell, entries in history.cells.items() if any(entry.branch == name for entry in entries)}
    history.restart(name, point, at)
    history.stale |= below
    return f"Branch {name!r} starts {_after(history, point)} now, because the conversation before it changed."


def _after(history: History, point: str | None) -> str:
    if point is None:
        return "at the beginning"
    message = history.messages[point]
    return f"after the {message.role} message {preview(message.text, 24)!r}"


def _cell_source(arguments: argparse.Namespace) -> str:
    where = f" -s {shlex.quote(arguments.session)}" if arguments.session else ""
    return f"%%chat{where} --branch {shlex.quote(arguments.name)}\n{arguments.prompt or ''}"
