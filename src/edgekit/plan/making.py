"""A task -> the plan: what to run, one decision after the other, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgekit.bill.decisions import Decision, Lever, Tried
from edgekit.bill.task import Placements, Task
from edgekit.bill.verdict import Change, ChangeKind, Verdict
from edgekit.engines import engine_named
from edgekit.engines.speed import steady_throughput
from edgekit.errors import UsageError
from edgekit.plan.changes import changes
from edgekit.plan.choice import Attempt, Candidate, Choice, choose
from edgekit.plan.drafting import propose_drafter
from edgekit.plan.placement import whole_placements
from edgekit.plan.planned import Plan
from edgekit.plan.tasks import check_users
from edgekit.plan.users import decide_sequences
from edgekit.plan.verdict import pinned_candidate, result_for
from edgekit.units import format_bytes

MOST_NODES = 64


def make_plan(
    task: Task, *, choice: Choice | None = None, thorough: bool = True, helpful: bool = True
) -> Plan:
    """What to run: weights, placement, context and cache as SPEC A4 chooses them (`choice`, where that is known).

    `thorough` also looks for a draft model, for the longest context, for how many users there is room, and what a
    limit of the system holds back; a list of many models does without. A plan that does not fit is a result;
    `helpful` says what would help then.

    Raises UsageError for flags that contradict each other, HardwareError where the engine has no hardware there,
    RefusedError where it takes no such model.
    """
    check_task(task)
    choice = choice or choose(task)
    if not choice.fits:
        return _nothing_fits(task, choice, helpful=helpful)
    found = pinned_candidate(choice.candidate)
    plan = planned(task, found, thorough=thorough)
    decisions = list(_decisions(choice, found, plan.result))
    drafter = None
    if thorough:
        drafter, draft = propose_drafter(found)
        decisions += [draft] if draft is not None else []
        helps = changes(replace(task, model=found.variant.model), plan.result)
        decisions += _further(found, helps)
        plan = replace(plan, changes=helps)
    return replace(plan, decisions=tuple(decisions), drafter=drafter)


def find_plan(task: Task) -> Plan | None:
    """The plan without its costly parts; None where nothing fits."""
    plan = make_plan(task, thorough=False, helpful=False)
    return plan if plan.fits else None


def planned(task: Task, found: Candidate, *, thorough: bool = False) -> Plan:
    """A candidate as a plan, before its reasons are listed."""
    result = result_for(found, max_context=None if thorough else found.tokens)
    return Plan(
        task=task,
        variant=found.variant,
        load=result.load,
        choice=found.choice,
        result=result,
        decisions=(),
        speed=result.speed,
        steady_tokens_per_s=steady_throughput(found.task, found.weighed),
    )


def check_planned(engine: str) -> None:
    """Raises UsageError for an engine that leaves a plan nothing to choose."""
    if not engine_named(engine).can_plan:
        raise UsageError(
            f"plan and recommend do not support the built-in engine: use edgekit check MODEL --engine {engine},"
            f" or edgekit run MODEL --engine {engine}"
        )


def check_task(task: Task) -> None:
    check_planned(task.engine)
    if not task.variants:
        raise UsageError(f"{task.label}: no quantisation to choose from")
    if not 1 <= task.nodes <= MOST_NODES:
        raise UsageError(f"--nodes must be 1 to {MOST_NODES} (got {task.nodes:,})")
    check_users(task.users, task.engine)
    if task.nodes > 1 and not engine_named(task.engine).has_ranks:
        raise UsageError(f"--nodes only works with vLLM, not with {task.engine}")


def _decisions(choice: Choice, found: Candidate, result: Verdict) -> Iterator[Decision]:
    yield Decision(
        lever=Lever.WEIGHTS,
        value=found.variant.name,
        because=_weights_because(choice, found),
        tried=tuple(_tried(choice.attempts, found)),
    )
    use = result.tightest
    usable = format_bytes(use.budget.available_bytes)
    share = f"{format_bytes(use.required_bytes)} of {usable} usable ({use.budget.name})"
    is_placed = found.task.start.settled & engine_named(result.engine).placed
    placed = "as requested" if is_placed else "the whole model fits"
    if not result.way.whole and result.way.cards and found.step > 5:
        placed = "the whole model does not fit on the GPU"
    yield Decision(lever=Lever.PLACEMENT, value=result.way.because, because=f"{placed}: {share}")
    each = f" for each of {result.streams}" if result.streams > 1 else ""
    yield Decision(
        lever=Lever.CONTEXT,
        value=f"{found.tokens // result.streams:,} tokens{each}",
        because=found.because,
    )
    yield Decision(lever=Lever.CACHE, value=found.choice.name, because=_cache_because(found))


def _weights_because(choice: Choice, found: Candidate) -> str:
    if len(found.task.variants) < 2:
        if {"mix", "quantize", "quantization"} & found.task.start.settled:
            return "as requested"
        return "the form it was released in" if found.variant.changes else "the file you named"
    if found.step == 5:
        return "the largest that fits on the GPU"
    first = choice.attempts[0].variant
    if found.variant.accuracy > first.accuracy:
        return "the most accurate that fits comfortably and is faster than reading speed"
    return "the usual quantisation"


def _tried(attempts: tuple[Attempt, ...], found: Candidate) -> Iterator[Tried]:
    """Every row of SPEC A4's list that was looked at, up to the one that was taken."""
    for one in attempts:
        each = one.tokens // found.held.streams
        value = f"{one.variant.name}, {each:,} tokens, {one.cache.name} cache"
        taken = one.fits and (one.variant.name, one.cache.name) == (
            found.variant.name,
            found.choice.name,
        )
        yield Tried(value=value, outcome=one.outcome, taken=taken)


def _cache_because(found: Candidate) -> str:
    if found.choice.asked:
        keys, values = found.task.load.cache_k, found.task.load.cache_v
        unequal = keys is not None and values is not None and keys.name != values.name
        if unequal and found.held.placement.cards:
            return (
                "as requested; release builds compute attention on the CPU if the two types differ"
            )
        return "as requested"
    if found.choice.place == 0:
        return "the engine's default"
    return "the engine's default does not fit at this context"


def _further(found: Candidate, helps: Sequence[Change]) -> Iterator[Decision]:
    placements: Placements = (found.held.placement,)
    if engine_named(found.task.engine).has_ranks:  # more requests may take more cards
        placements = whole_placements(found.task)
    yield decide_sequences(found, placements)
    for change in helps:
        if change.kind is ChangeKind.MEMORY:
            yield Decision(lever=Lever.LIMIT, value=change.value, because=change.told)


def _nothing_fits(task: Task, choice: Choice, *, helpful: bool) -> Plan:
    """The verdict with the figures of SPEC A4's step 4, and what would help."""
    found = choice.candidate
    result = result_for(found, max_context=None if helpful else 0)
    weights = Decision(
        lever=Lever.WEIGHTS,
        value=found.variant.name,
        because="nothing fits",
        tried=tuple(_tried(choice.attempts, found)) if helpful else (),
    )
    helps = changes(task, result) if helpful else ()
    return Plan(
        task=task,
        variant=found.variant,
        load=found.held.load(found.tokens),
        choice=found.choice,
        result=result,
        decisions=(weights,),
        to_fit=helps,
    )
