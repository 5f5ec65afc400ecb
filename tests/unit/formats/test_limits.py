"""Limits of shards, indexes and metadata, each with files that exceed it. (More: tests/attacks.)"""

from __future__ import annotations

import json

import pytest
from tests.header_files import BytesSource, model_files, safetensors, tensor
from tests.hub.hub_files import split_header

from edgekit.errors import HeaderLimitError
from edgekit.formats import limits, read_header
from edgekit.formats.safetensors import read_safetensors
from edgekit.formats.types import Depth
from edgekit.sources.types import Container


def shards_of(count: int) -> list[BytesSource]:
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    return [
        BytesSource(safetensors({f"t{i}": tensor("F16", [2], 0, 4)}) + bytes(4), name=name)
        for i, name in enumerate(names)
    ]


def test_limit_of_shards() -> None:
    files = model_files(*[BytesSource(b"")] * (limits.SHARDS + 1))
    with pytest.raises(HeaderLimitError, match="number of shards: 4,097 is over"):
        read_header(files)


def test_limit_of_tensors_in_safetensors_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    config = BytesSource(b"{}", name="config.json")
    files = model_files(*shards_of(3), container=Container.SAFETENSORS, config=config)
    assert read_header(files).tensor_count == 3
    monkeypatch.setattr(limits, "TENSORS", 2)
    with pytest.raises(HeaderLimitError, match="tensors in all shards: 3 is over the limit of 2"):
        read_header(files)


def test_limit_of_tensors_in_gguf_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [
        BytesSource(split_header(i, 2), name=f"m-0000{i + 1}-of-00002.gguf", size_bytes=8192)
        for i in range(2)
    ]
    assert read_header(model_files(*sources)).tensor_count == 2
    monkeypatch.setattr(limits, "TENSORS", 1)
    with pytest.raises(HeaderLimitError, match="tensors in all shards: 2 is over the limit of 1"):
        read_header(model_files(*sources))


def test_limit_of_index_bytes() -> None:
    index = BytesSource(
        b"{", name="model.safetensors.index.json", size_bytes=limits.INDEX_BYTES + 1
    )
    config = BytesSource(b"{}", name="config.json")
    files = model_files(*shards_of(2), container=Container.SAFETENSORS, config=config, index=index)
    with pytest.raises(HeaderLimitError, match="67,108,865 is over"):
        read_header(files, depth=Depth.ARCHITECTURE)


def test_limit_of_tensors_listed_in_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = shards_of(2)
    listed = {f"t{i}": source.name for i, source in enumerate(shards)}
    index = BytesSource(
        json.dumps({"weight_map": listed}).encode(), name="model.safetensors.index.json"
    )
    config = BytesSource(b"{}", name="config.json")
    files = model_files(*shards, container=Container.SAFETENSORS, config=config, index=index)
    assert read_header(files).tensor_count == 2
    monkeypatch.setattr(limits, "TENSORS", 1)
    with pytest.raises(HeaderLimitError, match="tensors in"):
        read_header(files)


def test_limit_of_metadata_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    source = BytesSource(safetensors({"__metadata__": {"a": "1", "b": "2", "c": "3"}}))
    read_safetensors(source)
    monkeypatch.setattr(limits, "METADATA_ENTRIES", 2)
    with pytest.raises(HeaderLimitError, match="entries of __metadata__: 3 is over the limit of 2"):
        read_safetensors(source)
