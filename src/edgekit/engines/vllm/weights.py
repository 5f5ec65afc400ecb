"""The weights of one rank as memory lines: by the tensors in the files, else by the tensors of the architecture.

Tensors in the files are recognised by the last parts of their names, which are the same in all families. vLLM does not
load some of them, and fuses, pads or stores others in f32. Unrecognised tensors count in full on every rank, so the
total errs on the high side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from edgekit.bill.types import Component, MemoryLine, modelled_line, weakest
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
from edgekit.engines.vllm.models import cached_attention_of, recurrent_of, vllm_model
from edgekit.engines.vllm.prepared import prepare
from edgekit.engines.vllm.schemes import MIN_CAPABILITY, read_plan
from edgekit.engines.vllm.types import DTYPE_BYTES, ResolvedVllm, VllmSetup
from edgekit.errors import RefusedError, UnknownArchitectureError
from edgekit.formats.types import Tensor
from edgekit.machine.types import DEVICE
from edgekit.model import Role, block_of, roles_of
from edgekit.model.hyperparameters import TOWER_HIDDEN, TOWER_LAYERS, TOWER_SECTIONS
from edgekit.model.types import Cell, Layer, Model
from edgekit.units import Basis

# Error bound of weights from config.json alone, which equal what vLLM's own classes allocated in 1,188 of 1,189 cases.
EXPECTED_WITHIN = 0.005
TOWERS_WITHIN = 0.15
UNKNOWN_TOWER_PARAMETERS = 450_000_000  # SigLIP so400m, the most common tower
SMALL_TABLES = 1.09  # factor for patches, positions, norms and biases of a tower
_THREE_MATRICES = frozenset({"qwen2_5_vl", "gemma4", "pixtral", "mistral3"})  # gated feed-forward


def fullest_stage(model: Model, setup: VllmSetup, resolved: ResolvedVllm) -> range:
    """The layers of the pipeline stage with the most weights."""
    count = len(model.geometry.layers)
    all_stages = stages(count, setup.pipeline_parallel_size)
    if len(all_stages) == 1:
        return all_stages[0]
    weights = weigh(model, setup, resolved)
    return max(all_stages, key=lambda stage: weights.of_stage(stage, count))


def weigh(model: Model, setup: VllmSetup, resolved: ResolvedVllm) -> VllmWeights:
    """The weights on one rank, computed once for each combination of settings that they depend on."""
    key = (setup.tensor_parallel_size, setup.quantization, setup.gpu.capability, resolved.dtype)
    return prepare(model).weights.get(key, lambda: _compute_weights(model, setup, resolved.dtype))


def _compute_weights(model: Model, setup: VllmSetup, dtype: str) -> VllmWeights:
    """The weights on one rank. Raises RefusedError if the GPU is too old for the quantisation."""
    plan = read_plan(model.header.config, model.geometry.architecture, setup.quantization)
    method = "" if plan is None else plan.main.method
    capability = setup.gpu.capability
    needed = MIN_CAPABILITY.get(method, (0, 0))
    if capability < needed:
        raise RefusedError(
            f"{method} needs compute capability {needed[0]}.{needed[1]}, but "
            f"this GPU has {capability[0]}.{capability[1]}"
        )
    cast = Cast(dtype=dtype, ranks=setup.tensor_parallel_size, gpu=setup.gpu, plan=plan)
    if model.header.tensors is None:
        return expected_weights(model, cast)
    if plan is None or not plan.online:
        return stored_weights(model, cast)
    # the plain tensors in the files, minus what quantising the linear layers saves (quantization/online/fp8.py)
    plain_cast = replace(cast, plan=None)
    stored = replace(stored_weights(model, plain_cast), online=True)
    try:
        plain, quantized = expected_weights(model, plain_cast), expected_weights(model, cast)
    except UnknownArchitectureError:  # unknown which tensors are linear layers: an upper bound
        return replace(stored, basis=Basis.ASSUMED)
    layers = zip(stored.layer_bytes, quantized.layer_bytes, plain.layer_bytes, strict=True)
    return replace(
        stored,
        before_bytes=stored.before_bytes + quantized.before_bytes - plain.before_bytes,
        layer_bytes=tuple(
            size + quantized_bytes - plain_bytes for size, quantized_bytes, plain_bytes in layers
        ),
        after_bytes=stored.after_bytes + quantized.after_bytes - plain.after_bytes,
        basis=quantized.basis,
    )


def weight_lines(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, stage: range
) -> tuple[MemoryLine, ...]:
    """A line for each layer of the stage, one for the weights outside the layers, and one for the towers."""
    weights = weigh(model, setup, resolved)
    has_tensors = model.header.tensors is not None
    because = "tensors in the files" if has_tensors else "tensors of the architecture"
    if weights.online:
        because += f", linear layers quantised to {setup.quantization} while loading"
    if setup.tensor_parallel_size > 1:
        because += f", one of {setup.tensor_parallel_size} ranks"
    at_best = Basis.EXACT if has_tensors else Basis.MODELLED
    basis = weakest((weights.basis, model.geometry.basis, at_best))
    inside_bytes = sum(weights.layer_bytes[index] for index in stage)
    outside_bytes = weights.of_stage(stage, len(model.geometry.layers)) - inside_bytes
    sizes = [(None, outside_bytes), *((index, weights.layer_bytes[index]) for index in stage)]
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
    # The files have the tensors of the towers, the first stage loads them.
    if has_tensors or stage.start:
        return tuple(lines)
    towers = tower_parameters(model.header.config, model.geometry.hidden)
    if towers:
        because = f"vision and audio towers: about {towers:,} parameters, a full copy on every rank"
        size = towers * DTYPE_BYTES[resolved.dtype]
        lines.append(modelled_line(Component.WEIGHTS, size, TOWERS_WITHIN, because))
    return tuple(lines)


def tower_parameters(config: Mapping[str, Any], hidden: int) -> int:
    """The estimated number of parameters of all vision and audio towers; 0 without towers.

    `hidden`: the hidden width of the language model.
    """
    total = 0
    for section in (config.get(name) for name, _ in TOWER_SECTIONS):
        if not isinstance(section, Mapping) or not section:
            continue
        layers = _first_size(section, TOWER_LAYERS)
        tower_hidden = _first_size(section, ("embed_dim", *TOWER_HIDDEN))
        if not layers or not tower_hidden:
            total += UNKNOWN_TOWER_PARAMETERS
            continue
        width = _first_size(section, ("intermediate_size", "ffn_dim", "encoder_ffn_dim"))
        width = width or 4 * tower_hidden
        matrices = 3 if str(config.get("model_type")) in _THREE_MATRICES else 2
        blocks = layers * (4 * tower_hidden * tower_hidden + matrices * tower_hidden * width)
        # Projectors into the language model: one, and one per deepstack layer. Qwen first joins squares of patches.
        merged = tower_hidden * (_first_size(section, ("spatial_merge_size",)) or 1) ** 2
        deepstack = section.get("deepstack_visual_indexes")
        projectors = 1 + (len(deepstack) if isinstance(deepstack, list) else 0)
        total += int((blocks + projectors * merged * (merged + hidden)) * SMALL_TABLES)
    return total


def _first_size(section: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """The value of the first key that is a sensible size."""
    for key in keys:
        value = section.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**20:
            return value
    return None


_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_NOT_LOADED = re.compile(
    r"rotary_emb\.|inv_freq$|\.masked_bias$|\.attn\.bias$|[kqv]_scale$|_zero_point$"
)
_PARAMETER = re.compile(  # the last part of a tensor's name; what precedes it names the module
    r"\.(weight|bias|qweight|qzeros|scales|g_idx|weight_packed|weight_scale|weight_scale_inv|weight_scale_2|input_scale|"
    r"weight_shape|weight_g_idx|weight_global_scale|input_global_scale|A_log|A|D|dt_bias|sinks|e_score_correction_bias)$"
)
# Alternatives of regular expressions for the last part of a module's name:
_VOCABULARY = "embed_tokens|word_embeddings|wte|tok_embeddings|embeddings|embed_in|lm_head|embed_out|output_layer"
_FUSED = "qkv_proj|Wqkv|query_key_value|c_attn|wqkv"  # queries, keys and values in one matrix
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
        (_FUSED, Cut.FUSED),
        (_ROW, Cut.ROW),
        (_COLUMN, Cut.COLUMN),
    )
)
# Names of parameters that vLLM stores in f32, and of those that have a number for each head.
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
class _StoredTensor:
    """A tensor in the files, with the parts of its name."""

    tensor: Tensor
    role: Role
    module: str
    parameter: str  # "": not recognised
    layer: Layer | None  # None: not in a layer of the language model


def stored_weights(model: Model, cast: Cast) -> VllmWeights:
    """The weights on one rank by the tensors in the files."""
    layers, tensors = model.geometry.layers, model.header.tensors or ()
    main = None if cast.plan is None else cast.plan.main
    is_tied = model.geometry.tied_embeddings is True
    has_no_head_bias = vllm_model(model.geometry.architecture).head_without_bias
    layer_bytes = [attention_scale_bytes(layer.mixer, cast) for layer in layers]
    before_bytes = after_bytes = 0
    for tensor, role in zip(tensors, roles_of(tensors, layers=len(layers)), strict=True):
        # not loaded: prediction layers, the copy of a tied embedding, tables that vLLM computes
        is_unused_bias = tensor.name.endswith(".bias") and has_no_head_bias
        is_unused_head = role is Role.OUTPUT and (is_tied or is_unused_bias)
        if role is Role.MTP or is_unused_head or _NOT_LOADED.search(tensor.name):
            continue
        block, suffix = block_of(tensor.name), _PARAMETER.search(tensor.name)
        if block is not None and (block >= len(layers) or role is Role.TOWER):
            block = None  # not a layer of the language model
        stored = _StoredTensor(
            tensor=tensor,
            role=role,
            module=tensor.name if suffix is None else tensor.name[: suffix.start()],
            parameter="" if suffix is None else suffix[1],
            layer=None if block is None else layers[block],
        )
        size = _tensor_bytes(model, stored, cast)
        if block is not None:
            layer_bytes[block] += size
        elif role is Role.OUTPUT or (role is Role.NORM and "embed" not in tensor.name):
            after_bytes += size
        else:
            before_bytes += size
    if main is not None and main.expert_biases:
        # GPTQ's experts have biases whether the checkpoint does or not (auto_gptq.py)
        for layer in layers:
            experts = layer.experts
            if experts is not None:
                width = (2 if experts.gated else 1) * experts.width // cast.ranks
                numbers = experts.count * (width + model.geometry.hidden)
                layer_bytes[layer.index] += numbers * DTYPE_BYTES[cast.dtype]
    if main is not None and main.method == "mxfp4":  # padded, so not as in the files
        for index, size in expected_bytes(model, cast, EXPERT_ROLES):
            layer_bytes[index] += size
    return VllmWeights(
        before_bytes=before_bytes,
        layer_bytes=tuple(layer_bytes),
        after_bytes=after_bytes,
        basis=Basis.EXACT if cast.plan is None else cast.plan.basis,
        tied=is_tied,
    )


def _tensor_bytes(model: Model, stored: _StoredTensor, cast: Cast) -> int:
    """Bytes on one rank. vLLM has some parameters only once per fused matrix, or not at all."""
    main = None if cast.plan is None else cast.plan.main
    is_expert = _EXPERT.search(stored.tensor.name) is not None
    if is_expert and main is not None and main.method == "mxfp4":
        return (
            0  # `stored_weights` counts these experts by the architecture, because vLLM pads them
        )
    is_later_part = _FUSED_AFTER_FIRST.search(stored.module) is not None
    match stored.parameter:
        case "g_idx" | "weight_g_idx":
            return 0
        case "weight_shape" if is_later_part:
            return 0
        case "weight_shape":
            return 2 * (DTYPE_BYTES[cast.dtype] if is_expert else 8)
        case "input_scale" if is_expert and is_later_part and main and main.input_bytes:
            return 0
        case _:
            return int(_element_bytes(model, stored, cast) * _rank_share(stored, cast))


def _element_bytes(model: Model, stored: _StoredTensor, cast: Cast) -> int:
    """Bytes of the whole tensor in the dtype in which vLLM stores it."""
    tensor, architecture = stored.tensor, model.geometry.architecture
    if tensor.type.name not in _FLOATS:
        return tensor.size_bytes
    is_f32 = stored.parameter in _IN_F32 or "indexer.k_norm" in tensor.name
    if stored.role is Role.ROUTER:
        is_f32 = is_f32 or "correction" in tensor.name or "expert_bias" in tensor.name
        if stored.parameter == "weight":
            is_f32 = is_f32 or router_in_f32(architecture, cast.gpu)
        elif stored.parameter == "bias":
            is_f32 = is_f32 or not vllm_model(architecture).router_bias_as_model
    if stored.parameter == "weight_scale" and tensor.type.name != "F32":
        is_f32 = False
    return tensor.elements * (F32_BYTES if is_f32 else DTYPE_BYTES[cast.dtype])


def _rank_share(stored: _StoredTensor, cast: Cast) -> Fraction:
    """The part of the tensor that one rank has; with a padded vocabulary, more than the tensor on a single rank."""
    cut, tensor = _cut_of(stored), stored.tensor
    attention = None if stored.layer is None else cached_attention_of(stored.layer.mixer)
    heads, kv_heads = getattr(attention, "heads", 0), getattr(attention, "kv_heads", 0)
    if cut is Cut.VOCABULARY and tensor.shape:
        return Fraction(padded(tensor.shape[0]), tensor.shape[0] * cast.ranks)
    if cast.ranks == 1 or cut is Cut.WHOLE or tensor.elements == 1:
        return Fraction(1)
    if cut is Cut.KV:
        if not kv_heads:
            return Fraction(1, cast.ranks)
        return Fraction(max(1, kv_heads // cast.ranks), kv_heads)
    if cut is Cut.FUSED:
        if not heads or not kv_heads:
            return Fraction(1)
        heads_on_rank = heads // cast.ranks + 2 * max(1, kv_heads // cast.ranks)
        return Fraction(heads_on_rank, heads + 2 * kv_heads)
    is_per_output = len(tensor.shape) == 1 or tensor.shape[-1] == 1  # a bias or a scale
    if cut is Cut.ROW and is_per_output:
        return Fraction(1)
    state, rows = recurrent_of(stored.layer), tensor.shape[0]
    if (
        state is not None
        and state.cell is Cell.MAMBA2
        and state.groups % cast.ranks
        and rows > state.inner
        and _WITH_GROUPS.search(stored.module)
    ):
        # B and C are copied until every rank has a group
        added_rows = 2 * (cast.ranks - state.groups) * state.state_size
        return Fraction(rows + added_rows, rows * cast.ranks)
    return Fraction(1, cast.ranks)


def _cut_of(stored: _StoredTensor) -> Cut:
    """How ranks split the tensor, by the parts of its name."""
    if stored.role in {Role.TOWER, Role.ROUTER}:
        return Cut.WHOLE
    if stored.parameter in _BY_HEAD:
        return Cut.COLUMN
    if stored.role is Role.NORM:
        state = recurrent_of(stored.layer)
        is_split = (
            state is not None
            and state.cell is Cell.MAMBA2
            and stored.tensor.shape == (state.inner,)
            and _GATED_NORM.search(stored.module)
        )
        return Cut.COLUMN if is_split else Cut.WHOLE
    for pattern, cut in _CUTS:
        if pattern.search(stored.module):
            return cut
    return Cut.COLUMN if _EXPERT.search(stored.tensor.name) else Cut.WHOLE
