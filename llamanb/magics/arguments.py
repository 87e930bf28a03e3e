"""Parsing a magic's line: options as in a shell, mistakes as one sentence, help on one screen."""

from __future__ import annotations

import argparse
import io
import shlex
from enum import Enum
from typing import Any, NoReturn

from llamanb.errors import InvalidArgumentError
from llamanb.sampling import MAX_SEED

__all__ = [
    "HelpRequest",
    "Kind",
    "MagicParser",
    "chat_parser",
    "line_names",
    "line_parser",
    "raw_words",
    "split_options",
]

CHAT_HELP = """\
%%chat [options]          Ask the model; the rest of the cell is the prompt.
%chat [options] TEXT      The same on one line.

  The cells above are the conversation. Running a cell again replaces its answer.

  -s, --session NAME      talk to another session; a new name makes one
  -b, --branch NAME       answer on this branch
      --fork NAME[,NAME]  answer on a new branch that starts here; several side by side
      --at REF            ... or there: a message id, an index, a branch's name
  -n N                    N answers at this place; the first is gone on from
  -m, --model PATH        let another model answer
      --system TEXT       the system prompt, while the branch is empty
  -t, --temperature T     0 is greedy; default 0.7
      --top-p, --top-k, --min-p N, --seed N
      --max-tokens N      the longest answer; default 512; 0 only reads the prompt
      --stop TEXT         end the answer before this text; may be repeated
      --json-schema VAR   answer in JSON that fits this schema, a dict of yours
      --grammar VAR       answer by this GBNF grammar, a string of yours
      --pin               keep this exchange in the prompt whatever does not fit
  -f, --format FORMAT     md (default), text, json or code
  -o, --out VAR           put the Reply into a variable; of several a dict or list
      --no-stream         show the answer when it is whole
      --raw               leave {braces} alone; else {name} is your variable

  Example:   %%chat --fork shorter -t 0
             Say it in one sentence."""


class HelpRequest(Exception):  # noqa: N818  (asking for help is no error)
    """The line asks for help."""


class Kind(Enum):
    """What a value names; tab completion offers those, and nothing else."""

    BRANCH = "branch"
    NEW_BRANCH = "new branch"
    SESSION = "session"
    VARIABLE = "variable"
    MODEL = "model"
    NOTEBOOK = "notebook"
    FOLDER = "folder"
    SETTING = "setting"
    TEXT = "text"


_KINDS = {
    "--session": Kind.SESSION,
    "--branch": Kind.BRANCH,
    "--fork": Kind.NEW_BRANCH,
    "--at": Kind.BRANCH,
    "--model": Kind.MODEL,
    "--json-schema": Kind.VARIABLE,
    "--grammar": Kind.VARIABLE,
    "--out": Kind.VARIABLE,
}


_POSITIONAL_KINDS = {
    "branch": Kind.BRANCH,
    "other": Kind.BRANCH,
    "setting": Kind.SETTING,
    "path": Kind.NOTEBOOK,
    "folder": Kind.FOLDER,
}


class MagicParser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process."""

    def __init__(self, name: str, help_text: str) -> None:
        super().__init__(prog=name, add_help=False, allow_abbrev=False)
        self.help_text = help_text
        self.add_argument("-h", "--help", action="store_true")

    def error(self, message: str) -> NoReturn:
        """Raise the mistake as one sentence."""
        raise InvalidArgumentError(f"{self.prog}: {message}. Try {self.prog} --help.")

    def parse_line(self, words: list[str]) -> argparse.Namespace:
        """Parse words; asked for help, raise `HelpRequest` whatever else they say."""
        if "-h" in words or "--help" in words:
            raise HelpRequest
        return self.parse_args(words)

    @property
    def valued(self) -> set[str]:
        """The options that take a value."""
        return {text for action in self._actions if action.nargs is None for text in action.option_strings}

    @property
    def flags(self) -> set[str]:
        """The options that take none."""
        return {text for action in self._actions if action.nargs == 0 for text in action.option_strings}

    def takes(self, option: str) -> tuple[Kind, tuple[str, ...]]:
        """Return what an option's value names, and its only values where it has a list of them."""
        (action,) = [action for action in self._actions if option in action.option_strings]
        kinds = [_KINDS[text] for text in action.option_strings if text in _KINDS]
        return (kinds[0] if kinds else Kind.TEXT), tuple(action.choices or ())

    def positional(self, index: int) -> Kind:
        """Return what the word at an index names."""
        words = [action for action in self._actions if not action.option_strings]
        if words and words[-1].nargs == "*":
            index = min(index, len(words) - 1)
        return _POSITIONAL_KINDS.get(words[index].dest, Kind.TEXT) if index < len(words) else Kind.TEXT


def line_names() -> list[str]:
    """Return the names of the line magics, without the percent sign, but for `%chat`."""
    return list(_LINE_MAGICS)


def chat_parser(name: str) -> MagicParser:
    """Return the parser of `%%chat` and `%chat`."""
    parser = MagicParser(name, CHAT_HELP)
    for flags in (("-s", "--session"), ("-b", "--branch"), ("--fork",), ("--at",), ("-m", "--model"), ("--system",)):
        parser.add_argument(*flags)
    parser.add_argument("-n", dest="n", type=_whole, default=1)
    _add_sampling(parser)
    parser.add_argument("--json-schema")
    parser.add_argument("--grammar")
    _add_display(parser)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--raw", action="store_true")
    return parser


def _add_sampling(parser: MagicParser) -> None:
    parser.add_argument("-t", "--temperature", type=_number)
    parser.add_argument("--max-tokens", type=_whole)
    parser.add_argument("--seed", type=_seed)
    parser.add_argument("--top-p", type=_number)
    parser.add_argument("--top-k", type=_whole)
    parser.add_argument("--min-p", type=_number)
    parser.add_argument("--stop", action="append")


def _add_display(parser: MagicParser) -> None:
    parser.add_argument("-f", "--format", choices=("md", "text", "json", "code"), default=None)
    parser.add_argument("-o", "--out")
    parser.add_argument("--no-stream", action="store_true")


def line_parser(name: str, help_text: str = "") -> MagicParser:
    """Return the parser of a line magic, by its name without the percent sign."""
    parser = MagicParser(f"%{name}", help_text)
    if name != "chat_config":
        parser.add_argument("-s", "--session")
    for argument in _LINE_MAGICS[name]:
        if argument.startswith("-"):
            parser.add_argument(*argument.split("/"), action="store_true" if argument in _FLAGS else "store")
        else:
            many = {"?": "?", "*": "*"}.get(argument[-1])
            parser.add_argument(argument.rstrip("?*"), nargs=many)
    if name == "chat_regenerate":
        _add_sampling(parser)
        _add_display(parser)
    return parser


_LINE_MAGICS: dict[str, tuple[str, ...]] = {
    "chat_fork": ("name", "--at", "--prompt"),
    "chat_switch": ("branch",),
    "chat_adopt": ("other", "-b/--branch"),
    "chat_rewind": ("n?", "-b/--branch"),
    "chat_regenerate": ("-b/--branch",),
    "chat_pin": ("ref?", "-b/--branch", "--off"),
    "chat_reset": ("--all", "-y/--yes"),
    "chat_prune": ("-y/--yes",),
    "chat_branches": (),
    "chat_tree": (),
    "chat_panel": (),
    "chat_history": ("branch?",),
    "chat_show": ("branch?",),
    "chat_context": ("branch?", "--cached"),
    "chat_save": ("folder", "--cache"),
    "chat_load": ("path?", "--no-transforms"),
    "chat_cache": ("--clear",),
    "chat_config": ("setting*", "--default", "--snapshot-cache"),
}
"""The arguments of the line magics: words (``?``: may be missing, ``*``: any number) and options."""

_FLAGS = ("--all", "-y/--yes", "--default", "--cache", "--no-transforms", "--clear", "--cached", "--off")


def raw_words(line: str, *, brackets: bool = False) -> list[str]:
    """Split a line at spaces outside of quotes, and with `brackets` of brackets, and leave them where they are.

    The last word is what stands after the last of these spaces, which may be nothing.
    """
    words, start, quote, depth = [], 0, "", 0
    for index, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif brackets and character in "[](){}":
            depth += 1 if character in "[({" else -1
        elif character.isspace() and depth <= 0:
            words.append(line[start:index])
            start = index + 1
    return [*(word for word in words if word), line[start:]]


def split_options(line: str, parser: MagicParser) -> tuple[list[str], str]:
    """Split a line into its leading options and the text after them, which is returned as it was written.

    Raises
    ------
    InvalidArgumentError
        A quote among the options is not closed.
    """
    words: list[str] = []
    at = 0
    while True:
        rest = line[at:]
        start = at + len(rest) - len(rest.lstrip())
        if not line.startswith("-", start):
            return words, line[start:]
        word, end = _word(line, start, parser)
        name = word.split("=", 1)[0]
        if word == "--":
            return words, line[end:].lstrip()
        if name not in parser.valued and name not in parser.flags:
            if word == "-" or word[1:2].isdigit():  # a dash or a negative number starts the text
                return words, line[start:]
            parser.error(f"there is no option {word}")
        words.append(word)
        at = end
        if word in parser.valued:
            if not line[at:].strip():
                parser.error(f"{word} needs a value")
            word, at = _word(line, at, parser)
            words.append(word)


def _word(line: str, start: int, parser: MagicParser) -> tuple[str, int]:
    """Read one word by the rules of a POSIX shell; return it and the place after it."""
    stream = io.StringIO(line[start:])
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        word = lexer.get_token()
    except ValueError:
        parser.error("a quote is not closed")
    return word or "", start + stream.tell()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _seed(text: str) -> Any:
    if text == "random":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number up to {MAX_SEED}, or random") from None
