"""One resolver: a name means the same model to every command and function."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_estimate import write_model

from edgekit.app.open import answer_with_fallback, open_named
from edgekit.bill.types import Verdict
from edgekit.catalog.names import find_entry
from edgekit.catalog.resolve import resolve
from edgekit.cli import main
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.generated import generated_files
from edgekit.errors import HardwareError, RefusedError, RemoteInspectError, UsageError
from edgekit.formats import read_header
from edgekit.models import can_load, inspect_model_remote, model_preflight
from edgekit.sources.types import Origin

NAME, LAYERS = "qwen3-8b", 36
Q4_K_M_BYTES = 5_021_827_072  # of qwen3-8b, in the catalog


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 9 of this machine: nobody listens."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


# --- resolve


def test_resolve_gives_the_entry_of_a_name_and_reads_nothing() -> None:
    result = resolve(NAME, lambda source: pytest.fail(f"{source} was read"))
    assert result.entry is not None
    assert (result.entry.id, result.found) == (NAME, None)


def test_resolve_reads_what_the_catalog_does_not_have() -> None:
    result = resolve("acme/model", lambda source: source.upper())
    assert (result.entry, result.found) == (None, "ACME/MODEL")


def test_resolve_takes_the_entry_of_a_repository_that_cannot_be_reached() -> None:
    def unreachable(_: str) -> str:
        raise RemoteInspectError("no network")

    result = resolve("Qwen/Qwen3-8B", unreachable)
    assert result.entry is not None
    assert result.notes == (
        "taken from the catalog (qwen3-8b), because Qwen/Qwen3-8B could not be read: no network",
    )


# --- the Python API


def test_model_preflight_judges_a_catalog_name_as_check_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = model_preflight(NAME, ram="32G")
    answer = ask_json(capsys, "check", NAME, "--ram", "32G")
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
def test_a_quantisation_that_was_asked_for_is_named(
    quant: str, engine: str, device: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = model_preflight(NAME, engine, quant=quant, device=device, context=4096)
    words = ("--engine", engine, "--quant", quant, "--device", device, "-c", "4096")
    answer = ask_json(capsys, "check", NAME, *words)
    assert (result.quantization, answer["quantization"]) == (name, name)


@pytest.mark.parametrize(
    ("options", "name"), [({"bits": 3}, "3 bit"), ({"mode": "mxfp4"}, "mxfp4")]
)
def test_mlx_options_that_say_how_weights_are_packed_leave_nothing_to_choose(
    options: dict[str, object], name: str
) -> None:
    result = model_preflight(NAME, "mlx", options=options, device="m3-max-64", context=4096)
    assert result.quantization == name


def test_model_preflight_starts_an_embedding_file_to_embed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(tmp_path, "all-minilm-l6-v2", "Q8_0")
    result = model_preflight(path, ram="16G")
    output = ask_json(capsys, "check", str(path), "--ram", "16G")
    assert result.way.setup.embeddings
    assert result.required_bytes == output["required_bytes"]


def test_can_load_knows_catalog_names() -> None:
    assert can_load(NAME, ram="32G")
    assert not can_load(NAME, ram="2G")


def test_inspect_model_remote_knows_catalog_names() -> None:
    result = inspect_model_remote(NAME)
    assert (result.num_layers, result.num_kv_heads, result.model_max_context) == (LAYERS, 8, 40_960)


# --- the commands


def test_inspect_shows_the_model_of_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "inspect", NAME)
    assert (answer["model"], answer["origin"], answer["architecture"]) == (NAME, "catalog", "qwen3")
    assert answer["tensor_bytes"] == 16_382_087_168  # F16, as the catalog has it
    assert "no file was read" in answer["notes"][-1]


@pytest.mark.parametrize("command", [["run", "-p", "hi"], ["serve", "--port", "0"]])
def test_run_and_serve_name_the_repository_of_an_entry(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "qwen3-0.6b:Q8_0", "--offline"]) == 4
    err = capsys.readouterr().err
    assert "qwen3-0.6b at Q8_0, from Qwen/Qwen3-0.6B-GGUF" in err
    assert "Qwen/Qwen3-0.6B-GGUF is not in the Hugging Face cache" in err


@pytest.mark.skipif(not binding.has_xllamacpp(), reason="xllamacpp is not installed")
@pytest.mark.parametrize("name", ["qwen3-0.6b", "gemma-3-1b"])
def test_verify_asks_the_engine_about_a_catalog_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask_json(capsys, "verify", name, "-c", "4k")
    assert answer["within"]
    assert answer["notes"] == ["header generated from the catalog, at Q4_K_M"]


# --- generated headers


def test_generated_files_have_the_tensors_and_keys_of_the_model() -> None:
    model = open_named("gemma-3-1b").as_file("llama.cpp").model
    files = generated_files(model.header, label="gemma-3-1b")
    read = read_header(files)
    assert files.origin is Origin.CATALOG
    assert [(item.name, item.shape, item.type) for item in read.tensors or ()] == [
        (item.name, item.shape, item.type) for item in model.header.tensors or ()
    ]
    assert read.tensor_bytes == model.header.tensor_bytes
    for name, value in model.header.keys.items():
        single = (
            struct.unpack("<f", struct.pack("<f", value))[0] if isinstance(value, float) else value
        )
        assert read.keys[name] == single
    assert read.keys["tokenizer.ggml.model"] == "none"


def test_generated_files_need_the_keys_of_a_gguf() -> None:
    opened = open_named("gpt-oss-120b").as_file("llama.cpp")
    with pytest.raises(UsageError, match=r"the catalog has only the config\.json"):
        generated_files(opened.model.header, label="gpt-oss-120b")


# --- automatic


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Of a 32B: 61 GiB as stored, 18.4 at Q4_K_M."""
    config = json.dumps(find_entry("qwen3-32b").config, default=dict)
    tmp_path.joinpath("config.json").write_text(config)
    return str(tmp_path)


CARD: dict[str, Any] = {"device": "RTX 4090", "ram": "64G"}


def test_a_folder_that_vllm_has_no_room_for_is_llama_cpps_in_every_command(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = ("--device", "RTX 4090", "--ram", "64G")
    why = "checked for llama.cpp, because vllm cannot run it here: "
    result = model_preflight(folder, options={}, **CARD)
    assert result.estimate.notes[0].startswith(why)
    for command in ("check", "plan"):
        answer = ask_json(capsys, command, folder, *machine)
        assert answer["engine"]["name"] == result.engine == "llama.cpp"
        assert answer["status"] == result.status.value
        assert any(note.startswith(why) for note in answer["notes"])


def test_options_choose_the_engine_that_has_them(folder: str) -> None:
    assert model_preflight(folder, options={"n_gpu_layers": 20}, **CARD).engine == "llama.cpp"
    alone = model_preflight(folder, options={"kv_cache_dtype": "fp8"}, **CARD)
    assert (alone.engine, alone.can_load) == ("vllm", False)


@pytest.mark.parametrize("failure", [RefusedError("no"), HardwareError("no"), UsageError("no")])
def test_a_mistake_in_the_question_is_not_asked_of_another_engine(
    folder: str, failure: RefusedError | HardwareError | UsageError
) -> None:
    named = open_named(folder)
    fits = model_preflight(folder, "llama.cpp", **CARD)

    def ask(engine: str) -> Verdict:
        if engine == "vllm":
            raise failure
        return fits

    if isinstance(failure, UsageError):
        with pytest.raises(UsageError):
            answer_with_fallback(named, fits.machine, ask, lambda result: result)
    else:
        answer, note = answer_with_fallback(named, fits.machine, ask, lambda result: result)
        assert answer is fits
        assert note.endswith("vllm cannot run it here: no")
