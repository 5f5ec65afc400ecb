"""Which models fit in the memory of one machine at the same time, and with which contexts.

Every model is an engine process of its own, so the bill of each counts in full: its CUDA context and buffers are not
shared. The reserve counts once for each memory. Each model is judged by the rules of `check` on what the others leave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from edgekit.app.check import Answer, Check, check_named
from edgekit.app.open import ResolvedModel, open_named
from edgekit.bill.types import (
    Component,
    MemoryEstimate,
    MemoryLine,
    Status,
    Usage,
    Verdict,
    covered_bytes,
    for_bill,
)
from edgekit.engines import engine_named
from edgekit.errors import HardwareError, UsageError
from edgekit.machine.types import HOST, Budget, Device, Machine, Pool, pool_of
from edgekit.plan.choice import READING_TOKENS_PER_S
from edgekit.plan.fit import (
    DEFAULT_TOKENS,
    EMBEDDING_TOKENS,
    MINIMUM_TOKENS,
    UNKNOWN_NATIVE_TOKENS,
    with_reserve,
)
from edgekit.request import Request, Session
from edgekit.units import KIB, about_rate, format_bytes

MOST_MODELS = 8  # every subset of them may have to be tried
SHORT_TOKENS = (8 * KIB, 4 * KIB, 2 * KIB)  # below the minimum, only proposed
STEP_TOKENS = 4 * KIB  # equal contexts are multiples of this
PLACEMENT_TRIES = 3
LEAST_WEIGHTS_SHARE = 0.8  # smallest allowed weights, as a share of the usual ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of the models."""

    reference: str
    check: Check  # where the others leave room: next to them; else as if it were alone
    fits_with_others: bool
    bytes_by_memory: tuple[
        int, ...
    ]  # what it takes of each memory, in the order of `Together.uses`
    why_not: str = ""  # "lacks 6.2 GiB of RTX 4090"; "": it fits

    @property
    def context_tokens(self) -> int:
        """The context of one request."""
        return self.check.result.context_tokens // self.check.result.streams


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The memories of a machine, and the rule for what fits in them at the same time."""

    machine: Machine
    budgets: tuple[Budget, ...]
    max_use: float | None

    def uses(self, results: Iterable[Verdict]) -> tuple[Usage, ...]:
        """How much of each memory the models take at their start."""
        combined = _combined(results, self.machine)
        return tuple(_use(budget, combined, self.max_use) for budget in self.budgets)

    def sizes(self, result: Verdict) -> tuple[int, ...]:
        """What a model takes of each memory at its start."""
        lines = _lines(result, self.machine)
        return tuple(_bytes_in(lines, budget.pools) for budget in self.budgets)

    def holds(self, results: Collection[Verdict]) -> bool:
        """Whether the models can be loaded at the same time, with all that they may take after the start."""
        later = sum(engine_named(result.engine).later_bytes(result) for result in results)
        return all(
            use.status is not Status.FAILED
            and not (HOST in use.budget.pools and later > _left_bytes(use))
            for use in self.uses(results)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The answer: the models in the order in which they were named, and the total of those that fit."""

    memory: SharedMemory = field(repr=False)
    members: tuple[Member, ...]
    uses: tuple[Usage, ...]  # of every memory of the machine, by the models that fit
    context_tokens: int | None  # the equal context; None: contexts were requested
    most_at_once: int  # the largest N for which any N of the models fit at once
    shorter_tokens: int | None = None  # a context below the minimum at which all of them fit

    @property
    def machine(self) -> Machine:
        return self.memory.machine

    @property
    def fitting(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.fits_with_others)

    @property
    def others(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if not member.fits_with_others)

    @property
    def all_fit(self) -> bool:
        return not self.others

    @property
    def status(self) -> Status:
        """The worst of the memories."""
        return _worst(self.uses)


def judge_together(
    references: Sequence[str],
    request: Request,
    session: Session,
    *,
    contexts: Sequence[int] = (),
) -> Together:
    """The models that fit at the same time: as many as possible, of equally many those that were named first.

    `contexts`: one for each model, or one for all. Without them all get the same, from 16K (--min-context) up: the
    longest up to 32K that keeps on the devices what would be there alone, and a longer one while memory is to spare.
    Raises EdgekitError if a model cannot be read, or not be judged on this machine at all.
    """
    if not 2 <= len(references) <= MOST_MODELS:
        raise UsageError(f"name 2 to {MOST_MODELS} models (got {len(references)})")
    if len(contexts) not in {0, 1, len(references)}:
        raise UsageError(
            f"{len(contexts)} contexts for {len(references)} models: give one, or one for each"
        )
    machine = request.find_machine()
    request = replace(request, machine=machine, context=None, keep_spare=True)
    resolved = [
        open_named(reference, session, assume=True, quant=request.quant) for reference in references
    ]
    lengths = tuple(contexts) * (len(references) if len(contexts) == 1 else 1)
    search = _Search(resolved, request, session, lengths)
    chosen, tokens = search.best()
    placed = search.share_growth(chosen, tokens)
    memory, results = search.memory, [check.result for check in placed.values()]
    left = _without(machine, _combined(results, machine).lines)
    members = []
    for index, reference in enumerate(references):
        check = placed.get(index, search.alone[index])
        fits = index in placed
        members.append(
            Member(
                reference=reference,
                check=check,
                fits_with_others=fits,
                bytes_by_memory=memory.sizes(check.result),
                why_not="" if fits else search.why_not(index, tokens, left),
            )
        )
    return Together(
        memory=memory,
        members=tuple(members),
        uses=memory.uses(results),
        context_tokens=None if lengths else tokens,
        most_at_once=_most_at_once([member.check.result for member in members], memory),
        shorter_tokens=None if len(placed) == len(members) else search.shorter(),
    )


def numbered(name: str, taken: Container[str]) -> str:
    """The name, with a number if another model has it."""
    names = (name, *(f"{name}-{number}" for number in range(2, MOST_MODELS + 1)))
    return next(one for one in names if one not in taken)


class _Search:
    """Tries sets of models and contexts. A model is judged once for each context and memory that is left."""

    def __init__(
        self,
        models: Sequence[ResolvedModel],
        request: Request,
        session: Session,
        lengths: Sequence[int],
    ) -> None:
        self.models, self.session, self.lengths = models, session, lengths
        self.request, self.machine = request, request.find_machine()
        self._judged: dict[tuple[int, int | None, Machine], Check | None] = {}
        self.alone = [self._alone(index) for index in range(len(models))]
        engines = (check.result.engine for check in self.alone)
        self.memory = SharedMemory(
            machine=self.machine,
            budgets=_budgets(self.machine, engines, request),
            max_use=request.max_use,
        )

    def best(self) -> tuple[dict[int, Check], int]:
        """The largest set that fits, and its equal context. Empty if not even one model fits."""
        indices = range(len(self.models))
        for count in range(len(self.models), 0, -1):
            self.session.tell(f"trying sets of {count} models")
            for members in combinations(indices, count):
                if not self._is_hopeless(members) and (found := self._longest(members)):
                    return found
        return {}, MINIMUM_TOKENS

    def _longest(self, members: Sequence[int]) -> tuple[dict[int, Check], int] | None:
        """The members with the context that the rules choose; None if they do not fit."""
        if self.lengths:
            placed = self._place(members, 0)
            return None if placed is None else (placed, 0)
        native = max(self._native(index) for index in members)
        least = self.request.min_context or min(MINIMUM_TOKENS, native)
        usual = max(min(DEFAULT_TOKENS, native), least)

        tried = {tokens: self._place(members, tokens) for tokens in (usual, least)}
        displaced = {
            tokens: self._displaced(placed)
            for tokens, placed in tried.items()
            if placed is not None
        }
        if not displaced:
            return None
        start = min(displaced, key=lambda tokens: (displaced[tokens], -tokens))

        def is_as_good(tokens: int) -> bool:
            placed = self._place(members, tokens)
            if placed is None or self._displaced(placed) > displaced[start]:
                return False
            return tokens <= usual or self._status(placed) is Status.PASSED

        most = native if start == usual and not displaced[start] else usual
        tokens = _longest_between(start, most, is_as_good)
        placed = self._place(members, tokens)
        return None if placed is None else (placed, tokens)

    def _place(self, members: Sequence[int], tokens: int) -> dict[int, Check] | None:
        """Each member on what the ones before it leave; None if one does not fit.

        Models that are on the devices alone come first, as named: one that is partly in RAM takes all that is left of
        them. If that displaces a model, small ones come first, if it displaces fewer.
        """

        def is_partly_in_ram(index: int) -> bool:
            return not self.alone[index].result.way.whole

        def size(index: int) -> tuple[bool, int]:
            return is_partly_in_ram(index), self.alone[index].result.estimate.total_bytes

        best = self._place_in(sorted(members, key=is_partly_in_ram), tokens)
        if best is None or self._displaced(best):
            other = self._place_in(sorted(members, key=size), tokens)
            if best is None or (
                other is not None and self._displaced(other) < self._displaced(best)
            ):
                best = other
        return None if best is None else {index: best[index] for index in members}

    def _place_in(self, order: Sequence[int], tokens: int) -> dict[int, Check] | None:
        """Each member on what the ones before it leave.

        The error bounds of all bills together may be more than the reserve. Then so much is held back, and the members
        are placed again.
        """
        held: tuple[MemoryLine, ...] = ()
        for _ in range(PLACEMENT_TRIES):
            machine, placed = _without(self.machine, held), dict[int, Check]()
            for index in order:
                check = self._judge(index, tokens, machine)
                if check is None or not self._is_accepted(index, check):
                    return None
                placed[index] = check
                machine = _without(machine, _lines(check.result, self.machine))
            failed = [use for use in self._uses(placed) if use.status is Status.FAILED]
            if not failed:
                return placed
            held = (*held, *map(_held_back, failed))
        return None

    def share_growth(self, placed: dict[int, Check], tokens: int) -> dict[int, Check]:
        """The same models, each with an equal share of what all of them leave, for caches that grow after the start.

        A model is judged again on the machine on which it was placed, with less memory. It is unchanged if it would
        then be placed in another way.
        """
        ram = next((use for use in self._uses(placed) if HOST in use.budget.pools), None)
        if len(placed) < 2 or ram is None:
            return placed
        shared = dict(placed)
        for index, check in placed.items():
            held = _shares_of_others(check.result, ram, len(placed))
            request = self._request_for(index, tokens, _without(check.result.machine, held))
            again = self._check(index, replace(request, max_use=None))  # a share of less memory
            if again and again.result.estimate.lines == check.result.estimate.lines:
                shared[index] = again
        return shared

    def shorter(self) -> int | None:
        """A context below the minimum at which all models fit; None if there is none, or contexts were requested."""
        members = range(len(self.models))
        if self.lengths or self._is_hopeless(members):
            return None
        return next((tokens for tokens in SHORT_TOKENS if self._place(members, tokens)), None)

    def why_not(self, index: int, tokens: int, machine: Machine) -> str:
        """Why a model does not fit on this machine: what it lacks, or how slow it would be."""
        if not self.alone[index].result.can_load:
            return "does not fit, even alone"
        check = self._judge(index, max(tokens, MINIMUM_TOKENS), machine)
        if check is None:
            return "no memory is left for it"
        result = check.result
        if result.can_load:
            rate = result.typical_speed
            slow = "" if rate is None else f": {about_rate(rate)}"
            return f"would be {result.way.because}{slow}"
        use = max(result.uses, key=lambda use: use.fullness)
        lack = use.required_bytes - use.budget.available_bytes
        return f"lacks {format_bytes(lack)} of {use.budget.name}" if lack > 0 else result.reasons[0]

    def _alone(self, index: int) -> Check:
        """The verdict for a model that has the machine to itself. Raises what the check raises."""
        request = replace(self.request, context=self.lengths[index] if self.lengths else None)
        return _first(check_named(self.models[index], request, self.session, with_changes=False))

    def _judge(self, index: int, tokens: int, machine: Machine) -> Check | None:
        """The verdict at this context, at most its own longest, on this machine; None without hardware for it."""
        request = self._request_for(index, tokens, machine)
        key = (index, request.context, machine)
        if key not in self._judged:
            self._judged[key] = self._check(index, request)
        return self._judged[key]

    def _request_for(self, index: int, tokens: int, machine: Machine) -> Request:
        tokens = self.lengths[index] if self.lengths else min(tokens, self._native(index))
        return replace(self.request, context=tokens, machine=machine)

    def _check(self, index: int, request: Request) -> Check | None:
        """The verdict. An engine that takes a fixed share of a device gets the smallest that is enough."""

        def check(request: Request) -> Check:
            answers = check_named(self.models[index], request, self.session, with_changes=False)
            return _first(answers)

        try:
            usual = check(request)
            result = usual.result
            if not result.can_load:
                return usual
            for share in engine_named(result.engine).least_shares(result):
                given = request.flags.get(result.engine, {})
                if share.keys() & given.keys():
                    return usual
                small = check(request.with_flags(result.engine, {**given, **share}))
                if small.result.can_load and small.result.cache == result.cache:
                    return small
        except HardwareError:
            return None
        return usual

    def _native(self, index: int) -> int:
        """The longest context that a model is given."""
        result = self.alone[index].result
        native = result.native_context or UNKNOWN_NATIVE_TOKENS
        return min(native, EMBEDDING_TOKENS) if result.way.setup.embeddings else native

    def _is_accepted(self, index: int, check: Check) -> bool:
        """Whether it loads and is fast enough: the others must not make it slower than reading."""
        if not check.result.can_load or check.result.is_too_slow:
            return False
        here, alone = check.result.typical_speed, self.alone[index].result.typical_speed
        if here is None or alone is None or self.request.min_speed is not None:
            return True
        return here >= READING_TOKENS_PER_S or alone < READING_TOKENS_PER_S

    def _displaced(self, placed: Mapping[int, Check]) -> int:
        """How many models are partly in RAM that are on the devices when they are alone."""
        return sum(
            self.alone[index].result.way.whole and not check.result.way.whole
            for index, check in placed.items()
        )

    def _status(self, placed: Mapping[int, Check]) -> Status:
        """The verdict on the sum of the bills and of their error bounds."""
        return _worst(self._uses(placed))

    def _uses(self, placed: Mapping[int, Check]) -> tuple[Usage, ...]:
        return self.memory.uses([check.result for check in placed.values()])

    def _is_hopeless(self, members: Sequence[int]) -> bool:
        """Whether their weights alone are more than all memory. Cheaper than a verdict for each."""
        if len(members) < 2:
            return False
        weights = sum(self.alone[index].result.estimate.weights_bytes for index in members)
        usable = sum(budget.unreserved_bytes for budget in self.memory.budgets)
        return self.machine.host is not None and weights * LEAST_WEIGHTS_SHARE > usable


def _longest_between(least: int, most: int, test: Callable[[int], bool]) -> int:
    """The longest context up to `most` that passes: `most` itself, or a multiple of STEP_TOKENS. `least` passes."""
    if most <= least or test(most):
        return max(least, most)
    low, high = least // STEP_TOKENS, -(-most // STEP_TOKENS)  # `high` does not pass
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if test(middle * STEP_TOKENS) else (low, middle)
    return max(least, low * STEP_TOKENS)


def _first(answers: Sequence[Answer]) -> Check:
    """The verdict of a model, whose engine was chosen. Raises the error of one that could not be judged."""
    (answer, *_) = answers
    if not isinstance(answer, Check):
        raise answer.error
    return answer


# --- memories


def _budgets(machine: Machine, engines: Iterable[str], request: Request) -> tuple[Budget, ...]:
    """The memories of the machine, with the largest reserve of these engines.

    The pools of devices have their numbers in the machine, not in an engine.
    """
    tightest: dict[frozenset[Pool], Budget] = {}
    for engine in dict.fromkeys(engines):
        rules = engine_named(engine)
        cards = rules.devices(machine)
        # an engine with ranks has one budget for all cards, as they all hold the same
        sets = [(card,) for card in cards] if rules.has_ranks else [cards]
        for used in sets:
            pools = _pools(used, machine)
            for budget in rules.budgets(replace(machine, devices=used)):
                own = frozenset(pools.get(pool, pool) for pool in budget.pools)
                mapped = replace(budget, pools=own)
                if request.reserve_bytes is not None:
                    mapped = with_reserve(mapped, request.reserve_bytes)
                known = tightest.get(own)
                if known is None or mapped.available_bytes < known.available_bytes:
                    tightest[own] = mapped
    return tuple(tightest.values())


def _pools(cards: Sequence[Device], machine: Machine) -> dict[Pool, Pool]:
    """The pools of these cards as an engine numbers them -> as the machine does."""
    places: list[int] = []
    for card in cards:
        # the devices of a smaller machine differ in their free memory
        same = (
            place
            for place, device in enumerate(machine.devices)
            if place not in places and (device.name, device.index) == (card.name, card.index)
        )
        places.append(next(same))
    return {pool_of(number): pool_of(place) for number, place in enumerate(places)}


def _lines(result: Verdict, machine: Machine) -> list[MemoryLine]:
    """The memory that a model takes at its start, in pools of the machine."""
    rules, pools = engine_named(result.engine), _pools(result.way.cards, machine)
    bill = [line for line in rules.taken(result).lines if line.reserved]
    if rules.has_ranks:  # the bill is that of each card
        lines = [replace(line, pool=pool) for line in bill for pool in pools.values()]
    else:
        lines = [replace(line, pool=pools.get(line.pool, line.pool)) for line in bill]
    outside = rules.outside_bytes(result.way)
    return [*lines, *(_held(pool, outside) for pool in pools.values() if outside)]


def _combined(results: Iterable[Verdict], machine: Machine) -> MemoryEstimate:
    """One bill of several processes: nothing is shared between them."""
    bills = [(result, _lines(result, machine)) for result in results]
    return MemoryEstimate(
        engine=", ".join(dict.fromkeys(result.engine for result, _ in bills)),
        backend=next((result.estimate.backend for result, _ in bills), ""),
        lines=tuple(line for _, lines in bills for line in lines),
    )


def _bytes_in(lines: Iterable[MemoryLine], pools: Collection[Pool]) -> int:
    return sum(line.size_bytes for line in lines if line.pool in pools)


def _use(budget: Budget, combined: MemoryEstimate, max_use: float | None) -> Usage:
    """How much of a memory all models take, by the rules for one (SPEC A1)."""
    bound, assumed = combined.bounds_in(budget.pools)
    covered = covered_bytes(budget, combined)
    return Usage(
        budget=for_bill(budget, combined),
        required_bytes=combined.in_pools(budget.pools) - covered,
        bound_bytes=bound + covered,
        covered_bytes=covered,
        assumed=assumed,
        max_use=max_use,
    )


def _held(pool: Pool, size_bytes: int) -> MemoryLine:
    """Memory that is not free for a model, whatever it is used for."""
    return MemoryLine(component=Component.RUNTIME, size_bytes=size_bytes, pool=pool)


def _held_back(use: Usage) -> MemoryLine:
    """What the bills and their bounds are above the free memory, and above what may be used of it."""
    budget = use.budget
    over_free = use.required_bytes + use.bound_bytes - budget.free_bytes
    over_usable = use.required_bytes - int(budget.available_bytes * (use.max_use or 1.0))
    pool = HOST if HOST in budget.pools else next(iter(budget.pools))
    return _held(pool, max(over_free, over_usable, 0))


def _shares_of_others(result: Verdict, ram: Usage, count: int) -> Iterator[MemoryLine]:
    """What a model has to leave of the memory with the RAM, for a share of 1/`count` of what all models leave."""
    own = next(use for use in result.uses if HOST in use.budget.pools)
    held = _left_bytes(own) - _left_bytes(ram) // count
    # MLX's caches grow on the GPU, within the system's limit on it.
    if own.budget.limit_bytes is not None and not engine_named(result.engine).later_bytes(result):
        gpu = next(iter(own.budget.pools - {HOST}))
        on_gpu = max(0, _left_on_gpu_bytes(own) - _left_on_gpu_bytes(ram) // count)
        yield _held(gpu, on_gpu)
        held -= on_gpu
    yield _held(HOST, held)


def _left_bytes(use: Usage) -> int:
    """What is left of a memory, whether the GPU may use it or not."""
    return max(0, use.budget.unreserved_bytes - use.required_bytes)


def _left_on_gpu_bytes(use: Usage) -> int:
    return max(0, use.budget.available_bytes - use.required_bytes)


def _worst(uses: Iterable[Usage]) -> Status:
    order = (Status.PASSED, Status.WARNING, Status.FAILED)
    return max((use.status for use in uses), key=order.index, default=Status.PASSED)


def _without(machine: Machine, lines: Iterable[MemoryLine]) -> Machine:
    """The machine with the memory of these lines taken."""
    taken: dict[Pool, int] = {}
    for line in lines:
        taken[line.pool] = taken.get(line.pool, 0) + line.size_bytes
    devices, from_ram = list[Device](), taken.get(HOST, 0)
    for place, device in enumerate(machine.devices):
        size = taken.get(pool_of(place), 0)
        own = min(size, device.own_bytes) if device.unified else 0  # a carve-out is used first
        from_ram += size - own if device.unified else 0
        limit = device.limit_bytes
        left = replace(
            device,
            free_bytes=max(0, device.free_bytes - size),
            own_bytes=device.own_bytes - own,
            limit_bytes=None if limit is None else max(0, limit - size),
        )
        devices.append(left)
    host = machine.host
    if host is not None and from_ram:
        limits = (replace(limit, used_bytes=limit.used_bytes + from_ram) for limit in host.limits)
        free = max(0, host.free_bytes - from_ram)
        host = replace(host, free_bytes=free, limits=tuple(limits))
    return replace(machine, host=host, devices=tuple(devices))


def _most_at_once(results: Sequence[Verdict], memory: SharedMemory) -> int:
    """The largest N for which any N of the models fit at once."""
    for count in range(len(results), 1, -1):
        if all(map(memory.holds, combinations(results, count))):
            return count
    return 1
