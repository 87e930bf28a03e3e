"""Sampling parameters: ranges, types, the stored form, and seeds that come from the path."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamanb.errors import InvalidArgumentError, LlamanbError
from llamanb.sampling import MAX_SEED, SamplingParams, derive_seed

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 10.0),
    "frequency_penalty": (-10.0, 10.0),
    "presence_penalty": (-10.0, 10.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 1.0),
    "dry_allowed_length": (1, 2**31 - 1),
    "dry_penalty_last_n": (-1, 2**31 - 1),
    "top_k": (0, 2**31 - 1),
    "penalty_last_n": (-1, 2**31 - 1),
    "max_tokens": (1, 2**31 - 1),
    "seed": (0, MAX_SEED),
}
WHOLE = ("top_k", "penalty_last_n", "dry_allowed_length", "dry_penalty_last_n", "max_tokens", "seed")
EDGES = [(name, edge) for name, edges in RANGES.items() for edge in edges]


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    values: dict[str, Any] = {
        name: draw(st.integers(int(low), int(high)) if name in WHOLE else st.floats(low, high))
        for name, (low, high) in RANGES.items()
        if draw(st.booleans())
    }
    if draw(st.booleans()):
        values["seed"] = "random"
    values["mirostat"] = draw(st.sampled_from([0, 2]))
    values["dry_sequence_breakers"] = draw(
        st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=9))
    )
    values["stop"] = draw(st.lists(st.text(min_size=1, max_size=5), max_size=3))
    values["logit_bias"] = draw(
        st.dictionaries(
            st.integers(0, 2**31 - 1)
            | st.integers(0, 99).map(str)
            | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            st.floats(-1e6, 1e6) | st.just(-math.inf),
            max_size=3,
        )
    )
    constraint = draw(st.sampled_from([{}, {"grammar": 'root ::= "x"'}, {"json_schema": {"type": "object"}}]))
    return SamplingParams(**values, **constraint)


def test_the_defaults_are_those_of_the_design() -> None:
    defaults = SamplingParams()
    assert (defaults.temperature, defaults.top_p, defaults.top_k, defaults.min_p) == (0.7, 0.95, 40, 0.05)
    assert (defaults.repeat_penalty, defaults.frequency_penalty, defaults.presence_penalty) == (1.0, 0.0, 0.0)
    assert (defaults.max_tokens, defaults.seed, defaults.stop) == (512, None, ())
    assert (defaults.dry_multiplier, defaults.dry_base, defaults.dry_allowed_length) == (0.0, 1.75, 2)
    assert (defaults.dry_penalty_last_n, defaults.dry_sequence_breakers) == (-1, ("\n", ":", '"', "*"))
    assert (defaults.xtc_probability, defaults.xtc_threshold) == (0.0, 0.1)
    assert (defaults.mirostat, defaults.mirostat_tau, defaults.mirostat_eta) == (0, 5.0, 0.1)


@pytest.mark.parametrize(("name", "edge"), EDGES)
def test_both_ends_of_a_range_are_in_it(name: str, edge: float) -> None:
    assert getattr(SamplingParams(**{name: edge}), name) == edge


@pytest.mark.parametrize(("name", "edge"), EDGES)
def test_what_lies_just_outside_of_a_range_is_refused_by_name(name: str, edge: float) -> None:
    low, high = RANGES[name]
    step = 1 if name in WHOLE else 0.001
    with pytest.raises(InvalidArgumentError, match=rf"^{name} is .*must be"):
        SamplingParams(**{name: low - step if edge == low else high + step})


@pytest.mark.parametrize("name", [name for name in RANGES if name not in WHOLE])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_may_be_infinite_or_none_at_all(name: str, value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", [True, [1], b"1"])
def test_a_value_of_another_type_is_a_type_error(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_have_no_fraction(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a whole number"):
        SamplingParams(**{name: 2.0})


@pytest.mark.parametrize("seed", ["Random", "7", ""])
def test_the_only_word_for_a_seed_is_random(seed: str) -> None:
    with pytest.raises(InvalidArgumentError, match='"random"'):
        SamplingParams(seed=seed)


def test_one_stop_string_or_breaker_may_stand_alone() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(dry_sequence_breakers="END").dry_sequence_breakers == ("END",)


@pytest.mark.parametrize("version", [1, 3, -2])
def test_the_only_mirostat_is_version_2(version: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^mirostat is {version}; it must be 0 \(off\) or 2"):
        SamplingParams(mirostat=version)


@pytest.mark.parametrize("version", [True, 2.0, "2"])
def test_mirostat_is_a_whole_number(version: Any) -> None:
    with pytest.raises(TypeError, match="mirostat must be a whole number"):
        SamplingParams(mirostat=version)


def test_a_breaker_is_as_long_as_llama_cpp_reads_it() -> None:
    assert SamplingParams(dry_sequence_breakers=["é" * 20]).dry_sequence_breakers == ("é" * 20,)
    assert SamplingParams(dry_sequence_breakers=[]).dry_sequence_breakers == ()
    with pytest.raises(InvalidArgumentError, match="has 42 bytes; it must have 1 to 40"):
        SamplingParams(dry_sequence_breakers=["é" * 21])


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"stop": [""]}, InvalidArgumentError),
        ({"stop": ["a", 3]}, TypeError),
        ({"stop": 3}, TypeError),
        ({"logit_bias": [1]}, TypeError),
        ({"logit_bias": {-1: 0.0}}, InvalidArgumentError),
        ({"logit_bias": {1.0: 0.0}}, TypeError),
        ({"logit_bias": {b"1": 0.0}}, TypeError),
        ({"logit_bias": {True: 0.0}}, TypeError),
        ({"logit_bias": {"": 0.0}}, InvalidArgumentError),
        ({"logit_bias": {"\ud800": 0.0}}, InvalidArgumentError),
        ({"logit_bias": {"a": math.inf}}, InvalidArgumentError),
        ({"dry_sequence_breakers": [""]}, InvalidArgumentError),
        ({"dry_sequence_breakers": ["a\0b"]}, InvalidArgumentError),
        ({"dry_sequence_breakers": ["\ud800"]}, InvalidArgumentError),
        ({"dry_sequence_breakers": ["a", 3]}, TypeError),
        ({"dry_sequence_breakers": 3}, TypeError),
        ({"logit_bias": {1: "x"}}, TypeError),
        ({"logit_bias": {1: True}}, TypeError),
        ({"logit_bias": {1: math.inf}}, InvalidArgumentError),
        ({"logit_bias": {1: math.nan}}, InvalidArgumentError),
        ({"grammar": 3}, TypeError),
        ({"json_schema": "x"}, TypeError),
        ({"json_schema": {"a": {1, 2}}}, InvalidArgumentError),
        ({"json_schema": {}, "grammar": "root ::= x"}, InvalidArgumentError),
    ],
)
def test_stop_breakers_bias_and_constraints_are_checked(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        SamplingParams(**values)


def test_a_token_may_be_banned() -> None:
    assert SamplingParams(logit_bias={7: -math.inf}).logit_bias == {7: -math.inf}


def test_replace_changes_a_copy_and_checks_it() -> None:
    first = SamplingParams()
    assert first.replace(temperature=0).greedy
    assert first == SamplingParams()
    with pytest.raises(InvalidArgumentError, match="top_p"):
        first.replace(top_p=2)


@pytest.mark.parametrize(("wrong", "right"), [("temprature", "temperature"), ("max_token", "max_tokens")])
def test_a_near_miss_is_told_the_option_that_was_meant(wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"no option '{wrong}'.*Did you mean '{right}'"):
        SamplingParams().replace(**{wrong: 1})


def test_a_far_miss_is_told_all_options() -> None:
    with pytest.raises(TypeError, match=r"The options are temperature, .*json_schema"):
        SamplingParams().replace(xyzzy=1)


def test_fields_cannot_be_set() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().temperature = 1.0  # type: ignore[misc]


@given(params())
@settings(max_examples=150, deadline=None)
def test_the_stored_form_is_json_and_reads_back_as_the_same(sampling: SamplingParams) -> None:
    stored = json.loads(json.dumps(sampling.to_dict(), allow_nan=False))
    assert SamplingParams.from_dict(stored) == sampling
    assert {"temperature", "max_tokens"} <= stored.keys()


@given(params())
@settings(max_examples=150, deadline=None)
def test_what_acts_is_json_and_reads_back_as_what_acts(sampling: SamplingParams) -> None:
    acting = json.loads(json.dumps(sampling.acting(), allow_nan=False))
    read = SamplingParams.from_dict(acting)
    assert read.acting() == acting
    assert {"temperature", "max_tokens"} <= acting.keys()
    assert ("seed" in acting) == (not sampling.greedy)
    assert all(getattr(read, name) == getattr(sampling, name) for name in acting)
    for name in ("greedy", "has_penalties", "has_dry", "has_filters", "has_xtc", "has_mirostat"):
        assert getattr(read, name) == getattr(sampling, name)


ALL = {
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.3,
    "typical_p": 0.7,
    "repeat_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "penalty_last_n": 7,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 9,
    "dry_sequence_breakers": ["x"],
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
    "seed": 11,
    "temperature": 0.9,
    "max_tokens": 5,
}
FILTERS = {"top_k", "top_p", "min_p", "typical_p"}
XTC = {"xtc_probability", "xtc_threshold"}
MIROSTAT = {"mirostat_tau", "mirostat_eta"}
DRY = {name for name in ALL if name.startswith("dry_")}
PENALTIES = {"repeat_penalty", "frequency_penalty", "presence_penalty", "penalty_last_n"}


@pytest.mark.parametrize(
    ("changed", "silent"),
    [
        ({}, MIROSTAT),
        ({"temperature": 0.0}, FILTERS | XTC | MIROSTAT | {"seed"}),
        ({"mirostat": 2}, FILTERS | XTC),
        ({"mirostat": 2, "temperature": 0.0}, FILTERS | XTC | MIROSTAT | {"mirostat", "seed"}),
        ({"dry_multiplier": 0.0}, MIROSTAT | DRY),
        ({"dry_penalty_last_n": 0}, MIROSTAT | DRY),
        ({"penalty_last_n": 0}, MIROSTAT | PENALTIES),
        ({"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}, MIROSTAT | PENALTIES),
        ({"xtc_probability": 0.0}, MIROSTAT | XTC),
        ({"xtc_threshold": 0.51}, MIROSTAT | XTC),
    ],
)
def test_only_what_can_act_beside_the_others_is_stored_with_an_answer(
    changed: dict[str, Any], silent: set[str]
) -> None:
    given = ALL | changed
    assert SamplingParams(**given).acting() == {name: given[name] for name in given if name not in silent}


def test_what_is_not_set_is_not_stored_so_that_messages_keep_their_ids() -> None:
    assert SamplingParams().to_dict() == {"temperature": 0.7, "max_tokens": 512}
    assert SamplingParams(seed=1).acting() == {
        "temperature": 0.7,
        "max_tokens": 512,
        "top_p": 0.95,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 1,
    }
    assert SamplingParams(temperature=0.0).acting() == {"temperature": 0.0, "max_tokens": 512}


def test_a_token_id_and_a_text_of_digits_are_kept_apart_in_the_stored_form() -> None:
    bias = {123: -1.0, "123": 2.0, "text:1": -math.inf}
    stored = json.loads(json.dumps(SamplingParams(logit_bias=bias).to_dict()))
    assert stored["logit_bias"] == {"123": -1.0, "text:123": 2.0, "text:text:1": "-inf"}
    assert SamplingParams.from_dict(stored).logit_bias == bias
    assert SamplingParams.from_dict({"logit_bias": {"123": -1.0}}).logit_bias == {123: -1.0}


def test_unknown_stored_fields_are_passed_over() -> None:
    assert SamplingParams.from_dict({"temperature": 0.5, "of_tomorrow": 3}) == SamplingParams(temperature=0.5)


@pytest.mark.parametrize(
    "stored",
    [
        {"temperature": "hot"},
        {"logit_bias": [1]},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"text:": 1}},
        {"mirostat": 1},
        {"dry_sequence_breakers": [1]},
        {"logit_bias": {"1": None}},
        {"stop": [3]},
        {"stop": 3},
    ],
)
def test_damaged_stored_sampling_is_an_error_of_llamanb_or_of_types(stored: dict[str, Any]) -> None:
    with pytest.raises((LlamanbError, TypeError)):
        SamplingParams.from_dict(stored)


def test_a_seed_from_the_path_is_the_same_each_time_and_another_for_another_path() -> None:
    asked = SamplingParams()
    seeds = {derive_seed(asked, path).seed for path in ("a", "b", None)}
    assert len(seeds) == 3
    assert all(isinstance(seed, int) and 0 <= seed <= MAX_SEED for seed in seeds)
    assert derive_seed(asked, "a") == derive_seed(asked, "a")
    assert derive_seed(SamplingParams(top_k=3), "a").seed == derive_seed(asked, "a").seed


@given(st.integers(0, MAX_SEED), st.integers(0, 100))
@settings(deadline=None)
def test_a_given_seed_counts_up_and_never_reaches_the_one_that_means_random(seed: int, count: int) -> None:
    derived = derive_seed(SamplingParams(seed=seed), "a", count).seed
    assert derived == (seed + count if seed + count <= MAX_SEED else seed + count - MAX_SEED - 1)


def test_greedy_sampling_has_no_seed_and_a_random_one_is_left_to_the_caller() -> None:
    assert derive_seed(SamplingParams(temperature=0, seed=5), "a", 3).seed is None
    assert derive_seed(SamplingParams(seed="random"), "a", 3).seed == "random"


def test_every_field_is_tested_here_for_its_range() -> None:
    others = {"stop", "logit_bias", "grammar", "json_schema", "mirostat", "dry_sequence_breakers"}
    assert {f.name for f in fields(SamplingParams)} == RANGES.keys() | others
