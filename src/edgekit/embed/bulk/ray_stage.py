"""The embedder on Ray: one actor a worker, each with a memory budget of its own.

`EmbedStage` is for pipelines of Ray Data: `dataset.map_batches(EmbedStage, fn_constructor_kwargs=...)`.
`embed_on_ray` is the stage of a bulk job. Its batches are cut as in one process: the vectors are the same to the bit.
It is on Ray's actors alone: the threads that Ray Data leaves behind when a job stops half-way end the whole process,
silently, where they run once more after `ray.shutdown()`.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit import errors
from edgekit.embed.bulk.job import Embedded, Stage, Terms, batches_of, embedded
from edgekit.embed.bulk.rows import Batch, ResumeMark, RowSource
from edgekit.engines.native.buffers import usable_cores
from edgekit.errors import (
    EdgekitError,
    EngineError,
    MemoryPressureError,
    NotFoundError,
    UsageError,
)
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.embed.embedder import Embedder

LOCAL = "local"
_CPUS_OF_READER = 1
_BATCHES_AHEAD = 2  # of each worker: the next one lies there while the first is embedded
FIRST_WORKER_S = (
    60  # a machine that is started for it takes longer, and is then asked for by the next try
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TRIES = 3  # a worker that died, by the memory of its machine or with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How every process opens the same embedder: the arguments of `open_embedder`."""

    model: str
    size_bytes: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> Embedder:
        """NotFoundError that names the machine where the model is missing or another one."""
        from edgekit.embed import open_embedder

        path = Path(self.model)
        where = os.uname().nodename if hasattr(os, "uname") else "this worker"
        if not path.is_file():
            raise NotFoundError(
                f"{self.model} is not on {where}: every worker reads the model itself, so "
                "it must be at the same path on each of them, or on a shared disk"
            )
        if path.stat().st_size != self.size_bytes:
            raise NotFoundError(
                f"{self.model} on {where} is not the same file as here: the size differs"
            )
        return open_embedder(self.model, **self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the workers are, and what each may take."""

    address: str
    workers: int | None  # None: as many as there are CPUs
    threads: int
    memory_bytes: int

    def workers_on(self, cpus: float) -> int:
        return self.workers or max(int(cpus - _CPUS_OF_READER) // self.threads, 1)


class EmbedStage:
    """For `map_batches`: a column of texts in, a column of vectors beside it out."""

    def __init__(
        self,
        model: str,
        *,
        field: str = "text",
        into: str = "vector",
        prefix: str = "",
        **options: Any,
    ) -> None:
        """`options` are those of `open_embedder`; give each worker its `memory_budget`."""
        from edgekit.embed import open_embedder

        self._embedder = open_embedder(model, **options)
        self._field, self._into, self._prefix = field, into, prefix

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        texts = [str(text) for text in batch[self._field]]
        return {**batch, self._into: self._embedder.embed(texts, prefix=self._prefix)}


def embed_on_ray(
    opening: Opening, embedder: Embedder, source: RowSource, terms: Terms, cluster: Cluster
) -> Stage:
    """A stage that reads and cuts here, with `embedder` to count, and embeds where the workers are."""

    def stage(begun: ResumeMark) -> Embedded:
        with _running(cluster) as ray:
            crew = _Crew(ray, opening, terms, cluster)
            yield from _embedded(crew, _rows(batches_of(source, begun, embedder, terms)))

    return stage


def _rows(batches: Iterator[Batch]) -> Iterator[Batch | _Failed]:
    """An error is the last row, so that what lies before it is still embedded."""
    try:
        yield from batches
    except EdgekitError as error:
        yield _Failed.of(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """An error on its way back: not every exception survives pickling."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: EdgekitError) -> _Failed:
        return cls(kind=type(error).__name__, message=str(error))

    def again(self) -> EdgekitError:
        kind = getattr(errors, self.kind, EngineError)
        error: EdgekitError = kind.__new__(kind)
        Exception.__init__(error, self.message)
        return error


class _Worker:
    """The actor. The model is opened by its first batch: what is wrong with it comes back as an answer."""

    def __init__(self, opening: Opening, terms: Terms) -> None:
        self._opening, self._terms = opening, terms
        self._embedder: Embedder | None = None

    def is_up(self) -> bool:
        return True

    def answer(self, batch: Batch) -> object:
        try:
            self._embedder = self._embedder or self._opening.open()
            return embedded(self._embedder, batch, self._terms)
        except EdgekitError as error:
            return _Failed.of(error)


@dataclass(slots=True, kw_only=True)
class _Up:
    """A worker that Ray has found a place for, and how many of its answers are not taken yet."""

    worker: Any
    asked: int = 0


class _Crew:
    """Batches go to workers that are up. Nobody waits for one that Ray has no room for."""

    def __init__(self, ray: Any, opening: Opening, terms: Terms, cluster: Cluster) -> None:
        """EngineError where not one of them finds a place."""
        self._ray, self._cluster = ray, cluster
        made = ray.remote(_Worker).options(
            num_cpus=cluster.threads,
            memory=cluster.memory_bytes,
            max_restarts=_TRIES,
            max_task_retries=_TRIES,
        )
        self._found = ray.cluster_resources()
        count = cluster.workers_on(self._found.get("CPU", 1))
        workers = [made.remote(opening, terms) for _ in range(count)]
        self._coming = {worker.is_up.remote(): worker for worker in workers}
        self._up: list[_Up] = []
        self._welcome(1, FIRST_WORKER_S if self._may_fit() else 0)
        if not self._up:
            raise EngineError(self._nowhere())

    def ask(self, batch: Batch) -> tuple[_Up, Any]:
        """Who answers, and the answer to come. The one with the fewest to answer is asked."""
        self._welcome(len(self._coming), 0)
        chosen = min(self._up, key=lambda one: one.asked)
        chosen.asked += 1
        return chosen, chosen.worker.answer.remote(batch)

    def take(self, asked: tuple[_Up, Any]) -> Any:
        who, answer = asked
        who.asked -= 1
        return taken(self._ray, answer)

    @property
    def most(self) -> int:
        """Answers that are waited for at once."""
        return len(self._up) * _BATCHES_AHEAD

    def _welcome(self, count: int, timeout_s: float) -> None:
        if not self._coming:
            return
        refs = list(self._coming)
        up, _ = self._ray.wait(refs, num_returns=max(count, 1), timeout=timeout_s)
        for ref in up:
            taken(self._ray, ref)
            self._up.append(_Up(worker=self._coming.pop(ref)))

    def _may_fit(self) -> bool:
        """A cluster may grow, this machine does not."""
        room = self._found.get("memory", 0)
        return self._cluster.address != LOCAL or self._cluster.memory_bytes <= room

    def _nowhere(self) -> str:
        cpus, room = self._found.get("CPU", 0), int(self._found.get("memory", 0))
        return (
            "Ray has no room for a worker: each one needs --threads "
            f"{self._cluster.threads} and --budget "
            f"{format_bytes(self._cluster.memory_bytes)} on one machine, and the whole "
            f"cluster has {cpus:g} CPUs and {format_bytes(room)}"
        )


def _embedded(crew: _Crew, rows: Iterator[Batch | _Failed]) -> Embedded:
    """The answers in the order of the batches."""
    waiting: deque[Any] = deque()
    for row in rows:
        if isinstance(row, _Failed):
            yield from map(crew.take, waiting)
            raise row.again()
        waiting.append(crew.ask(row))
        if len(waiting) >= crew.most:
            yield crew.take(waiting.popleft())
    yield from map(crew.take, waiting)


def taken(ray: Any, answer: Any) -> Any:
    """What was answered. An error of the worker's is raised here, as what it was."""
    try:
        row = ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        kind = MemoryPressureError if isinstance(cause, MemoryError) else EngineError
        raise kind(f"a worker failed with {type(cause).__name__}: {_plain(cause)}") from error
    except ray.exceptions.RayError as error:
        raise EngineError(f"a Ray worker was lost: {_plain(error)}") from error
    if isinstance(row, _Failed):
        raise row.again()
    return row


def _plain(error: object) -> str:
    """In one line, without colours."""
    return " ".join(_COLOUR.sub("", str(error)).split())[:400]


@contextmanager
def _running(cluster: Cluster) -> Iterator[Any]:
    """Ray, started here or joined, and left alone again."""
    ray = import_ray()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    os.environ.setdefault(
        "RAY_BACKEND_LOG_LEVEL", "fatal"
    )  # else its C++ writes to our standard error
    if cluster.address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet |= {
            "num_cpus": cluster.workers_on(usable_cores() + _CPUS_OF_READER) * cluster.threads
            + _CPUS_OF_READER,
            "include_dashboard": False,
        }
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123 - no file
        try:  # what Ray tells of workers it starts again goes to standard output, between our lines
            _join(ray, cluster.address, quiet)
            yield ray
        finally:
            ray.shutdown()


def _join(ray: Any, address: str, quiet: Mapping[str, Any]) -> None:
    try:
        with _silenced():  # it announces that it will be silent
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise EngineError(f"cannot reach Ray at {address!r}: {_plain(error)}") from error


@contextmanager
def _silenced() -> Iterator[None]:
    """Nothing reaches standard error, not from C++ either."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UsageError("--ray needs Ray: pip install 'edgekit-models[ray]'") from error
    return ray
