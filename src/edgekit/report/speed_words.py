"""A speed that is expected -> its words: a range, and no more digits than it deserves."""

from __future__ import annotations

import math

from edgekit.plan.planned import Plan
from edgekit.plan.recommending import QUICK_TOKENS_PER_S

_LEAST = 0.05  # less is told as nothing: tokens that take half a minute each


def rate_words(rates: tuple[float, float]) -> str:
    """(34.6, 61.2) -> '35 to 61 tokens a second'."""
    return f"{_range(rates)} tokens a second"


def _range(rates: tuple[float, float]) -> str:
    if rates[1] < _LEAST:
        return "less than 0.1"
    slow, fast = map(_figure, rates)
    return f"{slow} to {fast}" if slow != fast else f"about {fast}"


def _figure(rate: float) -> str:
    """Two digits that count, below one a single one: '1,200', '35', '3.5', '0.4'."""
    if rate < 0.95:  # what is rounded to 1.0 has two
        return f"{rate:.1f}"
    rounded = round(rate, 1 - math.floor(math.log10(rate)))
    return f"{rounded:,.1f}" if rounded < 10 else f"{rounded:,.0f}"


def embeds(plan: Plan) -> bool:
    """Whether it is started to hand over embeddings: then nothing is answered."""
    return bool(getattr(plan.result.way.setup, "embeddings", False))


def is_slow(plan: Plan) -> bool:
    """Whether people read faster than is to be expected. Of what is not known nobody says so."""
    pace = plan.steady_tokens_per_s
    return pace is not None and pace < QUICK_TOKENS_PER_S


def speed_row(plan: Plan) -> str:
    """The whole of it: answers, prompts, how that is known, and why."""
    speed = plan.speed
    if speed is None:
        return "not known"
    if embeds(plan):
        read = "not known" if speed.prefill is None else f"reads {rate_words(speed.prefill)}"
        return f"{read}; {speed.basis.value}: {speed.because}"
    slow = ", slower than people read" if is_slow(plan) else ""
    prompts = f", prompts at {_range(speed.prefill)}" if speed.prefill is not None else ""
    told = f"{rate_words(speed.decode)}{slow}{prompts}; {speed.basis.value}"
    return f"{told}: {speed.because}" if speed.because else told
