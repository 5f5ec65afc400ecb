"""A verdict -> how much has to be downloaded to run it."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.types import Component, Load
from edgekit.bill.verdict import Verdict
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.as_gguf import converted
from edgekit.errors import EdgekitError


def download_bytes(result: Verdict) -> int | None:
    """The weights that were judged, as a file or repository holds them; None where that is not known.

    Of a repository that was read its own size, else what a quantisation of the model's tensors takes.
    """
    if result.variant is None:
        return None
    model, setup = result.variant.model, result.way.setup
    own = model.header.file_bytes or model.header.tensor_bytes
    if engine_named(result.engine).loads_gguf:
        mix = getattr(setup, "mix", None)
        found = None if own and mix is None else converted(model, mix)
        return own if found is None else found.mixed.tensor_bytes
    if own and getattr(setup, "quantize", None) is None:
        return own
    estimate = result.estimate
    if result.engine == "vllm":
        alone = replace(setup, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None)
        try:
            estimate = engine_named("vllm").estimate(model, Load(context_tokens=1), alone)
        except EdgekitError:
            return None
    return estimate.of(Component.WEIGHTS) or None
