"""The weights of one rank as memory lines: by the tensors in the files, else by the tensors of the architecture.

Tensors in the files are recognised by the last parts of their names, which are the same in all families, and corrected
for what vLLM does not load, fuses, pads or stores in f32. Unrecognised tensors count in full on every rank, so the
total errs on the high side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from edgekit.bill.types import Component, MemoryLine, weakest
from edgekit.engines.vllm.expected import (
    EXPERT_ROLES,
    F32_BYTES,
    Cast,
    Cut,
    VllmWeights,
    attention_scale_bytes,
    expected_bytes,
    expected_weights,
    padded,
    router_in_f32,
    stages,
)
from edgekit.engines.vllm.models import attention_of, recurrent_of, vllm_model
from edgekit.engines.vllm.prepared import RankWeightsKey, prepare
from edgekit.engines.vllm.schemes import check_capability, read_plan
from edgekit.engines.vllm.types import DTYPE_BYTES, ResolvedVllm, VllmSetup
from edgekit.errors import UnknownArchitectureError
from edgekit.formats.types import Tensor
from edgekit.machine.types import DEVICE
from edgekit.model import Role, block_of, roles_of
from edgekit.model.hyperparameters import TOWER_HIDDEN, TOWER_LAYERS, TOWER_SECTIONS
from edgekit.model.types import Cell, Layer, Model
from edgekit.units import Basis

# From config.json alone: equal to what vLLM's own classes allocated in 1,188 of 1,189 cases.
EXPECTED_WITHIN = 0.005
TOWERS_WITHIN = 0.15
UNKNOWN_TOWER_PARAMETERS = 450_000_000  # SigLIP so400m, the most common tower
SMALL_TABLES = 1.09  # factor for patches, positions, norms and biases
_THREE_MATRICES = frozenset({"qwen2_5_vl", "gemma4", "pixtral", "mistral3"})  # gated feed-forward


def fullest_stage(model: Model, setup: VllmSetup, resolved: ResolvedVllm) -> range:
    """The layers of the pipeline stage with the most weights."""
    count = len(model.geometry.layers)
    every = stages(count, setup.pipeline_parallel_size)
    if len(every) == 1:
        return every[0]
    weights = weigh(model, setup, resolved)
    return max(every, key=lambda stage: weights.of_stage(stage, count))


def weigh(model: Model, setup: VllmSetup, resolved: ResolvedVllm) -> VllmWeights:
    key = _weights_key(setup, resolved)
    return prepare(model).weights.get(key, lambda: _weigh(model, setup, resolved))


def _weights_key(setup: VllmSetup, resolved: ResolvedVllm) -> RankWeightsKey:
    return RankWeightsKey(
        setup.tensor_parallel_size, setup.quantization, setup.gpu.capability, resolved.dtype
    )


def _weigh(model: Model, setup: VllmSetup, resolved: ResolvedVllm) -> VllmWeights:
    plan = read_plan(model.header.config, model.geometry.architecture, setup.quantization)
    if plan is not None:
        check_capability(plan, setup.gpu.capability)
    cast = Cast(dtype=resolved.dtype, ranks=setup.tensor_parallel_size, gpu=setup.gpu, plan=plan)
    if model.header.tensors is None:
        return expected_weights(model, cast)
    if plan is not None and plan.online:
        return _quantized_while_loading(model, cast)
    return stored_weights(model, cast)


def _quantized_while_loading(model: Model, cast: Cast) -> VllmWeights:
    """The stored plain tensors, less what the linear layers save (quantization/online/fp8.py)."""
    plain = replace(cast, plan=None)
    stored = stored_weights(model, plain)
    try:
        before, after = expected_weights(model, plain), expected_weights(model, cast)
    except UnknownArchitectureError:  # unknown which tensors are linear layers: an upper bound
        return replace(stored, basis=Basis.ASSUMED)
    layers = zip(stored.layer_bytes, before.layer_bytes, after.layer_bytes, strict=True)
    return replace(
        stored,
        before_bytes=stored.before_bytes + after.before_bytes - before.before_bytes,
        layer_bytes=tuple(size + to - of for size, of, to in layers),
        after_bytes=stored.after_bytes + after.after_bytes - before.after_bytes,
        basis=after.basis,
    )


def weight_lines(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, stage: range
) -> tuple[MemoryLine, ...]:
    weights = weigh(model, setup, resolved)
    return prepare(model).weight_lines.get(
        (_weights_key(setup, resolved), stage),
        lambda: _lines(model, setup, resolved, stage, weights),
    )


def _lines(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, stage: range, weights: VllmWeights
) -> tuple[MemoryLine, ...]:
    stored = model.header.tensors is not None
    because = "tensors in the files" if stored else "tensors of the architecture"
    plan = read_plan(model.header.config, model.geometry.architecture, setup.quantization)
    if plan is not None and plan.online:
        because += f", linear layers quantised to {setup.quantization} while loading"
    if setup.tensor_parallel_size > 1:
        because += f", one of {setup.tensor_parallel_size} ranks"
    basis = weakest((weights.basis, model.geometry.basis))
    if not stored:
        basis = weakest((basis, Basis.MODELLED))
    outside = weights.of_stage(stage, len(model.geometry.layers)) - sum(
        weights.layer_bytes[stage.start : stage.stop]
    )
    sizes = [(None, outside), *((i, weights.layer_bytes[i]) for i in stage)]
    lines = [
        MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=size,
            pool=DEVICE,
            layer=layer,
            basis=basis,
            because=because,
            within=EXPECTED_WITHIN if basis is Basis.MODELLED else None,
        )
        for layer, size in sizes
    ]
    towers = 0
    if not stored and stage.start == 0:
        towers = tower_parameters(model.header.config, model.geometry.hidden)
    if towers:
        lines.append(
            MemoryLine(
                component=Component.WEIGHTS,
                size_bytes=towers * DTYPE_BYTES[resolved.dtype],
                pool=DEVICE,
                basis=Basis.MODELLED,
                because=f"vision and audio towers: about {towers:,} parameters, a full copy on every rank",
                within=TOWERS_WITHIN,
            )
        )
    return tuple(lines)


def tower_parameters(config: Mapping[str, Any], hidden: int) -> int:
    """Parameters of all vision and audio towers, modelled; 0 without towers."""
    found = (config.get(name) for name, _ in TOWER_SECTIONS)
    sections = (section for section in found if isinstance(section, Mapping) and section)
    return sum(_tower(config, section, hidden) for section in sections)


def _tower(config: Mapping[str, Any], section: Mapping[str, Any], hidden: int) -> int:
    layers = _number(section, TOWER_LAYERS)
    own = _number(section, ("embed_dim", *TOWER_HIDDEN))
    if not layers or not own:
        return UNKNOWN_TOWER_PARAMETERS
    width = _number(section, ("intermediate_size", "ffn_dim", "encoder_ffn_dim")) or 4 * own
    matrices = 3 if str(config.get("model_type")) in _THREE_MATRICES else 2
    blocks = layers * (4 * own * own + matrices * own * width)
    # Projectors into the language model: one, and one for each deepstack layer. Qwen joins squares of patches first.
    merged = own * (_number(section, ("spatial_merge_size",)) or 1) ** 2
    deepstack = section.get("deepstack_visual_indexes")
    projectors = 1 + (len(deepstack) if isinstance(deepstack, list) else 0)
    return int((blocks + projectors * merged * (merged + hidden)) * SMALL_TABLES)


def _number(section: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    found = (section.get(key) for key in keys)
    sizes = (x for x in found if isinstance(x, int) and not isinstance(x, bool) and 0 < x < 2**20)
    return next(sizes, None)


_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_NOT_LOADED = re.compile(
    r"rotary_emb\.|inv_freq$|\.masked_bias$|\.attn\.bias$|[kqv]_scale$|_zero_point$"
)
_LAST = re.compile(
    r"\.(weight|bias|qweight|qzeros|scales|g_idx|weight_packed|weight_scale|weight_scale_inv|weight_scale_2|input_scale|"
    r"weight_shape|weight_g_idx|weight_global_scale|input_global_scale|A_log|A|D|dt_bias|sinks|e_score_correction_bias)$"
)
_VOCABULARY = "embed_tokens|word_embeddings|wte|tok_embeddings|embeddings|embed_in|lm_head|embed_out|output_layer"
_FUSED = "qkv_proj|Wqkv|query_key_value|c_attn|wqkv"  # queries, keys and values in one
_ROW = (
    "o_proj|out_proj|down_proj|w2|dense_4h_to_h|fc2|wo|output_linear|x_proj|"
    r"(self_attn|attention|self_attention)\.dense|(attn|mlp)\.c_proj"
)
_COLUMN = (
    "q_proj|gate_proj|up_proj|gate_up_proj|w1|w3|fc1|c_fc|dense_h_to_4h|q_b_proj|kv_b_proj|input_linear|"
    r"dt_proj|conv1d|in_proj\w*|conv|query"
)
_CUTS = tuple(
    (re.compile(rf"(^|\.)({names})$"), cut)
    for names, cut in (
        (_VOCABULARY, Cut.VOCABULARY),
        ("k_proj|v_proj|key|value", Cut.KV),
        (_FUSED, None),
        (_ROW, Cut.ROW),
        (_COLUMN, Cut.COLUMN),
    )
)
_IN_F32 = frozenset({
    "A_log", "A", "e_score_correction_bias", "weight_scale", "weight_scale_inv", "weight_scale_2", "input_scale",
    "weight_global_scale", "input_global_scale",
})  # fmt: skip
_BY_HEAD = ("A_log", "A", "D", "dt_bias", "sinks")
_FUSED_AFTER_FIRST = re.compile(r"(^|\.)(k_proj|v_proj|up_proj|w3)$")
_GATED_NORM = re.compile(r"(mixer|mamba)\.norm$")
_WITH_GROUPS = re.compile(r"(^|\.)(in_proj|conv1d)$")
_EXPERT = re.compile(r"\.experts[._]")


@dataclass(frozen=True, slots=True)
class _Named:
    module: str
    parameter: str
    role: Role


def stored_weights(model: Model, cast: Cast) -> VllmWeights:
    layers = len(model.geometry.layers)
    sizes = [0] * layers
    outside = [0, 0]
    for tensor, role in _loaded(model):
        block = block_of(tensor.name)
        layer = block if block is not None and block < layers and role is not Role.TOWER else None
        size = _tensor_bytes(model, tensor, _name(tensor.name, role), layer, cast)
        if layer is None:
            last = role is Role.OUTPUT or (role is Role.NORM and "embed" not in tensor.name)
            outside[last] += size
        else:
            sizes[layer] += size
    for layer_index, more in _not_in_files(model, cast):
        sizes[layer_index] += more
    basis = Basis.EXACT if cast.plan is None else cast.plan.basis
    return VllmWeights(
        before_bytes=outside[0],
        layer_bytes=tuple(sizes),
        after_bytes=outside[1],
        basis=basis,
        tied=model.geometry.tied_embeddings is True,
    )


def _loaded(model: Model) -> Iterator[tuple[Tensor, Role]]:
    """The tensors that vLLM loads: no prediction layers, no copy of a tied embedding, no tables that it computes."""
    tensors = model.header.tensors or ()
    tied = model.geometry.tied_embeddings is True
    headless = vllm_model(model.geometry.architecture).head_without_bias
    roles = roles_of(tensors, layers=len(model.geometry.layers))
    for tensor, role in zip(tensors, roles, strict=True):
        copied = tied and role is Role.OUTPUT
        unused = role is Role.OUTPUT and tensor.name.endswith(".bias") and headless
        if role is Role.MTP or copied or unused:
            continue
        if _NOT_LOADED.search(tensor.name) is None:
            yield tensor, role


def _not_in_files(model: Model, cast: Cast) -> Iterator[tuple[int, int]]:
    """(layer, bytes) of scales of attention, biases of experts and padded experts, which follow from the config."""
    for layer in model.geometry.layers:
        yield (
            layer.index,
            attention_scale_bytes(layer.mixer, cast) + _expert_biases(model, layer, cast),
        )
    if _pads_experts(cast):
        yield from expected_bytes(model, cast, EXPERT_ROLES)


def _expert_biases(model: Model, layer: Layer, cast: Cast) -> int:
    """GPTQ's experts have biases whether the checkpoint does or not (auto_gptq.py)."""
    experts = layer.experts
    if cast.plan is None or not cast.plan.main.expert_biases or experts is None:
        return 0
    wide = (2 if experts.gated else 1) * experts.width // cast.ranks
    return experts.count * (wide + model.geometry.hidden) * DTYPE_BYTES[cast.dtype]


def _pads_experts(cast: Cast) -> bool:
    return cast.plan is not None and cast.plan.main.method == "mxfp4"


def _tensor_bytes(
    model: Model, tensor: Tensor, named: _Named, layer: int | None, cast: Cast
) -> int:
    expert = _EXPERT.search(tensor.name) is not None
    if expert and _pads_experts(cast):
        return 0
    if (fixed := _fixed_bytes(named, cast, expert=expert)) is not None:
        return fixed
    whole = None if layer is None else model.geometry.layers[layer]
    return int(_element_bytes(model, tensor, named, cast) * _share(tensor, named, whole, cast))


def _name(name: str, role: Role) -> _Named:
    found = _LAST.search(name)
    if found is None:
        return _Named(name, "", role)
    return _Named(name[: found.start()], found[1], role)


def _fixed_bytes(named: _Named, cast: Cast, *, expert: bool) -> int | None:
    """Bytes of parameters that vLLM has once per fused matrix or not at all; None for all others."""
    is_fused_later = _FUSED_AFTER_FIRST.search(named.module) is not None
    match named.parameter:
        case "g_idx" | "weight_g_idx":
            return 0
        case "weight_shape" if is_fused_later:
            return 0
        case "weight_shape":
            return 2 * (DTYPE_BYTES[cast.dtype] if expert else 8)
        case "input_scale" if (
            expert and is_fused_later and cast.plan and cast.plan.main.input_bytes
        ):
            return 0
        case _:
            return None


def _element_bytes(model: Model, tensor: Tensor, named: _Named, cast: Cast) -> int:
    """The whole tensor, in the dtype in which vLLM stores it."""
    if tensor.type.name not in _FLOATS:
        return tensor.size_bytes
    architecture = model.geometry.architecture
    is_f32 = named.parameter in _IN_F32
    if named.role is Role.ROUTER:
        weight = named.parameter == "weight" and router_in_f32(architecture, cast.gpu)
        true_bias = vllm_model(architecture).router_bias_as_model
        chooses = named.parameter == "bias" and not true_bias
        is_f32 = (
            is_f32
            or weight
            or chooses
            or "correction" in tensor.name
            or "expert_bias" in tensor.name
        )
    if "indexer.k_norm" in tensor.name:
        is_f32 = True
    if named.parameter == "weight_scale" and tensor.type.name != "F32":
        is_f32 = False
    return tensor.elements * (F32_BYTES if is_f32 else DTYPE_BYTES[cast.dtype])


def _share(tensor: Tensor, named: _Named, whole: Layer | None, cast: Cast) -> Fraction:
    """The part of the tensor that one rank has."""
    cut = _cut(tensor, named, whole, cast.ranks)
    if cut is Cut.VOCABULARY and tensor.shape:
        return Fraction(padded(tensor.shape[0]), tensor.shape[0] * cast.ranks)
    if cast.ranks == 1 or cut is Cut.WHOLE or tensor.elements == 1:
        return Fraction(1)
    if cut is Cut.KV:
        kind = None if whole is None else attention_of(whole.mixer)
        heads = int(getattr(kind, "kv_heads", 0))
        return Fraction(max(1, heads // cast.ranks), heads) if heads else Fraction(1, cast.ranks)
    if isinstance(cut, Fraction):
        return cut
    one_per_row = len(tensor.shape) == 1 or tensor.shape[-1] == 1
    if cut is Cut.ROW and one_per_row:  # biases and scales per output
        return Fraction(1)
    return Fraction(1, cast.ranks) * _copied(tensor, named, whole, cast.ranks)


def _copied(tensor: Tensor, named: _Named, layer: Layer | None, ranks: int) -> Fraction:
    """Factor for Mamba-2's B and C, which are copied until every rank has a group."""
    state = recurrent_of(layer)
    if state is None or state.cell is not Cell.MAMBA2 or state.groups % ranks == 0:
        return Fraction(1)
    rows = tensor.shape[0]
    holds = _WITH_GROUPS.search(named.module) is not None and rows > state.inner
    more = 2 * (ranks - state.groups) * state.state_size if holds else 0
    return Fraction(rows + more, rows)


def _cut(tensor: Tensor, named: _Named, layer: Layer | None, ranks: int) -> Cut | Fraction:
    if named.role in {Role.TOWER, Role.ROUTER}:
        return Cut.WHOLE
    state = recurrent_of(layer)
    if named.parameter in _BY_HEAD:
        return Cut.COLUMN
    if named.role is Role.NORM:
        gated = state is not None and state.cell is Cell.MAMBA2 and tensor.shape == (state.inner,)
        return Cut.COLUMN if gated and _GATED_NORM.search(named.module) else Cut.WHOLE
    for pattern, cut in _CUTS:
        if pattern.search(named.module):
            return _fused(layer, ranks) if cut is None else cut
    if _EXPERT.search(tensor.name):
        return Cut.COLUMN
    return Cut.WHOLE


def _fused(layer: Layer | None, ranks: int) -> Fraction:
    kind = None if layer is None else attention_of(layer.mixer)
    heads, kv_heads = getattr(kind, "heads", 0), getattr(kind, "kv_heads", 0)
    if not heads or not kv_heads:
        return Fraction(1)
    return Fraction(heads // ranks + 2 * max(1, kv_heads // ranks), heads + 2 * kv_heads)
