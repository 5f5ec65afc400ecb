"""`plan` and `recommend`: the answer as text or JSON."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgekit.app.plan import plan as make_plan
from edgekit.app.recommend import recommend
from edgekit.app.tiers import inapplicable, plan_tier, recommend_tier
from edgekit.cli.check import download_confirmation, for_program, paste_text
from edgekit.cli.console import is_terminal, open_session, screen, show_progress
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

if TYPE_CHECKING:
    from edgekit.engines.memo.policy import TierPlan


TIER = "tier:"  # prefix of a tier's name


def run_plan(arguments: argparse.Namespace) -> tuple[str, int]:
    """The plan as text; if nothing fits, the exit code says so."""
    request = Request.from_argv(arguments)  # errors in flags come before anything is read
    if arguments.model.lower().startswith(TIER):
        for flag, value in (("plot", arguments.plot), ("for", arguments.program)):
            if value is not None:
                raise inapplicable(flag)
        return tier_answer(plan_tier(arguments.model, request), arguments)
    check_latency(request)
    with open_session(
        arguments, quiet=arguments.json, confirm=download_confirmation(arguments)
    ) as session:
        answer = make_plan(arguments.model, request, session)
    plan, notes = answer.plan, answer.notes
    if arguments.plot is not None:
        task = plan.task
        write_plot(plan_curves(plan), arguments.plot, model=task.label, machine=task.machine.name)
        notes = (*notes, f"wrote a plot of memory versus context to {arguments.plot}")
    code = 0 if plan.fits and not plan.result.is_too_slow else HardwareError.exit_code
    ready = for_program(answer.ready, arguments.program)
    if arguments.json:
        return json_text(plan_json(plan, ready=ready, notes=notes)), code
    if arguments.program is not None and ready:
        return paste_text(ready), code
    return plan_text(plan, ready=ready, notes=notes, screen=screen(), why=arguments.why), code


def check_latency(request: Request) -> None:
    """Raises UsageError if --latency is given: only tiers have it."""
    if request.latency is not None:
        raise UsageError("--latency only works for tiers: plan tier:27b, recommend --tiers")


def tier_answer(plan: TierPlan, arguments: argparse.Namespace) -> tuple[str, int]:
    """The text or JSON of a tier's plan, and the exit code."""
    if arguments.why:
        raise inapplicable("why")
    code = 0 if plan.verdict.can_load else HardwareError.exit_code
    return json_text(tier_json(plan)) if arguments.json else tier_text(plan, screen()), code


def run_recommend(arguments: argparse.Namespace) -> tuple[str, int]:
    """The best models as text; if nothing fits, the exit code says so."""
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
    if arguments.json:
        return json_text(cards_json(best)), code
    words = shlex.join(plan_words(arguments))
    return cards_text(best, words=words, screen=screen(), why=arguments.why), code


def plan_words(arguments: argparse.Namespace) -> Iterator[str]:
    """The flags with which `edgekit plan` and `check` answer the same request for one model."""
    for device in arguments.device:
        yield from ("--device", device)
    names = ("ram", "vram", "cpu", "reserve", "max_use", "users", "min_context", "min_speed", "job")
    for name in names:
        value = getattr(arguments, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", value)
    given = given_flags(arguments).get(COMMON, {})
    for key, flag in (("context", "-c"), ("quant", "--quant")):
        if key in given:
            yield from (flag, given[key])
    if arguments.engine != default_engine().name:
        yield from ("--engine", arguments.engine)
    if arguments.prefer_accurate_kv:
        yield "--prefer-accurate-kv"
