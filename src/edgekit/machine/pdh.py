"""Windows' performance counters of GPUs, as the task manager shows them (pdh.dll)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

_COUNTERS = (
    r"\GPU Process Memory(*)\{}"  # English names, which PdhAddEnglishCounterW takes everywhere
)
_FORMAT_LARGE = 0x400  # PDH_FMT_LARGE: 64-bit integers
_MORE_DATA = 0x800007D2
_MAX_BYTES = 4 * 1024**2  # an instance has about 100 bytes, a busy machine hundreds of them


class ProcessMemory(NamedTuple):
    """The memory of one process on one GPU."""

    dedicated_bytes: int  # on the card
    shared_bytes: int  # in RAM


class _Item(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE_ITEM_W with a 64-bit value, which is aligned to eight bytes."""

    _fields_ = (
        ("name", ctypes.c_wchar_p),
        ("status", ctypes.c_uint32),
        ("value", ctypes.c_int64),
    )


def gpu_process_memory() -> Mapping[str, ProcessMemory]:
    """Memory by instance: "pid_1234_luid_0x00000000_0x0000A18D_phys_0". Empty without such counters."""
    windll = getattr(ctypes, "windll", None)
    if windll is None:
        return {}
    pdh: Any = windll.pdh
    query = ctypes.c_void_p()
    if pdh.PdhOpenQueryW(None, None, ctypes.byref(query)):
        return {}
    try:
        dedicated, shared = (
            _added(pdh, query, f"{name} Usage") for name in ("Dedicated", "Shared")
        )
        if dedicated is None or shared is None or pdh.PdhCollectQueryData(query):
            return {}
        on_card, in_ram = _values(pdh, dedicated), _values(pdh, shared)
    finally:
        pdh.PdhCloseQuery(query)
    return {
        name: ProcessMemory(dedicated_bytes=on_card.get(name, 0), shared_bytes=size)
        for name, size in in_ram.items()
    }


def _added(pdh: Any, query: Any, name: str) -> Any:
    """The counter of this name in the query; None if this Windows has none."""
    counter = ctypes.c_void_p()
    failed = pdh.PdhAddEnglishCounterW(query, _COUNTERS.format(name), None, ctypes.byref(counter))
    return None if failed else counter


def _values(pdh: Any, counter: Any) -> dict[str, int]:
    size, count = ctypes.c_uint32(0), ctypes.c_uint32(0)
    pointers = ctypes.byref(size), ctypes.byref(count)
    status = pdh.PdhGetFormattedCounterArrayW(counter, _FORMAT_LARGE, *pointers, None)
    if status & 0xFFFFFFFF != _MORE_DATA or not 0 < size.value <= _MAX_BYTES:
        return {}
    buffer = ctypes.create_string_buffer(size.value)
    if pdh.PdhGetFormattedCounterArrayW(counter, _FORMAT_LARGE, *pointers, buffer):
        return {}
    # The array is at the start of the buffer, its names behind it.
    count_that_fits = min(count.value, size.value // ctypes.sizeof(_Item))
    items = ctypes.cast(buffer, ctypes.POINTER(_Item))
    return {items[i].name: max(0, items[i].value) for i in range(count_that_fits)}
