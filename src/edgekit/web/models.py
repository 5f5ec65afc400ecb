"""References -> models that stay open: each is opened once, for all who ask at the same time and after."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.task import NEXT_TO_MODEL, price_loads
from edgekit.bill.types import Price
from edgekit.engines import engine_named
from edgekit.engines.flags import companions_in
from edgekit.errors import CancelledError, DeadlineError
from edgekit.model.open import OpenModel
from edgekit.request import Session, Values
from edgekit.sources.types import Origin, Reach
from edgekit.web.limits import Places
from edgekit.web.references import (
    Stamp,
    allowed,
    catalog_stamp,
    files_inside,
    is_file,
    is_near,
    paths_of,
    stamp_of,
)
from edgekit.web.types import CallWatch, WebSettings, reach_of

KEPT = 64
WORKED_OUT = 8  # of those, models that keep what engines worked out: up to 200 MB each
# In all, and of one client: of those that may need the network. The page opens three at once to compare.
OPENED_AT_ONCE, OPENED_EACH = 6, 3
WAITING_AT_ONCE, WAITING_EACH = 16, 6  # each holds one of the server's 40 threads
REMOTE_S = 3600.0
STORE_S = 60.0  # what another program keeps on this machine is quickly looked up again
BESIDE_S = 10.0  # a projector or an adapter that was changed is seen then
BESIDE_KEPT = 8
LOOKS_S = 0.05  # how often a waiter looks whether it was called off
PATIENCE_S = 5.0  # beyond the time-out, for what came before

# Groups of flags that affect a price in addition to the load and the setup.
_BESIDE = frozenset({"companion", "drafter", "weights"})
Beside = tuple[Any, ...]
Stamps = tuple[tuple[str, Stamp], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel(ResolvedModel):
    """A resolved model with what was worked out for each engine."""

    by_engine: dict[str, OpenModel] = field(default_factory=dict, repr=False, compare=False)
    beside: dict[Beside, tuple[float, Price]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def as_file(self, engine: str) -> OpenModel:
        found = self.by_engine.get(engine)
        if found is None:
            found = self.by_engine[engine] = ResolvedModel.as_file(self, engine)
        return found

    def pricing(self, opened: OpenModel, engine: str, values: Values, reach: Reach) -> Price:
        """As `price_loads`; files next to the model are not read again for every step of a slider."""
        keys = {flag.key for flag in engine_named(engine).flags if flag.group in _BESIDE}
        key = (engine, *((key, values[key]) for key in sorted(keys & values.keys())))
        if len(key) == 1:
            return price_loads(opened, engine, values, reach)
        until_s, price = self.beside.get(key, (0.0, None))
        if price is None or time.monotonic() > until_s:
            price = price_loads(opened, engine, values, reach)
            if len(self.beside) >= BESIDE_KEPT:
                self.beside.clear()
            given = companions_in(engine_named(engine).flags, values)
            is_auto = given.get("projector") == NEXT_TO_MODEL
            self.beside[key] = (time.monotonic() + self._beside_s(is_auto=is_auto), price)
        return price

    def _beside_s(self, *, is_auto: bool) -> float:
        """The projector next to a remote model is looked up as often as the model itself."""
        is_remote = self.files is not None and self.files.origin.is_remote
        return REMOTE_S if is_remote and is_auto else BESIDE_S

    def forget(self) -> None:
        """What was worked out for it: the model itself stays open."""
        self.by_engine.clear()
        self.beside.clear()
        if self.found is not None:
            self.found.model.forget()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    named: CachedModel
    stamps: Stamps  # of the files it rests on
    until_s: float  # by the monotonic clock

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() < self.until_s and all(
            stamp_of(path) == stamp for path, stamp in self.stamps
        )


class _Flight:
    """One opening, in a thread of its own, and all who wait for it. The last who leaves calls it off."""

    def __init__(self, client: str) -> None:
        self.done = threading.Event()
        self.watch = CallWatch(client=client, progress=self._tell)  # the first one's
        self.waiting: list[CallWatch] = []
        self.named: CachedModel | None = None
        self.error: BaseException | None = None

    def _tell(self, line: str) -> None:
        for watch in tuple(self.waiting):
            if watch.progress is not None:
                watch.progress(line)

    def answer(self) -> CachedModel:
        if self.error is not None:
            raise self.error
        assert self.named is not None  # noqa: S101 - done without an error
        return self.named


class OpenedModels:
    """Those asked for last; a failure is not kept. For any number of threads."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._flights: dict[str, _Flight] = {}
        self._waiting = Places(most=WAITING_AT_ONCE, each=WAITING_EACH)
        self._openings = Places(most=OPENED_AT_ONCE, each=OPENED_EACH)

    def named(self, reference: str, watch: CallWatch) -> CachedModel:
        """Raises EdgekitError: what may not be named, cannot be read, was called off or took too long."""
        wanted = allowed(reference, self._settings)
        found = self._found(wanted)
        if found is not None:
            return found
        with self.among_the_waiting(watch, far=not is_near(wanted)):
            return self._opened(wanted, watch)

    def among_the_waiting(self, watch: CallWatch, *, far: bool) -> AbstractContextManager[None]:
        """Around all that may have to wait for another server (`far`). Raises TooManyError, never for what is near."""
        if not far:
            return nullcontext()
        return self._waiting.taken(
            watch.client, "too many models are being opened; try again in a moment"
        )

    def _found(self, wanted: str) -> CachedModel | None:
        with self._lock:
            kept = self._kept.get(wanted)
        if kept is None or not kept.is_fresh:
            return None
        with self._lock:
            if wanted in self._kept:
                self._touch(wanted)
        return kept.named

    def _touch(self, wanted: str) -> None:
        self._kept.move_to_end(wanted)
        for one in islice(reversed(self._kept.values()), WORKED_OUT, WORKED_OUT + 1):
            one.named.forget()

    def _opened(self, wanted: str, watch: CallWatch) -> CachedModel:
        flight = self._join(wanted, watch)
        end = time.monotonic() + self._settings.timeout_s + PATIENCE_S
        try:
            while not flight.done.wait(LOOKS_S):
                if watch.cancelled.is_set():
                    raise CancelledError(f"{_short(wanted)}: cancelled")
                if time.monotonic() > end:
                    raise DeadlineError(
                        f"{_short(wanted)} could not be opened within {self._settings.timeout_s:g} s"
                    )
        finally:
            self._leave(wanted, flight, watch)
        return flight.answer()

    def _join(self, wanted: str, watch: CallWatch) -> _Flight:
        with self._lock:
            is_first = wanted not in self._flights
            flight = self._flights.setdefault(wanted, _Flight(watch.client))
            flight.waiting.append(watch)
        if is_first:
            threading.Thread(target=self._open, args=(wanted, flight), daemon=True).start()
        return flight

    def _leave(self, wanted: str, flight: _Flight, watch: CallWatch) -> None:
        with self._lock:
            flight.waiting = [one for one in flight.waiting if one is not watch]
            if flight.waiting or flight.done.is_set():
                return
            flight.watch.cancelled.set()
            self._forget(wanted, flight)  # who comes now starts anew

    def _forget(self, wanted: str, flight: _Flight) -> None:
        if self._flights.get(wanted) is flight:
            del self._flights[wanted]

    def _open(self, wanted: str, flight: _Flight) -> None:
        kept: _Kept | None = None
        try:
            kept = self._read(wanted, flight.watch)
            flight.named = kept.named
        except BaseException as error:  # noqa: BLE001 - raised again in the threads that wait
            flight.error = error
        with self._lock:
            if kept is not None and not flight.watch.cancelled.is_set():  # else its files are too
                self._kept[wanted] = kept
                self._touch(wanted)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._forget(wanted, flight)
            flight.done.set()

    def _read(self, wanted: str, watch: CallWatch) -> _Kept:
        if is_file(wanted):
            paths = paths_of(files_inside(wanted, self._settings))
            folder = wanted if Path(wanted).is_dir() else str(Path(wanted).parent)
            stamps = tuple((path, stamp_of(path)) for path in (folder, *paths))
            return self._named(wanted, watch, stamps)
        stamps = (catalog_stamp(),)
        if is_near(wanted):
            return self._named(wanted, watch, stamps)
        while not self._openings.enter(watch.client, timeout_s=LOOKS_S):
            watch.check()
        try:
            return self._named(wanted, watch, stamps)
        finally:
            self._openings.leave(watch.client)

    def _named(self, wanted: str, watch: CallWatch, stamps: Stamps) -> _Kept:
        named = open_named(wanted, Session(reach=reach_of(self._settings, watch)))
        plain = {one.name: getattr(named, one.name) for one in fields(named)}
        return _Kept(
            named=CachedModel(**plain), stamps=stamps, until_s=time.monotonic() + _lasts_s(named)
        )


def _short(wanted: str) -> str:
    """A path is not cut off: half a folder would not be known as one."""
    return Path(wanted).name if is_file(wanted) else wanted[:80]


def _lasts_s(named: ResolvedModel) -> float:
    """Of another program's store nothing tells that it changed; all else has stamps, or a server that is spared."""
    stores = {Origin.HUB_CACHE, Origin.OLLAMA_STORE, Origin.LM_STUDIO}
    return STORE_S if named.files is not None and named.files.origin in stores else REMOTE_S
