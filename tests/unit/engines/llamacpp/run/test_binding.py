"""The command of llama-fit-params, and the choice between it and xllamacpp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgekit.bill.types import Load, cache_type
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.binding import (
    LoadQuestion,
    choose_method,
)
from edgekit.engines.llamacpp.types import (
    Backend,
    LlamaCppSetup,
    LlamaMode,
)
from edgekit.errors import EngineError, UsageError


def test_fit_tool_request_with_every_option() -> None:
    load = Load(
        context_tokens=4096,
        sequences=2,
        batch_tokens=1024,
        microbatch_tokens=256,
        cache_k=cache_type("q8_0"),
        cache_v=cache_type("q8_0"),
        flash_attention=True,
        full_window=True,
    )
    setup = LlamaCppSetup(backend=Backend.CUDA, n_gpu_layers=20, n_cpu_moe=3, tensor_split=(3, 1))
    arguments = binding.fit_tool_request(
        LoadQuestion(path=Path("m.gguf"), load=load, setup=setup, timeout_s=30.0)
    )["command"][1:]
    assert " ".join(arguments) == (
        "-m m.gguf --fit-print on --verbose -c 4096 -b 1024 -ub 256 -ctk q8_0 -ctv q8_0 -fa on -np 2 "
        "--swa-full -ngl 20 -ncmoe 3 -ts 3,1 -nr"
    )


@pytest.mark.parametrize(
    ("load", "setup", "really"),
    [
        ({"sequences": 4, "unified": True}, {}, False),
        ({"output_rows": 7}, {}, False),
        ({}, {"embeddings": True}, False),
        ({}, {}, True),
    ],
)
def test_fit_tool_request_rejects_what_only_xllamacpp_can_do(
    load: dict[str, object], setup: dict[str, object], *, really: bool
) -> None:
    question = LoadQuestion(
        path=Path("m.gguf"),
        load=Load(**load),  # type: ignore[arg-type]
        setup=LlamaCppSetup(**setup),  # type: ignore[arg-type]
        really=really,
        timeout_s=30.0,
    )
    with pytest.raises(UsageError, match=r"llama-fit-params cannot .*: use xllamacpp"):
        binding.fit_tool_request(question)


def test_choose_method_without_an_engine_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        binding,
        "METHODS",
        tuple(replace(method, is_here=lambda: False) for method in binding.METHODS),
    )
    with pytest.raises(
        EngineError,
        match=r"no llama.cpp found on this machine.*edgekit-models\[llama\].*llama-fit-params",
    ) as error:
        choose_method()
    assert error.value.exit_code == 5
    with pytest.raises(EngineError, match=r"to run as a library: install llama.cpp"):
        choose_method(LlamaMode.LIBRARY)
    with pytest.raises(UsageError, match="only xllamacpp can load a model"):
        choose_method(LlamaMode.LIBRARY, really=True)
