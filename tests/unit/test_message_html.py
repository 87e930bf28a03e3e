"""What a model wrote, as the panel shows it: complete, and with nothing in it that is live."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamanb.message_html import message_blocks, plain_block

LIVE = ["script", "style", "img", "iframe", "svg", "form", "input", "object", "embed", "link", "meta", "video", "base"]


class Tags(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(text: str) -> str:
    return "".join(message_blocks(text))


def text_of(text: str) -> str:
    return Tags(shown(text)).text


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![picture](https://example.org/x.png)",
        "![picture][1]\n\n[1]: https://example.org/x.png",
        "[link](javascript:alert(1))",
        "[link](data:text/html,x)",
        "<javascript:alert(1)>",
        "$\\text{<img src=x onerror=alert(1)>}$",
        "$$\\href{javascript:alert(1)}{x}$$",
        "$\\color{red}<script>alert(1)</script>$",
        "```html\n<img src=x onerror=alert(1)>\n```",
        '``` "><img src=x onerror=alert(1)>\nx\n```',
        "| <b onclick=alert(1)>a</b> |\n|---|\n| <iframe src=x> |",
        "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    ],
)
def test_nothing_that_a_model_writes_is_live(text: str) -> None:
    for tag, attributes in Tags(shown(text)).tags:
        assert tag not in LIVE
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        href = attributes.get("href")
        assert href is None or href.startswith(("http://", "https://", "mailto:", "#", "/", "."))


WORDS = "< > & ` `` $ $$ \\ [a]( ) ! ]( javascript: x | - \\text{ } \\( \\) ``` ~~~ <script> </ style= \" '"
PIECES = [*WORDS.split(), " ", "\n", "\n\n", "1. ", "<img src=x onerror=a>"]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
@settings(deadline=None, max_examples=300)
def test_nothing_is_live_however_it_is_put_together(text: str) -> None:
    for tag, attributes in Tags(shown(text)).tags:
        assert tag not in LIVE
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        assert not (attributes.get("href") or "").lower().startswith(("javascript", "data", "vbscript"))


def test_links_open_elsewhere_and_only_by_a_click() -> None:
    ((_, link),) = [found for found in Tags(shown("[docs](https://example.org)")).tags if found[0] == "a"]
    assert link["target"] == "_blank"
    assert "noopener" in str(link["rel"])


def test_comparisons_quotes_and_prices_read_as_written() -> None:
    text = 'a < b && c > d, List<int> and "quotes", $5 and $10'
    assert text_of(text).strip() == text


def test_code_is_highlighted_and_complete() -> None:
    code = 'def f(x: int) -> str:\n    return "<b>" + str(x)  # &amp;\n'
    source = shown(f"```python\n{code}```")
    assert 'class="tok-k"' in source
    assert Tags(source).text == code
    assert Tags(shown(f"```nolanguage\n{code}```")).text == code
    assert Tags(shown(f"```\n{code}```")).text == code


def test_tables_keep_their_alignment() -> None:
    cells = [attributes for tag, attributes in Tags(shown("| a | b |\n|--:|:-:|\n| 1 | 2 |")).tags if tag == "td"]
    assert [str(cell["style"]).replace(" ", "") for cell in cells] == ["text-align:right", "text-align:center"]


def test_math_is_mathml_and_what_is_none_reads_as_written() -> None:
    for text in ("$\\frac{a<b}{2}$", "\\(\\frac{a<b}{2}\\)", "$$\\frac{a<b}{2}$$", "\\[\\frac{a<b}{2}\\]"):
        source = shown(text)
        assert "<math" in source
        assert "<mfrac>" in source
        assert Tags(source).text.strip() == "a<b2"
    assert text_of("$\\text{a < b & c}$").replace("\xa0", " ").strip() == "a < b & c"
    assert "<code>x^</code>" in shown("$x^$")


def test_what_is_added_at_the_end_leaves_earlier_pieces_as_they_are() -> None:
    text = "One.\n\n- two\n- three\n\n```python\nx = 1\n```\n\nFour and **five**."
    before: list[str] = []
    for end in range(len(text)):
        now = message_blocks(text[:end])
        assert now[: max(0, len(before) - 2)] == before[: max(0, len(before) - 2)]
        before = now
    assert len(before) == 4


def test_plain_text_is_escaped() -> None:
    assert html.unescape(re.sub("<[^>]*>", "", plain_block("a < b\n<i>"))) == "a < b\n<i>"
