"""The catalog on a machine, card by card. Requests for the same machine share the work."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Hashable
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess

from edgekit.app.recommend import with_rounded_memory
from edgekit.catalog import read_catalog
from edgekit.report.json import json_line
from edgekit.web.card_worker import Card, CardOrder, CardWorker
from edgekit.web.failures import TooManyError, failure_json
from edgekit.web.jobs import PING_S, JobEvent, Wakeup
from edgekit.web.types import WebSettings

KEPT_MACHINES = 8  # pairs of a machine and an engine; 300 cards take about 400 KB
MOST_FOLLOWED = 16
KEPT_S = 3600.0  # then models that the user added may have changed
MOST_STARTS = 3  # of a worker for one machine: what crashes it will crash it again
_LOST = "the process that checks the models keeps crashing; reload the page to try again"
_CLOSED = "the server was stopped"

_log = logging.getLogger("edgekit.web")


@dataclass(slots=True, kw_only=True, eq=False)
class Deck:
    """The cards of one machine. Only Cards writes to it, under its lock."""

    order: CardOrder = field(repr=False)
    count: int  # of cards when complete
    number: int = 0  # of the order that the worker has
    cards: list[Card] = field(default_factory=list, repr=False)
    is_done: bool = False
    is_begun: bool = False  # a worker is making it
    fault: str = ""
    starts: int = 0
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
        self._settings = settings
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

    def deck(self, order: CardOrder) -> Deck:
        """The existing deck for the order, or a new one. Cards are made only while it is followed.

        Raises TooManyError if too many others are being followed.
        """
        entries = read_catalog().entries
        users_models = repr([(one, one.keys, one.config) for one in entries if one.is_users])
        key = (replace(order, machine=with_rounded_memory(order.machine)), users_models)
        with self._lock:
            deck = self._decks.get(key)
            if deck is None or deck.fault or time.monotonic() - deck.begun_s > KEPT_S:
                if len(self._followed) >= MOST_FOLLOWED:
                    raise TooManyError("too many machines are being checked; try again in a moment")
                deck = self._decks[key] = Deck(order=order, count=len(entries))
            self._decks.move_to_end(key)
            for old_key, old in list(self._decks.items())[:-1]:
                if len(self._decks) > KEPT_MACHINES and not old.followers:
                    del self._decks[old_key]
        return deck

    async def follow(self, deck: Deck) -> AsyncGenerator[JobEvent, None]:
        """The machine, the cards made so far, the others as they are made, and the end."""
        wakeup, sent = Wakeup(), 0
        with self._lock:
            deck.followers.add(wakeup)
            self._followed.add(deck)
            self._begin(deck)
        machine = {
            "name": deck.order.machine.name,
            "engine": deck.order.engine,
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
                            self._worker.send((deck.number, None))

    def close(self) -> None:
        """End every stream and the worker's process. Idempotent."""
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
        """Order the missing cards from the worker."""
        if deck.is_begun or deck.has_ended:
            return
        if self._closed:
            deck.fault = _CLOSED
        elif deck.starts >= MOST_STARTS:
            deck.fault = _LOST
        elif self._worker is None:
            try:
                self._worker = CardWorker(
                    settings=self._settings, on_card=self._on_card, on_exit=self._on_exit
                )
            except OSError as error:
                deck.fault = f"cannot start the process that checks the models: {error}"
        if deck.fault or self._worker is None:
            deck.notify()
            return
        deck.is_begun = True
        # A new number: late messages about the previous order are ignored.
        deck.number = next(self._numbers)
        made = frozenset(str(card["id"]) for card in deck.cards)
        self._worker.send((deck.number, replace(deck.order, made=made)))

    def _on_card(self, number: int, card: Card | None) -> None:
        with self._lock:
            deck = next((one for one in self._followed if one.number == number), None)
            if deck is None or not deck.is_begun or deck.has_ended:
                return
            if card is None:
                deck.is_done = True
            else:
                deck.cards.append(card)
            deck.notify()

    def _on_exit(self, worker: CardWorker) -> None:
        """The worker was idle, or it crashed: then start another."""
        with self._lock:
            if self._worker is worker:
                self._worker = None
            for deck in self._followed:
                if deck.is_begun and not deck.has_ended:
                    _log.warning("the process that checks the models died; starting another")
                    deck.is_begun = False
                    deck.starts += 1
                    self._begin(deck)
