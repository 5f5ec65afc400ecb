"""The embedder on Ray: a local cluster in a separate process, because Ray starts others and prints warnings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.embed_models import write_model
from tests.patience import PATIENCE_S
from tests.thoroughness import wide

from edgekit.cli import main
from edgekit.embed.bulk.ray_stage import Cluster, Opening, WorkerFailure, get_answer
from edgekit.errors import (
    EngineError,
    HeaderLimitError,
    MemoryPressureError,
    NotFoundError,
    TextError,
)

TINY: dict[str, Any] = {
    "layers": 1,
    "width": 64,
    "inner": 128,
    "heads": 2,
    "kv_heads": 2,
    "head_dim": 32,
}

# Two jobs and a Ray Data pipeline; their results are one line of JSON.
SCRIPT = """
import json, sys
import ray
from edgekit.cli import main
from edgekit.embed.bulk.ray_stage import EmbedStage

model, source, folder = sys.argv[1:]
job = ["embed", model, "--input", source, "--id-field", "id", "--budget", "400M", "--ray", "--workers", "2", "-q"]
codes = [main([*job, "--output", f"{folder}/ray.jsonl", "--skip-bad"])]
codes += [main([*job, "--output", f"{folder}/refused.jsonl"])]
assert "ray.data" not in sys.modules, "its threads outlive a job that fails, and then end the process"

import ray.data
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
texts = [{"text": f"text {i}", "n": i} for i in range(6)]
rows = ray.data.from_items(texts, override_num_blocks=1).map_batches(
    EmbedStage,
    fn_constructor_kwargs={"model": model, "memory_budget": "400M", "threads": 1},
    compute=ray.data.ActorPoolStrategy(size=1),
    batch_size=6,
).take_all()
print(json.dumps({"codes": codes, "stage": [[row["n"], row["vector"].tolist()] for row in rows]}))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny.gguf", "bert", **TINY)


@wide  # a cluster takes 20 CPU seconds to start
def test_ray_vectors_equal_local_vectors(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    source = tmp_path / "rows.jsonl"
    rows = [{"id": i, "text": f"row {i} " + "more words " * (i % 7)} for i in range(600)]
    del rows[500]["text"]
    source.write_text("\n".join(map(json.dumps, rows)))
    local = ("embed", str(model), "--budget", "4G", "-q", "--id-field", "id", "--skip-bad")
    assert main((*local, "--input", str(source), "--output", str(tmp_path / "local.jsonl"))) == 0
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model), str(source), str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-4000:]
    result = json.loads(process.stdout.splitlines()[-1])
    assert result["codes"] == [0, 2]
    assert f"{source.resolve()}, row 501: no field 'text'; it has 'id'" in process.stderr
    for end in ("jsonl", "jsonl.skipped.jsonl"):
        assert (tmp_path / f"ray.{end}").read_bytes() == (tmp_path / f"local.{end}").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "ray.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [i for i in range(600) if i != 500]
    skipped = (tmp_path / "ray.jsonl.skipped.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in skipped] == [501]
    assert [n for n, _ in result["stage"]] == list(range(6))
    assert {len(vector) for _, vector in result["stage"]} == {64}


def test_ray_worker_refuses_a_missing_or_different_model(model: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"none\.gguf is not on .*must be at the same path on each"
    ):
        Opening(model=str(model.with_name("none.gguf")), size_bytes=1).open()
    with pytest.raises(NotFoundError, match=r"tiny\.gguf on .* is not the same file as here"):
        Opening(model=str(model), size_bytes=1).open()


@pytest.mark.parametrize(
    "error",
    [
        MemoryPressureError("too much"),
        TextError("it is empty", index=3),
        HeaderLimitError("tensors", value=5, limit=4),
        NotFoundError("gone", candidates=("a", "b")),
    ],
)
def test_ray_errors_keep_their_types(error: Any) -> None:
    restored = WorkerFailure.of(error).to_error()
    assert (type(restored), str(restored), restored.exit_code) == (
        type(error),
        str(error),
        error.exit_code,
    )


def test_ray_error_of_an_unknown_type() -> None:
    assert type(WorkerFailure(kind="StrangeError", message="x").to_error()) is EngineError


@pytest.mark.parametrize(
    ("make_error", "kind", "message"),
    [
        (
            lambda exceptions: exceptions.RayActorError(error_msg="gone\n\tclass_name: _Worker"),
            EngineError,
            "a Ray worker was lost: gone class_name: _Worker",
        ),
        (
            lambda exceptions: exceptions.RayTaskError(
                "answer", "\x1b[36mray::answer\x1b[39m ...", OSError("the disk has gone")
            ),
            EngineError,
            "a worker failed with OSError: the disk has gone",
        ),
        (
            lambda exceptions: exceptions.RayTaskError("answer", "...", MemoryError("1 GiB")),
            MemoryPressureError,
            "a worker failed with MemoryError: 1 GiB",
        ),
    ],
    ids=["worker lost", "disk", "memory"],
)
def test_ray_error_messages_are_one_line(
    make_error: Callable[[Any], Exception], kind: type[Exception], message: str
) -> None:
    ray = pytest.importorskip("ray")

    class FailingRay:
        exceptions = ray.exceptions

        def get(self, _: object) -> object:
            raise make_error(ray.exceptions)

    with pytest.raises(kind) as caught:
        get_answer(FailingRay(), object())
    assert str(caught.value) == message


def test_ray_workers_follow_from_the_cpus() -> None:
    cluster = Cluster(address="auto", workers=None, threads=2, memory_bytes=1)
    assert [cluster.workers_on(cpus) for cpus in (1, 2, 5, 9.0)] == [1, 1, 2, 4]


def test_ray_needs_a_budget(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    assert main(("embed", str(model), "--input", "x.txt", "--output", "x.npy", "--ray")) == 2
    assert "--ray needs a --budget, which is per worker" in capsys.readouterr().err


def test_ray_without_the_package_is_an_error(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "x.txt").write_text("a")
    options = (
        "--input",
        str(tmp_path / "x.txt"),
        "--output",
        str(tmp_path / "x.npy"),
        "--budget",
        "400M",
    )
    assert main(("embed", str(model), *options, "--ray")) == 2
    assert "pip install 'edgekit-models[ray]'" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.gguf", "x.txt"}
