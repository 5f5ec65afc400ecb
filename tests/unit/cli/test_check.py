"""`edgekit check` of one model: text, JSON, flags, machines, errors and notes."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.documented import documented
from tests.header_files import STRING, UINT32, gguf, key
from tests.patience import PATIENCE_S
from tests.thoroughness import LONG, sampled
from tests.unit.cli.test_estimate import write_model
from tests.unit.cli.test_estimate_engines import CONFIG, TOKEN

from edgekit.cli import main
from edgekit.units import GIB

LLAMA_TOKEN = 32 * 2 * 8 * 128 * 2  # llama-3.1-8b: 32 layers, K and V of 8 heads of 128, 16 bit
SAMPLE = "sample:gemma-3-27b"
MOE = "sample:qwen3-30b-a3b"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("llama"), "llama-3.1-8b"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with four layers of a Qwen3, not converted to GGUF."""
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return str(path)


def run_check(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["check", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def check_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    _, out, err = run_check(capsys, *argv, "--json")
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


# --- the answer


def test_first_sentence_names_an_unknown_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": "brandnew7"}))
    machine = ("--engine", "vllm", "--device", "h200", "-c", "1k")
    told = "(rough estimate: unknown architecture 'brandnew7')"
    _, out, _ = run_check(capsys, str(tmp_path), *machine)
    sentence = out[: out.index(f"{tmp_path.name}  ·  ")]
    assert " ".join(sentence.split()).endswith(told)
    assert check_json(capsys, str(tmp_path), *machine)["headline"].endswith(told)
    main(["estimate", str(tmp_path), "--engine", "vllm", "-c", "1k"])
    assert told in " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    main(["inspect", str(tmp_path)])
    assert "unknown architecture 'brandnew7'" in capsys.readouterr().out.split("\n\n")[0]


# 8.7 GiB: 4.58 of weights, 32,768 tokens of 131,072 bytes and 0.15 of the rest; 23.0: 24 less 1 of reserve
ANSWERS = [
    (["--ram", "24G"], 0, "Runs on the CPU: 8.7 of 23.0 GiB at 32K"),
    (["--ram", "24G", "-c", "120576"], 0, "Runs on the CPU: 19.5 of 23.0 GiB at 120,576 tokens"),
    (["--ram", "24G", "-c", "128k"], 0, "Runs on the CPU, just: 20.8 of 23.0 GiB at 128K"),
    (["--ram", "24G", "-c", "0"], 0, "Runs on the CPU, just: 20.8 of 23.0 GiB at 128K"),
    (["--ram", "4G"], 3, "Does not fit your 4 GiB RAM, even at 16K with an 8-bit cache: needs 5.8 GiB, 3.0 usable"),
    (["--ram", "300M"], 3, "Does not fit your 300 MiB RAM, even at 16K with an 8-bit cache: needs 5.8 GiB, 0.0 usable"),
    (["--ram", "8G", "-c", "4k"], 0, "Runs on the CPU: 5.2 of 7.0 GiB at 4K"),
    (["--ram", "8G", "-c", "128k"], 3, "Does not fit your 8 GiB RAM at 128K, even with an 8-bit cache: needs 13.3 GiB, 7.0 usable; fits up to 35,072 tokens"),
    (["--ram", "64G", "-c", "200k"], 0, "Runs on the CPU: 29.9 of 63.0 GiB at 200K (beyond the model's native 128K)"),
    (["--ram", "24G", "--job", "6000+800"], 0, "Runs on the CPU: 5.5 of 23.0 GiB at 6,864 tokens"),
    (["--ram", "24G", "--window-budget", "1G"], 0, "Runs on the CPU: 5.7 of 23.0 GiB at 8K"),
    (["--vram", "24G,24G"], 0, "Runs fully on your 2x 24 GiB GPU: 11.8 of 23.0 GiB on the fuller card at 128K"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "code", "line"), ANSWERS)
def test_headline_is_the_first_line_and_the_quiet_answer(
    argv: list[str], code: int, line: str, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, quiet, err = run_check(capsys, llama, *argv, "--quiet")
    assert (result, err) == (code, "")
    assert re.sub(r", about [\d.,]+ tokens/s \([\d.,-]+\)", "", quiet) == f"{line}\n"
    result, out, err = run_check(capsys, llama, *argv)
    assert (result, err) == (code, "")
    assert " ".join(out.split()).startswith(quiet.rstrip())


def test_first_suggestion_drops_a_cache_flag_that_costs_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """mlx-lm has no fused attention over a quantised cache, so the same context needs more memory."""
    argv = ("qwen3-8b", "--engine", "mlx", "--device", "m2-16", "-c", "32k")
    assert run_check(capsys, *argv, "--quiet")[0] == 0
    code, out, _ = run_check(capsys, *argv, "--kv-bits", "8")
    assert code == 3
    assert "and 32K with an 8-bit cache: needs" in out
    assert "fits up\nto 14,080 tokens" in out
    assert "To fit   without --kv-bits: fits at 32,768 tokens\n" in out
    assert "-c 14080: fits\n" in out


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["--ram", "24G"], 0), (["--ram", "24G", "-c", "128k"], 1), (["--ram", "8G", "-c", "128k"], 3)],
)  # fmt: skip
def test_strict_exits_with_1_when_memory_is_tight(
    argv: list[str], code: int, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_check(capsys, llama, *argv, "--strict", "--quiet")[0] == code


def test_text_of_a_model_that_fits(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_check(capsys, llama, "--ram", "24G")
    lines = out.splitlines()
    assert lines[1].startswith("llama-3.1-8b.Q4_K_M.gguf  ·  llama.cpp  ·  max context 131,072")
    command = " ".join(line.strip(" \\") for line in out.split("\nRun")[1].splitlines())
    assert shlex.split(command)[:5] == ["llama-server", "-m", llama, "-c", "32768"]
    assert "\x1b" not in out
    assert "Basis" not in out


def test_first_suggestion_is_a_shorter_context(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_check(capsys, llama, "--ram", "8G", "-c", "128k")
    assert re.search(r"\nTo fit   -c 3\d{4}: fits with an 8-bit cache\n", out)


def test_why_shows_every_section(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_check(capsys, llama, "--ram", "24G", "--why")
    lines = out.splitlines()
    assert lines[1].startswith("llama-3.1-8b.Q4_K_M.gguf  ·  llama.cpp 0.5.0")
    assert lines[1].endswith("24 GiB RAM, fully on the CPU")
    assert lines[2].startswith("32,768 tokens of context shared by 4 sequences")
    assert "Context  checked at 32,768 tokens: the default" in lines
    assert "24.00 GiB free minus 1 GiB reserve" in out
    for label in ("Memory", "Speed", "Later", "Basis", "Note", "Run"):
        assert f"\n{label}" in out


def test_text_of_a_model_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [SAMPLE, "--device", "RTX 4070"]
    code, out, _ = run_check(capsys, *argv)
    assert code == 3
    fit = out.partition("\nTo fit")[2].partition("\n\n")[0]
    assert 1 <= len([line for line in fit.splitlines() if not line.startswith(" " * 11)]) <= 3
    assert "GiB of free RAM (--ram): fits with " in fit
    assert "\nRun" not in out  # nothing to run
    code, why, _ = run_check(capsys, *argv, "--why")
    text = " ".join(why.split())
    assert "Why 16,384 tokens need " in text
    assert "the smallest current GPU that holds the whole model" in text
    assert "the smallest current Mac that holds the whole model" in text
    assert "goes to system RAM, whose size is unknown and was not checked" in text


def test_every_suggested_machine_holds_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_check(capsys, SAMPLE, "--device", "RTX 4070", "--why")
    suggestions = out.partition("\nTo fit")[2].partition("\n\n")[0]
    ram = re.search(r"([0-9.]+) GiB of free RAM", suggestions)
    assert ram is not None
    devices = re.findall(r"^ *(\S.*): (?:enough for|the smallest) ", suggestions, re.MULTILINE)
    assert len(devices) == 3  # two GPUs of the same kind, a larger GPU, a Mac
    machines = [("--device", "RTX 4070", "--ram", f"{ram[1]}G")]
    for machine in (*machines, *(("--device", device) for device in devices)):
        answer = check_json(capsys, SAMPLE, *machine)
        assert answer["can_load"], machine
        assert answer["max_context"] >= 16_384


# --- JSON


def test_json_keys_are_documented(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = documented("check", "check, several")
    answer = check_json(capsys, llama, "--device", "RTX 4090", "-c", "1M")
    assert answer.keys() <= names
    assert answer["budgets"][0].keys() <= names
    assert answer["changes"][0].keys() <= names
    assert answer["engine"].keys() <= names
    several = check_json(capsys, llama, "none.gguf", "--ram", "8G")
    assert several.keys() <= names
    assert several["models"][1].keys() <= names
    assert several["summary"].keys() <= names


def test_json_of_a_model_that_fits(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = check_json(capsys, llama, "--ram", "24G", "-c", "8k")
    assert (answer["status"], answer["can_load"], answer["context_asked"]) == ("passed", True, True)
    assert (answer["context_tokens"], answer["context_because"]) == (8_192, "as requested")
    assert answer["estimate"]["kv_bytes"] == 8_192 * LLAMA_TOKEN
    assert answer["required_bytes"] == answer["estimate"]["total_bytes"]
    assert answer["available_bytes"] == 23 * GIB
    assert answer["utilization"] == answer["required_bytes"] / (23 * GIB)
    assert answer["reasons"] == []
    assert answer["machine"]["what_if"] is True
    assert shlex.split(answer["command"])[:3] == ["llama-server", "-m", llama]


def test_json_of_a_model_that_does_not_fit(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = check_json(capsys, llama, "--ram", "300M")
    assert (answer["status"], answer["can_load"], answer["command"]) == ("failed", False, None)
    assert (answer["available_bytes"], answer["utilization"]) == (
        0,
        None,
    )  # there is nothing to divide by
    assert answer["reasons"]


def test_json_bytes_and_tokens_are_integers(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--device", "RTX 3060", "--ram", "64G", "-c", "100k"]

    def floats(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for key, item in value.items():
                yield from floats(item, key)
        elif isinstance(value, list):
            for item in value:
                yield from floats(item, name)
        elif isinstance(value, float):
            yield name, value

    names = {name for name, _ in floats(check_json(capsys, llama, *argv))}
    assert names <= {"utilization", "within", "typical", "decode", "prefill", "prefill_typical", "interval", "low", "high", "value"}  # fmt: skip


# --- flags of the engines


@pytest.mark.parametrize(
    ("argv", "cache_bytes"),
    [
        ([], 8_192 * LLAMA_TOKEN),
        (["-ctk", "q8_0", "-ctv", "q8_0"], 8_192 * LLAMA_TOKEN * 34 // 64),
        (["-ctk", "q8_0"], 8_192 * LLAMA_TOKEN * (34 + 64) // 128),
        (["-np", "4", "--no-kv-unified"], 8_192 * LLAMA_TOKEN),
    ],
)
def test_llama_cpp_flags_set_the_cache_size(
    argv: list[str], cache_bytes: int, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = check_json(capsys, llama, "--ram", "64G", "-c", "8k", *argv)
    assert answer["estimate"]["kv_bytes"] == cache_bytes


@pytest.mark.parametrize(
    ("argv", "placement"),
    [
        (["-ngl", "10"], "as requested, on RTX 4090"),
        (["--cpu-moe"], "as requested, on RTX 4090"),
        (["--backend", "cpu"], "fully on the CPU"),
        ([], "fully on RTX 4090"),  # 17.3 GiB of weights in 22.5
        (
            ["--reserve", "6G"],
            "all but the experts of 5 of 48 layers and two thirds of the experts of one more on RTX 4090",
        ),
    ],
)
def test_placement_follows_the_flags(
    argv: list[str], placement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = check_json(
        capsys, MOE, "--device", "RTX 4090", "--ram", "64G", "-c", "16k", "--quiet", *argv
    )
    assert answer["way"] == placement
    card = next((budget for budget in answer["budgets"] if budget["name"] == "RTX 4090"), None)
    assert (card is None) == (argv == ["--backend", "cpu"])


@pytest.mark.parametrize(
    ("argv", "engine", "token_bytes", "flags"),
    [
        (["--device", "RTX 4090"], "vllm", TOKEN, []),
        (["--device", "RTX 4090", "--kv-cache-dtype", "fp8"], "vllm", TOKEN // 2, ["--kv-cache-dtype", "fp8"]),
        (["--device", "2x RTX 4090", "-tp", "2"], "vllm", TOKEN // 2, ["-tp", "2"]),
        (["--device", "m3-max-36"], "mlx", TOKEN, []),
        (["--device", "m3-max-36", "--kv-bits", "8", "--quantized-kv-start", "0"], "mlx", TOKEN * 17 // 32, ["--kv-bits", "8"]),
        (["--ram", "8G"], "llama.cpp", TOKEN, []),
    ],
)  # fmt: skip
def test_engine_is_chosen_for_the_files_and_the_machine(
    *,
    argv: list[str],
    engine: str,
    token_bytes: int,
    flags: list[str],
    folder: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = check_json(capsys, folder, "-c", "4k", *argv)
    assert answer["engine"]["name"] == engine
    key = "cache_bytes" if engine == "mlx" else "kv_bytes"
    assert answer["estimate"][key] == 4_096 * token_bytes
    assert " ".join(flags) in answer["command"]


@pytest.mark.parametrize("command", ["check", "plan"])
@pytest.mark.parametrize(
    ("flags", "batch"),
    [((), 8192), (("-b", "8k"), 8192), (("-ub", "8k"), 8192), (("-b", "1k"), 1024), (("-ub", "512"), 512)],
)  # fmt: skip
def test_embedding_model_gets_a_batch_as_long_as_its_context(
    flags: tuple[str, ...], batch: int, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batch and micro-batch are equal. A smaller one that is requested sets both, with a note."""
    argv = ("jina-embeddings-v2-base-en", "-c", "8k", "--ram", "16G", "--json", *flags)
    assert main([command, *argv]) == 0
    output = json.loads(capsys.readouterr().out)
    started = output["command"] if command == "check" else output["commands"][0]["text"]
    assert f"-b {batch} -ub {batch}" in started
    assert output["estimate"]["facts"]["n_ubatch"] == batch
    if command == "check":
        note = f"texts over {batch:,} tokens are refused"
        assert any(note in item for item in output["estimate"]["notes"]) == (batch < 8192)


def test_check_and_plan_start_an_embedding_file_with_the_same_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_model(tmp_path, "all-minilm-l6-v2", quant="Q8_0"))
    commands = []
    for command in ("check", "plan"):
        assert main([command, model, "--ram", "16G", "--json"]) == 0
        output = json.loads(capsys.readouterr().out)
        commands.append(output["command"] if command == "check" else output["commands"][0]["text"])
    assert all("--embeddings" in item for item in commands)
    # a text as long as the context in one batch
    assert all("-b 512 -ub 512" in item for item in commands)


def test_check_and_plan_count_a_model_published_at_4_bits_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = []
    for command in ("check", "plan"):
        assert main([command, "gpt-oss-120b", "--ram", "256G", "--json"]) == 0
        output = json.loads(capsys.readouterr().out)
        weights.append(output["estimate"]["model_bytes"])
        assert "-hf ggml-org/gpt-oss-120b-GGUF " in json.dumps(output)
    assert weights[0] == weights[1]
    assert f"{weights[0] / GIB:.2f}" == "59.02"


@pytest.mark.parametrize(
    ("device", "more"),
    [("RTX 4090", ()), ("m3-max-64", ()), ("m3-max-64", ("-dev", "none", "--repack"))],
)
def test_described_machine_gets_the_same_answer_on_any_processor(
    device: str,
    more: tuple[str, ...],
    llama: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights are repacked for the described processor, not for the one that runs the check."""
    answers = []
    for processor in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda processor=processor: processor)
        answers.append(check_json(capsys, llama, "-c", "4k", "--device", device, *more))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("model", "argv"),
    [
        ("llama", ["--ram", "24G"]),
        ("llama", ["--ram", "24G", "-c", "8k", "-ctk", "q8_0", "-ctv", "q8_0", "-np", "2"]),
        ("llama", ["--ram", "24G", "--job", "6000+800"]),
        ("llama", ["--ram", "64G", "--no-mmap", "-fa", "off", "--embeddings"]),
        ("llama", ["--ram", "64G", "-c", "8k", "-np", "3", "--embeddings"]),
        ("llama", ["--ram", "64G", "-c", "8k", "-b", "256", "--embeddings"]),
        ("llama", ["--ram", "64G", "-c", "8k", "-ub", "8k", "--embeddings"]),
        ("llama", ["--device", "RTX 4090"]),
        ("llama", ["--device", "RTX 3060", "--ram", "64G", "-c", "100k"]),
        ("llama", ["--device", "RTX 4090", "--ram", "64G", "-ngl", "10"]),
        (MOE, ["--device", "RTX 3060", "--ram", "64G"]),
        (MOE, ["--device", "RTX 4090", "--ram", "64G", "--cpu-moe"]),
        (SAMPLE, ["--device", "RTX 4090", "--ram", "64G", "--swa-full"]),
        ("folder", ["--device", "RTX 4090", "--kv-cache-dtype", "fp8"]),
        ("folder", ["--device", "2x RTX 4090", "-tp", "2"]),
        ("folder", ["--device", "m3-max-36", "--kv-bits", "8"]),
        ("folder", ["--ram", "8G"]),
    ],
)
def test_estimate_of_the_printed_command_is_the_same(
    *,
    model: str,
    argv: list[str],
    llama: str,
    folder: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`edgekit estimate` with its flags gives the same memory."""
    reference = {"llama": llama, "folder": folder}.get(model, model)
    answer = check_json(capsys, reference, "--quiet", *argv)
    program, *rest = shlex.split(answer["command"])
    flags = rest[2:]  # after -m FILE, serve MODEL, --model MODEL
    if program == "mlx_lm.generate":  # which has no flags for the context and the quantisation
        assert any("mlx_lm.convert --hf-path" in note and "-q --q-bits 6 --q-group-size 64 --mlx-path" in note for note in answer["notes"])  # fmt: skip
        assert flags[:2] == ["--prompt", "-"]
        flags = [*flags[2:], "-c", str(answer["context_tokens"]), "--quantize", "q6"]
    if program == "mlx_lm.server":  # nor for the quantisation, and some that estimate has not
        assert flags[:6:2] == [
            "--decode-concurrency",
            "--prompt-concurrency",
            "--prompt-cache-bytes",
        ]
        flags = [*flags[6:], "-c", str(answer["context_tokens"]), "--quantize", "q6"]
    if "mix" in answer["flags"]:  # of a file that is still to be converted
        assert rest[1].endswith(f"-{answer['flags']['mix']}.gguf")
        flags += ["--mix", answer["flags"]["mix"]]
    if flags[-2:] == ["-dev", "none"]:
        flags = flags[:-2]
    engine = answer["engine"]["name"]
    code = main(["estimate", reference, "--engine", engine, *flags, "--json"])
    estimate = json.loads(capsys.readouterr().out)
    assert code == 0
    sums = {name: size for name, size in estimate.items() if name.endswith("_bytes")}
    # the command may limit the prompt cache
    assert sums.pop("later_bytes") <= answer["estimate"]["later_bytes"]
    assert {name: answer["estimate"][name] for name in sums} == sums


@pytest.mark.parametrize(
    ("model", "argv", "flags"),
    [
        ("sample:qwen3-30b-a3b", ("--device", "RTX 3060", "--ram", "32G", "-c", "32k"), {"context": "32768", "n_gpu_layers": "all", "n_cpu_moe": "30", "override_tensor": "blk.30.ffn_gate_exps=CPU,blk.30.ffn_down_exps=CPU"}),
        (SAMPLE, ("--device", "RTX 4090", "--ram", "64G"), {"context": "32768", "n_gpu_layers": "all", "ctx_checkpoints": "29"}),
        (SAMPLE, ("--device", "RTX 3060", "--ram", "64G"), {"context": "32768", "n_gpu_layers": "29", "ctx_checkpoints": "23"}),
        (SAMPLE, ("--ram", "512G", "-ctk", "q8_0", "-fa", "on", "-c", "8k"), {"context": "8192", "type_k": "q8_0", "flash_attn": "on"}),
        (SAMPLE, ("--ram", "512G", "-c", "8k", "--no-mmap", "-np", "2"), {"context": "8192", "mmap": False, "parallel": "2"}),
    ],
)  # fmt: skip
def test_json_flags_are_those_of_the_command(
    model: str,
    argv: tuple[str, ...],
    flags: dict[str, str | bool],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By option name, so that programs need not parse the command."""
    assert main(["check", model, *argv, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["flags"] == flags


def test_engine_all_is_a_table_of_engines(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_check(capsys, folder, "--engine", "all", "--device", "RTX 4090")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert [row[:2] for row in rows[3:5]] == [["fits", "llama.cpp"], ["fits", "vllm"]]
    assert rows[5][:3] == ["cannot", "run", "mlx"]
    assert "mlx: MLX needs a Mac with Apple silicon; this is: RTX 4090" in " ".join(out.split())
    assert out.splitlines()[-1] == "2 fit, 1 cannot run"


def test_engine_all_as_json_exits_with_the_best_code(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GGUF runs on two of the four engines."""
    code, out, _ = run_check(capsys, llama, "--engine", "all", "--ram", "24G", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["summary"] == {
        "fits": 2,
        "tight": 0,
        "does_not_fit": 0,
        "cannot_run": 2,
        "not_read": 0,
    }
    first, *others, last = answer["models"]
    assert (first["engine"]["name"], last["engine"]["name"]) == ("llama.cpp", "stream")
    assert [other["engine"] for other in others] == ["vllm", "mlx"]
    assert {other["error"]["type"] for other in others} == {"HardwareError"}


@pytest.mark.parametrize("name", ["auto", "AUTO", "llama.cpp", "llamacpp", "LLAMA.CPP", "ollama"])
def test_every_name_of_llama_cpp_selects_it(
    name: str, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        check_json(capsys, llama, "--ram", "24G", "--quiet", "--engine", name)["engine"]["name"]
        == "llama.cpp"
    )


# --- machines


@pytest.mark.parametrize("size", ["24G", "24 GB", "24g", "24GiB", "24gib", " 24G ", "24576M", "24_576MB", "0.0234375T"])  # fmt: skip
def test_ram_takes_every_spelling_of_a_size(
    size: str, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (["--ram", size], [f"--ram={size}"]):
        assert check_json(capsys, llama, "--quiet", *argv)["available_bytes"] == 23 * GIB


@pytest.mark.parametrize("size", ["0", "-1", "1e99", "abc", "", " ", "24", "24X", "0x18", "nan", "inf", "9" * 30 + "G", "G", "-24G", "24G,24G"])  # fmt: skip
def test_invalid_ram_is_an_error(size: str, llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_check(capsys, llama, f"--ram={size}")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"edgekit: --ram: ('|must not be negative).*\n", err)


def test_size_without_a_unit_is_an_error(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs a unit, such as 24G" in run_check(capsys, llama, "--vram", "24")[2]


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--device", "RTX 4090"], ["RTX 4090"]),
        (["--device", "rtx4090"], ["RTX 4090"]),
        (["--device", "4090"], ["RTX 4090"]),
        (["--device", "2x", "RTX 3090"], ["RTX 3090", "RTX 3090"]),
        (["--device", "2x RTX 3090"], ["RTX 3090", "RTX 3090"]),
        (["--device=2x", "RTX 3090"], ["RTX 3090", "RTX 3090"]),
        (["--device", "RTX 4090 + RTX 3060"], ["RTX 4090", "RTX 3060"]),
        (["--device", "RTX 4090", "--device", "RTX 3060"], ["RTX 4090", "RTX 3060"]),
        (["--device", "m3-max-64"], ["M3 Max 64GB"]),
        (["--device", "phone-8"], []),
        (["--vram", "2x24G"], ["24 GiB GPU", "24 GiB GPU"]),
    ],
)
def test_device_and_vram_describe_the_machine(
    argv: list[str], names: list[str], llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = check_json(capsys, llama, "--quiet", *argv)
    assert [device["name"] for device in answer["machine"]["devices"]] == names


# --- errors

ERRORS = [
    (["{llama}", "--engine", "tgi"], 2, "unknown engine 'tgi'; choose one of llama.cpp, vllm, mlx"),
    (["{llama}", "--engine", ""], 2, "unknown engine ''"),
    (["{llama}", "--engine", "mlx", "-ngl", "3"], 2, "is a flag of llama.cpp; the engine here is mlx"),
    (["{llama}", "-tp", "2", "-ngl", "3"], 2, "choose one with --engine"),
    (["{llama}", "-ctk", "q7_0"], 2, "llama.cpp has f16, q8_0"),
    (["{llama}", "-c", "lots"], 2, "'lots' is not a whole number"),
    (["{llama}", "-c", "-5"], 2, "must not be negative (got -5)"),
    (["{llama}", "-c", "99999999999"], 2, "must be at most 2,147,483,647"),
    (["{llama}", "-c", "1", "--ram", "24G"], 2, "llama.cpp aborts: 1 output rows for 4 sequences"),
    (["{llama}", "--job", "6000"], 2, "for example 6000+800 (got '6000')"),
    (["{llama}", "--job", "6000+"], 2, "--job: '' is not a whole number"),
    (["{llama}", "--job=-1+5"], 2, "--job: must not be negative (got -1)"),
    (["{llama}", "--min-speed", "0"], 2, "--min-speed takes tokens per second above 0"),
    (["{llama}", "--acceptance", "0.7"], 2, "--acceptance needs a draft model: add -md MODEL"),
    (["{llama}", "-md", "qwen3-0.6b", "--draft-max", "0", "--acceptance", "0.7"], 2, "--draft-max 0 turns drafting off"),
    (["{llama}", "--engine", "vllm", "--acceptance", "0.7"], 2, "only works with llama.cpp and a draft model, not with vllm"),
    (["{llama}", "--acceptance", "70"], 2, "--acceptance takes a share from 0 to 100%, for example 70% or 0.7 (got '70')"),
    (["{llama}", "--acceptance", "nan"], 2, "--acceptance takes a share"),
    (["{llama}", "--acceptance=-1%"], 2, "--acceptance takes a share"),
    (["{llama}", "--prompt", "x"], 2, "--prompt: 'x' is not a whole number"),
    (["{llama}", "--min-context", "abc"], 2, "--min-context: 'abc' is not a whole number"),
    (["{llama}", "--window-budget", "abc"], 2, "--window-budget: 'abc' is not a size"),
    (["{llama}", "--download-up-to", "lots"], 2, "--download-up-to: 'lots' is not a size"),
    (["{llama}", "--device", "RTX 4009"], 2, "did you mean RTX 4090"),
    (["{llama}", "--device", "m3 max"], 2, "comes in several sizes: M3 Max 36GB"),
    (["{llama}", "--device", ""], 2, "--device is empty"),
    (["{llama}", "--ram", "16G", "--reserve", "5"], 2, "--reserve takes a size like 512M or 2G, or 0"),
    (["{llama}", "--ram", "16G", "--reserve", "17G"], 2, "--reserve is more than the largest memory here, 16.00 GiB"),
    (["{llama}", "--ram", "16G", "--reserve", "-1G"], 2, "--reserve takes a size like 512M or 2G, or 0 (got '-1G')"),
    (["{llama}", "--vram", "-1G"], 2, "--vram: must not be negative (got -1G)"),
    (["{llama}", "--ram", "16G", "--max-use", "180%"], 2, "takes a share above 0 and up to 100%"),
    (["{llama}", "--device", "2x"], 2, "unknown device '2x'"),
    (["{llama}", "--device", "0x RTX 3090"], 2, "the number of GPUs must be 1 to 64"),
    (["{llama}", "--device", "99x RTX 3090"], 2, "the number of GPUs must be 1 to 64"),
    (["{llama}", "--device", "m3-max-64", "--ram", "32G"], 2, "has 64 GiB of unified memory"),
    (["{llama}", "--device", "RTX 4090", "--vram", "8G"], 2, "give one of them"),
    (["{llama}", "--vram", "24G,abc"], 2, "--vram: 'abc' is not a size"),
    (["{llama}", "--device", "RTX 4090", "-ts", "3,1"], 2, "has 2 shares, but the machine has 1 GPUs"),
    (["{llama}", "--device", "RTX 4090", "--engine", "mlx"], 3, "MLX needs a Mac with Apple silicon; this is: RTX 4090"),
    (["{llama}", "--ram", "8G", "--engine", "vllm"], 3, "NVIDIA"),
    (["{llama}", "--device", "RTX 4090", "--engine", "vllm"], 2, "does not load GGUF"),
    (["{llama}", "--device", "m3-max-64", "--engine", "mlx"], 2, "mlx-lm loads safetensors"),
    (["{folder}", "--device", "RTX 4090", "-tp", "2"], 3, "should use 2 GPUs, but RTX 4090 has 1"),
    ([""], 2, "no model given"),
    ([" "], 2, "no model given"),
    (["a\x1b[31mred"], 2, "control characters"),
    (["a" * 5000], 2, "is not a model name"),
    (["sample:nope"], 4, "Did you mean: gemma-3-27b, qwen3-30b-a3b?"),
    (["{bad}/llama-3.1-8B.Q4_K_M.gguf"], 4, "no such file or folder"),
    (["{near}/llama-3.1-8b.Q4_K_S.gguf"], 4, "Did you mean: {llama}"),
    (["{bad}/empty"], 4, "no GGUF, safetensors or config.json"),
    (["{bad}/page.gguf"], 5, "it looks like a web page"),
    (["{bad}/zero.gguf"], 5, "the file is empty"),
    (["{bad}/cut.gguf"], 5, "file is truncated"),
    (["{bad}/v4.gguf"], 5, "GGUF version 4 is newer than the newest version that edgekit knows"),
    (["{bad}/unknown.gguf"], 2, "does not support architecture 'zzz'; a newer version may"),
    (["{bad}/bare.gguf"], 5, "zzz"),
    (["{bad}/clip.gguf"], 2, "memory can only be estimated for a language model"),
    (["/dev/null"], 4, "is a device, not a file"),
]  # fmt: skip


@pytest.fixture(scope="module")
def damaged_files(tmp_path_factory: pytest.TempPathFactory, llama: str) -> str:
    path = tmp_path_factory.mktemp("bad")
    (path / "empty").mkdir()
    (path / "page.gguf").write_bytes(b"<!DOCTYPE html><html>")
    (path / "zero.gguf").write_bytes(b"")
    with Path(llama).open("rb") as file:
        (path / "cut.gguf").write_bytes(file.read(3000))
    (path / "v4.gguf").write_bytes(b"GGUF" + bytes([4, 0, 0, 0]))
    architecture = key("general.architecture", STRING, "zzz")
    numbers = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "context_length": 2048, "feed_forward_length": 128}  # fmt: skip
    keys = [architecture, *(key(f"zzz.{name}", UINT32, value) for name, value in numbers.items())]
    (path / "unknown.gguf").write_bytes(gguf(keys))
    (path / "bare.gguf").write_bytes(gguf([architecture]))
    (path / "clip.gguf").write_bytes(gguf([key("general.architecture", STRING, "clip")]))
    return str(path)


@pytest.mark.parametrize(("argv", "code", "message"), ERRORS)
def test_error_is_one_line_and_an_exit_code(
    *,
    argv: list[str],
    code: int,
    message: str,
    llama: str,
    folder: str,
    damaged_files: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = {
        "llama": llama,
        "folder": folder,
        "bad": damaged_files,
        "near": str(Path(llama).parent),
    }
    filled = [re.sub(r"\{(\w+)\}", lambda match: paths[match[1]], word) for word in argv]
    result, out, err = run_check(capsys, *filled)
    assert (result, out) == (code, "")
    assert err.startswith("edgekit: ")
    assert len(err.strip().splitlines()) == 1
    assert message.replace("{llama}", llama) in err
    assert "\x1b" not in err
    result, out, _ = run_check(capsys, *filled, "--json")
    assert result == code
    assert json.loads(out)["error"]["message"]


def test_memory_flags_of_estimate_are_not_flags_of_check(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--gpu-memory", "--device-memory"):
        with pytest.raises(SystemExit) as caught:
            main(["check", llama, flag, "24G"])
        assert caught.value.code == 2
        assert f"check has no flag {flag}; it is a flag of estimate" in capsys.readouterr().err


# --- terminals and pipes


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_terminal_gets_colour_unless_it_is_dumb_or_no_color_is_set(llama: str) -> None:
    outputs = run_on_terminals(llama, "--ram", "24G")
    assert len(outputs) == len(TERMINAL_ENVIRONMENTS)
    for text, coloured in zip(outputs, (True, False, False), strict=True):
        assert b"Runs on the CPU: 8.7 of 23.0 GiB at 32K" in text
        assert (b"\x1b[1;32mRuns on the CPU: 8.7 of 23.0 GiB at 32K" in text) == coloured
        assert (b"\x1b" in text) == coloured


TERMINAL_ENVIRONMENTS: tuple[dict[str, str], ...] = ({}, {"NO_COLOR": ""}, {"TERM": "dumb"})
RUN_ON_EACH_TERMINAL = f"""
import os, sys
from edgekit.cli import main
for number, environment in enumerate({TERMINAL_ENVIRONMENTS}):
    os.environ.pop("NO_COLOR", None)
    os.environ.update({{"TERM": "xterm", **environment}})
    print("", end="\\0" if number else "", flush=True)
    main(sys.argv[1:])
"""


def run_on_terminals(*argv: str) -> list[bytes]:
    """The output of one process that runs the command once in each of these environments."""
    import pty

    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_ON_EACH_TERMINAL, "check", *argv],
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    output = b""
    with suppress(OSError):  # EIO: the other end is closed
        while chunk := os.read(controller, 65536):
            output += chunk
    os.close(controller)
    assert process.wait(PATIENCE_S) == 0
    return output.split(b"\0")


@pytest.mark.parametrize("columns", [20, 40, 80, 300] if LONG else [20])
def test_no_line_is_wider_than_the_screen(
    columns: int,
    folder: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(Path(folder).parent)
    short = Path(folder).name  # a path is not broken
    screens = (
        [SAMPLE, "--device", "RTX 4090"],
        [SAMPLE, "--device", "RTX 4090", "--ram", "64G"],
        [short, "--device", "RTX 4090", "--engine", "all"],
        [SAMPLE, "--device", "m3-max-36"],
        [short, MOE, "none.gguf", "--ram", "8G"],
        [SAMPLE, "--device", "2x RTX 3090", "--ram", "64G"],
    )
    for argv in sampled(screens, each=2):
        _, out, _ = run_check(capsys, *argv)
        body = out.split("\nRun")[0]  # nor are the words of the command
        assert max(map(len, body.splitlines())) <= min(columns, 100), argv


@pytest.mark.parametrize(
    "argv", [[SAMPLE, "--ram", "64G"], [SAMPLE, MOE, "--ram", "64G"], [MOE, "--device", "RTX 3060"]]
)  # fmt: skip
def test_ascii_output_has_no_replaced_characters(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["check", *argv]) in {0, 3}
    text = written.getvalue().decode("ascii")
    assert "?" not in text  # nothing was replaced
    if len(argv) == 3:
        assert "[###" in text


def test_closed_pipe_is_not_an_error(llama: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m edgekit check {shlex.quote(llama)} --ram 24G"
    completed = subprocess.run(["sh", "-c", f"{command} | head -1"], capture_output=True, text=True, check=True, timeout=PATIENCE_S)  # fmt: skip
    line = r"Runs on the CPU: 8\.7 of 23\.0 GiB at 32K, about [\d.]+ tokens/s \([\d.]+-\d+\)\n"
    assert re.fullmatch(line, completed.stdout)
    assert completed.stderr == ""


# --- resource limits


CHECK_UNDER_LIMITS = f"""
import resource, sys
from edgekit.cli import main
argv = ["check", *sys.argv[1:], "--backend", "cpu"]
for limit, more in (({2**20 * GIB}, ["--json"]), ({4 * GIB}, ["--json"]), ({4 * GIB}, [])):
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    code = main([*argv, *more])
    print("\\0", code, "\\0", sep="", end="")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is a limit of Linux")
def test_address_space_limit_counts_as_the_memory(llama: str) -> None:
    """First a limit far above the RAM, then 4 GiB, as `ulimit -v` sets it."""
    import psutil

    if psutil.virtual_memory().available < 9 * GIB:
        pytest.skip("needs 9 GiB of free memory")
    completed = subprocess.run(
        [sys.executable, "-c", CHECK_UNDER_LIMITS, llama], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )  # fmt: skip
    assert (completed.returncode, completed.stderr) == (0, "")
    wide, wide_code, narrow, narrow_code, text, text_code, _ = completed.stdout.split("\0")
    assert (wide_code, narrow_code, text_code) == ("0", "3", "3")
    for answer in (json.loads(wide), json.loads(narrow)):
        names = [limit["name"] for limit in answer["machine"]["host"]["limits"]]
        assert any(name.startswith("RLIMIT_AS") for name in names)
    assert json.loads(wide)["available_bytes"] > 6 * GIB
    answer = json.loads(narrow)
    assert answer["available_bytes"] < 3 * GIB < answer["machine"]["host"]["free_bytes"]
    assert answer["max_context"] == 0
    assert re.match(
        r"Does not fit your RAM, even at 16K .*: needs 5\.8 GiB, [123]\.\d usable\n", text
    )
    assert "now), limited by RLIMIT_AS (ulimit -v)" in " ".join(text.split())


# --- contexts and jobs


@pytest.mark.parametrize("machine", [["--ram", "8G"], ["--device", "m3-max-36"]])
def test_default_context_is_at_most_the_native_one(
    machine: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 100}))
    assert check_json(capsys, str(tmp_path), *machine)["context_tokens"] == 100


@pytest.mark.parametrize("device", ["RTX 4090", "m3-max-36"])
def test_context_0_is_the_native_context_on_every_engine(
    device: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = check_json(capsys, folder, "--device", device, "-c", "0", "--window-budget", "1M")
    assert (answer["context_tokens"], answer["context_asked"]) == (8_192, True)


def test_job_longer_than_the_native_context_is_marked(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_check(capsys, llama, "--ram", "64G", "--job", "100k+100k")
    assert " at 128K (the model's limit, shorter than the job)" in " ".join(out.split())


def test_job_and_context_exclude_each_other(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(capsys, llama, "--ram", "64G", "--job", "6000+800", "-c", "8k")[0] == 2


def test_min_context_beyond_the_native_one_does_not_fit(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_check(capsys, llama, "--ram", "64G", "--min-context", "200k", "--quiet")[0] == 3


def test_decimal_comma_is_an_error(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    """1,5G would read as 15 GiB with a thousands separator, but as 1.5 GiB in much of the world."""
    assert run_check(capsys, llama, "--ram", "1,5G")[0] == 2


def test_min_speed_out_of_reach_exits_with_3_and_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("qwen3-8b", "--device", "RTX 4090", "--ram", "64G", "--min-speed")
    code, out, _ = run_check(capsys, *argv, "900")
    assert code == 3
    assert "slower than the 900 tokens/s you asked for" in " ".join(out.split())
    code, out, _ = run_check(capsys, *argv, "900", "--json")
    answer = json.loads(out)
    assert (code, answer["can_load"], answer["status"]) == (3, True, "passed")
    assert (answer["min_speed"], answer["is_fast_enough"]) == (900, False)
    code, out, _ = run_check(capsys, *argv, "20", "--json")
    assert (code, json.loads(out)["is_fast_enough"]) == (0, True)


def test_acceptance_shows_the_speed_with_the_draft_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("qwen3-32b", "--device", "RTX 4090", "-md", "qwen3-0.6b")
    _, out, _ = run_check(capsys, *argv)
    assert "--acceptance 70% shows the speed if 70 % are" in " ".join(out.split())
    _, out, _ = run_check(capsys, *argv, "--acceptance", "70%")
    assert "as the draft model at 70 % acceptance about " in " ".join(out.split())
    drafting: dict[str, Any] = {}
    for acceptance in ("0", "0.7", "100%"):
        _, out, _ = run_check(capsys, *argv, "--acceptance", acceptance, "--json")
        speed = json.loads(out)["speed"]
        drafting[acceptance] = speed["speculative"]
    assert drafting["0"]["typical"] < speed["typical"] < drafting["0.7"]["typical"]
    assert drafting["0.7"]["typical"] < drafting["100%"]["typical"] < 4 * speed["typical"]
    slow, fast = drafting["0.7"]["decode"]
    assert slow < drafting["0.7"]["typical"] < fast
    assert (drafting["0.7"]["acceptance"], drafting["0.7"]["draft_tokens"]) == (0.7, 3)


def test_why_has_the_time_to_the_first_word_of_a_prompt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("qwen3-8b", "--device", "RTX 4090", "--ram", "64G", "--prompt", "4k")
    _, out, _ = run_check(capsys, *argv, "--why")
    words = " ".join(out.split())
    assert "first word after about " in words
    assert "for a prompt of 4,096 tokens" in words
    assert "from an NVMe disk (assumed 3 GB/s)" in words
    _, out, _ = run_check(capsys, *argv, "--json")
    first = json.loads(out)["first_token_s"]
    assert first["prompt_tokens"] == 4096
    assert first["low"] < first["typical"] < first["high"]


def test_min_context_0_does_not_make_large_weights_fit(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_check(capsys, llama, "--ram", "4G", "--min-context", "0", "--quiet")[0] == 3


def test_output_that_is_not_a_terminal_has_no_colour(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_check(capsys, llama, "--ram", "24G")
    assert (code, err) == (0, "")
    assert not {"\x1b", "\r"} & set(out)


def test_all_experts_in_ram_is_tried_where_another_placement_needs_more_vram(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With only the experts in RAM the model needs less VRAM than with the output layer there too."""
    machine = ("--device", "RTX 4060", "--ram", "16G", "-ub", "2048", "--llama-version", "0.6")
    argv = ("gemma-4-26b-a4b", "--mix", "IQ4_XS", "-c", "115712", "--no-mmproj", *machine)
    answer = check_json(capsys, *argv, "--quiet")
    assert answer["status"] == "warning"
    assert answer["way"] == "all but the experts on RTX 4060"


@pytest.mark.parametrize(
    ("gpus", "engine", "begins"),
    [
        (
            "1G,24G",
            "llama.cpp",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1 llama-server ",
        ),
        ("24G,24G", "llama.cpp", "llama-server "),
        ("2G,24G", "vllm", "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1 vllm serve "),
    ],
)
def test_command_selects_the_gpus_that_were_judged(
    gpus: str, engine: str, begins: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = check_json(
        capsys, folder, "--engine", engine, "--vram", gpus, "--ram", "64G", "-c", "2k"
    )
    assert answer["command"].startswith(begins)


def test_name_with_a_nul_does_not_end_the_list(
    llama: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"~a\0b\n{llama}\n".encode())))
    code, out, _ = run_check(capsys, "-", "--ram", "64G")
    assert code == 2
    assert "contains control characters" in out
    assert "fits" in out


def test_for_prints_the_command_of_another_program(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ("--device", "RTX 4060", "--ram", "32G")
    code, out, _ = run_check(capsys, "qwen3-8b", *machine, "--for", "Ollama")
    assert code == 0
    assert out.splitlines()[-1] == "ollama run hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"
    answer = check_json(capsys, "qwen3-8b", *machine, "--for", "llama-cli")
    assert answer["command"].startswith("llama-cli -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 16384 -np 1 ")


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("--for", "vllm"), ", or add --engine vllm"),
        (("--for", "llama-server", "--engine", "vllm"), ", or add --engine llama.cpp"),
        (("--for", "llama.cpp"), "ollama, lm-studio"),  # an engine, not a program
    ],
)
def test_for_a_program_of_another_engine_names_the_engine(
    argv: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_check(capsys, "qwen3-8b", "--device", "RTX 4090", "--ram", "32G", *argv)
    assert code == 2
    assert err.splitlines()[-1].endswith(hint)


@pytest.mark.parametrize("argv", [("qwen3-8b", "qwen3-4b"), ("qwen3-8b", "--engine", "all")])
def test_for_needs_one_model_and_one_engine(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_check(capsys, *argv, "--ram", "32G", "--for", "ollama")
    assert (code, "--for prints the command of one model and one engine" in err) == (2, True)


def test_requested_flags_are_in_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--context-shift", "-cram", "100", "-ctxcp", "2", "--repack")
    for command in ("check", "plan"):
        main([command, "qwen3-8b", "--ram", "32G", "-c", "8k", *flags, "--json"])
        output = json.loads(capsys.readouterr().out)["estimate"]["command"]
        assert output.endswith(" -dev none --context-shift --repack -cram 100 -ctxcp 2")


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("gemma-3-1b", "-hfd ggml-org/gemma-3-1b-it-GGUF"),
        ("Gemma 3 1B", "-hfd ggml-org/gemma-3-1b-it-GGUF"),
    ],
)
def test_draft_model_of_the_catalog_is_its_repository_in_the_command(
    name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "gemma-3-27b", "-md", name, "--device", "RTX 4090", "--json"])
    assert flag in json.loads(capsys.readouterr().out)["command"]


def test_draft_model_is_counted_at_the_quantisation_in_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def weights(draft: str) -> int:
        main(["check", "qwen3-14b", "-c", "8k", "-md", draft, "--device", "RTX 4090", "--json"])
        lines = json.loads(capsys.readouterr().out)["estimate"]["lines"]
        parts = (line for line in lines if line["part"] == "drafter")
        return sum(part["bytes"] for part in parts if part["component"] == "weights")

    usual, eight, full = map(weights, ("qwen3-4b", "qwen3-4b:Q8_0", "qwen3-4b:F16"))
    assert 1.5 * usual < eight < 2 * usual
    assert 3 * usual < full < 4 * usual


# --- notes


def read_note(command: str, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([command, *argv]) == 0
    note = capsys.readouterr().out.split("\nNote ")[1].split("\n\n")[0]
    return " ".join(note.split())


@pytest.mark.parametrize(
    ("argv", "note"),
    [
        (["qwen3-8b", "-c", "128k", "--device", "rtx-4090"], "the native context is 40,960 tokens: beyond it"),
        (["qwen3-8b", "--engine", "mlx", "--device", "m2-16"], "accepts requests of any length"),
        (["gemma-3-12b", "--device", "rtx-4090"], "approximate: config.json does not state context"),
        (["gemma-3-27b", "--device", "rtx-4090"], "the image projector and one image are counted, because -hf loads"),
        (["lfm2.5-vl-1.6b", "--device", "rtx-4090"], "text only: without --no-mmproj llama.cpp also loads the"),
        (["qwen3-8b", "--ram", "16G"], "counts all of its memory as free; leave more"),
        (["qwen3-8b", "--device", "rtx-4090", "--ram", "32G"], "assumes the machine is otherwise idle"),
    ],
)  # fmt: skip
def test_check_and_plan_have_the_same_notes(
    argv: list[str], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = read_note("check", capsys, *argv)
    assert note in result
    assert read_note("plan", capsys, *argv) == result


@pytest.mark.parametrize(
    "argv",
    [
        ["qwen3-8b", "--ram", "16G"],
        ["qwen3-8b", "--ram", "16G", "--engine", "stream"],
        ["qwen3-8b", "--device", "m2-16", "--engine", "mlx"],
        ["qwen3-8b", "--device", "m2-16"],
        ["qwen3-0.6b", "--ram", "2G", "--engine", "stream", "--max-use", "95%"],
    ],
)
def test_flag_suggested_by_a_note_is_accepted(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    note = read_note("check", capsys, *argv)
    suggested = re.findall(r"with (--reserve|--max-use) (\S+)", note)
    assert suggested or "otherwise idle" in note
    for flag in suggested:
        assert flag[0] not in argv
        code, _, err = run_check(capsys, *argv, *flag)
        assert (code, err) in {(0, ""), (3, "")}


def test_projector_that_the_index_does_not_know_must_be_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("lfm2.5-vl-1.6b", "--device", "rtx-4090", "--mmproj", "auto")
    code, _, err = run_check(capsys, *argv)
    assert code == 2
    assert "download it and give its path with --mmproj FILE" in err


def test_vision_model_of_the_index_is_checked_with_its_projector_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """-hf loads the projector: 0.86 GB at F16 (27 biases of 4304 x 4 bytes padded by 64), and a buffer for an image."""
    argv = ("gemma-3-27b", "-c", "8k", "--device", "rtx-4090")
    counted, text_only = check_json(capsys, *argv), check_json(capsys, *argv, "--no-mmproj")
    asked = check_json(capsys, *argv, "--mmproj", "auto")
    more = counted["required_bytes"] - text_only["required_bytes"]
    assert more == 857_714_112 + 27 * 64 + 4096 * (4304 + 3 * 1152) * 4
    assert asked["required_bytes"] == counted["required_bytes"]
    assert "--no-mmproj" not in counted["command"]
    assert "--no-mmproj" in text_only["command"]


def test_draft_model_without_a_repository_is_a_placeholder_to_replace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run_check(
        capsys, "qwen3-8b", "-md", "qwen3-0.6b:F16", "-c", "8k", "--device", "RTX 4090"
    )
    assert "-md DRAFT.gguf" in out
    assert "replace DRAFT.gguf with the file of qwen3-0.6b:F16" in out


def test_tensor_split_below_float_precision_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_check(capsys, "qwen3-8b", "-ts", "1e-320,1", "--device", "2x RTX 3060")
    assert (code, "is not a list of shares" in err) == (2, True)
