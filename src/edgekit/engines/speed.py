"""A memory or a processor -> how fast engines are known to use it, as a range. TABLES of shares and rates.

Nobody publishes these: they are drawn around what was measured (docs/speed.md has the points and their sources), so
that the slow end is below and the fast end above nearly all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgekit.machine.types import Device, Machine, Vendor

Range = tuple[float, float]  # from slow to fast

GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How an engine reads weights for one token.

    Both ends follow a bent line: up to `knee_bytes_per_s` kernels keep up with the memory, beyond it less and less.
    """

    near_share: Range
    far_share: Range  # of what lies beyond the knee
    knee_bytes_per_s: float
    cache_share: float  # of the slow rate: attention reads a cache worse than weights are read
    layer_s: Range  # of every layer besides: launches, norms, small kernels
    token_s: Range  # of every token besides: sampling, the loop around

    def rates(self, bandwidth_bytes_per_s: float) -> Range:
        """Bytes a second that are reached. Never less from more."""
        near = min(bandwidth_bytes_per_s, self.knee_bytes_per_s)
        beyond = bandwidth_bytes_per_s - near
        slow, fast = (near * self.near_share[end] + beyond * self.far_share[end] for end in (0, 1))
        return slow, fast


_MICRO = 1e-6
# Measured: llama.cpp on an H200 and on sixteen cores beside it, on two cores; else see docs/speed.md.
READING: dict[str, Reading] = {
    "cuda": Reading(
        near_share=(0.55, 0.92),
        far_share=(0.3, 0.78),
        knee_bytes_per_s=1000 * GB,
        cache_share=0.35,
        layer_s=(60 * _MICRO, 15 * _MICRO),
        token_s=(500 * _MICRO, 50 * _MICRO),
    ),
    "metal": Reading(
        near_share=(0.5, 0.95),
        far_share=(0.3, 0.88),
        knee_bytes_per_s=200 * GB,
        cache_share=0.35,
        layer_s=(80 * _MICRO, 10 * _MICRO),
        token_s=(1000 * _MICRO, 50 * _MICRO),
    ),
    "vulkan": Reading(
        near_share=(0.35, 0.92),
        far_share=(0.2, 0.85),
        knee_bytes_per_s=500 * GB,
        cache_share=0.25,
        layer_s=(120 * _MICRO, 15 * _MICRO),
        token_s=(1500 * _MICRO, 50 * _MICRO),
    ),
    "cpu": Reading(
        near_share=(0.35, 0.9),
        far_share=(0.2, 0.8),
        knee_bytes_per_s=100 * GB,
        cache_share=0.15,
        layer_s=(100 * _MICRO, 5 * _MICRO),
        token_s=(500 * _MICRO, 20 * _MICRO),
    ),
}
READING["mlx"] = READING["metal"]
READING["vllm"] = Reading(
    near_share=(0.5, 0.92),
    far_share=(0.3, 0.85),
    knee_bytes_per_s=1000 * GB,
    cache_share=0.4,
    layer_s=(60 * _MICRO, 15 * _MICRO),
    token_s=(4000 * _MICRO, 300 * _MICRO),  # a scheduler in Python stands around every step
)
# vLLM without CUDA graphs starts every kernel from Python.
EAGER_LAYER_S: Range = (400 * _MICRO, 60 * _MICRO)
CROSSING_S: Range = (250 * _MICRO, 15 * _MICRO)  # from one device to another and on
REDUCING_S: Range = (60 * _MICRO, 8 * _MICRO)  # ranks add up what they have, twice in a layer

# What one core multiplies of quantised weights: two of a Xeon 4.8 to 6.4 GB/s each, four of a 13900K 12.
CORE_BYTES_PER_S: Range = (2.2 * GB, 16 * GB)
# ... and in a prompt: 39 to 123 GFLOP/s of such cores.
CORE_FLOPS: Range = (20 * GB, 250 * GB)
UNKNOWN_CORES: Range = (4, 32)
# Weights on the host are sent to the device for every micro-batch of a prompt: PCIe 3 with 4 lanes to PCIe 5 with 16.
LINK_BYTES_PER_S: Range = (3 * GB, 50 * GB)
# What a layer costs a whole micro-batch besides, in that of one token.
PROMPT_KERNELS: Range = (10.0, 2.0)
# Of the usual pace, where few tokens of a micro-batch meet in one expert.
EXPERTS_PACE: Range = (0.25, 1.0)

# Operations for every byte of bandwidth that engines reach with a prompt: llama.cpp, and vLLM (16 bits, tensor cores).
_Work = tuple[Range, Range]
_NVIDIA: tuple[tuple[tuple[int, int], _Work], ...] = (  # from this capability on
    ((0, 0), ((3, 60), (3, 60))),  # P40: 35
    ((7, 0), ((10, 80), (20, 130))),
    ((7, 5), ((20, 110), (20, 160))),
    ((8, 0), ((14, 55), (25, 160))),  # A100: 22 to 33
    ((8, 6), ((35, 110), (35, 160))),  # RTX 3090: 65 to 71; RTX A6000: 51
    ((8, 7), ((20, 150), (20, 200))),
    ((8, 9), ((50, 190), (50, 300))),  # RTX 4090: 106 to 154; RTX 4000 Ada: 67
    ((9, 0), ((15, 85), (30, 250))),  # H200: 27 to 54; H100 PCIe: 32 to 48
    ((10, 0), ((12, 120), (30, 300))),
    ((12, 0), ((45, 230), (50, 350))),
    ((12, 1), ((60, 350), (60, 600))),  # DGX Spark: little bandwidth for what it computes
)
_APPLE: tuple[tuple[int, Range], ...] = (  # from this M on: the fifth has matrix units in its GPU
    (0, (10, 45)),  # M1 Max: 15 to 19; M2 Ultra: 19 to 22; M3 Pro: 30
    (5, (25, 130)),  # M5 Max: 53 to 71
)
_OTHERS: dict[Vendor, Range] = {
    Vendor.AMD: (6, 100),  # RX 5700 XT 10, RX 7900 XTX 50, Radeon 8060S 49 to 70
    Vendor.INTEL: (5, 90),  # Arc B580 58
}


def device_flops(device: Device, bandwidth_bytes_per_s: float, engine: str) -> Range | None:
    """Operations a second with a prompt; None where nothing is known of such devices."""
    work = _work(device, engine)
    if work is None:
        return None
    return work[0] * bandwidth_bytes_per_s, work[1] * bandwidth_bytes_per_s


def _work(device: Device, engine: str) -> Range | None:
    if device.vendor is Vendor.APPLE:
        named = re.search(r"\bM(\d{1,2})\b", device.name)
        number = int(named[1]) if named else 0
        return next(work for first, work in reversed(_APPLE) if first <= number)
    if device.vendor is not Vendor.NVIDIA:
        return _OTHERS.get(device.vendor)
    if device.capability is None:
        return None
    both = next(work for first, work in reversed(_NVIDIA) if first <= device.capability)
    return both[engine == "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPace:
    """The processor and its memory."""

    bandwidth: Range  # bytes a second
    cores: Range
    told: str
    assumed: bool

    def rates(self) -> Range:
        """Bytes of weights a second: as fast as the memory gives them and the cores take them."""
        row = READING["cpu"]
        return (
            min(row.rates(self.bandwidth[0])[0], self.cores[0] * CORE_BYTES_PER_S[0]),
            min(row.rates(self.bandwidth[1])[1], self.cores[1] * CORE_BYTES_PER_S[1]),
        )

    def flops(self) -> Range:
        return self.cores[0] * CORE_FLOPS[0], self.cores[1] * CORE_FLOPS[1]


FEW_CORES = 24  # up to here a desktop's or a laptop's memory is meant
# One channel of DDR4-2400 is 19 GB/s, two of DDR5-6400 are 102; a server has four of DDR4 to twelve of DDR5.
DESKTOP_BYTES_PER_S: Range = (19 * GB, 105 * GB)
SERVER_BYTES_PER_S: Range = (75 * GB, 600 * GB)


def host_pace(machine: Machine) -> HostPace:
    """What is known of the host's memory, else what such a machine may have."""
    known = None if machine.host is None else machine.host.bandwidth_bytes_per_s
    cores: Range = UNKNOWN_CORES if not machine.cores else (machine.cores, machine.cores)
    if machine.host is not None and known is not None:
        because = machine.host.bandwidth_because
        return HostPace(
            bandwidth=(known, known),
            cores=cores,
            told=f"{_told(known)} ({because})" if because else _told(known),
            assumed=False,
        )
    server = cores[0] > FEW_CORES
    slow, fast = SERVER_BYTES_PER_S if server else DESKTOP_BYTES_PER_S
    told = f"{slow / GB:,.0f} to {fast / GB:,.0f} GB/s (assumed, typical of {'servers' if server else 'desktops'})"
    return HostPace(bandwidth=(slow, fast), cores=cores, told=told, assumed=True)


def _told(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GB:,.0f} GB/s"
