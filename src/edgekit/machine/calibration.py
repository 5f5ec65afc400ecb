"""What was measured on this machine -> one JSON file in the user's data folder, and back.

Whoever changes it holds a lock beside it, reads it again, and puts a whole new file in its place: so nothing of another
is lost. A file that is damaged, or somebody else's, is told and left out; before a new one takes its place it is moved
aside, never overwritten.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, TypeVar

from edgekit.errors import HeaderError, SourceError
from edgekit.machine.types import (
    Calibration,
    Difference,
    Disk,
    EngineMeasured,
    HostMeasured,
    Measured,
    Pace,
)
from edgekit.sources.local import data_folder, made_data_folder, open_file, try_lock
from edgekit.terminal import one_line
from edgekit.units import GIB, LARGEST, MIB

if TYPE_CHECKING:
    from edgekit.machine.types import Device, Machine


NAME = "calibration.json"
LOCK = "calibration.lock"
SCHEMA = 1
MAX_FILE_BYTES = MIB  # the longest rows, as many as are kept, take some 600 KB
MOST_HOSTS = 32  # machines that share one home
MOST_ENGINES = 64
MOST_DIFFERENCES = 64
MOST_TEXT = 160  # characters of a label or a name
WAIT_S = 20.0  # for another that writes
_RETRY_S = 0.02
_REPLACE_S = 2.0  # Windows replaces no file that somebody is reading just now
_SLOWEST, _FASTEST = (
    1e-6,
    1e12,
)  # tokens a second: one in eleven days, and more than any machine has

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the file has; where it cannot be used, nothing, and why."""

    calibration: Calibration = field(default_factory=Calibration)
    problem: str = ""


# -- reading ---------------------------------------------------------------------------------


def read_calibration() -> Stored:
    """Never raises, and makes nothing."""
    folder = data_folder()
    if folder is None or not os.path.lexists(folder / NAME):
        return Stored()
    try:
        return Stored(calibration=_read(folder / NAME))
    except (HeaderError, SourceError) as error:
        return Stored(problem=f"{error}; ignoring earlier measurements")


def _read(path: Path) -> Calibration:
    """Raises HeaderError for a file that is not ours, SourceError for one that cannot be read."""
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
        return _parsed(json.loads(raw), path)
    except (ValueError, TypeError, RecursionError) as error:
        told = one_line(str(error), 100)
        raise HeaderError(f"a damaged calibration ({told})", file=str(path)) from error


def _parsed(data: Any, path: Path) -> Calibration:
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise ValueError("no schema")  # noqa: TRY004 - both are told as one
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
    if not isinstance(data, list) or len(data) > most:
        raise ValueError(f"not a list of up to {most}")
    return tuple(_row(kind, one) for one in data)


def _row(kind: type[T], data: object) -> T:
    named = {one.name for one in fields(kind)}  # type: ignore[arg-type] # all are dataclasses
    if not isinstance(data, dict) or set(data) != named:
        raise ValueError(f"{kind.__name__}: other names than {', '.join(sorted(named))}")
    return kind(**{name: _value(name, value) for name, value in data.items()})


def _value(name: str, value: object) -> object:
    if name in _NESTED:
        return None if value is None else _row(_NESTED[name], value)
    if (value is None and name in _MAY_BE_NOTHING) or _CHECKS.get(name, _is_text)(value):
        return value
    raise ValueError(f"{name}: {value!r:.40}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable()


def _is_date(value: object) -> bool:
    return isinstance(value, str) and len(value) == 10 and bool(date.fromisoformat(value))


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_rate(value: object) -> bool:
    """Tokens a second that a machine can have: a quotient of two of them is a number that can be shown."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return _SLOWEST <= value < _FASTEST


def _is_bandwidth(value: object) -> bool:
    return type(value) is int and 0 < value < LARGEST


_NESTED: dict[str, type] = {"disk": Disk, "pace": Pace}
_MAY_BE_NOTHING = frozenset(
    {"bandwidth_bytes_per_s", "overhead_bytes", "expected_decode", "expected_prefill"}
)
_CHECKS: dict[str, Callable[[object], bool]] = {
    "date": _is_date,
    **dict.fromkeys(
        (
            "overhead_bytes",
            "samples",
            "bytes_per_token",
            "prompt_tokens",
            "predicted_bytes",
            "measured_bytes",
        ),
        _is_whole,
    ),
    **dict.fromkeys(
        ("bandwidth_bytes_per_s", "read_bytes_per_s", "write_bytes_per_s"), _is_bandwidth
    ),
    **dict.fromkeys(
        ("decode_tokens_per_s", "prefill_tokens_per_s", "expected_decode", "expected_prefill"),
        _is_rate,
    ),
}


# -- writing ---------------------------------------------------------------------------------


def change_calibration(change: Callable[[Calibration], Calibration]) -> Stored:
    """The calibration as it is after the change; `problem` says what was moved aside for it.

    Raises SourceError where it cannot be written.
    """
    path = made_data_folder("what was measured") / NAME
    with _locked(path.parent / LOCK):
        before, problem = _kept_or_aside(path)
        after = change(before)
        _write(path, after)
    return Stored(calibration=after, problem=problem)


def forget_calibration() -> Stored:
    """What there was, gone now. A file that cannot be read is moved aside instead, and told."""
    folder = data_folder()
    if folder is None or not os.path.lexists(folder / NAME):
        return Stored()
    with _locked(folder / LOCK):
        before, problem = _kept_or_aside(folder / NAME)
        try:
            (folder / NAME).unlink(missing_ok=True)
        except OSError as error:
            raise SourceError(f"{folder / NAME} cannot be removed: {error.strerror}") from error
    return Stored(calibration=before, problem=problem)


def _kept_or_aside(path: Path) -> tuple[Calibration, str]:
    if not os.path.lexists(path):
        return Calibration(), ""
    try:
        return _read(path), ""
    except HeaderError as error:
        aside = _free_name(path)
        try:
            path.rename(aside)
        except OSError as why:
            raise SourceError(f"{path} cannot be moved aside: {why.strerror}") from why
        return Calibration(), f"{error}: moved to {aside}"


def _free_name(path: Path) -> Path:
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")):
        number += 1
    return aside


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    except OSError as error:
        raise SourceError(
            f"{path} cannot be written ({error.strerror}): set EDGEKIT_DATA to another folder"
        ) from error
    try:
        end = time.monotonic() + WAIT_S
        while not try_lock(descriptor):
            if time.monotonic() > end:
                raise SourceError(
                    f"{path} has been locked by another edgekit for {WAIT_S:g} s: wait, or stop it"
                )
            time.sleep(_RETRY_S)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, calibration: Calibration) -> None:
    """Whole or not at all."""
    told = json.dumps({"schema": SCHEMA, **asdict(calibration)}, indent=1, ensure_ascii=False)
    try:
        handle, part = mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(f"{told}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            _replace(Path(part), path)
        except BaseException:
            with suppress(OSError):
                Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SourceError(
            f"{path} cannot be written ({error.strerror}): set EDGEKIT_DATA to another folder"
        ) from error


def _replace(part: Path, path: Path) -> None:
    end = time.monotonic() + _REPLACE_S
    while True:
        try:
            part.replace(path)
        except PermissionError:
            if os.name != "nt" or time.monotonic() > end:
                raise
            time.sleep(_RETRY_S)
        else:
            return


# -- rows ------------------------------------------------------------------------------------


def today() -> str:
    return datetime.now().astimezone().date().isoformat()


def told_text(text: str) -> str:
    """A stranger's label or name, as it may be kept."""
    return one_line(text, MOST_TEXT)


def with_host(calibration: Calibration, row: HostMeasured) -> Calibration:
    """In place of what was known of that machine; what could not be measured this time stays."""
    old = next((one for one in calibration.hosts if one.host == row.host), None)
    if old is not None:
        newest = old if row.bandwidth_bytes_per_s is None else row
        row = replace(newest, disk=row.disk or old.disk)
    others = [one for one in calibration.hosts if one.host != row.host]
    return replace(calibration, hosts=(*others, row)[-MOST_HOSTS:])


def with_engine(calibration: Calibration, row: EngineMeasured) -> Calibration:
    """The largest overhead is kept: the next model may be like the one that needed most."""
    old = next((one for one in calibration.engines if one.key == row.key), None)
    if old is not None:
        row = replace(
            _larger(old, row), samples=old.samples + row.samples, pace=row.pace or old.pace
        )
    others = [one for one in calibration.engines if one.key != row.key]
    return replace(calibration, engines=(*others, row)[-MOST_ENGINES:])


def _larger(old: EngineMeasured, new: EngineMeasured) -> EngineMeasured:
    if old.overhead_bytes is None or (new.overhead_bytes or 0) > old.overhead_bytes:
        return new
    return replace(new, overhead_bytes=old.overhead_bytes, overhead_label=old.overhead_label)


def with_differences(calibration: Calibration, rows: Iterable[Difference]) -> Calibration:
    """The newest last; the same difference of the same version once."""
    found = {(one.label, one.part, one.version): one for one in calibration.differences}
    for row in rows:
        key = (row.label, row.part, row.version)
        found.pop(key, None)
        found[key] = row
    return replace(calibration, differences=tuple(found.values())[-MOST_DIFFERENCES:])


# -- of one machine --------------------------------------------------------------------------


def host_key(machine: Machine) -> str:
    """The same for the same processor with as many cores and as much memory: several machines may share a home."""
    memory = 0 if machine.host is None else round(machine.host.total_bytes / GIB)
    name = told_text(machine.processor)[:100] or "an unnamed processor"
    return f"{name}, {machine.cores or 'unknown'} cores, {memory} GiB"


def device_key(machine: Machine, cards: Iterable[Device] = ()) -> str:
    """What an engine computes on: the cards, or the processor."""
    names = " + ".join(card.name for card in cards)
    return told_text(names or machine.processor or "the processor")


def measured_on(
    machine: Machine, calibration: Calibration, installed: Callable[[str], str | None] | None = None
) -> Measured | None:
    """None where nothing was. What another version of an engine did does not count for the one that is here now."""
    host = host_key(machine)
    installed = installed or installed_version
    versions = {name: installed(name) for name in {one.through for one in calibration.engines}}
    engines = tuple(
        one
        for one in calibration.engines
        if one.host == host and one.version == versions[one.through]
    )
    found = next((one for one in calibration.hosts if one.host == host), None)
    if found is None and not engines and not calibration.differences:
        return None
    return Measured(host=found, engines=engines, differences=calibration.differences)


def installed_version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except (PackageNotFoundError, ValueError):  # ValueError: no name at all
        return None


_NOT_BUSY = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guests are in "user" already


@dataclass(slots=True)
class Others:
    share: float = 0.0  # of all cores, from 0 to 1; set at the end of the block

    @property
    def note(self) -> str:
        return (
            f"other programs used {self.share * 100:.0f} % of the CPU; measure again when the "
            "machine is idle"
        )


@contextmanager
def watched() -> Iterator[Others]:
    """On Windows the time of child processes is unknown: nothing counts as other programs'."""
    others = Others()
    begin, busy_s, own_s = time.monotonic(), _busy_s(), _own_s()
    yield others
    passed_s = max(time.monotonic() - begin, 1e-3) * (os.cpu_count() or 1)
    taken_s = (_busy_s() - busy_s) - (_own_s() - own_s)
    others.share = 0.0 if sys.platform == "win32" else min(1.0, max(0.0, taken_s / passed_s))


def _busy_s() -> float:
    """Of all cores, by all programs."""
    import psutil

    times = psutil.cpu_times()._asdict()
    return float(sum(value for name, value in times.items() if name not in _NOT_BUSY))


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
