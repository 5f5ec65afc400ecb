"""What is known of LM Studio: the runtimes in its folder, each an engine that it starts itself.

Layout: extensions/backends/NAME-VERSION/backend-manifest.json of LM Studio 0.4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from edgekit.engines.program import Installation
from edgekit.errors import HeaderLimitError, one_line
from edgekit.sources.local import folders_in, read_small
from edgekit.sources.stores import lm_studio_homes

_MAX_RUNTIMES = 100  # it keeps old versions; a folder with more is not LM Studio's
_MAX_FILE_BYTES = 1024 * 1024  # a manifest has 2 KB, release notes 100 KB
_RELEASE = re.compile(r"llama\.cpp release b(\d{4,6})\b")
_VERSION = re.compile(r"\d+(\.\d+){1,3}")
_NAME_CHARS = 40
# Its builds are changed ones that find their GPU libraries in another folder, and are loaded with LM Studio's own
# settings; starting them past LM Studio would also load a second copy of a model that it has loaded.
_PROBLEM = "only LM Studio can start it; load the model there, or with `lms load`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An engine that LM Studio has downloaded."""

    folder: Path
    engine: str  # LM Studio's name of it: "llama.cpp", "mlx"
    version: str  # LM Studio's own
    backend: str  # "CUDA", "Vulkan", "Metal", "ROCm", "CPU"
    release: str  # of llama.cpp: "b9294"; "": not stated


def runtimes(engine: str) -> tuple[Runtime, ...]:
    """The runtimes of one engine, the newest first."""
    found = (
        runtime
        for home in lm_studio_homes()
        for folder in islice(folders_in(home / "extensions" / "backends"), _MAX_RUNTIMES)
        if (runtime := _read_runtime(folder)) is not None and runtime.engine.startswith(engine)
    )
    return tuple(sorted(found, key=lambda runtime: _numbers(runtime.version), reverse=True))


def installations(engine: str, rules_version: str) -> Iterator[Installation]:
    """LM Studio as one installation, in the newest version of its runtimes; none without it."""
    found = runtimes(engine)
    newest = [runtime for runtime in found if runtime.version == found[0].version]
    if newest:
        release = next((runtime.release for runtime in newest if runtime.release), "")
        yield Installation(
            program="lm-studio",
            origin="LM Studio",
            path=str(newest[0].folder.parent),
            version=newest[0].version,
            build=release,
            backends=tuple(dict.fromkeys(runtime.backend for runtime in newest)),
            rules_version=release or rules_version,
            problem=_PROBLEM,
        )


def _read_runtime(folder: Path) -> Runtime | None:
    """The runtime in a folder; None if its manifest is not one."""
    manifest = _read_json(folder / "backend-manifest.json")
    if not isinstance(manifest, dict):
        return None
    version, engine = str(manifest.get("version", "")), str(manifest.get("engine", ""))
    if not _VERSION.fullmatch(version):
        return None
    gpu = manifest.get("gpu")
    backend = str(gpu.get("framework") or gpu.get("make") or "CPU") if isinstance(gpu, dict) else ""
    return Runtime(
        folder=folder,
        engine=engine,
        version=version,
        backend=one_line(backend, _NAME_CHARS) or "CPU",
        release=_release(_read_json(folder / "display-data.json"), version),
    )


def _release(display: Any, version: str) -> str:
    """The release of llama.cpp that the notes on this version state: [["en", {"releaseNotes": [{...}]}], ...]."""
    with suppress(TypeError, KeyError, AttributeError, ValueError):
        for _, texts in display:
            for note in texts["releaseNotes"]:
                if str(note["version"]) == version and (
                    match := _RELEASE.search(str(note["releaseNotes"]))
                ):
                    return f"b{match[1]}"
    return ""


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_small(path, limit=_MAX_FILE_BYTES) or b"null")
    except (ValueError, RecursionError, HeaderLimitError):
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
