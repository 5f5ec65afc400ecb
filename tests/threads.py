"""Threads that a test itself has started: those of others, which may end meanwhile, do not count."""

from __future__ import annotations

import threading


def running() -> frozenset[threading.Thread]:
    return frozenset(threading.enumerate())


def started_since(before: frozenset[threading.Thread]) -> int:
    """How many of them are still there."""
    return len(running() - before)
