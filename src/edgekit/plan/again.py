"""A plan -> the choices in it, as plain data; and back, priced anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.hardware.budgets import devices_for
from edgekit.plan.caches import cache_choices, with_setup
from edgekit.plan.candidates import question_of
from edgekit.plan.drafting import with_drafter_beside
from edgekit.plan.ladder import Ladder
from edgekit.plan.pace import pace, steady_pace
from edgekit.plan.placement import ways_of
from edgekit.plan.planned import Decision, Lever, Plan, Wish
from edgekit.plan.types import Question, Way
from edgekit.plan.verdict import judged


def choices_of(plan: Plan) -> dict[str, Any]:
    """What it takes to find the plan again."""
    used = len(plan.result.way.cards)
    cards = len(devices_for(plan.wish.machine, plan.wish.engine))
    cache = plan.decision(Lever.CACHE)
    most = used if 0 < used < cards and plan.wish.engine == "llama.cpp" else None
    question = _question(plan.wish, plan.variant.name, cache.value if cache else "", most)
    return {
        "variant": plan.variant.name,
        "cache": cache.value if cache else "",
        "tokens": plan.result.context_tokens,
        "because": plan.result.window,
        "most_cards": most,
        "way": _place(question, plan.result.way),
        "cache_on_host": not getattr(plan.result.way.setup, "offload_kqv", True),
        "drafter": plan.drafter.name if plan.drafter is not None else None,
        "decisions": [[one.lever.value, one.value, one.because] for one in plan.decisions],
    }


def plan_again(wish: Wish, kept: Mapping[str, Any]) -> Plan | None:
    """The plan with these choices; None where it does not fit, or where they mean nothing any more."""
    try:
        return _again(wish, kept)
    except (KeyError, IndexError, TypeError, ValueError, StopIteration):
        return None  # a file that somebody else wrote


def _again(wish: Wish, kept: Mapping[str, Any]) -> Plan | None:
    question = _question(wish, kept["variant"], kept["cache"], kept["most_cards"])
    drafter = next((one for one in wish.drafters if one.name == kept["drafter"]), None)
    if drafter is not None:
        question = with_drafter_beside(question, drafter)
    if kept["cache_on_host"]:
        question = with_setup(question, offload_kqv=False)
    way, tokens = ways_of(question)[kept["way"]], int(kept["tokens"])
    ladder = Ladder(question, (way,))
    if ladder.holder(tokens) is None:
        return None
    result = judged(ladder, tokens, str(kept["because"]), tokens)
    weighed = ladder.top.price(tokens)
    return Plan(
        wish=wish,
        variant=next(one for one in wish.variants if one.name == kept["variant"]),
        load=replace(question.load, context_tokens=tokens),
        result=result,
        decisions=tuple(
            Decision(lever=Lever(lever), value=str(value), because=str(because))
            for lever, value, because in kept["decisions"]
        ),
        drafter=drafter,
        speed=pace(question, weighed),
        steady_tokens_per_s=steady_pace(question, weighed),
    )


def _question(wish: Wish, variant: str, cache: str, most_cards: int | None) -> Question:
    asked = question_of(wish, next(one for one in wish.variants if one.name == variant))
    on_the_cpu = not devices_for(wish.machine, wish.engine)
    choices = cache_choices(asked, on_the_cpu=on_the_cpu)
    choice = next(one for one in choices if one.name == cache)
    return replace(choice.of(asked), most_cards=most_cards)


def _place(question: Question, way: Way) -> int:
    """Of the way among all there are, however its layers are divided among the cards."""
    wanted = _undivided(way.setup)
    every = ways_of(question)
    return next(place for place, one in enumerate(every) if _undivided(one.setup) == wanted)


def _undivided(setup: Any) -> Any:
    if not hasattr(setup, "tensor_split"):
        return setup
    return replace(setup, tensor_split=(), offload_kqv=True, draft_max=0, load_mtp=False)
