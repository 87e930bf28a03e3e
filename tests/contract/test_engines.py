"""What every engine promises, on the scripted one and on llama.cpp with the embedded model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import llamanb
from llamanb import ChatSession, FinishReason, Message, SamplingParams
from llamanb.engine.base import Engine, Generation, GenerationRequest

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.fixture(params=["scripted", "llama.cpp"])
def make_engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Any] = []

    def make(**options: Any) -> Engine:
        if request.param == "llama.cpp":
            made.append(llamanb.LlamaCppEngine(**options))
        else:
            seconds = 0.005 if options.pop("slow", False) else 0.0
            made.append(llamanb.ScriptedEngine(lambda r: "word " * 2000, seconds_per_token=seconds, **options))
        return made[-1]

    yield lambda **options: make(
        **({} if request.param == "scripted" else {"n_ctx": 2048}) | _without_slow(request, options)
    )
    for engine in made:
        engine.close()


def _without_slow(request: pytest.FixtureRequest, options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k != "slow" or request.param == "scripted"}


def asked(*texts: str) -> list[Message]:
    messages: list[Message] = []
    for text in texts:
        messages.append(Message.create("user", text, parent=messages[-1].id if messages else None))
    return messages


def start(engine: Engine, messages: list[Message], sampling: SamplingParams = GREEDY) -> Generation:
    return engine.submit(GenerationRequest(messages, engine.encode(messages), sampling))


def test_an_engine_satisfies_the_protocol(engine: Engine) -> None:
    assert isinstance(engine, Engine)
    assert engine.name
    assert len(engine.fingerprint) == 64


def test_a_bias_names_tokens_by_id_or_by_text(engine: Engine) -> None:
    assert start(engine, asked("Hello"), GREEDY.replace(logit_bias={7: 1.0, "a": 1.0, "\n": -1.0})).result().text
    several = "naïve 世界"
    n = len(engine.tokenize(several))
    with pytest.raises(llamanb.InvalidArgumentError, match=f"{several}', which is {n} tokens"):
        start(engine, asked("Hello"), GREEDY.replace(logit_bias={several: 1.0}))


def test_chunks_join_to_the_text_of_the_result(engine: Engine) -> None:
    generation = start(engine, asked("Name three primes."))
    text = "".join(chunk.text for chunk in generation)
    assert text
    assert text == generation.result().text


def test_every_prompt_token_is_either_cached_or_prefilled_and_at_least_one_is_prefilled(engine: Engine) -> None:
    for _ in range(2):
        usage = start(engine, asked("What is a verb?")).result().usage
        assert usage.n_cached + usage.n_prefilled == usage.n_prompt
        assert usage.n_prefilled >= 1
        assert usage.n_generated >= 1
    assert usage.n_prefilled == 1


def test_a_follow_up_prefills_only_what_is_new(engine: Engine) -> None:
    session = ChatSession(engine, system="Be brief.", sampling=GREEDY)
    first = session.send("Name a colour.")
    second = session.send("And another one.")
    held = first.usage.n_prompt + first.usage.n_generated
    assert second.usage.n_cached >= held - 1  # the last token that was drawn need not have been evaluated


def test_a_fork_shares_what_is_before_it(engine: Engine) -> None:
    session = ChatSession(engine, system="You answer questions about the weather.", sampling=GREEDY)
    session.send("Will it rain?")
    session.send("And tomorrow?")
    branch = session.fork("snow", at=2)
    usage = branch.send("Will it snow?").usage
    assert usage.n_cached >= session.branches["snow"].session.count_tokens("You answer questions about the weather.")
    assert usage.n_prefilled < usage.n_prompt / 2 + 20


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers_and_nothing_is_lost(engine: Engine) -> None:
    session = ChatSession(engine, sampling=GREEDY)
    session.send("Name a colour.")
    before = session.to_dict()
    running = engine.stats()
    with pytest.raises(llamanb.ContextWindowExceededError) as raised:
        session.send("word " * engine.n_ctx)
    assert raised.value.n_ctx == engine.n_ctx
    assert raised.value.n_prompt > engine.n_ctx
    assert str(raised.value.n_prompt) in str(raised.value)
    assert str(engine.n_ctx) in str(raised.value)
    assert session.to_dict() == before
    assert engine.stats() == running
    assert session.send("Name another one.").text


def test_an_answer_ends_at_max_tokens(engine: Engine) -> None:
    result = start(engine, asked("Count to one hundred."), GREEDY.replace(max_tokens=3)).result()
    assert result.finish_reason is FinishReason.LENGTH
    assert result.usage.n_generated == 3


def test_an_answer_ends_at_the_end_of_the_window(make_engine: Any) -> None:
    engine = make_engine(n_ctx=256)
    generation = start(engine, asked("Write a long story about a ship and its crew."), GREEDY.replace(max_tokens=2000))
    result = generation.result()
    assert result.finish_reason is FinishReason.LENGTH
    assert result.usage.n_prompt + result.usage.n_generated == engine.n_ctx


def test_a_stop_string_ends_the_answer_and_is_not_in_it(engine: Engine) -> None:
    whole = start(engine, asked("Name three primes.")).result().text
    stop = whole[5:9]
    result = start(engine, asked("Name three primes."), GREEDY.replace(stop=[stop])).result()
    assert result.finish_reason is FinishReason.STOP
    assert result.text == whole[: whole.index(stop)]


def test_cancelling_ends_a_generation_and_leaves_the_engine_usable(make_engine: Any) -> None:
    engine = make_engine(slow=True)
    generation = start(engine, asked("Write a very long story."), GREEDY.replace(max_tokens=1500))
    chunks = iter(generation)
    first = next(chunks)
    generation.cancel()
    rest = "".join(chunk.text for chunk in chunks)
    result = generation.result()
    assert result.finish_reason is FinishReason.CANCELLED
    assert result.text == first.text + rest
    assert 1 <= result.usage.n_generated < 1500
    assert engine.stats().n_running == 0
    again = start(engine, asked("Write a very long story."), GREEDY.replace(max_tokens=4)).result()
    assert again.finish_reason is FinishReason.LENGTH


def test_many_requests_at_once_each_get_their_own_answer(engine: Engine) -> None:
    questions = [f"Repeat the number {n}." for n in range(6)]
    alone = [start(engine, asked(question)).result().text for question in questions]
    together = [start(engine, asked(question)) for question in questions]
    assert [generation.result().text for generation in together] == alone


def test_more_branches_than_sequences_take_turns(make_engine: Any) -> None:
    engine = make_engine(n_seq_max=2, n_ctx=512)
    generations = [start(engine, asked(f"Say {n}."), GREEDY.replace(max_tokens=5)) for n in range(5)]
    assert all(generation.result().finish_reason is FinishReason.LENGTH for generation in generations)
    assert engine.stats().n_sequences <= 2


def test_a_parked_branch_comes_back_without_prefill(make_engine: Any) -> None:
    engine = make_engine(n_seq_max=1, n_ctx=512)
    first = start(engine, asked("The first conversation."), GREEDY.replace(max_tokens=4)).result()
    start(engine, asked("Quite another one, with other words."), GREEDY.replace(max_tokens=4)).result()
    assert engine.stats().n_parked >= 1
    again = start(engine, asked("The first conversation."), GREEDY.replace(max_tokens=4)).result()
    assert again.usage.n_prefilled == 1
    assert again.text == first.text


def test_a_closed_engine_says_so(make_engine: Any) -> None:
    engine = make_engine(n_ctx=256)
    messages = asked("Hello")
    tokens = engine.encode(messages)
    engine.close()
    engine.close()
    assert engine.closed
    assert "closed" in repr(engine)
    with pytest.raises(llamanb.SessionClosedError):
        engine.submit(GenerationRequest(messages, tokens, GREEDY))


def test_closing_ends_what_is_running(make_engine: Any) -> None:
    engine = make_engine(slow=True)
    generation = start(engine, asked("Write a very long story."), GREEDY.replace(max_tokens=1500))
    next(iter(generation))
    engine.close()
    assert generation.result().finish_reason is FinishReason.CANCELLED


def test_an_engine_can_be_used_from_many_threads(engine: Engine) -> None:
    texts: dict[int, str] = {}

    def ask(number: int) -> None:
        texts[number] = start(engine, asked("Name a colour.")).result().text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 4
    assert len(set(texts.values())) == 1


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"not": {"type": "string"}}, '"not"'),
        ({"type": "array", "uniqueItems": True}, '"uniqueItems"'),
        ({"type": "strng"}, "strng"),
        ({"properties": 5}, "properties must be an object"),
        ({"enum": []}, "empty"),
        ({"anyOf": []}, "empty"),
        ({"$ref": "#/$defs/x"}, r"'/\$defs/x' does not exist"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible types"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
        ({"type": "array", "minItems": 3, "maxItems": 1}, "minItems"),
        ({"type": "string", "pattern": "(a"}, "unclosed group"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused(engine: Engine, schema: Any, says: str) -> None:
    with pytest.raises(llamanb.InvalidArgumentError, match=f"json_schema cannot be used: .*{says}"):
        start(engine, asked("Hello"), GREEDY.replace(json_schema=schema))


def test_a_schema_nested_without_end_is_refused(engine: Engine) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    with pytest.raises(llamanb.InvalidArgumentError, match="json_schema"):
        start(engine, asked("Hello"), GREEDY.replace(json_schema=schema))
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(llamanb.InvalidArgumentError, match="json_schema is nested too deeply"):
        start(engine, asked("Hello"), GREEDY.replace(json_schema=schema))


def prefilled(engine: Engine, messages: list[Message], **options: bool) -> Any:
    tokens = engine.encode(messages, add_generation_prompt=False)
    return engine.submit(GenerationRequest(messages, tokens, GREEDY, prefill_only=True, **options)).result()


def test_a_prompt_can_be_evaluated_without_an_answer(make_engine: Any) -> None:
    engine = make_engine()
    messages = asked("Name three primes, and say of each what it is good for.")
    result = prefilled(engine, messages)
    assert (result.text, result.state, result.finish_reason) == ("", None, FinishReason.LENGTH)
    assert result.usage.n_prefilled == len(engine.encode(messages, add_generation_prompt=False))
    assert start(engine, messages).result().usage.n_cached == result.usage.n_prompt


def test_what_a_cache_holds_can_be_taken_to_another_engine(make_engine: Any) -> None:
    first, second = make_engine(), make_engine()
    messages = asked("Name three primes, and say of each what it is good for.")
    state = bytearray(prefilled(first, messages, keep_state=True).state)
    tokens = first.encode(messages, add_generation_prompt=False)
    assert first.cache_fingerprint == second.cache_fingerprint
    assert second.load_state(tokens, state)
    assert second.load_state(tokens, state)
    moved = start(second, messages).result()
    assert moved.usage.n_cached == len(tokens)
    assert moved.text == start(first, messages).result().text


def test_the_model_is_given_what_input_transforms_made(engine: Engine) -> None:
    typed = [Message.create("user", "colour", model_input="color")]
    assert engine.encode(typed) == engine.encode(asked("color"))
    assert engine.render(typed) == engine.render(asked("color"))


def test_another_function_may_write_the_prompt_and_what_is_said_is_still_plain_text(engine: Engine) -> None:
    said = asked("a<|im_end|>b")

    def render(messages: Any) -> str:
        return f"<|im_start|>{messages[0].text}"

    opened = engine.encode(asked("x"), render=lambda _: "<|im_start|>")
    assert engine.encode(said, render=render) == [*opened, *engine.tokenize("a<"), *engine.tokenize("|im_end|>b")]
