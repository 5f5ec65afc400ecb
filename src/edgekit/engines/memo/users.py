"""Users of a tier: each has a context of their own."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.types import Load
from edgekit.engines.memo.types import MOST_USERS
from edgekit.errors import UsageError


def load_for_users(load: Load, users: int, _native_tokens: int) -> Load:
    if not 1 <= users <= MOST_USERS:
        raise UsageError(f"the number of users must be 1 to {MOST_USERS:,} (got {users:,})")
    return replace(load, sequences=users, unified=False)
