"""A call that takes long -> a job: what it says meanwhile, how it ended, and a way to call it off.

Each job has a thread, a few run at a time and some wait. Who listens gets the newest line and the end; who comes back
gets them again.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from edgekit.errors import CancelledError, DeadlineError, EdgekitError, NotFoundError
from edgekit.report.json import json_line
from edgekit.web.failures import UNEXPECTED, TooManyError, error_json, failure_json
from edgekit.web.limits import network_of
from edgekit.web.types import CallWatch

# In all, and of one client: the page runs three at once to compare.
RUNNING_JOBS, RUNNING_EACH = 4, 3
WAITING_JOBS, WAITING_EACH = 16, 6
# Those of jobs that were called off go on until their server answers or is given up.
MAX_THREADS, THREADS_EACH = 32, 12
KEPT_JOBS, KEPT_EACH = 64, 32
KEPT_S = 600.0
# Of their answers, as text: one with every tensor of a Kimi-K2 has 27 MB, all others some 100 KB.
KEPT_BYTES, KEPT_BYTES_EACH = 128 * 2**20, 32 * 2**20
PAUSE_S = 0.05  # between two lines: a person reads no more, and a header in 500 ranges says 500
LINE_CHARS = 200
SLACK_S = 60.0  # of a job beyond its network: a plan with a drafter asks for two models, and thinks

_log = logging.getLogger("edgekit.web")

Answer = dict[str, Any]
Work = Callable[[CallWatch], Answer]


class JobState(enum.Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One server-sent event; without a name a sign of life."""

    name: str = ""
    number: int = 0
    data: str = field(default="{}", repr=False)  # JSON


@dataclass(slots=True, kw_only=True, eq=False)
class BackgroundJob:
    """It changes as it goes: Jobs alone writes to it, under its lock."""

    call: str
    work: Work = field(repr=False)
    deadline_s: float
    client: str = ""  # its network
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    watch: CallWatch = field(default_factory=CallWatch)
    state: JobState = JobState.RUNNING
    has_begun: bool = False
    line: str | None = None
    number: int = 0  # of the newest event
    answer: str = field(default="{}", repr=False)  # JSON: the result, or the error
    ended_s: float | None = None
    bells: set[Bell] = field(default_factory=set, repr=False)

    def as_json(self) -> Answer:
        state, answer = self.state, json.loads(self.answer)
        return {
            "id": self.id,
            "call": self.call,
            "state": state.value,
            "progress": self.line,
            "result": answer if state is JobState.DONE else None,
            "error": answer.get("error") if state is JobState.FAILED else None,
        }


class Jobs:
    def __init__(self, *, timeout_s: float, redact: Callable[[Answer], Answer] = dict) -> None:
        """`redact` removes local paths from an answer."""
        self._timeout_s = timeout_s + SLACK_S
        self._redact = redact
        self._jobs: dict[str, BackgroundJob] = {}  # in the order in which they were asked for
        self._waiting: deque[BackgroundJob] = deque()
        self._threads: Counter[str] = Counter()  # by client
        self._closed = False
        self._lock = threading.RLock()

    def start(self, call: str, work: Work, client: str = "") -> BackgroundJob:
        """Raises TooManyError where too many wait already, of this client or of all."""
        client = network_of(client)
        with self._lock:
            self._tidy()
            if self._closed or not self._has_room(client):
                raise TooManyError("too many jobs are running; try again in a moment")
            deadline_s = time.monotonic() + self._timeout_s
            job = BackgroundJob(call=call, work=work, client=client, deadline_s=deadline_s)
            self._jobs[job.id] = job
            self._waiting.append(job)
            self._begin_next()
            return job

    def named(self, job_id: str) -> BackgroundJob:
        """Raises NotFoundError for one that is not known, or not any more."""
        with self._lock:
            self._tidy()
            job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(
                "job not found: it ended more than ten minutes ago, or the server was restarted; start it again"
            )
        return job

    def cancel(self, job: BackgroundJob) -> None:
        """At once, though its thread may need a moment to notice. One that has ended stays as it is."""
        job.watch.cancelled.set()
        self._end(job, JobState.CANCELLED, {})

    def close(self) -> None:
        with self._lock:
            self._closed = True
            jobs = list(self._jobs.values())
        for job in jobs:
            self.cancel(job)

    async def follow(self, job: BackgroundJob, after: int) -> AsyncIterator[JobEvent]:
        """What was said since the event of that number, then the end, whatever the number."""
        bell = Bell()
        with self._lock:
            job.bells.add(bell)
        try:
            while job.state is JobState.RUNNING:
                number, line = job.number, job.line
                if number > after:
                    after = number
                    yield JobEvent(name="progress", number=number, data=json_line({"line": line}))
                    await asyncio.sleep(PAUSE_S)
                elif not await bell.wait(PING_S):
                    yield JobEvent()
                    with self._lock:
                        self._tidy()  # one that takes too long is ended here
            yield JobEvent(name=job.state.value, number=job.number, data=job.answer)
        finally:
            with self._lock:
                job.bells.discard(bell)

    def _has_room(self, client: str) -> bool:
        own = sum(job.client == client for job in self._waiting)
        room = len(self._waiting) < WAITING_JOBS and own < WAITING_EACH
        return room and self._has_thread(client)

    def _has_thread(self, client: str) -> bool:
        return self._threads.total() < MAX_THREADS and self._threads[client] < THREADS_EACH

    def _begin_next(self) -> None:
        if self._closed:
            return
        running = Counter(
            job.client
            for job in self._jobs.values()
            if job.has_begun and job.state is JobState.RUNNING
        )
        while running.total() < RUNNING_JOBS and (job := self._next(running)) is not None:
            self._waiting.remove(job)
            job.has_begun = True
            running[job.client] += 1
            self._threads[job.client] += 1
            # A daemon: one that waits for a slow server does not hold up the end of the program.
            threading.Thread(target=self._run, args=(job,), name="edgekit job", daemon=True).start()

    def _next(self, running: Counter[str]) -> BackgroundJob | None:
        """In turn: of the clients that have the fewest running, the job that has waited longest."""
        able = (
            job
            for job in self._waiting
            if running[job.client] < RUNNING_EACH and self._has_thread(job.client)
        )
        return min(able, key=lambda job: running[job.client], default=None)

    def _run(self, job: BackgroundJob) -> None:
        watch = CallWatch(
            client=job.client,
            progress=lambda line: self._say(job, line),
            cancelled=job.watch.cancelled,
        )
        try:
            state, answer = _outcome(job.work, watch)
            self._end(job, state, self._redact(answer))
        finally:
            with self._lock:
                self._threads -= Counter([job.client])  # drops who has none left
                self._begin_next()

    def _say(self, job: BackgroundJob, line: str) -> None:
        line = self._redact({"line": line})["line"].strip()[:LINE_CHARS]
        with self._lock:
            if job.state is not JobState.RUNNING or not line or line == job.line:
                return
            job.line = line
            self._ring(job)

    def _end(self, job: BackgroundJob, state: JobState, answer: Answer) -> None:
        text = json_line(answer)
        with self._lock:
            if job.state is not JobState.RUNNING:
                return
            job.answer = text
            job.state = state
            job.ended_s = time.monotonic()
            if job in self._waiting:
                self._waiting.remove(job)
            self._ring(job)
            self._begin_next()

    @staticmethod
    def _ring(job: BackgroundJob) -> None:
        job.number += 1
        for bell in job.bells:
            bell.ring()

    def _tidy(self) -> None:
        """Ends what takes too long, forgets what ended long ago, and the oldest of too many."""
        for job in list(self._jobs.values()):
            if job.state is JobState.RUNNING and time.monotonic() > job.deadline_s:
                job.watch.cancelled.set()
                late = DeadlineError(f"timed out after {self._timeout_s:g} s")
                self._end(job, JobState.FAILED, error_json(late))
        ended = [job for job in self._jobs.values() if job.ended_s is not None]
        for job in _surplus(ended, most=KEPT_JOBS - 1 - (len(self._jobs) - len(ended))):
            del self._jobs[job.id]


_ALL = "all of them"  # beside the clients, which are addresses


def _surplus(ended: list[BackgroundJob], *, most: int) -> Iterator[BackgroundJob]:
    """Those that are old, and the first of too many or too long ones, of one client or of all. The last is kept."""
    now_s, counts, sizes = time.monotonic(), Counter[str](), Counter[str]()
    for job in ended:
        counts.update((job.client, _ALL))
        sizes.update({job.client: len(job.answer), _ALL: len(job.answer)})
    for job in ended:
        client = job.client
        is_many = counts[client] > KEPT_EACH or counts[_ALL] > most
        is_long = any(
            sizes[who] > most_bytes and counts[who] > 1
            for who, most_bytes in ((client, KEPT_BYTES_EACH), (_ALL, KEPT_BYTES))
        )
        is_old = now_s - (job.ended_s or now_s) > KEPT_S
        if is_old or is_many or is_long:
            counts.subtract((client, _ALL))
            sizes.subtract({client: len(job.answer), _ALL: len(job.answer)})
            yield job


def _outcome(work: Work, watch: CallWatch) -> tuple[JobState, Answer]:
    try:
        return JobState.DONE, work(watch)
    except CancelledError:
        return JobState.CANCELLED, {}
    except EdgekitError as error:
        return JobState.FAILED, error_json(error)
    except Exception:  # noqa: BLE001 - whatever it is, somebody waits for the end of this job
        _log.exception("a job failed")
        return JobState.FAILED, failure_json("InternalError", UNEXPECTED)


PING_S = 10.0  # so long a stream of events says nothing


class Bell:
    """Wakes a listener on the server's loop, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it rang. From now on it rings anew."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        rang = self._rung.is_set()
        self._rung.clear()
        return rang
