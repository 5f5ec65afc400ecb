"""A running llama.cpp server: its health, answers, memory and port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

import pytest
from tests.runtime_engines import ask, launch_of, model_of, small_model

from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.run.program import compare_reported
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
from edgekit.engines.ports import check_port
from edgekit.engines.process import health
from edgekit.engines.watch import Watch
from edgekit.errors import UsageError
from edgekit.units import MIB

pytest.importorskip("xllamacpp")

KEY = "a key of the tests"
TOKENS = 12
LOAD = Load(context_tokens=32_768, sequences=4, unified=True)
SETUP = LlamaCppSetup(mode=LlamaMode.SERVER, cache_ram_mib=0)


class Served(NamedTuple):
    running: EngineProcess
    bill: MemoryEstimate
    statuses: set[int | None]  # of /health, before it was up


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """4 layers x 32,768 cells x 256 numbers x (K + V) x 2 bytes = 128 MiB of cache; 10 MB of weights."""
    path = tmp_path_factory.mktemp("models") / "served.gguf"
    small_model(path, layers=4, kv_heads=4, context_tokens=32_768, tied=False)
    port = free_port()
    address, started = f"http://127.0.0.1:{port}", threading.Event()
    statuses: set[int | None] = set()

    def poll_health() -> None:
        while not started.is_set():
            statuses.add(health(address))

    poller = threading.Thread(target=poll_health)
    poller.start()
    try:
        launch = launch_of(path, load=LOAD, setup=SETUP, port=port, api_key=KEY, alias="served")
        running = start(launch)
    finally:
        started.set()
        poller.join()
    bill = llamacpp.estimate(model_of(path), LOAD, SETUP)
    with running:
        yield Served(running, bill, statuses)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def complete(served: Served, number: int = 0) -> str:
    """A prompt of 1 + `number` tokens, so that the usage in the response shows which prompt it answers."""
    request = {
        "prompt": [300 + number] * (1 + number),
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    status, answer = ask(served.running.address, "/v1/completions", request, KEY)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == TOKENS
    assert answer["usage"]["prompt_tokens"] == 1 + number
    return str(answer["choices"][0]["text"])


def test_health_is_503_while_loading_and_200_when_ready(served: Served) -> None:
    assert served.statuses <= {None, 503, 200}
    assert 503 in served.statuses  # it listens before it can answer
    assert health(served.running.address) == 200
    assert ask(served.running.address, "/health") == (200, {"status": "ok"})


def test_openai_endpoints_answer(served: Served) -> None:
    assert complete(served)
    request = {
        "messages": [{"role": "user", "content": "hello world"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    status, answer = ask(served.running.address, "/v1/chat/completions", request, KEY)
    assert status == 200
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["model"] == "served"
    messages = {"messages": request["messages"]}
    _, answer = ask(served.running.address, "/apply-template", messages, KEY)
    assert answer["prompt"] == "user: hello world\nassistant: "  # the file's own template


def test_requests_need_the_api_key(served: Served) -> None:
    for key in (None, "another"):
        status, answer = ask(served.running.address, "/v1/completions", {"prompt": "a"}, key)
        assert (status, answer["error"]["type"]) == (401, "authentication_error")
    assert KEY not in repr(served.running.launch)


def test_bill_is_what_the_engine_reports(served: Served) -> None:
    rows = {
        row.part: row
        for row in compare_reported(
            served.bill, served.running.allocations, served.running.files.size_bytes
        )
    }
    assert all(row.within for row in rows.values()), rows
    cache = served.running.allocations.parts[Component.KV_CACHE]
    assert served.bill.of(Component.KV_CACHE) == 4 * 32_768 * 256 * 2 * 2
    assert cache.off_by(4 * 32_768 * 256 * 2 * 2) == 0
    assert cache.resolution_bytes < 6_000
    assert rows["weights"].measured.off_by(served.bill.weights_bytes) == 0
    assert rows["weights"].measured.resolution_bytes < 6_000
    assert rows["kv cache"].allowed_bytes == rows["weights"].allowed_bytes == 0


def test_bill_for_a_longer_context_is_outside_the_bounds(served: Served) -> None:
    longer = llamacpp.estimate(
        model_of(served.running.launch.weights.model),
        Load(context_tokens=33_024, sequences=4),
        SETUP,
    )
    rows = {
        row.part: row
        for row in compare_reported(
            longer, served.running.allocations, served.running.files.size_bytes
        )
    }
    assert not rows["kv cache"].within
    assert rows["weights"].within


def test_resident_memory_is_what_the_bill_predicts(served: Served) -> None:
    """The bill plus the process before it loaded is within 5 % and 60 MB of the process after four requests."""
    for number in range(4):
        complete(served, number)
    resident, idle = served.running.resident(), served.running.idle
    assert resident is not None
    assert idle is not None
    predicted = served.bill.total_bytes + idle.resident_bytes
    assert predicted > 190 * MIB  # the bound is smaller than any large line
    assert abs(resident.resident_bytes - predicted) < 0.05 * predicted + 60e6
    assert resident.file_bytes is not None
    assert resident.file_bytes > served.bill.weights_bytes  # mapped, not copied


def test_engine_resolves_the_context_as_the_bill_does(served: Served) -> None:
    facts = dict(served.bill.facts)
    for name in ("n_ctx", "n_ctx_seq", "n_seq_max", "n_batch", "n_ubatch"):
        assert served.running.allocations.resolved[name] == str(facts[name])
    assert served.running.version.startswith("20")
    assert "(llama.cpp " in served.running.version


@pytest.mark.parametrize("clients", [10, 32])
def test_more_clients_than_slots_are_queued(served: Served, clients: int) -> None:
    """Four slots: no request is lost, and each client gets the answer to its own prompt."""
    before = served.running.resident()
    with ThreadPoolExecutor(clients) as pool:
        texts = list(pool.map(lambda number: complete(served, number), range(clients)))
    assert [bool(text) for text in texts] == [True] * clients
    after = served.running.resident()
    assert before is not None
    assert after is not None
    assert (
        after.resident_bytes - before.resident_bytes < 24 * MIB
    )  # for threads of the server: no cache grows


def test_port_of_a_running_engine_is_in_use(served: Served) -> None:
    port = int(served.running.address.rpartition(":")[2])
    message = rf"port {port} of 127.0.0.1 is already in use by a model that edgekit already runs \(served, process "
    with pytest.raises(UsageError, match=message):
        check_port("127.0.0.1", port)
    rechecked: list[int] = []
    with pytest.raises(UsageError, match=message):
        start(
            launch_of(served.running.launch.weights.model, port=port),
            recheck=lambda: rechecked.append(1),
        )
    assert rechecked == []  # the port is checked before anything else
    assert health(served.running.address) == 200


def test_watch_of_a_healthy_engine_stays_silent(served: Served) -> None:
    messages: list[str] = []
    with Watch(served.running, warn=messages.append, every_s=0.05) as watch:
        complete(served)
    assert (messages, watch.reason, served.running.poll()) == ([], "", None)
