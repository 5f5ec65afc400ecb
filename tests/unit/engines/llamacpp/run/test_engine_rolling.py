"""A session longer than its context: the first tokens are pinned, older ones are dropped, memory stays flat."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.runtime_engines import SERVER, ask, launch_of, model_of, small_model

from edgekit.bill.types import Component, Load, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.run.program import compare_reported
from edgekit.units import MIB

pytest.importorskip("xllamacpp")

WINDOW, WINDOWS, SINKS = 512, 3, 4
# Without ignore_eos the random weights would end the session at any token.
REQUEST: dict[str, Any] = {"prompt": "the quick brown fox", "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "small.gguf")


def events(running: EngineProcess, tokens: int) -> Iterator[dict[str, Any]]:
    """The response, token by token."""
    connection = http.client.HTTPConnection(
        running.address.removeprefix("http://"), timeout=PATIENCE_S
    )
    request = {**REQUEST, "n_predict": tokens, "stream": True}
    connection.request(
        "POST", "/completion", json.dumps(request), {"Content-Type": "application/json"}
    )
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))
    connection.close()


def private_bytes(running: EngineProcess) -> int:
    resident = running.resident()
    assert resident is not None
    return resident.anonymous_bytes or resident.resident_bytes


def test_memory_stays_flat_over_three_contexts(model: Path) -> None:
    """With an 8-bit cache, whose keys are dequantised and rotated at each context shift."""
    q8 = cache_type("q8_0")
    load = Load(context_tokens=WINDOW, sequences=1, cache_k=q8, cache_v=q8)
    with start(launch_of(model, load=load, sinks=SINKS, rolling=True)) as running:
        after: list[int] = []
        last: dict[str, Any] = {}
        for event in events(running, WINDOWS * WINDOW):
            last = event
            if event["tokens_predicted"] >= (len(after) + 1) * WINDOW:
                after.append(private_bytes(running))
        assert last["tokens_predicted"] == WINDOWS * WINDOW
        assert last["truncated"]
        assert len(after) == WINDOWS
        assert max(after[1:]) - after[1] < 2 * MIB
        shifts = [line for line in running.recent if "context shift" in line]
        assert shifts
        # the request names no n_keep: the sinks of the launch apply, and the first token of llama.cpp
        assert all(f"n_keep = {SINKS + 1}," in line for line in shifts)


def test_dequantised_keys_of_a_context_shift_are_in_the_bill(tmp_path: Path) -> None:
    """2,048 cells x (2 x 256 floats + 1) x 4 bytes = 4.2 MB; the compute buffer is small, for 32 tokens."""
    path = small_model(tmp_path / "wide.gguf", kv_heads=4, context_tokens=2048)
    q8 = cache_type("q8_0")
    load = Load(
        context_tokens=2048,
        sequences=1,
        microbatch_tokens=32,
        batch_tokens=256,
        cache_k=q8,
        cache_v=q8,
    )
    setup = replace(SERVER, ctx_shift=True)
    bill, bill_without_shift = (
        llamacpp.estimate(model_of(path), load, item) for item in (setup, SERVER)
    )
    shift_bytes = bill.total_bytes - bill_without_shift.total_bytes
    assert shift_bytes == 2048 * (2 * 256 + 1) * 4 - bill_without_shift.of(Component.COMPUTE)
    with start(launch_of(path, load=load, setup=setup, sinks=SINKS, rolling=True)) as running:
        assert all(
            row.within
            for row in compare_reported(bill, running.allocations, running.files.size_bytes)
        )
        request = {**REQUEST, "prompt": [300] * 2032, "n_predict": 4}
        _, answer = ask(running.address, "/completion", request)
        assert not answer["truncated"]
        before = private_bytes(running)
        _, answer = ask(running.address, "/completion", {**request, "n_predict": 24})
        assert answer["truncated"]
        grown = private_bytes(running) - before
    assert 0.7 * shift_bytes < grown < shift_bytes + MIB


def test_without_rolling_the_answer_ends_with_the_context(model: Path) -> None:
    with start(launch_of(model)) as running:
        status, answer = ask(running.address, "/completion", {**REQUEST, "n_predict": 2 * WINDOW})
        assert status == 200
        assert answer["tokens_evaluated"] + answer["tokens_predicted"] <= WINDOW
        assert answer["stop_type"] == "limit"
        status, answer = ask(running.address, "/completion", {**REQUEST, "prompt": [300] * 600})
        assert (status, answer["error"]["type"]) == (400, "exceed_context_size_error")
        assert answer["error"]["n_prompt_tokens"] == 600
