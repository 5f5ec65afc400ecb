"""The tensors computed from the keys, the size and the tensor count of a GGUF equal those of its directory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.recorded import DATA, gguf_files, header_bytes, models, rows
from tests.thoroughness import sampled

from edgekit.engines.llamacpp.estimate import converted
from edgekit.formats import read_header
from edgekit.formats.types import Depth, ModelHeader, Tensor
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import ModelFiles

# Files in headers_more that no converter wrote, or whose family has a partial list of tensors. Why they differ:
SCALES = "has scales of NVFP4 weights, which no key mentions"
OPTIONAL = "has, or lacks, tensors that the loader treats as optional"
NOT_DESCRIBED = "tensors of a kind that geometry does not describe"
SHAPE = "one dimension of length 1 more or fewer, which ggml treats as equal"
UNEQUAL = {
    "bge-reranker-v2-m3.F16": NOT_DESCRIBED,  # its classifier
    "bitnet-small.Q4_K_M": SCALES,
    "bloom-small.Q4_K_M": SCALES,
    "chameleon-small.Q4_K_M": OPTIONAL,
    "chatglm-small.Q4_K_M": SCALES,
    "codeshell-small.Q4_K_M": SCALES,
    "cogvlm.Q4_K_M": NOT_DESCRIBED,  # vision experts
    "cohere2moe-rms-small.Q4_K_M": OPTIONAL,
    "dbrx-small.Q4_K_M": SCALES,
    "deci-small.Q4_K_M": NOT_DESCRIBED,  # linear layers instead of attention
    "embeddinggemma-dense.Q4_K_M": NOT_DESCRIBED,  # dense layers after the pooling
    "ernie4.5-moe-small.Q4_K_M": SCALES,
    "falcon-40b-small.Q4_K_M": SCALES,
    "flan-t5-large.Q4_K_M": NOT_DESCRIBED,
    "gemma-3n-e2b.Q4_K_M": OPTIONAL,  # F32 where the converter writes F16
    "gpt2.Q4_K_M": SCALES,
    "granite-4-h-micro.Q4_K_M": SHAPE,
    "granite-4-h-small.Q4_K_M": SCALES,
    "granite-swa-moe-small.Q4_K_M": OPTIONAL,
    "granitemoe-small.Q4_K_M": SCALES,
    "grok-1-small.Q4_K_M": SCALES,
    "grok-2-small.Q4_K_M": SCALES,
    "hy-v3-trunk-small.Q4_K_M": OPTIONAL,
    "jais2-small.Q4_K_M": OPTIONAL,
    "jina-v2-base-code.F16": SCALES,
    "jina-v3.F16": SCALES,
    "kimi-linear-48b.Q4_K_M": SCALES,
    "ling-3-small.Q4_K_M": SHAPE,
    "llama-3.3-nemotron-49b.Q4_K_M": NOT_DESCRIBED,  # linear layers instead of attention
    "mamba2-2.7b.F16": SHAPE,
    "mimo2-small.Q4_K_M": OPTIONAL,
    "minimax-text-01.Q4_K_M": SCALES,
    "mpt-small.Q4_K_M": OPTIONAL,
    "neobert.F16": SCALES,
    "nomic-embed-v2-moe.Q8_0": SCALES,
    "pangu-small.Q4_K_M": OPTIONAL,
    "pythia-small.Q4_K_M": SCALES,
    "qwen3-next-small.Q8_0": SCALES,
    "qwen35moe-mtp.Q4_K_M": OPTIONAL,
    "rwkv7-0.4b.F16": NOT_DESCRIBED,
    "stablelm-parallel-small.Q4_K_M": OPTIONAL,
    "t5-base-encoder.Q4_K_M": NOT_DESCRIBED,
}
# Families without a list of tensors: keys alone give no estimate.
WITHOUT_LIST = {"arwkv7-7b.Q4_K_M", "rwkv6-1.6b.Q4_K_M", "rwkv6qwen2-32b.Q4_K_M"}


def recorded_files(model: dict[str, Any]) -> ModelFiles:
    file = model["header_without_vocabulary"]
    return gguf_files(file, header_bytes(file), model["data_section_bytes"])


@cache
def further_sizes() -> dict[str, int]:
    return {row["file"]: row["data_bytes"] for row in rows("llama_cpp_more.jsonl.gz")}


def further_files(name: str) -> ModelFiles:
    head = header_bytes(f"{name}.head.gz", DATA / "headers_more")
    return gguf_files(f"{name}.gguf", head, further_sizes()[name])


def keys_alone(files: ModelFiles) -> ModelHeader:
    header = read_header(files, depth=Depth.ARCHITECTURE)
    return replace(header, tensors=None, tensor_bytes=None)


def layout_of(header: ModelHeader) -> tuple[Tensor, ...]:
    result = converted(Model(header=header, geometry=read_geometry(header)), None)
    assert result is not None
    return result.model.header.tensors or ()


def described(tensors: tuple[Tensor, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {tensor.name: (tensor.shape, tensor.type.name) for tensor in tensors}


def test_layout_is_that_of_every_recorded_file() -> None:
    for model in sampled(models(), each=5):
        files = recorded_files(model)
        directory = read_header(files).tensors or ()
        layout = layout_of(keys_alone(files))
        assert described(layout) == described(directory), files.reference
        assert len(layout) == len(directory)


def further_names() -> list[str]:
    return [
        name
        for name in sorted(further_sizes())
        if name not in UNEQUAL | dict.fromkeys(WITHOUT_LIST)
    ]


@pytest.mark.parametrize("name", sampled(further_names(), each=2))
def test_layout_is_that_of_further_families(name: str) -> None:
    files = further_files(name)
    assert described(layout_of(keys_alone(files))) == described(read_header(files).tensors or ())


@pytest.mark.parametrize("name", sorted(UNEQUAL))
def test_listed_differences_still_differ(name: str) -> None:
    files = further_files(name)
    assert described(layout_of(keys_alone(files))) != described(read_header(files).tensors or ())
