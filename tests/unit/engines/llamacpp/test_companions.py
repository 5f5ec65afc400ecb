"""The projector's compute buffer compared with what llama.cpp reserved for it.

Logged by llama.cpp 0.6.0-dev (b11549, xllamacpp 2026.10.11549) on a CPU, for projectors with all weights zero and two or
three layers: reserve_compute_meta. The number of layers makes no difference.
"""

from __future__ import annotations

from typing import Any

import pytest

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.commands import loads_projector
from edgekit.engines.llamacpp.companions import projector_lines
from edgekit.engines.llamacpp.setups import default_setup
from edgekit.formats.dtype import by_name
from edgekit.formats.types import ModelHeader, Tensor
from edgekit.sources.types import ByteSource, Container, ModelFile, ModelFiles, Origin
from edgekit.units import MIB, Basis

# hidden, feed-forward, heads, image, patch; tensors that matter; MiB with flash attention and without
SIGLIP = (1152, 4304, 16, 896, 14)
QWEN = (1280, 5120, 16, 560, 14)
LOGGED = [
    ("gemma3", SIGLIP, {}, (), 121.25, 1132.00),
    ("mlp", (1024, 4096, 16, 336, 14), {}, ("v.class_embd",), 23.80, 32.88),
    ("internvl", (1024, 4096, 16, 448, 14), {}, ("v.class_embd",), 28.03, None),
    ("idefics3", (768, 3072, 12, 512, 16), {"projector.scale_factor": 4}, (), 21.00, 60.00),
    ("qwen2vl_merger", QWEN, {}, (), 267.08, 4598.27),
    ("qwen2.5vl_merger", (1280, 3420, 16, 560, 14), {"n_wa_pattern": 2}, ("v.blk.0.ffn_gate.weight",), 569.70, None),
]  # fmt: skip


def projector(kind: str, sizes: tuple[int, ...], more: dict[str, int], names: Any) -> ModelHeader:
    hidden, forward, heads, image, patch = sizes
    numbers = {
        "embedding_length": hidden,
        "feed_forward_length": forward,
        "attention.head_count": heads,
        "image_size": image,
        "patch_size": patch,
        **more,
    }
    vision: dict[str, Any] = {f"clip.vision.{key}": value for key, value in numbers.items()}
    f32 = by_name("F32")
    tensors = tuple(
        Tensor(name=name, type=f32, shape=(hidden,), size_bytes=4 * hidden, offset=0)
        for name in ("v.post_ln.weight", *names)
    )
    return ModelHeader(
        name="mmproj.gguf",
        container=Container.GGUF,
        keys={"general.architecture": "clip", "clip.projector_type": kind, **vision},
        tensors=tensors,
    )


@pytest.mark.parametrize("row", LOGGED, ids=lambda row: row[0])
def test_buffer_for_one_image_is_within_its_bound(row: tuple[Any, ...]) -> None:
    kind, sizes, more, names, flash_mib, plain_mib = row
    header = projector(kind, sizes, more, names)
    for load, mib in ((Load(), flash_mib), (Load(flash_attention=False), plain_mib)):
        if mib is None:
            continue
        line = projector_lines(header, load, default_setup())[1]
        assert line.basis is Basis.MODELLED
        assert abs(mib * MIB - line.size_bytes) <= (line.within or 0) * line.size_bytes
        if kind in {"gemma3", "internvl", "idefics3"} and load.flash_attention is None:
            assert round(line.size_bytes / MIB, 2) == mib


def test_buffer_of_gemma_3_is_of_4096_patches() -> None:
    line = projector_lines(projector("gemma3", SIGLIP, {}, ()), Load(), default_setup())[1]
    assert line.size_bytes == 4096 * (4304 + 3 * 1152) * 4


def test_only_a_gguf_repository_with_a_projector_loads_one_unasked() -> None:
    def never() -> ByteSource:
        raise AssertionError("not opened")

    def files(origin: Origin, *projectors: str) -> ModelFiles:
        named = tuple(ModelFile(name=name, open=never) for name in projectors)
        return ModelFiles(
            label="org/x:Q8_0", origin=origin, container=Container.GGUF, projectors=named
        )

    assert loads_projector(files(Origin.HUB, "mmproj.gguf"), {})
    assert loads_projector(files(Origin.HUB_CACHE, "mmproj.gguf"), {})
    assert not loads_projector(files(Origin.LOCAL, "mmproj.gguf"), {})
    assert not loads_projector(files(Origin.HUB), {})
    assert not loads_projector(files(Origin.HUB, "mmproj.gguf"), {"no_mmproj": True})
    assert not loads_projector(files(Origin.HUB, "mmproj.gguf"), {"mmproj": "auto"})
