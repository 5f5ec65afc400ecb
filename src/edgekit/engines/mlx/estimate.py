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
from edgekit.engines.mlx.prepared import KnownModel, prepare
from edgekit.engines.mlx.quantization import AS_STORED, FOUR_BIT, AsStored, Quantize
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.mlx.weights import item_bytes, quantization_of, weight_lines
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
    model = prepare(model).as_built.get(lambda: _model_as_built(model)) or model
    prepared, quantize = prepare(model), setup.quantize
    known = prepared.known.get(quantize, lambda: _read_known_model(model, quantize))
    session = read_session(model.geometry, load, setup)
    by_layer = prepared.caches.get(
        setup.max_kv_size,
        lambda: layer_caches(
            model.geometry, known.file, setup, known.item_bytes, listed=known.listed
        ),
    )
    check_quantized((cache for _, cache in by_layer), known.file, session, setup)
    settings = CacheSettings(
        session=session,
        setup=setup,
        item_bytes=known.item_bytes,
        sequences=load.sequences or 1,
    )
    caches = cache_lines(by_layer, settings, model.geometry)
    compute = compute_lines(known.work, by_layer, settings)
    weights = prepared.weights.get(quantize, lambda: weight_lines(model, quantize))
    is_converted = quantize is None and quantization_of(model) is None
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


def _read_known_model(model: Model, quantize: Quantize | AsStored | None) -> KnownModel:
    """The facts about the model that do not depend on the load. Raises UnknownArchitectureError."""
    file = mlx_model(model.header.config)
    if file.needs_row and model.geometry.basis is Basis.ASSUMED:
        raise UnknownArchitectureError(
            f"{model.header.name}: mlx-lm supports {file.name!r}, but edgekit does not "
            "know its layers yet: upgrade edgekit, or add a record to "
            "model/architectures.json"
        )
    stored = quantization_of(model)
    bits: float | None = FOUR_BIT.bits  # None: plain numbers
    group: int | None = FOUR_BIT.group_size
    if isinstance(quantize, Quantize):
        bits = quantize.packing.bits if quantize.rest else None
        group = quantize.packing.group_size
    elif stored is not None:
        bits, group = stored.bits, stored.group_size
    elif quantize is AS_STORED:
        bits = None
    # numbers that MLX counts per weight: packed weights are 32-bit words, with a scale and a bias per group
    words_per_weight = 1.0 if bits is None else bits / 32 + 2 / (group or FOUR_BIT.group_size)
    return KnownModel(
        file=file,
        item_bytes=item_bytes(model.header),
        listed=bool(text_section(model.header.config).get("layer_types")),
        work=read_work(model.geometry, words_per_weight),
    )


def _model_as_built(model: Model) -> Model | None:
    """The model as mlx-lm builds it, if that differs from config.json."""
    layers = model.geometry.layers
    latent = [layer.mixer for layer in layers if isinstance(layer.mixer, LatentAttention)]
    width = max((mixer.index_dim for mixer in latent), default=0)
    if not width or not mlx_model(model.header.config).indexes_all:
        return None
    built = tuple(
        replace(layer, mixer=replace(layer.mixer, index_dim=width))
        if isinstance(layer.mixer, LatentAttention)
        else layer
        for layer in layers
    )
    return Model(header=model.header, geometry=replace(model.geometry, layers=built))


def config_probes() -> Iterator[tuple[Load, MlxSetup]]:
    """Loads and setups whose bills read different parts of a config.json."""
    load = Load(context_tokens=1_024)
    yield load, MlxSetup()
    yield load, MlxSetup(quantize=AS_STORED)
    yield load, MlxSetup(kv_bits=8, quantized_kv_start=0)


def answer_facts(estimate: MemoryEstimate) -> Mapping[str, Any]:
    """Further keys of the answer in JSON."""
    return {"cache_bytes": estimate.kv_cache_bytes}
