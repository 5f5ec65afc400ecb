"""llama-server as a program: its command line, read by llama.cpp's own parser, and its life."""

from __future__ import annotations

import os
import signal
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.llama_server import write_llama_server
from tests.runtime_engines import COMPLETION, SERVER, ask, launch_of, model_of, small_model

from edgekit.bill.types import Component, Load, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.run.launch import server_words
from edgekit.engines.llamacpp.run.program import compare_reported
from edgekit.engines.llamacpp.types import Backend
from edgekit.engines.program import Installation
from edgekit.errors import EngineError, UsageError

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    path = write_llama_server(tmp_path_factory.mktemp("bin"))
    return Installation(
        program="llama-server", origin="PATH", path=str(path), version="0.6.0", build="b1"
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "small.gguf", layers=2)


def started(model: Path, program: Installation, **changes: Any) -> EngineProcess:
    return start(launch_of(model, program=program, **changes))


@pytest.mark.parametrize(
    "load",
    [
        Load(context_tokens=2048, sequences=1),
        Load(context_tokens=4096, sequences=4, unified=True),
        Load(
            context_tokens=1024,
            sequences=2,
            unified=False,
            cache_k=cache_type("q8_0"),
            cache_v=cache_type("q8_0"),
            flash_attention=True,
        ),
        Load(context_tokens=512, batch_tokens=256, microbatch_tokens=128),
    ],
    ids=["one slot", "shared cache", "8-bit caches", "small batches"],
)
def test_bill_is_what_llama_server_reports(model: Path, program: Installation, load: Load) -> None:
    launch = launch_of(model, program=program, load=load)
    bill = llamacpp.estimate(model_of(model), load, launch.setup)
    with start(launch) as running:
        rows = {
            row.part: row
            for row in compare_reported(bill, running.allocations, running.files.size_bytes)
        }
    assert all(row.within for row in rows.values()), rows
    assert (
        running.allocations.parts[Component.KV_CACHE].off_by(rows["kv cache"].predicted_bytes) == 0
    )
    assert running.version == "0.6.0 (b1)"


def test_llama_server_needs_the_key_and_hides_it_from_the_list_of_processes(
    model: Path, program: Installation
) -> None:
    with started(model, program, api_key="a secret", alias="the name") as running:
        assert ask(running.address, "/completion", COMPLETION)[0] == 401
        assert ask(running.address, "/completion", COMPLETION, "a secret")[0] == 200
        (listed,) = ask(running.address, "/v1/models", key="a secret")[1]["data"]
        assert listed["id"] == "the name"
        words = psutil.Process(running.pid).cmdline()
    assert str(model) in words
    assert not [word for word in words if "a secret" in word]


@pytest.mark.parametrize(
    ("key", "allowed"), [("a secret", "https://evil.example"), (None, None)], ids=["key", "no key"]
)
def test_pages_of_other_sites_need_the_key_of_llama_server(
    model: Path, program: Installation, key: str | None, allowed: str | None
) -> None:
    with started(model, program, api_key=key) as running:
        request = urllib.request.Request(f"{running.address}/health")
        request.add_header("Origin", "https://evil.example")
        with urllib.request.urlopen(request) as reply:
            assert reply.headers["Access-Control-Allow-Origin"] == allowed


def test_llama_server_is_stopped_and_explains_how_it_was_killed(
    model: Path, program: Installation
) -> None:
    with started(model, program) as running:
        assert running.poll() is None
    assert running.poll() is not None
    with started(model, program) as running:
        os.kill(running.pid, signal.SIGKILL)
        ended = running.wait(60)
    assert ended is not None
    assert (ended.signal, ended.exit_code) == ("SIGKILL", None)
    assert ended.why.startswith("llama.cpp died of SIGKILL")


def test_llama_server_that_cannot_load_leaves_its_last_words(
    tmp_path: Path, program: Installation
) -> None:
    broken = small_model(tmp_path / "broken.gguf", leave_out=("blk.0.ffn_up.weight",))
    with pytest.raises(EngineError, match=r"tensor 'blk.0.ffn_up.weight' not found"):
        started(broken, program)


def test_llama_server_that_is_not_there(model: Path, program: Installation, tmp_path: Path) -> None:
    missing = replace(program, path=str(tmp_path / "llama-server"))
    with pytest.raises(EngineError, match="llama-server"):
        started(model, missing)


def test_llama_server_without_the_gpu_that_it_was_planned_for(
    model: Path, program: Installation
) -> None:
    setup = replace(SERVER, backend=Backend.CUDA)
    with pytest.raises(EngineError, match="all layers are in RAM"):
        started(model, program, setup=setup)


def test_llama_server_serves_embeddings(tmp_path: Path, program: Installation) -> None:
    path = small_model(tmp_path / "e.gguf", keys={"llama.pooling_type": 1})
    with started(path, program, setup=replace(SERVER, embeddings=True)) as running:
        status, answer = ask(running.address, "/v1/embeddings", {"input": ["the", "quick fox"]})
    assert status == 200
    assert [len(row["embedding"]) for row in answer["data"]] == [256, 256] or answer["data"]


def test_words_of_a_draft_model_and_adapters(model: Path, program: Installation) -> None:
    launch = launch_of(
        model,
        program=program,
        drafter=Path("draft.gguf"),
        adapters=(Path("a.gguf"), Path("b.gguf")),
        drafter_load=Load(cache_k=cache_type("q8_0"), cache_v=cache_type("f16")),
        sinks=4,
        rolling=True,
        threads=3,
        chat=False,
    )
    words = " ".join(server_words(launch))
    for expected in (
        "--lora a.gguf,b.gguf",
        "-md draft.gguf -ngld 0 -ctkd q8_0 -ctvd f16",
        "--keep 4",
        "--context-shift",
        "-t 3 -tb 3",
        "--chat-template chatml",
        "--fit off",
        "-ngl 0",
    ):
        assert expected in words


def test_words_for_another_number_of_output_rows_are_refused(
    model: Path, program: Installation
) -> None:
    with pytest.raises(UsageError, match="number of output rows"):
        server_words(launch_of(model, program=program, load=Load(output_rows=3)))
