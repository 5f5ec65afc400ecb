"""The KV cache of each layer: packed rows in a ring of cells.

A cell is overwritten when its token has left the window. The first tokens may be pinned (sinks); the others rotate
through the cells after them. Keys stay as they were stored, rotated to their own positions. Only the distance to the
sinks would grow without end, so queries see them from the window's last position (StreamingLLM).
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekit.bill.spill import PAGE_TOKENS, SPILL_FROM_TOKENS, Purpose, Store, plan_spill
from edgekit.engines.native.file import ADVISE, read_ahead
from edgekit.engines.native.stream_plan import StreamPlan
from edgekit.errors import KvSpillUnsupportedError, SourceError
from edgekit.machine.surroundings import text_of
from edgekit.units import MIB, format_bytes

Packed = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CacheRun:
    """Rows of keys and values of consecutive tokens."""

    keys: Packed
    values: Packed
    position: int  # of the first
    reach: int | None = None
    is_sink: bool = False


class LayerCache:
    """The cells of one layer, all in memory."""

    def __init__(self, ring: Ring, cells: int, k_row_bytes: int, v_row_bytes: int) -> None:
        """`cells`: of the ring, that many are in memory."""
        self.ring = ring
        self._keys = touched(cells, k_row_bytes)
        self._values = touched(cells, v_row_bytes)

    @property
    def size_bytes(self) -> int:
        """In memory."""
        return self._keys.nbytes + self._values.nbytes

    def stretches(self, own: CacheRun) -> Iterator[list[CacheRun]]:
        """What the tokens of `own` attend to: themselves, and the cached tokens before them.

        A list is valid until the next one is requested.
        """
        spans = self.ring.spans(own.position, len(own.keys))
        yield [own, *(_cut(self._keys, self._values, span.cell, span) for span in spans)]

    def keep(self, own: CacheRun) -> None:
        """Copies the tokens into their cells."""
        for first, cell, count in self.ring.places(own.position, len(own.keys)):
            self._keys[cell : cell + count] = own.keys[first : first + count]
            self._values[cell : cell + count] = own.values[first : first + count]

    def forget(self) -> None:
        """Forgets all tokens. Cells that are not read need not be erased."""


def touched(rows: int, row_bytes: int) -> Packed:
    """An array whose memory is really allocated: the system may only have promised it."""
    made = np.empty((rows, row_bytes), np.uint8)
    made.fill(0)
    return made


@dataclass(frozen=True, slots=True)
class CellSpan:
    """Consecutive cells of consecutive tokens."""

    cell: int
    cells: int
    position: int  # of the first
    reach: int | None = None  # how many positions a query sees, including its own
    is_sink: bool = False  # for the query at the window's last position


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The cells of one layer."""

    cells: int
    sinks: int
    reach: int | None  # of the tokens after the sinks; None: all of them

    def spans(self, end: int, queries: int) -> Iterator[CellSpan]:
        """The tokens before `end` that the queries from `end` on may see."""
        if self.sinks and end + queries <= self.cells:  # no token leaves the window
            if end:
                yield CellSpan(0, end, 0)
            return
        if self.sinks:
            yield CellSpan(0, min(self.sinks, end), 0, is_sink=True)
        seen = self._rotating if self.reach is None else min(self.reach, self._rotating)
        oldest = max(self.sinks, end + 1 - seen)
        for position, cell, cells in self._runs(oldest, end):
            yield CellSpan(cell, cells, position, self.reach)

    def places(self, start: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Where the tokens from `start` on are stored, if they are: (the first of them, its cell, how many)."""
        end = start + tokens
        if start < self.sinks:
            yield 0, start, min(tokens, self.sinks - start)
        first = max(start, self.sinks, end - self._rotating)
        for position, cell, cells in self._runs(first, end):
            yield position - start, cell, cells

    def is_written_over(self, start: int, tokens: int) -> bool:
        """Whether storing these tokens overwrites cells that the first of them may still see."""
        return tokens > 1 and start + tokens > self.cells

    @property
    def _rotating(self) -> int:
        return self.cells - self.sinks

    def _runs(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(position, cell, how many) of consecutive cells after the sinks."""
        while first < end:
            cell = self.sinks + (first - self.sinks) % self._rotating
            cells = min(end - first, self.cells - cell)
            yield first, cell, cells
            first += cells


def layer_ring(plan: StreamPlan, layer: int) -> Ring:
    """A layer with its own shorter window has no sinks: it was not trained to see that far back."""
    cells, window = plan.cells[layer], plan.model.windows[layer]
    if plan.slides(layer):
        return Ring(cells=cells, sinks=0, reach=window)
    if not plan.rolling:
        return Ring(cells=cells, sinks=0, reach=None)
    return Ring(cells=cells, sinks=plan.sinks, reach=cells - plan.sinks)


_DISK_FULL = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})


class PageFile:
    """A file without a name: it is deleted with its last descriptor, however the process ends. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Raises KvSpillUnsupportedError if the file cannot be created."""
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - closed by close()
                dir=folder, prefix="edgekit-", suffix=".pages", buffering=0
            )
        except OSError as error:
            raise self._trouble("cannot be created", error) from error

    def write(self, offset: int, rows: Packed) -> None:
        """Raises KvSpillUnsupportedError; the memory is unchanged then."""
        left = rows.data.cast("B")
        try:
            self._file.seek(offset)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._trouble("cannot be written", error) from error

    def read(self, offset: int, into: Packed) -> None:
        """Fills `into`. Raises SourceError if the file is shorter or cannot be read."""
        left = into.data.cast("B")
        try:
            self._file.seek(offset)
            while left:
                count = self._file.readinto(left)
                if not count:
                    raise SourceError(
                        f"spilled KV cache: the file in {self._folder} ends {len(left):,} "
                        f"bytes before byte {offset + into.nbytes:,}, so earlier results "
                        "cannot be trusted: start again (reset)"
                    )
                left = left[count:]
        except OSError as error:
            raise SourceError(
                f"the spilled KV cache cannot be read back from {self._folder}: "
                f"{error.strerror or error}"
            ) from error

    def read_ahead(self, offset: int, length: int) -> None:
        """Tells the system what will be read soon. Only a hint: it cannot fail."""
        read_ahead(self._file.fileno(), offset, length)

    def flush(self) -> None:
        """To the disk, and out of the page cache where the system allows it."""
        try:
            os.fsync(self._file.fileno())
            if ADVISE is not None:
                ADVISE(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._trouble("cannot be written", error) from error

    def close(self) -> None:
        self._file.close()

    def _trouble(self, what: str, error: OSError) -> KvSpillUnsupportedError:
        advice = " free some space," if error.errno in _DISK_FULL else ""
        return KvSpillUnsupportedError(
            f"the spilled KV cache {what} in {self._folder}: "
            f"{error.strerror or error};{advice} use another folder, or fewer tokens"
        )


class PagedCache(LayerCache):
    """A layer whose newest pages are in memory; the others are in the file, one after another."""

    def __init__(
        self, ring: Ring, pages: int, file: PageFile, *, offset: int, cold: CacheRun
    ) -> None:
        """`pages` stay in memory; a page that is read back goes to `cold`, which all layers share."""
        super().__init__(ring, pages * PAGE_TOKENS, cold.keys.shape[1], cold.values.shape[1])
        self._file, self._offset, self._cold = file, offset, cold
        self.page_bytes = cold.keys.nbytes + cold.values.nbytes
        self._pinned = -(-ring.sinks // PAGE_TOKENS)  # pages that never leave
        self._free = list(range(pages))
        self._slots: dict[int, int] = {}  # by page, the oldest first
        self._spilled: set[int] = set()

    def stretches(self, own: CacheRun) -> Iterator[list[CacheRun]]:
        """First everything in memory, then one page at a time."""
        cold: dict[int, list[CellSpan]] = {}
        warm = [own]
        for span in self.ring.spans(own.position, len(own.keys)):
            for part in _by_page(span):
                page, within = divmod(part.cell, PAGE_TOKENS)
                slot = self._slots.get(page)
                if slot is None:
                    cold.setdefault(page, []).append(part)
                else:
                    first = slot * PAGE_TOKENS + within
                    warm.append(_cut(self._keys, self._values, first, part))
        if cold:
            length = (max(cold) + 1 - min(cold)) * self.page_bytes
            self._file.read_ahead(self._place(min(cold)), length)
        yield warm
        for page, parts in cold.items():
            self._read(page, self._cold.keys, self._cold.values)
            yield [
                _cut(self._cold.keys, self._cold.values, part.cell % PAGE_TOKENS, part)
                for part in parts
            ]

    def keep(self, own: CacheRun) -> None:
        for first, cell, count in self.ring.places(own.position, len(own.keys)):
            for span in _by_page(CellSpan(cell, count, first)):
                page, within = divmod(span.cell, PAGE_TOKENS)
                begin = self._open(page) * PAGE_TOKENS + within
                rows = slice(begin, begin + span.cells)
                source = slice(span.position, span.position + span.cells)
                self._keys[rows] = own.keys[source]
                self._values[rows] = own.values[source]

    def forget(self) -> None:
        self._free.extend(self._slots.values())
        self._slots.clear()
        self._spilled.clear()

    def _open(self, page: int) -> int:
        """The page's slot in memory. The oldest page makes room for it, after it was written to the disk."""
        slot = self._slots.get(page)
        if slot is not None:
            return slot
        if not self._free:
            oldest = next(page for page in self._slots if page >= self._pinned)
            keys, values = self._rows(self._slots[oldest])
            self._file.write(self._place(oldest), keys)
            self._file.write(self._place(oldest) + keys.nbytes, values)
            self._spilled.add(oldest)
            self._free.append(self._slots.pop(oldest))
        if page in self._spilled:  # the window has come back to it
            self._read(page, *self._rows(self._free[-1]))
            self._spilled.discard(page)
        self._slots[page] = slot = self._free.pop()
        return slot

    def _rows(self, slot: int) -> tuple[Packed, Packed]:
        rows = slice(slot * PAGE_TOKENS, (slot + 1) * PAGE_TOKENS)
        return self._keys[rows], self._values[rows]

    def _read(self, page: int, keys: Packed, values: Packed) -> None:
        self._file.read(self._place(page), keys)
        self._file.read(self._place(page) + keys.nbytes, values)

    def _place(self, page: int) -> int:
        return self._offset + page * self.page_bytes


def _by_page(span: CellSpan) -> Iterator[CellSpan]:
    """In parts of one page each."""
    first = span.cell
    while first < span.cell + span.cells:
        last = min(span.cell + span.cells, (first // PAGE_TOKENS + 1) * PAGE_TOKENS)
        position = span.position + first - span.cell
        yield CellSpan(first, last - first, position, span.reach, span.is_sink)
        first = last


def _cut(keys: Packed, values: Packed, first: int, span: CellSpan) -> CacheRun:
    rows = slice(first, first + span.cells)
    return CacheRun(keys[rows], values[rows], span.position, span.reach, span.is_sink)


def make_caches(plan: StreamPlan, file: PageFile | None) -> Iterator[LayerCache]:
    """With a file, layers that see the whole window keep some pages in memory; the others stay in memory completely."""
    row_bytes = plan.k_row_bytes, plan.v_row_bytes
    cold = None
    if file is not None:
        keys, values = (touched(PAGE_TOKENS, size) for size in row_bytes)
        cold = CacheRun(keys, values, 0)
    offset = 0
    for layer in range(len(plan.cells)):
        ring = layer_ring(plan, layer)
        if file is None or cold is None or plan.slides(layer):
            yield LayerCache(ring, ring.cells, *row_bytes)
        else:
            pages = plan.resident_cells(layer) // PAGE_TOKENS
            yield PagedCache(ring, pages, file, offset=offset, cold=cold)
            offset += -(-ring.cells // PAGE_TOKENS) * PAGE_TOKENS * plan.cell_bytes


# --- whether the disk is fast enough

MEASURED_BYTES = 16 * MIB
_PIECE_BYTES = MIB
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpeed:
    write_bytes_per_s: float
    read_bytes_per_s: float


def check_gate(
    plan: StreamPlan,
    folder: Path,
    purpose: Purpose,
    *,
    spill_from_tokens: int = SPILL_FROM_TOKENS,
) -> DiskSpeed:
    """Raises KvSpillUnsupportedError if a step of the full window would wait too long for the disk.

    First the rule of `plan_spill`, then everything that one step reads back and may write, at the measured speed of the
    folder.
    """
    pages = plan.resident_pages or 0
    layers = sum(not plan.slides(layer) for layer in range(len(plan.cells)))
    bytes_per_token = layers * plan.cell_bytes
    spill = plan_spill(
        context_tokens=plan.context_tokens,
        bytes_per_token=bytes_per_token,
        resident_budget_bytes=pages * PAGE_TOKENS * bytes_per_token,
        store=Store.NVME,
        purpose=purpose,
        store_free_bytes=_room_bytes(folder),
        spill_from_tokens=spill_from_tokens,
    )
    _refuse_memory(folder)
    speed = measure(folder)
    read_ms = spill.spilled_bytes * 1000 / speed.read_bytes_per_s
    write_ms = spill.page_bytes * 1000 / speed.write_bytes_per_s
    if read_ms + write_ms > purpose.limit_ms:
        raise KvSpillUnsupportedError(
            f"a KV cache of {plan.context_tokens:,} tokens with only "
            f"{spill.resident_tokens:,} in memory would be too slow: each step reads "
            f"{format_bytes(spill.spilled_bytes)} back from {folder} in {read_ms:,.0f} ms "
            f"(measured at {speed.read_bytes_per_s / 1e6:,.0f} MB/s) and writes up to "
            f"{format_bytes(spill.page_bytes)} in {write_ms:,.0f} ms "
            f"({speed.write_bytes_per_s / 1e6:,.0f} MB/s); the limit for {purpose.value} "
            f"is {purpose.limit_ms:,} ms. Use fewer tokens, keep more of them in memory, "
            "or use a folder on a faster disk (TMPDIR)"
        )
    return speed


def measure(folder: Path) -> DiskSpeed:
    """Writes and reads a file of 16 MiB, without the page cache where the system allows it."""
    piece = np.frombuffer(os.urandom(_PIECE_BYTES), np.uint8).copy()
    file = PageFile(folder)
    try:
        begin = time.perf_counter()
        for offset in range(0, MEASURED_BYTES, _PIECE_BYTES):
            file.write(offset, piece)
        file.flush()
        middle = time.perf_counter()
        for offset in range(0, MEASURED_BYTES, _PIECE_BYTES):
            file.read(offset, piece)
        end = time.perf_counter()
    finally:
        file.close()
    return DiskSpeed(
        write_bytes_per_s=MEASURED_BYTES / max(middle - begin, 1e-9),
        read_bytes_per_s=MEASURED_BYTES / max(end - middle, 1e-9),
    )


def _room_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise KvSpillUnsupportedError(
            f"cannot spill the KV cache to {folder}: {error.strerror or error}; use another folder"
        ) from error


def _refuse_memory(folder: Path) -> None:
    """A folder in RAM would take the memory that the plan counts as free."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    for line in (text_of(Path("/proc/self/mountinfo")) or "").splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.partition(" ")[0]
        if len(words) > 2 and words[2] == wanted and kind in _IN_MEMORY:
            raise KvSpillUnsupportedError(
                f"{folder} is in RAM ({kind}), so spilling the KV cache there saves no "
                "memory; use a folder on a disk"
            )
