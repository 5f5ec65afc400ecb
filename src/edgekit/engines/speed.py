"""A bill on a machine -> expected tokens per second, as a range. Always modelled, however exact the bill is.

A decoded token reads every active weight and the cache once, so its time is bytes over bandwidth, plus a fixed time per
layer. A prompt token costs operations instead. Engines differ in a `SequenceRun`: engines/X/speed.py makes it.

The shares and rates in the tables are fitted to measurements, so that nearly all of them lie between the slow and the
fast end: see docs/speed.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from edgekit.bill.types import Component, Load, PricedLoad, Speed, Task
from edgekit.engines import engine_named
from edgekit.engines.token_reads import PoolReads, TokenReads
from edgekit.formats.records import Record, load_records, read_fields
from edgekit.machine.types import Device, Machine, PoolKind, Vendor
from edgekit.model.types import LatentAttention, Model, ModelGeometry, Span, attention_of
from edgekit.units import Basis, format_bytes

Range = tuple[float, float]  # from slow to fast

GB = 10**9
MICRO = 1e-6
USUAL_FILL_TOKENS = 4096  # in the context at the slow end: a long conversation
DEFAULT_BATCH_TOKENS = 512  # of a prompt, computed together


def expected_speed(
    task: Task, priced: PricedLoad, fill_tokens: int = USUAL_FILL_TOKENS
) -> Speed | None:
    """The speed of a priced load: with an empty context at the fast end, with `fill_tokens` at the slow end.

    None if a device's bandwidth is unknown, or if only the model's name is known.
    """
    bill, tokens = priced.estimate, priced.context_tokens
    weights = [line for line in bill.lines if line.component is Component.WEIGHTS]
    is_rough = any(line.basis is Basis.ASSUMED for line in weights)
    if is_rough and task.bill is not None:
        return None
    sized = replace(task, load=replace(task.load, context_tokens=tokens))
    filled = (0, min(tokens, fill_tokens))
    speed = engine_named(task.engine).speed(sized, priced.placement, bill, filled)
    if speed is not None and is_rough:
        speed = replace(speed, basis=Basis.ASSUMED)
    if speed is None or task.nodes == 1:
        return speed
    because = f"{speed.because}; the network between the machines is not included"
    return replace(speed, basis=Basis.ASSUMED, because=because)


def steady_throughput(task: Task, priced: PricedLoad) -> float | None:
    """Expected tokens per second as one number: the geometric mean of the range, with an empty context.

    The context does not count, because more memory means a more accurate cache, which is slower to read.
    """
    speed = expected_speed(task, priced, 0)
    return None if speed is None else speed.typical


# -- how fast memories are read --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How fast kernels read weights for one token.

    Kernels reach `near_share` of a memory's bandwidth up to `knee_gb_per_s`, and `far_share` of the rest.
    """

    near_share: Range
    far_share: Range  # of the bandwidth above the knee
    knee_gb_per_s: float
    cache_share: float  # of the slow rate: attention reads a cache less efficiently than weights
    layer_us: Range  # added per layer: launches, norms, small kernels
    token_us: Range  # added per token: sampling, the loop around it

    def rates(self, bandwidth_bytes_per_s: float) -> Range:
        """Bytes per second from a memory of this bandwidth."""
        near = min(bandwidth_bytes_per_s, self.knee_gb_per_s * GB)
        far = bandwidth_bytes_per_s - near
        slow = near * self.near_share[0] + far * self.far_share[0]
        fast = near * self.near_share[1] + far * self.far_share[1]
        return slow, fast


@cache
def _throughput() -> tuple[Record, ...]:
    return load_records("edgekit.engines", "throughput.json")


@cache
def reading(name: str) -> Reading:
    """The record of that name in throughput.json."""
    records = (record for record in _throughput() if record.get("reading") == name)
    record = next(records, {})
    facts = {key: value for key, value in record.items() if key not in {"reading", "note"}}
    return read_fields(Reading, facts, {}, where=f"throughput.json, {name}")


def flops_per_byte(device: Device, engine: str) -> Range | None:
    """Operations per byte of the device's bandwidth in a prompt; None: unknown. `engine`: a key of throughput.json."""
    generation: tuple[int, ...] = ()
    if device.vendor is Vendor.NVIDIA:
        if device.capability is None:
            return None
        generation = device.capability
    elif device.vendor is Vendor.APPLE:
        chip = re.search(r"\bM(\d{1,2})\b", device.name)
        generation = (int(chip[1]) if chip else 0,)
    rates = [  # from the oldest generation to the device's own
        record[engine]
        for record in _throughput()
        if record.get("vendor") == device.vendor.value
        and engine in record
        and tuple(record["since"]) <= generation
    ]
    return (rates[-1][0], rates[-1][1]) if rates else None


CPU_READING = reading("cpu")
METAL_READING = reading("metal")
CROSSING_S: Range = (250 * MICRO, 15 * MICRO)  # from one device to another
REDUCING_S: Range = (60 * MICRO, 8 * MICRO)  # for ranks to add up their results, twice per layer

# Quantised weights that one core multiplies: 4.8 to 6.4 GB/s on two cores of a Xeon, 12 GB/s on four of a 13900K.
CORE_BYTES_PER_S: Range = (2.2 * GB, 16 * GB)
# Operations of one core in a prompt: 39 to 123 GFLOP/s on the same processors.
CORE_FLOPS: Range = (20 * GB, 250 * GB)
UNKNOWN_CORES: Range = (4, 32)
FEW_CORES = 24  # up to here, assume the memory of a desktop or a laptop
# One channel of DDR4-2400 is 19 GB/s, two of DDR5-6400 are 102; a server has four of DDR4 to twelve of DDR5.
DESKTOP_BYTES_PER_S: Range = (19 * GB, 105 * GB)
SERVER_BYTES_PER_S: Range = (75 * GB, 600 * GB)
# Weights on the host are sent to the device for every micro-batch of a prompt: PCIe 3 with 4 lanes to PCIe 5 with 16.
LINK_BYTES_PER_S: Range = (3 * GB, 50 * GB)
# The fixed time of a layer for a micro-batch, as a multiple of that for one token.
PROMPT_KERNELS: Range = (10.0, 2.0)
# Share of the usual speed with experts: few tokens of a micro-batch use the same expert.
EXPERTS_SHARE: Range = (0.25, 1.0)


class HostSpeed(NamedTuple):
    """The speeds of the CPU and its memory."""

    bandwidth: Range  # bytes per second
    cores: Range
    text: str
    assumed: bool

    def rates(self) -> Range:
        """Bytes of weights per second, limited by the memory and by the cores."""
        return (
            min(CPU_READING.rates(self.bandwidth[0])[0], self.cores[0] * CORE_BYTES_PER_S[0]),
            min(CPU_READING.rates(self.bandwidth[1])[1], self.cores[1] * CORE_BYTES_PER_S[1]),
        )

    def flops(self) -> Range:
        """Operations per second."""
        return self.cores[0] * CORE_FLOPS[0], self.cores[1] * CORE_FLOPS[1]


def host_speed(machine: Machine) -> HostSpeed:
    """The machine's CPU and RAM. If the bandwidth is unknown, it is assumed from the number of cores."""
    bandwidth = None if machine.host is None else machine.host.bandwidth_bytes_per_s
    cores: Range = UNKNOWN_CORES if not machine.cores else (machine.cores, machine.cores)
    if machine.host is not None and bandwidth is not None:
        because = machine.host.bandwidth_because
        text = f"{bandwidth / GB:,.0f} GB/s"
        return HostSpeed(
            bandwidth=(bandwidth, bandwidth),
            cores=cores,
            text=f"{text} ({because})" if because else text,
            assumed=False,
        )
    is_server = cores[0] > FEW_CORES
    slow, fast = SERVER_BYTES_PER_S if is_server else DESKTOP_BYTES_PER_S
    kind = "servers" if is_server else "desktops"
    text = f"{slow / GB:,.0f} to {fast / GB:,.0f} GB/s (assumed, typical of {kind})"
    return HostSpeed(bandwidth=(slow, fast), cores=cores, text=text, assumed=True)


# -- measurements ----------------------------------------------------------------------------


class MeasuredRatio(NamedTuple):
    """Measured speed / modelled speed of an engine on this machine, both at the middle of their ranges."""

    decode: float = 1.0
    prefill: float = 1.0
    spread: float = 0.15  # the error that remains for other models and lengths
    text: str = ""  # what was measured, and when


def middle(tokens_per_s: Range) -> float:
    """The harmonic mean of the two speeds."""
    slow, fast = tokens_per_s
    return 2 / (1 / slow + 1 / fast)


# -- the formula -----------------------------------------------------------------------------


def largest_cards(cards: tuple[Device, ...], count: int) -> tuple[Device, ...]:
    """The `count` cards with the most free memory, in their original order."""
    if count >= len(cards):
        return cards
    largest = sorted(range(len(cards)), key=lambda index: -cards[index].free_bytes)[:count]
    return tuple(cards[index] for index in sorted(largest))


class SequenceRun(NamedTuple):
    """One sequence as an engine runs it on a machine: everything that the speed depends on."""

    model: Model
    load: Load
    reads: TokenReads
    machine: Machine
    cards: tuple[Device, ...]  # in the order of the bill's pools
    reading: Reading  # of a card
    flops_per_byte: Callable[[Device], Range | None]  # with a prompt; None: unknown device
    tensor_ranks: int = 1
    pipeline_stages: int = 1  # run one after another; the bill is for the fullest, the slowest one
    # Several may run: the explanation says that the speed is of one.
    notes_single_request: bool = False


def modelled_speed(
    run: SequenceRun,
    filled: tuple[int, int] | None = None,
    measured: MeasuredRatio | None = None,
) -> Speed | None:
    """The speed with the most tokens of `filled` in the context at the slow end, with the fewest at the fast end.

    By default from a full to an empty context. None if a device of unknown bandwidth is read.
    """
    places = _places(run)
    if places is None:
        return None
    least, most = filled or (0, run.reads.context_tokens)
    longer_s, shorter_s = _decode_s(run, places, most), _decode_s(run, places, least)
    prefill_s = _prefill_s(run, places, most)
    decode_scale, prefill_scale = None, None
    if measured is not None:
        decode_scale = (measured.decode, measured.spread)
        prefill_scale = (measured.prefill, measured.spread)
    is_assumed = any(place.assumed and place.reads.is_read for place in places)
    because = _because(run, places, most)
    return Speed(
        decode=_speeds(longer_s, shorter_s, decode_scale),
        prefill=None if prefill_s is None else _speeds(prefill_s, prefill_s, prefill_scale),
        because=f"{because}; {measured.text}" if measured and measured.text else because,
        basis=Basis.ASSUMED if is_assumed else Basis.MODELLED,
    )


def _speeds(longer_s: Range, shorter_s: Range, scale: tuple[float, float] | None) -> Range:
    """Tokens per second, from the seconds per token with a long and with a short context.

    `scale`: a measured ratio and its spread, for a narrower range around the measured middle.
    """
    if scale is None:
        return 1 / longer_s[0], 1 / shorter_s[1]
    ratio, spread = scale
    slow = ratio * middle((1 / longer_s[0], 1 / longer_s[1]))
    fast = ratio * middle((1 / shorter_s[0], 1 / shorter_s[1]))
    return slow * (1 - spread), fast * (1 + spread)


class _Place(NamedTuple):
    """A pool, and how fast the machine reads and computes there."""

    reads: PoolReads
    rates: Range  # bytes per second
    flops: Range | None
    reading: Reading
    text: str
    assumed: bool = False
    unified: bool = False

    def read_s(self, filled_tokens: int) -> Range:
        """Seconds to read the weights, states and filled cache of one token, slow and fast."""
        weights = self.reads.weights_bytes + self.reads.state_bytes
        cache = self.reads.cache_bytes(filled_tokens)
        slow, fast = self.rates
        return (weights + cache / self.reading.cache_share) / slow, (weights + cache) / fast


def _places(run: SequenceRun) -> tuple[_Place, ...] | None:
    """The pools that a token reads, with their speeds; None if the bandwidth of one of them is unknown."""
    host = host_speed(run.machine)
    places = []
    for reads in run.reads.pools:
        if reads.pool.kind is PoolKind.HOST:
            place = _Place(
                reads=reads,
                rates=host.rates(),
                flops=host.flops(),
                reading=CPU_READING,
                text=f"RAM at {host.text}",
                assumed=host.assumed,
            )
            places.append(place)
            continue
        card = run.cards[reads.pool.index] if reads.pool.index < len(run.cards) else None
        bandwidth = None if card is None else card.bandwidth_bytes_per_s
        if card is not None and bandwidth is None and card.unified and not host.assumed:
            bandwidth = int(host.bandwidth[0])
        if card is None or not bandwidth:
            if reads.is_read:
                return None
            continue
        flops = run.flops_per_byte(card)
        place = _Place(
            reads=reads,
            rates=run.reading.rates(bandwidth),
            flops=None if flops is None else (flops[0] * bandwidth, flops[1] * bandwidth),
            reading=run.reading,
            text=f"{card.name} at {bandwidth / GB:,.0f} GB/s",
            unified=card.unified,
        )
        places.append(place)
    return tuple(places)


def _decode_s(run: SequenceRun, places: tuple[_Place, ...], filled_tokens: int) -> Range:
    """Seconds per token, slow and fast."""
    stages = run.pipeline_stages
    first = places[0].reading if places else CPU_READING
    reductions = 2 * len(run.reads.weights.layers) if run.tensor_ranks > 1 else 0
    ends = []
    for end in (0, 1):
        seconds = first.token_us[end] * MICRO + run.reads.crossings * CROSSING_S[end]
        for place in places:
            seconds += place.reads.layers * (place.reading.layer_us[end] * MICRO) * stages
        seconds += reductions * REDUCING_S[end]
        for place in places:
            seconds += place.read_s(filled_tokens)[end] * stages
        ends.append(seconds)
    return ends[0], ends[1]


def _prefill_s(run: SequenceRun, places: tuple[_Place, ...], prompt_tokens: int) -> Range | None:
    """Seconds per prompt token: of a prompt of `prompt_tokens` at the slow end, of a short one at the fast end."""
    weights = run.reads.weights
    if not weights.parameters or any(place.flops is None for place in places):
        return None
    devices = [place for place in places if place.reads.pool.kind is not PoolKind.HOST]
    batch = run.load.microbatch_tokens or DEFAULT_BATCH_TOKENS
    held_bytes = sum(place.reads.held_bytes for place in places) or 1
    # On average a prompt token attends to half of the prompt.
    attention = _attention_flops(run.model.geometry, prompt_tokens // 2)
    ends = []
    for end, flops in enumerate((2.0 * weights.parameters + attention, 2.0 * weights.parameters)):
        experts_share = EXPERTS_SHARE[end] if weights.has_experts else 1.0
        total = 0.0
        for place in places:
            layer_s = place.reading.layer_us[end] * MICRO
            launches_s = place.reads.layers * layer_s * PROMPT_KERNELS[end]
            # Weights on the host are sent to a device, which is faster with a whole micro-batch.
            is_sent = bool(devices) and place.reads.pool.kind is PoolKind.HOST
            computed_at = devices[0] if is_sent else place
            rate = (computed_at.flops or (1, 1))[end]
            seconds = flops * (place.reads.held_bytes / held_bytes) / rate
            if is_sent:
                link = computed_at.rates[end] if computed_at.unified else LINK_BYTES_PER_S[end]
                seconds += place.reads.held_bytes / link / batch
            total += launches_s / batch + seconds / experts_share
        ends.append(total / run.tensor_ranks)
    # At best the cards work on a prompt as a pipeline.
    return ends[0], ends[1] / max(len(devices), 1)


def _because(run: SequenceRun, places: tuple[_Place, ...], filled_tokens: int) -> str:
    """What one token reads from each pool, in words."""
    parts = []
    for place in places:
        if not place.reads.is_read:
            continue
        weights = int(place.reads.weights_bytes + place.reads.state_bytes)
        cache = int(place.reads.cache_bytes(filled_tokens))
        and_cache = ""
        if cache:
            and_cache = f" and up to {format_bytes(cache)} of cache ({filled_tokens:,} tokens)"
        parts.append(f"{format_bytes(weights)} of weights{and_cache} from {place.text}")
    text = f"a token reads {'; '.join(parts)}"
    if run.tensor_ranks > 1:
        text += f", on each of {run.tensor_ranks} cards at once"
    return f"{text}; for a single request" if run.notes_single_request else text


def _attention_flops(geometry: ModelGeometry, tokens: int) -> float:
    """Operations of one token that attends to `tokens` others: scores and values of every head."""
    total = 0.0
    for layer in geometry.layers:
        attention = attention_of(layer.mixer)
        if attention is None:
            continue
        span = attention.span_tokens if attention.span is not Span.ALL else tokens
        width = attention.key_dim + attention.value_dim
        if isinstance(attention, LatentAttention) and attention.absorbed:
            width = 2 * attention.latent_dim + attention.rope_dim
        total += 2.0 * attention.heads * width * min(tokens, span or tokens)
    return total


# -- a bound ---------------------------------------------------------------------------------


def speed_bound(
    read_bytes: float,
    held_bytes: int,
    machine: Machine,
    engine: str,
    cards: tuple[tuple[Device, Reading], ...] = (),
    *,
    ranks: int = 1,
) -> float | None:
    """Tokens per second that no model reading `read_bytes` per token is expected to exceed; None if unknown.

    Only the time to read counts. That is safe, because the geometric mean of sums is never below the sum of geometric
    means.
    """
    max_scale = 1.0  # the largest measured ratio that a speed may be multiplied by
    if machine.measured is not None and not machine.what_if:
        for measured in machine.measured.engines:
            pace = measured.pace
            if measured.engine == engine and pace is not None and pace.expected_decode:
                max_scale = max(max_scale, pace.decode_tokens_per_s / pace.expected_decode)
    host = math.sqrt(math.prod(host_speed(machine).rates()))
    if not cards:
        return max_scale * host / read_bytes
    rates = []
    for card, reading in cards:
        if card.bandwidth_bytes_per_s is None:
            return None
        rates.append(math.sqrt(math.prod(reading.rates(card.bandwidth_bytes_per_s or 1))))
    on_cards = min(1.0, sum(card.free_bytes for card, _ in cards) / max(held_bytes, 1))
    time_s = read_bytes * on_cards / (max(rates) * ranks)
    if not any(card.unified for card, _ in cards):
        time_s += read_bytes * (1 - on_cards) / host
    return max_scale / time_s
