"""The rules of the built-in engine: its bill, its memory budget on a machine, and its commands.

The engine allocates little more than its KV cache, because it reads weights tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgekit import __version__
from edgekit.bill.spill import PAGE_TOKENS
from edgekit.bill.types import CacheChoice, Load, MemoryEstimate, Placement, Task, Verdict
from edgekit.engines.choices import (
    F16_PAIR,
    Q8_PAIR,
    known_ram,
    pair_cache_name,
    pair_choices,
    ram_budget,
)
from edgekit.engines.commands import own_word
from edgekit.engines.flags import flag_words
from edgekit.engines.native.buffers import matrices, usual_threads
from edgekit.engines.native.families import ModelUse
from edgekit.engines.native.file import FileHeader
from edgekit.engines.native.flags import FLAGS, KEPT
from edgekit.engines.native.model import NativeModel, read_model
from edgekit.engines.native.stream_plan import StreamSetup, plan_stream
from edgekit.engines.native.tokenizer.kinds import vocabulary_bytes
from edgekit.engines.protocol import Offload
from edgekit.engines.speed import speed_bound
from edgekit.errors import (
    HeaderError,
    HeaderLimitError,
    RefusedError,
    UnknownDtypeError,
    UsageError,
)
from edgekit.formats.types import ModelHeader
from edgekit.machine.types import Budget, Machine
from edgekit.model.types import Cached, Model
from edgekit.sources.types import Container
from edgekit.units import KIB, MIB, format_bytes

if TYPE_CHECKING:
    from edgekit.model import OpenModel

NAME = "stream"
VERSION = __version__

# --- the bill


class NativePrepared:
    """What is computed once for each model."""

    def __init__(self) -> None:
        self.native_model: Cached[NativeModel] = Cached()


def prepare(model: Model) -> NativePrepared:
    return model.prepared(NativePrepared)


def estimate(model: Model, load: Load, setup: StreamSetup) -> MemoryEstimate:
    """The bill, EXACT on every line.

    Raises RefusedError for a file that the engine cannot run, UnknownArchitectureError for an unknown family,
    UnknownDtypeError for weights that it cannot unpack.
    """
    plan = plan_stream(stream_model(model), load, setup)
    cells = plan.cells
    sizes = {tensor.name: tensor.size_bytes for tensor in matrices(plan.model)}
    kept_bytes = sum(sizes[name] for name in plan.kept)
    pages = plan.resident_pages
    facts = (
        ("window", plan.context_tokens),
        ("chunk_tokens", plan.chunk_tokens),
        ("threads", plan.threads),
        ("cache_k", plan.cache_k.name),
        ("cache_v", plan.cache_v.name),
        ("cells", max(cells)),
        ("sliding_cells", min(cells) if min(cells) < max(cells) else 0),
        ("sinks", plan.sinks),
        ("rolling", plan.rolling),
        ("kept_bytes", kept_bytes),
        ("streamed_bytes", sum(sizes.values()) - kept_bytes),
        ("resident_tokens", plan.context_tokens if pages is None else pages * PAGE_TOKENS),
        ("vocabulary", plan.model.dimensions.vocabulary),
    )
    return MemoryEstimate(engine=NAME, backend="cpu", lines=plan.lines, facts=facts)


def stream_model(model: Model) -> NativeModel:
    """The model as the engine runs it. Raises the errors of `estimate`."""
    return prepare(model).native_model.get(lambda: _read_native_model(model.header))


def matrix_bytes(model: Model) -> int:
    """The size of all matrices, which are kept in memory or read from the file. Raises the errors of `estimate`."""
    return sum(tensor.size_bytes for tensor in matrices(stream_model(model)))


def _read_native_model(header: ModelHeader) -> NativeModel:
    """The model as the engine runs it. RefusedError for a file that only another engine may run."""
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
    try:
        return read_model(FileHeader.of(header), ModelUse.GENERATE)
    except (HeaderLimitError, UnknownDtypeError):
        raise
    except HeaderError as error:
        raise RefusedError(str(error)) from error


# --- setups


def default_setup() -> StreamSetup:
    return StreamSetup()


def read_quant(name: str) -> str | None:
    raise UsageError(
        f"--quant {name[:40]}: the built-in engine runs a GGUF file as it is; name a file or a repository "
        "with that quantisation"
    )


def placement(setup: StreamSetup) -> dict[str, Any]:
    """The flags chosen for the machine: how many weights stay in memory, and the number of threads."""
    flags = {"keep": KEPT.value_of(setup.keep_bytes), "threads": setup.threads}
    return {key: value for key, value in flags.items() if value is not None}


def describe(_load: Load, estimate: MemoryEstimate) -> str:
    """The request in words, as the engine resolved it."""
    facts: dict[str, Any] = dict(estimate.facts)
    kinds = dict.fromkeys((facts["cache_k"], facts["cache_v"]))
    rolling = ""
    if facts["rolling"]:
        sinks = f", the first {facts['sinks']} stay" if facts["sinks"] else ""
        rolling = f" that roll{sinks}"
    weights = "all weights in memory"
    if facts["streamed_bytes"]:
        weights = (
            f"{format_bytes(facts['streamed_bytes'])} of weights read from the file for every token"
        )
        if facts["kept_bytes"]:
            weights = f"{format_bytes(facts['kept_bytes'])} of weights in memory, {weights}"
    return (
        f"{facts['window']:,} tokens of context{rolling}, cache {' and '.join(kinds)},"
        f" {facts['chunk_tokens']} tokens at once, {facts['threads']} threads; {weights}"
    )


# --- the machine

# Not in the bill: Python, numpy, tokenizers and the command itself (51 MiB measured on Linux), and the stack and small
# arrays of each thread (encoder_plan.py measures them).
PROCESS_BYTES = 64 * MIB
THREAD_BYTES = 256 * KIB


def budgets(machine: Machine, *, vocabulary_bytes: int = 0, threads: int = 1) -> tuple[Budget, ...]:
    """The engine's only budget, RAM. The bill is exact, so the reserve only covers the process itself."""
    reserve = PROCESS_BYTES + threads * THREAD_BYTES + vocabulary_bytes
    because = "for Python, its libraries and the vocabulary"
    if not vocabulary_bytes:
        because = "for Python and its libraries (plus the vocabulary)"
    return (ram_budget(known_ram(machine), (), reserve, because),)


def check_limits(reserve_bytes: int | None, _max_use: float | None) -> None:
    """Raises UsageError for a reserve, which this engine does not support."""
    if reserve_bytes is not None:
        raise UsageError(
            "--reserve does not apply to the built-in engine, whose estimate covers the whole process"
        )


def placements(task: Task) -> Iterator[Placement]:
    """All weights in memory; else none, and then `fill` adds those that fit. A given --keep is the only placement."""
    machine, start = task.machine, task.start
    setup = StreamSetup.of(start.setup or StreamSetup())
    threads = setup.threads or usual_threads(machine.cores if machine.what_if else None)
    tokens = stream_model(task.model).dimensions.vocabulary
    vocabulary = vocabulary_bytes(task.model.header, tokens)
    ram = budgets(machine, vocabulary_bytes=vocabulary, threads=threads)
    is_given = "keep" in start.fixed_flags
    for keep_bytes in (setup.keep_bytes,) if is_given else (None, 0):
        yield Placement(
            setup=replace(setup, threads=threads, keep_bytes=keep_bytes),
            budgets=ram,
            because=_place(task.model, keep_bytes),
            whole=keep_bytes is None,
            may_fill=not is_given and keep_bytes is not None,
        )


def fill(model: Model, placement: Placement, spare_bytes: int) -> Placement:
    """The placement with as many weights in memory as fit into the spare bytes, in whole MiB."""
    keep_bytes = spare_bytes // MIB * MIB
    setup = replace(StreamSetup.of(placement.setup), keep_bytes=keep_bytes)
    return replace(placement, setup=setup, because=_place(model, keep_bytes), may_fill=False)


def _place(model: Model, keep_bytes: int | None) -> str:
    """Where the weights are, in words."""
    if keep_bytes is None or keep_bytes >= matrix_bytes(model):
        return "all weights in memory"
    if not keep_bytes:
        return "weights read from the file for every token"
    return f"up to {format_bytes(keep_bytes)} of weights in memory, the rest read for every token"


# --- cache types and speed


def cache_choices(task: Task, _placement: Placement | None = None) -> Iterator[CacheChoice]:
    """The cache types to try, the most accurate first."""
    return pair_choices(task.load, (F16_PAIR, Q8_PAIR))


def cache_name(load: Load, _setup: StreamSetup) -> str:
    """One of the names in `cache_choices`."""
    return pair_cache_name(load)


def fastest_tokens_per_s(read_bytes: float, held_bytes: int, machine: Machine) -> float | None:
    """An upper bound for the speed, which assumes that no weight is read from a disk."""
    return speed_bound(read_bytes, held_bytes, machine, NAME)


# --- commands

DEFAULT_CACHE = "f16"  # needs no flag


def settle(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that start the engine as the verdict assumes: the user's, and those that the verdict adds."""
    types = {"type_k": verdict.load.cache_k, "type_v": verdict.load.cache_v}
    return {
        **given,
        "context": verdict.context_tokens,
        **{key: kind.name for key, kind in types.items() if kind and kind.name != DEFAULT_CACHE},
        **placement(StreamSetup.of(verdict.way.setup)),
    }


def estimate_command(
    values: Mapping[str, Any], _setup: StreamSetup, estimate: MemoryEstimate, opened: OpenModel
) -> tuple[list[str], list[str]]:
    """The command that runs the model as it was estimated."""
    context = values.get("context") or dict(estimate.facts)["window"]
    keep = values.get("keep")
    if isinstance(keep, int):
        values = {**values, "keep": f"{keep // MIB}M" if keep % MIB == 0 else keep}
    model = own_word(opened.files, opened.label, opened.mix)
    words = ["edgekit", "run", model, "--engine", "stream", "-c", str(context)]
    return [*words, *flag_words(FLAGS, values)], []


def offload(verdict: Verdict) -> Offload:
    """Says how much of the weights is read from the file."""
    name = "on the built-in engine"
    return Offload(place=name if verdict.way.whole else f"{name} ({verdict.way.because})")
