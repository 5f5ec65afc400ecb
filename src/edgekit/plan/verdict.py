"""A model, an engine and a machine -> whether it fits, how long a context, and how it would be started."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from edgekit.basis import Basis
from edgekit.engine import engine_named
from edgekit.memory.types import Component, Load, MemoryEstimate, MemoryLine
from edgekit.plan.context import longest, recommended_context
from edgekit.plan.fitting import Fitting
from edgekit.plan.ladder import Ladder
from edgekit.plan.placement import ways_of
from edgekit.plan.types import SAFE_PERCENT, Bill, PreflightResult, Question, Status

# Of a bill without the tensor directory no line is trusted further than this, whatever its own bound.
_ALWAYS_WHOLE = frozenset({"vllm", "mlx"})  # they leave nothing on the host
LEAST_BOUND, LEAST_COMPUTE_BOUND = 0.01, 0.1


def judge(question: Question) -> PreflightResult:
    """The verdict for the best way to start the engine there: the first that holds the context, most on the devices.

    Raises HardwareError where the engine cannot run on the machine, RefusedError where it would not run the model.
    """
    ladder = Ladder(question, ways_of(question))
    return judged(ladder, *_context(ladder))


def judged(
    ladder: Ladder, tokens: int, because: str, longest_tokens: int | None = None
) -> PreflightResult:
    """The verdict for so many tokens, by the ways of this ladder; `longest_tokens` where it is known already."""
    question = ladder.question
    fitting = ladder.holder(tokens) or ladder.nearest(tokens)
    weighed = fitting.price(tokens)
    most = ladder.longest if longest_tokens is None else longest_tokens
    # With layers divided as for these tokens: another division may hold more, but it is another command.
    same = fitting if weighed.way is fitting.way else Fitting(question, weighed.way)
    reasons = tuple(fitting.reasons(weighed, most))
    geometry = question.model.geometry
    return PreflightResult(
        engine=question.engine,
        status=Status.FAILED if reasons else weighed.status,
        context_tokens=tokens,
        asked=ladder.top.asked is not None,
        max_context=most,
        way_context=same.longest if longest_tokens is None else most,
        recommended_context=recommended_context(most),
        native_context=geometry.native_context or geometry.trained_context,
        streams=fitting.streams,
        uses=weighed.uses,
        estimate=weighed.estimate,
        reasons=reasons,
        window=because,
        way=weighed.way,
        machine=question.machine,
    )


def is_decided(question: Question, result: PreflightResult, *, loads_only: bool = False) -> bool:
    """Whether the answer to a bill without the tensor directory is the answer: its bounds change nothing in it.

    That is so where all of the model and its whole window fit comfortably with every line at its upper bound, or where
    not even the shortest context fits with every line at its lower one. In between the directory decides.
    `loads_only`: the longest context and the comfort do not matter, only whether it loads.
    """
    if question.bill is not None or result.estimate.basis is Basis.ASSUMED:
        return False
    if result.failed:
        lowest = replace(question, bill=_at_bound(question, -1))
        if loads_only:
            return not would_hold(lowest)
        ladder = Ladder(lowest, ways_of(question))
        return not result.max_context and ladder.holder(ladder.top.least) is None
    highest = Fitting(replace(question, bill=_at_bound(question, 1)), result.way)
    if loads_only:
        return highest.fits(result.context_tokens) and highest.fits(
            min(highest.minimum, highest.most)
        )
    return (
        result.passed
        and (result.way.whole or question.engine in _ALWAYS_WHOLE)
        and result.max_context == highest.most
        and highest.price(result.context_tokens).status is Status.PASSED
        and highest.fits(result.max_context)
    )


def _at_bound(question: Question, sign: int) -> Bill:
    """The engine's bill with every line as far off as it may be."""
    engine = engine_named(question.engine)

    def moved(line: MemoryLine) -> MemoryLine:
        least = LEAST_COMPUTE_BOUND if line.component is Component.COMPUTE else LEAST_BOUND
        within = max(line.within or 0.0, least)
        return replace(line, size_bytes=max(0, math.ceil(line.size_bytes * (1 + sign * within))))

    def bill(load: Load, setup: Any) -> MemoryEstimate:
        estimate = engine.estimate(question.model, load, setup)
        return replace(estimate, lines=tuple(map(moved, estimate.lines)))

    return bill


def would_hold(question: Question) -> bool:
    """Whether `judge` would say that it loads, without looking how long a context it could be."""
    ladder = Ladder(question, ways_of(question))
    return (
        ladder.holder(max(ladder.top.asked or 0, ladder.top.minimum, ladder.top.least)) is not None
    )


def _context(ladder: Ladder) -> tuple[int, str]:
    """What was asked for; else the window to open, and where too little fits, the least that is of use.

    A window that all devices hold together goes before a longer one with layers on the host.
    """
    top = ladder.top
    if top.asked is not None:
        return top.asked, top.asked_because
    window, because = top.window
    places = ((0, top.longest, top.comfortable), (ladder.last, ladder.longest, top.minimum))
    for place, reach, least in places:
        if reach >= max(least, 1):
            if window > reach:
                return _within(ladder, place, reach, least)
            if window < top.least:
                return top.least, "the shortest there is: its cache is more than the budget"
            return window, because
    return max(min(top.minimum, top.most), top.least), "the least that is of use"


def _within(ladder: Ladder, place: int, reach: int, least: int) -> tuple[int, str]:
    """All that fits; of the built-in engine, which is for memories that are scarce, what leaves room."""
    if ladder.question.engine == "stream":
        rung = ladder.rung(place)
        tokens = longest(
            lambda count: rung.price(count).status is Status.PASSED, step=rung.step, most=reach
        )
        if tokens >= least:
            return tokens, f"the longest that fills less than {SAFE_PERCENT} %"
    return reach, "the longest that fits"
