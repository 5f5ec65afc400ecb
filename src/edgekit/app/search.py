"""Questions over the index: which models match, how good they are, and how they would run on a machine."""

from __future__ import annotations

import enum
import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from edgekit.app.candidates import (
    OFFLINE,
    TOO_LARGE,
    UNKNOWN_SPEED,
    Candidates,
    complete,
    key_of,
    read_stored,
    slower_than,
    store,
    why_skipped,
    with_rounded_memory,
)
from edgekit.app.check import Check, check_named
from edgekit.app.open import DEFAULT_MIX, assume_from_parameters
from edgekit.bill.types import Status, Verdict
from edgekit.engines import engine_named
from edgekit.engines.flags import read
from edgekit.errors import CancelledError, EdgekitError, UsageError, quoted
from edgekit.index import index_problems, read_index, users_entries
from edgekit.index.database import index_file
from edgekit.index.filters import PURPOSE_WORDS, Condition, Counted, Filters, select, typed_words
from edgekit.index.likeness import corrected
from edgekit.index.names import near_ids, spellings
from edgekit.index.quality import Quality, cache_loss, weights_loss
from edgekit.index.resolve import Resolved
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import Machine
from edgekit.plan.choice import ALWAYS_IN_RAM_BYTES, check_users, download_bytes, runs_on
from edgekit.plan.fit import DEFAULT_TOKENS, UNKNOWN_NATIVE_TOKENS
from edgekit.plan.recommend import entry_quality, is_notable, suits_task, task_of_entry
from edgekit.request import MOST_SHOWN, Request, Session
from edgekit.units import parse_count

SHOWN = 10
MAX_QUESTION_CHARS = 400
UNKNOWN_SIZE = "of unknown size"
_MONTH = re.compile(r"20[0-9]{2}(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12][0-9]|3[01]))?)?")


class Sort(enum.Enum):
    """The order of the answer, the best first."""

    QUALITY = "quality"  # the lower end of the interval, less what the quantisation costs
    SPEED = "speed"
    SIZE = "size"  # the most parameters first
    CONTEXT = "context"  # that it is run with, the longest first
    RELEASED = "released"
    USES = "uses"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the index."""

    filters: Filters = field(default_factory=Filters)
    fits: bool = False  # only models that fit the machine
    sort: Sort = Sort.QUALITY

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The question of a command line or a REST query. Raises UsageError."""
        words = fields.get("words") or ""
        words = words if isinstance(words, str) else " ".join(words)
        if len(words) > MAX_QUESTION_CHARS:
            raise UsageError(
                f"the question has {len(words):,} characters; at most {MAX_QUESTION_CHARS}"
            )

        def count(name: str) -> int | None:
            text = fields.get(name)
            return None if text is None else read(f"--{name.replace('_', '-')}", parse_count, text)

        after = fields.get("released_after")
        if after is not None and _MONTH.fullmatch(after) is None:
            raise UsageError(f"--released-after takes a month such as 2025-06 (got {after[:40]!r})")
        word = fields.get("sort") or Sort.QUALITY.value
        try:
            sort = Sort(word.lower())
        except ValueError as error:
            names = ", ".join(known.value for known in Sort)
            raise UsageError(f"--sort must be one of {names} (got {word[:40]!r})") from error
        filters = Filters(
            words=words,
            family=fields.get("family"),
            publisher=fields.get("publisher"),
            licence=fields.get("licence"),
            exact=bool(fields.get("exact")),
            min_parameters=count("min_params"),
            max_parameters=count("max_params"),
            released_after=after,
        )
        return cls(filters=filters, fits=bool(fields.get("fits")), sort=sort)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How a model would run: the figures of its plan that a table shows, small enough to be stored."""

    status: str  # of the verdict: "passed", "warning", "failed"
    quant: str
    context_tokens: int  # of one user
    cache: str
    download_bytes: int | None
    required_bytes: int  # of the tightest memory
    available_bytes: int
    tokens_per_s: float | None  # typical; of reading, for an embedding model
    runs_on: str  # "GPU", "2 GPUs", "GPU + CPU", "CPU"
    loss: float  # points of quality that weights and cache cost
    basis: str  # of the memory

    @property
    def fits(self) -> bool:
        return self.status != Status.FAILED.value

    @classmethod
    def of(cls, result: Verdict, entry: Entry, quant: str | None) -> Self:
        """The figures of a verdict. `quant`: as requested; None: EdgeKit chose it."""
        size = None if entry.has_geometry else entry.size(quant or DEFAULT_MIX)
        download = None if size is None else size.tensor_bytes
        if entry.has_geometry:
            quant, download = result.quantization, download_bytes(result)
        quant = quant or DEFAULT_MIX
        embeds = ModelPurpose.EMBEDDING in entry.kinds
        speed, tightest, load = result.speed, result.tightest, result.load
        rate = None if speed is None else speed.typical_for(embeds=embeds)
        native = "MXFP4" if entry.size("MXFP4_MOE") is not None else None
        caches = (kind.name if kind is not None else "f16" for kind in (load.cache_k, load.cache_v))
        return cls(
            status=result.status.value,
            quant=quant,
            context_tokens=result.context_tokens // result.streams,
            cache=result.cache,
            download_bytes=download,
            required_bytes=tightest.required_bytes,
            available_bytes=tightest.budget.available_bytes,
            tokens_per_s=None if rate is None else round(rate, 2),
            runs_on=runs_on(result),
            loss=round(weights_loss(quant, native=native).value + cache_loss(*caches).value, 2),
            basis=result.estimate.basis.value,
        )


_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("status", "quant", "cache", "runs_on", "basis"), str),
    **dict.fromkeys(("context_tokens", "required_bytes", "available_bytes"), int),
    "download_bytes": int | None,
    "tokens_per_s": float | int | None,
    "loss": float | int,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model that matches. Without figures, `because` says why it cannot run."""

    entry: Entry
    task: ModelPurpose  # that its quality is given for
    figures: Figures | None = None
    because: str = ""

    @property
    def quality(self) -> Quality:
        return entry_quality(self.entry, self.task)

    @property
    def fits(self) -> bool:
        return self.figures is not None and self.figures.fits

    @property
    def loss(self) -> float:
        return 0.0 if self.figures is None else self.figures.loss


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    """The first models in the requested order."""

    request: Request = field(repr=False)  # with the machine and the engine filled in
    question: Question
    models: tuple[Found, ...]
    matching: int  # models that meet all filters, whatever fits
    known: int  # models of the index
    counts: tuple[Counted, ...] = ()  # of each filter
    passed_over: tuple[
        tuple[str, int], ...
    ] = ()  # matching models that do not fit: (reason, number)
    near: tuple[str, ...] = ()  # if nothing matches: ids that are spelled alike
    notes: tuple[str, ...] = ()


def search(question: Question, request: Request, session: Session = OFFLINE) -> SearchAnswer:
    """The models of the index that match, in the requested order, with the verdict of `plan` and `check` for each.

    Answers are stored like those of `recommend`. Raises UsageError, and HardwareError if the machine has no hardware
    for the engine.
    """
    request = complete(request)
    machine = request.find_machine()
    engine_named(request.engines[0]).check_runs(machine)
    check_users(request.users, request.engines[0])
    least = max(request.wanted_tokens or 0, request.min_context or 0)
    question = replace(
        question,
        filters=replace(question.filters, min_context=least or None),
        fits=question.fits or request.min_speed is not None,  # what does not fit has no speed
    )
    file = index_file()
    stamp = (str(file.path), file.facts["built"], file.path.stat().st_mtime_ns)
    key = key_of(
        request, with_rounded_memory(machine), users_entries(), ("search", question, stamp)
    )
    answer = _stored_answer(key, question, request, session)
    if answer is None:
        answer = _Search(question, request, session).answer()
        rows = [
            {
                "id": found.entry.id,
                "task": found.task.value,
                "figures": None if found.figures is None else asdict(found.figures),
                "because": found.because,
            }
            for found in answer.models
        ]
        counts = {name: getattr(answer, name) for name in _STORED_COUNTS}
        store(key, {**counts, "memory": _memory_of(machine), "rows": rows})
    return replace(answer, notes=(*index_problems(), *answer.notes))


_STORED_COUNTS = ("matching", "known", "counts", "passed_over", "near", "notes")


def _memory_of(machine: Machine) -> str:
    """The free memory; a described machine always has the same."""
    return "" if machine.what_if else repr((machine.host, machine.devices))


def _stored_answer(
    key: str, question: Question, request: Request, session: Session
) -> SearchAnswer | None:
    """The stored answer. Its models are planned again if the free memory has changed a little since.

    None if there is none, it is damaged, or a model that fitted no longer does.
    """
    stored = read_stored(key)
    try:
        rows = stored["rows"]
        entries = {entry.id: entry for entry in _entries_with_ids([str(row["id"]) for row in rows])}
        models = [
            Found(
                entry=entries[row["id"]],
                task=ModelPurpose(row["task"]),
                figures=_read_figures(row["figures"]),
                because=str(row["because"]),
            )
            for row in rows
        ]
        answer = SearchAnswer(
            request=request,
            question=question,
            models=tuple(models),
            matching=int(stored["matching"]),
            known=int(stored["known"]),
            counts=tuple(
                Counted(str(text), int(met), int(out)) for text, met, out in stored["counts"]
            ),
            passed_over=tuple((str(text), int(count)) for text, count in stored["passed_over"]),
            near=tuple(map(str, stored["near"])),
            notes=tuple(map(str, stored["notes"])),
        )
        has_same_memory = stored["memory"] == _memory_of(request.find_machine())
    except (ArithmeticError, ValueError, TypeError, KeyError):
        return None
    if has_same_memory:
        return answer
    again = _Search(question, request, session)
    judged = [again.judged(found.entry) for found in models]
    if any(
        new.fits != old.fits or again.too_slow(new) for new, old in zip(judged, models, strict=True)
    ):
        return None
    return replace(answer, models=tuple(sorted(judged, key=again.key)))


def _entries_with_ids(ids: list[str]) -> Iterator[Entry]:
    marks = ",".join("?" * len(ids))
    yield from index_file().entries(f"WHERE m.id IN ({marks})", ids)
    yield from users_entries()  # these replace EdgeKit's own


def _read_figures(stored: Any) -> Figures | None:
    """Raises ValueError or TypeError if they are damaged."""
    if stored is None:
        return None
    numbers = [value for value in stored.values() if isinstance(value, float)]
    if not all(isinstance(stored[name], kind) for name, kind in _KINDS.items()):
        raise TypeError
    if not all(map(math.isfinite, numbers)):
        raise ValueError
    return Figures(**{**stored, "status": Status(stored["status"]).value})


Key = tuple[Any, ...]  # to sort by, the best first


class _Search:
    """One pass over the matching models, the best possible first.

    Where the order depends on the plan, a bound of it is known before. Models are planned in the order of their
    bounds, until no later one can rank higher than those found.
    """

    def __init__(self, question: Question, request: Request, session: Session) -> None:
        self._question, self._request, self._session = question, request, session
        self._candidates = Candidates(request, session)
        words = typed_words(question.filters.words)
        named = next((PURPOSE_WORDS[word] for word in words if word in PURPOSE_WORDS), None)
        self._task = request.purpose or named
        self._typed = spellings(question.filters.words)[0]

    def answer(self) -> SearchAnswer:
        index = read_index()
        question, notes = self._question, []
        selected = select(index.entries, self._conditions(question.filters))
        near: tuple[str, ...] = ()
        words = question.filters.words
        if not selected.entries and words:
            text, misspelt = corrected(words)
            other = replace(question.filters, words=text)
            is_other = misspelt and bool(typed_words(text))
            spelled = select(index.entries, self._conditions(other)) if is_other else selected
            if spelled.entries:
                notes.append(f"no model matches {quoted(words)}; searched for {quoted(text)}")
                selected = spelled
            else:
                near = near_ids(words)
        limit = min(self._request.limit or SHOWN, MOST_SHOWN)
        passed_over: Counter[str] = Counter()
        models = self._first(selected.entries, limit, passed_over)
        return SearchAnswer(
            request=self._request,
            question=question,
            models=tuple(models),
            matching=len(selected.entries),
            known=len(index.entries),
            counts=selected.counts,
            passed_over=tuple(passed_over.most_common()),
            near=near,
            notes=tuple(notes),
        )

    def _conditions(self, filters: Filters) -> Iterator[Condition]:
        yield from filters.conditions()
        if (task := self._request.purpose) is not None:
            yield Condition(f"--task {task.value}", lambda entry: suits_task(entry, task))

    def _first(
        self, entries: Iterable[Entry], limit: int, passed_over: Counter[str]
    ) -> list[Found]:
        """The first models in the requested order; with --fits only those that fit."""
        if self._question.fits:
            entries = list(entries)
            large = [entry for entry in entries if self._candidates.is_too_large(entry)]
            passed_over[TOO_LARGE] += len(large)
            left_out = {entry.id for entry in large}
            entries = [entry for entry in entries if entry.id not in left_out]
            unknown = {entry.id for entry in entries if self._candidates.has_unknown_speed(entry)}
            passed_over[UNKNOWN_SPEED] += len(unknown)
            entries = [entry for entry in entries if entry.id not in unknown]
            slow = {entry.id for entry in entries if self._candidates.is_too_slow(entry)}
            if slow and self._request.min_speed is not None:
                passed_over[slower_than(self._request.min_speed)] += len(slow)
                entries = [entry for entry in entries if entry.id not in slow]
        waiting = [(self._bound(entry), entry) for entry in entries]
        heapq.heapify(waiting)  # bounds end with the id: entries are never compared
        found: list[Found] = []
        while waiting:
            bound, entry = heapq.heappop(waiting)
            if len(found) >= limit and self.key(found[limit - 1]) <= bound:
                break
            judged = self.judged(entry)
            if self._question.fits and not judged.fits:
                passed_over[judged.because or TOO_LARGE] += 1
                continue
            if reason := self.too_slow(judged):
                passed_over[reason] += 1
                continue
            found.append(judged)
            found.sort(key=self.key)
        passed_over += Counter()  # without zeros
        return found[:limit]

    def too_slow(self, found: Found) -> str:
        """Why its speed is not the requested one; '' if it is, or none was requested."""
        wanted = self._request.min_speed
        if wanted is None or found.figures is None:
            return ""
        if found.figures.tokens_per_s is None:
            return UNKNOWN_SPEED
        return slower_than(wanted) if found.figures.tokens_per_s < wanted else ""

    def judged(self, entry: Entry) -> Found:
        """The model with its figures, or with the reason why it has none."""
        found = Found(entry=entry, task=self._task_of(entry))
        if self._candidates.is_too_large(entry):
            return replace(found, because=TOO_LARGE)
        try:
            result = (
                self._candidates.plan(entry).result if entry.has_geometry else self._assumed(entry)
            )
        except CancelledError:
            raise
        except UsageError:
            if entry.has_geometry:
                raise
            return replace(found, because=UNKNOWN_SIZE)
        except EdgekitError as error:
            return replace(found, because=why_skipped(error))
        return replace(found, figures=Figures.of(result, entry, self._request.quant))

    def _assumed(self, entry: Entry) -> Verdict:
        """The verdict of `check` on a model of which only the number of parameters is known. Raises EdgekitError."""
        self._session.tell(f"estimating {entry.id}")
        resolved = assume_from_parameters(
            Resolved(name=entry.id, entry=entry), entry, self._request.quant
        )
        (answer,) = check_named(resolved, self._request, self._session, with_changes=False)
        if not isinstance(answer, Check):
            raise answer.error
        return answer.result

    def _task_of(self, entry: Entry) -> ModelPurpose:
        """The task that its quality is given for. Embedding models have a scale of their own."""
        own = task_of_entry(entry)
        return own if self._task is None or own is ModelPurpose.EMBEDDING else self._task

    def _bound(self, entry: Entry) -> Key:
        """The key that the model would have at best."""
        speed = math.inf
        if not entry.has_geometry:
            speed = 0.0
        elif ModelPurpose.EMBEDDING not in entry.kinds:
            fastest = self._candidates.fastest_tokens_per_s(entry)
            speed = math.inf if fastest is None else fastest
        is_shown = not self._candidates.is_too_large(entry)
        longest = self._longest_context(entry) if is_shown else 0
        return self._key(entry, loss=0.0, tokens_per_s=speed, context_tokens=longest)

    def _longest_context(self, entry: Entry) -> int:
        """An upper bound of the context that a plan chooses: memory is spent on more than the default only if the
        whole model is on the devices, and its layers are known.
        """
        longest = entry.native_context or UNKNOWN_NATIVE_TOKENS
        devices = self._candidates.devices_bytes
        is_divided = (
            devices and self._candidates.weights_bytes(entry) > devices + ALWAYS_IN_RAM_BYTES
        )
        if is_divided or not entry.has_geometry:
            longest = DEFAULT_TOKENS
        return max(longest, self._question.filters.min_context or 0)

    def key(self, found: Found) -> Key:
        """What the answer is sorted by."""
        figures = found.figures
        context = 0 if figures is None else figures.context_tokens
        speed = figures.tokens_per_s if figures is not None and figures.fits else None
        return self._key(
            found.entry, loss=found.loss, tokens_per_s=speed or 0.0, context_tokens=context
        )

    def _key(self, entry: Entry, *, loss: float, tokens_per_s: float, context_tokens: int) -> Key:
        """The key of a model with these figures. One whose name is exactly what was typed is first in every order."""
        names = (entry.id, entry.repository or "")
        is_named = bool(self._typed) and any(spellings(name)[0] == self._typed for name in names)
        first: Key
        match self._question.sort:
            case Sort.QUALITY:
                task = self._task or ModelPurpose.CHAT
                quality = entry_quality(entry, self._task_of(entry)).low - loss
                first = (not suits_task(entry, task), not is_notable(entry, task), -quality)
            case Sort.SPEED:
                first = (ModelPurpose.EMBEDDING in entry.kinds, -tokens_per_s)
            case Sort.SIZE:
                first = (-(entry.parameters or 0),)
            case Sort.CONTEXT:
                first = (-context_tokens,)
            case Sort.RELEASED:
                first = (-_day_of(entry.released or entry.not_before),)
            case Sort.USES:
                first = (not entry.is_users,)
            case Sort.NAME:
                return (not is_named, entry.id)
        return (not is_named, *first, -entry.uses, entry.id)


def _day_of(date: str | None) -> int:
    """'2025-05-14' -> 20250514, '2025-05' -> 20250500; 0 if unknown."""
    digits = re.sub(r"[^0-9]", "", date or "")[:8]
    return int(digits.ljust(8, "0")) if digits else 0
