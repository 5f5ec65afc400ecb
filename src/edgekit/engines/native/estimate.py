"""What the built-in engine allocates: little more than its cache, because it reads weights tile by tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgekit import __version__
from edgekit.bill.spill import PAGE_TOKENS
from edgekit.bill.types import Load, MemoryEstimate
from edgekit.engines.native.buffers import matrices
from edgekit.engines.native.families import ModelUse
from edgekit.engines.native.model import NativeModel, read_model
from edgekit.engines.native.prepared import prepare
from edgekit.engines.native.stream_plan import StreamPlan, StreamSetup, plan_stream
from edgekit.errors import HeaderError, HeaderLimitError, RefusedError, UnknownDtypeError
from edgekit.formats.types import ModelHeader, Tensor, Value
from edgekit.model.types import Model
from edgekit.sources.types import Container

__all__ = ["NAME", "VERSION", "estimate", "matrix_bytes", "stream_model"]

NAME = "stream"
VERSION = __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """A header as the engine's own reader of models wants it."""

    name: str
    keys: Mapping[str, Value]
    tensors: Mapping[str, Tensor] = field(repr=False)


def estimate(model: Model, load: Load, setup: StreamSetup) -> MemoryEstimate:
    """The bill, EXACT on every line.

    Raises RefusedError for what the engine would not run, UnknownArchitectureError for an unknown family,
    UnknownDtypeError for weights it does not unpack.
    """
    plan = plan_stream(stream_model(model), load, setup)
    return MemoryEstimate(engine=NAME, backend="cpu", lines=plan.lines, facts=_facts(plan))


def stream_model(model: Model) -> NativeModel:
    """The model as the engine runs it. Raises like `estimate`."""
    return prepare(model).native_model.get(lambda: _read(model.header))


def matrix_bytes(model: Model) -> int:
    """All weights that may be kept in memory, or read from the file as they are needed. Raises like `estimate`."""
    return sum(tensor.size_bytes for tensor in matrices(stream_model(model)))


def _read(header: ModelHeader) -> NativeModel:
    _check_file(header)
    tensors = {tensor.name: tensor for tensor in header.tensors or ()}
    facts = _Facts(name=header.name, keys=header.keys, tensors=tensors)
    try:
        return read_model(facts, ModelUse.GENERATE)
    except (HeaderLimitError, UnknownDtypeError):
        raise
    except HeaderError as error:  # another engine may run the file
        raise RefusedError(str(error)) from error


def _check_file(header: ModelHeader) -> None:
    if header.container is not Container.GGUF:
        raise RefusedError(
            f"{header.name}: the built-in engine only reads GGUF files, and this is "
            f"{header.container.value}: convert it, or use another engine"
        )
    if header.big_endian:
        raise RefusedError(
            f"{header.name} is big-endian, which the built-in engine does not read; convert it with"
            " gguf-py's gguf_convert_endian.py"
        )
    if header.keys.get("split.count") not in (None, 0, 1):
        raise RefusedError(
            f"{header.name} is one of {header.keys['split.count']} shards, and the "
            "built-in engine reads a single file; merge them: llama-gguf-split --merge "
            "FIRST-SHARD.gguf WHOLE.gguf"
        )
    if header.tensors is None:
        raise HeaderError(
            "the built-in engine's memory is computed from the list of tensors, which "
            "was not read: read the whole header",
            file=header.name,
        )


def _facts(plan: StreamPlan) -> tuple[tuple[str, object], ...]:
    size, cells = plan.model.dimensions, plan.cells
    sizes = {tensor.name: tensor.size_bytes for tensor in matrices(plan.model)}
    kept = sum(sizes[name] for name in plan.kept)
    pages = plan.resident_pages
    return (
        ("window", plan.context_tokens),
        ("chunk_tokens", plan.chunk_tokens),
        ("threads", plan.threads),
        ("cache_k", plan.cache_k.name),
        ("cache_v", plan.cache_v.name),
        ("cells", max(cells)),
        ("sliding_cells", min(cells) if min(cells) < max(cells) else 0),
        ("sinks", plan.sinks),
        ("rolling", plan.rolling),
        ("kept_bytes", kept),
        ("streamed_bytes", sum(sizes.values()) - kept),
        ("resident_tokens", plan.context_tokens if pages is None else pages * PAGE_TOKENS),
        ("vocabulary", size.vocabulary),
    )
