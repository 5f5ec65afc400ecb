"""Lines of llama.cpp's log -> what it made room for.

A dry run makes no room, so the figures are those that it works out: the caches' own `size =` lines, the
output and compute buffers, and the weights in the breakdown (common_memory_breakdown_print, whole MiB). A real
run tells its weights buffer by buffer, to hundredths of a MiB, and a second context where a drafter has one.
Formats: llama-model.cpp, llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-context.cpp, common/fit.cpp @ 0c1e570.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgekit.bill.types import Component
from edgekit.engines.llamacpp.run.binding import STOP
from edgekit.engines.program import NOTHING, MeasuredBytes
from edgekit.errors import EngineError
from edgekit.units import MIB

_LAST_LINES = 3  # kept for when the engine dies, and its first complaints
_COMPLAINTS = 3
_LINE_CHARS = 400

_NEW_CONTEXT = "llama_context: constructing llama_context"
_SLIDES = re.compile(r"creating +(non-)?SWA KV cache")
_RESERVING = "sched_reserve: reserving"  # what was reserved for this context before is given back
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
# "|   - CUDA0 (H200) | 143771 = 142000 + (1617 = 1137 + 448 + 32) + 154 |": the one in brackets
_BREAKDOWN = re.compile(r"\| +- (\S.*?) *\|.*?(\d+) = +(\d+) \+ +(\d+) \+ +(\d+)\b")
_HOST = "Host"
_HOST_ROWS = (_HOST, "CPU")  # "CPU_REPACK" too: rearranged weights in the host's memory
_STAMP = re.compile(r"^[\d.]+ [A-Z] ")
# An abort is written past the log, perhaps into the middle of a line of it.
_COMPLAINT = re.compile(
    r"^[\d.]+ E |^(?![\d.]+ [A-Z] ).*error\b|GGML_ASSERT|fatal error|what\(\)", re.IGNORECASE
)


def hundredths(text: str) -> MeasuredBytes:
    """'448.00' MiB: printed with two digits, out of a 32-bit float."""
    middle = round(float(text) * MIB)
    slack = MIB // 200 + (middle >> 23) + 1
    return MeasuredBytes(low_bytes=max(0, middle - slack), high_bytes=middle + slack)


def whole(text: str) -> MeasuredBytes:
    """'1137' MiB: what is left of a whole number of bytes divided by a MiB."""
    return MeasuredBytes(low_bytes=int(text) * MIB, high_bytes=(int(text) + 1) * MIB - 1)


@dataclass(slots=True)
class _Context:
    """What one llama_context logs about itself."""

    parts: dict[Component, MeasuredBytes] = field(default_factory=dict)
    resolved: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a real run made room for, with its drafter's share."""

    parts: dict[Component, MeasuredBytes]
    weights: tuple[tuple[str, MeasuredBytes], ...]  # by buffer: "CPU_Mapped", "CUDA0"
    resolved: dict[str, str]  # n_ctx, n_seq_max ... of the model itself


def is_complaint(line: str) -> bool:
    """A line of the log that says what went wrong."""
    return _COMPLAINT.search(line) is not None


class EngineLog:
    """Takes the log line by line until it holds the whole answer."""

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
        """Complete, except perhaps for further rows of the breakdown."""
        return _HOST in self._breakdown and Component.COMPUTE in self._parts

    def add(self, line: str) -> None:
        line = line.rstrip()[:_LINE_CHARS]
        self._remember(line)
        if self._add_breakdown(line):
            return
        self.complete = self.complete or self.answered
        if self.complete:
            return
        if _NEW_CONTEXT in line:
            self._contexts.append(_Context())
        elif _RESERVING in line:
            self._parts.pop(Component.COMPUTE, None)
        self._add_figure(line)
        self._add_fact(line)

    def _remember(self, line: str) -> None:
        text = _STAMP.sub("", line).strip()
        if not text:
            return
        self._last.append(text)
        if len(self._complaints) < _COMPLAINTS and STOP not in line and is_complaint(line):
            self._complaints[text] = None

    def _add_breakdown(self, line: str) -> bool:
        found = _BREAKDOWN.search(line) if "breakdown" in line else None
        if found is None:
            return False
        name, _, *numbers = found.groups()
        if name not in self._breakdown:
            model, context, compute = map(whole, numbers)
            self._breakdown[name] = (model, context, compute)
            if not name.startswith(_HOST_ROWS):
                self.devices.append(name)
        return True

    def _add_figure(self, line: str) -> None:
        if found := _SLIDES.search(line):
            self._sliding = found.group(1) is None
            return
        if found := _WEIGHTS.search(line):
            self._weights.append((found[1], hundredths(found[2])))
        for pattern, component in _FIGURES:
            if found := pattern.search(line):
                if component is Component.KV_CACHE and self._sliding:
                    component, self._sliding = Component.SLIDING_KV_CACHE, False  # noqa: PLW2901
                self._parts[component] = self._parts.get(component, NOTHING) + hundredths(found[1])

    def _add_fact(self, line: str) -> None:
        if found := _RESOLVED.search(line):
            self.resolved[found[1]] = found[2]
        elif found := _FLASH.search(line):
            self.resolved["flash_attn"] = found[1] or found[2]

    def held(self) -> Held:
        """What a real run logged while it loaded. EngineError when the log is not what we know."""
        contexts = [context for context in self._contexts if context.parts]
        logged = {kind for context in contexts for kind in context.parts}
        if not self._weights or not {Component.COMPUTE, Component.OUTPUT} <= logged:
            raise EngineError(
                "cannot parse this llama.cpp's log: it does not list its buffers; a "
                f"newer edgekit may support this version ({self.last_words()})"
            )
        weights = _sum(size for _, size in self._weights)
        parts = {
            kind: _sum(context.parts.get(kind, NOTHING) for context in contexts)
            for kind in (*_CACHES, Component.OUTPUT, Component.COMPUTE)
        }
        return Held(
            parts={Component.WEIGHTS: weights, **parts},
            weights=tuple(self._weights),
            resolved=dict(contexts[0].resolved),
        )

    def parts(self) -> dict[Component, MeasuredBytes]:
        """Every part of the answer of a dry run. EngineError when the log is not what we know."""
        if not self._breakdown or not {Component.COMPUTE, Component.OUTPUT} <= self._parts.keys():
            raise EngineError(f"llama.cpp did not finish its answer: {self.last_words()}")
        model, context, compute = (
            _sum(row[i] for row in self._breakdown.values()) for i in range(3)
        )
        caches = [self._parts.get(kind, NOTHING) for kind in _CACHES]
        self._check("cache", _sum(caches), context)
        self._check("compute buffer", self._parts[Component.COMPUTE], compute)
        return {
            Component.WEIGHTS: model,
            **dict(zip(_CACHES, caches, strict=True)),
            Component.OUTPUT: self._parts[Component.OUTPUT],
            Component.COMPUTE: self._parts[Component.COMPUTE],
        }

    def _check(self, what: str, lines: MeasuredBytes, breakdown: MeasuredBytes) -> None:
        if not lines.meets(breakdown):
            raise EngineError(
                f"cannot parse this llama.cpp's log: its {what} lines add up to "
                f"{lines.middle_bytes:,} bytes, but its breakdown says "
                f"{breakdown.low_bytes:,}; a newer edgekit may support this version"
            )

    def last_words(self) -> str:
        """Its complaints, of which the first says most; the last lines where there is none."""
        return " | ".join(self._complaints or self._last) or "no output"


def _sum(sizes: Iterable[MeasuredBytes]) -> MeasuredBytes:
    return sum(sizes, NOTHING)


_CACHES = (Component.KV_CACHE, Component.SLIDING_KV_CACHE, Component.STATE)
