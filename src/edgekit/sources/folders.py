"""A folder -> the models in it, each by the path that names it."""

from __future__ import annotations

import os
from pathlib import Path

from edgekit.sources.disk import is_folder, list_folder
from edgekit.sources.naming import CONFIG_NAME, base_of, folder_of, group_shards


def models_in(path: str) -> tuple[str, ...]:
    """Paths of the models in a folder of them, sorted; `path` itself where it is one model, or no folder.

    Every GGUF or set of shards is a model, and every folder with a config.json. SourceError where it may not be listed.
    """
    folder = _expanded(path)
    if not is_folder(folder) or (folder / CONFIG_NAME).exists() or _is_cached(folder):
        return (path,)
    files = list_folder(folder)
    sets = [one for one in group_shards(files, ".gguf") if not one.is_companion]
    found = {one.files[0].name for one in sets}
    found |= {folder_of(file.name) for file in files if base_of(file.name) == CONFIG_NAME}
    names = sorted(name for name in found if name)
    return tuple(str(folder / name) for name in names) if len(names) > 1 else (path,)


def is_here(name: str, *, whole: bool = False) -> bool:
    """Whether it is a path on this machine that is there; `whole`: one that does not depend on where we are."""
    return (not whole or Path(name).is_absolute()) and os.path.lexists(_expanded(name))


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError):  # "~nobody/models": no such user; a name with a NUL
        return Path(path)


def _is_cached(folder: Path) -> bool:
    return is_folder(folder / "snapshots")
