"""A model -> the lines of its weights: as they are stored, or as they would be after conversion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.mlx.dtype import item_bytes
from edgekit.engines.mlx.held import held_tensors, is_tied
from edgekit.engines.mlx.models import mlx_model
from edgekit.engines.mlx.packing import packing_words
from edgekit.engines.mlx.prepared import prepare
from edgekit.engines.mlx.quantizer import Quantizer, check
from edgekit.engines.mlx.stated import stated_overrides, stated_quantize
from edgekit.engines.mlx.stored import converted_bytes, loaded_bytes
from edgekit.engines.mlx.types import AS_STORED, FOUR_BIT, PLAIN, AsStored, Quantize
from edgekit.errors import UnknownArchitectureError
from edgekit.formats.quantization import read_quantization
from edgekit.formats.types import Quantization
from edgekit.machine.types import DEVICE
from edgekit.model.types import Model
from edgekit.units import format_bytes

# Matrices follow from config.json exactly for most models; small vectors of some families do not.
CONFIG_BOUND = 0.005
NAMES_BOUND = 0.03


def weight_lines(model: Model, wanted: Quantize | AsStored | None) -> tuple[MemoryLine, ...]:
    """One line a layer, one for all that stands outside them."""
    packed = quantization_of(model)
    if wanted is None:
        wanted = AS_STORED if packed is not None else Quantize(packing=FOUR_BIT)
    if wanted == PLAIN and packed is None:
        wanted = AS_STORED
    if isinstance(wanted, Quantize):
        return _converted(model, wanted)
    if model.header.tensors is not None:
        return _loaded(model, packed)
    return _stated(model, packed)


def quantization_of(model: Model) -> Quantization | None:
    header = model.header
    found = prepare(model).quantization
    return header.quantization or found.get(lambda: read_quantization(header.config))


def _converted(model: Model, quantize: Quantize) -> tuple[MemoryLine, ...]:
    file = mlx_model(model.header.config)
    check(quantize, file)
    told = f"as if converted by mlx_lm.convert: {_describe(quantize)}"
    try:
        return _expected(model, quantize, told)
    except UnknownArchitectureError:
        if model.header.tensors is None:
            raise
    sizes = converted_bytes(
        model.header.tensors,
        quantize.packing,
        item_bytes(model.header),
        layers=len(model.geometry.layers) // model.geometry.loops,
        tied=is_tied(model.header.config, file),
    )
    return _lines(sizes, f"{told}; from the tensor names", Basis.MODELLED, NAMES_BOUND)


def _describe(quantize: Quantize) -> str:
    if quantize == PLAIN:
        return "plain numbers"
    if quantize.recipe is not None:
        return f"{quantize.recipe.value}, group {quantize.packing.group_size}"
    rest = packing_words(quantize.packing) if quantize.rest else "the rest plain"
    return (
        rest if quantize.experts is None else f"experts {packing_words(quantize.experts)}, {rest}"
    )


def _stated(model: Model, packed: Quantization | None) -> tuple[MemoryLine, ...]:
    """Without a tensor directory: by config.json and the index's total."""
    quantize = stated_quantize(packed, mlx_model(model.header.config).name)
    if model.header.tensor_bytes is not None and _is_loaded_whole(model, packed):
        return _lines({None: model.header.tensor_bytes}, "total of the index", Basis.EXACT)
    told = "plain numbers" if quantize is None else _describe(quantize)
    return _expected(model, quantize, f"from config.json: {told}", packed)


def _is_loaded_whole(model: Model, packed: Quantization | None) -> bool:
    """Whether what the files hold is what is loaded: no towers, no prediction blocks, nothing repacked."""
    beside = model.geometry.towers or model.geometry.mtp_layers
    return not beside and (packed is None or packed.mlx or packed.method == "mxfp4")


def _expected(
    model: Model, quantize: Quantize | None, told: str, packed: Quantization | None = None
) -> tuple[MemoryLine, ...]:
    config, geometry = model.header.config, model.geometry
    file = mlx_model(config)
    quantizer = Quantizer(
        file=file,
        layers=len(geometry.layers) // geometry.loops,
        item_bytes=item_bytes(model.header),
        quantize=quantize,
        overrides=stated_overrides(packed),
        stated=packed is not None,
    )
    sizes: dict[int | None, int] = defaultdict(int)
    held = prepare(model).tensors.get(lambda: held_tensors(geometry, config, file))
    for tensor in held:
        sizes[tensor.layer] += quantizer.size_bytes(tensor)
    assumed = geometry.basis is Basis.ASSUMED
    if assumed:
        return _lines(sizes, f"{told}; {geometry.because}", Basis.ASSUMED)
    return _lines(sizes, told, Basis.MODELLED, CONFIG_BOUND)


def _loaded(model: Model, packed: Quantization | None) -> tuple[MemoryLine, ...]:
    header, config = model.header, model.header.config
    file = mlx_model(config)
    stated_quantize(packed, file.name)  # refuses what mlx-lm does not load
    sizes, left = loaded_bytes(
        header.tensors or (),
        packed,
        layers=len(model.geometry.layers) // model.geometry.loops,
        tied=is_tied(config, file),
    )
    told = "sum of the tensors in the files"
    if left:
        told += f", without {format_bytes(left)} that mlx-lm does not load"
    return _lines(sizes, told, Basis.EXACT)


def _lines(
    sizes: Mapping[int | None, int], told: str, basis: Basis, within: float | None = None
) -> tuple[MemoryLine, ...]:
    ordered = sorted(sizes.items(), key=lambda item: -1 if item[0] is None else item[0])
    return tuple(
        MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=size,
            pool=DEVICE,
            layer=layer,
            basis=basis,
            because=told,
            within=within,
        )
        for layer, size in ordered
    )
