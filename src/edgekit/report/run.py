"""What an engine did, as text and JSON: run and serve (docs/run.md), verify (docs/verify.md), calibrate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from edgekit.app.answers import Check
from edgekit.engines.chat import Written
from edgekit.engines.program import ComparedRow, Resident, Up, Verification
from edgekit.machine.calibration import Stored
from edgekit.machine.types import (
    Calibration,
    HostMeasured,
)
from edgekit.report.bill import percent
from edgekit.report.check import check_json
from edgekit.report.hardware import (
    difference_row,
    disk_rows,
    engine_rows,
    gigabytes,
    measured_rate,
)
from edgekit.report.headline import headline
from edgekit.report.json import SCHEMA
from edgekit.report.text import MOST_WIDTH, counted, figures, folded, section, within
from edgekit.terminal import printable
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.app.calibrate import Calibrated, Remembered
    from edgekit.engines.program import ComparedRow, Resident, Verification


def verdict_text(check: Check) -> str:
    """What was promised, and why this context."""
    result = check.result
    return f"{headline(result)}\ncontext {result.context_tokens:,} tokens: {result.window or 'as requested'}"


def comparison_text(engine: str, up: Up) -> str:
    """The bill next to what the engine has allocated."""
    outside = [row.part for row in up.rows if not row.within]
    outcome = "as predicted"
    if outside:
        outcome = f"OUTSIDE BOUNDS: {', '.join(outside)}"
    elif any(row.difference_bytes for row in up.rows):
        outcome = (
            f"within the bounds of the estimate, which follows the rules of {up.rules_version}"
        )
    return "\n".join([f"{engine} {up.version} is up, {outcome}", *beside_lines(up.rows)])


def written_text(written: Written, *, asked: int | None) -> str:
    """How much was read and written, and how fast."""
    told = [_paced(written.prompt_tokens, "read", written.prefill_tokens_per_s)]
    told.append(_paced(written.new_tokens, "written", written.decode_tokens_per_s))
    if written.finish == "length":
        full = asked is None or written.new_tokens < asked
        told.append("cut: the context is full" if full else f"cut after --max-tokens {asked:,}")
    return "; ".join(told)


def _paced(tokens: int, verb: str, per_s: float | None) -> str:
    what = f"{counted(tokens, 'token')} {verb}"
    return what if not per_s else f"{what} at {per_s:,.1f} tokens/s"


def answer_json(
    check: Check, text: str, written: Written, *, rows: Sequence[ComparedRow] = ()
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": check.bill.label,
        "engine": check.result.engine,
        "text": text,
        "finish": written.finish or None,
        "prompt_tokens": written.prompt_tokens,
        "new_tokens": written.new_tokens,
        "prefill_tokens_per_s": written.prefill_tokens_per_s,
        "decode_tokens_per_s": written.decode_tokens_per_s,
        "context_tokens": check.result.context_tokens,
        "reported": [row_json(row) for row in rows],
        "plan": check_json(check),
    }


def ready_json(
    check: Check,
    *,
    address: str,
    pid: int,
    version: str,
    idle_bytes: int | None,
    rows: Sequence[ComparedRow],
) -> dict[str, Any]:
    """The line that says where the server is."""
    return {
        "event": "ready",
        "schema": SCHEMA,
        "address": address,
        "openai_base_url": f"{address}/v1",
        "pid": pid,
        "engine_version": version,
        "context_tokens": check.result.context_tokens,
        "required_bytes": check.result.required_bytes,
        "idle_bytes": idle_bytes,  # of the process, before anything was loaded
        "available_bytes": check.result.available_bytes,
        "reported": [row_json(row) for row in rows],
        "within": all(row.within for row in rows),
    }


def ended_json(
    *, why: str, exit_code: int | None, signal: str | None, last_words: str
) -> dict[str, Any]:
    return {
        "event": "ended",
        "schema": SCHEMA,
        "why": why,
        "exit_code": exit_code,
        "signal": signal,
        "last_words": last_words or None,
    }


_HEAD = ("", "predicted", "engine", "precision", "difference", "", "")


def verification_text(found: Verification, *, asked: str, bold: bool = False) -> str:
    """The screen. `asked` is what was asked for, in words; `bold` marks the verdict for terminals."""
    verdict = printable(_verdict(found))
    lines = [f"\x1b[1m{verdict}\x1b[0m" if bold else verdict]
    lines += folded(_title(found), MOST_WIDTH) + folded(asked, MOST_WIDTH) + [""]
    lines += beside_lines((*found.rows, found.total))
    if found.resident:
        lines += ["", *_resident_table(found.resident)]
    lines += ["", *(line for note in _notes(found) for line in folded(note, MOST_WIDTH))]
    return "\n".join(lines) + "\n"


def beside_lines(rows: Iterable[ComparedRow]) -> list[str]:
    """What was predicted beside what the engine has; parts that neither has are left out."""
    shown = [row for row in rows if row.predicted_bytes or row.measured.high_bytes]
    return figures(_HEAD, map(_cells, shown))


def _verdict(found: Verification) -> str:
    if found.within:
        return "Within bounds: the engine allocates what was predicted"
    outside = ", ".join(row.part for row in found.rows if not row.within)
    return f"OUTSIDE BOUNDS: {outside}"


def _title(found: Verification) -> str:
    answer = found.answer
    return (
        f"{found.label}  ·  predicted for llama.cpp {found.rules_version}  ·  measured "
        f"with {answer.through} {answer.version} in {answer.seconds:.1f} s"
    )


def _cells(row: ComparedRow) -> tuple[str, ...]:
    off = row.difference_bytes
    return (
        row.part,
        format_bytes(row.predicted_bytes),
        format_bytes(row.measured.middle_bytes),
        f"±{format_bytes(row.measured.resolution_bytes)}",
        f"{off:+,} B" if off else "0",
        _signed(row.difference_share) if off else "",
        "" if row.within else "outside",
    )


def _signed(share: float) -> str:
    return f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def _resident_table(rows: tuple[Resident, ...]) -> list[str]:
    return figures(
        ("memory of the process", "resident", "private", "mapped files"),
        (
            (
                row.when,
                format_bytes(row.resident_bytes),
                _known(row.anonymous_bytes),
                _known(row.file_bytes),
            )
            for row in rows
        ),
    )


def _known(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(size_bytes)


def _notes(found: Verification) -> Iterator[str]:
    yield (
        "Bounds: weights, caches and output must match to the precision of the engine's "
        "log; compute within 10 %, or 4 MiB if that is more (the graph changes between "
        "versions)."
    )
    if not found.within:
        yield (
            f"The rules follow llama.cpp {found.rules_version}; a difference in another "
            "version may come from a change in that version."
        )
    yield from found.notes


def verification_json(found: Verification) -> dict[str, Any]:
    answer = found.answer
    return {
        "schema": SCHEMA,
        "model": found.label,
        "within": found.within,
        "rules_version": found.rules_version,
        "engine": {
            "through": answer.through,
            "version": answer.version,
            "mode": found.mode,
            "backend": found.backend,
            "devices": list(answer.devices),
            "resolved": dict(answer.resolved),
            "seconds": round(answer.seconds, 3),
        },
        "facts": dict(found.estimate.facts),
        "parts": [row_json(row) for row in found.rows],
        "total": row_json(found.total),
        "resident": [_resident(one) for one in found.resident],
        "beside_bytes": found.beside_bytes,
        "notes": list(found.notes),
    }


def row_json(row: ComparedRow) -> dict[str, Any]:
    return {
        "part": row.part,
        "predicted_bytes": row.predicted_bytes,
        "engine_bytes": row.measured.middle_bytes,
        "engine_low_bytes": row.measured.low_bytes,
        "engine_high_bytes": row.measured.high_bytes,
        "difference_bytes": row.difference_bytes,
        "difference_share": round(row.difference_share, 6),
        "allowed_bytes": row.allowed_bytes,
        "within": row.within,
    }


def _resident(one: Resident) -> dict[str, Any]:
    return {
        "when": one.when,
        "resident_bytes": one.resident_bytes,
        "anonymous_bytes": one.anonymous_bytes,
        "file_bytes": one.file_bytes,
        "model_bytes": one.model_bytes,
        "swapped_bytes": one.swapped_bytes,
    }


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
    lines += section("Disk", disk_rows(found.host.disk), width)
    if found.engine is not None:
        lines += section("Engine", engine_rows(found.engine), width)
    if found.verification is not None:
        lines += section("Estimate", (_bill(found.verification),), width)
    lines += section("Note", found.notes, width)
    if found.has_results:
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
        yield f"llama.cpp speed {measured_rate(engine.pace.decode_tokens_per_s)} tokens/s"
    if found.differs:
        yield "a prediction outside its bounds"


def _memory_rows(host: HostMeasured) -> Iterator[str]:
    if host.bandwidth_bytes_per_s:
        told = gigabytes(host.bandwidth_bytes_per_s)
        yield f"{told} with all cores, {host.date}"


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
        rows = (*_memory_rows(host), *disk_rows(host.disk))
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


def calibrated_json(found: Calibrated, path: str) -> dict[str, Any]:
    verified = found.verification
    paced = None if verified is None else verified.paced
    return {
        "schema": SCHEMA,
        "path": path,
        "host": asdict(found.host),
        "engine": None if found.engine is None else asdict(found.engine),
        "timed": None if paced is None else asdict(paced),
        "within": None if verified is None else verified.within,
        "parts": [] if verified is None else [row_json(row) for row in verified.rows],
        "notes": list(found.notes),
    }


def list_json(kept: CalibrationFile, *, removed: bool = False) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "path": kept.path,
        "removed": removed and not kept.is_empty,
        **asdict(kept.stored.calibration),
        "problem": kept.stored.problem or None,
    }
