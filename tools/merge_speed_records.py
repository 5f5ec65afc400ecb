"""Records of `edgekit calibrate --share` -> a file of points for score_speed.py and fit_speed.py.

    python tools/merge_speed_records.py RECORDS.jsonl... [--into docs/data/shared_speeds.jsonl]

Anybody may have written the files, so every field of every record is checked: its type, its range, and that it names
nobody. A record must also be one that EdgeKit can price, and its speeds must be possible. Refused records are listed
with their line and the reason, and the exit code is 1; the others are added, each once.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.score_speed import scored_point
from tools.speed_points import UnknownError, points_of
from tools.speed_rows import read_rows

from edgekit.app.shared_speed import (
    CPU,
    LICENCE,
    MAX_FILE_BYTES,
    MAX_RECORDS,
    NAMES,
    RECORD,
    SOURCE,
    Record,
    as_line,
    private_part,
)
from edgekit.engines.llamacpp.run.generated import is_shape_name
from edgekit.engines.llamacpp.types import Backend
from edgekit.errors import EdgekitError, SourceError, printable, quoted
from edgekit.index.names import find_model
from edgekit.machine.devices import device_like
from edgekit.machine.processors import processor_like
from edgekit.sources.local import open_file, replacing

OUT = Path(__file__).parents[1] / "docs" / "data" / "shared_speeds.jsonl"
FIRST_DAY = date(2026, 1, 1)  # EdgeKit did not exist before
# How far a speed may be from the expected one, as a factor. Of the 1,084 points that the constants are fitted to, the
# worst are off by 2.3 for decoding and 6 for prompts. A busy machine is slower still; anything beyond these limits is a
# mistake, or a fault of the formula that a person has to look at.
DECODE_FACTOR, PROMPT_FACTOR = 10.0, 40.0
INSTRUCTIONS = frozenset({
    "sse", "avx", "f16c", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx", "neon", "dotprod", "i8mm", "sve",
})  # fmt: skip

Check = Callable[[Any], str]  # '' or what is wrong with the value


class RefusedError(Exception):
    """Why a record is refused."""


# -- fields ----------------------------------------------------------------------------------


def exactly(*expected: Any) -> Check:
    words = " or ".join(map(repr, expected))

    def check(value: Any) -> str:
        is_one = any(type(value) is type(one) and value == one for one in expected)
        return "" if is_one else f"must be {words}"

    return check


def whole(least: int, most: int, *, optional: bool = False) -> Check:
    def check(value: Any) -> str:
        if value is None and optional:
            return ""
        is_inside = type(value) is int and least <= value <= most
        return "" if is_inside else f"must be a whole number from {least:,} to {most:,}"

    return check


def number(least: float, most: float, *, optional: bool = False) -> Check:
    def check(value: Any) -> str:
        if value is None and optional:
            return ""
        is_inside = type(value) in {int, float} and least <= value <= most
        return "" if is_inside else f"must be a number from {least:g} to {most:g}"

    return check


def text(pattern: str, words: str) -> Check:
    """Text that matches as a whole and names nobody."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            return f"must be {words}"
        kind = private_part(value)
        return f"contains {kind}" if kind else ""

    return check


def day(value: Any) -> str:
    try:
        parsed = date.fromisoformat(value) if len(value) == 10 else None
    except (TypeError, ValueError):
        parsed = None
    if parsed is None:
        return 'must be a date such as "2026-11-16"'
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)  # where the day has begun already
    return (
        ""
        if FIRST_DAY <= parsed <= tomorrow
        else f"must not be before {FIRST_DAY} or in the future"
    )


def instructions(value: Any) -> str:
    names = value.split(" ") if isinstance(value, str) and value else []
    is_known = isinstance(value, str) and names == sorted(set(names)) and set(names) <= INSTRUCTIONS
    return "" if is_known else "must be known instruction sets in alphabetical order"


def model_name(value: Any) -> str:
    """'' for a generated model, and for the id of one in the index that everybody has."""
    if not isinstance(value, str) or not re.fullmatch("[a-z0-9][a-z0-9_.@=,:+-]{0,159}", value):
        return "must be the id of a model in the index, or a generated shape"
    if is_shape_name(value):
        return ""
    try:
        entry = find_model(value).entry
    except EdgekitError:
        entry = None
    is_public = entry is not None and entry.id == value and not entry.is_users
    return "" if is_public else "is not in EdgeKit's own index"


HARDWARE = text(
    r"[A-Za-z0-9][ -~]{0,95}", "the name of a processor or card, of up to 96 characters"
)
CHECKS: dict[str, Check] = {
    "record": exactly(RECORD),
    "date": day,
    "edgekit": text(r"[0-9][0-9A-Za-z.+-]{0,30}", "a version"),
    "source": exactly(SOURCE),
    "licence": exactly(LICENCE),
    "hardware": HARDWARE,
    "gpu_count": whole(1, 64),
    "vram_gb": whole(1, 2**16, optional=True),  # 64 cards of 1 TB
    "ram_gb": whole(1, 2**16, optional=True),
    "host_gb_s": number(0.5, 10_000, optional=True),  # a small board; several sockets with HBM
    "cores": whole(1, 4096, optional=True),
    "cpu": HARDWARE,
    "instructions": instructions,
    "os": exactly("linux", "macos", "windows", "other"),
    "engine": exactly("llama.cpp"),
    "engine_version": text(r"[a-z][a-z0-9-]{1,30} [0-9][0-9A-Za-z.+-]{0,40}", "a package and its version"),
    "backend": exactly(*(backend.value for backend in Backend)),
    "model": model_name,
    "quant": text(r"[A-Z][A-Z0-9_]{1,23}(?:-[A-Z0-9_]{1,20})?", "a quantisation such as Q4_K_M"),
    "context_depth": exactly(0),
    "users": exactly(1),
    "prompt_tokens": whole(1, 8192),
    "gen_tokens": whole(1, 8192),
    "ubatch": whole(1, 65_536),
    "ngl": exactly(None),
    "ncmoe": exactly(None),
    "placement": exactly("full", CPU),
    "e2e": exactly(False),
    "pp_tok_s": number(0.01, 1e6),
    "tg_tok_s": number(0.001, 1e5),
}  # fmt: skip


def check_record(record: Any) -> Record:
    """The record with its fields in the usual order. Raises RefusedError with everything that is wrong."""
    if not isinstance(record, dict):
        raise RefusedError("not an object")
    missing = [name for name in NAMES if name not in record]
    unknown = [quoted(name) for name in record if name not in CHECKS]
    wrong = [f"missing: {', '.join(missing)}"] if missing else []
    wrong += [f"unknown: {', '.join(unknown[:5])}"] if unknown else []
    for name, check in CHECKS.items():
        if name in record and (problem := check(record[name])):
            wrong.append(f"{name} {problem} (got {quoted(record[name])})")
    if wrong:
        raise RefusedError("; ".join(wrong))
    if (record["backend"] == CPU) is not (record["placement"] == CPU):
        raise RefusedError("backend and placement contradict each other")
    _check_speeds(record)
    return {name: record[name] for name in NAMES}


def _check_speeds(record: Record) -> None:
    """Raises RefusedError if the record cannot be priced or its speeds are impossible. A device that the table does not
    have yet is welcome: there is nothing to compare its speeds with.
    """
    try:
        for point in points_of(record):
            if point.placement.cards and len(point.placement.cards) != record["gpu_count"]:
                raise RefusedError(
                    "hardware must name one device; gpu_count says how many there are"
                )
            scored = scored_point(point)
            if scored is None:
                continue
            name, most = (
                ("pp_tok_s", PROMPT_FACTOR) if point.is_prompt else ("tg_tok_s", DECODE_FACTOR)
            )
            if abs(scored.error) > math.log(most):
                raise RefusedError(
                    f"{name} {point.measured:g} is {math.exp(scored.error):.3g} times the expected "
                    f"{scored.typical:.4g}: more than a factor of {most:g} off"
                )
    except UnknownError as error:
        if error.part != "device":
            raise RefusedError(f"unknown {error}") from error
    except (EdgekitError, ValueError, OverflowError) as error:
        raise RefusedError(f"cannot be priced: {error}") from error


# -- files -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a file: its record, or why it is refused."""

    place: str  # "records.jsonl, line 3"
    record: Record | None = None
    reason: str = ""


def lines_of(path: Path) -> Iterator[Line]:
    """Every line of a file that is not blank. A file that is too long is refused as a whole."""
    if path.exists() and not path.is_file():
        yield Line(place=str(path), reason="not a file of records")
        return
    try:
        with open_file(path) as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, SourceError) as error:
        yield Line(place=str(path), reason=str(error))
        return
    lines = raw.split(b"\n")
    if len(raw) > MAX_FILE_BYTES or len(lines) > MAX_RECORDS + 1:
        yield Line(
            place=str(path), reason=f"longer than {MAX_FILE_BYTES:,} bytes or {MAX_RECORDS:,} lines"
        )
        return
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}, line {line_number}"
        try:
            record = json.loads(line, object_pairs_hook=_object, parse_constant=_no_constant)
            yield Line(place=place, record=check_record(record))
        except RefusedError as error:
            yield Line(place=place, reason=str(error))
        except (ValueError, RecursionError) as error:
            yield Line(place=place, reason=f"not JSON: {error}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise RefusedError("a field appears twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise RefusedError(f"{name} is not a number")


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What became of the lines."""

    added: int
    twice: int  # that the file or the others had already
    refused: tuple[Line, ...]
    names: tuple[
        str, ...
    ]  # of devices and processors that no table has: only a person can tell what they say


def merge(paths: list[Path], into: Path) -> Merged:
    """Adds the good records of the files to `into`. Raises OSError and ValueError if it cannot be read or written."""
    into = into.resolve()  # a link stays a link
    if into.exists() and not into.is_file():
        raise ValueError(f"{into} is not a file: give another name to --into")
    old = read_rows(into) if into.exists() else []
    known = {as_line(row) for row in old}
    added: list[str] = []
    names: dict[str, None] = {}
    twice, refused = 0, []
    for path in paths:
        for line in lines_of(path):
            if line.record is None:
                refused.append(line)
            elif (text_line := as_line(line.record)) in known:
                twice += 1
            else:
                known.add(text_line)
                added.append(text_line)
                names |= dict.fromkeys(_new_names(line.record))
    if added:
        with replacing(into) as file:
            file.write("".join(f"{line}\n" for line in [*map(json.dumps, old), *added]).encode())
    return Merged(added=len(added), twice=twice, refused=tuple(refused), names=tuple(names))


def _new_names(record: Record) -> Iterator[str]:
    for name in (record["hardware"], record["cpu"]):
        if device_like(name) is None and processor_like(name) is None:
            yield name


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, default=OUT, metavar="FILE")
    arguments = parser.parse_args(argv)
    try:
        merged = merge(arguments.records, arguments.into)
    except (OSError, ValueError) as error:
        print(f"merge_speed_records: {error}", file=sys.stderr)
        return 2
    for line in merged.refused:
        print(printable(f"refused: {line.place}: {line.reason}"), file=sys.stderr)
    refused = len(merged.refused)
    print(
        f"{merged.added} added to {arguments.into}, {merged.twice} already there, {refused} refused"
    )
    for name in merged.names:
        print(f"not in EdgeKit's tables, read it before you publish the file: {name}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
