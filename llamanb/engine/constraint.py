"""JSON schemas as a constraint on the next token, by llguidance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from llamanb.errors import DecodeError, InvalidArgumentError
from llamanb.wording import sentence

__all__ = ["Constraint", "SchemaConstraint", "check_schema"]

# One way to write each value, that of `json.dumps`: a small model that may write any white space can go on with it.
_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": True}

_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LEAVES_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref", "allOf")


def check_schema(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema as a grammar of llguidance.

    Raises
    ------
    InvalidArgumentError
        It is no schema, nothing can satisfy it, or it has a keyword that cannot be held to; the message names it.
    """
    try:
        grammar = LLMatcher.grammar_from_json_schema(_closed(schema), overrides=_FORM)  # type: ignore[arg-type]
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"The json_schema cannot be used: {sentence(error)}") from None
    wrong, problems = LLMatcher.validate_grammar_with_warnings(grammar)
    if wrong:
        raise InvalidArgumentError(f"The json_schema cannot be used: {sentence(problems[0])}")
    return grammar


class Constraint(Protocol):
    """What one answer may go on with, token by token."""

    def allows(self, token: int) -> bool:
        """Whether the answer may go on with a token."""

    def allowed(self, logits: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
        """Return at least the `n` likeliest of the tokens that the answer may go on with.

        Raises
        ------
        DecodeError
            There are none.
        """

    def accept(self, token: int) -> None:
        """Go on with a token."""

    def close(self) -> None:
        """Free it."""


class SchemaConstraint:
    """What one answer may go on with by a JSON schema.

    Parameters
    ----------
    tokenizer
        The vocabulary.
    schema
        What the whole answer must match.
    """

    def __init__(self, tokenizer: LLTokenizer, schema: Mapping[str, Any]) -> None:
        self._matcher = LLMatcher(tokenizer, check_schema(schema))
        self._mask = allocate_token_bitmask(1, tokenizer.vocab_size)

    def allows(self, token: int) -> bool:
        """Whether the answer may go on with a token."""
        return bool(self._matcher.validate_tokens([token]) == 1)

    def allowed(self, *_: object) -> np.ndarray[Any, Any]:
        """Return the tokens that the answer may go on with, whatever their logits.

        Raises
        ------
        DecodeError
            There are none.
        """
        fill_next_token_bitmask(self._matcher, self._mask)
        tokens = np.flatnonzero(np.unpackbits(self._mask[0].view(np.uint8), bitorder="little"))
        if self._matcher.is_error() or not len(tokens):
            said = (self._matcher.get_error() or "").split("<state>")[0].strip()  # what follows is the parser's memory
            reason = said if " " in said else f"it allows no token here{f' ({said})' if said else ''}"
            raise DecodeError(f"The answer cannot go on by the json_schema: {sentence(reason)}")
        return tokens

    def accept(self, token: int) -> None:
        """Go on with a token."""
        self._matcher.consume_token(token)

    def close(self) -> None:
        """Do nothing: its memory is Python's."""


def _closed(schema: Any) -> Any:
    """Let objects that name their properties have no others, where the schema does not say.

    JSON Schema lets them; but nobody who asks for ``name`` and ``age`` wants what else a model may think of. A schema
    that puts others together by ``allOf`` is left as it is, since the parts must be open for that.
    """
    return schema if _combines(schema) else _close(schema)


def _combines(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(_combines(item) for item in schema)
    if not isinstance(schema, Mapping):
        return False
    parts = schema.get("allOf")
    return (isinstance(parts, list) and len(parts) > 1) or any(_combines(value) for value in schema.values())


def _close(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_close(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _OF_SCHEMAS and isinstance(value, Mapping):
            closed[key] = {name: _close(item) for name, item in value.items()}
        else:
            closed[key] = value if key in ("enum", "const", "default", "examples") else _close(value)
    names = schema.get("properties")
    if isinstance(names, Mapping) and names and not any(key in schema for key in _LEAVES_OPEN):
        required = schema.get("required") or []
        if isinstance(required, list) and all(name in names for name in required):
            closed["additionalProperties"] = False
    return closed
