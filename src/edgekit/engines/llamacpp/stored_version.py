"""The version of the llama.cpp that `run` starts, stored until the programs or the GPUs of this machine change."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.engines.discovery import FoundProgram, find_programs
from edgekit.engines.llamacpp.types import SERVER, WHEEL, installed_version, read_version
from edgekit.errors import UsageError
from edgekit.machine.probes import detect
from edgekit.machine.surroundings import Surroundings, bytes_of
from edgekit.machine.types import System
from edgekit.sources.folders import cache_root
from edgekit.sources.local import replacing

if TYPE_CHECKING:  # only to name a type: `check` imports this module
    from edgekit.engines.program import Installation

_FILE = "llama_cpp_version.json"
_FAILED_S = 3600.0  # a program that hangs is not waited for by every command
_MAX_BYTES = 64 * 1024  # of this file, which has some hundred


def find_servers(here: Surroundings) -> tuple[FoundProgram, ...]:
    """Every llama-server on this machine."""
    return find_programs(SERVER, here, _package_folders(here))


def _package_folders(here: Surroundings) -> Iterator[tuple[str, Path]]:
    """Where winget and Scoop put llama.cpp, with or without links in a folder of the PATH."""
    if here.system is not System.WINDOWS:
        return
    if local := here.environment.get("LOCALAPPDATA"):
        packages = Path(local) / "Microsoft" / "WinGet" / "Packages"
        yield from (("winget", folder) for folder in packages.glob("ggml.llamacpp_*"))
    home = here.environment.get("USERPROFILE", "")
    if scoop := here.environment.get("SCOOP") or (home and str(Path(home) / "scoop")):
        yield from (
            ("Scoop", folder) for folder in (Path(scoop) / "apps").glob("llama.cpp*/current")
        )


def store_version(installations: Sequence[Installation], servers: Sequence[FoundProgram]) -> str:
    """The version of the first of these installations that `run` can start, "" if none; stored for the next time.

    If a program has failed, only for an hour: it may work later.
    """
    started = [item for item in installations if item.program in {WHEEL, SERVER}]
    name = next((item.rules_version for item in started if not item.problem), "")
    has_failed = any(
        item.problem and not (item.program == SERVER and item.version) for item in started
    )
    folder = cache_root()
    if folder is not None and servers:
        answer: dict[str, object] = {"programs": _key(servers), "version": name}
        if has_failed:
            answer["until_s"] = time.time() + _FAILED_S
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / _FILE) as file:
                file.write(json.dumps(answer).encode())
    return name


def stored_version(servers: Sequence[FoundProgram]) -> str | None:
    """What `store_version` returned for these programs; None if it did not store it."""
    folder = cache_root()
    data = None if folder is None else bytes_of(folder / _FILE, _MAX_BYTES)
    with suppress(ValueError, TypeError, RecursionError, UsageError):
        stored = json.loads(data or b"null")
        if isinstance(stored, dict) and stored.get("programs") == _key(servers):
            if stored.get("until_s", math.inf) < time.time():
                return None
            name = str(stored.get("version"))
            if name:
                read_version(name)
            return name
    return None


def _key(servers: Sequence[FoundProgram]) -> str:
    """What the answer depends on: the wheel, the files of the programs, and the GPUs."""
    files: list[tuple[str, int, int]] = []
    for server in servers:
        with suppress(OSError):
            facts = server.path.stat()
            files.append((str(server.path), facts.st_size, facts.st_mtime_ns))
    return json.dumps([installed_version(), files, [card.name for card in detect().devices]])
