"""The sizes of a pass's buffers, computed from the header, for the encoder and the generator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from edgekit.engines.native.families import ModelUse
from edgekit.engines.native.model import NativeModel
from edgekit.errors import UnknownDtypeError, UsageError, unquoted
from edgekit.formats.types import Tensor

FLOAT_BYTES = 4
SIDE_ROWS = 128  # rows of `up` that a thread computes at a time, for all tokens of a chunk
USUAL_THREADS = 8  # more threads would only share the memory bandwidth
MAX_THREADS = 1_024  # each has its own buffers

# The tensor types that the kernels can unpack. test_stream_plan.py compares the set with the C and numpy kernels.
UNPACKED = frozenset({
    "F32", "F16", "BF16",
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """The sizes that the encoder and the generator allocate for a pass."""

    model: NativeModel = field(repr=False)
    threads: int
    chunk_tokens: int  # tokens that are multiplied by a matrix together
    tile_bytes: int  # packed rows that a thread reads at a time
    side_floats: int  # per thread: results of `up`, until they are multiplied by the gate's
    scratch_floats: int  # per thread: unpacked rows, or scores of attention
    # Names of the tensors that stay in memory, and of those among them that are float32.
    kept: frozenset[str] = field(repr=False, default=frozenset())
    unpacked: frozenset[str] = field(repr=False, default=frozenset())

    @property
    def streams(self) -> bool:
        """Whether a pass reads any weight from the file."""
        return any(tensor.name not in self.kept for tensor in matrices(self.model))

    @property
    def tiles_bytes(self) -> int:
        """Memory for the tiles of all threads."""
        floats = self.side_floats + self.scratch_floats
        return self.threads * (self.tile_bytes + floats * FLOAT_BYTES)

    @property
    def tiles_because(self) -> str:
        return (
            f"{self.threads} threads x ({self.tile_bytes:,} packed + {self.side_floats:,} x 4"
            f" for the gate + {self.scratch_floats:,} x 4 unpacked)"
        )


def matrices(model: NativeModel) -> Iterator[Tensor]:
    """Every tensor that is read by rows, the most useful ones to keep in memory first: embeddings are last."""
    for layer in model.layers:
        yield from (tensor for tensor in layer.values() if len(tensor.shape) == 2)
    head = ("output.weight",) if model.use is ModelUse.GENERATE else ()
    for name in (*head, "position_embd.weight", "token_embd.weight"):
        if name in model.outside:
            yield model.outside[name]


def vectors(model: NativeModel) -> Iterator[Tensor]:
    """Every tensor that stays in memory as float32: norms, biases, factors, and the first row of the token types."""
    unused = ("cls.",) if model.use is ModelUse.GENERATE else ("cls.", "output.")
    for tensors in (model.outside, *model.layers):
        yield from (
            tensor
            for name, tensor in tensors.items()
            if (len(tensor.shape) == 1 and not name.startswith(unused))
            or name == "token_types.weight"
        )


def tile_bytes(model: NativeModel, usual_bytes: int) -> int:
    """The size of a tile: the usual size, or one row of the widest matrix if that is more."""
    return max(usual_bytes, *(tensor.type.row_bytes(tensor.shape[1]) for tensor in matrices(model)))


def side_floats(model: NativeModel, chunk_tokens: int) -> int:
    """A thread's buffer for results of `up`; 0 if the feed-forward has no gate."""
    return chunk_tokens * min(SIDE_ROWS, model.dimensions.inner) if model.gated else 0


def arena_floats(model: NativeModel, pass_tokens: int, chunk_tokens: int) -> int:
    """The size of the array that first holds keys and values, and then the hidden layer of the feed-forward."""
    size = model.dimensions
    return max(pass_tokens * 2 * size.key, chunk_tokens * size.inner)


def fitting_matrices(model: NativeModel, capacity_bytes: int) -> tuple[str, ...]:
    """The names of the matrices that fit into a capacity. A larger capacity never holds fewer matrices."""
    names = []
    for tensor in matrices(model):
        if tensor.size_bytes <= capacity_bytes:
            names.append(tensor.name)
            capacity_bytes -= tensor.size_bytes
    return tuple(names)


def check_types(model: NativeModel, file: str = "") -> None:
    """Raises UnknownDtypeError for the first tensor that the kernels cannot unpack."""
    for tensor in (*matrices(model), *vectors(model)):
        if tensor.type.name not in UNPACKED:
            raise UnknownDtypeError(
                f"tensor {unquoted(tensor.name)}: the built-in engine does not support "
                f"the type {tensor.type.name} (engines/native/kernels has no row for it); engine "
                "llama.cpp may",
                file=file,
            )


def usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # neither macOS nor Windows has it
        return os.cpu_count() or 1


def usual_threads(cores: int | None = None) -> int:
    """One thread per core, up to USUAL_THREADS. The default of `cores` is what this process may use."""
    return min(USUAL_THREADS, cores or usable_cores())


def check_threads(threads: int | None) -> None:
    """Raises UsageError for an impossible number. None stands for the usual number."""
    if threads is None:
        return
    if threads < 1:
        raise UsageError(f"the number of threads must be at least 1 (got {threads})")
    if threads > MAX_THREADS:
        raise UsageError(f"the number of threads must be at most {MAX_THREADS:,} (got {threads:,})")
