"""The value types of a machine: memory, devices, limits, budgets and measurements."""

from __future__ import annotations

import enum
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgekit.units import Basis


class System(enum.Enum):
    LINUX = "linux"
    MACOS = "macos"
    WINDOWS = "windows"
    OTHER = "other"


_PLATFORMS = {"linux": System.LINUX, "darwin": System.MACOS, "win32": System.WINDOWS}


def this_system() -> System:
    """The system this program runs on."""
    return _PLATFORMS.get(sys.platform, System.OTHER)


class Vendor(enum.Enum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """A limit below the machine's memory, such as that of a container or a resource limit."""

    name: str  # "cgroup v2 /sys/fs/cgroup/user.slice/memory.max"
    limit_bytes: int
    used_bytes: int  # without file pages that the kernel can drop

    @property
    def left_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The RAM. Swap is displayed, never counted."""

    total_bytes: int
    free_bytes: int  # available without swapping: MemAvailable, not MemFree
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    limits: tuple[MemoryLimit, ...] = ()
    bandwidth_bytes_per_s: int | None = None
    bandwidth_because: str = ""  # "measured here on 2026-11-16"; empty: the maker's figure
    # EXACT: measured. MODELLED: the theoretical peak of known memory. ASSUMED: speed or channels are a guess.
    bandwidth_basis: Basis = Basis.MODELLED

    @property
    def usable_bytes(self) -> int:
        """Free memory within every limit."""
        return min((self.free_bytes, *(limit.left_bytes for limit in self.limits)))

    @property
    def tightest(self) -> MemoryLimit | None:
        """The limit that determines `usable_bytes`; None if free memory does."""
        lowest = min(self.limits, key=lambda limit: limit.left_bytes, default=None)
        return lowest if lowest is not None and lowest.left_bytes < self.free_bytes else None

    @property
    def limited_total_bytes(self) -> int:
        """Total memory for a process inside the limits."""
        return min((self.total_bytes, *(limit.limit_bytes for limit in self.limits)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that uses memory of a device."""

    pid: int
    name: str = ""
    used_bytes: int | None = None  # None: the driver does not report it


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU: a card, a slice of one, or one that shares the RAM."""

    name: str
    vendor: Vendor
    index: int = 0  # as the driver counts
    # The names that select it in CUDA_VISIBLE_DEVICES: its UUID, and for a MIG slice also its card's.
    uuids: tuple[str, ...] = field(default=(), repr=False, compare=False)
    total_bytes: int
    free_bytes: int
    unified: bool = False  # shares the RAM: one memory for CPU and GPU
    integrated: bool = False  # part of a processor, even if it has its own memory
    limit_bytes: int | None = None  # the most it may use of unified memory (wired limit, GTT)
    limit_because: str = ""
    own_bytes: int = 0  # free memory outside the RAM but within limit_bytes: an APU's carve-out
    bandwidth_bytes_per_s: int | None = None
    capability: tuple[int, int] | None = None  # CUDA compute capability
    architecture: str = ""  # of an AMD or Intel GPU: "rdna3", "cdna3", "battlemage"
    # Operations per second at the boost clock; a multiply-add counts as two. None: unknown.
    fp32_flops: int | None = None  # of the vector units
    fp16_flops: int | None = None  # of the vector units
    matrix_flops: int | None = None  # FP16, dense, summed in FP32; None: no such units, or unknown
    partition: str = ""  # "MIG 1g.10gb"
    backend: str = ""  # that a program uses it through: "vulkan"; "": the engine's usual one
    users: tuple[Process, ...] = ()
    basis: Basis = Basis.EXACT  # how its memory is known
    because: str = ""  # source: "NVML", "sysfs mem_info_vram_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as engines see it: this one, or one that was described."""

    name: str  # "this machine", "2x RTX 3090"
    system: System
    processor: str = ""
    arm: bool = False  # an ARM processor, for which engines are built differently
    cores: int | None = None
    instructions: frozenset[str] = frozenset()  # of the CPU, for quantised weights; empty: unknown
    host: HostMemory | None  # None: unknown, because it was not described
    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be detected and why
    what_if: bool = False
    measured: Measured | None = None  # by `edgekit calibrate`, on this machine

    @property
    def is_phone(self) -> bool:
        """Whether it is a phone or a tablet, which are only known by name."""
        return self.system is System.OTHER and self.what_if


class PoolKind(enum.Enum):
    DEVICE = "device"
    HOST = "host"

    # By identity, because members are singletons and Enum's hash is slow: every placement hashes them.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True, order=False)
class Pool:
    """Where an engine allocates. Unified memory also has both pools, joined by one Budget."""

    kind: PoolKind
    index: int = 0

    @property
    def label(self) -> str:
        return f"{self.kind.value} {self.index}" if self.index else self.kind.value


DEVICE = Pool(PoolKind.DEVICE)
HOST = Pool(PoolKind.HOST)


def pool_of(index: int) -> Pool:
    """The pool of the device with this index."""
    return Pool(PoolKind.DEVICE, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One physical memory that a bill is compared with. Unified memory is one budget for two pools.

    The system may limit the GPU's use of unified memory (macOS' wired limit, amdgpu's GTT). Weights and caches on the
    CPU do not count against that limit; `for_bill` sets how much of a bill that is.
    """

    name: str
    pools: frozenset[Pool]
    total_bytes: int
    free_bytes: int
    reserve_bytes: int
    because: str  # the reason for the reserve
    limit_bytes: int | None = None  # the GPU's limit on unified memory
    limit_because: str = ""
    cpu_bytes: int = 0  # part of the bill on the CPU, to which the limit does not apply
    gpu_only_bytes: int = 0  # free memory that the CPU cannot use: an APU's carve-out
    blocked: str = ""  # why the engine would not start even with a tiny model
    has_default_reserve: bool = True  # False: the user set it, or the engine takes a fixed share
    is_share: bool = False  # the engine takes all of it at start (vLLM), so no bill is a tight fit

    @property
    def unreserved_bytes(self) -> int:
        """Free memory minus the reserve, for CPU and GPU together."""
        return max(0, self.free_bytes - self.reserve_bytes)

    @property
    def available_bytes(self) -> int:
        """Free memory minus the reserve, within the system's limit on the GPU."""
        left = self.unreserved_bytes
        return left if self.limit_bytes is None else min(left, self.limit_bytes + self.cpu_bytes)

    @property
    def is_limited(self) -> bool:
        """Whether the system's limit on the GPU decides, not free memory."""
        return self.available_bytes < self.unreserved_bytes


def gpu_budgets(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    """Budgets of the GPUs alone: their own memory, and their share of unified memory if the system limits it."""
    budgets = tuple(budgets)
    shares = []
    for budget in budgets:
        if budget.limit_bytes is not None:
            size = min(budget.limit_bytes, budget.unreserved_bytes)
            share = Budget(
                name=budget.name,
                pools=budget.pools - {HOST},
                total_bytes=size,
                free_bytes=size,
                reserve_bytes=0,
                has_default_reserve=False,
                because=budget.limit_because,
            )
            shares.append(share)
    return (*(budget for budget in budgets if HOST not in budget.pools), *shares)


def together_bytes(budgets: Iterable[Budget]) -> int:
    """Available memory of all budgets, including what only layers on the CPU can use."""
    return sum(budget.unreserved_bytes for budget in budgets)


def is_arm() -> bool:
    """Whether this program was built for ARM."""
    return platform.machine().lower() in {"arm64", "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The speed of the folder for temporary files, bypassing the page cache."""

    folder: str
    read_bytes_per_s: int
    write_bytes_per_s: int
    date: str  # "2026-11-16"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMeasured:
    """RAM bandwidth, read by all cores at once, and disk speed."""

    host: str  # identifies the machine, see `host_key`
    date: str  # when the bandwidth was measured
    bandwidth_bytes_per_s: int | None = None  # None: could not be measured
    disk: Disk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """The measured speed of an engine with one model, and the speed that was expected.

    The expectation holds for one set of constants and one bandwidth only.
    """

    label: str
    bytes_per_token: int  # weights and states that one token reads
    prompt_tokens: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    expected_decode: float | None  # the typical speed then; None: the device is not modelled
    expected_prefill: float | None
    bandwidth_bytes_per_s: int | None  # of the RAM, as used by the speed model
    edgekit: str  # the version that measured it
    date: str
    # What earlier versions of EdgeKit did not store; empty: unknown.
    constants: str = ""  # of the speed model: see engines/speed_formula.py
    new_tokens: int = 0
    backend: str = ""  # "cuda"
    model: str = ""  # its name in EdgeKit's index, or the shape of a generated model
    quant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMeasured:
    """One version of an engine on one device."""

    engine: str  # "llama.cpp"
    through: str  # the package that ran it: "xllamacpp"
    version: str
    host: str
    device: str  # the processor, or the GPUs
    date: str
    overhead_bytes: int | None = None  # the maximum RAM that its process used beyond the bill
    overhead_label: str = ""  # the model with which that was measured
    samples: int = 0
    pace: EngineSpeed | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.engine, self.through, self.version, self.host, self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A line of a bill that differed from an engine's actual allocation."""

    label: str
    part: str
    predicted_bytes: int
    measured_bytes: int
    engine: str
    version: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All measurements, of every machine that shares the folder."""

    hosts: tuple[HostMeasured, ...] = ()
    engines: tuple[EngineMeasured, ...] = ()
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of one machine with the engines that are installed now."""

    host: HostMeasured | None = None
    engines: tuple[EngineMeasured, ...] = ()
    differences: tuple[Difference, ...] = ()  # of all models, on any machine

    def engine(self, name: str, device: str) -> EngineMeasured | None:
        return next(
            (row for row in self.engines if (row.engine, row.device) == (name, device)), None
        )
