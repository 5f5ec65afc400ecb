"""Published benchmark scores and measured losses -> src/edgekit/index/quality.json.

Usage: python tools/quality.py FOLDER [--check]

FOLDER has names.jsonl.gz (models), quality.jsonl.gz (scores) and quant_loss.jsonl.gz. Only rows whose licence allows
shipping are used; tools/index.py writes them to the index. --check measures how well left-out benchmarks and families
are predicted.

The fit. A score s with chance level c is y = log-odds((s - c) / (1 - c)). For model m and benchmark b of task t
    y = difficulty(b) + group(b, who measured it and how) + slope(b) * (ability(m, t) + claim) + error
    ability(m, t) = effects(t) . inputs(m) + series(m) + family(m) + model(m) + family(m, t) + model(m, t)
where inputs are the size, the active share, the age, and whether it reasons or codes, and claim is by how much the
maker's own measurements are above those of others: one per maker, in the scores that it measured itself. The ability
of a maker's models that nobody else has measured stays uncertain by that, however many scores it publishes.
Everything but the slopes
and the spreads is Gaussian, so its posterior is one linear system; slopes, spreads and the weights of outliers
(Huber) are found by expectation maximisation. Missing scores need no rule: a model with few of them
stays near its prediction, with a wide interval.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.formats.mixes import mix_by_name
from edgekit.index import quality
from edgekit.index.quality import Facts, family_of, inputs_of, key_of, series_of
from edgekit.index.types import ModelPurpose

TARGET = Path(quality.__file__).parent
LICENCES = {"CC-BY-4.0", "Apache-2.0", "MIT", "CC0-1.0"}
CHAT, CODE, REASONING = ModelPurpose.CHAT, ModelPurpose.CODE, ModelPurpose.REASONING
VISION, EMBEDDING = ModelPurpose.VISION, ModelPurpose.EMBEDDING

# Task -> benchmark -> (chance level in %, names in the sources). The first benchmark of a task is its reference.
# Not here: benchmarks that nearly every model passes (HellaSwag, PIQA, BoolQ, WinoGrande, TriviaQA), of a narrow skill
# (Vectara's summaries, SimpleQA, BFCL, Chinese exams), without a scale that is the same for all (CodeForces, LiveBench
# of unknown dates), composites of others, and averages over a part of MTEB.
BENCHMARKS: dict[ModelPurpose, dict[str, tuple[float, tuple[str, ...]]]] = {
    CHAT: {
        "MMLU-Pro": (10, ("MMLU-Pro", "MMLU-Pro(0-shot)", "MMLU-Pro (EM)")),
        "MMLU": (25, ("MMLU", "MMLU (CoT)", "MMLU(0-shot)", "MMLU (Pass@1)")),
        "MMLU-Redux": (25, ("MMLU-Redux", "MMLU-redux", "MMLU-Redux (EM)")),
        "IFEval": (0, ("IFEval", "IFEval(Prompt-Strict)", "IF-Eval (Prompt Strict)")),
        "Arena Hard": (0, ("Arena Hard", "Arena-Hard", "ArenaHard (GPT-4-1106)")),
        "Arena-Hard v2": (0, ("Arena-Hard (Hard Prompt)",)),
        "MT-Bench": (0, ("MT-Bench", "MT-bench")),
        "AlpacaEval 2.0": (0, ("AlpacaEval 2.0", "AlpacaEval 2.0(LC WinRate)", "AlpacaEval2.0 (LC-winrate)")),
        "BIG-Bench Hard": (0, ("BIG-Bench Hard", "BBH", "BIG-Bench Hard CoT", "BigBench Hard")),
        "MGSM": (0, ("MGSM",)),
        "MMMLU": (25, ("MMMLU",)),
        "Global-MMLU-Lite": (25, ("Global-MMLU-Lite",)),
    },
    CODE: {
        "LiveCodeBench": (0, ("LiveCodeBench", "LiveCodeBench pass@1", "LiveCodeBench(2407-2409 Pass@1)",
                              "LiveCodeBench (Pass@1-COT)")),
        "LiveCodeBench v6": (0, ("LiveCodeBench-v6", "LiveCodeBench v6", "LiveCodeBench (LCB)")),
        "SWE-bench Verified": (0, ("SWE-Bench Verified", "SWE-bench Verified", "SWE Verified (Resolved)")),
        "SWE-Bench Pro": (0, ("SWE-Bench Pro",)),
        "SWE-bench Multilingual": (0, ("SWE-Bench Multilingual", "SWE-bench Multilingual")),
        "Multi-SWE-Bench": (0, ("Multi-SWE-Bench",)),
        "Terminal-Bench Hard": (0, ("Terminal-Bench Hard", "Terminal-Bench-Hard")),
        "Terminal-Bench 2": (0, ("Terminal-Bench 2.0", "Terminal Bench 2.0", "Terminal-Bench 2.1")),
        "SciCode": (0, ("SciCode",)),
        "Aider polyglot": (0, ("Aider polyglot", "Aider Polyglot", "Aider-Polyglot (Acc.)",
                               "Aider polyglot (Qwen3 study)")),
        "Aider code editing": (0, ("Aider code editing (old)",)),
        "HumanEval+": (0, ("EvalPlus: humaneval+", "HumanEval+")),
        "MBPP+": (0, ("EvalPlus: mbpp+", "MBPP+")),
        "HumanEval": (0, ("HumanEval", "HumanEval(Pass@1)")),
        "MBPP": (0, ("MBPP",)),
        "MultiPL-E": (0, ("MultiPL-E",)),
        "BigCodeBench": (0, ("BigCodeBench", "BigCodeBench-Full")),
        "Natural2Code": (0, ("Natural2Code",)),
    },
    REASONING: {
        "GPQA Diamond": (25, ("GPQA", "GPQA-Diamond", "GPQA Diamond", "GPQA Diamond pass@1", "GPQA-Diamond(0-shot)",
                              "GPQA-Diamond (Pass@1)")),
        "AIME 2024": (0, ("AIME 2024", "AIME 2024 pass@1", "AIME 2024 (Pass@1)", "AIME")),
        "AIME 2025": (0, ("AIME 2025", "AIME25")),
        "MATH-500": (0, ("MATH-500", "MATH-500 pass@1", "MATH-500 (Pass@1)", "MATH-500(0-shot)")),
        "MATH": (0, ("MATH", "MATH (CoT)")),
        "GSM8K": (0, ("GSM8K", "GSM8K (CoT)")),
        "HMMT": (0, ("HMMT Feb. 2025",)),
        "HLE": (0, ("HLE (no tools)", "HLE (w/o tools)")),
        "ARC-C": (25, ("ARC-C", "ARC-Challenge")),
        "TheoremQA": (0, ("TheoremQA", "TheroemQA")),
        "OmniMath": (0, ("OmniMath",)),
        "HiddenMath": (0, ("HiddenMath",)),
    },
    VISION: {
        "MMMU": (25, ("MMMU", "MMMUval", "MMMU (val)")),
        "MMMU-Pro": (10, ("MMMU-Pro",)),
        "MathVista": (0, ("MathVista", "MathVista-Mini", "Mathvista")),
        "MathVision": (0, ("MathVision",)),
        "MMStar": (25, ("MMStar",)),
        "MMBench": (25, ("MMBench",)),
        "MMBench-V1.1": (25, ("MMBench-V1.1",)),
        "RealWorldQA": (25, ("RealWorldQA",)),
        "AI2D": (25, ("AI2D",)),
        "ChartQA": (0, ("ChartQA",)),
        "DocVQA": (0, ("DocVQA", "DocVQAtest")),
        "InfoVQA": (0, ("InfoVQA", "InfoVQAtest")),
        "TextVQA": (0, ("TextVQA",)),
        "OCRBench": (0, ("OCRBench",)),
        "MMT-Bench": (25, ("MMT-Bench",)),
    },
    EMBEDDING: {
        "MTEB(eng, v2)": (0, ("MTEB(eng, v2): mean of tasks",)),
        "MTEB(eng, v2) retrieval": (0, ("MTEB(eng, v2): retrieval",)),
    },
}  # fmt: skip
COUNTED = {
    spelling: (task, name, chance / 100)
    for task, table in BENCHMARKS.items()
    for name, (chance, spellings) in table.items()
    for spelling in spellings
}
THINKS = re.compile(r"reasoning|thinking|reasoner|\bthink\b", re.IGNORECASE)
# Listed names that are matched to the wrong repository, or to one that was replaced under the same name.
LISTED_OTHERWISE = (
    ("deepseek-ai/deepseek-v3", "0324", "deepseek-ai/deepseek-v3-0324"),
    ("deepseek-ai/deepseek-r1", "0528", "deepseek-ai/deepseek-r1-0528"),
    ("deepseek-ai/deepseek-r1", "zero", ""),
    ("coherelabs/c4ai-command-r-08-2024", "+", ""),
)
MONTH = re.compile(r"[-_]2[3-9](?:0[1-9]|1[0-2])$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A score that counts."""

    model: str  # see key_of
    task: ModelPurpose
    benchmark: str
    group: str  # who measured it, how
    y: float  # log-odds
    is_claim: bool = False  # measured by the maker of the model
    raw: Mapping[str, Any]


@dataclass(kw_only=True)
class Posterior:
    """The posterior of everything, and the lines of the benchmarks."""

    tasks: tuple[ModelPurpose, ...]
    models: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray
    index: dict[tuple[Any, ...], int]
    slopes: dict[str, float]
    spreads: dict[str, float]
    variances: dict[str, float]
    facts: Mapping[str, Facts] = field(repr=False)

    def terms(
        self, model: str, task: ModelPurpose, facts: Facts | None = None
    ) -> list[tuple[int, float]]:
        """The ability as a sum of unknowns; those of a model or family that was not fitted are left out."""
        known = facts or self.facts[model]
        result = [
            (self.index["effect", task, name], value)
            for name, value in inputs_of(model, known)[0].items()
        ]
        family = family_of(model, known)
        others = (
            ("series", series_of(model, known)),
            ("family", family),
            ("model", model),
            ("family of task", family, task),
            ("model of task", model, task),
        )
        return result + [(self.index[other], 1.0) for other in others if other in self.index]

    def ability(self, terms: Sequence[tuple[int, float]]) -> tuple[float, float]:
        """Mean and variance of a sum of unknowns."""
        at = np.array([i for i, _ in terms])
        by = np.array([value for _, value in terms])
        return float(by @ self.mean[at]), float(by @ self.covariance[np.ix_(at, at)] @ by)


def records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def known_models(folder: Path) -> dict[str, Facts]:
    """Facts of the listed models by key."""
    purposes = {
        "chat": CHAT,
        "code": CODE,
        "reason": REASONING,
        "vision": VISION,
        "embedding": EMBEDDING,
    }
    result: dict[str, Facts] = {}
    for item in records(folder / "names.jsonl.gz"):
        parameters = item["parameters"]
        active = item["active_parameters"]
        result.setdefault(
            key_of(item["hub_id"]),
            Facts(
                parameters=parameters,
                active_parameters=active if parameters and active and active < parameters else None,
                released=item["released"],
                family=item["family"],
                kinds=tuple(purposes[kind] for kind in item["kinds"] if kind in purposes),
            ),
        )
    stem = {key: MONTH.sub("", key) for key in result}
    sizes = {stem[key]: facts for key, facts in result.items() if facts.parameters}
    for key, facts in result.items():  # a later month of the same model has its size
        if not facts.parameters and stem[key] != key and stem[key] in sizes:
            like = sizes[stem[key]]
            result[key] = replace(
                facts, parameters=like.parameters, active_parameters=like.active_parameters
            )
    return result


def base_models(models: Iterable[str]) -> list[str]:
    """Repositories whose publisher has another of the same name that was taught to answer."""
    names = set(models)
    return sorted(
        name
        for name in names
        if not name.startswith("opengvlab/")  # there both answer
        and any(
            name + suffix in names
            for suffix in ("-instruct", "-it", "-chat", "-instruct-hf", "-chat-hf")
        )
        and "embed" not in name
        and "/multilingual-e5" not in name
    )


def counted_rows(folder: Path, models: Mapping[str, Facts], *, shipped: bool = True) -> list[Row]:
    """The scores that count, each once."""
    bases = set(base_models(models))
    result: list[Row] = []
    seen: set[tuple[Any, ...]] = set()
    for item in records(folder / "quality.jsonl.gz"):
        if (item["licence"] in LICENCES) is not shipped or item["benchmark"] not in COUNTED:
            continue
        setting = item["setting"] or ""
        listed = item["listed_as"].lower()
        model = key_of(item["hub_id"])
        if quality.OTHER_SETTING.search(setting):
            continue
        for wrong, sign, right in LISTED_OTHERWISE:
            if model == wrong and (sign in listed or sign == setting):
                model = right
        if model in bases and ("instruct" in listed or listed.startswith("ollama/")):
            model += "-instruct"  # listed under the base model's name
        if "instruct" in model and "codellama" in listed and "instruct" not in listed:
            continue  # the base model's score
        if model not in models or model in bases:
            continue
        if EMBEDDING not in models[model].kinds and quality.BASE_NAME.search(model):
            continue
        if not models[model].parameters and not re.search(r"\d+b\b", model):
            continue
        task, benchmark, chance = COUNTED[item["benchmark"]]
        if (
            task is not EMBEDDING
            and EMBEDDING in models[model].kinds
            and benchmark not in BENCHMARKS[VISION]
        ):
            continue
        score = quality.percent(benchmark, item["score"])
        once = model, benchmark, round(score, 1)
        if once in seen:
            continue  # copied from one list to another
        seen.add(once)
        by = item["measured_by"]
        is_claim = quality.is_makers(model, by)
        source = "vendor" if is_claim else by
        style = "thinking" if THINKS.search(setting) and "no" not in setting.split() else ""
        shots = re.search(r"\b(\d+)[ -]shot", item["benchmark"] + " " + setting)
        result.append(
            Row(
                model=model,
                task=task,
                benchmark=benchmark,
                group=f"{benchmark}|{source}|{style}|{shots[1] if shots else ''}",
                y=quality.log_odds(score, chance),
                is_claim=is_claim and task is not EMBEDDING,
                raw={**item, "score": score},
            )
        )
    return sorted(result, key=lambda row: (row.model, row.benchmark, row.group, row.y))


PRIOR_SPREAD, PRIOR_WEIGHT = 0.35, 4  # of a benchmark's errors
SLOPE_SPREAD = 0.35  # of log-slopes around 0
EFFECT_SPREADS = {
    "one": 3.0,
    "size": 0.5,
    "small": 0.4,
    "large": 0.3,
    "active": 0.5,
    "age": 1.0,
    "reasons": 0.7,
    "codes": 0.7,
}
# ASSUMED. Among makers whose models others have measured as well, claims differ little (0.12), but those are the makers
# that are watched. In LMArena, models known from their makers' scores only are off by 0.6 more than others.
CLAIM_SPREAD = 0.3
SHARED = 0.3  # share of that spread by which tasks differ, if they are fitted together


def fit(rows: Sequence[Row], models: Mapping[str, Facts], *, rounds: int = 40) -> Posterior:
    """Abilities and benchmark lines from the scores."""
    tasks = tuple(dict.fromkeys(sorted((row.task for row in rows), key=lambda task: task.value)))
    names = tuple(dict.fromkeys(row.model for row in rows))
    references = {next(iter(BENCHMARKS[task])) for task in tasks}
    index: dict[tuple[Any, ...], int] = {}
    kind_of: list[str] = []

    def unknown(kind: str, *key: Any) -> None:
        if (kind, *key) not in index:
            index[(kind, *key)] = len(index)
            kind_of.append(kind)

    for task in tasks:
        for name in EFFECT_SPREADS:
            unknown("effect", task, name)
    for model in names:
        known = models[model]
        unknown("series", series_of(model, known))
        unknown("family", family_of(model, known))
        unknown("model", model)
    for row in rows:
        unknown("family of task", family_of(row.model, models[row.model]), row.task)
        unknown("model of task", row.model, row.task)
        if row.benchmark not in references:
            unknown("difficulty", row.benchmark)
        unknown("group", row.group)
        if row.is_claim:
            unknown("claim", series_of(row.model, models[row.model]).partition("/")[0])

    result = Posterior(
        tasks=tasks,
        models=names,
        mean=np.zeros(len(index)),
        covariance=np.eye(len(index)),
        index=index,
        slopes={row.benchmark: 1.0 for row in rows},
        spreads={row.benchmark: PRIOR_SPREAD for row in rows},
        variances={
            "series": 0.1, "family": 0.1, "model": 0.1, "family of task": 0.05, "model of task": 0.05, "group": 0.05
        },
        facts=models,
    )  # fmt: skip
    y = np.array([row.y for row in rows])
    terms = [result.terms(row.model, row.task) for row in rows]
    for row, parts in zip(rows, terms, strict=True):
        if row.is_claim:
            maker = series_of(row.model, models[row.model]).partition("/")[0]
            parts.append((index["claim", maker], 1.0))
    repeats: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        repeats[row.model, row.benchmark] += 1
    share = np.array([1 / repeats[row.model, row.benchmark] for row in rows])
    weight = np.ones(len(rows))
    members: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        members[row.benchmark].append(i)
    kinds = np.array(kind_of)
    prior_effects = np.zeros((len(index), len(index)))
    for name, spread in EFFECT_SPREADS.items():
        at = [index["effect", task, name] for task in tasks]
        both = (
            np.full((len(tasks), len(tasks)), spread**2)
            + np.eye(len(tasks)) * (SHARED * spread) ** 2
        )
        prior_effects[np.ix_(at, at)] = np.linalg.inv(both)

    for _ in range(rounds):
        design = np.zeros((len(rows), len(index)))
        for i, row in enumerate(rows):
            for column, value in terms[i]:
                design[i, column] += result.slopes[row.benchmark] * value
            if row.benchmark not in references:
                design[i, index["difficulty", row.benchmark]] = 1.0
            design[i, index["group", row.group]] = 1.0
        precision = weight * share / np.array([result.spreads[row.benchmark] ** 2 for row in rows])
        prior = prior_effects.copy()
        for kind, variance in {
            **result.variances,
            "difficulty": 9.0,
            "claim": CLAIM_SPREAD**2,
        }.items():
            of_kind = np.flatnonzero(kinds == kind)
            prior[of_kind, of_kind] += 1 / variance
        result.covariance = np.linalg.inv(prior + design.T @ (precision[:, None] * design))
        result.mean = result.covariance @ (design.T @ (precision * y))

        line = design @ result.mean
        uncertain = ((design @ result.covariance) * design).sum(axis=1)
        scale = np.array([result.spreads[row.benchmark] for row in rows])
        weight = np.minimum(1.0, quality.OUTLIER * scale / np.maximum(np.abs(y - line), 1e-9))
        for kind in result.variances:
            of_kind = np.flatnonzero(kinds == kind)
            squares = result.mean[of_kind] ** 2 + np.diag(result.covariance)[of_kind]
            result.variances[kind] = float((squares.sum() + 2 * 0.02) / (len(of_kind) + 2))
        abilities = [result.ability(item) for item in terms]
        for benchmark, at in members.items():
            theta = np.array([abilities[i][0] for i in at])
            spread2 = np.array([abilities[i][1] for i in at])
            slope = result.slopes[benchmark]
            w = (weight * share)[at] / result.spreads[benchmark] ** 2
            rest = y[at] - (line[at] - slope * theta)
            if benchmark not in references:
                # Around the mean ability, so that the slope does not stand in for the difficulty.
                middle = (w * theta).sum() / w.sum()
                level = (w * rest).sum() / w.sum()
                top = (w * (rest - level) * (theta - middle)).sum() + 1 / SLOPE_SPREAD**2
                bottom = (w * ((theta - middle) ** 2 + spread2)).sum() + 1 / SLOPE_SPREAD**2
                result.slopes[benchmark] = float(min(max(top / bottom, 0.3), 3.0))
            squares = (weight * share)[at] * ((y - line)[at] ** 2 + uncertain[at])
            result.spreads[benchmark] = math.sqrt(
                (squares.sum() + PRIOR_WEIGHT * PRIOR_SPREAD**2) / (share[at].sum() + PRIOR_WEIGHT)
            )
    return result


# --- What is written -------------------------------------------------------------------------------------------------

KINDS_OF_RELATIVES = ("series", "family", "family of task")


def fitted(
    parts: Sequence[tuple[Posterior, Sequence[Row]]], models: Mapping[str, Facts]
) -> dict[str, Any]:
    """The content of quality.json."""
    result: dict[str, Any] = {
        "tasks": {},
        "benchmarks": [],
        "series": {},
        "families": {},
        "models": {},
    }
    for found, rows in parts:
        counts: dict[tuple[str, ModelPurpose], int] = defaultdict(int)
        for row in rows:
            counts[row.model, row.task] += 1
        for task in found.tasks:
            measured = [model for model in found.models if counts[model, task]]
            shares = {model: found.ability(found.terms(model, task)) for model in found.models}
            of = found.variances
            inputs = [inputs_of(model, models[model])[0] for model in measured]
            typical = {
                name: sum(item[name] for item in inputs) / len(inputs) for name in EFFECT_SPREADS
            }
            effects = {
                name: float(found.mean[found.index["effect", task, name]])
                for name in EFFECT_SPREADS
            }
            sizes = np.array([item["size"] for item in inputs])
            ages = np.array([item["age"] for item in inputs])
            reference = next(iter(BENCHMARKS[task]))
            result["tasks"][task.value] = {
                "reference": reference,
                "chance": BENCHMARKS[task][reference][0] / 100,
                "effects": _rounded(effects),
                "series_variance": _round(of["series"] + _variance(found, task, typical, ())),
                "family_variance": _round(of["family"] + of["family of task"]),
                "model_variance": _round(of["model"] + of["model of task"]),
                "group_variance": _round(of["group"]),
                "claim_variance": 0.0 if task is EMBEDDING else _round(CLAIM_SPREAD**2),
                "missing_variance": {
                    "size": _round((effects["size"] * float(sizes.std())) ** 2),
                    "age": _round((effects["age"] * float(ages.std())) ** 2),
                },
                "greatest_measured_spread": _round(
                    max(math.sqrt(shares[model][1]) for model in measured)
                ),
                "models": len(measured),
                "scores": sum(counts[model, task] for model in measured),
            }
            for kind, name_of in (("series", series_of), ("families", family_of)):
                members: dict[str, list[str]] = defaultdict(list)
                for model in found.models:
                    members[name_of(model, models[model])].append(model)
                for name, group in sorted(members.items()):
                    if not name:
                        continue
                    keys: list[tuple[Any, ...]] = [
                        (
                            "series",
                            name if kind == "series" else series_of(group[0], models[group[0]]),
                        )
                    ]
                    if kind == "families":
                        keys += [("family", name), ("family of task", name, task)]
                    keys = [key for key in keys if key in found.index]
                    mean = sum(float(found.mean[found.index[key]]) for key in keys)
                    known = [inputs_of(model, models[model])[0] for model in group]
                    middle = {
                        key: sum(item[key] for item in known) / len(known) for key in EFFECT_SPREADS
                    }
                    variance = _variance(found, task, middle, keys)
                    if kind == "families" and ("family of task", name, task) not in found.index:
                        variance += of["family of task"]
                    result[kind].setdefault(name, {})[task.value] = [
                        _round(mean),
                        _round(math.sqrt(variance)),
                    ]
            for model in found.models:
                mean, variance = shares[model]
                if not counts[model, task]:
                    variance += of["model of task"]
                    if ("family of task", family_of(model, models[model]), task) not in found.index:
                        variance += of["family of task"]
                    if task is VISION and VISION not in models[model].kinds:
                        continue
                entry = [_round(mean), _round(math.sqrt(variance)), counts[model, task]]
                result["models"].setdefault(model, {})[task.value] = entry
        for benchmark, slope in sorted(found.slopes.items()):
            at = found.index.get(("difficulty", benchmark))
            mine = [row for row in rows if row.benchmark == benchmark]
            result["benchmarks"].append(
                {
                    "name": benchmark,
                    "names": list(BENCHMARKS[mine[0].task][benchmark][1]),
                    "task": mine[0].task.value,
                    "chance": BENCHMARKS[mine[0].task][benchmark][0] / 100,
                    "difficulty": _round(-float(found.mean[at])) if at is not None else 0.0,
                    "slope": _round(slope),
                    "spread": _round(found.spreads[benchmark]),
                    "scores": len(mine),
                }
            )
    makers: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    newest: dict[str, float] = {}
    for found, _ in parts:
        for model in found.models:
            maker, root = series_of(model, models[model]).split("/")
            makers[root][maker] += 1
            family = family_of(model, models[model])
            newest[family] = max(
                newest.get(family, -9.0), inputs_of(model, models[model])[0]["age"]
            )
    result["publishers"] = {
        root: sorted(group, key=lambda maker: (-group[maker], maker))
        for root, group in sorted(makers.items())
    }
    result["released"] = first_releases(models, result["publishers"])
    result["family_kinds"] = family_kinds(models, result["publishers"])
    result["newest"] = _rounded(dict(sorted(newest.items())))
    result["bases"] = base_models(models)
    for kind in ("series", "families", "models"):
        result[kind] = dict(sorted(result[kind].items()))
    return result


def first_releases(
    models: Mapping[str, Facts], publishers: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Month in which the maker of a series released the first model of each family."""
    result: dict[str, str] = {}
    for model, facts in models.items():
        maker, root = series_of(model, facts).split("/")
        if facts.released and maker in publishers.get(root, ()):
            family = family_of(model, facts)
            result[family] = min(facts.released[:7], result.get(family, "9999"))
    return dict(sorted(result.items()))


def family_kinds(
    models: Mapping[str, Facts], publishers: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """What every listed model of a family does, of thinking and seeing: another list may not say so of each."""
    members: dict[str, list[set[ModelPurpose]]] = defaultdict(list)
    for model, facts in models.items():
        maker, root = series_of(model, facts).split("/")
        if maker in publishers.get(root, ()) and CHAT in facts.kinds:
            members[family_of(model, facts)].append(set(facts.kinds))
    common = {
        name: sorted(kind.value for kind in set.intersection(*group) & {REASONING, VISION})
        for name, group in sorted(members.items())
        if len(group) > 1
    }
    return {name: kinds for name, kinds in common.items() if kinds}


def _variance(
    found: Posterior,
    task: ModelPurpose,
    inputs: Mapping[str, float],
    keys: Iterable[tuple[Any, ...]],
) -> float:
    """Of a prediction at these inputs, without the spread of the single model."""
    terms = [(found.index["effect", task, name], value) for name, value in inputs.items()]
    return found.ability([*terms, *((found.index[key], 1.0) for key in keys)])[1]


def _round(value: float) -> float:
    return round(value, 4)


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: _round(value) for name, value in values.items()}


def evidence_rows(data_folder: Path) -> list[dict[str, Any]]:
    """The scores that count and may be shipped, as rows of the index."""
    return [
        {
            "model": row.model,
            "benchmark": row.raw["benchmark"],
            "score": row.raw["score"],
            "date": row.raw["date"],
            "setting": row.raw["setting"] or "",
            "measured_by": row.raw["measured_by"],
            "source": row.raw["source"],
            "licence": row.raw["licence"],
        }
        for row in counted_rows(data_folder, known_models(data_folder))
    ]


def written(data: Mapping[str, Any]) -> str:
    """JSON with one line per model, family or benchmark."""
    lines = []
    for name, value in data.items():
        if isinstance(value, dict):
            inner = ",\n".join(
                f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()
            )
            lines.append(f"{json.dumps(name)}: {{\n{inner}\n}}")
        else:
            inner = ",\n".join(f"  {json.dumps(item)}" for item in value)
            lines.append(f"{json.dumps(name)}: [\n{inner}\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


# --- Losses ----------------------------------------------------------------------------------------------------------

# Divergences of the types of llama.cpp (its own table, Llama 3 8B) next to losses in hard tasks at the same bits and
# the same kind of rounding: points = LOSS_SCALE * divergence ** LOSS_POWER, fitted to them by loss_line.
ALIKE = (
    ("Q8_0", "MLX q8"),
    ("Q6_K", "MLX q6"),
    ("Q5_0", "MLX q5"),
    ("Q4_0", "MLX q4"),
    ("Q2_K", "Ollama: q2_K"),
)
# ASSUMED. Means over ten tasks of which several have two answers: a third is chance, and their slopes are about half.
EASY_TASKS = 2.0
# Of a type on other models than the one it was measured on: Llama 2 7B loses 0.4 times what Llama 3 8B loses, a model
# of 4 B parameters 1.7 times what one of 30 B loses.
LEAST_SHARE, GREATEST_SHARE = 0.4, 2.0
LLAMACPP_TABLE = "ggml-org/llama.cpp@b21e4de74567:tools/perplexity/README.md"
# Types outside that table: scheme, bits per weight, rows as (source, scheme or model, measure) -> points.
CLUB = "noonghunna/club-3090@4a29ab57d42a"
AO = "https://github.com/pytorch/ao/pull/3981"
BLOCK_FP8 = "intel/auto-round@b9f3d0079d01:docs/fp8_block_acc.md"
OTHER_TYPES = (
    ("INT8", 8.0, ((CLUB, "INT8 (W8A16)", "mean KL divergence"),)),
    ("FP8", 8.0, ((CLUB, "FP8", "mean KL divergence"), (BLOCK_FP8, "FP8_BLOCK RTN", "mean accuracy"))),
    ("AWQ", 4.25, ((CLUB, "AWQ-INT4", "mean KL divergence"), (CLUB, "AWQ-BF16-INT4", "mean KL divergence"))),
    ("GPTQ", 4.25, ((CLUB, "AutoRound INT4 (our `vllm/dual`)", "mean KL divergence"),)),
    ("NVFP4", 4.5, ((AO, "NVFP4 weights only, RTN", "recovery"), (AO, "NVFP4 weights only, GPTQ", "recovery"))),
    ("MXFP4", 4.25, ((AO, "MXFP4 RTN", "recovery"), (AO, "MXFP4 GPTQ", "recovery"))),
    ("MXFP8", 8.25, ((AO, "MXFP8 RTN", "recovery"),)),
)  # fmt: skip
MLX_BITS = {"q8": 8.5, "q6": 6.5, "q5": 5.5, "q4": 4.5}
# Single facts, with rotated keys and values (llama.cpp #21038), as builds since April 2026 do: MMLU, points.
ROTATED = "https://github.com/ggml-org/llama.cpp/pull/21551"
# The same without rotation (Apache-2.0): divergences of two large models; rotation makes them smaller.
UNROTATED = "TheTom/turboquant_plus@ba52ad107d1f:docs/kl-divergence-results.md"
FP8_CACHE = "https://github.com/vllm-project/vllm/issues/54426"
CACHE_BITS = {"q8_0": 8.5, "q4_0": 4.5, "fp8": 8.0}


def divergences(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Mean KL divergence by type on Llama 3 8B: the geometric mean of with and without importance matrix."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if (
            row["source"] == LLAMACPP_TABLE
            and row["measure"] == "mean KL divergence"
            and row["model"] == "meta-llama/Meta-Llama-3-8B"
            and (row.get("note") or "").startswith(
                ("importance matrix: None", "importance matrix: WT 10m")
            )
        ):
            found[row["scheme"]].append(row["value"])
    return {
        scheme: math.exp(sum(map(math.log, values)) / len(values))
        for scheme, values in found.items()
    }


def loss_line(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Scale and power of the loss in points for a divergence."""
    of = divergences(rows)
    losses: dict[str, list[float]] = defaultdict(list)
    for measure, whole in (
        ("MMLU Pro, %", "MLX bf16"),
        ("Aider code editing, % at the second try", "Ollama: fp16"),
    ):
        full = {
            row["model"]: row["value"]
            for row in rows
            if row["measure"] == measure and row["scheme"] == whole
        }
        for row in rows:
            if row["measure"] == measure and row["model"] in full:
                losses[row["scheme"]].append(full[row["model"]] - row["value"])
    x = np.log([of[mix] for mix, _ in ALIKE])
    y = np.log([np.mean(losses[scheme]) for _, scheme in ALIKE])
    power, level = np.polyfit(x, y, 1)
    return float(np.exp(level)), float(power)


def loss_table(data_folder: Path) -> list[dict[str, Any]]:
    """Points of quality per weight and cache type.

    They are of several measurements at once, and need more than the index says of each: which importance matrix was
    used, and the 16-bit score that it is compared with.
    """
    rows = list(records(data_folder / "quant_loss.jsonl.gz"))
    scale, power = loss_line(rows)
    result: list[dict[str, Any]] = []

    def add(what: str, scheme: str, bits: float, values: Sequence[float], source: str) -> None:
        value = max(float(np.mean(values)), 0.0)
        result.append(
            {
                "what": what,
                "scheme": scheme,
                "bits": round(bits, 4),
                "value": round(value, 3),
                "low": round(min(LEAST_SHARE * value, *values, value), 3)
                if min(values) > 0
                else 0.0,
                "high": round(max(GREATEST_SHARE * value, *values, value), 3),
                "source": source,
            }
        )

    for scheme, divergence in divergences(rows).items():
        known = mix_by_name(scheme)
        if known is not None and known.bits_per_weight < 16:
            add(
                "weights",
                scheme,
                known.bits_per_weight,
                [scale * divergence**power],
                LLAMACPP_TABLE,
            )
    for name, bits in MLX_BITS.items():
        full = {row["model"]: row["value"] for row in rows if row["scheme"] == "MLX bf16"}
        measured = [row for row in rows if row["scheme"] == f"MLX {name}" and row["model"] in full]
        values = [full[row["model"]] - row["value"] for row in measured]
        add("weights", f"MLX {name[1:]}-bit", bits, values, measured[0]["source"])
    for scheme, bits, facts in OTHER_TYPES:
        values = []
        for source, name, measure in facts:
            for row in rows:
                if not (
                    row["source"].startswith(source)
                    and row["scheme"] == name
                    and row["measure"].startswith(measure)
                ):
                    continue
                if measure.startswith("mean KL"):
                    values.append(scale * row["value"] ** power)
                elif measure == "recovery":
                    values.append(
                        EASY_TASKS * (100 - row["value"]) / 100 * 73.97
                    )  # its 16-bit score
                else:
                    whole = next(
                        other["value"]
                        for other in rows
                        if (other["source"], other["model"], other["scheme"])
                        == (row["source"], row["model"], "BF16")
                    )
                    values.append(EASY_TASKS * (whole - row["value"]))
        add("weights", scheme, bits, values, facts[0][0])
    for scheme in ("q8_0", "q4_0"):
        values = [
            scale * row["value"] ** power
            for row in rows
            if row["source"] == UNROTATED
            and row["measure"] == "mean KL divergence"
            and row["scheme"] == f"KV {scheme}"
        ]
        whole = next(
            row["value"]
            for row in rows
            if row["source"] == ROTATED and row["scheme"] == "K f16 / V f16"
        )
        values += [
            max(whole - row["value"], 0.0)
            for row in rows
            if row["source"] == ROTATED
            and row["measure"].startswith("MMLU")
            and row["scheme"] == f"K {scheme} / V {scheme}"
        ]
        add("cache", scheme, CACHE_BITS[scheme], values, f"{ROTATED}; {UNROTATED}")
    changes = [row["value"] for row in rows if row["source"] == FP8_CACHE]  # % of perplexity
    add(
        "cache",
        "fp8",
        CACHE_BITS["fp8"],
        [scale * (max(map(abs, changes)) / 100) ** power],
        FP8_CACHE,
    )
    return sorted(result, key=lambda row: (row["what"], -row["bits"], row["scheme"]))


def loss_rows(data_folder: Path) -> list[dict[str, Any]]:
    """The published losses that may be shipped, as they were published."""
    names = (
        "what",
        "scheme",
        "model",
        "measure",
        "value",
        "error",
        "corpus",
        "date",
        "source",
        "licence",
    )
    return [
        {
            **{name: row.get(name) for name in names},
            "what": "cache" if row["what"] == "KV cache" else "weights",
        }
        for row in records(data_folder / "quant_loss.jsonl.gz")
        if row["licence"] in LICENCES and "size, not loss" not in row["measure"]
    ]


def both_fits(
    rows: Sequence[Row], models: Mapping[str, Facts], *, rounds: int = 40
) -> list[tuple[Posterior, Sequence[Row]]]:
    """Language models together, embedding models by themselves."""
    embeds = [row for row in rows if row.task is EMBEDDING]
    others = [row for row in rows if row.task is not EMBEDDING]
    return [(fit(part, models, rounds=rounds), part) for part in (others, embeds)]


# --- How good it is --------------------------------------------------------------------------------------------------

LEAST_ROWS = 8  # of a benchmark that is left out
FOLDS = 12
CHECK_ROUNDS = 12


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def check(rows: Sequence[Row], models: Mapping[str, Facts]) -> None:
    """Prints how well a left-out benchmark and left-out families are predicted."""
    wide: list[tuple[float, float, float]] = []
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        left_out = [row for row in rows if row.benchmark == benchmark]
        rest = [row for row in rows if row.benchmark != benchmark]
        task = left_out[0].task
        embeds = task is EMBEDDING
        known = {row.model for row in rest if row.task is task}
        tested = [row for row in left_out if row.model in known]
        if len({row.model for row in tested}) < LEAST_ROWS or benchmark == next(
            iter(BENCHMARKS[task])
        ):
            continue
        found = fit(
            [row for row in rest if (row.task is EMBEDDING) is embeds], models, rounds=CHECK_ROUNDS
        )
        tested_models = list(dict.fromkeys(row.model for row in tested))
        y = [
            float(np.mean([row.y for row in tested if row.model == model]))
            for model in tested_models
        ]
        abilities = [found.ability(found.terms(model, task))[0] for model in tested_models]
        inputs = [inputs_of(model, models[model])[0] for model in tested_models]
        by_facts = [
            sum(
                float(found.mean[found.index["effect", task, name]]) * value
                for name, value in item.items()
            )
            for item in inputs
        ]
        doublings = [2 * item["age"] + item["size"] + item["active"] / 2 for item in inputs]
        wide.append(
            (correlation(abilities, y), correlation(by_facts, y), correlation(doublings, y))
        )
        print(
            f"{benchmark:26} {len(tested_models):3} "
            + " ".join(f"{value:5.2f}" for value in wide[-1])
        )
    means = np.mean(wide, axis=0)
    print(
        "rank correlation with a left-out benchmark: ability, size and age as fitted, size and age by rule:",
        means.round(2),
    )

    families = sorted({family_of(row.model, models[row.model]) for row in rows})
    chosen = np.random.default_rng(0).permutation(len(families))
    errors: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for fold in range(FOLDS):
        out = {families[i] for i in chosen[fold::FOLDS]}
        rest = [row for row in rows if family_of(row.model, models[row.model]) not in out]
        parts = both_fits(rest, models, rounds=CHECK_ROUNDS)
        fold_fit = quality.read_fit({**fitted(parts, models), "losses": ()})
        for found, part in parts:
            groups = {row.group for row in part}
            for row in rows:
                if family_of(row.model, models[row.model]) not in out or row.group not in groups:
                    continue
                if row.task not in found.tasks:
                    continue
                ability, spread, _ = quality.predicted_ability(
                    row.model, row.task, facts=models[row.model], fit=fold_fit
                )
                at = found.index.get(("difficulty", row.benchmark))
                level = (0.0 if at is None else float(found.mean[at])) + float(
                    found.mean[found.index["group", row.group]]
                )
                slope = found.slopes[row.benchmark]
                series = series_of(row.model, models[row.model])
                if (
                    series not in fold_fit.series
                ):  # the offset of makers without scores is for makers nobody measures
                    ability += math.sqrt(fold_fit.tasks[row.task]["series_variance"])
                expected = level + slope * ability
                known_error = math.hypot(slope * spread, found.spreads[row.benchmark])
                by_facts = level + slope * sum(
                    fold_fit.tasks[row.task]["effects"][name] * value
                    for name, value in inputs_of(row.model, models[row.model])[0].items()
                )
                errors[row.task.value].append((row.y - expected, known_error, row.y - by_facts))
    for name, found_errors in errors.items():
        error, known_error, plain = np.array(found_errors).T
        inside = float(np.mean(np.abs(error) <= quality.EIGHTY_PERCENT * known_error))
        print(
            f"left-out families, {name:10} {len(error):4} scores: error {np.sqrt(np.mean(error**2)):.2f}"
            f" (size and age {np.sqrt(np.mean(plain**2)):.2f}), {100 * inside:.0f} % in the 80 % interval"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--check", action="store_true", help="leave out benchmarks and families; writes nothing"
    )
    options = parser.parse_args()
    models = known_models(options.folder)
    rows = counted_rows(options.folder, models)
    if options.check:
        check(rows, models)
        return
    data = fitted(both_fits(rows, models), models)
    data["losses"] = loss_table(options.folder)
    (TARGET / quality.FITTED).write_text(written(data), encoding="utf-8")


if __name__ == "__main__":
    main()
