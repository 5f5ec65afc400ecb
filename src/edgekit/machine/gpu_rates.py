"""The arithmetic speed of GPUs by generation: operations per shader core and clock.

tools/device_table.py derives the table's speeds with it, and probes those of GPUs that are not in the table.
"""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """The arithmetic speed of a generation of GPUs."""

    fp32: int  # operations per core and clock; a multiply-add counts as two
    fp16: float  # times FP32, in the vector units
    matrix: int = (
        0  # times FP32, in FP16 with FP32 accumulation, without sparsity; 0: no matrix units
    )


# From the makers' architecture white papers. GeForce cards accumulate in FP32 at half of the professional rate.
NVIDIA_RATES = {
    "maxwell": Rate(2, 1),
    "gp100": Rate(2, 2),
    "pascal": Rate(2, 1 / 64),
    "volta": Rate(2, 2, 8),
    "turing": Rate(2, 2, 8),
    "turing-geforce": Rate(2, 2, 4),
    "turing-no-tensor": Rate(2, 2),  # GTX 16, T-series
    "ga100": Rate(2, 4, 16),
    "ampere": Rate(2, 1, 4),
    "ampere-geforce": Rate(2, 1, 2),
    "orin": Rate(2, 2, 8),
    "ada": Rate(2, 1, 4),
    "ada-geforce": Rate(2, 1, 2),
    "hopper": Rate(2, 2, 16),
    "gb100": Rate(2, 2, 32),  # also Thor
    "blackwell": Rate(2, 1, 4),
    "blackwell-geforce": Rate(2, 1, 2),
}
# These names are also a device's `architecture`.
OTHER_RATES = {
    "gcn": Rate(2, 1),
    "vega": Rate(2, 2),
    "rdna1": Rate(2, 2),
    "rdna2": Rate(2, 2),
    "rdna3": Rate(4, 2, 2),  # dual issue
    "rdna3.5": Rate(4, 2, 2),
    "rdna4": Rate(4, 2, 4),
    "cdna1": Rate(2, 2, 8),
    "cdna2": Rate(2, 2, 8),
    "cdna3": Rate(4, 1, 8),  # packed FP32
    "cdna4": Rate(4, 1, 16),
    "xe-lp": Rate(2, 2),
    "xe-hpc": Rate(2, 2, 16),
    "alchemist": Rate(2, 2, 8),
    "battlemage": Rate(2, 2, 8),
}
RATES = NVIDIA_RATES | OTHER_RATES

# The first that is not above the compute capability.
_NVIDIA_GENERATIONS = (
    ((12, 0), "blackwell"),
    ((10, 0), "gb100"),
    ((9, 0), "hopper"),
    ((8, 9), "ada"),
    ((8, 7), "orin"),
    ((8, 6), "ampere"),
    ((8, 0), "ga100"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 1), "pascal"),
    ((6, 0), "gp100"),
    ((5, 0), "maxwell"),
)
# The first that is not above gfx_target_version (llvm.org/docs/AMDGPUUsage.html: gfx1151 is 11.5.1, here 110501).
_AMD_ARCHITECTURES = (
    (120000, "rdna4"),
    (110500, "rdna3.5"),
    (110000, "rdna3"),
    (100300, "rdna2"),
    (100100, "rdna1"),
    (90500, "cdna4"),
    (90400, "cdna3"),
    (90012, "vega"),  # gfx90c: Renoir
    (90010, "cdna2"),
    (90009, "vega"),
    (90008, "cdna1"),
    (90000, "vega"),
    (80000, "gcn"),
)
_KNOWN_GFX_BELOW = 130000  # later architectures are unknown
_KNOWN_CAPABILITY_BELOW = (13, 0)
_MAX_CORES = 10**6  # 30 times the largest GPU: rejects nonsense from a driver
_MAX_MHZ = 10**4


class Speed(NamedTuple):
    """Operations per second."""

    fp32_flops: int
    fp16_flops: int
    matrix_flops: int | None


def speed_of(generation: str, cores: int, mhz: int) -> Speed | None:
    """10,496 cores of ampere-geforce at 1,695 MHz are an RTX 3090's 35.6, 35.6 and 71 TFLOPS; None if implausible."""
    rate = RATES.get(generation)
    if rate is None or not (0 < cores < _MAX_CORES and 0 < mhz < _MAX_MHZ):
        return None
    fp32_flops = cores * mhz * 10**6 * rate.fp32
    matrix_flops = round(fp32_flops * rate.matrix) if rate.matrix else None
    return Speed(round(fp32_flops), round(fp32_flops * rate.fp16), matrix_flops)


def nvidia_generation(capability: tuple[int, int], name: str) -> str:
    """The generation of a GPU by its compute capability and its driver's name; empty if unknown."""
    if capability >= _KNOWN_CAPABILITY_BELOW:
        return ""
    generation = next((known for least, known in _NVIDIA_GENERATIONS if capability >= least), "")
    if generation == "turing" and "RTX" not in name and "Tesla" not in name:
        return "turing-no-tensor"
    if "GeForce" in name and f"{generation}-geforce" in RATES:
        return f"{generation}-geforce"
    return generation


def amd_architecture(gfx_target_version: int) -> str:
    """The architecture of a GPU by the kernel's gfx_target_version; empty if unknown."""
    if gfx_target_version >= _KNOWN_GFX_BELOW:
        return ""
    return next((name for least, name in _AMD_ARCHITECTURES if gfx_target_version >= least), "")
