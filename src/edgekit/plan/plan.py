"""A task -> the plan: what to run, and why every lever is where it is; a draft model and users it has memory for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from edgekit.bill.types import CacheChoice, Drafter, Load, Placements, Task, Variant
from edgekit.bill.verdict import Change, ChangeKind, Decision, Lever, Speed, Tried, Verdict
from edgekit.catalog.types import Entry, ModelPurpose
from edgekit.engines import default_engine, engine_named
from edgekit.engines.entries import open_entry
from edgekit.engines.speed import steady_throughput
from edgekit.errors import EdgekitError, RefusedError, UsageError
from edgekit.model.types import Model
from edgekit.plan.changes import changes
from edgekit.plan.choice import (
    READING_TOKENS_PER_S,
    Attempt,
    Candidate,
    Choice,
    check_users,
    choose,
)
from edgekit.plan.placement import Ladder, whole_placements
from edgekit.plan.verdict import pinned_candidate, result_for
from edgekit.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `result` is its bill against the memory."""

    task: Task = field(repr=False)
    variant: Variant
    load: Load  # context of all users together, cache types, sequences
    choice: CacheChoice | None = None  # of the cache
    result: Verdict
    decisions: tuple[Decision, ...]  # in the order of the levers
    drafter: Drafter | None = None  # a draft model that would fit as well; not in the bill
    speed: Speed | None = None
    steady_tokens_per_s: float | None = (
        None  # the middle, with an empty cache: plans are compared by it
    )
    to_fit: tuple[Change, ...] = ()  # what would help where it does not fit
    changes: tuple[Change, ...] = ()  # what would change it where it does

    @property
    def fits(self) -> bool:
        return self.result.can_load

    @property
    def context_tokens(self) -> int:
        """Of one user."""
        return self.result.context_tokens // self.result.streams

    @property
    def is_slow(self) -> bool:
        """Whether the speed that is shown, rounded, is below reading speed. An unknown speed is not called slow."""
        return self.speed is not None and round(self.speed.typical, 1) < READING_TOKENS_PER_S

    def decision(self, lever: Lever) -> Decision | None:
        return next((one for one in self.decisions if one.lever is lever), None)


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


TIMES_SMALLER = 8  # a drafter that is nearer to the model's own size saves no time
OWN_BLOCKS = "its own prediction layers"
DRAFTER_MIX = "Q4_K_M"
MOST_OTHER_WORDS = 128  # speculative.cpp @ 0c1e570: SPEC_VOCAB_MAX_SIZE_DIFFERENCE


def own_drafter(model: Model) -> tuple[Drafter, ...]:
    """The prediction layers that some models include."""
    if not model.geometry.mtp_layers:
        return ()
    return (
        Drafter(
            name=OWN_BLOCKS, because="built into the model: layers that predict further tokens"
        ),
    )


def propose_drafter(found: Candidate) -> tuple[Drafter | None, Decision | None]:
    """The first draft model that fits as well and leaves the verdict as it is. It is proposed, not part of the plan."""
    task = found.task
    if not engine_named(task.engine).drafts or not task.drafters or task.users is not None:
        return None, None  # with several users the batch is full already
    tried: list[Tried] = []
    for drafter in task.drafters if found.held.placement.whole else ():
        asked = with_drafter_beside(task, drafter)
        other, outcome = _held(found, Ladder(asked, whole_placements(asked)))
        if other is not None and other.weighed.status is not found.weighed.status:
            other, outcome = None, f"{outcome}: too tight"
        tried.append(Tried(value=drafter.name, outcome=outcome, taken=other is not None))
        if other is not None:
            return drafter, Decision(
                lever=Lever.DRAFTER,
                value=drafter.name,
                because=f"{outcome}, can make answers faster",
                tried=tuple(tried),
            )
    because = "none fits next to the model" if tried else "the GPU is full"
    return None, Decision(lever=Lever.DRAFTER, value="none", because=because, tried=tuple(tried))


def with_drafter_beside(task: Task, drafter: Drafter) -> Task:
    """The task for both together."""
    mix = drafter.changes.get("mix")
    return engine_named(task.engine).with_drafter(task, drafter.model, mix)


def _held(found: Candidate, ladder: Ladder) -> tuple[Candidate | None, str]:
    """The candidate with the drafter next to it, and what the drafter takes; or None, and why not."""
    try:
        other = found.on(ladder)
    except EdgekitError as error:
        return None, f"its memory cannot be estimated: {error}"
    if other is None:
        return None, f"does not fit at {found.tokens:,} tokens"
    lines = other.weighed.estimate.lines
    size = sum(line.size_bytes for line in lines if line.part in {"drafter", "prediction"})
    return other, f"+{format_bytes(size)}"


def catalog_drafters(entry: Entry, entries: Iterable[Entry]) -> tuple[Drafter, ...]:
    """Much smaller models of the same family and vocabulary, the largest first."""
    active = entry.active_parameters or entry.parameters or 0
    found = [
        other
        for other in entries
        if _speaks_alike(entry, other)
        and 0 < (other.parameters or 0) * TIMES_SMALLER <= active
        and ModelPurpose.EMBEDDING not in other.kinds
    ]
    ordered = sorted(found, key=lambda one: -(one.parameters or 0))
    return tuple(drafter for one in ordered for drafter in _drafter(one))


def _speaks_alike(entry: Entry, other: Entry) -> bool:
    if entry.vocabulary is None or other.vocabulary is None or entry.family != other.family:
        return False
    return abs(entry.vocabulary - other.vocabulary) <= MOST_OTHER_WORDS


def _drafter(entry: Entry) -> Iterator[Drafter]:
    """Nothing for an entry that cannot be opened: a user's own may be damaged."""
    try:
        model = open_entry(entry, default_engine().name).model
    except EdgekitError:
        return
    yield Drafter(
        name=f"{entry.id} at {DRAFTER_MIX}",
        model=model,
        changes={"mix": DRAFTER_MIX},
        because=f"same family, vocabulary of {entry.vocabulary:,} tokens (llama.cpp compares the two when it starts)",
    )


MOST_USERS = 256  # vLLM's own limit on cards of usual size; more are not searched for


def decide_sequences(found: Candidate, placements: Placements) -> Decision:
    """The number of users that was given; else the engine's default, and how many more there is room for."""
    task, each = found.task, found.tokens // found.held.streams
    if task.users is not None:
        return Decision(
            lever=Lever.SEQUENCES,
            value=f"{task.users}",
            because=f"as requested, each with a context of {each:,} tokens",
        )
    count = users_that_fit(task, each, placements)
    more = (
        f"--users {count} fits with a full context each"
        if count > 1
        else "a second full context does not fit"
    )
    return Decision(
        lever=Lever.SEQUENCES,
        value=f"up to {count}" if count > 1 else "1",
        because=f"{engine_named(task.engine).default_users}; {more}",
    )


def users_that_fit(task: Task, tokens: int, placements: Placements) -> int:
    """With a context of `tokens` each, in one of these placements. Doubling finds the edge, halving the number."""
    engine = engine_named(task.engine)
    bare = replace(task.load, context_tokens=tokens)

    def fits(users: int) -> bool:
        load = engine.load_for_users(bare, users, tokens)
        several = replace(task, load=replace(load, context_tokens=None))
        try:
            return Ladder(several, placements).holder(load.context_tokens or tokens) is not None
        except RefusedError:
            return False

    count = 1
    while count * 2 <= MOST_USERS and fits(count * 2):
        count *= 2
    low, high = count, min(count * 2, MOST_USERS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
