"""A plan -> the largest draft model that fits as well: it guesses tokens that the model only has to check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgekit.bill.decisions import Decision, Lever, Tried
from edgekit.bill.task import Drafter, Task
from edgekit.catalog.types import Entry, ModelPurpose
from edgekit.engines import default_engine, engine_named
from edgekit.engines.entries import open_entry
from edgekit.errors import EdgekitError
from edgekit.model.types import Model
from edgekit.plan.choice import Candidate
from edgekit.plan.ladder import Ladder
from edgekit.plan.placement import whole_placements
from edgekit.units import format_bytes

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
