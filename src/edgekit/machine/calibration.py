"""The measurements of `edgekit calibrate`, stored as one JSON file in the user's data folder.

A writer takes a lock, reads the file again and replaces it as a whole, so no other process's update is lost. A damaged
or foreign file is reported and ignored; it is moved aside, never overwritten, before a new one is written.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgekit.errors import HeaderError, SourceError, one_line
from edgekit.machine.types import (
    Calibration,
    Difference,
    Disk,
    EngineMeasured,
    EngineSpeed,
    HostMeasured,
    Measured,
)
from edgekit.sources.folders import create_data_folder, data_folder
from edgekit.sources.local import move_aside, open_file, replacing, try_lock
from edgekit.units import GIB, LARGEST, MIB

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from edgekit.machine.types import Device, Machine


NAME = "calibration.json"
LOCK = "calibration.lock"
SCHEMA = 1
MAX_FILE_BYTES = MIB  # the maximum number of the longest rows takes about 600 KB
MOST_HOSTS = 32  # machines that share one home
MOST_ENGINES = 64
MOST_DIFFERENCES = 64
MOST_TEXT = 160  # characters of a label or a name
WAIT_S = 20.0  # how long to wait for another writer
_RETRY_S = 0.02
_SLOWEST, _FASTEST = 1e-6, 1e12  # tokens per second: one in eleven days; more than any machine

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The content of the file; if it is unusable, an empty calibration and the reason."""

    calibration: Calibration = field(default_factory=Calibration)
    problem: str = ""


# -- reading ---------------------------------------------------------------------------------


def read_calibration() -> Stored:
    """The stored calibration. Never raises, never creates a file."""
    folder = data_folder()
    if folder is None or not os.path.lexists(folder / NAME):
        return Stored()
    try:
        return Stored(calibration=_read(folder / NAME))
    except (HeaderError, SourceError) as error:
        return Stored(problem=f"{error}; ignoring earlier measurements")


def _read(path: Path) -> Calibration:
    """Raises HeaderError for a file in another format, SourceError for one that cannot be read."""
    if not path.is_file():
        raise SourceError(f"{path} is not a file: move it away")
    try:
        with open_file(path) as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise HeaderError(
            f"longer than {MAX_FILE_BYTES:,} bytes: not a calibration file", file=str(path)
        )
    try:
        return _parse(json.loads(raw), path)
    except (ValueError, TypeError, RecursionError) as error:
        reason = one_line(str(error), 100)
        raise HeaderError(f"a damaged calibration ({reason})", file=str(path)) from error


def _parse(data: object, path: Path) -> Calibration:
    """Raises ValueError or TypeError for damaged data, SourceError for that of a newer EdgeKit."""
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise ValueError("no schema")  # noqa: TRY004 - one message for both
    if data["schema"] > SCHEMA:
        raise SourceError(
            f"{path} was made by a newer EdgeKit (schema {data['schema']}, this one knows {SCHEMA}): upgrade"
        )
    return Calibration(
        hosts=_rows(HostMeasured, data.get("hosts"), MOST_HOSTS),
        engines=_rows(EngineMeasured, data.get("engines"), MOST_ENGINES),
        differences=_rows(Difference, data.get("differences"), MOST_DIFFERENCES),
    )


def _rows(kind: type[T], data: object, most: int) -> tuple[T, ...]:
    """The rows of a list, each a dataclass of this kind; ValueError if there are more than `most`."""
    if not isinstance(data, list) or len(data) > most:
        raise ValueError(f"not a list of up to {most}")
    return tuple(_row(kind, item) for item in data)


def _row(kind: type[T], data: object) -> T:
    """A dataclass from its JSON; the type of each field says what its value must be. Fields with a default may be
    missing: earlier versions did not write them all.
    """
    columns = fields(kind)
    types = {column.name: str(column.type) for column in columns}
    required = {column.name for column in columns if column.default is MISSING}
    if not isinstance(data, dict) or not required <= set(data) <= set(types):
        raise ValueError(f"{kind.__name__}: other names than {', '.join(sorted(types))}")
    values = dict(data)
    for name, value in data.items():
        type_name = types[name].removesuffix(" | None")
        is_optional = type_name != types[name]
        if value is None and is_optional:
            continue
        if type_name in _NESTED:
            values[name] = _row(_NESTED[type_name], value)
            continue
        is_valid = _CHECKS.get(name) or _CHECKS[type_name]
        if not is_valid(value):
            raise ValueError(f"{name}: {value!r:.40}")
    return kind(**values)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable()


def _is_date(value: object) -> bool:
    """Whether it is a date such as "2026-11-16". ValueError for ten characters that are not a date."""
    return isinstance(value, str) and len(value) == 10 and bool(date.fromisoformat(value))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_rate(value: object) -> bool:
    """Whether it is a plausible number of tokens per second, so that the ratio of two can be shown."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return _SLOWEST <= value < _FASTEST


def _is_bandwidth(value: object) -> bool:
    return type(value) is int and 0 < value < LARGEST


_NESTED: dict[str, type[Disk | EngineSpeed]] = {"Disk": Disk, "EngineSpeed": EngineSpeed}
# By the name of a field, else by its type.
_CHECKS: dict[str, Callable[[object], bool]] = {
    "date": _is_date,
    "bandwidth_bytes_per_s": _is_bandwidth,
    "read_bytes_per_s": _is_bandwidth,
    "write_bytes_per_s": _is_bandwidth,
    "str": _is_text,
    "int": _is_count,
    "float": _is_rate,
}


# -- writing ---------------------------------------------------------------------------------


def change_calibration(change: Callable[[Calibration], Calibration]) -> Stored:
    """Apply `change` to the stored calibration and return the result; `problem` says what was moved aside.

    Raises SourceError if it cannot be written.
    """
    path = create_data_folder("what was measured") / NAME
    with _locked(path.parent / LOCK):
        before = _read_or_move_aside(path)
        after = replace(before, calibration=change(before.calibration))
        _write(path, after.calibration)
    return after


def forget_calibration() -> Stored:
    """Delete the file and return what it contained. A file that cannot be read is moved aside instead."""
    folder = data_folder()
    if folder is None or not os.path.lexists(folder / NAME):
        return Stored()
    with _locked(folder / LOCK):
        before = _read_or_move_aside(folder / NAME)
        try:
            (folder / NAME).unlink(missing_ok=True)
        except OSError as error:
            raise SourceError(f"{folder / NAME} cannot be removed: {error.strerror}") from error
    return before


def _read_or_move_aside(path: Path) -> Stored:
    """The content of the file. A damaged file is renamed, and `problem` says to what."""
    if not os.path.lexists(path):
        return Stored()
    try:
        return Stored(calibration=_read(path))
    except HeaderError as error:
        return Stored(problem=f"{error}: moved to {move_aside(path)}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks the file during the block. SourceError if another process holds the lock for WAIT_S."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    except OSError as error:
        raise SourceError(
            f"{path} cannot be written ({error.strerror}): set EDGEKIT_DATA to another folder"
        ) from error
    try:
        deadline = time.monotonic() + WAIT_S
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise SourceError(
                    f"{path} has been locked by another edgekit for {WAIT_S:g} s: wait, or stop it"
                )
            time.sleep(_RETRY_S)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, calibration: Calibration) -> None:
    """Replace the file as a whole, or not at all."""
    text = json.dumps({"schema": SCHEMA, **asdict(calibration)}, indent=1, ensure_ascii=False)
    try:
        with replacing(path) as file:
            file.write(f"{text}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SourceError(
            f"{path} cannot be written ({error.strerror}): set EDGEKIT_DATA to another folder"
        ) from error


# -- rows ------------------------------------------------------------------------------------


def today() -> str:
    return datetime.now().astimezone().date().isoformat()


def stored_text(text: str) -> str:
    """A label or name of unknown origin, shortened for the file."""
    return one_line(text, MOST_TEXT)


def with_host(calibration: Calibration, row: HostMeasured) -> Calibration:
    """The calibration with this row instead of the machine's old one, which supplies values not measured now."""
    old = next((known for known in calibration.hosts if known.host == row.host), None)
    if old is not None:
        newest = old if row.bandwidth_bytes_per_s is None else row
        row = replace(newest, disk=row.disk or old.disk)
    other_rows = [known for known in calibration.hosts if known.host != row.host]
    return replace(calibration, hosts=(*other_rows, row)[-MOST_HOSTS:])


def with_engine(calibration: Calibration, row: EngineMeasured) -> Calibration:
    """The calibration with this row instead of the engine's old one, but with the larger overhead of the two: the next
    model may need that much.
    """
    old = next((known for known in calibration.engines if known.key == row.key), None)
    if old is not None:
        row = replace(row, samples=old.samples + row.samples, pace=row.pace or old.pace)
        if old.overhead_bytes is not None and (row.overhead_bytes or 0) <= old.overhead_bytes:
            row = replace(row, overhead_bytes=old.overhead_bytes, overhead_label=old.overhead_label)
    other_rows = [known for known in calibration.engines if known.key != row.key]
    return replace(calibration, engines=(*other_rows, row)[-MOST_ENGINES:])


def with_differences(calibration: Calibration, rows: Iterable[Difference]) -> Calibration:
    """The calibration with these rows at the end; each replaces an older one of the same model, part and version."""
    by_key = {(row.label, row.part, row.version): row for row in calibration.differences}
    for row in rows:
        key = (row.label, row.part, row.version)
        by_key.pop(key, None)
        by_key[key] = row
    return replace(calibration, differences=tuple(by_key.values())[-MOST_DIFFERENCES:])


# -- measurements of one machine -------------------------------------------------------------


def host_key(machine: Machine) -> str:
    """Identifies a machine by processor, cores and memory: several may share a home folder."""
    memory = 0 if machine.host is None else round(machine.host.total_bytes / GIB)
    name = stored_text(machine.processor)[:100] or "an unnamed processor"
    return f"{name}, {machine.cores or 'unknown'} cores, {memory} GiB"


def device_key(machine: Machine, cards: Iterable[Device] = ()) -> str:
    """Identifies what an engine runs on: the GPUs, or the processor."""
    names = " + ".join(card.name for card in cards)
    return stored_text(names or machine.processor or "the processor")


def measured_on(machine: Machine, calibration: Calibration) -> Measured | None:
    """Measurements on this machine with the engine versions installed now; None if there are none."""
    host = host_key(machine)
    programs = {row.through for row in calibration.engines}
    versions = {name: installed_version(name) for name in programs}
    engines = tuple(
        row
        for row in calibration.engines
        if row.host == host and row.version == versions[row.through]
    )
    host_row = next((row for row in calibration.hosts if row.host == host), None)
    if host_row is None and not engines and not calibration.differences:
        return None
    return Measured(host=host_row, engines=engines, differences=calibration.differences)


def installed_version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except (PackageNotFoundError, ValueError):  # ValueError: an empty name
        return None


# -- how busy the machine was --------------------------------------------------------------------

_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guests are in "user" already


@dataclass(slots=True)
class OtherPrograms:
    """The CPU load by other programs during a measurement."""

    share: float = 0.0  # of the CPU time of all cores, 0 to 1; set when the `with` block ends

    @property
    def note(self) -> str:
        return (
            f"other programs used {self.share * 100:.0f} % of the CPU; measure again when the "
            "machine is idle"
        )


@contextmanager
def watched() -> Iterator[OtherPrograms]:
    """Measures how much of the CPU other programs use during the block. 0 on Windows, where the CPU time of child
    processes is unknown.
    """
    others = OtherPrograms()
    begin, before_s = time.monotonic(), _other_programs_s()
    yield others
    passed_s = max(time.monotonic() - begin, 1e-3) * (os.cpu_count() or 1)
    share = min(1.0, max(0.0, (_other_programs_s() - before_s) / passed_s))
    others.share = 0.0 if sys.platform == "win32" else share


def _other_programs_s() -> float:
    """CPU time of all programs, without this one and its children."""
    import psutil

    times = psutil.cpu_times()._asdict()
    all_s = float(sum(value for name, value in times.items() if name not in _NOT_BUSY))
    ours = os.times()
    return all_s - (ours.user + ours.system + ours.children_user + ours.children_system)
