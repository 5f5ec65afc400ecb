"""Long calls as jobs: progress, results, cancellation, limits, and the end of the server."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.threads import running, started_since
from tests.web.serving import LOCAL, OPEN, ask, events, start, stuck_hub

from edgekit.errors import CancelledError, DeadlineError, NotFoundError, UsageError
from edgekit.web import jobs as jobs_module
from edgekit.web.failures import TooManyError
from edgekit.web.jobs import (
    KEPT_JOBS,
    KEPT_S,
    RUNNING_EACH,
    WAITING_EACH,
    BackgroundJob,
    JobEvent,
    Jobs,
    JobState,
)
from edgekit.web.types import CallWatch

SAMPLE = {"model": "sample:gemma-3-27b"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start(LOCAL) as address:
        yield address


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    result = Jobs(timeout_s=PATIENCE_S)
    yield result
    result.close()


def wait_for_state(job: BackgroundJob, state: JobState) -> None:
    wait_until(lambda: job.state is state, f"{state} of {job}")


def events_of(jobs: Jobs, job: BackgroundJob) -> list[JobEvent]:
    async def collect() -> list[JobEvent]:
        return [event async for event in jobs.follow(job, 0)]

    return asyncio.run(collect())


class TestOverHttp:
    def test_job_reports_progress_and_its_result(self, server: str) -> None:
        started = ask(server, "/api/v1/jobs/inspect", SAMPLE)
        assert started.status == 202
        job = started.json()
        assert (job["call"], job["state"]) == ("inspect", "running")
        path = f"/api/v1/jobs/{job['id']}"
        assert started.headers["location"] == path
        *lines, end = events(server, f"{path}/events")
        assert {line["event"] for line in lines} <= {"progress"}
        assert end["event"] == "done"
        assert end["data"] == ask(server, "/api/v1/inspect", SAMPLE).json()
        job = ask(server, path).json()
        assert (job["state"], job["result"], job["error"]) == ("done", end["data"], None)

    @pytest.mark.parametrize(
        ("call", "fields"),
        [
            ("estimate", {**SAMPLE, "context": "8k"}),
            ("check", {**SAMPLE, "device": ["RTX 4090"], "ram": "64G"}),
            ("plan", {**SAMPLE, "device": ["RTX 4090"], "ram": "64G"}),
            ("recommend", {"device": ["RTX 4090"], "ram": "64G", "task": "code", "limit": 1}),
        ],
    )
    def test_job_result_equals_the_direct_call(
        self, server: str, call: str, fields: dict[str, Any]
    ) -> None:
        job = ask(server, f"/api/v1/jobs/{call}", fields).json()
        *_, end = events(server, f"/api/v1/jobs/{job['id']}/events")
        assert (end["event"], end["data"]) == (
            "done",
            ask(server, f"/api/v1/{call}", fields).json(),
        )

    def test_job_failure_equals_the_direct_call(self, server: str) -> None:
        for model in ("sample:nothing", "../../etc/passwd", "http://127.0.0.1:1/a.gguf"):
            direct = ask(server, "/api/v1/inspect", {"model": model})
            assert direct.status >= 400
            job = ask(server, "/api/v1/jobs/inspect", {"model": model}).json()
            (end,) = events(server, f"/api/v1/jobs/{job['id']}/events")
            assert (end["event"], end["data"]) == ("failed", direct.json())
            job = ask(server, f"/api/v1/jobs/{job['id']}").json()
            assert (job["state"], job["error"]) == ("failed", direct.error)

    def test_invalid_fields_or_call_start_no_job(self, server: str) -> None:
        answer = ask(server, "/api/v1/jobs/inspect", {"modle": "x"})
        assert (answer.status, answer.error["type"]) == (400, "UsageError")
        assert "modle: unknown field" in answer.error["message"]
        answer = ask(server, "/api/v1/jobs/dance", {})
        assert (answer.status, answer.error["type"]) == (404, "NotFoundError")
        assert "inspect" in answer.error["message"]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"", "the body is missing"),
            (b"[]", "the body must be a JSON object"),
            (b"{", "the body is not JSON"),
            (b"[" * 60_000, "the body is not valid JSON"),
            (b'{"model": ' + b"9" * 60_000 + b"}", "the body is not valid JSON"),
            (b'"\xff"', "the body is not valid JSON"),
            (b'{"model": NaN}', "model: "),
        ],
    )
    def test_malformed_body_is_refused(self, server: str, body: bytes, message: str) -> None:
        host = server.removeprefix("http://")
        with closing(http.client.HTTPConnection(host, timeout=PATIENCE_S)) as client:
            json_type = {"Content-Type": "application/json"}
            client.request("POST", "/api/v1/jobs/inspect", body, json_type)
            reply = client.getresponse()
            error = json.loads(reply.read())["error"]
        assert (reply.status, error["type"]) == (400, "UsageError")
        assert error["message"].startswith(message)

    def test_unknown_job_is_not_found(self, server: str) -> None:
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
            answer = ask(server, f"/api/v1/jobs/unknown{path}", method=method)
            assert (answer.status, answer.error["type"]) == (404, "NotFoundError")

    def test_last_event_is_sent_again_after_a_reconnect(self, server: str) -> None:
        job = ask(server, "/api/v1/jobs/inspect", SAMPLE).json()
        path = f"/api/v1/jobs/{job['id']}/events"
        *_, end = events(server, path)
        for last in ("", "0", end["id"], "99", "x", "-1", "9" * 400, "\xb2"):
            *_, again = events(server, path, headers={"Last-Event-ID": last})
            assert again == end

    def test_delete_cancels_a_job(self) -> None:
        with stuck_hub() as (hub, _), start(OPEN) as address:
            job = ask(address, "/api/v1/jobs/inspect", {"model": f"{hub.address}/a.gguf"}).json()
            path = f"/api/v1/jobs/{job['id']}"
            following = events(address, f"{path}/events")
            first = next(following)
            assert first["event"] == "progress"
            assert "a.gguf" in first["data"]["line"]
            assert ask(address, path).json()["progress"] == first["data"]["line"]
            assert ask(address, path, method="DELETE").json()["state"] == "cancelled"
            assert [event["event"] for event in following] == ["cancelled"]
            assert ask(address, path).json()["state"] == "cancelled"
            assert ask(address, path, method="DELETE").json()["state"] == "cancelled"

    def test_reconnect_continues_after_the_last_event(self) -> None:
        with stuck_hub() as (hub, may_answer), start(OPEN) as address:
            job = ask(address, "/api/v1/jobs/inspect", {"model": f"{hub.address}/a.gguf"}).json()
            path = f"/api/v1/jobs/{job['id']}/events"
            stream = events(address, path)
            first = next(stream)
            stream.close()
            may_answer.set()
            *lines, end = events(address, path, headers={"Last-Event-ID": first["id"]})
            assert end["event"] == "done"
            assert first["data"] not in [line["data"] for line in lines]
            numbers = [int(event["id"]) for event in (first, *lines, end)]
            assert numbers == sorted(set(numbers))

    def test_server_shutdown_cancels_jobs(self) -> None:
        names: list[str] = []
        with stuck_hub() as (hub, _):
            with start(OPEN) as address:
                fields = {"model": f"{hub.address}/a.gguf"}
                job = ask(address, "/api/v1/jobs/inspect", fields).json()
                following = events(address, f"/api/v1/jobs/{job['id']}/events")
                names.append(next(following)["event"])
            names += [event["event"] for event in following]
        assert names == ["progress", "cancelled"]

    def test_jobs_over_the_limit_are_429(self) -> None:
        with stuck_hub() as (hub, _), start(OPEN) as address:
            fields = [
                {"model": f"{hub.address}/{n}.gguf"} for n in range(RUNNING_EACH + WAITING_EACH + 1)
            ]
            answers = [ask(address, "/api/v1/jobs/inspect", item) for item in fields]
            assert [item.status for item in answers] == [202] * (len(fields) - 1) + [429]
            assert answers[-1].error["type"] == "TooManyError"
            assert int(answers[-1].headers["retry-after"]) > 0
            assert ask(address, "/healthz").status == 200
            first = answers[0].json()["id"]
            assert ask(address, f"/api/v1/jobs/{first}", method="DELETE").status == 200
            assert ask(address, "/api/v1/jobs/inspect", fields[-1]).status == 202


class TestJobs:
    def test_progress_is_in_order_throttled_and_ends_with_the_newest(self, jobs: Jobs) -> None:
        received: list[JobEvent] = []
        may_end = threading.Event()

        def work(watch: CallWatch) -> dict[str, Any]:
            assert watch.progress is not None
            for number in range(1, 301):
                watch.progress(f"range {number} of 300")
                time.sleep(0.001)
            may_end.wait(PATIENCE_S)
            return {"count": 300}

        async def collect() -> None:
            async for event in jobs.follow(job, 0):
                received.append(event)
                if "range 300 " in event.data:
                    may_end.set()

        job = jobs.start("inspect", work)
        began_s = time.monotonic()
        asyncio.run(collect())
        took_s = time.monotonic() - began_s
        *lines, end = received
        ranges = [int(json.loads(line.data)["line"].split()[1]) for line in lines]
        assert ranges == sorted(set(ranges))
        assert ranges[-1] == 300
        assert len(ranges) <= 3 + took_s / jobs_module.PAUSE_S
        assert [line.number for line in lines] == sorted({line.number for line in lines})
        assert (end.name, end.data) == ("done", '{"count":300}')
        assert end.number > lines[-1].number

    def test_several_followers_get_the_result(self, jobs: Jobs) -> None:
        may_end = threading.Event()
        job = jobs.start("check", lambda _: {"ok": may_end.wait(PATIENCE_S)})

        async def follow_five_times() -> list[list[JobEvent]]:
            async def follow() -> list[JobEvent]:
                return [event async for event in jobs.follow(job, 0)]

            def end_job() -> None:
                wait_until(lambda: len(job.followers) == 5)
                may_end.set()

            threading.Thread(target=end_job).start()
            return await asyncio.gather(*(follow() for _ in range(5)))

        received = asyncio.run(follow_five_times())
        assert received == [[JobEvent(name="done", number=1, data='{"ok":true}')]] * 5
        assert not job.followers

    def test_stream_without_events_sends_keep_alive_comments(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_module, "PING_S", 0.02)
        job = jobs.start("plan", lambda watch: {"never": watch.cancelled.wait(PATIENCE_S)})

        async def collect() -> list[JobEvent]:
            received = []
            async for event in jobs.follow(job, 0):
                received.append(event)
                if len(received) == 2:
                    jobs.cancel(job)
            return received

        *comments, end = asyncio.run(collect())
        assert len(comments) >= 2
        assert all(comment == JobEvent() for comment in comments)
        assert end.name == "cancelled"

    def test_cancelled_waiting_job_never_begins(self, jobs: Jobs) -> None:
        may_end, begun = threading.Event(), threading.Event()
        running = [
            jobs.start("plan", lambda _: {"ok": may_end.wait(PATIENCE_S)})
            for _ in range(RUNNING_EACH)
        ]

        def begin(_: CallWatch) -> dict[str, Any]:
            begun.set()
            return {}

        waiting = jobs.start("plan", begin)
        jobs.cancel(waiting)
        may_end.set()
        for job in running:
            wait_for_state(job, JobState.DONE)
        assert waiting.state is JobState.CANCELLED
        assert not begun.is_set()

    def test_cancelled_job_frees_its_place_at_once(self, jobs: Jobs) -> None:
        may_end = threading.Event()  # these jobs do not notice that they are cancelled
        running = [
            jobs.start("plan", lambda _: {"ok": may_end.wait(PATIENCE_S)})
            for _ in range(RUNNING_EACH)
        ]
        last = jobs.start("plan", lambda _: {"ok": True})
        assert not last.has_begun
        jobs.cancel(running[0])
        wait_for_state(last, JobState.DONE)
        may_end.set()
        for job in running[1:]:
            wait_for_state(job, JobState.DONE)
        assert running[0].state is JobState.CANCELLED, "a late result changes nothing"
        assert running[0].answer == "{}"

    def test_threads_of_cancelled_jobs_are_limited(self, jobs: Jobs) -> None:
        may_end = threading.Event()
        with pytest.raises(TooManyError):  # noqa: PT012 - which of them is refused does not matter
            for _ in range(100):
                jobs.cancel(jobs.start("plan", lambda _: {"ok": may_end.wait(PATIENCE_S)}))
        assert jobs._threads.total() == jobs_module.THREADS_EACH
        other = jobs.start("plan", lambda _: {"ok": True}, "10.0.0.2")
        wait_for_state(other, JobState.DONE)
        may_end.set()

    def test_jobs_per_client_are_limited_and_clients_take_turns(self, jobs: Jobs) -> None:
        may_end = threading.Event()

        def work(_: CallWatch) -> dict[str, Any]:
            return {"ok": may_end.wait(PATIENCE_S)}

        many = [jobs.start("plan", work, "10.0.0.1") for _ in range(RUNNING_EACH + WAITING_EACH)]
        assert [job.has_begun for job in many].count(True) == RUNNING_EACH
        with pytest.raises(TooManyError):
            jobs.start("plan", work, "10.0.0.1")
        others = [jobs.start("plan", work, f"10.0.0.{n}") for n in (2, 3)]
        assert [job.has_begun for job in others] == [True, False]
        jobs.cancel(many[0])
        assert others[1].has_begun, "the client with the fewest running jobs comes first"
        assert not many[RUNNING_EACH].has_begun
        may_end.set()
        for job in (*many[1:], *others):
            wait_for_state(job, JobState.DONE)
        wait_until(lambda: not jobs._threads.total())  # a thread ends shortly after its job

    def test_many_jobs_of_one_client_do_not_displace_those_of_others(self, jobs: Jobs) -> None:
        first = jobs.start("plan", lambda _: {}, "10.0.0.1")
        wait_for_state(first, JobState.DONE)
        for _ in range(KEPT_JOBS + 1):
            wait_for_state(jobs.start("plan", lambda _: {}, "10.0.0.2"), JobState.DONE)
        assert jobs.named(first.id) is first

    @pytest.mark.parametrize(
        ("error", "state", "expected"),
        [
            (
                UsageError("no such flag"),
                JobState.FAILED,
                {"type": "UsageError", "message": "no such flag", "about": "settings"},
            ),
            (
                UsageError("no such engine", about="engine"),
                JobState.FAILED,
                {"type": "UsageError", "message": "no such engine", "about": "engine"},
            ),
            (
                DeadlineError("too long"),
                JobState.FAILED,
                {"type": "DeadlineError", "message": "too long", "about": None},
            ),
            (CancelledError("gone"), JobState.CANCELLED, None),
        ],
    )
    def test_error_determines_the_final_state(
        self, jobs: Jobs, error: Exception, state: JobState, expected: dict[str, str] | None
    ) -> None:
        def work(_: CallWatch) -> dict[str, Any]:
            raise error

        job = jobs.start("plan", work)
        wait_for_state(job, state)
        assert job.as_json()["error"] == expected

    def test_unexpected_error_is_reported_without_details(
        self, jobs: Jobs, caplog: pytest.LogCaptureFixture
    ) -> None:
        def work(_: CallWatch) -> dict[str, Any]:
            raise ZeroDivisionError("/home/somebody")

        with caplog.at_level(logging.ERROR):
            job = jobs.start("plan", work)
            wait_for_state(job, JobState.FAILED)
        assert job.as_json()["error"]["type"] == "InternalError"
        assert "somebody" not in job.answer
        assert "/home/somebody" in caplog.text

    def test_job_past_its_deadline_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs_module, "SLACK_S", 0.0)
        monkeypatch.setattr(jobs_module, "PING_S", 0.05)
        jobs = Jobs(timeout_s=0.1)
        job = jobs.start("plan", lambda watch: {"never": watch.cancelled.wait(PATIENCE_S)})
        *_, end = events_of(jobs, job)
        assert (end.name, json.loads(end.data)["error"]["type"]) == ("failed", "DeadlineError")
        assert job.cancelled.is_set()

    def test_nan_and_infinity_are_strings_in_the_result(self, jobs: Jobs) -> None:
        """Keys of a header may be NaN, which a browser does not accept in JSON."""
        job = jobs.start("inspect", lambda _: {"keys": {"a": float("nan"), "b": float("-inf")}})
        *_, end = events_of(jobs, job)
        assert end.data == '{"keys":{"a":"nan","b":"-inf"}}'
        assert job.as_json()["result"] == {"keys": {"a": "nan", "b": "-inf"}}

    def test_progress_is_redacted(self) -> None:
        received = threading.Event()

        def work(watch: CallWatch) -> dict[str, Any]:
            assert watch.progress is not None
            watch.progress("/srv/models/a.gguf: reading")
            received.wait(PATIENCE_S)
            return {}

        def redact(answer: dict[str, Any]) -> dict[str, Any]:
            return {key: text.replace("/srv/models/", "") for key, text in answer.items()}

        jobs = Jobs(timeout_s=PATIENCE_S, redact=redact)
        job = jobs.start("inspect", work)

        async def collect() -> list[Any]:
            data = []
            async for event in jobs.follow(job, 0):
                data.append(json.loads(event.data))
                received.set()
            return data

        assert asyncio.run(collect()) == [{"line": "a.gguf: reading"}, {}]
        assert job.as_json()["progress"] == "a.gguf: reading"

    def test_size_of_kept_results_is_limited(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The oldest are dropped, first per client, then of all; the newest stays, however large."""
        monkeypatch.setattr(jobs_module, "KEPT_BYTES_EACH", 2_500)
        monkeypatch.setattr(jobs_module, "KEPT_BYTES", 4_500)

        def run_jobs(client: str, *sizes: int) -> list[BackgroundJob]:
            ended = [jobs.start("inspect", partial(large_result, size), client) for size in sizes]
            for job in ended:
                wait_for_state(job, JobState.DONE)
            jobs.named(ended[-1].id)  # drops results over the limits
            return ended

        def large_result(size: int, _: CallWatch) -> dict[str, Any]:
            return {"a": "x" * size}

        first = run_jobs("10.0.0.1", 1_000, 1_000, 1_000)
        assert [job.id in jobs._jobs for job in first] == [False, True, True]
        others = run_jobs("10.0.0.2", 1_000, 1_000) + run_jobs("10.0.0.3", 1_000)
        assert [job.id in jobs._jobs for job in (*first, *others)] == [False, False, *[True] * 4]
        (last,) = run_jobs("10.0.0.4", 9_000)
        assert list(jobs._jobs) == [last.id]

    def test_close_cancels_all_jobs_and_starts_none_that_waits(self) -> None:
        jobs, begun = Jobs(timeout_s=PATIENCE_S), []

        def work(watch: CallWatch) -> dict[str, Any]:
            begun.append(watch)
            watch.cancelled.wait(PATIENCE_S)
            return {}

        before = running()
        started = [jobs.start("plan", work) for _ in range(RUNNING_EACH + WAITING_EACH)]
        jobs.close()
        assert {job.state for job in started} == {JobState.CANCELLED}
        wait_until(lambda: started_since(before) == 0)
        assert len(begun) <= RUNNING_EACH
        assert not any(job.has_begun for job in started[RUNNING_EACH:])

    def test_ended_jobs_are_kept_in_limited_number_and_time(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        may_end = threading.Event()
        running = jobs.start("plan", lambda _: {"ok": may_end.wait(PATIENCE_S)})
        ended = []
        for _ in range(KEPT_JOBS + 10):
            ended.append(jobs.start("plan", lambda _: {}))
            wait_for_state(ended[-1], JobState.DONE)
        assert len(jobs._jobs) <= KEPT_JOBS
        assert jobs.named(running.id) is running
        assert jobs.named(ended[-1].id) is ended[-1]
        with pytest.raises(NotFoundError, match="ended more than ten minutes ago"):
            jobs.named(ended[0].id)
        later_s = time.monotonic() + KEPT_S + 1
        running.deadline_s = later_s + 1
        # Not time.monotonic itself, which the event loops of servers in other threads use.
        monkeypatch.setattr(jobs_module, "time", SimpleNamespace(monotonic=lambda: later_s))
        with pytest.raises(NotFoundError):
            jobs.named(ended[-1].id)
        assert jobs.named(running.id) is running
        may_end.set()

    def test_ids_cannot_be_guessed(self, jobs: Jobs) -> None:
        ids = {jobs.start("plan", lambda _: {}).id for _ in range(4)}
        assert len(ids) == 4
        assert all(len(job_id) >= 20 for job_id in ids)

    def test_closed_jobs_accept_no_new_job(self, jobs: Jobs) -> None:
        job = jobs.start("plan", lambda watch: {"never": watch.cancelled.wait(PATIENCE_S)})
        jobs.close()
        assert job.state is JobState.CANCELLED
        with pytest.raises(TooManyError):
            jobs.start("plan", lambda _: {})
