"""ChatSession: a history, an engine and the answers that come of them."""

from __future__ import annotations

import asyncio
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llamanb.answering import (
    Answering,
    Question,
    check_names,
    placed,
    read_given,
    read_prompt,
    require_cut_off,
    require_writable,
    seeded,
)
from llamanb.conversation import Branch, Branches, Conversation, Prompt
from llamanb.engine.base import Engine, Generation, GenerationRequest, GenerationResult
from llamanb.engine.template import as_seen
from llamanb.errors import (
    BranchError,
    HistoryFormatError,
    InvalidArgumentError,
    LlamanbError,
    SessionBusyError,
    SessionClosedError,
    TransformError,
)
from llamanb.fitting import OVERFLOW_POLICIES, SendPlan, check_overflow, fitted
from llamanb.history import History, Reference
from llamanb.messages import FinishReason, Message, Usage, storable
from llamanb.persistence.cache_file import CacheFile
from llamanb.persistence.formats import read_array
from llamanb.persistence.schema import dump_history, keep_unstored, load_defaults, load_history
from llamanb.planning import Planner, window_of
from llamanb.reply import Reply, ReplyGroup, ReplyStream, known_error
from llamanb.sampling import SamplingParams
from llamanb.saving import Loading, held_for, save_to
from llamanb.snapshots import Snapshots
from llamanb.state import SessionState
from llamanb.transformed import require_waitable, transformed
from llamanb.transforms import (
    HistoryTransform,
    InputTransform,
    OutputTransform,
    Transforms,
    check_history_transform,
    check_input_transform,
    check_output_transform,
)

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
    history
        Messages to begin with, or mappings with a role and content as OpenAI's programs have them. Nothing is evaluated
        before the first message or `prefill`.
    history_json
        The same as the text of a JSON array; not used where `history` holds a message. Parts of messages, such as
        images and sound, and keys that are not known are kept as they are.
    overflow
        What is done with a prompt that does not fit into the context window: ``"error"``; ``"drop_oldest"``, which
        leaves whole exchanges out of the prompt, though never the system prompt or what is pinned; or ``"summarise"``,
        by which the model sums up the older exchanges, and the branch goes on from a copy: the system prompt, the
        summary, what is pinned, and the recent exchanges. The originals stay in the tree.

    Raises
    ------
    InvalidArgumentError
        There is no such overflow policy.
    HistoryFormatError
        The history does not have that form; the error names the place.
    BranchError
        The history brings another system prompt than `system`.
    """

    def __init__(
        self,
        engine: Engine,
        system: str | None = None,
        sampling: SamplingParams | None = None,
        *,
        history: Iterable[Message | Mapping[str, Any]] = (),
        history_json: str | None = None,
        overflow: str = "error",
    ) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(f"A session needs an engine, such as LlamaCppEngine(), not a {type(engine).__name__}.")
        self.engine = engine
        self.sampling = sampling if sampling is not None else SamplingParams()
        self.history = History()
        self._system = system
        self.overflow = overflow
        self.transforms = Transforms()
        """What is done with what a person types, what the model writes, and how it reads a conversation."""
        self.lock = threading.RLock()
        """Held by who changes the history, and by who reads it in another thread."""
        self._answering: list[Answering] = []
        self._watchers: list[Callable[[], None]] = []
        self.last_usage: Usage | None = None
        """What the last answer cost."""
        self.snapshots: Snapshots | None = None
        """Where what the engine's cache holds for the tips of branches is kept on disk, if it is."""
        self._closed = False
        if system is not None:
            self.history.set_system(self.history.active, system)
        if given := read_given(history, self.transforms) or read_array(history_json):
            self.add_all(self.history.active, given)

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

    def fan_out(self, prompt: Prompt, branches: Sequence[str], **options: Any) -> dict[str, Reply]:
        """Say something on several branches at once and wait for the answers, which are decoded together.

        Parameters
        ----------
        prompt
            The user's message, or messages as in `send`.
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
            self.require_idle("prune")
            gone = history.paths(history.unreachable())
            kept = [history.branch_path(name) for name in history.branches]
            n_gone = history.prune()
        self._forget_snapshots(gone, kept)
        return n_gone

    def clear(self) -> None:
        """Remove all branches and messages for good; the system prompt and the sampling stay."""
        with self.changing() as history:
            self.require_idle("clear the session")
            gone = history.paths(history.messages)
            history.clear()
            if self._system is not None:
                history.set_system(history.active, self._system)
            kept = [history.branch_path(history.active)]
        self._forget_snapshots(gone, kept)

    def _forget_snapshots(self, gone: Iterable[list[Message]], kept: Iterable[list[Message]]) -> None:
        """Remove what is on disk of paths that are gone for good."""
        if self.snapshots is None:
            return
        try:
            tokens = [
                [self.transforms.encode(self.engine, path, add_generation_prompt=False) for path in paths]
                for paths in (gone, kept)
            ]
        except LlamanbError:  # which of them are gone cannot be told then
            self.snapshots.clear()
        else:
            self.snapshots.forget(self.engine, *tokens)

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

    @property
    def overflow(self) -> str:
        """What is done with a prompt that does not fit: ``"error"``, ``"drop_oldest"`` or ``"summarise"``."""
        return self._overflow

    @overflow.setter
    def overflow(self, policy: str) -> None:
        self._overflow = check_overflow(policy)

    # -- transforms ---------------------------------------------------------------------------------------------

    @property
    def input_transforms(self) -> list[InputTransform]:
        """Functions from what a person types to what the model is given, applied in this order.

        What was typed is what is stored and shown; what the model was given stands beside it where it differs.
        """
        return self.transforms.input

    @input_transforms.setter
    def input_transforms(self, transforms: Iterable[InputTransform]) -> None:
        transforms = list(transforms)
        for transform in transforms:
            check_input_transform(transform)
        self.transforms.input = transforms

    @property
    def output_transform(self) -> OutputTransform | None:
        """A function from the pieces of an answer's text, as they come, to the pieces that are shown and stored."""
        return self.transforms.output

    @output_transform.setter
    def output_transform(self, transform: OutputTransform | None) -> None:
        if transform is not None:
            check_output_transform(transform)
        self.transforms.output = transform

    @property
    def history_transform(self) -> HistoryTransform | None:
        """How a conversation becomes text and back; ``None`` is by the model's own chat template."""
        return self.transforms.history

    @history_transform.setter
    def history_transform(self, transform: HistoryTransform | None) -> None:
        if transform is not None:
            check_history_transform(transform)
        self.transforms.history = transform
        self.changed()

    def with_input_transform(self, transform: InputTransform) -> ChatSession:
        """Add an input transform behind the others, and return the session."""
        check_input_transform(transform)
        self.input_transforms.append(transform)
        return self

    def with_output_transform(self, transform: OutputTransform | None) -> ChatSession:
        """Set the output transform, and return the session; `compose` makes one of several."""
        self.output_transform = transform
        return self

    def with_history_transform(self, transform: HistoryTransform | None) -> ChatSession:
        """Set the history transform, and return the session."""
        self.history_transform = transform
        return self

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
                **({"overflow": self.overflow} if self.overflow != "error" else {}),
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
        system, sampling, overflow = load_defaults(data)
        session = cls(engine, sampling=sampling)
        if overflow in OVERFLOW_POLICIES:  # a later version may know others
            session.overflow = overflow
        own = ("system", "sampling", "model", "transforms", "overflow")
        history.extra = {key: value for key, value in history.extra.items() if key not in own}
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
            self.overflow = other.overflow
        self.changed()

    def state(self) -> SessionState:
        """Return what the session holds now; it stays as it is, whatever the session goes on to."""
        with self.lock:
            return SessionState(self.history, self._system, self.sampling, self.transforms, self.overflow).copy()

    def restore(self, state: SessionState, transforms: bool = True) -> None:
        """Go back to a state. What was said since is forgotten; the state can be restored again.

        Nothing is evaluated again that the engine still has in its cache, or parked beside it.

        Parameters
        ----------
        state
            What `state` returned, of this session or another one.
        transforms
            Whether to go back to its transforms too, or keep those that the session has.

        Raises
        ------
        SessionBusyError
            A branch is answering.
        """
        if not isinstance(state, SessionState):
            raise TypeError(f"restore takes what state() returned, not a {type(state).__name__}.")
        with self.changing():
            self.require_idle("restore a state")
            state = state.copy()
            self.history, self._system, self.sampling = state.history, state.system, state.sampling
            self.overflow = state.overflow
            if transforms:
                self.transforms = state.transforms

    def save(self, path: str | Path, *, cache: bool = False) -> None:
        """Save the session to a directory, in the place of one that was saved there.

        It holds ``session.json``: the tree, the system prompt, the sampling, and the transforms by where they can be
        imported from. Should the process die meanwhile, the directory holds the former session or the new one.

        Parameters
        ----------
        path
            The directory: a new one, an empty one, or a saved session.
        cache
            Whether to save what the model's cache holds for the active path too, so that an engine with the same model
            and settings need not evaluate it again.

        Raises
        ------
        TransformError
            A transform could not be found again by its name, such as a lambda.
        InvalidArgumentError
            Something else is there, which is left as it is, or it cannot be written.
        SchemaVersionError
            A session that a newer llamanb has saved is there.
        """
        save_to(self, path, cache=cache)

    load = Loading()

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

    def require_idle(self, act: str) -> None:
        """Raise where a branch is answering while something is to be done that concerns all of them."""
        if self._answering:
            raise SessionBusyError(f"A branch is answering; {act} when it has ended.")

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

    def ask(
        self, branch: str, prompt: Prompt, options: dict[str, Any], loop: asyncio.AbstractEventLoop | None = None
    ) -> ReplyStream:
        """Ask on a branch, as `stream` does; `loop` is where the answer is awaited, if it is."""
        with self.lock:
            return self._start([self._question(branch, read_prompt(prompt, self.transforms))], options, loop)[0]

    def ask_many(self, branches: Sequence[str], prompt: Prompt, options: dict[str, Any]) -> ReplyGroup:
        """Ask on several branches at once; one that is named again gets further answers at the same place."""
        with self.lock:
            said = read_prompt(prompt, self.transforms)
            questions = [self._question(branch, said) for branch in branches]
            for question in questions:
                question.moved = questions[0].moved
            return ReplyGroup(self._start(questions, options))

    def _question(self, branch: str, said: Sequence[Message]) -> Question:
        self._require_ready(branch)
        path = self.history.branch_path(branch)
        return Question(branch, [*path, *placed(said, path)])

    def add_all(self, branch: str, messages: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
        """Add messages to a branch, as `add_messages` does."""
        with self.changing(branch) as history:
            added = placed(read_given(messages, self.transforms), history.branch_path(branch))
            for message in added:
                history.add(message)
            if added:
                self._note_system(branch, added[0])
                history.set_tip(branch, added[-1].id)
            return added

    def _note_system(self, branch: str, first: Message) -> None:
        """Keep the system prompt that messages brought along which are the first on their branch."""
        if first.role == "system" and self.history.tip(branch) is None:
            self._system = first.text

    def given(self, branch: str) -> list[Message]:
        """Return what the model has of a branch: its path, less what the overflow policy leaves out already."""
        with self.lock:
            path, pins = self.history.branch_path(branch), set(self.history.pins)
        if self.overflow != "drop_oldest":
            return path
        window = window_of(self.engine, self.transforms, self.sampling.max_tokens, add_generation_prompt=False)
        return fitted(path, window, self.overflow, pins)[0]

    def plan_for(self, branch: str, prompt: Prompt, options: dict[str, Any]) -> SendPlan:
        """Plan a send, as `plan` does."""
        with self.lock:
            question = self._question(branch, read_prompt(prompt, self.transforms))
            planner = self._prepare([question], options)
        return planner.plan(question)

    def prefill_branch(self, branch: str) -> Usage:
        """Evaluate the path of a branch, as `prefill` does."""
        with self.lock:
            self._require_ready(branch)
            path = self.given(branch)
        if not path:
            return Usage()
        usage = self.evaluate(path)[1].usage
        self._keep_snapshot(branch, self.engine)
        return usage

    def evaluate(
        self, path: Sequence[Message], engine: Engine | None = None, *, keep_state: bool = False
    ) -> tuple[list[int], GenerationResult]:
        """Evaluate a path; return its tokens, and what came of it."""
        engine = self.engine if engine is None else engine
        tokens = self.transforms.encode(engine, path, add_generation_prompt=False)
        request = GenerationRequest(as_seen(path), tokens, self.sampling, prefill_only=True, keep_state=keep_state)
        generation = self._submit(engine, request)
        try:
            result = generation.result()
        except BaseException:
            generation.cancel()
            raise
        if (error := known_error(result.error)) is not None:
            raise error from error.__cause__
        return tokens, result

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
            _, replaced = self._asked(branch, id)
            begun = self.history.messages[id] if id is not None else None
            if begun is None or begun.id != replaced or begun.role != "assistant":
                raise BranchError("Only the last message of an answer can be gone on with.")
            require_cut_off(begun)
            path = self.history.path(begun.parent)
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

    def _start(
        self, questions: Sequence[Question], options: dict[str, Any], loop: asyncio.AbstractEventLoop | None = None
    ) -> list[ReplyStream]:
        """Start the answers to some questions, all or none."""
        output = self.transforms.output
        require_waitable(output, loop)
        engine: Engine = options.get("engine") or self.engine
        planner = self._prepare(questions, options)
        generations: list[Generation] = []
        streams: list[ReplyStream] = []
        try:
            generations.extend(planner.begin(question) for question in questions)
            for question, generation in zip(questions, generations, strict=True):
                streams.append(self._stream(question, transformed(generation, output, loop), engine))
            self.changed()
        except BaseException:
            for generation in generations:
                generation.cancel()
            for stream in streams:
                stream.close()
            raise
        return streams

    def _prepare(self, questions: Sequence[Question], options: dict[str, Any]) -> Planner:
        """Give questions what their answers depend on, and return who starts these.

        Seeds count up: past those that gave the answers that are there, and from one question at a place to the next.
        """
        engine: Engine = options.pop("engine", None) or self.engine
        overflow = check_overflow(options.pop("overflow", self.overflow))
        pinned = bool(options.pop("pin", False))
        answer_start = options.pop("answer_start", None)
        prefill_only = _asks_for_nothing(options)
        transforms = self.transforms.copy()
        sampling = self.sampling.replace(**options)
        sampling = sampling.replace(stop=list(dict.fromkeys((*sampling.stop, *transforms.stop))))
        try:
            storable(sampling.acting())
        except HistoryFormatError as error:
            raise InvalidArgumentError(f"An option cannot be stored: {error.path[2:]}: {error.problem}.") from None
        taken: dict[str, set[Any]] = {}
        for question in questions:
            if answer_start is not None:
                question.begin(answer_start)
            if question.begun is not None:
                require_writable(sampling, question.begun)
            seeds = taken.setdefault(question.path[-1].id, set()) | question.seeds
            question.sampling = seeded(sampling, question.path[-1].id, seeds - {None})
            question.nth = len(taken[question.path[-1].id])
            taken[question.path[-1].id].add(question.sampling.seed)
            question.transforms, question.prefill_only, question.pinned = transforms, prefill_only, pinned
            before = question.exchange[0].parent
            question.summed_up = self.history.summed_up(before) if before in self.history.messages else ()
        submit = functools.partial(self._submit, engine)
        return Planner(engine, overflow, self.history.pins, submit, derived=sampling.seed is None)

    def _submit(self, engine: Engine, request: GenerationRequest) -> Generation:
        """Start a generation; what a snapshot holds of its prompt need not be read."""
        if self.snapshots is not None:
            self.snapshots.supply(engine, request.tokens)
        return engine.submit(request)

    def _keep_snapshot(self, branch: str, engine: Engine) -> None:
        """Have what the cache holds for the tip of a branch written to disk, when there is time."""
        if self.snapshots is None:
            return

        def take() -> CacheFile | None:
            with self.lock:
                path = self.given(branch)
            return held_for(self, path, engine) if path else None

        def is_busy() -> bool:
            stats = engine.stats()
            return stats.n_running + stats.n_waiting > 0

        self.snapshots.keep((id(self), branch), take, is_busy)

    def _stream(self, question: Question, generation: Generation, engine: Engine) -> ReplyStream:
        answering = Answering(question.branch, tuple(question.path), question.begun, generation)

        def commit(result: GenerationResult) -> tuple[Reply, Exception | None]:
            with self.lock:
                self._answering.remove(answering)
                self.last_usage = result.usage
                committed = self._commit(question, engine, result)
            if committed[0].messages:
                self._keep_snapshot(question.branch, engine)
            self.changed()
            return committed

        def settle() -> None:
            generation.cancel()
            commit(generation.result())

        stream = ReplyStream(generation, commit)
        answering.stream, answering.settle = weakref.ref(stream), settle
        self._answering.append(answering)
        return stream

    def _commit(self, question: Question, engine: Engine, result: GenerationResult) -> tuple[Reply, Exception | None]:
        """Put an answer into the tree, and return what went wrong with it.

        One that was cancelled or failed before its first word is not kept.
        """
        ended_early = result.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR)
        unsaid = question.prefill_only or (ended_early and not (result.text or result.reasoning or result.tool_calls))
        error, exchange = result.error, tuple[Message, ...]()
        if not unsaid:
            begun = question.begun
            text = result.text if begun is None else begun.text + result.text
            try:
                answer = question.transforms.answer_messages(text)
            except TransformError as problem:
                answer, error = [Message.create("assistant", text)], error or problem
                result = replace(result, finish_reason=FinishReason.ERROR)
            exchange = self._store(question, engine, result, answer)
        reply = Reply(
            exchange[-1].text if exchange else result.text,
            exchange,
            result.finish_reason,
            result.usage,
            question.branch,
            result.reasoning,
            result.tool_calls,
            question.plan,
        )
        return reply, error

    def _store(
        self, question: Question, engine: Engine, result: GenerationResult, answer: Sequence[Message]
    ) -> tuple[Message, ...]:
        """Put a question and its answer into the tree; what is known of the answer stands with its last message."""
        self._note_system(question.branch, question.path[0])
        for message in question.path:
            self.history.add(message)
        exchange = question.exchange
        for message in answer[:-1]:
            exchange.append(self.history.add(message.below(exchange[-1].id)))
        begun, last, plan = question.begun, answer[-1], question.plan
        exchange.append(
            self.history.add(
                Message.create(
                    "assistant",
                    last.content,
                    parent=exchange[-1].id,
                    reasoning=result.reasoning if begun is None else begun.reasoning,
                    tool_calls=(*last.tool_calls, *result.tool_calls),
                    finish_reason=result.finish_reason,
                    model=engine.fingerprint,
                    sampling=question.sampling.acting(),
                    left_out=plan.n_left_out if plan is not None and not plan.summarised else 0,
                    extra=last.extra,
                )
            )
        )
        self.history.pins |= question.pins & self.history.messages.keys()
        if question.pinned:
            self.history.pin(exchange[0].id)
        if question.branch not in question.moved:
            question.moved.add(question.branch)
            tip = self.history.tip(question.branch)
            if self.history.on_path(question.path[-1].id, tip):
                self.history.replace_answer(question.branch, question.replaced or tip, exchange[-1].id)
            else:
                self.history.set_tip(question.branch, exchange[-1].id)
        return tuple(exchange)


def _asks_for_nothing(options: dict[str, Any]) -> bool:
    """Whether ``max_tokens=0`` is among the options: then it is taken out, since no answer can be sampled by it."""
    n = options.get("max_tokens")
    if isinstance(n, bool) or n != 0:
        return False
    del options["max_tokens"]
    return True


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
