"""What a GPU holds in addition to weights and the pool, modelled, and what is left for the pool.

vLLM measures it with a dummy step of max_num_batched_tokens (gpu_worker.py determine_available_memory @ 0.32.0):
available = ceil(total x utilisation) - everything allocated - the highest transient - CUDA graphs. The terms follow
the source and were not measured on a GPU, so every line is MODELLED with a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.vllm.caches import attention_of
from edgekit.engines.vllm.models import section_of
from edgekit.engines.vllm.types import CUDA_CONTEXT_BYTES, DTYPE_BYTES, ResolvedVllm, VllmSetup
from edgekit.machine.types import DEVICE
from edgekit.model.types import Attention, LatentAttention, Layer, Model, Recurrent
from edgekit.units import MIB

# Per logit: as computed, and as f32. The step that vLLM measures does not sort (gpu/sample/sampler.py).
SAMPLER_BYTES = 2 + 4
GRAPH_BYTES = MIB  # cudagraph_utils.py: the minimum for each graph of a whole step
GRAPH_PIECE_BYTES = MIB // 4  # for each layer's piece
CAPTURE_SIZES = 51  # config/vllm.py: 1, 2, 4, every 8th to 256, every 16th to 512
LARGEST_CAPTURE = 512


def overhead_lines(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, layers: range
) -> tuple[MemoryLine, ...]:
    """Everything but the weights and the pool."""
    made = [_rope_line(model, resolved), _activation_line(model, setup, resolved, layers)]
    if not setup.enforce_eager:
        made.append(_graph_line(model, setup, resolved, layers))
    made.append(
        _line(Component.RUNTIME, CUDA_CONTEXT_BYTES, 0.5, "CUDA context and libraries: 0.5 GiB")
    )
    return tuple(line for line in made if line.size_bytes)


def available_bytes(setup: VllmSetup, fixed_bytes: int) -> int | None:
    """Left for the pool; None if the memory of the GPU is unknown."""
    total = setup.gpu.memory_bytes
    if total is None:
        return None
    return math.ceil(total * setup.gpu_memory_utilization) - fixed_bytes


def _line(component: Component, size_bytes: int, within: float, because: str) -> MemoryLine:
    return MemoryLine(
        component=component,
        size_bytes=size_bytes,
        pool=DEVICE,
        basis=Basis.MODELLED,
        because=because,
        within=within,
    )


def _activation_line(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, layers: range
) -> MemoryLine:
    tokens = resolved.max_num_batched_tokens
    step = tokens * _token_bytes(model, setup, resolved, layers)
    rows = min(resolved.max_num_seqs, tokens)
    sampled = rows * (model.geometry.vocabulary or 0) * SAMPLER_BYTES
    sampled += 2 * tokens * model.geometry.hidden * DTYPE_BYTES[resolved.dtype]  # not freed yet
    because = (
        f"the larger of a step of {tokens:,} tokens ({step:,} B) and sampling {rows:,} rows of "
        f"{model.geometry.vocabulary or 0:,} logits x {SAMPLER_BYTES} B ({sampled:,} B)"
    )
    return _line(Component.COMPUTE, max(step, sampled), 0.5, because)


def _token_bytes(model: Model, setup: VllmSetup, resolved: ResolvedVllm, layers: range) -> int:
    """Of one token of a step at the widest point: three hidden rows and the widest half of a layer."""
    ranks, hidden = setup.tensor_parallel_size, model.geometry.hidden
    inside = (model.geometry.layers[i] for i in layers)
    widest = max(
        (max(_mixer_width(layer), _feed_forward_width(layer, hidden)) // ranks for layer in inside),
        default=0,
    )
    return (3 * hidden + widest) * DTYPE_BYTES[resolved.dtype]


def _mixer_width(layer: Layer) -> int:
    kind = attention_of(layer.mixer)
    if isinstance(kind, LatentAttention):
        return kind.heads * (3 * kind.key_dim + 2 * kind.value_dim)
    if kind is not None:
        return 2 * kind.heads * kind.key_dim + 2 * kind.kv_heads * (kind.key_dim + kind.value_dim)
    if isinstance(layer.mixer, Recurrent):
        return 4 * (layer.mixer.inner + 2 * layer.mixer.groups * layer.mixer.state_size)
    return 0


def _feed_forward_width(layer: Layer, hidden: int) -> int:
    """Experts have rows for every token and every expert chosen for it."""
    dense = 3 * layer.dense.width if layer.dense else 0
    if layer.experts is None:
        return dense
    experts = layer.experts
    return max(dense, experts.used * (max(2 * experts.width, hidden) + experts.width))


def _graph_line(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, layers: range
) -> MemoryLine:
    pieces = CAPTURE_SIZES * len(layers) * GRAPH_PIECE_BYTES
    inside = LARGEST_CAPTURE * _token_bytes(model, setup, resolved, layers)
    size = CAPTURE_SIZES * GRAPH_BYTES + pieces + inside
    because = (
        f"CUDA graphs: {CAPTURE_SIZES} sizes x (1 MiB + {len(layers)} layers x 0.25 MiB) "
        f"+ a step of {LARGEST_CAPTURE} tokens"
    )
    return _line(Component.RUNTIME, size, 1.0, because)


def _rope_line(model: Model, resolved: ResolvedVllm) -> MemoryLine:
    section = section_of(model)
    stated = section.get("model_max_length")
    positions = model.geometry.trained_context or 0
    if isinstance(stated, int) and 0 < stated < 2**31:
        positions = max(positions, stated)
    kinds = [kind for layer in model.geometry.layers if (kind := attention_of(layer.mixer))]
    widths = {_rotary_dim(kind, section) for kind in kinds}
    size = positions * sum(widths) * DTYPE_BYTES[resolved.dtype]
    because = f"cos and sin of {positions:,} positions x {sum(widths)} numbers"
    return _line(Component.RUNTIME, size, 1.0, because)


def _rotary_dim(kind: Attention | LatentAttention, section: Mapping[str, Any]) -> int:
    if isinstance(kind, LatentAttention):
        return kind.rope_dim
    rope = section.get("rope_parameters")
    inner = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    share = section.get("partial_rotary_factor") or inner
    if isinstance(share, float) and 0 < share <= 1:
        return int(kind.key_dim * share)
    return kind.key_dim
