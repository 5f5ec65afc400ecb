"""A way at its price -> how fast it would be with a usual fill of the window, and what plans are compared by."""

from __future__ import annotations

import math
from dataclasses import replace

from edgekit.basis import Basis
from edgekit.hardware.budgets import devices_for
from edgekit.hardware.throughput import READING, Reading, host_pace
from edgekit.hardware.types import Accelerator, Machine
from edgekit.plan.placement import BACKENDS
from edgekit.plan.planned import Speed
from edgekit.plan.speed import expected_speed
from edgekit.plan.types import Question, Weighed

USUAL_FILL_TOKENS = 4096  # in the window at the slow end: a long conversation


def pace(
    question: Question, weighed: Weighed, fill_tokens: int = USUAL_FILL_TOKENS
) -> Speed | None:
    """None where nothing is known of a device's bandwidth."""
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
    )
    if found is None or question.nodes == 1:
        return found
    told = f"{found.because}; what the network between machines costs is not in it"
    return replace(found, basis=Basis.ASSUMED, because=told)


def fastest_middle(
    work_bytes: float, held_bytes: int, machine: Machine, engine: str
) -> float | None:
    """No model that reads so many bytes for a token is expected to be faster; None where nothing is known.

    The geometric mean of sums is never below the sum of geometric means, so leaving out all but the reading is safe.
    """
    host = host_pace(machine)
    cards = devices_for(machine, engine)
    if not cards:
        return math.sqrt(math.prod(host.rates())) / work_bytes
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
    return 1 / time_s


def _reading(card: Accelerator, engine: str) -> Reading:
    return READING[engine if engine in READING else BACKENDS.get(card.vendor, "vulkan")]


def steady_pace(question: Question, weighed: Weighed) -> float | None:
    """Tokens a second to expect, where one number has to do: the geometric mean of the range, with an empty cache.

    A more accurate cache is read more slowly, and there is one where there is more memory: so it must not count.
    """
    speed = pace(question, weighed, 0)
    return None if speed is None else math.sqrt(math.prod(speed.decode))
