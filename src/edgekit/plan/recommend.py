"""A rule of thumb that ranks known models before any of them is run, and the order of suggestions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from edgekit.bill.types import COMFORTABLE_PERCENT, GOOD_ACCURACY
from edgekit.engines.choices import accuracy_of
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import HOST
from edgekit.plan.choice import READING_TOKENS_PER_S
from edgekit.plan.plan import Plan

# ASSUMED. A mixture of experts is about as good as a dense model with the geometric mean of its total and its active
# parameters. Capability per parameter doubles every few months (Xiao et al., Densing Law of LLMs, 2025: 3.5 months);
# a slower rate is used here so that size still counts.
DOUBLING_MONTHS = 6
FIRST = date(2023, 1, 1)  # older models count as of this date
LAST = date(2050, 1, 1)  # later dates in a file count as this one
MOST_PARAMETERS = 10**15
UNKNOWN = date(2024, 1, 1)  # for a model without a date
SMALL_PARAMETERS = 8e9
OUTDATED = date(2024, 7, 1)
_DAYS_A_MONTH = 365.25 / 12
_VERSION = re.compile(r"(?<=[a-z])-?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?=-|$)")

# Factors on a model's worth if part of it is in RAM and its speed is unknown; experts lose less because few are active.
DIVIDED_SHARE, DIVIDED_DENSE_SHARE = 0.5, 0.1
FULL_RAM_PERCENT = 92  # of the usable RAM; a model that takes more is weighted by FULL_RAM_SHARE
FULL_RAM_SHARE = 0.25
FAST_TOKENS_PER_S = 4 * READING_TOKENS_PER_S  # more speed than this adds no worth
EMBEDDING_TOKENS_PER_S = 2000  # a book of 100,000 tokens in less than a minute


def rank_of(entry: Entry) -> float:
    """Expected quality of the answers, regardless of memory and speed. Higher is better."""
    parameters = min(entry.parameters or 0, MOST_PARAMETERS)
    active = min(entry.active_parameters or parameters, MOST_PARAMETERS)
    is_later = bool(
        entry.not_before and not entry.released
    )  # ranks after a model released on that day
    days = (min(_release_date(entry), LAST) - FIRST).days + is_later
    months = max(0.0, days / _DAYS_A_MONTH)
    return math.sqrt(parameters * active) / 1e9 * 2 ** (months / DOUBLING_MONTHS)


def is_minor(entry: Entry) -> bool:
    """Whether it is small or outdated, and so not preferred to a better model just for its speed."""
    return (entry.parameters or 0) < SMALL_PARAMETERS or _release_date(entry) < OUTDATED


def _release_date(entry: Entry) -> date:
    """The release date of a model; a fixed date if it is unknown."""
    try:
        return date.fromisoformat(entry.released or entry.not_before or "")
    except ValueError:
        return UNKNOWN


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
    """The models for the purpose, the best first."""
    embeds = task is ModelPurpose.EMBEDDING  # an embedding model for code does not write code
    suited = [
        entry
        for entry in entries
        if task in entry.kinds and (embeds or ModelPurpose.EMBEDDING not in entry.kinds)
    ]
    newest_first = sorted(suited, key=lambda entry: version_of(entry.id)[1], reverse=True)
    return sorted(newest_first, key=lambda entry: (-rank_of(entry), version_of(entry.id)[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A model, and how to run it on the machine."""

    entry: Entry
    plan: Plan
    rank: float  # see rank_of

    @property
    def worth(self) -> float:
        """The rank, weighted by what this machine makes of the model.

        Lower for a slow model and for one that nearly fills the RAM; higher for a preferred model that is faster than
        reading. If the speed is unknown, lower for a model that is partly in RAM.
        """
        worth = self.rank * self._ram_share
        speed = self.plan.speed
        if ModelPurpose.EMBEDDING in self.entry.kinds:
            read = None if speed is None else speed.prefill
            if read is None:
                return worth
            return worth * slowness(math.sqrt(math.prod(read)), EMBEDDING_TOKENS_PER_S)
        steady = self.plan.steady_tokens_per_s
        if speed is None or steady is None:
            is_dense = (self.entry.active_parameters or 0) >= (self.entry.parameters or 1)
            share = DIVIDED_DENSE_SHARE if is_dense else DIVIDED_SHARE
            return worth if self.plan.result.way.whole else worth * share
        return worth * (quickness(speed.typical) if self.is_preferred else slowness(steady))

    @property
    def is_preferred(self) -> bool:
        """Whether it ranks before all others: at least reading speed, and neither small nor outdated.

        If the speed is unknown, it has to be entirely on the GPU.
        """
        if is_minor(self.entry) or ModelPurpose.EMBEDDING in self.entry.kinds:
            return False
        return self.is_quick if self.plan.speed is not None else self.plan.result.way.whole

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key; the best suggestion has the greatest."""
        return self.is_preferred, self.worth

    @property
    def _ram_share(self) -> float:
        """Factor on the worth: 1, and from 85 % of the usable RAM less and less, down to FULL_RAM_SHARE."""
        percent = max(
            (
                100 * use.required_bytes / max(use.budget.unreserved_bytes, 1)
                for use in self.plan.result.uses
                if HOST in use.budget.pools
            ),
            default=0.0,
        )
        over = (percent - COMFORTABLE_PERCENT) / (FULL_RAM_PERCENT - COMFORTABLE_PERCENT)
        return 1 - (1 - FULL_RAM_SHARE) * min(max(over, 0.0), 1.0) ** 2

    @property
    def is_quick(self) -> bool:
        """Whether it is at least as fast as reading. An unknown speed does not count as slow."""
        return ModelPurpose.EMBEDDING in self.entry.kinds or not self.plan.is_slow


def slowness(tokens_per_s: float, enough: float = READING_TOKENS_PER_S) -> float:
    """Factor on a model's worth at this speed: 1 at `enough`, a quarter at half of that."""
    return min(1.0, tokens_per_s / enough) ** 2


def quickness(tokens_per_s: float) -> float:
    """Factor on a model's worth at this speed: 1 at reading speed, 2 at four times that and above."""
    return math.sqrt(min(tokens_per_s, FAST_TOKENS_PER_S) / READING_TOKENS_PER_S)


def smallest_bytes(entry: Entry) -> int:
    """Size of the smallest quantisation with about four bits or more; 0 if there is none."""
    good = (size for size in entry.sizes if (accuracy_of(size.mix) or 0) >= GOOD_ACCURACY)
    return min((size.tensor_bytes for size in good), default=0)
