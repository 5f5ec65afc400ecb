"""Contexts: the longest that fits, the one that a cache budget allows, the one that a known job needs."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.bill.task import Job
from edgekit.errors import UsageError

DEFAULT_TOKENS = 32_768  # SPEC A4: the context to start from when none is asked for
EMBEDDING_TOKENS = 8_192  # ... of an embedding model
MINIMUM_TOKENS = 16_384  # SPEC P13: shorter contexts are only offered when asked for
STREAM_MINIMUM_TOKENS = 512  # the built-in engine is for memories far below the model's size
UNKNOWN_NATIVE_TOKENS = 32_768  # of a model that does not state its context length
JOB_MARGIN_TOKENS = 64
RECOMMENDED_PERCENT = 80
MAX_TOKENS = 2**31 - 1  # engines count tokens in 32 bits
LOOK_AHEAD = 8  # steps; the deepest dip seen is 18 MB, the cache of one or two


def longest(fits: Callable[[int], bool], *, step: int, most: int) -> int:
    """The largest multiple of `step` below `most` that fits, or `most`; 0 where none does.

    Longer costs more, so halving finds the edge. Near it a bill may dip: with layers on the host llama.cpp moves some
    megabytes between the pools from one length to the next, so a few more steps are looked at.
    """
    if most <= 0:
        return 0
    if fits(most):
        return most
    low, high = 0, -(-most // step)  # `low` fits or is nothing, `high` does not fit
    end = high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle * step):
            low = middle
        else:
            high = middle
    ahead = low + 1
    while ahead < min(low + 1 + LOOK_AHEAD, end - 1):
        ahead += 1
        if fits(ahead * step):
            low = ahead
    return low * step


def recommended_context(max_tokens: int) -> int:
    return max_tokens * RECOMMENDED_PERCENT // 100


def budget_window(
    cache_bytes: Callable[[int], int], budget_bytes: int, *, step: int, most: int
) -> int:
    """The longest context whose cache stays within the budget; a cheap cache keeps its whole native window."""
    return longest(lambda count: cache_bytes(count) <= budget_bytes, step=step, most=most)


def job_window(job: Job, native_tokens: int) -> tuple[int, str]:
    """What a known job needs, up to the native window, and why."""
    if job.prompt_tokens < 0 or job.new_tokens < 0:
        raise UsageError(
            f"a job must not be negative (got {job.prompt_tokens}+{job.new_tokens} tokens)"
        )
    wanted = job.prompt_tokens + job.new_tokens + JOB_MARGIN_TOKENS
    because = (
        f"prompt {job.prompt_tokens:,} + {job.new_tokens:,} new tokens + {JOB_MARGIN_TOKENS} spare"
    )
    if wanted > native_tokens:
        because += f", cut to the model's context length of {native_tokens:,}"
    return min(wanted, native_tokens), because
