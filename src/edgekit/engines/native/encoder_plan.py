"""A model, a memory budget and a number of threads -> EncoderPlan, before the first weight is read.

The plan is arithmetic on the header. The encoder allocates what the plan says once, and never more. Weights that fit
into the rest of the budget stay in memory; the others are read again in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from edgekit.engines.native.buffers import (
    FLOAT_BYTES,
    PassPlan,
    arena_floats,
    check_threads,
    check_types,
    fitting_matrices,
    matrices,
    side_floats,
    tile_bytes,
    usual_threads,
    vectors,
)
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.file import Limits
from edgekit.engines.native.model import NativeModel, read_model
from edgekit.errors import (
    HeaderError,
    HeaderLimitError,
    MemoryPressureError,
    UnknownArchitectureError,
    UsageError,
    quoted,
    unquoted,
)
from edgekit.formats.dtype import by_name
from edgekit.formats.types import Tensor, Value
from edgekit.machine.monitor import BREAKER_PERCENT, usable_bytes
from edgekit.units import GIB, KIB, MIB, Basis, format_bytes

if TYPE_CHECKING:
    from edgekit.engines.native.file import FileHeader
    from edgekit.engines.native.kernels.types import Kernels

# Short texts share a pass of this size: unpacking a weight costs as much as using it for 7 tokens.
BATCH_TOKENS = 512
DEFAULT_SHARE = 4  # the default budget is a quarter of the available memory
DEFAULT_HELD_BYTES = GIB  # the default budget for weights: the system's page cache holds the rest
F32 = by_name("F32")

# (tokens of a chunk, bytes of a tile), the fastest first. A plan takes the first that fits. Weights are read once for
# all tokens of a chunk; a tile is what a thread reads and multiplies before it checks the clock again. Tokens cost more
# memory than tiles, and a tile of fewer than a hundred rows halves the speed.
RUNGS = (
    (512, MIB),
    (256, 2 * MIB),
    (128, MIB),
    (64, 512 * KIB),
    (32, 256 * KIB),
    (16, 64 * KIB),
    (16, 16 * KIB),
)
# Measured with tracemalloc and rounded up: a thread's stack and numpy's own small arrays; tiles as Python objects, the
# weights' names and offsets.
THREAD_BYTES = 256 * KIB
BOOKKEEPING_BYTES = 256 * KIB
TENSOR_BYTES = 2 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One line of the encoder's memory breakdown."""

    what: str
    size_bytes: int
    basis: Basis
    because: str  # the arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPlan(PassPlan):
    """The memory that the encoder allocates, and the sizes in which it processes tokens and weights."""

    pooling: Pooling
    text_tokens: int  # the longest text
    text_tokens_because: str
    pass_tokens: int  # all texts of a pass together
    budget_bytes: int = 0
    lines: tuple[PlanLine, ...] = ()
    other_lines: tuple[PlanLine, ...] = ()  # the caller's memory, in the same budget

    @property
    def size_bytes(self) -> int:
        """Memory of the encoder, without the caller's."""
        return sum(line.size_bytes for line in self.lines)

    @property
    def total_bytes(self) -> int:
        return self.size_bytes + sum(line.size_bytes for line in self.other_lines)


def plan_encoder(
    header: FileHeader,
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
    """The best plan within the budget. Raises MemoryPressureError, which states a sufficient budget, if there is none.

    `other_lines` are the caller's memory, which counts in the same budget. `least_bytes` is what the caller needs for a
    while before the encoder is opened. The caller's memory may grow by `varying_bytes` on the next run, so the budget
    in an error message includes them. The default budget is a quarter of `available_bytes`, or less if more is useless.
    """
    limits = limits or Limits()
    model = read_model(header)
    check_types(model, header.name)
    for tensor in vectors(model):
        held_bytes = tensor.shape[-1] * FLOAT_BYTES
        if held_bytes > limits.held_tensor_bytes:
            raise HeaderLimitError(
                f"tensor {unquoted(tensor.name)} must be held whole: bytes (Limits.held_tensor_bytes)",
                value=held_bytes,
                limit=limits.held_tensor_bytes,
                file=header.name,
            )
    text_tokens, because = _longest_text(model, limits, header.name)
    check_threads(threads)
    needs = _EncoderNeeds(
        model=model,
        pooling=choose_pooling(header.keys, model.family.architecture, pooling),
        kernels=kernels,
        threads=threads or usual_threads(),
        text_tokens=text_tokens,
        text_tokens_because=because,
        batch_tokens=max(1, batch_tokens),
        other_bytes=sum(line.size_bytes for line in other_lines),
        least_bytes=least_bytes,
        varying_bytes=varying_bytes,
    )
    if budget_bytes is None:
        budget_bytes = _default_budget(needs, available_bytes)
    plan = _best_plan(needs, budget_bytes)
    plan = replace(plan, budget_bytes=budget_bytes, other_lines=tuple(other_lines))
    return _keep_weights(plan, usable_bytes(budget_bytes) - plan.total_bytes)


def _longest_text(model: NativeModel, limits: Limits, file: str) -> tuple[int, str]:
    """The length of the longest allowed text in tokens, and the reason for it."""
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


# --- the buffers of a pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncoderNeeds:
    """What every plan of an encoder must provide: parameters of `plan_encoder`, and the caller's memory as bytes."""

    model: NativeModel
    pooling: Pooling
    kernels: Kernels
    threads: int
    text_tokens: int
    text_tokens_because: str
    batch_tokens: int
    other_bytes: int
    least_bytes: int
    varying_bytes: int

    def peak_bytes(self, encoder_bytes: int) -> int:
        """The largest amount of memory in use at any time."""
        return max(self.other_bytes + encoder_bytes, self.least_bytes)


def _plans(needs: _EncoderNeeds) -> Iterator[EncoderPlan]:
    """All plans, best first; the last one needs the least memory."""
    model, kernels, longest = needs.model, needs.kernels, needs.text_tokens
    kinds = {(tensor.type, tensor.shape[1]) for tensor in matrices(model)}
    kinds |= {(F32, columns) for _, columns in kinds}
    # Enough for any matrix, packed or unpacked, for attention, and for a row of learned positions.
    scratch_floats = max(
        model.dimensions.width,
        kernels.attention_floats(longest, model.dimensions.head_dim),
        *(kernels.scratch_floats(kind, columns) for kind, columns in kinds),
    )
    for chunk_tokens, usual_tile_bytes in RUNGS:
        for pass_tokens in dict.fromkeys((max(longest, needs.batch_tokens), longest)):
            chunk = min(chunk_tokens, pass_tokens)
            plan = EncoderPlan(
                model=model,
                pooling=needs.pooling,
                threads=needs.threads,
                text_tokens=longest,
                text_tokens_because=needs.text_tokens_because,
                pass_tokens=pass_tokens,
                chunk_tokens=chunk,
                tile_bytes=tile_bytes(model, usual_tile_bytes),
                side_floats=side_floats(model, chunk),
                scratch_floats=scratch_floats,
            )
            yield replace(plan, lines=tuple(_pass_lines(plan)))


def _exact_line(what: str, size_bytes: int, because: str) -> PlanLine:
    return PlanLine(what=what, size_bytes=size_bytes, basis=Basis.EXACT, because=because)


def _pass_lines(plan: EncoderPlan) -> Iterator[PlanLine]:
    model, tokens, chunk = plan.model, plan.pass_tokens, plan.chunk_tokens
    size = model.dimensions
    times = f"{tokens:,} tokens x"
    yield _exact_line("tokens", tokens * size.width * FLOAT_BYTES, f"{times} {size.width:,} x 4")
    yield _exact_line("queries", tokens * size.query * FLOAT_BYTES, f"{times} {size.query:,} x 4")
    yield _exact_line(
        "keys and values, then feed-forward",
        arena_floats(model, tokens, chunk) * FLOAT_BYTES,
        f"the larger of {times} 2 x {size.key:,} x 4 and {chunk:,} x {size.inner:,} x 4",
    )
    yield _exact_line("chunk", chunk * size.width * FLOAT_BYTES, f"{chunk:,} x {size.width:,} x 4")
    yield _exact_line("tiles", plan.tiles_bytes, plan.tiles_because)
    yield PlanLine(
        what="threads",
        size_bytes=plan.threads * THREAD_BYTES,
        basis=Basis.MODELLED,
        because=f"{plan.threads} x {format_bytes(THREAD_BYTES)} of stack and small arrays, at most",
    )
    floats = sum(tensor.shape[-1] for tensor in vectors(model))
    yield _exact_line("norms and biases", floats * FLOAT_BYTES, f"{floats:,} x 4, held as float32")
    if size.rotary:
        yield _exact_line(
            "rotary tables",
            (plan.text_tokens + tokens) * size.rotary * FLOAT_BYTES,
            f"({plan.text_tokens:,} positions + {tokens:,} tokens) x {size.rotary} x 4",
        )
    count = sum(len(layer) for layer in model.layers) + len(model.outside)
    yield PlanLine(
        what="book-keeping",
        size_bytes=BOOKKEEPING_BYTES + count * TENSOR_BYTES + tokens * 64,
        basis=Basis.MODELLED,
        because=f"{format_bytes(BOOKKEEPING_BYTES)} + {count:,} tensors x {TENSOR_BYTES:,}"
        f" + {tokens:,} tokens x 64, at most",
    )


# --- the budget

_FEWER_TOKENS = 256  # an error message says which budget is enough for texts of this length


def budget_for(size_bytes: int) -> int:
    """The smallest budget that allows this much memory in use."""
    return -(-size_bytes * 100 // BREAKER_PERCENT)


def _default_budget(needs: _EncoderNeeds, available_bytes: int | None) -> int:
    """A share of the available memory: no more than is useful, and no less than the smallest plan needs.

    The best plan's buffers are useful, and so are all weights, unpacked or else packed, if they take at most
    DEFAULT_HELD_BYTES.
    """
    best, *_, smallest = _plans(needs)
    packed_bytes = sum(tensor.size_bytes for tensor in matrices(needs.model))
    unpacked_bytes = sum(_unpacked_bytes(tensor) for tensor in matrices(needs.model))
    if unpacked_bytes <= DEFAULT_HELD_BYTES:
        held_bytes = unpacked_bytes
    else:
        held_bytes = packed_bytes if packed_bytes <= DEFAULT_HELD_BYTES else 0
    useful_bytes = budget_for(needs.peak_bytes(best.size_bytes + held_bytes))
    least_budget_bytes = budget_for(needs.peak_bytes(smallest.size_bytes))
    available_bytes = available_bytes or int(psutil.virtual_memory().available)
    return max(least_budget_bytes, min(useful_bytes, available_bytes // DEFAULT_SHARE))


def _best_plan(needs: _EncoderNeeds, budget_bytes: int) -> EncoderPlan:
    """The first plan that fits. Raises MemoryPressureError, which states budgets that would be enough."""
    allowed_bytes = usable_bytes(budget_bytes)
    for plan in _plans(needs):
        if needs.peak_bytes(plan.size_bytes) <= allowed_bytes:
            return plan
    floor_bytes = _floor_bytes(needs)
    message = (
        f"a budget of {format_bytes(budget_bytes)} is too small for this model: it needs "
        f"at least {rounded_up(floor_bytes)} with {needs.threads} threads and texts of up to "
        f"{needs.text_tokens:,} tokens"
    )
    fewer_tokens = min(_FEWER_TOKENS, needs.text_tokens)
    alternatives = {
        "with 1 thread": replace(needs, threads=1),
        f"with texts of up to {fewer_tokens:,} tokens": replace(needs, text_tokens=fewer_tokens),
        "with both": replace(needs, threads=1, text_tokens=fewer_tokens),
    }
    for condition, smaller in alternatives.items():
        size_bytes = _floor_bytes(smaller)
        if size_bytes < floor_bytes:  # only show what is better than the alternatives before it
            message, floor_bytes = f"{message}; {condition} {rounded_up(size_bytes)}", size_bytes
    raise MemoryPressureError(message)


def _floor_bytes(needs: _EncoderNeeds) -> int:
    """The smallest budget for these threads and texts."""
    smallest = replace(
        needs,
        batch_tokens=1,
        other_bytes=needs.other_bytes + needs.varying_bytes,
        least_bytes=needs.least_bytes + needs.varying_bytes,
        varying_bytes=0,
    )
    *_, last = _plans(smallest)
    return budget_for(smallest.peak_bytes(last.size_bytes))


def rounded_up(size_bytes: int) -> str:
    """The size as text, with the last digit rounded up: a budget of the size shown must be enough."""
    unit = next(unit for unit in (GIB, MIB, KIB) if size_bytes >= unit or unit == KIB)
    hundredths = -(-size_bytes * 100 // unit)
    return format_bytes(-(-hundredths * unit // 100))


# --- the weights that stay in memory


def _unpacked_bytes(tensor: Tensor) -> int:
    """The tensor's size in memory as float32. Embedding tables stay packed, because a pass reads only a few rows."""
    tables = {"token_embd.weight", "position_embd.weight"}
    return tensor.size_bytes if tensor.name in tables else tensor.elements * FLOAT_BYTES


def _keep_weights(plan: EncoderPlan, capacity_bytes: int) -> EncoderPlan:
    """Adds the weights that stay in memory: packed, or as float32 if there is memory left after all packed weights."""
    tensors = {tensor.name: tensor for tensor in matrices(plan.model)}
    kept = fitting_matrices(plan.model, capacity_bytes)
    unpacked = []
    if len(kept) == len(tensors):
        capacity_bytes -= sum(tensor.size_bytes for tensor in tensors.values())
        for tensor in tensors.values():
            extra_bytes = _unpacked_bytes(tensor) - tensor.size_bytes
            if 0 < extra_bytes <= capacity_bytes:
                unpacked.append(tensor.name)
                capacity_bytes -= extra_bytes
    lines = [*plan.lines]
    packed_sizes = [tensors[name].size_bytes for name in kept if name not in unpacked]
    if packed_sizes:
        because = f"{len(packed_sizes):,} tensors as they are in the file"
        lines.append(_exact_line("weights kept", sum(packed_sizes), because))
    if unpacked:
        size_bytes = sum(_unpacked_bytes(tensors[name]) for name in unpacked)
        lines.append(
            _exact_line("weights unpacked", size_bytes, f"{len(unpacked):,} tensors as float32")
        )
    return replace(plan, kept=frozenset(kept), unpacked=frozenset(unpacked), lines=tuple(lines))


# --- pooling

_NONE, _RANK = 0, 4  # llama.h: enum llama_pooling_type
_CHOICES = (
    "pooling= (--pooling) mean, cls or last (most BERT models want mean or cls, decoders last)"
)


def choose_pooling(
    keys: Mapping[str, Value], architecture: str, requested: Pooling | None
) -> Pooling:
    """The requested pooling, else the file's.

    Raises UsageError if there is neither, because vectors from a guess would look right;
    UnknownArchitectureError for a reranker, HeaderError for an unknown pooling.
    """
    key = f"{architecture}.pooling_type"
    stated = keys.get(key)
    number = stated if type(stated) is int else None
    if number == _RANK:
        raise UnknownArchitectureError(
            f"this is a reranker ({key} is {_RANK}): it scores pairs of texts and does "
            "not produce embeddings"
        )
    if requested is not None:
        return requested
    if stated is None or number == _NONE:
        problem = (
            "the file does not state a pooling"
            if stated is None
            else f"the file says no pooling ({key} is {_NONE})"
        )
        raise UsageError(f"{problem}: set {_CHOICES}, as the model card says")
    for pooling in Pooling:
        if number == pooling.value:
            return pooling
    raise HeaderError(f"{key} is {quoted(stated)}, which is not a known pooling: set {_CHOICES}")
