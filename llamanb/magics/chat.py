"""`%%chat`, `%chat` and `%chat_regenerate`: the answers below a cell."""

from __future__ import annotations

import argparse
import contextlib
import keyword
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from llamanb.answering import check_count
from llamanb.cells import CellRun
from llamanb.errors import InvalidArgumentError
from llamanb.history import Exchange
from llamanb.magics.arguments import chat_parser, split_options
from llamanb.magics.display import AnswerDisplay, Displays
from llamanb.magics.mistakes import Interrupted
from llamanb.magics.prompt import expand
from llamanb.persistence.notebook import exchange_metadata, replacement_metadata
from llamanb.reply import Reply, ReplyGroup
from llamanb.runtime import Request, Runtime
from llamanb.session import ChatSession

__all__ = ["ask", "current_request", "regenerate", "take_out"]

_SAMPLING_OPTIONS = ("temperature", "max_tokens", "seed", "top_p", "top_k", "min_p", "stop")


def current_request(shell: InteractiveShell) -> Request:
    """Return the request that the shell is executing; in a terminal, one that says nothing."""
    get_parent = getattr(shell, "get_parent", None)
    return Request(dict(get_parent() or {}) if get_parent is not None else {})


def ask(shell: InteractiveShell, runtime: Runtime, displays: Displays, line: str, body: str | None) -> None:
    """Run `%%chat` (with a body) or `%chat` (without)."""
    parser = chat_parser("%chat" if body is None else "%%chat")
    words, text = split_options(line, parser)
    arguments = parser.parse_line(words)
    if body is not None and text:
        parser.error(f"{text.split()[0]!r} is no option; the prompt goes below the first line")
    prompt = text if body is None else body.removesuffix("\n")
    if not arguments.raw:
        prompt = expand(prompt, shell.user_ns)
    if not prompt.strip():
        raise InvalidArgumentError(f"{parser.prog}: the prompt is empty; write what the model should answer.")
    options = _options(arguments, shell.user_ns)
    _check_out(arguments.out, parser.prog)

    request = current_request(shell)
    runtime.meet()
    is_new = arguments.session is not None and arguments.session not in runtime.names
    session = runtime.session(arguments.session, arguments.model)
    if arguments.model is not None:
        options["engine"] = runtime.engine(arguments.model)
    run = runtime.cell_run(session, request)
    system_before = session.system
    try:
        with _stoppable("run the cell again to replace it") as asked:
            with session.lock:
                branches = _branches(session, run, arguments)
            show = _display(arguments, request, _titles(branches, arguments.n))
            asked.append(session.ask_many(branches * arguments.n, prompt, options))
            replies = _answer(runtime, displays, session, run, asked[0], show)
    finally:
        if not run.answered and session.system != system_before:
            session._system = system_before
        if is_new and not run.answered:
            runtime.forget(session)
    if arguments.out:
        shell.user_ns[arguments.out] = _result(branches, arguments.n, replies)
    if show.form == "json":
        for reply in replies:
            reply.json()


def regenerate(shell: InteractiveShell, runtime: Runtime, displays: Displays, arguments: argparse.Namespace) -> None:
    """Run `%chat_regenerate`: another answer to the last question of a branch, which its cell then owns."""
    options = _options(arguments, shell.user_ns)
    _check_out(arguments.out, "%chat_regenerate")
    session = runtime.session(arguments.session)
    branch = session.branch(arguments.branch or session.active.name)
    replaced = branch.tip
    request = current_request(shell)
    show = _display(arguments, request, [""])
    with _stoppable("%chat_regenerate gives another one") as asked:
        asked.append(session.answer_again(branch.name, options, request.cell))
        try:
            _shown(asked[0], show)
        finally:
            (reply,) = asked[0].replies
            if reply.messages:
                if request.cell is not None:
                    session.history.remade[request.cell] = reply.messages[-1].id
                metadata = replacement_metadata(runtime.name_of(session), branch.name, replaced, reply.messages)
                show.finish([reply], runtime.carried(metadata))
                displays.add(runtime.name_of(session), show)
    if arguments.out:
        shell.user_ns[arguments.out] = reply


def take_out(runtime: Runtime, displays: Displays, session: ChatSession, gone: set[str]) -> None:
    """Draw the outputs that show any of these messages anew, without them."""
    name = runtime.name_of(session)

    def metadata(replies: Sequence[Reply]) -> dict[str, Any]:
        exchanges = [Exchange(reply.branch, reply.messages) for reply in replies]
        return runtime.carried(exchange_metadata(name, session.history, exchanges))

    for shown in displays.holding(name, gone):
        shown.remove(gone, metadata)


@contextlib.contextmanager
def _stoppable(remedy: str) -> Iterator[list[ReplyGroup]]:
    """Tell an interrupt in one line: whether an answer that was asked for is kept, and what can be done then."""
    asked: list[ReplyGroup] = []
    try:
        yield asked
    except KeyboardInterrupt:
        for group in asked:
            group.close()
        if not any(reply.messages for group in asked for reply in group.replies):
            raise Interrupted("nothing was said yet, and the conversation is as it was.") from None
        raise Interrupted(f"the answer so far is kept; {remedy}.") from None


def _branches(session: ChatSession, run: CellRun, arguments: argparse.Namespace) -> list[str]:
    """Decide which branches answer: those asked for, the one of last time, or the active one."""
    history = session.history
    forks = [] if arguments.fork is None else [name.strip() for name in arguments.fork.split(",")]
    if len(forks) > 1 and arguments.n > 1:
        raise InvalidArgumentError("-n gives answers at one place, and several names after --fork several places.")
    if len(set(forks)) < len(forks):
        raise InvalidArgumentError(f"--fork {arguments.fork}: a branch is named twice; each gives one answer.")
    check_count(arguments.n)
    origin = arguments.branch or (None if forks else run.recorded_branch()) or history.active
    if not forks and arguments.at is not None:
        raise InvalidArgumentError("--at says where a fork starts; give --fork NAME with it.")
    origin = history.branch(origin).name
    for name in forks:
        run.fork(name, origin, arguments.at)
    branches = forks or [origin]
    if arguments.system is not None:
        for branch in branches:
            session.set_system(branch, arguments.system, copy=bool(forks))
    return branches


def _titles(branches: Sequence[str], n: int) -> list[str]:
    if n > 1:
        return [str(number) for number in range(1, n + 1)]
    return list(branches) if len(branches) > 1 else [""]


def _result(branches: Sequence[str], n: int, replies: Sequence[Reply]) -> Any:
    """Return what `-o` puts into a variable."""
    if n > 1:
        return list(replies)
    return dict(zip(branches, replies, strict=True)) if len(branches) > 1 else replies[0]


def _display(arguments: argparse.Namespace, request: Request, titles: Sequence[str]) -> AnswerDisplay:
    return AnswerDisplay(
        arguments.format or ("json" if getattr(arguments, "json_schema", None) else "md"),
        live=request.watched and not arguments.no_stream,
        titles=titles,
        alternatives=getattr(arguments, "n", 1) > 1,
    )


def _answer(
    runtime: Runtime, displays: Displays, session: ChatSession, run: CellRun, group: ReplyGroup, show: AnswerDisplay
) -> list[Reply]:
    """Show answers as they come, and record what the cell made of the conversation, whole or in part."""
    try:
        return _shown(group, show)
    finally:
        replies = group.replies
        exchanges = [Exchange(reply.branch, reply.messages) for reply in replies if reply.messages]
        for branch in dict.fromkeys(exchange.branch for exchange in exchanges):
            with session.lock:
                run.own(next(exchange for exchange in exchanges if exchange.branch == branch))
        if exchanges:
            name = runtime.name_of(session)
            show.finish(replies, runtime.carried(exchange_metadata(name, session.history, exchanges)))
            displays.add(name, show)


def _shown(group: ReplyGroup, show: AnswerDisplay) -> list[Reply]:
    """Show answers as they come; an interrupt keeps what there is of them."""
    try:
        if show.live:
            for came in group.gathered(show.pause):
                show.add([(index, chunk.text) for index, chunk in came if chunk.kind == "answer"])
        return group.replies
    finally:
        group.close()


def _options(arguments: argparse.Namespace, namespace: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: getattr(arguments, name) for name in _SAMPLING_OPTIONS if getattr(arguments, name) is not None}
    if getattr(arguments, "json_schema", None) is not None:
        options["json_schema"] = _schema(arguments.json_schema, namespace)
    if getattr(arguments, "grammar", None) is not None:
        options["grammar"] = _grammar(arguments.grammar, namespace)
    if getattr(arguments, "pin", False):
        options["pin"] = True
    return options


def _schema(name: str, namespace: Mapping[str, Any]) -> Mapping[str, Any]:
    value = namespace.get(name)
    if value is None:
        raise InvalidArgumentError(f"--json-schema: there is no variable {name!r}; give the name of a dict of yours.")
    of_model = getattr(value, "model_json_schema", None)  # a Pydantic model
    schema = of_model() if callable(of_model) else value
    if not isinstance(schema, Mapping):
        raise InvalidArgumentError(f"--json-schema: {name!r} is a {type(value).__name__}, not a dict.")
    return schema


def _grammar(name: str, namespace: Mapping[str, Any]) -> str:
    value = namespace.get(name)
    if not isinstance(value, str):
        what = f"there is no variable {name!r}" if value is None else f"{name!r} is a {type(value).__name__}"
        raise InvalidArgumentError(f"--grammar: {what}; give the name of a string of yours that holds GBNF.")
    return value


def _check_out(name: str | None, magic: str) -> None:
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
        raise InvalidArgumentError(f"{magic}: {name!r} cannot be the name of a variable (-o).")
