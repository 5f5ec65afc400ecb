"""`plan` and `recommend`: ask, and print the answer as text or JSON."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgekit.app.plan import plan as make_plan
from edgekit.app.recommend import recommend
from edgekit.app.tiers import inapplicable, plan_tier, recommend_tier
from edgekit.cli.check import (
    confirmed,
    for_program,
    pasted,
)
from edgekit.cli.options import (
    is_terminal,
    reach_of,
    screen,
    show_progress,
)
from edgekit.engines import default_engine
from edgekit.engines.flags import COMMON, given_flags
from edgekit.errors import HardwareError, UsageError
from edgekit.plan.curve import plan_curves
from edgekit.report.cards import cards_json, cards_text
from edgekit.report.json import json_text
from edgekit.report.plan import plan_json, plan_text
from edgekit.report.plot import write_plot
from edgekit.report.tier import tier_json, tier_text
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.app.answers import Recommendation
    from edgekit.engines.commands import Command
    from edgekit.engines.memo.policy import TierPlan
    from edgekit.plan.plan import Plan


TIER = "tier:"  # what the name of a tier begins with


def run_plan(arguments: argparse.Namespace) -> tuple[str, int]:
    """The plan as text; that nothing fits is an exit code."""
    request = Request.from_argv(arguments)  # errors in flags come before anything is read
    if arguments.model.lower().startswith(TIER):
        for flag, value in (("plot", arguments.plot), ("for", arguments.program)):
            if value is not None:
                raise inapplicable(flag)
        return tier_answer(plan_tier(arguments.model, request), arguments)
    check_latency(request)
    with reach_of(arguments, quiet=arguments.json) as reach:
        session = Session(reach=reach, confirm=confirmed(arguments, alone=True))
        found = make_plan(arguments.model, request, session)
    plan, notes = found.plan, found.notes
    if arguments.plot is not None:
        _plot(plan, arguments.plot)
        notes = (*notes, f"wrote a plot of memory versus context to {arguments.plot}")
    code = 0 if plan.fits else HardwareError.exit_code
    return _plan_told(plan, notes, for_program(found.ready, arguments.program), arguments), code


def check_latency(request: Request) -> None:
    """Raises UsageError where --latency would mean nothing."""
    if request.latency is not None:
        raise UsageError("--latency only works for tiers: plan tier:27b, recommend --tiers")


def tier_answer(plan: TierPlan, arguments: argparse.Namespace) -> tuple[str, int]:
    """The text or JSON of a tier's plan, and the exit code."""
    if arguments.why:
        raise inapplicable("why")
    code = 0 if plan.verdict.can_load else HardwareError.exit_code
    if arguments.json:
        return json_text(tier_json(plan)), code
    return tier_text(plan, screen()), code


def _plot(plan: Plan, path: str) -> None:

    write_plot(plan_curves(plan), path, model=plan.task.label, machine=plan.task.machine.name)


def _plan_told(
    plan: Plan, notes: tuple[str, ...], ready: tuple[Command, ...], arguments: argparse.Namespace
) -> str:
    if arguments.json:
        return json_text(plan_json(plan, ready=ready, notes=notes))
    if arguments.program is not None and ready:
        return pasted(ready)

    return plan_text(
        plan,
        ready=ready,
        notes=notes,
        screen=screen(),
        why=arguments.why,
    )


def run_recommend(arguments: argparse.Namespace) -> tuple[str, int]:
    """The best few as text; that nothing fits is an exit code."""
    if arguments.tiers:
        return tier_answer(recommend_tier(Request.from_argv(arguments)), arguments)

    arguments.engine = arguments.engine or default_engine().name
    request = Request.from_argv(arguments, one_engine=True)
    check_latency(request)
    shows = is_terminal(sys.stderr) and not arguments.json
    try:
        best = recommend(request, Session(reach=Reach(progress=show_progress if shows else None)))
    finally:
        if shows:
            show_progress("")
    code = 0 if best.suggestions else HardwareError.exit_code
    return _recommend_told(best, arguments), code


def _recommend_told(best: Recommendation, arguments: argparse.Namespace) -> str:
    if arguments.json:
        return json_text(cards_json(best))

    return cards_text(
        best,
        words=shlex.join(_same_words(arguments)),
        screen=screen(),
        why=arguments.why,
    )


def _same_words(arguments: argparse.Namespace) -> Iterator[str]:
    """The flags with which `edgekit plan` plans for the same."""
    for device in arguments.device:
        yield from ("--device", device)
    for name in ("ram", "vram", "users", "min_context", "job"):
        value = getattr(arguments, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", value)
    context = given_flags(arguments).get(COMMON, {}).get("context")
    if context is not None:
        yield from ("-c", context)
    if arguments.engine != default_engine().name:
        yield from ("--engine", arguments.engine)
    if arguments.prefer_accurate_kv:
        yield "--prefer-accurate-kv"
