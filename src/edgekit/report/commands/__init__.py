"""A plan -> texts that are ready to paste: the commands, files and settings of the programs that run its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgekit.report.commands.types import Command, Planned

if TYPE_CHECKING:
    from edgekit.bill.task import Placement
    from edgekit.bill.verdict import Verdict
    from edgekit.plan.planned import Plan
    from edgekit.sources.types import ModelFiles

__all__ = ["Command", "commands_of", "ready_commands"]


def commands_of(
    result: Verdict,
    *,
    label: str,
    repository: str = "",
    files: ModelFiles | None = None,
    users: int | None = None,
    more: tuple[str, ...] = (),
) -> tuple[Command, ...]:
    """The commands of a verdict: those of a plan with the same choices."""
    from edgekit.plan.planned import Plan, Wish

    if result.variant is None:
        return ()
    wish = Wish(
        label=label,
        variants=(result.variant,),
        engine=result.engine,
        machine=result.machine,
        users=users,
        repository=repository,
    )
    plan = Plan(wish=wish, variant=result.variant, load=result.load, result=result, decisions=())
    return ready_commands(plan, files=files, more=more)


def ready_commands(
    plan: Plan, *, files: ModelFiles | None = None, more: tuple[str, ...] = ()
) -> tuple[Command, ...]:
    """In the order in which they are to be run; `files` are those the wish's model was found in."""
    from edgekit.report.commands import limits

    planned = Planned(plan=plan, files=files, more=more)
    return (*limits.ready(planned), *(one for make in _makers(plan) for one in make(planned)))


def _makers(plan: Plan) -> tuple[Callable[[Planned], Iterator[Command]], ...]:
    """A program's file imports its whole engine: only those of this engine."""
    from edgekit.report.commands import lm_studio

    if plan.wish.engine == "vllm":
        from edgekit.report.commands import vllm

        return (vllm.ready,)
    if plan.wish.engine == "mlx":
        from edgekit.report.commands import mlx

        return mlx.ready, lm_studio.ready
    from edgekit.report.commands import llamacpp, ollama

    if _is_by_hand(plan.result.way):
        return (llamacpp.ready,)  # the others have no flags for it
    return llamacpp.ready, ollama.ready, lm_studio.ready


def _is_by_hand(way: Placement) -> bool:
    """Placed with -ot, -sm or --rpc that the user gave."""
    from edgekit.engines.llamacpp.types import SplitMode

    setup = way.setup
    moved = setup.overrides and not way.by_tensor
    return bool(moved or setup.servers) or setup.split_mode is not SplitMode.LAYER
