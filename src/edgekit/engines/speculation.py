"""The speed with a draft model, for a stated share of its tokens that the model accepts.

A round drafts k tokens one after another; the model then checks them in one pass, which also gives the next token. If
each drafted token is accepted with probability a, up to the first that is not, a round gives 1 + a + ... + a^k tokens.
The share depends on the two models and on the text, so no speed is given without it.
"""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.types import Moment, PricedLoad, Speculation, Speed, Task
from edgekit.engines import engine_named
from edgekit.engines.speed import USUAL, MeasuredRatio, expected_speed, moment_of, speed_range
from edgekit.engines.speed_formula import constants, decode_s
from edgekit.engines.speed_places import SequenceRun, places_of
from edgekit.units import Basis


def expected_speculation(
    task: Task, priced: PricedLoad, moment: Moment = USUAL
) -> Speculation | None:
    """The speed with the task's drafter; None without a drafter or a stated acceptance, or if a speed is unknown."""
    engine, drafter, acceptance = engine_named(task.engine), task.drafter, task.acceptance
    draft_tokens = engine.draft_tokens(priced.placement.setup)
    if drafter is None or acceptance is None or not draft_tokens:
        return None
    plain = expected_speed(task, priced, moment)
    sized, at = moment_of(task, priced, moment)
    at = at._replace(drafted_tokens=draft_tokens)
    speed = engine.speed(sized, priced.placement, priced.estimate, at)
    if plain is None or speed is None:
        return None
    if plain.basis is Basis.ASSUMED:
        speed = replace(speed, basis=Basis.ASSUMED)
    return Speculation(
        drafter=drafter, acceptance=acceptance, draft_tokens=draft_tokens, speed=speed
    )


def modelled_speculation(
    run: SequenceRun,
    drafter: SequenceRun,
    moment: Moment,
    acceptance: float,
    measured: MeasuredRatio | None = None,
) -> Speed | None:
    """The speed of `run` when `drafter` drafts the moment's tokens; None if a device of unknown bandwidth is read."""
    places, draft_places = places_of(run), places_of(drafter)
    if places is None or draft_places is None:
        return None
    values, drafted = constants(), moment.drafted_tokens
    draft_s = decode_s(drafter, draft_places, moment._replace(drafted_tokens=0), values)
    round_s = drafted * draft_s + decode_s(run, places, moment, values)
    tokens = sum(acceptance**count for count in range(drafted + 1))
    ratio = measured or MeasuredRatio()
    return Speed(
        decode=speed_range(tokens / round_s * ratio.decode, places, moment),
        prefill=None,
        because=f"{tokens:.3g} tokens of each {drafted + 1} that are checked together",
    )
