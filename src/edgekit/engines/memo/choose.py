"""The plan of a tier on a machine, and the best of all tiers, by the levers in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from edgekit.bill.spill import SPILL_FROM_TOKENS
from edgekit.bill.types import Placement, Task
from edgekit.bill.verdict import Decision, Lever, Status, Tried, Usage, Verdict
from edgekit.catalog.tiers import Tier, first_run, ladder
from edgekit.engines.memo.context import ContextChoice, choose_context, room_of
from edgekit.engines.memo.estimate import estimate
from edgekit.engines.memo.guard import assess, least_total_bytes
from edgekit.engines.memo.levers import (
    cache_step,
    choose_drafter,
    choose_sequences,
    context_step,
    for_each,
    spill_step,
)
from edgekit.engines.memo.models import tier_of
from edgekit.engines.memo.placements import placements
from edgekit.engines.memo.types import RamLevel, TierPlan
from edgekit.errors import KvSpillUnsupportedError, UsageError
from edgekit.units import MIB, format_bytes


def plan_tier_on(task: Task) -> TierPlan:
    """`plan_tier` on the machine's largest card, or in its RAM if it does not fit on the card."""
    return _best_on(placements(task), partial(plan_tier, task))


def recommend_tier_on(tasks: Sequence[Task]) -> TierPlan:
    """`recommend_tier` on the machine's largest card, or in its RAM if none fits on the card."""
    return _best_on(placements(tasks[0]), partial(recommend_tier, tasks))


def _best_on(every: Iterable[Placement], plan: Callable[..., TierPlan]) -> TierPlan:
    """Whole in one memory, then spilled from the first; otherwise the plan with the least missing memory."""
    first, *others = every
    whole = [plan(one, may_spill=False) for one in (first, *others)]
    found = next((one for one in whole if one.verdict.can_load), None) or plan(first)
    return found if found.verdict.can_load else min(whole, key=lambda one: one.to_add_bytes)


def plan_tier(task: Task, placement: Placement, *, may_spill: bool = True) -> TierPlan:
    """What to run of the task's tier in this memory. If it does not fit, the plan has what is missing.

    Raises UsageError or RefusedError for what no memory would be enough for, KvSpillUnsupportedError where a context
    past 64K would have to be spilled and must not be.
    """
    tier = tier_of(task.model)
    context = choose_context(task, placement, may_spill=may_spill)
    ram = assess(tier, placement.budgets[0], placement.setup.manifest)
    reasons = tuple(_reasons(tier, placement, context))
    if ram.level is RamLevel.WONT_FIT:
        reasons = (ram.because, *reasons)
    fits = not reasons
    drafter, drafter_step = choose_drafter(tier, placement, context, fits=fits)
    sequences, sequences_step = choose_sequences(tier, placement, context, drafter, fits=fits)
    status = Status.WARNING if ram.level is RamLevel.TIGHT else Status.PASSED
    return TierPlan(
        tier=tier,
        layout=context.layout,
        verdict=_verdict(
            task,
            replace(
                placement, setup=replace(placement.setup, drafter=drafter, spill=context.spill)
            ),
            replace(context, load=replace(context.load, sequences=sequences)),
            status if fits else Status.FAILED,
            reasons,
        ),
        ram=ram,
        steps=(
            Decision(lever=Lever.WEIGHTS, value=tier.name, because="as requested"),
            context_step(context),
            cache_step(context),
            spill_step(tier, placement, context),
            drafter_step,
            sequences_step,
        ),
        to_add_bytes=0 if fits else _to_add(tier, placement, context),
    )


def _verdict(
    task: Task,
    placement: Placement,
    context: ContextChoice,
    status: Status,
    reasons: tuple[str, ...],
) -> Verdict:
    room = room_of(task, placement)
    found = estimate(task.model, context.load, placement.setup)
    return Verdict(
        engine=task.engine,
        status=status,
        context_tokens=context.tokens,
        asked=context.is_given,
        max_context=min(room.most_tokens(context.layout), room.largest_context(context.layout)),
        recommended_context=room.safe_context(context.layout),
        native_context=room.tier.native_window,
        cache=context.layout.name,
        cache_asked=task.load.cache_k is not None,
        load=context.load,
        uses=tuple(
            Usage(budget=budget, required_bytes=found.in_pools(budget.pools))
            for budget in placement.budgets
        ),
        estimate=found,
        reasons=reasons,
        window="" if context.is_given else context.because,
        way=placement,
        machine=task.machine,
    )


def recommend_tier(
    tasks: Sequence[Task], placement: Placement, *, may_spill: bool = True
) -> TierPlan:
    """The largest tier that fits, as it is best run; if none does, the smallest and what to add.

    `tasks` ask the same of each tier. Tiers of one line are variants: the one with the longest context is taken. Cold
    pages are spilled only if no tier holds the whole context.
    """
    lines = _lines(tasks)
    tried: list[TierPlan] = []
    for variants in reversed(lines):
        plans = [plan_tier(one, placement, may_spill=False) for one in variants if _is_long(one)]
        tried = [*plans, *tried]
        best = max(plans, key=lambda plan: plan.rank, default=None)
        if best is not None and best.verdict.can_load:
            return _with_model(best, _why_largest(best, tried), _outcomes(tried, best))
    if not tried:
        longest = max(tier_of(task.model).window for task in tasks)
        raise UsageError(
            f"no tier has a context of {tasks[0].load.context_tokens:,} tokens; the longest is {longest:,}"
        )
    spilled = _spilled(lines, placement) if may_spill else None
    none = "no tier fits; this is the smallest"
    return spilled or _with_model(tried[0], none, _outcomes(tried, None))


def first_run_plan(tasks: Sequence[Task], placement: Placement) -> TierPlan:
    """What a machine starts with if nothing was asked for: the 2B, and down from it."""
    rule = f"a first run starts with the {first_run().name}"
    return _first_that_fits((first_run(), *ladder("large")), tasks, placement, rule)


def ladder_plan(kind: str, tasks: Sequence[Task], placement: Placement) -> TierPlan:
    """The first of the ladder for 'small' or 'large' texts that fits the machine."""
    names = ", ".join(tier.name for tier in ladder(kind))
    return _first_that_fits(
        ladder(kind), tasks, placement, f"the ladder for {kind} texts is {names}"
    )


def _first_that_fits(
    rungs: Iterable[Tier], tasks: Sequence[Task], placement: Placement, rule: str
) -> TierPlan:
    by_name = {tier_of(task.model).name: task for task in tasks}
    tried = []
    for name in dict.fromkeys(tier.name for tier in rungs):
        plan = plan_tier(by_name[name], placement, may_spill=False)
        tried.append(plan)
        if plan.verdict.can_load:
            return _with_model(plan, f"{rule}: the first that fits", _outcomes(tried, plan))
    smallest = min(tried, key=lambda plan: plan.tier.weights_bytes)
    return _with_model(smallest, f"{rule}: none of them fits", _outcomes(tried, None))


def _lines(tasks: Sequence[Task]) -> list[list[Task]]:
    """Variants together, the smallest line first."""
    found: dict[str, list[Task]] = {}
    for task in sorted(tasks, key=_size):
        found.setdefault(tier_of(task.model).line, []).append(task)
    return list(found.values())


def _size(task: Task) -> tuple[int, int]:
    tier = tier_of(task.model)
    return tier.weights_bytes, tier.window


def _is_long(task: Task) -> bool:
    """Whether the tier supports the context that was asked for."""
    return (task.load.context_tokens or 0) <= tier_of(task.model).window


def _spilled(lines: list[list[Task]], placement: Placement) -> TierPlan | None:
    """The largest that fits with its cold pages elsewhere; None where the context is too short to spill."""
    refused = None
    for task in (one for variants in reversed(lines) for one in variants if _is_long(one)):
        if (task.load.context_tokens or 0) <= SPILL_FROM_TOKENS:
            return None
        try:
            plan = plan_tier(task, placement)
        except KvSpillUnsupportedError as error:
            refused = refused or error
            continue
        if plan.verdict.can_load:
            why = (
                "no tier has the whole context in memory: the largest that fits with pages spilled"
            )
            return _with_model(plan, why, ())
    if refused is not None:
        raise refused
    return None


def _with_model(plan: TierPlan, because: str, tried: tuple[Tried, ...]) -> TierPlan:
    first = Decision(lever=Lever.WEIGHTS, value=plan.tier.name, because=because, tried=tried)
    return replace(plan, steps=(first, *plan.steps[1:]))


def _why_largest(best: TierPlan, tried: list[TierPlan]) -> str:
    for plan in tried:
        if plan.tier.weights_bytes > best.tier.weights_bytes:
            return f"the largest tier that fits; {plan.tier.name}: {plan.verdict.reasons[0]}"
    return "the largest tier"


def _outcomes(plans: Iterable[TierPlan], taken: TierPlan | None) -> tuple[Tried, ...]:
    return tuple(
        Tried(
            value=plan.tier.name,
            outcome="; ".join(plan.verdict.reasons) or f"{plan.verdict.context_tokens:,} tokens",
            taken=plan is taken,
        )
        for plan in plans
    )


def _reasons(tier: Tier, placement: Placement, context: ContextChoice) -> Iterator[str]:
    if context.lacking_bytes:
        usable = placement.budgets[0].available_bytes
        yield (
            f"the {tier.name} with {context.tokens:,} tokens{for_each(context.load)} "
            f"({context.layout.name}) needs {format_bytes(usable + context.lacking_bytes)}, "
            f"{format_bytes(usable)} usable"
        )


def _to_add(tier: Tier, placement: Placement, context: ContextChoice) -> int:
    """Memory that is missing for the guard and for the bill, in whole MiB."""
    memory = placement.budgets[0]
    guard = least_total_bytes(tier, memory, placement.setup.manifest) - memory.total_bytes
    # what others use is first missing from the reserve
    below = max(0, memory.reserve_bytes - memory.free_bytes) if context.lacking_bytes else 0
    return -(-max(guard, context.lacking_bytes + below) // MIB) * MIB
