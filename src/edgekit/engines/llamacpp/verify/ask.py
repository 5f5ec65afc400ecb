"""A question -> the engine's answer, or its last words."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgekit.engines.llamacpp.child import read_status
from edgekit.engines.llamacpp.child_process import NO_DEVICES, PASSIVE, resident_at, start_child
from edgekit.engines.llamacpp.verify.engine_log import EngineLog
from edgekit.engines.llamacpp.verify.types import ChildLimits, LoadQuestion
from edgekit.engines.llamacpp.verify.ways import VerifyMethod
from edgekit.engines.process import Message, signal_name
from edgekit.engines.program import EngineReport, Paced, Resident
from edgekit.errors import EngineError
from edgekit.units import format_bytes

# Builds of June and July 2026 crash in one of 200 dry runs while they exit, before their log is written.
DRY_TRIES = 3
_PATIENCE_S = 0.5  # llama-fit-params says nothing after its breakdown
_POLL_S = 0.02
_WEIGHTS_LOADED = "llama_context: constructing llama_context"


@dataclass(slots=True)
class _ChildReport:
    """What one child process has reported so far."""

    log: EngineLog = field(default_factory=EngineLog)
    version: str | None = None
    resident: list[Resident] = field(default_factory=list)
    paced: list[Mapping[str, float]] = field(default_factory=list)
    timed_out: bool = False
    enough: bool = False  # its log has the whole answer
    exit_code: int | None = None


def ask_engine(way: VerifyMethod, question: LoadQuestion, limits: ChildLimits) -> EngineReport:
    """What the engine would make room for. EngineError with its last words when it does not say."""
    begun = time.monotonic()
    child = _run(way, question, limits)
    devices = tuple(child.log.devices)
    if question.setup.has_device and not devices:
        raise EngineError(
            f"the llama.cpp in {way.name} finds no GPU on this machine, so only --backend "
            "cpu can be verified"
        )
    return EngineReport(
        through=way.name,
        version=_version(way, child),
        parts=child.log.parts(),
        resolved=dict(child.log.resolved),
        devices=devices,
        seconds=time.monotonic() - begun,
    )


def load_for_real(
    way: VerifyMethod, question: LoadQuestion, limits: ChildLimits
) -> tuple[tuple[Resident, ...], Paced | None]:
    """The memory of the process when started, weights loaded, context created and tokens decoded; and its speed."""
    child = _run(way, question, limits)
    return tuple(child.resident), _best(child.paced)


def _best(found: Sequence[Mapping[str, float]]) -> Paced | None:
    """Of several times the same: what else ran on the machine only takes."""
    if not found:
        return None
    return Paced(
        prompt_tokens=int(found[0]["prompt_n"]),
        new_tokens=int(found[0]["predicted_n"]),
        prefill_tokens_per_s=max(one["prompt_per_second"] for one in found),
        decode_tokens_per_s=max(one["predicted_per_second"] for one in found),
    )


def _run(way: VerifyMethod, question: LoadQuestion, limits: ChildLimits) -> _ChildReport:
    request = way.request(question)
    for _ in range(1 if question.really else DRY_TRIES):
        child = _run_once(request, question, limits)
        if child.enough or child.exit_code != -signal.SIGSEGV:
            break
    if child.enough or (child.exit_code == 0 and not child.timed_out):
        return child
    raise EngineError(f"{_end_of(child, limits)}: {child.log.last_words()}")


def _run_once(
    request: Mapping[str, Any], question: LoadQuestion, limits: ChildLimits
) -> _ChildReport:
    """A dry run is ended as soon as its log is complete: further on it would use memory it never got."""
    child, to_the_end = _ChildReport(), question.really
    complete, noting = threading.Event(), threading.Lock()  # two threads note memory

    def take(line: str) -> None:
        child.log.add(line)
        if to_the_end and _WEIGHTS_LOADED in line and len(child.resident) == 1:
            found = resident_at("weights loaded", read_status(process.pid))
            with noting:
                # Only if nothing else was noted meanwhile: on a busy machine the log comes late.
                if found is not None and len(child.resident) == 1:
                    child.resident.append(found)
        elif child.log.complete and not to_the_end:
            complete.set()

    def hear(message: Message) -> None:
        child.version = message.get("version", child.version)
        if "paced" in message:
            child.paced.append(message["paced"])
        elif (found := resident_at(message["when"], message["memory"])) is not None:
            with noting:
                child.resident.append(found)

    deadline = time.monotonic() + limits.timeout_s
    process = start_child(
        "verify",
        {**request, "timeout_s": limits.timeout_s, "memory_bytes": limits.memory_bytes},
        environment=PASSIVE | ({} if question.setup.has_device else NO_DEVICES),
        on_line=take,
        on_message=hear,
    )
    answered_s: float | None = None
    try:
        while process.exit_code is None and not complete.wait(_POLL_S):
            now = time.monotonic()
            if not to_the_end and child.log.answered:
                answered_s = answered_s or now
                if now > answered_s + _PATIENCE_S:
                    break
            if now > deadline:
                child.timed_out = True
                break
    finally:
        child.exit_code = process.close()
    child.enough = not to_the_end and child.log.answered
    return child


def _version(way: VerifyMethod, child: _ChildReport) -> str:
    told = way.told_version()
    return told if child.version is None else f"{told} (llama.cpp {child.version})"


def _end_of(child: _ChildReport, limits: ChildLimits) -> str:
    if child.timed_out:
        return f"llama.cpp did not answer within {limits.timeout_s:g} s (--engine-timeout)"
    code, allowed = child.exit_code or 0, limits.memory_bytes
    how = f"died of {signal_name(-code)}" if code < 0 else f"exited (code {code})"
    limit = "" if allowed is None else f" (its limit was {format_bytes(allowed)} of address space)"
    return f"llama.cpp {how}{limit}"
