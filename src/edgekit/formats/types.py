"""The value types of a header: tensors, keys, quantisation."""

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

# Parts of a config.json that describe the language model, outermost first; they may be nested.
TEXT_SECTIONS = (
    "thinker_config",
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
)


class Depth(enum.Enum):
    """How much of a header to read."""

    ARCHITECTURE = "architecture"  # enough for the geometry: one request, or config and index
    TENSORS = "tensors"  # the whole header, tensor directory included; never the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    name: str
    type: TensorType
    shape: tuple[int, ...]  # outermost first, as in safetensors and numpy (GGUF: reversed)
    size_bytes: int
    offset: int  # from the start of its file
    shard: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFact:
    """An array that was counted but not stored."""

    element: str  # "string", "float32", ...
    count: int
    # Where its elements begin and end in the file. An end of 0: reading stopped inside the array.
    offset: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The packing of the weights according to config.json."""

    method: str  # "affine", "mxfp4", "gptq", "fp8", ...
    format: str | None = None  # the method's variant: "NVFP4", "pack-quantized", ...
    bits: float | None = None
    group_size: int | None = None
    overrides: tuple[tuple[str, Mapping[str, Any] | bool], ...] = ()  # module path -> its setting
    mlx: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHeader:
    """The contents of one model's headers, not interpreted yet: keys or config, tensors, sizes."""

    name: str
    container: Container
    version: int | None = None  # GGUF version
    big_endian: bool = False
    mlx: bool = False  # safetensors written by MLX
    # The keys of a GGUF, and those whose values were too long to store.
    keys: Mapping[str, Value] = field(default_factory=dict, repr=False)
    arrays: Mapping[str, ArrayFact] = field(default_factory=dict, repr=False)
    long_strings: Mapping[str, int] = field(default_factory=dict, repr=False)  # their bytes
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # config.json, parsed
    quantization: Quantization | None = None
    # None if the tensor directory was not read.
    tensors: tuple[Tensor, ...] | None = field(default=None, repr=False)
    tensor_count: int | None = None
    tensor_bytes: int | None = None  # sum over the directory, or the index's total_size
    parameters: int | None = None  # stated by the file itself (MLX index)
    file_bytes: int | None = None  # all weight files together
    # Bytes before the tensor data, of all shards; None unless every header was read.
    header_bytes: int | None = None
    complete: bool = True  # False: Depth.ARCHITECTURE stopped before the last key


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
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
