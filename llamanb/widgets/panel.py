"""ChatPanel: a session in a panel below a cell."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython import get_ipython
from IPython.display import DisplayHandle, display

from llamanb.errors import InvalidArgumentError, LlamanbError
from llamanb.history import check_branch_name
from llamanb.messages import Message
from llamanb.rendering import transcript_markdown
from llamanb.reply import ReplyGroup
from llamanb.runtime import get_runtime
from llamanb.session import ChatSession
from llamanb.settings import ChatConfig
from llamanb.tree_picture import tree_svg
from llamanb.widgets.messenger import Messenger
from llamanb.widgets.protocol import PANEL_REQUESTS
from llamanb.widgets.transcript import SETTINGS, Transcript
from llamanb.wording import counted, quoted, sentence

__all__ = ["ChatPanel"]

_STATIC = Path(__file__).parent / "static"
_SECONDS_BETWEEN_UPDATES = 0.08
_CHARACTERS_PER_UPDATE_RATE = 10_000
_SECONDS_TO_COPY = 1.0
"""How long nothing must change before the copy is written: front ends draw it whole each time, though it is hidden."""
_NARROWEST_TREE, _WIDEST_TREE = 200, 2000  # pixels


class ChatPanel(Messenger):
    """A panel on a session: what is said there and in cells is one conversation.

    It holds no copy: it draws what the session is at any time, and several panels on one session agree. Display it, or
    put it last in a cell. Its script and what is said go to the front end as messages, so that a notebook that is saved
    with the state of its widgets does not grow by them. Below it stands, once something was said in it, what the active
    branch says as Markdown; where the panel itself is shown, that is hidden.

    Parameters
    ----------
    session
        The session to show; by default the one that cells talk to.
    """

    _esm = _STATIC / "panel_loader.js"

    def __init__(self, session: ChatSession | None = None) -> None:
        session = get_runtime().session() if session is None else session
        if not isinstance(session, ChatSession):
            raise TypeError(f"A panel shows a ChatSession, not a {type(session).__name__}.")
        super().__init__()
        self.session = session
        self._transcript = Transcript(session)
        self._lock = threading.RLock()
        self._woken = threading.Event()
        self._is_new = True  # what the session holds may have changed since it was sent
        self._sent: set[str] = set()
        self._last_view: dict[str, Any] = {}
        self._last_blocks: list[str] = []
        self._copies: list[DisplayHandle] = []
        self._copy = ""
        self._used = False
        self._thread: threading.Thread | None = None
        session.watch(self._wake)

    def close(self) -> None:
        """Stop showing the session; it stays as it is."""
        super().close()
        if hasattr(self, "session"):  # a widget that could not be made is closed too
            self.session.unwatch(self._wake)
            self._woken.set()

    # -- showing it ---------------------------------------------------------------------------------------------

    def _ipython_display_(self) -> None:
        data = {"application/vnd.jupyter.widget-view+json": self._view_data(), "text/plain": repr(self)}
        display(data, raw=True)
        if getattr(get_ipython(), "kernel", None) is not None:
            copy = {"text/plain": self._copy, **({"text/markdown": self._copy} if self._copy else {})}
            self._copies.append(display(copy, raw=True, display_id=True))

    def _view_data(self) -> dict[str, Any]:
        return {"version_major": 2, "version_minor": 0, "model_id": self.model_id}

    def _keep_copy(self) -> None:
        """Let the notebook hold what was said, below the panel, once something was said in it."""
        kept = self._used and get_runtime().settings.persist
        text = transcript_markdown(self.session.messages) if kept else ""
        if text == self._copy:
            return
        self._copy = text
        for copy in self._copies:
            copy.update({"text/plain": text, **({"text/markdown": text} if text else {})}, raw=True)

    # -- keeping front ends up to date --------------------------------------------------------------------------

    def _wake(self) -> None:
        self._is_new = True
        self._woken.set()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="llamanb-panel", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause: float | None = None
        while self.comm is not None:
            if not self._woken.wait(pause) and self._transcript.answering() is None:
                self._keep_copy()
            self._woken.clear()
            pause = self._refresh()

    def _refresh(self) -> float | None:
        """Send what is new; return after how many seconds to look again; where nothing is to be done, ``None``."""
        with self._lock:
            is_new, self._is_new = self._is_new, False
            if is_new:
                self._send_view()
            answer = self._transcript.answering()
            if answer is None:
                self._last_blocks = []
                return _SECONDS_TO_COPY * (1 + len(self._copy) / _CHARACTERS_PER_UPDATE_RATE) if is_new else None
            writing = self._transcript.writing(answer)
            blocks = writing.pop("blocks")
            start = _first_difference(self._last_blocks, blocks)
            self._last_blocks = blocks
            self._tell("stream", start=start, blocks=blocks[start:], n_blocks=len(blocks), **writing)
            size = sum(map(len, blocks))
            return _SECONDS_BETWEEN_UPDATES * (1 + size / _CHARACTERS_PER_UPDATE_RATE)

    def _send_view(self) -> None:
        view = self._transcript.view()
        missing = [id for id in view["path"] if id not in self._sent]
        if view == self._last_view and not missing:
            return
        items = self._transcript.items(missing)
        self._sent.update(items)
        self._last_view = view
        self._tell("view", items=items, **view)

    def _tell(self, kind: str, **content: Any) -> None:
        self.send({"kind": kind, "id": 0, **content})

    # -- what front ends ask for --------------------------------------------------------------------------------

    def receive(self, content: dict[str, Any]) -> None:
        """Carry out a request, and answer it; what goes wrong is said in one sentence."""
        request, kind = content.get("id"), content.get("kind")
        try:
            result = self._handler(kind)(content)
        except Exception as error:
            said = str(error) if isinstance(error, LlamanbError) else f"{type(error).__name__}: {sentence(error)}"
            self._tell("failed", request=request, error=said)
        else:
            self._tell("done", request=request, result=result)

    def _handler(self, kind: object) -> Callable[[dict[str, Any]], dict[str, str] | None]:
        if kind not in PANEL_REQUESTS:
            raise InvalidArgumentError(f"This panel does not know {kind!r}; its script is of another version.")
        handler: Callable[[dict[str, Any]], dict[str, str] | None] = getattr(self, f"_on_{kind}")
        return handler

    def _on_hello(self, content: dict[str, Any]) -> None:
        if not content.get("has_script"):
            module, style = ((_STATIC / f"chat_panel.{kind}").read_text("utf-8") for kind in ("js", "css"))
            self._tell("script", client=content.get("client"), module=module, style=style)
            return
        with self._lock:
            self._sent.clear()
            self._last_view = {}
            self._last_blocks = []
        self._start()
        self._wake()

    def _on_send(self, content: dict[str, Any]) -> None:
        text = _text(content, "text")
        branch = self.session.active.name
        self._answered_by(self.session.ask_many([branch], text, {}), unsaid=text)

    def _on_stop(self, _: dict[str, Any]) -> None:
        self.session.cancel()

    def _on_edit(self, content: dict[str, Any]) -> None:
        edited = self.session.edit(_text(content, "message"), _text(content, "text"))
        self._changed()
        if edited.role == "user":
            self._answered_by(self.session.answer_again(self.session.active.name, {}))

    def _on_regenerate(self, content: dict[str, Any]) -> None:
        self._answered_by(self.session.answer_again(self.session.active.name, {}, at=_text(content, "message")))

    def _on_continue(self, content: dict[str, Any]) -> None:
        self._answered_by(self.session.go_on_with(self.session.active.name, _text(content, "message"), {}))

    def _on_fork(self, content: dict[str, Any]) -> dict[str, str]:
        """Make a branch; of a question it starts before it, and its cell asks it, so that it can be asked otherwise."""
        name, id = _text(content, "name").strip(), _text(content, "message")
        message = self._message(id)
        asks = message.role == "user"
        with self.session.lock:
            check_branch_name(name)
            if asks and message.parent is None:
                self._fork_at_root(name)
            else:
                self.session.fork(name, at=message.parent if asks else id)
        self._changed()
        return {"branch": name, "source": self._cell_source(name, message.text if asks else "")}

    def _fork_at_root(self, name: str) -> None:
        self.session.history.fork(name, None, from_branch=self.session.active.name)
        self.session.changed()

    def _on_go(self, content: dict[str, Any]) -> None:
        self.session.go_to(_text(content, "message"))
        self._changed()

    def _on_switch(self, content: dict[str, Any]) -> None:
        self.session.switch(_text(content, "branch"))
        self._changed()

    def _on_rename(self, content: dict[str, Any]) -> None:
        self.session.rename(_text(content, "branch"), _text(content, "new").strip())
        self._changed()

    def _on_adopt(self, content: dict[str, Any]) -> None:
        self.session.adopt(_text(content, "branch"))
        self._changed()

    def _on_remove(self, content: dict[str, Any]) -> None:
        self.session.remove_branch(_text(content, "branch"))
        self._changed()

    def _on_prune(self, content: dict[str, Any]) -> dict[str, str]:
        n = get_runtime().prune(self.session, expected=content.get("n"))
        self._changed()
        return {"said": f"Removed {counted(n, 'message')}."}

    def _on_check(self, content: dict[str, Any]) -> None:
        self._setting(content)

    def _on_set(self, content: dict[str, Any]) -> None:
        name, value = self._setting(content)
        if name == "system":
            self.session.system = value
        else:
            self.session.sampling = self.session.sampling.replace(**{name: value})
            self.session.changed()
        self._changed()

    def _on_tree(self, content: dict[str, Any]) -> dict[str, str]:
        width = min(max(int(content.get("width") or 0), _NARROWEST_TREE), _WIDEST_TREE)
        return {"svg": tree_svg(self.session.snapshot()[0], width, interactive=True)}

    # -- how that is done ---------------------------------------------------------------------------------------

    def _message(self, id: str) -> Message:
        messages = self.session.history.messages
        if id not in messages:
            raise InvalidArgumentError("This message is not in the tree; its answer is still being written.")
        return messages[id]

    @staticmethod
    def _setting(content: dict[str, Any]) -> tuple[str, Any]:
        """Return a setting and its value, as a person wrote it."""
        name, text = _text(content, "name"), _text(content, "value").strip()
        if name == "system":
            return name, text or None
        if name not in SETTINGS:
            raise InvalidArgumentError(f"There is no setting {name!r} in the panel.")
        if not text:
            return name, ChatConfig().default(name)
        if name != "seed" and not _is_number(text):
            raise InvalidArgumentError(f"{text!r} is not a number.")
        return name, ChatConfig().read(name, text)

    def _cell_source(self, branch: str, prompt: str) -> str:
        """Return the source of a cell on a branch; empty where cells do not know this session."""
        runtime = get_runtime()
        name = next((name for name, session in runtime.sessions.items() if session is self.session), None)
        if name is None:
            return ""
        of = "" if name == runtime.active_name else f" --session {quoted(name)}"
        return f"%%chat --branch {quoted(branch)}{of}\n{prompt}"

    def _answered_by(self, group: ReplyGroup, unsaid: str | None = None) -> None:
        """Take an answer to its end, in a thread of its own; a question that was not kept is given back."""
        self._used = True

        def settle() -> None:
            error = None
            try:
                replies = group.replies
            except LlamanbError as problem:
                error, replies = str(problem), group.replies
            if error is not None:
                self._tell("notice", text=error, level="error", unsaid="" if replies[0].messages else unsaid or "")
            elif not replies[0].messages and unsaid is not None:
                self._tell("notice", text="Stopped before the first word.", level="note", unsaid=unsaid)
            self._changed()

        threading.Thread(target=settle, name="llamanb-panel-answer", daemon=True).start()

    def _changed(self) -> None:
        """Note that the panel has changed the conversation: what the notebook holds of it is brought up to date."""
        self._used = True
        get_runtime().settle()
        self._wake()


def _first_difference(old: list[str], new: list[str]) -> int:
    same = 0
    for before, now in zip(old, new):  # noqa: B905  (one is longer)
        if before != now:
            break
        same += 1
    return same


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(content: dict[str, Any], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise InvalidArgumentError(f"The panel's request has no {name}.")
    return value
