"""A question -> the engine's answer, or its last words."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence

from edgekit.engines.llamacpp.verify.process import NO_DEVICES, Child, run_child
from edgekit.engines.llamacpp.verify.types import (
    ChildLimits,
    EngineAnswer,
    LoadQuestion,
    Paced,
    Resident,
)
from edgekit.engines.llamacpp.verify.ways import VerifyMethod
from edgekit.errors import EngineError
from edgekit.units import format_bytes

# Builds of June and July 2026 crash in one of 200 dry runs while they exit, before their log is written.
DRY_TRIES = 3


def ask_engine(way: VerifyMethod, question: LoadQuestion, limits: ChildLimits) -> EngineAnswer:
    """What the engine would make room for. EngineError with its last words when it does not say."""
    begun = time.monotonic()
    child = _run(way, question, limits)
    devices = tuple(child.log.devices)
    if question.setup.has_device and not devices:
        raise EngineError(
            f"the llama.cpp in {way.name} finds no GPU on this machine, so only --backend "
            "cpu can be verified"
        )
    return EngineAnswer(
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


def _run(way: VerifyMethod, question: LoadQuestion, limits: ChildLimits) -> Child:
    request = way.request(question)
    for _ in range(1 if question.really else DRY_TRIES):
        child = run_child(
            request | {"timeout_s": limits.timeout_s, "memory_bytes": limits.memory_bytes},
            timeout_s=limits.timeout_s,
            environment={} if question.setup.has_device else NO_DEVICES,
            to_the_end=question.really,
        )
        if child.enough or child.exit_code != -signal.SIGSEGV:
            break
    if child.enough or (child.exit_code == 0 and not child.timed_out):
        return child
    raise EngineError(f"{_end_of(child, limits)}: {child.log.last_words()}")


def _version(way: VerifyMethod, child: Child) -> str:
    told = way.told_version()
    return told if child.version is None else f"{told} (llama.cpp {child.version})"


def _end_of(child: Child, limits: ChildLimits) -> str:
    if child.timed_out:
        return f"llama.cpp did not answer within {limits.timeout_s:g} s (--engine-timeout)"
    code, allowed = child.exit_code or 0, limits.memory_bytes
    how = f"died of {signal_name(-code)}" if code < 0 else f"exited (code {code})"
    limit = "" if allowed is None else f" (its limit was {format_bytes(allowed)} of address space)"
    return f"llama.cpp {how}{limit}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
