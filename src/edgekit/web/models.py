"""Opens the models of requests. Each model is opened once and shared by all requests that name it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Self

from edgekit.app.estimate import NEXT_TO_MODEL, price_loads
from edgekit.app.open import ResolvedModel, open_named
from edgekit.bill.types import Price
from edgekit.engines import engine_named
from edgekit.engines.flags import companions_in
from edgekit.errors import CancelledError, DeadlineError
from edgekit.model import OpenModel
from edgekit.request import Session, Values
from edgekit.server.clients import Places
from edgekit.sources.types import Origin, Reach
from edgekit.web.failures import TooManyError
from edgekit.web.references import (
    Stamp,
    allowed_reference,
    catalog_stamp,
    files_inside,
    is_file,
    may_need_network,
    paths_of,
    stamp_of,
)
from edgekit.web.types import CallWatch, WebSettings, reach_of

CACHED_MODELS = 64
WITH_RESULTS = 8  # models that also keep what the engines computed for them: up to 200 MB each
# Limits for models that may need the network: in all, and per client. The page opens three at once to compare.
OPENED_AT_ONCE, OPENED_EACH = 6, 3
WAITING_AT_ONCE, WAITING_EACH = 16, 6  # each holds one of the server's 40 threads
REMOTE_S = 3600.0
STORE_S = 60.0  # another program's store on this machine: cheap to look up again
COMPANIONS_S = 10.0  # then a changed projector or adapter is noticed
CACHED_PRICES = 8  # per model, for loads with companions
POLL_S = 0.05  # how often a waiting request checks whether it was cancelled
PATIENCE_S = 5.0  # how much longer than the opening itself a request waits for it

# Groups of flags that affect a price in addition to the load and the setup.
_COMPANION_GROUPS = frozenset({"companion", "drafter", "weights"})
_STORES = frozenset({Origin.HUB_CACHE, Origin.OLLAMA_STORE, Origin.LM_STUDIO})


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel(ResolvedModel):
    """A resolved model, how long it may be reused, and what was computed for each engine."""

    stamps: tuple[tuple[str, Stamp], ...] = field(default=(), repr=False, compare=False)
    until_s: float = field(default=0.0, repr=False, compare=False)  # by the monotonic clock
    by_engine: dict[str, OpenModel] = field(default_factory=dict, repr=False, compare=False)
    prices: dict[tuple[object, ...], tuple[float, Price]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() < self.until_s and all(
            stamp_of(path) == stamp for path, stamp in self.stamps
        )

    def at_checkpoint(self, engine: str) -> Self:
        model = ResolvedModel.at_checkpoint(self, engine)
        return model if model is self else replace(model, by_engine={}, prices={})

    def as_file(self, engine: str) -> OpenModel:
        model = self.by_engine.get(engine)
        if model is None:
            model = self.by_engine[engine] = ResolvedModel.as_file(self, engine)
        return model

    def pricing(self, opened: OpenModel, engine: str, values: Values, reach: Reach) -> Price:
        """Like `price_loads`, but caches the price, so that a slider does not read companion files at every step."""
        flags = engine_named(engine).flags
        keys = {flag.key for flag in flags if flag.group in _COMPANION_GROUPS} & values.keys()
        if not keys:
            return price_loads(opened, engine, values, reach)
        cache_key = (engine, *((key, values[key]) for key in sorted(keys)))
        until_s, price = self.prices.get(cache_key, (0.0, None))
        if price is None or time.monotonic() > until_s:
            price = price_loads(opened, engine, values, reach)
            if len(self.prices) >= CACHED_PRICES:
                self.prices.clear()
            # The projector next to a remote model is looked up as rarely as the model itself.
            is_remote = self.files is not None and self.files.origin.is_remote
            finds_projector = companions_in(flags, values).get("projector") == NEXT_TO_MODEL
            lasts_s = REMOTE_S if is_remote and finds_projector else COMPANIONS_S
            self.prices[cache_key] = (time.monotonic() + lasts_s, price)
        return price

    def forget(self) -> None:
        """Drops what was computed; the model itself stays open."""
        self.by_engine.clear()
        self.prices.clear()
        if self.found is not None:
            self.found.model.forget()


class _Flight:
    """One opening in its own thread, shared by all requests that wait for it. The last to leave cancels it."""

    def __init__(self, client: str) -> None:
        self.outcome: Future[CachedModel] = Future()
        self.watch = CallWatch(client=client, progress=self._report)  # counts for the first client
        self.waiting: list[CallWatch] = []

    def _report(self, line: str) -> None:
        for watch in tuple(self.waiting):
            if watch.progress is not None:
                watch.progress(line)


class OpenedModels:
    """The models requested last; failures are not cached. Thread-safe."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, CachedModel] = OrderedDict()
        self._flights: dict[str, _Flight] = {}
        self._waiting = Places(in_all=WAITING_AT_ONCE, per_client=WAITING_EACH)
        self._openings = Places(in_all=OPENED_AT_ONCE, per_client=OPENED_EACH)

    def named(self, reference: str, watch: CallWatch) -> CachedModel:
        """Raises EdgekitError if the model is not allowed or unreadable, on cancellation and on time-out."""
        target = allowed_reference(reference, self._settings)
        with self._lock:
            cached = self._cached.get(target)
        if cached is not None and cached.is_fresh:
            with self._lock:
                if target in self._cached:
                    self._touch(target)
            return cached
        with self.remote_slot(watch, is_needed=may_need_network(target)):
            return self._wait_for(target, watch)

    @contextmanager
    def remote_slot(self, watch: CallWatch, *, is_needed: bool) -> Iterator[None]:
        """Around everything that may have to wait for another server. Raises TooManyError."""
        if is_needed and not self._waiting.enter(watch.client):
            raise TooManyError("too many models are being opened; try again in a moment")
        try:
            yield
        finally:
            if is_needed:
                self._waiting.leave(watch.client)

    def _touch(self, target: str) -> None:
        """Marks a model as the last used. Only the last WITH_RESULTS models keep their results."""
        self._cached.move_to_end(target)
        for model in islice(reversed(self._cached.values()), WITH_RESULTS, WITH_RESULTS + 1):
            model.forget()  # the only one that still has results: earlier calls cleared those before it

    def _wait_for(self, target: str, watch: CallWatch) -> CachedModel:
        """Waits until a model is open. The first request for it starts the opening."""
        with self._lock:
            is_first = target not in self._flights
            flight = self._flights.setdefault(target, _Flight(watch.client))
            flight.waiting.append(watch)
        if is_first:
            threading.Thread(target=self._open, args=(target, flight), daemon=True).start()
        timeout_s = self._settings.timeout_s
        end_s = time.monotonic() + timeout_s + PATIENCE_S
        # Of a path only the file name: a folder that is cut off at 80 characters could not be redacted.
        name = Path(target).name if is_file(target) else target[:80]
        try:
            while not wait([flight.outcome], POLL_S).done:
                if watch.cancelled.is_set():
                    raise CancelledError(f"{name}: cancelled")
                if time.monotonic() > end_s:
                    raise DeadlineError(f"{name} could not be opened within {timeout_s:g} s")
        finally:
            with self._lock:
                flight.waiting = [other for other in flight.waiting if other is not watch]
                if not flight.waiting and not flight.outcome.done():
                    flight.watch.cancelled.set()
                    self._remove(target, flight)  # the next request starts afresh
        return flight.outcome.result()

    def _open(self, target: str, flight: _Flight) -> None:
        """The thread of an opening: hands the model, or the error, to the requests that wait."""
        try:
            opened = self._read(target, flight.watch)
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting threads
            with self._lock:
                self._remove(target, flight)
                flight.outcome.set_exception(error)
            return
        with self._lock:
            if not flight.watch.cancelled.is_set():
                self._cached[target] = opened
                self._touch(target)
                while len(self._cached) > CACHED_MODELS:
                    self._cached.popitem(last=False)
            self._remove(target, flight)
            flight.outcome.set_result(opened)

    def _remove(self, target: str, flight: _Flight) -> None:
        if self._flights.get(target) is flight:
            del self._flights[target]

    def _read(self, target: str, watch: CallWatch) -> CachedModel:
        """Opens a model. One that may need the network first waits until few enough others are being opened."""
        if is_file(target):
            paths = paths_of(files_inside(target, self._settings))
            folder = target if Path(target).is_dir() else str(Path(target).parent)
            stamps = tuple((path, stamp_of(path)) for path in (folder, *paths))
        else:
            stamps = (catalog_stamp(),)
        is_remote = may_need_network(target)
        while is_remote and not self._openings.enter(watch.client, timeout_s=POLL_S):
            watch.check()
        try:
            resolved_model = open_named(target, Session(reach=reach_of(self._settings, watch)))
        finally:
            if is_remote:
                self._openings.leave(watch.client)
        # Another program's store changes without notice. Files have stamps; a remote server is rarely asked again.
        is_stored = resolved_model.files is not None and resolved_model.files.origin in _STORES
        until_s = time.monotonic() + (STORE_S if is_stored else REMOTE_S)
        return CachedModel.of(resolved_model, stamps=stamps, until_s=until_s)
