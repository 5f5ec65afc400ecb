"""A verdict -> its words: one line that answers, sizes beside each other, shares, names of memories."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.memory.types import PoolKind
from edgekit.plan.types import COMFORTABLE_PERCENT, PreflightResult, Status, Use
from edgekit.report.check import Check
from edgekit.report.lines import printable
from edgekit.units import GIB, MIB

VERDICTS = {Status.PASSED: "Fits", Status.WARNING: "Tight", Status.FAILED: "Does not fit"}


def answer(check: Check) -> str:
    """The whole verdict in one line; one that rests on a name alone says so."""
    return (
        f"{verdict(check.result)} (ASSUMED from its name)"
        if check.is_assumed
        else verdict(check.result)
    )


def verdict(result: PreflightResult) -> str:
    told = _blocked(result) if is_blocked(result) else _numbers(result)
    return printable(f"{VERDICTS[result.status]}: {told}")


def is_blocked(result: PreflightResult) -> bool:
    """Whether the engine would not start, however small the model."""
    return any(use.budget.blocked for use in result.uses)


def is_beyond(result: PreflightResult) -> bool:
    """Whether a context that fits was asked for beyond the model's own: the longest is never told beyond it."""
    return result.can_load and result.context_tokens > result.max_context


def _blocked(result: PreflightResult) -> str:
    """However little it needs: the numbers would say that it fits."""
    names = budget_names(result.uses)
    where = ", ".join(
        name for name, use in zip(names, result.uses, strict=True) if use.budget.blocked
    )
    return f"{result.engine} would not start, too little of {where} is free"


def _numbers(result: PreflightResult) -> str:
    tightest, longest = result.tightest, result.max_context
    share = share_words(tightest)
    sizes = sizes_words(result.required_bytes, result.available_bytes)
    told = f"{sizes} ({share})" if share else sizes
    if len(result.uses) > 1:
        told += f" in {budget_names(result.uses)[result.uses.index(tightest)]}"
    if is_beyond(result):
        return f"{told}, {result.context_tokens:,} tokens, more than the model was made for"
    if result.can_load:
        return f"{told}, up to {longest:,} tokens"
    if tightest.status is not Status.FAILED:  # it has room, but for too few tokens
        return f"{told}, but at most {longest:,} tokens, too few to be of use"
    return f"{told}, {f'at most {longest:,} tokens' if longest else 'no context fits'}"


def budget_names(uses: Sequence[Use]) -> list[str]:
    """Cards of one name are told apart by their number."""
    names = [use.budget.name for use in uses]
    return [
        f"{name} #{_number(use)}" if names.count(name) > 1 else name
        for name, use in zip(names, uses, strict=True)
    ]


def _number(use: Use) -> int:
    return min((p.index for p in use.budget.pools if p.kind is PoolKind.DEVICE), default=0)


def sizes_words(part_bytes: int, whole_bytes: int) -> str:
    """'6.1 of 11.5 GiB'; what would be told as nothing has its own unit: '52 MiB of 11.5 GiB'."""
    step, unit = (GIB, "GiB") if max(part_bytes, whole_bytes) >= GIB else (MIB, "MiB")
    whole = f"{whole_bytes / step:,.1f} {unit}"
    if 0 < part_bytes * 10 < step:
        return f"{max(part_bytes / MIB, 0.1):.{1 if part_bytes < MIB else 0}f} MiB of {whole}"
    return f"{part_bytes / step:,.1f} of {whole}"


def share_words(use: Use) -> str:
    """'53 %', never on the other side of a threshold than the verdict; '' where nothing is available."""
    if use.utilization == float("inf"):
        return ""
    percent = use.utilization * 100
    if 0 < percent < 1:
        return "<1 %"
    told = round(percent)
    if told == COMFORTABLE_PERCENT and use.status is Status.WARNING:
        return _finer(percent, told, "just over")
    if told == 100 and percent > 100:
        return _finer(percent, told, "just over")
    return f"{told:,} %"


def _finer(percent: float, told: int, else_: str) -> str:
    return f"{else_} {told} %" if round(percent, 1) == told else f"{percent:.1f} %"
