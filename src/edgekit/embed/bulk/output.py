"""Batches -> a file that is there whole or not at all, whatever happens on the way.

While a job runs there are `NAME.partial` (what will be the output), `NAME.skipped.partial` (rows that were passed over)
and `NAME.journal`. All only grow. Whoever goes on cuts them to what the journal vouches for.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, Protocol

from edgekit.embed.bulk.rows import BadRow, Batch, InputRow, ResumeMark, VectorForm
from edgekit.errors import OutputError, SourceError, UsageError
from edgekit.sources.local import open_file, try_lock

if TYPE_CHECKING:
    from edgekit.engines.native.types import Floats


_ENDINGS = (".partial", ".partial.finished", ".skipped.partial", ".skipped.jsonl", ".journal")
MARK_EVERY_S = 1.0  # what a kill may cost; a mark takes some milliseconds on a disk


class Output(Protocol):
    """Where a job's vectors go."""

    @property
    def mark(self) -> ResumeMark:
        """Where it is: at the beginning, where the job goes on."""
        ...

    @property
    def kept_words(self) -> str:
        """What the end of an error's message says about work that was done."""
        ...

    def add(self, batch: Batch, vectors: Floats) -> None: ...

    def save(self, digest: Callable[[int], str | None], *, now: bool = False) -> None:
        """A mark, if the last one is old enough."""
        ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


class StreamOutput:
    """Lines to a pipe or a terminal: nothing to go on with after a kill."""

    def __init__(self, stream: IO[bytes], form: VectorForm, tell: Callable[[BadRow], None]) -> None:
        self._stream, self._form, self._tell = stream, form, tell
        self.mark = ResumeMark()
        self.kept_words = ""

    def add(self, batch: Batch, vectors: Floats) -> None:
        """BrokenPipeError goes through: nobody reads on."""
        data = self._form.encode(batch.rows, vectors)
        with _written("standard output", self.mark, stays=False):
            self._stream.write(data)
            self._stream.flush()
        for row in batch.skipped:
            self._tell(row)
        self.mark = _after(self.mark, batch, len(data), 0)

    def save(self, digest: Callable[[int], str | None], *, now: bool = False) -> None:  # noqa: ARG002 - an Output's
        """What is written to a pipe is gone; what was kept of the input for a mark may go too."""
        digest(self.mark.position)

    def finish(self) -> None:
        """Every line is final."""

    def close(self) -> None:
        """The stream is not ours."""


class FileOutput:
    """A file that appears under its name when it is whole."""

    def __init__(
        self,
        path: Path,
        form: VectorForm,
        job: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        """Locked. `job` is what must be the same to go on with an unfinished one.

        UsageError where there is an output already, or an unfinished job that is not this one, unless `overwrite`;
        with `resume` where there is nothing to go on with.
        """
        self._path, self._form = _usable(path), form
        self._partial = _beside(self._path, ".partial")
        self._skipped = _beside(self._path, ".skipped.partial")
        self._told = _beside(self._path, ".skipped.jsonl")
        self.mark = self._saved = ResumeMark()
        self._files: tuple[int, ...] = ()
        self._marked_s = time.monotonic()
        journal = _beside(self._path, ".journal")
        self._is_ours = journal.exists()  # what lies beside it: also one that a kill has left empty
        self._journal = Journal(journal)
        try:
            self._open(job, overwrite=overwrite, resume=resume)
        except BaseException:
            self.close()
            raise
        self._saved = self.mark

    @property
    def kept_words(self) -> str:
        return f". {_vectors_are(self._saved.kept)} saved; run the same command again to continue"

    def add(self, batch: Batch, vectors: Floats) -> None:
        data = self._form.encode(batch.rows, vectors) if batch.rows else b""
        skipped = b"".join(map(_skipped_line, batch.skipped))
        with _written(str(self._path), self._saved):
            write_all(self._files[0], data)
            write_all(self._files[1], skipped)
        self.mark = _after(self.mark, batch, len(data), len(skipped))

    def save(self, digest: Callable[[int], str | None], *, now: bool = False) -> None:
        due = now or time.monotonic() - self._marked_s >= MARK_EVERY_S
        if not due or self.mark == self._saved:
            return
        self._save(replace(self.mark, digest=digest(self.mark.position)))

    def finish(self) -> None:
        """The names are final afterwards, and nothing else is left. A kill in here is gone on with as well."""
        with _written(str(self._path), self._saved):
            if not self.mark.done and self._path.exists() and not self._replaces:
                raise UsageError(
                    f"{self._path} was created by something else in the meantime: move it "
                    "away and run the same command again"
                )
            self._save(replace(self.mark, done=True))
            self._close_files()
            if self._partial.exists():
                self._make_final()
            self._journal.remove()
            sync_folder(self._path.parent)

    def close(self) -> None:
        self._close_files()
        self._journal.close()

    def _open(self, job: Mapping[str, Any], *, overwrite: bool, resume: bool) -> None:
        before = None if overwrite else self._journal.read()
        self._replaces = overwrite if before is None else before[0].get("replaces") is True
        if before is None:
            self._check_free(overwrite=overwrite, resume=resume)
            self._begin(job)
            return
        _check_same_job(before[0], {**before[0], **job}, self._path)
        self.mark = before[1]
        if self.mark == ResumeMark():  # killed before its first mark
            self._begin(job)
        elif not self.mark.done:
            self._files = (
                _cut(self._partial, self.mark.output_bytes),
                _cut(self._skipped, self.mark.skipped_bytes),
            )

    def _check_free(self, *, overwrite: bool, resume: bool) -> None:
        taken = [path for path in (self._path, self._told) if path.exists()]
        strange = [path for path in (self._partial, self._skipped) if path.exists()]
        why = ""
        if taken and not overwrite:
            why = (
                f"{taken[0]} already exists: --overwrite replaces it once the new file is complete"
            )
        elif strange and not (overwrite or self._is_ours):
            why = (
                f"{strange[0]} exists without a journal, so it may not be ours: move it "
                "away, or use --overwrite to replace it"
            )
        elif resume:
            why = f"no unfinished job found for {self._path}: leave out --resume"
        if why:
            self._journal.remove()  # it is empty
            raise UsageError(why)

    def _begin(self, job: Mapping[str, Any]) -> None:
        head = self._form.head()
        with _written(str(self._path), ResumeMark()):
            self._journal.begin({"replaces": self._replaces, **job})
            self._files = (_cut(self._partial, 0), _cut(self._skipped, 0))
            write_all(self._files[0], head)
        self._save(ResumeMark(output_bytes=len(head)))

    def _save(self, mark: ResumeMark) -> None:
        with _written(str(self._path), self._saved):
            for descriptor in self._files:
                os.fsync(descriptor)
            self._journal.add(mark)
        self._marked_s = time.monotonic()
        self.mark = self._saved = mark

    def _make_final(self) -> None:
        ready = self._form.finish(self._partial, self.mark.kept)
        with ready.open("rb") as file:
            os.fsync(file.fileno())
        if not self.mark.skipped:
            self._skipped.unlink(missing_ok=True)
            self._told.unlink(missing_ok=True)  # of the output that is replaced
        elif self._skipped.exists():
            self._skipped.replace(self._told)
        ready.replace(self._path)
        self._partial.unlink(missing_ok=True)

    def _close_files(self) -> None:
        for descriptor in self._files:
            with suppress(OSError):
                os.close(descriptor)
        self._files = ()


def _vectors_are(count: int) -> str:
    return "1 vector is" if count == 1 else f"{count:,} vectors are"


def _after(mark: ResumeMark, batch: Batch, output_bytes: int, skipped_bytes: int) -> ResumeMark:
    return replace(
        mark,
        number=batch.place.number,
        position=batch.place.position,
        kept=mark.kept + len(batch.rows),
        skipped=mark.skipped + len(batch.skipped),
        tokens=mark.tokens + batch.tokens,
        output_bytes=mark.output_bytes + output_bytes,
        skipped_bytes=mark.skipped_bytes + skipped_bytes,
    )


def check_apart(output: Path, others: Mapping[str, Path | int]) -> None:
    """UsageError where something that a job writes or removes is one of its inputs, by whatever name.

    `others` are paths or open descriptors, by what they are.
    """
    for what, other in others.items():
        with suppress(OSError, ValueError, RuntimeError):
            path = output.resolve()
            known = os.fstat(other) if isinstance(other, int) else other.stat()
            for ending in ("", *_ENDINGS):
                if _is_file(_beside(path, ending), known):
                    raise UsageError(
                        f"{_beside(output, ending)} is {what} itself and would be "
                        "overwritten: choose another --output"
                    )


def _is_file(path: Path, known: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), known)
    except OSError:
        return False


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _usable(path: Path) -> Path:
    """A link is followed, so that what it points to is replaced and not the link."""
    try:
        path = path.resolve()
        if path.is_dir():
            raise UsageError(f"{path} is a folder: name a file in it")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a regular file: use --output - for standard output")
        if not path.parent.is_dir():
            raise OutputError(f"the folder {path.parent} does not exist: create it first")
    except (OSError, ValueError, RuntimeError) as error:
        raise OutputError(f"{path} cannot be written: {error}") from error
    return path


def _cut(path: Path, size_bytes: int) -> int:
    """Open for adding, as long as the journal says."""
    flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
    if not size_bytes:
        flags |= os.O_CREAT | os.O_TRUNC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
    found = os.fstat(descriptor).st_size
    if found < size_bytes:
        os.close(descriptor)
        raise UsageError(
            f"{path} has {found:,} bytes, but its journal recorded {size_bytes:,}, so it "
            "was truncated. --overwrite starts over"
        )
    os.ftruncate(descriptor, size_bytes)
    return descriptor


def _check_same_job(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    changed = sorted(_differences(before, json.loads(json.dumps(now))))
    if changed:
        raise UsageError(
            f"the unfinished job for {path} had different settings "
            f"({', '.join(changed[:6])} changed): run it as before to continue, or start "
            "over with --overwrite"
        )


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in before.keys() | now.keys():
            yield from _differences(before.get(key), now.get(key), f"{name} {key}".strip())
    elif before != now:
        yield name.replace("_", " ")


def _skipped_line(row: BadRow) -> bytes:
    return (
        json.dumps({"row": row.number, "reason": row.reason}, ensure_ascii=False).encode() + b"\n"
    )


@contextmanager
def _written(name: str, saved: ResumeMark, *, stays: bool = True) -> Iterator[None]:
    """A disk that is full is no loss: what was saved is gone on with."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        kept = (
            f" {_vectors_are(saved.kept)} saved: free some space and run the same command again"
            if stays
            else ""
        )
        raise OutputError(f"{name} cannot be written: {error.strerror}.{kept}") from error


VERSION = 2
LINE_BYTES = 64 * 1024  # whose job it is has about 1 KB, a mark 200 bytes
_CHECK = b'{"check":"'  # how every line begins; then come so many hexadecimal digits
_CHECK_DIGITS = 16


class Journal:
    """Open and locked, until `close` or `remove`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open_locked(path)
        self._bytes = 0

    def read(self) -> tuple[dict[str, Any], ResumeMark] | None:
        """Whose job, and its last sound mark; None where there is none. UsageError where it is not a journal.

        A mark that is cut off or damaged is passed over: the one before it covers less work, and all of it is there.
        """
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            first = file.readline(LINE_BYTES)
            begin = file.seek(max(size_bytes - LINE_BYTES, len(first)))
            lines = file.read().splitlines(keepends=True)
        if not first:
            return None
        try:
            told = _job(first)
            self._bytes, mark = _last_sound(lines, begin)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError(
                f"{self._path} is damaged, or from another version of EdgeKit: --overwrite starts over"
            ) from error
        return told, mark

    def begin(self, job: Mapping[str, Any]) -> None:
        """A new job; what was there is forgotten."""
        os.ftruncate(self._descriptor, 0)
        self._bytes = 0
        self._append({"journal": VERSION, **job})
        sync_folder(self._path.parent)

    def add(self, mark: ResumeMark) -> None:
        """Everything up to the mark is on the disk already: the caller has seen to that."""
        known = asdict(mark)
        self._append({name: value for name, value in known.items() if value not in (None, False)})

    def remove(self) -> None:
        if sys.platform == "win32":  # where an open file cannot be removed
            self.close()
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, line: Mapping[str, Any]) -> None:
        data = _checked(json.dumps(line, separators=(",", ":")).encode())
        os.lseek(self._descriptor, self._bytes, os.SEEK_SET)
        os.ftruncate(self._descriptor, self._bytes)
        write_all(self._descriptor, data)
        os.fsync(self._descriptor)
        self._bytes += len(data)


def read_job(path: Path) -> dict[str, Any] | None:
    """Whose unfinished job a journal is of, without a lock; None where there is none that can be read."""
    try:
        with open_file(path) as file:
            return _job(file.readline(LINE_BYTES))
    except (OSError, SourceError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _checked(record: bytes) -> bytes:
    """A line of the journal: a JSON object, with its checksum as the first key."""
    import hashlib  # only for a job that has a journal: 3 MiB with OpenSSL

    check = hashlib.blake2b(record, digest_size=_CHECK_DIGITS // 2).hexdigest().encode()
    return _CHECK + check + (b'",' if record != b"{}" else b'"') + record[1:] + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    """What a line says; None where it is cut off or damaged."""
    record = b"{" + line[len(_CHECK) + _CHECK_DIGITS + 1 :].removeprefix(b",").rstrip(b"\n")
    if _checked(record) != line:
        return None
    told: dict[str, Any] = json.loads(record)
    return told


def _job(line: bytes) -> dict[str, Any]:
    told = _record(line)
    if told is None or told["journal"] != VERSION:
        raise ValueError("not a journal of this version")
    return told


def _last_sound(lines: Sequence[bytes], begin: int) -> tuple[int, ResumeMark]:
    """The last mark whose checksum is right, and where its line ends. ValueError where there are marks, but none is."""
    end = begin + sum(map(len, lines))
    for line in reversed(lines):
        if (told := _record(line)) is not None:
            return end, ResumeMark(**told)
        end -= len(line)
    if any(line.endswith(b"\n") for line in lines):
        raise ValueError("no mark is sound")
    return begin, ResumeMark()


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """A new name is safe only when its folder is. Not every system can be asked for that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_locked(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OutputError(f"{path} is not a regular file: move it away")
        if not try_lock(descriptor):
            os.close(descriptor)
            raise UsageError(
                f"another job is writing to {path.with_suffix('')}: wait for it, or name another output"
            )
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # its owner has just finished and removed it


NPY_HEAD_BYTES = 128  # numpy aligns its own to 64; room for 20 digits of rows
_NPY_MAGIC = (
    b"\x93NUMPY\x01\x00"  # https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
)
_FLOAT_WIDTH = "U16"  # -1.1754944e-38 has 14 characters


def form_of(name: str, *, dimensions: int, ids: bool, integer_ids: bool) -> VectorForm:
    """UsageError where the format cannot hold what is asked for."""
    return _FORMS[name](dimensions, ids, integer_ids)


def output_format(reference: str) -> str:
    """By the name; standard output has lines of JSON."""
    if reference == "-":
        return "jsonl"
    suffix = PurePath(reference).suffix.lower()
    found = SUFFIXES.get(suffix)
    if found is None:
        raise UsageError(f"{reference}: choose one of the output formats {', '.join(SUFFIXES)}")
    return found


class NpyForm:
    """One array of float32, a row for each text that was embedded. It has no room for ids."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    def head(self) -> bytes:
        return self._head(0)

    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes:
        if vectors.shape != (len(rows), self._dimensions):
            raise ValueError(f"{vectors.shape} vectors for {len(rows)} rows")
        return vectors.astype("<f4", copy=False).tobytes()

    def finish(self, partial: Path, kept: int) -> Path:
        with partial.open("r+b") as file:
            file.write(self._head(kept))
        return partial

    def _head(self, rows: int) -> bytes:
        told = (
            f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {self._dimensions}), }}"
        )
        length = NPY_HEAD_BYTES - len(_NPY_MAGIC) - 2
        return _NPY_MAGIC + length.to_bytes(2, "little") + f"{told:<{length - 1}}\n".encode("ascii")


class JsonlForm:
    """{"row": 1, "id": "a", "vector": [...]}: numbers as short as they can be to give the same float32."""

    def __init__(self, *, ids: bool) -> None:
        self._ids = ids

    def head(self) -> bytes:
        return b""

    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes:
        numbers = vectors.astype(_FLOAT_WIDTH).tolist()
        return b"".join(map(self._line, rows, numbers))

    def finish(self, partial: Path, kept: int) -> Path:  # noqa: ARG002 - a line is final as it is
        return partial

    def _line(self, row: InputRow, numbers: Sequence[str]) -> bytes:
        named = f',"id":{json.dumps(row.id, ensure_ascii=False)}' if self._ids else ""
        return f'{{"row":{row.number}{named},"vector":[{",".join(numbers)}]}}\n'.encode()


def _npy(dimensions: int, ids: bool, _: bool) -> VectorForm:  # noqa: FBT001 - called through the table alone
    if ids:
        raise UsageError("an .npy file cannot store ids: use .jsonl or .parquet")
    return NpyForm(dimensions)


def _jsonl(_: int, ids: bool, __: bool) -> VectorForm:  # noqa: FBT001 - called through the table alone
    return JsonlForm(ids=ids)


def _parquet(dimensions: int, ids: bool, integer_ids: bool) -> VectorForm:  # noqa: FBT001 - called through the table alone
    from edgekit.embed.bulk.parquet import ParquetForm

    return ParquetForm(dimensions, ids=ids, integer_ids=integer_ids)


_FORMS: dict[str, Callable[[int, bool, bool], VectorForm]] = {
    "npy": _npy,
    "jsonl": _jsonl,
    "parquet": _parquet,
}
SUFFIXES = {
    ".npy": "npy",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
