"""Makes cards in a process of its own, so that the page's sliders do not wait for them.

The process ends after a while without orders, and when the server is gone: then its pipe is closed. If no process can
be started, a thread does the same.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue

from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.plan import plan_model, task_to_plan
from edgekit.catalog import read_catalog
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
from edgekit.web.references import allowed, without_folders
from edgekit.web.types import CallWatch, Json, WebSettings, reach_of

IDLE_S = 60.0
END_S = 2.0  # for a process to end when asked
MOST_OPENED = 400  # models kept open with what engines computed for them, about 0.6 MB each

_log = logging.getLogger("edgekit.web")

Card = Json


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOrder:
    """What to make cards for, except the entries in `made`."""

    machine: Machine
    engine: str
    max_use: float | None = None
    reserve_bytes: int | None = None
    made: frozenset[str] = frozenset()


# To the worker: the number of an order and the order, None instead of the order to cancel it, or None to exit.
Message = tuple[int, CardOrder | None] | None


class CardWorker:
    """The process, or the thread.

    Calls `on_card` with the number of an order and a card, or None at its end; `on_exit` when the worker has ended;
    both in a thread.
    """

    def __init__(
        self,
        *,
        settings: WebSettings,
        on_card: Callable[[int, Card | None], None],
        on_exit: Callable[[CardWorker], None],
    ) -> None:
        """Raises OSError if not even a pipe can be opened."""
        self._ours, theirs = multiprocessing.Pipe()
        self._on_card, self._on_exit = on_card, on_exit
        self._messages: SimpleQueue[Message] = SimpleQueue()  # `send` does not wait for the pipe
        self._ended = threading.Event()
        self.process: BaseProcess | None = _start_process(theirs, settings)
        if self.process is None:
            _start_thread(lambda: work(theirs, settings=settings))
        else:
            theirs.close()  # so that its end is noticed
        _start_thread(self._receive)
        _start_thread(self._send)

    def send(self, message: Message) -> None:
        """Has no effect after the worker has ended, which `on_exit` reports."""
        self._messages.put(message)

    def end(self) -> None:
        """The process is gone when this returns; a thread finishes its card."""
        self.send(None)
        if self.process is not None and not self._ended.is_set():
            self.process.kill()  # safe: it writes files atomically
            self._ended.wait(END_S)

    def _send(self) -> None:
        with suppress(OSError):
            for message in iter(self._messages.get, None):
                self._ours.send(message)
            self._ours.send(None)

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._on_card(*self._ours.recv())
        self.send(None)
        if self.process is not None:
            # Joined in this thread only: two joins would race for its status.
            self.process.join(END_S)
            if self.process.is_alive():
                self.process.kill()
                self.process.join(END_S)
        self._ended.set()
        self._on_exit(self)


def _start_thread(target: Callable[[], None]) -> None:
    threading.Thread(target=target, name="edgekit cards", daemon=True).start()


def _start_process(connection: Connection, settings: WebSettings) -> BaseProcess | None:
    """None if the system, or the kind of process we are, does not allow it."""
    process = multiprocessing.get_context("spawn").Process(
        target=_process_main, args=(connection, settings), name="edgekit cards", daemon=True
    )
    try:
        with _interrupts_blocked():
            process.start()
    except (OSError, AssertionError, RuntimeError) as error:
        _log.warning("no process could be started; checking the models in a thread: %s", error)
        return None
    return process


_deferred: list[Callable[[], None]] | None = None  # actions to run once the process is started


def when_started(action: Callable[[], None]) -> None:
    """Now, or as soon as the process that is being started has started. For signal handlers.

    A server that exits halfway through would leave a process that prints a traceback with an EOFError.
    """
    if _deferred is None:
        action()
    else:
        _deferred.append(action)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A terminal sends Ctrl-C to all processes; those started here ignore it, and the server ends them."""
    global _deferred  # noqa: PLW0603 - signal handlers have no other state
    actions: list[Callable[[], None]] = []
    _deferred = actions
    has_masks = hasattr(signal, "pthread_sigmask")
    if has_masks:
        resource_tracker.ensure_running()  # else the first process starts it, which unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _deferred = None
        for action in actions:
            action()


def _process_main(connection: Connection, settings: WebSettings) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work(connection, settings=settings)


def work(connection: Connection, *, settings: WebSettings, idle_s: float = IDLE_S) -> None:
    """Makes cards, one of each order in turn, until it is idle for `idle_s` or the server is gone."""
    with suppress(EOFError, OSError), connection:
        maker = Maker(settings)
        orders: dict[int, Iterator[Card]] = {}
        while True:
            while connection.poll(0 if orders else idle_s):
                message: Message = connection.recv()
                if message is None:
                    return
                number, order = message
                if order is not None:
                    orders[number] = maker.cards(order, read_catalog())
                else:
                    orders.pop(number, None)
            if not orders:
                return
            for number, cards in list(orders.items()):
                card = next(cards, None)
                connection.send((number, card))
                if card is None:
                    del orders[number]


class Maker:
    """Makes cards. Models stay open for the next machine."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = replace(settings, network=False)  # nothing is fetched for a card
        self._session = Session(reach=reach_of(self._settings, CallWatch()))
        self._opened: OrderedDict[tuple[str, str], ResolvedModel] = OrderedDict()

    def cards(self, order: CardOrder, catalog: Catalog) -> Iterator[Card]:
        """One for each entry, even if its plan fails."""
        for entry in in_order(catalog.entries, order.machine, order.engine):
            if entry.id in order.made:
                continue
            try:
                engine_named(order.engine).check_runs(order.machine)
                yield card_json(entry, self._plan(entry, catalog, order))
                continue
            except EdgekitError as error:
                message = str(error)
            except Exception:  # noqa: BLE001 - one model's failure does not end the others
                _log.exception("no card for %s", entry.id)
                message = UNEXPECTED
            redacted = without_folders({"message": message}, self._settings)
            yield refused_card_json(entry, order.engine, redacted["message"])

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
        """A model that the user added is opened from its file every time, because it may have changed.

        Raises NotAllowedError if that file is outside the folders that may be read.
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
    """Models that fit the devices by size, then those that fit all memory, then the rest; each group by rank."""
    try:
        all_bytes = engine_named(engine).capacity_bytes(machine)
    except EdgekitError:  # the memory is not known
        all_bytes = 0
    devices = engine_named(engine).devices(machine)
    device_bytes = sum(one.free_bytes for one in devices)
    limits = (min(device_bytes, all_bytes) if devices else all_bytes, all_bytes)

    def key(entry: Entry) -> tuple[int, float, str]:
        size = smallest_bytes(entry)
        return sum(size > limit for limit in limits), -rank_of(entry), entry.id

    return sorted(entries, key=key)
