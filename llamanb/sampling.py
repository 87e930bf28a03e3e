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

from llamanb.errors import InvalidArgumentError
from llamanb.wording import sentence

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
    "dry_multiplier": (0.0, 100.0, "0 (off) to 100"),
    "dry_base": (1.0, 100.0, "1 to 100"),
    "xtc_probability": (0.0, 1.0, "0 (off) to 1"),
    "xtc_threshold": (0.0, 1.0, "0 to 1 (above 0.5 is off)"),
    "mirostat_tau": (0.0, 100.0, "0 to 100"),
    "mirostat_eta": (0.0, 1.0, "0 to 1"),
}
_INTEGER_RANGES: dict[str, tuple[int, int, str]] = {
    "top_k": (0, 2**31 - 1, "0 (off) to 2147483647"),
    "penalty_last_n": (-1, 2**31 - 1, "-1 (the whole context), 0 (off) or up to 2147483647"),
    "dry_allowed_length": (1, 2**31 - 1, "from 1 to 2147483647"),
    "dry_penalty_last_n": (-1, 2**31 - 1, "-1 (the whole context), 0 (off) or up to 2147483647"),
    "max_tokens": (1, 2**31 - 1, "from 1 to 2147483647"),
}

_MAX_BREAKER_BYTES = 40  # llama.cpp cuts off what is longer (`MAX_CHAR_LEN` in src/llama-sampler.cpp)
_MAX_XTC_THRESHOLD = 0.5  # two tokens cannot both have more
_TEXT_KEY = "text:"  # marks a text among the stored keys of a bias, where digits are a token id

_PENALTIES = ("repeat_penalty", "frequency_penalty", "presence_penalty", "penalty_last_n")
_DRY = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers")
_FILTERS = ("top_k", "typical_p", "top_p", "min_p")
_XTC = ("xtc_probability", "xtc_threshold")
_MIROSTAT = ("mirostat", "mirostat_tau", "mirostat_eta")


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is sampled, and where it ends.

    The links run in the order of llama.cpp's default chain (``common_params_sampling`` in common/common.h): logit bias,
    penalties, DRY, top-k, typical, top-p, min-p, XTC, temperature, and then the draw. Mirostat takes the place of the
    filters and of the draw: logit bias, penalties, DRY, temperature, Mirostat. With temperature 0 the likeliest token
    is taken after logit bias, penalties and DRY. A grammar is applied to the token that they choose, and to all tokens
    where that one is refused.

    Parameters
    ----------
    temperature
        0 (greedy) to 100. Default 0.7.
    top_p
        Nucleus sampling (arXiv:1904.09751), 0 to 1; 1 is off. Default 0.95.
    top_k
        Keep the k likeliest tokens, 0 (off) to 2^31 - 1. Default 40.
    min_p
        Drop tokens below this share of the likeliest one's probability (arXiv:2407.01082), 0 (off) to 1. Default 0.05.
    typical_p
        Locally typical sampling (arXiv:2202.00666): keep the tokens whose surprise is nearest to the expected one until
        they have more than this probability, 0 to 1; 1 is off. Default 1.
    repeat_penalty
        Divides the positive logits of tokens seen in the last `penalty_last_n`, and multiplies the negative ones
        (arXiv:1909.05858, as ``llama_sampler_init_penalties`` has it), 0.01 to 10; 1 is off. Default 1.
    frequency_penalty, presence_penalty
        Subtracted once per occurrence, and once per token that occurred, -10 to 10; 0 is off. Default 0.
    penalty_last_n
        How many tokens the three penalties look back over, -1 to 2^31 - 1: -1 for all of the context, 0 for none.
        Default 64.
    dry_multiplier
        DRY, "don't repeat yourself" (oobabooga/text-generation-webui#5677, ``llama_sampler_init_dry`` in llama.h):
        where the last n tokens stood before, and n is at least `dry_allowed_length`, the token that followed them there
        loses ``dry_multiplier * dry_base ** (n - dry_allowed_length)`` of its logit. 0 (off) to 100. Default 0.
    dry_base
        How fast that grows with the length of the repetition, 1 to 100. Default 1.75.
    dry_allowed_length
        How many tokens may be repeated before the next one loses, 1 to 2^31 - 1. Default 2.
    dry_penalty_last_n
        How many tokens DRY looks back over, -1 to 2^31 - 1: -1 for all of the context, 0 for none. Default -1.
    dry_sequence_breakers
        Texts of 1 to 40 bytes that no repetition reaches across. Default newline, colon, double quote and asterisk.
    xtc_probability
        "Exclude top choices" (oobabooga/text-generation-webui#6335, ``llama_sampler_init_xtc`` in llama.h): how often,
        0 (off) to 1, all tokens of at least `xtc_threshold` but the least likely of them are dropped. Default 0.
    xtc_threshold
        The probability from which a token is a top choice, 0 to 1; above 0.5 XTC is off, since there cannot be two.
        Default 0.1.
    mirostat
        2 for Mirostat 2.0 (arXiv:2007.14966, ``llama_sampler_init_mirostat_v2`` in llama.h): tokens whose surprise is
        above a bound are dropped, and the bound follows the surprise of what was drawn. 0 is off. Default 0.
    mirostat_tau
        The surprise in bits that Mirostat aims at, 0 to 100. The bound begins at twice that. Default 5.
    mirostat_eta
        How much of the difference from `mirostat_tau` is taken off the bound after each token, 0 to 1. Default 0.1.
    max_tokens
        The most tokens that an answer may have, 1 to 2^31 - 1. Default 512.
    seed
        0 to 2^32 - 2, ``None`` to derive it from the path (so that a second run gives the same answer), or
        ``"random"``. Default ``None``. Greedy sampling needs none.
    stop
        Strings that end the answer; they are neither shown nor stored. Default none.
    logit_bias
        Token id, or text, to a number added to its logit; ``-inf`` bans it. A text must be a single token of the model,
        as it is or after a space: ``{"Paris": -inf}`` bans the tokens ``Paris`` and `` Paris``, and a text that begins
        with white space only itself. What a model can also spell by other tokens is not banned there. Default none.
    grammar
        A GBNF grammar that the answer must match, with a rule ``root``. Not together with `json_schema`. Default none.
    json_schema
        A JSON schema that the answer must match. An object that names its properties has no others unless
        ``additionalProperties`` says so; every keyword that cannot be held to is refused. Default none.

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
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    max_tokens: int = 512
    seed: int | str | None = None
    stop: Sequence[str] = ()
    logit_bias: Mapping[int | str, float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, (low, high, text) in _RANGES.items():
            _check_number(name, getattr(self, name), low, high, text)
        for name, (low_int, high_int, text) in _INTEGER_RANGES.items():
            _check_integer(name, getattr(self, name), low_int, high_int, text)
        self._check_seed()
        self._check_mirostat()
        object.__setattr__(self, "stop", _checked_stop(self.stop))
        object.__setattr__(self, "dry_sequence_breakers", _checked_breakers(self.dry_sequence_breakers))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        self._check_constraint()

    def _check_seed(self) -> None:
        if self.seed is None or self.seed == "random":
            return
        if isinstance(self.seed, str):
            raise InvalidArgumentError(f'seed is {self.seed!r}; it must be a whole number, None or "random".')
        _check_integer("seed", self.seed, 0, MAX_SEED, f"a whole number from 0 to {MAX_SEED}")

    def _check_mirostat(self) -> None:
        if isinstance(self.mirostat, bool) or not isinstance(self.mirostat, int):
            raise TypeError(f"mirostat must be a whole number, not {type(self.mirostat).__name__}.")
        if self.mirostat not in (0, 2):
            raise InvalidArgumentError(f"mirostat is {self.mirostat}; it must be 0 (off) or 2, the only version here.")

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

    @property
    def has_penalties(self) -> bool:
        """Whether a penalty on tokens that were seen can act."""
        penalties = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty)
        return self.penalty_last_n != 0 and penalties != (1.0, 0.0, 0.0)

    @property
    def has_dry(self) -> bool:
        """Whether DRY can act."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def has_mirostat(self) -> bool:
        """Whether Mirostat chooses, instead of the filters."""
        return bool(self.mirostat) and not self.greedy

    @property
    def has_filters(self) -> bool:
        """Whether top-k, typical, top-p, min-p and XTC can act."""
        return not (self.greedy or self.mirostat)

    @property
    def has_xtc(self) -> bool:
        """Whether XTC can act."""
        return self.has_filters and self.xtc_probability > 0 and self.xtc_threshold <= _MAX_XTC_THRESHOLD

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

        The temperature, `max_tokens` and, where they can act, `top_p`, `top_k`, `min_p` and the seed are always among
        them; others are where they are not at their defaults.
        """
        values = self._json()
        silent = self._silent()
        always = ("temperature", "max_tokens", "top_p", "top_k", "min_p", "seed")
        return {
            name: value
            for name, value in values.items()
            if name not in silent and (name in always or value != _defaults()[name])
        }

    def _silent(self) -> set[str]:
        """Return the fields that cannot act beside the others."""
        acting = {
            _PENALTIES: self.has_penalties,
            _DRY: self.has_dry,
            _FILTERS: self.has_filters,
            _XTC: self.has_xtc,
            _MIROSTAT: self.has_mirostat,
            ("seed",): not self.greedy,
        }
        return {name for names, act in acting.items() if not act for name in names}

    def _json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["stop"] = list(self.stop)
        values["dry_sequence_breakers"] = list(self.dry_sequence_breakers)
        values["logit_bias"] = {
            _TEXT_KEY + key if isinstance(key, str) else str(key): bias if math.isfinite(bias) else str(bias)
            for key, bias in self.logit_bias.items()
        }
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
                values["logit_bias"] = {_bias_key(k): float(v) for k, v in values["logit_bias"].items()}
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


def _checked_strings(name: str, value: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(value, Sequence):
        raise TypeError(f"{name} is text or a list of texts, not a {type(value).__name__}.")
    strings = (value,) if isinstance(value, str) else tuple(value)
    for text in strings:
        if not isinstance(text, str):
            raise TypeError(f"{name} must hold strings, not {type(text).__name__}.")
    return strings


def _checked_stop(stop: Sequence[str]) -> tuple[str, ...]:
    strings = _checked_strings("stop", stop)
    if "" in strings:
        raise InvalidArgumentError("A stop string is empty; it would end every answer before it starts.")
    return strings


def _checked_breakers(breakers: Sequence[str]) -> tuple[str, ...]:
    strings = _checked_strings("dry_sequence_breakers", breakers)
    for text in strings:
        size = _n_bytes("dry_sequence_breakers", text)
        if not 1 <= size <= _MAX_BREAKER_BYTES or "\0" in text:
            raise InvalidArgumentError(
                f"dry_sequence_breakers holds {text!r}, which has {size} bytes; it must have 1 to "
                f"{_MAX_BREAKER_BYTES}, none of them zero."
            )
    return strings


def _n_bytes(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{name} holds {text!r}, which is not text: UTF-8 cannot hold it.") from None


def _checked_bias(bias: Mapping[int | str, float]) -> dict[int | str, float]:
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias must be a mapping of token ids or texts to numbers, not {type(bias).__name__}.")
    for key, value in bias.items():
        if not isinstance(key, str):
            _check_integer("A token id in logit_bias", key, 0, 2**31 - 1, "a token of the vocabulary")
        elif not _n_bytes("logit_bias", key):
            raise InvalidArgumentError("A text in logit_bias is empty; it must be a token.")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"The bias of token {key!r} must be a number, not {type(value).__name__}.")
        if math.isnan(value) or value == math.inf:
            raise InvalidArgumentError(f"The bias of token {key!r} is {value}; it must be finite, or -inf to ban it.")
    return dict(bias)


def _bias_key(stored: Any) -> int | str:
    """Return the token id or the text that a stored key stands for."""
    if isinstance(stored, str) and stored.startswith(_TEXT_KEY):
        return stored[len(_TEXT_KEY) :]
    return int(stored)
