"""The buffers of a pass: the sizes that the encoder and the generator share, from the header alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from edgekit.engines.native.families import ModelUse
from edgekit.engines.native.model import NativeModel
from edgekit.errors import UnknownDtypeError, UsageError, unquoted
from edgekit.formats.types import Tensor

FLOAT_BYTES = 4
SIDE_ROWS = 128  # rows of `up` that a thread holds next to the gate's, for a whole chunk of tokens
USUAL_THREADS = 8  # more only share the memory's bandwidth
MAX_THREADS = 1_024  # each has its own buffers

# The tensor types that the kernels unpack, in C or numpy. test_stream_plan.py compares it with both.
UNPACKED = frozenset({
    "F32", "F16", "BF16",
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """The numbers that every pass allocates by."""

    model: NativeModel = field(repr=False)
    threads: int
    chunk_tokens: int  # computed together, through matrices and feed-forward
    tile_bytes: int  # packed rows that a thread reads at a time
    side_floats: int  # a thread's rows of `up`, next to those of the gate
    scratch_floats: int  # a thread's unpacked rows, and scores of attention
    kept: frozenset[str] = field(repr=False, default=frozenset())  # tensors that stay in memory
    unpacked: frozenset[str] = field(repr=False, default=frozenset())  # of these, as float32

    @property
    def streams(self) -> bool:
        """Whether any weight is read from the file in a pass."""
        return any(tensor.name not in self.kept for tensor in matrices(self.model))

    @property
    def tiles_bytes(self) -> int:
        """Of all threads."""
        floats = self.side_floats + self.scratch_floats
        return self.threads * (self.tile_bytes + floats * FLOAT_BYTES)

    @property
    def tiles_because(self) -> str:
        return (
            f"{self.threads} threads x ({self.tile_bytes:,} packed + {self.side_floats:,} x 4"
            f" for the gate + {self.scratch_floats:,} x 4 unpacked)"
        )


def matrices(model: NativeModel) -> Iterator[Tensor]:
    """Every tensor that is read by rows. A pass profits most from keeping the first ones: embeddings come last."""
    for layer in model.layers:
        yield from (tensor for tensor in layer.values() if len(tensor.shape) == 2)
    head = ("output.weight",) if model.use is ModelUse.GENERATE else ()
    for name in (*head, "position_embd.weight", "token_embd.weight"):
        if name in model.outside:
            yield model.outside[name]


def vectors(model: NativeModel) -> Iterator[Tensor]:
    """Every tensor that is held as float32: norms, biases, factors, and the first row of the token types."""
    unused = ("cls.",) if model.use is ModelUse.GENERATE else ("cls.", "output.")
    for tensors in (model.outside, *model.layers):
        yield from (
            tensor
            for name, tensor in tensors.items()
            if (len(tensor.shape) == 1 and not name.startswith(unused))
            or name == "token_types.weight"
        )


def tile_bytes(model: NativeModel, usual_bytes: int) -> int:
    """At least one row of every matrix."""
    return max(usual_bytes, *(tensor.type.row_bytes(tensor.shape[1]) for tensor in matrices(model)))


def side_floats(model: NativeModel, chunk_tokens: int) -> int:
    return chunk_tokens * min(SIDE_ROWS, model.dimensions.inner) if model.gated else 0


def arena_floats(model: NativeModel, pass_tokens: int, chunk_tokens: int) -> int:
    """Keys and values are no longer needed when the feed-forward begins, so both share one array."""
    size = model.dimensions
    return max(pass_tokens * 2 * size.key, chunk_tokens * size.inner)


def fitting_matrices(model: NativeModel, capacity_bytes: int) -> tuple[str, ...]:
    """The names of those that fit. A larger capacity never keeps fewer."""
    kept = []
    for tensor in matrices(model):
        if tensor.size_bytes <= capacity_bytes:
            kept.append(tensor.name)
            capacity_bytes -= tensor.size_bytes
    return tuple(kept)


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
    """One for each core, up to USUAL_THREADS. Without `cores`: the cores that this process may use."""
    return min(USUAL_THREADS, cores or usable_cores())


def check_threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(
            f"the number of threads must be at least 1 (got {threads})"
            if threads < 1
            else f"the number of threads must be at most {MAX_THREADS:,} (got {threads:,})"
        )
