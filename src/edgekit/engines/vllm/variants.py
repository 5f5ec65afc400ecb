"""The repositories of a model that vLLM loads, the most accurate first, and what has to be downloaded for one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgekit.bill.task import Variant
from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.catalog.repositories import Form, repositories_of
from edgekit.engines.variants import as_named
from edgekit.engines.vllm.estimate import estimate
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError
from edgekit.formats.quantization import read_quantization
from edgekit.model.types import Model

# What such repositories usually state, and the order in which they are tried.
_QUANTISED: dict[Form, tuple[int, dict[str, Any]]] = {
    Form.FP8: (480, {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    Form.AWQ: (425, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
}


def variants(model: Model, label: str = "") -> tuple[Variant, ...]:
    """The model as it is, and the known FP8 and 4-bit repositories of one whose own weights are not quantised.

    `label` is its name in the catalog.
    """
    return (*as_named(model), *(_repositories(model, label) if label else ()))


def _repositories(model: Model, label: str) -> Iterator[Variant]:
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


def download_bytes(model: Model, setup: VllmSetup, _estimate: MemoryEstimate) -> int | None:
    """The repository that was read, else the weights on one card; None where they cannot be estimated."""
    own = model.header.file_bytes or model.header.tensor_bytes
    if own:
        return own
    alone = replace(setup, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None)
    try:
        bill = estimate(model, Load(context_tokens=1), alone)
    except EdgekitError:
        return None
    return bill.of(Component.WEIGHTS) or None
