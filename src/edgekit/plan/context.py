"""The price of a context -> the longest that fits, the window to open unasked, the window for a known job."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.errors import UsageError
from edgekit.plan.types import WINDOW_BUDGET_BYTES, Job, Window
from edgekit.units import format_bytes

MINIMUM_TOKENS = 16_384  # a model is of little use below it
# Whose memory is far below the model's size asks little of it, and a window that rolls never ends.
STREAM_MINIMUM_TOKENS = 512
UNKNOWN_NATIVE_TOKENS = 32_768  # of a model that does not say what it was made for
JOB_MARGIN_TOKENS = 64
RECOMMENDED_PERCENT = 80
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


def plan_window(
    cache_bytes: Callable[[int], int],
    *,
    native_tokens: int | None,
    budget_bytes: int = WINDOW_BUDGET_BYTES,
    step: int = 1,
    job: Job | None = None,
) -> Window:
    """How long a window to open where none was asked for.

    With a job, what it needs: prompt, new tokens and 64 more. Without one, the longest whose cache stays within the
    budget: a cheap cache keeps its whole native window. `cache_bytes` is the engine's own bill, or the plain formula.
    """
    native = native_tokens or UNKNOWN_NATIVE_TOKENS
    if job is not None:
        return _job_window(cache_bytes, native, job)
    if budget_bytes < 0:
        raise UsageError(f"a budget of {budget_bytes} bytes for the cache")
    tokens = longest(lambda count: cache_bytes(count) <= budget_bytes, step=step, most=native)
    held = cache_bytes(tokens) if tokens else 0
    if tokens == native and native_tokens is None:
        because = f"the model does not say what it was made for: {native:,} are taken"
    elif tokens == native:
        because = f"the whole native window: its cache of {format_bytes(held)} is within {format_bytes(budget_bytes)}"
    else:
        because = f"the longest window whose cache stays within {format_bytes(budget_bytes)}"
    return Window(context_tokens=tokens, cache_bytes=held, because=because)


def _job_window(cache_bytes: Callable[[int], int], native: int, job: Job) -> Window:
    if job.prompt_tokens < 0 or job.new_tokens < 0:
        raise UsageError(f"a job of {job.prompt_tokens} + {job.new_tokens} tokens")
    wanted = job.prompt_tokens + job.new_tokens + JOB_MARGIN_TOKENS
    tokens = min(wanted, native)
    because = (
        f"{job.prompt_tokens:,} of prompt + {job.new_tokens:,} new + {JOB_MARGIN_TOKENS} of margin"
    )
    if tokens < wanted:
        because += f", cut at the native window of {native:,}"
    return Window(context_tokens=tokens, cache_bytes=cache_bytes(tokens), because=because)
