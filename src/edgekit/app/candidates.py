"""Models of the index on one machine: their plans, why some cannot run, and answers that are stored on disk."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgekit import __version__
from edgekit.app.estimate import check_one_engine
from edgekit.app.open import ResolvedModel
from edgekit.app.plan import task_to_plan
from edgekit.bill.types import Task
from edgekit.engines import default_engine, engine_named
from edgekit.errors import (
    EdgekitError,
    HeaderLimitError,
    RefusedError,
    UnknownArchitectureError,
)
from edgekit.index.quality import data_stamp
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import Machine
from edgekit.plan.plan import Plan, check_planned, make_plan
from edgekit.plan.recommend import smallest_bytes
from edgekit.request import Request, Session, read_quant
from edgekit.sources.cache import cache_folder
from edgekit.sources.local import read_small, replacing
from edgekit.sources.types import Reach
from edgekit.units import MIB, min_speed_words

OFFLINE = Session(reach=Reach(network=False))
TOO_LARGE = "too large"
UNKNOWN_SPEED = "of unknown speed"
# At least this share of the active weights is read for each token: of an embedding table only one row is, and such
# tables are half of gemma-4-e2b.
READ_SHARE = 0.5
STEP_BYTES = 256 * MIB  # smaller changes of the free memory do not need a new search
LEFTOVER_S = 3600  # age at which an unfinished file is certainly abandoned
MOST_FILES = 64  # stored recommendations and searches; the oldest are removed


def complete(request: Request) -> Request:
    """The request with its machine and one engine. Raises UsageError."""
    check_one_engine(request)
    engine = request.engine or default_engine().name
    check_planned(engine)
    engine_named(engine).check_limits(request.reserve_bytes, request.max_use)
    return replace(request, engines=(engine,), machine=request.find_machine())


def task_for(entry: Entry, request: Request, session: Session = OFFLINE) -> Task:
    """The task of a complete request for this model. Raises EdgekitError if the engine loads none of its files."""
    resolved = ResolvedModel(name=entry.id, entry=entry, quant=request.quant)
    return task_to_plan(resolved, replace(request, drafter=False), session)


def why_skipped(error: EdgekitError) -> str:
    """The reason to count for a model that cannot be planned."""
    if isinstance(error, RefusedError | UnknownArchitectureError):
        return "not supported by the engine"
    return "damaged or incomplete"


def slower_than(tokens_per_s: float) -> str:
    """The reason to count for a model that is slower than --min-speed."""
    return f"slower than {min_speed_words(tokens_per_s)} tokens/s"


OnPlan = Callable[[Entry, Plan], None]


class Candidates:
    """Models on the machine and engine of a complete request. Models that share a geometry are planned once."""

    def __init__(self, request: Request, session: Session, on_plan: OnPlan | None = None) -> None:
        """`on_plan` gets each model that is planned, with its longest context."""
        self._request, self._session, self._on_plan = request, session, on_plan
        self._machine, self._engine = request.find_machine(), engine_named(request.engines[0])
        self._capacity_bytes = sys.maxsize  # with --reserve, only the plan decides what fits
        if request.reserve_bytes is None:
            self._capacity_bytes = self._engine.capacity_bytes(self._machine)
        self.devices_bytes = sum(card.free_bytes for card in self._engine.devices(self._machine))
        self._plans: dict[object, Plan] = {}

    def plan(self, entry: Entry) -> Plan:
        """The plan without its expensive parts, which says so if nothing fits. Raises EdgekitError."""
        self._session.tell(f"planning {entry.id}")
        task = task_for(entry, self._request, self._session)
        variants = tuple((variant.name, variant.reference) for variant in task.variants)
        native = task.model.geometry.native_context
        key = (entry.geometry or entry.id, entry.basis, native, task.start, variants)
        plan = self._plans.get(key)
        if plan is None:
            longest = self._on_plan is not None
            plan = make_plan(task, thorough=False, helpful=False, longest=longest)
            self._plans[key] = plan
        its_own = replace(plan.task, label=task.label, repository=task.repository)
        plan = replace(plan, task=its_own)
        if self._on_plan is not None:
            self._on_plan(entry, plan)
        return plan

    def weights_bytes(self, entry: Entry) -> int:
        """The least that its weights can take: at the requested quantisation, or the smallest good one; 0: unknown."""
        if self._request.quant is None:
            return smallest_bytes(entry)
        size = entry.size(read_quant(self._engine.name, self._request.quant))
        return 0 if size is None else size.tensor_bytes

    def is_too_large(self, entry: Entry) -> bool:
        """Whether its weights alone exceed what the engine may use."""
        return self.weights_bytes(entry) > self._capacity_bytes

    def is_too_slow(self, entry: Entry) -> bool:
        """Whether it cannot be as fast as requested. An embedding model reads faster than it could generate."""
        wanted = self._request.min_speed
        if wanted is None or ModelPurpose.EMBEDDING in entry.kinds:
            return False
        fastest = self.fastest_tokens_per_s(entry)
        return fastest is not None and fastest < wanted

    def has_unknown_speed(self, entry: Entry) -> bool:
        """Whether a speed was requested, and that of the machine is unknown, so that no plan would have one."""
        if self._request.min_speed is None or ModelPurpose.EMBEDDING in entry.kinds:
            return False
        is_known = bool(self.weights_bytes(entry) and entry.parameters)
        return is_known and self.fastest_tokens_per_s(entry) is None

    def fastest_tokens_per_s(self, entry: Entry) -> float | None:
        """An upper bound of its speed: the machine reads nothing but its smallest weights. None if unknown."""
        size, parameters = self.weights_bytes(entry), entry.parameters or 0
        if not size or not parameters:
            return None
        active = entry.active_parameters or parameters
        read_bytes = READ_SHARE * size * active / parameters
        # What each token reads may all be on the devices, and in RAM only experts that are hardly ever chosen.
        held_bytes = size if active == parameters else math.ceil(read_bytes)
        return self._engine.fastest_tokens_per_s(read_bytes, held_bytes, self._machine)


# --- stored answers


def with_rounded_memory(machine: Machine) -> Machine:
    """The machine with its free memory rounded down, to compare requests. A what-if machine stays as it is."""
    if machine.what_if:
        return machine
    return with_free_memory(machine, lambda free_bytes: free_bytes // STEP_BYTES * STEP_BYTES)


def with_free_memory(machine: Machine, change: Callable[[int], int]) -> Machine:
    """The machine with other figures for its free memory; limits keep their size."""
    host = machine.host
    if host is not None:
        limits = tuple(
            replace(limit, used_bytes=limit.limit_bytes - change(limit.left_bytes))
            for limit in host.limits
        )
        host = replace(host, free_bytes=change(host.free_bytes), limits=limits)
    devices = (
        replace(
            device,
            free_bytes=change(device.free_bytes),
            own_bytes=change(device.own_bytes),
            users=(),
        )
        for device in machine.devices
    )
    return replace(machine, host=host, devices=tuple(devices))


STORED_FORMAT = (
    3  # of the stored answers: one more whenever what they have, or how they are found, changes
)


def key_of(
    request: Request, machine: Machine, entries: Iterable[Entry], question: object = None
) -> str:
    """A hash of everything that an answer depends on: request, machine, models and their quality, versions, `question`.

    Raises UsageError if EDGEKIT_LLAMA_VERSION is not a version.
    """
    engine, host = engine_named(request.engines[0]), machine.host
    ram = None
    if host is not None:
        ram = (
            host.usable_bytes,
            host.limited_total_bytes,
            host.total_bytes,
            host.bandwidth_bytes_per_s,
            host.bandwidth_basis,
        )
    cards = [replace(device, users=(), because="") for device in machine.devices]
    identity = (
        __version__,
        STORED_FORMAT,
        engine.version(engine.default_setup()),
        # Not as it was typed: "rtx 4090" and "RTX 4090" are one machine.
        replace(request, machine=None, devices=(), ram=None, vram=None, cpu=None),
        (
            machine.what_if,
            machine.system,
            machine.processor,
            machine.cores,
            sorted(machine.instructions),
            ram,
            repr(cards),
            machine.measured,
        ),
        [(entry, entry.header) for entry in entries],
        data_stamp(),
        question,
    )
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStore:
    """A folder of answers, next to the cache of headers. It may be deleted at any time."""

    name: str
    max_bytes: int  # of one answer
    most_files: int  # the oldest are removed

    @property
    def folder(self) -> Path | None:
        """None if nothing may be cached."""
        headers = cache_folder()
        return None if headers is None else headers.parent / self.name

    def read(self, key: str) -> Any:
        """The stored answer, as its JSON; None if there is none, or it is damaged."""
        folder = self.folder
        if folder is None:
            return None
        try:
            return json.loads(read_small(folder / f"{key}.json", limit=self.max_bytes) or b"null")
        except (HeaderLimitError, ValueError, RecursionError):
            return None

    def write(self, key: str, answer: Mapping[str, Any]) -> None:
        """Store an answer. Ignores write errors, and an answer that is too long: stored answers only save time."""
        folder = self.folder
        if folder is None:
            return
        try:
            text = json.dumps(answer, separators=(",", ":")).encode()
            if len(text) > self.max_bytes:
                return
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / f"{key}.json") as file:
                file.write(text)
            stored = folder.glob("*.json")
            newest = sorted(stored, key=lambda path: path.stat().st_mtime, reverse=True)
            oldest = time.time() - LEFTOVER_S
            leftover = [path for path in folder.glob("*.part") if path.stat().st_mtime < oldest]
            for path in (*newest[self.most_files :], *leftover):
                path.unlink(missing_ok=True)
        except (OSError, ValueError):
            return


# An answer has 1 to 60 KB.
RECOMMENDED = AnswerStore(name="recommended", max_bytes=128 * 1024, most_files=MOST_FILES)


def read_stored(key: str) -> Any:
    """The stored recommendation or search, as its JSON; None if there is none, or it is damaged."""
    return RECOMMENDED.read(key)


def store(key: str, answer: Mapping[str, Any]) -> None:
    """Store a recommendation or a search. Ignores write errors."""
    RECOMMENDED.write(key, answer)
