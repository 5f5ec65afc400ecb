"""A wish and one quantisation -> the window that is opened with it: how many tokens, and how they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.engine.types import Model
from edgekit.errors import RefusedError, UsageError
from edgekit.plan.caches import CacheChoice, cache_choices, with_setup
from edgekit.plan.context import MINIMUM_TOKENS, UNKNOWN_NATIVE_TOKENS
from edgekit.plan.fitting import Fitting
from edgekit.plan.ladder import Ladder
from edgekit.plan.placement import ways_of, whole_ways
from edgekit.plan.planned import Tried, Variant, Wish
from edgekit.plan.types import Question, Ways, Weighed

MARGIN_PERCENT = 5  # kept free of the longest window, where the memory and not the model ends it
ROUND_TOKENS = 1024  # a window is a round number
CLOSE_PLACE = 1  # of a cache type: this far from the engine's own nothing is missed
AS_ASKED = "as asked"
STRETCHES = 3

WayMaker = Callable[[Question], Ways]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One quantisation with the window it leaves room for, and the first way that holds it."""

    variant: Variant
    choice: CacheChoice
    ladder: Ladder = field(repr=False)
    held: Fitting = field(repr=False)
    tokens: int
    because: str  # so many tokens
    tried: tuple[Tried, ...]  # caches

    @property
    def question(self) -> Question:
        return self.ladder.question

    @property
    def weighed(self) -> Weighed:
        return self.held.price(self.tokens)

    @property
    def needed(self) -> int:
        """What has to fit: with a shorter window a model may be asked to hold more as well."""
        return needed(self.held, self.tokens)

    def on(self, ladder: Ladder) -> Candidate | None:
        """The same window by other ways; None where they do not hold it."""
        held = holder(ladder, self.needed)
        return None if held is None else replace(self, ladder=ladder, held=held)


def needed(fitting: Fitting, tokens: int) -> int:
    return max(tokens, fitting.minimum, fitting.least)


def holder(ladder: Ladder, tokens: int) -> Fitting | None:
    """The first way that holds so many tokens; None also for what the engine refuses."""
    try:
        return ladder.holder(tokens)
    except RefusedError:
        return None


def whole(question: Question) -> Ways:
    """All of it where the engine computes: on the devices, or on the processor of a machine without any."""
    return whole_ways(question) if question.engine == "llama.cpp" else ways_of(question)


def question_of(wish: Wish, variant: Variant) -> Question:
    """Users have a window of their own each: llama.cpp counts them together, the others apart.

    Who asks for a context is content with it: less than is useful unasked is no failure then.
    """
    load, users, tokens = wish.load, wish.users, wish.load.context_tokens
    if tokens == 0:
        tokens = _native(variant) or UNKNOWN_NATIVE_TOKENS
    least = wish.min_context
    if least is None and tokens is not None:
        least = min(tokens, MINIMUM_TOKENS)
    if users is not None:
        load = replace(load, sequences=users)
        if wish.engine == "llama.cpp":
            load = replace(load, unified=False)
            tokens = None if tokens is None else tokens * users
    question = Question(
        model=variant.model,
        engine=wish.engine,
        machine=wish.machine,
        load=replace(load, context_tokens=tokens),
        start=wish.start,
        min_context=least,
        nodes=wish.nodes,
        in_one_batch=reads_at_once(variant.model, wish.engine, wish.start.setup),
        cancelled=wish.cancelled,
    )
    return with_setup(question, **variant.changes) if variant.changes else question


def reads_at_once(model: Model, engine: str, setup: Any) -> bool:
    """An input is not cut in pieces for an embedding, unless only its last token counts (server-context.cpp @ b21e4de:
    can_split).
    """
    embeds = engine == "llama.cpp" and setup is not None and setup.embeddings
    return embeds and (not model.geometry.causal or model.geometry.pooling != "last")


def _native(variant: Variant) -> int | None:
    geometry = variant.model.geometry
    return geometry.native_context or geometry.trained_context


def open_window(
    wish: Wish, variant: Variant, *, brief: bool = False, divided: bool = False
) -> Candidate | None:
    """The window for a quantisation; None where not even the least that is of use fits.

    A context that was asked for gets the most accurate cache that holds it. With none asked for the longest window
    goes first, then accuracy; the other way round where that is preferred. `divided`: parts may lie on the host. Then
    no longer a window is opened than usual, for every token of it would push layers off the devices. `brief`: how long
    a window the other caches hold is not looked at.

    Raises UsageError for more tokens than the model was made for, RefusedError where the engine takes no cache of it.
    """
    _check_window(wish, variant)
    ladders = _ladders(question_of(wish, variant), ways_of if divided else whole)
    if ladders[0][1].top.asked is not None:
        return _first_holder(variant, ladders, ladders[0][1].top.asked, AS_ASKED)
    return _usual(variant, ladders) if divided else _longest(wish, variant, ladders, brief=brief)


def _check_window(wish: Wish, variant: Variant) -> None:
    native = _native(variant)
    for asked, flag in ((wish.load.context_tokens, "-c"), (wish.min_context, "--min-context")):
        if asked and native is not None and asked > native:
            raise UsageError(
                f"{asked:,} tokens of context are asked for, and the model was made for {native:,}: ask for {flag} "
                f"{native} or less"
            )


Ladders = list[tuple[CacheChoice, Ladder]]


def _ladders(question: Question, ways: WayMaker) -> Ladders:
    """One for each cache type of the engine. The first is the engine's own, or what was asked for."""
    asked = ((choice, choice.of(question)) for choice in cache_choices(question))
    return [(choice, Ladder(one, ways(one))) for choice, one in asked]


def _usual(variant: Variant, ladders: Ladders) -> Candidate | None:
    """The window that is opened unasked; where that does not fit, half of it, and so on to the least that is of use."""
    top = ladders[0][1].top
    least = needed(top, 0)
    if holder(ladders[-1][1], least) is None:  # the smallest cache: none of the others holds more
        return None
    tokens, because = top.window
    told = f"what fits of the usual window of {tokens:,}"
    beyond = 0
    while tokens > least:
        found = _first_holder(variant, ladders, tokens, because)
        if found is not None:
            return _stretched(found, ladders, beyond)
        beyond, tokens, because = tokens, tokens // 2 // top.step * top.step, told
    return _first_holder(variant, ladders, min(least, top.most), "the least that is of use")


def _stretched(found: Candidate, ladders: Ladders, beyond: int) -> Candidate:
    """Longer, up to an eighth of the way to what does not fit, in no smaller a cache."""
    for _ in range(STRETCHES if beyond else 0):
        step = found.held.step
        tokens = (found.tokens + beyond) // 2 // step * step
        other = _first_holder(found.variant, ladders, tokens, found.because)
        if other is not None and other.choice.place <= found.choice.place:
            found = other
        else:
            beyond = tokens
    return found


def _first_holder(
    variant: Variant, ladders: Ladders, tokens: int, because: str
) -> Candidate | None:
    most = needed(ladders[0][1].top, tokens)
    tried: list[Tried] = []
    for choice, ladder in ladders:
        held = holder(ladder, most)
        if held is not None:
            tried.append(Tried(value=choice.name, told=f"holds {most:,} tokens", taken=True))
            return Candidate(
                variant=variant,
                choice=choice,
                ladder=ladder,
                held=held,
                tokens=tokens,
                because=because,
                tried=tuple(tried),
            )
        tried.append(Tried(value=choice.name, told=f"does not hold {most:,} tokens"))
    return None


def _longest(wish: Wish, variant: Variant, ladders: Ladders, *, brief: bool) -> Candidate | None:
    top = ladders[0][1].top
    least = needed(top, 0)
    goal = _goal(wish, [one for _, one in ladders], least)
    if goal is None:
        return None
    tokens, because = with_margin(goal, min(least, top.most), top)
    found = _first_holder(variant, ladders, tokens, because)
    if found is None or brief:
        return found
    return replace(found, tried=tuple(_lengths(ladders, found.choice)))


def _goal(wish: Wish, ladders: list[Ladder], least: int) -> int | None:
    """The longest window of those that hold the least that is of use; None where none does.

    Of llama.cpp's caches the smallest holds most; MLX works beside a packed one, and may hold less.
    """
    holding = (one for one in ladders if holder(one, least) is not None)
    if wish.prefer_accurate_cache:
        return next((one.longest for one in holding), None)
    if wish.engine != "llama.cpp":
        return max((one.longest for one in holding), default=None)
    if holder(ladders[0], max(least, ladders[0].top.most)) is not None:
        return ladders[0].top.most  # nothing is longer
    smallest = (one for one in reversed(ladders) if holder(one, least) is not None)
    return next((one.longest for one in smallest), None)


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


def with_margin(longest_tokens: int, least: int, top: Fitting) -> tuple[int, str]:
    """The window to open where so many tokens fit, and why."""
    if longest_tokens >= top.most:
        known = top.states_its_window
        return top.most, (
            "all the model was made for"
            if known
            else "the model does not say how many it was made for: so many are taken"
        )
    less = longest_tokens * (100 - MARGIN_PERCENT) // 100
    tokens = max(less - less % (ROUND_TOKENS * top.streams), least)
    return tokens, f"the longest that fits, {longest_tokens:,}, less a margin of {MARGIN_PERCENT} %"


def reaches(wish: Wish, variant: Variant, tokens: int) -> bool:
    """Whether it holds so many tokens as a whole, in a cache that is the engine's own or nearly as accurate."""
    question = question_of(wish, variant)
    asked = (choice.of(question) for choice in cache_choices(question)[: CLOSE_PLACE + 1])
    return any(holder(Ladder(one, whole(one)), tokens) is not None for one in asked)
