"""`edgekit plan tier:27b` and `edgekit recommend --tiers`: the tiers of the context-scaling memo."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.options import is_terminal, machine_of_arguments, screen_width
from edgekit.engines.flags import COMMON, CONTEXT, given_flags, read_number
from edgekit.errors import HardwareError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.spill import Purpose
    from edgekit.bill.types import Task
    from edgekit.catalog.tiers import Tier
    from edgekit.engines.memo.types import TierPlan

PREFIX = "tier:"


def is_tier(name: str) -> bool:
    return name.lower().startswith(PREFIX)


def check_latency(arguments: argparse.Namespace) -> None:
    """Raises UsageError where it would mean nothing."""
    if arguments.latency is not None:
        raise UsageError("--latency only works for tiers: plan tier:27b, recommend --tiers")


def run_tier(arguments: argparse.Namespace) -> tuple[str, int]:
    """One tier, by its name."""
    from edgekit.catalog.tiers import find_tier
    from edgekit.engines.memo.choose import plan_tier_on

    tier = find_tier(arguments.model[len(PREFIX) :])
    (task,) = _tasks(arguments, (tier,), no_drafter=arguments.no_drafter)
    return _answer(plan_tier_on(task), arguments)


def run_tiers(arguments: argparse.Namespace) -> tuple[str, int]:
    """The largest that fits the machine."""
    from edgekit.catalog.tiers import tiers
    from edgekit.engines.memo.choose import recommend_tier_on

    return _answer(recommend_tier_on(_tasks(arguments, tiers())), arguments)


def _tasks(
    arguments: argparse.Namespace, among: tuple[Tier, ...], *, no_drafter: bool = False
) -> list[Task]:
    """The same for each tier."""
    from edgekit.engines.flags import read_flags
    from edgekit.engines.memo import ENGINE
    from edgekit.engines.memo.models import tier_task

    _check_options(arguments)
    given = given_flags(arguments)
    values = read_flags((CONTEXT,), given.pop(COMMON, {}))
    if given:
        raise UsageError(
            "a tier is planned for a what-if engine, so flags of real engines do not apply"
        )
    least = read_number("--min-context", arguments.min_context, least=1)
    users = read_number("--users", arguments.users, least=1)
    values["latency"] = read_purpose(arguments.latency).value
    values["prefer_accurate_kv"] = arguments.prefer_accurate_kv
    load, setup = ENGINE.setup({**values, "no_drafter": no_drafter})
    machine = machine_of_arguments(arguments)
    if users is not None:
        load = ENGINE.load_for_users(load, users, 0)
    return [tier_task(tier, machine, load, setup, least) for tier in among]


# Options of plan and recommend that say nothing about a tier, with their defaults.
_NOT_OF_TIERS: dict[str, tuple[object, ...]] = {
    "plot": (None,), "program": (None,), "nodes": (None,), "why": (False,),
    "task": ("chat",), "limit": (None,), "all_sizes": (False,),
    "reserve": (None,), "max_use": (None,),
}  # fmt: skip


def _check_options(arguments: argparse.Namespace) -> None:
    if (engine := arguments.engine) is not None:
        raise UsageError(
            f"{engine} does not have the compressed caches of tiers: leave out --engine"
        )
    for name, usual in _NOT_OF_TIERS.items():
        if getattr(arguments, name, usual[0]) not in usual:
            flag = {"program": "for"}.get(name, name.replace("_", "-"))
            raise UsageError(
                f"--{flag} does not apply to a tier, which is planned for a what-if engine"
            )


def read_purpose(word: str | None) -> Purpose:
    from edgekit.bill.spill import Purpose

    try:
        return Purpose.TEXT if word is None else Purpose(word.lower())
    except ValueError as error:
        raise UsageError(f"--latency must be voice or text (got {word!r:.40})") from error


def _answer(plan: TierPlan, arguments: argparse.Namespace) -> tuple[str, int]:
    code = 0 if plan.verdict.can_load else HardwareError.exit_code
    if arguments.json:
        from edgekit.report.json import json_text
        from edgekit.report.tier_json import tier_json

        return json_text(tier_json(plan)), code
    from edgekit.report.tier_text import tier_text

    return tier_text(plan, width=screen_width(), bold=is_terminal(sys.stdout)), code
