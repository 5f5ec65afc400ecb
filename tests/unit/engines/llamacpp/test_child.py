"""The child process sets parameters by the names that the installed xllamacpp has for them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.runtime_engines import small_model

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
        "goes_with_parent": False,
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
