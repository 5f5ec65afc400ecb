"""What was recommended -> kept on the disk, so that the same question needs no second search; and back.

Only the names of the models are kept: each is planned anew for the memory that is free then.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from edgekit import __version__
from edgekit.catalog.types import Entry
from edgekit.engines import engine_named
from edgekit.errors import HeaderLimitError
from edgekit.machine.types import Device, Machine
from edgekit.request import Request
from edgekit.sources.cache import cache_folder
from edgekit.sources.local import read_small
from edgekit.units import MIB

STEP_BYTES = 256 * MIB  # free memory goes up and down: a smaller change is the same question
MAX_KEPT_BYTES = 64 * 1024  # one answer has some 5 KB
LEFT_S = 3600  # so old a part is nobody's any more
MOST_FILES = 64  # older ones are removed


def steadied(machine: Machine) -> Machine:
    """The machine with free memory in whole steps, to find answers to the same question again; never to judge by. One
    that is only wished for stays.
    """
    if machine.what_if:
        return machine
    host = machine.host
    if host is not None:
        limits = tuple(
            replace(one, limit_bytes=one.used_bytes + _floor(one.left_bytes)) for one in host.limits
        )
        host = replace(host, free_bytes=_floor(host.free_bytes), limits=limits)
    return replace(machine, host=host, devices=tuple(map(_steadied, machine.devices)))


def _steadied(device: Device) -> Device:
    return replace(device, free_bytes=_floor(device.free_bytes), users=())


def _floor(size_bytes: int) -> int:
    return size_bytes // STEP_BYTES * STEP_BYTES


def key_of(request: Request, machine: Machine, entries: Iterable[Entry]) -> str:
    """Equal for equal questions to the same version on a machine with as much free in whole steps.

    Raises UsageError where EDGEKIT_LLAMA_VERSION names no version.
    """
    one = engine_named(request.engines[0])
    version = one.version(one.default_setup())
    seen = (
        __version__,
        version,
        replace(request, machine=None),
        _memory(machine),
        [(entry, entry.keys, entry.config) for entry in entries],
    )
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:32]


def _memory(machine: Machine) -> tuple[object, ...]:
    host = machine.host
    own = None
    if host is not None:
        own = (host.usable_bytes, host.whole_bytes, host.total_bytes, host.bandwidth_bytes_per_s)
    cards = [replace(device, users=(), because="") for device in machine.devices]
    return machine.system, machine.cores, own, repr(cards), machine.measured


def _folder() -> Path | None:
    headers = cache_folder()
    return None if headers is None else headers.parent / "recommended"


def keep(key: str, answer: Mapping[str, Any]) -> None:
    """Quietly nothing where the disk does not let us: it is only kept for speed."""
    folder = _folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as part:
            json.dump(answer, part)
        Path(part.name).replace(folder / f"{key}.json")
        _thin(folder)
    except (OSError, ValueError):
        return


def _thin(folder: Path) -> None:
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    left = [path for path in folder.glob("*.part") if time.time() - path.stat().st_mtime > LEFT_S]
    for path in (*found[MOST_FILES:], *left):
        path.unlink(missing_ok=True)


def kept(key: str) -> dict[str, Any] | None:
    """None where there is none, or where it is damaged."""
    folder = _folder()
    if folder is None:
        return None
    try:
        body = read_small(folder / f"{key}.json", limit=MAX_KEPT_BYTES)
        found = None if body is None else json.loads(body)
    except (HeaderLimitError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
