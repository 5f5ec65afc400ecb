"""Sampler: which tokens stay, their probabilities, and hostile logits, compared with a plain numpy reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.sampling import probabilities

from edgekit.engines.chat import RECENT_TOKENS, Sampling
from edgekit.engines.native.sampler import Chooser, Sampler, TopTokens
from edgekit.engines.native.stream_plan import BEST_TOKENS, CHUNK_TOKENS
from edgekit.errors import TextError, UsageError, WeightsError

Floats = NDArray[np.float32]
EVERYTHING = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)


def reference(
    logits: Floats, sampling: Sampling, recent: Sequence[int] = ()
) -> tuple[dict[int, float], float]:
    """The candidates with their probabilities, in float64; and the margin of top-p's last decision: within
    it, rounding may keep one token more or less.
    """
    penalised, penalty = logits.copy(), np.float32(sampling.repeat_penalty)
    for token in set(recent[max(len(recent) - sampling.repeat_last, 0) :]):
        logit = logits[token]
        penalised[token] = logit / penalty if logit > 0 else logit * penalty
    values = penalised.astype(np.float64)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    candidates = [token for token in order if values[token] > -math.inf]
    if sampling.temperature == 0:
        return {candidates[0]: 1.0}, 1.0
    candidates = candidates[: sampling.top_k or None]
    margin = 1.0
    if sampling.top_p < 1:
        sums = np.cumsum(np.exp(values[candidates] - values[candidates[0]]))
        count = int(np.argmax(sums >= sampling.top_p * sums[-1])) + 1
        margin = float(np.abs(sums / sums[-1] - sampling.top_p).min())
        candidates = candidates[:count]
    if sampling.min_p > 0:
        least = values[candidates[0]] + math.log(sampling.min_p)
        candidates = [token for token in candidates if values[token] >= least]
    weights = np.exp((values[candidates] - values[candidates[0]]) / sampling.temperature)
    shares = weights / weights.sum()
    return dict(zip(candidates, shares.tolist(), strict=True)), margin


def sampler_after(sampling: Sampling, vocabulary: int, recent: Sequence[int] = ()) -> Sampler:
    sampler = Sampler(sampling, vocabulary)
    for token in recent:
        sampler.accept(token)
    return sampler


def check(logits: Floats, sampling: Sampling, recent: Sequence[int] = ()) -> None:
    actual = probabilities(sampler_after(sampling, len(logits), recent), logits)
    expected, margin = reference(logits, sampling, recent)
    if margin > 1e-9:  # otherwise one token more or less is right too
        assert list(actual) == [token for token in expected if expected[token] > 0]
    for token, share in actual.items():
        assert share == pytest.approx(expected.get(token, 0.0), rel=1e-5, abs=1e-8)


# --- tokens that stay

SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.1, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 3, 7, 40, 1024, 5000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.75, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([0.5, 1.0, 1.1, 2.0]),
    repeat_last=st.sampled_from([0, 1, 3, 64]),
    seed=st.just(0),
)
FEW_VALUES = st.sampled_from([-math.inf, -3.0, -1.0, -0.0, 0.0, 0.5, 1.0, 4.0])
ANY_VALUE = st.floats(-30, 30, width=32)


@given(data=st.data(), sampling=SETTINGS)
@settings(max_examples=100, deadline=None)
def test_sampler_equals_the_reference(data: st.DataObject, sampling: Sampling) -> None:
    value = data.draw(st.sampled_from([FEW_VALUES, ANY_VALUE]))
    logits = data.draw(
        st.lists(value, min_size=1, max_size=40).filter(lambda values: max(values) > -math.inf)
    )
    recent = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=6))
    check(np.array(logits, np.float32), sampling, recent)


def normal_logits(seed: int, count: int, deviation: float, step: float = 0.0) -> Floats:
    """Normally distributed; with a `step`, rounded to its multiples, so that many are equal."""
    values = np.random.default_rng(seed).normal(scale=deviation, size=count)
    return np.asarray(np.round(values / step) * step if step else values, dtype=np.float32)


LARGE = {
    "peaked": normal_logits(1, 2 * CHUNK_TOKENS + 77, 4.0),
    "flat": normal_logits(2, 2 * CHUNK_TOKENS, 0.01),
    "ties": normal_logits(3, 2 * CHUNK_TOKENS - 1, 1.0, step=0.5),
    "all equal": np.full(2 * CHUNK_TOKENS + 5, -7.25, np.float32),
    "rising": np.linspace(-5, 5, 2 * CHUNK_TOKENS, dtype=np.float32),
    "falling": np.linspace(5, -5, 2 * CHUNK_TOKENS + 4097, dtype=np.float32),
    "one column": np.where(np.arange(2 * CHUNK_TOKENS) % 4096 == 9, 5.0, -5.0).astype(np.float32),
    "mostly -inf": np.where(
        np.arange(40_000) % 1000 == 7, normal_logits(4, 40_000, 1.0), -np.inf
    ).astype(np.float32),
}
COMBINATIONS: tuple[dict[str, Any], ...] = (
    {"top_k": 40},
    {"top_k": 1, "top_p": 0.5},
    {"top_k": BEST_TOKENS},
    {"top_k": BEST_TOKENS, "top_p": 0.9, "min_p": 0.01},
    {"top_k": BEST_TOKENS + 1},
    {"top_k": 20_000, "top_p": 0.99},
    {"top_p": 0.5},
    {"top_p": 0.97, "min_p": 0.02},
    {"min_p": 0.3},
    {"top_k": 10_000_000},
)


@pytest.mark.parametrize("changes", COMBINATIONS, ids=str)
@pytest.mark.parametrize("name", LARGE)
def test_sampler_candidates_of_large_vocabularies(name: str, changes: dict[str, Any]) -> None:
    """Compared with a sorted numpy array, because `reference` is slow for large vocabularies."""
    logits, sampling = LARGE[name], replace(EVERYTHING, **changes)
    sampler = Sampler(sampling, len(logits))
    actual = probabilities(sampler, logits)
    before = logits.copy()
    assert {sampler.sample(logits) for _ in range(5)} <= set(actual)
    np.testing.assert_array_equal(logits, before)
    order = np.lexsort((np.arange(len(logits)), -logits))
    order = order[logits[order] > -np.inf][: sampling.top_k or None]
    weights = np.exp(logits[order].astype(np.float64) - float(logits[order[0]]))
    sums = np.cumsum(weights)
    count = len(order)
    if sampling.top_p < 1:
        count = int(np.searchsorted(sums, sampling.top_p * sums[-1])) + 1
    if sampling.min_p:
        count = min(count, int((weights >= sampling.min_p).sum()))
    assert list(actual) == order[:count].tolist()
    np.testing.assert_allclose(list(actual.values()), weights[:count] / sums[count - 1], rtol=1e-9)


# --- frequencies


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 20},
        {"top_k": 20, "top_p": 0.8, "min_p": 0.1, "temperature": 1.5},
        {"top_p": 0.9},
        {"min_p": 0.2, "temperature": 2.0},
        {"repeat_penalty": 1.5},
    ],
    ids=str,
)
def test_sampler_frequencies_equal_the_probabilities(changes: dict[str, Any]) -> None:
    """Chi-squared test over 2,000 draws with a fixed seed. With n - 1 degrees of freedom the statistic exceeds
    n - 1 + 4 sqrt(2(n - 1)) once in about ten thousand times.
    """
    logits = normal_logits(5, 60, 1.5)
    sampling, recent = replace(EVERYTHING, seed=7, **changes), [3, 4, 3, 59]
    sampler = sampler_after(sampling, len(logits), recent)
    draws = 2_000
    counts = np.bincount([sampler.sample(logits) for _ in range(draws)], minlength=len(logits))
    expected, _ = reference(logits, sampling, recent)
    assert set(np.flatnonzero(counts)) <= set(expected)
    shares = np.array(list(expected.values()))
    seen = counts[list(expected)]
    common = shares * draws >= 5  # the rare tokens are counted together
    observed = np.append(seen[common], seen[~common].sum())
    wanted = np.append(shares[common], shares[~common].sum()) * draws
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(observed) - 1
    assert ((observed - wanted) ** 2 / wanted).sum() < freedom + 4 * math.sqrt(2 * freedom)


def test_sampler_draws_from_all_chunks() -> None:
    """Two possible tokens, in the first and last of four chunks; the second is three times as likely."""
    logits = np.full(4 * CHUNK_TOKENS, -np.inf, np.float32)
    logits[17], logits[-1] = 0.0, math.log(3)
    sampler = Sampler(replace(EVERYTHING, seed=3), len(logits))
    drawn = [sampler.sample(logits) for _ in range(240)]
    assert set(drawn) == {17, len(logits) - 1}
    assert (
        33 < drawn.count(17) < 87
    )  # 60, plus or minus four standard deviations of sqrt(240 * 3 / 16)


# --- seeds


def test_sampler_same_seed_gives_the_same_tokens() -> None:
    logits = normal_logits(6, 500, 1.0)

    def drawn(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(seed=seed), len(logits))
        return [sampler.sample(logits) for _ in range(40)]

    assert drawn(11) == drawn(11)
    assert drawn(11) != drawn(12)
    assert drawn(None) != drawn(None)


def test_sampler_takes_one_random_number_per_token() -> None:
    """A token that was certain does not change the tokens after it."""
    certain = np.array([9.0, -90.0], np.float32)
    even = np.zeros(2, np.float32)
    first, second = (Sampler(replace(EVERYTHING, seed=5), 2) for _ in range(2))
    first.sample(certain)
    second.sample(even)
    assert [first.sample(even) for _ in range(30)] == [second.sample(even) for _ in range(30)]


def test_sampler_greedy_takes_the_first_of_the_highest_logits() -> None:
    logits = np.array([1, 5, -2, 5, 5], np.float32)
    sampler = Sampler(Sampling(temperature=0, top_k=3, seed=1), 5)
    state = sampler._random.bit_generator.state
    assert [sampler.sample(logits) for _ in range(5)] == [1] * 5
    assert sampler._random.bit_generator.state == state


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-3])
def test_sampler_tiny_temperature_is_nearly_greedy(temperature: float) -> None:
    logits = np.array([-3e38, 1, 3, 2.9, 3], np.float32)
    sampler = Sampler(replace(EVERYTHING, temperature=temperature), 5)
    assert {sampler.sample(logits) for _ in range(40)} == {2, 4}


def test_sampler_huge_temperature_is_uniform() -> None:
    logits = np.array([-3e38, 0, 3e38], np.float32)
    actual = probabilities(Sampler(replace(EVERYTHING, temperature=1e308), 3), logits)
    assert list(actual.values()) == pytest.approx([1 / 3] * 3)


# --- repeat penalty


@pytest.mark.parametrize(
    ("logit", "penalty", "after"),
    [(3.0, 1.5, 2.0), (-3.0, 1.5, -4.5), (0.0, 1.5, 0.0), (3.0, 0.5, 6.0), (-3.0, 0.5, -1.5)],
)
def test_repeat_penalty_applies_once_to_a_repeated_token(
    logit: float, penalty: float, after: float
) -> None:
    sampling = replace(EVERYTHING, repeat_penalty=penalty)
    logits = np.array([logit, 0.0], np.float32)
    actual = probabilities(sampler_after(sampling, 2, [0, 0, 0]), logits)
    assert actual[0] / actual[1] == pytest.approx(math.exp(after))


def test_repeat_penalty_covers_the_last_tokens_only() -> None:
    logits = np.array([5.0, 4.0, 3.0, 2.0], np.float32)
    sampling = Sampling(temperature=0, repeat_penalty=100, repeat_last=2)
    sampler = Sampler(sampling, 4)
    results = []
    for _ in range(7):
        results.append(sampler.sample(logits))
        sampler.accept(results[-1])
    assert results == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("sampling", [Sampling(repeat_last=0, repeat_penalty=9), Sampling()])
def test_repeat_penalty_of_1_or_over_0_tokens_has_no_effect(sampling: Sampling) -> None:
    logits = normal_logits(8, 50, 1.0)
    accepted = sampler_after(sampling, 50, list(range(50)))
    assert probabilities(accepted, logits) == probabilities(Sampler(sampling, 50), logits)


def test_repeat_penalty_overflow_is_clamped() -> None:
    logits = np.array([3e38, 1.0, -3e38], np.float32)
    sampling = Sampling(temperature=0, repeat_penalty=1e-6)
    assert sampler_after(sampling, 3, [0, 2]).sample(logits) == 0
    sampling = Sampling(temperature=0, repeat_penalty=1e6)
    assert sampler_after(sampling, 3, [0, 2]).sample(logits) == 0
    assert logits.tolist() == [np.float32(3e38), 1.0, np.float32(-3e38)]


def test_sampler_restores_the_logits_after_an_error() -> None:
    logits = np.array([1.0, np.nan], np.float32)
    with pytest.raises(WeightsError):
        sampler_after(Sampling(repeat_penalty=2), 2, [0]).sample(logits)
    assert logits[0] == 1.0


@pytest.mark.parametrize("token", [-1, 4])
def test_sampler_accept_refuses_a_token_that_does_not_exist(token: int) -> None:
    with pytest.raises(TextError, match="does not exist: there are 4"):
        Sampler(Sampling(), 4).accept(token)


# --- hostile logits

SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "default": Sampling(seed=1),
    "categorical": EVERYTHING,
    "top-p": replace(EVERYTHING, top_p=0.9),
    "many": replace(EVERYTHING, top_k=2000),
    "min-p": replace(EVERYTHING, min_p=0.1),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("count", [3, 5_000, 2 * CHUNK_TOKENS + 1])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "a logit is nan"),
        (math.inf, "a logit is inf"),
        (-math.inf, "all logits are -inf"),
    ],
)
def test_sampler_refuses_nan_inf_and_all_minus_inf(
    sampling: str, count: int, value: float, message: str
) -> None:
    logits = np.full(count, -math.inf if value == -math.inf else 0.5, np.float32)
    logits[count // 2] = value
    with pytest.raises(WeightsError, match=message):
        Sampler(SAMPLINGS[sampling], count).sample(logits)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("count", [1, 3, 5_000, 2 * CHUNK_TOKENS + 1])
@pytest.mark.parametrize("value", [-3.4028235e38, -1.0, 0.0, 3.4028235e38])
def test_sampler_takes_the_only_finite_logit(sampling: str, count: int, value: float) -> None:
    logits = np.full(count, -math.inf, np.float32)
    logits[count // 2] = value
    assert Sampler(SAMPLINGS[sampling], count).sample(logits) == count // 2


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("value", [-3.4028235e38, -0.0, 1e-45, 3.4028235e38])
def test_sampler_candidates_of_equal_logits(sampling: str, value: float) -> None:
    logits = np.full(2 * CHUNK_TOKENS, value, np.float32)
    actual = probabilities(Sampler(SAMPLINGS[sampling], len(logits)), logits)
    counts = {"greedy": 1, "default": 38, "top-p": math.ceil(0.9 * len(logits)), "many": 2000}
    assert list(actual) == list(
        range(counts.get(sampling, len(logits)))
    )  # default: 38 of top-k 40 are 95 %
    assert {*actual.values()} == {1 / len(actual)}


def test_sampler_vocabulary_of_one_token() -> None:
    assert Sampler(Sampling(), 1).sample(np.array([-4.0], np.float32)) == 0


# --- Chooser: rounding errors and tokens at -inf are never chosen


def test_chooser_best_omits_tokens_at_minus_inf() -> None:
    """Fewer tokens are possible than requested."""
    logits = np.full(3 * 4096, -math.inf, np.float32)
    logits[4096:8192:4] = 1.0
    result = Chooser(len(logits)).best(logits, BEST_TOKENS)
    assert result.tolist() == list(range(4096, 8192, 4))
    logits[4096:8192:8] = -math.inf
    assert len(Chooser(len(logits)).best(logits, BEST_TOKENS)) == 512


@pytest.mark.parametrize(("share", "token"), [(0.0, 1), (0.5, 2), (0.999999999999, 2), (1.0, 1)])
def test_chooser_draw_never_returns_a_token_at_minus_inf(share: float, token: int) -> None:
    """A share of 1.0 cannot be drawn: it stands for a sum that rounding made too small."""
    logits = np.array([-math.inf, 0.0, 0.0, -math.inf], np.float32)
    chooser = Chooser(4)
    assert chooser.draw(logits, TopTokens(-math.inf, 4), 0.0, 1.0, share) == token


def test_chooser_prefix_beyond_the_total_weight_is_all_tokens() -> None:
    """Weights summed in another order may round to a larger total."""
    logits = np.concatenate([np.zeros(2000), np.full(100, -1000.0)]).astype(np.float32)
    candidates = Chooser(len(logits)).prefix_by_weight(logits, 2000.0000001, 0.0)
    assert (candidates.least, candidates.last) == (0.0, 1999)


# --- settings


@pytest.mark.parametrize(
    ("field", "values", "flag"),
    [
        ("temperature", (-0.1, math.nan, math.inf, "1", None, True), "--temp"),
        ("top_k", (-1, 2.0, 2**31, None, False), "--top-k"),
        ("top_p", (-0.01, 1.01, math.nan, "0.5"), "--top-p"),
        ("min_p", (-0.01, 1.01, math.nan, None), "--min-p"),
        ("repeat_penalty", (0, -1.0, math.inf, math.nan, 1e-7, 1e7), "--repeat-penalty"),
        ("repeat_last", (-1, RECENT_TOKENS + 1, 1.0), "--repeat-last-n"),
        ("seed", (-1, 2**32 - 1, 1.5, "1", True), "--seed"),
    ],
)
def test_sampler_refuses_invalid_settings(field: str, values: tuple[Any, ...], flag: str) -> None:
    for value in values:
        with pytest.raises(UsageError, match=rf"{field} \({flag}\)"):
            Sampling(**{field: value})


def test_sampling_defaults_equal_llamacpp() -> None:
    """common_params_sampling in common/common.h."""
    assert asdict(Sampling()) == {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "repeat_penalty": 1.0,
        "repeat_last": 64,
        "seed": None,
        "stop": (),
    }
