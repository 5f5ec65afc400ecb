"""Long calls as jobs: progress, result, cancellation.

Each job has a thread; a few run at a time and some wait. A follower gets the newest progress line and the end, and
gets both again after a reconnect.
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

from edgekit.errors import CancelledError, DeadlineError, EdgekitError, NotFoundError
from edgekit.report.json import json_line
from edgekit.server.clients import network_of
from edgekit.web.failures import UNEXPECTED, TooManyError, error_json, failure_json
from edgekit.web.types import CallWatch, Json

# Limits in all, and per client (_EACH): the page runs three jobs at once to compare.
RUNNING_JOBS, RUNNING_EACH = 4, 3
WAITING_JOBS, WAITING_EACH = 16, 6
# The threads of cancelled jobs go on until their server answers or times out.
MAX_THREADS, THREADS_EACH = 32, 12
KEPT_JOBS, KEPT_EACH = 64, 32
KEPT_S = 600.0
# Of results as text: a list of every tensor of Kimi-K2 takes 27 MB, other results about 100 KB.
KEPT_BYTES, KEPT_BYTES_EACH = 128 * 2**20, 32 * 2**20
PAUSE_S = 0.05  # between two progress events: a header read in 500 ranges reports 500 lines
PING_S = 10.0  # without an event for this long, a stream sends a comment
LINE_CHARS = 200
# What a job may take on top of the time to open one model: a plan with a draft model opens two, and computes.
SLACK_S = 60.0

_ALL = "all clients"  # the total, counted next to the clients, whose keys are addresses

_log = logging.getLogger("edgekit.web")

Work = Callable[[CallWatch], Json]


class JobState(enum.Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One server-sent event; without a name, a keep-alive comment."""

    name: str = ""
    number: int = 0
    data: str = field(default="{}", repr=False)  # JSON


class Wakeup:
    """Wakes a coroutine on the server's loop from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was set in time. Resets it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        was_set = self._event.is_set()
        self._event.clear()
        return was_set


@dataclass(slots=True, kw_only=True, eq=False)
class BackgroundJob:
    """A call that runs in a thread. Only Jobs changes it, holding its lock."""

    call: str
    work: Work = field(repr=False)
    deadline_s: float
    client: str = ""  # the network of the client that started it
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)
    state: JobState = JobState.RUNNING
    has_begun: bool = False
    line: str | None = None  # the newest progress message
    number: int = 0  # of the newest event
    answer: str = field(default="{}", repr=False)  # JSON: the result, or the error
    ended_s: float | None = None
    followers: set[Wakeup] = field(default_factory=set, repr=False)

    def as_json(self) -> Json:
        """The job as the API shows it."""
        state, answer = self.state, json.loads(self.answer)
        return {
            "id": self.id,
            "call": self.call,
            "state": state.value,
            "progress": self.line,
            "result": answer if state is JobState.DONE else None,
            "error": answer.get("error") if state is JobState.FAILED else None,
        }

    def notify(self) -> None:
        self.number += 1
        for follower in self.followers:
            follower.set()


class Jobs:
    """The jobs that wait, run, or ended a short time ago. Thread-safe."""

    def __init__(self, *, timeout_s: float, redact: Callable[[Json], Json] = dict) -> None:
        """`redact` removes local paths from an answer."""
        self._timeout_s = timeout_s + SLACK_S
        self._redact = redact
        self._jobs: dict[str, BackgroundJob] = {}  # in the order in which they were started
        self._waiting: deque[BackgroundJob] = deque()
        self._threads: Counter[str] = Counter()  # by client
        self._closed = False
        self._lock = threading.RLock()

    def start(self, call: str, work: Work, client: str = "") -> BackgroundJob:
        """Queues a job, and starts it if possible. Raises TooManyError at the limits per client and in all."""
        client = network_of(client)
        with self._lock:
            self._tidy()
            waiting = sum(job.client == client for job in self._waiting)
            may_wait = len(self._waiting) < WAITING_JOBS and waiting < WAITING_EACH
            if self._closed or not may_wait or not self._has_thread(client):
                raise TooManyError("too many jobs are running; try again in a moment")
            deadline_s = time.monotonic() + self._timeout_s
            job = BackgroundJob(call=call, work=work, client=client, deadline_s=deadline_s)
            self._jobs[job.id] = job
            self._waiting.append(job)
            self._begin_next()
            return job

    def named(self, job_id: str) -> BackgroundJob:
        """Raises NotFoundError if the job is unknown or already forgotten."""
        with self._lock:
            self._tidy()
            job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(
                "job not found: it ended more than ten minutes ago, or the server was restarted; start it again"
            )
        return job

    def cancel(self, job: BackgroundJob) -> None:
        """Cancels a job at once, although its thread may need a moment to notice. Has no effect after its end."""
        job.cancelled.set()
        self._end(job, JobState.CANCELLED, {})

    def close(self) -> None:
        with self._lock:
            self._closed = True
            jobs = list(self._jobs.values())
        for job in jobs:
            self.cancel(job)

    async def follow(self, job: BackgroundJob, after: int) -> AsyncIterator[JobEvent]:
        """Progress newer than event number `after`, then the final event, which is always sent."""
        wakeup = Wakeup()
        with self._lock:
            job.followers.add(wakeup)
        try:
            while job.state is JobState.RUNNING:
                number, line = job.number, job.line
                if number > after:
                    after = number
                    yield JobEvent(name="progress", number=number, data=json_line({"line": line}))
                    await asyncio.sleep(PAUSE_S)
                elif not await wakeup.wait(PING_S):
                    yield JobEvent()
                    with self._lock:
                        self._tidy()  # ends the job if it takes too long
            yield JobEvent(name=job.state.value, number=job.number, data=job.answer)
        finally:
            with self._lock:
                job.followers.discard(wakeup)

    def _has_thread(self, client: str) -> bool:
        """Whether the limits allow another thread for this client."""
        return self._threads.total() < MAX_THREADS and self._threads[client] < THREADS_EACH

    def _begin_next(self) -> None:
        """Starts waiting jobs while the limits allow: first the oldest job of the client with the fewest running."""
        running = Counter(
            job.client
            for job in self._jobs.values()
            if job.has_begun and job.state is JobState.RUNNING
        )
        while not self._closed and running.total() < RUNNING_JOBS:
            candidates = [
                job
                for job in self._waiting
                if running[job.client] < RUNNING_EACH and self._has_thread(job.client)
            ]
            if not candidates:
                return
            job = min(candidates, key=lambda job: running[job.client])
            self._waiting.remove(job)
            job.has_begun = True
            running[job.client] += 1
            self._threads[job.client] += 1
            # A daemon: a job that waits for a slow server does not delay the end of the process.
            threading.Thread(target=self._run, args=(job,), name="edgekit job", daemon=True).start()

    def _run(self, job: BackgroundJob) -> None:
        """Runs in the job's own thread: does the work and stores the outcome."""

        def report(line: str) -> None:
            line = self._redact({"line": line})["line"].strip()[:LINE_CHARS]
            with self._lock:
                if job.state is JobState.RUNNING and line and line != job.line:
                    job.line = line
                    job.notify()

        watch = CallWatch(client=job.client, progress=report, cancelled=job.cancelled)
        try:
            state, answer = _outcome(job.work, watch)
            self._end(job, state, self._redact(answer))
        finally:
            with self._lock:
                self._threads -= Counter([job.client])  # drops clients that have none left
                self._begin_next()

    def _end(self, job: BackgroundJob, state: JobState, answer: Json) -> None:
        """Stores the answer and the final state. Has no effect on a job that has already ended."""
        text = json_line(answer)
        with self._lock:
            if job.state is not JobState.RUNNING:
                return
            job.answer = text
            job.state = state
            job.ended_s = time.monotonic()
            if job in self._waiting:
                self._waiting.remove(job)
            job.notify()
            self._begin_next()

    def _tidy(self) -> None:
        """End jobs past their deadline; forget jobs that ended long ago, and the oldest if there are too many."""
        for job in list(self._jobs.values()):
            if job.state is JobState.RUNNING and time.monotonic() > job.deadline_s:
                job.cancelled.set()
                error = DeadlineError(f"timed out after {self._timeout_s:g} s")
                self._end(job, JobState.FAILED, error_json(error))
        ended = [job for job in self._jobs.values() if job.ended_s is not None]
        for job in _surplus(ended, most=KEPT_JOBS - 1 - (len(self._jobs) - len(ended))):
            del self._jobs[job.id]


def _outcome(work: Work, watch: CallWatch) -> tuple[JobState, Json]:
    """Runs the work. Returns the final state, and the result or the error."""
    try:
        return JobState.DONE, work(watch)
    except CancelledError:
        return JobState.CANCELLED, {}
    except EdgekitError as error:
        return JobState.FAILED, error_json(error)
    except Exception:  # noqa: BLE001 - a client waits for the end of this job
        _log.exception("a job failed")
        return JobState.FAILED, failure_json("InternalError", UNEXPECTED)


def _surplus(ended: list[BackgroundJob], *, most: int) -> Iterator[BackgroundJob]:
    """Expired jobs, and the oldest ones beyond the limits on number and size, per client and in all.

    The newest result stays, however large.
    """
    now_s, counts, sizes = time.monotonic(), Counter[str](), Counter[str]()
    for job in ended:
        counts.update((job.client, _ALL))
        sizes.update({job.client: len(job.answer), _ALL: len(job.answer)})
    for job in ended:
        client = job.client
        is_many = counts[client] > KEPT_EACH or counts[_ALL] > most
        is_large = any(
            sizes[owner] > most_bytes and counts[owner] > 1
            for owner, most_bytes in ((client, KEPT_BYTES_EACH), (_ALL, KEPT_BYTES))
        )
        is_old = now_s - (job.ended_s or now_s) > KEPT_S
        if is_old or is_many or is_large:
            counts.subtract((client, _ALL))
            sizes.subtract({client: len(job.answer), _ALL: len(job.answer)})
            yield job
