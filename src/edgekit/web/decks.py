"""The cards of each machine: in memory while a deck has them, and on disk for the next start of the server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import edgekit
from edgekit.app.candidates import STEP_BYTES, AnswerStore, key_of, with_free_memory
from edgekit.errors import EdgekitError
from edgekit.index.database import index_file
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import Machine
from edgekit.report.cards import for_task
from edgekit.request import Request
from edgekit.units import GIB
from edgekit.web.types import Json

# Fields of a card that a row of the table needs; cards with all fields are sent as events.
_CARD = (
    "status", "headline", "variant", "is_good", "is_notable", "is_quick", "is_preferred", "rank", "worth",
    "context_tokens", "max_context", "cache", "download_bytes", "required_bytes", "available_bytes", "way", "runs_on",
    "command", "program", "flags",
)  # fmt: skip
_SPEED = ("typical", "decode", "prefill_typical")
_BAR = ("memory", "total_bytes", "available_bytes", "required_bytes", "status")
Card = Json

FORMAT = 1  # of stored cards; increase it whenever the fields of a card change
# A card has about 3 KB.
CARDS = AnswerStore(name="cards", max_bytes=4 * 1024 * 1024, most_files=16)
MOST_CARDS = 1_000  # of one machine
MUCH_BYTES = 8 * GIB  # of free memory: from here on it is rounded to 1 GiB


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


def machine_of_cards(machine: Machine, earlier: Iterable[Machine]) -> Machine:
    """The machine for which cards are made: with its free memory rounded down, because that changes all the time.

    One of the `earlier` ones if it is the same machine and its cards still hold: no more memory than is free now, and
    less than one and a half steps below it, so that free memory that moves around a step does not need new cards each
    time. A what-if machine stays as it is.
    """
    if machine.what_if:
        return machine
    now = _free_memory(machine)
    alike = _without_free_memory(machine)
    holding = [
        old
        for old in earlier
        if all(map(_holds, _free_memory(old), now)) and _without_free_memory(old) == alike
    ]
    rounded = with_free_memory(machine, lambda size: size // _step_bytes(size) * _step_bytes(size))
    return max(holding, key=_free_memory, default=rounded)


def _step_bytes(free_bytes: int) -> int:
    return GIB if free_bytes >= MUCH_BYTES else STEP_BYTES


def _holds(made_for_bytes: int, free_bytes: int) -> bool:
    return made_for_bytes <= free_bytes < made_for_bytes + _step_bytes(made_for_bytes) * 3 // 2


def _free_memory(machine: Machine) -> tuple[int, ...]:
    host = machine.host
    of_host = () if host is None else (host.free_bytes, *(each.left_bytes for each in host.limits))
    return *of_host, *(
        free_bytes
        for device in machine.devices
        for free_bytes in (device.free_bytes, device.own_bytes)
    )


def _without_free_memory(machine: Machine) -> Machine:
    """What identifies the machine: without what changes from one moment to the next."""
    machine = with_free_memory(machine, lambda _: 0)
    host = machine.host
    return replace(
        machine,
        host=None if host is None else replace(host, swap_free_bytes=0),
        devices=tuple(replace(device, because="") for device in machine.devices),
        notes=(),
    )


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


_TEXTS = ("id", "engine", "status", "headline", "told", "way", "runs_on", "command", "program")
_NUMBERS = ("rank", "worth")
_FLAGS = ("is_notable", "is_quick", "is_preferred")


def _is_card(name: str, card: Any) -> bool:
    """Whether the card has what the home page reads, whatever the task; and whether it can be sent."""
    try:
        for task in ModelPurpose:
            short_card(for_task(card, task))
        if not all(map(_has_merits, (card, *card["merits"].values()))):
            return False
        # As it is sent: without infinite numbers and lone surrogates.
        json.dumps(card, allow_nan=False, ensure_ascii=False).encode()
        are_texts = all(isinstance(card[key], str) for key in _TEXTS)
        are_objects = all(isinstance(card[key], dict) for key in ("entry", "flags"))
        return are_texts and are_objects and isinstance(card["bars"], list) and card["id"] == name
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _has_merits(merits: Json) -> bool:
    """Whether the page can sort by them."""
    numbers = all(type(merits[name]) in {int, float} for name in _NUMBERS)
    return numbers and all(isinstance(merits[name], bool) for name in _FLAGS)


def _are_picks(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def cards_key(request: Request, entries: Sequence[Entry]) -> str:
    """A hash of everything that the cards depend on, besides the files of the user's models.

    The request's machine is one of `machine_of_cards`.

    Raises UsageError if the engine's version is invalid.
    """
    file = index_file()
    status = file.path.stat()
    index = (str(file.path), status.st_size, status.st_mtime_ns, sorted(file.facts.items()))
    machine = request.find_machine()
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


def short_card(card: Json) -> Json:
    """What a row of the table needs of a card."""
    speed = card["speed"]
    return {
        **{name: card[name] for name in _CARD},
        "speed": None if speed is None else {name: speed[name] for name in _SPEED},
        "bars": [{name: bar[name] for name in _BAR} for bar in card["bars"]],
    }
