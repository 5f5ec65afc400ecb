"""The catalog on a machine, card by card. Requests for the same machine share the work.

A separate process makes the cards, so that the page's sliders do not wait for them. The process ends when it has been
idle for a while, and when the server is gone, which closes its pipe. If no process can be started, a thread makes the
cards.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import NamedTuple

from edgekit.app.candidates import with_rounded_memory
from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.plan import plan_model, task_to_plan
from edgekit.engines import engine_named
from edgekit.engines.entries import open_entry
from edgekit.errors import EdgekitError
from edgekit.index import checked_entries, read_index
from edgekit.index.resolve import CATALOG
from edgekit.index.types import Entry
from edgekit.machine.types import Machine
from edgekit.plan.plan import Plan, make_plan
from edgekit.plan.recommend import rank_of, smallest_bytes
from edgekit.report.cards import card_json, refused_card_json
from edgekit.report.json import json_line
from edgekit.request import Request, Session
from edgekit.web.failures import UNEXPECTED, TooManyError, failure_json
from edgekit.web.jobs import PING_S, JobEvent, Wakeup
from edgekit.web.references import allowed_reference, without_folders
from edgekit.web.types import CallWatch, Json, WebSettings, reach_of

# Decks, one for each pair of a machine and an engine; 300 cards take about 400 KB.
KEPT_MACHINES = 8
MOST_FOLLOWED = 16  # decks whose cards are being streamed
# A deck's age at which it is made again: files that the user added may have changed.
KEPT_S = 3600.0
MOST_STARTS = 3  # restarts of the worker for one deck: what crashes it will crash it again
IDLE_S = 60.0  # a worker without orders for this long ends
END_S = 2.0  # time for a process to end when asked
MOST_OPENED = 400  # models kept open with what engines computed for them, about 0.6 MB each
_LOST = "the process that checks the models keeps crashing; reload the page to try again"
_CLOSED = "the server was stopped"

_log = logging.getLogger("edgekit.web")

Card = Json


@dataclass(slots=True, kw_only=True, eq=False)
class Deck:
    """The cards of one machine. Only Cards changes it, while holding its lock."""

    request: Request = field(repr=False)  # with its machine and one engine
    count: int  # how many cards the complete deck has
    number: int = 0  # identifies the order that was sent to the worker
    cards: list[Card] = field(default_factory=list, repr=False)
    is_done: bool = False
    is_begun: bool = False  # a worker is making the cards
    fault: str = ""
    starts: int = 0  # how often a worker was started again for this deck after a crash
    begun_s: float = field(default_factory=time.monotonic)
    followers: set[Wakeup] = field(default_factory=set, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.is_done or bool(self.fault)

    def notify(self) -> None:
        for follower in self.followers:
            follower.set()


class Cards:
    """The decks requested last, and the worker that makes them."""

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._decks: OrderedDict[Hashable, Deck] = OrderedDict()
        self._followed: set[Deck] = set()  # including decks no longer in _decks
        self._numbers = itertools.count(1)
        self._worker: CardWorker | None = None
        self._closed = False

    @property
    def process(self) -> BaseProcess | None:
        """The worker's process, if there is one now."""
        return None if self._worker is None else self._worker.process

    def deck(self, request: Request) -> Deck:
        """The existing deck for a complete request, or a new one. Cards are made only while it is followed.

        Of the request, machine, engine and limits count. Raises TooManyError if a new deck is needed and too many
        others are being followed.
        """
        entries = checked_entries(read_index())
        # With the contents of the models that the user added, which may change while the server runs.
        users_models = repr([(entry, entry.header) for entry in entries if entry.is_users])
        machine = with_rounded_memory(request.find_machine())
        key = (machine, request.engine, request.max_use, request.reserve_bytes, users_models)
        with self._lock:
            deck = self._decks.get(key)
            if deck is None or deck.fault or time.monotonic() - deck.begun_s > KEPT_S:
                if len(self._followed) >= MOST_FOLLOWED:
                    raise TooManyError("too many machines are being checked; try again in a moment")
                deck = self._decks[key] = Deck(request=request, count=len(entries))
            self._decks.move_to_end(key)
            for old_key, old in list(self._decks.items())[:-1]:
                if len(self._decks) > KEPT_MACHINES and not old.followers:
                    del self._decks[old_key]
        return deck

    async def follow(self, deck: Deck) -> AsyncGenerator[JobEvent, None]:
        """Events: the machine, the cards made so far, each further card when it is made, and the end."""
        wakeup, sent = Wakeup(), 0
        with self._lock:
            deck.followers.add(wakeup)
            self._followed.add(deck)
            self._begin(deck)
        machine = {
            "name": deck.request.find_machine().name,
            "engine": deck.request.engine,
            "count": deck.count,
        }
        try:
            yield JobEvent(name="machine", data=json_line(machine))
            while True:
                has_ended = deck.has_ended  # read first: no card is added after the end
                for card in deck.cards[sent:]:
                    sent += 1
                    yield JobEvent(name="card", number=sent, data=json_line(card))
                if has_ended:
                    break
                if not await wakeup.wait(PING_S):
                    yield JobEvent()
            if deck.is_done:
                yield JobEvent(name="done", number=sent + 1, data=json_line({"count": sent}))
            else:
                error = json_line(failure_json("WorkerError", deck.fault))
                yield JobEvent(name="failed", number=sent + 1, data=error)
        finally:
            with self._lock:
                deck.followers.discard(wakeup)
                if not deck.followers:
                    self._followed.discard(deck)
                    if deck.is_begun and not deck.has_ended:  # the cards made so far stay
                        deck.is_begun = False
                        if self._worker is not None:
                            self._worker.send(Cancellation(deck.number))

    def close(self) -> None:
        """Ends every stream and the worker's process. Idempotent."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
            for deck in self._followed:
                if not deck.has_ended:
                    deck.fault = _CLOSED
                deck.notify()
        if worker is not None:
            worker.end()

    def _begin(self, deck: Deck) -> None:
        """Orders the missing cards from the worker, which is started if necessary."""
        if deck.is_begun or deck.has_ended:
            return
        if self._closed:
            deck.fault = _CLOSED
        elif deck.starts >= MOST_STARTS:
            deck.fault = _LOST
        elif self._worker is None:
            try:
                self._worker = CardWorker(self)
            except OSError as error:
                deck.fault = f"cannot start the process that checks the models: {error}"
        if deck.fault or self._worker is None:
            deck.notify()
            return
        deck.is_begun = True
        # A new number: late messages about the previous order are ignored.
        deck.number = next(self._numbers)
        made_ids = frozenset(str(card["id"]) for card in deck.cards)
        self._worker.send(CardOrder(deck.number, deck.request, made_ids))

    def on_card(self, number: int, card: Card | None) -> None:
        """Called with each card of an order, and with None at its end."""
        with self._lock:
            deck = next((deck for deck in self._followed if deck.number == number), None)
            if deck is None or not deck.is_begun or deck.has_ended:
                return
            if card is None:
                deck.is_done = True
            else:
                deck.cards.append(card)
            deck.notify()

    def on_exit(self, worker: CardWorker) -> None:
        """Called when the worker has ended. If it crashed, starts another."""
        with self._lock:
            if self._worker is worker:
                self._worker = None
            for deck in self._followed:
                if deck.is_begun and not deck.has_ended:
                    _log.warning("the process that checks the models died; starting another")
                    deck.is_begun = False
                    deck.starts += 1
                    self._begin(deck)


# --- the worker


class CardOrder(NamedTuple):
    """Tells the worker to make the cards of a request, except those that are made already."""

    number: int
    request: Request
    made_ids: frozenset[str]


class Cancellation(NamedTuple):
    """Tells the worker to forget the order with this number."""

    number: int


Message = CardOrder | Cancellation | None  # None: exit


class CardWorker:
    """The process, or the thread, that makes cards. Calls `on_card` and `on_exit` of `cards` in another thread."""

    def __init__(self, cards: Cards) -> None:
        """Raises OSError if not even a pipe can be opened."""
        self._cards, settings = cards, cards.settings
        self._ours, theirs = multiprocessing.Pipe()
        self._messages: SimpleQueue[Message] = SimpleQueue()  # `send` does not wait for the pipe
        self._ended = threading.Event()
        self.process: BaseProcess | None = _start_process(theirs, settings)
        if self.process is None:
            _start_thread(lambda: work(theirs, settings=settings))
        else:
            theirs.close()  # so that the end of the process is noticed
        _start_thread(self._receive)
        _start_thread(self._send)

    def send(self, message: Message) -> None:
        """Queues a message for the worker. Has no effect after the worker has ended, which `on_exit` reports."""
        self._messages.put(message)

    def end(self) -> None:
        """Ends the worker: a process is gone when this returns, a thread still finishes its card."""
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
        """Passes on the cards that the worker sends, until it ends."""
        with suppress(EOFError, OSError):
            while True:
                self._cards.on_card(*self._ours.recv())
        self.send(None)
        if self.process is not None:
            # Joined in this thread only: two joins would race for its status.
            self.process.join(END_S)
            if self.process.is_alive():
                self.process.kill()
                self.process.join(END_S)
        self._ended.set()
        self._cards.on_exit(self)


def _start_thread(target: Callable[[], None]) -> None:
    threading.Thread(target=target, name="edgekit cards", daemon=True).start()


def _start_process(connection: Connection, settings: WebSettings) -> BaseProcess | None:
    """The worker's process; None if this process or the system cannot start one."""
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
    """Runs the action now, or after the start of the worker's process if that is under way. For signal handlers.

    If the server exited during the start, the new process would print a traceback with an EOFError.
    """
    if _deferred is None:
        action()
    else:
        _deferred.append(action)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Blocks Ctrl-C in processes started in the block: a terminal sends it to all, but the server ends its worker.

    Meanwhile `when_started` defers the actions of signal handlers.
    """
    global _deferred  # noqa: PLW0603 - signal handlers have no other state
    actions: list[Callable[[], None]] = []
    _deferred = actions
    has_masks = hasattr(signal, "pthread_sigmask")
    if has_masks:
        resource_tracker.ensure_running()  # else the first process starts it, which unblocks signals
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
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
                if isinstance(message, Cancellation):
                    orders.pop(message.number, None)
                else:
                    cards = maker.cards(
                        message.request, checked_entries(read_index()), message.made_ids
                    )
                    orders[message.number] = cards
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
        # `open_entry` caches only a few: too few for the whole catalog on one machine after another.
        self._open_entry = lru_cache(maxsize=MOST_OPENED)(open_entry)

    def cards(
        self, request: Request, entries: Iterable[Entry], made_ids: frozenset[str] = frozenset()
    ) -> Iterator[Card]:
        """A card for each entry that has none yet. If its plan fails, the card says why."""
        (engine,), machine = request.engines, request.find_machine()
        for entry in sort_entries(entries, machine, engine):
            if entry.id in made_ids:
                continue
            try:
                engine_named(engine).check_runs(machine)
                yield card_json(entry, self._plan(entry, request))
                continue
            except EdgekitError as error:
                message = str(error)
            except Exception:  # noqa: BLE001 - one model's failure does not end the others
                _log.exception("no card for %s", entry.id)
                message = UNEXPECTED
            redacted = without_folders({"message": message}, self._settings)
            yield refused_card_json(entry, engine, redacted["message"])

    def _plan(self, entry: Entry, request: Request) -> Plan:
        """The plan of a model; from its files if they are known, otherwise from the catalog."""
        model = self._open(entry, request.engines[0])
        request = replace(request, drafter=False)
        if model.found is not None and model.files is not None:
            return plan_model(model, request, self._session, thorough=False)
        return make_plan(task_to_plan(model, request, self._session), thorough=False, helpful=False)

    def _open(self, entry: Entry, engine: str) -> ResolvedModel:
        """The model as the catalog describes it; one that the user added, from its file if that can be read.

        That file is opened every time, because it may have changed. Raises NotAllowedError if it is outside the
        folders that may be read.
        """
        if entry.is_users:
            reference = allowed_reference(f"{CATALOG}{entry.id}", self._settings)
            model = open_named(reference, self._session)
            if model.found is not None:
                return model
        opened = self._open_entry(entry, engine)
        return ResolvedModel(name=entry.id, entry=entry, found=opened)


def sort_entries(entries: Iterable[Entry], machine: Machine, engine: str) -> list[Entry]:
    """Entries whose weights fit the devices, then those that fit all memory, then the rest; each group by rank."""
    try:
        all_bytes = engine_named(engine).capacity_bytes(machine)
    except EdgekitError:  # the memory is not known
        all_bytes = 0
    devices = engine_named(engine).devices(machine)
    device_bytes = all_bytes
    if devices:
        device_bytes = min(sum(device.free_bytes for device in devices), all_bytes)

    def key(entry: Entry) -> tuple[bool, bool, float, str]:
        size_bytes = smallest_bytes(entry)
        return size_bytes > all_bytes, size_bytes > device_bytes, -rank_of(entry), entry.id

    return sorted(entries, key=key)
