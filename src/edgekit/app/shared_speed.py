"""`calibrate --share`: a measured speed as one line of JSON, with nothing in it about the person or the place.

The fields are those of the points that tools/score_speed.py and tools/fit_speed.py read; a record has all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekit.engines import default_engine, engine_named
from edgekit.engines.entries import open_entry
from edgekit.errors import EdgekitError, OutputError, UsageError, one_line
from edgekit.formats.mixes import mix_by_name, plain_mix, stated_mix
from edgekit.index.names import find_model
from edgekit.machine.calibration import device_key, host_key
from edgekit.machine.devices import device_like
from edgekit.machine.processors import processor_like
from edgekit.machine.types import (
    Calibration,
    Device,
    EngineMeasured,
    EngineSpeed,
    HostMeasured,
    Machine,
)
from edgekit.model import OpenModel
from edgekit.model.types import Model
from edgekit.sources.filenames import quant_tag
from edgekit.sources.local import open_file, replacing
from edgekit.units import GIB, KIB

RECORD = 1  # the version of the format
LICENCE = "CC0-1.0"
SOURCE = "edgekit calibrate"
CPU = "cpu"  # the backend of a run without a device
NAMES = (
    "record", "date", "edgekit", "source", "licence", "hardware", "gpu_count", "vram_gb", "ram_gb", "host_gb_s",
    "cores", "cpu", "instructions", "os", "engine", "engine_version", "backend", "model", "quant", "context_depth",
    "users", "prompt_tokens", "gen_tokens", "ubatch", "ngl", "ncmoe", "placement", "e2e", "pp_tok_s", "tg_tok_s",
)  # fmt: skip
MAX_FILE_BYTES = 64 * KIB  # a record takes about 750 bytes
MAX_RECORDS = 1000
_UBATCH = 512  # llama.cpp's default, which `calibrate` does not change
_MOST_NAME = 96
_PUBLIC = frozenset({"engine", "model"})  # EdgeKit's own names, whatever they look like

Record = dict[str, Any]


# -- the model -------------------------------------------------------------------------------


def with_public_model(pace: EngineSpeed | None, opened: OpenModel | None) -> EngineSpeed | None:
    """The speed with the model's name in EdgeKit's index, if it is there and has the same shape."""
    if pace is None or pace.model or opened is None:
        return pace
    try:
        entry = find_model(opened.label).entry
        if entry.is_users or not entry.has_geometry:  # its name is the user's own choice
            return pace
        known = open_entry(entry, default_engine().name).model
    except EdgekitError:
        return pace
    quant = _quant(opened)
    if _shape(known) != _shape(opened.model) or not quant:
        return pace
    return replace(pace, model=entry.id, quant=quant)


def _shape(model: Model) -> tuple[int, ...]:
    return model.geometry.hidden, len(model.geometry.layers)


def _quant(opened: OpenModel) -> str:
    """The quantisation that the file's name or its header states; '' if neither does."""
    named = quant_tag(opened.label) or ""
    stated = stated_mix(opened.model.header.keys) or ""
    return next((name for name in (named, stated) if mix_by_name(plain_mix(name))), "")


# -- records ---------------------------------------------------------------------------------


def saved_records(
    machine: Machine, calibration: Calibration
) -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """The records of what was measured on this machine, and why others are left out. UsageError if there are none."""
    key = host_key(machine)
    host = next((row for row in calibration.hosts if row.host == key), None)
    records, reasons = [], []
    for row in calibration.engines:
        if row.host == key:
            try:
                records.append(speed_record(machine, host, row))
            except UsageError as error:
                reasons.append(str(error))
    if not records:
        why = "; ".join(reasons) or "no speed of this machine is saved: run `edgekit calibrate`"
        raise UsageError(f"nothing to share: {why}")
    return tuple(records), tuple(reasons)


def speed_record(
    machine: Machine, host: HostMeasured | None, engine: EngineMeasured | None
) -> Record:
    """The record of one measured speed. Raises UsageError with the reason if it would be of no use."""
    pace = None if engine is None else engine.pace
    if engine is None or pace is None:
        raise UsageError("no speed was saved: see the notes")
    if not (pace.new_tokens and pace.backend):
        raise UsageError(
            f"{pace.label}: measured by an earlier EdgeKit; run `edgekit calibrate` again"
        )
    if not pace.model:
        raise UsageError(
            f"{pace.label} is not in EdgeKit's index, so its speed cannot be compared: "
            "run `edgekit calibrate` without a model, or with a public one"
        )
    cards = () if pace.backend == CPU else engine_named(engine.engine).devices(machine)
    if engine.device != device_key(machine, cards):
        raise UsageError(f"{engine.device}: this machine has other devices now")
    processor = _processor_name(machine)
    bandwidth = None if host is None else host.bandwidth_bytes_per_s
    vram_bytes = sum(card.total_bytes for card in cards if not card.unified)
    record: Record = {
        "record": RECORD,
        "date": pace.date,
        "edgekit": pace.edgekit,
        "source": SOURCE,
        "licence": LICENCE,
        "hardware": _card_name(cards) if cards else processor,
        "gpu_count": max(1, len(cards)),
        "vram_gb": round(vram_bytes / GIB) or None,
        "ram_gb": None if machine.host is None else max(1, round(machine.host.total_bytes / GIB)),
        "host_gb_s": None if bandwidth is None else round(bandwidth / 10**9, 1),
        "cores": machine.cores,
        "cpu": processor,
        "instructions": " ".join(sorted(machine.instructions)),
        "os": machine.system.value,
        "engine": engine.engine,
        "engine_version": f"{engine.through} {engine.version}",
        "backend": pace.backend,
        "model": pace.model,
        "quant": pace.quant,
        "context_depth": 0,
        "users": 1,
        "prompt_tokens": pace.prompt_tokens,
        "gen_tokens": pace.new_tokens,
        "ubatch": _UBATCH,
        "ngl": None,
        "ncmoe": None,
        "placement": "full" if cards else CPU,
        "e2e": False,
        "pp_tok_s": pace.prefill_tokens_per_s,
        "tg_tok_s": pace.decode_tokens_per_s,
    }
    for name, value in record.items():
        is_text = isinstance(value, str) and name not in _PUBLIC
        if is_text and (kind := private_part(value)):
            raise UsageError(f"not shared: {name} {value!r} contains {kind}")
    return record


def _card_name(cards: tuple[Device, ...]) -> str:
    """The name of the cards in the table, else the driver's. Raises UsageError if one name cannot describe them all."""
    names = {_known_card(card) for card in cards}
    if len(names) > 1:
        raise UsageError(f"a record cannot describe different GPUs: {', '.join(sorted(names))}")
    partition = next((card.partition for card in cards if card.partition), "")
    if partition:
        raise UsageError(f"a record cannot describe a part of a GPU: {partition}")
    return names.pop()


def _known_card(card: Device) -> str:
    known = device_like(card.name, memory_bytes=card.total_bytes)
    if known is None:
        return _plain(card.name)
    is_this_size = abs(known.memory_bytes - card.total_bytes) * 10 <= known.memory_bytes
    return known.name if is_this_size else known.model


def _processor_name(machine: Machine) -> str:
    known = processor_like(machine.processor) if machine.processor else None
    return known.name if known is not None else _plain(machine.processor) or "unknown processor"


def _plain(name: str) -> str:
    """A driver's name without characters such as (R) in a circle."""
    return one_line(name.encode("ascii", "ignore").decode(), _MOST_NAME)


# -- privacy ---------------------------------------------------------------------------------

_PRIVATE = (
    ("a web address", re.compile(r"://|\bwww\.", re.IGNORECASE)),
    ("an e-mail address", re.compile(r"\S@\S")),
    ("a path", re.compile(r"\\|(?:^|\s)[~.]{0,2}/|/[^/]*/|\.(?:gguf|bin|safetensors)\b|\b[A-Z]:/", re.IGNORECASE)),
    ("an IP address", re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|[0-9a-f]*:[0-9a-f]*:[0-9a-f:]*", re.IGNORECASE)),
    ("a host name", re.compile(r"\b[a-z](?:[a-z0-9-]*[a-z0-9])?\.[a-z]{2,}\b", re.IGNORECASE)),
    ("a serial number", re.compile(r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}", re.IGNORECASE)),
    ("characters that are not printable ASCII", re.compile(r"[^ -~]")),
)  # fmt: skip


def private_part(text: str) -> str:
    """What the text contains that a record must not: "a path", "a host name"; '' if nothing."""
    return next((kind for kind, pattern in _PRIVATE if pattern.search(text)), "")


# -- files -----------------------------------------------------------------------------------


def as_line(record: Record) -> str:
    return json.dumps(record, allow_nan=False)


def shared_lines(path: Path) -> tuple[str, ...]:
    """The lines of a file of records; () if there is no file yet. Raises UsageError for a file of anything else, and
    SourceError if it cannot be read.
    """
    if not path.parent.is_dir():
        raise UsageError(f"--share: there is no folder {path.parent}")
    if not path.exists():
        return ()
    if not path.is_file():
        raise UsageError(f"--share: {path} is not a file: give another name")
    try:
        with open_file(path) as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        lines = tuple(line for line in raw.decode().splitlines() if line.strip())
        are_records = len(raw) <= MAX_FILE_BYTES and all(map(_is_record, lines))
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        are_records = False
    if not are_records:
        raise UsageError(
            f"--share: {path} is not a file of speed records: it was not changed; give another name"
        )
    return lines


def _is_record(line: str) -> bool:
    """Whether the line has the fields of a record; their values do not matter here. Raises ValueError."""
    fields = json.loads(line)
    return isinstance(fields, dict) and set(fields) == set(NAMES)


def add_records(path: Path, records: Iterable[Record]) -> int:
    """Adds the records that the file does not have yet, and returns how many. Raises UsageError and OutputError."""
    old = shared_lines(path)
    new = [line for line in dict.fromkeys(map(as_line, records)) if line not in old]
    content = "".join(f"{line}\n" for line in (*old, *new)).encode()
    if len(content) > MAX_FILE_BYTES or len(old) + len(new) > MAX_RECORDS:
        raise UsageError(f"--share: {path} is full: give another name")
    if new:
        try:
            with replacing(path) as file:
                file.write(content)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error
    return len(new)
