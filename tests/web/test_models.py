"""FakeOpening the models of requests: shared between requests, cached, cancelled, and limited in number."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.threads import running, started_since
from tests.web.model_files import write_model
from tests.web.serving import OPEN, ask, start, stuck_hub

from edgekit.app.estimate import price_loads
from edgekit.app.open import ResolvedModel, open_named
from edgekit.errors import CancelledError, NotFoundError
from edgekit.model import open_model
from edgekit.request import Session
from edgekit.server import clients
from edgekit.sources.types import Origin, Reach
from edgekit.web import models as web_models
from edgekit.web.failures import TooManyError
from edgekit.web.models import OpenedModels
from edgekit.web.types import CallWatch, WebSettings

CARD = {"device": ["RTX 4090"], "ram": "64G"}


class FakeOpening:
    """Replaces `open_named`: records the calls, reports progress, and blocks until `may_finish` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.running = self.most_running = 0
        self.may_finish, self.lock = threading.Event(), threading.Lock()
        self._model = open_named("qwen3-8b")
        monkeypatch.setattr(web_models, "open_named", self)

    def __call__(self, name: str, session: Session) -> ResolvedModel:
        assert session.confirm is None
        reach: Any = session.reach
        with self.lock:
            self.calls.append(name)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        reach.progress(f"opening {name}")
        while not self.may_finish.wait(0.01):
            if reach.cancelled.is_set():
                with self.lock:
                    self.running -= 1
                raise CancelledError("cancelled")
        with self.lock:
            self.running -= 1
        if "missing" in name:
            raise NotFoundError(name)
        return self._model

    def wait_until_running(self, count: int) -> None:
        wait_until(lambda: self.running == count, f"{count} openings at once")


def start_threads(work: Any, arguments: list[Any]) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=work, args=(argument,), daemon=True) for argument in arguments
    ]
    for thread in threads:
        thread.start()
    return threads


def test_one_opening_serves_all_requests_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """All get its progress, also after the request that started it was cancelled. The result is cached."""
    opening, opened = FakeOpening(monkeypatch), OpenedModels(WebSettings())
    lines: list[str] = []
    watches = [CallWatch(progress=lines.append) for _ in range(4)]
    result: list[Any] = []

    def wait(watch: CallWatch) -> None:
        try:
            result.append(opened.named("org/name", watch))
        except CancelledError as error:
            result.append(error)

    first = start_threads(wait, watches[:1])
    opening.wait_until_running(1)
    threads = first + start_threads(wait, watches[1:])
    wait_until(lambda: len(opened._flights["org/name"].waiting) == 4)
    watches[0].cancelled.set()  # the request that started the opening
    first[0].join(PATIENCE_S)
    assert isinstance(result[0], CancelledError)
    opening.may_finish.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert opening.calls == ["org/name"]
    assert len(result) == 4
    assert result[1] is result[2] is result[3] is opened.named("org/name", CallWatch())
    assert lines == ["opening org/name"]


def test_opening_is_cancelled_with_the_last_request_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, opened = FakeOpening(monkeypatch), OpenedModels(WebSettings())
    watch, was_cancelled = CallWatch(), threading.Event()

    def wait(watch: CallWatch) -> None:
        with pytest.raises(CancelledError):
            opened.named("org/name", watch)
        was_cancelled.set()

    start_threads(wait, [watch])
    opening.wait_until_running(1)
    watch.cancelled.set()
    assert was_cancelled.wait(PATIENCE_S)
    opening.wait_until_running(0)
    opening.may_finish.set()
    assert (
        opened.named("org/name", CallWatch()).entry is not None
    )  # the next request opens it again
    assert len(opening.calls) == 2


def test_model_of_a_cancelled_opening_is_not_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although the opening itself succeeded: later reads of its files would be cancelled too."""
    opened, watch, calls = OpenedModels(WebSettings()), CallWatch(), []
    model = open_named("qwen3-8b")

    def open_despite_cancellation(name: str, session: Session) -> ResolvedModel:
        calls.append(name)
        watch.cancelled.set()
        if len(calls) == 1:
            assert session.reach.cancelled is not None
            assert session.reach.cancelled.wait(PATIENCE_S)
        return model

    monkeypatch.setattr(web_models, "open_named", open_despite_cancellation)
    before = running()
    with pytest.raises(CancelledError):
        opened.named("org/name", watch)
    wait_until(lambda: started_since(before) == 0)
    assert not opened._cached
    opened.named("org/name", CallWatch())
    assert calls == ["org/name"] * 2


def test_openings_and_waiting_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    opening, opened = FakeOpening(monkeypatch), OpenedModels(WebSettings())
    names = [f"org/name-{number}" for number in range(web_models.WAITING_AT_ONCE)]
    threads = start_threads(lambda name: opened.named(name, CallWatch(client=name)), names)
    opening.wait_until_running(web_models.OPENED_AT_ONCE)
    wait_until(lambda: len(opened._waiting) == len(names))
    with pytest.raises(TooManyError):
        opened.named("org/one-more", CallWatch())
    opening.may_finish.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert opening.most_running == web_models.OPENED_AT_ONCE
    assert sorted(opening.calls) == sorted(names)


def test_openings_and_waiting_requests_per_client_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, opened = FakeOpening(monkeypatch), OpenedModels(WebSettings())
    names = [f"org/name-{number}" for number in range(web_models.WAITING_EACH)]
    threads = start_threads(lambda name: opened.named(name, CallWatch(client="10.0.0.1")), names)
    opening.wait_until_running(web_models.OPENED_EACH)
    wait_until(lambda: len(opened._waiting) == len(names))
    with pytest.raises(TooManyError):
        opened.named("org/one-more", CallWatch(client="10.0.0.1"))
    threads += start_threads(
        lambda name: opened.named(name, CallWatch(client="10.0.0.2")), ["org/other"]
    )
    opening.wait_until_running(web_models.OPENED_EACH + 1)
    opening.may_finish.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert opening.most_running <= web_models.OPENED_AT_ONCE


SLOW_CALLS: tuple[tuple[str, dict[str, str]], ...] = (
    ("inspect", {"model": "{hub}/{n}.gguf"}),
    ("estimate", {"model": "{hub}/{n}.gguf"}),
    ("estimate", {"model": "qwen3-8b", "draft_model": "{hub}/{n}.gguf"}),
    ("check", {"model": "qwen3-8b", "mmproj": "{hub}/{n}.gguf"}),
    ("fit", {"model": "qwen3-8b", "lora": "{hub}/{n}.gguf"}),
)


def test_slow_openings_do_not_block_calls_on_open_models() -> None:
    """One client opens as many slow models as it can, by every call; its other calls are still answered."""
    with stuck_hub() as (hub, _), start(OPEN) as address:
        for model in ("qwen3-8b", "sample:gemma-3-27b"):
            assert ask(address, "/api/v1/fit", {"model": model, **CARD}).status == 200
        slow: list[socket.socket] = []
        for number in range(6 * len(SLOW_CALLS)):
            call, templates = SLOW_CALLS[number % len(SLOW_CALLS)]
            fields = {
                key: text.format(hub=hub.address, n=number) for key, text in templates.items()
            }
            slow.append(post_without_reading(address, f"/api/v1/{call}", fields))
        refused = len(slow) - web_models.WAITING_EACH
        wait_until(lambda: sum(map(has_response, slow)) == refused)
        for call in ("fit", "estimate", "curves", "check"):
            machine: dict[str, Any] = {} if call == "estimate" else CARD
            answer = ask(address, f"/api/v1/{call}", {"model": "qwen3-8b", **machine})
            assert answer.status == 200, (call, answer.body)
        assert ask(address, "/api/v1/fit", {"model": "deepseek-v3", **CARD}).status == 200
        answered = [connection for connection in slow if has_response(connection)]
        assert len(answered) == refused
        assert all(b" 429 " in connection.recv(100) for connection in answered)
        for connection in slow:
            connection.close()


def post_without_reading(address: str, path: str, fields: dict[str, str]) -> socket.socket:
    """Sends a request. Returns the connection, from which nothing has been read."""
    host, _, port = address.removeprefix("http://").partition(":")
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def has_response(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_call_whose_client_left_before_its_turn_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = FakeOpening(monkeypatch)
    monkeypatch.setattr(clients, "LONG_EACH", 1)
    with start(WebSettings(port=0)) as address:
        first = post_without_reading(address, "/api/v1/check", {"model": "org/first"})
        opening.wait_until_running(1)
        post_without_reading(address, "/api/v1/check", {"model": "org/second"}).close()
        third = post_without_reading(address, "/api/v1/check", {"model": "org/third", "ram": "64G"})
        for _ in range(
            2
        ):  # the server answers after it has seen that the second left and the third arrived
            assert ask(address, "/healthz").status == 200
        opening.may_finish.set()
        assert third.recv(100).startswith(b"HTTP/1.1 200 ")
        first.close()
        third.close()
    assert opening.calls == ["org/first", "org/third"]


def test_failures_are_not_cached_and_the_oldest_model_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, opened = FakeOpening(monkeypatch), OpenedModels(WebSettings())
    opening.may_finish.set()
    for _ in range(2):
        with pytest.raises(NotFoundError):
            opened.named("org/missing", CallWatch())
    for number in range(web_models.CACHED_MODELS + 1):
        opened.named(f"org/name-{number}", CallWatch())
    opening.calls.clear()
    opened.named("org/name-0", CallWatch())
    opened.named(f"org/name-{web_models.CACHED_MODELS}", CallWatch())
    assert opening.calls == ["org/name-0"]


def test_remote_model_is_opened_again_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    opening, opened = FakeOpening(monkeypatch), OpenedModels(WebSettings())
    opening.may_finish.set()
    now_s = time.monotonic()
    monkeypatch.setattr(web_models, "time", SimpleNamespace(monotonic=lambda: now_s))
    opened.named("org/name", CallWatch())
    now_s += web_models.REMOTE_S - 1
    opened.named("org/name", CallWatch())
    assert len(opening.calls) == 1
    now_s += 2
    opened.named("org/name", CallWatch())
    assert len(opening.calls) == 2


@pytest.mark.parametrize(("origin", "reads"), [(Origin.HUB, 1), (Origin.LOCAL, 2)])
def test_projector_of_a_remote_model_is_cached_as_long_as_the_model(
    origin: Origin, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again after COMPANIONS_S only for a local model: reads of a remote model share one timeout."""
    model = open_model(str(write_model(tmp_path)))
    assert model.files is not None
    model = replace(model, files=replace(model.files, origin=origin))
    cached = web_models.CachedModel(name="org/name", found=model)
    now_s, calls = time.monotonic(), []

    def record_price_loads(*arguments: Any) -> Any:
        calls.append(arguments)
        return price_loads(model, "llama.cpp", {}, Reach())

    monkeypatch.setattr(web_models, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(web_models, "price_loads", record_price_loads)
    for _ in range(2):
        cached.pricing(model, "llama.cpp", {"mmproj": "auto"}, Reach())
        now_s += web_models.COMPANIONS_S + 1
    assert len(calls) == reads


def test_changed_file_is_read_again_and_deleted_file_is_not_found(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    opened = OpenedModels(WebSettings(models_dirs=(tmp_path,)))
    first = opened.named(path.name, CallWatch())
    assert opened.named(str(path), CallWatch()) is first
    later_ns = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later_ns, later_ns))
    second = opened.named(path.name, CallWatch())
    assert second is not first
    path.unlink()
    with pytest.raises(NotFoundError):
        opened.named(path.name, CallWatch())


def test_computed_results_are_kept_only_for_the_last_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, opened = FakeOpening(monkeypatch), OpenedModels(WebSettings())
    opening.may_finish.set()
    first = [opened.named(f"org/name-{number}", CallWatch()) for number in range(3)]
    for model in first:
        assert model.as_file("llama.cpp") is model.as_file("llama.cpp")
    for number in range(3, web_models.WITH_RESULTS + 1):
        opened.named(f"org/name-{number}", CallWatch())
    assert [bool(model.by_engine) for model in first] == [False, True, True]


def test_opening_is_cancelled_when_the_client_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = FakeOpening(monkeypatch)
    with start(WebSettings(port=0)) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with closing(socket.create_connection((host, int(port)))) as connection:
            connection.sendall(
                f"GET /api/v1/estimate?model=org/name HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
            )
            opening.wait_until_running(1)
        opening.wait_until_running(0)
