"""The interface of probes to the system, and their results. Tests replace the system with a tree of files."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from edgekit.machine.calibration import Stored, read_calibration
from edgekit.machine.pdh import ProcessMemory, gpu_process_memory
from edgekit.machine.types import Device, HostMemory, System, this_system
from edgekit.units import LARGEST

# Calls a function of NVML by name. A refusal is raised as NvmlError.
Nvml = Callable[..., Any]


class NvmlError(Exception):
    """NVML refused a call; `code` is its nvmlReturn_t."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"NVML error {code}")


def _psutil() -> Any:
    import psutil

    return psutil


def _nvml() -> Nvml:
    """pynvml, imported on first use: it costs 15 ms, and most machines have no NVIDIA GPU."""
    import pynvml

    def call(function: str, *arguments: Any) -> Any:
        if function == "nvmlDeviceGetMemoryInfo_v2":  # pynvml has one function for both forms
            function, arguments = "nvmlDeviceGetMemoryInfo", (*arguments, pynvml.nvmlMemory_v2)
        if not hasattr(pynvml, function):
            raise NvmlError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            return getattr(pynvml, function)(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlError(int(error.value)) from error

    return call


def _sysctl(name: str) -> bytes | None:
    """A value of macOS' kernel as bytes; None for an unknown name, or on another system."""
    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (OSError, TypeError, AttributeError):
        return None
    size = ctypes.c_size_t(256)  # the longest value is the name of a processor
    value = ctypes.create_string_buffer(size.value)
    failed = call(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.raw[: size.value]


def _page_file() -> tuple[int, int] | None:
    """Windows' ullTotalPageFile and ullAvailPageFile, the commit limit and what is left; None elsewhere."""
    windll = getattr(ctypes, "windll", None)
    status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its length and the load, then seven sizes
    if windll is None or not windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status[3]), int(status[4])


_RSMB = 0x52534D42  # the signature of the SMBIOS tables
_FIRMWARE_TABLE_BYTES = 1024**2  # the largest real tables have about 64 KiB


def _firmware_table() -> bytes | None:
    """Windows' RawSMBIOSData: a header of 8 bytes and the SMBIOS table; None elsewhere."""
    windll = getattr(ctypes, "windll", None)
    if windll is None:
        return None
    call = windll.kernel32.GetSystemFirmwareTable
    size = call(_RSMB, 0, None, 0)
    if not 0 < size <= _FIRMWARE_TABLE_BYTES:
        return None
    table = ctypes.create_string_buffer(size)
    return table.raw[: min(size, call(_RSMB, 0, table, size))]


def _processor_feature(number: int) -> bool:
    """Windows' IsProcessorFeaturePresent; False elsewhere."""
    windll = getattr(ctypes, "windll", None)
    return windll is not None and bool(windll.kernel32.IsProcessorFeaturePresent(number))


def _processor_brand() -> str:
    """The processor's name in Windows' registry; empty elsewhere."""
    try:
        import winreg
    except ImportError:
        return ""
    registry: Any = winreg  # its functions are typed on Windows only
    key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    try:
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, key) as opened:
            return str(registry.QueryValueEx(opened, "ProcessorNameString")[0])
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The system that the probes read: files below `root`, variables, and functions that tests replace."""

    system: System = field(default_factory=this_system)
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    host: HostMemory | None = None  # probed first, because GPUs may share it
    psutil: Callable[[], Any] = _psutil  # the module
    nvml: Callable[[], Nvml] = _nvml
    sysctl: Callable[[str], bytes | None] = _sysctl
    page_file: Callable[[], tuple[int, int] | None] = _page_file
    firmware_table: Callable[[], bytes | None] = _firmware_table
    processor_feature: Callable[[int], bool] = _processor_feature
    processor_brand: Callable[[], str] = _processor_brand
    gpu_process_memory: Callable[[], Mapping[str, ProcessMemory]] = gpu_process_memory
    calibration: Callable[[], Stored] = read_calibration
    deadline_s: float = 3.0  # for a driver to answer; a healthy one takes about 0.1 s


def family(pid: int, psutil: Any) -> tuple[int, ...]:
    """A process and all that it has started; empty if it is gone."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return ()
    return (pid, *(child.pid for child in children))


def in_wsl(surroundings: Surroundings) -> bool:
    """Whether this is WSL2, Linux inside Windows, where GPUs appear as /dev/dxg."""
    return surroundings.system is System.LINUX and (surroundings.root / "dev/dxg").exists()


class Findings(NamedTuple):
    """The result of a probe: two empty tuples without such hardware, a note if the probe failed."""

    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()


# mountinfo is the longest file: 5,000 mounts fit, the 100,000 of a crowded node would be truncated.
_TEXT_BYTES = 1024**2
_PIECE_BYTES = 4 * 1024  # per read: a read of a megabyte allocates that megabyte first


def text_of(path: Path) -> str | None:
    """The text of a file in /proc or /sys; None if it cannot be read. At most 1 MiB."""
    data = bytes_of(path, _TEXT_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def bytes_of(path: Path, length: int) -> bytes | None:
    """The first `length` bytes of a file; None if it cannot be read."""
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
    """The number in a file; None if there is none or it is implausible."""
    return number_in(text_of(path) or "")


def number_in(text: str) -> int | None:
    """'25753026560' and '0x744c' -> int; None for other text and for implausible numbers."""
    match = re.fullmatch(r"\s*(?:(\d{1,20})|0[xX]([0-9a-fA-F]{1,16}))\s*", text, re.ASCII)
    if match is None:
        return None
    number = int(match[1]) if match[1] else int(match[2], 16)
    return number if number < LARGEST else None


def pairs_of(path: Path, separator: str = "=") -> dict[str, str]:
    """The values by key of a file with lines of 'key=value', as in uevent, or with another separator."""
    lines = (text_of(path) or "").splitlines()
    parts = (line.partition(separator) for line in lines)
    return {key.strip(): value.strip() for key, mark, value in parts if mark}
