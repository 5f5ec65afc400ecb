"""A path on this machine -> its bytes or its files; every OSError becomes a sentence."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from edgekit.errors import HeaderLimitError, NotFoundError, SourceError
from edgekit.sources.naming import close_names
from edgekit.sources.types import ModelFile

if TYPE_CHECKING:
    from collections.abc import Iterator

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
