"""A launch as settings of the child process, and settings that are rejected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime_engines import SERVER, launch_of

from edgekit.bill.types import Load, cache_type
from edgekit.engines.llamacpp.run.engine import start
from edgekit.engines.llamacpp.run.launch import make_settings
from edgekit.engines.llamacpp.types import Backend
from edgekit.errors import UsageError

pytest.importorskip("xllamacpp")

Q8 = cache_type("q8_0")
F16 = cache_type("f16")


def test_settings_of_a_launch_with_every_option() -> None:
    launch = launch_of(
        Path("m.gguf"),
        load=Load(
            context_tokens=4096,
            sequences=3,
            unified=True,
            batch_tokens=256,
            microbatch_tokens=128,
            cache_k=Q8,
            cache_v=Q8,
            flash_attention=True,
        ),
        setup=replace(
            SERVER,
            backend=Backend.CUDA,
            n_gpu_layers=7,
            n_cpu_moe=1,
            tensor_split=(3.0, 1.0),
            repack=True,
            use_mmap=False,
            cache_ram_mib=64,
            ctx_checkpoints=2,
            draft_max=6,
        ),
        sinks=4,
        rolling=True,
        drafter=Path("d.gguf"),
        drafter_load=Load(cache_k=F16, cache_v=F16),
        adapters=(Path("a.gguf"), Path("b.gguf")),
        port=8080,
        alias="name",
    )
    settings = make_settings(launch)
    assert {name: settings["parameters"][name] for name in EXPECTED} == EXPECTED
    assert settings["enums"] == {
        "load_mode": ("llama_load_mode", "LLAMA_LOAD_MODE_NONE"),
        "flash_attn_type": ("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        "cache_type_k": ("ggml_type", "GGML_TYPE_Q8_0"),
        "cache_type_v": ("ggml_type", "GGML_TYPE_Q8_0"),
    }
    assert settings["needs_device"]
    assert settings["drafter"] == {
        "path": "d.gguf",
        "type": "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE",
        "parameters": {"n_gpu_layers": -1, "n_max": 6},
        "enums": {  # the draft model's own cache types
            "cache_type_k": ("ggml_type", "GGML_TYPE_F16"),
            "cache_type_v": ("ggml_type", "GGML_TYPE_F16"),
        },
    }
    assert settings["adapters"] == ["a.gguf", "b.gguf"]
    assert settings["projector"] is None
    assert launch.server.files == (Path("m.gguf"), Path("d.gguf"), Path("a.gguf"), Path("b.gguf"))


EXPECTED: dict[str, Any] = {
    "n_ctx": 4096,
    "n_parallel": 3,
    "kv_unified": True,
    "n_batch": 256,
    "n_ubatch": 128,
    "n_gpu_layers": 7,
    "tensor_split": [3.0, 1.0],
    "tensor_buft_overrides": r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU",
    "no_extra_bufts": False,
    "no_kv_offload": False,
    "n_keep": 4,
    "ctx_shift": True,
    "cache_ram_mib": 64,
    "n_ctx_checkpoints": 2,
    "fit_params": False,
    "warmup": True,
    "load_mtp": False,
    "hostnames": ["127.0.0.1"],
    "port": 8080,
    "api_keys": [],
    "cors_origins": "localhost",  # without a key other web pages are not allowed to use it
    "model_alias": ["name"],
    "chat_template": "",
    "no_mmproj": True,
    "mmproj_use_gpu": True,
}


def test_settings_with_a_projector_and_without_a_chat_template() -> None:
    launch = launch_of(Path("m.gguf"), projector=Path("p.gguf"), chat=False)
    settings = make_settings(launch)
    assert settings["projector"] == "p.gguf"
    assert settings["parameters"]["no_mmproj"] is False
    assert (
        settings["parameters"]["mmproj_use_gpu"] is False
    )  # as in the bill: the projector is in RAM
    assert settings["parameters"]["chat_template"] == "chatml"
    assert launch.server.files == (Path("m.gguf"), Path("p.gguf"))
    assert launch.server.mapped == {Path("m.gguf")}


def test_settings_with_multi_token_prediction_have_a_draft_of_the_model_itself() -> None:
    setup = replace(SERVER, load_mtp=True, draft_max=3)
    settings = make_settings(
        launch_of(Path("m.gguf"), setup=setup, load=Load(cache_k=Q8, cache_v=Q8))
    )
    assert settings["parameters"]["load_mtp"]
    assert settings["drafter"]["path"] is None
    assert settings["drafter"]["type"] == "COMMON_SPECULATIVE_TYPE_DRAFT_MTP"
    assert settings["drafter"]["enums"] == {}  # default cache type f16, as in the bill


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sinks": -1}, "at least 0 and at most 508"),
        ({"sinks": 509}, "at least 0 and at most 508 .got 509"),
        (
            {"load": Load(context_tokens=3)},
            "a context of 3 tokens is too short: .* so the minimum is 5",
        ),
        ({"load": Load(context_tokens=4)}, "a context of 4 tokens is too short"),
        (
            {"rolling": True, "projector": Path("p.gguf")},
            "cannot combine a rolling context with",
        ),
        ({"threads": 0}, "must be at least 1"),
        ({"load": Load(output_rows=7)}, "number of output rows"),
        ({"setup": replace(SERVER, mix="Q4_K_M")}, r"llama-quantize m.gguf OUTPUT.gguf Q4_K_M"),
        ({"port": 65_536}, "port 65,536 is not between 0 and 65,535"),
    ],
)
def test_start_rejects_impossible_launches(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        start(launch_of(Path("m.gguf"), **changes))
