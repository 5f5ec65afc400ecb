"""The row of a geometry: the same for equal models, and enough to rebuild the model."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from tests.recorded import DATA

from edgekit.app.crawl import geometry
from edgekit.app.crawl.geometry import describe
from edgekit.app.crawl.types import CrawledGeometry
from edgekit.errors import HeaderError
from edgekit.index import merge
from edgekit.index.tensor_runs import tensors_of
from edgekit.model import open_config

CONFIGS: dict[str, Any] = json.loads((DATA / "configs.json").read_text())


@pytest.mark.parametrize("name", sorted(CONFIGS)[::4])
def test_described_config_opens_to_the_same_geometry(name: str) -> None:
    model = open_config(CONFIGS[name]).model
    row = describe(model)
    content = json.loads(zlib.decompress(row.header))
    again = describe(open_config(content["config"]).model)
    assert again == row  # the part that was kept is all that matters
    facts = json.loads(row.facts)
    assert facts["forms"] == ["config"]
    assert facts["architecture"] == model.geometry.architecture


def test_fingerprint_differs_with_the_vocabulary() -> None:
    config = CONFIGS["gemma-3-4b"]
    section = config.get("text_config", config)
    larger = {**section, "vocab_size": 1 + (section.get("vocab_size") or 262_208)}
    changed = {**config, "text_config": larger} if "text_config" in config else larger
    rows = [describe(open_config(each).model) for each in (config, changed)]
    assert rows[0].fingerprint != rows[1].fingerprint


def test_described_gguf_keeps_keys_and_tensors() -> None:
    from tests.recorded import model_header

    from edgekit.model import read_geometry
    from edgekit.model.types import Model

    header = model_header(0)
    row = describe(Model(header=header, geometry=read_geometry(header)))
    content = json.loads(zlib.decompress(row.header))
    assert header.tensors is not None
    kept = {tensor.name for tensor in tensors_of(content["tensors"], name="test")}
    assert kept == {tensor.name for tensor in header.tensors}
    assert json.loads(row.facts)["forms"] == ["gguf"]


def test_geometry_beyond_the_limits_of_readers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_config(CONFIGS["gemma-3-4b"]).model
    monkeypatch.setattr(merge, "MAX_HEADER_BYTES", 100)
    with pytest.raises(HeaderError, match="cannot be in an index: cut off, or more than 100 bytes"):
        describe(model)
    monkeypatch.setattr(merge, "MAX_CELL_BYTES", 50)
    with pytest.raises(HeaderError, match=r"cannot be in an index: bytes: .* limit of 50"):
        describe(model)


def test_described_geometries_are_forgotten_beyond_a_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = CrawledGeometry(fingerprint="f", header=bytes(1_000), facts="{}")
    monkeypatch.setattr(geometry, "MAX_CACHED_BYTES", 10_000)
    described = geometry._Described()
    for number in range(20):
        described.add(bytes([number]), row)
    assert [number for number in range(20) if described.get(bytes([number]))] == [16, 17, 18, 19]
