"""A plan -> the flags with which a check of the model says the same: weights, context, cache, and where it lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgekit.asking.flags import typed
from edgekit.asking.llamacpp_options import settled
from edgekit.asking.words import LLAMACPP
from edgekit.hardware.types import Accelerator
from edgekit.plan.caches import with_setup
from edgekit.plan.candidates import question_of
from edgekit.plan.fitting import Fitting
from edgekit.plan.ladder import Ladder
from edgekit.plan.placement import first_way, ways_of
from edgekit.plan.planned import Plan
from edgekit.plan.split import pinned
from edgekit.plan.types import Question, Status, Way, Weighed

_SAID = ("n_gpu_layers", "cpu_moe", "n_cpu_moe", "offload_kqv")  # as the setup has them


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
    """Where llama.cpp's layers lie, if a check of the same load would lay them elsewhere.

    A card that gets no layers still costs the others buffers. Where they change the verdict, and what the check
    chooses by itself does not, it is left to that.
    """
    question = replace(question_of(plan.wish, plan.variant), load=plan.load)
    result, every = plan.result, first_way(question).cards
    own = _chosen(question, result.context_tokens)
    said = _where(result.way, question, every)
    if said == _where(own.way, question, every):
        return {}
    if own.status is result.status and 0 < len(result.way.cards) < len(every):
        shared = _status(question, result.way, said["tensor_split"], result.context_tokens)
        return said if shared is result.status else {}
    return said


def _chosen(question: Question, tokens: int) -> Weighed:
    """As a check does, which is told of no placement."""
    ladder = Ladder(question, ways_of(question))
    return (ladder.holder(tokens) or ladder.nearest(tokens)).price(tokens)


def _where(way: Way, question: Question, every: tuple[Accelerator, ...]) -> dict[str, Any]:
    """As flags; of several cards with the division, in which those that are left alone get nothing."""
    if not way.cards:
        return {"backend": "cpu"}
    found = settled(pinned(way, question.model).setup)
    if len(every) > 1:
        shares = dict(zip(way.cards, found.get("tensor_split", (1.0,)), strict=True))
        found["tensor_split"] = tuple(shares.get(card, 0.0) for card in every)
    return found


def _status(question: Question, way: Way, split: tuple[float, ...], tokens: int) -> Status:
    """Of the same placement among all cards."""
    own = {name: getattr(way.setup, name) for name in _SAID}
    asked = with_setup(question, tensor_split=split, **own)
    return Fitting(asked, first_way(asked)).price(tokens).status
