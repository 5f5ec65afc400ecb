"""A model, a memory budget and a number of threads -> EncoderPlan, before the first weight is read.

All of it is arithmetic on the header. What the plan says is what the encoder reserves, allocates
once and never exceeds; weights that find room in what is left are kept, the rest is read anew in
every pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from edgekit.basis import Basis
from edgekit.engines.native.buffers import (
    arena_floats,
    check_threads,
    matrices,
    row_bytes,
    side_floats,
    usual_threads,
    vectors,
)
from edgekit.engines.native.model import NativeModel, read_model
from edgekit.engines.native.types import Limits, Pooling
from edgekit.errors import (
    HeaderError,
    HeaderLimitError,
    MemoryPressureError,
    UnknownArchitectureError,
    UsageError,
)
from edgekit.formats.dtype import by_name
from edgekit.formats.types import Tensor, Value
from edgekit.machine.monitor import BREAKER_PERCENT, usable_bytes
from edgekit.terminal import quoted, unquoted
from edgekit.units import GIB, KIB, MIB, format_bytes

if TYPE_CHECKING:
    from edgekit.engines.native.file import Walked
    from edgekit.engines.native.kernels.types import Kernels


FLOAT_BYTES = 4
BATCH_TOKENS = 512  # of short texts in one pass: unpacking a weight costs as much as 7 tokens
DEFAULT_SHARE = 4  # without a budget: a quarter of what is available
DEFAULT_HELD_BYTES = GIB  # and no weights beyond this: the system's cache holds files as well
F32 = by_name("F32")

# (tokens of a chunk, bytes of a tile), best first. A chunk's tokens share one reading of the
# weights, a tile is what a thread reads and multiplies between two looks at the clock. Tokens cost
# more memory than tiles, and a tile of less than a hundred rows costs half of the speed.
RUNGS = (
    (512, MIB),
    (256, 2 * MIB),
    (128, MIB),
    (64, 512 * KIB),
    (32, 256 * KIB),
    (16, 64 * KIB),
    (16, 16 * KIB),
)
# Measured with tracemalloc and rounded up: a thread's stack and numpy's own small arrays; tiles as
# Python objects, the weights' names and places.
THREAD_BYTES = 256 * KIB
BOOKKEEPING_BYTES = 256 * KIB
TENSOR_BYTES = 2 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One line of the bill."""

    what: str
    size_bytes: int
    basis: Basis
    because: str  # the arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPlan:
    """What the encoder will hold, and how it goes through the weights."""

    model: NativeModel = field(repr=False)
    pooling: Pooling
    threads: int
    text_tokens: int  # the longest text
    text_tokens_because: str
    pass_tokens: int  # all texts of a pass together
    chunk_tokens: int  # of them at a time, through matrices and feed-forward
    tile_bytes: int  # packed rows that a thread reads at a time
    side_floats: int  # a thread's rows of `up`, beside those of the gate
    scratch_floats: int  # a thread's unpacked rows, and scores of attention
    kept: frozenset[str] = field(repr=False)  # tensors whose bytes stay in memory
    unpacked: frozenset[str] = field(repr=False)  # those of them that stay as float32
    budget_bytes: int
    lines: tuple[PlanLine, ...]
    other_lines: tuple[PlanLine, ...] = ()  # of the caller, inside the same budget

    @property
    def size_bytes(self) -> int:
        """What the encoder itself holds."""
        return sum(line.size_bytes for line in self.lines)

    @property
    def total_bytes(self) -> int:
        return self.size_bytes + sum(line.size_bytes for line in self.other_lines)

    @property
    def streams(self) -> bool:
        """Whether any weight is read from the file in a pass."""
        return any(tensor.name not in self.kept for tensor in matrices(self.model))


def plan_encoder(
    walked: Walked,
    *,
    kernels: Kernels,
    budget_bytes: int | None = None,
    available_bytes: int | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
    pooling: Pooling | None = None,
    batch_tokens: int = BATCH_TOKENS,
    other_lines: Sequence[PlanLine] = (),
    least_bytes: int = 0,
    varying_bytes: int = 0,
) -> EncoderPlan:
    """The best plan inside the budget; MemoryPressureError says what budget would do.

    `other_lines` are the caller's, in the same budget; `least_bytes` is what the caller takes for a while before the
    encoder is opened; by `varying_bytes` its lines may be larger the next time, so the floor is told with them.

    Without a budget it is a quarter of `available_bytes`, and never more than is of use.
    """
    limits = limits or Limits()
    model = read_model(walked)
    _check_types(model, kernels, walked.name)
    _check_held(model, limits, walked.name)
    text_tokens, because = _text_tokens(model, limits, walked.name)
    check_threads(threads)
    asked = _Asked(
        model=model,
        kernels=kernels,
        threads=threads or usual_threads(),
        text_tokens=text_tokens,
        batch_tokens=max(1, batch_tokens),
        other_bytes=sum(line.size_bytes for line in other_lines),
        least_bytes=least_bytes,
        varying_bytes=varying_bytes,
    )
    budget_bytes = _budget(asked, budget_bytes, available_bytes)
    working = _fitting(asked, budget_bytes)
    room_bytes = usable_bytes(budget_bytes) - asked.other_bytes - working.size_bytes
    kept, unpacked = _weights_kept(model, room_bytes)
    return EncoderPlan(
        model=model,
        pooling=choose_pooling(walked.keys, model.family.architecture, pooling),
        threads=asked.threads,
        text_tokens=text_tokens,
        text_tokens_because=because,
        pass_tokens=working.pass_tokens,
        chunk_tokens=working.chunk_tokens,
        tile_bytes=working.tile_bytes,
        side_floats=working.side_floats,
        scratch_floats=working.scratch_floats,
        kept=frozenset(kept) | frozenset(unpacked),
        unpacked=frozenset(unpacked),
        budget_bytes=budget_bytes,
        lines=(*working.lines, *_weight_lines(model, kept, unpacked)),
        other_lines=tuple(other_lines),
    )


def _exact(what: str, size_bytes: int, because: str) -> PlanLine:
    return PlanLine(what=what, size_bytes=size_bytes, basis=Basis.EXACT, because=because)


# --- what a pass needs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    model: NativeModel
    kernels: Kernels
    threads: int
    text_tokens: int
    batch_tokens: int
    other_bytes: int
    least_bytes: int
    varying_bytes: int

    def least_with(self, size_bytes: int) -> int:
        """In use at some time, when the encoder itself takes so much."""
        return max(self.other_bytes + size_bytes, self.least_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Working:
    """The buffers of one rung."""

    pass_tokens: int
    chunk_tokens: int
    tile_bytes: int
    side_floats: int
    scratch_floats: int
    lines: tuple[PlanLine, ...]

    @property
    def size_bytes(self) -> int:
        return sum(line.size_bytes for line in self.lines)


def _rungs(asked: _Asked) -> Iterator[_Working]:
    """Best first. The last is the floor."""
    longest = asked.text_tokens
    for chunk_tokens, tile_bytes in RUNGS:
        for pass_tokens in dict.fromkeys((max(longest, asked.batch_tokens), longest)):
            yield _working(asked, pass_tokens, min(chunk_tokens, pass_tokens), tile_bytes)


def _working(asked: _Asked, pass_tokens: int, chunk_tokens: int, tile_bytes: int) -> _Working:
    model = asked.model
    widest = max(row_bytes(tensor) for tensor in matrices(model))
    tile_bytes = max(tile_bytes, widest)
    beside = side_floats(model, chunk_tokens)
    scratch_floats = _scratch_floats(asked)
    return _Working(
        pass_tokens=pass_tokens,
        chunk_tokens=chunk_tokens,
        tile_bytes=tile_bytes,
        side_floats=beside,
        scratch_floats=scratch_floats,
        lines=(
            *_token_lines(model, pass_tokens, chunk_tokens),
            *_thread_lines(asked.threads, tile_bytes, beside, scratch_floats),
            *_fixed_lines(model, asked.text_tokens, pass_tokens),
        ),
    )


def _token_lines(model: NativeModel, pass_tokens: int, chunk_tokens: int) -> Iterator[PlanLine]:
    size = model.dimensions
    told = f"{pass_tokens:,} tokens x"
    yield _exact("tokens", pass_tokens * size.width * FLOAT_BYTES, f"{told} {size.width:,} x 4")
    yield _exact("queries", pass_tokens * size.query * FLOAT_BYTES, f"{told} {size.query:,} x 4")
    yield _exact(
        "keys and values, then feed-forward",
        arena_floats(model, pass_tokens, chunk_tokens) * FLOAT_BYTES,
        f"the larger of {told} 2 x {size.key:,} x 4 and {chunk_tokens:,} x {size.inner:,} x 4",
    )
    yield _exact(
        "chunk", chunk_tokens * size.width * FLOAT_BYTES, f"{chunk_tokens:,} x {size.width:,} x 4"
    )


def _thread_lines(
    threads: int, tile_bytes: int, side_floats: int, scratch_floats: int
) -> Iterator[PlanLine]:
    each = tile_bytes + (side_floats + scratch_floats) * FLOAT_BYTES
    yield _exact(
        "tiles",
        threads * each,
        f"{threads} threads x ({tile_bytes:,} packed + {side_floats:,} x 4 for the gate + "
        f"{scratch_floats:,} x 4 unpacked)",
    )
    yield PlanLine(
        what="threads",
        size_bytes=threads * THREAD_BYTES,
        basis=Basis.MODELLED,
        because=f"{threads} x {format_bytes(THREAD_BYTES)} of stack and small arrays, at most",
    )


def _fixed_lines(model: NativeModel, text_tokens: int, pass_tokens: int) -> Iterator[PlanLine]:
    floats = sum(tensor.shape[-1] for tensor in vectors(model))
    yield _exact("norms and biases", floats * FLOAT_BYTES, f"{floats:,} x 4, held as float32")
    rotary = model.dimensions.rotary
    if rotary:
        rows = text_tokens + pass_tokens
        yield _exact(
            "rotary tables",
            rows * rotary * FLOAT_BYTES,
            f"({text_tokens:,} positions + {pass_tokens:,} tokens) x {rotary} x 4",
        )
    count = sum(len(layer) for layer in model.layers) + len(model.outside)
    yield PlanLine(
        what="book-keeping",
        size_bytes=BOOKKEEPING_BYTES + count * TENSOR_BYTES + pass_tokens * 64,
        basis=Basis.MODELLED,
        because=f"{format_bytes(BOOKKEEPING_BYTES)} + {count:,} tensors x {TENSOR_BYTES:,}"
        f" + {pass_tokens:,} tokens x 64, at most",
    )


def _scratch_floats(asked: _Asked) -> int:
    """For every matrix, packed or unpacked, for attention, and for a row of a table of places."""
    size, kernels = asked.model.dimensions, asked.kernels
    kinds = {(tensor.type, tensor.shape[1]) for tensor in matrices(asked.model)}
    kinds |= {(F32, columns) for _, columns in kinds}
    return max(
        size.width,
        kernels.attention_floats(asked.text_tokens, size.head_dim),
        *(kernels.scratch_floats(kind, columns) for kind, columns in kinds),
    )


# --- the budget


def budget_for(size_bytes: int) -> int:
    """The smallest budget that allows so much."""
    return -(-size_bytes * 100 // BREAKER_PERCENT)


def _budget(asked: _Asked, wish: int | None, available_bytes: int | None) -> int:
    if wish is not None:
        return wish
    working, *_, floor = _rungs(asked)
    packed = sum(tensor.size_bytes for tensor in matrices(asked.model))
    unpacked = sum(_unpacked_bytes(tensor) for tensor in matrices(asked.model))
    held = next((held for held in (unpacked, packed) if held <= DEFAULT_HELD_BYTES), 0)
    of_use = budget_for(asked.least_with(working.size_bytes + held))
    least = budget_for(asked.least_with(floor.size_bytes))
    share = (available_bytes or _available_bytes()) // DEFAULT_SHARE
    return max(least, min(of_use, share))


def _available_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _fitting(asked: _Asked, budget_bytes: int) -> _Working:
    allowed = usable_bytes(budget_bytes)
    for working in _rungs(asked):
        if asked.least_with(working.size_bytes) <= allowed:
            return working
    raise MemoryPressureError(_below_floor(asked, budget_bytes))


_FEWER_TOKENS = 256


def _below_floor(asked: _Asked, budget_bytes: int) -> str:
    floor = _floor(asked)
    told = (
        f"a budget of {format_bytes(budget_bytes)} is too small for this model: it needs "
        f"at least {rounded_up(floor)} with {asked.threads} threads and texts of up to "
        f"{asked.text_tokens:,} tokens"
    )
    fewer = min(_FEWER_TOKENS, asked.text_tokens)
    ways = {
        "with 1 thread": _floor(asked, threads=1),
        f"with texts of up to {fewer:,} tokens": _floor(asked, text_tokens=fewer),
        "with both": _floor(asked, threads=1, text_tokens=fewer),
    }
    for way, size in ways.items():
        if size < floor:  # each has to be better than those before it
            told, floor = f"{told}; {way} {rounded_up(size)}", size
    return told


def _floor(asked: _Asked, *, threads: int | None = None, text_tokens: int | None = None) -> int:
    smaller = replace(
        asked,
        threads=threads or asked.threads,
        text_tokens=text_tokens or asked.text_tokens,
        batch_tokens=1,
        other_bytes=asked.other_bytes + asked.varying_bytes,
        least_bytes=asked.least_bytes + asked.varying_bytes,
        varying_bytes=0,
    )
    *_, last = _rungs(smaller)
    return budget_for(smaller.least_with(last.size_bytes))


def rounded_up(size_bytes: int) -> str:
    """A budget of what is told must do, so the last digit goes up."""
    unit = next(unit for unit in (GIB, MIB, KIB) if size_bytes >= unit or unit == KIB)
    hundredths = -(-size_bytes * 100 // unit)
    return format_bytes(-(-hundredths * unit // 100))


# --- the weights that stay


def _unpacked_bytes(tensor: Tensor) -> int:
    """As float32; tables of which a pass reads a few rows stay as they are."""
    tables = {"token_embd.weight", "position_embd.weight"}
    return tensor.size_bytes if tensor.name in tables else tensor.elements * FLOAT_BYTES


def _weights_kept(model: NativeModel, room_bytes: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Packed as far as there is room; when all are kept, unpacked as far as there is still room."""
    kept: dict[str, Tensor] = {}
    everything = tuple(matrices(model))
    for tensor in everything:
        if tensor.size_bytes <= room_bytes:
            kept[tensor.name] = tensor
            room_bytes -= tensor.size_bytes
    unpacked = []
    if len(kept) == len(everything):
        for tensor in everything:
            more = _unpacked_bytes(tensor) - tensor.size_bytes
            if 0 < more <= room_bytes:
                unpacked.append(tensor.name)
                room_bytes -= more
    return tuple(name for name in kept if name not in unpacked), tuple(unpacked)


def _weight_lines(
    model: NativeModel, kept: tuple[str, ...], unpacked: tuple[str, ...]
) -> Iterator[PlanLine]:
    by_name = {tensor.name: tensor for tensor in matrices(model)}
    if kept:
        size_bytes = sum(by_name[name].size_bytes for name in kept)
        yield _exact("weights kept", size_bytes, f"{len(kept):,} tensors as they are in the file")
    if unpacked:
        size_bytes = sum(_unpacked_bytes(by_name[name]) for name in unpacked)
        yield _exact("weights unpacked", size_bytes, f"{len(unpacked):,} tensors as float32")


# --- what is refused


def _text_tokens(model: NativeModel, limits: Limits, file: str) -> tuple[int, str]:
    if limits.tokens < 1:
        raise UsageError(f"the token limit must be at least 1 (got {limits.tokens})")
    context_tokens = model.dimensions.context_tokens
    if context_tokens < limits.tokens:
        tokens, because = context_tokens, "the model's context length"
    else:
        tokens, because = limits.tokens, "Limits.tokens"
    window = model.window_tokens
    if window is not None and window < tokens:
        raise HeaderError(
            f"this model uses a sliding window of {window:,} tokens, which the built-in "
            "encoder does not support: its results are only correct for texts of up to "
            f"{window:,} tokens (--max-tokens {window})",
            file=file,
        )
    return tokens, because


def _check_held(model: NativeModel, limits: Limits, file: str) -> None:
    for tensor in vectors(model):
        held_bytes = tensor.shape[-1] * FLOAT_BYTES
        if held_bytes > limits.held_tensor_bytes:
            raise HeaderLimitError(
                f"tensor {unquoted(tensor.name)} must be held whole: bytes (Limits.held_tensor_bytes)",
                value=held_bytes,
                limit=limits.held_tensor_bytes,
                file=file,
            )


def _check_types(model: NativeModel, kernels: Kernels, file: str) -> None:
    """A type that cannot be unpacked is told before anything is read."""
    nothing = np.empty(0, np.float32)
    kinds = {tensor.type: tensor.name for tensor in (*matrices(model), *vectors(model))}
    for kind, name in kinds.items():
        try:
            kernels.dequantize(kind, b"", nothing)
        except HeaderError as error:
            raise type(error)(f"tensor {unquoted(name)}: {error.what}", file=file) from error


# --- pooling

_NONE, _RANK = 0, 4  # llama.h: enum llama_pooling_type
_CHOICES = (
    "pooling= (--pooling) mean, cls or last (most BERT models want mean or cls, decoders last)"
)


def choose_pooling(keys: Mapping[str, Value], architecture: str, wish: Pooling | None) -> Pooling:
    """What was chosen, else what the file says. UsageError where neither says anything: a guess
    would give vectors that look right. UnknownArchitectureError for a reranker, HeaderError for
    a pooling that there is not.
    """
    key = f"{architecture}.pooling_type"
    told = keys.get(key)
    if told == _RANK and type(told) is int:
        raise UnknownArchitectureError(
            f"this is a reranker ({key} is {_RANK}): it scores pairs of texts and does "
            "not produce embeddings"
        )
    if wish is not None:
        return wish
    if told is None or (type(told) is int and told == _NONE):
        said = "does not state a pooling" if told is None else f"says no pooling ({key} is {_NONE})"
        raise UsageError(f"the file {said}: set {_CHOICES}, as the model card says")
    for pooling in Pooling:
        if type(told) is int and told == pooling.value:
            return pooling
    raise HeaderError(f"{key} is {quoted(told)}, which is not a known pooling: set {_CHOICES}")
