"""Lengths of mlx-lm's caches: the closed forms compared with caches simulated call by call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.engines.mlx.caches import (
    MlxSession,
    full_length,
    rotating_length,
    widest_rotating,
)

BLOCK = 256


def session(prompt: int, new: int = 0, step: int = 2048) -> MlxSession:
    return MlxSession(prompt_tokens=prompt, new_tokens=new, step=step)


sessions = st.builds(
    session,
    st.integers(1, 3_000),
    st.integers(0, 600),
    st.sampled_from([1, 2, 3, 100, 192, 256, 300, 500, 512, 2048]) | st.integers(1, 3_000),
)


def calls(run: MlxSession) -> Iterator[int]:
    """The number of tokens in each call of the model."""
    left = run.prompt_tokens - 1
    while left > 0:
        yield min(run.step, left)
        left -= run.step
    yield from (1 for _ in range(1 + run.new_tokens))


def simulated_length(run: MlxSession, chunk: int | None = None) -> int:
    """Rows of a KVCache; with `chunk` those of a ChunkedKVCache."""
    used = rows = 0
    for tokens in calls(run):
        if chunk is not None and used > chunk:
            used = rows = chunk
        if used + tokens > rows:
            if used % BLOCK:
                rows = used
            rows += -(-tokens // BLOCK) * BLOCK
        used += tokens
    return rows


def simulated_rotating_lengths(run: MlxSession, window: int) -> tuple[int, int]:
    """Rows of a RotatingKVCache: at the end, and at most."""
    rows = seen = most = 0
    for tokens in calls(run):
        if tokens > 1:
            rows = min(rows, window - 1) + tokens
        elif rows <= seen and rows < window:
            rows += min(BLOCK, window - seen)
        else:
            rows = min(rows, window)
        seen += tokens
        most = max(most, rows)
    return rows, most


@given(sessions)
def test_full_length_equals_the_simulated_cache(run: MlxSession) -> None:
    assert full_length(run) == simulated_length(run)


@given(sessions, st.integers(1, 2_000))
def test_chunked_length_equals_the_simulated_cache(run: MlxSession, chunk: int) -> None:
    assert full_length(run, chunk) == simulated_length(run, chunk)


@given(sessions, st.integers(5, 2_000))
def test_rotating_length_equals_the_simulated_cache(run: MlxSession, window: int) -> None:
    rows, most = simulated_rotating_lengths(run, window)
    assert rotating_length(run, window) == rows
    assert widest_rotating(run, window) == most


@pytest.mark.parametrize(
    ("prompt", "new", "step", "rows"),
    [
        (1, 0, 2048, 256),
        (256, 0, 2048, 256),
        (257, 0, 2048, 512),
        (1000, 60, 2048, 1280),
        (32_768, 0, 2048, 32_768),
        (1_000_000, 0, 500, 1_000_012),  # 999,999 = 1,999 x 500 + 499: 999,500 + 512
    ],
)
def test_full_length_of_known_sessions(prompt: int, new: int, step: int, rows: int) -> None:
    assert full_length(session(prompt, new, step)) == rows


@given(sessions, st.integers(1, 4), st.integers(1, 2_000))
def test_longer_prompts_never_have_shorter_caches_with_steps_of_whole_blocks(
    run: MlxSession, blocks: int, more: int
) -> None:
    step = blocks * BLOCK
    short = session(run.prompt_tokens, run.new_tokens, step)
    long = session(run.prompt_tokens + more, run.new_tokens, step)
    assert full_length(short) <= full_length(long)
    assert rotating_length(short, 1024) <= rotating_length(long, 1024)


def test_full_length_of_a_huge_session_is_not_counted_call_by_call() -> None:
    assert full_length(session(10**12, 10**12, 3)) >= 2 * 10**12
