"""A wish -> the plan: one lever after the other, each with its because. The search runs over the exact bill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.errors import RefusedError, UsageError
from edgekit.hardware.types import Machine
from edgekit.plan.caches import cache_choices
from edgekit.plan.candidates import Candidate, open_window, question_of, whole
from edgekit.plan.changes import changes
from edgekit.plan.drafting import Drafted, take_drafter
from edgekit.plan.ladder import Ladder
from edgekit.plan.pace import pace, steady_pace
from edgekit.plan.placement import PLACED
from edgekit.plan.planned import Decision, Lever, Plan, Tried, Wish
from edgekit.plan.sharing import decide_sequences
from edgekit.plan.types import PreflightResult, Question
from edgekit.plan.verdict import judge, judged
from edgekit.plan.weights import Taken, take_weights, weighed_of
from edgekit.plan.wiring import decide_limit
from edgekit.units import format_bytes


def make_plan(wish: Wish, *, thorough: bool = True) -> Plan:
    """What to run: weights, placement, window, cache, drafter, sequences.

    `thorough` also looks how many users there is room for and what a Mac's limit holds back; a list of many models does
    without. A plan that does not fit is a result, for the smallest quantisation.

    Raises UsageError for wishes that contradict each other, HardwareError where the engine has no hardware there,
    RefusedError where it takes no such model.
    """
    return find_plan(wish, thorough=thorough) or _nothing_fits(wish)


def find_plan(wish: Wish, *, thorough: bool = False) -> Plan | None:
    """The same; None where nothing fits."""
    _check(wish)
    taken = take_weights(wish, brief=not thorough)
    if taken is None:
        return None
    found = _on_fewest_cards(taken)
    drafted = take_drafter(wish, found, divided=taken.divided)
    result = judged(
        drafted.ladder, found.tokens, found.because, _longest_so(drafted, found, thorough)
    )
    decisions = list(_decisions(taken, found, result, drafted))
    if thorough:
        decisions += _further(wish, found)
    question = drafted.ladder.question
    weighed = weighed_of(replace(found, ladder=drafted.ladder))
    return Plan(
        wish=wish,
        variant=found.variant,
        load=replace(question.load, context_tokens=found.tokens),
        result=result,
        decisions=tuple(decisions),
        drafter=drafted.drafter,
        speed=pace(question, weighed),
        steady_tokens_per_s=steady_pace(question, weighed),
    )


def _longest_so(drafted: Drafted, found: Candidate, thorough: bool) -> int:  # noqa: FBT001 - one caller
    """The longest window in the way that is planned: what other ways would hold is no part of the plan."""
    held = drafted.ladder.holder(found.tokens)
    return held.longest if thorough and held is not None else found.tokens


def _check(wish: Wish) -> None:
    if not wish.variants:
        raise UsageError(f"{wish.label}: no quantisation to choose from")
    if wish.users is not None and wish.users < 1:
        raise UsageError(f"{wish.users} users")
    if wish.nodes < 1:
        raise UsageError(f"{wish.nodes} machines")
    if wish.nodes > 1 and wish.engine != "vllm":
        raise UsageError(f"several machines together are planned for vLLM, not for {wish.engine}")


def _on_fewest_cards(taken: Taken) -> Candidate:
    """What fewer cards hold as well is not spread over more: the largest first, and no layer goes the long way."""
    found = taken.candidate
    question = found.ladder.question
    held = found.ladder.holder(found.tokens) or found.ladder.top
    cards = len(held.way.cards)
    if taken.divided or question.engine != "llama.cpp" or question.start.settled & PLACED:
        return found
    for count in range(1, cards):
        fewer = replace(question, most_cards=count)
        ladder = Ladder(fewer, whole(fewer))
        if ladder.holder(found.tokens) is not None:
            return replace(found, ladder=ladder)
    return found


def _decisions(
    taken: Taken, found: Candidate, result: PreflightResult, drafted: Drafted
) -> Iterator[Decision]:
    yield Decision(
        lever=Lever.WEIGHTS,
        value=found.variant.name,
        because=taken.because,
        tried=taken.tried,
    )
    yield Decision(lever=Lever.PLACEMENT, value=result.way.because, because=_placed(taken, result))
    each = f" for each of {result.streams}" if result.streams > 1 else ""
    yield Decision(
        lever=Lever.CONTEXT,
        value=f"{found.tokens // result.streams:,} tokens{each}",
        because=found.because,
    )
    yield Decision(
        lever=Lever.CACHE, value=found.choice.name, because=_kept(found), tried=found.tried
    )
    if drafted.decision is not None:
        yield drafted.decision


def _placed(taken: Taken, result: PreflightResult) -> str:
    use = result.tightest
    told = f"{format_bytes(use.required_bytes)} of {format_bytes(use.budget.available_bytes)} in {use.budget.name}"
    if taken.divided:
        return f"as a whole it does not fit; so the devices hold as much as they can: {told}"
    return f"it fits as a whole: {told}"


def _kept(found: Candidate) -> str:
    if found.choice.flags == "" and not found.choice.load and not found.choice.setup:
        return "the engine's own" if found.choice.name != "as asked" else "as asked"
    if found.because == "as asked":
        return "the most accurate that holds the context"
    return "the most accurate that holds so long a window"


def _further(wish: Wish, found: Candidate) -> Iterator[Decision]:
    held = found.ladder.holder(found.tokens) or found.ladder.top
    several = wish.engine == "vllm"  # more requests may take more cards
    yield decide_sequences(wish, found, whole(held.question) if several else (held.way,))
    if found.tokens < found.ladder.top.most and wish.load.context_tokens is None:
        limit = decide_limit(
            wish.machine, found.tokens, lambda machine: _longest(wish, found, machine)
        )
        if limit is not None:
            yield limit


def _longest(wish: Wish, found: Candidate, machine: Machine) -> int:
    other = open_window(replace(wish, machine=machine), found.variant)
    return 0 if other is None else other.tokens


def _nothing_fits(wish: Wish) -> Plan:
    """The verdict on the smallest there is, in the smallest cache that the engine takes, and what would help."""
    variant = wish.variants[-1]
    question = _with_smallest_cache(question_of(wish, variant))
    result = judge(question)
    smallest = Decision(
        lever=Lever.WEIGHTS,
        value=variant.name,
        because="nothing fits: this is the smallest there is",
        tried=tuple(Tried(value=one.name, told="does not fit") for one in wish.variants),
    )
    return Plan(
        wish=wish,
        variant=variant,
        load=replace(question.load, context_tokens=result.context_tokens),
        result=result,
        decisions=(smallest,),
        to_fit=changes(question, result),
    )


def _with_smallest_cache(question: Question) -> Question:
    for choice in reversed(cache_choices(question, on_the_cpu=False)):
        asked = choice.of(question)
        try:
            judge(asked)
        except RefusedError:
            continue
        return asked
    return question
