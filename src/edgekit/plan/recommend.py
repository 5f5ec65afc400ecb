"""The order of recommendations: the quality of a model at a task, less what its quantisation costs and its speed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from edgekit.bill.types import GOOD_ACCURACY
from edgekit.engines import engine_named
from edgekit.engines.choices import accuracy_of
from edgekit.index.database import IndexFile, last_index_file
from edgekit.index.quality import (
    Facts,
    Loss,
    Quality,
    QualityBasis,
    Score,
    always_thinks,
    cache_loss,
    quality_of,
    related_scores,
    suits,
    weights_loss,
)
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import HOST
from edgekit.plan.choice import READING_TOKENS_PER_S
from edgekit.plan.plan import Plan

_VERSION = re.compile(r"(?<=[a-z])-?([0-9]{1,9}(?:\.[0-9]{1,9})*)n?(?=-|$)")  # the n of Gemma 3n

# In points of quality (docs/decisions/0013-quality.md). Chat slower than reading, or a book that takes minutes to
# embed, is felt more than a better answer; each further doubling is worth less.
POINTS_PER_HALVING = 25.0  # below reading speed
COMFORTABLE_TOKENS_PER_S = 12.0  # ASSUMED: nobody waits for such an answer
POINTS_OF_COMFORT = 11.5
POINTS_PER_DOUBLING = 3.0  # above that
MAX_DOUBLINGS = 2.0  # to 48 tokens/s
THINKING_TOKENS = (
    4.0  # ASSUMED: per token of the answer, of a model that cannot answer without thinking
)
EMBEDDING_TOKENS_PER_S = 2000  # a book of 100,000 tokens in less than a minute
POINTS_PER_EMBEDDING_HALVING = 6.0
# ASSUMED; `Suggestion.drawback` says when. A machine that swaps is of no use for anything else.
POINTS_OF_DRAWBACK, POINTS_IF_RAM_IS_FULL = 25.0, 60.0
SMALL_PARAMETERS = 2.5e9  # a smaller model is not preferred to a better one just for its speed
ASSUMED_FLOPS = 50e9  # of a machine whose speed of reading is unknown: a small computer's CPU
# A model is offered before others if it has scores, or if its family has and it is used, or if it is used a lot: the
# hub has thousands of versions that somebody made of a good model, of which nobody knows what became of it. On the
# scale of `Entry.uses`; Qwen3-8B has 17.7.
MIN_USES_OF_FAMILY, MIN_USES_UNMEASURED = 8.0, 12.0
# Few users are weak evidence against a model: others have tried it and gone back.
MANY_USES, POINTS_PER_USES, MAX_POINTS_OF_USES = 15.0, 0.75, 4.0
FULL_RAM_PERCENT = 92  # of the usable RAM; a model that takes more would make the machine swap


def task_of_entry(entry: Entry) -> ModelPurpose:
    """The task by which a model is ranked if none was asked for."""
    embeds = ModelPurpose.EMBEDDING in entry.kinds
    return ModelPurpose.EMBEDDING if embeds else ModelPurpose.CHAT


def entry_quality(entry: Entry, task: ModelPurpose) -> Quality:
    """How good the model is at the task, without quantisation."""
    return _entry_quality(entry, task, last_index_file())


@lru_cache(maxsize=16_384)
def _entry_quality(entry: Entry, task: ModelPurpose, index: IndexFile) -> Quality:
    return quality_of(entry.repository or entry.id, task, facts=_facts(entry), index=index)


def entry_related_scores(entry: Entry, task: ModelPurpose) -> tuple[tuple[str, Score], ...]:
    """The scores of relatives, or in other tasks, that a model without its own is judged by."""
    name, index = entry.repository or entry.id, last_index_file()
    return related_scores(name, task, facts=_facts(entry), index=index)


def _facts(entry: Entry) -> Facts:
    return Facts(
        parameters=entry.parameters,
        active_parameters=entry.active_parameters,
        released=entry.released or entry.not_before,
        family=entry.family,
        kinds=entry.kinds,
    )


def rank_of(entry: Entry, task: ModelPurpose | None = None) -> float:
    """What the model is worth on any machine: its quality's rank, less a little if few people use it."""
    return entry_quality(entry, task or task_of_entry(entry)).rank - few_uses_points(entry)


def few_uses_points(entry: Entry) -> float:
    """What a model loses if few people use it."""
    if entry.is_users:
        return 0.0
    return min(POINTS_PER_USES * max(MANY_USES - entry.uses, 0.0), MAX_POINTS_OF_USES)


def is_minor(entry: Entry) -> bool:
    """Whether it is too small to be preferred to a better model just for its speed."""
    return (entry.parameters or 0) < SMALL_PARAMETERS


def is_notable(entry: Entry, task: ModelPurpose) -> bool:
    """Whether enough is known of the model, by scores or by use, to offer it before others."""
    match entry_quality(entry, task).basis:
        case QualityBasis.MEASURED:
            return True
        case QualityBasis.FAMILY:
            return entry.is_users or entry.uses >= MIN_USES_OF_FAMILY
        case _:
            return entry.is_users or entry.uses >= MIN_USES_UNMEASURED


def suits_task(entry: Entry, task: ModelPurpose) -> bool:
    """Whether the model can be offered for the task at all."""
    name, index = entry.repository or entry.id, last_index_file()
    return suits(name, task, facts=_facts(entry), index=index)


def version_of(name: str) -> tuple[str, tuple[int, ...]]:
    """'qwen3.6-27b' -> ('qwen-27b', (3, 6)): the model without its version, and the version."""
    match = _VERSION.search(name.lower())
    if match is None:
        return name.lower(), ()
    rest = name.lower()[: match.start()] + name.lower()[match.end() :]
    return rest, tuple(map(int, match[1].split(".")))


def root_of(family: str) -> str:
    """'qwen3-vl' -> 'qwen': the model series."""
    return re.split(r"[^a-z]", family.lower(), maxsplit=1)[0] or family


def ranked_for(task: ModelPurpose, entries: Iterable[Entry]) -> list[Entry]:
    """The models for the purpose, the best first. One of which nothing but the name is known is left out."""
    suited = [entry for entry in entries if entry.has_geometry and suits_task(entry, task)]

    def order(entry: Entry) -> tuple[bool, float, float, str]:
        return not is_notable(entry, task), -rank_of(entry, task), -entry.uses, entry.id

    return sorted(suited, key=order)


Order = tuple[bool, float]  # whether it is notable, and its worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A model, and how to run it on the machine."""

    entry: Entry
    plan: Plan
    task: ModelPurpose

    @property
    def quality(self) -> Quality:
        return entry_quality(self.entry, self.task)

    @property
    def rank(self) -> float:
        return rank_of(self.entry, self.task)

    @property
    def loss(self) -> Loss:
        """What the weights cost, compared with those that the publisher released."""
        native = "MXFP4" if self.entry.size("MXFP4_MOE") is not None else None
        return weights_loss(self.plan.variant.name, native=native)

    @property
    def cache_loss(self) -> Loss:
        """What the KV cache costs."""
        load = self.plan.load
        names = [kind.name if kind is not None else "f16" for kind in (load.cache_k, load.cache_v)]
        return cache_loss(*names)

    @property
    def terms(self) -> Mapping[str, float]:
        """What adds up to its worth, in points of quality: the rank, and what this machine makes of the model."""
        quality, drawback = self.quality, self.drawback
        terms = {
            "low end": quality.low,
            "age": -quality.ageing,
            "thinking": -quality.thinking,
            "few users": -few_uses_points(self.entry),
            "weights and cache": -self.loss.value - self.cache_loss.value,
            "speed": self.speed_points,
        }
        if drawback:
            terms[drawback] = -(POINTS_IF_RAM_IS_FULL if self._fills_ram else POINTS_OF_DRAWBACK)
        return terms

    @property
    def worth(self) -> float:
        """The rank, less what this machine makes of the model: quantisation, cache, speed and drawbacks."""
        return sum(self.terms.values())

    @property
    def speed_points(self) -> float:
        """What its speed on this machine adds, or costs."""
        speed, steady = self.plan.speed, self.plan.steady_tokens_per_s
        if self.task is ModelPurpose.EMBEDDING:
            read = None if speed is None else speed.typical_prefill
            assumed = ASSUMED_FLOPS / (2 * max(self.entry.active_parameters or 1, 1))
            return embedding_points(assumed if read is None else read)
        if speed is None or steady is None:
            return 0.0
        # hard questions are what such a model is chosen for
        if self.task is not ModelPurpose.REASONING and always_thinks(self.entry.id):
            steady /= THINKING_TOKENS
        points = speed_points(steady)
        return min(points, 0.0) if is_minor(self.entry) else points

    @property
    def counts_images(self) -> bool:
        """Whether the bill includes what images need: with GGUF, a file of its own whose size may be unknown."""
        if not engine_named(self.plan.task.engine).loads_gguf:
            return True
        return any(line.part == "projector" for line in self.plan.result.estimate.lines)

    @property
    def is_notable(self) -> bool:
        return is_notable(self.entry, self.task)

    @property
    def is_preferred(self) -> bool:
        """Whether it is notable and has no drawback here. Speed alone decides between embedding models."""
        if self.task is ModelPurpose.EMBEDDING:
            return False
        return self.is_notable and not self.drawback

    @property
    def drawback(self) -> str:
        """Why a person would take a worse model instead; '' if nothing speaks against this one.

        If the speed is unknown, the model has to be entirely on the GPU.
        """
        if self.task is ModelPurpose.EMBEDDING:
            return ""
        if self._fills_ram:
            return "fills the RAM"
        if self.task is ModelPurpose.VISION and not self.counts_images:
            return "memory of images unknown"
        if is_minor(self.entry):
            return "small model"
        if self.plan.speed is None:
            return "" if self.plan.result.way.whole else "unknown speed"
        return "" if self.is_quick else "slower than reading"

    @property
    def order(self) -> Order:
        """Sort key; the best suggestion has the greatest."""
        return self.is_notable, self.worth

    @property
    def _fills_ram(self) -> bool:
        return any(
            100 * use.required_bytes > FULL_RAM_PERCENT * max(use.budget.unreserved_bytes, 1)
            for use in self.plan.result.uses
            if HOST in use.budget.pools
        )

    @property
    def is_quick(self) -> bool:
        """Whether it is at least as fast as reading. An unknown speed does not count as slow."""
        return self.task is ModelPurpose.EMBEDDING or not self.plan.is_slow


def speed_points(tokens_per_s: float) -> float:
    """What a model's speed adds to its worth: 0 at reading speed."""
    doublings = math.log2(max(tokens_per_s, 1e-3) / READING_TOKENS_PER_S)
    comfortable = math.log2(COMFORTABLE_TOKENS_PER_S / READING_TOKENS_PER_S)
    if doublings < 0:
        return POINTS_PER_HALVING * doublings
    if doublings < comfortable:
        return POINTS_OF_COMFORT * doublings / comfortable
    return POINTS_OF_COMFORT + POINTS_PER_DOUBLING * min(doublings - comfortable, MAX_DOUBLINGS)


def embedding_points(tokens_per_s: float) -> float:
    """What the speed of reading adds to the worth of an embedding model: 0 if it is fast enough."""
    return POINTS_PER_EMBEDDING_HALVING * min(
        math.log2(max(tokens_per_s, 1e-3) / EMBEDDING_TOKENS_PER_S), 0.0
    )


def smallest_bytes(entry: Entry) -> int:
    """Size of the smallest quantisation with about four bits or more; 0 if there is none."""
    good = (size for size in entry.sizes if (accuracy_of(size.mix) or 0) >= GOOD_ACCURACY)
    return min((size.tensor_bytes for size in good), default=0)
