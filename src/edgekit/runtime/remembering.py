"""What a real run showed -> rows of this machine's calibration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from edgekit.engines import engine_named
from edgekit.engines.comparison import ComparedRow, Verification
from edgekit.machine.calibration import (
    change_calibration,
    device_key,
    host_key,
    installed_version,
    today,
    told_text,
    with_differences,
    with_engine,
)
from edgekit.machine.types import Calibration, Difference, EngineMeasured, Machine, Pace
from edgekit.units import format_bytes

LEAST_VOCABULARY = 100_000  # with fewer tokens it holds less than it will with most models of today


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What is kept of one run."""

    engine: EngineMeasured | None = None  # None: nothing of it could be told apart from the bill
    differences: tuple[Difference, ...] = ()
    left_out: str = ""  # why what was beside the bill is not kept
    problem: str = ""  # what was moved aside for it

    def added(self, calibration: Calibration) -> Calibration:
        if self.engine is not None:
            calibration = with_engine(calibration, self.engine)
        return with_differences(calibration, self.differences)


def remember_load(found: Verification, machine: Machine) -> Remembered:
    """Of `edgekit verify --load`. Raises SourceError where it cannot be written."""
    kept = worth_keeping(found, machine)
    if kept.engine is None and not kept.differences:
        return kept
    return replace(kept, problem=change_calibration(kept.added).problem)


def remember_rows(
    label: str, rows: Iterable[ComparedRow], *, engine: str, version: str
) -> tuple[Difference, ...]:
    """Those of a comparison that are out of bounds. Raises SourceError where they cannot be written.

    `version` is what the engine calls itself.
    """
    differences = differences_of(label, rows, engine, version)
    if differences:
        change_calibration(lambda before: with_differences(before, differences))
    return differences


def worth_keeping(found: Verification, machine: Machine, pace: Pace | None = None) -> Remembered:
    """Nothing is written."""
    left_out = _left_out(found)
    beside = None if left_out else found.beside_bytes
    name = found.estimate.engine
    engine: EngineMeasured | None = None
    if beside is not None or pace is not None:
        through = found.answer.through
        cards = engine_named(name).devices(machine) if found.on_devices else ()
        engine = EngineMeasured(
            engine=name,
            through=through,
            version=told_text(installed_version(through) or found.answer.version),
            host=host_key(machine),
            device=device_key(machine, cards),
            date=today(),
            overhead_bytes=beside,
            overhead_label="" if beside is None else told_text(found.label),
            samples=0 if beside is None else 1,
            pace=pace,
        )
    return Remembered(
        engine=engine,
        differences=differences_of(found.label, found.rows, name, found.answer.version),
        left_out=left_out,
    )


def _left_out(found: Verification) -> str:
    """Tables of tokens are most of what is beside a bill: with few of them it says nothing of other models."""
    if found.beside_bytes is None or found.vocabulary >= LEAST_VOCABULARY:
        return ""
    return (
        f"{found.estimate.engine}'s memory overhead was {format_bytes(found.beside_bytes)}, which was "
        f"not saved: {found.label} has a vocabulary of only {found.vocabulary:,} tokens, "
        "and a larger one takes more memory; run `edgekit calibrate` without a model to "
        "measure it"
    )


def differences_of(
    label: str, rows: Iterable[ComparedRow], engine: str, version: str
) -> tuple[Difference, ...]:
    return tuple(
        Difference(
            label=told_text(label),
            part=row.part,
            predicted_bytes=row.predicted_bytes,
            measured_bytes=row.measured.middle_bytes,
            engine=engine,
            version=told_text(version),
            date=today(),
        )
        for row in rows
        if not row.within
    )
