"""generate: tokens one after another, chosen by the sampler."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stream_sessions import session, some_tokens, tiny

from edgekit.engines.chat import Sampling
from edgekit.engines.native.generator import StreamEngine
from edgekit.engines.native.sampler import Sampler
from edgekit.engines.native.text import generate
from edgekit.errors import CancelledError, ContextTooLargeError, UsageError

PROMPT = some_tokens(6)
NONE: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("models"), "qwen2", tied=False)


def greedy(engine: StreamEngine) -> Sampler:
    return Sampler(Sampling(temperature=0), engine.vocabulary)


def best_tokens(path: Path, count: int) -> list[int]:
    """The likeliest token each time, fed back to the engine."""
    result: list[int] = []
    with session(path) as engine:
        logits = engine.feed(PROMPT)
        while len(result) < count:
            result.append(int(logits.argmax()))
            logits = engine.feed([result[-1]])
    return result


def test_generate_greedy_yields_the_likeliest_token_each_time(model: Path) -> None:
    with session(model) as engine:
        tokens = list(generate(engine, PROMPT, greedy(engine), max_tokens=12, stop=NONE))
        assert tokens == best_tokens(model, 12)
        assert engine.position == len(PROMPT) + 11  # the last token is not fed back


def test_generate_ends_before_a_stop_token(model: Path) -> None:
    expected = best_tokens(model, 12)
    index = next(i for i in range(1, 12) if expected[i] not in expected[:i])
    with session(model) as engine:
        stop = frozenset({expected[index]})
        tokens = list(generate(engine, PROMPT, greedy(engine), max_tokens=None, stop=stop))
    assert tokens == expected[:index]


def test_generate_ends_at_a_full_window_unless_rolling(model: Path) -> None:
    with session(model, window=16) as engine:
        tokens = list(generate(engine, PROMPT, greedy(engine), max_tokens=None, stop=NONE))
        assert len(tokens) == 11  # the last one is chosen when 6 + 10 tokens fill the window
    with session(model, window=16, setup={"rolling": True, "sinks": 2}) as engine:
        tokens = list(generate(engine, PROMPT, greedy(engine), max_tokens=50, stop=NONE))
        assert len(tokens) == 50


def test_generate_refuses_a_prompt_that_does_not_fit(model: Path) -> None:
    with session(model, window=16) as engine:
        with pytest.raises(
            ContextTooLargeError, match="17 tokens does not fit in the context of 16"
        ):
            generate(engine, some_tokens(17), greedy(engine), max_tokens=None, stop=NONE)
        with pytest.raises(
            ContextTooLargeError, match=r"6 tokens plus 12 new ones .* of 17 or more"
        ):
            generate(engine, PROMPT, greedy(engine), max_tokens=12, stop=NONE)
        with pytest.raises(UsageError, match=r"at least 1 \(got 0\)"):
            generate(engine, PROMPT, greedy(engine), max_tokens=0, stop=NONE)
        assert engine.position == 0
        assert len(list(generate(engine, PROMPT, greedy(engine), max_tokens=11, stop=NONE))) == 11


def test_generate_same_seed_gives_the_same_tokens(model: Path) -> None:
    sampling = Sampling(temperature=1.2, seed=5)
    results = []
    with session(model) as engine:
        for _ in range(2):
            engine.reset()
            sampler = Sampler(sampling, engine.vocabulary)
            results.append(list(generate(engine, PROMPT, sampler, max_tokens=20, stop=NONE)))
    assert results[0] == results[1]
    assert len(set(results[0])) > 5


def test_generate_repeat_penalty_includes_the_prompt(model: Path) -> None:
    (first,) = best_tokens(model, 1)
    prompt = [first, *PROMPT]
    with session(model) as engine:
        sampler = Sampler(Sampling(temperature=0, repeat_penalty=1e6), engine.vocabulary)
        tokens = list(generate(engine, prompt, sampler, max_tokens=8, stop=NONE))
    assert not set(tokens) & set(prompt)
    assert len(set(tokens)) == 8


def test_generate_works_only_as_far_as_it_is_consumed(model: Path) -> None:
    with session(model) as engine:
        iterator = generate(engine, PROMPT, greedy(engine), max_tokens=30, stop=NONE)
        assert [next(iterator), next(iterator)] == best_tokens(model, 2)
        assert engine.position == len(PROMPT) + 1


def test_generate_ends_if_the_checkpoint_raises(model: Path) -> None:
    def stop(_share: float) -> None:
        raise CancelledError("enough")

    with session(model) as engine, pytest.raises(CancelledError):
        list(generate(engine, PROMPT, greedy(engine), max_tokens=3, stop=NONE, checkpoint=stop))
