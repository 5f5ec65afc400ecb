"""What probes look at, and what they bring back. The defaults are this machine; a test plants a tree."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from edgekit.machine.calibration import Stored, read_calibration
from edgekit.machine.types import Device, HostMemory, System
from edgekit.units import LARGEST

_SYSTEMS = {"linux": System.LINUX, "darwin": System.MACOS, "win32": System.WINDOWS}

# One question to the NVIDIA driver: the name of a function of NVML, its arguments -> its answer.
# What it refuses is raised as NvmlError.
Nvml = Callable[..., Any]


class NvmlError(Exception):
    """The driver's refusal, by its number."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"NVML error {code}")


class Psutil(Protocol):
    """The three questions that are asked of psutil."""

    def virtual_memory(self) -> Any: ...
    def swap_memory(self) -> Any: ...
    def cpu_count(self, logical: bool = True) -> int | None: ...  # noqa: FBT001, FBT002 - psutil's own


def _psutil() -> Psutil:
    import psutil

    module: Psutil = psutil
    return module


def _nvml() -> Nvml:
    """Imported on first use: it costs 15 ms, and most machines have no such card."""
    import pynvml

    # Both forms of this answer go by one name there, told apart by an argument.
    named = {"nvmlDeviceGetMemoryInfo_v2": lambda handle: _memory_v2(pynvml, handle)}

    def ask(function: str, *arguments: Any) -> Any:
        call = named.get(function) or getattr(pynvml, function, None)
        if call is None:
            raise NvmlError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlError(int(error.value)) from error

    return ask


def _memory_v2(pynvml: Any, handle: Any) -> Any:
    return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)


def _sysctl(name: str) -> bytes | None:
    """A value of macOS' kernel as its bytes; None where there is no such name, or no such kernel."""
    import ctypes

    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (OSError, TypeError, AttributeError):
        return None
    size = ctypes.c_size_t(256)  # the longest asked for is the name of a processor
    value = ctypes.create_string_buffer(size.value)
    failed = call(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.raw[: size.value]


def _page_file() -> tuple[int, int] | None:
    """Windows' ullTotalPageFile and ullAvailPageFile: what it promises in all, and still; None elsewhere."""
    import ctypes

    windll = getattr(ctypes, "windll", None)
    status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its length and the load, then seven sizes
    if windll is None or not windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status[3]), int(status[4])


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    system: System = field(default_factory=lambda: _SYSTEMS.get(sys.platform, System.OTHER))
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    host: HostMemory | None = None  # found first: unified memory is the host's
    psutil: Callable[[], Psutil] = _psutil
    nvml: Callable[[], Nvml] = _nvml
    sysctl: Callable[[str], bytes | None] = _sysctl
    page_file: Callable[[], tuple[int, int] | None] = _page_file
    calibration: Callable[[], Stored] = read_calibration
    deadline_s: float = 3.0  # for a driver to answer; a healthy one needs some 0.1 s


def in_wsl(here: Surroundings) -> bool:
    """Linux inside of Windows, which shows its cards there, whosever they are."""
    return here.system is System.LINUX and (here.root / "dev/dxg").exists()


class Findings(NamedTuple):
    """Nothing of its kind here: both empty. Something that could not be asked: a note."""

    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()


# mountinfo is the longest one read: 100,000 mounts of a crowded node would be cut, 5,000 are not.
_TEXT_BYTES = 1024**2
_PIECE_BYTES = 4 * 1024  # asked for at once: a read of a megabyte takes that megabyte first


def text_of(path: Path) -> str | None:
    """None where it is absent, unreadable or no file."""
    data = bytes_of(path, _TEXT_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def bytes_of(path: Path, length: int) -> bytes | None:
    pieces = []
    try:
        with path.open("rb", buffering=0) as file:
            while length > 0 and (piece := file.read(min(length, _PIECE_BYTES))):
                pieces.append(piece)
                length -= len(piece)
            return b"".join(pieces)
    except (OSError, ValueError):  # ValueError: a NUL in a name
        return None


def number_of(path: Path) -> int | None:
    """A count of bytes; None where there is none, or none that can be meant."""
    return number_in(text_of(path) or "")


def number_in(text: str) -> int | None:
    """'25753026560' and '0x744c' -> int; anything else, and what no machine has, -> None."""
    found = re.fullmatch(r"\s*(?:(\d{1,20})|0[xX]([0-9a-fA-F]{1,16}))\s*", text, re.ASCII)
    if found is None:
        return None
    number = int(found[1]) if found[1] else int(found[2], 16)
    return number if number < LARGEST else None


def pairs_of(path: Path, between: str = "=") -> dict[str, str]:
    """Lines of 'key=value', as uevent has them, or with another sign between."""
    lines = (text_of(path) or "").splitlines()
    parts = (line.partition(between) for line in lines)
    return {key.strip(): value.strip() for key, sign, value in parts if sign}
