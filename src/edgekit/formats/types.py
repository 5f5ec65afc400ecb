"""Nouns of the second room: what a model's files say about themselves."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgekit.formats.dtype import TensorType
from edgekit.sources.types import Container

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

# Parts of a config.json that hold the language model, outermost first; they may nest.
TEXT_SECTIONS = (
    "thinker_config",
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
)


class Depth(enum.Enum):
    """How much to read."""

    ARCHITECTURE = "architecture"  # until the geometry is known: one request, or config and index
    TENSORS = "tensors"  # the whole header, tensor directory included; never the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    name: str
    type: TensorType
    shape: tuple[int, ...]  # outermost first, as safetensors and numpy have it (GGUF: reversed)
    size_bytes: int
    offset: int  # from the start of its file
    shard: int = 0

    @property
    def elements(self) -> int:
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFact:
    """An array that was walked and counted, not held."""

    element: str  # "string", "float32", ...
    count: int
    # Where its elements lie in the file, for those who come back for them.
    offset: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)  # 0: the walk stopped inside of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """What a config.json says about packed weights."""

    method: str  # "affine", "mxfp4", "gptq", "fp8", ...
    format: str | None = None  # what the method calls its variant: "NVFP4", "pack-quantized", ...
    bits: float | None = None
    group_size: int | None = None
    overrides: tuple[tuple[str, Mapping[str, Any] | bool], ...] = ()  # module path -> its setting
    mlx: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHeader:
    """What the files of one model say: keys or config, tensors, sizes. Nothing interpreted yet."""

    name: str
    container: Container
    version: int | None = None  # GGUF version
    big_endian: bool = False
    mlx: bool = False  # safetensors that MLX wrote
    keys: Mapping[str, Value] = field(
        default_factory=dict, repr=False
    )  # GGUF keys, large arrays left out
    arrays: Mapping[str, ArrayFact] = field(
        default_factory=dict, repr=False
    )  # GGUF arrays walked, not held
    long_strings: Mapping[str, int] = field(
        default_factory=dict, repr=False
    )  # GGUF strings not kept: bytes
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # config.json, parsed
    quantization: Quantization | None = None
    tensors: tuple[Tensor, ...] | None = field(
        default=None, repr=False
    )  # None: the directory was not read
    tensor_count: int | None = None
    tensor_bytes: int | None = None  # sum over the directory, or the index's total_size
    parameters: int | None = None  # only when a file states it outright (MLX index)
    file_bytes: int | None = None  # all weight files together
    header_bytes: int | None = None  # bytes before the data, all shards; None if not all was read
    complete: bool = True  # False: Depth.ARCHITECTURE stopped before the last key


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidTensor:
    """A tensor by its name in a GGUF, with the type it has there."""

    name: str
    shape: tuple[int, ...]  # outermost first
    type: TensorType

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.type.row_bytes(self.shape[-1])
