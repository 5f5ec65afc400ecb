"""Calls that take long: what they say meanwhile, how they end, and that they can be called off."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp
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
from edgekit.web.security import BYE, Shutdown, ShutdownMiddleware
from edgekit.web.types import CallWatch

SAMPLE = {"model": "sample:gemma-3-27b"}
ENDS = {"done", "failed", "cancelled"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start(LOCAL) as address:
        yield address


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs(timeout_s=PATIENCE_S)
    yield made
    made.close()


def until(job: BackgroundJob, state: JobState) -> None:
    wait_until(lambda: job.state is state, f"{state} of {job}")


def followed(jobs: Jobs, job: BackgroundJob, after: int = 0) -> list[JobEvent]:
    async def collect() -> list[JobEvent]:
        return [event async for event in jobs.follow(job, after)]

    return asyncio.run(collect())


class TestOverHttp:
    def test_a_call_is_started_followed_and_asked_about(self, server: str) -> None:
        started = ask(server, "/api/v1/jobs/inspect", SAMPLE)
        assert started.status == 202
        shown = started.json()
        assert (shown["call"], shown["state"]) == ("inspect", "running")
        assert started.headers["location"] == f"/api/v1/jobs/{shown['id']}"
        *lines, end = events(server, f"/api/v1/jobs/{shown['id']}/events")
        assert {line["event"] for line in lines} <= {"progress"}
        assert end["event"] == "done"
        assert end["data"] == ask(server, "/api/v1/inspect", SAMPLE).json()
        request = ask(server, f"/api/v1/jobs/{shown['id']}").json()
        assert (request["state"], request["result"], request["error"]) == (
            "done",
            end["data"],
            None,
        )

    @pytest.mark.parametrize(
        ("call", "fields"),
        [
            ("estimate", {**SAMPLE, "context": "8k"}),
            ("check", {**SAMPLE, "device": ["RTX 4090"], "ram": "64G"}),
            ("plan", {**SAMPLE, "device": ["RTX 4090"], "ram": "64G"}),
            ("recommend", {"device": ["RTX 4090"], "ram": "64G", "task": "code", "limit": 1}),
        ],
    )
    def test_every_call_answers_as_it_does_at_once(
        self, server: str, call: str, fields: dict[str, Any]
    ) -> None:
        job = ask(server, f"/api/v1/jobs/{call}", fields).json()
        *_, end = events(server, f"/api/v1/jobs/{job['id']}/events")
        assert (end["event"], end["data"]) == (
            "done",
            ask(server, f"/api/v1/{call}", fields).json(),
        )

    def test_a_failure_is_told_as_the_call_tells_it(self, server: str) -> None:
        for model in ("sample:nothing", "../../etc/passwd", "http://127.0.0.1:1/a.gguf"):
            plain = ask(server, "/api/v1/inspect", {"model": model})
            assert plain.status >= 400
            job = ask(server, "/api/v1/jobs/inspect", {"model": model}).json()
            (end,) = events(server, f"/api/v1/jobs/{job['id']}/events")
            assert (end["event"], end["data"]) == ("failed", plain.json())
            request = ask(server, f"/api/v1/jobs/{job['id']}").json()
            assert (request["state"], request["error"]) == ("failed", plain.error)

    def test_fields_are_read_before_a_job_is_made(self, server: str) -> None:
        answer = ask(server, "/api/v1/jobs/inspect", {"modle": "x"})
        assert (answer.status, answer.error["type"]) == (400, "UsageError")
        assert "modle: unknown field" in answer.error["message"]
        answer = ask(server, "/api/v1/jobs/dance", {})
        assert (answer.status, answer.error["type"]) == (404, "NotFoundError")
        assert "inspect" in answer.error["message"]

    @pytest.mark.parametrize(
        ("body", "told"),
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
    def test_a_body_that_is_no_request_is_told_so(
        self, server: str, body: bytes, told: str
    ) -> None:
        place = server.removeprefix("http://")
        with closing(http.client.HTTPConnection(place, timeout=PATIENCE_S)) as client:
            json_type = {"Content-Type": "application/json"}
            client.request("POST", "/api/v1/jobs/inspect", body, json_type)
            reply = client.getresponse()
            error = json.loads(reply.read())["error"]
        assert (reply.status, error["type"]) == (400, "UsageError")
        assert error["message"].startswith(told)

    def test_one_that_is_not_known_is_not_found(self, server: str) -> None:
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
            answer = ask(server, f"/api/v1/jobs/nobody{path}", method=method)
            assert (answer.status, answer.error["type"]) == (404, "NotFoundError")

    def test_the_end_is_told_to_whoever_comes_back(self, server: str) -> None:
        job = ask(server, "/api/v1/jobs/inspect", SAMPLE).json()
        path = f"/api/v1/jobs/{job['id']}/events"
        *_, end = events(server, path)
        for last in ("", "0", end["id"], "99", "x", "-1", "9" * 400, "\xb2"):
            *_, again = events(server, path, headers={"Last-Event-ID": last})
            assert again == end

    def test_a_slow_server_is_called_off(self) -> None:
        with stuck_hub() as (hub, _), start(OPEN) as address:
            job = ask(address, "/api/v1/jobs/inspect", {"model": f"{hub.address}/a.gguf"}).json()
            path = f"/api/v1/jobs/{job['id']}"
            following = events(address, f"{path}/events")
            first = next(following)
            assert first["event"] == "progress"
            assert "a.gguf" in first["data"]["line"]
            assert ask(address, path).json()["progress"] == first["data"]["line"]
            assert ask(address, path, method="DELETE").json()["state"] == "cancelled"
            assert [item["event"] for item in following] == ["cancelled"]
            assert ask(address, path).json()["state"] == "cancelled"
            assert ask(address, path, method="DELETE").json()["state"] == "cancelled"

    def test_a_listener_that_goes_and_comes_back_misses_nothing(self) -> None:
        with stuck_hub() as (hub, go), start(OPEN) as address:
            job = ask(address, "/api/v1/jobs/inspect", {"model": f"{hub.address}/a.gguf"}).json()
            path = f"/api/v1/jobs/{job['id']}/events"
            gone = events(address, path)
            first = next(gone)
            gone.close()
            go.set()
            last = {"Last-Event-ID": first["id"]}
            *lines, end = events(address, path, headers=last)
            assert end["event"] == "done"
            assert first["data"] not in [line["data"] for line in lines]
            numbers = [int(item["id"]) for item in (first, *lines, end)]
            assert numbers == sorted(set(numbers))

    def test_the_end_of_the_server_is_told(self) -> None:
        messages: list[str] = []
        with stuck_hub() as (hub, _):
            with start(OPEN) as address:
                fields = {"model": f"{hub.address}/a.gguf"}
                job = ask(address, "/api/v1/jobs/inspect", fields).json()
                following = events(address, f"/api/v1/jobs/{job['id']}/events")
                messages.append(next(following)["event"])
            messages += [item["event"] for item in following]
        assert messages == ["progress", "cancelled"]

    def test_more_than_it_can_do_are_refused(self) -> None:
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
    def test_lines_come_in_order_and_the_newest_last(self, jobs: Jobs) -> None:
        heard: list[JobEvent] = []
        over = threading.Event()

        def work(watch: CallWatch) -> dict[str, Any]:
            assert watch.progress is not None
            for number in range(1, 301):
                watch.progress(f"range {number} of 300")
                time.sleep(0.001)
            over.wait(PATIENCE_S)
            return {"count": 300}

        async def collect() -> None:
            async for event in jobs.follow(job, 0):
                heard.append(event)
                if "range 300 " in event.data:
                    over.set()

        job = jobs.start("inspect", work)
        began_s = time.monotonic()
        asyncio.run(collect())
        took_s = time.monotonic() - began_s
        *lines, end = heard
        messages = [int(json.loads(line.data)["line"].split()[1]) for line in lines]
        assert messages == sorted(set(messages))
        assert messages[-1] == 300
        assert len(messages) <= 3 + took_s / jobs_module.PAUSE_S
        assert [line.number for line in lines] == sorted({line.number for line in lines})
        assert (end.name, end.data) == ("done", '{"count":300}')
        assert end.number > lines[-1].number

    def test_several_listen(self, jobs: Jobs) -> None:
        go = threading.Event()
        job = jobs.start("check", lambda _: {"ok": go.wait(PATIENCE_S)})

        async def all_of_them() -> list[list[JobEvent]]:
            async def one() -> list[JobEvent]:
                return [event async for event in jobs.follow(job, 0)]

            def let_go() -> None:
                wait_until(lambda: len(job.followers) == 5)
                go.set()

            threading.Thread(target=let_go).start()
            return await asyncio.gather(*(one() for _ in range(5)))

        heard = asyncio.run(all_of_them())
        assert heard == [[JobEvent(name="done", number=1, data='{"ok":true}')]] * 5
        assert not job.followers

    def test_a_sign_of_life_comes_while_nothing_happens(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_module, "PING_S", 0.02)
        job = jobs.start("plan", lambda watch: {"never": watch.cancelled.wait(PATIENCE_S)})

        async def collect() -> list[JobEvent]:
            heard = []
            async for event in jobs.follow(job, 0):
                heard.append(event)
                if len(heard) == 2:
                    jobs.cancel(job)
            return heard

        *signs, end = asyncio.run(collect())
        assert len(signs) >= 2
        assert all(sign == JobEvent() for sign in signs)
        assert end.name == "cancelled"

    def test_one_that_waits_is_called_off_without_having_begun(self, jobs: Jobs) -> None:
        go, begun = threading.Event(), threading.Event()
        busy = [
            jobs.start("plan", lambda _: {"ok": go.wait(PATIENCE_S)}) for _ in range(RUNNING_EACH)
        ]

        def begin(_: CallWatch) -> dict[str, Any]:
            begun.set()
            return {}

        waiting = jobs.start("plan", begin)
        jobs.cancel(waiting)
        go.set()
        for job in busy:
            until(job, JobState.DONE)
        assert waiting.state is JobState.CANCELLED
        assert not begun.is_set()

    def test_what_is_called_off_makes_room_at_once(self, jobs: Jobs) -> None:
        go = threading.Event()
        deaf = [
            jobs.start("plan", lambda _: {"ok": go.wait(PATIENCE_S)}) for _ in range(RUNNING_EACH)
        ]
        last = jobs.start("plan", lambda _: {"ok": True})
        assert not last.has_begun
        jobs.cancel(deaf[0])
        until(last, JobState.DONE)
        go.set()
        for job in deaf[1:]:
            until(job, JobState.DONE)
        assert deaf[0].state is JobState.CANCELLED, "a late answer changes nothing"
        assert deaf[0].answer == "{}"

    def test_those_that_do_not_notice_are_bounded(self, jobs: Jobs) -> None:
        go = threading.Event()
        with pytest.raises(TooManyError):  # noqa: PT012 - which of them is refused does not matter
            for _ in range(100):
                jobs.cancel(jobs.start("plan", lambda _: {"ok": go.wait(PATIENCE_S)}))
        assert jobs._threads.total() == jobs_module.THREADS_EACH
        other = jobs.start("plan", lambda _: {"ok": True}, "10.0.0.2")
        until(other, JobState.DONE)
        go.set()

    def test_one_client_has_a_share(self, jobs: Jobs) -> None:
        go = threading.Event()

        def work(_: CallWatch) -> dict[str, Any]:
            return {"ok": go.wait(PATIENCE_S)}

        own = [jobs.start("plan", work, "10.0.0.1") for _ in range(RUNNING_EACH + WAITING_EACH)]
        assert [job.has_begun for job in own].count(True) == RUNNING_EACH
        with pytest.raises(TooManyError):
            jobs.start("plan", work, "10.0.0.1")
        others = [jobs.start("plan", work, f"10.0.0.{n}") for n in (2, 3)]
        assert [job.has_begun for job in others] == [True, False]
        jobs.cancel(own[0])
        assert others[1].has_begun, "who has none running comes first"
        assert not own[RUNNING_EACH].has_begun
        go.set()
        for job in (*own[1:], *others):
            until(job, JobState.DONE)
        wait_until(lambda: not jobs._threads.total())  # a thread ends after its job

    def test_what_others_asked_for_is_kept_however_much_one_asks_for(self, jobs: Jobs) -> None:
        first = jobs.start("plan", lambda _: {}, "10.0.0.1")
        until(first, JobState.DONE)
        for _ in range(KEPT_JOBS + 1):
            until(jobs.start("plan", lambda _: {}, "10.0.0.2"), JobState.DONE)
        assert jobs.named(first.id) is first

    @pytest.mark.parametrize(
        ("error", "state", "told"),
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
    def test_errors_become_ends(
        self, jobs: Jobs, error: Exception, state: JobState, told: dict[str, str] | None
    ) -> None:
        def work(_: CallWatch) -> dict[str, Any]:
            raise error

        job = jobs.start("plan", work)
        until(job, state)
        assert job.as_json()["error"] == told

    def test_what_nobody_foresaw_is_told_without_details(
        self, jobs: Jobs, caplog: pytest.LogCaptureFixture
    ) -> None:
        def work(_: CallWatch) -> dict[str, Any]:
            raise ZeroDivisionError("/home/somebody")

        with caplog.at_level(logging.ERROR):
            job = jobs.start("plan", work)
            until(job, JobState.FAILED)
        assert job.as_json()["error"]["type"] == "InternalError"
        assert "somebody" not in job.answer
        assert "/home/somebody" in caplog.text

    def test_one_that_takes_too_long_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs_module, "SLACK_S", 0.0)
        monkeypatch.setattr(jobs_module, "PING_S", 0.05)
        jobs = Jobs(timeout_s=0.1)
        job = jobs.start("plan", lambda watch: {"never": watch.cancelled.wait(PATIENCE_S)})
        *_, end = followed(jobs, job)
        assert (end.name, json.loads(end.data)["error"]["type"]) == ("failed", "DeadlineError")
        assert job.cancelled.is_set()

    def test_what_is_no_number_is_told_as_a_call_tells_it(self, jobs: Jobs) -> None:
        """Headers hold such; a browser reads no NaN."""
        job = jobs.start("inspect", lambda _: {"keys": {"a": float("nan"), "b": float("-inf")}})
        *_, end = followed(jobs, job)
        assert end.data == '{"keys":{"a":"nan","b":"-inf"}}'
        assert job.as_json()["result"] == {"keys": {"a": "nan", "b": "-inf"}}

    def test_what_is_said_meanwhile_is_told_as_the_answer_is(self) -> None:
        heard = threading.Event()

        def work(watch: CallWatch) -> dict[str, Any]:
            assert watch.progress is not None
            watch.progress("/srv/models/a.gguf: reading")
            heard.wait(PATIENCE_S)
            return {}

        def redact(answer: dict[str, Any]) -> dict[str, Any]:
            return {key: text.replace("/srv/models/", "") for key, text in answer.items()}

        jobs = Jobs(timeout_s=PATIENCE_S, redact=redact)
        job = jobs.start("inspect", work)

        async def collect() -> list[Any]:
            messages = []
            async for event in jobs.follow(job, 0):
                messages.append(json.loads(event.data))
                heard.set()
            return messages

        assert asyncio.run(collect()) == [{"line": "a.gguf: reading"}, {}]
        assert job.as_json()["progress"] == "a.gguf: reading"

    def test_long_answers_do_not_pile_up(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        """The oldest go first, of one client and of all; the last stays, however long it is."""
        monkeypatch.setattr(jobs_module, "KEPT_BYTES_EACH", 2_500)
        monkeypatch.setattr(jobs_module, "KEPT_BYTES", 4_500)

        def made(client: str, *sizes: int) -> list[BackgroundJob]:
            results = [jobs.start("inspect", partial(long_answer, size), client) for size in sizes]
            for job in results:
                until(job, JobState.DONE)
            return results

        def long_answer(size: int, _: CallWatch) -> dict[str, Any]:
            return {"a": "x" * size}

        own = made("10.0.0.1", 1_000, 1_000, 1_000)
        jobs.named(own[2].id)
        assert [job.id in jobs._jobs for job in own] == [False, True, True]
        others = made("10.0.0.2", 1_000, 1_000) + made("10.0.0.3", 1_000)
        jobs.named(others[2].id)
        assert [job.id in jobs._jobs for job in (*own, *others)] == [False, False, *[True] * 4]
        (last,) = made("10.0.0.4", 9_000)
        jobs.named(last.id)
        assert list(jobs._jobs) == [last.id]

    def test_none_that_waits_begins_when_all_are_called_off(self) -> None:
        jobs, begun = Jobs(timeout_s=PATIENCE_S), []

        def work(watch: CallWatch) -> dict[str, Any]:
            begun.append(watch)
            watch.cancelled.wait(PATIENCE_S)
            return {}

        before = running()
        made = [jobs.start("plan", work) for _ in range(RUNNING_EACH + WAITING_EACH)]
        jobs.close()
        assert {job.state for job in made} == {JobState.CANCELLED}
        wait_until(lambda: started_since(before) == 0)
        assert len(begun) <= RUNNING_EACH
        assert not any(job.has_begun for job in made[RUNNING_EACH:])

    def test_few_are_kept_and_not_for_long(
        self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go = threading.Event()
        running = jobs.start("plan", lambda _: {"ok": go.wait(PATIENCE_S)})
        made = []
        for _ in range(KEPT_JOBS + 10):
            made.append(jobs.start("plan", lambda _: {}))
            until(made[-1], JobState.DONE)
        assert len(jobs._jobs) <= KEPT_JOBS
        assert jobs.named(running.id) is running
        assert jobs.named(made[-1].id) is made[-1]
        with pytest.raises(NotFoundError, match="ended more than ten minutes ago"):
            jobs.named(made[0].id)
        later_s = time.monotonic() + KEPT_S + 1
        running.deadline_s = later_s + 1
        # Not time.monotonic itself: the loops of servers in other threads go by it.
        monkeypatch.setattr(jobs_module, "time", SimpleNamespace(monotonic=lambda: later_s))
        with pytest.raises(NotFoundError):
            jobs.named(made[-1].id)
        assert jobs.named(running.id) is running
        go.set()

    def test_ids_cannot_be_guessed(self, jobs: Jobs) -> None:
        ids = {jobs.start("plan", lambda _: {}).id for _ in range(4)}
        assert len(ids) == 4
        assert all(len(item) >= 20 for item in ids)

    def test_none_is_taken_on_when_all_is_over(self, jobs: Jobs) -> None:
        job = jobs.start("plan", lambda watch: {"never": watch.cancelled.wait(PATIENCE_S)})
        jobs.close()
        assert job.state is JobState.CANCELLED
        with pytest.raises(TooManyError):
            jobs.start("plan", lambda _: {})


class TestShutdownMiddleware:
    """The server ends while a request is open."""

    @staticmethod
    async def ended(path: str, app: ASGIApp) -> list[dict[str, Any]]:
        shutdown, sent = Shutdown(), list[dict[str, Any]]()

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        scope = {"type": "http", "path": path, "asgi": {"spec_version": "2.3"}}
        task = asyncio.create_task(ShutdownMiddleware(app, shutdown=shutdown)(scope, receive, send))
        for _ in range(10):  # it comes as far as it can
            await asyncio.sleep(0)
        shutdown.begin()
        await asyncio.wait_for(task, PATIENCE_S)
        return sent

    def test_stream_gets_a_last_event(self) -> None:
        async def forever() -> AsyncIterator[bytes]:
            while True:
                yield b": still here\n\n"
                await asyncio.sleep(0.01)

        sent = asyncio.run(self.ended("/api/v1/cards/events", StreamingResponse(forever())))
        assert sent[0]["status"] == 200
        assert (sent[-1]["body"], sent[-1].get("more_body", False)) == (BYE, False)
        assert [item.get("more_body", False) for item in sent[1:-1]] == [True] * (len(sent) - 2)

    def test_ended_stream_gets_no_last_event(self) -> None:
        sent = asyncio.run(self.ended("/api/v1/cards/events", PlainTextResponse("all")))
        assert [item.get("body") for item in sent] == [None, b"all"]

    def test_call_sees_a_disconnect(self) -> None:
        seen: list[str] = []

        async def app(_: Any, receive: Any, __: Any) -> None:
            seen.append((await receive())["type"])

        asyncio.run(self.ended("/api/v1/inspect", app))
        assert seen == ["http.disconnect"]

    def test_other_cancellations_propagate(self) -> None:
        async def app(*_: Any) -> None:
            await asyncio.Event().wait()

        async def nothing(*_: Any) -> Any:
            raise AssertionError

        async def cancelled() -> None:
            call = ShutdownMiddleware(app, shutdown=Shutdown())
            scope = {"type": "http", "path": "/events"}
            task = asyncio.create_task(call(scope, nothing, nothing))
            await asyncio.sleep(0.01)
            task.cancel()
            await task

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())
