"""The bill of a catalog entry at a quantisation is that of the recorded file at it, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from tests.recorded import engine_models, models
from tests.thoroughness import sampled

from edgekit.bill.types import Component, Load, cache_type
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup, LlamaMode
from edgekit.errors import EdgekitError
from edgekit.index import index_entries
from edgekit.index.names import find_entry
from edgekit.model.types import Model
from edgekit.units import Basis

FROM_HEADERS = {entry.id for entry in index_entries() if "gguf" in entry.forms}
RECORDED = [(row["model"], row["quant"]) for row in models() if row["model"] in FROM_HEADERS]
REQUESTS: dict[str, tuple[Load, dict[str, Any]]] = {
    "CPU": (Load(context_tokens=4096), {}),
    "CUDA": (
        Load(context_tokens=8192, flash_attention=False),
        {"backend": Backend.CUDA},
    ),
    "seven layers on CUDA, served": (
        Load(context_tokens=8192, sequences=4),
        {"backend": Backend.CUDA, "n_gpu_layers": 7, "mode": LlamaMode.SERVER},
    ),
}


@cache
def opened(name: str) -> Model:
    return open_entry(find_entry(name), "llama.cpp").model


def bill(model: Model, load: Load, setup: LlamaCppSetup) -> Counter[object] | str:
    """Bytes by component, pool and layer; or the engine's error message."""
    try:
        estimate = llamacpp.estimate(model, load, setup)
    except EdgekitError as error:
        return str(error)
    sums: Counter[object] = Counter()
    for line in estimate.lines:
        sums[line.component, line.pool, line.layer] += line.size_bytes
    return sums


def cases() -> Iterator[tuple[str, str, str]]:
    """A sample of the recorded files, smaller with a GPU, where the same facts are read; always the only MXFP4 one."""
    always = [item for item in RECORDED if item[1] == "MXFP4_MOE"]
    for request in REQUESTS:
        chosen = sampled(RECORDED, each=6 if request == "CPU" else 12)
        yield from ((name, mix, request) for name, mix in dict.fromkeys([*chosen, *always]))


@pytest.mark.parametrize(("name", "mix", "requested"), list(cases()))
def test_bill_of_an_entry_equals_the_bill_of_the_recorded_header(
    name: str, mix: str, requested: str
) -> None:
    load, options = REQUESTS[requested]
    recorded = bill(engine_models()[name, mix], load, LlamaCppSetup(**options))
    assert bill(opened(name), load, LlamaCppSetup(**options, mix=mix)) == recorded


def test_recorded_models_without_doubt_are_packaged_with_keys() -> None:
    assert {row["model"] for row in models() if "doubt" not in row} <= FROM_HEADERS
    assert {"Q4_K_M", "Q8_0", "F16", "MXFP4_MOE"} == {mix for _, mix in RECORDED}


def test_weights_of_an_entry_are_exact_and_equal_its_size() -> None:
    entry = find_entry("llama-3.1-8b")
    setup = LlamaCppSetup(mix="Q4_K_M")
    estimate = llamacpp.estimate(
        open_entry(entry, "llama.cpp").model, Load(context_tokens=4096), setup
    )
    weights = [line for line in estimate.lines if line.component is Component.WEIGHTS]
    size = entry.size("Q4_K_M")
    assert size is not None
    assert {line.basis for line in weights} == {Basis.EXACT}
    assert sum(line.size_bytes for line in weights) == size.tensor_bytes == 4_912_898_304


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "glm-5.1"])
def test_compressed_attention_with_a_quantised_cache_has_a_bill(name: str) -> None:
    """Its widths are not those of attention heads: building the graph must give up instead of looping."""
    q8 = cache_type("q8_0")
    load = Load(context_tokens=8192, cache_k=q8, cache_v=q8)
    assert llamacpp.estimate(opened(name), load, LlamaCppSetup(mix="Q4_K_M")).lines
