"""A plan -> the flags with which a check of the model says the same: weights, context, cache, and where it lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgekit.app.open import LLAMACPP
from edgekit.bill.task import Placement, Task
from edgekit.engines.flags import typed
from edgekit.engines.llamacpp.flags import settled
from edgekit.machine.types import Device
from edgekit.plan.choice import at
from edgekit.plan.making import question_of
from edgekit.plan.placement import first_way
from edgekit.plan.planned import Plan
from edgekit.plan.split import pinned


def plan_flags(plan: Plan) -> dict[str, str | bool]:
    """As they are typed. What a check chooses by itself as the plan did is left to it."""
    said = _ENGINES[plan.wish.engine](plan)
    return typed({"context": plan.result.context_tokens, **said})


def _llamacpp(plan: Plan) -> dict[str, Any]:
    load = plan.load
    said = {"mix": plan.result.way.setup.mix, "type_k": load.cache_k, "type_v": load.cache_v}
    return {key: value for key, value in said.items() if value is not None} | _placed(plan)


def _vllm(plan: Plan) -> dict[str, Any]:
    """It is placed as by a check: on the fewest cards that hold it."""
    kept = plan.result.way.setup.kv_cache_dtype
    return {} if kept == "auto" else {"kv_cache_dtype": kept}


def _mlx(plan: Plan) -> dict[str, Any]:
    setup, packed = plan.result.way.setup, plan.variant.changes.get("quantize")
    said: dict[str, Any] = {} if packed is None else {"quantize": f"q{packed.packing.bits}"}
    if setup.kv_bits is not None:
        said |= {"kv_bits": setup.kv_bits, "quantized_kv_start": setup.quantized_kv_start}
    return said


_ENGINES = {LLAMACPP: _llamacpp, "vllm": _vllm, "mlx": _mlx}


def _placed(plan: Plan) -> dict[str, Any]:
    """Where llama.cpp's layers go, if that is not where it puts them by itself."""
    question = replace(at(question_of(plan.wish), plan.variant), load=plan.load)
    first = first_way(question)
    placed = _where(plan.result.way, question, first.cards)
    return {} if placed == _where(first, question, first.cards) else placed


def _where(way: Placement, question: Task, every: tuple[Device, ...]) -> dict[str, Any]:
    """As flags; of several cards with the division, in which those that are left alone get nothing."""
    if not way.cards:
        return {"backend": "cpu"}
    found = settled(pinned(way, question.model).setup)
    if len(every) > 1:
        shares = dict(zip(way.cards, found.get("tensor_split", (1.0,)), strict=True))
        found["tensor_split"] = tuple(shares.get(card, 0.0) for card in every)
    return found
