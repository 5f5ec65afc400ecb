"""Weights of one rank as lines of the bill: from the tensor directory, else as the architecture has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine, weakest
from edgekit.engines.vllm.expected import Cast, VllmWeights, expected_weights
from edgekit.engines.vllm.prepared import RankWeightsKey, prepare
from edgekit.engines.vllm.schemes import check_capability, read_plan
from edgekit.engines.vllm.stored import stored_weights
from edgekit.engines.vllm.types import DTYPE_BYTES, ResolvedVllm, VllmSetup
from edgekit.errors import UnknownArchitectureError
from edgekit.machine.types import DEVICE
from edgekit.model.hyperparameters import TOWER_HIDDEN, TOWER_LAYERS, TOWER_SECTIONS
from edgekit.model.types import Model

# config.json alone: equal to what vLLM's own classes made in 1,188 of 1,189 cases.
EXPECTED_WITHIN = 0.005


def fullest_stage(
    model: Model, setup: VllmSetup, resolved: ResolvedVllm, cut: tuple[range, ...]
) -> range:
    """The pipeline stage with the most weights."""
    weights = weigh(model, setup, resolved)
    count = len(model.geometry.layers)
    return max(cut, key=lambda stage: weights.of_stage(stage, count))


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
    """The directory's plain tensors, less what the architecture's linear layers lose (quantization/online/fp8.py)."""
    plain = replace(cast, plan=None)
    stored = stored_weights(model, plain)
    try:
        before, after = expected_weights(model, plain), expected_weights(model, cast)
    except UnknownArchitectureError:  # which of them are linear layers is not known: at most this
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
    told = "tensors in the files" if stored else "tensors of the architecture"
    plan = read_plan(model.header.config, model.geometry.architecture, setup.quantization)
    if plan is not None and plan.online:
        told += f", linear layers quantised to {setup.quantization} while loading"
    shared = (
        f", one of {setup.tensor_parallel_size} ranks" if setup.tensor_parallel_size > 1 else ""
    )
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
            because=f"{told}{shared}",
            within=EXPECTED_WITHIN if basis is Basis.MODELLED else None,
        )
        for layer, size in sizes
    ]
    towers = (
        0 if stored or stage.start else tower_parameters(model.header.config, model.geometry.hidden)
    )
    if towers:
        lines.append(_tower_line(towers, resolved))
    return tuple(lines)


def _tower_line(parameters: int, resolved: ResolvedVllm) -> MemoryLine:
    return MemoryLine(
        component=Component.WEIGHTS,
        size_bytes=parameters * DTYPE_BYTES[resolved.dtype],
        pool=DEVICE,
        basis=Basis.MODELLED,
        because=(
            f"vision and audio towers: about {parameters:,} parameters, a full copy on every rank"
        ),
        within=WITHIN,
    )


UNKNOWN_TOWER_PARAMETERS = 450_000_000  # SigLIP so400m, the one that most models have
SMALL_TABLES = 1.09  # patches, positions, norms, biases
WITHIN = 0.15
_THREE_MATRICES = frozenset({"qwen2_5_vl", "gemma4", "pixtral", "mistral3"})
_HOPPED = "spatial_merge_size"  # Qwen: so many patches by so many are joined before they go in


def tower_parameters(config: Mapping[str, Any], hidden: int) -> int:
    """0 without towers."""
    return sum(_tower(config, section, hidden) for section in _sections(config))


def _sections(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name, _ in TOWER_SECTIONS:
        section = config.get(name)
        if isinstance(section, Mapping) and section:
            yield section


def _tower(config: Mapping[str, Any], section: Mapping[str, Any], hidden: int) -> int:
    layers = _number(section, TOWER_LAYERS)
    own = _number(section, ("embed_dim", *TOWER_HIDDEN))
    if not layers or not own:
        return UNKNOWN_TOWER_PARAMETERS
    width = _number(section, ("intermediate_size", "ffn_dim", "encoder_ffn_dim")) or 4 * own
    matrices = 3 if str(config.get("model_type")) in _THREE_MATRICES else 2
    blocks = layers * (4 * own * own + matrices * own * width)
    return int((blocks + _way_in(section, own, hidden)) * SMALL_TABLES)


def _way_in(section: Mapping[str, Any], own: int, hidden: int) -> int:
    merged = own * (_number(section, (_HOPPED,)) or 1) ** 2
    deep = section.get("deepstack_visual_indexes")
    ways = 1 + (len(deep) if isinstance(deep, list) else 0)
    return ways * merged * (merged + hidden)


def _number(section: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    found = (section.get(key) for key in keys)
    sizes = (x for x in found if isinstance(x, int) and not isinstance(x, bool) and 0 < x < 2**20)
    return next(sizes, None)
