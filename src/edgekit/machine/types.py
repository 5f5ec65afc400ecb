"""Nouns of the sixth room: what a machine has."""

from __future__ import annotations

import enum
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgekit.basis import Basis


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
class Device:
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
    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = field(default=())  # what could not be asked, and why
    what_if: bool = False
    measured: Measured | None = None  # by `edgekit calibrate`, on this machine; None: nothing was

    @property
    def is_phone(self) -> bool:
        """Or a tablet: known by name only."""
        return self.system is System.OTHER and self.what_if


class PoolKind(enum.Enum):
    DEVICE = "device"
    HOST = "host"

    __hash__ = (
        object.__hash__
    )  # there is one of each, and Enum's own is slow: every placement is made of them


@dataclass(frozen=True, slots=True, order=False)
class Pool:
    """Where memory is taken from. Unified memory is a matter of the hardware, not of the bill."""

    kind: PoolKind
    index: int = 0

    @property
    def label(self) -> str:
        return f"{self.kind.value} {self.index}" if self.index else self.kind.value


DEVICE = Pool(PoolKind.DEVICE)
HOST = Pool(PoolKind.HOST)


def pool_of(place: int) -> Pool:
    return Pool(PoolKind.DEVICE, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One physical memory that a bill is compared with. Unified memory is one budget for two pools.

    There the system limits what the GPU may take (macOS' wired limit, amdgpu's GTT). Weights and caches that stay with
    the CPU do not count against that limit: `for_bill` knows how much of a bill they are.
    """

    name: str
    pools: frozenset[Pool]
    total_bytes: int
    free_bytes: int
    reserve_bytes: int
    because: str  # of the reserve
    limit_bytes: int | None = None  # the most that the GPU may take of a unified memory
    limit_because: str = ""
    cpu_bytes: int = 0  # of the bill, held by the CPU: the limit does not apply to it
    gpu_only_bytes: int = 0  # of the free memory, out of the CPU's reach: an APU's carve-out
    blocked: str = ""  # why the engine would not start, however small the model
    has_default_reserve: bool = True  # False: the user set it, or the engine takes a fixed share
    is_share: bool = False  # the engine takes all of it when it starts (vLLM): nothing is tight

    @property
    def unreserved_bytes(self) -> int:
        """What is free, less the reserve: for CPU and GPU together."""
        return max(0, self.free_bytes - self.reserve_bytes)

    @property
    def available_bytes(self) -> int:
        left = self.unreserved_bytes
        return left if self.limit_bytes is None else min(left, self.limit_bytes + self.cpu_bytes)

    @property
    def is_limited(self) -> bool:
        """Whether the system's limit on the GPU decides, rather than what is free."""
        return self.available_bytes < self.unreserved_bytes


def gpu_budgets(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    """What the GPUs alone may hold: their own memories, and their share of a unified one where the system limits it."""
    every = tuple(budgets)
    cards = (one for one in every if HOST not in one.pools)
    return (*cards, *(_gpu_share(one) for one in every if one.limit_bytes is not None))


def together_bytes(budgets: Iterable[Budget]) -> int:
    """What all of them together offer; layers left to the CPU make use of what a limit on the GPU leaves."""
    return sum(one.unreserved_bytes for one in budgets)


def _gpu_share(budget: Budget) -> Budget:
    size = min(budget.limit_bytes or 0, budget.unreserved_bytes)
    return Budget(
        name=budget.name,
        pools=budget.pools - {HOST},
        total_bytes=size,
        free_bytes=size,
        reserve_bytes=0,
        has_default_reserve=False,
        because=budget.limit_because,
    )


def is_arm() -> bool:
    """Whether this program runs as one for ARM."""
    return platform.machine().lower() in {"arm64", "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """How fast the folder for temporary files is, past the system's own memory."""

    folder: str
    read_bytes_per_s: int
    write_bytes_per_s: int
    date: str  # "2026-11-16"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMeasured:
    """The memory of a processor, read by all of its cores at once."""

    host: str  # which machine: see `host_key`
    date: str  # of the bandwidth
    bandwidth_bytes_per_s: int | None = None  # None: it could not be measured
    disk: Disk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What an engine did with one model, beside what was expected of it.

    The expectation is that of one version of EdgeKit, from one bandwidth: with others it says nothing.
    """

    label: str
    bytes_per_token: int  # weights and states that one token reads
    prompt_tokens: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    expected_decode: (
        float | None
    )  # the middle of the modelled range; None: nothing was expected of such a device
    expected_prefill: float | None
    bandwidth_bytes_per_s: int | None  # of the host's memory, as it was modelled with
    edgekit: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMeasured:
    """One version of an engine on one device."""

    engine: str  # "llama.cpp"
    through: str  # "xllamacpp"
    version: str
    host: str
    device: str  # the processor, or the cards it computed on
    date: str
    overhead_bytes: int | None = None  # the most that its process held on the host beside the bill
    overhead_label: str = ""  # with which model that was
    samples: int = 0
    pace: Pace | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.engine, self.through, self.version, self.host, self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of a bill that an engine did not keep to."""

    label: str
    part: str
    predicted_bytes: int
    measured_bytes: int
    engine: str
    version: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that is remembered, of every machine that shares the folder."""

    hosts: tuple[HostMeasured, ...] = ()
    engines: tuple[EngineMeasured, ...] = ()
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one machine, with the engines that are installed on it now."""

    host: HostMeasured | None = None
    engines: tuple[EngineMeasured, ...] = ()
    differences: tuple[Difference, ...] = ()  # of any model: rules that an engine does not keep to

    def engine(self, name: str, device: str) -> EngineMeasured | None:
        return next(
            (one for one in self.engines if (one.engine, one.device) == (name, device)), None
        )
