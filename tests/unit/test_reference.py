"""The README says of each magic what the magic says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamanb.__main__ import main
from llamanb.magics.arguments import chat_parser, line_names, line_parser
from llamanb.magics.reference import reference

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_holds_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reference"]) == 0
    assert capsys.readouterr().out == reference()
    start, end = "<!-- python -m llamanb reference -->\n\n", "\n<!-- the end of it -->"
    assert README.read_text().partition(start)[2].partition(end)[0] == reference()


@pytest.mark.parametrize("name", ["chat", *line_names()])
def test_the_help_of_a_magic_fits_on_a_screen_and_has_an_example(name: str) -> None:
    (block,) = [block for block in reference().split("```text\n") if block.startswith((f"%{name} ", f"%%{name} "))]
    lines = block.rpartition("```")[0].splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 90
    assert "Example:" in block


@pytest.mark.parametrize("name", ["chat", *line_names()])
def test_the_help_of_a_magic_names_every_option(name: str) -> None:
    parser = chat_parser(name) if name == "chat" else line_parser(name)
    (block,) = [block for block in reference().split("```text\n") if block.startswith((f"%{name} ", f"%%{name} "))]
    options = parser.valued | parser.flags
    if name == "chat_regenerate":  # whose help refers to that of `%%chat`
        options -= chat_parser(name).valued | chat_parser(name).flags
    for option in options - {"--help"}:
        if option.startswith("--"):
            assert option in block or f"{option[1:3]} NAME" in block, option
