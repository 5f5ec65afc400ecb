"""What MLX allocates when mlx-lm runs a model. Memory is unified, so everything is in the device's pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.mlx.caches import (
    CacheSettings,
    cache_lines,
    check_quantized,
    layer_caches,
    read_session,
)
from edgekit.engines.mlx.compute import compute_lines, read_work, runtime_lines
from edgekit.engines.mlx.models import mlx_model
from edgekit.engines.mlx.prepared import BuiltModel, prepare
from edgekit.engines.mlx.quantization import AS_STORED, FOUR_BIT, AsStored, Quantize
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.mlx.weights import item_bytes, weight_lines
from edgekit.errors import RefusedError, UnknownArchitectureError
from edgekit.model.hyperparameters import text_section
from edgekit.model.types import LatentAttention, Model
from edgekit.sources.types import Container
from edgekit.units import Basis

NAME = "mlx"
VERSION = "mlx-lm 0.32.2 (MLX 0.32.4)"
NOT_QUANTISED = "the repository is not quantised: computed as if converted to 4 bits, group size 64"


def estimate(model: Model, load: Load, setup: MlxSetup) -> MemoryEstimate:
    """The memory estimate. Raises RefusedError if mlx-lm would not run the model."""
    if model.header.container is Container.GGUF:
        raise RefusedError("mlx-lm loads safetensors; this is a GGUF file")
    prepared, quantize = prepare(model), setup.quantize
    built = prepared.built.get(lambda: _build(model))
    geometry = built.model.geometry
    session = read_session(geometry, load, setup)
    by_layer = prepared.caches.get(
        setup.max_kv_size,
        lambda: layer_caches(
            geometry, built.file, setup, built.item_bytes, listed=built.lists_layers
        ),
    )
    settings = CacheSettings(
        session=session,
        setup=setup,
        item_bytes=built.item_bytes,
        sequences=load.sequences or 1,
    )
    check_quantized((cache for _, cache in by_layer), built.file, settings)
    caches = cache_lines(by_layer, settings, geometry)
    compute = compute_lines(
        built.work, by_layer, settings, words_per_weight=_words_per_weight(model, quantize)
    )
    weights = prepared.weights.get(quantize, lambda: weight_lines(built.model, quantize))
    is_converted = quantize is None and model.header.quantization is None
    return MemoryEstimate(
        engine=NAME,
        backend="metal",
        lines=(*weights, *caches, *compute, *runtime_lines(compute)),
        facts=(
            ("cache_bytes", sum(line.size_bytes for line in caches)),
            ("prompt_tokens", session.prompt_tokens),
            ("new_tokens", session.new_tokens),
            ("chunk_tokens", session.widest_chunk),
        ),
        notes=(NOT_QUANTISED,) if is_converted else (),
    )


def _build(model: Model) -> BuiltModel:
    """The model as mlx-lm builds it. Raises UnknownArchitectureError, and RefusedError if mlx-lm does not have it."""
    header, geometry = model.header, model.geometry
    file = mlx_model(header.config)
    if file.needs_row and geometry.basis is Basis.ASSUMED:
        raise UnknownArchitectureError(
            f"{header.name}: mlx-lm supports {file.name!r}, but edgekit does not "
            "know its layers yet: upgrade edgekit, or add a record to "
            "model/architectures.json"
        )
    latent = [layer.mixer for layer in geometry.layers if isinstance(layer.mixer, LatentAttention)]
    index_dim = max((mixer.index_dim for mixer in latent), default=0)
    if index_dim and file.indexes_all:
        layers = tuple(
            replace(layer, mixer=replace(layer.mixer, index_dim=index_dim))
            if isinstance(layer.mixer, LatentAttention)
            else layer
            for layer in geometry.layers
        )
        model = Model(header=header, geometry=replace(geometry, layers=layers))
    return BuiltModel(
        model=model,
        file=file,
        item_bytes=item_bytes(header),
        lists_layers=bool(text_section(header.config).get("layer_types")),
        work=read_work(model.geometry),
    )


def _words_per_weight(model: Model, quantize: Quantize | AsStored | None) -> float:
    """Numbers that MLX counts for a weight: 1, or less if it is packed into 32-bit words."""
    stored = model.header.quantization
    bits: float | None = FOUR_BIT.bits  # None: plain numbers
    group: int | None = FOUR_BIT.group_size
    if isinstance(quantize, Quantize):
        bits = quantize.packing.bits if quantize.rest else None
        group = quantize.packing.group_size
    elif stored is not None:
        bits, group = stored.bits, stored.group_size
    elif quantize is AS_STORED:
        bits = None
    if bits is None:
        return 1.0
    return bits / 32 + 2 / (group or FOUR_BIT.group_size)  # 2: a scale and a bias per group


def config_probes() -> Iterator[tuple[Load, MlxSetup]]:
    """Loads and setups whose bills read different parts of a config.json."""
    load = Load(context_tokens=1_024)
    yield load, MlxSetup()
    yield load, MlxSetup(quantize=AS_STORED)
    yield load, MlxSetup(kv_bits=8, quantized_kv_start=0)


def answer_facts(estimate: MemoryEstimate) -> Mapping[str, Any]:
    """Further keys of the answer in JSON."""
    return {"cache_bytes": estimate.kv_cache_bytes}
