"""A plan -> the flags with which a check of the model says the same: weights, context, cache and placement."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from edgekit.engines import engine_named
from edgekit.engines.flags import typed
from edgekit.plan.choice import with_weights
from edgekit.plan.placement import first_placement
from edgekit.plan.plan import Plan


def plan_flags(plan: Plan) -> dict[str, str | bool]:
    """As they are typed. What a check chooses by itself as the plan did is left to it."""
    engine = engine_named(plan.task.engine)
    chosen = engine.values(plan.load, plan.result.way.setup)
    shown = [
        flag.key for group in ("weights", "cache") for flag in engine.flags if flag.group == group
    ]
    said = {key: chosen[key] for key in shown if key in chosen}
    placed = _placed(plan) if engine.pins_placement else {}
    return typed({"context": plan.result.context_tokens, **said, **placed})


def _placed(plan: Plan) -> dict[str, Any]:
    """Where the layers go, if that is not where a check puts them by itself."""
    question = replace(with_weights(plan.task, plan.variant), load=plan.load)
    first = first_placement(question)
    flags = partial(engine_named(question.engine).placement_flags, question.model)
    placed = flags(plan.result.way, first.cards)
    return {} if placed == flags(first, first.cards) else placed
