"""A plan -> how many users it holds at the same time, each with a window of that length."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.decisions import Decision, Lever
from edgekit.bill.task import Placements, Task
from edgekit.errors import RefusedError
from edgekit.plan.choice import Candidate
from edgekit.plan.ladder import Ladder
from edgekit.plan.planned import Wish

MOST_USERS = 256  # vLLM's own limit on cards of usual size; nobody asks llama.cpp or MLX for more


def decide_sequences(wish: Wish, found: Candidate, ways: Placements) -> Decision:
    """What was asked for; else the engine's own number, and how many more there is room for."""
    each = found.tokens // found.held.streams
    if wish.users is not None:
        return Decision(
            lever=Lever.SEQUENCES,
            value=f"{wish.users}",
            because=f"as requested, each with a context of {each:,} tokens",
        )
    count = users_that_fit(found.question, each, ways)
    usual = (
        "llama-server's 4 slots share one context"
        if wish.engine == "llama.cpp"
        else "one request at a time"
    )
    more = (
        f"--users {count} fits with a full context each"
        if count > 1
        else "a second full context does not fit"
    )
    return Decision(
        lever=Lever.SEQUENCES,
        value=f"up to {count}" if count > 1 else "1",
        because=f"{usual}; {more}",
    )


def users_that_fit(question: Task, tokens: int, ways: Placements) -> int:
    """With so many tokens each, in one of these ways. Doubling finds the edge, halving the number."""

    def holds(users: int) -> bool:
        return _holds(question, users, tokens, ways)

    count = 1
    while count * 2 <= MOST_USERS and holds(count * 2):
        count *= 2
    low, high = count, min(count * 2, MOST_USERS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _holds(question: Task, users: int, tokens: int, ways: Placements) -> bool:
    load = replace(question.load, sequences=users, context_tokens=None)
    together = tokens
    if question.engine == "llama.cpp":
        load, together = replace(load, unified=False), tokens * users
    try:
        return Ladder(replace(question, load=load), ways).holder(together) is not None
    except RefusedError:
        return False
