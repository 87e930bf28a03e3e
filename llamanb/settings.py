"""ChatConfig: what a person sets once: for a notebook by `%chat_config`, for all in IPython's configuration."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator
from typing import Any

from traitlets import Bool, Enum, Int, TraitError, TraitType, Unicode, default
from traitlets.config import Configurable

from llamanb.errors import InvalidArgumentError
from llamanb.fitting import OVERFLOW_POLICIES
from llamanb.sampling import SamplingParams
from llamanb.wording import read_size

__all__ = ["PER_ANSWER", "ChatConfig"]

PER_ANSWER = ("grammar", "json_schema", "logit_bias")
"""Fields of `SamplingParams` that belong to one answer, and are no settings."""

_SWITCHES = {"on": True, "yes": True, "true": True, "1": True, "0": False, "off": False, "no": False, "false": False}


class _Sampling(TraitType[Any, Any]):
    """A field of `SamplingParams`, with its default and its range."""

    def __init__(self, name: str) -> None:
        super().__init__(getattr(SamplingParams(), name), help=f"How answers are sampled: {name} of SamplingParams.")
        self.tag(config=True)

    def validate(self, _: Any, value: Any) -> Any:
        try:
            return getattr(SamplingParams(**{str(self.name): value}), str(self.name))
        except (InvalidArgumentError, TypeError) as error:
            raise TraitError(str(error)) from None


class _Bytes(TraitType[Any, Any]):
    """A number of bytes, which may be written as ``"500 MB"`` or ``"2 GB"``."""

    def validate(self, _: Any, value: Any) -> int:
        n = None if isinstance(value, (bool, float)) else read_size(str(value))
        if n is None:
            raise TraitError(f"{self.name} is {value!r}; it must be a number of bytes, such as 500MB or 2GB.")
        return n


class ChatConfig(Configurable):
    """Settings. In ``ipython_config.py`` they are written as ``c.ChatConfig.temperature = 0.2``."""

    persist = Bool(help="Whether conversations are kept in the notebook file.").tag(config=True)
    model = Unicode(
        None, allow_none=True, help="The model of new sessions: a .gguf file or a name; None is the embedded one."
    ).tag(config=True)
    n_ctx = Int(4096, min=1, help="Tokens that one branch may hold; for models that are loaded from now on.").tag(
        config=True
    )
    deterministic = Bool(
        None,
        allow_none=True,
        help="Whether answers are the same bit for bit; None: where no GPU is used. For models loaded from now on.",
    ).tag(config=True)
    system = Unicode(None, allow_none=True, help="The system prompt of new sessions.").tag(config=True)
    overflow = Enum(
        OVERFLOW_POLICIES,
        "error",
        help="What is done with a prompt that does not fit: error, drop_oldest (the oldest exchanges are left out) or "
        "summarise (the model sums them up).",
    ).tag(config=True)
    snapshots = Bool(
        True,
        help="Whether the model's cache is kept on disk, so that a conversation goes on at once after a restart. "
        "Nothing is kept, or used, where a notebook runs without a person.",
    ).tag(config=True)
    snapshot_cache = _Bytes(
        2 * 10**9, help="How much of the disk snapshots may take, such as 500MB; those unused longest go first."
    ).tag(config=True)

    temperature = _Sampling("temperature")
    top_p = _Sampling("top_p")
    top_k = _Sampling("top_k")
    min_p = _Sampling("min_p")
    typical_p = _Sampling("typical_p")
    repeat_penalty = _Sampling("repeat_penalty")
    frequency_penalty = _Sampling("frequency_penalty")
    presence_penalty = _Sampling("presence_penalty")
    penalty_last_n = _Sampling("penalty_last_n")
    dry_multiplier = _Sampling("dry_multiplier")
    dry_base = _Sampling("dry_base")
    dry_allowed_length = _Sampling("dry_allowed_length")
    dry_penalty_last_n = _Sampling("dry_penalty_last_n")
    dry_sequence_breakers = _Sampling("dry_sequence_breakers")
    xtc_probability = _Sampling("xtc_probability")
    xtc_threshold = _Sampling("xtc_threshold")
    mirostat = _Sampling("mirostat")
    mirostat_tau = _Sampling("mirostat_tau")
    mirostat_eta = _Sampling("mirostat_eta")
    max_tokens = _Sampling("max_tokens")
    seed = _Sampling("seed")
    stop = _Sampling("stop")

    @default("persist")
    def _default_persist(self) -> bool:
        """What LLAMANB_PERSIST in the environment says, or else true."""
        return _SWITCHES.get(os.environ.get("LLAMANB_PERSIST", "").strip().lower(), True)

    def names(self) -> list[str]:
        """Return the names of the settings, sampling last."""
        own = [name for name in self.class_own_traits(config=True) if not self.is_sampling(name)]
        return own + [name for name in self.class_own_traits(config=True) if self.is_sampling(name)]

    def is_sampling(self, name: str) -> bool:
        """Whether a setting is a field of `SamplingParams`."""
        return isinstance(self.traits()[name], _Sampling)

    def sampling(self) -> SamplingParams:
        """Return how answers of new sessions are sampled."""
        return SamplingParams(**{name: getattr(self, name) for name in self.names() if self.is_sampling(name)})

    def default(self, name: str) -> Any:
        """Return what a setting is where nobody sets it."""
        return getattr(ChatConfig(), name)

    def read(self, name: str, text: str) -> Any:
        """Set a setting to what a person wrote, and return the value.

        Raises
        ------
        InvalidArgumentError
            The value is not one for this setting.
        """
        said = ""
        for value in self._readings(name, text):
            try:
                setattr(self, name, value)
            except TraitError as error:
                said = said or str(error)
            else:
                return getattr(self, name)
        if "trait" in said:  # traitlets' own words name classes, not what would be right
            said = f"{name} cannot be {text!r}. {self.traits()[name].help}"
        raise InvalidArgumentError(said)

    def _readings(self, name: str, text: str) -> Iterator[Any]:
        """What a text may mean: a value of Python, the same in quotes, or itself."""
        bare = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
        if isinstance(self.traits()[name], Bool) and bare.lower() in _SWITCHES:
            yield _SWITCHES[bare.lower()]
            return
        is_container = False
        for written in dict.fromkeys((text, bare)):
            with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                value = ast.literal_eval(written)
                is_container = is_container or isinstance(value, (list, tuple, dict, set))
                yield value
        if not is_container:
            yield bare
