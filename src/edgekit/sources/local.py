"""Files on this machine: the model at a path, bytes of files and listings of folders, and EdgeKit's own data folder.

Every OSError becomes a SourceError that says what to do.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import mkstemp
from typing import IO

from edgekit.errors import (
    HeaderError,
    HeaderLimitError,
    NotFoundError,
    SourceError,
    UsageError,
    quoted,
)
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

# The largest public model repositories list about 2,000 files. A home folder or a disk is refused within a second
# instead of being walked.
MAX_FOLDER_ENTRIES = 20_000
MAX_FOLDER_DEPTH = 3  # org/name/quantisation/file is the deepest layout that people use
Within = tuple[Path, ...] | None  # resolved folders, as in Reach
PART_SUFFIX = ".part"  # of a file that is being written
_REPLACE_S = 2.0  # Windows cannot replace a file while another process reads it
_REPLACE_RETRY_S = 0.02

_COMPANIONS = (CONFIG_NAME, INDEX_NAME, *QUANT_CONFIG_NAMES)
_COMMIT = re.compile(r"[A-Za-z0-9_.-]{1,64}(?<!\.)")
_MAX_REF_BYTES = 256  # a ref contains one commit of 40 characters


# -- models --------------------------------------------------------------------------------------


def locate_path(path: Path, *, within: Within = None) -> ModelFiles:
    """The model at a file, a shard of a set, or a folder.

    The path of a config.json means the geometry alone; that of its folder means the weights too.
    """
    status = look_up(path)
    if stat.S_ISDIR(status.st_mode):
        label, folder, origin = path.name or str(path), path, Origin.LOCAL
        # A repository in the hub's cache; refs/ is missing if only a commit was ever requested.
        is_named = path.name.startswith("models--") or is_folder(path / "refs")
        if is_named and is_folder(path / "snapshots"):
            snapshot = snapshot_folder(path)
            if snapshot is None:
                raise NotFoundError(
                    f"{path} is a cache folder without a snapshot: download the model again"
                )
            label = path.name.removeprefix("models--").replace("--", "/")
            folder, origin = snapshot, Origin.HUB_CACHE
        return choose_files(list_folder(folder, within=within), label=label, origin=origin)
    _require_regular(path, status)
    lowered = path.name.lower()
    if not lowered.endswith(MODEL_SUFFIXES):
        return _locate_by_content(path)
    # Look for the other shards by name instead of listing the folder, which may be huge.
    names = (path.name, *shard_names(path.name), *_COMPANIONS)
    files = {
        name: model_file(path.parent / name) for name in names if is_regular(path.parent / name)
    }
    if lowered.endswith((".gguf", ".index.json")):
        suffix = ".gguf" if lowered.endswith(".gguf") else ".safetensors"
        listing = list_if_allowed(path.parent, depth=1, within=within)
        files |= {file.name: file for file in listing if file.name.lower().endswith(suffix)}
    return choose_files(
        tuple(files.values()), label=path.name, origin=Origin.LOCAL, filename=path.name
    )


def _locate_by_content(path: Path) -> ModelFiles:
    """A file without a known suffix, identified by its first bytes."""
    with closing(LocalFile(path)) as file:
        start, size_bytes = file.read(0, 9), file.size_bytes
    files = ModelFiles(
        label=path.name, origin=Origin.LOCAL, container=Container.GGUF, weights=(model_file(path),)
    )
    if start.startswith(b"GGUF"):
        return files
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size_bytes - 8:
        return replace(files, container=Container.SAFETENSORS)
    if path.name.lower().endswith(PICKLE_SUFFIXES):
        raise HeaderError(
            "not read, because unpickling runs code: give its config.json", file=str(path)
        )
    what = f"starts with {start[:4]!r}" if start else "is empty"
    raise HeaderError(f"neither GGUF nor safetensors: the file {what}", file=str(path))


def snapshot_folder(repository: Path, revision: str | None = None) -> Path | None:
    """The snapshot of a revision in one repository of the hub's cache; None if it is not there.

    A revision may be a commit. Without a revision: main, else the newest snapshot.
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
    return max(folders_in(snapshots), key=lambda folder: look_up(folder).st_mtime_ns, default=None)


def models_in(path: str) -> tuple[str, ...]:
    """Paths of the models in a folder, sorted; `path` itself if it is one model, or not a folder.

    Every GGUF or set of shards is a model, and every folder with a config.json. SourceError if it cannot be listed.
    """
    folder = expand_home(path)
    if not is_folder(folder):
        return (path,)
    if (folder / CONFIG_NAME).exists() or is_folder(folder / "snapshots"):
        return (path,)
    files = list_folder(folder)
    ggufs = [group for group in group_shards(files, ".gguf") if not group.is_companion]
    names = {group.files[0].name for group in ggufs}
    names |= {folder_of(file.name) for file in files if base_of(file.name) == CONFIG_NAME}
    paths = tuple(str(folder / name) for name in sorted(names) if name)
    return paths if len(paths) > 1 else (path,)


def is_here(name: str, *, absolute_only: bool = False) -> bool:
    """Whether `name` is an existing path on this machine; with `absolute_only`, an absolute one."""
    return (not absolute_only or Path(name).is_absolute()) and os.path.lexists(expand_home(name))


def absolute_reference(reference: str) -> str:
    """The path of a file or folder so that it is found from any folder; any other reference as it is."""
    path = expand_home(reference)
    return os.path.abspath(path) if os.path.lexists(path) else reference  # noqa: PTH100


def expand_home(path: str) -> Path:
    """The path with "~" and "~user" replaced; unchanged if there is no such user."""
    try:
        return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's raises
    except ValueError:  # "~\0": a name with a NUL
        return Path(path)


def path_of_flag(text: str, flag: str) -> Path:
    """The path that a flag names, to be read or written. Raises UsageError if it can be none."""
    if not text or "\0" in text:
        raise UsageError(f"{flag} takes a path (got {quoted(text)})")
    path = expand_home(text)
    if text.startswith("~") and str(path).startswith("~"):
        raise UsageError(f"{flag}: there is no home folder {quoted(path.parts[0])}")
    return path


# -- files ---------------------------------------------------------------------------------------

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)  # Windows would convert line ends otherwise
    | getattr(os, "O_CLOEXEC", 0)
    # Opening a pipe without a writer would block forever; the file may be replaced by one after it was checked.
    | getattr(os, "O_NONBLOCK", 0)
)


class LocalFile:
    """A ByteSource. Opened by the first read; one reader at a time."""

    __slots__ = ("_descriptor", "_path", "_size_bytes", "name")

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._descriptor: int | None = None
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        self._open()
        return self._size_bytes

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - local
        if offset < 0 or length < 0:
            raise ValueError(f"read of {length} bytes at {offset}")
        descriptor = self._open()
        count = min(length, max(self._size_bytes - offset, 0))
        return read_exactly(descriptor, self._path, offset, count)

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
    """Descriptor and status of a regular file. Checked before it is opened: opening some devices has effects."""
    _require_regular(path, look_up(path))
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        raise path_error(error, path) from error
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def open_file(path: Path) -> IO[bytes]:
    """A regular file for reading. SourceError for anything else: a pipe would wait for a writer."""
    return os.fdopen(open_regular(path)[0], "rb")


def read_exactly(descriptor: int, path: Path, offset: int, length: int) -> bytes:
    """Exactly `length` bytes from `offset` on. SourceError if the disk fails or the file is shorter."""
    pieces: list[bytes] = []
    while length > 0:
        try:
            if hasattr(os, "pread"):
                piece = os.pread(descriptor, length, offset)
            else:  # Windows
                os.lseek(descriptor, offset, os.SEEK_SET)
                piece = os.read(descriptor, length)
        except OSError as error:
            raise path_error(error, path) from error
        if not piece:
            raise SourceError(f"{path} was truncated while it was being read: try again")
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_small(path: Path, *, limit: int) -> bytes | None:
    """A whole small file; None if it cannot be read. Raises HeaderLimitError above the limit."""
    with suppress(SourceError), closing(LocalFile(path)) as file:
        size_bytes = file.size_bytes
        if size_bytes > limit:
            raise HeaderLimitError("size in bytes", value=size_bytes, limit=limit, file=file.name)
        return file.read(0, size_bytes)
    return None


def model_file(path: Path) -> ModelFile:
    """An existing file as part of a model."""
    status = look_up(path)
    _require_regular(path, status)
    return ModelFile(name=path.name, open=partial(LocalFile, path), size_bytes=status.st_size)


def look_up(path: Path) -> os.stat_result:
    """The status of the path's target, following links. NotFoundError or SourceError with the reason."""
    try:
        return path.stat()
    except OSError as error:
        raise path_error(error, path) from error


# These never raise, unlike the methods of Path: a path that may not be inspected is neither a folder nor a file.
is_folder = os.path.isdir
is_regular = os.path.isfile


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "not a file")
        raise SourceError(f"{path} is {kind}, not a file: give the path of a model")


def path_error(error: OSError, path: Path) -> SourceError:
    """The SourceError for an OSError at `path`."""
    if error.errno == errno.ENOENT:
        if path.is_symlink():
            target = ascii(str(path.readlink()))
            return NotFoundError(f"{path} is a link to {target}, which does not exist")
        return NotFoundError(f"no such file or folder: {path}", candidates=names_near(path))
    unreadable = "cannot be read by this user: check the permissions of the file and its folder"
    reasons = {
        errno.ELOOP: "is a symbolic link that points to itself: remove or repair it",
        errno.EACCES: unreadable,
        errno.EPERM: unreadable,
        errno.ENOTDIR: "does not exist: part of the path is a file, not a folder",
        errno.ENAMETOOLONG: "is too long for a path",
        errno.EISDIR: "is a folder, not a file",
    }
    reason = reasons.get(error.errno or 0, f"cannot be read: {error.strerror or error}")
    return SourceError(f"{str(path)[:500]} {reason}")


def names_near(path: Path) -> tuple[str, ...]:
    """Suggestions for a missing path: similar names in its folder."""
    try:
        with os.scandir(path.parent) as entries:
            names = (entry.name for entry in entries if entry.name.isprintable())
            similar_names = close_names(path.name, names)
    except OSError:
        return ()
    return tuple(str(path.parent / name) for name in similar_names)


# -- folders -------------------------------------------------------------------------------------


def list_folder(
    root: Path, *, depth: int = MAX_FOLDER_DEPTH, within: Within = None
) -> tuple[ModelFile, ...]:
    """All regular files, three folders deep; links are followed, and each folder is entered once.

    Names are relative to `root`, with slashes. Skips hidden entries, broken links, subfolders that may not be listed,
    and links that lead out of the folders `within`. SourceError if `root` may not be listed, or has too many entries.
    """
    try:
        todo = [("", entry, depth) for entry in _entries(root)]
    except OSError as error:
        raise path_error(error, root) from error
    files: list[ModelFile] = []
    entered: set[tuple[int, int]] = set()
    count = 0
    while todo:
        prefix, entry, levels = todo.pop()
        count += 1
        if count + len(todo) > MAX_FOLDER_ENTRIES:
            raise SourceError(
                f"{root} has more than {MAX_FOLDER_ENTRIES:,} files and folders: give the "
                "model's own folder or file"
            )
        if entry.name.startswith("."):
            continue
        if within is not None and entry.is_symlink():
            real = Path(os.path.realpath(entry.path))
            if not any(real.is_relative_to(folder) for folder in within):
                continue
        try:
            status = os.stat(entry.path)  # noqa: PTH116 - a Path for each of 20,000 entries is slow
        except OSError:  # a broken link, or no permission
            continue
        name = prefix + entry.name
        if stat.S_ISREG(status.st_mode):
            opener = partial(LocalFile, Path(entry.path))
            files.append(ModelFile(name=name, open=opener, size_bytes=status.st_size))
        elif stat.S_ISDIR(status.st_mode) and levels > 1:
            identity = (status.st_dev, status.st_ino)
            if identity not in entered:
                entered.add(identity)
                with suppress(OSError):
                    todo += [(f"{name}/", inner, levels - 1) for inner in _entries(entry.path)]
    return tuple(files)


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(islice(entries, MAX_FOLDER_ENTRIES + 1))


def list_if_allowed(
    root: Path, *, depth: int = MAX_FOLDER_DEPTH, within: Within = None
) -> tuple[ModelFile, ...]:
    """Like `list_folder`, but empty if it has too many entries or may not be listed."""
    try:
        return list_folder(root, depth=depth, within=within)
    except SourceError:
        return ()


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; none if it does not exist or may not be listed."""
    try:
        return sorted(entry.name for entry in _entries(folder))
    except OSError:
        return []


def folders_in(folder: Path) -> list[Path]:
    """The subfolders that are not hidden."""
    names = (name for name in names_in(folder) if not name.startswith("."))
    return [folder / name for name in names if is_folder(folder / name)]


# -- EdgeKit's own folders -----------------------------------------------------------------------


def home_folder() -> Path:
    """Like Path.home(), but never raises: without a home it is "~"."""
    return expand_home("~")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `path` at the end of the block: readers see the old content or the new one, never
    a part of it. After an error `path` is unchanged.
    """
    handle, name = mkstemp(dir=path.parent, suffix=PART_SUFFIX)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        deadline = time.monotonic() + _REPLACE_S
        while True:
            try:
                temporary.replace(path)
                break
            except PermissionError:
                if os.name != "nt" or time.monotonic() > deadline:
                    raise
                time.sleep(_REPLACE_RETRY_S)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def move_aside(path: Path) -> Path:
    """Rename a damaged file to NAME.damaged-1 or the next free number. Returns its new path. Raises SourceError."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")):
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        raise SourceError(f"{path} cannot be moved aside: {error.strerror}") from error
    return aside


def try_lock(descriptor: int) -> bool:
    """Lock the file for this process; False if another has locked it. The system releases the lock when we exit."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 2**40, os.SEEK_SET)  # far beyond the end of the file
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
