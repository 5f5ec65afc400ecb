"""The verdict on a task: whether the model fits, with which weights, context, cache and placement."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, Price, Task
from edgekit.bill.verdict import Verdict
from edgekit.engines import engine_named
from edgekit.engines.speed import expected_speed, steady_throughput
from edgekit.errors import RefusedError
from edgekit.plan.choice import READING_TOKENS_PER_S, Candidate, Choice, choose
from edgekit.plan.fit import Fitting, recommended_context
from edgekit.plan.placement import Ladder, placements_of

# Without the tensor directory, no line of a bill is trusted beyond this, whatever its own bound.
LEAST_BOUND, LEAST_COMPUTE_BOUND = 0.01, 0.1


def judge(task: Task) -> Verdict:
    """The verdict on what SPEC A4 chooses.

    Raises HardwareError if the engine cannot run on the machine, RefusedError if it does not support the model.
    """
    return result_of(choose(task))


def result_of(choice: Choice, *, max_context: int | None = None) -> Verdict:
    """The verdict on a choice. Pass `max_context` if it is known or does not matter."""
    found = pinned_candidate(choice.candidate) if choice.fits else choice.candidate
    return result_for(found, max_context=max_context)


def result_for(found: Candidate, *, max_context: int | None = None) -> Verdict:
    priced, task, held = found.priced, found.task, found.held
    reasons: tuple[str, ...] = ()
    if found.step:
        most = max_context
        if most is None:  # never above the model's own context, even if more was requested
            most = held.longest if found.tokens > held.most else max(held.longest, found.tokens)
    else:
        most = _longest_anywhere(found) if max_context is None else max_context
        reasons = tuple(_reasons(found, most))
    geometry = task.model.geometry
    # No speed for a bare name: its layers are those of another model.
    is_rough = task.bill is not None and priced.estimate.basis is Basis.ASSUMED
    return Verdict(
        engine=task.engine,
        status=found.status,
        context_tokens=found.tokens,
        asked=held.requested is not None,
        max_context=most,
        recommended_context=recommended_context(most),
        native_context=geometry.native_context or geometry.trained_context,
        streams=held.streams,
        quantization=weights_name(priced.placement.setup, found.variant.name),
        cache=found.choice.name,
        cache_asked=found.choice.is_given,
        step=found.step,
        variant=found.variant,
        load=held.task.load_of(found.tokens),
        uses=priced.uses,
        speed=None if not found.step or is_rough else expected_speed(task, priced),
        estimate=priced.estimate,
        reasons=reasons,
        window=found.because,
        way=priced.placement,
        machine=task.machine,
    )


def is_too_short(result: Verdict) -> bool:
    """Whether the model's own context is shorter than the minimum, so that no memory helps."""
    native = (result.native_context or 0) * result.streams
    return result.failed and not result.asked and 0 < native < result.context_tokens


def weights_name(setup: Any, name: str) -> str:
    """The quantisation of the weights: the one requested in the setup, else that of the file."""
    quantize: Any = getattr(setup, "quantize", None)
    if hasattr(quantize, "packing") and quantize.rest:
        mode = quantize.packing.mode.value
        return f"{quantize.packing.bits} bit" if mode == "affine" else str(mode)
    return str(getattr(setup, "mix", None) or getattr(setup, "quantization", None) or name)


def pinned_candidate(found: Candidate) -> Candidate:
    """The candidate with layers pinned to cards as billed; by default the engine splits by the memory free at start."""
    if not found.held.placement.may_resplit:
        return found
    divided = found.held.engine.pinned(found.task.model, found.priced.placement)
    return found.on(Ladder(found.task, (divided,))) or found


def _longest_anywhere(found: Candidate) -> int:
    """The longest context that fits with these weights and this cache in any placement."""
    try:
        return Ladder(found.task, placements_of(found.task)).longest
    except RefusedError:
        return 0


def _reasons(found: Candidate, longest_tokens: int) -> list[str]:
    top = found.held
    if top.requested is None and top.minimum > top.most:
        length, minimum = top.most // top.streams, top.minimum // top.streams
        return [
            f"the model has a context of {length:,} tokens, and --min-context asks for {minimum:,}"
        ]
    return list(top.reasons(found.priced, longest_tokens))


def is_decided(task: Task, result: Verdict, *, loads_only: bool = False) -> bool:
    """Whether a verdict made without the tensor directory is final.

    It is if it stays the same with every line at its lower and at its upper bound, and the whole model fits
    comfortably or no context fits at all. Otherwise the directory has to be read. `loads_only`: check only `can_load`.
    """
    if task.bill is not None or result.estimate.basis is Basis.ASSUMED:
        return False
    if loads_only:
        bound = replace(task, bill=_at_bound(task, 1 if result.can_load else -1))
        return choose(bound).fits == result.can_load
    if result.can_load:
        is_read = result.variant is None or not result.variant.changes
        is_easy = result.passed and result.step == 1 and is_read and result.way.whole
        if not is_easy or _is_near_reading_speed(task, result):
            return False
    bounds = (replace(task, bill=_at_bound(task, sign)) for sign in (1, -1))
    return all(_answer(judge(bound)) == _answer(result) for bound in bounds)


def _answer(result: Verdict) -> tuple[object, ...]:
    return (
        result.status,
        result.quantization,
        result.cache,
        result.context_tokens,
        result.max_context,
        result.way.because,
    )


def _is_near_reading_speed(task: Task, result: Verdict) -> bool:
    """Whether slightly larger or smaller weights could change whether spare memory is spent."""
    fitting = Fitting(replace(task, load=result.load), result.way)
    speed = steady_throughput(task, fitting.price(result.context_tokens))
    return speed is not None and abs(speed / READING_TOKENS_PER_S - 1) < LEAST_COMPUTE_BOUND


def _at_bound(task: Task, sign: int) -> Price:
    """The engine's bill with every line at its upper (`sign` 1) or lower (-1) bound."""
    engine = engine_named(task.engine)

    def moved(line: MemoryLine) -> MemoryLine:
        least = LEAST_COMPUTE_BOUND if line.component is Component.COMPUTE else LEAST_BOUND
        within = max(line.within or 0.0, least)
        return replace(line, size_bytes=max(0, math.ceil(line.size_bytes * (1 + sign * within))))

    def bill(load: Load, setup: Any) -> MemoryEstimate:
        estimate = engine.estimate(task.model, load, setup)
        return replace(estimate, lines=tuple(map(moved, estimate.lines)))

    return bill


def download_bytes(result: Verdict) -> int | None:
    """The download size of the judged weights; None if unknown.

    The size of the repository if it was read, else the size of the model's quantised tensors.
    """
    if result.variant is None:
        return None
    engine = engine_named(result.engine)
    return engine.download_bytes(result.variant.model, result.way.setup, result.estimate)
