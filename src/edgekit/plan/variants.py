"""A model and an engine -> the quantisations to choose among, the most accurate first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from edgekit.bill.task import Variant
from edgekit.catalog.repositories import Form, repositories_of
from edgekit.engines.llamacpp.as_gguf import MADE_IN_MXFP4, USUAL_MIXES, default_mix
from edgekit.engines.llamacpp.quantize.table import BY_NAME
from edgekit.formats import read_quantization
from edgekit.formats.mixes import mix_by_name
from edgekit.model.types import Model
from edgekit.plan.choice import USUAL_ACCURACY, as_named
from edgekit.sources.naming import SHORT_MIXES
from edgekit.sources.types import Container

ORIGINAL_ACCURACY = 1000  # 16 bits: nothing is gained over 8 that memory should be spent on
MLX_BITS = (8, 6, 5, 4, 3)


def _up_to_stored(model: Model, variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """More bits than the original has make a file larger, and nothing better. gpt-oss was made in MXFP4."""
    if model.geometry.architecture in MADE_IN_MXFP4:
        return at_mixes(model, (default_mix(model),))
    packed = model.header.quantization
    most = ORIGINAL_ACCURACY if packed is None or packed.bits is None else packed.bits * 100 + 100
    return tuple(one for one in variants if one.accuracy <= most) or variants


def at_mixes(
    model: Model, mixes: Iterable[str] = USUAL_MIXES, *, repository: str = ""
) -> tuple[Variant, ...]:
    """llama.cpp: as if quantised so. With a repository the files are there to be had."""
    known = ((SHORT_MIXES.get(tag.upper(), tag.upper()), tag) for tag in mixes)
    found = {name: tag for name, tag in known if name in BY_NAME}
    variants = (_at_mix(model, name, tag, repository) for name, tag in found.items())
    quantised = sorted(variants, key=lambda one: -one.accuracy)
    small = tuple(one for one in quantised if one.accuracy < ORIGINAL_ACCURACY)
    return small or tuple(quantised)


def _at_mix(model: Model, name: str, tag: str, repository: str) -> Variant:
    return Variant(
        name=name,
        model=model,
        accuracy=accuracy_of(name) or USUAL_ACCURACY,  # every row of the table has a name
        changes={"mix": name},
        reference=f"{repository}:{tag}" if repository else "",
    )


def accuracy_of(mix: str) -> int | None:
    """By the bits of its name: a file's average differs by model, the order of the names does not. None: unknown."""
    known = mix_by_name(mix)
    return round(known.bits_per_weight * 100) if known is not None else None


def stored_accuracy(model: Model) -> int:
    """By the bits that the weights of a file really have; the usual where its directory was not read."""
    weights = [tensor for tensor in model.header.tensors or () if len(tensor.shape) > 1]
    elements = sum(math.prod(tensor.shape) for tensor in weights)
    size = sum(tensor.size_bytes for tensor in weights)
    return round(size * 800 / elements) if elements else USUAL_ACCURACY


def at_bits(model: Model) -> tuple[Variant, ...]:
    """MLX: an unquantised repository as mlx_lm.convert would write it."""
    return tuple(_at_bits(model))


def _at_bits(model: Model) -> Iterator[Variant]:
    from edgekit.engines.mlx.types import Packing, Quantize

    for bits in MLX_BITS:
        accuracy = bits * 100 + 50  # a scale and a bias of 16 bits for every 64 weights
        yield Variant(
            name=f"{bits} bit",
            model=model,
            accuracy=accuracy,
            changes={"quantize": Quantize(packing=Packing(bits=bits, group_size=64))},
        )


def variants_of(
    model: Model, engine: str, *, settled: bool, label: str = ""
) -> tuple[Variant, ...]:
    """What can be made of a model. `settled`: the caller has named the file, or how it is quantised. `label`: its name
    in the catalog, whose other repositories vLLM may load.
    """
    if settled or engine == "stream":
        return as_named(model)
    if engine == "vllm":
        return (*as_named(model), *(_repositories(model, label) if label else ()))
    if engine == "llama.cpp":
        return _up_to_stored(model, at_mixes(model))
    from edgekit.engines.mlx.weights import quantization_of

    plain = model.header.container is not Container.GGUF and quantization_of(model) is None
    return at_bits(model) if plain else as_named(model)


# What such repositories usually state, and the order in which they are tried.
_QUANTISED: dict[Form, tuple[int, dict[str, Any]]] = {
    Form.FP8: (480, {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    Form.AWQ: (425, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
}


def _repositories(model: Model, label: str) -> Iterator[Variant]:
    """The known FP8 and 4-bit repositories of a model whose own weights are not quantised."""
    if model.header.quantization is not None:
        return
    for form, (accuracy, stated) in _QUANTISED.items():
        for one in repositories_of(label, form)[:1]:
            config = {**model.header.config, "quantization_config": stated}
            quantised = replace(model.header, config=config, quantization=read_quantization(config))
            yield Variant(
                name=form.name,
                model=Model(header=quantised, geometry=model.geometry),
                accuracy=accuracy,
                reference=one.name,
            )


def usual_variant(variants: tuple[Variant, ...]) -> Variant:
    """The one that people take: about four and a half bits, or the nearest to it."""
    good = [one for one in variants if one.is_good] or list(variants)
    return next((one for one in good if one.accuracy <= USUAL_ACCURACY), good[-1])
