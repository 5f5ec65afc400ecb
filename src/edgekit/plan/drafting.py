"""A plan and drafters -> the largest that still leaves the window: guesses that the model only has to check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from edgekit.catalog import open_entry
from edgekit.catalog.types import Entry, Kind
from edgekit.engine import llamacpp
from edgekit.engine.llamacpp.companions import with_drafter
from edgekit.engine.types import Model
from edgekit.errors import EdgekitError
from edgekit.memory.types import Load, MemoryEstimate
from edgekit.plan.caches import with_setup
from edgekit.plan.candidates import Candidate, whole
from edgekit.plan.ladder import Ladder
from edgekit.plan.planned import Decision, Drafter, Lever, Tried, Wish
from edgekit.plan.types import Question
from edgekit.units import format_bytes

DRAFT_TOKENS = 3  # common.h @ 0c1e570: what llama.cpp itself proposes at once
TIMES_SMALLER = 8  # a drafter that is nearer to the model's own size saves no time
OWN_BLOCKS = "its own blocks"
DRAFTER_MIX = "Q4_K_M"
MOST_OTHER_WORDS = 128  # speculative.cpp @ 0c1e570: SPEC_VOCAB_MAX_SIZE_DIFFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """The window with what drafts beside it; without a drafter the window as it was."""

    candidate: Candidate
    drafter: Drafter | None = None
    decision: Decision | None = None


def own_drafter(model: Model) -> tuple[Drafter, ...]:
    """The blocks for further tokens that some models bring along."""
    if not model.geometry.mtp_layers:
        return ()
    return (
        Drafter(name=OWN_BLOCKS, because="made with the model: blocks that guess further tokens"),
    )


def take_drafter(wish: Wish, found: Candidate, *, divided: bool) -> Drafted:
    """The first that fits beside the model and its window. Nothing is taken off the window for it."""
    none = Drafted(candidate=found)
    if wish.engine != "llama.cpp" or not wish.drafters or wish.users is not None:
        return none  # with several users the batch is full already
    if divided:
        return replace(none, decision=_none("the device is full already", ()))
    tried: list[Tried] = []
    for drafter in wish.drafters:
        asked = with_drafter_beside(found.question, drafter)
        other, told = _held(found, Ladder(asked, whole(asked)))
        tried.append(Tried(value=drafter.name, told=told, taken=other is not None))
        if other is not None:
            because = f"{drafter.because}; {told}, and the window stays"
            decision = Decision(
                lever=Lever.DRAFTER, value=drafter.name, because=because, tried=tuple(tried)
            )
            return Drafted(candidate=other, drafter=drafter, decision=decision)
    return replace(none, decision=_none("none leaves the window as it is", tuple(tried)))


def _none(because: str, tried: tuple[Tried, ...]) -> Decision:
    return Decision(lever=Lever.DRAFTER, value="none", because=because, tried=tried)


def with_drafter_beside(question: Question, drafter: Drafter) -> Question:
    """The question, asked of both together."""
    asked = with_setup(question, draft_max=DRAFT_TOKENS, load_mtp=drafter.model is None)
    if drafter.model is not None:
        asked = replace(
            asked, bill=_bill(question.model, drafter.model, drafter.changes.get("mix"))
        )
    return asked


def _bill(model: Model, drafter: Model, mix: str | None) -> Callable[[Load, Any], MemoryEstimate]:
    def bill(load: Load, setup: Any) -> MemoryEstimate:
        main = llamacpp.estimate(model, load, setup)
        return with_drafter(main, drafter, load, setup, mix=mix)  # its cache is kept the same way

    return bill


def _held(found: Candidate, ladder: Ladder) -> tuple[Candidate | None, str]:
    """The window with the drafter beside it, and what the drafter takes; or None, and why not."""
    try:
        other = found.on(ladder)
    except EdgekitError as error:
        return None, f"its bill is not known: {error}"
    if other is None:
        return None, f"does not fit beside {found.needed:,} tokens"
    lines = other.weighed.estimate.lines
    size = sum(line.size_bytes for line in lines if line.part in {"drafter", "prediction"})
    return other, f"{format_bytes(size)} with its own cache"


def catalog_drafters(entry: Entry, entries: Iterable[Entry]) -> tuple[Drafter, ...]:
    """Models of the same family with as many words, small enough beside it, the largest first."""
    active = entry.active_parameters or entry.parameters or 0
    found = [
        other
        for other in entries
        if _speaks_alike(entry, other)
        and 0 < (other.parameters or 0) * TIMES_SMALLER <= active
        and Kind.EMBEDDING not in other.kinds
    ]
    ordered = sorted(found, key=lambda one: -(one.parameters or 0))
    return tuple(drafter for one in ordered for drafter in _drafter(one))


def _speaks_alike(entry: Entry, other: Entry) -> bool:
    if entry.vocabulary is None or other.vocabulary is None or entry.family != other.family:
        return False
    return abs(entry.vocabulary - other.vocabulary) <= MOST_OTHER_WORDS


def _drafter(entry: Entry) -> Iterator[Drafter]:
    """None of an entry that cannot be opened: a user's own may be damaged."""
    try:
        model = open_entry(entry, "llama.cpp")
    except EdgekitError:
        return
    yield Drafter(
        name=f"{entry.id} at {DRAFTER_MIX}",
        model=model,
        changes={"mix": DRAFTER_MIX},
        because=f"of the same family, {entry.vocabulary:,} words as well (llama.cpp compares them when it starts)",
    )
