"""Users who are served at the same time: how many a plan has room for."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.decisions import Decision, Lever
from edgekit.bill.task import Placements, Task
from edgekit.engines import engine_named
from edgekit.errors import RefusedError
from edgekit.plan.choice import Candidate
from edgekit.plan.ladder import Ladder

MOST_USERS = 256  # vLLM's own limit on cards of usual size; more are not searched for


def decide_sequences(found: Candidate, placements: Placements) -> Decision:
    """The number of users that was given; else the engine's default, and how many more there is room for."""
    task, each = found.task, found.tokens // found.held.streams
    if task.users is not None:
        return Decision(
            lever=Lever.SEQUENCES,
            value=f"{task.users}",
            because=f"as requested, each with a context of {each:,} tokens",
        )
    count = users_that_fit(task, each, placements)
    more = (
        f"--users {count} fits with a full context each"
        if count > 1
        else "a second full context does not fit"
    )
    return Decision(
        lever=Lever.SEQUENCES,
        value=f"up to {count}" if count > 1 else "1",
        because=f"{engine_named(task.engine).default_users}; {more}",
    )


def users_that_fit(task: Task, tokens: int, placements: Placements) -> int:
    """With a context of `tokens` each, in one of these placements. Doubling finds the edge, halving the number."""
    engine = engine_named(task.engine)
    bare = replace(task.load, context_tokens=tokens)

    def fits(users: int) -> bool:
        load = engine.load_for_users(bare, users, tokens)
        several = replace(task, load=replace(load, context_tokens=None))
        try:
            return Ladder(several, placements).holder(load.context_tokens or tokens) is not None
        except RefusedError:
            return False

    count = 1
    while count * 2 <= MOST_USERS and fits(count * 2):
        count *= 2
    low, high = count, min(count * 2, MOST_USERS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
