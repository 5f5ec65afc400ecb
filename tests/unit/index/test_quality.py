"""Quality from published scores, the prediction without them, and the losses of weight and cache types."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.index.test_merge import rows_of

import edgekit.index
from edgekit.formats.mixes import all_mixes
from edgekit.index.database import IndexFile, packaged_file
from edgekit.index.merge import check_index, merge
from edgekit.index.quality import (
    EIGHTY_PERCENT,
    FITTED,
    MAX_SCORES,
    MAX_SURPRISE,
    Facts,
    LossBasis,
    QualityBasis,
    Score,
    _with_scores,
    always_thinks,
    cache_loss,
    data_stamp,
    is_base_model,
    key_of,
    predicted_ability,
    quality_of,
    related_scores,
    scores_of,
    suits,
    weights_loss,
)
from edgekit.index.tables import write_sqlite
from edgekit.index.types import ModelPurpose

PACKAGE = files(edgekit.index)
DATA = json.loads(PACKAGE.joinpath(FITTED).read_text(encoding="utf-8"))
SHIPPABLE = {"CC-BY-4.0", "Apache-2.0", "MIT", "CC0-1.0"}
CHAT, CODE, REASONING = ModelPurpose.CHAT, ModelPurpose.CODE, ModelPurpose.REASONING
VISION, EMBEDDING = ModelPurpose.VISION, ModelPurpose.EMBEDDING
ORNITH = "deepreinforce-ai/ornith-1.0-35b"
UNKNOWN = "somebody/xylograph-8b"
LARGE = Facts(parameters=70_000_000_000, released="2026-10-01", family="xylograph", kinds=(CHAT,))
MEASURED = [
    (model, task)
    for model, tasks in DATA["models"].items()
    for task, (_, _, count) in tasks.items()
    if count
]


EVIDENCE = (
    "SELECT m.repository, e.benchmark, e.date, e.measured_by, s.name, s.licence FROM evidence e"
    " JOIN models m ON m.id = e.model LEFT JOIN sources s ON s.id = e.source"
)
IndexWith = Callable[..., IndexFile]


@pytest.fixture
def index_with(tmp_path: Path) -> IndexWith:
    """Makes an index of one model with these scores: (benchmark, score), also with setting and measured by."""

    def made(
        repository: str, *scores: tuple[str, float] | tuple[str, float, str, str]
    ) -> IndexFile:
        rows = rows_of("x", built="2026-11-18")
        rows["models"] = [("x", repository, *rows["models"][0][2:])]
        rows["evidence"] = [
            ("x", benchmark, float(score), "2026-11", *(rest or ("", "Example Lab")), 7)
            for benchmark, score, *rest in scores
        ]
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"
        write_sqlite(path, rows)
        return IndexFile(path)

    return made


def test_every_shipped_score_has_a_licence_that_allows_it_and_a_source() -> None:
    rows = packaged_file().rows(EVIDENCE)
    assert len(rows) > 900
    assert {licence for *_, licence in rows} <= SHIPPABLE
    assert all(all(row) for row in rows)


def test_shipped_fit_is_small() -> None:
    assert len(gzip.compress(PACKAGE.joinpath(FITTED).read_bytes())) < 100_000


def test_fit_is_of_the_shipped_scores() -> None:
    """Each of them counts, and no model was fitted to others."""
    counts = dict.fromkeys(MEASURED, 0)
    for model, task in MEASURED:
        counts[model, task] = len(scores_of(model, ModelPurpose(task), index=packaged_file()))
        assert counts[model, task] == DATA["models"][model][task][2]
    assert sum(counts.values()) == len(packaged_file().rows(EVIDENCE))


def test_a_measured_model_names_its_scores() -> None:
    result = quality_of("Qwen/Qwen3.6-27B", CODE, facts=Facts())
    assert result.basis is QualityBasis.MEASURED
    assert [score.benchmark for score in result.scores] == ["SWE-Bench Verified"]
    assert result.low < result.value < result.high


def test_score_of_another_index_moves_the_quality_of_a_model_that_was_not_fitted(
    index_with: IndexWith,
) -> None:
    facts = Facts(parameters=8 * 10**9, released="2026-10-01", kinds=(CHAT,))
    plain = quality_of(UNKNOWN, CODE, facts=facts)
    assert plain.basis is QualityBasis.NOT_MEASURED
    one = quality_of(UNKNOWN, CODE, facts=facts, index=index_with(UNKNOWN, ("LiveCodeBench", 70)))
    two = index_with(UNKNOWN, ("LiveCodeBench", 70), ("LiveCodeBench", 70, "", "Other Lab"))
    both = quality_of(UNKNOWN, CODE, facts=facts, index=two)
    assert one.basis is QualityBasis.MEASURED
    assert [(score.score, score.date, score.source) for score in one.scores] == [
        (70.0, "2026-11", "org/repo@abc:README.md")
    ]
    assert plain.value < one.value <= both.value < 70  # the score, and a prediction that is lower
    assert both.high - both.low < one.high - one.low < plain.high - plain.low
    assert suits(UNKNOWN, CODE, facts=facts, index=two)
    assert not suits(UNKNOWN, CODE, facts=facts)


def test_new_score_counts_by_the_line_of_its_benchmark(index_with: IndexWith) -> None:
    """As the fit does: the precisions of prediction and score add up, and the mean is weighted by them."""
    facts = Facts(parameters=8 * 10**9, released="2026-10-01", kinds=(CHAT,))
    ability, spread, _ = predicted_ability(UNKNOWN, CHAT, facts=facts)
    line = next(line for line in DATA["benchmarks"] if line["name"] == "IFEval")
    variance = line["spread"] ** 2 + DATA["tasks"]["chat"]["group_variance"]
    expected = line["slope"] * ability - line["difficulty"] + 0.2  # in log-odds: better by 0.2
    index = index_with(UNKNOWN, ("IF-Eval (Prompt Strict)", 100 / (1 + math.exp(-expected))))
    precision = line["slope"] ** 2 / variance
    change = 0.2 / line["slope"] * precision / (precision + 1 / spread**2)
    found = quality_of(UNKNOWN, CHAT, facts=facts, index=index).value
    assert found == pytest.approx(100 * (0.1 + 0.9 / (1 + math.exp(-ability - change))))


def test_makers_own_new_scores_move_the_quality_less(index_with: IndexWith) -> None:
    facts = Facts(parameters=8 * 10**9, released="2026-10-01", kinds=(CHAT,))
    values = [
        quality_of(
            UNKNOWN, CODE, facts=facts,
            index=index_with(UNKNOWN, ("LiveCodeBench", 60, "", by), ("SciCode", 40, "", by)),
        ).value
        for by in ("the vendor", "Somebody (card)", "Example Lab")
    ]  # fmt: skip
    assert values[0] == values[1] < values[2]


def test_new_score_of_a_fitted_model_counts_once(index_with: IndexWith) -> None:
    name = "Qwen/Qwen3.6-27B"
    plain = quality_of(name, CODE, facts=Facts())
    (known,) = plain.scores
    same = (known.benchmark, known.score, "read again", known.measured_by)
    assert quality_of(name, CODE, facts=Facts(), index=index_with(name, same)).value == plain.value
    index = index_with(name, same, ("LiveCodeBench", 5))
    lower = quality_of(name, CODE, facts=Facts(), index=index)
    assert lower.value < plain.value
    assert len(lower.scores) == 2


def test_merged_index_has_the_scores_of_both(tmp_path: Path, index_with: IndexWith) -> None:
    ours, theirs = check_index(packaged_file().path), check_index(
        index_with("Qwen/Qwen3.6-27B", ("LiveCodeBench", 80)).path
    )  # fmt: skip
    merge([ours, theirs], ours, tmp_path / "merged")
    index = IndexFile(tmp_path / "merged")
    found = scores_of("Qwen/Qwen3.6-27B", CODE, index=index)
    assert [score.benchmark for score in found] == ["LiveCodeBench", "SWE-Bench Verified"]
    assert quality_of("Qwen/Qwen3-32B", CHAT, facts=Facts(), index=index) == quality_of(
        "Qwen/Qwen3-32B", CHAT, facts=Facts()
    )


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.integers(0, 5), st.floats(0, 100))
def test_a_higher_new_score_never_lowers_the_quality(
    values: list[float], changed: int, other: float
) -> None:
    names = [line["names"][0] for line in DATA["benchmarks"] if line["task"] == "chat"]

    def value(values: list[float]) -> float:
        scores = [
            Score(benchmark=name, score=value, date="", setting="", measured_by="", source="")
            for name, value in zip(names, values, strict=False)
        ]
        return _with_scores(UNKNOWN, CHAT, (0.0, 0.8), scores)[0]

    at = changed % len(values)
    low, high = sorted((values[at], other))
    assert (
        value([*values[:at], low, *values[at + 1 :]])
        <= value([*values[:at], high, *values[at + 1 :]]) + 1e-9
    )


def test_scores_that_do_not_count_are_ignored(index_with: IndexWith) -> None:
    index = index_with(
        UNKNOWN,
        ("LiveCodeBench", 101),
        ("LiveCodeBench", -1),
        ("LiveCodeBench", math.inf),
        ("LiveCodeBench", 60, "maj@64", "Example Lab"),
        ("a benchmark of their own", 90),
    )
    assert scores_of(UNKNOWN, CODE, index=index) == ()
    facts = Facts(kinds=(CHAT,))
    assert quality_of(UNKNOWN, CODE, facts=facts, index=index) == quality_of(
        UNKNOWN, CODE, facts=facts
    )


def test_perfect_scores_do_not_make_a_small_model_the_best(index_with: IndexWith) -> None:
    facts = Facts(parameters=10**9, released="2026-10-01", kinds=(CHAT,))
    names = [name for line in DATA["benchmarks"] for name in line["names"]]
    index = index_with(UNKNOWN, *((name, 100.0) for name in names for _ in range(50)))
    for task in (CHAT, CODE, REASONING):
        found = quality_of(UNKNOWN, task, facts=facts, index=index)
        ability, spread, _ = predicted_ability(UNKNOWN, task, facts=facts)
        most = ability + MAX_SURPRISE * spread
        chance = DATA["tasks"][task.value]["chance"]
        assert found.value <= 100 * (chance + (1 - chance) / (1 + math.exp(-most))) + 1e-9
        best = max(
            abilities[task.value][0]
            for abilities in DATA["models"].values()
            if task.value in abilities
        )
        assert found.value <= 100 * (chance + (1 - chance) / (1 + math.exp(-best - 1))) + 1e-9


def test_only_so_many_scores_are_read(index_with: IndexWith) -> None:
    index = index_with(UNKNOWN, *((("LiveCodeBench", 50.0),) * (MAX_SCORES + 9)))
    assert len(scores_of(UNKNOWN, CODE, index=index)) == MAX_SCORES
    assert quality_of(UNKNOWN, CODE, facts=Facts(), index=index).low > 0


def test_stamp_changes_with_the_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index_with: IndexWith
) -> None:
    before = data_stamp()
    assert data_stamp() == before
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("EDGEKIT_DATA", str(folder))
    index_with(UNKNOWN, ("LiveCodeBench", 50)).path.rename(folder / "index.sqlite")
    assert data_stamp() != before


def test_value_is_the_expected_score_of_the_reference_benchmark() -> None:
    about = DATA["tasks"]["chat"]
    ability, spread, _ = DATA["models"]["qwen/qwen2.5-32b-instruct"]["chat"]
    result = quality_of("Qwen/Qwen2.5-32B-Instruct", CHAT, facts=Facts())
    assert about["reference"] == "MMLU-Pro"
    assert about["chance"] == 0.1  # ten answers to choose from
    assert result.value == pytest.approx(100 * (0.1 + 0.9 / (1 + math.exp(-ability))))
    assert result.low == pytest.approx(
        100 * (0.1 + 0.9 / (1 + math.exp(EIGHTY_PERCENT * spread - ability)))
    )
    assert abs(result.value - 69.0) < 6  # its own score there


@given(st.data())
def test_a_model_without_scores_never_ranks_above_a_better_measured_one(
    data: st.DataObject,
) -> None:
    model, name = data.draw(st.sampled_from(MEASURED))
    task = ModelPurpose(name)
    facts = Facts(
        parameters=data.draw(st.none() | st.integers(10**6, 10**13)),
        active_parameters=data.draw(st.none() | st.integers(10**6, 10**12)),
        released=data.draw(st.none() | st.dates().map(str)),
        family=data.draw(
            st.none() | st.sampled_from(["qwen3", "gemma-4", "xylograph", *DATA["families"]])
        ),
        kinds=data.draw(st.sampled_from([(), (CHAT,), (CHAT, REASONING), (CODE,), (EMBEDDING,)])),
    )
    unmeasured = quality_of(
        data.draw(st.sampled_from([UNKNOWN, "qwen/qwen9-1b"])), task, facts=facts
    )
    measured = quality_of(model, task, facts=Facts())
    assert unmeasured.basis is not QualityBasis.MEASURED
    assert 0 <= unmeasured.low <= unmeasured.value <= unmeasured.high <= 100
    if unmeasured.value <= measured.value:
        assert unmeasured.low <= measured.low


@pytest.mark.parametrize(
    ("task", "better", "worse"),
    [
        (
            CODE,
            [
                "Qwen/Qwen3.6-27B",
                "Qwen/Qwen3-Coder-30B-A3B-Instruct",
                "openai/gpt-oss-120b",
                "zai-org/GLM-4.5-Air",
            ],
            [
                "bigcode/starcoder2-15b-instruct-v0.1",
                "codellama/CodeLlama-34b-Instruct-hf",
                "bigcode/starcoder2-3b",
            ],
        ),
        (
            CHAT,
            [
                "Qwen/Qwen3-32B",
                "google/gemma-3-27b-it",
                "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            ],
            [
                "meta-llama/Llama-3.1-8B-Instruct",
                "mistralai/Mistral-Nemo-Instruct-2407",
                "google/gemma-2-9b-it",
            ],
        ),
        (
            VISION,
            ["Qwen/Qwen2.5-VL-7B-Instruct"],
            ["mistralai/Pixtral-12B-2409", "microsoft/Phi-3.5-vision-instruct"],
        ),
        (
            EMBEDDING,
            ["Qwen/Qwen3-Embedding-0.6B", "google/embeddinggemma-300m"],
            [
                "sentence-transformers/all-MiniLM-L6-v2",
                "intfloat/e5-small",
                "BAAI/bge-small-en-v1.5",
            ],
        ),
    ],
)
def test_order_of_well_known_models(
    task: ModelPurpose, better: list[str], worse: list[str]
) -> None:
    lows = [
        [quality_of(model, task, facts=Facts()).low for model in models]
        for models in (better, worse)
    ]
    assert min(lows[0]) > max(lows[1])


@pytest.mark.parametrize("task", [CHAT, CODE, REASONING, VISION])
def test_more_parameters_and_a_later_release_never_predict_less(task: ModelPurpose) -> None:
    value = quality_of(UNKNOWN, task, facts=LARGE).value
    assert quality_of(UNKNOWN, task, facts=replace(LARGE, parameters=8 * 10**9)).value < value
    assert quality_of(UNKNOWN, task, facts=replace(LARGE, parameters=10**9)).value < value
    assert quality_of(UNKNOWN, task, facts=replace(LARGE, released="2023-07-01")).value < value
    assert (
        quality_of(UNKNOWN, task, facts=replace(LARGE, active_parameters=3 * 10**9)).value < value
    )


def test_another_publishers_version_is_not_measured_and_ranks_below_the_original() -> None:
    facts = Facts(
        parameters=27_000_000_000, released="2026-04-22", family="qwen3.6", kinds=(CHAT, REASONING)
    )
    original = quality_of("Qwen/Qwen3.6-27B", CHAT, facts=facts)
    later = replace(
        facts, released="2026-10-01", family="huihui-qwen3.6", kinds=(CHAT, REASONING, CODE)
    )
    copied = quality_of("huihui-ai/Huihui-Qwen3.6-27B-abliterated", CHAT, facts=later)
    assert original.basis is QualityBasis.FAMILY
    assert copied.basis is QualityBasis.NOT_MEASURED
    assert copied.low < original.low


def test_a_makers_own_scores_are_less_certain_than_those_of_others() -> None:
    """Five scores that the maker of Ornith measured tell less than four of Qwen3-32B, of which others measured two."""
    measured_by = {score.measured_by for score in quality_of(ORNITH, CODE, facts=Facts()).scores}
    assert measured_by == {"the vendor"}
    assert DATA["models"][ORNITH]["code"][1] > 1.4 * DATA["models"]["qwen/qwen3-32b"]["code"][1]


def test_an_older_model_ranks_lower_at_the_same_score() -> None:
    name = "meta-llama/Llama-3.3-70B-Instruct"
    new, old = (
        quality_of(name, CHAT, facts=Facts(kinds=(CHAT,), released=day))
        for day in ("2026-10-01", "2024-12-06")
    )
    assert (new.value, new.low) == (old.value, old.low)
    assert old.rank < new.rank == new.low


def test_thinking_counts_less_in_conversation() -> None:
    name = "meta-llama/Llama-3.3-70B-Instruct"
    for task in (CHAT, REASONING):
        plain, thinks = (
            quality_of(name, task, facts=Facts(kinds=kinds, released="2026-10-01"))
            for kinds in ((CHAT,), (CHAT, REASONING))
        )
        assert (thinks.rank < plain.rank) is (task is CHAT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("microsoft/Phi-4-reasoning-plus", True),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", True),
        ("Qwen/Qwen3-4B-Thinking-2507", True),
        ("Qwen/QwQ-32B", True),
        ("Qwen/Qwen3.6-27B", False),  # thinks if it is asked to
        ("openai/gpt-oss-20b", False),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", False),
    ],
)
def test_models_that_always_think(name: str, expected: bool) -> None:  # noqa: FBT001
    assert always_thinks(name) is expected


def test_what_all_models_of_a_family_do_is_known_of_each() -> None:
    facts = Facts(parameters=31 * 10**9, released="2026-04", family="gemma-4", kinds=(CHAT,))
    listed = replace(facts, kinds=(CHAT, REASONING))
    for task in (CHAT, REASONING):
        assert (
            quality_of("google/gemma-4-31B-it", task, facts=facts).value
            == quality_of("google/gemma-4-31B-it", task, facts=listed).value
        )
    assert suits("google/gemma-4-31B-it", REASONING, facts=facts)


def test_scores_that_a_model_without_its_own_is_judged_by() -> None:
    own = related_scores("Qwen/Qwen3.6-27B", CHAT, facts=Facts())
    assert [(model, score.benchmark) for model, score in own] == [
        ("qwen/qwen3.6-27b", "SWE-Bench Verified")
    ]
    family = related_scores("Qwen/Qwen3.5-9B", CODE, facts=Facts(family="qwen3.5"))
    assert family
    assert all(model.startswith("qwen/qwen3.5-") for model, _ in family)


def test_unknown_size_and_date_widen_the_interval() -> None:
    known = quality_of(UNKNOWN, CHAT, facts=Facts(parameters=7 * 10**9, released="2024-01-01"))
    unknown = quality_of(UNKNOWN, CHAT, facts=Facts())
    assert unknown.value == pytest.approx(known.value, abs=0.1)
    assert unknown.low < known.low


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen/Qwen2.5-7B", True),
        ("Qwen/Qwen2.5-7B-Instruct", False),
        ("Qwen/Qwen3-8B", False),
        ("Qwen/Qwen3-8B-Base", True),
        ("google/gemma-3-12b-pt", True),
        ("baidu/ERNIE-4.5-21B-A3B-PT", False),  # post-trained
        ("OpenGVLab/InternVL3-8B", False),
        ("meta-llama/Meta-Llama-3-8B", True),
        ("bigcode/starcoder2-3b", True),
        ("bigcode/starcoderbase-1b", True),
        ("bigcode/starcoder", True),
        ("bigcode/starcoder2-15b-instruct-v0.1", False),
        ("microsoft/phi-2", True),
        ("microsoft/phi-4", False),
        ("mistralai/Mistral-7B-v0.1", True),
        ("mistralai/Mistral-7B-Instruct-v0.1", False),
        ("codellama/CodeLlama-7b-Python-hf", True),
        ("codellama/CodeLlama-7b-Instruct-hf", False),
        ("google/codegemma-2b", True),
        ("google/codegemma-7b-it", False),
        ("stabilityai/stable-code-3b", True),
        ("allenai/Olmo-3-1025-7B", True),
        ("allenai/Olmo-3-7B-Instruct", False),
        ("openai-community/gpt2", True),
        ("sdadas/polish-gpt2-small", True),
        ("EleutherAI/pythia-160m-seed1", True),
        ("OpenAssistant/oasst-sft-4-pythia-12b-epoch-3.5", False),
        ("bigscience/bloom-560m", True),
        ("bigscience/bloomz-560m", False),
        ("NousResearch/Llama-2-7b-hf", True),
        ("meta-llama/Llama-2-7b-chat-hf", False),
        ("upstage/SOLAR-10.7B-v1.0", True),
        ("upstage/SOLAR-10.7B-Instruct-v1.0", False),
        ("swiss-ai/Apertus-8B-2509", True),
        ("swiss-ai/Apertus-8B-Instruct-2509", False),
        ("zai-org/glm-4-9b-hf", True),
        ("zai-org/GLM-4-9B-0414", False),
        ("xverse-7b", True),
        ("openai/gpt-oss-20b", False),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", False),
        ("ibm-granite/granite-4.1-8b", False),
        ("upstage/SOLAR-0-70b-16bit", False),
    ],
)
def test_base_models(model: str, expected: bool) -> None:  # noqa: FBT001
    assert is_base_model(model) is expected


@pytest.mark.parametrize(
    ("model", "kinds", "task", "expected"),
    [
        ("Qwen/Qwen3.6-27B", (CHAT,), CODE, True),  # its coding scores say so
        (UNKNOWN, (CHAT,), CODE, False),
        (UNKNOWN, (CODE,), CODE, True),
        ("Qwen/Qwen2.5-7B", (CHAT,), CHAT, False),
        ("Qwen/Qwen3Guard-Gen-8B", (CHAT,), CHAT, False),
        ("BAAI/bge-m3", (EMBEDDING,), EMBEDDING, True),
        ("BAAI/bge-m3", (EMBEDDING,), CHAT, False),
        ("Qwen/Qwen3-8B", (CHAT,), VISION, False),
        ("allenai/olmOCR-7B-0225-preview", (CHAT, VISION), CHAT, False),
    ],
)
def test_what_a_model_is_offered_for(
    model: str,
    kinds: tuple[ModelPurpose, ...],
    task: ModelPurpose,
    expected: bool,  # noqa: FBT001
) -> None:
    facts = Facts(parameters=8 * 10**9, released="2025-01-01", kinds=kinds)
    assert suits(model, task, facts=facts) is expected


def test_tiny_models_are_offered_for_chat_only() -> None:
    facts = Facts(parameters=270_000_000, released="2025-08-14", kinds=(CHAT, CODE))
    offered = [task for task in (CHAT, CODE, REASONING) if suits(UNKNOWN, task, facts=facts)]
    assert offered == [CHAT]


def test_renamed_repositories_have_one_key() -> None:
    assert key_of("meta-llama/Meta-Llama-3.1-8B-Instruct") == "meta-llama/llama-3.1-8b-instruct"
    assert key_of("CohereForAI/c4ai-command-r-plus") == "coherelabs/c4ai-command-r-plus"


# Fewer bits from left to right, within one kind of type.
KINDS = (
    ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q4_K_M", "Q4_K_S", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
    ("Q6_K", "UD-Q5_K_XL", "UD-Q4_K_XL", "Q4_K_M", "UD-Q3_K_XL", "UD-Q2_K_XL"),
    ("IQ4_NL", "IQ4_XS", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"),
    ("BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"),
    ("16 bit", "8bit", "6bit", "5bit", "4bit", "3bit", "2bit"),
    ("BF16", "FP8", "NVFP4"),
    ("BF16", "INT8", "AWQ"),
    ("BF16", "INT8", "GPTQ-Int4"),
)  # fmt: skip


@pytest.mark.parametrize("mixes", KINDS)
def test_more_bits_never_lose_more(mixes: tuple[str, ...]) -> None:
    losses = [weights_loss(mix).value for mix in mixes]
    assert losses == sorted(losses)
    assert losses[-1] > 0


def test_every_mix_of_a_gguf_has_a_loss_inside_its_interval() -> None:
    for mix in all_mixes():
        loss = weights_loss(mix.name)
        assert 0 <= loss.low <= loss.value <= loss.high
        assert (loss.basis is LossBasis.NONE) == (mix.bits_per_weight >= 16)


def test_a_type_that_was_not_measured_is_marked() -> None:
    assert weights_loss("Q4_K_M").basis is LossBasis.MEASURED
    assert weights_loss("UD-Q4_K_XL").basis is LossBasis.NEIGHBOUR
    assert weights_loss("3bit").basis is LossBasis.NEIGHBOUR
    assert weights_loss("no such type").basis is LossBasis.NEIGHBOUR


def test_the_type_of_the_release_loses_nothing() -> None:
    assert weights_loss("MXFP4_MOE").value > 0
    assert weights_loss("MXFP4_MOE", native="MXFP4").basis is LossBasis.NONE
    assert weights_loss("Q8_0", native="MXFP4").value == 0
    assert weights_loss("Q3_K_M", native="MXFP4").value > 0
    assert weights_loss("Q4_K_M", native="BF16").value > 0


def test_cache_losses() -> None:
    assert cache_loss("f16", "bf16").basis is LossBasis.NONE
    assert cache_loss("q8_0", "q8_0").value < 0.2
    order = [
        ("f16", "f16"),
        ("q8_0", "f16"),
        ("q8_0", "q8_0"),
        ("q8_0", "q4_0"),
        ("q4_0", "q8_0"),
        ("q4_0", "q4_0"),
    ]
    losses = [cache_loss(*types).value for types in order]
    assert losses == sorted(losses)
    assert cache_loss("q5_1", "q5_1").basis is LossBasis.NEIGHBOUR
    assert cache_loss("8 bit", "8 bit") == cache_loss("q8_0", "q8_0")
    assert cache_loss("fp8_e4m3", "fp8_e4m3").basis is LossBasis.MEASURED
