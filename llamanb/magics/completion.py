"""Tab completion: at each place of a magic's line what can stand there, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher
from IPython.core.interactiveshell import InteractiveShell

from llamanb.magics.arguments import Kind, MagicParser, chat_parser, line_names, line_parser, raw_words
from llamanb.runtime import Runtime
from llamanb.wording import quoted

__all__ = ["MATCHER", "Place", "matcher", "place"]

MATCHER = "llamanb"
"""What IPython knows the matcher by."""

_MAGIC = re.compile(r"\s*(?P<percents>%%?)(?P<name>chat\w*)(?P<rest>\s.*)?$", re.DOTALL)
_SUFFIXES = {Kind.MODEL: ".gguf", Kind.NOTEBOOK: ".ipynb", Kind.FOLDER: None}
"""What can be written where a path stands, beside folders."""

_OPEN_BRACE = re.compile(r"(?<!\{)\{(?P<word>[^\W\d]\w*|)$")


@dataclass(frozen=True)
class Place:
    """What is being written.

    Parameters
    ----------
    kind
        What it names; ``None`` for an option.
    word
        What there is of it.
    options
        The options that can stand here.
    choices
        The only values that can stand here, where an option has a list of them.
    session
        The session that the line names.
    """

    kind: Kind | None
    word: str
    options: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    session: str | None = None


def place(text: str) -> Place | None:
    """Return what is being written at the end of `text`, a cell up to the cursor; ``None`` where it is not ours."""
    first, newline, body = text.partition("\n")
    found = _MAGIC.match(first)
    if found is not None and newline:
        if found["percents"] == "%%":
            return _in_prompt(body)
        found = None
    if found is None:  # a line magic may stand anywhere in a cell of code
        found = _MAGIC.match(text.rpartition("\n")[2])
        if found is None or found["percents"] == "%%":
            return None
    name, rest = found["name"], found["rest"]
    if rest is None or (name != "chat" and (name not in line_names() or found["percents"] == "%%")):
        return None  # the name itself, which IPython completes
    parser = chat_parser("chat") if name == "chat" else line_parser(name)
    at = _in_line(parser, rest)
    if at.kind is Kind.TEXT and name == "chat" and found["percents"] == "%":
        return _in_prompt(rest)
    return at


def _in_prompt(text: str) -> Place:
    brace = _OPEN_BRACE.search(text)
    return Place(Kind.VARIABLE, brace["word"]) if brace else Place(Kind.TEXT, "")


def _in_line(parser: MagicParser, rest: str) -> Place:
    *words, word = raw_words(rest)
    session = None
    n_positional = 0
    awaited: str | None = None
    for before in words:
        if awaited is not None:
            session = before.strip("'\"") if awaited in ("-s", "--session") else session
            awaited = None
        elif before.startswith("-"):
            awaited = before if before in parser.valued else None
        else:
            n_positional += 1
    if awaited is None and "=" in word and word.split("=")[0] in parser.valued:
        awaited, word = word.split("=", 1)
    if awaited is not None:
        kind, choices = parser.takes(awaited)
        return Place(kind, word, choices=choices, session=session)
    options = tuple(sorted(option for option in parser.valued | parser.flags if option.startswith("--")))
    if word.startswith("-"):
        return Place(None, word, options, session=session)
    return Place(parser.positional(n_positional), word, options if not word else (), session=session)


def candidates(at: Place, runtime: Runtime, namespace: Mapping[str, Any]) -> list[str]:
    """Return what can be written at a place, as it is written in a line."""
    names = _named(at, runtime, namespace)
    if at.kind in (Kind.BRANCH, Kind.SESSION):
        mark = at.word[:1] if at.word[:1] in ("'", '"') else ""
        start = at.word.strip(mark) if mark else at.word
        names = [f"{mark}{name}{mark}" if mark else quoted(name) for name in names if name.startswith(start)]
    else:
        names = [name for name in names if name.startswith(at.word)]
    return [*names, *(text for text in [*at.choices, *at.options] if text.startswith(at.word))]


def _named(at: Place, runtime: Runtime, namespace: Mapping[str, Any]) -> Iterable[str]:
    if at.kind is Kind.BRANCH:
        session = runtime.sessions.get(runtime.active_name if at.session is None else at.session)
        return list(session.branches) if session is not None else []
    if at.kind is Kind.SESSION:
        return runtime.names
    if at.kind is Kind.SETTING:
        return [f"{name}=" for name in runtime.settings.names()]
    if at.kind is Kind.VARIABLE:
        hidden = ("In", "Out", "exit", "quit", "open", "get_ipython")
        return sorted(
            name
            for name, value in namespace.items()
            if not name.startswith("_") and name not in hidden and not isinstance(value, ModuleType)
        )
    if at.kind in _SUFFIXES:
        suffix = _SUFFIXES[at.kind]
        folder = Path(at.word).parent if not at.word.endswith("/") else Path(at.word)
        prefix = at.word[: at.word.rfind("/") + 1]
        try:
            entries = sorted(folder.expanduser().iterdir())
        except OSError:
            return []
        return [f"{prefix}{e.name}{'/' * e.is_dir()}" for e in entries if e.is_dir() or e.suffix == suffix]
    return []


class _Nothing(list[SimpleCompletion]):
    """No completions: IPython lets a matcher keep others quiet only if it has some itself, and asks how many."""

    def __len__(self) -> int:
        return 1


def matcher(shell: InteractiveShell, runtime: Runtime) -> Any:
    """Return what IPython asks for completions."""

    @context_matcher(identifier=MATCHER)  # type: ignore[untyped-decorator]
    def complete(context: CompletionContext) -> dict[str, Any]:
        lines = context.full_text.split("\n")[: context.cursor_line + 1]
        lines[-1] = lines[-1][: context.cursor_position]
        at = place("\n".join(lines))
        if at is None:
            return {"completions": []}
        kind = at.kind.value if at.kind else "option"
        found = [SimpleCompletion(text, type=kind) for text in candidates(at, runtime, shell.user_ns)]
        return {"completions": found or _Nothing(), "matched_fragment": at.word, "suppress": True, "ordered": True}

    return complete
