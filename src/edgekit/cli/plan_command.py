"""`edgekit plan MODEL`: parse, call, print."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from edgekit.cli.check_command import (
    add_download_options,
    add_program_option,
    confirmed,
    for_program,
    pasted,
)
from edgekit.cli.options import (
    CHOSEN_CONTEXT,
    ENVIRONMENT,
    MODEL_FORMS,
    add_device_options,
    add_engine_flags,
    add_limit_options,
    add_plan_options,
    add_reach_options,
    reach_of,
    screen,
)
from edgekit.cli.parser import COMMANDS
from edgekit.engines import every_engine, machine_keys, planned_engines
from edgekit.errors import HardwareError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.engines.commands import Command
    from edgekit.engines.memo.policy import TierPlan
    from edgekit.plan.plan import Plan
    from edgekit.request import Request

TIER = "tier:"  # what the name of a tier begins with
_DESCRIPTION = (
    "How to run the model on this machine, or on another: quantisation, context, KV cache, layers on the GPU, draft "
    "model and number of users, each with its reason, and the commands that start it."
)
_EXAMPLES = """
examples:
  edgekit plan qwen3-30b-a3b
  edgekit plan gemma-3-27b --device "RTX 4090" --ram 64G -c 32k --why
  edgekit plan qwen3-8b --engine vllm --device h100 --users 8 -c 16k

exit codes: 0 there is a plan, 3 nothing fits or the engine cannot run there, 2 wrong usage, contradicting flags or
refused by the engine, 4 not found, no access or no network, 5 unreadable or unsupported
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "plan",
        help=COMMANDS["plan"],
        usage="edgekit plan MODEL [--quant NAME] [-c N] [--users N] [--device NAME] [--engine NAME] [options]",
        description=_DESCRIPTION,
        epilog=MODEL_FORMS + _EXAMPLES + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="file, folder, hub id, URL or name")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument(
        "--why",
        action="store_true",
        help="add every decision, what was tried, and how each figure is known",
    )
    add_program_option(parser)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw memory versus context as .svg or .png (needs 'edgekit-models[plot]')",
    )
    add_plan_options(parser)
    parser.add_argument("--no-drafter", action="store_true", help="do not look for a draft model")
    parser.add_argument(
        "--nodes", metavar="N", help="number of machines like this one, joined by Ray (vLLM only)"
    )
    add_download_options(parser)
    add_device_options(parser)
    add_limit_options(parser)
    add_reach_options(parser)
    hidden = (flag.key for one in every_engine() for flag in one.flags if flag.not_planned)
    add_engine_flags(
        parser,
        engines=planned_engines(),
        hidden=frozenset(hidden),
        context_help=CHOSEN_CONTEXT,
        without=machine_keys(),
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """The plan as text; that nothing fits is an exit code."""
    from edgekit.app.plan import plan as make_plan
    from edgekit.request import Request, Session

    request = Request.from_argv(arguments)  # errors in flags come before anything is read
    if arguments.model.lower().startswith(TIER):
        from edgekit.app.tiers import inapplicable, plan_tier

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
    return _told(plan, notes, for_program(found.ready, arguments.program), arguments), code


def check_latency(request: Request) -> None:
    """Raises UsageError where --latency would mean nothing."""
    if request.latency is not None:
        raise UsageError("--latency only works for tiers: plan tier:27b, recommend --tiers")


def tier_answer(plan: TierPlan, arguments: argparse.Namespace) -> tuple[str, int]:
    """The text or JSON of a tier's plan, and the exit code."""
    from edgekit.app.tiers import inapplicable
    from edgekit.report.json import json_text
    from edgekit.report.tier import tier_json, tier_text

    if arguments.why:
        raise inapplicable("why")
    code = 0 if plan.verdict.can_load else HardwareError.exit_code
    if arguments.json:
        return json_text(tier_json(plan)), code
    return tier_text(plan, screen()), code


def _plot(plan: Plan, path: str) -> None:
    from edgekit.plan.curve import plan_curves
    from edgekit.report.plot import write_plot

    write_plot(plan_curves(plan), path, model=plan.task.label, machine=plan.task.machine.name)


def _told(
    plan: Plan, notes: tuple[str, ...], ready: tuple[Command, ...], arguments: argparse.Namespace
) -> str:
    if arguments.json:
        from edgekit.report.json import json_text
        from edgekit.report.plan import plan_json

        return json_text(plan_json(plan, ready=ready, notes=notes))
    if arguments.program is not None and ready:
        return pasted(ready)
    from edgekit.report.plan import plan_text

    return plan_text(
        plan,
        ready=ready,
        notes=notes,
        screen=screen(),
        why=arguments.why,
    )
