"""`verify_model`: compares the prediction for a model with the engine's own figures."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgekit.bill.types import CACHES, Component, Load, MemoryEstimate
from edgekit.engines.discovery import signal_name
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.run.binding import (
    COMPARED,
    NO_DEVICES,
    PASSIVE,
    LoadQuestion,
    Pacing,
    VerifyMethod,
    child_environment,
    start_child,
)
from edgekit.engines.llamacpp.run.engine_log import EngineLog
from edgekit.engines.llamacpp.run.generated import files_of, hollow_out, on_disk
from edgekit.engines.llamacpp.types import (
    NEWEST,
    LlamaCppSetup,
    LlamaVersion,
    answered_version,
    installed_version,
)
from edgekit.engines.process import (
    ON_WINDOWS,
    ChildProcess,
    Message,
    read_status,
    resident_at,
)
from edgekit.engines.program import (
    NOTHING,
    ComparedRow,
    EngineReport,
    MeasuredBytes,
    ReportedSpeed,
    Resident,
    Verification,
)
from edgekit.errors import EngineError, PredictionError, RefusedError, UsageError
from edgekit.formats import read_header
from edgekit.machine.types import PoolKind
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.sources.local import LocalFile
from edgekit.sources.types import ModelFiles
from edgekit.units import GIB, KIB, MIB, format_bytes

COMPUTE_ALLOWED = 0.10  # the graph of another version may have an input more or less
COMPUTE_FLOOR_BYTES = 4 * MIB  # in a small graph, one or two more hidden states exceed 10 %
DRY_TIMEOUT_S = 60.0  # 5 s with the largest vocabulary, on a slow machine
LOAD_TIMEOUT_S = 600.0
CHILD_BYTES = 4 * GIB  # address space of Python, the library and a header with its vocabulary
DRY_TRIES = 3  # builds of June and July 2026 crash at exit in 1 of 200 dry runs, before their log is written
_PATIENCE_S = 0.5  # wait after the breakdown: llama-fit-params logs nothing after it
_POLL_S = 0.02
_OUTPUT_S = 10.0  # to read the rest of the log, unless a process that the tool has left behind keeps it open
_WEIGHTS_LOADED = "llama_context: constructing llama_context"


def verify_model(
    files: ModelFiles,
    load: Load,
    setup: LlamaCppSetup,
    *,
    method: VerifyMethod,
    timeout_s: float | None = None,
    really: bool = False,
    pacing: Pacing | None = None,
) -> Verification:
    """Compares the bill with the engine's. Raises EngineError with the engine's last log lines if it reports none.

    `setup` is adapted to what `method` supports: its mode, and weights that are not mapped.
    `really` loads the weights too, from a local file, and decodes a few tokens; `pacing` then measures its speed.
    """
    path = _local_path(files) if really else None
    hollow = hollow_out(files)
    header = read_header(files_of(files, hollow))
    model = Model(header=header, geometry=read_geometry(header))
    likely = installed_version() or LlamaVersion(NEWEST)  # until the engine reports its version
    adapted_setup = replace(setup, mode=method.mode, use_mmap=False, **likely._asdict())
    refused: RefusedError | None = None
    memory_bytes = None if setup.has_device else CHILD_BYTES
    try:
        estimate = llamacpp.estimate(model, load, adapted_setup)
        memory_bytes = dry_memory(estimate, setup)
    except RefusedError as error:
        refused = error
    try:
        with on_disk(hollow) as hollow_path:
            question = LoadQuestion(
                path=hollow_path,
                load=load,
                setup=adapted_setup,
                timeout_s=timeout_s or DRY_TIMEOUT_S,
                memory_bytes=memory_bytes,
            )
            answer = ask_engine(method, question)
    except EngineError:
        if refused is not None:  # the engine refuses it too
            raise refused from None
        raise
    reported_setup = replace(adapted_setup, **answered_version(answer.version)._asdict())
    if refused is not None or reported_setup != adapted_setup:
        try:
            estimate = llamacpp.estimate(model, load, reported_setup)
        except RefusedError as error:
            raise PredictionError(
                f"{error}; but {answer.version} loads it, so EdgeKit's prediction is "
                "wrong: please report this"
            ) from error
    resident: tuple[Resident, ...] = ()
    reported_speed: ReportedSpeed | None = None
    if path is not None:
        _require_memory(estimate)
        question = LoadQuestion(
            path=path,
            load=load,
            setup=setup,
            really=True,
            pacing=pacing,
            timeout_s=timeout_s or LOAD_TIMEOUT_S,
        )
        resident, reported_speed = load_for_real(method, question)
    rows = compare(estimate, answer.parts)
    tokens = header.arrays.get("tokenizer.ggml.tokens")
    return Verification(
        label=files.label,
        estimate=estimate,
        rules_version=reported_setup.version_name,
        mode=reported_setup.mode.value,
        backend=reported_setup.backend.value,
        on_devices=reported_setup.has_device,
        answer=answer,
        rows=rows,
        total=ComparedRow(
            part="total",
            predicted_bytes=sum(row.predicted_bytes for row in rows),
            measured=sum((row.measured for row in rows), NOTHING),
            allowed_bytes=sum(row.allowed_bytes for row in rows),
        ),
        vocabulary=0 if tokens is None else tokens.count,
        resident=resident,
        beside_bytes=beside_bytes(resident, estimate, setup),
        reported_speed=reported_speed,
        notes=(*files.notes, *_notes(estimate, answer)),
    )


def compare(
    estimate: MemoryEstimate, parts: Mapping[Component, MeasuredBytes]
) -> tuple[ComparedRow, ...]:
    """Caches, weights and output must agree to the log's precision, compute to 10 % or 4 MiB."""
    rows: list[ComparedRow] = []
    for component in COMPARED:
        measured = parts.get(component, NOTHING)
        allowed = 0
        if component is Component.COMPUTE:
            allowed = max(int(measured.middle_bytes * COMPUTE_ALLOWED), COMPUTE_FLOOR_BYTES)
        rows.append(
            ComparedRow(
                part=component.value,
                predicted_bytes=estimate.of(component),
                measured=measured,
                allowed_bytes=allowed,
            )
        )
    return tuple(rows)


def _notes(estimate: MemoryEstimate, answer: EngineReport) -> list[str]:
    """Notes on options that the engine resolved differently: then every figure may differ."""
    facts = {name: str(value) for name, value in estimate.facts}
    return [
        f"the engine uses {name} = {answer.resolved[name]}, the prediction {facts[name]}"
        for name in ("n_ctx", "n_ctx_seq", "n_seq_max", "n_batch", "n_ubatch")
        if name in facts and answer.resolved.get(name, facts[name]) != facts[name]
    ]


def dry_memory(estimate: MemoryEstimate, setup: LlamaCppSetup) -> int | None:
    """Limit on the address space of a dry run, which still allocates states and output.

    None with a GPU: its driver reserves any amount of address space.
    """
    if setup.has_device:
        return None
    allocated = estimate.of(Component.STATE, Component.OUTPUT)
    available = available_bytes()
    if available is not None and allocated > available:
        raise UsageError(
            "llama.cpp allocates states and output even in a dry run: "
            f"{format_bytes(allocated)}, but only {format_bytes(available)} is available; use "
            "fewer sequences (-np)"
        )
    return CHILD_BYTES + 2 * allocated


def beside_bytes(
    resident: Sequence[Resident], estimate: MemoryEstimate, setup: LlamaCppSetup
) -> int | None:
    """Host memory of the process beyond its bill: libraries, the vocabulary, threads, scratch.

    None if unknown, or if weights were repacked, which is only modelled. Caches and states are
    written in full when they are created, so their full size is subtracted. Compute buffers fill up as prompts get
    longer: they are not subtracted after the first prompt, which is short, and are subtracted after later ones. The
    largest of these results is never below the true overhead, and at most a few megabytes above it.
    """
    if setup.repack:
        return None
    components = set(CACHES) if setup.use_mmap else {*CACHES, Component.WEIGHTS}
    overheads: list[int] = []
    for measured in resident:
        if measured.model_bytes is None:  # before anything was decoded
            continue
        process_bytes = measured.resident_bytes + measured.swapped_bytes - measured.model_bytes
        billed = sum(
            line.size_bytes
            for line in estimate.lines
            if line.component in components and line.pool.kind is PoolKind.HOST and line.reserved
        )
        overheads.append(max(0, process_bytes - billed))
        components |= {Component.COMPUTE, Component.OUTPUT}
    return max(overheads, default=None)


def _local_path(files: ModelFiles) -> Path:
    """The model's first file. UsageError if it is not on this machine."""
    source = files.weights[0].open() if files.weights and not files.origin.is_remote else None
    if not isinstance(source, LocalFile):
        raise UsageError(f"{files.label} is not a file on this machine, so it cannot be loaded")
    source.close()
    return Path(source.name)


def _require_memory(estimate: MemoryEstimate) -> None:
    """Raises UsageError if the model needs more memory than is available."""
    available, needed = available_bytes(), estimate.total_bytes
    if available is not None and needed > available:
        raise UsageError(
            f"not loaded: it would need {format_bytes(needed)}, but only "
            f"{format_bytes(available)} is available"
        )


def available_bytes() -> int | None:
    """Memory available without swapping; None if unknown."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * KIB
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


@dataclass(slots=True)
class _ChildReport:
    """What one child process has reported so far."""

    log: EngineLog = field(default_factory=EngineLog)
    version: str | None = None
    resident: list[Resident] = field(default_factory=list)
    speed_runs: list[Mapping[str, float]] = field(default_factory=list)
    timed_out: bool = False
    is_complete: bool = False  # a dry run has logged all its figures
    exit_code: int | None = None


def ask_engine(method: VerifyMethod, question: LoadQuestion) -> EngineReport:
    """The engine's report of what it would allocate. EngineError with its last log lines if it reports nothing."""
    started_s = time.monotonic()
    child = _run(method, question)
    devices = tuple(child.log.devices)
    if question.setup.has_device and not devices:
        raise EngineError(
            f"the llama.cpp in {method.name} finds no GPU on this machine, so it can report memory only "
            "for --backend cpu"
        )
    version = method.version()
    return EngineReport(
        through=method.name,
        version=version if child.version is None else f"{version} (llama.cpp {child.version})",
        parts=child.log.parts(),
        memories=child.log.memories(),
        resolved=dict(child.log.resolved),
        devices=devices,
        seconds=time.monotonic() - started_s,
    )


def load_for_real(
    method: VerifyMethod, question: LoadQuestion
) -> tuple[tuple[Resident, ...], ReportedSpeed | None]:
    """Loads the model and decodes a few tokens.

    Returns the memory of the process at each step (started, weights loaded, context created, tokens decoded) and its
    speed, if that was requested.
    """
    child = _run(method, question)
    runs = child.speed_runs
    if not runs:
        return tuple(child.resident), None
    # The best of several identical runs: other load only makes them slower.
    return tuple(child.resident), ReportedSpeed(
        prompt_tokens=int(runs[0]["prompt_n"]),
        new_tokens=int(runs[0]["predicted_n"]),
        prefill_tokens_per_s=max(timings["prompt_per_second"] for timings in runs),
        decode_tokens_per_s=max(timings["predicted_per_second"] for timings in runs),
    )


def _run(method: VerifyMethod, question: LoadQuestion) -> _ChildReport:
    """Runs the child, repeatedly if a dry run crashes at exit. EngineError if it fails or times out."""
    request = method.request(question)
    for _ in range(1 if question.really else DRY_TRIES):
        child = _run_once(request, question)
        if child.is_complete or child.exit_code != -signal.SIGSEGV:
            break
    if child.is_complete or (child.exit_code == 0 and not child.timed_out):
        return child
    if child.timed_out:
        problem = f"llama.cpp did not answer within {question.timeout_s:g} s (--engine-timeout)"
    else:
        code, limit_bytes = child.exit_code or 0, question.memory_bytes
        exit_text = f"died of {signal_name(-code)}" if code < 0 else f"exited (code {code})"
        limit_text = ""
        if limit_bytes:
            limit_text = f" (its limit was {format_bytes(limit_bytes)} of address space)"
        problem = f"llama.cpp {exit_text}{limit_text}"
    raise EngineError(f"{problem}: {child.log.last_words()}")


def _run_once(request: Mapping[str, Any], question: LoadQuestion) -> _ChildReport:
    """Runs the child once. A dry run is stopped as soon as its log is complete: its next step would use memory that it
    has not allocated.
    """
    child, is_dry = _ChildReport(), not question.really
    log_complete = threading.Event()
    resident_lock = threading.Lock()  # two threads record memory

    def read_line(line: str) -> None:
        child.log.add(line)
        if not is_dry and _WEIGHTS_LOADED in line and len(child.resident) == 1:
            memory = resident_at("weights loaded", read_status(process.pid))
            with resident_lock:
                # Only if nothing else was recorded meanwhile: on a busy machine the log comes late.
                if memory is not None and len(child.resident) == 1:
                    child.resident.append(memory)
        elif child.log.complete and is_dry:
            log_complete.set()

    def read_message(message: Message) -> None:
        child.version = message.get("version", child.version)
        if "speed_run" in message:
            child.speed_runs.append(message["speed_run"])
        elif (memory := resident_at(message["when"], message["memory"])) is not None:
            with resident_lock:
                child.resident.append(memory)

    deadline = time.monotonic() + question.timeout_s
    environment = PASSIVE | ({} if question.setup.has_device else NO_DEVICES)
    if ON_WINDOWS and "command" in request:  # a process there cannot become another program
        process = ChildProcess(
            request["command"],
            environment=child_environment(environment),
            on_line=read_line,
            has_messages=False,
        )
    else:
        process = start_child(
            "verify",
            {**request, "timeout_s": question.timeout_s, "memory_bytes": question.memory_bytes},
            environment=environment,
            on_line=read_line,
            on_message=read_message,
        )
    answered_s: float | None = None
    try:
        while process.exit_code is None and not log_complete.wait(_POLL_S):
            now = time.monotonic()
            if is_dry and child.log.answered:
                answered_s = answered_s or now
                if now > answered_s + _PATIENCE_S:
                    break
            if now > deadline:
                child.timed_out = True
                break
    finally:
        child.exit_code = process.close(_OUTPUT_S)
    child.is_complete = is_dry and child.log.answered
    return child
