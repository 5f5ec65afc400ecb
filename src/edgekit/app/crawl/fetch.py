"""Tasks fetched over one transport, several at once: on this machine, or in a worker on Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from edgekit.app.crawl import files, geometry
from edgekit.app.crawl.types import BuildOptions, FetchTask, Outcome, Status, TaskKind
from edgekit.errors import CancelledError, OutputError, RemoteBusyError, RemoteInspectError
from edgekit.sources.async_http import AsyncTransport

MAX_UNREACHABLE = 100  # in a row: then the hub is down, and the rest would only wait
BATCH = 64  # outcomes stored at once
MAX_WAITING_S = 2.0  # before outcomes are stored

_READERS = {TaskKind.FILES: files.read_task, TaskKind.GEOMETRY: geometry.read_task}


async def fetch_tasks(
    tasks: Iterator[FetchTask],
    transport: AsyncTransport,
    options: BuildOptions,
    store: Callable[[list[Outcome]], None],
) -> None:
    """Store the outcomes of the tasks in batches, also when it fails. RemoteBusyError if the hub is down."""
    waiting: list[Outcome] = []
    stored = time.monotonic()
    unreachable = 0

    async def work() -> None:
        nonlocal unreachable, stored
        for task in tasks:  # the workers share the iterator
            check_cancelled(options)
            outcome = await _READERS[task.kind](task, transport)
            waiting.append(outcome)
            unreachable = unreachable + 1 if outcome.status is Status.UNREACHABLE else 0
            if unreachable >= MAX_UNREACHABLE:
                raise RemoteBusyError(
                    f"{outcome.detail}; {unreachable} repositories in a row could not be read. What was read is kept"
                )
            if len(waiting) >= BATCH or time.monotonic() - stored > MAX_WAITING_S:
                batch, waiting[:] = waiting[:], []
                store(batch)
                stored = time.monotonic()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(options.at_once):
                group.create_task(work())
    except* (RemoteInspectError, CancelledError, OutputError) as errors:
        raise _first(errors) from None
    finally:
        store(waiting)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of the errors that the workers raised."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def check_cancelled(options: BuildOptions) -> None:
    """Raises CancelledError if the caller has cancelled the work."""
    if options.cancelled is not None and options.cancelled.is_set():
        raise CancelledError("cancelled")
