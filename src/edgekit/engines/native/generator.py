"""A file, a load and a setup -> a StreamEngine with its memory allocated, ready to read tokens."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from edgekit.bill.spill import SPILL_FROM_TOKENS, Purpose
from edgekit.engines.native.cache import PagedCache, PageFile, check_gate, make_caches
from edgekit.engines.native.crew import Checkpoint, Crew, PassProgress, one_thread
from edgekit.engines.native.families import ModelUse
from edgekit.engines.native.file import ANY_SIZE, Closeable, WeightFile, scan_header
from edgekit.engines.native.forward import StreamBuffers, StreamPass, make_worker
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import Floats
from edgekit.engines.native.layers import Network
from edgekit.engines.native.model import read_model
from edgekit.engines.native.stream_plan import StreamSetup, plan_stream
from edgekit.engines.native.weights import Weights
from edgekit.errors import ContextTooLargeError, MemoryPressureError, TextError, UsageError
from edgekit.machine.monitor import Monitor
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.bill.types import Load, MemoryLine
    from edgekit.engines.native.kernels.types import Kernels
    from edgekit.engines.native.stream_plan import StreamPlan


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
    """Plans a session, allocates its memory, and reads the weights that stay in memory.

    Raises MemoryPressureError if the monitor refuses the memory, KvSpillUnsupportedError if the disk is too slow or
    too full for cold pages, and the errors of `read_model` and `plan_stream`.
    """
    kernels = kernels or choose_kernels()
    with ExitStack() as held:
        file = held.enter_context(WeightFile(Path(path), ANY_SIZE))
        model = read_model(scan_header(file), ModelUse.GENERATE)
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


class StreamEngine(Closeable):
    """One session of a model with its KV cache, made by `open_stream`. Close it, or use it in a `with` statement."""

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
        """Allocates the plan's memory, and reads the weights that stay in it.

        `held` is closed together with the engine, or if the constructor fails.
        """
        self.plan = plan
        self._file, self._kernels, self._monitor = file, kernels, monitor
        self._feed_lock = threading.Lock()
        self._feeding_thread: int | None = None  # the thread that is inside `feed`
        # The number of tokens read since the start, including those that have left the window.
        self.position = 0
        # True after a prompt was interrupted in a full window, where some layers have dropped more tokens than others.
        self.needs_reset = False
        with held:
            for line in plan.lines:
                held.enter_context(monitor.try_allocate(line.size_bytes, line_key(line)))
            try:
                self._crew = Crew([make_worker(plan) for _ in range(plan.threads)])
                held.callback(self._crew.close)
                worker = self._crew.workers[0]
                self._weights = Weights(file, plan, kernels, worker, monitor.check)
                self._network = Network(plan.model, self._weights, kernels)
                self._buffers = StreamBuffers(plan)
                self._caches = tuple(make_caches(plan, pages))
            except MemoryError as error:
                raise MemoryPressureError(
                    f"could not allocate the planned {format_bytes(plan.total_bytes)}, "
                    "although they seemed to be free: close other programs, or use a "
                    "shorter context"
                ) from error
            self._held = held.pop_all()
        self._closed = False

    @property
    def cache_bytes(self) -> int:
        """The cache's memory, including the page that cold pages are read back into."""
        cold = (cache.page_bytes for cache in self._caches if isinstance(cache, PagedCache))
        return sum(cache.size_bytes for cache in self._caches) + max(cold, default=0)

    @property
    def vocabulary(self) -> int:
        return self.plan.model.dimensions.vocabulary

    @property
    def room_tokens(self) -> int | None:
        """How many more tokens the window holds; None if it rolls."""
        return None if self.plan.rolling else self.plan.context_tokens - self.position

    def feed(self, tokens: Sequence[int], checkpoint: Checkpoint | None = None) -> Floats:
        """Appends the tokens and returns the logits of the next one, in a vector that every call overwrites.

        Raises ContextTooLargeError if they do not fit a window that does not roll, TextError for a number that is not
        a token; neither changes the session. An exception from `checkpoint` ends the call within a tile: `position`
        counts the chunks that were completed, and the session can continue, unless `needs_reset`.
        """
        with deferred_interrupts() as interrupts:
            if not self._feed_lock.acquire(blocking=False):
                raise UsageError(
                    "the engine is busy: it has one session and processes one text at a time"
                )
            self._feeding_thread = threading.get_ident()
            try:
                self._check_tokens(tokens)
                with one_thread() if self._kernels.name == "numpy" else nullcontext():
                    self._feed(tokens, checkpoint or (lambda _share: None), interrupts)
            finally:
                self._feeding_thread = None
                self._feed_lock.release()
        return self._buffers.logits

    def _refuse_from_callback(self, what: str) -> None:
        """Raises UsageError inside a checkpoint of `feed`, which would wait for itself forever."""
        if self._feeding_thread == threading.get_ident():
            raise UsageError(
                f"the engine cannot be {what} from inside its own callback: raise an "
                "exception instead"
            )

    def reset(self) -> None:
        """Forgets all tokens. The memory stays allocated."""
        self._refuse_from_callback("reset")
        with self._feed_lock:
            self._check_open()
            for cache in self._caches:
                cache.clear()
            self.position, self.needs_reset = 0, False

    def close(self) -> None:
        """Waits for `feed`, ends the threads and frees the memory. Idempotent."""
        self._refuse_from_callback("closed")
        with deferred_interrupts(), self._feed_lock:
            if not self._closed:
                self._closed = True
                self._held.close()
                del self._weights, self._network, self._buffers, self._caches, self._crew

    def _feed(self, tokens: Sequence[int], checkpoint: Checkpoint, interrupts: Interrupts) -> None:
        def check_all(share: float) -> None:
            """Raises whatever should end this call: Ctrl-C, too little free memory, or the caller's own exception."""
            interrupts.check()
            self._monitor.check()
            checkpoint(share)

        chunk_tokens = self.plan.chunk_tokens
        chunks = -(-len(tokens) // chunk_tokens)
        progress = PassProgress(
            check_all, chunks * self._network.matrix_bytes + self._network.output.size_bytes
        )
        self._check_unchanged()
        for first in range(0, len(tokens), chunk_tokens):
            chunk = tokens[first : first + chunk_tokens]
            is_last = first + chunk_tokens >= len(tokens)
            try:
                stream_pass = StreamPass(
                    len(chunk),
                    self.position,
                    plan=self.plan,
                    network=self._network,
                    crew=self._crew,
                    buffers=self._buffers,
                    caches=self._caches,
                    progress=progress,
                )
                logits = self._buffers.logits if is_last else None
                stream_pass.run(np.array(chunk, np.int64), logits)
                if is_last:
                    self._check_unchanged()  # so all weights of this call came from the same file
                    progress.finish()
            except BaseException:
                # Some layers may have stored the chunk already, and overwritten tokens that its first token still sees.
                rings = (cache.ring for cache in self._caches)
                if any(ring.is_written_over(self.position, len(chunk)) for ring in rings):
                    self.needs_reset = True
                raise
            self.position += len(chunk)

    def _check_unchanged(self) -> None:
        if self.plan.streams:
            self._file.check_unchanged()

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        self._check_open()
        if self.needs_reset:
            raise UsageError(
                "a prompt was interrupted after it had replaced older tokens: reset the "
                "engine and start from the beginning"
            )
        if not len(tokens):  # `not tokens` fails for a numpy array
            raise TextError("no tokens given")
        for token in tokens:
            is_integer = isinstance(token, int | np.integer)
            if not is_integer or not 0 <= token < self.vocabulary:
                raise TextError(
                    f"token {str(token)[:40]} is not one of the model's {self.vocabulary:,} tokens"
                )
        free_tokens = self.room_tokens
        if free_tokens is not None and len(tokens) > free_tokens:
            before = f" ({self.position:,} are in use)" if self.position else ""
            raise ContextTooLargeError(
                f"{len(tokens):,} tokens do not fit in the context of "
                f"{self.plan.context_tokens:,}{before}: use a context of "
                f"{self.position + len(tokens):,} or more, or a rolling window"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed")


def line_key(line: MemoryLine) -> str:
    """The name of a line's array: the words before the arithmetic, and the layer."""
    name = line.because.partition(":")[0]
    return name if line.layer is None else f"{name}, layer {line.layer}"


# --- Ctrl-C
#
# Python can raise KeyboardInterrupt between any two instructions. While the crew starts a round, that could leave
# threads at work on buffers that are then freed. So a signal is deferred for a few milliseconds, until the next
# checkpoint.

_DEFERRED = ("SIGINT", "SIGTERM")
Handler = Callable[[int, FrameType | None], object]


class Interrupts:
    """The signals that have arrived, and the original handlers, which `check` calls."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self._arrived: list[int] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        """A second signal of the same kind is not deferred: the user has waited long enough."""
        if number in self._arrived:
            self.handlers[number](number, frame)
        self._arrived.append(number)

    def check(self) -> None:
        """Calls the deferred handlers, which usually raise KeyboardInterrupt."""
        while self._arrived:
            number = self._arrived.pop(0)
            self.handlers[number](number, None)


@contextmanager
def deferred_interrupts() -> Iterator[Interrupts]:
    """Inside the block, Python's signal handlers are only called by `check`, and at the end of the block.

    Only the main thread receives signals: in other threads this does nothing.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    try:
        for name in _DEFERRED:
            number = getattr(signal, name)
            handler = signal.getsignal(number)
            if callable(handler):
                interrupts.handlers[number] = handler
                signal.signal(number, interrupts.handle)
        yield interrupts
    finally:
        for number, handler in interrupts.handlers.items():
            signal.signal(number, handler)
        interrupts.check()
