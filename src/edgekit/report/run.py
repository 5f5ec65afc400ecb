"""Results of running an engine as text and JSON: run and serve (docs/run.md), verify (docs/verify.md), calibrate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgekit.engines.chat import GenerationResult
from edgekit.engines.program import ComparedRow, Ended, RunningEngine, Server, Verification
from edgekit.errors import printable
from edgekit.machine.calibration import Stored
from edgekit.machine.types import Calibration, HostMeasured
from edgekit.report.bill import percent
from edgekit.report.check import check_json, headline
from edgekit.report.hardware import (
    difference_row,
    disk_rows,
    engine_rows,
    gigabytes,
    measured_rate,
)
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.text import FROM_INDEX, PLAIN, Screen, Section, render, table, with_count
from edgekit.units import format_bytes

if TYPE_CHECKING:  # for the types only: `calibrate --list` measures nothing
    from edgekit.app.calibrate import Calibrated, Remembered
    from edgekit.app.check import Check
    from edgekit.app.together import Together

_BOUNDS = (
    "Bounds: weights, caches and output must match to the precision of the engine's log; compute within 10 %, or 4 MiB "
    "if that is more (the graph changes between versions)."
)
_WRITTEN_FIELDS = "finish? prompt_tokens new_tokens prefill_tokens_per_s decode_tokens_per_s"
_HEAD = ("", "predicted", "engine", "precision", "difference", "", "")


def verdict_text(check: Check) -> str:
    """The prediction, and the reason for the context."""
    result = check.result
    return f"{headline(result)}\ncontext {result.context_tokens:,} tokens: {result.window or 'as requested'}"


def engine_text(engine: str, running: RunningEngine) -> str:
    """The engine with its version: "llama.cpp 0.6.0", "llama.cpp in Ollama 0.14.0"."""
    program = f"in {running.program}" if running.program else ""
    return " ".join(filter(None, (engine, program, running.version)))


def comparison_text(engine: str, running: RunningEngine) -> str:
    """The prediction compared with the engine's actual allocation."""
    outside = [row.part for row in running.rows if not row.within]
    outcome = "as predicted"
    if outside:
        outcome = f"OUTSIDE BOUNDS: {', '.join(outside)}"
    elif any(row.difference_bytes for row in running.rows):
        outcome = "within the bounds of the estimate"
        if running.rules_version:
            outcome += f", which follows the rules of {running.rules_version}"
    return "\n".join(
        [f"{engine_text(engine, running)} is up, {outcome}", *compared_lines(running.rows)]
    )


def written_text(written: GenerationResult, *, max_tokens: int | None) -> str:
    """The numbers of tokens read and written, and the speeds."""
    parts = []
    for tokens, verb, per_s in (
        (written.prompt_tokens, "read", written.prefill_tokens_per_s),
        (written.new_tokens, "written", written.decode_tokens_per_s),
    ):
        speed = f" at {per_s:,.1f} tokens/s" if per_s else ""
        parts.append(f"{with_count(tokens, 'token')} {verb}{speed}")
    if written.finish == "length":
        is_full = max_tokens is None or written.new_tokens < max_tokens
        parts.append(
            "cut: the context is full" if is_full else f"cut after --max-tokens {max_tokens:,}"
        )
    return "; ".join(parts)


def tool_calls_text(calls: Iterable[Mapping[str, str]]) -> str:
    """A line for each call: 'weather({"city": "Rome"})'."""
    return "".join(f"{printable(call['name'])}({printable(call['arguments'])})\n" for call in calls)


def generation_json(
    check: Check, text: str, written: GenerationResult, *, rows: Sequence[ComparedRow] = ()
) -> Json:
    return {
        "schema": SCHEMA,
        **fields(check, "model=bill.label engine=result.engine"),
        "text": text,
        "reasoning": "".join(written.reasoning),
        "tool_calls": [dict(call) for call in written.tool_calls],
        **fields(written, _WRITTEN_FIELDS),
        "context_tokens": check.result.context_tokens,
        "reported": [row_json(row) for row in rows],
        "plan": check_json(check),
    }


def ready_json(check: Check, running: RunningEngine, server: Server, address: str) -> Json:
    """The line with the address that clients connect to."""
    return {
        "event": "ready",
        "schema": SCHEMA,
        "address": address,
        "openai_base_url": f"{address}/v1",
        "pid": server.pid,
        "engine_version": running.version,
        **fields(check.result, "context_tokens required_bytes"),
        # resident memory of the engine's process before it loads anything
        **fields(server, "idle_bytes=idle.resident_bytes"),
        "available_bytes": check.result.available_bytes,
        "reported": [row_json(row) for row in running.rows],
        "within": all(row.within for row in running.rows),
    }


def several_json(together: Together, address: str, names: Sequence[str]) -> Json:
    """The line with the address that clients connect to, and the models that share the memory."""
    models = [
        {
            "name": name,
            "context_tokens": member.context_tokens,
            "stays_loaded": member.fits_with_others,
            "bytes": list(member.bytes_by_memory),
        }
        for name, member in zip(names, together.members, strict=True)
    ]
    return {
        "event": "ready",
        "schema": SCHEMA,
        "address": address,
        "openai_base_url": f"{address}/v1",
        "memories": [
            {"name": use.budget.name, "available_bytes": use.budget.available_bytes}
            for use in together.uses
        ],
        "models": models,
    }


def stopped_json() -> Json:
    """The line of a server that was stopped while no engine ran, or several did."""
    return {"event": "ended", "schema": SCHEMA, "why": "stopped on request"}


def restarting_json(why: str, wait_s: float) -> Json:
    return {"event": "restarting", "schema": SCHEMA, "why": why, "wait_s": wait_s}


def ended_json(ended: Ended) -> Json:
    names = "why exit_code signal last_words?"
    return {"event": "ended", "schema": SCHEMA, **fields(ended, names)}


def verification_text(
    verification: Verification, screen: Screen = PLAIN, *, load: str, from_index: bool = False
) -> str:
    """The verdict, then predicted and measured memory side by side. `load` describes the load."""
    verdict, answer = "Within bounds: the engine allocates what was predicted", verification.answer
    if not verification.within:
        outside = ", ".join(row.part for row in verification.rows if not row.within)
        verdict = f"OUTSIDE BOUNDS: {outside}"
    if from_index:
        verdict += f" ({FROM_INDEX})"
    title = (
        f"{verification.label}  ·  predicted for llama.cpp {verification.rules_version}  ·  measured "
        f"with {answer.through} {answer.version} in {answer.seconds:.1f} s"
    )
    processes = [
        (
            row.when,
            format_bytes(row.resident_bytes),
            *(
                "unknown" if size is None else format_bytes(size)
                for size in (row.anonymous_bytes, row.file_bytes)
            ),
        )
        for row in verification.resident
    ]
    resident = table(("memory of the process", "resident", "private", "mapped files"), processes)
    notes = [_BOUNDS]
    if not verification.within:
        notes.append(
            f"The rules follow llama.cpp {verification.rules_version}; a difference in another "
            "version may come from a change in that version."
        )
    sections: list[Section] = [
        (None, [title, load]),
        ("", lambda _: compared_lines((*verification.rows, verification.total))),
        ("", lambda _: resident if processes else ()),
        ("", (*notes, *verification.notes)),
    ]
    return render(verdict, sections, screen)


def compared_lines(rows: Iterable[ComparedRow]) -> list[str]:
    """Predicted and measured memory by part; parts that are 0 in both are left out."""
    cells = []
    for row in rows:
        if not row.predicted_bytes and not row.measured.high_bytes:
            continue
        off, share = row.difference_bytes, row.difference_share
        cells.append(
            (
                row.part,
                format_bytes(row.predicted_bytes),
                format_bytes(row.measured.middle_bytes),
                f"±{format_bytes(row.measured.resolution_bytes)}",
                f"{off:+,} B" if off else "0",
                f"{'-' if share < 0 else '+'}{percent(abs(share))}" if off else "",
                "" if row.within else "outside",
            )
        )
    return table(_HEAD, cells)


def verification_json(verification: Verification) -> Json:
    answer = verification.answer
    names = "when resident_bytes anonymous_bytes file_bytes model_bytes swapped_bytes"
    return {
        "schema": SCHEMA,
        **fields(verification, "model=label within rules_version"),
        "engine": {
            **fields(answer, "through version"),
            **fields(verification, "mode backend devices=answer.devices"),
            "resolved": dict(answer.resolved),
            "seconds": round(answer.seconds, 3),
        },
        "facts": dict(verification.estimate.facts),
        "parts": [row_json(row) for row in verification.rows],
        "total": row_json(verification.total),
        "resident": [fields(sample, names) for sample in verification.resident],
        **fields(verification, "beside_bytes notes"),
    }


def row_json(row: ComparedRow) -> Json:
    return {
        **fields(row, "part predicted_bytes engine_bytes=measured.middle_bytes"),
        **fields(row, "engine_low_bytes=measured.low_bytes engine_high_bytes=measured.high_bytes"),
        "difference_bytes": row.difference_bytes,
        "difference_share": round(row.difference_share, 6),
        **fields(row, "allowed_bytes within"),
    }


def calibrated_text(calibrated: Calibrated, path: str, screen: Screen = PLAIN) -> str:
    """The measured figures of memory, disk and engine, and the file that they were saved to."""
    host, engine, verified = calibrated.host, calibrated.engine, calibrated.verification
    results = []
    if host.bandwidth_bytes_per_s:
        results.append(f"memory bandwidth {gigabytes(host.bandwidth_bytes_per_s)}")
    if host.disk is not None:
        results.append(f"disk {gigabytes(host.disk.read_bytes_per_s)}")
    if engine is not None and engine.overhead_bytes is not None:
        results.append(f"llama.cpp overhead {format_bytes(engine.overhead_bytes)}")
    if engine is not None and engine.pace is not None:
        speed = measured_rate(engine.pace.decode_tokens_per_s)
        results.append(f"llama.cpp speed {speed} tokens/s")
    compared = ["within bounds: the engine allocated what was predicted"]
    if verified is not None and not verified.within:
        results.append("a prediction outside its bounds")
        compared = [f"outside bounds, and saved: {differences_words(verified.rows)}"]
    uses = "`edgekit hardware` shows it, check and plan use it, `edgekit calibrate --remove` deletes it"
    sections: list[Section] = [
        ("Machine", [host.host]),
        ("Memory", _memory_rows(host)),
        ("Disk", disk_rows(host.disk)),
        ("Engine", () if engine is None else engine_rows(engine)),
        ("Estimate", () if verified is None else compared),
        ("Note", calibrated.notes),
        ("Saved", [path, uses] if calibrated.has_results else ()),
    ]
    parts = ", ".join(results) or "nothing that can be saved"
    return render(f"Measured: {parts}", sections, screen)


def differences_words(rows: Iterable[ComparedRow]) -> str:
    """'compute +4,096 B' for each row that is outside its bounds."""
    return ", ".join(f"{row.part} {row.difference_bytes:+,} B" for row in rows if not row.within)


def _memory_rows(host: HostMeasured) -> Iterator[str]:
    if host.bandwidth_bytes_per_s:
        yield f"{gigabytes(host.bandwidth_bytes_per_s)} with all cores, {host.date}"


def calibrated_json(calibrated: Calibrated, path: str) -> Json:
    verified, engine = calibrated.verification, calibrated.engine
    timed = None if verified is None else verified.reported_speed
    return {
        "schema": SCHEMA,
        "path": path,
        "host": asdict(calibrated.host),
        "engine": None if engine is None else asdict(engine),
        "timed": None if timed is None else asdict(timed),
        "within": None if verified is None else verified.within,
        "parts": [] if verified is None else [row_json(row) for row in verified.rows],
        "notes": list(calibrated.notes),
    }


def remembered_words(saved: Remembered) -> tuple[str, ...]:
    """What `verify --load` saved for later answers on this machine."""
    words = []
    if saved.engine is not None and saved.engine.overhead_bytes is not None:
        overhead = format_bytes(saved.engine.overhead_bytes)
        words.append(
            f"Saved for this machine: {overhead} of RAM for llama.cpp's overhead; check and "
            "plan use the highest value measured so far (`edgekit calibrate --list`, "
            "`--remove`)."
        )
    if saved.differences:
        parts = ", ".join(difference.part for difference in saved.differences)
        words.append(f"Saved as outside its bounds: {parts} (`edgekit calibrate --list`).")
    if saved.left_out:
        words.append(f"{saved.left_out}.")
    return (*words, saved.problem) if saved.problem else tuple(words)


def _contents(stored: Stored, path: str) -> str:
    """What the file of measurements contains, and its path; '' if it is empty."""
    calibration = stored.calibration
    parts = (
        with_count(len(calibration.hosts), "machine"),
        with_count(len(calibration.engines), "engine"),
        with_count(len(calibration.differences), "difference"),
    )
    return "" if calibration == Calibration() else f"{', '.join(parts)} in {path}"


def list_text(stored: Stored, path: str, screen: Screen = PLAIN) -> str:
    """The measurements of every machine that shares the folder."""
    calibration = stored.calibration
    sections: list[Section] = [
        ("Machine", (host.host, *_memory_rows(host), *disk_rows(host.disk)))
        for host in calibration.hosts
    ]
    sections += [
        ("Engine", (*engine_rows(engine), f"on {engine.host}")) for engine in calibration.engines
    ]
    sections.append(("Differs", map(difference_row, reversed(calibration.differences))))
    sections.append(("Note", filter(None, (stored.problem,))))
    empty = "Nothing measured yet: run `edgekit calibrate`"
    return render(_contents(stored, path) or empty, sections, screen)


def removed_text(stored: Stored, path: str) -> str:
    contents = _contents(stored, path)
    lines = [f"Removed: {contents}" if contents else "Nothing to remove"]
    return "\n".join([*lines, *filter(None, (stored.problem,))]) + "\n"


def list_json(stored: Stored, path: str, *, removed: bool = False) -> Json:
    return {
        "schema": SCHEMA,
        "path": path,
        "removed": removed and bool(_contents(stored, path)),
        **asdict(stored.calibration),
        "problem": stored.problem or None,
    }
