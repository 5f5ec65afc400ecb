"""How llama.cpp is run for edgekit verify: llama-fit-params' command, and a method that is installed."""

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

pytest.importorskip("xllamacpp")


def test_words_of_llama_fit_params() -> None:
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
    words = binding.fit_tool_request(
        LoadQuestion(path=Path("m.gguf"), load=load, setup=setup, timeout_s=30.0)
    )["command"][1:]
    assert " ".join(words) == (
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
def test_what_llama_fit_params_cannot_be_asked(
    load: dict[str, object], setup: dict[str, object], *, really: bool
) -> None:
    request = LoadQuestion(
        path=Path("m.gguf"),
        load=Load(**load),  # type: ignore[arg-type]
        setup=LlamaCppSetup(**setup),  # type: ignore[arg-type]
        really=really,
        timeout_s=30.0,
    )
    with pytest.raises(UsageError, match=r"llama-fit-params cannot .*: use xllamacpp"):
        binding.fit_tool_request(request)


def test_no_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        binding,
        "METHODS",
        tuple(replace(placement, is_here=lambda: False) for placement in binding.METHODS),
    )
    with pytest.raises(
        EngineError,
        match=r"no llama.cpp found on this machine.*edgekit-models\[llama\].*llama-fit-params",
    ) as caught:
        choose_method()
    assert caught.value.exit_code == 5
    with pytest.raises(EngineError, match=r"to run as a library: install llama.cpp"):
        choose_method(LlamaMode.LIBRARY)
    with pytest.raises(UsageError, match="only xllamacpp can load a model"):
        choose_method(LlamaMode.LIBRARY, really=True)
