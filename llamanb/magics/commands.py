"""ChatMagics: what IPython registers; each line command says what it does in its help."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from IPython.core.magic import line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from llamanb.context_html import context_html
from llamanb.history import History
from llamanb.magics.arguments import CHAT_HELP
from llamanb.magics.base import ChatCommands
from llamanb.magics.chat import ask, current_request
from llamanb.magics.display import View, bundle
from llamanb.magics.mistakes import one_line
from llamanb.messages import preview
from llamanb.rendering import transcript_markdown, tree_text
from llamanb.session import ChatSession
from llamanb.snapshots import Snapshots
from llamanb.tree_picture import tree_svg
from llamanb.wording import counted, quoted, size

__all__ = ["ChatMagics"]


@magics_class
class ChatMagics(ChatCommands):
    """Asking, forking, and looking at what there is."""

    @line_cell_magic
    @no_var_expand
    @one_line
    def chat(self, line: str, cell: str | None = None) -> None:
        ask(self.ipython, self.runtime, self.displays, line, cell)

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
        arguments = self.parse("chat_fork", line)
        session = self.session(arguments)
        history = session.history
        cell = current_request(self.ipython).cell
        record = history.branches.get(arguments.name)
        if record is not None and cell is not None and record.made_by == cell:
            print(_refork(history, arguments.name, arguments.at))
            return
        branch = session.fork(arguments.name, at=arguments.at)
        history.note_maker(branch.name, cell, arguments.at)
        print(f"Branch {branch.name!r} starts {_after(history, branch.tip)}.\nIts cell is below.")
        source = _cell_source(arguments)
        if not self.runtime.insert_cell(current_request(self.ipython), source):
            self.ipython.set_next_input(source, replace=False)

    @line_magic
    @no_var_expand
    @one_line
    def chat_switch(self, line: str) -> None:
        """%chat_switch NAME     Make a branch the active one: new cells go on there.

          -s NAME     in another session

        Cells that have answered before keep their branch.

          Example:   %chat_switch cheaper
        """
        arguments = self.parse("chat_switch", line)
        branch = self.session(arguments).switch(arguments.branch)
        print(f"New cells go on with branch {branch.name!r}.")

    @line_magic
    @no_var_expand
    @one_line
    def chat_branches(self, line: str) -> None:
        """%chat_branches     List the branches: how long they are, where they start, how they end.

          -s NAME     of another session

        The active one has a star.

          Example:   %chat_branches
        """
        history = self.session(self.parse("chat_branches", line)).history
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
        """%chat_tree     Draw the conversation as a tree; as text where pictures cannot be shown.

          -s NAME     of another session

        The active path is bold, and a label stands where a branch ends. What no branch leads to
        is dim. In the text, ● is on the active path and ◀ names a branch.

          Example:   %chat_tree
        """
        session = self.session(self.parse("chat_tree", line))
        history = session.history
        self._view(session, {"image/svg+xml": tree_svg(history), "text/plain": tree_text(history)}, history.order)

    @line_magic
    @no_var_expand
    @one_line
    def chat_history(self, line: str) -> None:
        """%chat_history [BRANCH]     Show a branch from its start; by default the active one.

          -s NAME     of another session

        Each message stands below its role.

          Example:   %chat_history cheaper
        """
        arguments = self.parse("chat_history", line)
        session = self.session(arguments)
        messages = session.branch(arguments.branch or session.active.name).messages
        plain = "\n\n".join(f"{message.role}: {message.text}" for message in messages)
        shown = transcript_markdown(messages) or "*(no messages yet)*"
        data = {"text/markdown": shown, "text/plain": plain or "(no messages yet)"}
        self._view(session, data, [message.id for message in messages])

    @line_magic
    @no_var_expand
    @one_line
    def chat_show(self, line: str) -> None:
        """%chat_show [BRANCH]     Show the last answers again; of a branch, its last one.

          -s NAME     of another session

        Several answers of one cell stand side by side again.

          Example:   %chat_show
        """
        arguments = self.parse("chat_show", line)
        session = self.session(arguments)
        shown = self.displays.last(self.runtime.name_of(session)) if arguments.branch is None else None
        if shown is not None:
            shown.show_again()
            return
        messages = session.branch(arguments.branch or session.active.name).messages
        answers = [message for message in messages if message.role == "assistant"][-1:]
        data = bundle(answers[0].text, "md") if answers else {"text/plain": "(no answers yet)"}
        self._view(session, data, [answer.id for answer in answers])

    @line_magic
    @no_var_expand
    @one_line
    def chat_panel(self, line: str) -> None:
        """%chat_panel     Show the conversation in a panel, to go on with it there.

          -s NAME     another session

        Cells and the panel are one conversation. Shown twice, it is one panel in two places.

          Example:   %chat_panel
        """
        display(self.runtime.panel(self.session(self.parse("chat_panel", line))))

    @line_magic
    @no_var_expand
    @one_line
    def chat_context(self, line: str) -> None:
        """%chat_context [BRANCH]     Show the exact prompt that the model has, and count its tokens.

          --cached    mark what of it is in the cache (which differs from run to run)
          -s NAME     of another session

        What comes next is added to it: your message and the start of the answer.

          Example:   %chat_context
        """
        arguments = self.parse("chat_context", line)
        session = self.session(arguments)
        branch = session.branch(arguments.branch or session.active.name)
        parts = branch.context()
        n_tokens = sum(part.n_tokens for part in parts)
        n_gone = len(branch.messages) - sum(len(part.messages) for part in parts)
        gone = f" ({counted(n_gone, 'earlier message')} left out)" if n_gone else ""
        heading = f"{n_tokens} of {session.engine.n_ctx} tokens on branch {branch.name!r}{gone}:"
        pins = session.history.pins
        counts = [
            f"{part.role}: {counted(part.n_tokens, 'token')}"
            + (f", {part.n_cached:,} cached" if arguments.cached else "")
            + (", pinned" if part.holds(pins) else "")
            for part in parts
        ]
        plain = "\n\n".join(filter(None, [heading, "".join(part.text for part in parts), "\n".join(counts)]))
        data = {"text/html": context_html(heading, parts, pins, cached=arguments.cached), "text/plain": plain}
        self._view(session, data, [message.id for part in parts for message in part.messages])

    @line_magic
    @no_var_expand
    @one_line
    def chat_cache(self, line: str) -> None:
        """%chat_cache     Show what the model's cache holds, in memory and on disk.

          --clear     remove what is on disk, of all notebooks
          -s NAME     of another session

        Snapshots on disk let a conversation go on at once after a restart. They are never in
        the notebook; %chat_config snapshots=off keeps none, and --snapshot-cache limits them.

          Example:   %chat_cache
        """
        arguments = self.parse("chat_cache", line)
        snapshots = self.runtime.snapshots or Snapshots()
        if arguments.clear:
            print(f"Removed {counted(snapshots.clear(), 'snapshot')}.")
            return
        stats = self.session(arguments).engine.stats()
        parked = f" and {counted(stats.n_parked, 'parked one')} ({size(stats.parked_bytes)})" if stats.n_parked else ""
        held = f"{stats.n_cells_used:,} of {stats.n_cells:,} tokens in {counted(stats.n_sequences, 'sequence')}"
        print(f"In memory: {held}{parked}.")
        if self.runtime.snapshots is None:
            why = (
                "nobody is at this notebook"
                if self.runtime.settings.snapshots
                else "%chat_config snapshots=on turns it on"
            )
            print(f"On disk: off ({why}).")
            return
        entries = snapshots.entries()
        taken = size(sum(info.n_bytes for info in entries))
        print(f"On disk: {counted(len(entries), 'snapshot')}, {taken} of at most {size(snapshots.max_bytes)}.")

    def _view(self, session: ChatSession, data: dict[str, str], ids: Iterable[str]) -> None:
        """Display something of a session, in a way that pruning finds."""
        self.displays.add(self.runtime.name_of(session), View(data, ids))


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
    where = f" -s {quoted(arguments.session)}" if arguments.session else ""
    return f"%%chat{where} --branch {quoted(arguments.name)}\n{arguments.prompt or ''}"
