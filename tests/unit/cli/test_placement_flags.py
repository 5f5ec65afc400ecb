"""-ot, -sm, -mg and --rpc: the same flags in every command, in its answer and in the command it prints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_estimate import write_model

from edgekit.cli import main
from edgekit.models import model_preflight

SERVER = "10.0.0.5:50052"
TWO_CARDS = ("--device", "RTX 4090", "--device", "RTX 3090", "--ram", "64G")
ONE_CARD = ("--device", "RTX 3060", "--ram", "64G")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("placements"), "qwen3-30b-a3b"))


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    main([*argv, "--llama-version", "0.6", "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def usage_error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    code = main(argv)
    out, err = capsys.readouterr()
    assert code == 2, (out, err)
    return err


def test_estimate_of_the_printed_command_is_the_same(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ("-c", "4096", "-ot", r"blk\.[0-9]\.ffn=CPU", "-ot", "exps=CPU", "-ncmoe", "2")
    first = run_json(capsys, "estimate", model, *request)
    argv = shlex.split(first["command"])
    assert argv[argv.index("-ot") + 1] == r"blk\.[0-9]\.ffn=CPU,exps=CPU"
    assert argv.index("-ot") < argv.index("-ncmoe")  # the first pattern that matches wins
    again = run_json(capsys, "estimate", model, *argv[argv.index("-c") :])
    assert again["lines"] == first["lines"]


def test_override_tensor_of_all_experts_costs_the_same_as_cpu_moe(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = run_json(capsys, "estimate", model, "-c", "4096", "-ot", "exps=CPU")
    flag = run_json(capsys, "estimate", model, "-c", "4096", "-cmoe")
    assert pattern["lines"] == flag["lines"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-ot", "(=CPU"), "( without a )"),
        (("-ot", "exps"), "PATTERN=BUFFER"),
        (("-ot", "a{1,2}=CPU"), "cannot contain one"),
        (("-ot", "exps=CUDA_Host"), "there is CPU, CUDA0"),
        (("-ot", "exps=CUDA1"), "there is CPU, CUDA0"),
        (("-sm", "row"), "several GPUs, but there is 1"),
        (("-sm", "rows"), "none, layer, row, tensor"),
        (("-sm", "row", "-ts", "1,1"), "removed in July 2026"),
        (("-sm", "tensor", "-ts", "1,1", "-fa", "off"), "requires flash attention"),
        (("-sm", "tensor", "-ts", "1,1", "-ot", "exps=CUDA0"), "only move one to the CPU"),
        (("-sm", "none", "-mg", "2", "-ts", "1,1"), "GPU 0 to 1"),
        (("--rpc", SERVER), f"{SERVER}=24G"),
        (("--rpc", "10.0.0.5=24G"), "192.168.1.5:50052=24G"),
        (("--rpc", f"{SERVER}=24G", "--backend", "cuda"), "--device-memory"),
    ],
)
def test_invalid_placement_is_an_error(
    argv: tuple[str, ...], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in usage_error(
        capsys, "estimate", model, "-c", "4096", *argv, "--llama-version", "0.6"
    )


def test_split_mode_row_is_modelled_for_builds_that_have_it(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("-c", "4096", "-sm", "row", "-ts", "1,1", "--llama-version", "b9294", "--json")
    main(["estimate", model, *argv])
    result = json.loads(capsys.readouterr().out)
    assert {line["basis"] for line in result["lines"] if line["component"] == "weights"} >= {
        "modelled"
    }


def test_split_mode_tensor_needs_the_same_of_two_unlike_gpus(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json(capsys, "check", model, "-c", "8k", "-sm", "tensor", *TWO_CARDS)
    first, second = (use["required_bytes"] for use in result["budgets"][:2])
    assert abs(first - second) < first // 100
    assert "-sm tensor" in result["command"]
    assert "-ts" not in shlex.split(result["command"])


def test_split_mode_none_uses_only_the_main_gpu(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("-sm", "none", "-mg", "1", *TWO_CARDS)
    result = run_json(capsys, "check", model, "-c", "8k", "--min-context", "8k", *argv)
    assert result["budgets"][0]["name"] == "RTX 3090"
    assert "RTX 4090" not in [use["name"] for use in result["budgets"]]
    assert "-sm none -mg 1" in result["command"]
    assert "CUDA_VISIBLE_DEVICES" not in result["command"]


@pytest.mark.parametrize("command", ["check", "plan"])
def test_rpc_server_is_in_the_answer_and_in_the_command(
    command: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([command, model, "-c", "16k", "--rpc", f"{SERVER}=48G", *ONE_CARD])
    output = " ".join(capsys.readouterr().out.replace("\\\n", " ").split())
    assert f"RPC server {SERVER}" in output
    assert f"--rpc {SERVER}" in output
    assert f"{SERVER}=" not in output  # llama.cpp does not accept a size


def test_batch_row_takes_placement_options(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"n_ctx": 4096, "n_gpu_layers": 99, "llama_version": "0.6"}
    rows = [
        {"model": model, "engine": "llama.cpp", "options": {**options, "override_tensor": "exps=CPU"}},
        {"model": model, "engine": "llama.cpp", "options": {**options, "cpu_moe": True}},
        {"model": model, "engine": "llama.cpp",
         "options": {**options, "split_mode": "tensor", "rpc": f"{SERVER}=24G+24G"}},
    ]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["estimate", "--batch", str(file)])
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["total_bytes"] == second["total_bytes"]
    assert third["total_bytes"] > first["total_bytes"]


@pytest.mark.parametrize(
    ("options", "argv"),
    [
        ({"override_tensor": "exps=CPU"}, ("-ot", "exps=CPU")),
        ({"split_mode": "tensor"}, ("-sm", "tensor")),
        ({"split_mode": "none", "main_gpu": 1}, ("-sm", "none", "-mg", "1")),
        ({"rpc": f"{SERVER}=24G"}, ("--rpc", f"{SERVER}=24G")),
    ],
)
def test_python_options_give_the_same_answer_as_flags(
    options: dict[str, Any],
    argv: tuple[str, ...],
    model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_flags = run_json(
        capsys, "check", model, "-c", "16k", "--vram", "24G,16G", "--ram", "64G", *argv
    )
    with_version = {"llama_version": "0.6", **options}
    result = model_preflight(
        model, "llama.cpp", context=16384, options=with_version, vram="24G,16G", ram="64G"
    )
    assert [use.required_bytes for use in result.uses] == [
        budget["required_bytes"] for budget in by_flags["budgets"]
    ]


PAGE = Path(__file__).parents[3] / "docs" / "engines" / "llama_cpp.md"
EXAMPLES = [
    line
    for part in PAGE.read_text(encoding="utf-8").split("```sh\n")[1:]
    for line in part.split("```")[0].splitlines()
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_in_the_docs_fits(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = shlex.split(example)[1:]
    assert main([*argv, "--llama-version", "0.6"]) == 0
    assert shlex.split(example)[-2] in capsys.readouterr().out


def test_override_tensor_does_not_move_the_draft_model(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """llama.cpp has a flag of its own for that, -otd."""
    result = run_json(capsys, "estimate", model, "-c", "4096", "-md", model, "-ot", "weight=CPU")
    draft = [line for line in result["lines"] if line["part"] == "drafter"]
    assert sum(item["bytes"] for item in draft if item["pool"] != "host") > 2**34


def test_split_mode_tensor_is_an_error_for_an_unsupported_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_model(tmp_path, "falcon-h1-1.5b")
    output = usage_error(capsys, "estimate", str(file), "-c", "4096", "-sm", "tensor", "-ts", "1,1")
    assert "-sm tensor for the architecture 'falcon-h1'" in output
