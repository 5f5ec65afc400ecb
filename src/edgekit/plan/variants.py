"""A model and an engine -> the quantisations to choose among, the most accurate first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from edgekit.engine.llamacpp.as_gguf import MADE_IN_MXFP4, USUAL_MIXES, default_mix
from edgekit.engine.types import Model
from edgekit.header.mixes import mix_by_name
from edgekit.memory.mix_table import BY_NAME
from edgekit.plan.choice import USUAL_ACCURACY, as_named
from edgekit.plan.types import Variant
from edgekit.source.naming import SHORT_MIXES
from edgekit.source.types import Container

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
    from edgekit.engine.mlx.types import Packing, Quantize

    for bits in MLX_BITS:
        accuracy = bits * 100 + 50  # a scale and a bias of 16 bits for every 64 weights
        yield Variant(
            name=f"{bits} bit",
            model=model,
            accuracy=accuracy,
            changes={"quantize": Quantize(packing=Packing(bits=bits, group_size=64))},
        )


def variants_of(model: Model, engine: str, *, settled: bool) -> tuple[Variant, ...]:
    """What can be made of a model. `settled`: the caller has named the file, or how it is quantised."""
    if settled or engine in {"vllm", "stream"}:
        return as_named(model)
    if engine == "llama.cpp":
        return _up_to_stored(model, at_mixes(model))
    from edgekit.engine.mlx.weights import quantization_of

    plain = model.header.container is not Container.GGUF and quantization_of(model) is None
    return at_bits(model) if plain else as_named(model)


def usual_variant(variants: tuple[Variant, ...]) -> Variant:
    """The one that people take: about four and a half bits, or the nearest to it."""
    good = [one for one in variants if one.is_good] or list(variants)
    return next((one for one in good if one.accuracy <= USUAL_ACCURACY), good[-1])
