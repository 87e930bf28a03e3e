"""From the bytes of tokens to text that may be shown: whole characters, and nothing that may yet be a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["StopFilter", "TextAssembler", "open_from"]


class StopFilter:
    """Passes text on until a stop string stands in it, and holds back what may be the start of one.

    Of several stop strings the one that starts first ends the text; where two start at the same place, it makes no
    difference which.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take more text and return what may be shown of it."""
        if not self._stop:
            return text
        if self.stopped:
            return ""
        self._held += text
        starts = [start for start in (self._held.find(stop) for stop in self._stop) if start >= 0]
        keep_from = open_from(self._held, self._stop)
        # A stop string that is complete wins only over those that could not have started before it.
        if starts and min(starts) <= keep_from:
            self.stopped = True
            shown, self._held = self._held[: min(starts)], ""
            return shown
        shown, self._held = self._held[:keep_from], self._held[keep_from:]
        return shown

    def finish(self) -> str:
        """Return what was held back, since nothing follows it; a complete stop string in it still ends the text."""
        if self.stopped:
            return ""
        starts = [start for start in (self._held.find(stop) for stop in self._stop) if start >= 0]
        self.stopped = bool(starts)
        shown, self._held = self._held[: min(starts, default=len(self._held))], ""
        return shown


def open_from(text: str, words: Sequence[str], at: int = 0) -> int:
    """Return the first place, from `at` on, where one of some words may have begun whose end is still to come.

    Where there is none, that is the end of the text.
    """
    longest = max((len(word) for word in words), default=1) - 1
    for start in range(max(at, len(text) - longest), len(text)):
        tail = text[start:]
        if any(len(tail) < len(word) and word.startswith(tail) for word in words):
            return start
    return len(text)


class TextAssembler:
    """Assembles the text of one answer from the bytes of its tokens."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._filter = StopFilter(stop)
        self.text = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._filter.stopped

    def feed(self, piece: bytes) -> str:
        """Take a token's bytes and return the new text that may be shown."""
        shown = self._filter.feed(self._decoder.decode(piece))
        self.text += shown
        return shown

    def finish(self) -> str:
        """Return the text that was held back. Half a character at the end is dropped, never shown."""
        shown = self._filter.finish()
        self.text += shown
        return shown
