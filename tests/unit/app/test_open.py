"""`app.open`: a name refers to the same model in every command and Python function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_estimate import write_model
from tests.unit.plan.machines import cards, cpu, mac

from edgekit.app.open import ResolvedModel, answer_with_fallback, open_named
from edgekit.bill.types import Verdict
from edgekit.cli import main
from edgekit.engines.llamacpp.run import binding
from edgekit.errors import (
    EdgekitError,
    HardwareError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from edgekit.index.database import header_of
from edgekit.index.names import find_entry
from edgekit.machine.types import Machine
from edgekit.models import can_load, inspect_model_remote, model_preflight

NAME, LAYERS = "qwen3-8b", 36
Q4_K_M_BYTES = 5_021_827_072  # of qwen3-8b, in the catalog


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 9 of this machine is closed."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


# --- open_named


@pytest.mark.parametrize("name", ["qwen3-8b", "QWEN3-8B", "catalog:qwen3-8b", "Catalog:Qwen3-8B", "catalog:Qwen/Qwen3-8B"])  # fmt: skip
def test_open_named_finds_a_model_of_the_catalog(name: str) -> None:
    named = open_named(name)
    assert named.entry is not None
    assert (named.entry.id, named.found, named.notes, named.files) == ("qwen3-8b", None, (), None)


def test_open_named_prefers_a_path_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "qwen3-0.6b").rename(tmp_path / "qwen3-8b")
    monkeypatch.chdir(tmp_path)
    named = open_named("qwen3-8b")
    assert named.found is not None
    assert len(named.found.model.geometry.layers) == 28  # the 0.6B in the file; the 8B has 36
    known = open_named("catalog:qwen3-8b")
    assert known.found is None
    assert len(known.opened("llama.cpp").model.geometry.layers) == 36


def test_open_named_opens_a_sample() -> None:
    named = open_named("sample:gemma-3-27b")
    assert named.found is not None
    assert named.engine(cpu(64)) == "llama.cpp"


@pytest.mark.parametrize("name", ["catalog:qwen3-9b", "catalog:", "catalog:no such model"])
def test_open_named_refuses_an_unknown_catalog_name(name: str) -> None:
    with pytest.raises(NotFoundError, match="in the index"):
        open_named(name)


def test_open_named_suggests_a_similar_name() -> None:
    with pytest.raises(NotFoundError) as caught:
        open_named("catalog:qwen3-8")
    assert "qwen3-8b" in caught.value.candidates


def test_open_named_refuses_an_unknown_name() -> None:
    with pytest.raises(EdgekitError, match="model not found: 'no-such-model'"):
        open_named("no-such-model")


def test_open_named_takes_the_entry_of_an_unreachable_repository() -> None:
    named = open_named("Qwen/Qwen3-8B")
    assert named.entry is not None
    assert (named.entry.id, named.found) == ("qwen3-8b", None)
    assert named.from_index.startswith("Qwen/Qwen3-8B could not be read: ")
    assert "127.0.0.1:9" in named.from_index


def test_open_named_refuses_an_unreachable_repository_without_an_entry() -> None:
    with pytest.raises(EdgekitError, match=r"cannot reach 127\.0\.0\.1:9"):
        open_named("acme/nobody-knows-it")


def test_resolved_model_without_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match="neither opened nor in the index"):
        ResolvedModel(name="x").opened("llama.cpp")


@pytest.mark.parametrize("machine", [cards(24), mac(64), cpu(16)])
def test_engine_of_a_catalog_model_is_llama_cpp(machine: Machine) -> None:
    assert open_named("qwen3-8b").engine(machine) == "llama.cpp"


# --- the Python API


def test_model_preflight_judges_a_catalog_name_as_check_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = model_preflight(NAME, ram="32G")
    answer = run_json(capsys, "check", NAME, "--ram", "32G")
    assert result.estimate.weights_bytes == Q4_K_M_BYTES
    assert result.required_bytes == answer["required_bytes"]
    assert (result.context_tokens, result.max_context) == (answer["context_tokens"], 40_960)


@pytest.mark.parametrize(
    ("quant", "engine", "device", "name"),
    [
        ("q6_k", "llama.cpp", "RTX 4090", "Q6_K"),
        ("8bit", "mlx", "m3-max-64", "8 bit"),
        ("mxfp4", "mlx", "m3-max-64", "mxfp4"),
        ("fp8", "vllm", "RTX 4090", "fp8"),
    ],
)
def test_requested_quantisation_is_in_the_answer(
    quant: str, engine: str, device: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = model_preflight(NAME, engine, quant=quant, device=device, context=4096)
    argv = ("--engine", engine, "--quant", quant, "--device", device, "-c", "4096")
    answer = run_json(capsys, "check", NAME, *argv)
    assert (result.quantization, answer["quantization"]) == (name, name)


@pytest.mark.parametrize(
    ("options", "name"), [({"bits": 3}, "3 bit"), ({"mode": "mxfp4"}, "mxfp4")]
)
def test_mlx_options_set_the_quantisation(options: dict[str, object], name: str) -> None:
    result = model_preflight(NAME, "mlx", options=options, device="m3-max-64", context=4096)
    assert result.quantization == name


def test_model_preflight_of_an_embedding_file_sets_embeddings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(tmp_path, "all-minilm-l6-v2", "Q8_0")
    result = model_preflight(path, ram="16G")
    output = run_json(capsys, "check", str(path), "--ram", "16G")
    assert result.way.setup.embeddings
    assert result.required_bytes == output["required_bytes"]


def test_can_load_knows_catalog_names() -> None:
    assert can_load(NAME, ram="32G")
    assert not can_load(NAME, ram="2G")


def test_inspect_model_remote_knows_catalog_names() -> None:
    result = inspect_model_remote(NAME)
    assert (result.num_layers, result.num_kv_heads, result.model_max_context) == (LAYERS, 8, 40_960)


# --- the commands


def test_inspect_shows_a_catalog_model(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "inspect", NAME)
    assert (answer["model"], answer["origin"], answer["architecture"]) == (NAME, "catalog", "qwen3")
    assert answer["tensor_bytes"] == 16_382_087_168  # F16, as the catalog has it
    assert "no file was read" in answer["notes"][-1]


@pytest.mark.parametrize("command", [["run", "-p", "hi"], ["serve", "--port", "0"]])
def test_run_and_serve_name_the_repository_of_a_catalog_model(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "qwen3-0.6b:Q8_0", "--offline"]) == 4
    err = capsys.readouterr().err
    assert "qwen3-0.6b at Q8_0, from Qwen/Qwen3-0.6B-GGUF" in err
    assert "Qwen/Qwen3-0.6B-GGUF is not in the Hugging Face cache" in err


@pytest.mark.skipif(not binding.has_xllamacpp(), reason="xllamacpp is not installed")
@pytest.mark.parametrize("name", ["qwen3-0.6b", "gemma-3-1b"])
def test_verify_of_a_catalog_name_is_within_bounds(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run_json(capsys, "verify", name, "-c", "4k")
    assert answer["within"]
    assert answer["notes"] == ["header generated from the index, at Q4_K_M"]


# --- choice of the engine


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The config of a 32B: 61 GiB as stored, 18.4 GiB at Q4_K_M."""
    config = json.dumps(header_of(find_entry("qwen3-32b")).config, default=dict)
    tmp_path.joinpath("config.json").write_text(config)
    return str(tmp_path)


CARD: dict[str, Any] = {"device": "RTX 4090", "ram": "64G"}


def test_folder_too_large_for_vllm_is_answered_for_llama_cpp(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = ("--device", "RTX 4090", "--ram", "64G")
    why = "checked for llama.cpp, because vllm cannot run it here: "
    result = model_preflight(folder, options={}, **CARD)
    assert result.estimate.notes[0].startswith(why)
    for command in ("check", "plan"):
        answer = run_json(capsys, command, folder, *machine)
        assert answer["engine"]["name"] == result.engine == "llama.cpp"
        assert answer["status"] == result.status.value
        assert any(note.startswith(why) for note in answer["notes"])


def test_options_select_the_engine_that_has_them(folder: str) -> None:
    assert model_preflight(folder, options={"n_gpu_layers": 20}, **CARD).engine == "llama.cpp"
    vllm_only = model_preflight(folder, options={"kv_cache_dtype": "fp8"}, **CARD)
    assert (vllm_only.engine, vllm_only.can_load) == ("vllm", False)


@pytest.mark.parametrize("failure", [RefusedError("no"), HardwareError("no"), UsageError("no")])
def test_refusal_falls_back_to_another_engine_and_usage_error_does_not(
    folder: str, failure: RefusedError | HardwareError | UsageError
) -> None:
    named = open_named(folder)
    fits = model_preflight(folder, "llama.cpp", **CARD)

    def run_on(engine: str) -> Verdict:
        if engine == "vllm":
            raise failure
        return fits

    if isinstance(failure, UsageError):
        with pytest.raises(UsageError):
            answer_with_fallback(named, fits.machine, run_on, lambda result: result)
    else:
        answer, note = answer_with_fallback(named, fits.machine, run_on, lambda result: result)
        assert answer is fits
        assert note.endswith("vllm cannot run it here: no")


@pytest.mark.parametrize("command", [["run", "-p", "hi"], ["serve"], ["inspect"], ["estimate"]])
def test_model_without_known_layers_is_an_error_that_names_its_repositories(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], "magistral-small-2506", *command[1:], "--offline"]) == 2
    message = capsys.readouterr().err
    assert "the index knows neither the layers nor the size of magistral-small-2506" in message
    assert "name its repository instead (bartowski/mistralai_Magistral-Small-2506-GGUF" in message
    assert "edgekit download magistral-small-2506" in message
