"""A GGUF of which only the keys and the size are known: its bill is hardly below the exact one, and not far above."""

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
ABOVE = 1.001  # the header, which counts as weights until the directory is read
ABOVE_SMALL = 1.01


def light_header(place: int, *, names_mix: bool, name: str | None = None) -> ModelHeader:
    """As one range of it reads: the key of the mix lies before the vocabulary, or behind it."""
    model = models()[place]
    file = model["header_without_vocabulary"]
    files = gguf_files(file, header_bytes(file), model["data_section_bytes"])
    header = read_header(files, depth=Depth.ARCHITECTURE)
    keys = {k: v for k, v in header.keys.items() if names_mix or k != "general.file_type"}
    return replace(header, name=name or header.name, keys=keys, tensors=None, tensor_bytes=None)


@lru_cache(maxsize=1)  # of one model at a time: what is worked out for one backend serves the other
def light_model(place: int, *, names_mix: bool, name: str | None) -> Model:
    header = light_header(place, names_mix=names_mix, name=name)
    return Model(header=header, geometry=read_geometry(header))


# By its key every third model is asked, on one backend; with LONG every file of each, on both.
HOW_KNOWN: dict[str, tuple[bool, str | None, int]] = {
    "by its key": (True, None, 1 if LONG else 0),
    "by its name": (False, None, 3 if LONG else 12),
    "by its size": (False, "model.gguf", 6 if LONG else 24),
}


def one_of_each() -> list[tuple[int, dict[str, Any]]]:
    """Of every third model a file, each time another one; and the one of its mix."""
    by_model: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for place, one in enumerate(models()):
        by_model.setdefault(one["model"], []).append((place, one))
    turns = enumerate(by_model.values())
    lone = [(place, one) for place, one in enumerate(models()) if one["quant"] == "MXFP4_MOE"]
    return [*(files[turn % len(files)] for turn, files in turns if turn % 3 == 0), *lone]


@pytest.mark.parametrize("how", HOW_KNOWN)
def test_bill_from_keys_and_size_is_above_the_exact_one_but_not_far(how: str) -> None:
    names_mix, name, each = HOW_KNOWN[how]
    load = Load(context_tokens=8192)
    chosen = list(enumerate(models()))[::each] if each else one_of_each()
    backends = (Backend.CPU, Backend.CUDA)
    request = product(chosen, backends) if LONG else zip(chosen, cycle(backends), strict=False)
    for (place, one), backend in request:
        setup = LlamaCppSetup(mode=LlamaMode.SERVER, backend=backend, rules=Rules.V0_5)
        light = llamacpp.estimate(light_model(place, names_mix=names_mix, name=name), load, setup)
        exact = llamacpp.estimate(engine_models()[one["model"], one["quant"]], load, setup)
        share = light.total_bytes / exact.total_bytes
        most = ABOVE if exact.total_bytes > GIB else ABOVE_SMALL
        assert BELOW <= share <= most, (one["model"], one["quant"], backend, share)
        assert light.kv_cache_bytes == exact.kv_cache_bytes
        assert light.basis is not Basis.EXACT


def test_bill_without_a_mix_and_a_size_needs_the_directory() -> None:
    header = replace(light_header(0, names_mix=False, name="model.gguf"), file_bytes=None)
    model = Model(header=header, geometry=read_geometry(header))
    with pytest.raises(HeaderError, match="read its whole header"):
        llamacpp.estimate(model, Load(context_tokens=512), LlamaCppSetup())


def test_stated_mix_that_is_too_large_for_the_file_is_ignored() -> None:
    """A file that calls itself F16 and is a Q4_K_M by its size: billed by its size."""
    place = next(
        i
        for i, one in enumerate(models())
        if (one["model"], one["quant"]) == ("qwen3-8b", "Q4_K_M")
    )
    header = light_header(place, names_mix=True)
    lying = replace(header, keys={**header.keys, "general.file_type": 1}, name="model.gguf")
    model = Model(header=lying, geometry=read_geometry(lying))
    bill = llamacpp.estimate(model, Load(context_tokens=4096), LlamaCppSetup())
    assert bill.weights_bytes <= 1.01 * models()[place]["data_section_bytes"]
