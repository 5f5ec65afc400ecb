"""Nouns of the sixth room: what a machine has."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from edgekit.basis import Basis
from edgekit.hardware.measured import Measured


class System(enum.Enum):
    LINUX = "linux"
    MACOS = "macos"
    WINDOWS = "windows"
    OTHER = "other"


class Vendor(enum.Enum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """What holds a process below the machine's memory: a container, a resource limit."""

    name: str  # "cgroup v2 /sys/fs/cgroup/user.slice/memory.max"
    limit_bytes: int
    used_bytes: int  # of it, by what cannot be dropped: file pages that can are not counted

    @property
    def left_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The memory of the processor. Swap is told, never counted."""

    total_bytes: int
    free_bytes: int  # what could be had without swapping: MemAvailable, not MemFree
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    limits: tuple[MemoryLimit, ...] = ()
    bandwidth_bytes_per_s: int | None = None
    bandwidth_because: str = ""  # "measured here on 2026-11-16"; "": as the maker has it

    @property
    def usable_bytes(self) -> int:
        """Free in the machine and within every limit."""
        return min((self.free_bytes, *(limit.left_bytes for limit in self.limits)))

    @property
    def tightest(self) -> MemoryLimit | None:
        """The limit that decides; None where the machine itself does."""
        found = min(self.limits, key=lambda limit: limit.left_bytes, default=None)
        return found if found is not None and found.left_bytes < self.free_bytes else None

    @property
    def whole_bytes(self) -> int:
        """All there is, for a process inside the limits."""
        return min((self.total_bytes, *(limit.limit_bytes for limit in self.limits)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Somebody who holds memory of a device."""

    pid: int
    name: str = ""
    used_bytes: int | None = None  # None: the driver does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A device that computes: a card, a slice of one, or the other half of a unified memory."""

    name: str
    vendor: Vendor
    index: int = 0  # as its driver counts
    total_bytes: int
    free_bytes: int
    unified: bool = False  # shares the RAM: one memory for CPU and GPU
    integrated: bool = False  # part of a processor, even if it has memory of its own
    limit_bytes: int | None = None  # the most it may use of a unified memory (wired limit, GTT)
    limit_because: str = ""
    own_bytes: int = 0  # free, and counted in limit_bytes but not in the RAM: an APU's carve-out
    bandwidth_bytes_per_s: int | None = None
    capability: tuple[int, int] | None = None  # CUDA's
    partition: str = ""  # "MIG 1g.10gb"
    users: tuple[Process, ...] = ()
    basis: Basis = Basis.EXACT  # how its memory is known
    because: str = ""  # where from: "NVML", "sysfs mem_info_vram_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as engines see it: found here, or only wished for."""

    name: str  # "this machine", "2x RTX 3090"
    system: System
    processor: str = ""
    arm: bool = False  # what its processor is: engines are built otherwise for it
    cores: int | None = None
    host: HostMemory | None  # None: of a machine that is only wished for, and was not said
    devices: tuple[Accelerator, ...] = ()
    notes: tuple[str, ...] = field(default=())  # what could not be asked, and why
    what_if: bool = False
    measured: Measured | None = None  # by `edgekit calibrate`, on this machine; None: nothing was

    @property
    def is_phone(self) -> bool:
        """Or a tablet: known by name only."""
        return self.system is System.OTHER and self.what_if
