"""Conversation and Branch: what is asked, read and changed on one branch of a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from llamanb.answering import check_count, require_words
from llamanb.errors import BranchError
from llamanb.history import Reference
from llamanb.messages import Content, Message
from llamanb.reply import AsyncReplyStream, Reply, ReplyStream, finished

if TYPE_CHECKING:
    from llamanb.session import ChatSession

__all__ = ["Branch", "Branches", "Conversation"]


class Conversation:
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
        return session.ask(branch, prompt, options)

    async def asend(self, prompt: Content, **options: Any) -> Reply:
        """Say something and await the answer; see `send`. Cancelling the task cancels the answer."""
        async with self.astream(prompt, **options) as stream:
            async for _ in stream:
                pass
            return stream.reply

    def astream(self, prompt: Content, **options: Any) -> AsyncReplyStream:
        """Say something and return the answer as an asynchronous iterator of chunks; see `send`."""
        return AsyncReplyStream(self.stream(prompt, **options))

    def alternatives(self, prompt: Content, n: int, **options: Any) -> list[Reply]:
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
        """Go on with an answer that was cut off; the whole is a sibling of it, on which the branch then ends.

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

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """The path, root first."""
        session, branch = self._place()
        with session.lock:
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
            require_words(history.messages[id].role, content)
            return history.edit(branch, id, content)

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
            return history.append(branch, role, content, **fields)


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
