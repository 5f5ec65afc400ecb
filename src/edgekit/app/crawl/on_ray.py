"""The tasks of a crawl on Ray: shards of them, each fetched by one worker over its own connections.

A worker finds a token in its own environment, where HF_ENDPOINT must name a hub other than Hugging Face that is to get
it: the token is not sent through Ray. Which worker fetched what
does not matter: outcomes are stored by name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from edgekit.app.crawl.fetch import fetch_tasks
from edgekit.app.crawl.types import BuildOptions, FetchTask, Outcome, Status
from edgekit.embed.bulk.ray_stage import LOCAL, WorkerFailure, connected_ray, get_answer
from edgekit.errors import EdgekitError, RemoteBusyError
from edgekit.sources.address import hub_at, hub_endpoint
from edgekit.sources.async_http import Tally, open_transport

SHARD = 128  # tasks: seconds of work, so that little is lost with a worker
_SHARDS_AHEAD = 2  # per worker
_RETRIES = 3  # of a shard whose worker died

Answer = tuple[list[Outcome], Tally]


def fetch_on_ray(
    tasks: Iterator[FetchTask],
    options: BuildOptions,
    tally: Tally,
    store: Callable[[list[Outcome]], None],
) -> None:
    """Fetch the tasks in the workers and store their outcomes as they come. Raises EngineError if Ray fails."""
    address = options.ray or LOCAL
    wanted = options.workers or os.cpu_count() or 1
    with connected_ray(address, cpus=wanted) as ray:
        cpus = int(ray.cluster_resources().get("CPU", 1))
        workers = options.workers or max(cpus, 1)
        rate = None if options.rate is None else options.rate / workers
        terms = replace(options, rate=rate, progress=None, notify=None, cancelled=None)
        remote = ray.remote(fetch_shard).options(num_cpus=1, max_retries=_RETRIES)
        pending: set[Any] = set()  # Ray's references to answers
        unreachable = ""
        while True:
            while not unreachable and len(pending) < workers * _SHARDS_AHEAD:
                shard = list(islice(tasks, SHARD))
                if not shard:
                    break
                pending.add(remote.remote(shard, terms, hub_endpoint()))
            if not pending:
                break
            (ready,), _ = ray.wait(list(pending), num_returns=1)
            pending.discard(ready)
            outcomes, counted = get_answer(ray, ready)
            tally.add(counted)
            store(outcomes)
            if outcomes and all(outcome.status is Status.UNREACHABLE for outcome in outcomes):
                unreachable = outcomes[-1].detail
        if unreachable:
            raise RemoteBusyError(
                f"{unreachable}; none of {SHARD} repositories in a row could be read. What was read is kept"
            )


def fetch_shard(shard: list[FetchTask], options: BuildOptions, hub: str) -> Answer | WorkerFailure:
    """Runs in a worker. An error is an answer too, because some exceptions cannot be pickled."""
    outcomes: list[Outcome] = []
    tally = Tally()

    async def fetch() -> None:
        async with open_transport(rate=options.rate) as transport:
            try:
                await fetch_tasks(iter(shard), transport, options, outcomes.extend)
            finally:
                tally.add(transport.tally)

    try:
        with hub_at(hub):
            asyncio.run(fetch())
    except RemoteBusyError:
        pass  # the outcomes say so; the tasks that are left stay open
    except EdgekitError as error:
        return WorkerFailure.of(error)
    return outcomes, tally
