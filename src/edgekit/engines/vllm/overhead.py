"""What a card holds beside weights and the pool, modelled, and what is left for the pool.

vLLM measures these with a dummy step of max_num_batched_tokens (gpu_worker.py determine_available_memory @ 0.32.0):
available = ceil(total x utilisation) - all that is held - the highest transient - CUDA graphs. Nothing here was
measured on a GPU: the terms are read off the source, so every line is MODELLED and says how far off it may be.
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
from edgekit.model.types import LatentAttention, Layer, Model, Recurrent
from edgekit.units import MIB

# Of a logit: as computed, and as f32; the step that vLLM measures does not sort (gpu/sample/sampler.py).
SAMPLER_BYTES = 2 + 4
GRAPH_BYTES = MIB  # cudagraph_utils.py counts at least so much for each graph of a whole step
GRAPH_PIECE_BYTES = MIB // 4  # of each layer's piece
CAPTURE_SIZES = 51  # config/vllm.py: 1, 2, 4, every 8th to 256, every 16th to 512
LARGEST_CAPTURE = 512


def held_lines(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, layers: range
) -> tuple[MemoryLine, ...]:
    """Everything but weights and pool."""
    made = [_rope_line(model, resolved), _activation_line(model, setup, resolved, layers)]
    if not setup.enforce_eager:
        made.append(_graph_line(model, setup, resolved, layers))
    made.append(
        _line(Component.RUNTIME, CUDA_CONTEXT_BYTES, 0.5, "CUDA context and libraries: 0.5 GiB")
    )
    return tuple(line for line in made if line.size_bytes)


def available_bytes(setup: VllmSetup, held: int) -> int | None:
    """Left for the pool; None where the card's memory is not known."""
    total = setup.gpu.memory_bytes
    if total is None:
        return None
    return math.ceil(total * setup.gpu_memory_utilization) - held


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
    sampled += 2 * tokens * model.geometry.hidden * DTYPE_BYTES[resolved.dtype]  # still there
    because = (
        f"the larger of a step of {tokens:,} tokens ({step:,} B) and sampling {rows:,} rows of "
        f"{model.geometry.vocabulary or 0:,} logits x {SAMPLER_BYTES} B ({sampled:,} B)"
    )
    return _line(Component.COMPUTE, max(step, sampled), 0.5, because)


def _token_bytes(model: Model, setup: VllmSetup, resolved: ResolvedVllm, layers: range) -> int:
    """What one token of a step takes at the widest point: two residual rows and the widest half of a layer."""
    ranks, hidden = setup.tensor_parallel_size, model.geometry.hidden
    inside = (model.geometry.layers[i] for i in layers)
    widest = max((max(_mixer(layer), _half(layer, hidden)) // ranks for layer in inside), default=0)
    return (3 * hidden + widest) * DTYPE_BYTES[resolved.dtype]


def _mixer(layer: Layer) -> int:
    kind = attention_of(layer.mixer)
    if isinstance(kind, LatentAttention):
        return kind.heads * (3 * kind.key_dim + 2 * kind.value_dim)
    if kind is not None:
        return 2 * kind.heads * kind.key_dim + 2 * kind.kv_heads * (kind.key_dim + kind.value_dim)
    if isinstance(layer.mixer, Recurrent):
        return 4 * (layer.mixer.inner + 2 * layer.mixer.groups * layer.mixer.state_size)
    return 0


def _half(layer: Layer, hidden: int) -> int:
    """Experts keep rows for every token and expert chosen."""
    dense = 3 * layer.dense.width if layer.dense else 0
    if layer.experts is None:
        return dense
    one = layer.experts
    return max(dense, one.used * (max(2 * one.width, hidden) + one.width))


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
    positions = max(model.geometry.trained_context or 0, _positions(section))
    kinds = [kind for layer in model.geometry.layers if (kind := attention_of(layer.mixer))]
    widths = {_rotary(kind, section) for kind in kinds}
    size = positions * sum(widths) * DTYPE_BYTES[resolved.dtype]
    because = f"cos and sin of {positions:,} positions x {sum(widths)} numbers"
    return _line(Component.RUNTIME, size, 1.0, because)


def _positions(section: Mapping[str, Any]) -> int:
    value = section.get("model_max_length")
    return value if isinstance(value, int) and 0 < value < 2**31 else 0


def _rotary(kind: Any, section: Mapping[str, Any]) -> int:
    if isinstance(kind, LatentAttention):
        return kind.rope_dim
    rope = section.get("rope_parameters")
    inner = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    share = section.get("partial_rotary_factor") or inner
    usable = isinstance(share, float) and 0 < share <= 1
    return int(kind.key_dim * share) if usable and share else int(kind.key_dim)
