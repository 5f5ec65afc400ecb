"""The bill of a GGUF from its keys and its size alone is between 100 and 101 % of the exact one."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import cycle, product
from typing import Any

import pytest
from tests.recorded import engine_models, gguf_files, header_bytes, models
from tests.thoroughness import LONG

from edgekit.bill.types import Load
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup, LlamaMode, Rules
from edgekit.errors import HeaderError
from edgekit.formats import read_header
from edgekit.formats.types import Depth, ModelHeader
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.units import GIB, Basis

BELOW = 1.0
ABOVE = 1.001  # the header counts as weights until the directory is read
ABOVE_SMALL = 1.01


def light_header(index: int, *, names_mix: bool, name: str | None = None) -> ModelHeader:
    """The header as the first range has it: with the key of the mix, or without if it follows the vocabulary."""
    model = models()[index]
    file = model["header_without_vocabulary"]
    files = gguf_files(file, header_bytes(file), model["data_section_bytes"])
    header = read_header(files, depth=Depth.ARCHITECTURE)
    keys = {k: v for k, v in header.keys.items() if names_mix or k != "general.file_type"}
    return replace(header, name=name or header.name, keys=keys, tensors=None, tensor_bytes=None)


@lru_cache(maxsize=1)  # the next case is often the same model on the other backend
def light_model(index: int, *, names_mix: bool, name: str | None) -> Model:
    header = light_header(index, names_mix=names_mix, name=name)
    return Model(header=header, geometry=read_geometry(header))


# How the mix is known -> (whether its key is there, name of the file, step between files; 0: see sampled_models).
HOW_KNOWN: dict[str, tuple[bool, str | None, int]] = {
    "by its key": (True, None, 1 if LONG else 0),
    "by its name": (False, None, 3 if LONG else 12),
    "by its size": (False, "model.gguf", 6 if LONG else 24),
}


def sampled_models() -> list[tuple[int, dict[str, Any]]]:
    """A file of every third model, each time of another mix, and the only MXFP4_MOE."""
    by_model: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for index, model in enumerate(models()):
        by_model.setdefault(model["model"], []).append((index, model))
    turns = enumerate(by_model.values())
    mxfp4 = [
        (index, model) for index, model in enumerate(models()) if model["quant"] == "MXFP4_MOE"
    ]
    return [*(files[turn % len(files)] for turn, files in turns if turn % 3 == 0), *mxfp4]


@pytest.mark.parametrize("how", HOW_KNOWN)
def test_bill_from_keys_and_size_is_above_the_exact_one_but_not_far(how: str) -> None:
    names_mix, name, each = HOW_KNOWN[how]
    load = Load(context_tokens=8192)
    chosen = list(enumerate(models()))[::each] if each else sampled_models()
    backends = (Backend.CPU, Backend.CUDA)
    cases = product(chosen, backends) if LONG else zip(chosen, cycle(backends), strict=False)
    for (index, model), backend in cases:
        setup = LlamaCppSetup(mode=LlamaMode.SERVER, backend=backend, rules=Rules.V0_5)
        light = llamacpp.estimate(light_model(index, names_mix=names_mix, name=name), load, setup)
        exact = llamacpp.estimate(engine_models()[model["model"], model["quant"]], load, setup)
        ratio = light.total_bytes / exact.total_bytes
        max_ratio = ABOVE if exact.total_bytes > GIB else ABOVE_SMALL
        assert BELOW <= ratio <= max_ratio, (model["model"], model["quant"], backend, ratio)
        assert light.kv_cache_bytes == exact.kv_cache_bytes
        assert light.basis is not Basis.EXACT


def test_bill_without_a_mix_and_a_size_needs_the_directory() -> None:
    header = replace(light_header(0, names_mix=False, name="model.gguf"), file_bytes=None)
    model = Model(header=header, geometry=read_geometry(header))
    with pytest.raises(HeaderError, match="read its whole header"):
        llamacpp.estimate(model, Load(context_tokens=512), LlamaCppSetup())


def test_stated_mix_that_is_too_large_for_the_file_is_ignored() -> None:
    """A file that states F16 and has the size of a Q4_K_M is billed by its size."""
    index = next(
        i
        for i, model in enumerate(models())
        if (model["model"], model["quant"]) == ("qwen3-8b", "Q4_K_M")
    )
    header = light_header(index, names_mix=True)
    mislabelled = replace(header, keys={**header.keys, "general.file_type": 1}, name="model.gguf")
    model = Model(header=mislabelled, geometry=read_geometry(mislabelled))
    bill = llamacpp.estimate(model, Load(context_tokens=4096), LlamaCppSetup())
    assert bill.weights_bytes <= 1.01 * models()[index]["data_section_bytes"]
