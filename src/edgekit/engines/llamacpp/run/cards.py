"""Which GPUs of a machine a build of llama.cpp uses, through which backend, and how it is limited to some of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from edgekit.bill.types import Placement, Verdict
from edgekit.engines.llamacpp.installed import cards_by_backend, name_of
from edgekit.engines.llamacpp.placements import VENDORS_OF, devices
from edgekit.engines.llamacpp.run.binding import VISIBLE
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup
from edgekit.engines.program import Installation
from edgekit.machine.types import Device, Machine, Vendor

# Words in the name of a GPU that state its vendor.
_VENDOR_WORDS = {
    Vendor.NVIDIA: frozenset({"nvidia", "geforce"}),
    Vendor.AMD: frozenset({"amd", "radeon", "radv"}),
    Vendor.INTEL: frozenset({"intel", "arc"}),
}


def usable_machine(machine: Machine, installation: Installation) -> Machine:
    """The machine with the GPUs that the program lists, and the backend that it uses them through."""
    listed = cards_by_backend(installation)
    if not listed and installation.devices:  # of a backend that EdgeKit has no rules for
        return machine
    cards: tuple[Device, ...] = ()
    for backend, names in listed.items():  # the fastest first
        numbers = _numbers(machine.devices, backend, names)
        cards = cards or tuple(replace(card, backend=backend.value) for card in numbers)
    return replace(machine, devices=cards)


def backend_problem(verdict: Verdict, installation: Installation) -> str:
    """Why the program cannot follow the plan: it lists GPUs, but none through the backend of --backend. "": it can."""
    listed, backend = cards_by_backend(installation), LlamaCppSetup.of(verdict.way.setup).backend
    if not listed or backend is Backend.CPU or backend in listed or not verdict.machine.devices:
        return ""
    others = " and ".join(map(name_of, listed))
    return (
        f"this {installation.program} has no {name_of(backend)}, only {others}: leave out --backend"
    )


def visible_cards(
    placement: Placement, machine: Machine, backend: Backend, installation: Installation
) -> dict[str, str]:
    """The environment that hides from a program what the placement does not use, by the numbers that the program lists.

    Numbers of NVIDIA's cards are not changed: CUDA may list them in another order than NVML.
    """
    listed = cards_by_backend(installation)
    hidden = {VISIBLE[other]: "" for other in listed if other in VISIBLE and other is not backend}
    variable, names = VISIBLE.get(backend), listed.get(backend, {})
    if variable is None or backend is Backend.CUDA:
        return hidden
    cards = devices(machine)
    numbers = _numbers(cards, backend, names)
    used = [
        numbers[card]
        for card in (cards if placement.by_number else placement.cards)
        if card in numbers
    ]
    if used in ([], list(names)):  # unknown, or all in their order
        return hidden
    # A variable of the user has already numbered the listed GPUs anew.
    own = os.environ.get(variable, "").split(",")
    chosen = [own[number] if len(own) > number and own[0] else str(number) for number in used]
    return {**hidden, variable: ",".join(chosen)}


def _numbers(
    cards: Sequence[Device], backend: Backend, names: Mapping[int, str]
) -> dict[Device, int]:
    """The cards that are listed under these names, each with its number: those with the most words in common."""
    suitable = [card for card in cards if card.vendor in VENDORS_OF[backend]]
    pairs = sorted(
        (pair for pair in product(suitable, names) if _may_be(pair[0], names[pair[1]])),
        key=lambda pair: -len(_words(pair[0].name) & _words(names[pair[1]])),
    )
    numbers: dict[Device, int] = {}
    for card, number in pairs:
        if card not in numbers and number not in numbers.values():
            numbers[card] = number
    return {card: numbers[card] for card in suitable if card in numbers}


def _may_be(card: Device, name: str) -> bool:
    """Whether a card may be listed under this name: it does not state another vendor."""
    words = _words(name)
    stated = {vendor for vendor, known in _VENDOR_WORDS.items() if known & words}
    return not stated or card.vendor in {*stated, Vendor.OTHER}


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))
