"""The embedder as a stage of Ray Data: one actor a worker, each with a memory budget of its own.

`EmbedStage` is for pipelines of one's own: `dataset.map_batches(EmbedStage, fn_constructor_kwargs=...)`.
`embed_on_ray` is the stage of a bulk job. Its batches are cut as in one process: the vectors are the same to the bit.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit import errors
from edgekit.embed.bulk.job import Embedded, Stage, Terms, batches_of, embedded
from edgekit.embed.bulk.readers import Fields, open_source
from edgekit.embed.bulk.types import Batch, Mark
from edgekit.engine.stream.threads import usable_cores
from edgekit.errors import EdgekitError, EngineError, NotFoundError, UsageError

if TYPE_CHECKING:
    from edgekit.embed.embedder import Embedder

LOCAL = "local"
_CPUS_OF_READER = 1


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
                f"{self.model} is not on {where}: every worker reads the model itself, so it must lie under"
                " the same path on each, or on a disk that they share"
            )
        if path.stat().st_size != self.size_bytes:
            raise NotFoundError(
                f"{self.model} on {where} is another file than here: the size differs"
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
    opening: Opening,
    reference: str,
    *,
    form: str | None,
    fields: Fields,
    terms: Terms,
    cluster: Cluster,
) -> Stage:
    """A stage that opens the input again, on the machine where the job was started."""

    def stage(begun: Mark) -> Embedded:
        reading = _Reading(
            opening=opening, reference=reference, form=form, fields=fields, terms=terms, begun=begun
        )
        with _running(cluster) as ray:
            yield from _embedded(ray, reading, cluster)

    return stage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What the reading task needs to cut the same batches."""

    opening: Opening
    reference: str
    form: str | None
    fields: Fields
    terms: Terms
    begun: Mark

    def batches(self) -> Iterator[Batch]:
        source = open_source(
            self.reference, form=self.form, fields=self.fields, limit=self.terms.limit
        )
        try:
            with self.opening.open() as embedder:
                yield from batches_of(source, self.begun, embedder, self.terms)
        finally:
            source.close()

    def blocks(self) -> Iterator[Any]:
        """One row of Ray's a batch, so that it is never cut or joined. An error is the last row."""
        try:
            for batch in self.batches():
                yield _block(batch)
        except EdgekitError as error:
            yield _block(_Failed.of(error))


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

    def __init__(self, reading: _Reading) -> None:
        self._reading = reading
        self._embedder: Embedder | None = None

    def __call__(self, table: Any) -> Any:
        import pyarrow as pa

        return pa.concat_tables([_block(self._answer(row)) for row in _unpacked(table)])

    def _answer(self, row: Batch | _Failed) -> object:
        if isinstance(row, _Failed):
            return row
        try:
            self._embedder = self._embedder or self._reading.opening.open()
            return embedded(self._embedder, row, self._reading.terms)
        except EdgekitError as error:
            return _Failed.of(error)


def _block(row: object) -> Any:
    import pyarrow as pa

    return pa.table({"row": pa.array([pickle.dumps(row)], pa.large_binary())})


def _unpacked(table: Any) -> Iterator[Any]:
    for cell in table.column("row"):
        yield pickle.loads(cell.as_py())  # noqa: S301 - written by ourselves, in this job


def _embedded(ray: Any, reading: _Reading, cluster: Cluster) -> Embedded:
    cpus = ray.cluster_resources().get("CPU", 1)
    dataset = ray.data.read_datasource(
        _datasource(reading),
        override_num_blocks=1,
        num_cpus=_CPUS_OF_READER,
        # Where the input is. As the workers are not bound, Ray does not read inside of one of them either.
        label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},
    ).map_batches(
        _Worker,
        fn_constructor_args=(reading,),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        compute=ray.data.ActorPoolStrategy(size=cluster.workers_on(cpus)),
        num_cpus=cluster.threads,
        memory=cluster.memory_bytes,
    )
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in _unpacked(table):
            if isinstance(row, _Failed):
                raise row.again()
            yield row


def _datasource(reading: _Reading) -> Any:
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class Batches(Datasource):
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, *_: Any, **__: Any) -> list[ReadTask]:
            unknown = BlockMetadata(
                num_rows=None, size_bytes=None, input_files=None, exec_stats=None
            )
            return [ReadTask(reading.blocks, unknown)]

    made: Any = Batches
    return made()


@contextmanager
def _running(cluster: Cluster) -> Iterator[Any]:
    """Ray, started here or joined, and left alone again."""
    ray = import_ray()
    logging.getLogger("ray.data").setLevel(logging.ERROR)
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
    try:
        with _silenced():  # it announces that it will be silent
            ray.init(address=cluster.address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise EngineError(f"Ray at {cluster.address!r} cannot be reached: {error}"[:400]) from error
    try:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.target_max_block_size = 1  # every batch is a block, and a worker's next task
        yield ray
    finally:
        ray.shutdown()


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
        import ray.data
    except ImportError as error:
        raise UsageError("--ray needs Ray: pip install 'edgekit[ray]'") from error
    return ray
