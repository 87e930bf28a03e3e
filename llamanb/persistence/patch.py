"""What changed between two JSON values, as a JSON Patch (RFC 6902). Pure; no I/O.

Only ``add``, ``replace`` and ``remove`` are used, which is all that is needed to tell a copy what changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["make_patch", "same"]


def make_patch(old: Any, new: Any) -> list[dict[str, Any]]:
    """Return the operations that make `new` of `old`.

    Values that both share are not looked into, and neither value is changed; the operations hold parts of `new`.
    """
    return list(_operations(old, new, ""))


def _operations(old: Any, new: Any, path: str) -> Iterator[dict[str, Any]]:
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if key not in new:
                yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
        for key, value in new.items():
            where = f"{path}/{_escaped(key)}"
            if key not in old:
                yield {"op": "add", "path": where, "value": value}
            else:
                yield from _operations(old[key], value, where)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _list_operations(old, new, path)
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield {"op": "replace", "path": path, "value": new}


def _list_operations(old: list[Any], new: list[Any], path: str) -> Iterator[dict[str, Any]]:
    """Keep what both lists begin and end with, and put the rest in its place."""
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if not same(old[i], new[i])), shorter)
    n_end = next((i for i in range(shorter - start) if not same(old[-1 - i], new[-1 - i])), shorter - start)
    for index in reversed(range(start, len(old) - n_end)):
        yield {"op": "remove", "path": f"{path}/{index}"}
    for index in range(start, len(new) - n_end):
        yield {"op": "add", "path": f"{path}/{index}", "value": new[index]}


def same(old: Any, new: Any) -> bool:
    """Whether two JSON values are the same; Python takes true for 1."""
    return next(_operations(old, new, ""), None) is None


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
