"""Where a bulk job's vectors go: standard output, or a file that appears under its name only when it is complete.

While a job runs there are three files: `NAME.partial` (the output so far), `NAME.skipped.partial` (the rows that were
skipped) and `NAME.journal`. They only grow. A job that resumes cuts them to the sizes in the journal's last mark.

A line of the journal is a JSON object whose first key is the checksum of the rest. The first line describes the job,
each later one is a `ResumeMark`: everything up to it is on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any

from edgekit.embed.bulk.rows import BadRow, Batch, InputRow, ResumeMark, VectorForm
from edgekit.errors import OutputError, SourceError, UsageError
from edgekit.sources.local import open_file, try_lock

if TYPE_CHECKING:
    from edgekit.engines.native.kernels.types import Floats


SUFFIXES = {
    ".npy": "npy",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
MARK_EVERY_S = 1.0  # the most work that a kill can cost; a mark takes a few milliseconds
VERSION = 2  # of the journal's format
LINE_BYTES = 64 * 1024  # limit on a line of the journal: the first has about 1 KB, a mark 200 bytes
NPY_HEAD_BYTES = 128  # a multiple of 64, as numpy aligns it; fits a row count of 20 digits

# How the files next to the output end that a job writes or removes.
_ENDINGS = (".partial", ".partial.finished", ".skipped.partial", ".skipped.jsonl", ".journal")
_CHECK = b'{"check":"'  # how every line of the journal begins
_CHECK_DIGITS = 16  # length of the checksum
# https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_FLOAT_WIDTH = "U16"  # numpy's text type for a float32: -1.1754944e-38 has 14 characters


class StreamOutput:
    """Writes lines to a pipe or a terminal. A job with this output cannot be resumed."""

    def __init__(
        self, stream: IO[bytes], form: VectorForm, report_skipped: Callable[[BadRow], None]
    ) -> None:
        self._stream, self._form, self._report_skipped = stream, form, report_skipped
        self.mark = ResumeMark()
        self.saved_note = ""  # ends an error message: there is nothing to resume

    def add(self, batch: Batch, vectors: Floats) -> None:
        """Writes the vectors of a batch. Raises BrokenPipeError when the reader has closed the pipe."""
        data = self._form.encode(batch.rows, vectors)
        with _write_errors("standard output", advice=""):
            self._stream.write(data)
            self._stream.flush()
        for row in batch.skipped:
            self._report_skipped(row)
        self.mark = _advance(self.mark, batch, len(data), 0)

    def save(self, digest: Callable[[int], str | None], *, now: bool = False) -> None:  # noqa: ARG002 - no marks
        """Writes no mark. Calling `digest` lets the input forget the hashes of lines before the mark."""
        digest(self.mark.position)

    def finish(self) -> None:
        """Does nothing: every line has been written."""

    def close(self) -> None:
        """Does nothing: the caller closes the stream."""


class FileOutput:
    """A file that appears under its name when it is complete."""

    def __init__(
        self,
        path: Path,
        form: VectorForm,
        job: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        """Locks the output. An unfinished job is resumed if its settings were the same as those in `job`.

        Without `overwrite`, raises UsageError if the output exists or its unfinished job had other settings. With
        `resume`, also raises UsageError if there is no unfinished job.
        """
        self._path, self._form = _output_path(path), form
        self._partial = _companion(self._path, ".partial")
        self._skipped_partial = _companion(self._path, ".skipped.partial")
        self._skipped = _companion(self._path, ".skipped.jsonl")
        # How far the job is, and how far it was at the last mark in the journal.
        self.mark = self._saved = ResumeMark()
        self._files: tuple[int, ...] = ()  # descriptors of the output and of the skipped rows
        self._marked_s = time.monotonic()
        journal = _companion(self._path, ".journal")
        self._had_journal = journal.exists()  # also true if a kill has left it empty
        self._journal = Journal(journal)
        try:
            self._open(job, overwrite=overwrite, resume=resume)
        except BaseException:
            self.close()
            raise
        self._saved = self.mark

    @property
    def saved_note(self) -> str:
        """Ends an error message: how many vectors are saved and how to continue."""
        return f". {_vectors_are(self._saved.kept)} saved; run the same command again to continue"

    def add(self, batch: Batch, vectors: Floats) -> None:
        """Appends the vectors of a batch to the output, and its skipped rows to their list."""
        data = self._form.encode(batch.rows, vectors) if batch.rows else b""
        skipped = "".join(
            json.dumps({"row": row.number, "reason": row.reason}, ensure_ascii=False) + "\n"
            for row in batch.skipped
        ).encode()
        with self._write_errors():
            write_all(self._files[0], data)
            write_all(self._files[1], skipped)
        self.mark = _advance(self.mark, batch, len(data), len(skipped))

    def save(self, digest: Callable[[int], str | None], *, now: bool = False) -> None:
        """Writes a mark if the last one is old enough. `digest` is `RowSource.digest`."""
        is_due = now or time.monotonic() - self._marked_s >= MARK_EVERY_S
        if is_due and self.mark != self._saved:
            self._save(replace(self.mark, digest=digest(self.mark.position)))

    def finish(self) -> None:
        """Renames the files to their final names and removes the journal. A job killed in here can be resumed too."""
        with self._write_errors():
            if not self.mark.done and self._path.exists() and not self._may_replace:
                raise UsageError(
                    f"{self._path} was created by something else in the meantime: move it "
                    "away and run the same command again"
                )
            self._save(replace(self.mark, done=True))
            self._close_files()
            if self._partial.exists():
                finished = self._form.finish(self._partial, self.mark.kept)
                with finished.open("rb") as file:
                    os.fsync(file.fileno())
                if not self.mark.skipped:
                    self._skipped_partial.unlink(missing_ok=True)
                    self._skipped.unlink(missing_ok=True)  # from the output that is replaced
                elif self._skipped_partial.exists():
                    self._skipped_partial.replace(self._skipped)
                finished.replace(self._path)
                self._partial.unlink(missing_ok=True)
            self._journal.remove()
            sync_folder(self._path.parent)

    def close(self) -> None:
        self._close_files()
        self._journal.close()

    def _open(self, job: Mapping[str, Any], *, overwrite: bool, resume: bool) -> None:
        """Starts the job, or continues the unfinished one in the journal."""
        unfinished = None if overwrite else self._journal.read()
        if unfinished is None:
            finished = [path for path in (self._path, self._skipped) if path.exists()]
            partial = [path for path in (self._partial, self._skipped_partial) if path.exists()]
            problem = ""
            if finished and not overwrite:
                problem = (
                    f"{finished[0]} already exists: --overwrite replaces it once the new file is "
                    "complete"
                )
            elif partial and not (overwrite or self._had_journal):
                problem = (
                    f"{partial[0]} exists without a journal, so it may not be ours: move it "
                    "away, or use --overwrite to replace it"
                )
            elif resume:
                problem = f"no unfinished job found for {self._path}: leave out --resume"
            if problem:
                self._journal.remove()  # it is empty
                raise UsageError(problem)
            self._may_replace = overwrite
            self._begin(job)
            return
        saved_job, self.mark = unfinished
        self._may_replace = saved_job.get("replaces") is True
        this_job = json.loads(json.dumps({**saved_job, **job}))
        if changed := sorted(_differences(saved_job, this_job)):
            raise UsageError(
                f"the unfinished job for {self._path} had different settings "
                f"({', '.join(changed[:6])} changed): run it as before to continue, or start "
                "over with --overwrite"
            )
        if self.mark == ResumeMark():  # killed before its first mark
            self._begin(job)
        elif not self.mark.done:
            self._files = (
                _open_cut(self._partial, self.mark.output_bytes),
                _open_cut(self._skipped_partial, self.mark.skipped_bytes),
            )

    def _begin(self, job: Mapping[str, Any]) -> None:
        """Writes the journal's first line, the head of the output and the first mark."""
        head = self._form.head()
        with self._write_errors():
            self._journal.begin({"replaces": self._may_replace, **job})
            self._files = (_open_cut(self._partial, 0), _open_cut(self._skipped_partial, 0))
            write_all(self._files[0], head)
        self._save(ResumeMark(output_bytes=len(head)))

    def _save(self, mark: ResumeMark) -> None:
        """Adds a mark to the journal after everything before it is on the disk."""
        with self._write_errors():
            for descriptor in self._files:
                os.fsync(descriptor)
            self._journal.add(mark)
        self._marked_s = time.monotonic()
        self.mark = self._saved = mark

    def _close_files(self) -> None:
        for descriptor in self._files:
            with suppress(OSError):
                os.close(descriptor)
        self._files = ()

    def _write_errors(self) -> AbstractContextManager[None]:
        saved = _vectors_are(self._saved.kept)
        advice = f" {saved} saved: free some space and run the same command again"
        return _write_errors(str(self._path), advice=advice)


Output = StreamOutput | FileOutput


def check_apart(output: Path, inputs: Mapping[str, Path | int]) -> None:
    """Raises UsageError if a file that the job writes or removes is one of its inputs, even under another name.

    `inputs` maps a description of each input to its path or open descriptor.
    """
    for description, source in inputs.items():
        with suppress(OSError, ValueError, RuntimeError):
            path = output.resolve()
            status = os.fstat(source) if isinstance(source, int) else source.stat()
            for ending in ("", *_ENDINGS):
                written = _companion(path, ending)
                if written.exists() and os.path.samestat(written.stat(), status):
                    raise UsageError(
                        f"{_companion(output, ending)} is {description} itself and would be "
                        "overwritten: choose another --output"
                    )


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all bytes, where one `os.write` may write only some of them."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Makes new names in a folder survive a crash, on systems that can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _output_path(path: Path) -> Path:
    """The path with links resolved: the target of a link is replaced, not the link."""
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


def _companion(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _open_cut(path: Path, size_bytes: int) -> int:
    """A descriptor for appending, after cutting the file to `size_bytes`."""
    flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
    if not size_bytes:
        flags |= os.O_CREAT | os.O_TRUNC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
    actual_bytes = os.fstat(descriptor).st_size
    if actual_bytes < size_bytes:
        os.close(descriptor)
        raise UsageError(
            f"{path} has {actual_bytes:,} bytes, but its journal recorded {size_bytes:,}, so it "
            "was truncated. --overwrite starts over"
        )
    os.ftruncate(descriptor, size_bytes)
    return descriptor


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """The names of the settings that differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in before.keys() | now.keys():
            yield from _differences(before.get(key), now.get(key), f"{name} {key}".strip())
    elif before != now:
        yield name.replace("_", " ")


def _advance(mark: ResumeMark, batch: Batch, output_bytes: int, skipped_bytes: int) -> ResumeMark:
    """The mark after a batch that added this many bytes to the output and to the list of skipped rows."""
    return replace(
        mark,
        number=batch.number,
        position=batch.position,
        kept=mark.kept + len(batch.rows),
        skipped=mark.skipped + len(batch.skipped),
        tokens=mark.tokens + batch.tokens,
        output_bytes=mark.output_bytes + output_bytes,
        skipped_bytes=mark.skipped_bytes + skipped_bytes,
    )


def _vectors_are(count: int) -> str:
    """The beginning of a sentence: '1 vector is' or '5 vectors are'."""
    return "1 vector is" if count == 1 else f"{count:,} vectors are"


@contextmanager
def _write_errors(name: str, *, advice: str) -> Iterator[None]:
    """Turns an OSError (a full disk) into an OutputError that ends with `advice`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"{name} cannot be written: {error.strerror}.{advice}") from error


# --- the journal


class Journal:
    """The journal of a job, open and locked until `close` or `remove`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open_locked(path)
        self._bytes = 0  # length up to the end of the last intact line

    def read(self) -> tuple[dict[str, Any], ResumeMark] | None:
        """The job and its last intact mark; None if the journal is empty. Raises UsageError if the journal is damaged.

        A mark that is cut off or damaged is skipped: the one before it covers less work, but all of that is saved.
        """
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            first_line = file.readline(LINE_BYTES)
            marks_start = file.seek(max(size_bytes - LINE_BYTES, len(first_line)))
            lines = file.read().splitlines(keepends=True)
        if not first_line:
            return None
        try:
            job = _job(first_line)
            self._bytes, mark = _last_intact(lines, marks_start)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError(
                f"{self._path} is damaged, or from another version of EdgeKit: --overwrite starts over"
            ) from error
        return job, mark

    def begin(self, job: Mapping[str, Any]) -> None:
        """Starts a new job; the lines of an earlier one are removed."""
        os.ftruncate(self._descriptor, 0)
        self._bytes = 0
        self._append({"journal": VERSION, **job})
        sync_folder(self._path.parent)

    def add(self, mark: ResumeMark) -> None:
        """Appends a mark to resume from. Everything that it covers must be on the disk already."""
        fields = asdict(mark).items()
        self._append({name: value for name, value in fields if value not in (None, False)})

    def remove(self) -> None:
        if sys.platform == "win32":  # where an open file cannot be removed
            self.close()
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, record: Mapping[str, Any]) -> None:
        data = _with_checksum(json.dumps(record, separators=(",", ":")).encode())
        os.lseek(self._descriptor, self._bytes, os.SEEK_SET)
        os.ftruncate(self._descriptor, self._bytes)
        write_all(self._descriptor, data)
        os.fsync(self._descriptor)
        self._bytes += len(data)


def read_job(path: Path) -> dict[str, Any] | None:
    """The job that a journal describes, read without a lock; None if there is no readable journal."""
    try:
        with open_file(path) as file:
            return _job(file.readline(LINE_BYTES))
    except (OSError, SourceError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _open_locked(path: Path) -> int:
    """A descriptor of the journal, which is created if necessary. Raises UsageError if another job has locked it."""
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
        os.close(descriptor)  # another job has just finished and removed it


def _with_checksum(record: bytes) -> bytes:
    """A line of the journal: a JSON object with its checksum as the first key."""
    check = hashlib.blake2b(record, digest_size=_CHECK_DIGITS // 2).hexdigest().encode()
    return _CHECK + check + (b'",' if record != b"{}" else b'"') + record[1:] + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    """The object of a line without its checksum; None if the line is cut off or damaged."""
    record = b"{" + line[len(_CHECK) + _CHECK_DIGITS + 1 :].removeprefix(b",").rstrip(b"\n")
    if _with_checksum(record) != line:
        return None
    fields: dict[str, Any] = json.loads(record)
    return fields


def _job(line: bytes) -> dict[str, Any]:
    """The job in the first line of a journal. Raises ValueError if the line is damaged or of another version."""
    job = _record(line)
    if job is None or job["journal"] != VERSION:
        raise ValueError("not a journal of this version")
    return job


def _last_intact(lines: Sequence[bytes], start: int) -> tuple[int, ResumeMark]:
    """The offset at which the last mark with a valid checksum ends, and that mark. The lines begin at `start`.

    If the job was killed while it wrote its first mark, the mark is empty. Raises ValueError if every complete line is
    damaged.
    """
    end = start + sum(map(len, lines))
    for line in reversed(lines):
        if (fields := _record(line)) is not None:
            return end, ResumeMark(**fields)
        end -= len(line)
    if any(line.endswith(b"\n") for line in lines):
        raise ValueError("no mark is intact")
    return start, ResumeMark()


# --- file formats


def output_format(reference: str) -> str:
    """The format by the file's suffix; standard output gets JSON lines."""
    if reference == "-":
        return "jsonl"
    name = SUFFIXES.get(PurePath(reference).suffix.lower())
    if name is None:
        raise UsageError(f"{reference}: choose one of the output formats {', '.join(SUFFIXES)}")
    return name


def form_of(name: str, *, dimensions: int, ids: bool, integer_ids: bool) -> VectorForm:
    """The encoder of a format. Raises UsageError if the format cannot hold ids."""
    if name == "jsonl":
        return JsonlForm(ids=ids)
    if name == "parquet":
        from edgekit.embed.bulk.parquet import ParquetForm

        return ParquetForm(dimensions, ids=ids, integer_ids=integer_ids)
    if ids:
        raise UsageError("an .npy file cannot store ids: use .jsonl or .parquet")
    return NpyForm(dimensions)


class NpyForm(VectorForm):
    """One float32 array with a row for each text that was embedded."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes:
        if vectors.shape != (len(rows), self._dimensions):
            raise ValueError(f"{vectors.shape} vectors for {len(rows)} rows")
        return vectors.astype("<f4", copy=False).tobytes()

    def finish(self, partial: Path, vector_count: int) -> Path:
        with partial.open("r+b") as file:
            file.write(self.head(vector_count))
        return partial

    def head(self, rows: int = 0) -> bytes:
        shape = f"({rows}, {self._dimensions})"
        fields = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        length = NPY_HEAD_BYTES - len(_NPY_MAGIC) - 2
        return _NPY_MAGIC + length.to_bytes(2, "little") + f"{fields:<{length - 1}}\n".encode()


def number_texts(numbers: Floats) -> Any:
    """A list, nested like the array, with the shortest text of each number that gives the same float32."""
    return numbers.astype(_FLOAT_WIDTH).tolist()


class JsonlForm(VectorForm):
    """Lines such as {"row": 1, "id": "a", "vector": [...]}."""

    def __init__(self, *, ids: bool) -> None:
        self._ids = ids

    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes:
        lines = []
        for row, numbers in zip(rows, number_texts(vectors), strict=True):
            identity = f',"id":{json.dumps(row.id, ensure_ascii=False)}' if self._ids else ""
            lines.append(f'{{"row":{row.number}{identity},"vector":[{",".join(numbers)}]}}\n')
        return "".join(lines).encode()
