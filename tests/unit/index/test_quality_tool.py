"""The fit of abilities and benchmarks to published scores."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

np = pytest.importorskip("numpy")

from tools.quality import CHAT, CODE, Posterior, Row, correlation, fit, loss_line  # noqa: E402

from edgekit.index.quality import Facts  # noqa: E402

DIFFICULTY = {
    "MMLU-Pro": (CHAT, 0.0, 1.0),
    "MMLU": (CHAT, 1.5, 0.6),
    "IFEval": (CHAT, 1.0, 0.8),
} | {
    "LiveCodeBench": (CODE, 0.0, 1.0),
    "HumanEval+": (CODE, 2.0, 1.0),
}
MODELS = {
    f"maker{i % 4}/line{i % 4}-{i}b": Facts(
        parameters=(i + 1) * 10**9,
        released=f"{2023 + i % 3}-06-01",
        family=f"line{i % 4}",
        kinds=(CHAT,),
    )
    for i in range(24)
}
ABILITY = {
    model: 0.4 * math.log2((facts.parameters or 1) / 7e9) + 0.3 * math.sin(7 * i)
    for i, (model, facts) in enumerate(MODELS.items())
}


def rows(changed: str = "", by: float = 0.0) -> list[Row]:
    """A score of every third pair of model and benchmark, with an error; one model's scores are `by` higher."""
    result = []
    for i, model in enumerate(MODELS):
        for j, (benchmark, (task, level, slope)) in enumerate(DIFFICULTY.items()):
            if (i + j) % 3 == 0:
                continue
            y = (
                level
                + slope * ABILITY[model]
                + 0.1 * math.sin(31 * i + 17 * j)
                + by * (model == changed)
            )
            result.append(
                Row(
                    model=model,
                    task=task,
                    benchmark=benchmark,
                    group=f"{benchmark}|vendor",
                    y=y,
                    raw={},
                )
            )
    return result


def ability(found: Posterior, model: str) -> float:
    return found.ability(found.terms(model, CHAT))[0]


def test_fit_finds_the_abilities_although_a_third_of_the_scores_is_missing() -> None:
    found = fit(rows(), MODELS)
    abilities = [ability(found, model) for model in MODELS]
    assert correlation(abilities, list(ABILITY.values())) > 0.97
    assert found.slopes["MMLU"] < found.slopes["MMLU-Pro"]


@pytest.mark.parametrize("model", list(MODELS)[::5])
def test_better_scores_never_lower_the_ability(model: str) -> None:
    abilities = [
        ability(fit(rows(model, by), MODELS, rounds=15), model) for by in (-2, -0.5, 0, 0.5, 2)
    ]
    assert abilities == sorted(abilities)


def test_one_false_score_moves_an_ability_less_than_a_true_one_would() -> None:
    model = list(MODELS)[7]
    plain = rows()
    at = next(i for i, row in enumerate(plain) if row.model == model)
    false = [replace(row, y=row.y + 5) if i == at else row for i, row in enumerate(plain)]
    found = ability(fit(plain, MODELS), model)
    assert found <= ability(fit(false, MODELS), model) < found + 1


def test_loss_line_goes_through_its_points() -> None:
    def of(scheme: str, measure: str, model: str, value: float) -> dict[str, object]:
        source = "ggml-org/llama.cpp@b21e4de74567:tools/perplexity/README.md"
        note = "importance matrix: None"
        return {
            "scheme": scheme, "measure": measure, "model": model, "value": value, "source": source, "note": note
        }  # fmt: skip

    pairs = {
        "Q8_0": "MLX q8",
        "Q6_K": "MLX q6",
        "Q5_0": "MLX q5",
        "Q4_0": "MLX q4",
        "Q2_K": "Ollama: q2_K",
    }
    published = [of("MLX bf16", "MMLU Pro, %", "m", 70.0)]
    published.append(of("Ollama: fp16", "Aider code editing, % at the second try", "c", 71.0))
    for i, (mix, scheme) in enumerate(pairs.items()):
        divergence = 0.001 * 4**i
        published.append(of(mix, "mean KL divergence", "meta-llama/Meta-Llama-3-8B", divergence))
        whole, measure, model = (71.0, "Aider code editing, % at the second try", "c") if mix == "Q2_K" else (
            70.0, "MMLU Pro, %", "m"
        )  # fmt: skip
        published.append(of(scheme, measure, model, whole - 20 * math.sqrt(divergence)))
    scale, power = loss_line(published)
    assert scale == pytest.approx(20)
    assert power == pytest.approx(0.5)
