"""What a model wrote as Markdown that is safe to display: nothing in it is live, everything reads as written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

from llamanb.history import History
from llamanb.messages import Message

__all__ = [
    "answer_markdown",
    "code_block",
    "first_code_block",
    "markdown_html",
    "markdown_tokens",
    "plain_markdown",
    "side_by_side",
    "transcript_markdown",
    "tree_text",
]

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")

# `<` before anything that HTML or Markdown could read on as a tag, a comment or an autolink.
_TAG_START = re.compile(r"<(?=[A-Za-z/!?])")
_IMAGE_START = re.compile(r"!(?=\[)")
_LINK_START = re.compile(r"\](?=[(:])")
_BACKTICKS_OR_ESCAPE = re.compile(r"\\.|`+", re.DOTALL)
_TABLE_RULE = re.compile(r"^[ \t>|:-]*-[ \t>|:-]*$", re.MULTILINE)

_TARGET = r"(?:(?:https?://|mailto:|#|[\w./-]*[#?])(?:[^\s()<>]|\([^\s()<>]*\))*|[\w./-]*)"
_TITLE = r"""(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?"""
_LINK = re.compile(rf"\]\(\s*{_TARGET}{_TITLE}\s*\)", re.IGNORECASE)
_DEFINITION = re.compile(rf"\]:\s*(?=\S){_TARGET}{_TITLE}[ \t]*(?:\n|$)", re.IGNORECASE)

# A dollar opens math before a character that is no space, and closes it after one, unless a digit follows: the rule of
# Pandoc's tex_math_dollars, by which "$5 and $10" holds no math.
_MATH = re.compile(
    r"(?<!\\)(?:\$\$(?P<display>.+?)\$\$|\$(?=\S)(?P<inline>[^$]*?[^\s$\\])\$(?!\d)"
    r"|\\\[(?P<brackets>.+?)\\\]|\\\((?P<parentheses>.+?)\\\)"
    r"|(?P<environment>\\begin\{(?P<name>[A-Za-z]*\*?)\}.*?\\end\{(?P=name)\}))",
    re.DOTALL,
)
# MathJax looks for dollars again in what Markdown has made of the text, and knows an escaped one by its backslash.
_DOLLAR = r"\\$"
_BRACE = re.compile(r"\\[{}]|[{}]")

# What Markdown reads as more than itself inside a line, but for what `answer_markdown` takes care of.
_PUNCTUATION = re.compile(r"[&*_`~\[\]|\\]")

# What means something to Markdown, or to JupyterLab's search for math, which also takes `\\(`, `\\[` and `\begin` for
# the start of it; escapes are passed over.
_SPECIAL = re.compile(
    r"(?P<backslash>\\\\(?=[\\()\[\]]|(?:begin|end)\{|\Z)|\\(?=(?:begin|end)\{))"
    r"|(?P<tag>\\?<(?=[A-Za-z/!?]))|(?P<dollar>\\?\$)|(?P<escape>\\.)|(?P<bare>!(?=\[)|`)",
    re.DOTALL | re.IGNORECASE,
)


def answer_markdown(text: str) -> str:
    r"""Return what a model wrote as Markdown without live parts.

    No HTML in it is ever live, no image loads, and no link runs a script, in whatever front end shows it; code,
    comparisons, quotes and math look as they were written. Code stays as it is. Elsewhere the start of a tag becomes
    ``&lt;``, or gets a space after it in math, where a space has no meaning. Math in ``\(…\)`` and ``\[…\]``, which
    notebooks do not know, is written with dollars, and a dollar that opens no math is escaped. A link stays one where
    all of it is plain: to http, https, mail, a place in the page or a relative path.
    """
    text = re.sub(r"\r\n?", "\n", text)
    lines = text.split("\n")
    tokens = _MARKDOWN.parse(text)
    edges = {line for token in tokens if token.type == "inline" and token.map for line in token.map}
    rows = {line for token in tokens if token.type == "table_open" and token.map for line in range(*token.map)}
    shown: list[str] = []
    start = 0
    for token in tokens:
        if token.type not in ("fence", "code_block") or not token.map or token.map[0] < start:
            continue
        if token.type == "code_block" and token.level > 0:
            continue  # renderers disagree about indented code in lists; as prose it is safe
        shown += _prose(lines, start, token.map[0], edges, rows)
        start = token.map[1]
        if token.level == 0:
            shown += ["", *code_block(token.content, token.info).split("\n"), ""]
        else:  # JupyterLab looks for math in it too, but not beyond an empty line
            apart = [""] if re.search(r"[$\\]", token.content) else []
            shown += [*apart, *lines[token.map[0] : start], *apart]
    safe = "\n".join([*shown, *_prose(lines, start, len(lines), edges, rows)]).strip("\n")
    return safe.replace(_DOLLAR, "$") if text.count("$") == 1 else safe  # one alone opens nothing


def plain_markdown(text: str) -> str:
    """Return a line of text as Markdown that reads as it is written, whatever stands in it."""
    return answer_markdown(_PUNCTUATION.sub(lambda found: f"&#{ord(found[0])};", text))


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


def _prose(lines: list[str], start: int, end: int, edges: set[int], rows: set[int]) -> list[str]:
    """Make the lines between code blocks safe, paragraph by paragraph: no code span reaches out of one."""
    cuts = sorted({start, end, *(edge for edge in edges if start < edge < end)})
    blocks = (_block("\n".join(lines[a:b]), in_table=a in rows) for a, b in itertools.pairwise(cuts))
    return [line for block in blocks for line in block.split("\n")]


def _block(text: str, *, in_table: bool) -> str:
    """Make one paragraph safe. Code spans pair as CommonMark pairs them, and only what stands in one stays as it is.

    They are written on one line and with fences of one length: JupyterLab looks for math before it looks for code, and
    what it cuts out from inside of one span to inside of another must leave a span.
    """
    plain: list[str] = []
    code: list[str] = []
    plain_from = at = 0
    while found := _BACKTICKS_OR_ESCAPE.search(text, at):
        at = found.end()
        end = _closing(text, at, len(found[0])) if found[0][0] == "`" else None
        if end is not None:
            plain.append(text[plain_from : found.start()])
            code.append(re.sub(r"\s*\n[ \t>]*", " ", text[at : end - len(found[0])]))
            plain_from = at = end
    fence = "`" * (1 + max((len(run) for span in code for run in re.findall("`+", span)), default=0))
    if in_table or _TABLE_RULE.search(text):  # there, a bar parts cells even in code
        code = [re.sub(r"(?<!\\)\|", r"\\|", span) for span in code]
    pieces = [_plain(before, more=True) + fence + span + fence for before, span in zip(plain, code, strict=True)]
    return "".join([*pieces, _plain(text[plain_from:])])


def _closing(text: str, at: int, length: int) -> int | None:
    runs = re.finditer(r"`+", text[at:])
    return next((at + run.end() for run in runs if len(run[0]) == length), None)


def _plain(text: str, *, more: bool = False) -> str:
    """Make text without code safe; `more` says that something of the same paragraph follows."""
    pieces: list[str] = []
    start = at = 0
    while found := _MATH.search(text, at):
        if not _balanced(found[0]):
            at = found.start() + 1
            continue
        pieces += [_words(text[start : found.start()], more=True), _formula(found)]
        start = at = found.end()
    return "".join([*pieces, _words(text[start:], more=more)])


def _balanced(formula: str) -> bool:
    """Whether braces pair; JupyterLab looks for the end of a formula beyond those that do not."""
    depth = 0
    for brace in _BRACE.findall(formula):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def _formula(found: re.Match[str]) -> str:
    display = found["display"] or found["brackets"]
    formula = found["environment"] or display or found["inline"] or found["parentheses"]
    formula = formula.replace("`", r"\lq ")
    for start, apart in ((_TAG_START, "< "), (_IMAGE_START, "! "), (_LINK_START, "] ")):
        formula = start.sub(apart, formula)
    if found["environment"]:
        return formula
    formula = re.sub(r"(?<!\\)\$", r"\\$", formula)
    return f"$${formula}$$" if display else f"${formula.strip()}$"


def _words(text: str, *, more: bool) -> str:
    def special(found: re.Match[str]) -> str:
        forms = {"backslash": "&#92;", "tag": "&lt;", "dollar": _DOLLAR, "escape": found[0], "bare": "\\" + found[0]}
        return forms[str(found.lastgroup)]

    def target(found: re.Match[str]) -> str:
        if (_LINK if found[0] == "](" else _DEFINITION).match(seen, found.start()):
            return found[0]
        return "]&#40;" if found[0] == "](" else "]&#58;"

    seen = text + "`" if more else text  # what goes on in code or math is no safe target
    return _SPECIAL.sub(special, re.sub(r"\][(:]", target, text))


def _kept_math(formula: str, options: Mapping[str, Any]) -> str:
    """Leave a formula to the front end, which finds it by its dollars."""
    dollars = "$$" if options["display_mode"] else "$"
    return f"{dollars}{escapeHtml(formula)}{dollars}"


_HTML = (
    MarkdownIt("commonmark", {"html": False})
    .enable("table")
    .disable("image")
    .use(dollarmath_plugin, allow_labels=False, allow_space=False, double_inline=True, renderer=_kept_math)
    .use(amsmath_plugin, renderer=escapeHtml)
)
_KEPT_DOLLAR = "\ufdd0"
"""Stands for an escaped dollar while Markdown is read; a noncharacter, which no text has."""


def markdown_html(markdown: str) -> str:
    """Return Markdown made by `answer_markdown` or `code_block` as HTML that is as safe as it is.

    Math is left for the front end to typeset, in dollars.
    """
    tokens = markdown_tokens(markdown, dollar=r"\$")
    shown = str(_HTML.renderer.render(tokens, _HTML.options, {}))
    return shown.replace("<pre>", '<pre style="margin: 0.5em 0">')  # notebooks set it right beside the text around it


def markdown_tokens(markdown: str, *, dollar: str) -> list[Token]:
    """Return the tokens of Markdown made by `answer_markdown`, with `dollar` for each one that opens no math."""
    tokens = _HTML.parse(markdown.replace(_KEPT_DOLLAR, "\ufffd").replace(_DOLLAR, _KEPT_DOLLAR))
    for token in tokens:
        for part in (token, *(token.children or ())):
            part.content = part.content.replace(_KEPT_DOLLAR, _DOLLAR if _is_code(part) else dollar)
    return tokens


def _is_code(token: Token) -> bool:
    return token.type in ("fence", "code_block", "code_inline")


def side_by_side(titles: Sequence[str], columns: Sequence[str]) -> str:
    """Return pieces of safe HTML as columns under their titles; where they have no room, one below the other."""
    cells = "".join(
        f'<div style="min-width: 0; overflow-x: auto">'
        f'<div style="font-weight: 600; opacity: 0.7">{escapeHtml(title)}</div>{column}</div>'
        for title, column in zip(titles, columns, strict=True)
    )
    columns_style = "display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15em), 1fr)); gap: 0 2em"
    return f'<div style="{columns_style}">{cells}</div>'


def transcript_markdown(messages: Iterable[Message]) -> str:
    """Return messages as Markdown, each under its role."""
    return "\n\n".join(f"**{message.role}**\n\n{answer_markdown(message.text)}" for message in messages)


def tree_text(history: History) -> str:
    """Return the tree as lines of text; ● marks the active path, ◀ the tip of a branch."""
    return "\n".join(history.tree_lines()) or "(no messages yet)"
