"""A way at its price -> how fast it would be with a usual fill of the window, and what plans are compared by."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from edgekit import __version__
from edgekit.basis import Basis
from edgekit.bill.task import Task
from edgekit.bill.types import Component
from edgekit.bill.verdict import Speed, Weighed
from edgekit.engines.budgets import devices_for
from edgekit.engines.llamacpp.types import ALL_LAYERS
from edgekit.engines.speed import READING, Reading, host_pace
from edgekit.machine.calibration import device_key
from edgekit.machine.measured import Pace
from edgekit.machine.types import Device, Machine
from edgekit.plan.placement import BACKENDS
from edgekit.plan.speed import MeasuredRatio, expected_speed
from edgekit.units import MIB

USUAL_FILL_TOKENS = 4096  # in the window at the slow end: a long conversation
LEAST_READ_BYTES = (
    256 * MIB
)  # what a token of a smaller model reads may lie in a processor's caches
CARD_SPREAD = 0.15  # how far another model is off, by what one did on the same card
CORE_SPREAD = 0.3  # ... on the same processor: how packed weights are counts for more
BANDWIDTH_OFF = 0.1  # an expectation from another bandwidth than this is another expectation


def pace(question: Task, weighed: Weighed, fill_tokens: int = USUAL_FILL_TOKENS) -> Speed | None:
    """None where it is not known: of a device without a bandwidth, of weights that are only assumed, and of the
    built-in engine, which may have to read from a disk.
    """
    lines = weighed.estimate.lines
    weights = (line for line in lines if line.component is Component.WEIGHTS)
    if question.engine == "stream" or any(line.basis is Basis.ASSUMED for line in weights):
        return None
    way = weighed.way
    machine = replace(question.machine, devices=way.cards)
    load = replace(question.load, context_tokens=weighed.context_tokens)
    found = expected_speed(
        question.model,
        load,
        way.setup,
        weighed.estimate,
        machine,
        question.engine,
        filled=(0, min(weighed.context_tokens, fill_tokens)),
        calibration=measured_pace(machine, way.setup, question.engine),
    )
    if found is None or question.nodes == 1:
        return found
    told = f"{found.because}; the network between the machines is not included"
    return replace(found, basis=Basis.ASSUMED, because=told)


def measured_pace(machine: Machine, setup: Any, engine: str) -> MeasuredRatio | None:
    """What this machine did, where it was measured in the same place: all on its cards, or all on its processor.

    None where what was measured says nothing of it: a model that caches hold, an expectation that has changed since.
    """
    if engine != "llama.cpp" or machine.measured is None or machine.what_if:
        return None
    if setup.has_device and not _is_whole(setup):
        return None
    device = device_key(machine, machine.devices if setup.has_device else ())
    found = machine.measured.engine(engine, device)
    if found is None or found.pace is None or not _still_holds(found.pace, machine):
        return None
    return MeasuredRatio(
        decode=_ratio(found.pace.decode_tokens_per_s, found.pace.expected_decode),
        prefill=_ratio(found.pace.prefill_tokens_per_s, found.pace.expected_prefill),
        spread=CARD_SPREAD if setup.has_device else CORE_SPREAD,
        told=f"scaled to {found.pace.label} as measured here with {found.through} {found.version} on {found.pace.date}",
    )


def _is_whole(setup: Any) -> bool:
    divided = setup.cpu_moe or setup.n_cpu_moe or not setup.offload_kqv
    divided = divided or setup.overrides or setup.servers
    return setup.n_gpu_layers == ALL_LAYERS and not divided


def _still_holds(measured: Pace, machine: Machine) -> bool:
    known = None if machine.host is None else machine.host.bandwidth_bytes_per_s
    now, then = known or 0, measured.bandwidth_bytes_per_s or 0
    if measured.expected_decode is None:
        return False
    is_same = abs(now - then) <= BANDWIDTH_OFF * then and measured.edgekit == __version__
    return is_same and measured.bytes_per_token >= LEAST_READ_BYTES


def _ratio(measured: float, expected: float | None) -> float:
    return 1.0 if expected is None else measured / expected


def fastest_middle(
    work_bytes: float, held_bytes: int, machine: Machine, engine: str
) -> float | None:
    """No model that reads so many bytes for a token is expected to be faster; None where nothing is known.

    The geometric mean of sums is never below the sum of geometric means, so leaving out all but the reading is safe.
    """
    most = _fastest_ratio(machine, engine)
    host = host_pace(machine)
    cards = devices_for(machine, engine)
    if not cards:
        return most * math.sqrt(math.prod(host.rates())) / work_bytes
    if any(card.bandwidth_bytes_per_s is None for card in cards):
        return None
    rates = [
        math.sqrt(math.prod(_reading(card, engine).rates(card.bandwidth_bytes_per_s or 1)))
        for card in cards
    ]
    ranks = len(cards) if engine == "vllm" else 1
    on_cards = min(1.0, sum(card.free_bytes for card in cards) / max(held_bytes, 1))
    time_s = work_bytes * on_cards / (max(rates) * ranks)
    if not any(card.unified for card in cards):
        time_s += work_bytes * (1 - on_cards) / math.sqrt(math.prod(host.rates()))
    return most / time_s


def _fastest_ratio(machine: Machine, engine: str) -> float:
    """No speed is scaled by more than this."""
    if machine.measured is None or machine.what_if:
        return 1.0
    paces = [one.pace for one in machine.measured.engines if one.engine == engine]
    known = (_ratio(one.decode_tokens_per_s, one.expected_decode) for one in paces if one)
    return max((1.0, *known))


def _reading(card: Device, engine: str) -> Reading:
    return READING[engine if engine in READING else BACKENDS.get(card.vendor, "vulkan")]


def steady_pace(question: Task, weighed: Weighed) -> float | None:
    """Tokens a second to expect, where one number has to do: the geometric mean of the range, with an empty cache.

    A more accurate cache is read more slowly, and there is one where there is more memory: so it must not count.
    """
    speed = pace(question, weighed, 0)
    return None if speed is None else speed.typical
