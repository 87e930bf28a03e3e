"""What a model wrote as HTML for the chat panel: highlighted code, tables, MathML, and nothing that is live."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import nh3
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from llamanb.rendering import answer_markdown, markdown_tokens

__all__ = ["message_blocks", "plain_block"]

_MATHML = (
    "math mfrac mi mn mo mover mpadded mroot mrow mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder "
    "munderover"
)
_HTML = "a blockquote br code div em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong table tbody td th thead tr ul"
_TAGS = {*_HTML.split(), *_MATHML.split()}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "code": {"class"},
    "div": {"class", "data-language"},
    "math": {"display"},
    "mo": {"fence", "form", "lspace", "rspace", "stretchy"},
    "mspace": {"width"},
    "mtable": {"columnalign", "rowspacing"},
    "ol": {"start"},
    "span": {"class"},
    "td": {"style"},
    "th": {"style"},
}
_SCHEMES = {"http", "https", "mailto"}
_LONGEST_HIGHLIGHTED = 50_000
_TEXT_IN_MATH = re.compile(r"\\(?:text|textrm|textbf|textit|mbox)\s*\{[^{}]*\}")
_LESS, _AND = "\ufdd1", "\ufdd2"
"""Stand for signs in a formula's text while it is converted, which leaves them unescaped; noncharacters."""


def message_blocks(text: str) -> list[str]:
    """Return a message's Markdown as HTML, one piece for each paragraph, list, table or block of code.

    What a model writes at the end of a text changes its last pieces only, so that a view need not draw the others
    again. Every piece is sanitised by itself: no script, no style, no image and no form comes through, and links lead
    to http, https and mail alone.
    """
    tokens = markdown_tokens(answer_markdown(text), dollar="$")
    pieces: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            pieces.append([])
        pieces[-1].append(token)
        depth += token.nesting
    return [_clean(_RENDERER.render(piece, _OPTIONS, {})) for piece in pieces]


def plain_block(text: str) -> str:
    """Return text as it is, in HTML."""
    return f'<p class="llamanb-plain">{escapeHtml(text)}</p>'


def _clean(html: str) -> str:
    return nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        link_rel="noopener noreferrer nofollow",
        filter_style_properties={"text-align"},
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )


def _highlighted(code: str, language: str) -> str:
    if language and len(code) <= _LONGEST_HIGHLIGHTED:
        try:
            lexer = get_lexer_by_name(language, stripnl=False)
        except ClassNotFound:
            return escapeHtml(code)
        return str(highlight(code, lexer, _FORMATTER))
    return escapeHtml(code)


def _math(formula: str, *, display: bool) -> str:
    """Return a formula as MathML; one that cannot be converted as it was written."""
    kept = _TEXT_IN_MATH.sub(lambda found: found[0].replace("<", _LESS).replace("&", _AND), formula)
    try:
        math = convert(kept.replace("<", r"\lt "), display="block" if display else "inline")
    except Exception:
        return f"<code>{escapeHtml(formula.strip())}</code>"
    return math.replace(_LESS, "&lt;").replace(_AND, "&amp;")


class _Renderer(RendererHTML):
    """HTML of tokens; its methods are named as the tokens are."""

    def fence(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        token = tokens[idx]
        found = re.match(r"[\w.+#-]+", token.info.strip())
        language = found[0] if found else ""
        code = _highlighted(token.content, language)
        return f'<div class="llamanb-code" data-language="{escapeHtml(language)}"><pre><code>{code}</code></pre></div>'

    def code_block(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return self.fence(tokens, idx)

    def math_inline(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return _math(tokens[idx].content, display=False)

    def math_inline_double(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return _math(tokens[idx].content, display=True)

    def math_block(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return f'<div class="llamanb-math">{_math(tokens[idx].content, display=True)}</div>'

    def amsmath(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        return self.math_block(tokens, idx)

    def table_open(self, *_: Any) -> str:
        return '<div class="llamanb-table"><table>'

    def table_close(self, *_: Any) -> str:
        return "</table></div>"


_FORMATTER: HtmlFormatter[str] = HtmlFormatter(nowrap=True, classprefix="tok-")
_RENDERER = _Renderer()
_OPTIONS = MarkdownIt("commonmark").options
