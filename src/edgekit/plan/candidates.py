"""A wish and one quantisation -> the window that is opened with it: how many tokens, and how they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from edgekit.errors import RefusedError, UsageError
from edgekit.hardware.budgets import devices_for
from edgekit.plan.caches import CacheChoice, cache_choices, with_setup
from edgekit.plan.context import MINIMUM_TOKENS
from edgekit.plan.ladder import Ladder
from edgekit.plan.placement import ways_of
from edgekit.plan.planned import Tried, Variant, Wish
from edgekit.plan.types import Question, Ways

MARGIN_PERCENT = 5  # kept free of the longest window, where the memory and not the model ends it
ROUND_TOKENS = 1024  # a window is a round number
CLOSE_PLACE = 1  # of a cache type: this far from the engine's own nothing is missed

WayMaker = Callable[[Question], Ways]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One quantisation with the window it leaves room for."""

    variant: Variant
    choice: CacheChoice
    ladder: Ladder = field(repr=False)
    tokens: int
    because: str  # so many tokens
    tried: tuple[Tried, ...]  # caches


def whole(question: Question) -> Ways:
    """All of it where the engine computes: on the devices, or on the processor of a machine without any."""
    ways = ways_of(question)
    return ways[:1] if question.engine == "llama.cpp" else ways


def question_of(wish: Wish, variant: Variant) -> Question:
    """Users have a window of their own each: llama.cpp counts them together, the others apart.

    Who asks for a context is content with it: less than is useful unasked is no failure then.
    """
    load, users = wish.load, wish.users
    least = wish.min_context
    if least is None and load.context_tokens:
        least = min(load.context_tokens, MINIMUM_TOKENS)
    if users is not None:
        load = replace(load, sequences=users)
        if wish.engine == "llama.cpp":
            load = replace(load, unified=False)
            if load.context_tokens:
                load = replace(load, context_tokens=load.context_tokens * users)
    question = Question(
        model=variant.model,
        engine=wish.engine,
        machine=wish.machine,
        load=load,
        start=wish.start,
        min_context=least,
        nodes=wish.nodes,
    )
    return with_setup(question, **variant.changes) if variant.changes else question


def open_window(
    wish: Wish, variant: Variant, *, brief: bool = False, divided: bool = False
) -> Candidate | None:
    """The window for a quantisation; None where not even the least that is of use fits.

    A context that was asked for gets the most accurate cache that holds it. With none asked for the longest window
    goes first, then accuracy; the other way round where that is preferred. `divided`: parts may lie on the host. Then
    no longer a window is opened than usual, for every token of it would push layers off the devices. `brief`: how long
    a window the other caches hold is not looked at.
    """
    ladders = _ladders(question_of(wish, variant), ways_of if divided else whole)
    check_window(ladders[0][1])
    if ladders[0][1].top.asked is not None:
        return _asked(variant, ladders)
    return _usual(variant, ladders) if divided else _longest(wish, variant, ladders, brief=brief)


Ladders = list[tuple[CacheChoice, Ladder]]


def _ladders(question: Question, ways: WayMaker) -> Ladders:
    """One for each cache type of the engine."""
    on_the_cpu = not devices_for(question.machine, question.engine)
    asked = (
        (choice, choice.of(question)) for choice in cache_choices(question, on_the_cpu=on_the_cpu)
    )
    return [(choice, Ladder(one, ways(one))) for choice, one in asked]


def _holds(ladder: Ladder, tokens: int) -> bool:
    """A cache that the engine refuses for this model holds nothing; the engine's own is never asked in vain."""
    try:
        return ladder.holder(tokens) is not None
    except RefusedError:
        return False


def check_window(ladder: Ladder) -> None:
    """Raises UsageError for more tokens than the model was made for."""
    asked, native = ladder.top.asked, ladder.question.model.geometry.native_context
    if asked is not None and native is not None and asked > native * ladder.top.streams:
        raise UsageError(
            f"{asked // ladder.top.streams:,} tokens of context are asked for, and the model was made for {native:,}: "
            f"ask for -c {native} or less"
        )


def _asked(variant: Variant, ladders: Ladders) -> Candidate | None:
    return _first_holder(variant, ladders, ladders[0][1].top.asked or 0, "as asked")


def _usual(variant: Variant, ladders: Ladders) -> Candidate | None:
    """The window that is opened unasked; where that does not fit, half of it, and so on to the least that is of use."""
    top = ladders[0][1].top
    least = max(min(top.minimum, top.most), top.least)
    tokens, because = top.window
    while tokens > least:
        found = _first_holder(variant, ladders, tokens, because)
        if found is not None:
            return found
        tokens, because = tokens // 2 // top.step * top.step, "what fits of the usual window"
    return _first_holder(variant, ladders, least, "the least that is of use")


def _first_holder(
    variant: Variant, ladders: Ladders, tokens: int, because: str
) -> Candidate | None:
    tried: list[Tried] = []
    for choice, ladder in ladders:
        held = max(tokens, ladder.top.minimum, ladder.top.least)
        if _holds(ladder, held):
            tried.append(Tried(value=choice.name, told=f"holds {tokens:,} tokens", taken=True))
            return Candidate(
                variant=variant,
                choice=choice,
                ladder=ladder,
                tokens=tokens,
                because=because,
                tried=tuple(tried),
            )
        tried.append(Tried(value=choice.name, told=f"does not hold {tokens:,} tokens"))
    return None


def _longest(wish: Wish, variant: Variant, ladders: Ladders, *, brief: bool) -> Candidate | None:
    top = ladders[0][1].top
    least = max(min(top.minimum, top.most), top.least)
    order = ladders if wish.prefer_accurate_cache else ladders[::-1]
    goal = next((ladder.longest for _, ladder in order if _holds(ladder, least)), None)
    if goal is None:
        return None
    tokens, because = with_margin(goal, least, top.most, ROUND_TOKENS * top.streams)
    choice, ladder = next(one for one in ladders if _holds(one[1], tokens))
    return Candidate(
        variant=variant,
        choice=choice,
        ladder=ladder,
        tokens=tokens,
        because=because,
        tried=() if brief else tuple(_lengths(ladders, choice)),
    )


def _lengths(ladders: Ladders, taken: CacheChoice) -> Iterator[Tried]:
    """How long a window each cache holds, up to the first that holds all."""
    for choice, ladder in ladders:
        try:
            longest = ladder.longest
        except RefusedError as error:
            yield Tried(value=choice.name, told=f"refused: {error}")
            continue
        yield Tried(value=choice.name, told=f"up to {longest:,} tokens", taken=choice is taken)
        if longest == ladder.top.most:
            return


def with_margin(longest_tokens: int, least: int, most: int, unit: int) -> tuple[int, str]:
    """The window to open where so many tokens fit, and why."""
    if longest_tokens >= most:
        return most, "all the model was made for"
    less = longest_tokens * (100 - MARGIN_PERCENT) // 100
    tokens = max(less - less % unit, least)
    return tokens, f"the longest that fits, {longest_tokens:,}, less a margin of {MARGIN_PERCENT} %"


def reaches(wish: Wish, variant: Variant, tokens: int) -> bool:
    """Whether it holds so many tokens as a whole, in a cache that is the engine's own or nearly as accurate."""
    question = question_of(wish, variant)
    on_the_cpu = not devices_for(question.machine, question.engine)
    for choice in cache_choices(question, on_the_cpu=on_the_cpu)[: CLOSE_PLACE + 1]:
        asked = choice.of(question)
        if _holds(Ladder(asked, whole(asked)), tokens):
            return True
    return False
