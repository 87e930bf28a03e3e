"""`%%chat` and `%chat`: the prompt of a cell, its answer below it."""

from __future__ import annotations

import argparse
import keyword
from collections.abc import Mapping
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from llamanb.cells import CellRun
from llamanb.errors import InvalidArgumentError
from llamanb.history import Exchange
from llamanb.magics.arguments import chat_parser, split_options
from llamanb.magics.display import AnswerDisplay
from llamanb.magics.mistakes import Interrupted
from llamanb.magics.prompt import expand
from llamanb.persistence.notebook import exchange_metadata
from llamanb.reply import Reply, ReplyStream
from llamanb.runtime import Request, Runtime
from llamanb.session import ChatSession

__all__ = ["ask", "current_request"]

_SAMPLING_OPTIONS = ("temperature", "max_tokens", "seed", "top_p", "top_k", "min_p", "stop")


def current_request(shell: InteractiveShell) -> Request:
    """Return the request that the shell is executing; in a terminal, one that says nothing."""
    get_parent = getattr(shell, "get_parent", None)
    return Request(dict(get_parent() or {}) if get_parent is not None else {})


def ask(shell: InteractiveShell, runtime: Runtime, line: str, body: str | None) -> None:
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
    session = runtime.session(arguments.session, arguments.model)
    if arguments.model is not None:
        options["engine"] = runtime.engine(arguments.model)
    run = runtime.cell_run(session, request)
    system_before = session.system
    try:
        branch = _branch(session, run, arguments)
        stream = session.branch(branch).stream(prompt, **options)
        form = arguments.format or ("json" if arguments.json_schema else "md")
        show = AnswerDisplay(form, live=request.watched and not arguments.no_stream)
        reply = _answer(runtime, session, run, stream, show)
    finally:
        if not run.made and session.system != system_before:
            session._system = system_before
    if arguments.out:
        shell.user_ns[arguments.out] = reply
    if form == "json":
        reply.json()


def _branch(session: ChatSession, run: CellRun, arguments: argparse.Namespace) -> str:
    """Decide which branch answers: the one asked for, the one of last time, or the active one."""
    history = session.history
    origin = arguments.branch or (None if arguments.fork else run.recorded_branch()) or history.active
    if arguments.fork is not None:
        run.fork(arguments.fork, history.branch(origin).name, arguments.at)
        branch = arguments.fork
    elif arguments.at is not None:
        raise InvalidArgumentError("--at says where a fork starts; give --fork NAME with it.")
    else:
        branch = history.branch(origin).name
    if arguments.system is not None:
        session.set_system(branch, arguments.system)
    return str(branch)


def _answer(runtime: Runtime, session: ChatSession, run: CellRun, stream: ReplyStream, show: AnswerDisplay) -> Reply:
    """Show an answer as it comes, and record what the cell made of the conversation, whole or in part."""
    try:
        for chunk in stream:
            if chunk.kind == "answer":
                show.add(chunk.text)
    except KeyboardInterrupt:
        stream.close()
        if not stream.reply.messages:
            raise Interrupted("nothing was said yet, and the conversation is as it was.") from None
        raise Interrupted("the answer so far is kept; run the cell again to replace it.") from None
    finally:
        stream.close()
        reply = stream.reply
        if reply.messages:
            exchange = Exchange(reply.branch, reply.messages)
            run.own(exchange)
            show.finish(reply, exchange_metadata(runtime.name_of(session), session.history, exchange))
    return reply


def _options(arguments: argparse.Namespace, namespace: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: getattr(arguments, name) for name in _SAMPLING_OPTIONS if getattr(arguments, name) is not None}
    if arguments.json_schema is not None:
        options["json_schema"] = _schema(arguments.json_schema, namespace)
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


def _check_out(name: str | None, magic: str) -> None:
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
        raise InvalidArgumentError(f"{magic}: {name!r} cannot be the name of a variable (-o).")
