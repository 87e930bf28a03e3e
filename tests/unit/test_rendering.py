"""What a model wrote is shown as it was written, and nothing in it is live in any front end."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from llamanb.history import History
from llamanb.messages import Message
from llamanb.rendering import (
    answer_markdown,
    code_block,
    first_code_block,
    markdown_html,
    plain_markdown,
    side_by_side,
    transcript_markdown,
    tree_text,
)

FRAGMENTS = [
    "<img src=x onerror=alert(1)>", "<script>", "</b>", "<!--", "-->", "<?", "<!X", "<http://x>", "<javascript:a>",
    "<", ">", "`", "``", "```", "````", "~~~", "```py\n", "$", "$$", "\\$", "\\(", "\\)", "\\[", "\\]", "\\\\(",
    "\\\\)", "\\\\[", "\\begin{a}", "\\end{a}", "{", "}", "@@0@@", "\n", "\n\n", "\r", "\t", "> ", "- ", "1. ",
    "    ", "# ", "---", "===", "* ", "![a](http://x/y.png)", "![", "!", "[x](javascript:alert(1))",
    "[x]( javascript:a)", "[x](<javascript:a>)", "[x]", "[x]: javascript:alert(1)", "[x]: /y\n", "](", "]:",
    "](/a \"t\")", "(", ")", "[", "]", "javascript:", "data:text/html,x", "\\", "&lt;", "&#60;", "&#x3c;", "&amp;",
    "a < b", "List<int>", "| a | b |", "|---|---|", "a", "1", " ", "\"", "*", "_",
]  # fmt: skip
adversarial = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)

# Every front end's renderer is at least as strict as this one: HTML is on, and a link may go anywhere.
LIBERAL = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table")
LIBERAL.validateLink = lambda url: True  # type: ignore[method-assign]
PAGE = MarkdownIt("commonmark", {"html": True}).enable("table")
SAFE_LINK = re.compile(r"(?:https?://|mailto:|#|[\w./%-]*(?:[?#]|$))", re.IGNORECASE)


def tokens_of(markdown: str) -> list[Token]:
    found = []
    for token in LIBERAL.parse(markdown):
        found += [token, *(token.children or ())]
    return found


def assert_nothing_is_live(markdown: str) -> None:
    for token in tokens_of(markdown):
        assert token.type not in ("html_block", "html_inline", "image"), token
        if token.type == "link_open":
            assert SAFE_LINK.match(str(token.attrs["href"])), token.attrs


MATH_SPLIT = re.compile(
    r"(\$\$?|\\(?:begin|end)\{[a-z]*\*?\}|\\[{}$]|[{}]|(?:\n\s*)+|@@\d+@@|\\\\(?:\(|\)|\[|\]))", re.IGNORECASE
)
FENCED = re.compile(r"^(?P<fence>`{3,}|(~T){3,})[^`\n]*\n([\s\S]*?)^(?P=fence)`*$", re.MULTILINE)
ONE_LINE_SPAN = re.compile(r"(^|[^\\])(`+)([^\n]*?[^`\n])\2(?!`)", re.MULTILINE)


def without_math(text: str) -> tuple[str, list[str]]:  # noqa: C901 - as long as what it follows
    """JupyterLab's `removeMath`: packages/rendermime/src/latex.ts, BSD-3-Clause, rewritten line by line."""
    math: list[str] = []
    has_code = "`" in text or "~~~" in text

    def hide(found: re.Match[str]) -> str:
        return found[0].replace("$", "~D")

    def shown(piece: str) -> str:
        return re.sub("~([TD])", lambda m: "~" if m[1] == "T" else "$", piece) if has_code else piece

    if has_code:
        text = ONE_LINE_SPAN.sub(hide, FENCED.sub(hide, text.replace("~", "~T")))
    blocks = MATH_SPLIT.split(re.sub("\r\n?", "\n", text))

    def take(first: int, last: int) -> None:
        whole = "".join(blocks[first : last + 1])
        blocks[first : last + 1] = [f"@@{len(math)}@@", *[""] * (last - first)]
        math.append(shown(html.escape(whole, quote=False)))

    start: int | None = None
    end: str | None = None
    last: int | None = None
    braces, i = 0, 1
    while i < len(blocks):
        block = blocks[i]
        if block.startswith("@"):
            blocks[i] = f"@@{len(math)}@@"
            math.append(block)
        elif start is not None:
            if block == end:
                if braces:
                    last = i
                else:
                    take(start, i)
                    start = end = last = None
            elif re.search("\n.*\n", block):
                if last is not None:
                    i = last
                    take(start, i)
                start, end, last, braces = None, None, None, 0
            elif block == "{":
                braces += 1
            elif block == "}" and braces:
                braces -= 1
        elif block in ("$", "$$"):
            start, end, braces = i, block, 0
        elif block in ("\\\\(", "\\\\["):
            start, end, braces = i, "\\\\)" if block[-1] == "(" else "\\\\]", 0
        elif block[1:6] == "begin":
            start, end, braces = i, "\\end" + block[6:], 0
        i += 2
    if start is not None and last is not None:
        take(start, last)
    return shown("".join(blocks)), math


def shown_in_jupyterlab(markdown: str) -> str:
    """The text that a person reads in JupyterLab; math stands as its source, and MathJax unescapes dollars."""
    text, math = without_math(markdown)
    page = re.sub(r"@@(\d+)@@", lambda m: math[int(m[1])], PAGE.render(text))
    return html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\\$", "$").rstrip("\n")


@given(adversarial)
@example("`a\n<img src=x onerror=alert(1)>`")
@example("```\n<b>\n~~~\n</b>")
@example("- ```\n  <b>\n- <i>")
@example("| a | b |\n|---|---|\n| `<b> | <i>` |")
@example('[a](/ "`b") <i>`')
@example("- x `a\n    - b` c\n      ~~~\n      <b>\n      ~~~")
@example("\\\\![a](http://x/y.png)")
@example("\\`<b>`</b>`")
@settings(max_examples=1500, deadline=None)
def test_nothing_is_live_in_a_markdown_renderer(text: str) -> None:
    assert_nothing_is_live(answer_markdown(text))


@given(adversarial)
@example("`$` <img src=x onerror=alert(1)> `$`")
@example("$`$<img src=x onerror=alert(1)>`")
@settings(max_examples=1500, deadline=None)
def test_nothing_is_live_where_jupyterlab_cuts_math_out_first(text: str) -> None:
    markdown, math = without_math(answer_markdown(text))
    assert_nothing_is_live(markdown)
    assert not any("<" in formula or ">" in formula for formula in math)


@given(adversarial)
@settings(max_examples=300, deadline=None)
def test_what_was_made_safe_stays_safe_when_shown_again(text: str) -> None:
    again = answer_markdown(answer_markdown(text))
    assert_nothing_is_live(again)
    assert_nothing_is_live(without_math(again)[0])


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_at_all_is_made_safe(text: str) -> None:
    markdown = answer_markdown(text)
    assert_nothing_is_live(markdown)
    assert_nothing_is_live(without_math(markdown)[0])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a < b and c > d", "a < b and c > d"),
        ("if a<b: pass", "if a<b: pass"),
        ("List<int> and Map<String, List<T>>", "List<int> and Map<String, List<T>>"),
        ("<b>bold</b>", "<b>bold</b>"),
        ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
        ("<!-- c -->", "<!-- c -->"),
        ('She said "no" & left, isn\'t it?', 'She said "no" & left, isn\'t it?'),
        ("`List<int>` and `a < b`", "List<int> and a < b"),
        ("``a ` <b>``", "a ` <b>"),
        ("`$x` and `$y`", "$x and $y"),
        ("It costs $5 and $10.", "It costs $5 and $10."),
        ("A lone $ sign", "A lone $ sign"),
        ("$x<y$", "$x< y$"),
        ("$x < y$ and $a_1$", "$x < y$ and $a_1$"),
        ("\\(x\\)", "$x$"),
        ("\\(a<b\\) costs $5", "$a< b$ costs $5"),
        ("\\[x^2\\]", "$$x^2$$"),
        ("$$\nx^2\n$$", "$$\nx^2\n$$"),
        ("\\begin{align}a &= b\\end{align}", "\\begin{align}a &= b\\end{align}"),
        ("a lone \\begin{a} and `\\end{a}`", "a lone \\begin{a} and \\end{a}"),
        ("an escaped \\<b> and \\\\(x\\\\)", "an escaped <b> and \\(x\\)"),
        ("`a ``b`` and a stray ```", "`a b and a stray ```"),
        ("An escaped \\$5", "An escaped $5"),
        ("Wow![1]", "Wow![1]"),
        ("[site](https://x.org/a)", "site"),
        ("snake_case_name and 2*3*4", "snake_case_name and 234"),
        ("1. one\n2. two", "\none\ntwo"),
    ],
)
def test_text_reads_as_it_was_written(written: str, read: str) -> None:
    assert shown_in_jupyterlab(answer_markdown(written)).strip() == read.strip()


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_a_fenced_block_reads_as_written_with_its_language(fence: str) -> None:
    code = 'if a < b:\n\n    print("<b>", $x, `y`)  # $5 ![a](http://x)\n'
    shown = answer_markdown(f"Look:\n{fence}python\n{code}{fence}\nDone <b>.")
    blocks = [token for token in tokens_of(shown) if token.type == "fence"]
    assert [(block.content, block.info) for block in blocks] == [(code, "python")]
    assert code.strip() in shown_in_jupyterlab(shown)
    assert shown_in_jupyterlab(shown).endswith("Done <b>.")


def test_a_fence_that_is_not_closed_yet_is_a_block_all_the_same() -> None:
    shown = answer_markdown("```html\n<b>bold")
    assert first_code_block(shown) == ("<b>bold\n", "html")


def test_a_block_in_a_list_stays_in_the_list() -> None:
    shown = answer_markdown("1. First:\n   ```py\n   a < b\n   ```\n2. Second")
    assert [token.content for token in tokens_of(shown) if token.type == "fence"] == ["a < b\n"]
    assert sum(token.type == "list_item_open" for token in tokens_of(shown)) == 2


def test_indented_code_becomes_a_fenced_block() -> None:
    shown = answer_markdown("Code:\n\n    a <b>\n    $x$\n\nafter")
    assert first_code_block(shown) == ("a <b>\n$x$\n", "")


def test_quotes_tables_and_headings_keep_their_form() -> None:
    shown = answer_markdown("# T\n\n> quoted <b>\n\n| a | b |\n|---|---|\n| 1 | `x<y` |\n")
    types = {token.type for token in tokens_of(shown)}
    assert {"heading_open", "blockquote_open", "table_open", "code_inline"} <= types
    assert "quoted <b>" in shown_in_jupyterlab(shown)


@pytest.mark.parametrize(
    "target", ["https://x.org", "HTTP://x.org", "mailto:a@b.c", "#top", "notes/a.md", "a.md#b", "/a?b=c"]
)
def test_a_safe_link_stays_a_link(target: str) -> None:
    links = [token for token in tokens_of(answer_markdown(f"[x]({target})")) if token.type == "link_open"]
    assert [link.attrs["href"] for link in links] == [target]


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "JaVaScRiPt:a", "data:text/html,x", "vbscript:a", "java&#115;cript:a"]
)
@pytest.mark.parametrize(
    "form", ["[x]({})", "[x](<{}>)", "[x]( {} 't')", "[x]\n\n[x]: {}", "[x]\n\n[x]:\n{}", "<{}>", "[x][y]\n\n[y]: <{}>"]
)
def test_another_link_is_no_link(form: str, target: str) -> None:
    assert "link_open" not in {token.type for token in tokens_of(answer_markdown(form.format(target)))}


@given(st.text("`~$a\n <", max_size=30), st.sampled_from(["", "python", "c++", "x y", "`", "<b>"]))
@settings(max_examples=200, deadline=None)
def test_nothing_in_a_code_block_can_end_it(text: str, language: str) -> None:
    tokens = LIBERAL.parse(code_block(text, language))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content.removesuffix("\n") == text.removesuffix("\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Here:\n```py\na\n```\n```js\nb\n```", ("a\n", "py")),
        ("no code", ("no code", "")),
        ("- item\n  ```\n  a\n  ```", ("a\n", "")),
    ],
)
def test_the_first_code_block_is_found(text: str, found: tuple[str, str]) -> None:
    assert first_code_block(text) == found


class Page(HTMLParser):
    """What a browser would make of a page: its elements and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


FORMATTING = re.compile("a|blockquote|br|code|div|em|h[1-6]|hr|li|ol|p|pre|span|strong|table|tbody|td|th|thead|tr|ul")


@given(adversarial, adversarial)
@settings(max_examples=300, deadline=None)
def test_nothing_is_live_in_html(title: str, text: str) -> None:
    page = Page(side_by_side([title], [markdown_html(answer_markdown(text))]))
    for tag, attributes in page.elements:
        assert FORMATTING.fullmatch(tag)
        assert set(attributes) <= {"href", "title", "class", "style", "start"}
        assert SAFE_LINK.match(attributes.get("href") or "#")


def test_html_reads_as_it_was_written() -> None:
    text = "a < b, `List<int>`, $x_i < y_j$ and $5 or $10.\n\n```sh\necho \\\\$HOME $x$\n```\n\n$$z$$"
    page = Page(markdown_html(answer_markdown(text)))
    assert "a < b, List<int>, $x_i < y_j$ and \\$5 or \\$10." in page.text
    assert "echo \\\\$HOME $x$" in page.text
    assert "$$z$$" in page.text
    assert "em" not in {tag for tag, _ in page.elements}


def test_columns_stand_under_their_titles() -> None:
    shown = side_by_side(["a<b", "c"], ["<p>one</p>", "<p>two</p>"])
    assert Page(shown).text == "a<bonectwo"
    assert shown.count("<p>") == 2


def test_a_transcript_shows_each_message_under_its_role() -> None:
    shown = transcript_markdown([Message.create("user", "<b>"), Message.create("assistant", "a")])
    assert shown == "**user**\n\n&lt;b>\n\n**assistant**\n\na"


def test_a_tree_is_drawn_with_its_branches() -> None:
    history = History()
    assert "(empty)  ◀ main (active)" in tree_text(history)
    first = history.append("main", "user", "one")
    history.append("main", "assistant", "two")
    history.fork("other", first.id)
    history.append("other", "assistant", "three")
    assert tree_text(history).split("\n") == [
        "● user: one",
        "├─ ● assistant: two  ◀ main (active)",
        "└─ ○ assistant: three  ◀ other",
    ]


@pytest.mark.parametrize(
    "title", ["```", "*", "**", "a_b_c", "my `branch`", "[x](y)", "&amp; <b>", "$x$", "~~no~~", "a|b", "\\"]
)
def test_a_title_reads_as_it_is_written(title: str) -> None:
    markdown = f"**{plain_markdown(title)}**\n\nmore"
    shown, more = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown).split("\n", 1)
    assert more == "<p>more</p>\n"
    assert html.unescape(shown) == f"<p><strong>{title}</strong></p>"
