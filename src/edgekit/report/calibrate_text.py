"""What was measured on a machine -> text: the answer first, then where it came from and where it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.machine.calibration import Stored
from edgekit.machine.types import (
    Calibration,
    Difference,
    Disk,
    EngineMeasured,
    HostMeasured,
    Measured,
    Pace,
)
from edgekit.report.lines import counted
from edgekit.report.screen import MOST_WIDTH, folded, section, within
from edgekit.units import format_bytes

if TYPE_CHECKING:  # only to name them: a report of what is kept needs nothing that measures
    from edgekit.engines.comparison import Verification
    from edgekit.runtime.calibrating import Calibrated
    from edgekit.runtime.remembering import Remembered

SHOWN_DIFFERENCES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFile:
    """Where all of it lies."""

    path: str
    stored: Stored

    @property
    def is_empty(self) -> bool:
        return self.stored.calibration == Calibration()


def calibrated_text(
    found: Calibrated, path: str, *, width: int = MOST_WIDTH, bold: bool = False
) -> str:
    width = within(width)
    first = folded(_answer(found), width)
    lines = [f"\x1b[1m{line}\x1b[0m" for line in first] if bold else first
    lines += section("Machine", (found.host.host,), width)
    lines += section("Memory", _memory_rows(found.host), width)
    lines += section("Disk", _disk_rows(found.host.disk), width)
    if found.engine is not None:
        lines += section("Engine", engine_rows(found.engine), width)
    if found.verification is not None:
        lines += section("Estimate", (_bill(found.verification),), width)
    lines += section("Note", found.notes, width)
    if found.is_kept:
        lines += section("Saved", _kept_rows(path), width)
    return "\n".join(lines) + "\n"


def _answer(found: Calibrated) -> str:
    return f"Measured: {', '.join(_answers(found)) or 'nothing that can be saved'}"


def _answers(found: Calibrated) -> Iterator[str]:
    host, engine = found.host, found.engine
    if host.bandwidth_bytes_per_s:
        yield f"memory bandwidth {gigabytes(host.bandwidth_bytes_per_s)}"
    if host.disk is not None:
        yield f"disk {gigabytes(host.disk.read_bytes_per_s)}"
    if engine is not None and engine.overhead_bytes is not None:
        yield f"llama.cpp overhead {format_bytes(engine.overhead_bytes)}"
    if engine is not None and engine.pace is not None:
        yield f"llama.cpp speed {_rate(engine.pace.decode_tokens_per_s)} tokens/s"
    if found.differs:
        yield "a prediction outside its bounds"


def _memory_rows(host: HostMeasured) -> Iterator[str]:
    if host.bandwidth_bytes_per_s:
        told = gigabytes(host.bandwidth_bytes_per_s)
        yield f"{told} with all cores, {host.date}"


def _disk_rows(disk: Disk | None) -> Iterator[str]:
    if disk is not None:
        read, written = gigabytes(disk.read_bytes_per_s), gigabytes(disk.write_bytes_per_s)
        yield f"{disk.folder}: read {read}, write {written}, {disk.date}"


def _bill(found: Verification) -> str:
    if found.within:
        return "within bounds: the engine allocated what was predicted"
    outside = [row for row in found.rows if not row.within]
    told = ", ".join(f"{row.part} {row.difference_bytes:+,} B" for row in outside)
    return f"outside bounds, and saved: {told}"


def _kept_rows(path: str) -> Iterator[str]:
    yield path
    yield (
        "`edgekit hardware` shows it, check and plan use it, `edgekit calibrate --remove` "
        "deletes it"
    )


def engine_rows(engine: EngineMeasured) -> Iterator[str]:
    yield f"{engine.engine} ({engine.through} {engine.version}) on {engine.device}"
    if engine.overhead_bytes is not None:
        most = f", highest with {engine.overhead_label}" if engine.overhead_label else ""
        runs = f"{counted(engine.samples, 'run')}, {engine.date}{most}"
        yield f"{format_bytes(engine.overhead_bytes)} of RAM in addition to the estimate ({runs})"
    if engine.pace is not None:
        yield _pace_row(engine.pace)


def _pace_row(pace: Pace) -> str:
    prompt = (
        f"{_rate(pace.prefill_tokens_per_s)} tokens/s for a prompt of "
        f"{counted(pace.prompt_tokens, 'token')}"
    )
    expected = ""
    if pace.expected_decode is not None:
        expected = f"; expected about {_rate(pace.expected_decode)}"
    return (
        f"{_rate(pace.decode_tokens_per_s)} tokens/s, {prompt}: {pace.label}, "
        f"{format_bytes(pace.bytes_per_token)} per token, {pace.date}{expected}"
    )


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.1f}" if tokens_per_s < 100 else f"{tokens_per_s:,.0f}"


def gigabytes(bytes_per_s: float) -> str:
    """As it is sold: thousands of millions of bytes."""
    figure = bytes_per_s / 10**9
    return f"{figure:,.0f} GB/s" if figure >= 10 else f"{figure:.2g} GB/s"


def difference_row(one: Difference) -> str:
    return (
        f"{one.label}: {one.part} {format_bytes(one.predicted_bytes)} predicted, "
        f"{format_bytes(one.measured_bytes)} in {one.engine} {one.version}, {one.date}"
    )


def measured_rows(measured: Measured) -> Iterator[str]:
    """For `edgekit hardware`: what is known of this machine beside its memory."""
    for engine in measured.engines:
        yield ": ".join((next(engine_rows(engine)), "; ".join([*engine_rows(engine)][1:])))
    if measured.host is not None:
        yield from _disk_rows(measured.host.disk)
    shown = measured.differences[-SHOWN_DIFFERENCES:]
    yield from (f"outside its bounds: {difference_row(one)}" for one in reversed(shown))
    more = len(measured.differences) - len(shown)
    if more > 0:
        yield f"and {more} more predictions outside their bounds: `edgekit calibrate --list`"


def remembered_words(kept: Remembered) -> tuple[str, ...]:
    """For `edgekit verify --load`: what later bills on this machine will know."""
    words = []
    if kept.engine is not None and kept.engine.overhead_bytes is not None:
        held = format_bytes(kept.engine.overhead_bytes)
        words.append(
            f"Saved for this machine: {held} of RAM for llama.cpp's overhead; check and "
            "plan use the highest value measured so far (`edgekit calibrate --list`, "
            "`--remove`)."
        )
    if kept.differences:
        parts = ", ".join(one.part for one in kept.differences)
        words.append(f"Saved as outside its bounds: {parts} (`edgekit calibrate --list`).")
    if kept.left_out:
        words.append(f"{kept.left_out}.")
    return (*words, kept.problem) if kept.problem else tuple(words)


def list_text(kept: CalibrationFile, *, width: int = MOST_WIDTH) -> str:
    """All of it, of every machine that shares the folder."""
    width, found = within(width), kept.stored.calibration
    lines = folded(_listed(found, kept.path), width)
    for host in found.hosts:
        rows = (*_memory_rows(host), *_disk_rows(host.disk))
        lines += section("Machine", (host.host, *rows), width)
    for engine in found.engines:
        lines += section("Engine", (*engine_rows(engine), f"on {engine.host}"), width)
    lines += section("Differs", map(difference_row, reversed(found.differences)), width)
    lines += section("Note", filter(None, (kept.stored.problem,)), width)
    return "\n".join(lines) + "\n"


def _listed(found: Calibration, path: str) -> str:
    if found == Calibration():
        return "Nothing measured yet: run `edgekit calibrate`"
    parts = (
        counted(len(found.hosts), "machine"),
        counted(len(found.engines), "engine"),
        counted(len(found.differences), "difference"),
    )
    return f"{', '.join(parts)} in {path}"


def removed_text(kept: CalibrationFile) -> str:
    found = kept.stored.calibration
    told = [f"Removed: {_listed(found, kept.path)}"]
    if kept.is_empty:
        told = ["Nothing to remove"]
    return "\n".join([*told, *filter(None, (kept.stored.problem,))]) + "\n"
