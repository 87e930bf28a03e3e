"""What a cell's text becomes before it is sent: variables of the notebook in place of `{name}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["expand", "keep_questions"]

_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PLACE = re.compile(r"\{\{(?P<escaped>" + _NAME + r")\}\}|\{(?P<name>" + _NAME + r")\}")
_QUESTION = re.compile(r"^(?P<indent>\s*)%chat\s+(?P<text>\S.*\?)\s*$")
_MISSING = object()


def expand(text: str, namespace: Mapping[str, Any]) -> str:
    """Replace `{name}` and `{obj.attribute}` where they resolve in a namespace.

    Every other brace stays as it is, so that JSON and code need no escaping; `{{name}}` gives `{name}`.
    """

    def value(found: re.Match[str]) -> str:
        if found["escaped"] is not None:
            return "{" + found["escaped"] + "}" if _resolve(found["escaped"], namespace) is not _MISSING else found[0]
        resolved = _resolve(found["name"], namespace)
        return found[0] if resolved is _MISSING else str(resolved)

    return _PLACE.sub(value, text)


def keep_questions(lines: list[str]) -> list[str]:
    """Let `%chat` end in a question mark, and `%%chat` say itself that its prompt is empty: an input transformer.

    IPython takes a line that ends in a question mark for a request for help, whatever it begins with, and refuses a
    cell magic without a body before the magic sees it.
    """
    if lines and lines[0].startswith("%%"):
        empty = lines[0].split(None, 1)[0] == "%%chat" and not "".join(lines[1:]).strip()
        return [lines[0].rstrip("\n") + "\n", " \n"] if empty else lines
    return [_QUESTION.sub(_called, line) for line in lines]


def _called(found: re.Match[str]) -> str:
    return f"{found['indent']}get_ipython().run_line_magic('chat', {found['text']!r})\n"


def _resolve(dotted: str, namespace: Mapping[str, Any]) -> Any:
    first, *attributes = dotted.split(".")
    value = namespace.get(first, _MISSING)
    for attribute in attributes:
        if value is _MISSING:
            break
        value = getattr(value, attribute, _MISSING)
    return value
