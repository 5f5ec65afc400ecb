"""Lines of llama.cpp's log -> its allocations.

A dry run allocates nothing, so its computed figures count: the caches' `size =` lines, the
output and compute buffers, and the weights in the breakdown (common_memory_breakdown_print, whole MiB). A real run logs
its weights per buffer, to 0.01 MiB, and a second context for a drafter.
Formats: llama-model.cpp, llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-context.cpp, common/fit.cpp @ 0c1e570.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from edgekit.bill.types import Component
from edgekit.engines.llamacpp.run.binding import STOP
from edgekit.engines.program import NOTHING, MeasuredBytes, ReportedMemory
from edgekit.errors import EngineError
from edgekit.units import MIB

_LAST_LINES = 3  # shown with the first errors if the engine dies
_COMPLAINTS = 3
_LINE_CHARS = 400

_CACHES = (Component.KV_CACHE, Component.SLIDING_KV_CACHE, Component.STATE)
_NEW_CONTEXT = "llama_context: constructing llama_context"
_SLIDES = re.compile(r"creating +(non-)?SWA KV cache")
_RESERVING = "sched_reserve: reserving"  # frees what was reserved for this context before
_SIZE = r"= +(\d+\.\d\d) MiB"
_WEIGHTS = re.compile(r"load_tensors: +(\S+) model buffer size " + _SIZE)
_FIGURES = (
    (re.compile(r"llama_kv_cache\w*: size " + _SIZE), Component.KV_CACHE),
    (re.compile(r"llama_memory_recurrent: size " + _SIZE), Component.STATE),
    (re.compile(r" output buffer size " + _SIZE), Component.OUTPUT),
    (re.compile(r" compute buffer size " + _SIZE), Component.COMPUTE),
)
_RESOLVED = re.compile(r"llama_context: (n_\w+|kv_unified|flash_attn) += (\S+)$")
_FLASH = re.compile(r"Flash Attention (enabled|disabled)|Flash Attention was auto, set to (\w+)")
# Matches the sum in brackets of "|   - CUDA0 (H200) | 143771 = 142000 + (1617 = 1137 + 448 + 32) + 154 |".
_BREAKDOWN = re.compile(r"\| +- (\S.*?) *\|.*?(\d+) = +(\d+) \+ +(\d+) \+ +(\d+)\b")
_HOST = "Host"
_HOST_ROWS = (_HOST, "CPU")  # prefixes: "CPU_REPACK" has repacked weights on the host
_STAMP = re.compile(r"^[\d.]+ [A-Z] ")
# An abort message bypasses the log and may land in the middle of a log line.
_COMPLAINT = re.compile(
    r"^[\d.]+ E |^(?![\d.]+ [A-Z] ).*error\b|GGML_ASSERT|fatal error|what\(\)", re.IGNORECASE
)


def hundredths(text: str) -> MeasuredBytes:
    """'448.00' MiB, printed with two decimals from a 32-bit float."""
    middle = round(float(text) * MIB)
    slack = MIB // 200 + (middle >> 23) + 1
    return MeasuredBytes(low_bytes=max(0, middle - slack), high_bytes=middle + slack)


def whole_mib(text: str) -> MeasuredBytes:
    """'1137' MiB: bytes divided by a MiB, rounded down."""
    return MeasuredBytes(low_bytes=int(text) * MIB, high_bytes=(int(text) + 1) * MIB - 1)


@dataclass(slots=True)
class _Context:
    """What one llama_context logs."""

    parts: dict[Component, MeasuredBytes] = field(default_factory=dict)
    resolved: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAllocations:
    """The allocations of a real run, including the drafter's."""

    parts: dict[Component, MeasuredBytes]
    weights: tuple[tuple[str, MeasuredBytes], ...]  # by buffer: "CPU_Mapped", "CUDA0"
    resolved: dict[str, str]  # n_ctx, n_seq_max ... of the model itself


def is_complaint(line: str) -> bool:
    """True for a log line that reports an error."""
    return _COMPLAINT.search(line) is not None


def _memory(
    device: int | None, weights: MeasuredBytes, caches: MeasuredBytes, compute: MeasuredBytes
) -> ReportedMemory:
    return ReportedMemory(device=device, weights=weights, caches=caches, compute=compute)


class EngineLog:
    """Parses the log line by line until it is complete."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._complaints: dict[str, None] = {}
        self.devices: list[str] = []
        self._contexts: list[_Context] = [_Context()]
        self._weights: list[tuple[str, MeasuredBytes]] = []
        self._breakdown: dict[str, tuple[MeasuredBytes, MeasuredBytes, MeasuredBytes]] = {}
        self._sliding = False
        self.complete = False

    @property
    def resolved(self) -> dict[str, str]:
        return self._contexts[-1].resolved

    @property
    def _parts(self) -> dict[Component, MeasuredBytes]:
        return self._contexts[-1].parts

    @property
    def answered(self) -> bool:
        """True if complete, except perhaps for further rows of the breakdown."""
        return _HOST in self._breakdown and Component.COMPUTE in self._parts

    def add(self, line: str) -> None:
        """Reads one line. Figures after the breakdown are ignored: they belong to the load that follows a dry run."""
        line = line.rstrip()[:_LINE_CHARS]
        if text := _STAMP.sub("", line).strip():
            self._last.append(text)
            if len(self._complaints) < _COMPLAINTS and STOP not in line and is_complaint(line):
                self._complaints[text] = None
        if "breakdown" in line and (match := _BREAKDOWN.search(line)):
            name, _, *numbers = match.groups()
            if name not in self._breakdown:
                model, context, compute = map(whole_mib, numbers)
                self._breakdown[name] = (model, context, compute)
                if not name.startswith(_HOST_ROWS):
                    self.devices.append(name)
            return
        self.complete = self.complete or self.answered
        if self.complete:
            return
        if _NEW_CONTEXT in line:
            self._contexts.append(_Context())
        elif _RESERVING in line:
            self._parts.pop(Component.COMPUTE, None)
        self._add_figure(line)
        if match := _RESOLVED.search(line):
            self.resolved[match[1]] = match[2]
        elif match := _FLASH.search(line):
            self.resolved["flash_attn"] = match[1] or match[2]

    def _add_figure(self, line: str) -> None:
        """Records the size of a cache or buffer, if the line reports one."""
        if match := _SLIDES.search(line):
            self._sliding = match.group(1) is None
            return
        if match := _WEIGHTS.search(line):
            self._weights.append((match[1], hundredths(match[2])))
        for pattern, component in _FIGURES:
            if match := pattern.search(line):
                if component is Component.KV_CACHE and self._sliding:
                    component, self._sliding = Component.SLIDING_KV_CACHE, False  # noqa: PLW2901
                self._parts[component] = self._parts.get(component, NOTHING) + hundredths(match[1])

    def allocations(self) -> LoggedAllocations:
        """What a real run logged while loading. EngineError if the log's format is unknown."""
        contexts = [context for context in self._contexts if context.parts]
        logged = {kind for context in contexts for kind in context.parts}
        if not self._weights or not {Component.COMPUTE, Component.OUTPUT} <= logged:
            raise EngineError(
                "cannot parse this llama.cpp's log: it does not list its buffers; a "
                f"newer edgekit may support this version ({self.last_words()})"
            )
        weights = sum((size for _, size in self._weights), NOTHING)
        parts = {
            kind: sum((context.parts.get(kind, NOTHING) for context in contexts), NOTHING)
            for kind in (*_CACHES, Component.OUTPUT, Component.COMPUTE)
        }
        return LoggedAllocations(
            parts={Component.WEIGHTS: weights, **parts},
            weights=tuple(self._weights),
            resolved=dict(contexts[0].resolved),
        )

    def parts(self) -> dict[Component, MeasuredBytes]:
        """All parts that a dry run reports. EngineError if the log's format is unknown."""
        if not self._breakdown or not {Component.COMPUTE, Component.OUTPUT} <= self._parts.keys():
            raise EngineError(f"llama.cpp did not finish its answer: {self.last_words()}")
        model, context, compute = (
            sum((row[i] for row in self._breakdown.values()), NOTHING) for i in range(3)
        )
        caches = [self._parts.get(kind, NOTHING) for kind in _CACHES]
        for what, lines, breakdown in (
            ("cache", sum(caches, NOTHING), context),
            ("compute buffer", self._parts[Component.COMPUTE], compute),
        ):
            if not lines.meets(breakdown):
                raise EngineError(
                    f"cannot parse this llama.cpp's log: its {what} lines add up to "
                    f"{lines.middle_bytes:,} bytes, but its breakdown says "
                    f"{breakdown.low_bytes:,}; a newer edgekit may support this version"
                )
        return {
            Component.WEIGHTS: model,
            **dict(zip(_CACHES, caches, strict=True)),
            Component.OUTPUT: self._parts[Component.OUTPUT],
            Component.COMPUTE: self._parts[Component.COMPUTE],
        }

    def memories(self) -> tuple[ReportedMemory, ...]:
        """The breakdown by memory: the devices in llama.cpp's order, and all rows of RAM together."""
        memories: list[ReportedMemory] = []
        in_ram = [NOTHING, NOTHING, NOTHING]
        for name, row in self._breakdown.items():
            if name.startswith(_HOST_ROWS):
                in_ram = [total + size for total, size in zip(in_ram, row, strict=True)]
            else:
                memories.append(_memory(len(memories), *row))
        return (*memories, _memory(None, *in_ram))

    def last_words(self) -> str:
        """The first errors in the log; if there are none, its last lines."""
        return " | ".join(self._complaints or self._last) or "no output"
