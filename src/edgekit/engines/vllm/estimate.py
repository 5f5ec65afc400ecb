"""What vLLM allocates on one GPU, which is one rank of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, no_better_than
from edgekit.engines.vllm.blocks import make_pool
from edgekit.engines.vllm.models import check_has
from edgekit.engines.vllm.options import resolve, settle_length, with_load
from edgekit.engines.vllm.overhead import available_bytes, overhead_lines
from edgekit.engines.vllm.prepared import FixedLinesKey, prepare
from edgekit.engines.vllm.types import DEFAULT_UTILIZATION, BlockPool, ResolvedVllm, VllmSetup
from edgekit.engines.vllm.weights import fullest_stage, weight_lines
from edgekit.machine.types import DEVICE
from edgekit.model.types import Model
from edgekit.units import format_bytes

GUESSED_WITHIN = 0.05  # of caches of layers that had to be guessed from the config
NAME = "vllm"
VERSION = "0.32.0"
# Facts of an estimate that are keys of the JSON answer.
_ANSWERED = (
    "bytes_per_block", "groups", "blocks_per_group", "request_bytes", "num_blocks", "max_concurrency",
)  # fmt: skip


def estimate(model: Model, load: Load, setup: VllmSetup) -> MemoryEstimate:
    """The memory of the fullest GPU. Raises RefusedError if vLLM would not start.

    A request that does not fit into the pool is an answer: the fact `refused`, and no number of blocks.
    """
    prepared = prepare(model)
    notes = prepared.notes.get(lambda: check_has(model))
    tokens = settle_length(model, load)
    given = with_load(setup, load)
    # Everything but the size of the pool depends on this part alone.
    setup = replace(given, gpu_memory_utilization=DEFAULT_UTILIZATION, kv_cache_memory_bytes=None)
    resolved = resolve(model, setup, tokens)
    stage = prepared.fullest_stage.get(setup, lambda: fullest_stage(model, setup, resolved))
    fixed = prepared.fixed_lines.get(
        FixedLinesKey(setup, resolved.max_num_batched_tokens, resolved.max_num_seqs),
        lambda: (
            *weight_lines(model, setup, resolved, stage),
            *overhead_lines(model, setup, resolved, stage),
        ),
    )
    budget = given.kv_cache_memory_bytes
    if budget is None:
        budget = available_bytes(given, sum(line.size_bytes for line in fixed))
    pool = make_pool(resolved, tokens, budget)
    line = _pool_line(pool, resolved, load, tokens)
    if given.kv_cache_memory_bytes is None and pool.num_blocks is not None:
        # The pool is what the rest leaves free, so it is as uncertain as the rest.
        doubt = sum(one.size_bytes * (one.within or 0.0) for one in fixed)
        within = doubt / line.size_bytes if line.size_bytes else None
        line = replace(line, basis=Basis.MODELLED, within=within)
    line = no_better_than(line, model.geometry.basis, GUESSED_WITHIN)
    return MemoryEstimate(
        engine=NAME,
        backend="cuda",
        lines=(*fixed, line),
        facts=_facts(resolved, pool, setup, tokens),
        notes=(*notes, *_notes(given, pool)),
    )


def _pool_line(pool: BlockPool, resolved: ResolvedVllm, load: Load, tokens: int) -> MemoryLine:
    """The pool that is allocated at startup; if its size is unknown, what the requests need."""
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
