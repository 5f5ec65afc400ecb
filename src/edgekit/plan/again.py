"""A plan -> the choices in it, as plain data; and back, priced anew."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from edgekit.engine.llamacpp.types import LlamaCppSetup
from edgekit.errors import UsageError
from edgekit.hardware.budgets import devices_for
from edgekit.plan.caches import CacheChoice, cache_choices, with_setup
from edgekit.plan.candidates import Candidate, holder, needed, question_of
from edgekit.plan.drafting import with_drafter_beside
from edgekit.plan.ladder import Ladder
from edgekit.plan.making import planned
from edgekit.plan.placement import ways_of
from edgekit.plan.planned import Decision, Drafter, Lever, Plan, Tried, Variant, Wish
from edgekit.plan.types import Way, Ways

Told = list[list[Any]]  # of every decision: lever, value, because, what was tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What it takes to find a plan again."""

    variant: str
    cache: str
    tokens: int
    because: str
    most_cards: int | None
    way: int  # its place among all there are
    where: str  # the same in words
    split: list[float]  # how layers are divided among cards; empty: nothing to divide
    cache_on_host: bool
    drafter: str | None
    decisions: Told


def choices_of(plan: Plan) -> Choices:
    if plan.choice is None:
        raise UsageError("a plan that does not fit has no choices")
    return Choices(
        variant=plan.variant.name,
        cache=plan.choice.name,
        tokens=plan.result.context_tokens,
        because=plan.result.window,
        most_cards=_most_cards(plan),
        way=_place(plan),
        where=plan.result.way.because,
        split=list(getattr(plan.result.way.setup, "tensor_split", ())),
        cache_on_host=not getattr(plan.result.way.setup, "offload_kqv", True),
        drafter=plan.drafter.name if plan.drafter is not None else None,
        decisions=[_told(one) for one in plan.decisions],
    )


def _told(decision: Decision) -> list[Any]:
    tried = [[one.value, one.told, one.taken] for one in decision.tried]
    return [decision.lever.value, decision.value, decision.because, tried]


def as_data(choices: Choices) -> dict[str, Any]:
    return asdict(choices)


_KINDS: dict[str, tuple[type, ...]] = {
    "tokens": (int,),
    "most_cards": (int, type(None)),
    "way": (int,),
    "split": (list,),
    "cache_on_host": (bool,),
    "drafter": (str, type(None)),
    "decisions": (list,),
}


def read_choices(data: object) -> Choices | None:
    """None for what nobody here can have written."""
    if not isinstance(data, dict):
        return None
    found: dict[str, Any] = {one.name: data.get(one.name) for one in fields(Choices)}
    right = all(isinstance(value, _KINDS.get(name, (str,))) for name, value in found.items())
    right = right and all(isinstance(one, int | float) and 0 <= one < 1e6 for one in found["split"])
    if not right or found["tokens"] < 1 or found["way"] < 0 or (found["most_cards"] or 1) < 1:
        return None
    return Choices(**found)


def plan_again(wish: Wish, choices: Choices) -> Plan | None:
    """The plan with these choices; None where it does not fit, or where they mean nothing any more."""
    found = _candidate(wish, choices)
    decisions = _decisions(choices.decisions)
    if found is None or decisions is None:
        return None
    drafter = _named(wish.drafters, choices.drafter)
    return replace(planned(wish, found, drafter), decisions=decisions)


def _candidate(wish: Wish, choices: Choices) -> Candidate | None:
    variant = _named(wish.variants, choices.variant)
    drafter = _named(wish.drafters, choices.drafter)
    if variant is None or (choices.drafter is not None and drafter is None):
        return None
    question = question_of(wish, variant)
    choice = _named(cache_choices(question), choices.cache)
    if choice is None:
        return None
    question = replace(choice.of(question), most_cards=choices.most_cards)
    if drafter is not None:
        question = with_drafter_beside(question, drafter)
    if choices.cache_on_host:
        question = with_setup(question, offload_kqv=False)
    way = next(iter(ways_of(question)[choices.way : choices.way + 1]), None)
    if way is None or len(choices.split) not in {0, len(way.cards)}:
        return None
    ladder = Ladder(question, (_as_kept(way, choices),))
    held = holder(ladder, needed(ladder.top, choices.tokens))
    if held is None:
        return None
    return Candidate(
        variant=variant,
        choice=choice,
        ladder=ladder,
        held=held,
        tokens=choices.tokens,
        because=choices.because,
        tried=(),
    )


def _as_kept(way: Way, choices: Choices) -> Way:
    if not choices.split:
        return replace(way, because=choices.where)
    setup = replace(way.setup, tensor_split=tuple(map(float, choices.split)))
    return replace(way, setup=setup, because=choices.where, may_resplit=False)


N = TypeVar("N", Variant, Drafter, CacheChoice)


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
    question = question_of(plan.wish, plan.variant)
    if plan.choice is not None:
        question = plan.choice.of(question)
    return ways_of(replace(question, most_cards=_most_cards(plan)))


def _most_cards(plan: Plan) -> int | None:
    """How many cards the plan keeps to; None where it uses all that are worth it."""
    engine = plan.wish.engine
    used, cards = len(plan.result.way.cards), len(devices_for(plan.wish.machine, engine))
    return used if 0 < used < cards and engine == "llama.cpp" else None


def _undivided(setup: Any) -> Any:
    if not isinstance(setup, LlamaCppSetup):
        return setup
    return replace(setup, tensor_split=(), offload_kqv=True, draft_max=0, load_mtp=False)
