"""Orders -> cards, in a process of its own: the page's sliders do not wait for them.

The process ends when nobody has ordered anything for a while, and when the server is gone: then its pipe is closed.
Where no process can be started a thread does the same.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from edgekit.web.card_making import Card, CardOrder, Maker
from edgekit.web.types import WebSettings

IDLE_S = 60.0
END_S = 2.0  # for a process that was told to end

_log = logging.getLogger("edgekit.web")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Cards are wanted. The number is in every message about them."""

    number: int
    order: CardOrder = field(repr=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """They are not wanted any more."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A card; None where there are no more."""

    number: int
    card: Card | None = field(default=None, repr=False)


Request = Begin | Stop | None  # None: the end


def work(connection: Connection, *, settings: WebSettings, idle_s: float = IDLE_S) -> None:
    """Until nothing was asked for so long, or nobody is left to ask."""
    with suppress(EOFError, OSError), connection:
        _serve(connection, settings=settings, idle_s=idle_s)


def _work_alone(connection: Connection, *, settings: WebSettings) -> None:
    """All that its process does. Ctrl-C, which a terminal says to all, is its server's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work(connection, settings=settings)


def _serve(connection: Connection, *, settings: WebSettings, idle_s: float) -> None:
    """Of several orders each gets a card in turn."""
    maker = Maker(settings)
    orders: dict[int, Iterator[Card]] = {}
    while True:
        while connection.poll(0 if orders else idle_s):
            request: Request = connection.recv()
            if request is None:
                return
            _heed(request, orders, maker)
        if not orders:
            return
        for number, cards in list(orders.items()):
            card = next(cards, None)
            connection.send(Made(number=number, card=card))
            if card is None:
                del orders[number]


def _heed(request: Begin | Stop, orders: dict[int, Iterator[Card]], maker: Maker) -> None:
    from edgekit.catalog import read_catalog

    if isinstance(request, Begin):
        orders[request.number] = maker.cards(request.order, read_catalog())
    else:
        orders.pop(request.number, None)


class CardWorker:
    """The process, or the thread. `heard` gets what it sends, `gone` is called when it has ended, both in a thread."""

    def __init__(
        self,
        *,
        settings: WebSettings,
        heard: Callable[[Made], None],
        gone: Callable[[CardWorker], None],
    ) -> None:
        """Raises OSError where not even a pipe can be had."""
        self._ours, theirs = multiprocessing.Pipe()
        self._heard, self._gone = heard, gone
        self._requests: SimpleQueue[Request] = SimpleQueue()  # who asks does not wait for the pipe
        self._ended = threading.Event()
        self.process: BaseProcess | None = _started(theirs, settings=settings)
        if self.process is None:
            _run(partial(work, theirs, settings=settings))
        else:
            theirs.close()  # so that its end is noticed
        _run(self._listen)
        _run(self._tell)

    def send(self, request: Request) -> None:
        """To one that has ended nothing is said: `gone` tells of it."""
        self._requests.put(request)

    def end(self) -> None:
        """It is gone when this returns, whatever it was doing; a thread when its card is made."""
        self.send(None)
        if self.process is not None and not self._ended.is_set():
            self.process.kill()  # nothing is lost: what it writes, it writes whole
            self._ended.wait(END_S)

    def _tell(self) -> None:
        with suppress(OSError):
            for request in iter(self._requests.get, None):
                self._ours.send(request)
            self._ours.send(None)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._heard(self._ours.recv())
        self.send(None)
        if self.process is not None:
            self._bury(self.process)
        self._ended.set()
        self._gone(self)

    @staticmethod
    def _bury(process: BaseProcess) -> None:
        """One thread alone waits for it: of two that do, one is told that it lives."""
        process.join(END_S)
        if process.is_alive():
            process.kill()
            process.join(END_S)


def _run(target: Callable[[], None]) -> None:
    threading.Thread(target=target, name="edgekit cards", daemon=True).start()


def _started(connection: Connection, *, settings: WebSettings) -> BaseProcess | None:
    """None where this system, or the process that we are, starts none."""
    arguments: dict[str, Any] = {"settings": settings}
    process = multiprocessing.get_context("spawn").Process(
        target=_work_alone, args=(connection,), kwargs=arguments, name="edgekit cards", daemon=True
    )
    try:
        with _undisturbed():
            process.start()
    except (OSError, AssertionError, RuntimeError) as error:
        _log.warning("no process could be started; checking the models in a thread: %s", error)
        return None
    return process


_starts: list[Callable[[], None]] | None = None  # what waits for a process that is being started


def when_started(action: Callable[[], None]) -> None:
    """At once, or as soon as a process is started whose start is under way. For handlers of signals.

    Ended halfway through, the server would leave a process that prints an EOFError with its traceback.
    """
    if _starts is None:
        action()
    else:
        _starts.append(action)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """What is started here never hears Ctrl-C, which a terminal sends to all: its server ends it."""
    global _starts  # noqa: PLW0603 - handlers of signals have nothing else to look at
    waiting: list[Callable[[], None]] = []
    _starts = waiting
    masks = hasattr(signal, "pthread_sigmask")
    if masks:
        resource_tracker.ensure_running()  # the first process would start it, and that lets signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _starts = None
        for action in waiting:
            action()
