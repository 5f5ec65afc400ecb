"""The child process sets what the wheel of xllamacpp at hand can do, by the name it has there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgekit.engines.llamacpp.verify.child import make_parameters


class Model:
    path = ""


def wheel(*names: str) -> Any:
    """A wheel whose parameters are these; no others can be set."""

    class CommonParams:
        __slots__ = ("model", *names)

        def __init__(self) -> None:
            self.model = Model()
            for name in names:
                setattr(self, name, None)

    kinds = SimpleNamespace(LLAMA_LOAD_MODE_NONE=0, LLAMA_LOAD_MODE_MMAP=1)
    return SimpleNamespace(CommonParams=CommonParams, llama_load_mode=kinds)


def request(**parameters: Any) -> dict[str, Any]:
    mode = ("llama_load_mode", "LLAMA_LOAD_MODE_NONE")
    return {
        "model": "m.gguf",
        "parameters": parameters,
        "enums": {"load_mode": mode},
        "stop_at": None,
    }


def test_make_parameters_of_october_2026() -> None:
    made = make_parameters(
        wheel("hostnames", "load_mode", "load_mtp"), request(hostnames=["::1"], load_mtp=False)
    )
    assert (made.hostnames, made.load_mode, made.load_mtp) == (["::1"], 0, False)


def test_make_parameters_of_may_2026() -> None:
    asked = request(hostnames=["::1"], load_mtp=False, cors_origins="*")
    made = make_parameters(wheel("hostname", "use_mmap"), asked)
    assert (made.model.path, made.hostname, made.use_mmap) == ("m.gguf", "::1", False)


@pytest.mark.parametrize("asked", [{"load_mtp": True}, {"cors_origins": "localhost"}, {"n_ctx": 5}])
def test_make_parameters_does_not_drop_what_the_wheel_cannot_do(asked: dict[str, Any]) -> None:
    with pytest.raises(AttributeError):
        make_parameters(wheel("hostname", "use_mmap"), request(**asked))
