"""`edgekit plan tier:27b` and `edgekit recommend --tiers`: the tiers of the context-scaling memo."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.device_options import machine_of_arguments
from edgekit.cli.reach_options import is_terminal, screen_width
from edgekit.engines.flags import COMMON, CONTEXT, given_flags, read_number
from edgekit.errors import HardwareError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Callable

    from edgekit.engines.memo import TierMemory, TierPlan, TierWish
    from edgekit.engines.spill import Purpose

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
    from edgekit.engines.memo import plan_tier_on

    tier = find_tier(arguments.model[len(PREFIX) :])
    make = _maker(arguments, drafter=not arguments.no_drafter)
    return _told(plan_tier_on(machine_of_arguments(arguments), tier, make), arguments)


def run_tiers(arguments: argparse.Namespace) -> tuple[str, int]:
    """The largest that the machine holds."""
    from edgekit.engines.memo import recommend_tier_on

    return _told(recommend_tier_on(machine_of_arguments(arguments), _maker(arguments)), arguments)


def _maker(
    arguments: argparse.Namespace, *, drafter: bool = True
) -> Callable[[TierMemory], TierWish]:
    from edgekit.engines.flags import read_flags
    from edgekit.engines.memo import TierWish
    from edgekit.engines.memo.types import MIN_CONTEXT

    _check_options(arguments)
    given = given_flags(arguments)
    context = read_flags((CONTEXT,), given.pop(COMMON, {})).get("context") or None
    if given:
        raise UsageError(
            "a tier is planned for a what-if engine, so flags of real engines do not apply"
        )
    least = read_number("--min-context", arguments.min_context, least=1)
    users = read_number("--users", arguments.users, least=1)
    purpose = read_purpose(arguments.latency)

    def make(memory: TierMemory) -> TierWish:
        return TierWish(
            memory=memory,
            context_tokens=context,
            users=users,
            prefer_accurate_kv=arguments.prefer_accurate_kv,
            with_drafter=drafter,
            purpose=purpose,
            min_context=MIN_CONTEXT if least is None else least,
        )

    return make


# Options of plan and recommend that say nothing about a tier, with their defaults.
_NOT_OF_TIERS: dict[str, tuple[object, ...]] = {
    "plot": (None,), "program": (None,), "nodes": (None,), "why": (False,),
    "task": ("chat",), "limit": (None,), "all_sizes": (False,),
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
    from edgekit.engines.spill import Purpose

    try:
        return Purpose.TEXT if word is None else Purpose(word.lower())
    except ValueError as error:
        raise UsageError(f"--latency must be voice or text (got {word!r:.40})") from error


def _told(plan: TierPlan, arguments: argparse.Namespace) -> tuple[str, int]:
    code = 0 if plan.holds else HardwareError.exit_code
    if arguments.json:
        from edgekit.report.as_json import json_text
        from edgekit.report.tier_json import tier_json

        return json_text(tier_json(plan)), code
    from edgekit.report.tier_text import tier_text

    return tier_text(plan, width=screen_width(), bold=is_terminal(sys.stdout)), code
