"""Conversation and Branch: what is asked, read and changed on one branch of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llamanb.answering import check_count, placed, read_given, read_prompt, require_words
from llamanb.context import ContextPart, added_text, context_parts
from llamanb.errors import BranchError
from llamanb.fitting import SendPlan
from llamanb.history import History, Reference
from llamanb.messages import Content, Message, Usage
from llamanb.persistence.formats import export_messages
from llamanb.reply import AsyncReplyStream, Reply, ReplyStream, finished

if TYPE_CHECKING:
    from llamanb.session import ChatSession

__all__ = ["Branch", "Branches", "Conversation", "Prompt"]

Prompt = Content | Sequence[Message | Mapping[str, Any]]
"""What is said: a user's message, or a list of messages, which may be mappings in OpenAI's form."""


class Conversation:
    """What a session and a branch have in common: a session's methods act on its active branch."""

    def _place(self) -> tuple[ChatSession, str]:
        raise AssertionError("every conversation says where it is")

    # -- asking -------------------------------------------------------------------------------------------------

    def send(self, prompt: Prompt, **options: Any) -> Reply:
        """Say something and wait for the answer.

        Parameters
        ----------
        prompt
            The user's message, or a history from elsewhere: a list of messages, or of mappings with a role and content
            as OpenAI's programs have them. They are added, and the last one, which is the user's, is answered.
        **options
            Any field of `SamplingParams`, for this answer alone; `engine`, to let another model give it;
            `answer_start`, words that the answer begins with; `overflow`, what is done where the prompt does not fit;
            ``pin=True``, to keep this exchange in the prompt whatever does not fit. With ``max_tokens=0`` the prompt is
            only evaluated, and nothing is said or stored.

        Raises
        ------
        InvalidArgumentError
            The prompt is empty or an option is out of its range.
        ContextWindowExceededError
            The prompt does not fit; nothing was decoded and the tree is as it was.
        SessionBusyError
            The branch is already answering.
        TransformError
            A transform of the session failed; where that was while the answer was written, what there was is kept.
        """
        return finished(self.stream(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> ReplyStream:
        """Say something and return the answer as an iterator of chunks; see `send`."""
        session, branch = self._place()
        return session.ask(branch, prompt, options)

    async def asend(self, prompt: Prompt, **options: Any) -> Reply:
        """Say something and await the answer; see `send`. Cancelling the task cancels the answer."""
        async with self.astream(prompt, **options) as stream:
            async for _ in stream:
                pass
            return stream.reply

    def astream(self, prompt: Prompt, **options: Any) -> AsyncReplyStream:
        """Say something and return the answer as an asynchronous iterator of chunks; see `send`."""
        session, branch = self._place()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # called before there is one
            loop = None
        return AsyncReplyStream(session.ask(branch, prompt, options, loop))

    def alternatives(self, prompt: Prompt, n: int, **options: Any) -> list[Reply]:
        """Say something and wait for `n` answers, which are decoded together; the branch goes on from the first.

        The others are siblings of it in the tree. Seeds count up from the first one's; greedy answers are all the same.
        """
        session, branch = self._place()
        return session.ask_many([branch] * check_count(n), prompt, options).replies

    def regenerate(self, at: Reference | None = None, **options: Any) -> Reply:
        """Answer a user message again; the new answer is a sibling of the old one, which stays in the tree.

        The seed counts up from that of the first answer. Greedy sampling gives the same answer again.

        Parameters
        ----------
        at
            A message of the branch: its question is answered again, and the branch ends there. By default the tip.
        **options
            As in `send`.

        Raises
        ------
        BranchError
            The branch has no user message.
        """
        session, branch = self._place()
        return session.answer_again(branch, options, at=at).replies[0]

    def continue_answer(self, at: Reference = -1, **options: Any) -> Reply:
        """Go on with an answer that was cut off or written by hand; the whole is a sibling of it.

        The branch then ends on the whole, which is also what is returned.

        Parameters
        ----------
        at
            The answer; by default the last one.
        **options
            As in `send`; `max_tokens` counts what is added.

        Raises
        ------
        BranchError
            There is no answer there, or it ended by itself.
        InvalidArgumentError
            It was held to a schema or a grammar, or ended while the model was reasoning.
        """
        session, branch = self._place()
        return session.go_on_with(branch, at, options).replies[0]

    def prefill(self) -> Usage:
        """Evaluate the path without generating, so that the next answer begins at once; return what that cost.

        Raises
        ------
        ContextWindowExceededError
            The path does not fit.
        """
        session, branch = self._place()
        return session.prefill_branch(branch)

    def plan(self, prompt: Prompt, **options: Any) -> SendPlan:
        """Return how saying something would fit into the context window; nothing is said or evaluated.

        Parameters
        ----------
        prompt, **options
            As in `send`.

        Raises
        ------
        ContextWindowExceededError
            It would not fit.
        """
        session, branch = self._place()
        return session.plan_for(branch, prompt, options)

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """The path, root first."""
        session, branch = self._place()
        with session.lock:
            return session.history.branch_path(branch)

    @property
    def n_tokens(self) -> int:
        """Tokens that the path takes in the context window, less what the overflow policy leaves out."""
        session, branch = self._place()
        return len(session.transforms.encode(session.engine, session.given(branch), add_generation_prompt=False))

    def count_tokens(self, prompt: Prompt) -> int:
        """Return how many tokens something takes.

        Parameters
        ----------
        prompt
            Text: its tokens by themselves. A list of messages: what they add to the tokens of the path, the marks of
            the chat template included.

        Raises
        ------
        TemplateError
            The chat template refuses the messages.
        """
        session, _ = self._place()
        if isinstance(prompt, str):
            return len(session.engine.tokenize(prompt))
        path = self.messages
        longer = [*path, *placed(read_given(prompt, session.transforms), path)]
        after, before = (
            len(session.transforms.encode(session.engine, messages, add_generation_prompt=False))
            for messages in (longer, path)
        )
        return after - before

    def render_preface(self) -> str:
        """Return the path as the model reads it, without the start of an answer; empty where there is none."""
        session, branch = self._place()
        return session.transforms.render(session.engine, session.given(branch))

    def render_message(self, prompt: Prompt) -> str:
        """Return exactly what saying something now adds to the prompt, the start of the answer included.

        Nothing is said and nothing is evaluated; the prompt is as in `send`. Input transforms are applied; where the
        chat template writes earlier messages in another way once something follows them, that is part of it.

        Raises
        ------
        InvalidArgumentError
            The prompt is empty.
        TemplateError
            The chat template refuses the messages.
        """
        session, branch = self._place()
        path = session.given(branch)
        said = placed(read_prompt(prompt, session.transforms), path)
        return added_text(session.transforms, session.engine, path, said)

    def context(self) -> list[ContextPart]:
        """Return what each message of the path adds to the prompt: its text, its tokens, and how many are cached.

        Together the texts are `render_preface`, and the counts `n_tokens`.
        """
        session, branch = self._place()
        return context_parts(session.transforms, session.engine, session.given(branch))

    def export(self, format: str) -> str:
        """Return the path as the text of another program.

        Parameters
        ----------
        format
            ``"openai"`` (JSON), ``"chatml"``, ``"llamasharp"`` (its ``ChatHistory.json``) or ``"markdown"``.

        Raises
        ------
        InvalidArgumentError
            There is no such format, or it cannot hold one of the messages.
        """
        return export_messages(self.messages, format)

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
        with session.changing():
            return session.fork_at(branch, name, at, system)

    def rewind(self, n: int = 1) -> None:
        """Take the last `n` exchanges off the branch; the messages stay in the tree."""
        session, branch = self._place()
        with session.changing(branch) as history:
            history.rewind(branch, n)

    def adopt(self, name: str) -> None:
        """Let the branch go on from where another one ends; its own messages stay in the tree."""
        session, branch = self._place()
        with session.changing(branch) as history:
            history.adopt(branch, name)

    def edit(self, message_id: str, content: Content) -> Message:
        """Write a message of this branch anew; the branch ends there, and the original stays in the tree.

        To have an edited user message answered, `regenerate`.
        """
        session, branch = self._place()
        with session.changing(branch) as history:
            id = history.resolve(message_id, branch)
            if id is None:
                raise BranchError(f"Branch {branch!r} has no messages to edit.")
            role = history.messages[id].role
            require_words(role, content)
            fields = {"model_input": session.transforms.model_input(content)} if role == "user" else {}
            return history.edit(branch, id, content, **fields)

    def add_message(self, role: str, content: Content, **fields: Any) -> Message:
        """Add a message without asking for an answer. A system message can only be the first one."""
        session, branch = self._place()
        with session.changing(branch) as history:
            if role == "system":
                if not isinstance(content, str):
                    raise TypeError("The system prompt is text.")
                history.set_system(branch, content)
                return history.branch_path(branch)[0]
            require_words(role, content)
            if role == "user" and "model_input" not in fields:
                fields["model_input"] = session.transforms.model_input(content)
            return history.append(branch, role, content, **fields)

    def add_messages(self, messages: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
        """Add messages without asking for an answer, such as examples of how to answer.

        Parameters
        ----------
        messages
            Messages, such as `read_messages` returns, or mappings with a role and content as OpenAI's programs have
            them. A system prompt can only be the first one on a branch.

        Returns
        -------
        messages
            As they stand in the tree.

        Raises
        ------
        HistoryFormatError
            One is neither; the error names it, and none was added.
        """
        session, branch = self._place()
        return session.add_all(branch, messages)

    @property
    def pinned(self) -> list[Message]:
        """The messages of the path that stay in the prompt, whatever does not fit."""
        session, branch = self._place()
        with session.lock:
            return [m for m in session.history.branch_path(branch) if m.id in session.history.pins]

    def pin(self, at: Reference = -1) -> Message:
        """Keep a message, and the exchange that it is in, in the prompt whatever does not fit; return it.

        Parameters
        ----------
        at
            A message's id, an index into this path, or a branch's name; by default the last message.

        Raises
        ------
        MessageNotFoundError
            There is no such message.
        """
        return self._pinning(at, History.pin)

    def unpin(self, at: Reference = -1) -> Message:
        """Let a message be left out again where the prompt does not fit; return it."""
        return self._pinning(at, History.unpin)

    def _pinning(self, at: Reference, act: Callable[[History, str], None]) -> Message:
        session, branch = self._place()
        with session.changing() as history:
            id = history.resolve(at, branch)
            if id is None:
                raise BranchError(f"Branch {branch!r} has no messages to pin.")
            act(history, id)
            return history.messages[id]

    def remove_last(self, n: int = 1) -> None:
        """Take the last `n` messages off the branch, but never its system prompt; they stay in the tree."""
        session, branch = self._place()
        with session.changing(branch) as history:
            history.remove_last(branch, n)


class Branch(Conversation):
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


class Branches(Mapping[str, Branch]):
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
