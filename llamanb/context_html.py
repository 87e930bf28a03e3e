"""The prompt as HTML: each message in the colour of its role, with its tokens, and what of it is cached."""

from __future__ import annotations

from collections.abc import Container, Sequence
from html import escape

from llamanb.context import ContextPart
from llamanb.wording import counted

__all__ = ["context_html"]

# Of middle lightness, so that they can be told apart on white and on black.
_COLOURS = {"system": "#8e6bbf", "user": "#2f80c2", "assistant": "#2c9461", "tool": "#c07a1c"}

_PART = "border-left: 4px solid {colour}; padding: 0 0 0 0.8em; margin: 0.6em 0"
_ROLE = "color: {colour}; font-weight: 600"
_REMARK = '<span style="opacity: 0.75"> · {}</span>'
_TEXT = (
    "margin: 0.2em 0 0; white-space: pre-wrap; overflow-wrap: break-word; word-break: normal; background: none; "
    "font-size: 0.92em"
)
_BAR = "display: inline-block; vertical-align: middle; width: 5em; height: 0.45em; border: 1px solid {colour}"


def context_html(heading: str, parts: Sequence[ContextPart], pins: Container[str] = (), *, cached: bool) -> str:
    """Return the parts of a prompt as HTML, below a heading.

    Parameters
    ----------
    heading
        Plain text.
    parts
        What `llamanb.context.context_parts` returns.
    pins
        The ids of messages that are pinned.
    cached
        Whether to mark what needs no prefill.
    """
    return f"<div><div>{escape(heading)}</div>{''.join(_part(part, part.holds(pins), cached) for part in parts)}</div>"


def _part(part: ContextPart, pinned: bool, cached: bool) -> str:
    colour = _COLOURS[part.messages[-1].role]
    role = f'<span style="{_ROLE.format(colour=colour)}">{escape(part.role)}</span>'
    count = _REMARK.format(counted(part.n_tokens, "token"))
    bar = (_REMARK.format("pinned") if pinned else "") + (_cached_bar(part, colour) if cached else "")
    text = f'<pre style="{_TEXT}">{_shown(part.text)}</pre>'
    return f'<div style="{_PART.format(colour=colour)}">{role}{count}{bar}{text}</div>'


def _cached_bar(part: ContextPart, colour: str) -> str:
    share = part.n_cached / part.n_tokens
    filled = f"background: linear-gradient(to right, {colour} {share:.0%}, transparent {share:.0%})"
    said = _REMARK.format(f"{part.n_cached:,} cached ")
    return f'{said}<span style="{_BAR.format(colour=colour)}; {filled}"></span>'


def _shown(text: str) -> str:
    """Return text as HTML that no front end looks for math in: JupyterLab would typeset what stands in dollars."""
    return escape(text.removesuffix("\n")).replace("$", "<span>$</span>")
