"""The pauses before an engine that failed is started again."""

from __future__ import annotations

from edgekit.engines.backoff import LONGEST_PAUSE_S, Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff()
    assert [backoff.next_pause_s() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff.failures = 10**6
    assert backoff.next_pause_s() == LONGEST_PAUSE_S
