"""What vLLM allocates on one GPU, which is one rank of the model.

vLLM measures its overhead with a dummy step of max_num_batched_tokens (gpu_worker.py determine_available_memory @
0.32.0): available = ceil(total x utilisation) - everything allocated - the highest transient - CUDA graphs. The
overhead here follows that source and was not measured on a GPU, so each of its lines is MODELLED with a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.bill.types import (
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    modelled_line,
    no_better_than,
)
from edgekit.engines.vllm.blocks import make_pool
from edgekit.engines.vllm.models import cached_attention_of, check_support, section_of
from edgekit.engines.vllm.options import resolve, resolve_length, with_load
from edgekit.engines.vllm.prepared import prepare
from edgekit.engines.vllm.types import (
    CUDA_CONTEXT_BYTES,
    DEFAULT_UTILIZATION,
    DTYPE_BYTES,
    BlockPool,
    CacheGroup,
    ResolvedVllm,
    VllmSetup,
)
from edgekit.engines.vllm.weights import fullest_stage, weight_lines
from edgekit.machine.types import DEVICE
from edgekit.model.types import LatentAttention, Layer, Model, Recurrent
from edgekit.units import MIB, Basis, format_bytes

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
    notes = check_support(model)
    tokens = resolve_length(model, load)
    requested = with_load(setup, load)
    # Everything except the size of the pool depends only on this part of the setup.
    setup = replace(
        requested, gpu_memory_utilization=DEFAULT_UTILIZATION, kv_cache_memory_bytes=None
    )
    resolved = resolve(model, setup, tokens)
    stage = fullest_stage(model, setup, resolved)
    fixed = prepare(model).fixed_lines.get(
        (setup, resolved.max_num_batched_tokens, resolved.max_num_seqs),
        lambda: (
            *weight_lines(model, setup, resolved, stage),
            *overhead_lines(model, setup, resolved, stage),
        ),
    )
    budget, total = requested.kv_cache_memory_bytes, requested.gpu.memory_bytes
    if budget is None and total is not None:  # None: the memory of the GPU is unknown
        budget = math.ceil(total * requested.gpu_memory_utilization)
        budget -= sum(line.size_bytes for line in fixed)
    pool = make_pool(resolved, tokens, budget)
    line = _pool_line(pool, resolved, load, tokens)
    if requested.kv_cache_memory_bytes is None and pool.num_blocks is not None:
        # The pool takes what the other lines leave free, so their uncertainty is its own.
        bound_bytes = sum(other.size_bytes * (other.within or 0.0) for other in fixed)
        within = bound_bytes / line.size_bytes if line.size_bytes else None
        line = replace(line, basis=Basis.MODELLED, within=within)
    line = no_better_than(line, model.geometry.basis, GUESSED_WITHIN)
    return MemoryEstimate(
        engine=NAME,
        backend="cuda",
        lines=(*fixed, line),
        facts=(
            ("block_size", resolved.block_size),
            ("groups", tuple(len(group.members) for group in resolved.groups)),
            ("group_spans", tuple(_span(group) for group in resolved.groups)),
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
            ("available_kv_bytes", budget),
            ("world_size", setup.world_size),
        ),
        notes=(*notes, *_notes(requested, pool)),
    )


def _span(group: CacheGroup) -> int | None:
    """The tokens of a group's window; 0 if it keeps all, None for states of recurrent layers."""
    return group.spec.span_tokens if group.spec.token_bytes else None


def _pool_line(pool: BlockPool, resolved: ResolvedVllm, load: Load, tokens: int) -> MemoryLine:
    """The pool that vLLM allocates at startup; if its size is unknown, the memory that the requests need."""
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


def _notes(setup: VllmSetup, pool: BlockPool) -> tuple[str, ...]:
    """Notes on the GPU that the settings are for, and on a pool that is too small or too large."""
    card = setup.gpu
    notes = [f"settings for {card.name} (compute capability {card.major}.{card.capability[1]})"]
    if setup.world_size > 1:
        gpu_text = "each" if setup.pipeline_parallel_size == 1 else "the fullest"
        notes.append(f"memory of {gpu_text} of {setup.world_size} GPUs")
    budget = setup.kv_cache_memory_bytes
    if budget is not None and card.memory_bytes is not None and budget > card.memory_bytes:
        notes.append(
            "the requested KV cache is larger than the GPU memory "
            f"({format_bytes(card.memory_bytes)})"
        )
    if pool.refused:
        notes.append(f"vLLM refuses to start: {pool.refused}")
    return tuple(notes)


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


# Per logit: as computed, and as f32. The step that vLLM measures does not sort (gpu/sample/sampler.py).
SAMPLER_BYTES = 2 + 4
GRAPH_BYTES = MIB  # cudagraph_utils.py: the minimum for each graph of a whole step
GRAPH_PIECE_BYTES = MIB // 4  # for each layer's piece
CAPTURE_SIZES = 51  # config/vllm.py: 1, 2, 4, every 8th to 256, every 16th to 512
LARGEST_CAPTURE = 512


def overhead_lines(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, stage: range
) -> tuple[MemoryLine, ...]:
    """Everything except the weights and the pool."""
    geometry, dtype_bytes = model.geometry, DTYPE_BYTES[resolved.dtype]
    vocabulary, tokens = geometry.vocabulary or 0, resolved.max_num_batched_tokens
    positions, rotated = _rope_table(model)
    widest = max((_width(geometry.layers[index], geometry.hidden) for index in stage), default=0)
    # one token of a step at the widest point: three hidden rows and the widest half of a layer
    token_bytes = (3 * geometry.hidden + widest // setup.tensor_parallel_size) * dtype_bytes
    step_bytes = tokens * token_bytes
    rows = min(resolved.max_num_seqs, tokens)
    sampling_bytes = rows * vocabulary * SAMPLER_BYTES
    sampling_bytes += 2 * tokens * geometry.hidden * dtype_bytes  # of the step, not freed yet
    graph_bytes = CAPTURE_SIZES * (GRAPH_BYTES + len(stage) * GRAPH_PIECE_BYTES)
    graph_bytes += LARGEST_CAPTURE * token_bytes
    lines = (
        modelled_line(
            Component.RUNTIME,
            positions * rotated * dtype_bytes,
            1.0,
            f"cos and sin of {positions:,} positions x {rotated} numbers",
        ),
        modelled_line(
            Component.COMPUTE,
            max(step_bytes, sampling_bytes),
            0.5,
            f"the larger of a step of {tokens:,} tokens ({step_bytes:,} B) and sampling {rows:,} rows of "
            f"{vocabulary:,} logits x {SAMPLER_BYTES} B ({sampling_bytes:,} B)",
        ),
        modelled_line(
            Component.RUNTIME,
            0 if setup.enforce_eager else graph_bytes,
            1.0,
            f"CUDA graphs: {CAPTURE_SIZES} sizes x (1 MiB + {len(stage)} layers x 0.25 MiB) "
            f"+ a step of {LARGEST_CAPTURE} tokens",
        ),
        modelled_line(
            Component.RUNTIME, CUDA_CONTEXT_BYTES, 0.5, "CUDA context and libraries: 0.5 GiB"
        ),
    )
    return tuple(line for line in lines if line.size_bytes)


def _width(layer: Layer, hidden: int) -> int:
    """Numbers per token in the wider half of a layer. Experts have rows for every expert chosen for the token."""
    kind, mixer = cached_attention_of(layer.mixer), 0
    if isinstance(kind, LatentAttention):
        mixer = kind.heads * (3 * kind.key_dim + 2 * kind.value_dim)
    elif kind is not None:
        mixer = 2 * kind.heads * kind.key_dim + 2 * kind.kv_heads * (kind.key_dim + kind.value_dim)
    elif isinstance(layer.mixer, Recurrent):
        mixer = 4 * (layer.mixer.inner + 2 * layer.mixer.groups * layer.mixer.state_size)
    dense = 3 * layer.dense.width if layer.dense else 0
    experts = layer.experts
    if experts is None:
        return max(mixer, dense)
    return max(mixer, dense, experts.used * (max(2 * experts.width, hidden) + experts.width))


def _rope_table(model: Model) -> tuple[int, int]:
    """The number of positions in the tables of cosines and sines, and of numbers per position."""
    section = section_of(model)
    max_length = section.get("model_max_length")
    positions = model.geometry.trained_context or 0
    if isinstance(max_length, int) and 0 < max_length < 2**31:
        positions = max(positions, max_length)
    rope = section.get("rope_parameters")
    nested_share = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    share = section.get("partial_rotary_factor") or nested_share
    if not isinstance(share, float) or not 0 < share <= 1:
        share = 1.0
    widths = set()
    for layer in model.geometry.layers:
        kind = cached_attention_of(layer.mixer)
        if isinstance(kind, LatentAttention):
            widths.add(kind.rope_dim)
        elif kind is not None:
            widths.add(int(kind.key_dim * share))
    return positions, sum(widths)
