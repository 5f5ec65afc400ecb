"""The tensors that follow from a config, split by tensor parallelism -> bytes of vLLM's parameters on one rank.

COLUMN splits the rows of a matrix (its outputs), ROW the columns (its inputs): linear.py, vocab_parallel_embedding.py
and the model files @ 0.32.0.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgekit.engines.vllm.models import cached_attention_of, recurrent_of, vllm_model
from edgekit.engines.vllm.schemes import Scheme, SchemePlan
from edgekit.engines.vllm.types import DTYPE_BYTES, Gpu
from edgekit.errors import RefusedError
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind, TensorRole
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import (
    Cell,
    LatentAttention,
    Layer,
    LayerKind,
    Model,
    Recurrent,
)
from edgekit.units import Basis

F32_BYTES = 4
# Matrices that vLLM never quantises.
_NEVER_QUANTIZED = frozenset(
    {
        TensorRole.EMBEDDING,
        TensorRole.HEAD,
        TensorRole.SHARED_SWITCH,
        TensorRole.INDEX_KEY,
        TensorRole.INDEX_WEIGHTS,
    }
)
# vLLM fuses these with another matrix, which counts the extra parameters of both: queries, or a state's input.
_FUSED_AFTER_FIRST = frozenset({TensorRole.KEY, TensorRole.VALUE, TensorRole.STATE_GATE})
# vLLM fuses these with the gate, if there is one.
_FUSED_AFTER_GATE = frozenset({TensorRole.UP, TensorRole.SHARED_UP})
EXPERT_ROLES = frozenset({TensorRole.EXPERT_GATE, TensorRole.EXPERT_UP, TensorRole.EXPERT_DOWN})
# The number of checkpoint matrices in one expected tensor of a recurrence; 1 if not listed.
_PARTS: Mapping[tuple[TensorRole, Cell], int] = {
    (TensorRole.STATE_IN, Cell.MAMBA): 2,
    (TensorRole.STATE_IN, Cell.MAMBA2): 5,
    (TensorRole.STATE_IN, Cell.GATED_DELTA): 3,
    (TensorRole.STATE_IN, Cell.SHORT_CONV): 3,
    (TensorRole.STATE_BETA, Cell.GATED_DELTA): 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """What decides how weights are stored on one rank."""

    dtype: str
    ranks: int
    gpu: Gpu
    plan: SchemePlan | None  # None: not quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmWeights:
    """Bytes on one rank of each layer, and of everything before and after the layers."""

    before_bytes: int
    layer_bytes: tuple[int, ...]
    after_bytes: int
    basis: Basis
    tied: bool = False  # the last stage has the embedding too, as its head
    online: bool = False  # quantised while loading

    def of_stage(self, stage: range, layers: int) -> int:
        """Bytes of a pipeline stage; the first has the embedding, the last the head."""
        inside = sum(self.layer_bytes[stage.start : stage.stop])
        is_last = stage.stop == layers
        has_embedding = stage.start == 0 or (is_last and self.tied)
        return inside + has_embedding * self.before_bytes + is_last * self.after_bytes


def expected_weights(model: Model, cast: Cast) -> VllmWeights:
    """The weights on one rank by the tensors that the architecture should have, in their order in the model.

    Raises UnknownArchitectureError if they do not follow from the config.
    """
    geometry = model.geometry
    layer_bytes = [attention_scale_bytes(layer.mixer, cast) for layer in geometry.layers]
    before_bytes = after_bytes = 0
    has_reached_layers = False
    for tensor in expected_tensors(geometry, model.header.config):
        size = _tensor_bytes(model, tensor, cast)
        if tensor.layer is not None:
            has_reached_layers = True
            layer_bytes[tensor.layer] += size
        elif has_reached_layers:
            after_bytes += size
        else:
            before_bytes += size
    return VllmWeights(
        before_bytes=before_bytes,
        layer_bytes=tuple(layer_bytes),
        after_bytes=after_bytes,
        basis=cast.plan.basis if cast.plan else Basis.EXACT,
        tied=geometry.tied_embeddings is True,
        online=cast.plan is not None and cast.plan.online,
    )


def expected_bytes(
    model: Model, cast: Cast, roles: frozenset[TensorRole]
) -> Iterator[tuple[int, int]]:
    """The layer and the bytes of each tensor with one of these roles."""
    for tensor in expected_tensors(model.geometry, model.header.config):
        if tensor.layer is not None and tensor.role in roles:
            yield tensor.layer, _tensor_bytes(model, tensor, cast)


def _tensor_bytes(model: Model, tensor: ExpectedTensor, cast: Cast) -> int:
    """Bytes of an expected tensor on one rank."""
    architecture = model.geometry.architecture
    facts = vllm_model(architecture)
    if (tensor.role, tensor.kind) == (TensorRole.HEAD, TensorKind.BIAS) and facts.head_without_bias:
        return 0
    layer = None if tensor.layer is None else model.geometry.layers[tensor.layer]
    attention = None if layer is None else cached_attention_of(layer.mixer)
    kv_heads = getattr(attention, "kv_heads", 0)
    shape = on_rank(tensor, cast.ranks, kv_heads=kv_heads, state=recurrent_of(layer))
    scheme = _scheme(architecture, tensor, cast.plan)
    if scheme is not None:
        return tensor.count * _quantized_bytes(tensor, shape, layer, cast, scheme)
    match tensor.role, tensor.kind:
        case TensorRole.STATE_A, _:
            is_f32 = True
        case TensorRole.ROUTER, TensorKind.BIAS:
            is_f32 = not facts.router_bias_as_model
        case TensorRole.ROUTER, _:
            is_f32 = router_in_f32(architecture, cast.gpu)
        case TensorRole.INDEX_KEY, TensorKind.NORM | TensorKind.BIAS:
            is_f32 = True
        case _:
            is_f32 = False
    return math.prod(shape) * tensor.count * (F32_BYTES if is_f32 else DTYPE_BYTES[cast.dtype])


def router_in_f32(architecture: str, gpu: Gpu) -> bool:
    """Whether vLLM stores the router of this architecture in f32."""
    has_kernel = gpu.capability == (9, 0) or gpu.major == 10  # gate_linear.py GateLinear
    facts = vllm_model(architecture)
    return facts.router_f32 or (facts.router_f32_without_kernel and not has_kernel)


def _scheme(architecture: str, tensor: ExpectedTensor, plan: SchemePlan | None) -> Scheme | None:
    """The scheme of a tensor; None if it is not quantised."""
    scheme = None if plan is None else plan.scheme_for(tensor.role, tensor.layer)
    if scheme is None:
        return None
    if tensor.role in EXPERT_ROLES:
        is_padded_bias = tensor.kind is TensorKind.BIAS and scheme.method == "mxfp4"
        return scheme if tensor.kind is TensorKind.EXPERT or is_padded_bias else None
    if scheme.experts_only or tensor.role in _NEVER_QUANTIZED or len(tensor.shape) != 2:
        return None
    if tensor.role is TensorRole.ROUTER:
        return scheme if vllm_model(architecture).quantized_router else None
    return scheme if tensor.kind is TensorKind.LINEAR else None


def _quantized_bytes(
    tensor: ExpectedTensor, shape: tuple[int, ...], layer: Layer | None, cast: Cast, scheme: Scheme
) -> int:
    """Bytes of one matrix (or padded bias) with its scales and other parameters."""
    role, dtype_bytes = tensor.role, DTYPE_BYTES[cast.dtype]
    if scheme.method == "mxfp4":
        # oracle/mxfp4.py: Triton pads the width of experts to 64, Marlin to 128 and the hidden width to 256
        expert_unit, hidden_unit = (64, 1) if cast.gpu.major in {9, 10} else (128, 256)
        units = (expert_unit, hidden_unit)
        if role is TensorRole.EXPERT_DOWN:
            units = (hidden_unit, expert_unit)
        shape = tuple(-(-size // unit) * unit for size, unit in zip(shape, units, strict=False))
    if len(shape) == 1:  # a bias
        return shape[0] * dtype_bytes
    size = scheme.matrix_bytes(shape[0], shape[1], dtype_bytes)
    if role in EXPERT_ROLES:
        size += scheme.part_bytes
        size += scheme.input_bytes if role is not TensorRole.EXPERT_UP else 0
        size += scheme.expert_bytes if role is TensorRole.EXPERT_DOWN else 0
        return size + (shape[0] * dtype_bytes if scheme.expert_biases else 0)
    state = recurrent_of(layer)
    parts = _PARTS.get((role, state.cell), 1) if state is not None else 1
    size += parts * (scheme.part_bytes + scheme.input_bytes)
    return size + (scheme.linear_bytes if _carries_linear_bytes(role, layer) else 0)


def _carries_linear_bytes(role: TensorRole, layer: Layer | None) -> bool:
    """Whether the bytes of a linear layer are counted at this matrix: not if vLLM fuses it behind another one."""
    if role in _FUSED_AFTER_FIRST:
        return False
    if role in _FUSED_AFTER_GATE and layer is not None:
        feed_forward = layer.experts if role is TensorRole.SHARED_UP else layer.dense
        # Without a gate, up is the first.
        return feed_forward is not None and not feed_forward.gated
    if role is TensorRole.LATENT_DOWN and layer is not None:
        return isinstance(layer.mixer, LatentAttention) and not layer.mixer.query_rank
    return True


def attention_scale_bytes(kind: LayerKind, cast: Cast) -> int:
    """Bytes of the scales that the quantisation method adds to an attention layer."""
    attention = cached_attention_of(kind)
    if cast.plan is None or attention is None:
        return 0
    scheme = cast.plan.main
    if isinstance(attention, LatentAttention):
        return scheme.latent_numbers * DTYPE_BYTES[cast.dtype]
    return scheme.attention_bytes + scheme.attention_numbers * DTYPE_BYTES[cast.dtype]


VOCABULARY_PADDING = 64  # vocab_parallel_embedding.py DEFAULT_VOCAB_PADDING_SIZE


class Cut(enum.Enum):
    """How a tensor is divided among the ranks."""

    VOCABULARY = "rows, padded first"
    COLUMN = "rows"
    KV = "rows, by KV heads: some ranks hold the same ones"
    FUSED = "rows, of queries, keys and values in one matrix"
    ROW = "columns"
    WHOLE = "every rank has all of it"


CUTS: Mapping[TensorRole, Cut] = {
    TensorRole.EMBEDDING: Cut.VOCABULARY,
    TensorRole.HEAD: Cut.VOCABULARY,
    TensorRole.QUERY: Cut.COLUMN,
    TensorRole.KEY: Cut.KV,
    TensorRole.VALUE: Cut.KV,
    TensorRole.OUTPUT: Cut.ROW,
    TensorRole.SINKS: Cut.COLUMN,
    TensorRole.ATTENTION_GATE: Cut.COLUMN,
    TensorRole.QUERY_UP: Cut.COLUMN,
    TensorRole.LATENT_UP: Cut.COLUMN,
    TensorRole.GATE: Cut.COLUMN,
    TensorRole.UP: Cut.COLUMN,
    TensorRole.DOWN: Cut.ROW,
    TensorRole.EXPERT_GATE: Cut.COLUMN,
    TensorRole.EXPERT_UP: Cut.COLUMN,
    TensorRole.EXPERT_DOWN: Cut.ROW,
    TensorRole.SHARED_GATE: Cut.COLUMN,
    TensorRole.SHARED_UP: Cut.COLUMN,
    TensorRole.SHARED_DOWN: Cut.ROW,
    TensorRole.STATE_IN: Cut.COLUMN,
    TensorRole.STATE_GATE: Cut.COLUMN,
    TensorRole.STATE_BETA: Cut.COLUMN,
    TensorRole.STATE_X: Cut.ROW,
    TensorRole.STATE_DT: Cut.COLUMN,
    TensorRole.STATE_A: Cut.COLUMN,
    TensorRole.STATE_D: Cut.COLUMN,
    TensorRole.STATE_OUT: Cut.ROW,
    TensorRole.CONV: Cut.COLUMN,
}


def on_rank(
    tensor: ExpectedTensor, ranks: int, *, kv_heads: int = 0, state: Recurrent | None = None
) -> tuple[int, ...]:
    """The shape of the tensor on one rank. Raises RefusedError if it cannot be split evenly.

    `kv_heads` and `state` are those of its layer: the KV heads of its attention (0: unknown), and its recurrence.
    """
    rows, *other_sizes = tensor.shape
    is_mamba2 = state is not None and state.cell is Cell.MAMBA2
    cut = CUTS.get(tensor.role, Cut.WHOLE)
    if tensor.kind is TensorKind.NORM:
        is_gated = tensor.role is TensorRole.STATE_NORM and is_mamba2
        cut = Cut.COLUMN if is_gated else Cut.WHOLE
    elif cut is Cut.ROW and tensor.kind is TensorKind.BIAS:
        cut = Cut.WHOLE  # added after the sum over ranks
    match cut:
        case Cut.VOCABULARY:
            return (share(padded(rows), ranks, "a padded vocabulary"), *other_sizes)
        case Cut.KV if kv_heads:
            return (rows // kv_heads * max(1, kv_heads // ranks), *other_sizes)
        case Cut.COLUMN | Cut.KV:
            has_groups = tensor.role in {TensorRole.STATE_IN, TensorRole.CONV}
            if has_groups and state is not None and is_mamba2 and state.groups % ranks:
                # more ranks than groups: B and C are copied until every rank has a group
                rows += 2 * (ranks - state.groups) * state.state_size
            return (share(rows, ranks, tensor.role.value), *other_sizes)
        case Cut.ROW:
            return (rows, share(other_sizes[0], ranks, tensor.role.value), *other_sizes[1:])
        case _:
            return tensor.shape


def share(size: int, ranks: int, what: str) -> int:
    """The size on one rank. Raises RefusedError if it is not a whole number."""
    if size % ranks:
        raise RefusedError(f"{what} of {size} is not divisible by tensor parallel size {ranks}")
    return size // ranks


def padded(vocabulary: int) -> int:
    return -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING


def stages(layers: int, count: int) -> tuple[range, ...]:
    """The layers of each of `count` pipeline stages.

    If the layers cannot be divided evenly, the stages before the last have one more each, counted from the back: the
    last one has the head. Ten layers in four stages: 2, 3, 3, 2.
    """
    sizes = [layers // count] * count
    for from_end in range(2, layers % count + 2):
        sizes[-from_end] += 1
    ends = tuple(itertools.accumulate(sizes))
    return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))
