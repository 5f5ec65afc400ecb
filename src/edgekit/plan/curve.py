"""A plan -> memory against context for each type of cache, everything else as planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from edgekit.bill.types import CacheChoice, Placement, Price, Start, Task
from edgekit.bill.verdict import Usage
from edgekit.engines import engine_named
from edgekit.errors import RefusedError, UsageError
from edgekit.machine.types import Budget
from edgekit.plan.choice import with_cache
from edgekit.plan.fit import Fitting
from edgekit.plan.plan import Plan

POINTS = 32  # of a curve; between them a bill is nearly linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    tokens: int
    required_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one cache type needs of one memory, the one that decides how long a context can be."""

    cache: str  # "f16", "q8_0", "fp8", "8 bit"
    points: tuple[Point, ...] = field(repr=False)
    memory: str  # "RTX 4090", "RAM"
    budget_bytes: int  # what the engine may use of it
    longest: int  # that fits every memory; 0: none does
    native: int  # what the model was made for


def plan_curves(plan: Plan, *, bill: Price | None = None) -> tuple[Curve, ...]:
    """One for each cache type the engine has for the model. `bill` counts companions of the model, if there are any."""
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
    """Placement and budgets stay as they are. Caches that the engine refuses are left out."""
    if points < 2:
        raise UsageError(f"a curve of {points} points")
    fittings = list(_fittings(task, placement))
    if not fittings:
        return ()
    place = _deciding([fitting for _, fitting in fittings])
    return tuple(_curve(choice.name, fitting, place, points) for choice, fitting in fittings)


def _fittings(task: Task, placement: Placement) -> Iterator[tuple[CacheChoice, Fitting]]:
    """Each with its whole setup: what the plan chose for its own cache is not carried over."""
    engine = engine_named(task.engine)
    default = engine.default_setup()
    own = {name: getattr(default, name) for name in engine.cache_fields}
    bare = replace(task.load, cache_k=None, cache_v=None)
    plain = replace(task, start=Start(), load=bare)
    choices = [(plain, choice) for choice in engine.cache_choices(plain, placement)]
    usual = {choice.name for _, choice in choices}
    # and the one that was asked for, where it is none of these
    choices += [
        (task, choice)
        for choice in engine.cache_choices(task, placement)
        if choice.asked and choice.name not in usual
    ]
    for base, choice in choices:
        setup = replace(placement.setup, **{**({} if choice.asked else own), **choice.setup})
        asked = replace(with_cache(base, choice), start=Start(setup=setup))
        fitting = Fitting(asked, replace(placement, setup=setup, may_resplit=False))
        try:
            fitting.price(fitting.least)
        except RefusedError:
            continue
        yield choice, fitting


def _deciding(fittings: Sequence[Fitting]) -> int:
    """The index of the memory that limits the most accurate cache; where none does, of the fullest."""
    for fitting in fittings:
        if fitting.longest < fitting.most:
            beyond = min(fitting.longest + fitting.step, fitting.most)
            return _fullest(fitting.price(beyond).uses)
    return _fullest(fittings[0].price(fittings[0].most).uses)


def _fullest(uses: Sequence[Usage]) -> int:
    return max(
        range(len(uses)), key=lambda place: (uses[place].utilization, uses[place].required_bytes)
    )


def _curve(name: str, fitting: Fitting, place: int, count: int) -> Curve:
    budget = fitting.placement.budgets[place]
    return Curve(
        cache=name,
        points=tuple(_points(fitting, place, count)),
        memory=_memory_name(fitting.placement.budgets, place),
        budget_bytes=budget.available_bytes,
        longest=fitting.longest,
        native=fitting.most,
    )


def _memory_name(budgets: Sequence[Budget], place: int) -> str:
    """With a number where several cards have the same name."""
    name = budgets[place].name
    return f"{name} #{place}" if [one.name for one in budgets].count(name) > 1 else name


def _points(fitting: Fitting, place: int, count: int) -> Iterator[Point]:
    """Evenly up to what the model was made for, and the end of what fits. What the engine refuses is left out."""
    for tokens in sorted({*_contexts(fitting, count), fitting.longest} - {0}):
        try:
            uses = fitting.price(tokens).uses
        except RefusedError:
            continue
        yield Point(tokens=tokens, required_bytes=uses[place].required_bytes)


def _contexts(fitting: Fitting, count: int) -> Iterator[int]:
    step, most = fitting.step, fitting.most
    yield fitting.least
    for part in range(1, count):
        yield (
            max(most * part // (count - 1) // step * step, fitting.least)
            if part < count - 1
            else most
        )
