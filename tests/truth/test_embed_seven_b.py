"""Embedding with a model of gigabytes in 100 MiB of memory: child processes read a file in the shape of Qwen2-7B."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control_groups import own_group
from tests.embed_models import seven_b
from tests.embed_oracle import llamacpp_vectors
from tests.patience import PATIENCE_S
from tests.thoroughness import LONG, wide

from edgekit.units import MIB

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="uses Linux memory limits"
)
ADDRESSES = 600 * 10**6


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seven_b(tmp_path_factory.mktemp("seven") / "seven.gguf", sparse=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers reuse the memory of the previous one, so the normal run has two; the file still exceeds ADDRESSES."""
    path = seven_b(tmp_path_factory.mktemp("seven") / "seven.gguf", layers=28 if LONG else 2)
    assert path.stat().st_size > ADDRESSES
    return path


CHILD = """
import asyncio, json, re, sys, time
from edgekit.embed import Limits, open_embedder

model, request = sys.argv[1], json.loads(sys.argv[2])

def peak_mib():  # ru_maxrss would start with the peak of the forked parent
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

async def watched(embedder, result):
    # benchmarks/ measures how soon it yields and how soon it stops.
    result["norm"] = float((await embedder.aembed(["the cat sat on the mat"]) ** 2).sum())
    begun = asyncio.Event()
    task = asyncio.create_task(embedder.aembed(["again"], progress=lambda _: begun.set()))
    await begun.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    await asyncio.to_thread(embedder.close)  # returns once the work has stopped

result = {}
embedder = open_embedder(
    model, memory_budget=request["budget"], limits=Limits(tokens=256), tokenizer=request["tokenizer"]
)
result["opened_mib"] = peak_mib()
if request["tokenizer"]:
    asyncio.run(watched(embedder, result))
else:
    result["norm"] = float((embedder.embed_tokens([list(range(100, 116))]) ** 2).sum())
embedder.close()
result["peak_mib"], result["planned"] = peak_mib(), embedder.plan.total_bytes
print(json.dumps(result))
"""


def _child(
    model: Path, *, budget: str, tokenizer: bool, addresses: int | None = None, group: str = ""
) -> dict[str, float]:
    request = json.dumps({"budget": budget, "tokenizer": tokenizer})

    def limit() -> None:
        if addresses is not None:
            resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
        if group:
            Path(group, "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(model), request],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    output: dict[str, float] = json.loads(done.stdout)
    assert output["norm"] == pytest.approx(1, abs=1e-5)
    return output


@pytest.fixture
def group() -> Iterator[str]:
    """A real control group with 160 MB; "" if none can be made on this machine."""
    try:
        groups = own_group("seven")
        version, folder = next(groups)
    except pytest.skip.Exception:
        yield ""
        return
    (folder / version.limits[0]).write_text(str(160 * 10**6))
    yield str(folder)
    for _ in groups:
        pass


def test_sixteen_tokens_within_100_mib(model: Path, group: str) -> None:
    result = _child(model, budget="64M", tokenizer=False, group=group)
    assert result["peak_mib"] <= 100


def test_text_within_200_mib_and_600_mb_of_addresses(model: Path) -> None:
    result = _child(model, budget="110M", tokenizer=True, addresses=ADDRESSES)
    assert result["peak_mib"] <= 200


@wide
def test_llama_cpp_cannot_load_it_within_3_gb_of_addresses(big: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert big.stat().st_size > 4_200_000_000
    resource.setrlimit(resource.RLIMIT_AS, (3_000 * MIB, before[1]))
    try:
        with pytest.raises(RuntimeError, match="did not answer"):
            llamacpp_vectors(big, [[1, 2, 3]])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
