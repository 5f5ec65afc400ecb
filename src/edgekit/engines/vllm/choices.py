"""What a plan may choose for vLLM: cache types and repositories, the most accurate first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.bill.types import (
    CacheChoice,
    Component,
    Load,
    MemoryEstimate,
    Placement,
    Task,
    Variant,
)
from edgekit.engines.choices import as_named
from edgekit.engines.vllm.estimate import estimate
from edgekit.engines.vllm.placements import devices
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError
from edgekit.formats.quantization import read_quantization
from edgekit.index.repositories import Form, original_repository, repositories_of
from edgekit.model.types import Model

DTYPES = ("auto", "fp8")
FP8_CAPABILITY = (8, 9)  # Ada and later compute in fp8
# Accuracy, and the usual quantization_config of such repositories.
_QUANTISED: Mapping[Form, tuple[int, Mapping[str, Any]]] = {
    Form.FP8: (480, {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    Form.AWQ: (425, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
    Form.GPTQ: (420, {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}),
    Form.NVFP4: (420, {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}),
}
_FOUR_BIT = (Form.AWQ, Form.GPTQ, Form.NVFP4)  # only the first one that is known is offered
_OTHER_BITS = re.compile(
    r"(?:int|w|gptq-)[2358](?!\d)|[2358]-?bit", re.IGNORECASE
)  # in a repository's name


def cache_choices(task: Task, _placement: Placement | None = None) -> Iterator[CacheChoice]:
    """The requested cache type, else the model's dtype and, on GPUs that compute in it, fp8."""
    if "kv_cache_dtype" in task.start.fixed_flags:
        requested = VllmSetup.of(task.start.setup).kv_cache_dtype
        yield CacheChoice(
            name=requested, place=0, flags="", is_given=True, is_eight_bit=requested == "fp8"
        )
        return
    capabilities = (card.capability for card in devices(task.machine) if card.capability)
    has_fp8 = min(capabilities, default=FP8_CAPABILITY) >= FP8_CAPABILITY
    for place, name in enumerate(DTYPES if has_fp8 else DTYPES[:1]):
        yield CacheChoice(
            name=name,
            place=place,
            flags=f"--kv-cache-dtype {name}",
            is_eight_bit=name == "fp8",
            setup={} if name == "auto" else {"kv_cache_dtype": name},
        )


def cache_name(_load: Load, setup: VllmSetup) -> str:
    """The name of the cache type, as `cache_choices` spells it."""
    return setup.kv_cache_dtype


def variants(model: Model, label: str = "") -> tuple[Variant, ...]:
    """The model as stored, and for unquantised weights the known FP8 and 4-bit repositories.

    `label`: the model's name in the index.
    """
    choices = [*as_named(model)]
    is_plain = model.header.quantization is None
    if not label or not is_plain:
        return tuple(choices)
    has_four_bits = False
    for form, (accuracy, _) in _QUANTISED.items():
        repositories = _with_usual_bits(label, form)
        if not repositories or (has_four_bits and form in _FOUR_BIT):
            continue
        has_four_bits = has_four_bits or form in _FOUR_BIT
        choices.append(_quantised(model, form, accuracy, repositories[0]))
    return tuple(choices)


def checkpoint(model: Model, label: str, quant: str, typed: str) -> Variant | None:
    """The known repository of this model at FP8, AWQ, GPTQ or NVFP4: the one that was typed, else the first."""
    form = next((form for form in _QUANTISED if form.name == quant.upper()), None)
    has_other_bits = form in _FOUR_BIT and _OTHER_BITS.search(typed) is not None
    if form is None or model.header.quantization is not None or has_other_bits:
        return None
    repositories = _with_usual_bits(label, form)
    repository = next((name for name in repositories if name.lower() == typed.lower()), None)
    if repository is None and not repositories:
        return None
    accuracy, _ = _QUANTISED[form]
    return _quantised(model, form, accuracy, repository or repositories[0])


def published_at(label: str, quant: str) -> str:
    """The repository of this form; the publisher's own for another name."""
    form = next((form for form in _QUANTISED if form.name == quant.upper()), None)
    if form is None:
        return original_repository(label)
    return next(iter(_with_usual_bits(label, form)), "")


def _with_usual_bits(label: str, form: Form) -> list[str]:
    """The model's known repositories of this form, without those of other bits than usual."""
    names = [repository.name for repository in repositories_of(label, form)]
    return [name for name in names if form not in _FOUR_BIT or not _OTHER_BITS.search(name)]


def _quantised(model: Model, form: Form, accuracy: int, repository: str) -> Variant:
    """The model as a repository of this form usually has it."""
    config = {**model.header.config, "quantization_config": _QUANTISED[form][1]}
    quantised = replace(model.header, config=config, quantization=read_quantization(config))
    return Variant(
        name=form.name,
        model=Model(header=quantised, geometry=model.geometry),
        accuracy=accuracy,
        reference=repository,
    )


def download_bytes(model: Model, setup: VllmSetup, _estimate: MemoryEstimate) -> int | None:
    """The size of the repository, else the weights on one GPU; None if they cannot be estimated."""
    stored = model.header.file_bytes or model.header.tensor_bytes
    if stored:
        return stored
    alone = replace(setup, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None)
    try:
        bill = estimate(model, Load(context_tokens=1), alone)
    except EdgekitError:
        return None
    return bill.of(Component.WEIGHTS) or None
