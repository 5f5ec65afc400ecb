"""A bill on a machine -> tokens a second to expect, as a range. Always modelled, however exact the bill is.

A decoded token reads every working weight and the cache once, so its time is bytes over bandwidth, and something for
every layer. A token of a prompt costs operations instead. docs/speed.md holds the model against measured points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.types import Load, MemoryEstimate
from edgekit.bill.verdict import Speed
from edgekit.engines.budgets import devices_for
from edgekit.engines.speed import (
    CROSSING_S,
    EAGER_LAYER_S,
    EXPERTS_PACE,
    GB,
    LINK_BYTES_PER_S,
    PROMPT_KERNELS,
    READING,
    REDUCING_S,
    HostPace,
    Range,
    Reading,
    device_flops,
    host_pace,
)
from edgekit.machine.types import Device, Machine, PoolKind
from edgekit.model.types import Model
from edgekit.plan.touched import SequenceWork, Touched, one_token
from edgekit.plan.working import attention_flops
from edgekit.units import format_bytes

DEFAULT_BATCH_TOKENS = 512  # of a prompt that are worked on together


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRatio:
    """What a measurement on the same machine with the same engine says about the model: measured by modelled.

    Both are held against the middle of the modelled range: see `calibrate`.
    """

    decode: float = 1.0
    prefill: float = 1.0
    spread: float = 0.15  # how far another model or length may still be off
    told: str = ""  # what was measured, and when


def calibrate(modelled: Speed, decode: float, prefill: float | None = None) -> MeasuredRatio:
    """From a speed modelled with `filled` at the length that was measured."""
    told = 1.0
    if prefill is not None and modelled.prefill is not None:
        told = prefill / middle(modelled.prefill)
    return MeasuredRatio(decode=decode / middle(modelled.decode), prefill=told)


def expected_speed(  # noqa: PLR0917 - the bill with all that it was made of, the machine and the engine
    model: Model,
    load: Load,
    setup: Any,
    estimate: MemoryEstimate,
    machine: Machine,
    engine: str,
    *,
    filled: tuple[int, int] | None = None,
    calibration: MeasuredRatio | None = None,
) -> Speed | None:
    """One sequence alone: from a full context at the slow end to an empty one at the fast end, or as `filled` says.

    None where a device is read whose bandwidth nobody knows: such a range would say nothing.
    """
    work = one_token(model, load, setup, estimate)
    places = _places(work, setup, estimate, machine)
    if places is None:
        return None
    least, most = filled or (0, work.context_tokens)
    run = _Run(model=model, load=load, setup=setup, work=work, places=places, engine=engine)
    decode = _ordered(run.decode(most), run.decode(least), calibration, "decode")
    prefill = run.prefill(most)
    told = None if prefill is None else _ordered(prefill, prefill, calibration, "prefill")
    assumed = any(place.assumed and place.touched.is_read for place in places)
    return Speed(
        decode=decode,
        prefill=told,
        because=_because(places, most, run) + _measured(calibration),
        basis=Basis.ASSUMED if assumed else Basis.MODELLED,
    )


def _ordered(
    longer: Range, shorter: Range, calibration: MeasuredRatio | None, field: str
) -> tuple[float, float]:
    """Seconds of a token (slow, fast) -> tokens a second, from slow to fast."""
    if calibration is None:
        return 1 / longer[0], 1 / shorter[1]
    ratio, spread = getattr(calibration, field), calibration.spread
    slow = ratio * middle((1 / longer[0], 1 / longer[1]))
    fast = ratio * middle((1 / shorter[0], 1 / shorter[1]))
    return slow * (1 - spread), fast * (1 + spread)


def _measured(calibration: MeasuredRatio | None) -> str:
    return f"; {calibration.told}" if calibration is not None and calibration.told else ""


def middle(tokens_per_s: tuple[float, float]) -> float:
    """That of the middle time."""
    slow, fast = tokens_per_s
    return 2 / (1 / slow + 1 / fast)


# -- places ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A pool, and how fast the machine reads and computes there."""

    touched: Touched
    rates: Range  # bytes a second
    flops: Range | None
    reading: Reading
    told: str
    assumed: bool = False
    unified: bool = False

    @property
    def is_host(self) -> bool:
        return self.touched.pool.kind is PoolKind.HOST

    def flops_at(self, end: int) -> float:
        return self.flops[end] if self.flops is not None else 1.0


def _places(
    work: SequenceWork, setup: Any, estimate: MemoryEstimate, machine: Machine
) -> tuple[_Place, ...] | None:
    cards = _cards(machine, setup, estimate)
    host = host_pace(machine)
    found = []
    for touched in work.pools:
        place = _place(touched, cards, host, estimate)
        if place is not None:
            found.append(place)
        elif touched.is_read:
            return None
    return tuple(found)


def _place(
    touched: Touched,
    cards: tuple[Device, ...],
    host: HostPace,
    estimate: MemoryEstimate,
) -> _Place | None:
    pool, engine = touched.pool, estimate.engine
    if pool.kind is PoolKind.HOST:
        return _on_host(touched, host)
    if pool.index >= len(cards):
        return None
    card = _slowest(cards) if engine == "vllm" else cards[pool.index]
    bandwidth = card.bandwidth_bytes_per_s
    if bandwidth is None and card.unified and not host.assumed:
        bandwidth = int(host.bandwidth[0])
    if not bandwidth:
        return None
    reading = READING[engine if engine in READING else estimate.backend]
    return _Place(
        touched=touched,
        rates=reading.rates(bandwidth),
        flops=device_flops(card, bandwidth, engine),
        reading=reading,
        told=f"{card.name} at {bandwidth / GB:,.0f} GB/s",
        unified=card.unified,
    )


def _on_host(touched: Touched, host: HostPace) -> _Place:
    return _Place(
        touched=touched,
        rates=host.rates(),
        flops=host.flops(),
        reading=READING["cpu"],
        told=f"RAM at {host.told}",
        assumed=host.assumed,
    )


def _slowest(cards: tuple[Device, ...]) -> Device:
    """Ranks wait for the last of them."""
    return min(cards, key=lambda card: card.bandwidth_bytes_per_s or 0)


def _cards(machine: Machine, setup: Any, estimate: MemoryEstimate) -> tuple[Device, ...]:
    """Those that the engine is started on, in its order: where not all are used, those with the most memory."""
    engine = estimate.engine
    known = devices_for(machine, engine) if estimate.backend != "cpu" else ()
    ranks = setup.world_size if engine == "vllm" else 0
    count = ranks or len(getattr(setup, "devices", ())) or 1
    if count >= len(known):
        return known
    largest = sorted(range(len(known)), key=lambda place: -known[place].free_bytes)[:count]
    return tuple(known[place] for place in sorted(largest))


# -- times -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One sequence on its places; every method gives seconds of a token, slow and fast."""

    model: Model
    load: Load
    setup: Any
    work: SequenceWork
    places: tuple[_Place, ...]
    engine: str

    def decode(self, filled_tokens: int) -> Range:
        slow, fast = self._around()
        for place in self.places:
            more = _reads(place, filled_tokens)
            slow, fast = slow + more[0] * self._stages, fast + more[1] * self._stages
        return slow, fast

    def _around(self) -> Range:
        """What a token costs beside reading."""
        total = [0.0, 0.0]
        first = self.places[0].reading if self.places else READING["cpu"]
        for end in (0, 1):
            total[end] += first.token_s[end] + self.work.crossings * CROSSING_S[end]
            for place in self.places:
                total[end] += place.touched.layers * self._layer_s(place)[end] * self._stages
            total[end] += self._reducing_s()[end]
        return total[0], total[1]

    def _layer_s(self, place: _Place) -> Range:
        eager = self.engine == "vllm" and self.setup.enforce_eager
        return EAGER_LAYER_S if eager else place.reading.layer_s

    def _reducing_s(self) -> Range:
        times = 2 * len(self.work.working.layers) if self.ranks > 1 else 0
        return times * REDUCING_S[0], times * REDUCING_S[1]

    @property
    def _stages(self) -> int:
        """The bill of vLLM is that of the fullest card: those of a pipeline come one after another."""
        return self.setup.pipeline_parallel_size if self.engine == "vllm" else 1

    @property
    def ranks(self) -> int:
        return self.setup.tensor_parallel_size if self.engine == "vllm" else 1

    @property
    def _batch_tokens(self) -> int:
        return self.load.microbatch_tokens or DEFAULT_BATCH_TOKENS

    def prefill(self, prompt_tokens: int) -> Range | None:
        """A prompt as long as the context at the slow end, a short one at the fast end."""
        parameters = self.work.working.parameters
        if not parameters or any(place.flops is None for place in self.places):
            return None
        # Along a prompt a token looks back on half of it.
        behind = attention_flops(self.model.geometry, prompt_tokens // 2)
        slow = self._prompt_end_s(2.0 * parameters + behind, 0)
        fast = self._prompt_end_s(2.0 * parameters, 1)
        # Cards may work on a prompt one behind the other.
        return slow / self.ranks, fast / self.ranks / max(len(self._devices), 1)

    def _prompt_end_s(self, flops: float, end: int) -> float:
        whole = sum(place.touched.held_bytes for place in self.places) or 1
        pace = EXPERTS_PACE[end] if self.work.working.has_experts else 1.0
        total = 0.0
        for place in self.places:
            launches = place.touched.layers * self._layer_s(place)[end] * PROMPT_KERNELS[end]
            share = place.touched.held_bytes / whole
            total += (
                launches / self._batch_tokens + self._prompt_s(place, flops * share, end) / pace
            )
        return total

    @property
    def _devices(self) -> tuple[_Place, ...]:
        return tuple(one for one in self.places if one.touched.pool.kind is PoolKind.DEVICE)

    def _prompt_s(self, place: _Place, flops: float, end: int) -> float:
        """Weights on the host are sent to a device, which is quicker with a whole micro-batch."""
        device = next(iter(self._devices), place)
        seconds = flops / (device if place.is_host else place).flops_at(end)
        if place.is_host and device is not place:
            link = device.rates[end] if device.unified else LINK_BYTES_PER_S[end]
            seconds += place.touched.held_bytes / link / self._batch_tokens
        return seconds


def _reads(place: _Place, filled_tokens: int) -> Range:
    touched = place.touched
    weights = touched.weights_bytes + touched.state_bytes
    cache = touched.cache_bytes(filled_tokens)
    slow, fast = place.rates
    return (weights + cache / place.reading.cache_share) / slow, (weights + cache) / fast


def _because(places: tuple[_Place, ...], most: int, run: _Run) -> str:
    parts = []
    for place in (one for one in places if one.touched.is_read):
        weights = int(place.touched.weights_bytes + place.touched.state_bytes)
        cache = int(place.touched.cache_bytes(most))
        more = f" and up to {format_bytes(cache)} of cache ({most:,} tokens)" if cache else ""
        parts.append(f"{format_bytes(weights)} of weights{more} from {place.told}")
    told = f"a token reads {'; '.join(parts)}"
    if run.ranks > 1:
        told += f", on each of {run.ranks} cards at once"
    alone = run.engine == "vllm" or (run.load.sequences or 1) > 1
    return f"{told}; for a single request" if alone else told
