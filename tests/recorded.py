"""Recorded headers and rows of engines in tests/data, and the path of a larger collection."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from edgekit.formats import read_header
from edgekit.formats.quantization import read_quantization
from edgekit.formats.types import ModelHeader
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

DATA = Path(__file__).parent / "data"
# A larger collection (configs, headers with vocabularies) outside of the project.
TRUTH = Path(os.environ.get("EDGEKIT_TRUTH", Path(__file__).parents[2] / "shared" / "truth"))


class HeaderOnly:
    """A file with a recorded header; reading its weights is an error."""

    def __init__(self, name: str, header: bytes, size_bytes: int) -> None:
        self.name = name
        self.header = header
        self.size_bytes = size_bytes

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        assert offset <= len(self.header), "weights were read"
        length = min(length, self.size_bytes - offset)
        return self.header[offset : offset + length].ljust(length, b"\0")

    def close(self) -> None:
        pass


@cache
def models() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(gzip.decompress((DATA / "models.json.gz").read_bytes())))


def header_bytes(file: str, folder: Path = DATA / "headers") -> bytes:
    return gzip.decompress((folder / file).read_bytes())


def padded(length: int) -> int:
    return -(-length // 32) * 32


def gguf_files(name: str, header: bytes, data_bytes: int) -> ModelFiles:
    size = padded(len(header)) + data_bytes
    file = ModelFile(name=name, open=lambda: HeaderOnly(name, header, size), size_bytes=size)
    return ModelFiles(
        reference=name, label=name, origin=Origin.LOCAL, container=Container.GGUF, weights=(file,)
    )


@cache
def model_header(index: int) -> ModelHeader:
    model = models()[index]
    file = model["header_without_vocabulary"]
    return read_header(gguf_files(file, header_bytes(file), model["data_section_bytes"]))


class EngineModels(dict[tuple[str, str], Model]):
    """(model, quantisation) -> the model, which is read on first use."""

    def __missing__(self, key: tuple[str, str]) -> Model:
        index = next(i for i, item in enumerate(models()) if (item["model"], item["quant"]) == key)
        header = model_header(index)
        model = self[key] = Model(header=header, geometry=read_geometry(header))
        return model


@cache
def engine_models() -> EngineModels:
    return EngineModels()


def further_model(file: str, data_bytes: int) -> Model:
    """A model by the file name in a row: of headers_more, or else of the recorded headers."""
    path = DATA / "headers_more" / f"{file}.head.gz"
    raw = header_bytes(path.name, path.parent) if path.exists() else _without_vocabulary(file)
    header = read_header(gguf_files(f"{file}.gguf", raw, data_bytes))
    return Model(header=header, geometry=read_geometry(header))


def _without_vocabulary(file: str) -> bytes:
    return header_bytes(f"{file}.novocab.gguf.head.gz")


def config_header(config: dict[str, Any], name: str = "config.json") -> ModelHeader:
    return ModelHeader(
        name=name,
        container=Container.CONFIG,
        config=config,
        quantization=read_quantization(config),
    )


def gguf_header(keys: dict[str, Any], name: str = "model.gguf") -> ModelHeader:
    return ModelHeader(name=name, container=Container.GGUF, keys=keys)


LLAMA_VERSION = "0.5"  # of the recorded llama.cpp
LLAMA_FILES = ("llama_cpp_cpu.jsonl.gz", "llama_cpp_cuda.jsonl.gz", "llama_cpp_more.jsonl.gz")


def rows(file: str) -> Iterator[dict[str, Any]]:
    """Recorded rows. LLAMA_VERSION is added to the options of llama.cpp, so that the installed one does not matter."""
    with gzip.open(DATA / file, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if file in LLAMA_FILES and "options" in row:
                row["options"]["llama_version"] = LLAMA_VERSION
            yield row


def options_of(row: dict[str, Any]) -> dict[str, Any]:
    """The options of a recorded row, without "decode", which is for the recording program only."""
    return {name: value for name, value in row["options"].items() if name != "decode"}
