"""The bill of a llama.cpp on this machine: its own dry run, which allocates nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from edgekit.bill.types import CACHES, Component, Load, MemoryEstimate, MemoryLine
from edgekit.engines.llamacpp.estimate import (
    CUDA_CONTEXT_BYTES,
    FIRST_DECODE_OTHER_MIB,
    OTHER_CONTEXT_BYTES,
    converted,
)
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.run.binding import (
    COMPARED,
    METHODS,
    LoadQuestion,
    VerifyMethod,
    choose_method,
    method_of,
)
from edgekit.engines.llamacpp.run.generated import generated_files, hollow_out, on_disk
from edgekit.engines.llamacpp.run.verification import (
    CHILD_BYTES,
    DRY_TIMEOUT_S,
    ask_engine,
    dry_memory,
)
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup, LoadFacts
from edgekit.engines.program import (
    NOTHING,
    EngineReport,
    Installation,
    MeasuredBytes,
    ReportedMemory,
)
from edgekit.errors import EngineError, UsageError
from edgekit.machine.types import HOST, Pool, PoolKind
from edgekit.model.types import Model
from edgekit.sources.types import ModelFiles
from edgekit.units import MIB, Basis, format_bytes

NAME = "llama.cpp"
_NUMBER = re.compile(r"[0-9]{1,12}")
_SWITCHES = {
    "false": False,
    "true": True,
    "disabled": False,
    "enabled": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolved:
    """What llama.cpp logs of the load that it resolved, by its own names."""

    n_ctx: int = 0
    n_ctx_seq: int = 0
    n_seq_max: int = 0
    n_batch: int = 0
    n_ubatch: int = 0
    kv_unified: bool = False
    flash_attn: bool = False


def ask(
    model: Model,
    files: ModelFiles | None,
    load: Load,
    setup: LlamaCppSetup,
    own: MemoryEstimate | None,
    *,
    program: Installation | None = None,
) -> MemoryEstimate:
    """The bill that llama.cpp computes for this load. No weights are read or converted: it gets the header of the file,
    or the one that the conversion would write. The same question is asked once for a model.
    """

    def report() -> tuple[VerifyMethod, EngineReport]:
        conversion = None if own is None else converted(model, setup.mix)
        asked_files = files
        if conversion is not None or asked_files is None:
            header = (model if conversion is None else conversion.model).header
            asked_files = generated_files(header, label=header.name)
        memory_bytes = None if setup.has_device else CHILD_BYTES
        if own is not None:
            memory_bytes = dry_memory(own, setup)
        with on_disk(hollow_out(asked_files)) as path:
            question = LoadQuestion(
                path=path,
                load=load,
                setup=replace(setup, mix=None, use_mmap=False),
                timeout_s=DRY_TIMEOUT_S,
                memory_bytes=memory_bytes,
            )
            return _first_answer(question, program)

    key = (load, setup, own is None, "" if program is None else program.path)
    method, answer = prepare(model).reports.get(key, report)
    bill = _estimate(model, answer, own, load=load, setup=setup, method=method)
    chosen = method_of(program)
    if program is None or (chosen is not None and chosen.name == method.name):
        return bill
    note = f"reported by {method.name} {answer.version}, because {program.program} cannot report it"
    return replace(bill, notes=(*bill.notes, note))


def _first_answer(
    question: LoadQuestion, program: Installation | None
) -> tuple[VerifyMethod, EngineReport]:
    """The answer of the chosen program's build. If it cannot be asked, of the first program that has an answer; those
    that run llama.cpp in the requested mode come first.
    """
    mode, own = LlamaCppSetup.of(question.setup).mode, method_of(program)
    methods = sorted(
        (method for method in METHODS if method.is_here()),
        key=lambda method: method.mode is not mode,
    )
    if own is not None:
        methods = [own, *(method for method in methods if method.name != own.name)]
    if not methods:
        choose_method()  # raises with what to install
    errors: list[UsageError | EngineError] = []
    for method in methods:
        try:
            adapted = replace(question, setup=replace(question.setup, mode=method.mode))
            return method, ask_engine(method, adapted)
        except (EngineError, UsageError) as error:  # another may have the GPU, or the flag
            if method is own and isinstance(error, EngineError):
                raise
            errors.append(error)
    raise errors[0]


def _estimate(
    model: Model,
    report: EngineReport,
    own: MemoryEstimate | None,
    *,
    load: Load,
    setup: LlamaCppSetup,
    method: VerifyMethod,
) -> MemoryEstimate:
    """The report as a bill. Lines that llama.cpp does not report are those of our own bill."""
    kept = () if own is None else own.lines
    lines = (
        *(part for line in asked_lines(report) for part in _by_layer(line, kept, model)),
        *(_driver_lines(report, setup) if own is None else ()),
        *(
            line
            for line in kept
            if line.part or line.component not in COMPARED or not line.reserved
        ),
    )
    notes = [*(() if own is None else own.notes)]
    if own is None:
        notes.append("reported by the engine, because EdgeKit does not know this architecture")
    else:
        difference = sum(line.size_bytes for line in lines if line.reserved) - own.total_bytes
        words = (
            "the same"
            if not difference
            else f"{format_bytes(abs(difference))} {'less' if difference > 0 else 'more'}"
        )
        notes.append(f"EdgeKit's own estimate is {format_bytes(own.total_bytes)}, {words}")
    if method.mode is not setup.mode:
        notes.append(f"reported by {method.name}, which runs llama.cpp as a {method.mode.value}")
    return MemoryEstimate(
        engine=NAME,
        backend=setup.backend.value,
        lines=lines,
        facts=_facts(report.resolved, own, load),
        notes=tuple(notes),
    )


def asked_lines(report: EngineReport) -> Iterator[MemoryLine]:
    """A line for each part and memory. The totals are precise to 0.01 MiB, their shares of the memories to 1 MiB.

    Of a memory's caches only the sum is reported. If there are several kinds (KV, sliding, states), it is divided like
    their totals, and the bound is how far the truth can be from that.
    """
    because = f"{report.through} {report.version} reports it"
    parts, memories = report.parts, report.memories
    in_caches = _shares(memories, [memory.caches for memory in memories])
    caches_of = {_pool(memory): memory.caches for memory in memories}
    shares = {
        **dict.fromkeys(CACHES, in_caches),
        Component.WEIGHTS: _shares(memories, [memory.weights for memory in memories]),
        Component.COMPUTE: _shares(memories, [memory.compute for memory in memories]),
        Component.OUTPUT: {HOST: 1.0},  # always in RAM
    }
    for component in COMPARED:
        total = parts.get(component, NOTHING)
        other_kinds = sum(
            (parts.get(kind, NOTHING) for kind in CACHES if kind is not component), NOTHING
        )
        for pool, share in shares[component].items():
            size_bytes = round(total.middle_bytes * share)
            if size_bytes and total.low_bytes:
                off_bytes = total.resolution_bytes
                if share < 1:  # of a part that was rounded down to a MiB in each memory
                    off_bytes += MIB
                if share < 1 and component in CACHES:
                    least = max(caches_of[pool].low_bytes - other_kinds.high_bytes, 0)
                    most = min(caches_of[pool].high_bytes, total.high_bytes)
                    off_bytes = max(off_bytes, size_bytes - least, most - size_bytes)
                yield MemoryLine(
                    component=component,
                    size_bytes=size_bytes,
                    pool=pool,
                    basis=Basis.ASKED,
                    because=because,
                    within=off_bytes / size_bytes,
                )


def _by_layer(line: MemoryLine, own: Sequence[MemoryLine], model: Model) -> Iterator[MemoryLine]:
    """A line of weights divided among the layers, because speed depends on their number: like those of our own bill,
    or evenly.
    """
    layers: list[tuple[int | None, int]] = []
    if line.component is Component.WEIGHTS:
        layers = [
            (ours.layer, ours.size_bytes)
            for ours in own
            if (ours.component, ours.pool, ours.part) == (line.component, line.pool, "")
        ]
        layers = layers or [(number, 1) for number in range(len(model.geometry.layers))]
    total, left_bytes = sum(size for _, size in layers), line.size_bytes
    for layer, share in layers:
        size_bytes = line.size_bytes * share // total
        left_bytes -= size_bytes
        yield replace(line, size_bytes=size_bytes, layer=layer)
    if left_bytes:
        yield replace(line, size_bytes=left_bytes)


def _driver_lines(report: EngineReport, setup: LlamaCppSetup) -> Iterator[MemoryLine]:
    """What the driver takes on each GPU, which llama.cpp does not report: as for models that our rules know."""
    cuda = CUDA_CONTEXT_BYTES + FIRST_DECODE_OTHER_MIB * MIB
    for memory in report.memories:
        if memory.device is not None:
            yield MemoryLine(
                component=Component.RUNTIME,
                size_bytes=cuda if setup.backend is Backend.CUDA else OTHER_CONTEXT_BYTES,
                pool=_pool(memory),
                basis=Basis.MODELLED,
                because="the driver's context and what the first decode loads, as for other architectures",
                within=1.0,
            )


def _shares(
    memories: Iterable[ReportedMemory], sizes: Iterable[MeasuredBytes]
) -> Mapping[Pool, float]:
    """How a part is divided among the memories. A part of less than a MiB is with most of the weights."""
    pairs = list(zip(memories, sizes, strict=True))
    known = {_pool(memory): size.middle_bytes for memory, size in pairs if size.low_bytes}
    if not known:
        largest = max((memory for memory, _ in pairs), key=lambda item: item.weights.middle_bytes)
        return {_pool(largest): 1.0}
    total = sum(known.values())
    return {pool: size / total for pool, size in known.items()}


def _pool(memory: ReportedMemory) -> Pool:
    return HOST if memory.device is None else Pool(PoolKind.DEVICE, memory.device)


def _facts(
    resolved: Mapping[str, str], own: MemoryEstimate | None, load: Load
) -> tuple[tuple[str, object], ...]:
    """What llama.cpp resolved, in the names of our own facts."""
    read: dict[str, Any] = {
        name: int(value) if _NUMBER.fullmatch(value) else _SWITCHES.get(value)
        for name, value in resolved.items()
    }
    if own is not None:
        return tuple(
            (name, value if read.get(name) is None else read[name]) for name, value in own.facts
        )
    known = (field.name for field in fields(_Resolved))
    load_facts = _Resolved(**{name: read[name] for name in known if read.get(name) is not None})
    sequences = load_facts.n_seq_max or load.sequences or 1
    tokens = load_facts.n_ctx or load.context_tokens or 0
    streams = 1 if load_facts.kv_unified else sequences
    return tuple(
        asdict(
            LoadFacts(
                n_ctx=tokens,
                n_ctx_seq=load_facts.n_ctx_seq or tokens // streams,
                n_seq_max=sequences,
                n_batch=load_facts.n_batch,
                n_ubatch=load_facts.n_ubatch,
                n_outputs_max=sequences,
                flash_attn=load_facts.flash_attn,
                kv_cells=tokens // streams,
                kv_swa_cells=0,
                kv_streams=streams,
            )
        ).items()
    )
