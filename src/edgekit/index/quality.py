"""How good a model is at a task, from published benchmark scores, and what its quantisation and cache cost.

A model has an ability per task. A score is a straight line in it, on the log-odds scale, with a difficulty and a slope
per benchmark; tools/quality.py fits abilities and lines together and writes quality.json. The ability of a model
without scores is predicted from its size, its age and its measured relatives.

The scores are in the index. Those that an updated index adds were not fitted: each of them moves the ability of its
model as far as the line of its benchmark says.

A quality is the score, 0 to 100, that the model is expected to reach in the task's reference benchmark (0: no task
solved, 100: every task solved). Losses are in points of the same scale. Intervals are 80 %.

Models are ranked by the low end, less what benchmarks do not show (AGEING, THINKING_IN_CHAT). docs/decisions/0013 says
how these were chosen.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.resources import files
from typing import Any

from edgekit.formats.mixes import mix_by_name
from edgekit.index.database import IndexFile, index_file, packaged_file
from edgekit.index.types import ModelPurpose

FITTED = (
    "quality.json"  # abilities, benchmark lines, effects and losses; written by tools/quality.py
)
EIGHTY_PERCENT = 1.2816  # half of an 80 % interval, in standard deviations
EPOCH = date(2024, 1, 1)  # ages are years after it
_DAYS_A_YEAR = 365.25
MIN_PARAMETERS, MAX_PARAMETERS = 10**7, 10**13
SMALL_PARAMETERS, LARGE_PARAMETERS = 3e9, 70e9
TOO_SMALL_TO_REASON = 4e8  # parameters; smaller models neither reason nor code
GENERATION_YEARS = 0.5
# Benchmarks are run on models that are worth it: those of makers without any counted score are below average, and vary
# more. By how much: 14 such models on LMArena (December 2025) are 0.8 lower, with a spread of 1.2.
UNKNOWN_MAKER = 2.0
# What people prefer at an equal score, in points. LMArena shows 0.8 (code) to 1.07 (chat) log-odds a year and 0.35 for
# thinking; a log-odd is about 15 points. An older model knows less of today's world, libraries and tools; thinking
# raises scores more than it makes conversations better.
AGEING = 12.0  # a year
THINKING_IN_CHAT = 5.0
NEWEST = 2.5  # years after EPOCH; later releases differ too little
TYPICAL_AGE, TYPICAL_RELEASE = 1.5, "mid-2025"  # assumed of a model whose release is unknown
EARLIEST, LATEST = -2.0, 26.0  # years; a false date in a file must not decide
MIN_SHARE, MAX_SHARE = (
    0.02,
    0.985,
)  # shares of tasks beyond these say nothing more about the ability
OUTLIER = 1.5  # errors beyond this many standard deviations count linearly (Huber), so that a higher score never hurts
# Scores that were not fitted may be false. No ability is further from its prediction than this many standard
# deviations, or above the best fitted one by more than about a year of progress (see AGEING).
MAX_SURPRISE, MAX_PROGRESS = 4.0, 1.0
HALVINGS = 40  # of the interval in which an ability is searched
MAX_SCORES = 50_000  # that are read from an index, in 0.2 s; EdgeKit's own has 1,013
# Not one answer per task, or of the model before it was taught to answer.
OTHER_SETTING = re.compile(
    r"cons@|pass@(?!1\b|2\b)\d|maj@(?!1\b)\d|^base model|\bmaj$|reasoning off", re.IGNORECASE
)


class QualityBasis(enum.Enum):
    """What a quality rests on."""

    MEASURED = "measured"  # the model's own scores in benchmarks of the task
    FAMILY = "family"  # scores of its family, or its own in other tasks
    NOT_MEASURED = "not measured"  # only its size and age


class LossBasis(enum.Enum):
    """What a loss rests on."""

    MEASURED = "measured"  # of this type, on other models
    NEIGHBOUR = "neighbour"  # of the measured types with the nearest number of bits
    NONE = "none"  # nothing is lost: 16 bits or more, or the type in which the model was released


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a model is known by; None: unknown."""

    parameters: int | None = None
    active_parameters: int | None = None
    released: str | None = None  # "2025-04", "2025-04-29"
    family: str | None = None
    kinds: tuple[ModelPurpose, ...] = ()
    origin_released: str | None = None  # of the model that another publisher made it from


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A published score."""

    benchmark: str
    score: float
    date: str
    setting: str
    measured_by: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The expected score in the reference benchmark of the task, and what it rests on."""

    task: ModelPurpose
    value: float
    low: float  # what the model reaches with a probability of 90 %
    high: float
    ageing: float  # points by which benchmarks overstate a model of its age
    thinking: float  # the same of a model that thinks, in chat
    is_age_known: bool
    basis: QualityBasis
    scores: tuple[Score, ...] = ()

    @property
    def rank(self) -> float:
        """The low end, less ageing and thinking."""
        return self.low - self.ageing - self.thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Points of quality that a weight or cache type costs."""

    value: float
    low: float
    high: float
    basis: LossBasis
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """How scores depend on the ability: log-odds = slope * ability - difficulty, with an error of this variance."""

    name: str
    task: ModelPurpose
    chance: float
    difficulty: float
    slope: float
    variance: float
    group_variance: float  # of the same benchmark, between those who measure it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The content of quality.json."""

    tasks: Mapping[ModelPurpose, Mapping[str, Any]]
    benchmarks: Mapping[str, Benchmark]  # by each name that sources have for them
    losses: Mapping[tuple[str, str], tuple[float, Loss]]  # bits and loss by what it is of, and type
    series: Mapping[str, Mapping[str, tuple[float, float]]]
    families: Mapping[str, Mapping[str, tuple[float, float]]]
    publishers: Mapping[
        str, tuple[str, ...]
    ]  # makers of the measured models of that first name, most models first
    newest: Mapping[str, float]  # age of the newest measured model of a family
    released: Mapping[str, str]  # the first model of a family
    models: Mapping[str, Mapping[str, tuple[float, float, int]]]
    bases: frozenset[str]
    makers: frozenset[str]  # of measured models
    family_kinds: Mapping[str, tuple[ModelPurpose, ...]]  # what every model of a family does


# Names of models that do something else than answer, or know one trade only, whatever their kind says.
_OTHER_USE = re.compile(
    r"guard|shield|ocr(?=[-_.0-9]|$)|safety|embodied|robot|-bench|(?:^|[-_.])(?:rerank(?:er)?|reward|rm|prm|orm|asr|tts|speech|audio|whisper"
    r"|draft|speculator|(?:med|tx)gemma|eagle3?|mtp|dflash|translate(?:gemma)?|mt|judge|classifier|tokenizer|embedding|embed)(?=[-_.0-9]|$)"
)
BASE_NAME = re.compile(r"(?:^google/.*-pt|[-_]base)(?=[-_.0-9]|$)|[-_]pretrain(?:ed)?(?=[-_]|$)")
# Repositories whose names do not say so, and whose publisher has no tuned version of the same name (those are in
# Fit.bases). Matched in full.
_PRETRAINED_ONLY = re.compile(
    r"01-ai/yi-\d+b(?:-200k)?|1bitllm/bitnet_b1_58-.*|adept/fuyu-8b|ai21labs/jamba-v0\.1"
    r"|allenai/(?:olmoe?(?:-hybrid)?(?:-[\d.]+)?(?:-\d{4})?-\d+b(?:-\d+b)?(?:-\d{4})?(?:-hf)?|flex.*-1t)"
    r"|arnir0/tiny-llm|baichuan-inc/baichuan2?-\d+b|bigcode/(?:santacoder|starcoder(?:2|base)?(?:-\d+b)?)"
    r"|bigscience/(?:bloom(?:-\w+)?|bigscience-small-testing)|bingsu/llama-190m-arch"
    r"|bsc-lt/(?:alia-40b|salamandra-\d+b)|cyberagent/open-calm-.*|duxiaoman-di/xuanyuan-\d+b"
    r"|eleutherai/(?:pythia|gpt-(?:j|neox?)|polyglot|llemma)[-_].*|epfl-llm/meditron-\d+b"
    r"|facebook/(?:opt-\d|galactica-|layerskip-|incoder-).*|google/codegemma-(?:1\.1-)?\d+b"
    r"|kyutai/helium-1.*|lorenzodemattei/geppetto|maritaca-ai/sabia-7b|maykeye/tinyllama-v0|microsoft/phi-(?:1|1_5|2)"
    r"|mistral(?:ai|-community)/mi[sx]tral-(?:8x)?\d+b-v0\.\d|mosaicml/mpt-\d+b|nickypro/tinyllama-.*"
    r"|openlm-research/open_llama_.*|rinna/japanese-gpt-?(?:2|neox)-\w+|salesforce/codegen2?5?-.*(?:mono|multi|nl|_p)"
    r"|sarvamai/sarvam-1|speakleash/bielik-[\d.]+b-v[\d.]+|stabilityai/(?:stable-code-3b|stablelm-(?:2-12b|3b-4e1t))"
    r"|state-spaces/mamba.*|swiss-ai/apertus-\d+b-\d{4}|tiiuae/falcon-(?:rw-)?(?:\d+b|mamba-tiny-dev)"
    r"|tildeai/tildeopen-30b|tinyllama/tinyllama(?:_v1\.1.*|-1\.1b-(?:intermediate-)?step-.*\d[bt])"
    r"|upstage/solar-10\.7b-v1\.0|(?:xverse/)?xverse-\d+b|zai-org/glm-4-9b-hf"
    # of any publisher: GPT-2, Llama 1 and 2 and Code Llama, which were copied and trained again under their names
    r"|.*[/-](?:ara|ger)?gpt-?2(?:-(?!chat|instruct|alpaca)\w+)*"
    r"|.*/(?:decapoda-research-)?(?:llama-(?:2-)?(?:7|13|30|33|65|70)b|codellama-\d+b(?:-python)?)(?:-hf)?"
)
_THINKS = re.compile(r"[-_]think(?:ing|er)?(?=[-_]|$)")
_ALWAYS_THINKS = re.compile(
    r"(?<!non)(?:^|[-_/])(?:think(?:ing|er)?|reason(?:ing|er)?|r1|qwq)(?=[-_]|$)"
)
# An embedding model of a text, by its name: other kinds of encoders are listed with the same purpose.
_EMBEDS_TEXT = re.compile(
    r"embed|minilm|mpnet|simcse|sentence|sbert|retriev|(?:^|[-_/])(?:e5|bge|gte|gtr|st|m2v|arctic|nv-embed)(?=[-_0-9]|$)"
)
_OTHER_ENCODER = re.compile(
    r"col(?:bert|pali|qwen|embed|smol)|(?:^|[-_])(?:vl|omni|clip|siglip2?|audio|vision|image)(?=[-_]|$)"
)
_MONTH_IN_NAME = re.compile(r"[-_](2[3-9])(0[1-9]|1[0-2])(?=[-_]|$)")
_SHORTEST_SERIES = 3  # letters
_ALIASES = (("meta-llama/meta-llama-3.1", "meta-llama/llama-3.1"), ("cohereforai/", "coherelabs/"))


def key_of(hub_id: str) -> str:
    """The spelling of a hub id in quality.json: repositories that were renamed have one."""
    key = hub_id.lower().strip()
    for old, new in _ALIASES:
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


def is_base_model(hub_id: str) -> bool:
    """Whether it only continues a text: trained without instructions."""
    key = key_of(hub_id)
    return (
        key in _fit().bases
        or BASE_NAME.search(key) is not None
        or _PRETRAINED_ONLY.fullmatch(key) is not None
    )


def suits(hub_id: str, task: ModelPurpose, *, facts: Facts, index: IndexFile | None = None) -> bool:
    """Whether it can be offered for the task at all.

    A general model codes and reasons too: its quality says how well. It, its family or its maker's series needs scores
    there. `index` has the scores (None: `index_file`).
    """
    key, fit = key_of(hub_id), _fit()
    facts = _completed(key, facts, fit)
    kinds = set(facts.kinds)
    if task is ModelPurpose.EMBEDDING or ModelPurpose.EMBEDDING in kinds:
        if task is not ModelPurpose.EMBEDDING or task not in kinds:
            return False
        if quality_of(hub_id, task, facts=facts, index=index).basis is QualityBasis.MEASURED:
            return True
        name = key_of(hub_id)
        return _EMBEDS_TEXT.search(name) is not None and _OTHER_ENCODER.search(name) is None
    if is_base_model(hub_id) or _OTHER_USE.search(key_of(hub_id).split("/")[-1]):
        return False
    if task is ModelPurpose.VISION:
        return task in kinds
    if (facts.parameters or TOO_SMALL_TO_REASON) < TOO_SMALL_TO_REASON and task in {
        ModelPurpose.CODE,
        ModelPurpose.REASONING,
    }:
        return False
    if task in kinds:
        return True
    if not kinds & {ModelPurpose.CHAT, ModelPurpose.CODE, ModelPurpose.REASONING}:
        return False
    if scores_of(hub_id, task, index=index):
        return True
    _, series, is_own = _lineage(hub_id, facts, fit)
    return task is ModelPurpose.CHAT or (is_own and task.value in fit.series.get(series, {}))


def quality_of(
    hub_id: str, task: ModelPurpose, *, facts: Facts, index: IndexFile | None = None
) -> Quality:
    """How good the model is at the task, without quantisation. `index` has the scores (None: `index_file`)."""
    fit = _fit()
    about = fit.tasks[task]
    key = key_of(hub_id)
    facts = _completed(key, facts, fit)
    scores = unseen = scores_of(key, task, index=index)
    fitted = fit.models.get(key, {}).get(task.value)
    if fitted is None:
        ability, spread, basis = predicted_ability(key, task, facts=facts)
    else:
        ability, spread, count = fitted
        basis = QualityBasis.MEASURED if count else QualityBasis.FAMILY
        if count:
            unseen = _without(scores, _evidence(packaged_file()).get((key, task), ()))
    if unseen:
        ability, spread = _with_scores(key, task, (ability, spread), unseen)
        basis = QualityBasis.MEASURED
    if basis is not QualityBasis.MEASURED:
        # Not known better than any measured model, so that it does not rank above one that is expected to be better.
        spread = max(spread, about["greatest_measured_spread"])
    chance: float = about["chance"]

    def expected(log_odds: float) -> float:
        return 100 * (chance + (1 - chance) / (1 + math.exp(-log_odds)))

    age, embeds = age_of(key, facts), task is ModelPurpose.EMBEDDING
    thinks = task is ModelPurpose.CHAT and _reasons(key, facts)
    return Quality(
        task=task,
        value=expected(ability),
        low=expected(ability - EIGHTY_PERCENT * spread),
        high=expected(ability + EIGHTY_PERCENT * spread),
        ageing=0.0 if embeds else AGEING * max(NEWEST - (TYPICAL_AGE if age is None else age), 0.0),
        thinking=THINKING_IN_CHAT if thinks else 0.0,
        is_age_known=age is not None,
        basis=basis,
        scores=scores,
    )


def _with_scores(
    key: str, task: ModelPurpose, prior: tuple[float, float], scores: Sequence[Score]
) -> tuple[float, float]:
    """Ability and standard deviation of a model after these scores; `prior` has both before them.

    As in the fit: several scores of one benchmark share its error, those that the maker measured share its bias, and
    errors beyond OUTLIER count linearly. The pull of all scores falls with the ability, so halving an interval finds
    where it is zero.
    """
    benchmarks, about = _fit().benchmarks, _fit().tasks[task]
    ability, spread = prior
    found: dict[tuple[Benchmark, bool], list[float]] = {}  # also by whether the maker measured it
    for score in scores:
        line = benchmarks[score.benchmark]
        measured = (log_odds(score.score, line.chance) + line.difficulty) / line.slope
        found.setdefault((line, is_makers(key, score.measured_by)), []).append(measured)
    lines = []
    precision_of_claims = 0.0
    for (line, is_claim), values in found.items():
        repeats = sum(len(others) for (other, _), others in found.items() if other == line)
        variance = (line.variance * repeats + line.group_variance) / len(values) / line.slope**2
        precision_of_claims += is_claim / variance
        lines.append((sum(values) / len(values), math.sqrt(variance), is_claim))
    bias = 1 + precision_of_claims * about["claim_variance"]  # by which claims together weigh less

    def pulls(now: float) -> list[tuple[float, float]]:
        """Of each score: its weight, and its weight times how far away it is."""
        result = []
        for value, error, is_claim in lines:
            far = abs(value - now) / (OUTLIER * error)
            weight = 1 / error**2 / max(far, 1.0) / (bias if is_claim else 1.0)
            result.append((weight, weight * (value - now)))
        return result

    low, high = ability - MAX_SURPRISE * spread, ability + MAX_SURPRISE * spread
    best = max(tasks[task.value][0] for tasks in _fit().models.values() if task.value in tasks)
    high = min(high, max(best + MAX_PROGRESS, ability))
    for _ in range(HALVINGS):
        now = (low + high) / 2
        is_higher = (ability - now) / spread**2 + sum(pull for _, pull in pulls(now)) > 0
        low, high = (now, high) if is_higher else (low, now)
    return low, math.sqrt(1 / (1 / spread**2 + sum(weight for weight, _ in pulls(low))))


def percent(benchmark: str, score: float) -> float:
    """The score on a scale of 0 to 100. MT-Bench has one of 1 to 10."""
    return score * 10 if benchmark == "MT-Bench" and score <= 10 else score


def log_odds(score: float, chance: float) -> float:
    """Log-odds of a score in percent, in a benchmark where guessing solves this share of the tasks."""
    share = min(max((score / 100 - chance) / (1 - chance), MIN_SHARE), MAX_SHARE)
    return math.log(share / (1 - share))


def is_makers(key: str, measured_by: str) -> bool:
    """Whether the maker of the model measured the score itself."""
    return measured_by == "the vendor" or measured_by.lower() == f"{key.partition('/')[0]} (card)"


def _without(scores: Sequence[Score], others: Sequence[Score]) -> tuple[Score, ...]:
    """The scores that are not among the others, whatever their source is called and when it was read."""
    known = {(score.benchmark, score.score, score.measured_by) for score in others}
    return tuple(
        score for score in scores if (score.benchmark, score.score, score.measured_by) not in known
    )


def _completed(key: str, facts: Facts, fit: Fit) -> Facts:
    """The facts with what is known of the model's family: when it was released, whether it thinks and sees."""
    family, _, is_own = _lineage(key, facts, fit)
    if not is_own:
        return facts
    kinds = facts.kinds
    if kinds and ModelPurpose.EMBEDDING not in kinds:
        kinds = tuple(dict.fromkeys((*kinds, *fit.family_kinds.get(family, ()))))
    return replace(facts, kinds=kinds, released=facts.released or fit.released.get(family))


def always_thinks(hub_id: str) -> bool:
    """Whether it cannot answer without thinking first, by its name: 'phi-4-reasoning', 'deepseek-r1', 'qwq-32b'."""
    return _ALWAYS_THINKS.search(key_of(hub_id)) is not None


def reference_benchmark(task: ModelPurpose) -> str:
    """The benchmark on whose scale qualities of this task are given: 'MMLU-Pro'."""
    name: str = _fit().tasks[task]["reference"]
    return name


def scores_of(
    hub_id: str, task: ModelPurpose, *, index: IndexFile | None = None
) -> tuple[Score, ...]:
    """The published scores of the model in benchmarks that count for the task."""
    return _evidence(index or index_file()).get((key_of(hub_id), task), ())


def related_scores(
    hub_id: str, task: ModelPurpose, *, facts: Facts, index: IndexFile | None = None
) -> tuple[tuple[str, Score], ...]:
    """Scores that a model without its own for the task is judged by: its own in other tasks, else its family's in this.

    Each with the model that has it; the newest first.
    """
    key, fit = key_of(hub_id), _fit()
    evidence = _evidence(index or index_file()).items()
    found = [
        (model, score)
        for (model, other), scores in evidence
        for score in scores
        if model == key and other is not task
    ]
    family, _, is_own = _lineage(key, facts, fit)
    if not found and is_own:
        found = [
            (model, score)
            for (model, other), scores in evidence
            for score in scores
            if other is task and family_of(model, Facts()) == family
        ]
    return tuple(sorted(found, key=lambda item: (item[1].date, item[0]), reverse=True))


def predicted_ability(
    hub_id: str, task: ModelPurpose, *, facts: Facts, fit: Fit | None = None
) -> tuple[float, float, QualityBasis]:
    """Ability, standard deviation and basis of a model without scores: by size, age, kind and relatives."""
    fit = fit or _fit()
    about = fit.tasks[task]
    family, series, is_own = _lineage(hub_id, facts, fit)
    inputs, missing = _likely(hub_id, facts, fit, family, is_own=is_own)
    ability = sum(about["effects"][name] * value for name, value in inputs.items())
    known = fit.families.get(family, {}).get(task.value)
    variance = about["model_variance"]
    basis = QualityBasis.NOT_MEASURED if known is None or not is_own else QualityBasis.FAMILY
    if not is_own:  # somebody else's version: nobody has measured what became of the original
        variance += 2 * (about["model_variance"] + about["family_variance"])
    if known is None:
        known = fit.series.get(series, {}).get(task.value)
        variance += about["family_variance"]
    if known is None:
        spread = math.sqrt(about["series_variance"])
        is_known_maker = key_of(hub_id).rpartition("/")[0] in fit.makers
        known = (
            (0.0, spread) if is_known_maker else (-UNKNOWN_MAKER * spread, UNKNOWN_MAKER * spread)
        )
    offset, spread = known
    variance += spread**2 + sum(about["missing_variance"][name] for name in missing)
    return ability + offset, math.sqrt(variance), basis


def _lineage(hub_id: str, facts: Facts, fit: Fit) -> tuple[str, str, bool]:
    """Family and series, and whether it is the series of this publisher.

    The name of another publisher's version begins with anything: 'huihui-qwen3.5-9b-abliterated' is of 'qwen3.5'. A
    distillation has the answers of one model and the size of another.
    """
    makers = fit.publishers
    family = family_of(hub_id, facts)
    publisher, _, name = key_of(hub_id).rpartition("/")
    words = re.split(r"[-_]", name)
    is_own = "distill" not in words
    if (root := _root(family)) in makers:
        if not publisher or publisher in makers[root]:
            return family, f"{publisher or makers[root][0]}/{root}", is_own
        return family, f"{makers[root][0]}/{root}", False
    for word, after in zip(words, [*words[1:], ""], strict=True):
        other = _root(word)
        if len(other) >= _SHORTEST_SERIES and other in makers:
            return (
                f"{word}-{after}" if word == other else word,
                f"{makers[other][0]}/{other}",
                False,
            )
    return family, series_of(hub_id, facts), is_own


def _likely(
    hub_id: str, facts: Facts, fit: Fit, family: str, *, is_own: bool
) -> tuple[dict[str, float], tuple[str, ...]]:
    """What a prediction is made from, and which of it is unknown.

    What only the name of another publisher's version claims does not count, and it is as old as its family. A version
    number names a generation: later members of a measured family are not much newer.
    """
    if not is_own:
        kinds = tuple(
            kind for kind in facts.kinds if kind not in (ModelPurpose.REASONING, ModelPurpose.CODE)
        )
        origin = facts.origin_released or fit.released.get(family)
        facts = replace(facts, kinds=kinds, origin_released=origin)
    inputs, missing = inputs_of(hub_id, facts, name_counts=is_own)
    newest = fit.newest.get(family)
    if newest is not None:
        inputs["age"] = min(inputs["age"], newest + GENERATION_YEARS)
    return inputs, missing


def inputs_of(
    hub_id: str, facts: Facts, *, name_counts: bool = True
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Size, age and kind as numbers, and which of it is unknown."""
    missing = []
    parameters = facts.parameters or 0
    if parameters <= 0:
        missing.append("size")
        parameters = 7 * 10**9
    total = min(max(parameters, MIN_PARAMETERS), MAX_PARAMETERS)
    active = min(max(facts.active_parameters or total, MIN_PARAMETERS), total)
    age = age_of(hub_id, facts)
    if age is None:
        missing.append("age")
        age = 0.0
    reasons = _reasons(hub_id if name_counts else "", facts)
    inputs = {
        "one": 1.0,
        "size": math.log2(total / 7e9),
        "small": max(math.log2(SMALL_PARAMETERS / total), 0.0),  # below it, ability falls faster
        "large": max(math.log2(total / LARGE_PARAMETERS), 0.0),  # beyond it, ability grows slower
        "active": math.log2(active / total),
        "age": age,
        "reasons": float(reasons),
        "codes": float(ModelPurpose.CODE in facts.kinds),
    }
    return inputs, tuple(missing)


def _reasons(name: str, facts: Facts) -> bool:
    return ModelPurpose.REASONING in facts.kinds or _THINKS.search(name.lower()) is not None


def age_of(hub_id: str, facts: Facts) -> float | None:
    """Years from EPOCH to the release. A month in the name counts before a list's; a copy is as old as its origin."""
    month = _MONTH_IN_NAME.search(hub_id.lower())
    text = f"20{month[1]}-{month[2]}" if month else facts.released
    ages = [years for years in map(_years, (text, facts.origin_released)) if years is not None]
    return min(ages) if ages else None


def _years(text: str | None) -> float | None:
    parts = (text or "").split("-")
    try:
        year, month, day = (int(part) for part in (*parts, "1", "1")[:3])
        days = (date(year, month, day) - EPOCH).days
    except (ValueError, OverflowError):
        return None
    return min(max(days / _DAYS_A_YEAR, EARLIEST), LATEST)


def family_of(hub_id: str, facts: Facts) -> str:
    """'qwen3.5', 'gemma-2'; what reads as a version but is the size is left out ('gemma-7' of gemma-7b is 'gemma')."""
    name = key_of(hub_id).split("/")[-1]
    family = (facts.family or "").lower() or re.split(r"[-_]\d+(?:\.\d+)?[bm](?=[-_]|$)", name)[0]
    stem = re.sub(r"-?\d+$", "", family)
    if stem and re.match(re.escape(family) + r"b(?=[-_]|$)", name):
        return stem
    return family


def series_of(hub_id: str, facts: Facts) -> str:
    """'Qwen/Qwen3-VL-8B' -> 'qwen/qwen': a maker's series; its members tend to be equally good for their size."""
    publisher = key_of(hub_id).rpartition("/")[0]
    return f"{publisher}/{_root(family_of(hub_id, facts))}"


def _root(name: str) -> str:
    return re.split(r"[^a-z]", name, maxsplit=1)[0]


# What engines and repositories call the types of Fit.losses.
_MLX_NAME = re.compile(r"^(?:mlx[ -]?)?(\d)[- _]?bits?$")
_WEIGHT_NAMES = (
    (re.compile(r"^ud-"), ""),
    (re.compile(r"_k_xl$"), "_k_l"),
    (re.compile(r"^(?:mxfp4)[_-]moe$"), "mxfp4"),
    (re.compile(r"^(?:fp8[-_ ].*|w8a8[-_]?fp8|f8_e4m3|fp8_e4m3)$"), "fp8"),
    (re.compile(r"^(?:w8a16|w8a8|int8|gptq-?int8)$"), "int8"),
    (re.compile(r"^(?:awq.*)$"), "awq"),
    (re.compile(r"^(?:gptq.*|w4a16|int4|autoround.*|auto-round.*)$"), "gptq"),
)
_WHOLE = re.compile(
    r"^(?:f32|f16|bf16|fp16|fp32|float16|bfloat16|float32|16[- ]?bits?|original|as stored|auto|)$"
)
_LARGER_ENDS_BITS = 0.15
# Types whose losses lie on one line; a type of none of them is compared with all.
_KINDS = tuple(map(re.compile, (r"q\d_k", r"iq\d", r"q\d_[01]$", r"mlx ")))
_NEIGHBOUR_LOW, _NEIGHBOUR_HIGH = (
    0.5,
    2.0,
)  # of the interpolated loss of a type that was not measured
K_SHARE = (
    2 / 3
)  # of a cache's loss; measured at 8 bits: 58 %, and at fewer bits more (llama.cpp #7412)
NOTHING = Loss(value=0.0, low=0.0, high=0.0, basis=LossBasis.NONE, source="")


@functools.lru_cache(maxsize=512)
def weights_loss(mix: str, *, native: str | None = None) -> Loss:
    """Points of quality that the weights lose at this type: 'Q4_K_M', 'MLX 4-bit', 'FP8', 'AWQ'.

    Nothing at 16 bits, and nothing at the type in which the model was released or at one with more bits.
    """
    name = _weight_name(mix)
    bits = _weight_bits(name)
    if _WHOLE.match(name) or (bits is not None and bits >= 16):
        return NOTHING
    if native is not None and not _WHOLE.match(native.lower()):
        native_name = _weight_name(native)
        native_bits = _weight_bits(native_name)
        if name == native_name or (
            bits is not None and native_bits is not None and bits >= native_bits
        ):
            return NOTHING
    return _loss_at("weights", name, bits)


@functools.lru_cache(maxsize=512)
def cache_loss(cache_k: str, cache_v: str) -> Loss:
    """Points of quality that K and V caches of these types lose in builds that rotate them (llama.cpp: April 2026)."""
    parts = []
    for cache, share in ((cache_k, K_SHARE), (cache_v, 1 - K_SHARE)):
        name = cache.lower().strip()
        if _WHOLE.match(name):
            continue
        if name.startswith(("fp8", "f8")):
            name = "fp8"
        elif match := _MLX_NAME.match(name):
            name = f"q{match[1]}_0"
        loss = _loss_at("cache", name, _weight_bits(name))
        parts.append((share, loss))
    if not parts:
        return NOTHING
    bases = {loss.basis for _, loss in parts}
    return Loss(
        value=sum(share * loss.value for share, loss in parts),
        low=sum(share * loss.low for share, loss in parts),
        high=sum(share * loss.high for share, loss in parts),
        basis=LossBasis.NEIGHBOUR if LossBasis.NEIGHBOUR in bases else LossBasis.MEASURED,
        source="; ".join(dict.fromkeys(loss.source for _, loss in parts)),
    )


def _weight_name(mix: str) -> str:
    name = mix.lower().strip()
    if match := _MLX_NAME.match(name):
        return f"mlx {match[1]}-bit"
    for pattern, replacement in _WEIGHT_NAMES:
        name = pattern.sub(replacement, name)
    return name


def _weight_bits(name: str) -> float | None:
    """Bits per weight of a type, from its row, llama.cpp's mixes, or the first digit in its name."""
    for what in ("weights", "cache"):
        row = _fit().losses.get((what, name))
        if row is not None:
            return row[0]
    known = mix_by_name(name.upper())
    if known is not None:
        return known.bits_per_weight
    if larger := re.fullmatch(
        r"(q\d_k)_l", name
    ):  # like the mix below, with a larger embedding or output
        below = mix_by_name(f"{larger[1]}_m".upper()) or mix_by_name(larger[1].upper())
        return None if below is None else below.bits_per_weight + _LARGER_ENDS_BITS
    digits = re.search(r"\d+", name)
    return float(digits[0]) + 0.5 if digits and 1 <= int(digits[0]) <= 8 else None


def _loss_at(what: str, name: str, bits: float | None) -> Loss:
    """The measured loss of this type, or a line on the log scale between its neighbours by bits."""
    measured = _fit().losses.get((what, name))
    if measured is not None:
        return measured[1]
    kind = next((kind for kind in _KINDS if kind.match(name)), re.compile(""))
    # Most bits first, and never less lost with fewer bits.
    rows: list[tuple[float, float, str]] = []
    ordered = sorted(_fit().losses.items(), key=lambda item: (-item[1][0], item[1][1].value))
    for (row_what, row_name), (row_bits, loss) in ordered:
        if row_what == what and kind.match(row_name) and (not rows or row_bits < rows[-1][0]):
            rows.append((row_bits, max(loss.value, rows[-1][1] if rows else 0.0), loss.source))
    at = rows[-1][0] if bits is None else bits  # unknown: the worst that was measured
    above = min((row for row in rows if row[0] >= at), default=None)
    below = max((row for row in rows if row[0] <= at), default=None)
    if above is None or below is None:
        nearest = above or below or rows[0]
        slope = (math.log(rows[-1][1]) - math.log(rows[0][1])) / (rows[-1][0] - rows[0][0])
        value, source = nearest[1] * math.exp(slope * (at - nearest[0])), nearest[2]
    else:
        share = 0.0 if above[0] == below[0] else (above[0] - at) / (above[0] - below[0])
        value, source = above[1] ** (1 - share) * below[1] ** share, below[2]
    return Loss(
        value=value,
        low=_NEIGHBOUR_LOW * value,
        high=_NEIGHBOUR_HIGH * value,
        basis=LossBasis.NEIGHBOUR,
        source=source,
    )


def read_fit(data: Mapping[str, Any]) -> Fit:
    """A fit from the content of quality.json."""
    return Fit(
        tasks={ModelPurpose(name): about for name, about in data["tasks"].items()},
        benchmarks={
            name: Benchmark(
                name=line["name"],
                task=ModelPurpose(line["task"]),
                chance=line["chance"],
                difficulty=line["difficulty"],
                slope=line["slope"],
                variance=line["spread"] ** 2,
                group_variance=data["tasks"][line["task"]]["group_variance"],
            )
            for line in data["benchmarks"]
            for name in line["names"]
        },
        losses={
            (row["what"], row["scheme"].lower()): (
                row["bits"],
                Loss(
                    value=row["value"],
                    low=row["low"],
                    high=row["high"],
                    basis=LossBasis.MEASURED,
                    source=row["source"],
                ),
            )
            for row in data["losses"]
        },
        series=data["series"],
        families=data["families"],
        publishers=data["publishers"],
        released=data["released"],
        newest=data["newest"],
        models=data["models"],
        bases=frozenset(data["bases"]),
        family_kinds={
            family: tuple(map(ModelPurpose, kinds))
            for family, kinds in data["family_kinds"].items()
        },
        makers=frozenset(maker for group in data["publishers"].values() for maker in group),
    )


def data_stamp() -> str:
    """A hash of the fit and of the scores of the index: it changes when a quality or a loss may."""
    return _stamp_of(index_file())


@functools.cache
def _stamp_of(file: IndexFile) -> str:
    scores = repr(list(_evidence(file).items())).encode()
    return hashlib.sha256(files(__package__).joinpath(FITTED).read_bytes() + scores).hexdigest()


@functools.cache
def _fit() -> Fit:
    return read_fit(json.loads(files(__package__).joinpath(FITTED).read_text(encoding="utf-8")))


@functools.cache
def _evidence(file: IndexFile) -> Mapping[tuple[str, ModelPurpose], tuple[Score, ...]]:
    """The scores of an index that count, by model and task. Those of unknown benchmarks or beyond 100 % are ignored."""
    benchmarks = _fit().benchmarks
    marks = ", ".join("?" * len(benchmarks))
    query = (
        "SELECT COALESCE(NULLIF(m.repository, ''), m.id), e.benchmark, e.score, e.date, e.setting, e.measured_by,"  # noqa: S608 - only marks
        " s.name FROM evidence e JOIN models m ON m.id = e.model LEFT JOIN sources s ON s.id = e.source"
        f" WHERE e.benchmark IN ({marks}) AND e.score BETWEEN 0 AND 100 ORDER BY e.rowid LIMIT {MAX_SCORES}"
    )
    rows = file.rows(query, benchmarks)
    result: dict[tuple[str, ModelPurpose], list[Score]] = {}
    for name, benchmark, score, day, setting, measured_by, source in rows:
        if OTHER_SETTING.search(setting or ""):
            continue
        at = key_of(name), benchmarks[benchmark].task
        result.setdefault(at, []).append(
            Score(
                benchmark=benchmark,
                score=percent(benchmarks[benchmark].name, score),
                date=day or "",
                setting=setting or "",
                measured_by=measured_by or "see source",
                source=source or "",
            )
        )
    return {
        at: tuple(sorted(scores, key=lambda score: benchmarks[score.benchmark].name))
        for at, scores in result.items()
    }
