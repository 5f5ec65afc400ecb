"""A variable such as CUDA_VISIBLE_DEVICES and the devices a driver counts -> those a program gets to see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from edgekit.machine.tree import printable
from edgekit.machine.types import Device


class Seen(NamedTuple):
    """A device with the names it may be asked for by: its own, and of a slice its card's too."""

    device: Device
    uuids: tuple[str, ...] = ()


class DeviceCount(NamedTuple):
    """What a driver counts, before anything of it is hidden."""

    seen: tuple[Seen, ...] = ()
    notes: tuple[str, ...] = ()


def visible(wish: str | None, seen: tuple[Seen, ...]) -> tuple[Device, ...]:
    """In the order asked for. Not set: all. The first entry that names no device ends the list, so
    '', '-1' and 'NoDevFiles' show none: CUDA's own reading.
    """
    if wish is None:
        return tuple(each.device for each in seen)
    chosen: list[Device] = []
    for entry in wish.split(","):
        meant = _meant(entry.strip(), seen)
        if not meant or any(device is other for device in meant for other in chosen):
            break
        chosen.extend(meant)
    return tuple(chosen)


def _meant(entry: str, seen: tuple[Seen, ...]) -> tuple[Device, ...]:
    """One device, or all slices of one card; none where the name fits none or several."""
    if entry.isascii() and entry.isdecimal():
        return tuple(each.device for each in seen if str(each.device.index) == entry)
    if not entry.startswith(("GPU-", "MIG-")):
        return ()
    fits = tuple(each.device for each in seen if _is_named(entry, each.uuids))
    return fits if len({device.index for device in fits}) == 1 else ()


def _is_named(entry: str, uuids: Iterable[str]) -> bool:
    return any(uuid.lower().startswith(entry.lower()) for uuid in uuids)


def hidden_note(
    variable: str, wish: str | None, seen: tuple[Seen, ...], shown: tuple[Device, ...]
) -> tuple[str, ...]:
    """Told wherever something that is there does not count."""
    if wish is None or len(shown) == len(seen):
        return ()
    said = f"{variable}={printable(wish, 80)}" if wish else f"{variable} is set but empty"
    return (f"{said}: only {len(shown)} of {len(seen)} GPUs are counted. Unset it to use all.",)
