"""The embedder on Ray: one actor per worker, each with its own memory budget.

`EmbedStage` is for pipelines of Ray Data: `dataset.map_batches(EmbedStage, fn_constructor_kwargs=...)`.
`embed_on_ray` is the stage of a bulk job. The batches are cut as for one process, so the vectors are the same to the
bit. It uses Ray's actors and not Ray Data, whose threads survive a job that stops half-way and end the whole process,
silently, if they run again after `ray.shutdown()`.
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
from edgekit.embed.bulk.job import EmbeddedBatches, Terms, embed_batch
from edgekit.embed.bulk.rows import Batch
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
# Time for the first worker to start. A cluster that has to add a machine takes longer: run the job again later.
FIRST_WORKER_S = 60

_CPUS_OF_READER = 1  # for the process that reads the input
_BATCHES_AHEAD = 2  # per worker: one is embedded, the next one waits
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RESTARTS = 3  # of a worker that died, for example because its machine ran out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The arguments of `open_embedder`, so that every process opens the same embedder."""

    model: str
    size_bytes: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> Embedder:
        """Raises NotFoundError, with the machine's name, if the model is missing there or has another size."""
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
    """Where the workers run, and the resources of each."""

    address: str
    workers: int | None  # None: as many as the CPUs allow
    threads: int
    memory_bytes: int

    def workers_on(self, cpus: float) -> int:
        """How many workers to start on this many CPUs: at least one, even if the CPUs are too few."""
        return self.workers or max(int(cpus - _CPUS_OF_READER) // self.threads, 1)


class EmbedStage:
    """For `map_batches`: adds a column of vectors to a column of texts."""

    def __init__(
        self,
        model: str,
        *,
        field: str = "text",
        into: str = "vector",
        prefix: str = "",
        **options: Any,
    ) -> None:
        """`options` are those of `open_embedder`; `memory_budget` is per worker."""
        from edgekit.embed import open_embedder

        self._embedder = open_embedder(model, **options)
        self._field, self._into, self._prefix = field, into, prefix

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        texts = [str(text) for text in batch[self._field]]
        return {**batch, self._into: self._embedder.embed(texts, prefix=self._prefix)}


def embed_on_ray(
    opening: Opening, terms: Terms, cluster: Cluster, batches: Iterator[Batch]
) -> EmbeddedBatches:
    """Embeds batches in the workers."""
    workers_here = cluster.workers_on(usable_cores() + _CPUS_OF_READER)
    cpus = workers_here * cluster.threads + _CPUS_OF_READER
    with connected_ray(cluster.address, cpus=cpus) as ray:
        workers = _Workers(ray, opening, terms, cluster)
        sent: deque[Any] = deque()
        failure: EdgekitError | None = None
        while failure is None:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except EdgekitError as error:
                failure = error  # raised at the end: the batches before it are still embedded
                continue
            sent.append(workers.send(batch))
            if len(sent) >= workers.most_pending:
                yield workers.take(sent.popleft())
        yield from map(workers.take, sent)
        if failure is not None:
            raise failure


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """An error of a worker, as strings, because some exceptions cannot be pickled."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: EdgekitError) -> WorkerFailure:
        return cls(kind=type(error).__name__, message=str(error))

    def to_error(self) -> EdgekitError:
        """The exception again, without calling its constructor, whose arguments are not known."""
        kind = getattr(errors, self.kind, EngineError)
        error: EdgekitError = kind.__new__(kind)
        Exception.__init__(error, self.message)
        return error


class _Worker:
    """The actor. It opens the model with its first batch, so that an error in opening is returned as an answer."""

    def __init__(self, opening: Opening, terms: Terms) -> None:
        self._opening, self._terms = opening, terms
        self._embedder: Embedder | None = None

    def is_up(self) -> bool:
        return True

    def answer(self, batch: Batch) -> object:
        """The batch with its vectors, or a WorkerFailure."""
        try:
            self._embedder = self._embedder or self._opening.open()
            return embed_batch(self._embedder, batch, self._terms)
        except EdgekitError as error:
            return WorkerFailure.of(error)


class _Workers:
    """Sends batches to the workers that have started. It never waits for one that Ray cannot place."""

    def __init__(self, ray: Any, opening: Opening, terms: Terms, cluster: Cluster) -> None:
        """Raises EngineError if Ray cannot start any of them."""
        self._ray, self._cluster = ray, cluster
        actor = ray.remote(_Worker).options(
            num_cpus=cluster.threads,
            memory=cluster.memory_bytes,
            max_restarts=_RESTARTS,
            max_task_retries=_RESTARTS,
        )
        resources = ray.cluster_resources()
        cpus, memory_bytes = resources.get("CPU", 0), resources.get("memory", 0)
        count = cluster.workers_on(resources.get("CPU", 1))
        workers = [actor.remote(opening, terms) for _ in range(count)]
        self._starting = {worker.is_up.remote(): worker for worker in workers}
        self._started: dict[Any, int] = {}  # worker -> batches that it has not answered
        # A cluster may still add a machine that is large enough; Ray on this machine cannot.
        may_fit = cluster.address != LOCAL or cluster.memory_bytes <= memory_bytes
        self._collect_started(1, FIRST_WORKER_S if may_fit else 0)
        if not self._started:
            raise EngineError(
                f"Ray has no room for a worker: each one needs --threads {cluster.threads} and "
                f"--budget {format_bytes(cluster.memory_bytes)} on one machine, and the whole "
                f"cluster has {cpus:g} CPUs and {format_bytes(int(memory_bytes))}"
            )

    def send(self, batch: Batch) -> tuple[Any, Any]:
        """Sends a batch to the worker with the fewest. Returns the worker and Ray's reference to its answer."""
        self._collect_started(len(self._starting), 0)
        worker = min(self._started, key=self._started.__getitem__)
        self._started[worker] += 1
        return worker, worker.answer.remote(batch)

    def take(self, sent: tuple[Any, Any]) -> Any:
        """Waits for the answer to a batch that was sent."""
        worker, answer = sent
        self._started[worker] -= 1
        return get_answer(self._ray, answer)

    @property
    def most_pending(self) -> int:
        """Batches that may be sent and not answered."""
        return len(self._started) * _BATCHES_AHEAD

    def _collect_started(self, count: int, timeout_s: float) -> None:
        """Waits until `count` of the starting workers are up, or until the timeout."""
        if not self._starting:
            return
        refs = list(self._starting)
        ready, _ = self._ray.wait(refs, num_returns=max(count, 1), timeout=timeout_s)
        for ref in ready:
            get_answer(self._ray, ref)
            self._started[self._starting.pop(ref)] = 0


def get_answer(ray: Any, answer: Any) -> Any:
    """A worker's answer. An error of the worker is raised here with its own type."""
    try:
        result = ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        kind = MemoryPressureError if isinstance(cause, MemoryError) else EngineError
        raise kind(
            f"a worker failed with {type(cause).__name__}: {_one_line_message(cause)}"
        ) from error
    except ray.exceptions.RayError as error:
        raise EngineError(f"a Ray worker was lost: {_one_line_message(error)}") from error
    if isinstance(result, WorkerFailure):
        raise result.to_error()
    return result


def _one_line_message(error: object) -> str:
    """The message in one line, without terminal colours."""
    return " ".join(_COLOUR.sub("", str(error)).split())[:400]


@contextmanager
def connected_ray(address: str, *, cpus: int) -> Iterator[Any]:
    """The ray module, connected to the cluster, or to a Ray with `cpus` on this machine. Disconnects at the end."""
    ray = import_ray()
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    # Without this, the C++ code of Ray writes to our standard error.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"num_cpus": cpus, "include_dashboard": False}
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123 - no file
        try:  # Ray reports workers that it restarts on standard output, between our lines
            try:
                with _silenced():  # Ray announces itself at every log level
                    ray.init(address=address, **options)
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                where = f"{address!r}: {_one_line_message(error)}"
                raise EngineError(f"cannot reach Ray at {where}") from error
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _silenced() -> Iterator[None]:
    """Discards everything written to standard error, also by C++ code."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def import_ray() -> Any:
    """The ray module. Raises UsageError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UsageError("--ray needs Ray: pip install 'edgekit-models[ray]'") from error
    return ray
