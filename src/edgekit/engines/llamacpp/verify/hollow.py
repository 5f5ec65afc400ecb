"""The files of a model -> files of the same length with the same header and a hole for the weights."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgekit.errors import EngineError, HeaderError, UsageError
from edgekit.formats.gguf import read_gguf
from edgekit.formats.opened import read_shards
from edgekit.sources.types import ByteSource, Container, ModelFile, ModelFiles
from edgekit.units import KIB, MIB, format_bytes

_PROBE_BYTES = 8 * MIB
_TAKEN_BYTES = 512 * KIB  # more than this of the probe on disk: the hole is not one
_SMALL_BYTES = 64 * MIB  # may be written out in full


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowFile:
    """All of a file but its weights. A ByteSource: what lies in the hole reads as zeros."""

    name: str
    header: bytes = field(repr=False)
    size_bytes: int

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - in memory
        length = max(0, min(length, self.size_bytes - offset))
        return self.header[offset : offset + length].ljust(length, b"\0")

    def close(self) -> None:
        """Nothing to close."""


def hollow_out(files: ModelFiles) -> tuple[HollowFile, ...]:
    """The headers of all shards, read once; of a remote file nothing else is fetched."""
    if files.container is not Container.GGUF:
        raise UsageError(
            f"{files.label} is {files.container.value}, but verify runs llama.cpp, which "
            "only reads GGUF files"
        )
    if not files.weights:
        raise HeaderError("there is no GGUF file to read", file=files.label)
    return tuple(read_shards(files, range(len(files.weights)), _hollow_file))


def _hollow_file(source: ByteSource, _: int) -> HollowFile:
    found = read_gguf(source)
    length = found.header_bytes or 0
    return HollowFile(name=source.name, header=source.read(0, length), size_bytes=source.size_bytes)


def files_of(files: ModelFiles, hollow: Sequence[HollowFile]) -> ModelFiles:
    """The same model, from memory."""

    def stand_in(file: HollowFile) -> ModelFile:
        return ModelFile(name=file.name, open=lambda: file, size_bytes=file.size_bytes)

    return replace(files, weights=tuple(map(stand_in, hollow)))


@contextmanager
def on_disk(hollow: Sequence[HollowFile]) -> Iterator[Path]:
    """The path of the first, all of them in a folder that is gone afterwards, whatever happens.

    EngineError where the files would really take their size.
    """
    with ending_in_order(), ExitStack() as stack:
        try:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="edgekit-verify-", ignore_cleanup_errors=True)
            )
            path = _write_all(Path(folder), hollow)
        except OSError as error:
            raise EngineError(
                f"cannot write the header to {tempfile.gettempdir()}: "
                f"{error.strerror or error}; set TMPDIR to a folder with free space"
            ) from error
        yield path


@contextmanager
def ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end Python on the spot; as an exception they let it clean up, as Ctrl-C does."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []  # only the main thread may change what a signal does
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


def _write_all(folder: Path, hollow: Sequence[HollowFile]) -> Path:
    total = sum(file.size_bytes for file in hollow)
    if total > _SMALL_BYTES and not _keeps_holes(folder):
        raise EngineError(
            f"{folder.parent} is on a file system without sparse files, so the copy would "
            f"take {format_bytes(total)}; set TMPDIR to another folder"
        )
    paths = [folder / name for name in _names(len(hollow))]
    for path, file in zip(paths, hollow, strict=True):
        with path.open("wb") as out:
            out.write(file.header)
            out.truncate(file.size_bytes)
    return paths[0]


def _names(count: int) -> list[str]:
    """llama.cpp finds the other shards by these names."""
    if count == 1:
        return ["model.gguf"]
    return [f"model-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def _keeps_holes(folder: Path) -> bool:
    probe = folder / "probe"
    with probe.open("wb") as out:
        out.truncate(_PROBE_BYTES)
        blocks = _blocks(out.fileno())
    probe.unlink()
    return blocks is not None and blocks * 512 <= _TAKEN_BYTES


def _blocks(descriptor: int) -> int | None:
    """Those a file takes on disk. Where they are not told (Windows) a hole takes its whole size."""
    return getattr(os.fstat(descriptor), "st_blocks", None)
