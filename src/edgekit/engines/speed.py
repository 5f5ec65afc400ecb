"""A bill on a machine -> expected tokens per second: a typical value, and an interval that holds in four of five cases.

The formula and its constants are in speed_formula.py, the devices it reads from in speed_places.py. Engines differ in
a `SequenceRun`: engines/X/speed.py makes it. Always modelled, however exact the bill is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from edgekit.bill.types import Component, Moment, PricedLoad, Speed, Task
from edgekit.engines import engine_named
from edgekit.engines.speed_formula import (
    constants,
    decode_s,
    measured_generations,
    prompt_token_s,
)
from edgekit.engines.speed_places import (
    Place,
    SequenceRun,
    architecture_of,
    card_bandwidth,
    host_speed,
    instructions_of,
    places_of,
)
from edgekit.machine.types import Device, Machine
from edgekit.units import Basis, format_bytes

USUAL_FILL_TOKENS = 1024  # in the context: a short conversation
USUAL = Moment(USUAL_FILL_TOKENS)


def expected_speed(task: Task, priced: PricedLoad, moment: Moment = USUAL) -> Speed | None:
    """The speed of a priced load. None if a device's bandwidth is unknown, or if only the model's name is known."""
    bill = priced.estimate
    weights = [line for line in bill.lines if line.component is Component.WEIGHTS and not line.part]
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


# -- the speed and its interval --------------------------------------------------------------


class MeasuredRatio(NamedTuple):
    """Measured speed / expected speed of an engine on this machine."""

    decode: float = 1.0
    prefill: float | None = None  # not measured
    text: str = ""  # what was measured, and when


def modelled_speed(
    run: SequenceRun, moment: Moment, measured: MeasuredRatio | None = None
) -> Speed | None:
    """The speed; None if a device of unknown bandwidth is read."""
    places = places_of(run)
    if places is None:
        return None
    values, ratio = constants(), measured or MeasuredRatio()
    decode = ratio.decode / decode_s(run, places, moment, values)
    prompt_s = prompt_token_s(run, places, moment, values)
    prefill = None
    if prompt_s is not None:
        typical, is_measured = (ratio.prefill or 1.0) / prompt_s, ratio.prefill is not None
        prefill = speed_range(typical, places, moment, is_prompt=True, calibrated=is_measured)
    because = _because(run, places, moment.filled_tokens)
    if measured is not None and measured.text:
        because += f"; {measured.text}"
    assumed = any(place.assumed and place.reads.is_read for place in places)
    return Speed(
        decode=speed_range(decode, places, moment, calibrated=measured is not None),
        prefill=prefill,
        because=because,
        basis=Basis.ASSUMED if assumed else Basis.MODELLED,
    )


def speed_range(
    typical: float,
    places: tuple[Place, ...],
    moment: Moment,
    *,
    is_prompt: bool = False,
    calibrated: bool = False,
) -> tuple[float, float]:
    """The interval of a speed."""
    values, word = constants(), "prompt" if is_prompt else "decode"
    kind = speed_kind(places, moment, is_prompt=is_prompt)
    spread = values[f"spread.{word}.{kind}"]
    if calibrated and kind not in {"assumed", "users"}:  # a calibration measures one user
        spread = min(spread, values[f"spread.{word}.calibrated"])
    return typical / spread, typical * spread


def speed_kind(places: tuple[Place, ...], moment: Moment, *, is_prompt: bool) -> str:
    """What decides how wide the interval is: the kind of machine, and whether a machine like it was measured."""
    read = [place for place in places if place.reads.is_read]
    if any(place.guessed for place in read):
        return "assumed"
    if moment.users * (1 + moment.drafted_tokens) > 1 and not is_prompt:
        return "users"
    hosts = sum(place.is_host for place in read)
    if hosts:
        return "cpu" if hosts == len(read) else "split"
    known = measured_generations()["prompt" if is_prompt else "decode"]
    return "card" if all(place.generation in known for place in read) else "new_card"


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
        return bandwidth * min(1.0, values.product("weights", backend, architecture) * fastest)

    max_scale = 1.0  # the largest measured ratio that a speed may be multiplied by
    if machine.measured is not None and not machine.what_if:
        for measured in machine.measured.engines:
            pace = measured.pace
            if measured.engine == engine and pace is not None and pace.expected_decode:
                max_scale = max(max_scale, pace.decode_tokens_per_s / pace.expected_decode)
    ram = host_speed(machine)
    host = rate(ram.bandwidth, "cpu", instructions_of(machine))
    if not cards:
        return max_scale * host / read_bytes
    rates = []
    for card, backend in cards:
        bandwidth = card_bandwidth(card, ram)
        if not bandwidth:
            return None
        rates.append(rate(bandwidth, backend, architecture_of(card)))
    on_cards = min(1.0, sum(card.free_bytes for card, _ in cards) / max(held_bytes, 1))
    time_s = read_bytes * on_cards / (max(rates) * ranks)
    if not any(card.unified for card, _ in cards):
        time_s += read_bytes * (1 - on_cards) / host
    return max_scale / time_s
