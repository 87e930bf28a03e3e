"""ChangeMagics: commands that change the conversation; each says what it does in its help."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython.core.magic import line_magic, magics_class, no_var_expand

from llamanb.errors import InvalidArgumentError
from llamanb.history import History
from llamanb.magics.arguments import line_parser, raw_words
from llamanb.magics.base import ChatCommands
from llamanb.magics.chat import regenerate
from llamanb.magics.mistakes import one_line
from llamanb.messages import preview
from llamanb.persistence.directory import has_cache
from llamanb.persistence.live import Sessions
from llamanb.persistence.notebook import fold_outputs, read_document, read_notebook
from llamanb.session import ChatSession
from llamanb.settings import ChatConfig
from llamanb.wording import counted

__all__ = ["ChangeMagics"]


@magics_class
class ChangeMagics(ChatCommands):
    """What changes a conversation that is there."""

    @line_magic
    @no_var_expand
    @one_line
    def chat_regenerate(self, line: str) -> None:
        """%chat_regenerate [options]     Answer the last question again.

          -b, --branch NAME   on this branch; default: the active one
          -t, --temperature T and the other options of %%chat about sampling and display
          -o, --out VAR       put the Reply into a variable
          -s NAME             in another session

        The seed counts up, so that the answer differs; at temperature 0 it is the same.
        The cell that asked now owns the new answer, and the old one stays in the tree.

          Example:   %chat_regenerate -t 1
        """
        regenerate(self.ipython, self.runtime, self.displays, self.parse("chat_regenerate", line))

    @line_magic
    @no_var_expand
    @one_line
    def chat_rewind(self, line: str) -> None:
        """%chat_rewind [N]     Take the last N exchanges off the branch; default 1.

          -b, --branch NAME   off this branch; default: the active one
          -s NAME             in another session

        They stay in the tree: %chat_tree shows them, and %%chat --fork NAME --at ID
        goes on from there.

          Example:   %chat_rewind 2
        """
        arguments = self.parse("chat_rewind", line)
        session = self.session(arguments)
        branch = session.branch(arguments.branch or session.active.name)
        branch.rewind(_whole(arguments.n or "1"))
        print(f"Branch {branch.name!r} ends {_where(session.history, branch.name)} now.")

    @line_magic
    @no_var_expand
    @one_line
    def chat_adopt(self, line: str) -> None:
        """%chat_adopt NAME     Let the active branch go on from where branch NAME ends.

          -b, --branch NAME   let this branch do so; default: the active one
          -s NAME             in another session

        What the branch said until now stays in the tree.

          Example:   %chat_adopt cheaper
        """
        arguments = self.parse("chat_adopt", line)
        session = self.session(arguments)
        branch = session.branch(arguments.branch or session.active.name)
        branch.adopt(arguments.other)
        print(f"Branch {branch.name!r} ends {_where(session.history, branch.name)} now.")

    @line_magic
    @no_var_expand
    @one_line
    def chat_pin(self, line: str) -> None:
        """%chat_pin [REF]     Keep a message, and its exchange, in the prompt whatever does not fit.

          --off               let it be left out again
          -b, --branch NAME   on this branch; default: the active one
          -s NAME             in another session

        REF is a message id or an index into the branch; by default its last message. It matters
        with %chat_config overflow=drop_oldest or summarise. %%chat --pin does it as it asks.

          Example:   %chat_pin 1
        """
        arguments = self.parse("chat_pin", line)
        session = self.session(arguments)
        branch = session.branch(arguments.branch or session.active.name)
        at = -1 if arguments.ref is None else arguments.ref
        message = branch.unpin(at) if arguments.off else branch.pin(at)
        said = f"The {message.role} message {preview(message.text, 40)!r}"
        print(f"{said} may be left out again." if arguments.off else f"{said} stays in the prompt.")

    @line_magic
    @no_var_expand
    @one_line
    def chat_reset(self, line: str) -> None:
        """%chat_reset     Begin again: take everything but the system prompt off the active branch.

          --all       remove all branches and messages for good, after asking
          -y, --yes   ... without asking
          -s NAME     in another session

        Without --all nothing is lost: what was said stays in the tree until %chat_prune.

          Example:   %chat_reset
        """
        arguments = self.parse("chat_reset", line)
        session = self.session(arguments)
        if not arguments.all:
            session.active.rewind(len(session.history.exchanges(session.active.name)))
            print(f"Branch {session.active.name!r} is at its beginning; what was said stays in the tree.")
            return
        everything = list(session.history.messages)
        self._remove(session, everything, session.clear, "all ", yes=arguments.yes)

    @line_magic
    @no_var_expand
    @one_line
    def chat_prune(self, line: str) -> None:
        """%chat_prune     Remove the messages that no branch leads to, for good, after asking.

          -y, --yes   without asking
          -s NAME     in another session

        They go out of the tree, the file, and the outputs that show them. (Outputs that an
        earlier kernel made are reached in JupyterLab and Notebook alone.)

          Example:   %chat_prune
        """
        arguments = self.parse("chat_prune", line)
        session = self.session(arguments)
        gone = session.history.unreachable()
        if not gone:
            print("Every message is on a branch; there is nothing to remove.")
        else:
            self._remove(session, gone, session.prune, "", yes=arguments.yes)

    @line_magic
    @no_var_expand
    @one_line
    def chat_save(self, line: str) -> None:
        """%chat_save FOLDER     Save the session to a folder of its own, to go on elsewhere.

          --cache   save the model's cache too, so that nothing is read again there
          -s NAME   another session

        The notebook holds its conversations by itself; this is for taking one to another
        notebook or a script. The folder may hold a session already, and else must be new.

          Example:   %chat_save talks/colours
        """
        arguments = self.parse("chat_save", line)
        session = self.session(arguments)
        session.save(arguments.folder, cache=arguments.cache)
        beside = ", with the cache of its active path" if arguments.cache else ""
        print(f"Saved {_counted(session.history)} to {arguments.folder!r}{beside}.")

    @line_magic
    @no_var_expand
    @one_line
    def chat_load(self, line: str) -> None:
        """%chat_load PATH     Take in a session from a folder, or those that another notebook holds.

          --no-transforms   leave out the transforms that were saved in the folder
          -s NAME           take what is in the folder into this session; a new name makes one

        What is here stays. A branch that both have, and that goes on differently, is kept
        as NAME@2. This notebook's own are restored by themselves in JupyterLab and Notebook;
        in VS Code, %chat_load without a path does it.

          Example:   %chat_load yesterday.ipynb
        """
        arguments = self.parse("chat_load", line)
        own = self.ipython.user_ns.get("__vsc_ipynb_file__")  # set by VS Code
        path = arguments.path or own
        if path is None:
            raise InvalidArgumentError("%chat_load: give the path of a notebook, or of a folder with a saved session.")
        path = Path(path).expanduser()
        if not path.exists():
            raise InvalidArgumentError(f"There is no notebook or folder {str(path)!r}.")
        if path.is_dir():
            self._load_folder(path, arguments.session, transforms=not arguments.no_transforms)
            return
        if arguments.session is not None or arguments.no_transforms:
            raise InvalidArgumentError("%chat_load: -s and --no-transforms are for folders; a notebook names its own.")
        notebook = read_notebook(path)
        document = read_document(notebook.metadata)
        fold_outputs(notebook, document)
        if not document.sessions:
            raise InvalidArgumentError(f"%chat_load: there is no conversation in {str(path)!r}.")
        self._take_in(document.sessions)

    def _load_folder(self, path: Path, name: str | None, *, transforms: bool) -> None:
        """Take what was saved in a folder into a session."""
        is_new = (self.runtime.active_name if name is None else name) not in self.runtime.names
        session = self.runtime.session(name)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                saved = ChatSession.load(path, session.engine, transforms=transforms)
        except BaseException:
            if is_new:
                self.runtime.forget(session)
            raise
        self._take_in({self.runtime.name_of(session): saved.to_dict()})
        if not session.transforms.any:
            session.transforms = saved.transforms
        elif saved.transforms.any:
            print("The session keeps the transforms that it has; those in the folder were left out.")
        for warning in warned:
            print(warning.message)
        if not has_cache(path):
            print(f"No cache was saved with it: the next answer reads its {counted(saved.n_tokens, 'token')}.")

    def _take_in(self, sessions: Sessions) -> None:
        for name, history in self.runtime.take_in(sessions).items():
            print(f"Session {name!r} has {_counted(history)} now: {', '.join(history.branches)}.")

    @line_magic
    @no_var_expand
    @one_line
    def chat_config(self, line: str) -> None:
        """%chat_config [NAME[=VALUE] ...]     Show or change settings.

          --default               put the named ones back to their defaults; without names, all
          --snapshot-cache SIZE   the same as snapshot_cache=SIZE

        Sampling and overflow change in the active session and in new ones. For all notebooks,
        write c.ChatConfig.NAME = VALUE in IPython's configuration file.

          Example:   %chat_config temperature=0.2 max_tokens=200
        """
        arguments = line_parser("chat_config").parse_line([word for word in raw_words(line, brackets=True) if word])
        if arguments.snapshot_cache is not None:
            arguments.setting.append(f"snapshot_cache={arguments.snapshot_cache}")
        settings = self.runtime.settings
        pairs = [word.partition("=") for word in arguments.setting]
        if any(word.startswith("=") or word.endswith("=") for word in arguments.setting):
            raise InvalidArgumentError("%chat_config: write NAME=VALUE without spaces around the sign.")
        for name, _, _ in pairs:
            _check_setting(name, settings.names())
        trial = ChatConfig()  # so that nothing changes where one of several values is wrong
        values = {name: trial.read(name, value) for name, equals, value in pairs if equals}
        if arguments.default:
            values = {name: settings.default(name) for name in [name for name, _, _ in pairs] or settings.names()}
        for name, value in values.items():
            self._set(name, value)
        for name in [name for name, _, _ in pairs] or settings.names():
            value = getattr(settings, name)
            print(f"{name:<18} {value!r}{'' if value == settings.default(name) else '  *'}")
            if len(pairs) == 1 and not values:
                print(settings.traits()[name].help)

    def _set(self, name: str, value: Any) -> None:
        setattr(self.runtime.settings, name, value)
        session = self.runtime.sessions.get(self.runtime.active_name)
        if session is not None and self.runtime.settings.is_sampling(name):
            session.sampling = session.sampling.replace(**{name: value})
        elif session is not None and name == "overflow":
            session.overflow = value

    def _remove(self, session: ChatSession, ids: list[str], act: Callable[[], Any], all_: str, *, yes: bool) -> None:
        """Remove messages for good, after asking."""
        if not self.confirmed(f"Remove {all_}{counted(len(ids), 'message')} for good?", yes=yes):
            print("Nothing was removed.")
            return
        self.runtime.remove(session, ids, act)
        print(f"Removed {counted(len(ids), 'message')}.")


def _counted(history: History) -> str:
    branches = counted(len(history.branches), "branch", "branches")
    return f"{counted(len(history.messages), 'message')} on {branches}"


def _check_setting(name: str, names: list[str]) -> None:
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"Did you mean {near[0]!r}?" if near else "%chat_config lists them."
        raise InvalidArgumentError(f"%chat_config: there is no setting {name!r}. {hint}")


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidArgumentError(f"%chat_rewind: {text!r} is not a number of exchanges.")
    return int(text)


def _where(history: History, branch: str) -> str:
    path = history.branch_path(branch)
    return f"after the {path[-1].role} message {preview(path[-1].text, 40)!r}" if path else "at its beginning"
