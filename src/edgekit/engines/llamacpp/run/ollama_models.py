"""The models that EdgeKit makes in Ollama's store. Each has a record, by which what a killed EdgeKit left is found.

A record is a file of its own in the data folder: two EdgeKits never write the same one.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from edgekit.errors import HeaderLimitError, SourceError
from edgekit.sources.folders import create_data_folder, data_folder
from edgekit.sources.local import read_small

_FOLDER = "ollama"
_RECORD_BYTES = 8192
_CLOCK_S = 3600.0  # a process's start time moves when the system's clock is set


def new_name(label: str) -> str:
    """A name that no other model has, in Ollama's spelling."""
    plain = re.sub(r"[^a-z0-9._-]", "-", label.rsplit("/", maxsplit=1)[-1].lower())
    return f"edgekit-{plain.strip('._-')[:60] or 'model'}-{secrets.token_hex(4)}"


def record(model: str, store: Path) -> None:
    """Records a model before it is made. Without a data folder there is no record, and nothing is found later."""
    owner = {
        "host": platform.node(),
        "pid": os.getpid(),
        "started_s": psutil.Process().create_time(),
        "store": str(store),
    }
    with suppress(SourceError, OSError):
        folder = create_data_folder("the list of models in Ollama's store") / _FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / f"{model}.json").write_text(json.dumps(owner), encoding="utf-8")


def forget(model: str) -> None:
    """Deletes the record of a model that is no longer in the store."""
    folder = data_folder()
    if folder is not None:
        with suppress(OSError):
            (folder / _FOLDER / f"{model}.json").unlink(missing_ok=True)


def left_behind(store: Path) -> Iterator[str]:
    """The models in this store that were made by a process of this machine which has ended."""
    folder = data_folder()
    for path in sorted((folder / _FOLDER).glob("edgekit-*.json")) if folder is not None else ():
        owner: Any = None
        with suppress(HeaderLimitError, ValueError, RecursionError):
            owner = json.loads(read_small(path, limit=_RECORD_BYTES) or b"null")
        is_ours = isinstance(owner, dict) and owner.get("host") == platform.node()
        if is_ours and owner.get("store") == str(store) and not _runs(owner):
            yield path.stem


def _runs(owner: dict[str, Any]) -> bool:
    """Whether the process that made the model still runs. True for a record that cannot be understood."""
    try:
        started_s = psutil.Process(owner["pid"]).create_time()
        return bool(abs(started_s - owner["started_s"]) < _CLOCK_S)
    except psutil.Error:
        return False
    except (KeyError, TypeError, ValueError):
        return True
