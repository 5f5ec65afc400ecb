"""Orders -> cards, in a process of its own: the page's sliders do not wait for them.

The process ends when nobody has ordered anything for a while, and when the server is gone: then its pipe is closed.
Where no process can be started a thread does the same.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.plan import plan_model, task_to_plan
from edgekit.catalog.resolve import CATALOG
from edgekit.catalog.types import Catalog, Entry
from edgekit.engines import engine_named
from edgekit.engines.entries import open_entry
from edgekit.errors import EdgekitError
from edgekit.machine.types import Machine
from edgekit.plan.plan import Plan, make_plan
from edgekit.plan.recommend import rank_of, smallest_bytes
from edgekit.report.cards import card_json, refused_card_json
from edgekit.request import Request, Session
from edgekit.web.failures import UNEXPECTED
from edgekit.web.references import allowed, text_without_folders
from edgekit.web.types import CallWatch, WebSettings, reach_of

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


Message = Begin | Stop | None  # None: the end


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
            request: Message = connection.recv()
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
        self._requests: SimpleQueue[Message] = SimpleQueue()  # who asks does not wait for the pipe
        self._ended = threading.Event()
        self.process: BaseProcess | None = _started(theirs, settings=settings)
        if self.process is None:
            _run(partial(work, theirs, settings=settings))
        else:
            theirs.close()  # so that its end is noticed
        _run(self._listen)
        _run(self._tell)

    def send(self, request: Message) -> None:
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


MOST_OPENED = 400  # models that are kept with what engines worked out for them, some 0.6 MB each


Card = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOrder:
    """What cards are made of. Those in `made` are there already."""

    machine: Machine
    engine: str
    max_use: float | None = None
    reserve_bytes: int | None = None
    made: frozenset[str] = frozenset()


class Maker:
    """Makes cards; models stay open, for the next machine is asked about the same ones."""

    def __init__(self, settings: WebSettings) -> None:
        """Nothing is fetched for a card."""
        self._settings = replace(settings, network=False)
        self._session = Session(reach=reach_of(self._settings, CallWatch()))
        self._opened: OrderedDict[tuple[str, str], ResolvedModel] = OrderedDict()

    def cards(self, order: CardOrder, catalog: Catalog) -> Iterator[Card]:
        """One for each entry, whatever goes wrong with it."""
        for entry in in_order(catalog.entries, order.machine, order.engine):
            if entry.id not in order.made:
                yield self._card(entry, catalog, order)

    def _card(self, entry: Entry, catalog: Catalog, order: CardOrder) -> Card:
        try:
            engine_named(order.engine).check_runs(order.machine)
            return card_json(entry, self._plan(entry, catalog, order))
        except EdgekitError as error:
            message = str(error)
        except Exception:  # noqa: BLE001 - a card of one model does not end the others
            _log.exception("no card for %s", entry.id)
            message = UNEXPECTED
        message = text_without_folders(message, self._settings)
        return refused_card_json(entry, order.engine, message)

    def _plan(self, entry: Entry, catalog: Catalog, order: CardOrder) -> Plan:
        named = self._named(entry, catalog, order.engine)
        request = Request(
            machine=order.machine,
            engines=(order.engine,),
            drafter=False,
            max_use=order.max_use,
            reserve_bytes=order.reserve_bytes,
        )
        if named.found is not None and named.files is not None:
            return plan_model(named, request, self._session, thorough=False)
        return make_plan(task_to_plan(named, request, self._session), thorough=False, helpful=False)

    def _named(self, entry: Entry, catalog: Catalog, engine: str) -> ResolvedModel:
        """What the user added is opened from where it came, anew each time: it may have changed.

        Raises NotAllowedError where that is outside of the folders that may be read.
        """
        if entry.is_users:
            named = open_named(allowed(f"{CATALOG}{entry.id}", self._settings), self._session)
            return named if named.found is not None else _as_known(entry, catalog, engine)
        key = (entry.id, engine)
        if key not in self._opened:
            while len(self._opened) >= MOST_OPENED:
                self._opened.popitem(last=False)
            self._opened[key] = _as_known(entry, catalog, engine)
        self._opened.move_to_end(key)
        return self._opened[key]


def _as_known(entry: Entry, catalog: Catalog, engine: str) -> ResolvedModel:
    found = open_entry(entry, engine)
    return ResolvedModel(name=entry.id, catalog=catalog, entry=entry, found=found)


def in_order(entries: Iterable[Entry], machine: Machine, engine: str) -> list[Entry]:
    """What lies on the devices as a whole by its size, then what all memories together hold, then the rest.

    Each of them by rank: the best first.
    """
    try:
        all_bytes = engine_named(engine).capacity_bytes(machine)
    except EdgekitError:  # the memory is not known
        all_bytes = 0
    devices = engine_named(engine).devices(machine)
    own_bytes = sum(one.free_bytes for one in devices)
    rooms = (min(own_bytes, all_bytes) if devices else all_bytes, all_bytes)

    def place(entry: Entry) -> tuple[int, float, str]:
        size = smallest_bytes(entry)
        return sum(size > room for room in rooms), -rank_of(entry), entry.id

    return sorted(entries, key=place)
