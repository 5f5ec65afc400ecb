"""The NVIDIA driver, asked within a deadline -> the cards a program gets to see, and what could not be asked."""

from __future__ import annotations

from contextlib import suppress

from edgekit.machine.address_space import within_address_space
from edgekit.machine.jetson import find_jetson
from edgekit.machine.nvml_errors import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, told
from edgekit.machine.surroundings import Findings, NvmlError, Surroundings, in_wsl
from edgekit.machine.tree import number_of
from edgekit.machine.types import Device, System
from edgekit.machine.visible import DeviceCount, Seen, hidden_note, visible

_VENDOR = 0x10DE
_DISPLAYS = (0x0300, 0x0302)  # PCI classes: with an outlet for a screen, and without
_MOST_CARDS = 64  # 16 is the largest machine sold
_SIGNS = ("proc/driver/nvidia/version", "dev/nvidiactl")  # of a driver that is loaded
_VARIABLE = "CUDA_VISIBLE_DEVICES"


def find_nvidia(here: Surroundings) -> Findings:
    """Cards in the order a program sees them; nothing where there is neither card nor driver."""
    answer = _answer(here)
    if not answer.seen:
        board = find_jetson(here)
        answer = board if board.seen or board.notes else answer
    wish = here.environment.get(_VARIABLE)
    shown = visible(wish, answer.seen)
    hidden = hidden_note(_VARIABLE, wish, answer.seen, shown)
    reached = within_address_space(_together(shown), here.host)
    notes = (*answer.notes, *hidden, *_order_note(here, answer.seen), *reached.notes)
    return Findings(devices=reached.devices, notes=(*notes, *_spill_note(here, reached.devices)))


def _together(shown: tuple[Device, ...]) -> tuple[Device, ...]:
    """What one program can use at once: whole cards, or else a single slice.

    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/: a process enumerates one MIG device.
    """
    whole = tuple(device for device in shown if not device.partition)
    return whole or shown[:1]


def _answer(here: Surroundings) -> DeviceCount:
    loaded = any((here.root / sign).exists() for sign in _SIGNS)
    if not loaded and here.system is System.LINUX and not in_wsl(here):
        return DeviceCount(notes=_cards_without_driver(here))
    if here.system not in {System.LINUX, System.WINDOWS}:
        return DeviceCount()
    try:
        answer = _within_deadline(here)
    except NvmlError as error:
        absent = error.code in {DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND} and not loaded
        why = f"The NVIDIA driver does not answer, so no NVIDIA GPU is counted: {told(error.code)}"
        return DeviceCount(notes=() if absent else (why,))
    if answer is None:
        why = (
            f"The NVIDIA driver did not answer within {here.deadline_s:g} s, so no NVIDIA GPU is "
            "counted. Fix: try nvidia-smi; if that hangs too, reboot."
        )
        return DeviceCount(notes=(why,))
    return answer


def _within_deadline(here: Surroundings) -> DeviceCount | None:
    """None: a driver that hangs is left to hang, in a thread that does not keep the program."""
    from queue import Empty, SimpleQueue
    from threading import Thread

    answers: SimpleQueue[DeviceCount | Exception] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_read_cards(here))
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            answers.put(error)

    Thread(target=ask, name="edgekit-nvml", daemon=True).start()
    try:
        answer = answers.get(timeout=here.deadline_s)
    except Empty:
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read_cards(here: Surroundings) -> DeviceCount:
    from edgekit.machine.nvml import read_card

    nvml = here.nvml()
    nvml("nvmlInit")
    count = min(int(nvml("nvmlDeviceGetCount")), _MOST_CARDS)
    cards = []
    for index in range(count):
        try:
            cards.append(read_card(nvml, index, here.host, by_windows=_by_windows(here)))
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            why = f"GPU {index} gives an unreadable answer ({type(error).__name__}): not counted."
            cards.append(DeviceCount(notes=(why,)))
    with suppress(NvmlError):
        nvml("nvmlShutdown")
    return DeviceCount(
        seen=tuple(seen for card in cards for seen in card.seen),
        notes=(*(note for card in cards for note in card.notes), *_closed_note(here, count)),
    )


def _by_windows(here: Surroundings) -> bool:
    return here.system is System.WINDOWS or in_wsl(here)


def _spill_note(here: Surroundings, devices: tuple[Device, ...]) -> tuple[str, ...]:
    if not _by_windows(here) or not any(not device.unified for device in devices):
        return ()
    why = (
        "Windows manages the memory of NVIDIA GPUs and keeps about 1 GiB of each. A model that needs "
        "more still loads, but silently spills into RAM and runs 2 to 6 times slower."
    )
    return (why,)


def _closed_note(here: Surroundings, count: int) -> tuple[str, ...]:
    """A card whose file may not be opened is not refused by NVML, only not counted."""
    cards = sum(1 for _ in (here.root / "proc/driver/nvidia/gpus").glob("*"))
    if cards <= count:
        return ()
    why = (
        f"The NVIDIA driver has {cards} GPUs but shows {count}: the others were not passed to this "
        "container, or you may not open them. Check ls -l /dev/nvidia*."
    )
    return (why,)


def _cards_without_driver(here: Surroundings) -> tuple[str, ...]:
    for device in sorted((here.root / "sys/bus/pci/devices").glob("*")):
        kind = (number_of(device / "class") or 0) >> 8
        if kind in _DISPLAYS and number_of(device / "vendor") == _VENDOR:
            why = f"An NVIDIA GPU ({device.name}) is in this machine, but not counted: {told(DRIVER_NOT_LOADED)}"
            return (why,)
    return ()


def _order_note(here: Surroundings, seen: tuple[Seen, ...]) -> tuple[str, ...]:
    if len({each.device.name for each in seen}) < 2:
        return ()
    if here.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ()
    why = (
        "The NVIDIA GPUs differ: EdgeKit numbers them by PCI slot, CUDA by speed. Set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID so that both agree."
    )
    return (why,)
