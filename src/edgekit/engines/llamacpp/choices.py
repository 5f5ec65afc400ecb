"""What a plan may choose for llama.cpp: cache types and GGUF quantisations, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.bill.types import CacheChoice, Load, MemoryEstimate, Placement, Task, Variant
from edgekit.engines.choices import (
    F16_PAIR,
    Q8_PAIR,
    USUAL_ACCURACY,
    Pairs,
    accuracy_of,
    as_named,
    given_pair,
    pair_cache_name,
    pair_choices,
    stored_accuracy,
    stored_quant,
)
from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.converted import MixedModel
from edgekit.engines.llamacpp.estimate import converted
from edgekit.engines.llamacpp.placements import placements
from edgekit.engines.llamacpp.quantization import USUAL_MIXES, default_mix, mix_rows
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.errors import EdgekitError
from edgekit.model.open import OpenModel
from edgekit.model.types import Model
from edgekit.sources.filenames import SHORT_MIXES

if TYPE_CHECKING:
    from edgekit.catalog.types import Size

# K needs a little more accuracy than V. For unequal pairs release builds of CUDA and Metal have no flash attention
# kernel, and would compute on the CPU: fattn.cu @ 0c1e570.
EQUAL_PAIRS = (F16_PAIR, Q8_PAIR, ("q4_0", "q4_0"))
CPU_PAIRS = (F16_PAIR, Q8_PAIR, ("q8_0", "q5_1"), ("q8_0", "q4_0"), ("q4_0", "q4_0"))
ORIGINAL_ACCURACY = 1000  # 16 bits: nothing is gained over 8 that memory should be spent on


def cache_choices(task: Task, placement: Placement | None = None) -> tuple[CacheChoice, ...]:
    """`placement` says where attention is computed; None: as the task is first placed."""
    load = task.load
    both = given_pair(load)
    if both is not None:
        return (both,)
    placement = placement or next(placements(task))
    given = load.cache_k or load.cache_v
    pairs: Pairs = EQUAL_PAIRS if placement.cards else CPU_PAIRS
    if given is not None and placement.cards:
        pairs = ((given.name, given.name),)
    return tuple(pair_choices(load, pairs))


def cache_name(load: Load, _setup: LlamaCppSetup) -> str:
    """By the name that choices have."""
    return pair_cache_name(load)


def variants(model: Model, _label: str = "") -> tuple[Variant, ...]:
    """The usual mixes with at most the bits of the original: more make a file larger, and nothing better.

    gpt-oss was released in MXFP4.
    """
    if known_architecture(model.geometry.architecture).default_mix:
        return at_mixes(model, (default_mix(model),))
    packed = model.header.quantization
    most = ORIGINAL_ACCURACY if packed is None or packed.bits is None else packed.bits * 100 + 100
    usual = at_mixes(model)
    return tuple(one for one in usual if one.accuracy <= most) or usual


def at_mixes(
    model: Model, mixes: Iterable[str] = USUAL_MIXES, *, repository: str = ""
) -> tuple[Variant, ...]:
    """As if the model were quantised so. With a repository the files are there to be downloaded."""
    known = ((SHORT_MIXES.get(tag.upper(), tag.upper()), tag) for tag in mixes)
    found = {name: tag for name, tag in known if name in mix_rows()}
    quantised = sorted(
        (
            Variant(
                name=name,
                model=model,
                accuracy=accuracy_of(name) or USUAL_ACCURACY,  # every row of the table has a name
                changes={"mix": name},
                flags={"mix": name},
                reference=f"{repository}:{tag}" if repository else "",
            )
            for name, tag in found.items()
        ),
        key=lambda one: -one.accuracy,
    )
    small = tuple(one for one in quantised if one.accuracy < ORIGINAL_ACCURACY)
    return small or tuple(quantised)


def file_variants(opened: OpenModel) -> tuple[Variant, ...]:
    """gpt-oss was released in MXFP4: no other file of it is better."""
    model, files = opened.model, opened.files
    if files is None:
        return variants(model)
    tag = stored_quant(files)
    (own,) = as_named(model, tag, files.reference)
    if known_architecture(model.geometry.architecture).default_mix:
        return (own,)
    repository = files.reference.removesuffix(f":{files.label.rpartition(':')[2]}")
    others = at_mixes(model, files.alternatives, repository=repository)
    mine = replace(own, accuracy=accuracy_of(tag) or stored_accuracy(model))
    every = (mine, *(one for one in others if one.name != tag))
    return tuple(sorted(every, key=lambda one: -one.accuracy))


def at_quant(model: Model, quant: str) -> Model:
    from edgekit.engines.llamacpp.conversion import convert

    return convert(model, quant).model


def _mixed_model(model: Model, mix: str) -> MixedModel:
    from edgekit.engines.llamacpp.conversion import mixed_model  # not needed for cache types

    return mixed_model(model, mix)


def sizes(model: Model, quants: tuple[str, ...] = ()) -> Iterator[Size]:
    """Those of `quants` that are not mixes, or not possible for these tensors, are left out."""
    from edgekit.catalog.types import Size  # not above: a check needs nothing of the catalog

    for mix in (*USUAL_MIXES, default_mix(model), *quants):
        with suppress(EdgekitError):
            mixed = _mixed_model(model, mix)
            yield Size(mix=mixed.mix, tensor_bytes=mixed.tensor_bytes, basis=mixed.basis)


def smaller_weights(task: Task, capacity_bytes: int) -> Iterator[tuple[Variant, str]]:
    """Mixes that are clearly smaller than the file and have a chance to fit, each with the flag that asks for it."""
    if task.variants or "mix" in task.start.settled:
        return
    header = task.model.header
    now_bytes = header.tensor_bytes if header.keys else None
    for mix in USUAL_MIXES[1:]:  # F16 is not a quantisation
        try:
            size_bytes = _mixed_model(task.model, mix).tensor_bytes
        except EdgekitError:
            continue
        if size_bytes <= capacity_bytes and (
            now_bytes is None or size_bytes * 100 <= now_bytes * 97
        ):
            (variant,) = at_mixes(task.model, (mix,))
            published = ", which the repository has" if mix in task.alternatives else ""
            yield variant, f"--quant {mix}{published}"


def download_bytes(model: Model, setup: LlamaCppSetup, _estimate: MemoryEstimate) -> int | None:
    """The file as it is, or the size of the quantisation."""
    own = model.header.file_bytes or model.header.tensor_bytes
    found = None if own and setup.mix is None else converted(model, setup.mix)
    return own if found is None else found.mixed.tensor_bytes
