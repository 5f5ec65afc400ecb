"""A file, a load and a setup -> a StreamEngine: planned, paid for, and ready to read tokens."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from edgekit.bill.spill import SPILL_FROM_TOKENS, Purpose
from edgekit.engines.native.buffers import matrices
from edgekit.engines.native.crew import Crew, WorkShare, one_thread
from edgekit.engines.native.families import ModelUse
from edgekit.engines.native.file import WeightFile, walk
from edgekit.engines.native.forward import StreamPass, make_stream_buffers, make_worker
from edgekit.engines.native.kernels.choice import choose
from edgekit.engines.native.layers import make_network
from edgekit.engines.native.model import read_model
from edgekit.engines.native.pages import PagedCache, PageFile, check_gate, make_caches
from edgekit.engines.native.stream_plan import StreamSetup, plan_stream
from edgekit.engines.native.types import Checkpoint, Floats, Limits
from edgekit.engines.native.weights import EncoderWeights
from edgekit.errors import ContextTooLargeError, MemoryPressureError, TextError, UsageError
from edgekit.machine.monitor import Monitor
from edgekit.units import LARGEST, format_bytes

if TYPE_CHECKING:
    from edgekit.bill.types import Load, MemoryLine
    from edgekit.engines.native.cache import LayerCache
    from edgekit.engines.native.crew import CrewMember
    from edgekit.engines.native.forward import StreamBuffers
    from edgekit.engines.native.kernels.types import Kernels
    from edgekit.engines.native.stream_plan import StreamPlan


_ANY_SIZE = Limits(file_bytes=LARGEST)


def open_stream(
    path: Path | str,
    *,
    load: Load,
    setup: StreamSetup | None = None,
    monitor: Monitor | None = None,
    kernels: Kernels | None = None,
    spill_folder: Path | None = None,
    purpose: Purpose = Purpose.TEXT,
    spill_from_tokens: int = SPILL_FROM_TOKENS,
) -> StreamEngine:
    """Reserves and allocates what the plan says, and reads the weights that stay.

    MemoryPressureError when the monitor does not give the memory, KvSpillUnsupportedError when cold pages would be
    back too late or have no place to go, and the errors of `read_model` and `plan_stream`.
    """
    kernels = kernels or choose()
    with ExitStack() as held:
        file = held.enter_context(WeightFile(Path(path), _ANY_SIZE))
        model = read_model(walk(file), ModelUse.GENERATE)
        plan = plan_stream(model, load, setup or StreamSetup(), spill_from_tokens=spill_from_tokens)
        pages = None
        if plan.resident_pages is not None:
            folder = spill_folder or Path(tempfile.gettempdir())
            check_gate(plan, folder, purpose, spill_from_tokens=spill_from_tokens)
            pages = PageFile(folder)
            held.callback(pages.close)
        return StreamEngine(
            file,
            plan,
            kernels=kernels,
            monitor=monitor or Monitor(),
            pages=pages,
            held=held.pop_all(),
        )


class StreamEngine:
    """Made by `open_stream`: one session, its cache, and the logits of the next token. Close it, or use a `with`."""

    def __init__(
        self,
        file: WeightFile,
        plan: StreamPlan,
        *,
        kernels: Kernels,
        monitor: Monitor,
        pages: PageFile | None,
        held: ExitStack,
    ) -> None:
        """`held` is closed with the engine, or when it cannot be made."""
        self.plan = plan
        self._file, self._kernels, self._monitor = file, kernels, monitor
        self._feeding = threading.Lock()
        self._reader: int | None = None  # the thread that reads
        self._position = 0
        self._needs_reset = False
        self._streams = any(tensor.name not in plan.kept for tensor in matrices(plan.model))
        with held:
            for line in plan.lines:
                held.enter_context(monitor.try_allocate(line.size_bytes, line_key(line)))
            try:
                self._allocate(pages, held)
            except MemoryError as error:
                raise MemoryPressureError(
                    f"could not allocate the planned {format_bytes(plan.total_bytes)}, "
                    "although they seemed to be free: close other programs, or use a "
                    "shorter context"
                ) from error
            self._held = held.pop_all()
        self._closed = False

    def _allocate(self, pages: PageFile | None, held: ExitStack) -> None:
        plan, kernels = self.plan, self._kernels
        workers = [make_worker(plan) for _ in range(plan.threads)]
        self._crew = Crew(workers)
        held.callback(self._crew.close)
        weights = EncoderWeights(self._file, plan, kernels, self._crew.first, self._monitor.check)
        self._network = make_network(plan.model, weights, kernels)
        self._buffers = make_stream_buffers(plan)
        self._caches = tuple(make_caches(plan, pages))
        self.allocated: Mapping[str, int] = allocated_bytes(
            workers=workers, weights=weights, buffers=self._buffers, caches=self._caches
        )

    @property
    def position(self) -> int:
        """Tokens that were read since the beginning, whether or not they are still in the window."""
        return self._position

    @property
    def needs_reset(self) -> bool:
        """A prompt was broken off in a full window: some layers have forgotten more than others."""
        return self._needs_reset

    @property
    def cache_bytes(self) -> int:
        """In memory, with the page that cold ones are read back into."""
        return sum(size for key, size in self.allocated.items() if key.startswith(CACHES))

    @property
    def width(self) -> int:
        return self.plan.model.dimensions.width

    @property
    def vocabulary(self) -> int:
        return self.plan.model.dimensions.vocabulary

    @property
    def room_tokens(self) -> int | None:
        """How many more the window holds; None where it rolls."""
        return None if self.plan.rolling else self.plan.context_tokens - self._position

    def feed(self, tokens: Sequence[int], checkpoint: Checkpoint | None = None) -> Floats:
        """Reads them behind those before, and gives the logits of the next token: one vector, filled anew each time.

        ContextTooLargeError when they do not fit a window that does not roll, TextError for what is no token; nothing
        was read then. What `checkpoint` raises ends the call within a tile: the chunks before it stay read
        (`position`), and the session can go on, unless `needs_reset`.
        """
        with held_back() as interrupts:
            if not self._feeding.acquire(blocking=False):
                raise UsageError(
                    "the engine is busy: it has one session and processes one text at a time"
                )
            self._reader = threading.get_ident()
            try:
                self._check(tokens)
                with one_thread() if self._kernels.name == "numpy" else nullcontext():
                    self._feed(tokens, checkpoint or _go_on, interrupts)
            finally:
                self._reader = None
                self._feeding.release()
        return self._buffers.logits

    def _refuse_inside(self, what: str) -> None:
        """A checkpoint that waited for the reading it is part of would wait for ever."""
        if self._reader == threading.get_ident():
            raise UsageError(
                f"the engine cannot be {what} from inside its own callback: raise an "
                "exception instead"
            )

    def reset(self) -> None:
        """Forgets all tokens. The memory stays."""
        self._refuse_inside("reset")
        with self._feeding:
            self._check_open()
            for cache in self._caches:
                cache.forget()
            self._position, self._needs_reset = 0, False

    def close(self) -> None:
        """Waits for what is being read, ends the threads and gives the memory back. Twice is as good as once."""
        self._refuse_inside("closed")
        with held_back(), self._feeding:
            if not self._closed:
                self._closed = True
                self._held.close()
                del self._network, self._buffers, self._caches, self._crew

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _feed(self, tokens: Sequence[int], checkpoint: Checkpoint, interrupts: Interrupts) -> None:
        def look_up(share: float) -> None:
            interrupts.check()
            self._monitor.check()
            checkpoint(share)

        step = self.plan.chunk_tokens
        chunks = -(-len(tokens) // step)
        share = WorkShare(
            look_up, chunks * self._network.matrix_bytes + self._network.output.size_bytes
        )
        self._check_unchanged()
        for first in range(0, len(tokens), step):
            part, is_last = tokens[first : first + step], first + step >= len(tokens)
            try:
                self._run(part, share, is_last=is_last)
                if is_last:
                    self._check_unchanged()  # what was read in between was still of the same file
                    share.finish()
            except BaseException:
                rings = (cache.ring for cache in self._caches)
                if any(ring.is_written_over(self._position, len(part)) for ring in rings):
                    self._needs_reset = True
                raise
            self._position += len(part)

    def _run(self, tokens: Sequence[int], share: WorkShare, *, is_last: bool) -> None:
        forward = StreamPass(
            len(tokens),
            self._position,
            plan=self.plan,
            network=self._network,
            kernels=self._kernels,
            crew=self._crew,
            buffers=self._buffers,
            caches=self._caches,
            share=share,
        )
        forward.run(np.array(tokens, np.int64), self._buffers.logits if is_last else None)

    def _check_unchanged(self) -> None:
        if self._streams:
            self._file.check_unchanged()

    def _check(self, tokens: Sequence[int]) -> None:
        self._check_open()
        if self._needs_reset:
            raise UsageError(
                "a prompt was interrupted after it had replaced older tokens: reset the "
                "engine and start from the beginning"
            )
        if not len(tokens):  # a numpy array has no truth of its own
            raise TextError("no tokens given")
        for token in tokens:
            if not _is_whole(token) or not 0 <= token < self.vocabulary:
                raise TextError(
                    f"token {str(token)[:40]} is not one of the model's {self.vocabulary:,} tokens"
                )
        room = self.room_tokens
        if room is not None and len(tokens) > room:
            before = f" ({self._position:,} are in use)" if self._position else ""
            raise ContextTooLargeError(
                f"{len(tokens):,} tokens do not fit in the context of "
                f"{self.plan.context_tokens:,}{before}: use a context of "
                f"{self._position + len(tokens):,} or more, or a rolling window"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed")


def _is_whole(token: object) -> bool:
    return isinstance(token, int | np.integer)


def _go_on(_share: float) -> None:
    """Nobody wants to be asked."""


SAMPLER = "sampler"  # the line that is not the engine's to allocate: runtime/sampling does
CACHES = ("cache", "page read back")


def line_key(line: MemoryLine) -> str:
    """The array that a line pays for: the words before its arithmetic, and its layer."""
    return _key(line.because.partition(":")[0], line.layer)


def _key(name: str, layer: int | None) -> str:
    return name if layer is None else f"{name}, layer {layer}"


def allocated_bytes(
    *,
    workers: Sequence[CrewMember],
    weights: EncoderWeights,
    buffers: StreamBuffers,
    caches: Sequence[LayerCache],
) -> Mapping[str, int]:
    """What numpy says of each array, under the key of its line."""
    common = buffers.common
    sink_query = buffers.sink_query
    found = {
        "norms and biases": sum(vector.nbytes for vector in weights.held.values()),
        **_kept(weights),
        **{_key("cache", layer): cache.size_bytes for layer, cache in enumerate(caches)},
        "page read back": max(
            (cache.cold_bytes for cache in caches if isinstance(cache, PagedCache)), default=0
        ),
        "logits": buffers.logits.nbytes,
        "tokens": common.x.nbytes,
        "chunk": common.chunk.nbytes,
        "queries": common.query.nbytes,
        "queries of sinks": 0 if sink_query is None else sink_query.nbytes,
        "attention": buffers.mixed.nbytes + buffers.state.nbytes,
        "keys and values, then feed-forward": common.arena.nbytes,
        "staging": buffers.keys.nbytes + buffers.values.nbytes,
        "rotary": sum(turning.size_bytes for turning in buffers.turnings),
        "tiles": sum(
            worker.packed.nbytes + worker.scratch.nbytes + worker.side.nbytes for worker in workers
        ),
    }
    return {key: size_bytes for key, size_bytes in found.items() if size_bytes}


def _kept(weights: EncoderWeights) -> dict[str, int]:
    """Of each layer, and of what is outside of them."""
    found: dict[str, int] = {}
    for name, rows in weights.rows.items():
        if rows.kept is not None:
            place = int(name.split(".")[1]) if name.startswith("blk.") else None
            key = _key("weights kept", place)
            found[key] = found.get(key, 0) + rows.kept.nbytes
    return found


_HELD = ("SIGINT", "SIGTERM")
Handler = Callable[[int, FrameType | None], object]


class Interrupts:
    """Signals that have come, and what their own handlers would have done at once."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self._came: list[int] = []

    def come(self, number: int, frame: FrameType | None) -> None:
        """A handler. The second of a kind is not held: whoever presses twice has waited long enough."""
        if number in self._came:
            self._call(number, frame)
        self._came.append(number)

    def check(self) -> None:
        """Does what was held back; mostly that is to raise KeyboardInterrupt."""
        while self._came:
            self._call(self._came.pop(0), None)

    def _call(self, number: int, frame: FrameType | None) -> None:
        self.handlers[number](number, frame)


@contextmanager
def held_back() -> Iterator[Interrupts]:
    """While in it, signals that Python handles wait for `check`, and at the latest for the end.

    In other threads than the first, which get no signals, it does nothing.
    """
    held = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    try:
        for name in _HELD:
            number = getattr(signal, name)
            handler = signal.getsignal(number)
            if callable(handler):
                held.handlers[number] = handler
                signal.signal(number, held.come)
        yield held
    finally:
        for number, handler in held.handlers.items():
            signal.signal(number, handler)
        held.check()
