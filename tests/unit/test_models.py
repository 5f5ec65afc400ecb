"""edgekit.models, the public API: its seven names, the cost of importing it, and its answers."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_estimate import write_model
from tests.unit.cli.test_estimate_engines import CONFIG, TOKEN

import edgekit.models
from edgekit.bill.types import Verdict
from edgekit.cli import main
from edgekit.errors import (
    HardwareError,
    HeaderError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from edgekit.machine.types import HostMemory, Machine, System
from edgekit.models import (
    MemoryEstimate,
    ModelMetadata,
    PreflightResult,
    RemoteInspectError,
    can_load,
    inspect_model_remote,
    model_preflight,
)
from edgekit.units import GIB

PUBLIC_NAMES = {
    "MemoryEstimate", "ModelMetadata", "PreflightResult", "RemoteInspectError",
    "can_load", "inspect_model_remote", "model_preflight",
}  # fmt: skip
SAMPLE = "sample:gemma-3-27b"
# llama-3.1-8b: 32 layers, K and V of 8 heads of 128, 16 bit
LLAMA_TOKEN_BYTES = 32 * 2 * 8 * 128 * 2


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_model(tmp_path, "llama-3.1-8b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """config.json of a Qwen3 with four layers, without weights."""
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


# --- the names


def test_models_exports_exactly_seven_names() -> None:
    assert set(edgekit.models.__all__) == PUBLIC_NAMES
    assert len(edgekit.models.__all__) == 7
    assert set(dir(edgekit.models)) == PUBLIC_NAMES
    for name in PUBLIC_NAMES - {"PreflightResult"}:
        assert getattr(edgekit.models, name).__name__ == name
    assert edgekit.models.PreflightResult is Verdict


def test_star_import_brings_the_seven_names() -> None:
    namespace: dict[str, Any] = {}
    exec("from edgekit.models import *", namespace)
    assert namespace.keys() - {"__builtins__"} == PUBLIC_NAMES


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'edgekit\.models' has no attribute 'judge'"):
        edgekit.models.judge  # noqa: B018


@pytest.mark.parametrize("name", ["model_preflight", "can_load", "inspect_model_remote"])
def test_functions_take_two_arguments_and_the_rest_by_keyword(name: str) -> None:
    first, second, *rest = inspect.signature(getattr(edgekit.models, name)).parameters.values()
    assert (first.name, second.name) == ("model_id", "engine")
    assert {item.kind for item in rest} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(item.default is not inspect.Parameter.empty for item in rest)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another reserve")
@pytest.mark.parametrize("name", edgekit.models.__all__)
def test_docstring_examples_are_right(name: str) -> None:
    tests = doctest.DocTestFinder().find(getattr(edgekit.models, name), name)
    assert [test.name for test in tests if test.examples] == [name]
    messages: list[str] = []
    for test in tests:
        doctest.DocTestRunner(verbose=False).run(test, out=messages.append)
    assert "".join(messages) == ""


# --- what an import costs


def test_importing_models_loads_fewer_than_50_modules() -> None:
    """31 at present, most of them loaded by Python itself; a heavy library would add hundreds."""
    code = "import sys; before = set(sys.modules); import edgekit.models; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("edgekit")} <= {"edgekit", "edgekit.models"}
    assert len(loaded) < 50


def test_model_preflight_of_a_local_file_imports_no_network_library(llama: Path) -> None:
    code = (
        "import sys; from edgekit.models import model_preflight\n"
        f"assert model_preflight({str(llama)!r}, ram='24G').passed\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"huggingface_hub", "httpx2", "psutil", "pynvml", "numpy"})


# --- model_preflight


@pytest.mark.parametrize(
    ("requested", "status", "tokens", "longest", "cache"),
    [
        # 4.6 GiB of weights and 0.15 GiB of other memory; 1 GiB is reserved. 32K take 4 GiB at f16, 2.1 at q8_0.
        ({"ram": "24G"}, "PASSED", 32_768, 131_072, "f16"),
        ({"ram": "24G", "window_budget_bytes": GIB}, "PASSED", 8_192, 131_072, "f16"),
        ({"ram": "24G", "context": 8_192}, "PASSED", 8_192, 131_072, "f16"),
        ({"ram": "24G", "job": (6_000, 800)}, "PASSED", 6_000 + 800 + 64, 131_072, "f16"),
        ({"ram": "32G", "job": (100_000, 100_000)}, "PASSED", 131_072, 131_072, "f16"),
        ({"ram": "32G", "context": 0}, "PASSED", 131_072, 131_072, "f16"),  # 0: the native context
        ({"ram": "16G", "context": 83_712}, "WARNING", 83_712, 83_712, "f16"),
        ({"ram": "16G", "context": 83_713}, "PASSED", 83_713, 131_072, "q8_0"),
        ({"ram": "16G", "context": 0}, "WARNING", 131_072, 131_072, "q8_0"),
        ({"ram": "10G"}, "WARNING", 32_768, 34_816, "f16"),
        ({"ram": "8G"}, "WARNING", 32_768, 35_072, "q8_0"),
        ({"ram": "7G"}, "WARNING", 16_384, 19_968, "q8_0"),
        ({"ram": "6500M"}, "WARNING", 16_384, 18_688, "q4_0"),
        ({"ram": "6G"}, "FAILED", 16_384, 4_608, "q8_0"),  # the default minimum
        ({"ram": "6G", "min_context": 4_096}, "WARNING", 4_096, 4_608, "q8_0"),
        ({"ram": "6G", "context": 2_048}, "WARNING", 2_048, 2_304, "f16"),  # explicit: no minimum
        ({"ram": "8G", "context": 98_304}, "FAILED", 98_304, 35_072, "q8_0"),
        ({"ram": "8G", "min_context": 40_000}, "WARNING", 40_000, 40_960, "q8_0 + q5_1"),
        ({"ram": "4G"}, "FAILED", 16_384, 0, "q8_0"),
        ({"ram": "4G", "min_context": 2_048}, "FAILED", 2_048, 0, "q8_0"),
        ({"ram": "4G", "min_context": 0}, "FAILED", 256, 0, "q8_0"),
    ],
)
def test_model_preflight_chooses_context_and_cache_type(
    *, requested: dict[str, Any], status: str, tokens: int, longest: int, cache: str, llama: Path
) -> None:
    result = model_preflight(llama, "llama.cpp", **requested)
    assert (result.status.name, result.cache) == (status, cache)
    assert (result.context_tokens, result.max_context) == (tokens, longest)
    assert result.recommended_context == longest * 80 // 100
    assert result.native_context == 131_072
    assert result.asked == ("context" in requested or "job" in requested)
    if not result.asked:
        assert result.window


@pytest.mark.parametrize(
    ("requested", "window"),
    [
        ({"ram": "10G"}, "the default"),
        ({"ram": "7G"}, "the default minimum"),
        ({"ram": "6G", "min_context": 4_096}, "the shortest that --min-context allows"),
        ({"ram": "24G", "window_budget_bytes": GIB}, "the longest whose cache fits in 1.00 GiB (--window-budget)"),
        ({"ram": "24G", "window_budget_bytes": GIB, "min_context": 20_000}, "the shortest that --min-context allows"),
        ({"ram": "24G", "context": 8_192}, "as requested"),
    ],
)  # fmt: skip
def test_model_preflight_states_where_the_context_comes_from(
    requested: dict[str, Any], window: str, llama: Path
) -> None:
    assert model_preflight(llama, "llama.cpp", **requested).window == window


def test_one_token_above_max_context_does_not_fit(llama: Path) -> None:
    """The cache type is given; otherwise a smaller one would be tried."""
    request: dict[str, Any] = {"ram": "16G", "options": {"type_k": "f16", "type_v": "f16"}}
    longest = model_preflight(llama, **request).max_context
    assert longest % 256 == 0
    assert model_preflight(llama, context=longest, **request).can_load
    assert model_preflight(llama, context=longest + 1, **request).failed


CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama", "auto", {"ram": "24G"}),
    ("llama", "auto", {"ram": "8G"}),
    ("llama", "auto", {"ram": "8G", "min_context": 2_048}),
    ("llama", "llama.cpp", {"ram": "300M"}),  # less than the reserve
    ("llama", "llama.cpp", {"device": "RTX 4090"}),
    ("llama", "llama.cpp", {"device": "RTX 3060", "ram": "64G", "context": 65_536}),
    ("llama", "llama.cpp", {"device": "2x RTX 3090", "context": 0}),
    ("llama", "llama.cpp", {"vram": "8G,8G", "ram": "16G"}),
    ("llama", "llama.cpp", {"device": "m3-max-36"}),
    ("llama", "llama.cpp", {"device": "phone-8"}),
    ("folder", "vllm", {"device": "RTX 4090"}),
    ("folder", "mlx", {"device": "m3-max-36"}),
    ("folder", "llama.cpp", {"ram": "8G"}),
    (SAMPLE, "llama.cpp", {"device": "RTX 4090"}),
    (SAMPLE, "auto", {"device": "RTX 4090", "ram": "64G", "context": 131_072}),
)


@pytest.mark.parametrize(("model", "engine", "requested"), CASES)
def test_properties_of_preflight_result_agree(
    model: str, engine: str, requested: dict[str, Any], llama: Path, folder: Path
) -> None:
    reference = {"llama": llama, "folder": folder}.get(model, model)
    result = model_preflight(reference, engine, **requested)
    assert isinstance(result, PreflightResult)
    assert isinstance(result.estimate, MemoryEstimate)
    assert [result.passed, result.warning, result.failed].count(True) == 1
    assert result.status.name in {"PASSED", "WARNING", "FAILED"}
    assert result.can_load is not result.failed
    assert result.required_gb * GIB == result.required_bytes
    assert result.available_gb * GIB == result.available_bytes
    if result.available_bytes:
        assert result.utilization == pytest.approx(result.required_gb / result.available_gb)
    else:
        assert result.utilization == float("inf")
    assert result.utilization == max(use.utilization for use in result.uses)
    assert result.max_context <= (result.native_context or 32_768)
    assert bool(result.reasons) == result.failed
    assert (result.step == 0) == result.failed
    assert result.quantization
    assert result.cache
    if result.can_load:
        assert result.utilization <= 1
        assert result.passed == (result.utilization <= 0.85 or result.engine == "vllm")
        result.raise_if_failed()


def test_raise_if_failed_names_need_budget_and_longest_context(llama: Path) -> None:
    result = model_preflight(llama, ram="6G")
    with pytest.raises(MemoryError) as caught:
        result.raise_if_failed()
    # 16,384 * 131,072 * 17 / 32 bytes of cache, 4.58 GiB of weights, 0.12 GiB of other memory; 6 GiB less 1 GiB reserve
    assert str(caught.value) == (
        "16,384 tokens need 5.76 GiB; RAM has 5.00 GiB usable; "
        "the longest context that fits is 4,608 tokens"
    )


def test_raise_if_failed_explains_a_native_context_below_the_minimum(tmp_path: Path) -> None:
    path = write_model(tmp_path, "phi-3-mini-4k")
    result = model_preflight(path, ram="64G", min_context=32_768)
    with pytest.raises(MemoryError, match=r"4,096 tokens, and --min-context asks for 32,768"):
        result.raise_if_failed()
    assert model_preflight(path, ram="64G").context_tokens == 4_096


# --- max_use and reserve


def test_max_use_limits_the_share_of_memory_used(llama: Path) -> None:
    """32K at f16 use 8.7 of 15 GiB (58 %); 16K use 5.8 GiB (39 %) with an 8-bit cache and 35 % with a 4-bit one."""
    unlimited = model_preflight(llama, ram="16G")
    assert (unlimited.status.name, unlimited.cache) == ("PASSED", "f16")
    assert model_preflight(llama, ram="16G", max_use=1).required_bytes == unlimited.required_bytes
    assert (
        model_preflight(llama, ram="16G", max_use=0.59).required_bytes == unlimited.required_bytes
    )
    half = model_preflight(llama, ram="16G", max_use=0.5)
    assert (half.status.name, half.context_tokens, half.cache) == ("PASSED", 32_768, "q8_0")
    assert half.utilization <= 0.5
    assert half.available_bytes == unlimited.available_bytes
    too_small = model_preflight(llama, ram="16G", max_use=0.3)
    assert too_small.failed
    assert "of which --max-use allows 30%" in too_small.reasons[0]
    tight = model_preflight(llama, ram="10G")
    assert model_preflight(llama, ram="10G", max_use=0.99).status is tight.status  # never looser


def test_reserve_replaces_the_default_reserve(llama: Path) -> None:
    default = model_preflight(llama, ram="16G")
    assert default.available_bytes == 15 * GIB
    for reserve in (0, GIB // 2, 6 * GIB):
        result = model_preflight(llama, ram="16G", reserve=reserve)
        assert result.available_bytes == 16 * GIB - reserve
    assert model_preflight(llama, ram="16G", reserve=16 * GIB).failed
    card = model_preflight(llama, device="RTX 4090", ram="64G", reserve=4 * GIB)
    assert [use.budget.reserve_bytes for use in card.uses] == [4 * GIB] * len(card.uses)


@pytest.mark.parametrize("limits", [{"max_use": 0.9}, {"reserve": 0}])
def test_vllm_refuses_max_use_and_reserve(limits: dict[str, Any], folder: Path) -> None:
    with pytest.raises(UsageError, match="use --gpu-memory-utilization"):
        model_preflight(folder, "vllm", device="RTX 4090", **limits)


def test_model_preflight_uses_the_free_memory_of_a_given_machine(llama: Path) -> None:
    machine = Machine(
        name="a box",
        system=System.LINUX,
        host=HostMemory(total_bytes=64 * GIB, free_bytes=12 * GIB),
    )
    result = model_preflight(llama, machine=machine)
    assert result.machine is machine
    assert result.available_bytes == 11 * GIB  # free memory less 1 GiB, whatever the total
    windows = Machine(name="a PC", system=System.WINDOWS, host=machine.host)
    assert model_preflight(llama, machine=windows).available_bytes == 10 * GIB


def test_model_preflight_without_a_machine_uses_this_one(llama: Path) -> None:
    result = model_preflight(llama, "llama.cpp", options={"backend": "cpu"})
    assert not result.machine.what_if
    assert result.machine.host is not None
    assert result.available_bytes == max(0, result.machine.host.usable_bytes - GIB)


@pytest.mark.parametrize(
    ("options", "cache_bytes"),
    [
        ({}, 8_192 * LLAMA_TOKEN_BYTES),
        ({"type_k": "q8_0", "type_v": "q8_0"}, 8_192 * LLAMA_TOKEN_BYTES * 34 // 64),
        ({"type_k": "q8_0"}, 8_192 * (LLAMA_TOKEN_BYTES // 2 * 34 // 64 + LLAMA_TOKEN_BYTES // 2)),
        ({"type_k": "f32", "type_v": "f32"}, 8_192 * LLAMA_TOKEN_BYTES * 2),
        # four sequences without a shared cache have a quarter each
        ({"n_seq_max": 4, "kv_unified": False}, 8_192 * LLAMA_TOKEN_BYTES),
    ],
)
def test_options_of_llama_cpp_change_the_cache(
    options: dict[str, Any], cache_bytes: int, llama: Path
) -> None:
    result = model_preflight(llama, "llama.cpp", ram="64G", context=8_192, options=options)
    assert result.estimate.kv_cache_bytes == cache_bytes


def test_n_gpu_layers_divides_the_cache_between_card_and_ram(llama: Path) -> None:
    request: dict[str, Any] = {"device": "RTX 4090", "ram": "64G", "context": 8_192}
    half = model_preflight(llama, "llama.cpp", options={"n_gpu_layers": 16}, **request)
    assert half.way.because == "as requested, on RTX 4090"
    card, host = half.uses
    assert card.required_bytes > 16 * 8_192 * LLAMA_TOKEN_BYTES // 32
    assert host.required_bytes > 16 * 8_192 * LLAMA_TOKEN_BYTES // 32
    cpu_only = model_preflight(llama, "llama.cpp", options={"backend": "cpu"}, **request)
    assert cpu_only.way.because == "fully on the CPU"


@pytest.mark.parametrize(
    ("options", "token_bytes"),
    [
        ({}, TOKEN // 2),  # per card: both are used
        ({"kv_cache_dtype": "fp8"}, TOKEN // 4),
        ({"tensor_parallel_size": 2}, TOKEN // 2),
        ({"tensor_parallel_size": 1}, TOKEN),
    ],
)
def test_options_of_vllm_change_the_cache(
    options: dict[str, Any], token_bytes: int, folder: Path
) -> None:
    result = model_preflight(folder, "vllm", device="2x RTX 4090", context=4_096, options=options)
    assert result.engine == "vllm"
    assert result.estimate.kv_cache_bytes == 4_096 * token_bytes


def test_gpu_memory_utilization_sets_the_available_memory(folder: Path) -> None:
    default = model_preflight(folder, "vllm", device="RTX 4090")
    half = model_preflight(
        folder, "vllm", device="RTX 4090", options={"gpu_memory_utilization": 0.5}
    )
    total = default.uses[0].budget.total_bytes
    assert default.available_bytes == pytest.approx(total * 0.92, abs=1)
    assert half.available_bytes == pytest.approx(total * 0.5, abs=1)


def test_options_of_mlx_change_the_cache(folder: Path) -> None:
    request: dict[str, Any] = {"device": "m3-max-36", "context": 8_192}
    f16 = model_preflight(folder, "mlx", **request)
    quantized = model_preflight(
        folder, "mlx", options={"kv_bits": 8, "quantized_kv_start": 0}, **request
    )
    assert f16.estimate.kv_cache_bytes == 8_192 * TOKEN
    # 64 numbers of 8 bits share a 16-bit scale and bias: 8.5 bits instead of 16
    assert quantized.estimate.kv_cache_bytes == 8_192 * TOKEN * 17 // 32


@pytest.mark.parametrize(
    ("model", "engine", "requested", "error", "sentence"),
    [
        ("llama", "tgi", {"ram": "8G"}, UsageError, "choose one of llama.cpp, vllm, mlx"),
        ("llama", "", {"ram": "8G"}, UsageError, "unknown engine"),
        ("llama", "mlx", {"ram": "8G"}, HardwareError, "MLX needs a Mac with Apple silicon"),
        ("llama", "vllm", {"device": "m3-max-36"}, HardwareError, "NVIDIA"),
        ("llama", "mlx", {"device": "m3-max-36"}, RefusedError, "GGUF"),
        ("folder", "vllm", {"device": "RTX 4090", "options": {"tensor_parallel_size": 2}}, HardwareError, "2 GPUs"),
        ("llama", "auto", {"ram": "0"}, UsageError, "--ram"),
        ("llama", "auto", {"ram": ""}, UsageError, "--ram"),
        ("llama", "auto", {"device": "RTX 4009"}, UsageError, "RTX 4090"),
        ("llama", "auto", {"ram": "8G", "context": -1}, UsageError, "-1"),
        ("llama", "auto", {"ram": "8G", "context": 2**40}, UsageError, "1099511627776"),
        ("llama", "auto", {"ram": "8G", "job": (-1, 5)}, UsageError, "-1"),
        ("llama", "auto", {"ram": "24G", "window_budget_bytes": -1}, UsageError, "-1"),
        ("llama", "auto", {"ram": "24G", "max_use": 0}, UsageError, "above 0 %"),
        ("llama", "auto", {"ram": "24G", "max_use": 1.01}, UsageError, "at most 100 %"),
        ("llama", "auto", {"ram": "24G", "max_use": float("nan")}, UsageError, "at most 100 %"),
        ("llama", "auto", {"ram": "24G", "max_use": "85%"}, UsageError, "'85%' is not a share such as 0.85"),
        ("llama", "auto", {"ram": "24G", "max_use": True}, UsageError, "not a share"),
        ("llama", "auto", {"ram": "24G", "reserve": -1}, UsageError, "--reserve must not be negative"),
        ("llama", "auto", {"ram": "24G", "reserve": 0.5}, UsageError, "reserve 0.5 is not a whole number"),
        ("llama", "auto", {"ram": "24G", "reserve": "1G"}, UsageError, "reserve '1G' is not a whole number"),
        ("llama", "auto", {"ram": "8G", "sequences": 300}, RefusedError, "256"),
        ("llama", "auto", {"ram": "8G", "options": {"type_k": "q7_0"}}, UsageError, "q7_0"),
        ("llama", "auto", {"ram": "8G", "options": {"n_gpu_layers": "all"}}, UsageError, "n_gpu_layers"),
        ("llama", "auto", {"ram": "24G", "options": {"tpye_k": "q8_0"}}, UsageError, "tpye_k"),
        ("folder", "vllm", {"device": "RTX 4090", "options": {"gpu_memory_utilization": float("nan")}}, UsageError, "gpu_memory_utilization"),
        ("folder", "mlx", {"device": "m3-max-36", "options": {"kv_bits": 7}}, RefusedError, "7 bits"),
        ("none.gguf", "auto", {"ram": "8G"}, NotFoundError, "no such file"),
        ("", "auto", {"ram": "8G"}, UsageError, "no model given"),
        ("a\0b", "auto", {"ram": "8G"}, UsageError, "control characters"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_named_in_the_error(
    *,
    model: str,
    engine: str,
    requested: dict[str, Any],
    error: type[Exception],
    sentence: str,
    llama: Path,
    folder: Path,
) -> None:
    reference = {"llama": llama, "folder": folder}.get(model, model)
    with pytest.raises(error) as caught:
        model_preflight(reference, engine, **requested)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("words", "requested"),
    [
        (["--ram", "24G"], {"ram": "24G"}),
        (["--device", "RTX 4090", "--ram", "64G", "-c", "64k"], {"device": "RTX 4090", "ram": "64G", "context": 65_536}),
        (["--device", "RTX 3060", "--ram", "64G", "-ctk", "q8_0"], {"device": "RTX 3060", "ram": "64G", "options": {"type_k": "q8_0"}}),
        (["--device", "2x RTX 3090", "-ts", "3,1"], {"device": "2x RTX 3090", "options": {"tensor_split": [3, 1]}}),
        (["--device", "m3-max-36", "--job", "6000+800"], {"device": "m3-max-36", "job": (6_000, 800)}),
        (["--ram", "8G", "--min-context", "4k"], {"ram": "8G", "min_context": 4_096}),
        (["--ram", "24G", "--window-budget", "1G"], {"ram": "24G", "window_budget_bytes": GIB}),
        (["--ram", "16G", "--max-use", "50%"], {"ram": "16G", "max_use": 0.5}),
        (["--device", "RTX 3060", "--ram", "64G", "--reserve", "4G"], {"device": "RTX 3060", "ram": "64G", "reserve": 4 * GIB}),
    ],
)  # fmt: skip
def test_check_json_agrees_with_model_preflight(
    words: list[str], requested: dict[str, Any], llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", str(llama), *words, "--json"])
    output = json.loads(capsys.readouterr().out)
    result = model_preflight(llama, "llama.cpp", **requested)
    assert output["status"] == result.status.value
    for name in (
        "context_tokens",
        "quantization",
        "cache",
        "step",
        "max_context",
        "recommended_context",
        "required_bytes",
        "available_bytes",
    ):
        assert output[name] == getattr(result, name), name


# --- can_load


@pytest.mark.parametrize(
    ("model", "engine", "requested", "loads"),
    [
        ("llama", "auto", {"ram": "24G"}, True),
        ("llama", "auto", {"ram": "6G"}, False),
        ("llama", "auto", {"ram": "6G", "min_context": 4_096}, True),
        ("llama", "auto", {"ram": "16G", "max_use": 0.5}, True),
        ("llama", "auto", {"ram": "16G", "max_use": 0.3}, False),
        ("llama", "auto", {"ram": "16G", "reserve": 8 * GIB}, True),
        ("llama", "auto", {"ram": "16G", "reserve": 12 * GIB}, False),
        ("llama", "auto", {"ram": "16G", "context": 83_712, "options": {"type_k": "f16", "type_v": "f16"}}, True),
        ("llama", "auto", {"ram": "16G", "context": 83_713, "options": {"type_k": "f16", "type_v": "f16"}}, False),
        ("llama", "auto", {"ram": "6G", "min_context": 1, "options": {"type_k": "q4_0", "type_v": "q4_0"}}, True),
        ("llama", "llama.cpp", {"device": "RTX 4090"}, True),
        ("llama", "mlx", {"device": "RTX 4090"}, False),  # not Apple silicon
        ("llama", "vllm", {"ram": "64G"}, False),  # no GPU
        ("llama", "vllm", {"device": "RTX 4090"}, False),  # vLLM does not load a GGUF
        ("folder", "vllm", {"device": "RTX 4090"}, True),
        ("folder", "mlx", {"device": "m3-max-36"}, True),
        (SAMPLE, "auto", {"ram": "8G"}, False),
        (SAMPLE, "auto", {"device": "m3-max-36"}, True),
    ],
)  # fmt: skip
def test_can_load_is_true_only_if_the_model_fits_and_runs(
    model: str, engine: str, requested: dict[str, Any], *, loads: bool, llama: Path, folder: Path
) -> None:
    reference = {"llama": llama, "folder": folder}.get(model, model)
    assert can_load(reference, engine, **requested) is loads
    with suppress(HardwareError, RefusedError):
        assert model_preflight(reference, engine, **requested).can_load is loads


@pytest.mark.parametrize(
    ("model", "min_gib"), [("gemma-3-4b", 4), ("qwen3-30b-a3b", 19), ("mamba-2.8b", 3)]
)
def test_can_load_agrees_with_model_preflight_around_the_limit(
    model: str, min_gib: int, tmp_path: Path
) -> None:
    path = write_model(tmp_path, model)
    answers = []
    for gib in range(min_gib - 1, min_gib + 1):
        ram = f"{gib}G"
        answers.append(can_load(path, ram=ram))
        assert answers[-1] == model_preflight(path, ram=ram).can_load, ram
    assert set(answers) == {True, False}  # the limit is between them


@pytest.mark.parametrize(
    ("name", "raw", "error"),
    [("page.gguf", b"<!DOCTYPE html>", HeaderError), ("empty.gguf", b"", HeaderError), (None, b"", NotFoundError)],
)  # fmt: skip
def test_can_load_raises_for_an_unreadable_file(
    name: str | None, raw: bytes, error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / (name or "none.gguf")
    if name:
        path.write_bytes(raw)
    with pytest.raises(error):
        can_load(path, ram="8G")


def test_can_load_raises_for_a_remote_model_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RemoteInspectError, match="network is off"):
        can_load("acme/model", ram="8G")


def test_can_load_raises_for_an_unknown_engine(llama: Path) -> None:
    with pytest.raises(UsageError, match=r"choose one of llama\.cpp, vllm, mlx"):
        can_load(llama, "tgi", ram="8G")


# --- inspect_model_remote

FIELDS = ("architecture", "num_layers", "hidden_size", "num_attention_heads", "num_kv_heads", "head_dim", "model_max_context")  # fmt: skip


@pytest.mark.parametrize(
    ("model", "quant", "expected", "other_fields"),
    [
        ("llama-3.1-70b", "Q4_K_M", ("llama", 80, 8192, 64, 8, 128, 131_072), {"kv_lora_rank": None, "is_moe": False, "quantization": "Q4_K_M"}),
        ("deepseek-v3", "Q4_K_M", ("deepseek2", 61, 7168, 128, 1, 128 + 64, 163_840), {"kv_lora_rank": 512, "num_experts": 256, "num_experts_used": 8}),
        ("gemma-3-27b", "Q8_0", ("gemma3", 62, 5376, 32, 16, 128, 131_072), {"sliding_window": 1_024, "vocab_size": 262_144, "quantization": "Q8_0"}),
        ("qwen3-30b-a3b", "Q4_K_M", ("qwen3moe", 48, 2048, 32, 4, 128, 40_960), {"num_experts": 128, "num_experts_used": 8, "is_moe": True}),
        ("mamba-2.8b", "F16", ("mamba", 64, 2560, None, None, None, 1_048_576), {"sliding_window": None, "quantization": "F16"}),
        ("all-minilm-l6-v2", "F16", ("bert", 6, 384, 12, 12, 32, 512), {"vocab_size": 30_522}),
        ("jamba-1.5-mini", "Q4_K_M", ("jamba", 32, 4096, 32, 8, 128, 262_144), {"num_experts": 16, "num_experts_used": 2}),
        ("gpt-oss-20b", "MXFP4_MOE", ("gpt-oss", 24, 2880, 64, 8, 64, 131_072), {"sliding_window": 128, "quantization": "MXFP4_MOE"}),
    ],
)  # fmt: skip
def test_inspect_model_remote_has_hyperparameters(
    model: str, quant: str, expected: tuple[Any, ...], other_fields: dict[str, Any], tmp_path: Path
) -> None:
    result = inspect_model_remote(write_model(tmp_path, model, quant))
    assert isinstance(result, ModelMetadata)
    assert tuple(getattr(result, name) for name in FIELDS) == expected
    assert {name: getattr(result, name) for name in other_fields} == other_fields
    assert result.format == "gguf"


def test_inspect_model_remote_has_parameters_and_sizes(tmp_path: Path) -> None:
    result = inspect_model_remote(write_model(tmp_path, "llama-3.1-70b"))
    assert result.num_parameters == 70_553_706_560
    assert result.exact_model_size_bytes == 42_512_531_712
    assert result.exact_model_size_gb == 42_512_531_712 / 1024**3
    assert result.bits_per_weight == 42_512_531_712 * 8 / 70_553_706_560


def test_inspect_model_remote_of_a_config_has_no_exact_size(folder: Path) -> None:
    result = inspect_model_remote(folder, "vllm")
    assert (result.architecture, result.num_layers, result.num_kv_heads) == ("qwen3", 4, 2)
    assert (
        result.exact_model_size_bytes
        is result.exact_model_size_gb
        is result.bits_per_weight
        is None
    )
    # embedding and output, then in each layer Q, K, V, O and three of the feed-forward; without norms
    layer = 256 * (256 + 128 + 128 + 256) + 3 * 256 * 512
    assert result.num_parameters == 2 * 1024 * 256 + 4 * layer


@pytest.mark.parametrize(
    ("name", "raw", "sentence"),
    [
        ("none.gguf", None, "no such file"),
        ("page.gguf", b"<!DOCTYPE html>", "web page"),
        ("empty.gguf", b"", "empty"),
        ("cut.gguf", b"GGUF\x03\0\0\0\x01", "truncated"),
        ("config.json", b"{", "config.json"),
        ("config.json", b'{"model_type": "zzz"}', "zzz"),
        ("a\0b", None, "control characters"),
        ("clip.json", b"{}", "clip.json"),
    ],
)
def test_inspect_model_remote_raises_one_error_type_for_bad_files(
    name: str, raw: bytes | None, sentence: str, tmp_path: Path
) -> None:
    if raw is not None:
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(RemoteInspectError) as caught:
        inspect_model_remote(f"{tmp_path}/{name}")
    assert sentence in str(caught.value)
    assert caught.value.__cause__ is not None


def test_inspect_model_remote_raises_for_an_unknown_engine(llama: Path) -> None:
    with pytest.raises(UsageError, match="unknown engine 'tgi'"):
        inspect_model_remote(llama, "tgi")
