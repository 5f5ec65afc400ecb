"""Memory as a function of context, one curve per cache type, with everything else as planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from edgekit.bill.types import CacheChoice, Placement, Price, Start, Task
from edgekit.engines import engine_named
from edgekit.errors import RefusedError, UsageError
from edgekit.plan.choice import with_cache
from edgekit.plan.fit import Fitting
from edgekit.plan.plan import Plan

POINTS = 32  # per curve; a bill is nearly linear between them


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    tokens: int
    required_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Memory needed with one cache type, in the memory that limits the context."""

    cache: str  # "f16", "q8_0", "fp8", "8 bit"
    points: tuple[Point, ...] = field(repr=False)
    memory: str  # "RTX 4090", "RAM"
    budget_bytes: int  # what the engine may use of it
    longest: int  # the longest context that fits every memory; 0: none fits
    native: int  # native context of the model


def plan_curves(plan: Plan, *, bill: Price | None = None) -> tuple[Curve, ...]:
    """A curve for each cache type that the engine has for the model. `bill` includes files loaded with the model."""
    bare = replace(plan.load, context_tokens=None, cache_k=None, cache_v=None)
    task = Task(
        model=plan.variant.model,
        engine=plan.task.engine,
        machine=plan.task.machine,
        load=bare,
        start=Start(setup=plan.result.way.setup),
        bill=bill,
        nodes=plan.task.nodes,
    )
    return curves(task, plan.result.way)


def curves(task: Task, placement: Placement, *, points: int = POINTS) -> tuple[Curve, ...]:
    """Curves for a fixed placement and its budgets. Cache types that the engine refuses are left out."""
    if points < 2:
        raise UsageError(f"a curve of {points} points")
    fittings = list(_fittings(task, placement))
    if not fittings:
        return ()
    # The curves are of one memory: the one that limits the most accurate cache. If none is limited, the fullest.
    limited = next(
        (fitting for _, fitting in fittings if fitting.longest_tokens < fitting.max_tokens), None
    )
    if limited is None:
        _, most_accurate = fittings[0]
        priced = most_accurate.price(most_accurate.max_tokens)
    else:
        too_long = limited.longest_tokens + limited.step_tokens
        priced = limited.price(min(too_long, limited.max_tokens))
    index = priced.uses.index(priced.tightest)
    names = [budget.name for budget in placement.budgets]
    is_unique = names.count(names[index]) == 1
    return tuple(
        Curve(
            cache=choice.name,
            points=tuple(_points(fitting, index, points)),
            memory=names[index] if is_unique else f"{names[index]} #{index}",
            budget_bytes=placement.budgets[index].available_bytes,
            longest=fitting.longest_tokens,
            native=fitting.max_tokens,
        )
        for choice, fitting in fittings
    )


def _fittings(task: Task, placement: Placement) -> Iterator[tuple[CacheChoice, Fitting]]:
    """The cache types that the engine has for the placement, each with the task's fitting for it.

    Settings that a plan made for its own cache are not carried over to the others.
    """
    engine = engine_named(task.engine)
    default = engine.default_setup()
    default_cache = {name: getattr(default, name) for name in engine.cache_fields}
    bare_load = replace(task.load, cache_k=None, cache_v=None)
    plain = replace(task, start=Start(), load=bare_load)
    choices = [(plain, choice) for choice in engine.cache_choices(plain, placement)]
    usual = {choice.name for _, choice in choices}
    # the requested cache type, if it is not one of the engine's choices
    choices += [
        (task, choice)
        for choice in engine.cache_choices(task, placement)
        if choice.is_given and choice.name not in usual
    ]
    for base, choice in choices:
        fields = dict(choice.setup)
        if not choice.is_given:
            fields = default_cache | fields
        setup = placement.setup.changed(**fields)
        cached = replace(with_cache(base, choice), start=Start(setup=setup))
        fitting = Fitting(cached, replace(placement, setup=setup, may_resplit=False))
        try:
            fitting.price(fitting.shortest_tokens)
        except RefusedError:
            continue
        yield choice, fitting


def _points(fitting: Fitting, index: int, count: int) -> Iterator[Point]:
    """Points at even steps up to the native context, and at the longest that fits. Refused contexts are left out."""
    step, max_tokens = fitting.step_tokens, fitting.max_tokens
    parts = (max_tokens * part // (count - 1) // step * step for part in range(1, count - 1))
    lengths = {max(tokens, fitting.shortest_tokens) for tokens in parts}
    lengths |= {fitting.shortest_tokens, max_tokens, fitting.longest_tokens}
    for tokens in sorted(lengths - {0}):
        try:
            uses = fitting.price(tokens).uses
        except RefusedError:
            continue
        yield Point(tokens=tokens, required_bytes=uses[index].required_bytes)
