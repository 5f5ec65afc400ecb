"""The catalog on a machine, card by card, for a task. Requests for the same machine share the work.

First the best models for the task are looked for, as `edgekit recommend` does; their cards come first. A separate
process makes the cards, so that the page's sliders do not wait for them. It ends when it has been idle for a while, and
when the server is gone, which closes its pipe. If no process can be started, a thread makes the cards.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import NamedTuple
from weakref import WeakValueDictionary

from edgekit.app.candidates import OnPlan
from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.plan import plan_model, task_to_plan
from edgekit.app.recommend import recommend
from edgekit.engines import engine_named
from edgekit.engines.entries import open_entry
from edgekit.errors import CancelledError, EdgekitError
from edgekit.index import checked_entries, read_index
from edgekit.index.resolve import CATALOG
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import Machine
from edgekit.plan.commands import ready_commands
from edgekit.plan.plan import Plan, make_plan
from edgekit.plan.recommend import rank_of, smallest_bytes, suits_task
from edgekit.report.cards import card_json, for_task, refused_card_json
from edgekit.report.json import json_line
from edgekit.request import Request, Session
from edgekit.sources.types import ModelFiles
from edgekit.web.decks import CARDS, Card, MachineCards, identity_of, machine_of_cards, stored_cards
from edgekit.web.failures import UNEXPECTED, TooManyError, failure_json
from edgekit.web.jobs import PING_S, JobEvent, Wakeup
from edgekit.web.references import allowed_reference, without_folders
from edgekit.web.types import CallWatch, WebSettings, reach_of

PICKS = 3  # models that are shown large: those of `edgekit recommend --limit 3`
# Decks, one for each machine, engine and task; 160 cards take about 400 KB.
KEPT_MACHINES = 16
MOST_FOLLOWED = 16  # decks whose cards are being streamed
# A deck's age at which it is made again: files that the user added may have changed.
KEPT_S = 3600.0
MOST_STARTS = 3  # restarts of the worker for one deck: what crashes it will crash it again
IDLE_S = 60.0  # a worker without orders for this long ends
END_S = 2.0  # time for a process to end when asked
MOST_OPENED = 400  # models kept open with what engines computed for them, about 0.6 MB each
_LOST = "the process that checks the models keeps crashing; reload the page to try again"
_CLOSED = "the server was stopped"
_NICENESS = 5  # of the worker: the server's own answers come first

_log = logging.getLogger("edgekit.web")


@dataclass(slots=True, kw_only=True, eq=False)
class Deck:
    """The cards of one machine for a task. Only Cards changes it, while holding its lock."""

    request: Request = field(repr=False)  # with its machine and one engine
    entries: tuple[Entry, ...] = field(default=(), repr=False)  # the most promising first
    count: int  # how many models are checked; a pick may be another one
    made: MachineCards = field(default_factory=MachineCards, repr=False)
    number: int = 0  # identifies the order that was sent to the worker
    cards: list[Card] = field(default_factory=list, repr=False)  # in the order of the events
    picks: tuple[str, ...] | None = None  # the best models for the task; None: not known yet
    is_done: bool = False
    is_begun: bool = False  # a worker is making the cards
    is_ahead: bool = False  # made even if nobody follows it
    is_urgent: bool = True  # the worker makes its cards before those of decks that are not
    fault: str = ""
    starts: int = 0  # how often a worker was started again for this deck after a crash
    begun_s: float = field(default_factory=time.monotonic)
    followers: set[Wakeup] = field(default_factory=set, repr=False)

    @property
    def task(self) -> ModelPurpose:
        return self.request.purpose or ModelPurpose.CHAT

    @property
    def has_ended(self) -> bool:
        return self.is_done or bool(self.fault)

    def take_over(self) -> None:
        """Uses the cards that exist for this machine: from an earlier start, or made for another task."""
        picks = self.made.picks.get(self.task.value)
        if picks is not None:
            self.set_picks(picks)
        ids = [*(picks or ()), *(entry.id for entry in self.entries)]
        cards = self.made.cards
        self.cards = [cards[name] for name in dict.fromkeys(ids) if name in cards]
        self.is_done = picks is not None and cards.keys() >= set(ids)

    def set_picks(self, ids: tuple[str, ...]) -> None:
        """Sets the best models. One that is not among the most used is listed as well."""
        self.picks = ids
        listed = {entry.id for entry in self.entries}
        others = [entry for entry in read_index().entries if entry.id in ids]
        self.entries = (*(entry for entry in others if entry.id not in listed), *self.entries)

    def notify(self) -> None:
        for follower in self.followers:
            follower.set()


class DeckView(NamedTuple):
    """The deck at one moment. `cards` by the model's id."""

    request: Request
    task: ModelPurpose
    entries: tuple[Entry, ...]
    picks: tuple[str, ...] | None
    cards: Mapping[str, Card]


class Cards:
    """The decks requested last, and the worker that makes them."""

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._decks: OrderedDict[Hashable, Deck] = OrderedDict()
        self._machines: WeakValueDictionary[Hashable, MachineCards] = WeakValueDictionary()
        # Including decks no longer in _decks, and those made ahead.
        self._followed: set[Deck] = set()
        self._numbers = itertools.count(1)
        self._worker: CardWorker | None = None
        self._closed = False

    @property
    def process(self) -> BaseProcess | None:
        """The worker's process, if there is one now."""
        return None if self._worker is None else self._worker.process

    def deck(self, request: Request, *, is_limited: bool = True) -> Deck:
        """The existing deck for a complete request, or a new one. Cards are made only while it is followed.

        Of the request, machine, engine, limits and task count. Raises TooManyError if a new deck is needed and too many
        others are being followed; with `is_limited` False it does not.
        """
        entries = checked_entries(read_index())
        with self._lock:
            earlier = [deck.request.find_machine() for deck in self._decks.values()]
        machine = machine_of_cards(request.find_machine(), earlier)
        request = replace(request, machine=machine)
        # With the contents of the models that the user added, which may change while the server runs.
        limits = (request.max_use, request.reserve_bytes)
        machine_key = (machine, request.engine, limits, identity_of(entries))
        key = (machine_key, request.purpose or ModelPurpose.CHAT)
        with self._lock:
            deck = self._current(key)
            made = None if deck is not None else self._machines.get(machine_key)
            if deck is None and is_limited and len(self._followed) >= MOST_FOLLOWED:
                raise TooManyError("too many machines are being checked; try again in a moment")
        if deck is not None:
            return deck
        if made is None or self._is_old(key):
            is_stored = self.settings.cache
            made = stored_cards(request, entries) if is_stored else MachineCards()
        task = request.purpose or ModelPurpose.CHAT
        in_order = sort_entries(entries, machine, request.engines[0], task)
        with self._lock:
            deck = self._current(key)  # another thread may have made it meanwhile
            if deck is None:
                deck = Deck(request=request, entries=tuple(in_order), count=len(entries), made=made)
                deck.take_over()
                self._decks[key] = deck
                self._machines[machine_key] = made
                self._decks.move_to_end(key)
            for old_key, old in list(self._decks.items())[:-1]:
                if len(self._decks) > KEPT_MACHINES and old not in self._followed:
                    del self._decks[old_key]
        return deck

    def view(self, deck: Deck) -> DeckView:
        """A snapshot of the deck."""
        with self._lock:
            cards = {str(card["id"]): for_task(card, deck.task) for card in deck.cards}
            return DeckView(deck.request, deck.task, deck.entries, deck.picks, cards)

    def _current(self, key: Hashable) -> Deck | None:
        """The deck of this key, unless it failed or is too old."""
        deck = self._decks.get(key)
        if deck is None or deck.fault or self._is_old(key):
            return None
        self._decks.move_to_end(key)
        return deck

    def _is_old(self, key: Hashable) -> bool:
        deck = self._decks.get(key)
        return deck is not None and time.monotonic() - deck.begun_s > KEPT_S

    def make_ahead(self, request: Request) -> None:
        """Makes the cards of a complete request in advance, while the worker has nothing else to do."""
        deck = self.deck(request)
        with self._lock:
            if self._closed or deck.has_ended or deck in self._followed:
                return
            deck.is_ahead, deck.is_urgent = True, False
            self._followed.add(deck)
            self._begin(deck)

    async def follow(self, deck: Deck) -> AsyncGenerator[JobEvent, None]:
        """Events: the machine, the cards made so far, each further card when it is made, and the end."""
        wakeup, sent = Wakeup(), 0
        has_picks = False
        with self._lock:
            deck.followers.add(wakeup)
            self._followed.add(deck)
            if deck.is_begun and not deck.is_urgent:  # its cards come first from now on
                self._pause(deck)
            deck.is_urgent = True
            self._begin(deck)
        machine = {
            "name": deck.request.find_machine().name,
            "engine": deck.request.engine,
            "task": deck.task.value,
            "count": deck.count,
        }
        try:
            yield JobEvent(name="machine", data=json_line(machine))
            while True:
                has_ended = deck.has_ended  # read first: no card is added after the end
                if deck.picks is not None and not has_picks:
                    has_picks = True
                    yield JobEvent(name="picks", data=json_line({"ids": list(deck.picks)}))
                for card in deck.cards[sent:]:
                    sent += 1
                    data = json_line(for_task(card, deck.task))
                    yield JobEvent(name="card", number=sent, data=data)
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
                if not deck.followers and (deck.has_ended or not deck.is_ahead):
                    self._followed.discard(deck)
                    if deck.is_begun and not deck.has_ended:  # the cards made so far stay
                        self._pause(deck)
                        _start_thread(lambda: self._store(deck))

    def _pause(self, deck: Deck) -> None:
        """Cancels the deck's order."""
        deck.is_begun = False
        if self._worker is not None:
            self._worker.send(Cancellation(deck.number))

    def _store(self, deck: Deck) -> None:
        """Writes the cards to the disk, for the next start of the server."""
        with self._lock:
            users_ids = frozenset(entry.id for entry in deck.entries if entry.is_users)
            answer = deck.made.to_store(users_ids)
        if answer is not None and deck.made.key is not None:
            CARDS.write(deck.made.key, answer)

    def close(self) -> None:
        """Ends every stream and the worker's process. Idempotent."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
            decks = list(self._followed)
            for deck in decks:
                if not deck.has_ended:
                    deck.fault = _CLOSED
                deck.notify()
        if worker is not None:
            worker.end()
        for deck in decks:
            self._store(deck)

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
        order = CardOrder(deck.number, deck.request, made_ids, deck.picks, deck.is_urgent)
        self._worker.send(order)

    def on_card(self, number: int, made: Made) -> None:
        """Called with each card of an order, with the best models, and with None at its end."""
        if made is None and (deck := self._deck_of(number)) is not None:
            self._store(deck)
        with self._lock:
            deck = self._deck_of(number)
            if deck is None:
                return
            if made is None:
                deck.is_done = True
                if not deck.followers:
                    self._followed.discard(deck)
            elif isinstance(made, Picks):
                deck.made.picks[deck.task.value] = made.ids
                deck.set_picks(made.ids)
                deck.made.is_stored = False
            else:
                deck.cards.append(made)
                deck.made.cards[str(made["id"])] = made
                deck.made.is_stored = False
            deck.notify()

    def _deck_of(self, number: int) -> Deck | None:
        """The deck whose order has this number; None if it was taken back, or has ended."""
        with self._lock:
            deck = next((deck for deck in self._followed if deck.number == number), None)
            return deck if deck is not None and deck.is_begun and not deck.has_ended else None

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
    """An order to the worker: the cards of a request, except those that exist already."""

    number: int
    request: Request
    made_ids: frozenset[str]
    picks: tuple[str, ...] | None = None  # the best models, if they are known
    is_urgent: bool = True  # before the orders that are not


class Picks(NamedTuple):
    """The best models for the task of an order."""

    ids: tuple[str, ...]


Made = Card | Picks | None  # None: the end


class Pause(NamedTuple):
    """The search for the best models was interrupted by another order. It starts again later."""


class Cancellation(NamedTuple):
    """Cancels the order with this number."""

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
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(_NICENESS)
    work(connection, settings=settings)


def work(connection: Connection, *, settings: WebSettings, idle_s: float = IDLE_S) -> None:
    """Makes cards, one of each urgent order in turn, until it is idle for `idle_s` or the server is gone."""
    with suppress(EOFError, OSError), connection:
        maker = Maker(settings)
        orders: dict[int, tuple[bool, Iterator[Made | Pause]]] = {}
        while True:
            while connection.poll(0 if orders else idle_s):
                message: Message = connection.recv()
                if message is None:
                    return
                if isinstance(message, Cancellation):
                    orders.pop(message.number, None)
                else:
                    made = maker.order(message, is_waited_for=partial(connection.poll, 0))
                    orders[message.number] = message.is_urgent, made
            if not orders:
                return
            has_urgent = any(is_urgent for is_urgent, _ in orders.values())
            for number, (is_urgent, cards) in list(orders.items()):
                if has_urgent and not is_urgent:
                    continue
                card = next(cards, None)
                if not isinstance(card, Pause):
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

    def order(
        self,
        order: CardOrder,
        *,
        is_waited_for: Callable[[], bool] = lambda: False,
    ) -> Iterator[Made | Pause]:
        """The best models for the task and their cards, then the other cards.

        The search of an order that is not urgent pauses if the worker is waited for.
        """
        index = read_index()
        checked = checked_entries(index)
        done = set(order.made_ids)
        # Made during the search; their cards come after those of the picks.
        planned: dict[str, tuple[Entry, Plan]] = {}

        def on_plan(entry: Entry, plan: Plan) -> None:
            if entry.id not in done and not entry.is_users:
                planned[entry.id] = entry, plan
            if not order.is_urgent and is_waited_for():
                raise CancelledError("another order is waiting")

        picks = order.picks
        while picks is None:
            try:
                picks = self._picks(order.request, on_plan)
            except CancelledError:
                yield Pause()
            else:
                yield Picks(picks)
        checked_ids = {entry.id for entry in checked if not entry.is_users}
        for name in (*picks, *(name for name in planned if name in checked_ids)):
            if name in planned and name not in done:
                done.add(name)
                yield self._planned_card(*planned[name])
        request = replace(order.request, purpose=order.request.purpose or ModelPurpose.CHAT)
        picked = [entry for entry in index.entries if entry.id in picks]
        yield from self.cards(request, picked, frozenset(done))
        yield from self.cards(request, checked, frozenset({*done, *picks}))

    def _picks(self, request: Request, on_plan: OnPlan) -> tuple[str, ...]:
        """The models of `edgekit recommend --limit 3` for the task; none if nothing fits, or nothing can run there.

        Raises CancelledError if `on_plan` does.
        """
        try:
            best = recommend(replace(request, limit=PICKS), self._session, on_plan=on_plan)
        except CancelledError:
            raise
        except EdgekitError:
            return ()  # each card says why
        return tuple(suggestion.entry.id for suggestion in best.suggestions)

    def cards(
        self, request: Request, entries: Iterable[Entry], made_ids: frozenset[str] = frozenset()
    ) -> Iterator[Card]:
        """A card for each entry that has none yet. If its plan fails, the card says why."""
        (engine,), machine = request.engines, request.find_machine()
        for entry in sort_entries(entries, machine, engine, request.purpose):
            if entry.id in made_ids:
                continue
            try:
                engine_named(engine).check_runs(machine)
                yield self._card(entry, request)
                continue
            except EdgekitError as error:
                message = str(error)
            except Exception:  # noqa: BLE001 - one model's failure does not end the others
                _log.exception("no card for %s", entry.id)
                message = UNEXPECTED
            yield self._redacted(refused_card_json(entry, engine, message))

    def _card(self, entry: Entry, request: Request) -> Card:
        """The card of a model's plan; from its files if they are known, otherwise from the catalog."""
        model = self._open(entry, request.engines[0])
        request = replace(request, drafter=False)
        if model.found is not None and model.files is not None:
            plan = plan_model(model, request, self._session, thorough=False, longest=True)
            return self._planned_card(entry, plan, model.files)
        task = task_to_plan(model, request, self._session)
        plan = make_plan(task, thorough=False, helpful=False, longest=True)
        return self._planned_card(entry, plan)

    def _planned_card(self, entry: Entry, plan: Plan, files: ModelFiles | None = None) -> Card:
        ready = ready_commands(plan, files=files) if plan.fits else ()
        return self._redacted(card_json(entry, plan, ready))

    def _redacted(self, card: Card) -> Card:
        """The card without local folders, for a server that others can reach."""
        return without_folders(card, self._settings)

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


def sort_entries(
    entries: Iterable[Entry], machine: Machine, engine: str, task: ModelPurpose | None = None
) -> list[Entry]:
    """The most promising first: models of the task, then the others.

    Of both, those whose weights fit the devices, then those that fit all memory, then the rest; each group by rank.
    Without a task, all models are in one list.
    """
    try:
        all_bytes = engine_named(engine).capacity_bytes(machine)
    except EdgekitError:  # the memory is not known
        all_bytes = 0
    devices = engine_named(engine).devices(machine)
    device_bytes = all_bytes
    if devices:
        device_bytes = min(sum(device.free_bytes for device in devices), all_bytes)

    def key(entry: Entry) -> tuple[bool, bool, bool, float, str]:
        size_bytes = smallest_bytes(entry)
        is_other = task is not None and not suits_task(entry, task)
        rank = rank_of(entry, None if is_other else task)
        return is_other, size_bytes > all_bytes, size_bytes > device_bytes, -rank, entry.id

    return sorted(entries, key=key)
