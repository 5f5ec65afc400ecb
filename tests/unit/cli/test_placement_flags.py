"""-ot, -sm, -mg and --rpc: the same flags in every command, in its answer and in the command it prints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.recorded import header_bytes, models, padded

from edgekit.cli import main
from edgekit.models import model_preflight

SERVER = "10.0.0.5:50052"
TWO_CARDS = ("--device", "RTX 4090", "--device", "RTX 3090", "--ram", "64G")
ONE_CARD = ("--device", "RTX 3060", "--ram", "64G")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Qwen3 30B A3B: its header, and a hole for the weights."""
    facts = next(
        item for item in models() if item["model"] == "qwen3-30b-a3b" and item["quant"] == "Q4_K_M"
    )
    header = header_bytes(facts["header_without_vocabulary"])
    file = tmp_path_factory.mktemp("placements") / "model.gguf"
    with file.open("wb") as out:
        out.write(header)
        out.truncate(padded(len(header)) + facts["data_section_bytes"])
    return str(file)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words, "--llama-version", "0.6", "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code = main([*words])
    output = capsys.readouterr()
    assert code == 2, output
    return output.err


def test_the_command_read_again_gives_the_same_bill(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ("-c", "4096", "-ot", r"blk\.[0-9]\.ffn=CPU", "-ot", "exps=CPU", "-ncmoe", "2")
    first = answer(capsys, "estimate", model, *request)
    words = shlex.split(first["command"])
    assert words[words.index("-ot") + 1] == r"blk\.[0-9]\.ffn=CPU,exps=CPU"
    assert words.index("-ot") < words.index("-ncmoe")  # the first that matches decides
    again = answer(capsys, "estimate", model, *words[words.index("-c") :])
    assert again["lines"] == first["lines"]


def test_experts_moved_by_a_pattern_are_billed_as_with_cpu_moe(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pattern = answer(capsys, "estimate", model, "-c", "4096", "-ot", "exps=CPU")
    flag = answer(capsys, "estimate", model, "-c", "4096", "-cmoe")
    assert pattern["lines"] == flag["lines"]


@pytest.mark.parametrize(
    ("words", "told"),
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
def test_a_placement_that_cannot_be_is_an_error(
    words: tuple[str, ...], told: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(
        capsys, "estimate", model, "-c", "4096", *words, "--llama-version", "0.6"
    )


def test_rows_are_billed_for_builds_that_have_them(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("-c", "4096", "-sm", "row", "-ts", "1,1", "--llama-version", "b9294", "--json")
    main(["estimate", model, *words])
    result = json.loads(capsys.readouterr().out)
    assert {line["basis"] for line in result["lines"] if line["component"] == "weights"} >= {
        "modelled"
    }


def test_slices_need_as_much_of_two_unlike_cards(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = answer(capsys, "check", model, "-c", "8k", "-sm", "tensor", *TWO_CARDS)
    first, second = (use["required_bytes"] for use in result["budgets"][:2])
    assert abs(first - second) < first // 100
    assert "-sm tensor" in result["command"]
    assert "-ts" not in shlex.split(result["command"])


def test_a_main_gpu_is_the_only_one_that_is_judged(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("-sm", "none", "-mg", "1", *TWO_CARDS)
    result = answer(capsys, "check", model, "-c", "8k", "--min-context", "8k", *where)
    assert result["budgets"][0]["name"] == "RTX 3090"
    assert "RTX 4090" not in [use["name"] for use in result["budgets"]]
    assert "-sm none -mg 1" in result["command"]
    assert "CUDA_VISIBLE_DEVICES" not in result["command"]


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_server_is_one_more_device_before_the_cards(
    command: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([command, model, "-c", "16k", "--rpc", f"{SERVER}=48G", *ONE_CARD])
    output = " ".join(capsys.readouterr().out.replace("\\\n", " ").split())
    assert f"RPC server {SERVER}" in output
    assert f"--rpc {SERVER}" in output
    assert f"{SERVER}=" not in output  # which llama.cpp would not read


def test_a_row_of_a_batch_names_them_too(
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
    ("options", "words"),
    [
        ({"override_tensor": "exps=CPU"}, ("-ot", "exps=CPU")),
        ({"split_mode": "tensor"}, ("-sm", "tensor")),
        ({"split_mode": "none", "main_gpu": 1}, ("-sm", "none", "-mg", "1")),
        ({"rpc": f"{SERVER}=24G"}, ("--rpc", f"{SERVER}=24G")),
    ],
)
def test_options_of_python_are_judged_as_flags_are(
    options: dict[str, Any],
    words: tuple[str, ...],
    model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(capsys, "check", model, "-c", "16k", "--vram", "24G,16G", "--ram", "64G", *words)
    same = {"llama_version": "0.6", **options}
    result = model_preflight(
        model, "llama.cpp", context=16384, options=same, vram="24G,16G", ram="64G"
    )
    assert [use.required_bytes for use in result.uses] == [
        budget["required_bytes"] for budget in found["budgets"]
    ]


PAGE = Path(__file__).parents[3] / "docs" / "engines" / "llama_cpp.md"
EXAMPLES = [
    line
    for part in PAGE.read_text(encoding="utf-8").split("```sh\n")[1:]
    for line in part.split("```")[0].splitlines()
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_docs_fit(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(example)[1:]
    assert main([*words, "--llama-version", "0.6"]) == 0
    assert shlex.split(example)[-2] in capsys.readouterr().out


def test_a_draft_model_is_not_moved(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """llama.cpp has -otd for that."""
    result = answer(capsys, "estimate", model, "-c", "4096", "-md", model, "-ot", "weight=CPU")
    draft = [line for line in result["lines"] if line["part"] == "drafter"]
    assert sum(item["bytes"] for item in draft if item["pool"] != "host") > 2**34


def test_an_architecture_without_slices_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = next(item for item in models() if item["model"] == "falcon-h1-1.5b")
    header = header_bytes(facts["header_without_vocabulary"])
    file = tmp_path / "model.gguf"
    with file.open("wb") as out:
        out.write(header)
        out.truncate(padded(len(header)) + facts["data_section_bytes"])
    output = refused(capsys, "estimate", str(file), "-c", "4096", "-sm", "tensor", "-ts", "1,1")
    assert "-sm tensor for the architecture 'falcon-h1'" in output
