"""Batches -> a file that is there whole or not at all, whatever happens on the way.

While a job runs there are `NAME.partial` (what will be the output), `NAME.skipped.partial` (rows that were passed over)
and `NAME.journal`. All only grow. Whoever goes on cuts them to what the journal vouches for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from edgekit.embed.bulk.journal import Journal, sync_folder, write_all
from edgekit.embed.bulk.types import BadRow, Batch, ResumeMark, VectorForm
from edgekit.errors import OutputError, UsageError

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
