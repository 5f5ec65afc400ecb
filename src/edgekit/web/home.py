"""The data of the home page: the models in order, the best ones, and the cards that exist already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.index.titles import publisher_of, title_of
from edgekit.index.types import Entry
from edgekit.plan.recommend import suits_task
from edgekit.report.json import SCHEMA, fields
from edgekit.report.machine_label import machine_label
from edgekit.web.decks import short_card
from edgekit.web.types import Json

if TYPE_CHECKING:
    from edgekit.web.cards import DeckView


def home_json(deck: DeckView, *, known: int) -> Json:
    """`known`: number of models in the index. The cards of the best models have all fields."""
    machine, picks = deck.request.find_machine(), deck.picks
    return {
        "schema": SCHEMA,
        "task": deck.task.value,
        "engine": deck.request.engine,
        "machine": {**fields(machine, "name what_if"), "label": machine_label(machine)},
        "known": known,
        "picks": None if picks is None else list(picks),
        "models": [
            _model_json(
                entry,
                deck.cards.get(entry.id),
                is_for_task=suits_task(entry, deck.task),
                is_pick=entry.id in (picks or ()),
            )
            for entry in deck.entries
        ],
    }


def _model_json(entry: Entry, card: Json | None, *, is_for_task: bool, is_pick: bool) -> Json:
    return {
        "id": entry.id,
        "title": title_of(entry),
        "publisher": publisher_of(entry),
        **fields(entry, "repository parameters active_parameters"),
        "kinds": [kind.value for kind in entry.kinds],
        **fields(entry, "licence released"),
        "is_for_task": is_for_task,
        "card": card if card is None or is_pick else short_card(card),
    }
