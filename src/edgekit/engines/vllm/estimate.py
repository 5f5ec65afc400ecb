"""What vLLM allocates on one card: one rank of as many as the model is spread over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, no_better_than
from edgekit.engines.vllm.blocks import make_pool
from edgekit.engines.vllm.models import check_has
from edgekit.engines.vllm.options import resolve, settle_length, with_load
from edgekit.engines.vllm.overhead import available_bytes, held_lines
from edgekit.engines.vllm.prepared import HeldKey, prepare
from edgekit.engines.vllm.sharding import stages
from edgekit.engines.vllm.types import DEFAULT_UTILIZATION, BlockPool, ResolvedVllm, VllmSetup
from edgekit.engines.vllm.weights import fullest_stage, weight_lines
from edgekit.machine.types import DEVICE
from edgekit.model.types import Model
from edgekit.units import format_bytes

GUESSED_WITHIN = 0.05  # layers of a config that leaves library defaults out
NAME = "vllm"
VERSION = "0.32.0"
# Facts of a bill that are keys of the answer in JSON.
_ANSWERED = (
    "bytes_per_block", "groups", "blocks_per_group", "request_bytes", "num_blocks", "max_concurrency",
)  # fmt: skip


def estimate(model: Model, load: Load, setup: VllmSetup) -> MemoryEstimate:
    """The bill of the fullest card. Raises RefusedError where vLLM would not start.

    A request that does not fit the pool is an answer: `refused` among the facts, and no number of blocks.
    """
    prepared = prepare(model)
    notes = prepared.notes.get(lambda: check_has(model))
    tokens = settle_length(model, load)
    asked = with_load(setup, load)
    setup = _without_budget(asked)
    resolved = resolve(model, setup, tokens)
    stage = prepared.fullest_stage.get(setup, lambda: _stage(model, setup, resolved))
    held = prepared.held.get(
        HeldKey(setup, resolved.max_num_batched_tokens, resolved.max_num_seqs),
        lambda: (
            *weight_lines(model, setup, resolved, stage),
            *held_lines(model, setup, resolved, stage),
        ),
    )
    budget = asked.kv_cache_memory_bytes
    if budget is None:
        budget = available_bytes(asked, sum(line.size_bytes for line in held))
    pool = make_pool(resolved, tokens, budget)
    line = _pool_line(pool, resolved, load, tokens)
    if asked.kv_cache_memory_bytes is None and pool.num_blocks is not None:
        line = _as_uncertain_as(line, held)
    line = no_better_than(line, model.geometry.basis, GUESSED_WITHIN)
    return MemoryEstimate(
        engine=NAME,
        backend="cuda",
        lines=(*held, line),
        facts=_facts(resolved, pool, setup, tokens),
        notes=(*notes, *_notes(asked, pool)),
    )


def _without_budget(setup: VllmSetup) -> VllmSetup:
    """The part that decides everything but the size of the pool: sliders move the rest."""
    return replace(setup, gpu_memory_utilization=DEFAULT_UTILIZATION, kv_cache_memory_bytes=None)


def _stage(model: Model, setup: VllmSetup, resolved: ResolvedVllm) -> range:
    cut = stages(len(model.geometry.layers), setup.pipeline_parallel_size)
    return cut[0] if len(cut) == 1 else fullest_stage(model, setup, resolved, cut)


def _pool_line(pool: BlockPool, resolved: ResolvedVllm, load: Load, tokens: int) -> MemoryLine:
    """The pool that is allocated at the start; what requests need where its size is not known."""
    if pool.num_blocks is not None:
        size = pool.num_blocks * resolved.bytes_per_block
        because = (
            f"{pool.num_blocks:,} blocks x {resolved.bytes_per_block:,} B, allocated at startup"
        )
    else:
        sequences = load.sequences or 1
        size = pool.request_bytes * sequences
        because = (
            f"{sequences:,} request(s) of {tokens:,} tokens: "
            f"{sum(pool.blocks_per_group):,} blocks x {resolved.bytes_per_block:,} B "
            f"each; {pool.refused or 'the size of the pool is unknown'}"
        )
    return MemoryLine(
        component=Component.KV_CACHE,
        size_bytes=size,
        pool=DEVICE,
        basis=Basis.EXACT,
        because=because,
    )


def _as_uncertain_as(line: MemoryLine, held: tuple[MemoryLine, ...]) -> MemoryLine:
    """A pool that is what the rest leaves free is known as well as the rest."""
    doubt = sum(one.size_bytes * (one.within or 0.0) for one in held)
    within = doubt / line.size_bytes if line.size_bytes else None
    return replace(line, basis=Basis.MODELLED, within=within)


def _facts(
    resolved: ResolvedVllm, pool: BlockPool, setup: VllmSetup, tokens: int
) -> tuple[tuple[str, object], ...]:
    return (
        ("block_size", resolved.block_size),
        ("groups", tuple(len(group.members) for group in resolved.groups)),
        ("bytes_per_block", resolved.bytes_per_block),
        ("blocks_per_group", pool.blocks_per_group),
        ("request_bytes", pool.request_bytes),
        ("num_blocks", pool.num_blocks),
        ("max_concurrency", pool.max_concurrency),
        ("refused", pool.refused or None),
        ("max_model_len", tokens),
        ("max_num_batched_tokens", resolved.max_num_batched_tokens),
        ("max_num_seqs", resolved.max_num_seqs),
        ("max_in_flight_tokens", resolved.in_flight_tokens),
        ("dtype", resolved.dtype),
        ("kv_cache_dtype", resolved.cache_dtype),
        ("enable_prefix_caching", resolved.prefix_caching),
        ("attention_backends", resolved.backends),
        ("available_kv_bytes", pool.available_bytes),
        ("world_size", setup.world_size),
    )


def _notes(setup: VllmSetup, pool: BlockPool) -> tuple[str, ...]:
    card = setup.gpu
    found = [f"settings for {card.name} (compute capability {card.major}.{card.capability[1]})"]
    if setup.world_size > 1:
        which = "each" if setup.pipeline_parallel_size == 1 else "the fullest"
        found.append(f"memory of {which} of {setup.world_size} GPUs")
    budget = setup.kv_cache_memory_bytes
    if budget is not None and card.memory_bytes is not None and budget > card.memory_bytes:
        found.append(
            "the requested KV cache is larger than the GPU memory "
            f"({format_bytes(card.memory_bytes)})"
        )
    if pool.refused:
        found.append(f"vLLM refuses to start: {pool.refused}")
    return tuple(found)


def config_probes() -> Iterator[tuple[Load, VllmSetup]]:
    """Loads and setups whose bills read different parts of a config.json."""
    load = Load(context_tokens=1_024)
    yield load, VllmSetup()
    yield load, VllmSetup(tensor_parallel_size=2, quantization="fp8")
    yield load, VllmSetup(kv_cache_dtype="fp8", pipeline_parallel_size=2)


def answer_facts(estimate: MemoryEstimate) -> Mapping[str, Any]:
    """Further keys of the answer in JSON."""
    facts = dict(estimate.facts)
    refused = {"refused": facts["refused"]} if facts.get("refused") else {}
    return {**{name: facts.get(name) for name in _ANSWERED}, **refused}
