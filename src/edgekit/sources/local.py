"""A path on this machine -> the files of the model it means."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from edgekit.errors import HeaderError, HeaderLimitError, NotFoundError, SourceError
from edgekit.sources.filenames import (
    CONFIG_NAME,
    INDEX_NAME,
    MODEL_SUFFIXES,
    PICKLE_SUFFIXES,
    QUANT_CONFIG_NAMES,
    base_of,
    choose_files,
    close_names,
    folder_of,
    group_shards,
    shard_names,
)
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator


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


# The largest public model repositories list some 2,000 files. Whoever names a home folder or a disk
# hears so within a second instead of waiting for a walk over all of it.
MAX_FOLDER_ENTRIES = 20_000
# org/name/quantisation/file is the deepest layout that people use.
MAX_FOLDER_DEPTH = 3

Within = tuple[Path, ...] | None  # resolved folders, as Reach has them

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)  # Windows would turn line ends otherwise
    | getattr(os, "O_CLOEXEC", 0)
    # A pipe without a writer would hold open() for ever; the name may change after it was checked.
    | getattr(os, "O_NONBLOCK", 0)
)


class LocalFile:
    """A ByteSource. Opened by the first read; one reader at a time."""

    __slots__ = ("_descriptor", "_path", "_size_bytes")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._size_bytes = 0

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        self._open()
        return self._size_bytes

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - local
        if offset < 0 or length < 0:
            raise ValueError(f"read of {length} bytes at {offset}")
        descriptor = self._open()
        wanted = min(length, max(self._size_bytes - offset, 0))
        return read_exactly(descriptor, self._path, offset, wanted)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor, status = open_regular(self._path)
            self._size_bytes = status.st_size
        return self._descriptor


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """Descriptor and status. Looks before it opens: opening some devices does something."""
    require_regular(path, look_up(path))
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        raise trouble(error, path) from error
    try:
        status = os.fstat(descriptor)
        require_regular(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def open_file(path: Path) -> IO[bytes]:
    """A regular file for reading. SourceError for anything else: a pipe would wait for a writer."""
    return os.fdopen(open_regular(path)[0], "rb")


def read_exactly(descriptor: int, path: Path, offset: int, length: int) -> bytes:
    """SourceError where the disk fails, or the file ends before."""
    pieces: list[bytes] = []
    while length > 0:
        try:
            piece = _read_at(descriptor, offset, length)
        except OSError as error:
            raise trouble(error, path) from error
        if not piece:
            raise SourceError(f"{path} was truncated while it was being read: try again")
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # Windows has no pread
    return os.read(descriptor, length)


def look_up(path: Path) -> os.stat_result:
    """What the path leads to, through links; NotFoundError or SourceError with the reason."""
    try:
        return path.stat()
    except OSError as error:
        raise trouble(error, path) from error


def is_folder(path: Path) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_regular(path: Path) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def _status(path: Path | str) -> os.stat_result | None:
    """Through links; None for what is not there, leads nowhere or may not be looked at."""
    try:
        return os.stat(path)  # noqa: PTH116 - a Path for each of 20,000 entries is slow
    except OSError:
        return None


def require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "not a file")
        raise SourceError(f"{path} is {kind}, not a file: give the path of a model")


def trouble(error: OSError, path: Path) -> SourceError:
    """The sentence for an OSError at `path`."""
    if error.errno == errno.ENOENT:
        if path.is_symlink():
            target = ascii(str(path.readlink()))
            return NotFoundError(f"{path} is a link to {target}, which does not exist")
        return NotFoundError(f"no such file or folder: {path}", candidates=names_near(path))
    reasons = {
        errno.ELOOP: "is a symbolic link that points to itself: remove or repair it",
        errno.EACCES: "cannot be read by this user: check the permissions of the file and its folder",
        errno.EPERM: "cannot be read by this user: check the permissions of the file and its folder",
        errno.ENOTDIR: "does not exist: part of the path is a file, not a folder",
        errno.ENAMETOOLONG: "is too long for a path",
        errno.EISDIR: "is a folder, not a file",
    }
    reason = reasons.get(error.errno or 0, f"cannot be read: {error.strerror or error}")
    return SourceError(f"{str(path)[:500]} {reason}")


def names_near(path: Path) -> tuple[str, ...]:
    """Names in the folder of a path that is not there, which look like it."""
    folder = path.parent
    try:
        with os.scandir(folder) as entries:
            names = (entry.name for entry in entries if entry.name.isprintable())
            near = close_names(path.name, names)
    except OSError:
        return ()
    return tuple(str(folder / name) for name in near)


def list_folder(
    root: Path, *, depth: int = MAX_FOLDER_DEPTH, within: Within = None
) -> tuple[ModelFile, ...]:
    """All regular files, three folders deep; links are followed, each folder is entered once.

    Names are relative to `root`, with slashes. Hidden entries, links to nothing and folders inside
    that may not be listed are passed over, and so is what a link leads to outside of the folders `within`.
    SourceError when `root` may not be listed, or holds too much.
    """
    try:
        entries = _entries(root)
    except OSError as error:
        raise trouble(error, root) from error
    return tuple(_walk(root, entries, depth, within))


def _walk(
    root: Path, entries: list[os.DirEntry[str]], depth: int, within: Within
) -> Iterator[ModelFile]:
    todo = [("", entry, depth) for entry in entries]
    seen: set[tuple[int, int]] = set()
    count = 0
    while todo:
        prefix, entry, left = todo.pop()
        count += 1
        if count + len(todo) > MAX_FOLDER_ENTRIES:
            raise SourceError(
                f"{root} has more than {MAX_FOLDER_ENTRIES:,} files and folders: give the "
                "model's own folder or file"
            )
        hidden = entry.name.startswith(".") or _leads_out(entry, within)
        status = None if hidden else _status(entry.path)
        if status is None:
            continue
        name = prefix + entry.name
        if stat.S_ISREG(status.st_mode):
            yield _model_file(Path(entry.path), name, status)
        elif left > 1:
            todo += [(f"{name}/", inner, left - 1) for inner in _enter(entry, status, seen)]


def _leads_out(entry: os.DirEntry[str], within: Within) -> bool:
    if within is None or not entry.is_symlink():
        return False
    real = Path(os.path.realpath(entry.path))
    return not any(real.is_relative_to(folder) for folder in within)


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(islice(entries, MAX_FOLDER_ENTRIES + 1))


def _enter(
    entry: os.DirEntry[str], status: os.stat_result, seen: set[tuple[int, int]]
) -> list[os.DirEntry[str]]:
    """What is in a folder that was not entered before."""
    identity = (status.st_dev, status.st_ino)
    if not stat.S_ISDIR(status.st_mode) or identity in seen:
        return []
    seen.add(identity)
    try:
        return _entries(entry.path)
    except OSError:
        return []


def _model_file(path: Path, name: str, status: os.stat_result) -> ModelFile:
    return ModelFile(name=name, open=partial(LocalFile, path), size_bytes=status.st_size)


def list_if_allowed(
    root: Path, *, depth: int = MAX_FOLDER_DEPTH, within: Within = None
) -> tuple[ModelFile, ...]:
    """Like `list_folder`, but nothing where there is too much or no leave to look."""
    try:
        return list_folder(root, depth=depth, within=within)
    except SourceError:
        return ()


def names_in(folder: Path) -> list[str]:
    """The names right inside, sorted; none where it is not there or may not be listed."""
    try:
        return sorted(entry.name for entry in _entries(folder))
    except OSError:
        return []


def folders_in(folder: Path) -> list[Path]:
    """The folders right inside that are not hidden."""
    names = (name for name in names_in(folder) if not name.startswith("."))
    return [folder / name for name in names if is_folder(folder / name)]


def model_file(path: Path, *, name: str | None = None) -> ModelFile:
    """A file that is there, as part of a model."""
    status = look_up(path)
    require_regular(path, status)
    return _model_file(path, name or path.name, status)


def read_small(path: Path, *, limit: int) -> bytes | None:
    """The whole of a small file; None when it is not there or cannot be read."""
    file = LocalFile(path)
    try:
        if file.size_bytes > limit:
            raise HeaderLimitError(
                "size in bytes", value=file.size_bytes, limit=limit, file=file.name
            )
        return file.read(0, file.size_bytes)
    except SourceError:
        return None
    finally:
        file.close()


def home_folder() -> Path:
    """Like Path.home(), but never raises: without a home it is "~"."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path's raises


def data_folder() -> Path | None:
    """EDGEKIT_DATA, or where this platform keeps what a program must not lose; None without a home."""
    if named := os.environ.get("EDGEKIT_DATA"):
        return Path(named)
    try:
        return _platform_folder() / "edgekit"
    except RuntimeError:  # Path.home() knows no home
        return None


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def made_data_folder(what: str) -> Path:
    """The same, there to be written to. Raises SourceError, with the way out."""
    folder = data_folder()
    if folder is None:
        raise SourceError(f"no home folder found: set EDGEKIT_DATA to a folder for {what}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(
            f"cannot create {folder} ({error.strerror}): set EDGEKIT_DATA to another folder"
        ) from error
    return folder


def try_lock(descriptor: int) -> bool:
    """Whether this process has the file now: the system's own lock, which dies with its process."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 2**40, os.SEEK_SET)  # far behind what is written
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
