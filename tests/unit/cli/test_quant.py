"""--quant, NAME:QUANT and the engines' own flags for it: one meaning in every command and in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_estimate import write_model

from edgekit.app.open import open_named
from edgekit.app.published import index_match
from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.errors import NotFoundError, RemoteInspectError, UsageError
from edgekit.models import can_load, model_preflight
from edgekit.request import options_with_quant, read_quant, takes

NAME = "qwen3-8b"
Q8_0_BYTES = 8_703_561_728  # 8,190,735,360 weights: 34 bytes for 32, norms in f32
Q8_0 = ("--quant", "Q8_0")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 9 of this machine is closed."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def weights_bytes(answer: dict[str, Any]) -> int:
    lines = answer.get("estimate", answer)["lines"]
    return sum(line["bytes"] for line in lines if line["component"] == "weights")


# --- the name of a quantisation for each engine


@pytest.mark.parametrize(
    ("engine", "name", "expected"),
    [
        ("llama.cpp", "q4_k", "Q4_K_M"),
        ("llama.cpp", "fp16", "F16"),
        ("mlx", "4", "q4"),
        ("mlx", "8-bit", "q8"),
        ("mlx", "mxfp4", "mxfp4"),
        ("vllm", "FP8", "fp8"),
    ],
)
def test_read_quant_gives_the_name_that_the_engine_uses(
    engine: str, name: str, expected: str
) -> None:
    assert read_quant(engine, name) == expected


@pytest.mark.parametrize("engine", ["llama.cpp", "mlx", "vllm"])
def test_read_quant_takes_every_name_that_it_lists(engine: str) -> None:
    assert all(takes(engine, name) for name in engine_named(engine).quant_names())


@pytest.mark.parametrize(
    ("engine", "name", "message"),
    [
        ("vllm", "Q4_K_M", r"vLLM has no quantisation 'Q4_K_M' \(Q4_K_M is for llama.cpp\); it has .*fp8"),
        ("mlx", "Q4_K_M", r"MLX has no quantisation .*; it has 8bit, 6bit"),
        ("llama.cpp", "nonsense", r"llama.cpp has no quantisation 'nonsense'; it has .*Q4_K_M"),
        ("stream", "Q8_0", "runs a GGUF file as it is"),
    ],
)  # fmt: skip
def test_read_quant_error_lists_the_quantisations_of_the_engine(
    engine: str, name: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_quant(engine, name)


def test_options_with_quant_refuses_two_quantisations() -> None:
    with pytest.raises(UsageError, match="give one"):
        options_with_quant("llama.cpp", {"mix": "Q4_K_M"}, "Q8_0")


# --- every command


@pytest.mark.parametrize(
    "argv",
    [
        (NAME, *Q8_0),
        (f"{NAME}:Q8_0",),
        ("Qwen3 8B Q8_0",),
        (f"catalog:{NAME}:q8_0",),
        (NAME, "-q", "Q8_0"),
        (NAME, "--quantize", "Q8_0"),
        (NAME, "--mix", "q8_0"),
    ],
)
@pytest.mark.parametrize("command", ["check", "estimate"])
def test_every_spelling_of_a_quantisation_is_the_same(
    command: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    machine = ("--ram", "64G") if command == "check" else ()
    assert weights_bytes(run_json(capsys, command, *argv, *machine)) == Q8_0_BYTES


def test_plan_takes_a_quantisation(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "plan", NAME, *Q8_0, "--ram", "64G", "-c", "4k", "--no-drafter")
    assert weights_bytes(answer) == Q8_0_BYTES


def test_inspect_takes_only_the_quantisation_that_a_file_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(write_model(tmp_path, "gemma-3-1b"))
    expected = run_json(capsys, "inspect", path)
    assert run_json(capsys, "inspect", path, "--quant", "q4_k_m") == expected
    assert main(["inspect", path, *Q8_0]) == 2
    assert "has no file at Q8_0: inspect shows files as they are" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["qwen3-8b:q8_0", "Qwen3 8B Q8_0", "qwen3:8b-q8_0"])
def test_run_reads_catalog_names_as_check_does(name: str) -> None:
    result = index_match(name)
    assert result is not None
    known = open_named(f"catalog:{name}")
    assert (result.entry, (result.quant or "").upper()) == (known.entry, "Q8_0")


def test_inspect_shows_a_catalog_model_at_a_quantisation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for argv in ((NAME, *Q8_0), (f"{NAME}:Q8_0",)):
        assert run_json(capsys, "inspect", *argv)["tensor_bytes"] == Q8_0_BYTES


def test_quantisation_selects_the_engine_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ("--device", "m3-max-64")
    assert run_json(capsys, "check", NAME, "--quant", "4bit", *machine)["engine"]["name"] == "mlx"
    assert (
        run_json(capsys, "check", NAME, "--quant", "fp8", "--device", "h100")["engine"]["name"]
        == "vllm"
    )


def test_short_quant_flag_works_for_mlx(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = run_json(capsys, "check", NAME, "--engine", "mlx", "-q", "4", "--device", "m3-max-64")
    same = run_json(
        capsys, "check", NAME, "--engine", "mlx", "--quantize", "q4", "--device", "m3-max-64"
    )
    assert answer["required_bytes"] == same["required_bytes"]


@pytest.mark.parametrize(
    "argv",
    [
        ("check", f"{NAME}:Q4_K_M", *Q8_0),
        ("check", NAME, *Q8_0, "--mix", "Q4_K_M"),
        ("run", f"{NAME}:Q4_K_M", *Q8_0, "-p", "hi"),
    ],
)
def test_two_quantisations_are_an_error(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == UsageError.exit_code
    assert "quantisations: give one" in capsys.readouterr().err


def test_run_does_not_requantise_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path, "gemma-3-1b", "Q4_K_M")
    assert main(["run", str(path), *Q8_0, "-p", "hi"]) == UsageError.exit_code
    assert "a file is loaded as it is" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [("run", f"{NAME}:Q8_0", "-p", "hi"), ("serve", NAME, *Q8_0)])
def test_run_and_serve_look_for_weights_at_the_quantisation(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == NotFoundError.exit_code  # the tests have no network
    assert capsys.readouterr().err.startswith(f"{NAME} at Q8_0, from Qwen/Qwen3-8B-GGUF\n")


def test_run_of_a_quantisation_without_a_known_repository_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", f"{NAME}:TQ1_0", "-p", "hi"]) == UsageError.exit_code
    output = capsys.readouterr().err
    assert "no known repository has a GGUF of qwen3-8b at TQ1_0 (known: Q8_0, " in output
    assert "edgekit run ORG/REPOSITORY:QUANT" in output


def test_batch_rows_take_names_and_quantisations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"model": "Qwen3 8B:Q8_0"},
        {"model": NAME, "quant": "Q8_0"},
        {"model": NAME, "options": {"quant": "Q8_0"}},
        {"model": NAME, "options": {"mix": "Q8_0"}},
        {"model": NAME, "engine": "vllm", "options": {"quant": "Q8_0"}},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert main(["estimate", "--batch", str(path)]) == 0
    *same, refused = map(json.loads, capsys.readouterr().out.splitlines())
    assert [item["model_bytes"] for item in same] == [Q8_0_BYTES] * 4
    assert "vLLM has no quantisation 'Q8_0'" in refused["error"]


def test_file_already_at_the_quantisation_is_used_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_model(tmp_path, "gemma-3-1b", "Q8_0"))
    answer = run_json(capsys, "check", path, *Q8_0, "--ram", "16G")
    assert (
        answer["required_bytes"]
        == run_json(capsys, "check", path, "--ram", "16G")["required_bytes"]
    )
    assert "mix" not in answer["flags"]


# --- Python


def test_model_preflight_takes_a_quantisation() -> None:
    for result in (
        model_preflight(f"{NAME}:Q8_0", ram="64G"),
        model_preflight("Qwen3 8B", ram="64G", quant="Q8_0"),
        model_preflight(NAME, ram="64G", options={"quant": "Q8_0"}),
        model_preflight(NAME, ram="64G", options={"mix": "Q8_0"}),
    ):
        assert result.estimate.weights_bytes == Q8_0_BYTES
    assert can_load(NAME, ram="12G", quant="Q4_K_M")
    assert not can_load(NAME, ram="8G", quant="Q8_0")
    with pytest.raises(UsageError, match="vLLM has no quantisation"):
        model_preflight(NAME, "vllm", device="h100", quant="Q8_0")


# --- model names


@pytest.mark.parametrize(
    "name", ["gemma3:27b", "google/gemma-3-27b-it", "hf.co/google/gemma-3-27b-it"]
)
def test_unreachable_name_is_answered_from_the_index_with_the_reason(name: str) -> None:
    result = open_named(name)
    assert result.entry is not None
    assert result.entry.id == "gemma-3-27b"
    assert result.from_index.startswith(f"{name} could not be read: ")


def test_ollama_name_without_a_tag_has_the_default_size_of_ollama(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("llama3.1", "llama3.1:latest"):
        assert (
            run_json(capsys, "check", name, "--ram", "32G", "--offline")["model"] == "llama-3.1-8b"
        )


def test_tag_of_a_repository_is_its_quantisation() -> None:
    assert open_named("unsloth/gemma-3-27b-it-GGUF:Q8_0").quant == "Q8_0"


def test_hub_id_is_not_an_added_model_with_a_similar_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    path = write_model(tmp_path, "gemma-3-1b", "Q4_K_M")
    assert main(["index", "add", str(path), "--id", "mine"]) == 0
    capsys.readouterr()
    assert open_named("Mine:Q8_0").found is not None
    with pytest.raises(RemoteInspectError):
        open_named("acme/mine")


def test_missing_file_is_not_taken_from_the_catalog() -> None:
    """A file whose folder is here was mistyped. Only one of another machine is known by its name."""
    with pytest.raises(NotFoundError, match="no such file"):
        open_named("./gemma-3-27b")
    resolved = open_named("gemma-3-27b.gguf")
    assert resolved.from_index == "gemma-3-27b.gguf is not on this machine"


def test_unknown_names_suggest_names_of_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "plan", "estimate", "inspect", "compare", "verify", "serve"):
        assert main([command, "gemma-3-28b", "--offline"]) == NotFoundError.exit_code
        err = capsys.readouterr().err
        assert "Did you mean: gemma-3-27b" in err
        assert "sample:" not in err


def test_unreachable_repositories_suggest_names_of_the_catalog(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "acme/gemma-3-28b", "--offline"]) == NotFoundError.exit_code
    assert "Similar names in the index: gemma-3-27b" in capsys.readouterr().err
