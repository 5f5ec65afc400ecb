"""The cards of a plan -> the environment that keeps an engine to them, in the order that was planned for."""

from __future__ import annotations

from edgekit.hardware.budgets import devices_for
from edgekit.hardware.types import Vendor
from edgekit.report.commands.types import Planned

# NVML counts cards by their place on the bus; CUDA the fastest first unless it is told otherwise.
AS_NVML_COUNTS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def environment(planned: Planned) -> dict[str, str]:
    """Empty where all cards are used, and alike or not told apart."""
    plan = planned.plan
    used = plan.result.way.cards
    if not used or used[0].vendor is not Vendor.NVIDIA or plan.wish.nodes > 1:
        return {}
    if _is_partial(planned) and not any(card.partition for card in used):
        chosen = ",".join(str(card.index) for card in used)
        return {**AS_NVML_COUNTS, "CUDA_VISIBLE_DEVICES": chosen}
    alike = len({card.total_bytes for card in used}) == 1
    return {} if alike else dict(AS_NVML_COUNTS)


def notes(planned: Planned) -> list[str]:
    """Where the engine has to be told in words of its own which cards to leave alone."""
    used = planned.plan.result.way.cards
    if not used or not _is_partial(planned):
        return []
    if used[0].vendor is Vendor.NVIDIA:
        wished = planned.plan.wish.machine.what_if
        return ["cards are numbered in the order in which they were named"] if wished else []
    names = " and ".join(card.name for card in used)
    return [
        f"planned for {names} alone: `llama-server --list-devices` names them, -dev NAME keeps to them"
    ]


def _is_partial(planned: Planned) -> bool:
    plan = planned.plan
    known = devices_for(plan.wish.machine, plan.wish.engine)
    return len(plan.result.way.cards) < len(known)
