"""The child process sets parameters by the names that the installed xllamacpp has for them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.runtime_engines import small_model

from edgekit.engines.llamacpp import child
from edgekit.engines.llamacpp.child import make_parameters
from edgekit.engines.llamacpp.run.binding import NO_DEVICES, start_child


class Model:
    path = ""


def wheel(*names: str) -> Any:
    """A version of xllamacpp that has these parameters and no others."""

    class CommonParams:
        __slots__ = ("model", *names)

        def __init__(self) -> None:
            self.model = Model()
            for name in names:
                setattr(self, name, None)

    load_modes = SimpleNamespace(LLAMA_LOAD_MODE_NONE=0, LLAMA_LOAD_MODE_MMAP=1)
    return SimpleNamespace(CommonParams=CommonParams, llama_load_mode=load_modes)


def request(**parameters: Any) -> dict[str, Any]:
    return {
        "model": "m.gguf",
        "parameters": parameters,
        "enums": {"load_mode": ("llama_load_mode", "LLAMA_LOAD_MODE_NONE")},
        "stop_at": None,
    }


def test_make_parameters_of_october_2026() -> None:
    made = make_parameters(
        wheel("hostnames", "load_mode", "load_mtp"), request(hostnames=["::1"], load_mtp=False)
    )
    assert (made.hostnames, made.load_mode, made.load_mtp) == (["::1"], 0, False)


def test_make_parameters_of_may_2026() -> None:
    settings = request(hostnames=["::1"], load_mtp=False, cors_origins="*")
    made = make_parameters(wheel("hostname", "use_mmap"), settings)
    assert (made.model.path, made.hostname, made.use_mmap) == ("m.gguf", "::1", False)


@pytest.mark.parametrize(
    "settings", [{"load_mtp": True}, {"cors_origins": "localhost"}, {"n_ctx": 5}]
)
def test_make_parameters_rejects_a_parameter_that_the_wheel_does_not_have(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(AttributeError):
        make_parameters(wheel("hostname", "use_mmap"), request(**settings))


IMPORT_HOOK = """
import sys
def report(event, args):
    if event == "import" and args[0] in ("edgekit", "xllamacpp"):
        print("imported", args[0], file=sys.stderr, flush=True)
sys.addaudithook(report)
"""


@pytest.mark.parametrize("job", ["verify", "serve", "embed"])
def test_running_child_has_not_imported_edgekit(tmp_path: Path, job: str) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "sitecustomize.py").write_text(IMPORT_HOOK)
    settings = {
        **request(port=0, embedding=job == "embed", n_ctx=64, n_threads_http=1, warmup=False),
        "model": str(small_model(tmp_path / "model.gguf")),
        "parent": os.getpid(),
        "timeout_s": PATIENCE_S,
        "embeddings": False,
        "threads": 1,
    }
    log: list[str] = []
    path = {"PYTHONPATH": str(tmp_path)}
    child = start_child(job, settings, environment=NO_DEVICES | path, on_line=log.append)
    try:
        message = child.message(PATIENCE_S)
        while job == "serve" and message is not None and "address" not in message:
            message = child.message(PATIENCE_S)
    finally:
        child.close()
    assert message is not None, log
    imported = [line.split()[1] for line in log if line.startswith("imported ")]
    assert imported == ["xllamacpp"]


class Engine:
    """A server that reads and writes tokens at fixed speeds, by a clock of its own."""

    def __init__(self, read_per_s: float, write_per_s: float) -> None:
        self.read_per_s, self.write_per_s = read_per_s, write_per_s
        self.now_s = 0.0

    def handle_completions(self, body: dict[str, Any]) -> dict[str, Any]:
        read, written = len(body["prompt"]), body["n_predict"]
        self.now_s += read / self.read_per_s + written / self.write_per_s
        timings = {
            "prompt_n": read,
            "prompt_per_second": self.read_per_s,
            "predicted_n": written,
            "predicted_per_second": self.write_per_s,
        }
        return {"choices": [], "timings": timings}


@pytest.mark.parametrize(
    ("engine", "prompt_tokens", "new_tokens", "runs"),
    [
        (Engine(5000.0, 100.0), 512, 32, 5),  # a fast machine: five runs of 0.4 s
        (
            Engine(56.0, 12.0),
            84,
            18,
            3,
        ),  # 1.2 s for the first, then an eighth of 12 s for each part
        (Engine(8.0, 2.0), 32, 8, 1),  # 8 s for the first, and 8 s are more than is left
    ],
)
def test_measure_speed_keeps_to_its_time(
    monkeypatch: pytest.MonkeyPatch,
    engine: Engine,
    prompt_tokens: int,
    new_tokens: int,
    runs: int,
) -> None:
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: engine.now_s))
    monkeypatch.setattr(child, "_memory", lambda *_: {})
    limits = {"vocabulary": 99, "prompt_tokens": 512, "new_tokens": 32, "times": 5, "seconds": 12.0}
    messages: list[dict[str, Any]] = []
    child._measure_speed(engine, limits, "m.gguf", lambda **message: messages.append(message))
    timed = [message["speed_run"] for message in messages if message]
    assert [(run["prompt_n"], run["predicted_n"]) for run in timed] == [
        (prompt_tokens, new_tokens)
    ] * runs
    assert runs == 1 or engine.now_s <= 12
