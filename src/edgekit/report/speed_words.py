"""A modelled speed -> its words: a typical value, the range in brackets, and no more digits than it deserves."""

from __future__ import annotations

import math

from edgekit.bill.verdict import Speed

LEAST_TOKENS_PER_S = 0.05  # shown as less than 0.1


def about_words(rates: tuple[float, float]) -> str:
    """(24, 60) -> 'about 38 tokens/s': the geometric middle."""
    middle = math.sqrt(math.prod(rates))
    if middle < LEAST_TOKENS_PER_S:
        return "less than 0.1 tokens/s"
    return f"about {_figure(middle)} tokens/s"


def range_words(rates: tuple[float, float]) -> str:
    """'24 to 60'; '' where the ends look alike."""
    slow, fast = map(_figure, rates)
    return f"{slow} to {fast}" if slow != fast else ""


def rate_words(rates: tuple[float, float]) -> str:
    """'about 38 tokens/s (24 to 60)'."""
    between = range_words(rates)
    return f"{about_words(rates)} ({between})" if between else about_words(rates)


def typical_figure(rates: tuple[float, float]) -> str:
    """'38'."""
    return about_words(rates).removeprefix("about ").removesuffix(" tokens/s")


def _figure(rate: float) -> str:
    """Two digits that count, below one a single one: '1,200', '35', '3.5', '0.4'."""
    if rate < 0.95:  # what is rounded to 1.0 has two
        return f"{rate:.1f}"
    rounded = round(rate, 1 - math.floor(math.log10(rate)))
    return f"{rounded:,.1f}" if rounded < 10 else f"{rounded:,.0f}"


def speed_row(speed: Speed | None, *, embeds: bool = False, is_slow: bool = False) -> str:
    """Answers, prompts, how that is known, and why."""
    if speed is None:
        return "not known"
    prompts = "" if speed.prefill is None else rate_words(speed.prefill)
    if embeds:
        return f"reads {prompts or 'at an unknown speed'}; {speed.basis.value}: {speed.because}"
    words = rate_words(speed.decode)
    words += ", slower than reading speed" if is_slow else ""
    words += f"; prompts {prompts}" if prompts else ""
    return f"{words}; {speed.basis.value}{f': {speed.because}' if speed.because else ''}"
