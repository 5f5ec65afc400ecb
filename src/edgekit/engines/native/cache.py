"""The KV cache of each layer: packed rows in a ring of cells.

A cell holds the key and the value of one token and is overwritten when the token has left the window. The first tokens
may be pinned (sinks); the others rotate through the cells after them. Keys are stored rotated to their positions. The
distance from a query to the sinks would grow without limit, so queries see the sinks as if from the last position of
the window (StreamingLLM).
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
    """The packed keys and values of consecutive tokens."""

    keys: Packed
    values: Packed
    position: int  # of the first token
    reach: int | None = None  # how many positions a query sees, including its own; None: all
    is_sink: bool = False  # queries see it as if from the window's last position


class LayerCache:
    """The cells of one layer, all in memory."""

    def __init__(self, ring: Ring, cells: int, k_row_bytes: int, v_row_bytes: int) -> None:
        """`cells` is how many cells of the ring are in memory."""
        self.ring = ring
        self._keys = allocate_rows(cells, k_row_bytes)
        self._values = allocate_rows(cells, v_row_bytes)

    @property
    def size_bytes(self) -> int:
        """Memory that the cells take."""
        return self._keys.nbytes + self._values.nbytes

    def runs_to_attend(self, new_run: CacheRun) -> Iterator[list[CacheRun]]:
        """The runs that the new tokens attend to: themselves, and the cached tokens before them.

        Each list is valid until the next one is requested.
        """
        spans = self.ring.spans(new_run.position, len(new_run.keys))
        yield [
            new_run,
            *(_run_of_span(self._keys, self._values, span.cell, span) for span in spans),
        ]

    def store(self, new_run: CacheRun) -> None:
        """Copies the new tokens into their cells."""
        for first, cell, count in self.ring.places(new_run.position, len(new_run.keys)):
            self._keys[cell : cell + count] = new_run.keys[first : first + count]
            self._values[cell : cell + count] = new_run.values[first : first + count]

    def clear(self) -> None:
        """Forgets all tokens. The cells need no erasing: each is written before it is read again."""


def allocate_rows(rows: int, row_bytes: int) -> Packed:
    """An array filled with zeros, so that the system really allocates its memory now."""
    array = np.empty((rows, row_bytes), np.uint8)
    array.fill(0)
    return array


@dataclass(frozen=True, slots=True)
class CellSpan:
    """Consecutive cells that hold consecutive tokens."""

    cell: int
    cells: int
    position: int  # of the first token
    reach: int | None = None  # how many positions a query sees, including its own; None: all
    is_sink: bool = False  # queries see it as if from the window's last position


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Which cell of a layer holds which token."""

    cells: int
    sinks: int
    reach: int | None  # how many positions a query sees after the sinks; None: all

    def spans(self, end: int, queries: int) -> Iterator[CellSpan]:
        """The cells of the tokens before position `end` that queries at `end` and after may see."""
        # While nothing has left the window, sinks are ordinary tokens.
        if self.sinks and end + queries <= self.cells:
            if end:
                yield CellSpan(0, end, 0)
            return
        if self.sinks:
            yield CellSpan(0, min(self.sinks, end), 0, is_sink=True)
        visible_tokens = self._rotating if self.reach is None else min(self.reach, self._rotating)
        oldest = max(self.sinks, end + 1 - visible_tokens)  # the query at `end` sees itself, too
        for position, cell, cells in self._runs(oldest, end):
            yield CellSpan(cell, cells, position, self.reach)

    def places(self, start: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Where to store new tokens, as (index of the first token, its cell, number of tokens).

        `start` is the position of the first new token. Tokens that would be overwritten at once are left out.
        """
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
        """Cells that are reused, unlike those of the sinks."""
        return self.cells - self.sinks

    def _runs(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Runs of consecutive cells for the positions first..end, as (position, cell, number of cells)."""
        while first < end:
            cell = self.sinks + (first - self.sinks) % self._rotating
            cells = min(end - first, self.cells - cell)
            yield first, cell, cells
            first += cells


def layer_ring(plan: StreamPlan, layer: int) -> Ring:
    """The ring of one layer. A layer with a sliding window has no sinks: it was not trained to see that far back."""
    cells, window = plan.cells[layer], plan.model.windows[layer]
    if plan.slides(layer):
        return Ring(cells=cells, sinks=0, reach=window)
    if not plan.rolling:
        return Ring(cells=cells, sinks=0, reach=None)
    return Ring(cells=cells, sinks=plan.sinks, reach=cells - plan.sinks)


_DISK_FULL = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})


class PageFile:
    """A temporary file without a name: the system deletes it when the process ends, however that happens.

    Not thread-safe.
    """

    def __init__(self, folder: Path) -> None:
        """Raises KvSpillUnsupportedError if the file cannot be created."""
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - closed by close()
                dir=folder, prefix="edgekit-", suffix=".pages", buffering=0
            )
        except OSError as error:
            raise self._error("cannot be created", error) from error

    def write(self, offset: int, rows: Packed) -> None:
        """Raises KvSpillUnsupportedError if the disk is full or fails; `rows` are unchanged."""
        remaining = rows.data.cast("B")
        try:
            self._file.seek(offset)
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
        except OSError as error:
            raise self._error("cannot be written", error) from error

    def read(self, offset: int, into: Packed) -> None:
        """Fills `into` from the file. Raises SourceError if the file is too short or cannot be read."""
        remaining = into.data.cast("B")
        try:
            self._file.seek(offset)
            while remaining:
                count = self._file.readinto(remaining)
                if not count:
                    raise SourceError(
                        f"spilled KV cache: the file in {self._folder} ends {len(remaining):,} "
                        f"bytes before byte {offset + into.nbytes:,}, so earlier results "
                        "cannot be trusted: start again (reset)"
                    )
                remaining = remaining[count:]
        except OSError as error:
            raise SourceError(
                f"the spilled KV cache cannot be read back from {self._folder}: "
                f"{error.strerror or error}"
            ) from error

    def read_ahead(self, offset: int, length: int) -> None:
        """Hints to the system what will be read soon. Never fails."""
        read_ahead(self._file.fileno(), offset, length)

    def flush(self) -> None:
        """Writes the file to the disk and, where the system allows it, drops it from the page cache."""
        try:
            os.fsync(self._file.fileno())
            if ADVISE is not None:
                ADVISE(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._error("cannot be written", error) from error

    def close(self) -> None:
        self._file.close()

    def _error(self, what: str, error: OSError) -> KvSpillUnsupportedError:
        advice = " free some space," if error.errno in _DISK_FULL else ""
        return KvSpillUnsupportedError(
            f"the spilled KV cache {what} in {self._folder}: "
            f"{error.strerror or error};{advice} use another folder, or fewer tokens"
        )


class PagedCache(LayerCache):
    """The cells of one layer, in pages: the newest pages are in memory, the others in the file."""

    def __init__(
        self, ring: Ring, pages: int, file: PageFile, *, offset: int, cold: CacheRun
    ) -> None:
        """`pages` is how many pages fit in memory; those in the file start at `offset`.

        Pages are read back into `cold`, which all layers share.
        """
        super().__init__(ring, pages * PAGE_TOKENS, cold.keys.shape[1], cold.values.shape[1])
        self._file, self._offset, self._cold = file, offset, cold
        self.page_bytes = cold.keys.nbytes + cold.values.nbytes
        self._pinned = -(-ring.sinks // PAGE_TOKENS)  # pages of the sinks, which never leave memory
        self._free = list(range(pages))
        self._slots: dict[int, int] = {}  # page -> its slot in memory, oldest page first
        self._spilled: set[int] = set()

    def runs_to_attend(self, new_run: CacheRun) -> Iterator[list[CacheRun]]:
        """First all runs in memory, then the runs of one page from the file at a time."""
        cold_spans: dict[int, list[CellSpan]] = {}  # by page
        resident_runs = [new_run]
        for span in self.ring.spans(new_run.position, len(new_run.keys)):
            for page_span in _split_by_page(span):
                page, cell_in_page = divmod(page_span.cell, PAGE_TOKENS)
                slot = self._slots.get(page)
                if slot is None:
                    cold_spans.setdefault(page, []).append(page_span)
                else:
                    row = slot * PAGE_TOKENS + cell_in_page
                    resident_runs.append(_run_of_span(self._keys, self._values, row, page_span))
        if cold_spans:
            length = (max(cold_spans) + 1 - min(cold_spans)) * self.page_bytes
            self._file.read_ahead(self._page_offset(min(cold_spans)), length)
        yield resident_runs
        for page, page_spans in cold_spans.items():
            self._read(page, self._cold.keys, self._cold.values)
            yield [
                _run_of_span(
                    self._cold.keys, self._cold.values, page_span.cell % PAGE_TOKENS, page_span
                )
                for page_span in page_spans
            ]

    def store(self, new_run: CacheRun) -> None:
        for first, cell, count in self.ring.places(new_run.position, len(new_run.keys)):
            for span in _split_by_page(CellSpan(cell, count, first)):
                page, cell_in_page = divmod(span.cell, PAGE_TOKENS)
                first_row = self._open(page) * PAGE_TOKENS + cell_in_page
                rows = slice(first_row, first_row + span.cells)
                source = slice(span.position, span.position + span.cells)
                self._keys[rows] = new_run.keys[source]
                self._values[rows] = new_run.values[source]

    def clear(self) -> None:
        self._free.extend(self._slots.values())
        self._slots.clear()
        self._spilled.clear()

    def _open(self, page: int) -> int:
        """The page's slot in memory. If no slot is free, the oldest page is written to the file."""
        slot = self._slots.get(page)
        if slot is not None:
            return slot
        if not self._free:
            oldest = next(page for page in self._slots if page >= self._pinned)
            keys, values = self._rows(self._slots[oldest])
            self._file.write(self._page_offset(oldest), keys)
            self._file.write(self._page_offset(oldest) + keys.nbytes, values)
            self._spilled.add(oldest)
            self._free.append(self._slots.pop(oldest))
        if page in self._spilled:  # the ring has come round to this page again
            self._read(page, *self._rows(self._free[-1]))
            self._spilled.discard(page)
        self._slots[page] = slot = self._free.pop()
        return slot

    def _rows(self, slot: int) -> tuple[Packed, Packed]:
        rows = slice(slot * PAGE_TOKENS, (slot + 1) * PAGE_TOKENS)
        return self._keys[rows], self._values[rows]

    def _read(self, page: int, keys: Packed, values: Packed) -> None:
        self._file.read(self._page_offset(page), keys)
        self._file.read(self._page_offset(page) + keys.nbytes, values)

    def _page_offset(self, page: int) -> int:
        return self._offset + page * self.page_bytes


def _split_by_page(span: CellSpan) -> Iterator[CellSpan]:
    """Cuts a span at page boundaries."""
    first = span.cell
    while first < span.cell + span.cells:
        last = min(span.cell + span.cells, (first // PAGE_TOKENS + 1) * PAGE_TOKENS)
        position = span.position + first - span.cell
        yield CellSpan(first, last - first, position, span.reach, span.is_sink)
        first = last


def _run_of_span(keys: Packed, values: Packed, first: int, span: CellSpan) -> CacheRun:
    rows = slice(first, first + span.cells)
    return CacheRun(keys[rows], values[rows], span.position, span.reach, span.is_sink)


def make_caches(plan: StreamPlan, file: PageFile | None) -> Iterator[LayerCache]:
    """The cache of every layer. With a file, layers that see the complete window spill; the others stay in memory."""
    row_bytes = plan.k_row_bytes, plan.v_row_bytes
    cold = None
    if file is not None:
        keys, values = (allocate_rows(PAGE_TOKENS, size) for size in row_bytes)
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
        store_free_bytes=_free_bytes(folder),
        spill_from_tokens=spill_from_tokens,
    )
    _refuse_folder_in_memory(folder)
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
        start_s = time.perf_counter()
        for offset in range(0, MEASURED_BYTES, _PIECE_BYTES):
            file.write(offset, piece)
        file.flush()
        written_s = time.perf_counter()
        for offset in range(0, MEASURED_BYTES, _PIECE_BYTES):
            file.read(offset, piece)
        read_s = time.perf_counter()
    finally:
        file.close()
    return DiskSpeed(
        write_bytes_per_s=MEASURED_BYTES / max(written_s - start_s, 1e-9),
        read_bytes_per_s=MEASURED_BYTES / max(read_s - written_s, 1e-9),
    )


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise KvSpillUnsupportedError(
            f"cannot spill the KV cache to {folder}: {error.strerror or error}; use another folder"
        ) from error


def _refuse_folder_in_memory(folder: Path) -> None:
    """Raises KvSpillUnsupportedError for a folder in RAM, which would use the memory that the plan counts as free."""
    device = folder.stat().st_dev
    device_number = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    for line in (text_of(Path("/proc/self/mountinfo")) or "").splitlines():
        mount, _, filesystem = line.partition(" - ")
        words, kind = mount.split(), filesystem.partition(" ")[0]
        if len(words) > 2 and words[2] == device_number and kind in _IN_MEMORY:
            raise KvSpillUnsupportedError(
                f"{folder} is in RAM ({kind}), so spilling the KV cache there saves no "
                "memory; use a folder on a disk"
            )
