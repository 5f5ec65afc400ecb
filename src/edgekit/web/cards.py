"""The catalog on a machine, card by card. All who ask for the same machine share the work."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Hashable
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from typing import Any

from edgekit.app.recommend import with_rounded_memory
from edgekit.catalog import read_catalog
from edgekit.report.json import json_line
from edgekit.web.card_worker import Begin, Card, CardOrder, CardWorker, Made, Stop
from edgekit.web.failures import TooManyError, failure_json
from edgekit.web.jobs import PING_S, Bell, JobEvent
from edgekit.web.types import WebSettings

KEPT_MACHINES = 8  # with an engine each; 300 cards have some 400 KB
MOST_FOLLOWED = 16
KEPT_S = 3600.0  # what the user added may have changed
MOST_STARTS = 3  # of a worker, for one machine: whatever ends it ends it again
_LOST = "the process that checks the models keeps crashing; reload the page to try again"
_CLOSED = "the server was stopped"

_log = logging.getLogger("edgekit.web")


@dataclass(slots=True, kw_only=True, eq=False)
class Deck:
    """The cards of one machine. It changes as it goes: Cards alone writes to it, under its lock."""

    number: int
    order: CardOrder = field(repr=False)
    count: int  # of cards there will be
    cards: list[Card] = field(default_factory=list, repr=False)
    is_done: bool = False
    is_begun: bool = False  # somebody works on it
    fault: str = ""
    starts: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    bells: set[Bell] = field(default_factory=set, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.is_done or bool(self.fault)

    @property
    def left(self) -> CardOrder:
        """What is still to be made."""
        made = frozenset(str(card["id"]) for card in self.cards)
        return replace(self.order, made=made)

    @property
    def told(self) -> dict[str, Any]:
        machine, engine = self.order.machine, self.order.engine
        return {"name": machine.name, "engine": engine, "count": self.count}

    @property
    def end(self) -> JobEvent:
        count = len(self.cards)
        if self.is_done:
            return JobEvent(name="done", number=count + 1, data=json_line({"count": count}))
        error = json_line(failure_json("WorkerError", self.fault))
        return JobEvent(name="failed", number=count + 1, data=error)

    def ring(self) -> None:
        for bell in self.bells:
            bell.ring()


class Cards:
    """The decks that were asked for last, and the worker that makes them."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._decks: OrderedDict[Hashable, Deck] = OrderedDict()  # for whoever comes next
        self._followed: set[Deck] = set()  # also those that are no longer kept
        self._numbers = 0
        self._worker: CardWorker | None = None
        self._closed = False

    @property
    def process(self) -> BaseProcess | None:
        """The worker's own; None where there is none now."""
        return None if self._worker is None else self._worker.process

    def deck(self, order: CardOrder) -> Deck:
        """The one that there is for it, or a new one. Nothing is made before somebody follows it.

        Raises TooManyError where too many others are being followed.
        """
        entries = read_catalog().entries
        own = repr([(one, one.keys, one.config) for one in entries if one.is_users])
        key = (replace(order, machine=with_rounded_memory(order.machine)), own)
        with self._lock:
            deck = self._decks.get(key)
            if deck is None or deck.fault or time.monotonic() - deck.begun_s > KEPT_S:
                if len(self._followed) >= MOST_FOLLOWED:
                    raise TooManyError("too many machines are being checked; try again in a moment")
                self._numbers += 1
                deck = Deck(number=self._numbers, order=order, count=len(entries))
                self._decks[key] = deck
            self._decks.move_to_end(key)
            self._thin()
        return deck

    async def follow(self, deck: Deck) -> AsyncGenerator[JobEvent, None]:
        """The machine, the cards that are there, those that come, and how it ended."""
        bell, told = Bell(), 0
        self._join(deck, bell)
        try:
            yield JobEvent(name="machine", data=json_line(deck.told))
            while True:
                has_ended = deck.has_ended  # before the cards are counted: none comes after it
                for card in deck.cards[told:]:
                    told += 1
                    yield JobEvent(name="card", number=told, data=json_line(card))
                if has_ended:
                    break
                if not await bell.wait(PING_S):
                    yield JobEvent()
            yield deck.end
        finally:
            self._leave(deck, bell)

    def close(self) -> None:
        """Nobody waits any more, and no process is left. Harmless when it was called before."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
            for deck in self._followed:
                if not deck.has_ended:
                    deck.fault = _CLOSED
                deck.ring()
        if worker is not None:
            worker.end()

    def _join(self, deck: Deck, bell: Bell) -> None:
        with self._lock:
            deck.bells.add(bell)
            self._followed.add(deck)
            self._begin(deck)

    def _leave(self, deck: Deck, bell: Bell) -> None:
        """What nobody else wants is not made. The cards that are there stay for whoever comes back."""
        with self._lock:
            deck.bells.discard(bell)
            if deck.bells:
                return
            self._followed.discard(deck)
            if deck.is_begun and not deck.has_ended:
                deck.is_begun = False
                if self._worker is not None:
                    self._worker.send(Stop(deck.number))

    def _begin(self, deck: Deck) -> None:
        if deck.is_begun or deck.has_ended:
            return
        if self._closed:
            deck.fault = _CLOSED
        elif deck.starts >= MOST_STARTS:
            deck.fault = _LOST
        else:
            try:
                self._hand_over(deck)
            except OSError as error:
                deck.fault = f"cannot start the process that checks the models: {error}"
        if deck.fault:
            deck.ring()

    def _hand_over(self, deck: Deck) -> None:
        if self._worker is None:
            self._worker = CardWorker(settings=self._settings, heard=self._heard, gone=self._gone)
        deck.is_begun = True
        self._numbers += 1
        deck.number = self._numbers  # what is still under way from before is not heard
        self._worker.send(Begin(number=deck.number, order=deck.left))

    def _heard(self, made: Made) -> None:
        with self._lock:
            deck = next((one for one in self._followed if one.number == made.number), None)
            if deck is None or not deck.is_begun or deck.has_ended:
                return
            if made.card is None:
                deck.is_done = True
            else:
                deck.cards.append(made.card)
            deck.ring()

    def _gone(self, worker: CardWorker) -> None:
        """It had nothing to do, or something ended it: then another goes on."""
        with self._lock:
            if self._worker is worker:
                self._worker = None
            for deck in self._followed:
                if deck.is_begun and not deck.has_ended:
                    _log.warning("the process that checks the models died; starting another")
                    deck.is_begun = False
                    deck.starts += 1
                    self._begin(deck)

    def _thin(self) -> None:
        """The oldest that nobody follows go first."""
        for key, deck in list(self._decks.items())[:-1]:
            if len(self._decks) > KEPT_MACHINES and not deck.bells:
                del self._decks[key]
