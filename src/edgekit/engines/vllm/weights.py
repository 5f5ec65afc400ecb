"""Weights of one rank as memory lines: by the tensor directory, else by the tensors of the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine, weakest
from edgekit.engines.vllm.expected import Cast, VllmWeights, expected_weights
from edgekit.engines.vllm.prepared import RankWeightsKey, prepare
from edgekit.engines.vllm.schemes import check_capability, read_plan
from edgekit.engines.vllm.sharding import stages
from edgekit.engines.vllm.stored import stored_weights
from edgekit.engines.vllm.types import DTYPE_BYTES, ResolvedVllm, VllmSetup
from edgekit.errors import UnknownArchitectureError
from edgekit.machine.types import DEVICE
from edgekit.model.hyperparameters import TOWER_HIDDEN, TOWER_LAYERS, TOWER_SECTIONS
from edgekit.model.types import Model

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
