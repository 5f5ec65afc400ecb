"""A machine, an engine and the catalog -> one card after the other, what is most worth seeing first.

A card says what `edgekit plan catalog:ID --no-drafter` says; `edgekit check` with its flags says the same.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
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
from edgekit.plan.recommend import Suggestion, rank_of, smallest_bytes
from edgekit.report.cards import cache_words, card_entry_json
from edgekit.report.check import bars_json
from edgekit.report.headline import headline
from edgekit.report.plan import plan_speed
from edgekit.request import Request, Session
from edgekit.terminal import printable
from edgekit.web.card_flags import plan_flags
from edgekit.web.failures import UNEXPECTED
from edgekit.web.hiding import text_without_folders
from edgekit.web.references import allowed
from edgekit.web.types import CallWatch, WebSettings, reach_of

REFUSED = "refused"
MOST_OPENED = 400  # models that are kept with what engines worked out for them, some 0.6 MB each
MAX_TOLD_CHARS = 400
_SPEED = ("typical", "decode", "prefill", "steady", "basis")

_log = logging.getLogger("edgekit.web")

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
            plan = self._plan(entry, catalog, order)
            return {**_about(entry, order.engine), **_planned(entry, plan)}
        except EdgekitError as error:
            told = str(error)
        except Exception:  # noqa: BLE001 - a card of one model does not end the others
            _log.exception("no card for %s", entry.id)
            told = UNEXPECTED
        return {
            **_about(entry, order.engine),
            **_NOTHING,
            "told": _short(text_without_folders(told, self._settings)),
        }

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


def _about(entry: Entry, engine: str) -> Card:
    return {
        "id": entry.id,
        "entry": card_entry_json(entry),
        "engine": engine,
        "rank": round(rank_of(entry), 3),
    }


_NOTHING: Card = {
    "status": REFUSED,
    "variant": None,
    "is_good": False,
    "is_quick": False,
    "is_preferred": False,
    "worth": 0.0,
    "context_tokens": None,
    "cache": None,
    "speed": None,
    "way": "",
    "bars": [],
    "flags": {},
}


def _planned(entry: Entry, plan: Plan) -> Card:
    """A recommendation goes by `is_preferred`, then by `worth`."""
    result, speed = plan.result, plan_speed(plan)
    suggestion = Suggestion(entry=entry, plan=plan, rank=rank_of(entry))
    return {
        "status": result.status.value,
        "told": _short(headline(result)),
        "variant": plan.variant.name,
        "is_good": plan.variant.is_good,
        "is_quick": suggestion.is_quick,
        "is_preferred": suggestion.is_preferred,
        "worth": round(suggestion.worth, 3),
        "context_tokens": plan.context_tokens,
        "cache": cache_words(plan) or None,
        "speed": None if speed is None else {name: speed[name] for name in _SPEED},
        "way": printable(result.way.because),
        "bars": bars_json(result.uses, result.estimate),
        "flags": plan_flags(plan),
    }


def _short(told: str) -> str:
    told = printable(told)
    return told if len(told) <= MAX_TOLD_CHARS else f"{told[: MAX_TOLD_CHARS - 3]}..."
