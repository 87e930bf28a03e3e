"""ChatSession: a history, an engine and the answers that come of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llamanb.answering import Answering, Question, check_names, require_cut_off, require_words, seeded
from llamanb.conversation import Branch, Branches, Conversation
from llamanb.engine.base import Engine, Generation, GenerationRequest, GenerationResult
from llamanb.errors import BranchError, HistoryFormatError, InvalidArgumentError, SessionBusyError, SessionClosedError
from llamanb.history import History, Reference
from llamanb.messages import Content, FinishReason, Message, Usage, storable
from llamanb.persistence.schema import dump_history, keep_unstored, load_defaults, load_history
from llamanb.reply import Reply, ReplyGroup, ReplyStream
from llamanb.sampling import SamplingParams

__all__ = ["ChatSession"]


class ChatSession(Conversation):
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
        self.lock = threading.RLock()
        """Held by who changes the history, and by who reads it in another thread."""
        self._answering: list[Answering] = []
        self._watchers: list[Callable[[], None]] = []
        self.last_usage: Usage | None = None
        """What the last answer cost."""
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
        return Branches(self)

    def branch(self, name: str) -> Branch:
        """Return a branch; `BranchError` where there is none of that name."""
        return Branch(self, self.history.branch(name).name)

    def fan_out(self, prompt: Content, branches: Sequence[str], **options: Any) -> dict[str, Reply]:
        """Say something on several branches at once and wait for the answers, which are decoded together.

        Parameters
        ----------
        prompt
            The user's message.
        branches
            Names. Where there is no such branch, it is forked from the active one's tip. Seeds of branches that start
            at one place count up, in this order.
        **options
            As in `send`.

        Raises
        ------
        BranchError
            A name is given twice or cannot be that of a branch; nothing was asked.
        """
        check_names(branches)
        with self.lock:
            self._require_open()
            before = dict(self.history.branches)
            try:
                for name in branches:
                    if name not in before:
                        self.fork_at(self.history.active, name, None, None)
                group = self.ask_many(branches, prompt, options)
            except BaseException:
                self.history.branches = before
                raise
        return dict(zip(branches, group.replies, strict=True))

    def switch(self, name: str) -> Branch:
        """Make a branch the active one."""
        with self.changing() as history:
            history.switch(name)
            return self.active

    def go_to(self, message_id: str) -> Branch:
        """Make a message part of the active path, which then goes on to where one was last below it.

        Where a branch leads there, it becomes the active one; else the active branch is moved there, and what it said
        until now stays in the tree.
        """
        with self.changing(self.history.active) as history:
            history.go_to(message_id)
            return self.active

    def rename(self, name: str, new: str) -> Branch:
        """Give a branch another name."""
        with self.changing(name) as history:
            history.rename_branch(name, new)
            return Branch(self, new)

    def remove_branch(self, name: str) -> None:
        """Forget a branch that is not the active one; its messages stay until they are pruned."""
        with self.changing(name) as history:
            history.remove_branch(name)

    def prune(self) -> int:
        """Remove the messages that no branch leads to, for good; return how many there were."""
        with self.changing() as history:
            if self._answering:
                raise SessionBusyError("A branch is answering; prune when it has ended.")
            return history.prune()

    def clear(self) -> None:
        """Remove all branches and messages for good; the system prompt and the sampling stay."""
        with self.changing() as history:
            if self._answering:
                raise SessionBusyError("A branch is answering; clear the session when it has ended.")
            history.clear()
            if self._system is not None:
                history.set_system(history.active, self._system)

    # -- the system prompt --------------------------------------------------------------------------------------

    @property
    def system(self) -> str | None:
        """The system prompt. It can be set while the active branch has no other message."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self.set_system(self.history.active, text)

    def set_system(self, branch: str, text: str | None, *, copy: bool = False) -> None:
        """Set the system prompt of the session and of a branch that has no other message.

        With `copy`, the branch may have messages: they are copied below the new prompt, and the session keeps its own.
        """
        with self.changing(branch) as history:
            path = history.branch_path(branch)
            if copy and any(message.role != "system" for message in path):
                history.set_tip(branch, history.copy_below(text, path))
            else:
                history.set_system(branch, text)
                self._system = text

    # -- storing ------------------------------------------------------------------------------------------------

    def to_dict(self, *, shared: bool = False) -> dict[str, Any]:
        """Return the session as JSON values: the form that a notebook stores.

        With `shared`, its messages are what all such forms share, quick to make and not to be changed.
        """
        with self.lock:
            return {
                **dump_history(self.history, shared=shared),
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
        system, sampling = load_defaults(data)
        session = cls(engine, sampling=sampling)
        history.extra = {k: v for k, v in history.extra.items() if k not in ("system", "sampling", "model")}
        session.history = history
        session._system = system
        return session

    def take_over(self, data: Mapping[str, Any]) -> None:
        """Go on with another version of this session, such as one that was merged with what a document holds.

        Raises
        ------
        HistoryFormatError
            The data does not have the form of `to_dict`.
        """
        other = ChatSession.from_dict(data, self.engine)
        with self.lock:
            keep_unstored(other.history, self.history)
            self.history, self._system, self.sampling = other.history, other._system, other.sampling
        self.changed()

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

    # -- who looks at it ----------------------------------------------------------------------------------------

    def cancel(self, branch: str | None = None) -> int:
        """Ask the answers of a branch, by default the active one, to stop at once; return how many there were.

        May be called from any thread. What they have said so far is kept.
        """
        with self.lock:
            branch = branch or self.history.active
            running = [answer for answer in self._answering if answer.branch == branch]
        for answer in running:
            answer.generation.cancel()
        return len(running)

    def snapshot(self) -> tuple[History, list[Answering]]:
        """Return the history as it is now, for reading in any thread, and the answers that are being written."""
        with self.lock:
            return self.history.copy(), list(self._answering)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have `watcher` called, in any thread, when the conversation has changed or an answer begins or ends."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` no more; one that was not called changes nothing."""
        self._watchers = [other for other in self._watchers if other != watcher]

    def changed(self) -> None:
        """Tell those who watch that there is something new; for who changes the history itself."""
        for watcher in list(self._watchers):
            watcher()

    # -- how answers come about ---------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise SessionClosedError("The session is closed; make a new one.")

    def _require_ready(self, branch: str) -> None:
        """Raise unless the branch can be asked or changed; what an abandoned stream left is settled first."""
        self._require_open()
        for answering in [a for a in self._answering if a.branch == branch and a.stream() is None]:
            answering.settle()  # its stream is gone, perhaps by a second interrupt while it was closing
        if any(a.branch == branch for a in self._answering):
            raise SessionBusyError(f"Branch {branch!r} is answering; wait for it, or fork and ask there.")

    def changing(self, branch: str | None = None) -> Changing:
        """Hold the lock while a command changes the history, or a branch of it that must not be answering."""
        return Changing(self, branch)

    def fork_at(self, branch: str, name: str, at: Reference | None, system: str | None) -> Branch:
        """Fork a branch as `fork` does; for who holds the lock."""
        history = self.history
        point = history.tip(branch) if at is None else history.resolve(at, branch)
        origin = at if isinstance(at, str) and at in history.branches else history.branch_with(point, branch)
        if system is not None:
            point = history.copy_below(system, history.path(point))
        history.fork(name, point, from_branch=None if system is not None else origin)
        return Branch(self, name)

    def ask(self, branch: str, prompt: Content, options: dict[str, Any]) -> ReplyStream:
        """Ask on a branch, as `stream` does."""
        with self.lock:
            return self._start([self._question(branch, prompt)], options)[0]

    def ask_many(self, branches: Sequence[str], prompt: Content, options: dict[str, Any]) -> ReplyGroup:
        """Ask on several branches at once; one that is named again gets further answers at the same place."""
        with self.lock:
            questions = [self._question(branch, prompt) for branch in branches]
            for question in questions:
                question.moved = questions[0].moved
            return ReplyGroup(self._start(questions, options))

    def _question(self, branch: str, prompt: Content) -> Question:
        require_words("user", prompt)
        self._require_ready(branch)
        path = self.history.branch_path(branch)
        message = Message.create("user", prompt, parent=path[-1].id if path else None)
        return Question(branch, [*path, message])

    def answer_again(
        self, branch: str, options: dict[str, Any], cell: str | None = None, at: Reference | None = None
    ) -> ReplyGroup:
        """Answer a user message of a branch again, as `regenerate` does.

        A cell that did so before, and whose answer has given way to another one, gives the same answer as then.
        """
        with self.lock:
            self._require_ready(branch)
            path, replaced = self._asked(branch, at)
            former = self.history.remade.get(cell or "")
            if former == self.history.tip(branch):
                former = None
            question = Question(branch, path, self._seeds(path, former), replaced=replaced)
            return ReplyGroup(self._start([question], options))

    def go_on_with(self, branch: str, at: Reference, options: dict[str, Any]) -> ReplyGroup:
        """Go on with an answer that was cut off, as `continue_answer` does."""
        with self.lock:
            self._require_ready(branch)
            id = self.history.resolve(at, branch)
            path, replaced = self._asked(branch, id)
            begun = self.history.messages[id] if id is not None else None
            if begun is None or begun.id != replaced or begun.role != "assistant":
                raise BranchError("Only the last message of an answer can be gone on with.")
            require_cut_off(begun)
            question = Question(branch, path, self._seeds(path, None), replaced=replaced, begun=begun)
            return ReplyGroup(self._start([question], options))

    def _asked(self, branch: str, at: Reference | None) -> tuple[list[Message], str]:
        """Return the path to the question that a message of a branch belongs to, and the last message of its answer."""
        id = self.history.tip(branch) if at is None else self.history.resolve(at, branch)
        path = self.history.branch_path(branch)
        ids = [message.id for message in path]
        if id is not None and id not in ids:
            raise BranchError(f"Message {id!r} is not on branch {branch!r}.")
        end = ids.index(id) + 1 if id is not None else 0
        while end and path[end - 1].role != "user":
            end -= 1
        if not end:
            raise BranchError(f"Branch {branch!r} has no user message to answer.")
        last = end
        while last < len(path) and path[last].role != "user":
            last += 1
        return path[:end], ids[last - 1]

    def _seeds(self, path: list[Message], former: str | None) -> set[Any]:
        """Return the seeds of the answers to a question, but for one."""
        answers = self.history.children(path[-1].id)
        return {dict(answer.sampling or {}).get("seed") for answer in answers if answer.id != former}

    def _start(self, questions: Sequence[Question], options: dict[str, Any]) -> list[ReplyStream]:
        """Start the answers to some questions, all or none.

        Seeds count up: past those that gave the answers that are there, and from one question at a place to the next.
        """
        engine: Engine = options.pop("engine", None) or self.engine
        sampling = self.sampling.replace(**options)
        try:
            storable(sampling.acting())
        except HistoryFormatError as error:
            raise InvalidArgumentError(f"An option cannot be stored: {error.path[2:]}: {error.problem}.") from None
        taken: dict[str, set[Any]] = {}
        for question in questions:
            seeds = taken.setdefault(question.path[-1].id, set()) | question.seeds
            question.sampling = seeded(sampling, question.path[-1].id, seeds - {None})
            taken[question.path[-1].id].add(question.sampling.seed)
        generations: list[Generation] = []
        try:
            for question in questions:
                tokens, messages = engine.encode(question.path), question.path
                if question.begun is not None:
                    tokens, messages = [*tokens, *engine.tokenize(question.begun.text)], [*messages, question.begun]
                generations.append(engine.submit(GenerationRequest(tuple(messages), tokens, question.sampling)))
        except BaseException:
            for generation in generations:
                generation.cancel()
            raise
        streams = [self._stream(*pair, engine) for pair in zip(questions, generations, strict=True)]
        self.changed()
        return streams

    def _stream(self, question: Question, generation: Generation, engine: Engine) -> ReplyStream:
        answering = Answering(question.branch, tuple(question.path), question.begun, generation)

        def commit(result: GenerationResult) -> Reply:
            with self.lock:
                self._answering.remove(answering)
                self.last_usage = result.usage
                reply = self._commit(question, engine, result)
            self.changed()
            return reply

        def settle() -> None:
            generation.cancel()
            commit(generation.result())

        stream = ReplyStream(generation, commit)
        answering.stream, answering.settle = weakref.ref(stream), settle
        self._answering.append(answering)
        return stream

    def _commit(self, question: Question, engine: Engine, result: GenerationResult) -> Reply:
        """Put an answer into the tree; one that was cancelled or failed before its first word is not."""
        ended_early = result.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR)
        empty = not (result.text or result.reasoning or result.tool_calls)
        exchange = () if ended_early and empty else self._store(question, engine, result)
        return Reply(
            result.text,
            exchange,
            result.finish_reason,
            result.usage,
            question.branch,
            result.reasoning,
            result.tool_calls,
        )

    def _store(self, question: Question, engine: Engine, result: GenerationResult) -> tuple[Message, ...]:
        asked = self.history.add(question.path[-1])
        begun = question.begun
        answer = self.history.add(
            Message.create(
                "assistant",
                result.text if begun is None else begun.text + result.text,
                parent=asked.id,
                reasoning=result.reasoning if begun is None else begun.reasoning,
                tool_calls=result.tool_calls,
                finish_reason=result.finish_reason,
                model=engine.fingerprint,
                sampling=question.sampling.acting(),
            )
        )
        if question.branch not in question.moved:
            question.moved.add(question.branch)
            if self.history.on_path(asked.id, self.history.tip(question.branch)):
                replaced = question.replaced or self.history.tip(question.branch)
                self.history.replace_answer(question.branch, replaced, answer.id)
            else:
                self.history.set_tip(question.branch, answer.id)
        return asked, answer


class Changing:
    """Holds the session's lock while a command changes it, or a branch of it that must not be answering."""

    def __init__(self, session: ChatSession, branch: str | None) -> None:
        self._session = session
        self._branch = branch

    def __enter__(self) -> History:
        self._session.lock.acquire()
        try:
            if self._branch is None:
                self._session._require_open()
            else:
                self._session._require_ready(self._branch)
        except BaseException:
            self._session.lock.release()
            raise
        return self._session.history

    def __exit__(self, *_: object) -> None:
        self._session.lock.release()
        self._session.changed()
