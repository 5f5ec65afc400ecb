"""The cards of each machine: in memory while a deck has them, and on disk for the next start of the server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import edgekit
from edgekit.app.candidates import AnswerStore, key_of, with_rounded_memory
from edgekit.errors import EdgekitError
from edgekit.index.database import index_file
from edgekit.index.types import Entry
from edgekit.request import Request
from edgekit.web.types import Json

Card = Json

FORMAT = 1  # of stored cards; increase it whenever the fields of a card change
# A card has about 3 KB.
CARDS = AnswerStore(name="cards", max_bytes=4 * 1024 * 1024, most_files=16)
MOST_CARDS = 1_000  # of one machine


@dataclass(slots=True, eq=False, weakref_slot=True)
class MachineCards:
    """The cards made for one machine, engine and limits, whatever the task; and the best models for each task.

    Only `Cards` changes them, while holding its lock.
    """

    key: str | None = None  # of the stored answer; None: not stored
    cards: dict[str, Card] = field(default_factory=dict, repr=False)  # by the model's id
    picks: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by task
    is_stored: bool = True  # no change since they were written

    def to_store(self, users_ids: frozenset[str]) -> Json | None:
        """The content to write; None if nothing is new. Without the user's models, whose files may change."""
        if self.is_stored or self.key is None:
            return None
        self.is_stored = True
        kept = {name: card for name, card in self.cards.items() if name not in users_ids}
        return {"cards": kept, "picks": dict(self.picks)}


def stored_cards(request: Request, entries: Sequence[Entry]) -> MachineCards:
    """The cards stored by an earlier start of the server; none if anything they depend on has changed."""
    try:
        key = cards_key(request, entries)
    except EdgekitError:  # the engine's version is invalid: each card says so
        return MachineCards()
    made = MachineCards(key=key)
    answer = CARDS.read(key)
    if not isinstance(answer, dict):
        return made
    cards, picks = answer.get("cards"), answer.get("picks")
    if not isinstance(cards, dict) or not isinstance(picks, dict) or len(cards) > MOST_CARDS:
        return made
    if not all(_is_card(name, card) for name, card in cards.items()):
        return made
    if not all(_are_picks(names) for names in picks.values()):
        return made
    made.cards = cards
    made.picks = {task: tuple(names) for task, names in picks.items()}
    return made


_NAMES = frozenset({"id", "entry", "status", "merits", "bars", "told"})


def _is_card(name: str, card: Any) -> bool:
    if not isinstance(card, dict) or not card.keys() >= _NAMES:
        return False
    return card["id"] == name and isinstance(card["merits"], dict)


def _are_picks(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def cards_key(request: Request, entries: Sequence[Entry]) -> str:
    """A hash of everything that the cards depend on, besides the files of the user's models.

    Raises UsageError if the engine's version is invalid.
    """
    file = index_file()
    status = file.path.stat()
    index = (str(file.path), status.st_size, status.st_mtime_ns, sorted(file.facts.items()))
    machine = with_rounded_memory(request.find_machine())
    question = ("cards", FORMAT, index, code_stamp(), machine.name)
    return key_of(replace(request, purpose=None), machine, entries, question)


@cache
def code_stamp() -> int:
    """The time of the newest file of this package: a checkout has many states of one version."""
    newest = 0
    for folder, _, names in os.walk(Path(edgekit.__file__).parent):
        for name in names:
            if name.endswith((".py", ".json", ".tsv")):
                newest = max(newest, Path(folder, name).stat().st_mtime_ns)
    return newest


def identity_of(entries: Sequence[Entry]) -> Any:
    """A key that identifies the index in memory: its file, and the user's models with their contents."""
    users = repr([(entry, entry.header) for entry in entries if entry.is_users])
    return id(index_file()), users
