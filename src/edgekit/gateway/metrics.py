"""What the gateway counts, in Prometheus' text format."""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgekit.gateway.types import ServedModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds to the first byte: a short prompt takes milliseconds, a long one minutes.
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_KEPT_BYTES = 16_384  # of the beginning and of the end of a response, where engines report usage
_REPORTS = re.compile(rb'"(?:usage|timings)"\s*:\s*(?=\{)')
_PLAIN = re.compile(rb'"(tokens_evaluated|tokens_predicted)"\s*:\s*(\d{1,9})\b')
_IN = ("prompt_tokens", "input_tokens", "prompt_n", "tokens_evaluated")
_OUT = ("completion_tokens", "output_tokens", "predicted_n", "tokens_predicted")
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Metrics:
    """Counters of one gateway. Used from its event loop only."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by path and status
    in_flight: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    first_bytes: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    first_bytes_s: float = 0.0

    def count(self, path: str, status: int) -> None:
        """Counts a request. `path`: one that the gateway has, because clients could make up any number."""
        self.requests[path, status] += 1

    def first_byte(self, seconds: float) -> None:
        self.first_bytes[bisect_left(BUCKETS_S, seconds)] += 1
        self.first_bytes_s += seconds

    def text(self, models: Iterable[ServedModel], memory_bytes: int | None) -> str:
        """All metrics as text."""
        lines: list[str] = []

        def add(name: str, kind: str, about: str, rows: Iterable[tuple[str, int]]) -> None:
            lines.extend((f"# HELP {name} {about}", f"# TYPE {name} {kind}"))
            lines.extend(f"{name}{labels} {value}" for labels, value in rows)

        requests = sorted(self.requests.items())
        add(
            "edgekit_requests_total",
            "counter",
            "Requests, by path and status.",
            (
                (f'{{path="{_label(path)}",status="{status}"}}', count)
                for (path, status), count in requests
            ),
        )
        add("edgekit_requests_in_flight", "gauge", "Open requests.", [("", self.in_flight)])
        add(
            "edgekit_tokens_total",
            "counter",
            "Tokens, where the engine reports them.",
            [('{direction="in"}', self.tokens_in), ('{direction="out"}', self.tokens_out)],
        )
        name = "edgekit_first_byte_seconds"
        add(name, "histogram", "From the request to the first byte of the response.", ())
        count = 0
        for bound, number in zip((*BUCKETS_S, float("inf")), self.first_bytes, strict=True):
            count += number
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'{name}_bucket{{le="{label}"}} {count}')
        lines += [f"{name}_sum {self.first_bytes_s:.6f}", f"{name}_count {count}"]
        add(
            "edgekit_model_up",
            "gauge",
            "1 if the model can answer, or is loaded at the next request.",
            ((f'{{model="{_label(model.name)}"}}', int(not model.problem)) for model in models),
        )
        if memory_bytes is not None:
            add(
                "edgekit_engine_memory_bytes",
                "gauge",
                "Resident memory of the engines.",
                [("", memory_bytes)],
            )
        return "\n".join(lines) + "\n"


class Answered:
    """Watches one response: the time of its first byte, and the tokens that the engine reports in it."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock, self._begun_s = metrics, clock, clock()
        self._head, self._tail = b"", b""

    def add(self, chunk: bytes) -> None:
        if not self._head:
            self._metrics.first_byte(self._clock() - self._begun_s)
            self._head = chunk[:_KEPT_BYTES]
        self._tail = (self._tail + chunk)[-_KEPT_BYTES:]

    def end(self) -> None:
        tokens_in, tokens_out = reported_tokens(self._head, self._tail)
        self._metrics.tokens_in += tokens_in
        self._metrics.tokens_out += tokens_out


def reported_tokens(head: bytes, tail: bytes) -> tuple[int, int]:
    """Tokens read and written, from the beginning and the end of a response; zeros if it does not report them.

    Text of the model cannot be mistaken for a report: its quotation marks are escaped.
    """
    for part in (tail, head):
        report: Mapping[str, Any] = {}
        matches = list(_REPORTS.finditer(part))
        if matches:
            try:
                text = part[matches[-1].end() :].decode(errors="replace")
                report, _ = _DECODER.raw_decode(text)
            except (ValueError, RecursionError):
                continue
        elif plain := _PLAIN.findall(part):
            report = {key.decode(): int(value) for key, value in plain}
        if report:
            return _count(report, _IN), _count(report, _OUT)
    return 0, 0


def _count(report: Mapping[str, Any], names: Iterable[str]) -> int:
    value = next((report[name] for name in names if name in report), 0)
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
