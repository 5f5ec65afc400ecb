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
    """From an empty context at the fast end to `fill_tokens` at the slow end.

    None if unknown: for a device of unknown bandwidth, and for weights that are only assumed.
    """
    bill, tokens = priced.estimate, priced.context_tokens
    weights = (line for line in bill.lines if line.component is Component.WEIGHTS)
    if any(line.basis is Basis.ASSUMED for line in weights):
        return None
    sized = replace(task, load=replace(task.load, context_tokens=tokens))
    filled = (0, min(tokens, fill_tokens))
    found = engine_named(task.engine).speed(sized, priced.placement, bill, filled)
    if found is None or task.nodes == 1:
        return found
    because = f"{found.because}; the network between the machines is not included"
    return replace(found, basis=Basis.ASSUMED, because=because)


def steady_throughput(task: Task, priced: PricedLoad) -> float | None:
    """Expected tokens per second as one number: the geometric mean of the range, with an empty cache.

    A more accurate cache is slower to read, and is chosen if there is more memory: so it must not count.
    """
    speed = expected_speed(task, priced, 0)
    return None if speed is None else speed.typical


# -- how fast memories are read --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How kernels read weights for one token.

    Both ends follow a bent line: up to `knee_gb_per_s` kernels keep up with the memory, above it less and less.
    """

    near_share: Range
    far_share: Range  # of the bandwidth above the knee
    knee_gb_per_s: float
    cache_share: float  # of the slow rate: attention reads a cache less efficiently than weights
    layer_us: Range  # added per layer: launches, norms, small kernels
    token_us: Range  # added per token: sampling, the loop around it

    def rates(self, bandwidth_bytes_per_s: float) -> Range:
        """Bytes per second. Never less from more bandwidth."""
        near = min(bandwidth_bytes_per_s, self.knee_gb_per_s * GB)
        beyond = bandwidth_bytes_per_s - near
        slow, fast = (near * self.near_share[end] + beyond * self.far_share[end] for end in (0, 1))
        return slow, fast


@cache
def _throughput() -> tuple[Record, ...]:
    return load_records("edgekit.engines", "throughput.json")


@cache
def reading(name: str) -> Reading:
    """The record of that name in throughput.json."""
    records = (record for record in _throughput() if record.get("reading") == name)
    found = {**next(records, {})}
    facts = {key: value for key, value in found.items() if key not in {"reading", "note"}}
    return read_fields(Reading, facts, {}, where=f"throughput.json, {name}")


def flops_per_byte(device: Device, engine: str) -> Range | None:
    """Operations per byte of bandwidth with a prompt, by the key that the engine has in throughput.json."""
    generation: tuple[int, ...] = ()
    if device.vendor is Vendor.NVIDIA:
        if device.capability is None:
            return None
        generation = device.capability
    elif device.vendor is Vendor.APPLE:
        named = re.search(r"\bM(\d{1,2})\b", device.name)
        generation = (int(named[1]) if named else 0,)
    reached = [  # in rising order
        record[engine]
        for record in _throughput()
        if record.get("vendor") == device.vendor.value
        and engine in record
        and tuple(record["since"]) <= generation
    ]
    return (reached[-1][0], reached[-1][1]) if reached else None


CPU_READING = reading("cpu")
METAL_READING = reading("metal")
CROSSING_S: Range = (250 * MICRO, 15 * MICRO)  # from one device to another
REDUCING_S: Range = (60 * MICRO, 8 * MICRO)  # ranks add up their results, twice per layer

# What one core multiplies of quantised weights: two of a Xeon 4.8 to 6.4 GB/s each, four of a 13900K 12.
CORE_BYTES_PER_S: Range = (2.2 * GB, 16 * GB)
# ... and in a prompt: 39 to 123 GFLOP/s of such cores.
CORE_FLOPS: Range = (20 * GB, 250 * GB)
UNKNOWN_CORES: Range = (4, 32)
FEW_CORES = 24  # up to here, assume the memory of a desktop or a laptop
# One channel of DDR4-2400 is 19 GB/s, two of DDR5-6400 are 102; a server has four of DDR4 to twelve of DDR5.
DESKTOP_BYTES_PER_S: Range = (19 * GB, 105 * GB)
SERVER_BYTES_PER_S: Range = (75 * GB, 600 * GB)
# Weights on the host are sent to the device for every micro-batch of a prompt: PCIe 3 with 4 lanes to PCIe 5 with 16.
LINK_BYTES_PER_S: Range = (3 * GB, 50 * GB)
# What a layer adds to a whole micro-batch, as a multiple of what it adds to one token.
PROMPT_KERNELS: Range = (10.0, 2.0)
# Share of the usual speed with experts: few tokens of a micro-batch use the same one.
EXPERTS_SHARE: Range = (0.25, 1.0)


class HostSpeed(NamedTuple):
    """The CPU and its memory."""

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
        return self.cores[0] * CORE_FLOPS[0], self.cores[1] * CORE_FLOPS[1]


def host_speed(machine: Machine) -> HostSpeed:
    """From the known bandwidth of the RAM, else from what such a machine may have."""
    known = None if machine.host is None else machine.host.bandwidth_bytes_per_s
    cores: Range = UNKNOWN_CORES if not machine.cores else (machine.cores, machine.cores)
    if machine.host is not None and known is not None:
        because = machine.host.bandwidth_because
        text = f"{known / GB:,.0f} GB/s"
        return HostSpeed(
            bandwidth=(known, known),
            cores=cores,
            text=f"{text} ({because})" if because else text,
            assumed=False,
        )
    server = cores[0] > FEW_CORES
    slow, fast = SERVER_BYTES_PER_S if server else DESKTOP_BYTES_PER_S
    text = f"{slow / GB:,.0f} to {fast / GB:,.0f} GB/s (assumed, typical of {'servers' if server else 'desktops'})"
    return HostSpeed(bandwidth=(slow, fast), cores=cores, text=text, assumed=True)


# -- measurements ----------------------------------------------------------------------------


class MeasuredRatio(NamedTuple):
    """Measured by modelled speed, of the same engine on the same machine; both at the middle of the range."""

    decode: float = 1.0
    prefill: float = 1.0
    spread: float = 0.15  # how far off another model or length may still be
    text: str = ""  # what was measured, and when


def middle(tokens_per_s: Range) -> float:
    """The speed at the middle of the two times."""
    slow, fast = tokens_per_s
    return 2 / (1 / slow + 1 / fast)


# -- the formula -----------------------------------------------------------------------------


def largest_cards(cards: tuple[Device, ...], count: int) -> tuple[Device, ...]:
    """`count` of them in their order: those with the most free memory."""
    if count >= len(cards):
        return cards
    largest = sorted(range(len(cards)), key=lambda place: -cards[place].free_bytes)[:count]
    return tuple(cards[place] for place in sorted(largest))


class SequenceRun(NamedTuple):
    """One sequence as an engine runs it on a machine: all that the formula knows about the engine."""

    model: Model
    load: Load
    reads: TokenReads
    machine: Machine
    cards: tuple[Device, ...]  # in the order of the bill's pools
    reading: Reading  # of a card
    flops_per_byte: Callable[[Device], Range | None]  # with a prompt; None: unknown device
    tensor_ranks: int = 1
    pipeline_stages: int = 1  # one after another, each as slow as the fullest, which is billed
    single_request: bool = False  # tell that the speed is that of a single request


def modelled_speed(
    run: SequenceRun,
    filled: tuple[int, int] | None = None,
    measured: MeasuredRatio | None = None,
) -> Speed | None:
    """From the most to the fewest tokens of `filled`: by default from a full to an empty context.

    None if a device of unknown bandwidth is read: such a range would mean nothing.
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
    assumed = any(place.assumed and place.reads.is_read for place in places)
    because = _because(run, places, most)
    return Speed(
        decode=_speeds(longer_s, shorter_s, decode_scale),
        prefill=None if prefill_s is None else _speeds(prefill_s, prefill_s, prefill_scale),
        because=f"{because}; {measured.text}" if measured and measured.text else because,
        basis=Basis.ASSUMED if assumed else Basis.MODELLED,
    )


def _speeds(longer_s: Range, shorter_s: Range, scale: tuple[float, float] | None) -> Range:
    """Seconds per token with a long and a short context, each slow and fast -> tokens per second.

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
        weights = self.reads.weights_bytes + self.reads.state_bytes
        cache = self.reads.cache_bytes(filled_tokens)
        slow, fast = self.rates
        return (weights + cache / self.reading.cache_share) / slow, (weights + cache) / fast


def _places(run: SequenceRun) -> tuple[_Place, ...] | None:
    """None if a device is read whose bandwidth is unknown."""
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
    sums = 2 * len(run.reads.weights.layers) if run.tensor_ranks > 1 else 0
    ends = []
    for end in (0, 1):
        seconds = first.token_us[end] * MICRO + run.reads.crossings * CROSSING_S[end]
        for place in places:
            seconds += place.reads.layers * (place.reading.layer_us[end] * MICRO) * stages
        seconds += sums * REDUCING_S[end]
        for place in places:
            seconds += place.read_s(filled_tokens)[end] * stages
        ends.append(seconds)
    return ends[0], ends[1]


def _prefill_s(run: SequenceRun, places: tuple[_Place, ...], prompt_tokens: int) -> Range | None:
    """Seconds per token of a prompt as long as the context at the slow end, of a short one at the fast end."""
    weights = run.reads.weights
    if not weights.parameters or any(place.flops is None for place in places):
        return None
    devices = [place for place in places if place.reads.pool.kind is not PoolKind.HOST]
    batch = run.load.microbatch_tokens or DEFAULT_BATCH_TOKENS
    held_bytes = sum(place.reads.held_bytes for place in places) or 1
    # On average a prompt token attends to half of the prompt.
    behind = _attention_flops(run.model.geometry, prompt_tokens // 2)
    ends = []
    for end, flops in enumerate((2.0 * weights.parameters + behind, 2.0 * weights.parameters)):
        usual = EXPERTS_SHARE[end] if weights.has_experts else 1.0
        total = 0.0
        for place in places:
            launches = (
                place.reads.layers * (place.reading.layer_us[end] * MICRO) * PROMPT_KERNELS[end]
            )
            # Weights on the host are sent to a device, which is faster with a whole micro-batch.
            is_sent = bool(devices) and place.reads.pool.kind is PoolKind.HOST
            where = devices[0] if is_sent else place
            seconds = flops * (place.reads.held_bytes / held_bytes) / (where.flops or (1, 1))[end]
            if is_sent:
                link = where.rates[end] if where.unified else LINK_BYTES_PER_S[end]
                seconds += place.reads.held_bytes / link / batch
            total += launches / batch + seconds / usual
        ends.append(total / run.tensor_ranks)
    return ends[0], ends[1] / max(
        len(devices), 1
    )  # cards may work on a prompt one behind the other


def _because(run: SequenceRun, places: tuple[_Place, ...], most: int) -> str:
    parts = []
    for place in places:
        if not place.reads.is_read:
            continue
        weights = int(place.reads.weights_bytes + place.reads.state_bytes)
        cache = int(place.reads.cache_bytes(most))
        more = f" and up to {format_bytes(cache)} of cache ({most:,} tokens)" if cache else ""
        parts.append(f"{format_bytes(weights)} of weights{more} from {place.text}")
    text = f"a token reads {'; '.join(parts)}"
    if run.tensor_ranks > 1:
        text += f", on each of {run.tensor_ranks} cards at once"
    return f"{text}; for a single request" if run.single_request else text


def _attention_flops(geometry: ModelGeometry, tokens: int) -> float:
    """Of one token that attends to `tokens`: scores and values of every head."""
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
    """No model that reads `read_bytes` per token is expected to be faster; None if nothing is known.

    The geometric mean of sums is never below the sum of geometric means, so leaving out all but the reading is safe.
    """
    most = 1.0  # the largest factor by which a speed is scaled
    if machine.measured is not None and not machine.what_if:
        for known in machine.measured.engines:
            if known.engine == engine and known.pace is not None and known.pace.expected_decode:
                ratio = known.pace.decode_tokens_per_s / known.pace.expected_decode
                most = max(most, ratio)
    host = math.sqrt(math.prod(host_speed(machine).rates()))
    if not cards:
        return most * host / read_bytes
    rates = []
    for card, reading in cards:
        if card.bandwidth_bytes_per_s is None:
            return None
        rates.append(math.sqrt(math.prod(reading.rates(card.bandwidth_bytes_per_s or 1))))
    on_cards = min(1.0, sum(card.free_bytes for card, _ in cards) / max(held_bytes, 1))
    time_s = read_bytes * on_cards / (max(rates) * ranks)
    if not any(card.unified for card, _ in cards):
        time_s += read_bytes * (1 - on_cards) / host
    return most / time_s
