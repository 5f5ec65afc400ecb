"""`index build`: the steps of a crawl in their order, and how tasks are fetched on this machine."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from edgekit import __version__
from edgekit.app.crawl.fetch import check_cancelled, fetch_tasks
from edgekit.app.crawl.journal import NAME, Journal, discard
from edgekit.app.crawl.listing import (
    MAX_PAGES,
    MAX_STALE_PAGES,
    first_page,
    read_entry,
    read_page,
)
from edgekit.app.crawl.plan import geometry_task, left_out, model_of, needs_files
from edgekit.app.crawl.rows import PROBLEMS, Rows
from edgekit.app.crawl.types import (
    BuildOptions,
    BuildReport,
    FetchTask,
    Listed,
    Outcome,
    TaskKind,
)
from edgekit.errors import OutputError, RemoteInspectError
from edgekit.index.tables import (
    CHECKSUMS_NAME,
    TABLES,
    as_json,
    import_pyarrow,
    write_checksums,
    write_parquet,
    write_sqlite,
)
from edgekit.index.types import SQLITE_NAME
from edgekit.sources.address import hub_endpoint, redact
from edgekit.sources.async_http import Tally, open_transport

ROUNDS = 3  # of tasks whose server could not be reached
_LISTED, _PLANNED = "listed", "planned"  # states of the journal after "page:ADDRESS"
_PAGE = "page:"


def build(options: BuildOptions) -> BuildReport:
    """Crawl the hub into the folder, or finish the crawl that is there. Raises EdgekitError.

    The same answers of the hub give the same files, whatever their order, and however often the crawl was stopped.
    RemoteInspectError if the hub cannot be reached: what was fetched stays in the folder.
    """
    started = time.monotonic()
    hub = redact(hub_endpoint())
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        if options.restart:
            discard(options.folder / NAME)
    except OSError as error:
        raise OutputError(f"{options.folder}: {error.strerror or error}") from error
    import_pyarrow()  # missing? say so before hours of crawling, not after
    tally = Tally()
    job = as_json(
        [hub, options.author, options.search, options.filters, options.limit, options.sizes]
    )
    with closing(Journal(options.folder / NAME, job)) as journal:
        built = journal.state("built") or options.date
        journal.set_state("built", built)
        asyncio.run(_list(journal, options, tally))
        if journal.state("step") == _LISTED:
            needed = filter(
                lambda item: needs_files(item, sizes=options.sizes), journal.repositories()
            )
            tasks = (FetchTask(kind=TaskKind.FILES, name=item.name) for item in needed)
            journal.add_tasks(tasks, state=("step", _PLANNED))
        _fetch(journal, TaskKind.FILES, options, tally)
        _plan(journal)
        _fetch(journal, TaskKind.GEOMETRY, options, tally)
        names, rows, problems = _write(journal, options, hub, built)
        return BuildReport(
            folder=options.folder,
            files=names,
            repositories=journal.count("listed"),
            rows=rows,
            models=rows["models"],
            geometries=rows["geometries"],
            problems=problems,
            requests=tally.requests,
            received_bytes=tally.received_bytes,
            faults=dict(sorted(tally.faults.items())),
            seconds=time.monotonic() - started,
        )


# -- the listing ---------------------------------------------------------------------------------


async def _list(journal: Journal, options: BuildOptions, tally: Tally) -> None:
    """Read the listing from where it stopped."""
    step = journal.state("step") or f"{_PAGE}{first_page(options)}"
    if not step.startswith(_PAGE):
        return
    stale = 0
    async with open_transport(rate=options.rate, notify=options.notify) as transport:
        try:
            for _ in range(MAX_PAGES):
                check_cancelled(options)
                entries, following = await read_page(transport, step.removeprefix(_PAGE))
                read = [read_entry(entry) for entry in entries]
                listed = [item for item in read if isinstance(item, Listed)]
                invalid = [item for item in read if isinstance(item, str)]
                step = _LISTED if following is None else f"{_PAGE}{following}"
                new = journal.add_page(listed, invalid, state=("step", step), limit=options.limit)
                total = journal.count("listed")
                _show(options, f"listed {total:,} repositories")
                stale = 0 if new else stale + 1
                is_full = options.limit is not None and total >= options.limit
                if is_full or stale == MAX_STALE_PAGES:
                    step = _LISTED
                    journal.set_state("step", step)
                if step == _LISTED:
                    return
        finally:
            tally.add(transport.tally)
    raise RemoteInspectError(f"the listing has more than {MAX_PAGES:,} pages; check HF_ENDPOINT")


# -- tasks ---------------------------------------------------------------------------------------


def _plan(journal: Journal) -> None:
    """Which repository belongs to which model, and one geometry to read for each model."""

    def models() -> Iterator[tuple[str, str]]:
        for item in journal.repositories():
            yield item.name, model_of(item, journal.listed)

    journal.set_models(models())

    def tasks() -> Iterator[FetchTask]:
        for model, group in journal.repositories_of_models():
            usable = [item for item in group if left_out(item, is_own=item.name == model) is None]
            if usable:
                yield geometry_task(model, usable)

    journal.add_tasks(tasks(), state=("step", _PLANNED))


def _fetch(journal: Journal, kind: TaskKind, options: BuildOptions, tally: Tally) -> None:
    """Fetch every open task, here or on Ray, and try again what could not be reached."""
    for _ in range(ROUNDS):
        if not journal.count("tasks", f"kind = '{kind.value}' AND status IS NULL"):
            return
        progress = Progress(journal, kind, options)
        if options.ray is not None:
            from edgekit.app.crawl.on_ray import fetch_on_ray

            fetch_on_ray(journal.open_tasks(kind), options, tally, progress.store)
        else:
            asyncio.run(_fetch_here(journal.open_tasks(kind), options, tally, progress.store))


async def _fetch_here(
    tasks: Iterator[FetchTask],
    options: BuildOptions,
    tally: Tally,
    store: Callable[[list[Outcome]], None],
) -> None:
    """Fetch the tasks over at most `at_once` connections, and store their outcomes in batches."""
    async with open_transport(rate=options.rate, notify=options.notify) as transport:
        try:
            await fetch_tasks(tasks, transport, options, store)
        finally:
            tally.add(transport.tally)


class Progress:
    """Stores outcomes and counts them on the progress line."""

    def __init__(self, journal: Journal, kind: TaskKind, options: BuildOptions) -> None:
        self._journal, self._options = journal, options
        self._what = "file lists" if kind is TaskKind.FILES else "geometries"
        self._total = journal.count("tasks", f"kind = '{kind.value}' AND status IS NULL")
        self._done = 0
        self._started = time.monotonic()

    def store(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            self._journal.add_outcomes(outcomes)
        self._done += len(outcomes)
        rate = self._done / max(time.monotonic() - self._started, 0.001)
        _show(
            self._options,
            f"{self._what}: {self._done:,} of {self._total:,} ({rate:,.0f} per second)",
        )


def _show(options: BuildOptions, line: str) -> None:
    if options.progress is not None:
        options.progress(line)


# -- the output ----------------------------------------------------------------------------------


def _write(
    journal: Journal, options: BuildOptions, hub: str, built: str
) -> tuple[tuple[str, ...], dict[str, int], dict[str, int]]:
    """Write the tables. Returns the names of the files, the rows of each table and the problems by status.

    The checksums come last, so that files without them are not complete.
    """
    folder, index = options.folder, options.folder / SQLITE_NAME
    problems = folder / "problems.sqlite"  # sorted there, then only kept as Parquet
    _show(options, "writing the tables")
    try:
        (folder / CHECKSUMS_NAME).unlink(missing_ok=True)
        rows = Rows(journal, hub, built, f"edgekit {__version__} index build").tables()
        write_sqlite(problems, {PROBLEMS.name: rows.pop(PROBLEMS.name)}, tables=(PROBLEMS,))
        write_sqlite(index, rows)
        parquet = [
            *write_parquet(index, folder),
            *write_parquet(problems, folder, tables=(PROBLEMS,)),
        ]
        counts = {table.name: _count(index, table.name) for table in TABLES}
        by_status = _by_status(problems)
        problems.unlink()
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}") from error
    paths = (index, *parquet)
    sums = write_checksums(paths, folder)
    return tuple(path.name for path in (*paths, sums)), counts, by_status


def _count(index: Path, table: str) -> int:
    with closing(sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro", uri=True)) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - our own table names


def _by_status(problems: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"{problems.absolute().as_uri()}?mode=ro", uri=True)) as database:
        query = "SELECT status, count(*) FROM problems GROUP BY status ORDER BY status"
        return dict(database.execute(query).fetchall())
