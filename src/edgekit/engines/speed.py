"""A bill on a machine -> expected tokens per second: a typical value, and an interval that holds in four of five cases.

A decoded token reads every weight that it uses and the cache once, so its time is bytes over bandwidth, plus unpacking
quantised weights, plus a fixed time per layer and per token. A prompt costs operations instead, and reads the weights
once per micro-batch. Engines differ in a `SequenceRun`: engines/X/speed.py makes it.

The constants are fitted to measurements by tools/fit_speed.py and stored in speed.json: see docs/speed.md. Always
modelled, however exact the bill is.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pkgutil import get_data  # importlib.resources takes 5 ms to import
from typing import Any, NamedTuple

from edgekit.bill.types import Component, Moment, PricedLoad, Speed, Task
from edgekit.engines import engine_named
from edgekit.engines.token_reads import PoolReads, TokenReads
from edgekit.machine.types import Device, Machine, PoolKind, Vendor
from edgekit.model.types import LatentAttention, Model, ModelGeometry, Span, attention_of
from edgekit.units import Basis, format_bytes

GB = 10**9
MICRO = 1e-6
USUAL_FILL_TOKENS = 1024  # in the context: a short conversation
LEAST_SENT_TOKENS = 32  # ggml-cuda.cu: a smaller batch is computed where its weights are


USUAL = Moment(USUAL_FILL_TOKENS)


def expected_speed(task: Task, priced: PricedLoad, moment: Moment = USUAL) -> Speed | None:
    """The speed of a priced load. None if a device's bandwidth is unknown, or if only the model's name is known."""
    bill = priced.estimate
    weights = [line for line in bill.lines if line.component is Component.WEIGHTS]
    is_rough = any(line.basis is Basis.ASSUMED for line in weights)
    if is_rough and task.bill is not None:
        return None
    sized, at = moment_of(task, priced, moment)
    speed = engine_named(task.engine).speed(sized, priced.placement, bill, at)
    if speed is not None and is_rough:
        speed = replace(speed, basis=Basis.ASSUMED)
    if speed is None or task.nodes == 1:
        return speed
    because = f"{speed.because}; the network between the machines is not included"
    return replace(speed, basis=Basis.ASSUMED, because=because)


def moment_of(task: Task, priced: PricedLoad, moment: Moment) -> tuple[Task, Moment]:
    """The task with the priced context, and the moment with at most that in it."""
    tokens = priced.context_tokens
    sized = replace(task, load=replace(task.load, context_tokens=tokens))
    return sized, moment._replace(filled_tokens=min(tokens, moment.filled_tokens))


def steady_throughput(task: Task, priced: PricedLoad) -> float | None:
    """The typical tokens per second with an empty context.

    The context does not count, because more memory means a more accurate cache, which is slower to read.
    """
    speed = expected_speed(task, priced, Moment())
    return None if speed is None else speed.typical


# -- constants -------------------------------------------------------------------------------


class Constants(Mapping[str, float]):
    """Fitted constants by name: "weights.cuda", and "weights.cuda.sm_89" that it is multiplied by on such cards."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def product(self, name: str, *keys: str) -> float:
        """The constant times its factors for these keys, alone and together. A case without a factor has 1."""
        value = self[name]
        for key in keys:
            value *= self.get(f"{name}.{key}", 1.0)
        return value * self.get(".".join((name, *keys)), 1.0) if len(keys) > 1 else value


def _fitted_file() -> bytes:
    return get_data("edgekit.engines", "speed.json") or b""


@cache
def _fitted() -> Any:
    return json.loads(_fitted_file())


@cache
def constants() -> Constants:
    return Constants(_fitted()["constants"])


@cache
def measured_generations() -> dict[str, frozenset[str]]:
    """The generations of devices that the constants rest on, as `Place` names them, for "decode" and "prompt"."""
    return {word: frozenset(names) for word, names in _fitted()["measured"].items()}


@cache
def constants_digest() -> str:
    """Identifies the constants: a measured speed is compared with the one that the same constants predicted."""
    from hashlib import sha256  # takes 2 ms to import

    return sha256(_fitted_file()).hexdigest()[:12]


# -- processors and cards --------------------------------------------------------------------


# Assumed if a system does not tell how fast its RAM is: by its size in GiB. Small boards have one channel of LPDDR4,
# desktops two of DDR4 or DDR5, servers eight and more.
_ASSUMED_BYTES_PER_S = ((8, 30 * GB), (16, 45 * GB), (192, 70 * GB), (math.inf, 250 * GB))
CORE_BYTES_PER_S = 26 * GB  # that one core can read
_FEW_CORES = 24  # with more, it is the memory of a server
UNKNOWN_CORES = 8


class HostSpeed(NamedTuple):
    """The CPU and its memory."""

    bandwidth: float  # bytes per second
    cores: int
    text: str
    basis: Basis
    guessed: bool = False  # only the amount of RAM is known


def host_speed(machine: Machine) -> HostSpeed:
    """The machine's CPU and RAM. An unknown bandwidth is assumed from the amount of RAM and the number of cores."""
    host, cores = machine.host, machine.cores or UNKNOWN_CORES
    if host is not None and host.bandwidth_bytes_per_s is not None:
        because = f" ({host.bandwidth_because})" if host.bandwidth_because else ""
        text = f"{host.bandwidth_bytes_per_s / GB:,.0f} GB/s{because}"
        bandwidth = min(host.bandwidth_bytes_per_s, cores * CORE_BYTES_PER_S)
        return HostSpeed(
            bandwidth, cores, text, max(host.bandwidth_basis, Basis.MODELLED, key=_doubt)
        )
    total_gib = 64.0 if host is None else host.total_bytes / 2**30
    if cores > _FEW_CORES:
        total_gib = math.inf
    bandwidth = next(rate for most, rate in _ASSUMED_BYTES_PER_S if total_gib <= most)
    text = (
        f'{bandwidth / GB:,.0f} GB/s (assumed: --ram "{_example(total_gib)}" says which RAM it is)'
    )
    return HostSpeed(
        min(bandwidth, cores * CORE_BYTES_PER_S), cores, text, Basis.ASSUMED, guessed=True
    )


_DOUBTS = (Basis.EXACT, Basis.MODELLED, Basis.ASSUMED)


def _doubt(basis: Basis) -> int:
    return _DOUBTS.index(basis)


def _example(total_gib: float) -> str:
    return "64G DDR5-6000" if math.isinf(total_gib) else f"{total_gib:.0f}G DDR5-6000"


def architecture_of(card: Device) -> str:
    """The generation of a card, as in the names of constants: "sm_89", "rdna3", "m2"."""
    if card.capability is not None:
        return f"sm_{card.capability[0]}{card.capability[1]}"
    if card.vendor is Vendor.APPLE:
        chip = re.search(r"\bM(\d{1,2})\b", card.name)
        return f"m{chip[1]}" if chip else ""
    return card.architecture


_WORKSTATION = re.compile(
    r"\b(?:A\d{1,4}0|L\d{1,2}S?|RTX (?:A\d{4}|\d000 Ada|PRO \d)|Quadro|PRO [WV]\d|W[5-7]\d00)\b"
)


def _market(card: Device) -> str:
    """What a card is made for, where it is slower than others of its generation: see `Place`."""
    if card.vendor is Vendor.APPLE:
        return "ultra" if "Ultra" in card.name else ""
    return "workstation" if _WORKSTATION.search(card.name) else ""


# Matrix units of one multiprocessor / its FP32 units. With FP32 sums, GeForce cards have half of it, but llama.cpp sums
# in FP16 or multiplies integers.
_MATRIX_SHARES = ((12, 0, 4), (10, 0, None), (9, 0, None), (8, 6, 4), (8, 0, None), (7, 0, 8))


def _matrix_flops(card: Device) -> float | None:
    """Operations per second of the units that multiply matrices, or else of FP16."""
    known = card.matrix_flops or max(card.fp16_flops or 0.0, card.fp32_flops or 0.0) or None
    if card.capability is None or card.fp32_flops is None:
        return known
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


# -- measurements ----------------------------------------------------------------------------


class MeasuredRatio(NamedTuple):
    """Measured speed / expected speed of an engine on this machine."""

    decode: float = 1.0
    prefill: float = 1.0
    text: str = ""  # what was measured, and when
    is_cpu: bool = False


# -- the formula -----------------------------------------------------------------------------


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
    def generation(self) -> str:
        return f"{self.backend}.{self.architecture}"


def modelled_speed(
    run: SequenceRun, moment: Moment, measured: MeasuredRatio | None = None
) -> Speed | None:
    """The speed; None if a device of unknown bandwidth is read."""
    places = places_of(run)
    if places is None:
        return None
    values = constants()
    decode = 1 / decode_s(run, places, moment, values)
    prefill_s = prompt_token_s(run, places, moment, values)
    ratio = measured or MeasuredRatio()
    decode_kind, prompt_kind = (
        speed_kind(places, moment, is_prompt=is_prompt, calibrated=measured is not None)
        for is_prompt in (False, True)
    )
    because = _because(run, places, moment.filled_tokens)
    if measured is not None and measured.text:
        because += f"; {measured.text}"
    assumed = any(place.assumed and place.reads.is_read for place in places)
    return Speed(
        decode=_interval(decode * ratio.decode, values[f"spread.decode.{decode_kind}"]),
        prefill=None
        if prefill_s is None
        else _interval(ratio.prefill / prefill_s, values[f"spread.prompt.{prompt_kind}"]),
        because=because,
        basis=Basis.ASSUMED if assumed else Basis.MODELLED,
    )


def speed_range(typical: float, places: tuple[Place, ...], moment: Moment) -> tuple[float, float]:
    """The interval of a decoding speed."""
    kind = speed_kind(places, moment, is_prompt=False)
    return _interval(typical, constants()[f"spread.decode.{kind}"])


def _interval(typical: float, spread: float) -> tuple[float, float]:
    return typical / spread, typical * spread


def speed_kind(
    places: tuple[Place, ...],
    moment: Moment,
    *,
    is_prompt: bool,
    calibrated: bool = False,
) -> str:
    """What decides how wide the interval is: the kind of machine, and whether a machine like it was measured."""
    read = [place for place in places if place.reads.is_read]
    if any(place.guessed for place in read):
        return "assumed"
    if moment.users * (1 + moment.drafted_tokens) > 1 and not is_prompt:
        return "users"  # a calibration measures one
    if calibrated:
        return "calibrated"
    hosts = sum(place.is_host for place in read)
    if hosts:
        return "cpu" if hosts == len(read) else "split"
    known = measured_generations()["prompt" if is_prompt else "decode"]
    return "card" if all(place.generation in known for place in read) else "new_card"


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
        bandwidth = None if card is None else card.bandwidth_bytes_per_s
        if (
            card is not None
            and bandwidth is None
            and card.unified
            and host.basis is not Basis.ASSUMED
        ):
            bandwidth = int(host.bandwidth)
        if card is None or not bandwidth:
            if reads.is_read:
                return None
            continue
        place = Place(
            reads=reads,
            backend=run.backend,
            architecture=architecture_of(card),
            bandwidth=bandwidth,
            text=f"{card.name} at {bandwidth / GB:,.0f} GB/s",
            market=_market(card),
            vector_flops=card.fp32_flops,
            matrix_flops=_matrix_flops(card),
            unified=card.unified,
        )
        places.append(place)
    return tuple(places)


def _weights_rate(run: SequenceRun, place: Place, values: Constants) -> float:
    """Bytes of weights per second."""
    share = values.product("weights", place.backend, place.architecture)
    share *= values.get(f"market_weights.{place.market}", 1.0)
    return place.bandwidth * share * values.product("format", run.weights, place.backend)


def _unpack_s(run: SequenceRun, place: Place, size_bytes: float, values: Constants) -> float:
    """Seconds to unpack this many bytes of quantised weights."""
    if run.weights in {"f16", "bf16"} or place.vector_flops is None:
        return 0.0
    read_bytes = sum(pool.weights_bytes for pool in run.reads.pools) or 1.0
    elements = size_bytes / read_bytes * run.reads.weights.parameters * run.work_share
    return (
        elements
        * values.product("unpack_ops", place.backend, place.architecture)
        / place.vector_flops
    )


def decode_s(
    run: SequenceRun, places: tuple[Place, ...], moment: Moment, values: Constants
) -> float:
    """Seconds of a pass, which makes a token for each user and checks the drafted ones."""
    tokens = moment.users * (1 + moment.drafted_tokens)
    first = places[0].backend if places else "cpu"
    seconds = values.product("token_us", first) * MICRO + _reducing_s(run, values)
    if run.is_launched_one_by_one:
        seconds += len(run.reads.weights.layers) * values["launches_us"] * MICRO
    crossings = run.reads.crossings + run.pipeline_stages - 1
    seconds += crossings * values["crossing_us"] * MICRO
    at_once, in_turn = 0.0, 0.0
    for place in places:
        reads, rate = place.reads, _weights_rate(run, place, values)
        dense = reads.weights_bytes - reads.experts_bytes
        experts = reads.experts_read_by(tokens) if tokens > 1 else reads.experts_bytes
        time_s = (dense + experts / values.product("experts", place.backend)) / rate
        # Kernels read and compute at once: neither time adds fully to the other.
        time_s = math.hypot(time_s, _unpack_s(run, place, dense + experts, values))
        time_s += _attend_s(run, place, moment, values)
        time_s += (tokens - 1) * reads.weights_bytes / rate * values.product("users", place.backend)
        time_s += (
            reads.layers * values.product("layer_us", place.backend, place.architecture) * MICRO
        )
        if run.is_divided and not place.is_host:
            at_once = max(at_once, time_s)
        else:
            in_turn += time_s
    return seconds + (at_once + in_turn) * run.pipeline_stages


def _reducing_s(run: SequenceRun, values: Constants) -> float:
    """Seconds of a pass to add up what the cards have computed, twice per layer, if every layer is on several."""
    if run.tensor_ranks == 1 and not run.is_divided:
        return 0.0
    return 2 * len(run.reads.weights.layers) * values["reducing_us"] * MICRO


def _attend_s(run: SequenceRun, place: Place, moment: Moment, values: Constants) -> float:
    """Seconds to read the states and the cache of every user once, and to compute with them for every token."""
    reads, tokens = place.reads, moment.filled_tokens
    cached = reads.cache_bytes(tokens)
    rate = place.bandwidth * values.product("cache", place.backend, place.architecture)
    seconds = (reads.state_bytes + cached) / rate
    if cached and place.vector_flops is not None:
        share = cached / sum(pool.cache_bytes(tokens) for pool in run.reads.pools)
        flops = attention_flops(run.model.geometry, tokens) * share * run.work_share
        flops *= 1 + moment.drafted_tokens
        seconds += flops / (place.vector_flops * values.product("attend", place.backend))
    return moment.users * seconds


def prompt_rate(run: SequenceRun, place: Place, values: Constants) -> float | None:
    """Operations per second with a large batch."""
    peak = place.vector_flops if place.is_host else place.matrix_flops
    if peak is None:
        return None
    share = values.product("prompt", place.backend, place.architecture)
    share *= values.get(f"market_prompt.{place.market}", 1.0)
    return peak * share * values.product("prompt_format", run.weights, place.backend)


def prompt_token_s(
    run: SequenceRun, places: tuple[Place, ...], moment: Moment, values: Constants
) -> float | None:
    """Seconds per token of a prompt of `prompt_tokens` after `filled_tokens` others."""
    weights = run.reads.weights
    rates = [prompt_rate(run, place, values) for place in places]
    if not weights.parameters or not places or None in rates:
        return None
    batch = max(1, min(run.batch_tokens, moment.prompt_tokens))
    held_bytes = sum(place.reads.held_bytes for place in places) or 1
    # On average a prompt token attends to half of the prompt.
    attended = moment.filled_tokens + moment.prompt_tokens // 2
    attention = attention_flops(run.model.geometry, attended) * run.work_share
    on_cards = [place for place in places if not place.is_host]
    at_once, in_turn = 0.0, 0.0
    for place, own_rate in zip(places, rates, strict=True):
        reads = place.reads
        # Weights on the host are sent to a card, which is faster with a large batch.
        is_sent = bool(on_cards) and place.is_host and batch >= LEAST_SENT_TOKENS
        worker, rate = (
            (on_cards[0], rates[places.index(on_cards[0])]) if is_sent else (place, own_rate)
        )
        flops = 2.0 * weights.parameters * run.work_share * reads.held_bytes / held_bytes
        read_bytes = reads.weights_bytes or 1.0
        experts_share = reads.experts_bytes / read_bytes
        # Kernels work on blocks of tokens, and few tokens of a batch use the same expert.
        per_expert = batch * reads.experts_bytes / (reads.held_experts_bytes or 1.0)
        wasted = 1.0 + values.product("expert_tokens", worker.backend) / max(per_expert, 1e-6)
        # Narrow matrices leave a part of the processor idle.
        narrow = 1.0 + values["prompt_width"] / max(run.model.geometry.hidden, 1)
        operations = flops * narrow * (1.0 + experts_share * (wasted - 1.0))
        seconds = operations / rate  # type: ignore[operator] # no rate is None
        peak = (worker.vector_flops if worker.is_host else worker.matrix_flops) or 1.0
        attention_rate = peak * values.product("attention", worker.backend, worker.architecture)
        seconds += attention * reads.held_bytes / held_bytes / attention_rate
        tile = values.product("prompt_tile", worker.backend)
        cache_rate = worker.bandwidth * values.product("cache", worker.backend, worker.architecture)
        seconds += reads.cache_bytes(attended) / tile / cache_rate
        once_bytes = reads.held_bytes - reads.held_experts_bytes + reads.experts_read_by(batch)
        once_s = once_bytes / _weights_rate(run, worker, values)
        if is_sent and not worker.unified:
            once_s += once_bytes / (values["link_gb_per_s"] * GB)
        launches = reads.layers * values.product("prompt_layer_us", worker.backend) * MICRO
        seconds += (once_s + launches) / batch
        if run.is_divided and worker is place and not place.is_host:
            at_once = max(at_once, seconds)
        else:
            in_turn += seconds
    total_s = (at_once + in_turn) * run.pipeline_stages + _reducing_s(run, values) / batch
    if run.is_divided:
        return total_s
    micro_batches = max(1.0, min(run.logical_tokens, moment.prompt_tokens) / batch)
    return total_s / _pipelined(len(on_cards), micro_batches)


def _pipelined(cards: int, micro_batches: float) -> float:
    """How much faster cards are that work on the micro-batches of a batch in turn, like a pipeline."""
    return max(1.0, cards * micro_batches / (micro_batches + cards - 1)) if cards > 1 else 1.0


def _because(run: SequenceRun, places: tuple[Place, ...], filled_tokens: int) -> str:
    """What one token reads from each pool, in words."""
    parts = []
    for place in places:
        if not place.reads.is_read:
            continue
        weights = int(place.reads.weights_bytes + place.reads.state_bytes)
        cache_bytes = int(place.reads.cache_bytes(filled_tokens))
        and_cache = ""
        if cache_bytes:
            and_cache = f" and {format_bytes(cache_bytes)} of cache ({filled_tokens:,} tokens)"
        parts.append(f"{format_bytes(weights)} of weights{and_cache} from {place.text}")
    text = f"a token reads {'; '.join(parts)}"
    cards = sum(not place.is_host and place.reads.is_read for place in places)
    if run.tensor_ranks > 1:
        text += f", on each of {run.tensor_ranks} cards at once"
    elif cards > 1:
        text += f", on {cards} cards {'at once' if run.is_divided else 'in turn'}"
    if run.pipeline_stages > 1:
        text += f", in each of {run.pipeline_stages} stages in turn"
    return f"{text}; for a single request" if run.notes_single_request else text


def attention_flops(geometry: ModelGeometry, tokens: int) -> float:
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
    cards: tuple[tuple[Device, str], ...] = (),
    *,
    ranks: int = 1,
) -> float | None:
    """Tokens per second that no model reading `read_bytes` per token is expected to exceed; None if unknown.

    Only the time to read counts, with the format that is read fastest. `cards`: with the backend of each.
    """
    values = constants()
    formats = [name.split(".")[1] for name in values if name.startswith("format.")]

    def rate(bandwidth: float, backend: str, architecture: str) -> float:
        fastest = max(values.product("format", name, backend) for name in formats)
        return bandwidth * values.product("weights", backend, architecture) * fastest

    max_scale = 1.0  # the largest measured ratio that a speed may be multiplied by
    if machine.measured is not None and not machine.what_if:
        for measured in machine.measured.engines:
            pace = measured.pace
            if measured.engine == engine and pace is not None and pace.expected_decode:
                max_scale = max(max_scale, pace.decode_tokens_per_s / pace.expected_decode)
    host = rate(host_speed(machine).bandwidth, "cpu", instructions_of(machine))
    if not cards:
        return max_scale * host / read_bytes
    rates = []
    for card, backend in cards:
        if card.bandwidth_bytes_per_s is None:
            return None
        rates.append(rate(card.bandwidth_bytes_per_s, backend, architecture_of(card)))
    on_cards = min(1.0, sum(card.free_bytes for card, _ in cards) / max(held_bytes, 1))
    time_s = read_bytes * on_cards / (max(rates) * ranks)
    if not any(card.unified for card, _ in cards):
        time_s += read_bytes * (1 - on_cards) / host
    return max_scale / time_s
