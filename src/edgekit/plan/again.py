"""A plan -> the choices in it, as plain data; and back, priced anew."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from edgekit.engine.llamacpp.types import LlamaCppSetup
from edgekit.errors import UsageError
from edgekit.plan.caches import CacheChoice, cache_choices
from edgekit.plan.choice import Candidate, at, holder
from edgekit.plan.ladder import Ladder
from edgekit.plan.making import planned, question_of
from edgekit.plan.placement import ways_of
from edgekit.plan.planned import Decision, Lever, Plan, Tried, Wish
from edgekit.plan.types import Variant, Way, Ways

Told = list[list[Any]]  # of every decision: lever, value, because, what was tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What it takes to find a plan again."""

    variant: str
    cache: str
    tokens: int
    because: str
    way: int  # its place among all there are
    where: str  # the same in words
    split: list[float]  # how layers are divided among cards; empty: nothing to divide
    step: int
    decisions: Told


def choices_of(plan: Plan) -> Choices:
    if plan.choice is None or not plan.fits:
        raise UsageError("a plan that does not fit has no choices")
    return Choices(
        variant=plan.variant.name,
        cache=plan.choice.name,
        tokens=plan.result.context_tokens,
        because=plan.result.window,
        way=_place(plan),
        where=plan.result.way.because,
        split=list(getattr(plan.result.way.setup, "tensor_split", ())),
        step=plan.result.step,
        decisions=[_told(one) for one in plan.decisions],
    )


def _told(decision: Decision) -> list[Any]:
    tried = [[one.value, one.told, one.taken] for one in decision.tried]
    return [decision.lever.value, decision.value, decision.because, tried]


def as_data(choices: Choices) -> dict[str, Any]:
    return asdict(choices)


_KINDS: dict[str, tuple[type, ...]] = {
    "tokens": (int,),
    "way": (int,),
    "split": (list,),
    "step": (int,),
    "decisions": (list,),
}


def read_choices(data: object) -> Choices | None:
    """None for what nobody here can have written."""
    if not isinstance(data, dict):
        return None
    found: dict[str, Any] = {one.name: data.get(one.name) for one in fields(Choices)}
    right = all(isinstance(value, _KINDS.get(name, (str,))) for name, value in found.items())
    right = right and all(isinstance(one, int | float) and 0 <= one < 1e6 for one in found["split"])
    if not right or found["tokens"] < 1 or found["way"] < 0:
        return None
    return Choices(**found)


def plan_again(wish: Wish, choices: Choices) -> Plan | None:
    """The plan with these choices; None where it does not fit, or where they mean nothing any more."""
    found = _candidate(wish, choices)
    decisions = _decisions(choices.decisions)
    if found is None or decisions is None:
        return None
    return replace(planned(wish, found), decisions=decisions)


def _candidate(wish: Wish, choices: Choices) -> Candidate | None:
    variant = _named(wish.variants, choices.variant)
    if variant is None:
        return None
    question = at(question_of(wish), variant)
    choice = _named(cache_choices(question), choices.cache)
    if choice is None:
        return None
    question = choice.of(question)
    way = next(iter(ways_of(question)[choices.way : choices.way + 1]), None)
    if way is None or len(choices.split) not in {0, len(way.cards)}:
        return None
    ladder = Ladder(question, (_as_kept(way, choices),))
    held = holder(ladder, choices.tokens)
    if held is None:
        return None
    return Candidate(
        step=choices.step,
        variant=variant,
        choice=choice,
        ladder=ladder,
        held=held,
        tokens=choices.tokens,
        because=choices.because,
    )


def _as_kept(way: Way, choices: Choices) -> Way:
    if not choices.split:
        return replace(way, because=choices.where)
    setup = replace(way.setup, tensor_split=tuple(map(float, choices.split)))
    return replace(way, setup=setup, because=choices.where, may_resplit=False)


N = TypeVar("N", Variant, CacheChoice)


def _named(known: tuple[N, ...], name: str | None) -> N | None:
    return next((one for one in known if one.name == name), None)


def _decisions(told: Told) -> tuple[Decision, ...] | None:
    """None where a decision is not one."""
    try:
        return tuple(
            Decision(
                lever=Lever(lever),
                value=str(value),
                because=str(because),
                tried=tuple(Tried(value=str(v), told=str(t), taken=bool(k)) for v, t, k in tried),
            )
            for lever, value, because, tried in told
        )
    except (TypeError, ValueError):
        return None


def _place(plan: Plan) -> int:
    """Of the way among all there are, however its layers are divided among the cards."""
    wanted = _undivided(plan.result.way.setup)
    for place, one in enumerate(_ways(plan)):
        if _undivided(one.setup) == wanted:
            return place
    raise UsageError(f"{plan.wish.label}: its way is none of those there are")


def _ways(plan: Plan) -> Ways:
    question = at(question_of(plan.wish), plan.variant)
    return ways_of(question if plan.choice is None else plan.choice.of(question))


def _undivided(setup: Any) -> Any:
    if not isinstance(setup, LlamaCppSetup):
        return setup
    return replace(setup, tensor_split=())
