"""The speed of a plan with several users. Computed when it is shown, so that comparing many plans takes no longer."""

from __future__ import annotations

from typing import NamedTuple

from edgekit.bill.types import Moment, Speed, Verdict
from edgekit.engines import engine_named
from edgekit.engines.speed import USUAL_FILL_TOKENS


class SharedSpeed(NamedTuple):
    """The speed while several users get answers at the same time."""

    users: int
    each: Speed

    @property
    def together(self) -> float:
        """The typical tokens per second of all users."""
        return self.users * self.each.typical


def shared_speed(result: Verdict) -> SharedSpeed | None:
    """The speed with all the requested users; None if one was requested, or if it is unknown."""
    setup = result.way.setup
    users = engine_named(result.engine).busy_users(result.load, setup)
    if users < 2 or setup.embeddings or not result.can_load or result.speed_at is None:
        return None
    # llama.cpp divides its context among the sequences, other engines have it for each.
    all_tokens = dict(result.estimate.facts).get("n_ctx")
    each_tokens = all_tokens // users if isinstance(all_tokens, int) else result.context_tokens
    each = result.speed_at(Moment(min(each_tokens, USUAL_FILL_TOKENS), users=users))
    return None if each is None else SharedSpeed(users, each)
