"""Tokens, one after another, with the real sampler."""

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


def by_hand(path: Path, count: int) -> list[int]:
    """The best token, fed again."""
    result: list[int] = []
    with session(path) as engine:
        logits = engine.feed(PROMPT)
        while len(result) < count:
            result.append(int(logits.argmax()))
            logits = engine.feed([result[-1]])
    return result


def test_the_best_token_each_time(model: Path) -> None:
    with session(model) as engine:
        made = list(generate(engine, PROMPT, greedy(engine), max_tokens=12, stop=NONE))
        assert made == by_hand(model, 12)
        assert engine.position == len(PROMPT) + 11  # nobody asked what comes after the last


def test_generate_ends_before_a_stop_token(model: Path) -> None:
    expected = by_hand(model, 12)
    place = next(i for i in range(1, 12) if expected[i] not in expected[:i])
    with session(model) as engine:
        stop = frozenset({expected[place]})
        made = list(generate(engine, PROMPT, greedy(engine), max_tokens=None, stop=stop))
    assert made == expected[:place]


def test_generate_ends_at_a_full_window_unless_rolling(model: Path) -> None:
    with session(model, window=16) as engine:
        made = list(generate(engine, PROMPT, greedy(engine), max_tokens=None, stop=NONE))
        assert len(made) == 11  # the last was made of a window that holds 6 + 10
    with session(model, window=16, setup={"rolling": True, "sinks": 2}) as engine:
        made = list(generate(engine, PROMPT, greedy(engine), max_tokens=50, stop=NONE))
        assert len(made) == 50


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


def test_the_same_seed_makes_the_same_text(model: Path) -> None:
    sampling = Sampling(temperature=1.2, seed=5)
    results = []
    with session(model) as engine:
        for _ in range(2):
            engine.reset()
            sampler = Sampler(sampling, engine.vocabulary)
            results.append(list(generate(engine, PROMPT, sampler, max_tokens=20, stop=NONE)))
    assert results[0] == results[1]
    assert len(set(results[0])) > 5


def test_a_token_of_the_prompt_counts_as_a_repetition(model: Path) -> None:
    (first,) = by_hand(model, 1)
    prompt = [first, *PROMPT]
    with session(model) as engine:
        sampler = Sampler(Sampling(temperature=0, repeat_penalty=1e6), engine.vocabulary)
        made = list(generate(engine, prompt, sampler, max_tokens=8, stop=NONE))
    assert not set(made) & set(prompt)
    assert len(set(made)) == 8


def test_who_stops_listening_ends_the_work(model: Path) -> None:
    with session(model) as engine:
        making = generate(engine, PROMPT, greedy(engine), max_tokens=30, stop=NONE)
        assert [next(making), next(making)] == by_hand(model, 2)
        assert engine.position == len(PROMPT) + 1


def test_a_checkpoint_ends_it(model: Path) -> None:
    def stop(_share: float) -> None:
        raise CancelledError("enough")

    with session(model) as engine, pytest.raises(CancelledError):
        list(generate(engine, PROMPT, greedy(engine), max_tokens=3, stop=NONE, checkpoint=stop))
