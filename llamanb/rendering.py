"""What a model wrote as Markdown that is safe to display: nothing in it is live, everything reads as written."""

from __future__ import annotations

import re
from collections.abc import Iterable

from markdown_it import MarkdownIt

from llamanb.history import History
from llamanb.messages import Message

__all__ = ["answer_markdown", "code_block", "first_code_block", "transcript_markdown", "tree_text"]

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")

# `<` before anything that HTML or Markdown could read on as a tag, a comment or an autolink.
_TAG_START = re.compile(r"<(?=[A-Za-z/!?])")
_IMAGE_START = re.compile(r"!(?=\[)")
_TARGET_START = re.compile(r"\](\(|:)")
_SAFE_TARGET = re.compile(r"\s*(?:https?://|mailto:|#|[\w./-]*(?:[\s)#?]|$))", re.IGNORECASE)
_BACKTICKS_OR_ESCAPE = re.compile(r"\\.|`+", re.DOTALL)
# A dollar opens math before a character that is no space, and closes it after one, unless a digit follows: the rule of
# Pandoc's tex_math_dollars, by which "$5 and $10" holds no math.
_MATH = re.compile(
    r"(?<!\\)(?:\$\$(?P<display>.+?)\$\$|\$(?=\S)(?P<inline>[^$]*?[^\s$\\])\$(?!\d)"
    r"|\\\[(?P<brackets>.+?)\\\]|\\\((?P<parentheses>.+?)\\\))",
    re.DOTALL,
)
_BARE_DOLLAR = re.compile(r"(?<!\\)\$")


def answer_markdown(text: str) -> str:
    r"""Return what a model wrote as Markdown without live parts.

    No HTML in it is ever live, no image loads, and no link runs a script, in whatever front end shows it; code,
    comparisons, quotes and math look as they were written. Code stays as it is. Elsewhere the start of a tag becomes
    ``&lt;``, or gets a space after it in math, where a space has no meaning. Math in ``\(…\)`` and ``\[…\]``, which
    notebooks do not know, is written with dollars, and a dollar that opens no math is escaped.
    """
    lines = text.split("\n")
    shown: list[str] = []
    start = 0
    for token in _MARKDOWN.parse(text):
        if token.type not in ("fence", "code_block") or not token.map or token.map[0] < start:
            continue
        if token.type == "code_block" and token.level > 0:
            continue  # renderers disagree about indented code in lists; as prose it is safe
        shown += _prose(lines[start : token.map[0]])
        start = token.map[1]
        if token.level == 0:
            shown += ["", *code_block(token.content, token.info).split("\n"), ""]
        else:
            shown += lines[token.map[0] : start]
    return "\n".join([*shown, *_prose(lines[start:])]).strip("\n")


def code_block(text: str, language: str = "") -> str:
    """Return text as a fenced code block that nothing in it can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    name = re.match(r"[\w.+#-]*", language.strip())
    return f"{fence}{name[0] if name else ''}\n{text.removesuffix(chr(10))}\n{fence}"


def first_code_block(text: str) -> tuple[str, str]:
    """Return the first fenced code block of a text and its language; all of the text where it has none."""
    for token in _MARKDOWN.parse(text):
        if token.type == "fence":
            return token.content, token.info.strip()
    return text, ""


def _prose(lines: list[str]) -> list[str]:
    """Make the lines between code blocks safe, block by block: no code span reaches over a blank line."""
    parts = re.split(r"(\n[ \t]*(?=\n))", "\n".join(lines))
    return "".join(_block(part) if i % 2 == 0 else part for i, part in enumerate(parts)).split("\n") if lines else []


def _block(text: str) -> str:
    """Make one block safe. Code spans pair as CommonMark pairs them, and only what stands in one stays as it is."""
    pieces: list[str] = []
    plain_from = at = 0
    while found := _BACKTICKS_OR_ESCAPE.search(text, at):
        at = found.end()
        end = _closing(text, at, len(found[0])) if found[0][0] == "`" else None
        if end is not None:
            # JupyterLab looks for math before it looks for code, and sees a code span only where it is on one line.
            span = re.sub(r"\s*\n[ \t>]*", " ", text[found.start() : end])
            pieces += [_plain(text[plain_from : found.start()]), span]
            plain_from = at = end
    return "".join([*pieces, _plain(text[plain_from:])])


def _closing(text: str, at: int, length: int) -> int | None:
    runs = re.finditer(r"`+", text[at:])
    return next((at + run.end() for run in runs if len(run[0]) == length), None)


def _plain(text: str) -> str:
    """Make text without code safe."""
    pieces: list[str] = []
    at = 0
    for found in _MATH.finditer(text):
        display = found["display"] or found["brackets"]
        mark = "$$" if display else "$"
        formula = display or found["inline"] or found["parentheses"]
        formula = _IMAGE_START.sub("! ", _TAG_START.sub("< ", formula.replace("$", r"\$")))
        pieces += [_words(text[at : found.start()]), mark, formula.strip() if mark == "$" else formula, mark]
        at = found.end()
    return "".join([*pieces, _words(text[at:])])


def _words(text: str) -> str:
    text = _BARE_DOLLAR.sub(r"\\$", _IMAGE_START.sub(r"\\!", _TAG_START.sub("&lt;", text)))

    def target(found: re.Match[str]) -> str:
        if _SAFE_TARGET.match(text, found.end()):
            return found[0]
        return "]&#40;" if found[1] == "(" else "]&#58;"

    return _TARGET_START.sub(target, text)


def transcript_markdown(messages: Iterable[Message]) -> str:
    """Return messages as Markdown, each under its role."""
    return "\n\n".join(f"**{message.role}**\n\n{answer_markdown(message.text)}" for message in messages)


def tree_text(history: History) -> str:
    """Return the tree as lines of text; ● marks the active path, ◀ the tip of a branch."""
    return "\n".join(history.tree_lines()) or "(no messages yet)"
