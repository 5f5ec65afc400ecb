"""Where a token is read: the processor and the cards of a machine, as the speed's formula takes them.

Bandwidths and peaks come from the tables of devices and processors; missing figures are assumed here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.bill.types import weakest
from edgekit.engines.token_reads import PoolReads, TokenReads
from edgekit.machine.types import Device, Machine, PoolKind, Vendor
from edgekit.model.types import Model
from edgekit.units import Basis

GB = 10**9

# -- processors and cards --------------------------------------------------------------------

# Assumed if a system does not tell how fast its RAM is: by its size in GiB. Small boards have one channel of LPDDR4,
# desktops two of DDR4 or DDR5, servers eight and more.
_ASSUMED_BYTES_PER_S = ((8, 30 * GB), (16, 45 * GB), (192, 70 * GB), (math.inf, 250 * GB))
CORE_BYTES_PER_S = 26 * GB  # that one core can read
_FEW_CORES = 24  # with more, it is the memory of a server
ASSUMED_CORES = 8


class HostSpeed(NamedTuple):
    """The CPU and its memory."""

    bandwidth: float  # bytes per second
    cores: int
    text: str
    basis: Basis
    guessed: bool = False  # only the amount of RAM is known


def host_speed(machine: Machine) -> HostSpeed:
    """The machine's CPU and RAM. An unknown bandwidth is assumed from the amount of RAM and the number of cores."""
    host = machine.host
    most = float(machine.cores * CORE_BYTES_PER_S) if machine.cores else math.inf
    if host is not None and host.bandwidth_bytes_per_s is not None:
        because = f" ({host.bandwidth_because})" if host.bandwidth_because else ""
        bandwidth = float(host.bandwidth_bytes_per_s)
        cores = machine.cores or _cores_for(bandwidth)
        text = f"{bandwidth / GB:,.0f} GB/s{because}"
        if most < bandwidth:
            noun = "core" if cores == 1 else "cores"
            bandwidth, text = most, f"{most / GB:,.0f} GB/s (what {cores} {noun} can read)"
        basis = weakest((host.bandwidth_basis, Basis.MODELLED))
        return HostSpeed(bandwidth, cores, text, basis)
    total_gib = 64.0 if host is None else host.total_bytes / 2**30
    size_gib = math.inf if (machine.cores or 0) > _FEW_CORES else total_gib
    usual = next(rate for limit, rate in _ASSUMED_BYTES_PER_S if size_gib <= limit)
    bandwidth = min(usual, most)
    cores = machine.cores or _cores_for(bandwidth)
    example = f"{total_gib:.0f}G DDR5-6000"
    text = f'{bandwidth / GB:,.0f} GB/s (assumed; give the RAM\'s speed with --ram "{example}")'
    return HostSpeed(bandwidth, cores, text, Basis.ASSUMED, guessed=True)


def _cores_for(bandwidth: float) -> int:
    """Unknown cores: a usual number, or as many as it takes to read the RAM."""
    return max(ASSUMED_CORES, math.ceil(bandwidth / CORE_BYTES_PER_S))


def architecture_of(card: Device) -> str:
    """The generation of a card, as in the names of constants: "sm_89", "pascal", "rdna3", "m2"."""
    if card.capability is not None:
        if card.capability < (7, 0):  # without matrix units: 6.0 and 6.1 are much alike
            return "pascal"
        return f"sm_{card.capability[0]}{card.capability[1]}"
    if card.vendor is Vendor.APPLE:
        chip = re.search(r"\bM(\d{1,2})\b", card.name)
        return f"m{chip[1]}" if chip else ""
    return card.architecture


_WORKSTATION = {
    Vendor.NVIDIA: re.compile(
        r"\b(?:A\d{1,4}0|L\d{1,2}S?|RTX (?:A\d{4}|\d000 Ada|PRO \d)|Quadro)\b"
    ),
    Vendor.AMD: re.compile(r"\b(?:PRO [WV]\d|W[5-7]\d00)"),
}


def _market(card: Device) -> str:
    """What a card is made for, where it is slower than others of its generation: see `Place`."""
    if card.vendor is Vendor.APPLE:
        return "ultra" if "Ultra" in card.name else ""
    names = _WORKSTATION.get(card.vendor)
    return "workstation" if names is not None and names.search(card.name) else ""


# Matrix units of one multiprocessor / its FP32 units. With FP32 sums, GeForce cards have half of it, but llama.cpp sums
# in FP16 or multiplies integers.
_MATRIX_SHARES = ((12, 0, 4), (10, 0, None), (9, 0, None), (8, 6, 4), (8, 0, None), (7, 0, 8))


def _matrix_flops(card: Device) -> float | None:
    """Operations per second of the units that multiply matrices, or else of FP16."""
    known = card.matrix_flops or max(card.fp16_flops or 0.0, card.fp32_flops or 0.0) or None
    if card.capability is None or card.fp32_flops is None or card.matrix_flops is None:
        return known  # a GTX 1660 has no matrix units, though others of its generation do
    share = next((row[2] for row in _MATRIX_SHARES if card.capability >= row[:2]), None)
    return known if share is None else max(known or 0.0, share * card.fp32_flops)


def instructions_of(machine: Machine) -> str:
    """The widest instructions that the CPU has for quantised weights, as in the names of constants."""
    known = machine.instructions
    for name in ("amx", "avx512_vnni", "avx512", "avx_vnni", "avx2", "sve", "i8mm", "dotprod"):
        if name in known:
            return name
    if machine.arm:
        return "neon" if known else "dotprod"
    return "avx" if known else "avx2"


_FORMATS = (  # of GGUF's types, by how their names begin
    ("Q8", "q8"), ("MXFP", "fp4"), ("NVFP", "fp4"), ("IQ", "iq"), ("TQ", "iq"),
    ("F32", "f16"), ("F16", "f16"), ("BF16", "bf16"),
)  # fmt: skip


def weights_format(model: Model) -> str:
    """How most weights of a GGUF are packed, as in the names of constants: "k" is Q2_K to Q6_K, "q4" Q4_0 to Q5_1."""
    sizes: Counter[str] = Counter()
    for tensor in model.header.tensors or ():
        sizes[tensor.type.name] += tensor.size_bytes
    name = max(sizes, key=sizes.__getitem__, default="F16").upper()
    if name.endswith("_K"):
        return "k"
    return next((kind for start, kind in _FORMATS if name.startswith(start)), "q4")


# -- places ----------------------------------------------------------------------------------


def largest_cards(cards: tuple[Device, ...], count: int) -> tuple[Device, ...]:
    """The `count` cards with the most free memory, in their original order."""
    if count >= len(cards):
        return cards
    largest = sorted(range(len(cards)), key=lambda index: -cards[index].free_bytes)[:count]
    return tuple(cards[index] for index in sorted(largest))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRun:
    """One sequence as an engine runs it on a machine: everything that the speed depends on."""

    model: Model
    reads: TokenReads
    machine: Machine
    cards: tuple[Device, ...]  # in the order of the bill's pools
    backend: str  # of the cards, as in the names of constants: "cuda", "mlx", "vllm"
    weights: str  # how they are packed: "k", "q8", "f16"
    batch_tokens: int  # of a prompt, computed together
    logical_tokens: int = 0  # of a prompt, given to several cards at once
    tensor_ranks: int = 1
    pipeline_stages: int = 1  # run one after another; the bill is for the fullest, the slowest one
    is_launched_one_by_one: bool = False  # kernels, by Python: without CUDA graphs
    is_divided: bool = False  # every layer is on all cards, which work at the same time
    is_pipelined: bool = False  # cards work on the micro-batches of a prompt in turn
    notes_single_request: bool = (
        False  # several may run: the explanation says that the speed is of one
    )

    @property
    def work_share(self) -> float:
        """The share of the model's operations that the cards of the bill compute: those of one rank of one stage."""
        return 1 / (self.tensor_ranks * self.pipeline_stages)


class Place(NamedTuple):
    """A pool, and the device that reads and computes there."""

    reads: PoolReads
    backend: str
    architecture: str
    bandwidth: float  # bytes per second
    text: str
    market: str = ""  # "workstation": clocks and power below a gaming card's; "ultra": two dies
    vector_flops: float | None = None
    matrix_flops: float | None = None
    assumed: bool = False  # its bandwidth
    guessed: bool = False
    unified: bool = False

    @property
    def is_host(self) -> bool:
        return self.reads.pool.kind is PoolKind.HOST

    @property
    def prompt_peak(self) -> float:
        """Operations per second on a prompt, where a CPU has no matrix units; 0 if unknown."""
        return (self.vector_flops if self.is_host else self.matrix_flops) or 0.0

    @property
    def generation(self) -> str:
        return f"{self.backend}.{self.architecture}"


def card_bandwidth(card: Device, host: HostSpeed) -> int | None:
    """Bytes per second that a card reads: the RAM's, if it has no memory of its own. None if unknown."""
    if _reads_ram(card) and not host.guessed:
        return int(host.bandwidth)
    return card.bandwidth_bytes_per_s


def _reads_ram(card: Device) -> bool:
    return card.unified and card.bandwidth_bytes_per_s is None


def places_of(run: SequenceRun) -> tuple[Place, ...] | None:
    """The pools that a token reads, with their devices; None if the bandwidth of one of them is unknown."""
    host = host_speed(run.machine)
    instructions = instructions_of(run.machine)
    places = []
    for reads in run.reads.pools:
        if reads.pool.kind is PoolKind.HOST:
            place = Place(
                reads=reads,
                backend="cpu",
                architecture=instructions,
                bandwidth=host.bandwidth,
                text=f"RAM at {host.text}",
                vector_flops=host.cores * GB,
                assumed=host.basis is Basis.ASSUMED,
                guessed=host.guessed,
            )
            places.append(place)
            continue
        card = run.cards[reads.pool.index] if reads.pool.index < len(run.cards) else None
        bandwidth = None if card is None else card_bandwidth(card, host)
        if card is None or not bandwidth:
            if reads.is_read:
                return None
            continue
        place = Place(
            reads=reads,
            backend=run.backend,
            architecture=architecture_of(card),
            bandwidth=bandwidth,
            text=f"{card.name} at {host.text if _reads_ram(card) else f'{bandwidth / GB:,.0f} GB/s'}",
            market=_market(card),
            vector_flops=card.fp32_flops,
            matrix_flops=_matrix_flops(card),
            assumed=_reads_ram(card) and host.basis is Basis.ASSUMED,
            unified=card.unified,
        )
        places.append(place)
    return tuple(places)
