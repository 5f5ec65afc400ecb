"""Cache types and GGUF quantisations that a plan may choose for llama.cpp, most accurate first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from edgekit.bill.types import (
    CacheChoice,
    Component,
    Load,
    MemoryEstimate,
    Placement,
    Task,
    Variant,
)
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
from edgekit.engines.llamacpp.architectures import default_mix, known_architecture
from edgekit.engines.llamacpp.estimate import as_loaded, converted
from edgekit.engines.llamacpp.flags import USUAL_MIXES
from edgekit.engines.llamacpp.placements import placements
from edgekit.engines.llamacpp.setups import quant_names
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.errors import EdgekitError
from edgekit.index.repositories import Form, repository_at
from edgekit.model import OpenModel
from edgekit.model.types import Model
from edgekit.sources.quants import SHORT_MIXES
from edgekit.units import Basis

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.quantization import MixedModel
    from edgekit.index.types import Size

# K needs slightly more accuracy than V. For unequal pairs, release builds of CUDA and Metal have no flash attention
# kernel, and would compute on the CPU: fattn.cu @ 0c1e570.
EQUAL_PAIRS = (F16_PAIR, Q8_PAIR, ("q4_0", "q4_0"))
CPU_PAIRS = (F16_PAIR, Q8_PAIR, ("q8_0", "q5_1"), ("q8_0", "q4_0"), ("q4_0", "q4_0"))
ORIGINAL_ACCURACY = 1000  # 16 bits: not worth the memory compared with 8


def cache_choices(task: Task, placement: Placement | None = None) -> tuple[CacheChoice, ...]:
    """Cache types to choose from. `placement`: where attention runs; None: the task's first placement."""
    load = task.load
    fixed_pair = given_pair(load)
    if fixed_pair is not None:
        return (fixed_pair,)
    placement = placement or next(placements(task))
    given_type = load.cache_k or load.cache_v
    pairs: Pairs = EQUAL_PAIRS if placement.cards else CPU_PAIRS
    if given_type is not None and placement.cards:
        pairs = ((given_type.name, given_type.name),)
    return tuple(pair_choices(load, pairs))


def cache_name(load: Load, _setup: LlamaCppSetup) -> str:
    """The name of the load's cache types, as choices have it."""
    return pair_cache_name(load)


def variants(model: Model, _label: str = "") -> tuple[Variant, ...]:
    """The usual mixes that do not have more bits than the original: more bits only make the file larger. A model that
    was released in a mix, such as gpt-oss in MXFP4, has only that one.
    """
    if known_architecture(model.geometry.architecture).default_mix:
        return at_mixes(model, (default_mix(model),))
    packed = model.header.quantization
    most_accuracy: float = ORIGINAL_ACCURACY
    if packed is not None and packed.bits is not None:
        most_accuracy = packed.bits * 100 + 100
    usual = at_mixes(model)
    return tuple(variant for variant in usual if variant.accuracy <= most_accuracy) or usual


def at_mixes(
    model: Model, mixes: Iterable[str] = USUAL_MIXES, *, repository: str = ""
) -> tuple[Variant, ...]:
    """Variants of the model at these mixes; with a repository, as downloadable files."""
    tags_by_name = ((SHORT_MIXES.get(tag.upper(), tag.upper()), tag) for tag in mixes)
    tag_of = {name: tag for name, tag in tags_by_name if name in quant_names()}
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
            for name, tag in tag_of.items()
        ),
        key=lambda variant: -variant.accuracy,
    )
    small = tuple(variant for variant in quantised if variant.accuracy < ORIGINAL_ACCURACY)
    return small or tuple(quantised)


def file_variants(opened: OpenModel) -> tuple[Variant, ...]:
    """The opened GGUF file and the alternatives in its repository, most accurate first. gpt-oss has only the opened
    file, because it was released in MXFP4.
    """
    model, files = opened.model, opened.files
    if files is None:
        return variants(model)
    tag = stored_quant(files)
    (as_stored,) = as_named(model, tag, files.reference)
    if known_architecture(model.geometry.architecture).default_mix:
        return (as_stored,)
    repository = files.reference.removesuffix(f":{files.label.rpartition(':')[2]}")
    alternatives = at_mixes(model, files.alternatives, repository=repository)
    stored = replace(as_stored, accuracy=accuracy_of(tag) or stored_accuracy(model))
    candidates = (stored, *(variant for variant in alternatives if variant.name != tag))
    return tuple(sorted(candidates, key=lambda variant: -variant.accuracy))


def published_at(label: str, quant: str) -> str:
    """The repository that the command of a plan loads."""
    repository = repository_at(label, Form.GGUF, quant)
    return "" if repository is None else repository.name


def at_quant(model: Model, quant: str) -> Model:
    """The GGUF that the model would become at this mix."""
    return as_loaded(model, quant)


def _mixed_model(model: Model, mix: str) -> MixedModel:
    from edgekit.engines.llamacpp.conversion import mixed_model  # not needed for cache types

    return mixed_model(model, mix)


def sizes(model: Model, quants: tuple[str, ...] = ()) -> Iterator[Size]:
    """File sizes at the usual mixes and at `quants`. Omits names that are not mixes, and mixes that these tensors
    cannot have.
    """
    from edgekit.index.types import Size  # a check does not need the catalog

    for mix in (*USUAL_MIXES, default_mix(model), *quants):
        with suppress(EdgekitError):
            mixed = _mixed_model(model, mix)
            basis = mixed.basis if mixed.dynamic is None else Basis.ASSUMED
            yield Size(mix=mixed.mix, tensor_bytes=mixed.tensor_bytes, basis=basis)


def smaller_weights(task: Task, capacity_bytes: int) -> Iterator[tuple[Variant, str]]:
    """Mixes that are clearly smaller than the file and may fit, each with the flag that selects it."""
    if task.variants or "mix" in task.start.fixed_flags:
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


def download_bytes(model: Model, setup: LlamaCppSetup, estimate: MemoryEstimate) -> int | None:
    """The size of the file, or of the quantised file, with the projector that is loaded with it."""
    file_bytes = model.header.file_bytes or model.header.tensor_bytes
    conversion = None if file_bytes and setup.mix is None else converted(model, setup.mix)
    projector_bytes = sum(
        line.size_bytes
        for line in estimate.lines
        if line.part == "projector" and line.component is Component.WEIGHTS
    )
    model_bytes = file_bytes if conversion is None else conversion.mixed.tensor_bytes
    return None if model_bytes is None else model_bytes + projector_bytes
