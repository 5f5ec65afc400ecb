"""A path on this machine -> the files of the model it means."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from pathlib import Path

from edgekit.errors import HeaderError, NotFoundError
from edgekit.sources.choose import choose_files
from edgekit.sources.disk import (
    LocalFile,
    Within,
    folders_in,
    is_folder,
    is_regular,
    list_folder,
    list_if_allowed,
    look_up,
    model_file,
    read_small,
    require_regular,
)
from edgekit.sources.naming import (
    CONFIG_NAME,
    INDEX_NAME,
    MODEL_SUFFIXES,
    PICKLE_SUFFIXES,
    QUANT_CONFIG_NAMES,
    shard_names,
)
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

__all__ = ["LocalFile", "locate_path", "snapshot_folder"]

_BESIDE = (CONFIG_NAME, INDEX_NAME, *QUANT_CONFIG_NAMES)
_COMMIT = re.compile(r"[A-Za-z0-9_.-]{1,64}(?<!\.)")
_MAX_REF_BYTES = 256  # a ref holds one commit of 40 characters


def locate_path(path: Path | str, reference: str, *, within: Within = None) -> ModelFiles:
    """The model at a file, a shard of a set, or a folder.

    A config.json means the geometry alone; the folder it lies in means the weights too.
    """
    path = Path(path)
    status = look_up(path)
    if stat.S_ISDIR(status.st_mode):
        return _locate_folder(path, reference, within)
    require_regular(path, status)
    lowered = path.name.lower()
    if lowered.endswith(MODEL_SUFFIXES):
        return choose_files(
            _files_with(path, within),
            reference=reference,
            label=path.name,
            origin=Origin.LOCAL,
            filename=path.name,
        )
    return _locate_unnamed(path, reference)


def _locate_folder(folder: Path, reference: str, within: Within) -> ModelFiles:
    if _is_cached_repository(folder):
        snapshot = snapshot_folder(folder)
        if snapshot is None:
            raise NotFoundError(
                f"{folder} is a cache folder without a snapshot: download the model again"
            )
        label = folder.name.removeprefix("models--").replace("--", "/")
        files, origin = list_folder(snapshot, within=within), Origin.HUB_CACHE
    else:
        label = folder.name or str(folder)
        files, origin = list_folder(folder, within=within), Origin.LOCAL
    return choose_files(files, reference=reference, label=label, origin=origin)


def _is_cached_repository(folder: Path) -> bool:
    """refs/ is missing where only a commit was ever asked for."""
    named = folder.name.startswith("models--") or is_folder(folder / "refs")
    return named and is_folder(folder / "snapshots")


def _files_with(path: Path, within: Within) -> tuple[ModelFile, ...]:
    """The file, the rest of its set, and what goes with it."""
    folder, lowered = path.parent, path.name.lower()
    # By name, not from a listing: the folder may be a huge one.
    names = (path.name, *shard_names(path.name), *_BESIDE)
    paths = {name: folder / name for name in names if is_regular(folder / name)}
    found = {name: model_file(path) for name, path in paths.items()}
    if lowered.endswith((".gguf", ".index.json")):
        suffix = ".gguf" if lowered.endswith(".gguf") else ".safetensors"
        beside = list_if_allowed(folder, depth=1, within=within)
        found |= {file.name: file for file in beside if file.name.lower().endswith(suffix)}
    return tuple(found.values())


def _locate_unnamed(path: Path, reference: str) -> ModelFiles:
    """A file whose name does not say what it is: its first bytes do."""
    file = LocalFile(path)
    try:
        start, size_bytes = file.read(0, 9), file.size_bytes
    finally:
        file.close()
    found = ModelFiles(
        reference=reference,
        label=path.name,
        origin=Origin.LOCAL,
        container=Container.GGUF,
        weights=(model_file(path),),
    )
    if start.startswith(b"GGUF"):
        return found
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size_bytes - 8:
        return replace(found, container=Container.SAFETENSORS)
    if path.name.lower().endswith(PICKLE_SUFFIXES):
        raise HeaderError(
            "not read, because unpickling runs code: give its config.json", file=str(path)
        )
    what = f"starts with {start[:4]!r}" if start else "is empty"
    raise HeaderError(f"neither GGUF nor safetensors: the file {what}", file=str(path))


def snapshot_folder(repository: Path, revision: str | None = None) -> Path | None:
    """The snapshot that a revision means in one repository of the hub's cache (refs/, snapshots/).

    A commit means itself. Without a revision: main, else the newest. None when it is not there.
    """
    name = revision or "main"
    if any(part in {"", ".", ".."} for part in name.split("/")) or set(name) & set("\\:"):
        return None
    ref = read_small(repository / "refs" / name, limit=_MAX_REF_BYTES) or name.encode()
    commit = ref.decode("ascii", errors="replace").strip()
    snapshots = repository / "snapshots"
    if _COMMIT.fullmatch(commit) and is_folder(snapshots / commit):
        return snapshots / commit
    if revision is not None:
        return None
    return max(folders_in(snapshots), key=lambda one: look_up(one).st_mtime_ns, default=None)
