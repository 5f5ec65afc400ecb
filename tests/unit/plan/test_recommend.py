"""plan/recommend.py: which models are offered for a task, and what speed and evidence add to their order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.index import index_entries
from edgekit.index.names import find_entry
from edgekit.index.quality import QualityBasis
from edgekit.index.types import ModelPurpose
from edgekit.plan.recommend import (
    MAX_POINTS_OF_USES,
    embedding_points,
    entry_quality,
    few_uses_points,
    is_notable,
    rank_of,
    ranked_for,
    speed_points,
    suits_task,
    version_of,
)

CHAT, CODE, EMBEDDING = ModelPurpose.CHAT, ModelPurpose.CODE, ModelPurpose.EMBEDDING


def test_rank_is_the_low_end_of_the_quality_less_age_and_thinking() -> None:
    entry = find_entry("qwen3-32b")  # of May 2025
    quality = entry_quality(entry, CHAT)
    assert rank_of(entry) == rank_of(entry, CHAT) == quality.rank < quality.low < quality.value


def test_few_users_cost_a_little() -> None:
    """Ornith is known from its maker's scores only, and few people use it: Qwen3.6 of the same size ranks higher."""
    ornith, qwen = find_entry("ornith-1.0-35b"), find_entry("qwen3.6-35b-a3b")
    assert few_uses_points(qwen) == 0 < few_uses_points(ornith) <= MAX_POINTS_OF_USES
    assert rank_of(ornith, CODE) < rank_of(qwen, CODE)


@pytest.mark.parametrize("task", [CHAT, CODE, ModelPurpose.REASONING, ModelPurpose.VISION])
def test_no_model_without_scores_ranks_above_a_measured_one_of_its_age_that_is_better(
    task: ModelPurpose,
) -> None:
    """The younger one may: an older model's scores count for less."""
    qualities = [entry_quality(entry, task) for entry in ranked_for(task, index_entries())]
    measured = [item for item in qualities if item.basis is QualityBasis.MEASURED]
    assert measured
    for other in qualities:
        if other.basis is QualityBasis.MEASURED:
            continue
        assert not any(
            item.value >= other.value and item.low < other.low - 1e-9 for item in measured
        )


@pytest.mark.parametrize(
    ("task", "better", "worse"),
    [
        (CHAT, "qwen3-32b", "qwen3-8b"),
        (CHAT, "llama-3.3-70b", "llama-2-70b"),
        (CODE, "qwen3-coder-30b-a3b-instruct", "codellama-34b-instruct"),
        (CHAT, "gemma-4-31b-it", "phi-4-reasoning-plus"),  # of 2026 and 2025, both known well
        (CHAT, "gemma-4-31b-it", "deepseek-r1-distill-qwen-32b"),
        (CHAT, "qwen3.6-35b-a3b", "phi-4-reasoning-plus"),
        (CHAT, "gpt-oss-20b", "deepseek-r1-distill-llama-8b"),
        (CODE, "qwen3.6-27b", "granite-3b-code-instruct-128k"),
        (CODE, "qwen3.8-27b", "qwen2.5-coder-32b-instruct"),
        (CODE, "qwen3-coder-30b-a3b-instruct", "qwen2.5-coder-32b-instruct"),
        (EMBEDDING, "qwen3-embedding-0.6b", "e5-mistral-7b-instruct"),
        (EMBEDDING, "qwen3-embedding-8b", "all-minilm-l6-v2"),
    ],
)
def test_rank_agrees_with_what_is_known_of_models(
    task: ModelPurpose, better: str, worse: str
) -> None:
    assert rank_of(find_entry(better), task) > rank_of(find_entry(worse), task)


@pytest.mark.parametrize("task", [CHAT, CODE, ModelPurpose.REASONING, ModelPurpose.VISION])
def test_ranked_models_answer_and_do_not_embed(task: ModelPurpose) -> None:
    ranked = ranked_for(task, index_entries())
    assert len(ranked) > 50
    assert all(EMBEDDING not in entry.kinds for entry in ranked)
    # ERNIE-4.5-21B-A3B-PT answers: its publisher means PyTorch
    names = [entry.id for entry in ranked if not entry.id.startswith("ernie-4.5")]
    assert not any(name.endswith(("-base", "-pt")) for name in names)


def test_models_for_medicine_only_are_not_offered() -> None:
    entry = find_entry("medgemma-4b-it")
    assert not any(suits_task(entry, task) for task in (CHAT, ModelPurpose.VISION))


def test_general_models_are_ranked_for_code_by_their_scores() -> None:
    names = [entry.id for entry in ranked_for(CODE, index_entries())]
    assert ModelPurpose.CODE not in find_entry("qwen3-32b").kinds
    assert names.index("qwen3-32b") < names.index("codellama-34b-instruct")


def test_model_without_scores_is_offered_first_only_if_it_is_used_a_lot() -> None:
    ranked = ranked_for(CHAT, index_entries())
    unmeasured = [
        entry for entry in ranked if entry_quality(entry, CHAT).basis is QualityBasis.NOT_MEASURED
    ]
    assert any(is_notable(entry, CHAT) for entry in unmeasured)
    least = min(entry.uses for entry in unmeasured if is_notable(entry, CHAT))
    assert all(entry.uses < least for entry in unmeasured if not is_notable(entry, CHAT))
    notable = [is_notable(entry, CHAT) for entry in ranked]
    assert notable == sorted(notable, reverse=True)


@pytest.mark.parametrize(
    ("tokens_per_s", "points"),
    [(8, 0.0), (12, 11.5), (24, 14.5), (48, 17.5), (1000, 17.5), (4, -25.0), (2, -50.0)],
)
def test_speed_points(tokens_per_s: float, points: float) -> None:
    assert speed_points(tokens_per_s) == pytest.approx(points)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_points_never_fall_with_speed(slow: float, fast: float) -> None:
    slow, fast = sorted((slow, fast))
    for points in (speed_points, embedding_points):
        assert points(slow) <= points(fast)
        assert math.isfinite(points(slow))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3.6-27b", ("qwen-27b", (3, 6))),
        ("gemma-4-26b-a4b", ("gemma-26b-a4b", (4,))),
        ("mistral-7b-v0.1", ("mistral-7b-v", (0, 1))),
        ("mistral-small-3.2-24b", ("mistral-small-24b", (3, 2))),
        ("qwen-7b", ("qwen-7b", ())),
        ("", ("", ())),
    ],
)
def test_version_of(name: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert version_of(name) == expected
