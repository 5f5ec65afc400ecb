"""/sys/class/drm -> the graphics cards whose driver is loaded, and whether a program may open them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from edgekit.machine.surroundings import Findings, Surroundings
from edgekit.machine.tree import number_in, pairs_of
from edgekit.machine.types import Device, System


class DrmCard(NamedTuple):
    folder: Path  # /sys/class/drm/card0
    vendor: int
    device: int
    slot: str  # "0000:03:00.0"
    driver: str
    render: str  # "renderD128": what a program opens to compute; empty where it only shows pictures

    @property
    def files(self) -> Path:
        return self.folder / "device"


def drm_cards(root: Path, vendor: int) -> tuple[DrmCard, ...]:
    """Of one vendor, in the order of their slots."""
    folders = (root / "sys/class/drm").glob("card*")
    cards = (_card(folder) for folder in folders if re.fullmatch(r"card\d+", folder.name))
    mine = (card for card in cards if card is not None and card.vendor == vendor)
    return tuple(sorted(mine, key=lambda card: card.slot))


def drm_findings(
    here: Surroundings,
    vendor: int,
    name_of: Callable[[Surroundings, DrmCard], str],
    device_of: Callable[[Surroundings, DrmCard, str, int], Device | None],
) -> Findings:
    """The cards of one vendor that a program may use; the others are a note each."""
    if here.system is not System.LINUX:
        return Findings()
    devices: list[Device] = []
    notes: list[str] = []
    for index, card in enumerate(drm_cards(here.root, vendor)):
        name = name_of(here, card)
        device = device_of(here, card, name, index)
        note = closed_note(here.root, card, name)
        if note or device is None:
            notes.append(note or f"{name} ({card.slot}) does not report its memory: not counted.")
        else:
            devices.append(device)
    return Findings(devices=tuple(devices), notes=tuple(notes))


def _card(folder: Path) -> DrmCard | None:
    """Of a PCI device uevent tells DRIVER=amdgpu, PCI_ID=1002:744C, PCI_SLOT_NAME=0000:03:00.0."""
    told = pairs_of(folder / "device/uevent")
    vendor, _, device = told.get("PCI_ID", "").partition(":")
    numbers = number_in(f"0x{vendor}"), number_in(f"0x{device}")
    if numbers[0] is None or numbers[1] is None:
        return None
    render = min((path.name for path in (folder / "device/drm").glob("renderD*")), default="")
    return DrmCard(
        folder=folder,
        vendor=numbers[0],
        device=numbers[1],
        slot=told.get("PCI_SLOT_NAME", ""),
        driver=told.get("DRIVER", ""),
        render=render,
    )


def closed_note(root: Path, card: DrmCard, name: str) -> str:
    """Why a program could not open it, and what to do; empty where it could.

    A container sees every card of the machine in /sys, and in /dev only those it was given.
    """
    node = f"/dev/dri/{card.render}"
    path = root / node.removeprefix("/")
    what = f"{name} ({card.slot}) is in this machine, but not counted:"
    if not card.render:
        return f"{what} its driver ({card.driver or 'none'}) has no render node."
    if not path.exists():
        return f"{what} {node} does not exist. Fix: pass the device to the container (--device /dev/dri)."
    if not os.access(path, os.R_OK | os.W_OK):
        return f"{what} no permission to open {node}. Fix: join the groups render and video."
    return ""
