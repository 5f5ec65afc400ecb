"""A wish -> the plan: one lever after the other, each with its because. The search runs over the exact bill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.errors import RefusedError, UsageError
from edgekit.hardware.types import Machine
from edgekit.plan.caches import cache_choices
from edgekit.plan.candidates import AS_ASKED, Candidate, open_window, question_of, whole
from edgekit.plan.changes import Change, ChangeKind, changes
from edgekit.plan.drafting import Drafted, take_drafter
from edgekit.plan.ladder import Ladder
from edgekit.plan.pace import pace, steady_pace
from edgekit.plan.placement import PLACED, ways_of
from edgekit.plan.planned import Decision, Drafter, Lever, Plan, Tried, Wish
from edgekit.plan.sharing import decide_sequences
from edgekit.plan.split import pinned
from edgekit.plan.types import PreflightResult, Question
from edgekit.plan.verdict import judge, judged
from edgekit.plan.weights import Taken, take_weights
from edgekit.plan.wiring import decide_limit
from edgekit.units import format_bytes

MOST_NODES = 64
MOST_SEQUENCES = 256  # llama.h @ 0c1e570: LLAMA_MAX_SEQ
MOST_REQUESTS = 65_536


def make_plan(wish: Wish, *, thorough: bool = True, helpful: bool = True) -> Plan:
    """What to run: weights, placement, window, cache, drafter, sequences.

    `thorough` also looks how many users there is room for and what a Mac's limit holds back; a list of many models does
    without. A plan that does not fit is a result, for the smallest quantisation; `helpful` says what would help then.

    Raises UsageError for wishes that contradict each other, HardwareError where the engine has no hardware there,
    RefusedError where it takes no such model.
    """
    return find_plan(wish, thorough=thorough) or _nothing_fits(wish, helpful=helpful)


def find_plan(wish: Wish, *, thorough: bool = False) -> Plan | None:
    """The same; None where nothing fits."""
    _check(wish)
    taken = take_weights(wish, brief=not thorough)
    if taken is None:
        return None
    found = _on_fewest_cards(taken)
    drafted = take_drafter(wish, found, divided=taken.divided)
    plan = planned(wish, drafted.candidate, drafted.drafter, thorough=thorough)
    decisions = list(_decisions(taken, found, plan.result, drafted))
    if thorough:
        decisions += _further(wish, found)
    return replace(plan, decisions=tuple(decisions))


def planned(
    wish: Wish, found: Candidate, drafter: Drafter | None, *, thorough: bool = False
) -> Plan:
    """A candidate as a plan, before its reasons are told.

    The longest window is that of the way that is planned: what other ways would hold is no part of the plan.
    """
    found = _pinned(found)
    longest = max(found.held.longest if thorough else 0, found.needed)
    question, weighed = found.question, found.weighed
    return Plan(
        wish=wish,
        variant=found.variant,
        load=found.held.load(found.tokens),
        choice=found.choice,
        result=judged(found.ladder, found.tokens, found.because, longest),
        decisions=(),
        drafter=drafter,
        speed=pace(question, weighed),
        steady_tokens_per_s=steady_pace(question, weighed),
    )


def check_users(users: int | None, engine: str) -> None:
    """Raises UsageError for more than an engine serves at once."""
    most = MOST_SEQUENCES if engine == "llama.cpp" else MOST_REQUESTS
    if users is not None and not 1 <= users <= most:
        raise UsageError(f"{users:,} users: {engine} serves 1 to {most:,} at once")


def check_planned(engine: str) -> None:
    """Raises UsageError for an engine that leaves a plan nothing to choose."""
    if engine == "stream":
        raise UsageError(
            "a plan chooses a quantisation, devices and users, and the built-in engine has no use for"
            " them: edgekit check MODEL --engine stream judges it, edgekit run MODEL --engine stream"
            " runs it"
        )


def _check(wish: Wish) -> None:
    check_planned(wish.engine)
    if not wish.variants:
        raise UsageError(f"{wish.label}: no quantisation to choose from")
    if not 1 <= wish.nodes <= MOST_NODES:
        raise UsageError(f"{wish.nodes:,} machines: give 1 to {MOST_NODES}")
    check_users(wish.users, wish.engine)
    if wish.nodes > 1 and wish.engine != "vllm":
        raise UsageError(f"several machines together are planned for vLLM, not for {wish.engine}")


def _on_fewest_cards(taken: Taken) -> Candidate:
    """What fewer cards hold as well and as fast is not spread over more: the largest first."""
    found = taken.candidate
    question = found.question
    if question.engine != "llama.cpp" or question.start.settled & PLACED:
        return found
    ways = ways_of if taken.divided else whole
    for count in range(1, len(found.held.way.cards)):
        fewer = replace(question, most_cards=count)
        other = found.on(Ladder(fewer, ways(fewer)))
        if other is not None and _is_as_fast(other, found):
            return other
    return found


def _is_as_fast(other: Candidate, found: Candidate) -> bool:
    paces = [steady_pace(one.question, one.weighed) for one in (other, found)]
    if paces[0] is None or paces[1] is None:
        return other.held.way.whole or not found.held.way.whole
    return paces[0] >= paces[1]


def _pinned(found: Candidate) -> Candidate:
    """How layers are divided among cards is said: the engine would divide them by what is free when it starts."""
    if not found.held.way.may_resplit or found.weighed.way.setup.tensor_split:
        return found
    way = pinned(found.held.way, found.question.model)
    return found.on(Ladder(found.question, (way,))) or found


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
    if taken.candidate.question.start.settled & PLACED:
        return told
    if taken.divided:
        return f"as a whole it does not fit; so the devices hold as much as they can: {told}"
    return f"it fits as a whole: {told}"


def _kept(found: Candidate) -> str:
    if found.choice.asked:
        keys, values = found.question.load.cache_k, found.question.load.cache_v
        unequal = keys is not None and values is not None and keys.name != values.name
        if unequal and found.held.way.cards:
            return f"{AS_ASKED}; released builds attend to unequal types on the processor"
        return AS_ASKED
    if found.choice.place == 0:
        return "the engine's own"
    told = "the context" if found.because == AS_ASKED else "so long a window"
    return f"the most accurate that holds {told}"


def _further(wish: Wish, found: Candidate) -> Iterator[Decision]:
    several = wish.engine == "vllm"  # more requests may take more cards
    yield decide_sequences(wish, found, whole(found.question) if several else (found.held.way,))
    if found.tokens < found.held.most and wish.load.context_tokens is None:
        limit = decide_limit(
            wish.machine, found.tokens, lambda machine: _longest(wish, found, machine)
        )
        if limit is not None:
            yield limit


def _longest(wish: Wish, found: Candidate, machine: Machine) -> int:
    other = open_window(replace(wish, machine=machine), found.variant)
    return 0 if other is None else other.tokens


def _nothing_fits(wish: Wish, *, helpful: bool) -> Plan:
    """The verdict on the smallest there is, in the smallest cache that the engine takes, and what would help."""
    variant = wish.variants[-1]
    question, result = _with_smallest_cache(question_of(wish, variant))
    smallest = Decision(
        lever=Lever.WEIGHTS,
        value=variant.name,
        because="nothing fits: this is the smallest that was looked at",
        tried=tuple(Tried(value=one.name, told="does not fit") for one in wish.variants),
    )
    helps = changes(question, result) if helpful else ()
    return Plan(
        wish=wish,
        variant=variant,
        load=replace(question.load, context_tokens=result.context_tokens),
        choice=None,
        result=result,
        decisions=(smallest,),
        to_fit=tuple(_for_each(one, result) for one in helps),
    )


def _for_each(change: Change, result: PreflightResult) -> Change:
    """A context is that of one user."""
    if change.kind is not ChangeKind.CONTEXT or result.streams == 1:
        return change
    each = result.max_context // result.streams
    told = f"-c {each}: the largest context that fits for each of {result.streams}"
    return replace(change, value=str(each), told=told)


def _with_smallest_cache(question: Question) -> tuple[Question, PreflightResult]:
    smaller = (
        () if question.engine == "vllm" else cache_choices(question)[1:]
    )  # fp8 is not for every card
    for choice in reversed(smaller):
        asked = choice.of(question)
        try:
            return asked, judge(asked)
        except RefusedError:
            continue
    return question, judge(question)
