"""Which repositories belong to which model, in which form, and where its geometry is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgekit.app.crawl.plan import (
    MAX_CANDIDATES,
    MAX_CHAIN,
    form_of,
    geometry_task,
    gguf_sets,
    left_out,
    model_of,
    needs_files,
    quants_of,
    why_not_a_model,
)
from edgekit.app.crawl.types import GeometrySource, Listed

ORIGINAL = Listed(
    name="lab/Model-8B",
    downloads=10,
    dtypes=(("BF16", 8_000), ("F32", 10)),
    files=(("config.json", None), ("model.safetensors", None)),
)
GGUF = Listed(
    name="maker/Model-8B-GGUF",
    downloads=99,
    bases=(("quantized", "lab/Model-8B"),),
    files=(
        ("Model-8B-Q4_K_M.gguf", 40),
        ("Model-8B-Q8_0-00001-of-00002.gguf", 50),
        ("Model-8B-Q8_0-00002-of-00002.gguf", 30),
        ("mmproj-Model-8B-F16.gguf", 5),
    ),
)


def packed(name: str, **fields: object) -> Listed:
    listed = Listed(
        name=f"packer/{name}",
        bases=(("quantized", "lab/Model-8B"),),
        files=(("config.json", None), ("model.safetensors", 70)),
    )
    return replace(listed, **fields)  # type: ignore[arg-type] # of any field


@pytest.mark.parametrize(
    ("item", "form"),
    [
        (packed("Model-8B-4bit", library="mlx"), "mlx"),
        (packed("Model-8B-x", quantisation="awq"), "awq"),
        (packed("Model-8B-AWQ", quantisation="compressed-tensors"), "awq"),
        (packed("Model-8B-GPTQ-Int4"), "gptq"),
        (packed("Model-8B-FP8-dynamic", quantisation="compressed-tensors"), "fp8"),
        (packed("Model-8B-FP4", tags=("nvfp4",)), "nvfp4"),
        (packed("Model-8B-exl2"), None),
        (packed("Model-8B-FP8KV4"), None),
    ],
)
def test_form_of_quantised_safetensors(item: Listed, form: str | None) -> None:
    found = form_of(item, is_own=False)
    assert (found and found.name) == form
    assert (left_out(item, is_own=False) is None) == (form is not None)


def test_model_trained_in_fp8_is_an_original() -> None:
    item = packed("Model-V3", quantisation="fp8", tags=("fp8",), bases=())
    assert form_of(item, is_own=True) is None


@pytest.mark.parametrize(
    ("item", "form", "quants"),
    [
        (ORIGINAL, "original", {"BF16": 8_000 * 2 + 10 * 4}),
        (packed("Model-8B-4bit"), "mlx", {"4bit": 70}),
        (packed("Model-8B-mxfp4"), "mlx", {"mxfp4": 70}),
        (packed("Model-8B-AWQ", files=(("model.safetensors", None),)), "awq", {"AWQ": None}),
        (
            packed("Model-8B-AWQ", files=(("model.safetensors", None),), dtypes=(("I32", 9),)),
            "awq",
            {"AWQ": None},
        ),
    ],
)
def test_quants_of_safetensors(item: Listed, form: str, quants: dict[str, int | None]) -> None:
    assert quants_of(item, form) == quants


def test_gguf_sets_are_complete_models_without_projectors() -> None:
    assert [(group.title, len(group.files)) for group in gguf_sets(GGUF)] == [
        ("Q4_K_M", 1),
        ("Q8_0", 2),
    ]
    cut = replace(GGUF, files=GGUF.files[:2] if GGUF.files else None)
    assert [group.title for group in gguf_sets(cut)] == ["Q4_K_M"]


@pytest.mark.parametrize(
    ("item", "needed"),
    [
        (ORIGINAL, False),  # the hub counts its elements
        (replace(ORIGINAL, dtypes=()), True),
        (replace(ORIGINAL, files=None), True),
        (GGUF, False),
        (replace(GGUF, files=(("Model-8B-Q4_K_M.gguf", None),)), True),
        (replace(ORIGINAL, files=None, task="text-to-image"), False),
        (replace(ORIGINAL, files=(("adapter_config.json", None), ("a.safetensors", None))), False),
    ],
)
def test_needs_files_only_if_a_size_is_missing(item: Listed, *, needed: bool) -> None:
    assert needs_files(item, sizes=True) is needed
    assert needs_files(item, sizes=False) is (needed and item.files is None)


@pytest.mark.parametrize(
    ("item", "word"),
    [
        (replace(ORIGINAL, library="diffusers"), "diffusers"),
        (replace(ORIGINAL, model_type="whisper"), "encoder"),
        (replace(ORIGINAL, files=()), "no weights"),
        (replace(ORIGINAL, files=(("model.safetensors", 1),)), "config.json"),
        (ORIGINAL, ""),
        (GGUF, ""),
    ],
)
def test_why_not_a_model(item: Listed, word: str) -> None:
    assert word in (why_not_a_model(item) or "")


def test_model_of_follows_stated_quantisations_to_their_end() -> None:
    middle = packed("Model-8B-AWQ")
    last = packed("Model-8B-AWQ-4bit", bases=(("quantized", "PACKER/model-8b-awq"),))
    known = {item.name.lower(): item for item in (ORIGINAL, middle, last)}

    def find(name: str) -> Listed | None:
        return known.get(name.lower())

    assert model_of(last, find) == "lab/Model-8B"
    assert model_of(packed("x", bases=(("quantized", "elsewhere/Y"),)), find) == "elsewhere/Y"
    assert model_of(packed("x", bases=(("finetune", "lab/Model-8B"),)), find) == "packer/x"
    several = (("quantized", "lab/Model-8B"), ("quantized", "lab/Other"))
    assert model_of(packed("x", bases=several), find) == "packer/x"


def test_model_of_a_circle_or_an_endless_chain_is_the_repository_itself() -> None:
    chain = {
        f"packer/{i}": packed(str(i), bases=(("quantized", f"packer/{i + 1}"),))
        for i in range(MAX_CHAIN * 2)
    }
    assert model_of(chain["packer/0"], chain.get) == "packer/0"
    circle = {
        name: packed(name[-1], bases=(("quantized", other),))
        for name, other in (("packer/a", "packer/b"), ("packer/b", "packer/a"))
    }
    assert model_of(circle["packer/a"], circle.get) == "packer/a"


def test_geometry_is_read_from_the_models_own_config_first() -> None:
    awq = packed("Model-8B-AWQ")
    task = geometry_task("lab/Model-8B", [GGUF, awq, ORIGINAL])
    assert task.candidates == (
        GeometrySource(repository="lab/Model-8B", paths=("config.json",)),
        GeometrySource(repository="packer/Model-8B-AWQ", paths=("config.json",)),
        GeometrySource(repository="maker/Model-8B-GGUF", paths=("Model-8B-Q4_K_M.gguf",)),
    )
    assert task == geometry_task("lab/Model-8B", [ORIGINAL, GGUF, awq])
    many = [replace(GGUF, name=f"maker/{i}") for i in range(9)]
    assert len(geometry_task("lab/Model-8B", many).candidates) == MAX_CANDIDATES
