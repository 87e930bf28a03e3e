"""The reference of all magics, made of their own help."""

from __future__ import annotations

import inspect

from llamanb.magics.arguments import line_names
from llamanb.magics.changing import ChangeMagics
from llamanb.magics.commands import ChatMagics

__all__ = ["reference"]


def reference() -> str:
    """Return the help of every magic as Markdown, each in a block of its own."""
    blocks = []
    for name in ["chat", *line_names()]:
        magic = getattr(ChatMagics, name, None) or getattr(ChangeMagics, name)
        blocks.append(f"```text\n{inspect.cleandoc(magic.__doc__)}\n```\n")
    return "\n".join(blocks)
