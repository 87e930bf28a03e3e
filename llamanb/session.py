"""ChatSession and Branch: a history, an engine and the answers that come of them."""

from __future__ import annotations

import functools
import itertools
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llamanb.engine.base import Engine, GenerationRequest, GenerationResult
from llamanb.errors import (
    BranchError,
    HistoryFormatError,
    InvalidArgumentError,
    SessionBusyError,
    SessionClosedError,
)
from llamanb.history import History, Reference
from llamanb.messages import Content, FinishReason, Message, storable
from llamanb.persistence.schema import dump_history, load_history
from llamanb.reply import AsyncReplyStream, Reply, ReplyStream, finished
from llamanb.sampling import MAX_SEED, SamplingParams, derive_seed

__all__ = ["Branch", "ChatSession", "Reply", "ReplyStream"]


class _Conversation:
    """What a session and a branch have in common: a session's methods act on its active branch."""

    def _place(self) -> tuple[ChatSession, str]:
        raise AssertionError("every conversation says where it is")

    # -- asking -------------------------------------------------------------------------------------------------

    def send(self, prompt: Content, **options: Any) -> Reply:
        """Say something and wait for the answer.

        Parameters
        ----------
        prompt
            The user's message.
        **options
            Any field of `SamplingParams`, for this answer alone; `engine`, to let another model give it.

        Raises
        ------
        InvalidArgumentError
            The prompt is empty or an option is out of its range.
        ContextWindowExceededError
            The prompt does not fit; nothing was decoded and the tree is as it was.
        SessionBusyError
            The branch is already answering.
        """
        return finished(self.stream(prompt, **options))

    def stream(self, prompt: Content, **options: Any) -> ReplyStream:
        """Say something and return the answer as an iterator of chunks; see `send`."""
        session, branch = self._place()
        return session._ask(branch, prompt, options)

    async def asend(self, prompt: Content, **options: Any) -> Reply:
        """Say something and await the answer; see `send`. Cancelling the task cancels the answer."""
        async with self.astream(prompt, **options) as stream:
            async for _ in stream:
                pass
            return stream.reply

    def astream(self, prompt: Content, **options: Any) -> AsyncReplyStream:
        """Say something and return the answer as an asynchronous iterator of chunks; see `send`."""
        return AsyncReplyStream(self.stream(prompt, **options))

    def regenerate(self, **options: Any) -> Reply:
        """Answer the last user message again; the new answer is a sibling of the old one, which stays in the tree.

        The seed counts up from that of the first answer. Greedy sampling gives the same answer again.

        Raises
        ------
        BranchError
            The branch has no user message.
        """
        session, branch = self._place()
        return finished(session._answer_again(branch, options))

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """The path, root first."""
        session, branch = self._place()
        with session._lock:
            return session.history.branch_path(branch)

    @property
    def n_tokens(self) -> int:
        """Tokens that the path takes in the context window."""
        session, _ = self._place()
        return len(session.engine.encode(self.messages, add_generation_prompt=False))

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text takes by itself."""
        session, _ = self._place()
        return len(session.engine.tokenize(text))

    def render_preface(self) -> str:
        """Return the path as the model reads it, without the start of an answer."""
        session, _ = self._place()
        return session.engine.render(self.messages, add_generation_prompt=False)

    # -- changing -----------------------------------------------------------------------------------------------

    def fork(self, name: str, at: Reference | None = None, *, system: str | None = None) -> Branch:
        """Make a branch that starts at a message. It costs nothing: branches share what is before it.

        Parameters
        ----------
        name
            The new branch's name.
        at
            A message's id, an index into this path (negative ones count from the end), or a branch's name; by default
            the tip.
        system
            Another system prompt: the path is copied below it, with new ids, and the originals stay.
        """
        session, branch = self._place()
        with session._lock:
            session._require_open()
            return session._fork(branch, name, at, system)

    def rewind(self, n: int = 1) -> None:
        """Take the last `n` exchanges off the branch; the messages stay in the tree."""
        session, branch = self._place()
        with session._changing(branch) as history:
            history.rewind(branch, n)

    def edit(self, message_id: str, content: Content) -> Message:
        """Write a message of this branch anew; the branch ends there, and the original stays in the tree.

        To have an edited user message answered, `regenerate`.
        """
        session, branch = self._place()
        with session._changing(branch) as history:
            id = history.resolve(message_id, branch)
            if id is None:
                raise BranchError(f"Branch {branch!r} has no messages to edit.")
            _require_words(history.messages[id].role, content)
            return history.edit(branch, id, content)

    def add_message(self, role: str, content: Content, **fields: Any) -> Message:
        """Add a message without asking for an answer. A system message can only be the first one."""
        session, branch = self._place()
        with session._changing(branch) as history:
            if role == "system":
                if not isinstance(content, str):
                    raise TypeError("The system prompt is text.")
                history.set_system(branch, content)
                return history.branch_path(branch)[0]
            _require_words(role, content)
            return history.append(branch, role, content, **fields)


class Branch(_Conversation):
    """A name for a tip of a session's tree; it has the methods of a session."""

    def __init__(self, session: ChatSession, name: str) -> None:
        self.session = session
        self.name = name

    def _place(self) -> tuple[ChatSession, str]:
        return self.session, self.name

    @property
    def tip(self) -> str | None:
        """The id of the last message; ``None`` while the branch is empty."""
        return self.session.history.tip(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Branch) and (self.session, self.name) == (other.session, other.name)

    def __hash__(self) -> int:
        return hash((id(self.session), self.name))

    def __repr__(self) -> str:
        return f"<Branch {self.name!r}>"


class ChatSession(_Conversation):
    """One tree of messages with the engine that answers.

    Parameters
    ----------
    engine
        Who answers. The session does not close it.
    system
        The system prompt.
    sampling
        How answers are sampled where a call does not say otherwise.
    """

    def __init__(self, engine: Engine, system: str | None = None, sampling: SamplingParams | None = None) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(f"A session needs an engine, such as LlamaCppEngine(), not a {type(engine).__name__}.")
        self.engine = engine
        self.sampling = sampling if sampling is not None else SamplingParams()
        self.history = History()
        self._system = system
        self._lock = threading.RLock()
        self._busy: dict[str, weakref.ref[ReplyStream]] = {}
        self._unsettled: dict[str, Callable[[], Reply]] = {}
        self._closed = False
        if system is not None:
            self.history.set_system(self.history.active, system)

    def _place(self) -> tuple[ChatSession, str]:
        return self, self.history.active

    # -- branches -----------------------------------------------------------------------------------------------

    @property
    def active(self) -> Branch:
        """The branch that the session's own methods act on."""
        return Branch(self, self.history.active)

    @property
    def branches(self) -> Mapping[str, Branch]:
        """The branches by name, in the order in which they were made."""
        return _Branches(self)

    def branch(self, name: str) -> Branch:
        """Return a branch; `BranchError` where there is none of that name."""
        return Branch(self, self.history.branch(name).name)

    def switch(self, name: str) -> Branch:
        """Make a branch the active one."""
        with self._lock:
            self._require_open()
            self.history.switch(name)
            return self.active

    def adopt(self, name: str) -> None:
        """Give the active branch the tip of another one."""
        with self._changing(self.history.active) as history:
            history.adopt(history.active, name)

    def prune(self) -> int:
        """Remove the messages that no branch leads to, for good; return how many there were."""
        with self._lock:
            self._require_open()
            if self._busy:
                raise SessionBusyError("A branch is answering; prune when it has ended.")
            return self.history.prune()

    # -- the system prompt --------------------------------------------------------------------------------------

    @property
    def system(self) -> str | None:
        """The system prompt. It can be set while the active branch has no other message."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self.set_system(self.history.active, text)

    def set_system(self, branch: str, text: str | None) -> None:
        """Set the system prompt of the session and of a branch that has no other message."""
        with self._changing(branch) as history:
            history.set_system(branch, text)
            self._system = text

    # -- storing ------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the session as JSON values: the form that a notebook stores."""
        with self._lock:
            return {
                **dump_history(self.history),
                "system": self._system,
                "model": {"name": self.engine.name, "fingerprint": self.engine.fingerprint},
                "sampling": self.sampling.to_dict(),
            }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], engine: Engine) -> ChatSession:
        """Make a session of what `to_dict` returned, with its system prompt and sampling.

        Raises
        ------
        HistoryFormatError
            The data does not have that form; the error names the place.
        """
        history = load_history(data)
        stored = dict(history.extra)
        system, sampling = stored.pop("system", None), stored.pop("sampling", None)
        stored.pop("model", None)
        if system is not None and not isinstance(system, str):
            raise HistoryFormatError("$.system", "it must be text")
        session = cls(engine, sampling=_stored_sampling(sampling))
        history.extra = stored
        session.history = history
        session._system = system
        return session

    # -- ending -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session; the engine stays open."""
        self._closed = True

    def __enter__(self) -> ChatSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ChatSession, {len(self.history.messages)} messages, active branch {self.history.active!r}>"

    # -- how answers come about ---------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise SessionClosedError("The session is closed; make a new one.")

    def _require_ready(self, branch: str) -> None:
        """Raise unless the branch can be asked or changed; what an abandoned stream left is settled first."""
        self._require_open()
        if branch in self._busy and self._busy[branch]() is None:
            self._unsettled[branch]()  # its stream is gone, perhaps by a second interrupt while it was closing
        if branch in self._busy:
            raise SessionBusyError(f"Branch {branch!r} is answering; wait for it, or fork and ask there.")

    def _changing(self, branch: str) -> _Changing:
        return _Changing(self, branch)

    def _fork(self, branch: str, name: str, at: Reference | None, system: str | None) -> Branch:
        history = self.history
        point = history.tip(branch) if at is None else history.resolve(at, branch)
        origin = at if isinstance(at, str) and at in history.branches else history.branch_with(point, branch)
        if system is not None:
            point = history.copy_below(system, history.path(point))
        history.fork(name, point, from_branch=None if system is not None else origin)
        return Branch(self, name)

    def _ask(self, branch: str, prompt: Content, options: dict[str, Any]) -> ReplyStream:
        _require_words("user", prompt)
        with self._lock:
            self._require_ready(branch)
            path = self.history.branch_path(branch)
            message = Message.create("user", prompt, parent=path[-1].id if path else None)
            return self._start(branch, [*path, message], set(), options)

    def _answer_again(self, branch: str, options: dict[str, Any]) -> ReplyStream:
        with self._lock:
            self._require_ready(branch)
            path = self.history.branch_path(branch)
            while path and path[-1].role != "user":
                path.pop()
            if not path:
                raise BranchError(f"Branch {branch!r} has no user message to answer.")
            answers = self.history.children(path[-1].id)
            seeds = {dict(answer.sampling or {}).get("seed") for answer in answers}
            return self._start(branch, path, seeds, options)

    def _start(self, branch: str, path: list[Message], seeds: set[Any], options: dict[str, Any]) -> ReplyStream:
        """Start an answer to a path; its seed counts up past `seeds`, which gave the answers that are there."""
        engine: Engine = options.pop("engine", None) or self.engine
        sampling = self.sampling.replace(**options)
        if sampling.seed == "random" and not sampling.greedy:
            sampling = sampling.replace(seed=secrets.randbelow(MAX_SEED + 1))
        count = next(n for n in itertools.count() if derive_seed(sampling, path[-1].id, n).seed not in seeds - {None})
        sampling = derive_seed(sampling, path[-1].id, count)
        try:
            storable(sampling.acting())
        except HistoryFormatError as error:
            raise InvalidArgumentError(f"An option cannot be stored: {error.path[2:]}: {error.problem}.") from None
        request = GenerationRequest(tuple(path), engine.encode(path), sampling)
        generation = engine.submit(request)
        commit = functools.partial(self._commit, branch, path, sampling, engine)
        stream = ReplyStream(generation, commit)

        def settle() -> Reply:
            generation.cancel()
            return commit(generation.result())

        self._busy[branch], self._unsettled[branch] = weakref.ref(stream), settle
        return stream

    def _commit(
        self, branch: str, path: list[Message], sampling: SamplingParams, engine: Engine, result: GenerationResult
    ) -> Reply:
        """Put an answer into the tree; one that was cancelled or failed before its first word is not."""
        ended_early = result.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR)
        empty = not (result.text or result.reasoning or result.tool_calls)
        exchange: tuple[Message, ...] = ()
        with self._lock:
            self._busy.pop(branch, None)
            self._unsettled.pop(branch, None)
            if not (ended_early and empty):
                exchange = self._store(branch, path, sampling, engine, result)
        return Reply(
            result.text,
            exchange,
            result.finish_reason,
            result.usage,
            branch,
            result.reasoning,
            result.tool_calls,
        )

    def _store(
        self, branch: str, path: list[Message], sampling: SamplingParams, engine: Engine, result: GenerationResult
    ) -> tuple[Message, ...]:
        asked = self.history.add(path[-1])
        answer = self.history.add(
            Message.create(
                "assistant",
                result.text,
                parent=asked.id,
                reasoning=result.reasoning,
                tool_calls=result.tool_calls,
                finish_reason=result.finish_reason,
                model=engine.fingerprint,
                sampling=sampling.acting(),
            )
        )
        self.history.set_tip(branch, answer.id)
        return asked, answer


class _Changing:
    """Holds the session's lock while a command changes a branch that must not be answering."""

    def __init__(self, session: ChatSession, branch: str) -> None:
        self._session = session
        self._branch = branch

    def __enter__(self) -> History:
        self._session._lock.acquire()
        try:
            self._session._require_ready(self._branch)
        except BaseException:
            self._session._lock.release()
            raise
        return self._session.history

    def __exit__(self, *_: object) -> None:
        self._session._lock.release()


class _Branches(Mapping[str, Branch]):
    """A session's branches, as they are at the time of looking."""

    def __init__(self, session: ChatSession) -> None:
        self._session = session

    def __getitem__(self, name: str) -> Branch:
        try:
            return self._session.branch(name)
        except BranchError as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._session.history.branches))

    def __len__(self) -> int:
        return len(self._session.history.branches)

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}"


def _require_words(role: str, content: Content) -> None:
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, Mapping):
            raise TypeError(f"A part of a message is a mapping with a 'type', not a {type(part).__name__}.")
    if role == "user" and (content == [] or (isinstance(content, str) and not content.strip())):
        raise InvalidArgumentError("The prompt is empty; write what the model should answer.")


def _stored_sampling(stored: Any) -> SamplingParams | None:
    if stored is None:
        return None
    if not isinstance(stored, Mapping):
        raise HistoryFormatError("$.sampling", "it must be an object")
    try:
        return SamplingParams.from_dict(stored)
    except (TypeError, InvalidArgumentError) as error:
        raise HistoryFormatError("$.sampling", str(error)) from None
