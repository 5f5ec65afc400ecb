"""Counts the threads that a test started; threads of others, which may end meanwhile, do not count."""

from __future__ import annotations

import threading


def running() -> frozenset[threading.Thread]:
    return frozenset(threading.enumerate())


def started_since(before: frozenset[threading.Thread]) -> int:
    """The number of running threads that were not running before."""
    return len(running() - before)
