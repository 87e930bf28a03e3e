"""SamplingParams: how the next token is chosen, validated and immutable."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from llamanb.errors import InvalidArgumentError, sentence

__all__ = ["MAX_SEED", "SamplingParams", "derive_seed"]

MAX_SEED = 2**32 - 2
"""The largest seed; llama.cpp reads 2^32 - 1 (``LLAMA_DEFAULT_SEED``) as "choose one at random"."""

_RANGES: dict[str, tuple[float, float, str]] = {
    "temperature": (0.0, 100.0, "0 (greedy) to 100"),
    "top_p": (0.0, 1.0, "0 to 1 (1 is off)"),
    "min_p": (0.0, 1.0, "0 (off) to 1"),
    "typical_p": (0.0, 1.0, "0 to 1 (1 is off)"),
    "repeat_penalty": (0.01, 10.0, "0.01 to 10 (1 is off)"),
    "frequency_penalty": (-10.0, 10.0, "-10 to 10 (0 is off)"),
    "presence_penalty": (-10.0, 10.0, "-10 to 10 (0 is off)"),
}
_INTEGER_RANGES: dict[str, tuple[int, int, str]] = {
    "top_k": (0, 2**31 - 1, "0 (off) to 2147483647"),
    "penalty_last_n": (-1, 2**31 - 1, "-1 (the whole context), 0 (off) or up to 2147483647"),
    "max_tokens": (1, 2**31 - 1, "from 1 to 2147483647"),
}


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is sampled, and where it ends.

    The filters run in the order of llama.cpp's default chain: logit bias, penalties, top-k, typical, top-p, min-p,
    temperature, and then the draw. A grammar is applied to the token that they choose, and to all tokens where that
    one is refused.

    Parameters
    ----------
    temperature
        0 (greedy) to 100. Default 0.7.
    top_p
        Nucleus sampling, 0 to 1; 1 is off. Default 0.95.
    top_k
        Keep the k likeliest tokens; 0 is off. Default 40.
    min_p
        Drop tokens below this share of the likeliest one's probability, 0 (off) to 1. Default 0.05.
    typical_p
        Locally typical sampling (arXiv:2202.00666), 0 to 1; 1 is off. Default 1.
    repeat_penalty
        Divides the logits of tokens seen in the last `penalty_last_n`, 0.01 to 10; 1 is off. Default 1.
    frequency_penalty, presence_penalty
        Subtracted once per occurrence, and once per token that occurred, -10 to 10; 0 is off. Default 0.
    penalty_last_n
        How many tokens the three penalties look back over: -1 for all of the context, 0 for none. Default 64.
    max_tokens
        The most tokens that an answer may have, at least 1. Default 512.
    seed
        0 to 2^32 - 2, ``None`` to derive it from the path (so that a second run gives the same answer), or
        ``"random"``. Default ``None``. Greedy sampling needs none.
    stop
        Strings that end the answer; they are neither shown nor stored. Default none.
    logit_bias
        Token id to a number added to its logit; ``-inf`` bans it. Default none.
    grammar
        A GBNF grammar that the answer must match, with a rule ``root``. Not together with `json_schema`.
    json_schema
        A JSON schema that the answer must match. An object that names its properties has no others unless
        ``additionalProperties`` says so; every keyword that cannot be held to is refused.

    Raises
    ------
    InvalidArgumentError
        A value is out of its range.
    TypeError
        A value has the wrong type.
    """

    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    max_tokens: int = 512
    seed: int | str | None = None
    stop: Sequence[str] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, (low, high, text) in _RANGES.items():
            _check_number(name, getattr(self, name), low, high, text)
        for name, (low_int, high_int, text) in _INTEGER_RANGES.items():
            _check_integer(name, getattr(self, name), low_int, high_int, text)
        self._check_seed()
        object.__setattr__(self, "stop", _checked_stop(self.stop))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        self._check_constraint()

    def _check_seed(self) -> None:
        if self.seed is None or self.seed == "random":
            return
        if isinstance(self.seed, str):
            raise InvalidArgumentError(f'seed is {self.seed!r}; it must be a whole number, None or "random".')
        _check_integer("seed", self.seed, 0, MAX_SEED, f"a whole number from 0 to {MAX_SEED}")

    def _check_constraint(self) -> None:
        if self.grammar is not None and not isinstance(self.grammar, str):
            raise TypeError(f"grammar must be a string in GBNF, not {type(self.grammar).__name__}.")
        if self.grammar is not None and not self.grammar.strip():
            raise InvalidArgumentError("The grammar is empty; it needs a rule 'root'.")
        if self.json_schema is None:
            return
        if self.grammar is not None:
            raise InvalidArgumentError("Give a grammar or a json_schema, not both.")
        if not isinstance(self.json_schema, Mapping):
            raise TypeError(f"json_schema must be a mapping, not {type(self.json_schema).__name__}.")
        try:
            json.dumps(self.json_schema)
        except RecursionError:
            raise InvalidArgumentError("json_schema is nested too deeply.") from None
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"json_schema is not JSON: {sentence(error)}") from None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    def replace(self, **changes: Any) -> SamplingParams:
        """Return a copy with some fields changed.

        Raises
        ------
        TypeError
            A field is unknown; the message names the nearest one.
        """
        names = [f.name for f in fields(self)]
        for name in changes:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f" Did you mean {near[0]!r}?" if near else f" The options are {', '.join(names)}."
                raise TypeError(f"There is no option {name!r}.{hint}")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the temperature, `max_tokens` and every field that is not at its default, as JSON values."""
        stored = {name: value for name, value in self._json().items() if value != _defaults()[name]}
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, **stored}

    def acting(self) -> dict[str, Any]:
        """Return the fields that can act, as JSON values; stored with an answer, to say how it was made.

        With temperature 0 neither the filters nor the seed can; penalties and constraints can.
        """
        drawn = () if self.greedy else ("top_p", "top_k", "min_p", "seed")
        values = self._json()
        always = {name: values[name] for name in ("temperature", "max_tokens", *drawn)}
        silent = ("top_p", "top_k", "min_p", "seed", "typical_p") if self.greedy else ()
        changed = {n: v for n, v in values.items() if v != _defaults()[n] and n not in silent}
        return {**changed, **always}

    def _json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["stop"] = list(self.stop)
        values["logit_bias"] = {str(k): v if math.isfinite(v) else str(v) for k, v in self.logit_bias.items()}
        values["json_schema"] = json.loads(json.dumps(self.json_schema))
        return values

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> SamplingParams:
        """Read what `to_dict` wrote; fields that this version does not know are passed over.

        Raises
        ------
        InvalidArgumentError
            A value is out of its range.
        TypeError
            A value has the wrong type.
        """
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in stored.items() if name in known}
        if isinstance(values.get("logit_bias"), Mapping):
            try:
                values["logit_bias"] = {int(k): float(v) for k, v in values["logit_bias"].items()}
            except ValueError as error:
                raise InvalidArgumentError(f"logit_bias cannot be read: {sentence(error)}") from None
        return cls(**values)


@functools.cache
def _defaults() -> dict[str, Any]:
    return SamplingParams()._json()


def derive_seed(sampling: SamplingParams, path_id: str | None, count: int = 0) -> SamplingParams:
    """Return `sampling` with a seed that is a number, or none where it is greedy.

    Parameters
    ----------
    sampling
        What was asked for. ``seed="random"`` is left to the caller's source of chance.
    path_id
        The id of the message that is answered; it stands for the whole path.
    count
        How many to count up from the first seed: for alternatives at one place.
    """
    if sampling.greedy:
        return dataclasses.replace(sampling, seed=None)
    if sampling.seed == "random":
        return sampling
    first = sampling.seed
    if first is None:
        first = int.from_bytes(hashlib.sha256(f"seed:{path_id or ''}".encode()).digest()[:8], "big")
    return dataclasses.replace(sampling, seed=(int(first) + count) % (MAX_SEED + 1))


def _check_number(name: str, value: object, low: float, high: float, text: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}.")
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} is {value}; it must be {text}.")


def _check_integer(name: str, value: object, low: int, high: int, text: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}.")
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} is {value}; it must be {text}.")


def _checked_stop(stop: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(stop, Sequence):
        raise TypeError(f"stop is text or a list of texts, not a {type(stop).__name__}.")
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in strings:
        if not isinstance(text, str):
            raise TypeError(f"stop must hold strings, not {type(text).__name__}.")
        if not text:
            raise InvalidArgumentError("A stop string is empty; it would end every answer before it starts.")
    return strings


def _checked_bias(bias: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias must be a mapping of token ids to numbers, not {type(bias).__name__}.")
    for token, value in bias.items():
        _check_integer("A token id in logit_bias", token, 0, 2**31 - 1, "a token of the vocabulary")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"The bias of token {token} must be a number, not {type(value).__name__}.")
        if math.isnan(value) or value == math.inf:
            raise InvalidArgumentError(f"The bias of token {token} is {value}; it must be finite, or -inf to ban it.")
    return dict(bias)
