"""The cards of a plan -> the environment that keeps an engine to them, in the order that was planned for."""

from __future__ import annotations

from edgekit.machine.types import Vendor
from edgekit.plan.visible_cards import leaves_some, visible_cards
from edgekit.report.commands.types import Planned


def environment(planned: Planned) -> dict[str, str]:
    """Empty where all cards are used, and alike or not told apart."""
    plan = planned.plan
    return (
        {}
        if plan.wish.nodes > 1
        else visible_cards(plan.result.way, plan.result.machine, plan.wish.engine)
    )


def notes(planned: Planned) -> list[str]:
    """Where the engine has to be told in words of its own which cards to leave alone."""
    used = planned.plan.result.way.cards
    if not used or not _is_partial(planned):
        return []
    if used[0].vendor is Vendor.NVIDIA:
        wished = planned.plan.wish.machine.what_if
        return ["GPUs are numbered in the order in which --device names them"] if wished else []
    names = " and ".join(card.name for card in used)
    return [
        f"planned for {names} only: `llama-server --list-devices` shows their names, -dev NAME selects them"
    ]


def _is_partial(planned: Planned) -> bool:
    plan = planned.plan
    return leaves_some(plan.result.way, plan.result.machine, plan.wish.engine)
