"""The plan for a task: what to run, the reason for every setting, a draft model, and the number of users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edgekit.bill.types import (
    OWN_LAYERS,
    Change,
    ChangeKind,
    Decision,
    Drafter,
    Lever,
    Load,
    Placement,
    Speed,
    Task,
    Tried,
    Variant,
    Verdict,
)
from edgekit.engines import default_engine, engine_named, every_engine
from edgekit.engines.entries import open_entry
from edgekit.engines.speed import expected_speed, steady_throughput
from edgekit.errors import EdgekitError, UsageError
from edgekit.index.types import Entry, ModelPurpose
from edgekit.model.types import Model
from edgekit.plan.changes import changes
from edgekit.plan.choice import (
    FEWER_BITS,
    READING_TOKENS_PER_S,
    Attempt,
    Candidate,
    Choice,
    check_users,
    choose,
    fastest_words,
    pinned_candidate,
    result_for,
    speculation_of,
)
from edgekit.plan.fit import Fitting, Ladder, whole_placements
from edgekit.units import format_bytes

MOST_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `result` is the verdict on its bill."""

    task: Task = field(repr=False)
    variant: Variant
    result: Verdict
    decisions: tuple[Decision, ...]  # in the order of the levers
    drafter: Drafter | None = None  # a draft model that would fit as well; not in the bill
    steady_tokens_per_s: float | None = None  # typical, with an empty cache: for comparing plans
    # Typical, if the GPU had the memory for what is now in RAM; None: nothing is, or unknown.
    on_gpu_tokens_per_s: float | None = None
    to_fit: tuple[Change, ...] = ()  # what would make it fit, if it does not
    changes: tuple[Change, ...] = ()  # what would improve it, if it fits

    @property
    def load(self) -> Load:
        """The context of all users together, cache types, sequences."""
        return self.result.load

    @property
    def speed(self) -> Speed | None:
        return self.result.speed

    @property
    def fits(self) -> bool:
        return self.result.can_load

    @property
    def context_tokens(self) -> int:
        """The context of one user."""
        return self.result.context_tokens // self.result.streams

    @property
    def is_slow(self) -> bool:
        """Whether the speed, rounded as it is shown, is below reading speed. An unknown speed is not slow."""
        return self.speed is not None and round(self.speed.typical, 1) < READING_TOKENS_PER_S

    def decision(self, lever: Lever) -> Decision | None:
        return next((decision for decision in self.decisions if decision.lever is lever), None)


def make_plan(
    task: Task,
    *,
    choice: Choice | None = None,
    thorough: bool = True,
    helpful: bool = True,
    longest: bool = False,
) -> Plan:
    """What to run: weights, placement, context and cache as SPEC A4 chooses them.

    `choice`: the result of that search, if it is known. `thorough` also looks for a draft model, the longest context,
    the number of users, and a system limit to raise; lists of many models skip that. `longest` looks for the longest
    context anyway. If nothing fits, the plan says so; `helpful` adds what would help.

    Raises UsageError for flags that contradict each other, HardwareError if the engine cannot run on the machine,
    RefusedError if it does not support the model.
    """
    check_task(task)
    choice = choice or choose(task)
    if not choice.fits:
        candidate = choice.candidate
        result = result_for(candidate, max_context=None if helpful or longest else 0)
        weights = Decision(
            lever=Lever.WEIGHTS,
            value=candidate.variant.name,
            because="nothing fits",
            tried=tuple(_tried(choice.attempts, candidate)) if helpful else (),
        )
        return Plan(
            task=task,
            variant=candidate.variant,
            result=result,
            decisions=(weights,),
            to_fit=changes(task, result) if helpful else (),
        )
    candidate = pinned_candidate(choice.candidate)
    max_context = None if thorough or longest else candidate.tokens
    result = result_for(candidate, max_context=max_context)
    result = replace(result, fastest=fastest_words(choice, result))
    decisions = [*_decisions(choice, candidate, result)]
    drafter: Drafter | None = None
    improvements: tuple[Change, ...] = ()
    if thorough:
        drafter, drafter_decision, drafted = propose_drafter(candidate)
        if drafted is not None and task.acceptance is not None:
            result = replace(result, speculation=speculation_of(drafted))
        improvements = changes(replace(task, model=candidate.variant.model), result)
        if drafter_decision is not None:
            decisions.append(drafter_decision)
        decisions.append(decide_sequences(candidate))
        decisions += [
            Decision(lever=Lever.LIMIT, value=change.value, because=change.told)
            for change in improvements
            if change.kind is ChangeKind.MEMORY
        ]
    return Plan(
        task=task,
        variant=candidate.variant,
        result=result,
        decisions=tuple(decisions),
        drafter=drafter,
        steady_tokens_per_s=steady_throughput(candidate.task, candidate.priced),
        on_gpu_tokens_per_s=speed_on_gpu(candidate) if thorough else None,
        changes=improvements,
    )


def speed_on_gpu(candidate: Candidate) -> float | None:
    """The typical speed of the same weights and cache, all on the GPU, as if it had the memory.

    None if they are there already, if the caller set the placement, or if the speed is unknown.
    """
    placement, task = candidate.fitting.placement, candidate.task
    if placement.whole or not placement.cards or task.embeds:
        return None
    whole = next((other for other in whole_placements(task) if other.whole and other.cards), None)
    if whole is None:
        return None
    try:
        speed = expected_speed(task, Fitting(task, whole).price(candidate.tokens))
    except EdgekitError:
        return None
    return None if speed is None else speed.typical


def find_plan(task: Task, *, longest: bool = False) -> Plan | None:
    """The plan without its expensive parts; None if nothing fits. `longest`: with the longest context."""
    plan = make_plan(task, thorough=False, helpful=False, longest=longest)
    return plan if plan.fits else None


def check_planned(engine: str) -> None:
    """Raises UsageError for an engine that has nothing for a plan to choose."""
    if not engine_named(engine).can_plan:
        raise UsageError(
            f"plan and recommend do not support the built-in engine: use edgekit check MODEL --engine {engine},"
            f" or edgekit run MODEL --engine {engine}"
        )


def check_task(task: Task) -> None:
    """Raises UsageError for a task that cannot be planned."""
    check_planned(task.engine)
    if not task.variants:
        raise UsageError(f"{task.label}: no quantisation to choose from")
    if not 1 <= task.nodes <= MOST_NODES:
        raise UsageError(f"--nodes must be 1 to {MOST_NODES} (got {task.nodes:,})")
    check_users(task.users, task.engine)
    if task.nodes > 1 and not engine_named(task.engine).has_ranks:
        able = " or ".join(engine.title for engine in every_engine() if engine.has_ranks)
        raise UsageError(f"--nodes only works with {able}, not with {task.engine}")


def _decisions(choice: Choice, candidate: Candidate, result: Verdict) -> Iterator[Decision]:
    """Weights, placement, context and cache, each with its reason."""
    yield Decision(
        lever=Lever.WEIGHTS,
        value=candidate.variant.name,
        because=_weights_because(choice, candidate),
        tried=tuple(_tried(choice.attempts, candidate)),
    )
    use = result.tightest
    usable = format_bytes(use.budget.available_bytes)
    usage = f"{format_bytes(use.required_bytes)} of {usable} usable ({use.budget.name})"
    why = "the whole model fits"
    if not result.way.whole and result.way.cards and candidate.step > FEWER_BITS:
        why = "the whole model does not fit on the GPU"
    elif candidate.task.start.fixed_flags & engine_named(result.engine).placed:
        why = "as requested"
    yield Decision(lever=Lever.PLACEMENT, value=result.way.because, because=f"{why}: {usage}")
    each = f" for each of {result.streams}" if result.streams > 1 else ""
    yield Decision(
        lever=Lever.CONTEXT,
        value=f"{candidate.tokens // result.streams:,} tokens{each}",
        because=candidate.because,
    )
    yield Decision(lever=Lever.CACHE, value=candidate.cache.name, because=_cache_because(candidate))


def _weights_because(choice: Choice, candidate: Candidate) -> str:
    """The reason for the weights."""
    if len(candidate.task.variants) < 2:
        if {"mix", "quantize", "quantization"} & candidate.task.start.fixed_flags:
            return "as requested"
        return "the form it was released in" if candidate.variant.changes else "the file you named"
    if candidate.step == FEWER_BITS:
        fast = "" if candidate.task.min_speed is None else " and is fast enough"
        return f"the largest that fits on the GPU{fast}"
    first = choice.attempts[0].variant
    if candidate.variant.accuracy > first.accuracy:
        return "the most accurate that fits comfortably and, with an empty context, beats reading speed"
    return "the usual quantisation"


def _tried(attempts: tuple[Attempt, ...], candidate: Candidate) -> Iterator[Tried]:
    """All attempts of the search, for a report."""
    chosen = candidate.variant.name, candidate.cache.name
    for attempt in attempts:
        each = attempt.tokens // candidate.fitting.streams
        value = f"{attempt.variant.name}, {each:,} tokens, {attempt.cache.name} cache"
        is_taken = attempt.is_accepted and (attempt.variant.name, attempt.cache.name) == chosen
        yield Tried(value=value, outcome=attempt.outcome, taken=is_taken)


def _cache_because(candidate: Candidate) -> str:
    """The reason for the cache type."""
    if candidate.cache.is_given:
        keys, values = candidate.task.load.cache_k, candidate.task.load.cache_v
        types_differ = keys is not None and values is not None and keys.name != values.name
        if types_differ and candidate.fitting.placement.cards:
            return (
                "as requested; release builds compute attention on the CPU if the two types differ"
            )
        return "as requested"
    if candidate.cache.place == 0:
        return "the engine's default"
    return "the engine's default does not fit at this context"


# --- a draft model

TIMES_SMALLER = 8  # a larger draft model saves no time
DRAFTER_MIX = "Q4_K_M"
MAX_VOCABULARY_DIFFERENCE = 128  # speculative.cpp @ 0c1e570: SPEC_VOCAB_MAX_SIZE_DIFFERENCE


def own_drafter(model: Model) -> tuple[Drafter, ...]:
    """The model's own prediction layers (MTP), if it has any."""
    if not model.geometry.mtp_layers:
        return ()
    return (
        Drafter(
            name=OWN_LAYERS, because="built into the model: layers that predict further tokens"
        ),
    )


class Proposal(NamedTuple):
    """A draft model that would fit as well. All are None if a draft model is out of the question."""

    drafter: Drafter | None = None
    decision: Decision | None = None
    drafted: Candidate | None = None  # the plan with the draft model


def propose_drafter(candidate: Candidate) -> Proposal:
    """The first draft model that also fits without changing the verdict, and the decision with all that were tried.

    It is a proposal, not part of the plan's bill.
    """
    task = candidate.task
    if not engine_named(task.engine).drafts or not task.drafters or task.users is not None:
        return Proposal()  # several users already fill the batch
    tried: list[Tried] = []
    for drafter in task.drafters if candidate.fitting.placement.whole else ():
        outcome, drafted = _try_drafter(candidate, drafter)
        tried.append(Tried(value=drafter.name, outcome=outcome, taken=drafted is not None))
        if drafted is not None:
            decision = Decision(
                lever=Lever.DRAFTER,
                value=drafter.name,
                because=f"{outcome}, can make answers faster",
                tried=tuple(tried),
            )
            return Proposal(drafter, decision, drafted)
    because = "none fits next to the model" if tried else "the GPU is full"
    decision = Decision(lever=Lever.DRAFTER, value="none", because=because, tried=tuple(tried))
    return Proposal(decision=decision)


def _try_drafter(candidate: Candidate, drafter: Drafter) -> tuple[str, Candidate | None]:
    """What the draft model adds to the bill, or why it cannot be used; and the plan with it, if it can."""
    task = engine_named(candidate.task.engine).with_drafter(
        candidate.task, drafter.model, drafter.mix
    )
    task = replace(task, drafter=drafter)
    ladder = Ladder(task, whole_placements(task))
    try:
        drafted = candidate.on(ladder)
    except EdgekitError as error:
        return f"its memory cannot be estimated: {error}", None
    if drafted is None:
        return f"does not fit at {candidate.tokens:,} tokens", None
    lines = drafted.priced.estimate.lines
    size = sum(line.size_bytes for line in lines if line.part in {"drafter", "prediction"})
    if drafted.priced.status is not candidate.priced.status:
        return f"+{format_bytes(size)}: too tight", None
    return f"+{format_bytes(size)}", drafted


def index_drafters(entry: Entry, entries: Iterable[Entry]) -> tuple[Drafter, ...]:
    """Much smaller catalog models of the same family and vocabulary, the largest first."""
    if entry.vocabulary is None:
        return ()
    max_parameters = (entry.active_parameters or entry.parameters or 0) // TIMES_SMALLER
    suitable = [
        other
        for other in entries
        if other.family == entry.family
        and other.vocabulary is not None
        and abs(entry.vocabulary - other.vocabulary) <= MAX_VOCABULARY_DIFFERENCE
        and 0 < (other.parameters or 0) <= max_parameters
        and ModelPurpose.EMBEDDING not in other.kinds
    ]
    drafters = []
    for other in sorted(suitable, key=lambda other: -(other.parameters or 0)):
        try:
            model = open_entry(other, default_engine().name).model
        except EdgekitError:
            continue  # an entry that the user added may be damaged
        drafter = Drafter(
            name=f"{other.id} at {DRAFTER_MIX}",
            model=model,
            mix=DRAFTER_MIX,
            because=(
                f"same family, vocabulary of {other.vocabulary:,} tokens "
                "(llama.cpp compares the two when it starts)"
            ),
        )
        drafters.append(drafter)
    return tuple(drafters)


# --- users

MOST_USERS = 256  # the default limit of a common server; searching further is not worth it


def decide_sequences(candidate: Candidate) -> Decision:
    """The requested number of users; else the engine's default number of sequences, and how many users would fit."""
    task, each = candidate.task, candidate.tokens // candidate.fitting.streams
    if task.users is not None:
        return Decision(
            lever=Lever.SEQUENCES,
            value=f"{task.users}",
            because=f"as requested, each with a context of {each:,} tokens",
        )
    placements: tuple[Placement, ...] = (candidate.fitting.placement,)
    if engine_named(task.engine).has_ranks:  # more requests may take more cards
        placements = whole_placements(task)
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


def users_that_fit(task: Task, tokens: int, placements: tuple[Placement, ...]) -> int:
    """How many users fit in one of these placements with a context of `tokens` each, up to MOST_USERS."""
    engine = engine_named(task.engine)
    load_of_one = replace(task.load, context_tokens=tokens)

    def fits(users: int) -> bool:
        load = engine.load_for_users(load_of_one, users, tokens)
        several = replace(task, load=replace(load, context_tokens=None))
        return Ladder(several, placements).first_fit(load.context_tokens or tokens) is not None

    low = 1  # fits
    while low * 2 <= MOST_USERS and fits(low * 2):
        low *= 2
    high = min(low * 2, MOST_USERS + 1)  # does not fit
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
