"""`edgekit check` as a person or a program meets it."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
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
    """Four layers of a Qwen3 that nobody has converted."""
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["check", *words])
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    _, out, err = ask(capsys, *words, "--json")
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


# --- the answer

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


@pytest.mark.parametrize(("words", "code", "line"), ANSWERS)
def test_the_answer_comes_first(
    words: list[str], code: int, line: str, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, quiet, err = ask(capsys, llama, *words, "--quiet")
    assert (result, err) == (code, "")
    assert re.sub(r", about [\d.,]+ tokens/s", "", quiet) == f"{line}\n"
    result, out, err = ask(capsys, llama, *words)
    assert (result, err) == (code, "")
    assert " ".join(out.split()).startswith(quiet.rstrip())


def test_a_cache_flag_that_keeps_the_model_from_fitting_is_dropped_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """mlx-lm has no fused attention over a quantised cache: with it the same context needs more."""
    words = ("qwen3-8b", "--engine", "mlx", "--device", "m2-16", "-c", "32k")
    assert ask(capsys, *words, "--quiet")[0] == 0
    code, out, _ = ask(capsys, *words, "--kv-bits", "8")
    assert code == 3
    assert "and 32K with an 8-bit cache: needs" in out
    assert "fits up\nto 14,080 tokens" in out
    assert "To fit   without --kv-bits: fits at 32,768 tokens\n" in out
    assert "-c 14080: fits\n" in out


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--ram", "24G"], 0), (["--ram", "24G", "-c", "128k"], 1), (["--ram", "8G", "-c", "128k"], 3)],
)  # fmt: skip
def test_strict_minds_what_is_tight(
    words: list[str], code: int, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(capsys, llama, *words, "--strict", "--quiet")[0] == code


def test_one_screen_of_what_fits(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, llama, "--ram", "24G")
    lines = out.splitlines()
    assert lines[1].startswith(
        "llama-3.1-8b.Q4_K_M.gguf  ·  llama.cpp  ·  max context 131,072  ·  "
    )
    command = " ".join(line.strip(" \\") for line in out.split("\nRun")[1].splitlines())
    assert shlex.split(command)[:5] == ["llama-server", "-m", llama, "-c", "32768"]
    assert "\x1b" not in out
    assert "Basis" not in out


def test_a_shorter_context_is_the_first_thing_that_would_help(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = ask(capsys, llama, "--ram", "8G", "-c", "128k")
    assert re.search(r"\nTo fit   -c 3\d{4}: fits with an 8-bit cache\n", out)


def test_why_has_the_rest(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, llama, "--ram", "24G", "--why")
    lines = out.splitlines()
    assert lines[1].startswith("llama-3.1-8b.Q4_K_M.gguf  ·  llama.cpp 0.5.0")
    assert lines[1].endswith("24 GiB RAM, fully on the CPU")
    assert lines[2].startswith("32,768 tokens of context shared by 4 sequences")
    assert "Context  checked at 32,768 tokens: the default" in lines
    assert "24.00 GiB free minus 1 GiB reserve" in out
    for label in ("Memory", "Speed", "Later", "Basis", "Note", "Run"):
        assert f"\n{label}" in out


def test_one_screen_of_what_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = [SAMPLE, "--device", "RTX 4070"]
    code, out, _ = ask(capsys, *words)
    assert code == 3
    fit = out.partition("\nTo fit")[2].partition("\n\n")[0]
    assert 1 <= len([line for line in fit.splitlines() if not line.startswith(" " * 11)]) <= 3
    assert "GiB of free RAM (--ram): fits with " in fit
    assert "\nRun" not in out  # nothing to run
    code, why, _ = ask(capsys, *words, "--why")
    flat = " ".join(why.split())
    assert "Why 16,384 tokens need " in flat
    assert "the smallest current GPU that holds the whole model" in flat
    assert "the smallest current Mac that holds the whole model" in flat
    assert "goes to system RAM, whose size is unknown and was not checked" in flat


@pytest.mark.parametrize("words", sampled((["-c", "14336", "--min-context", "14336"], ["-ctk", "q8_0", "-ctv", "q8_0"], ["--mix", "IQ4_XS"], ["--ram", "64G"]), each=2))  # fmt: skip
def test_what_is_said_to_make_it_fit_does(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them alone: without any of them it does not fit, as the test above shows."""
    assert ask(capsys, SAMPLE, "--device", "RTX 4090", "--quiet", *words)[0] == 0


@pytest.mark.parametrize("device", ["RTX 5090", "M4 Max 36GB"])
def test_the_smallest_device_holds_it(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, SAMPLE, "--device", device, "--quiet")
    assert answer["can_load"]
    assert answer["max_context"] >= 16_384


# --- for programs


def test_json_is_documented(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = documented("check", "check, several")
    answer = ask_json(capsys, llama, "--device", "RTX 4090", "-c", "1M")
    assert answer.keys() <= names
    assert answer["budgets"][0].keys() <= names
    assert answer["changes"][0].keys() <= names
    assert answer["engine"].keys() <= names
    several = ask_json(capsys, llama, "none.gguf", "--ram", "8G")
    assert several.keys() <= names
    assert several["models"][1].keys() <= names
    assert several["summary"].keys() <= names


def test_json_of_what_fits(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, llama, "--ram", "24G", "-c", "8k")
    assert (answer["status"], answer["can_load"], answer["context_asked"]) == ("passed", True, True)
    assert (answer["context_tokens"], answer["context_because"]) == (8_192, "as requested")
    assert answer["estimate"]["kv_bytes"] == 8_192 * LLAMA_TOKEN
    assert answer["required_bytes"] == answer["estimate"]["total_bytes"]
    assert answer["available_bytes"] == 23 * GIB
    assert answer["utilization"] == answer["required_bytes"] / (23 * GIB)
    assert answer["reasons"] == []
    assert answer["machine"]["what_if"] is True
    assert shlex.split(answer["command"])[:3] == ["llama-server", "-m", llama]


def test_json_of_what_does_not(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, llama, "--ram", "300M")
    assert (answer["status"], answer["can_load"], answer["command"]) == ("failed", False, None)
    assert (answer["available_bytes"], answer["utilization"]) == (0, None)  # a share of nothing
    assert answer["reasons"]


def test_bytes_and_tokens_are_whole(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "RTX 3060", "--ram", "64G", "-c", "100k"]

    def numbers(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for inner, one in value.items():
                yield from numbers(one, inner)
        elif isinstance(value, list):
            for one in value:
                yield from numbers(one, name)
        elif isinstance(value, float):
            yield name, value

    result = {name for name, _ in numbers(ask_json(capsys, llama, *words))}
    assert result <= {"utilization", "within", "typical", "decode", "prefill"}  # shares and rates


# --- flags of the engines


@pytest.mark.parametrize(
    ("words", "cache_bytes"),
    [
        ([], 8_192 * LLAMA_TOKEN),
        (["-ctk", "q8_0", "-ctv", "q8_0"], 8_192 * LLAMA_TOKEN * 34 // 64),
        (["-ctk", "q8_0"], 8_192 * LLAMA_TOKEN * (34 + 64) // 128),
        (["-np", "4", "--no-kv-unified"], 8_192 * LLAMA_TOKEN),
    ],
)
def test_flags_of_llama_cpp(
    words: list[str], cache_bytes: int, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask_json(capsys, llama, "--ram", "64G", "-c", "8k", *words)
    assert answer["estimate"]["kv_bytes"] == cache_bytes


@pytest.mark.parametrize(
    ("words", "placement"),
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
def test_where_the_layers_lie(
    words: list[str], placement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask_json(
        capsys, MOE, "--device", "RTX 4090", "--ram", "64G", "-c", "16k", "--quiet", *words
    )
    assert answer["way"] == placement
    card = next((budget for budget in answer["budgets"] if budget["name"] == "RTX 4090"), None)
    assert (card is None) == (words == ["--backend", "cpu"])


@pytest.mark.parametrize(
    ("words", "engine", "token_bytes", "messages"),
    [
        (["--device", "RTX 4090"], "vllm", TOKEN, []),
        (["--device", "RTX 4090", "--kv-cache-dtype", "fp8"], "vllm", TOKEN // 2, ["--kv-cache-dtype", "fp8"]),
        (["--device", "2x RTX 4090", "-tp", "2"], "vllm", TOKEN // 2, ["-tp", "2"]),
        (["--device", "m3-max-36"], "mlx", TOKEN, []),
        (["--device", "m3-max-36", "--kv-bits", "8", "--quantized-kv-start", "0"], "mlx", TOKEN * 17 // 32, ["--kv-bits", "8"]),
        (["--ram", "8G"], "llama.cpp", TOKEN, []),
    ],
)  # fmt: skip
def test_the_engine_for_the_files_and_the_machine(
    *,
    words: list[str],
    engine: str,
    token_bytes: int,
    messages: list[str],
    folder: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = ask_json(capsys, folder, "-c", "4k", *words)
    assert answer["engine"]["name"] == engine
    assert (
        answer["estimate"]["kv_bytes" if engine != "mlx" else "cache_bytes"] == 4_096 * token_bytes
    )
    assert " ".join(messages) in answer["command"]


@pytest.mark.parametrize("command", ["check", "plan"])
@pytest.mark.parametrize(
    ("messages", "batch"),
    [((), 8192), (("-b", "8k"), 8192), (("-ub", "8k"), 8192), (("-b", "1k"), 1024), (("-ub", "512"), 512)],
)  # fmt: skip
def test_a_text_is_embedded_at_once(
    messages: tuple[str, ...], batch: int, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of batch and micro-batch one is of no use without the other; a smaller one that was said is kept, and told."""
    words = ("jina-embeddings-v2-base-en", "-c", "8k", "--ram", "16G", "--json", *messages)
    assert main([command, *words]) == 0
    output = json.loads(capsys.readouterr().out)
    started = output["command"] if command == "check" else output["commands"][0]["text"]
    assert f"-b {batch} -ub {batch}" in started
    assert output["estimate"]["facts"]["n_ubatch"] == batch
    if command == "check":
        note = f"texts over {batch:,} tokens are refused"
        assert any(note in item for item in output["estimate"]["notes"]) == (batch < 8192)


def test_check_and_plan_start_an_embedding_file_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_model(tmp_path, "all-minilm-l6-v2", quant="Q8_0"))
    commands = []
    for command in ("check", "plan"):
        assert main([command, model, "--ram", "16G", "--json"]) == 0
        output = json.loads(capsys.readouterr().out)
        commands.append(output["command"] if command == "check" else output["commands"][0]["text"])
    assert all("--embeddings" in item for item in commands)
    assert all("-b 512 -ub 512" in item for item in commands)  # a text of the whole window at once


def test_check_and_plan_bill_a_name_at_its_own_4_bits(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_another_machine_is_judged_alike_wherever_it_is_asked(
    device: str,
    more: tuple[str, ...],
    llama: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights are rearranged for its processor, not for the one at hand."""
    messages = []
    for here in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda here=here: here)
        messages.append(ask_json(capsys, llama, "-c", "4k", "--device", device, *more))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("model", "words"),
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
def test_the_command_starts_what_was_judged(
    *,
    model: str,
    words: list[str],
    llama: str,
    folder: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its flags, handed to `edgekit estimate`, give the same bill."""
    reference = {"llama": llama, "folder": folder}.get(model, model)
    answer = ask_json(capsys, reference, "--quiet", *words)
    program, *rest = shlex.split(answer["command"])
    flags = rest[2:]  # after -m FILE, serve MODEL, --model MODEL
    if program == "mlx_lm.generate":  # it has no such flags
        assert any("mlx_lm.convert --hf-path" in note and "-q --q-bits 6 --q-group-size 64 --mlx-path" in note for note in answer["notes"])  # fmt: skip
        assert flags[:2] == ["--prompt", "-"]
        flags = [*flags[2:], "-c", str(answer["context_tokens"]), "--quantize", "q6"]
    if "mix" in answer["flags"]:  # of a file that has to be made
        assert rest[1].endswith(f"-{answer['flags']['mix']}.gguf")
        flags += ["--mix", answer["flags"]["mix"]]
    if flags[-2:] == ["-dev", "none"]:
        flags = flags[:-2]
    engine = answer["engine"]["name"]
    code = main(["estimate", reference, "--engine", engine, *flags, "--json"])
    bill = json.loads(capsys.readouterr().out)
    assert code == 0
    sums = {name: size for name, size in bill.items() if name.endswith("_bytes")}
    assert (
        sums.pop("later_bytes") <= answer["estimate"]["later_bytes"]
    )  # the command may hold it back
    assert {name: answer["estimate"][name] for name in sums} == sums


@pytest.mark.parametrize(
    ("model", "words", "flags"),
    [
        ("sample:qwen3-30b-a3b", ("--device", "RTX 3060", "--ram", "32G", "-c", "32k"), {"context": "32768", "n_gpu_layers": "all", "n_cpu_moe": "30", "override_tensor": "blk.30.ffn_gate_exps=CPU,blk.30.ffn_down_exps=CPU"}),
        (SAMPLE, ("--device", "RTX 4090", "--ram", "64G"), {"context": "32768", "n_gpu_layers": "all", "ctx_checkpoints": "29"}),
        (SAMPLE, ("--device", "RTX 3060", "--ram", "64G"), {"context": "32768", "n_gpu_layers": "29", "ctx_checkpoints": "23"}),
        (SAMPLE, ("--ram", "512G", "-ctk", "q8_0", "-fa", "on", "-c", "8k"), {"context": "8192", "type_k": "q8_0", "flash_attn": "on"}),
        (SAMPLE, ("--ram", "512G", "-c", "8k", "--no-mmap", "-np", "2"), {"context": "8192", "mmap": False, "parallel": "2"}),
    ],
)  # fmt: skip
def test_json_has_the_flags_that_were_settled(
    model: str,
    words: tuple[str, ...],
    flags: dict[str, str | bool],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By key, as they are typed: whoever reads them need not take the command apart."""
    assert main(["check", model, *words, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["flags"] == flags


def test_all_engines_at_once(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, folder, "--engine", "all", "--device", "RTX 4090")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert [row[:2] for row in rows[3:5]] == [["fits", "llama.cpp"], ["fits", "vllm"]]
    assert rows[5][:3] == ["cannot", "run", "mlx"]
    assert "mlx: MLX needs a Mac with Apple silicon; this is: RTX 4090" in " ".join(out.split())
    assert out.splitlines()[-1] == "2 fit, 1 cannot run"


def test_all_engines_for_a_program(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A GGUF runs on two of them: the best of the codes counts."""
    code, out, _ = ask(capsys, llama, "--engine", "all", "--ram", "24G", "--json")
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
def test_names_of_engines(name: str, llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        ask_json(capsys, llama, "--ram", "24G", "--quiet", "--engine", name)["engine"]["name"]
        == "llama.cpp"
    )


# --- machines


@pytest.mark.parametrize("size", ["24G", "24 GB", "24g", "24GiB", "24gib", " 24G ", "24576M", "24_576MB", "0.0234375T"])  # fmt: skip
def test_sizes(size: str, llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--ram", size], [f"--ram={size}"]):
        assert ask_json(capsys, llama, "--quiet", *words)["available_bytes"] == 23 * GIB


@pytest.mark.parametrize("size", ["0", "-1", "1e99", "abc", "", " ", "24", "24X", "0x18", "nan", "inf", "9" * 30 + "G", "G", "-24G", "24G,24G"])  # fmt: skip
def test_sizes_that_are_none(size: str, llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, llama, f"--ram={size}")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"edgekit: --ram: ('|must not be negative).*\n", err)


def test_a_bare_number_is_asked_back(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs a unit, such as 24G" in ask(capsys, llama, "--vram", "24")[2]


@pytest.mark.parametrize(
    ("words", "names"),
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
def test_devices(
    words: list[str], names: list[str], llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask_json(capsys, llama, "--quiet", *words)
    assert [device["name"] for device in answer["machine"]["devices"]] == names


# --- what a person reads when it cannot be done

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
def bad(tmp_path_factory: pytest.TempPathFactory, llama: str) -> str:
    path = tmp_path_factory.mktemp("bad")
    (path / "empty").mkdir()
    (path / "page.gguf").write_bytes(b"<!DOCTYPE html><html>")
    (path / "zero.gguf").write_bytes(b"")
    with Path(llama).open("rb") as whole:
        (path / "cut.gguf").write_bytes(whole.read(3000))
    (path / "v4.gguf").write_bytes(b"GGUF" + bytes([4, 0, 0, 0]))
    named = key("general.architecture", STRING, "zzz")
    numbers = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "context_length": 2048, "feed_forward_length": 128}  # fmt: skip
    keys = [named, *(key(f"zzz.{name}", UINT32, value) for name, value in numbers.items())]
    (path / "unknown.gguf").write_bytes(gguf(keys))
    (path / "bare.gguf").write_bytes(gguf([named]))
    (path / "clip.gguf").write_bytes(gguf([key("general.architecture", STRING, "clip")]))
    return str(path)


@pytest.mark.parametrize(("words", "code", "sentence"), ERRORS)
def test_errors_are_a_sentence_and_a_code(
    *,
    words: list[str],
    code: int,
    sentence: str,
    llama: str,
    folder: str,
    bad: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"llama": llama, "folder": folder, "bad": bad, "near": str(Path(llama).parent)}
    requests = [re.sub(r"\{(\w+)\}", lambda found: places[found[1]], word) for word in words]
    found, out, err = ask(capsys, *requests)
    assert (found, out) == (code, "")
    assert err.startswith("edgekit: ")
    assert len(err.strip().splitlines()) == 1
    assert sentence.replace("{llama}", llama) in err
    assert "\x1b" not in err
    found, out, _ = ask(capsys, *requests, "--json")
    assert found == code
    assert json.loads(out)["error"]["message"]


def test_flags_of_the_machine_are_not_flags_of_an_engine(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--gpu-memory", "--device-memory"):
        with pytest.raises(SystemExit) as caught:
            main(["check", llama, flag, "24G"])
        assert caught.value.code == 2
        assert f"check has no flag {flag}; it is a flag of estimate" in capsys.readouterr().err


# --- terminals and pipes


@pytest.mark.skipif(sys.platform == "win32", reason="has no such terminals")
def test_a_terminal_gets_colour_unless_it_says_no(llama: str) -> None:
    shown = on_a_terminal(llama, "--ram", "24G")
    assert len(shown) == len(ON_TERMINALS)
    for text, coloured in zip(shown, (True, False, False), strict=True):
        assert b"Runs on the CPU: 8.7 of 23.0 GiB at 32K" in text
        assert (b"\x1b[1;32mRuns on the CPU: 8.7 of 23.0 GiB at 32K" in text) == coloured
        assert (b"\x1b" in text) == coloured


ON_TERMINALS: tuple[dict[str, str], ...] = ({}, {"NO_COLOR": ""}, {"TERM": "dumb"})
ASK_ON_EACH = f"""
import os, sys
from edgekit.cli import main
for number, environment in enumerate({ON_TERMINALS}):
    os.environ.pop("NO_COLOR", None)
    os.environ.update({{"TERM": "xterm", **environment}})
    print("", end="\\0" if number else "", flush=True)
    main(sys.argv[1:])
"""


def on_a_terminal(*words: str) -> list[bytes]:
    """What one process shows there, asked once in each of these environments."""
    import pty

    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ASK_ON_EACH, "check", *words],
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        stdout=there,
        stderr=there,
    )
    os.close(there)
    shown = b""
    try:
        while piece := os.read(here, 65536):
            shown += piece
    except OSError:  # how Linux says that nobody writes any more
        pass
    os.close(here)
    assert process.wait(PATIENCE_S) == 0
    return shown.split(b"\0")


@pytest.mark.parametrize("columns", [20, 40, 80, 300] if LONG else [20])
def test_no_line_is_wider_than_the_screen(
    columns: int,
    folder: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(Path(folder).parent)
    short = Path(folder).name  # a path is a word, and words are not cut
    screens = (
        [SAMPLE, "--device", "RTX 4090"],
        [SAMPLE, "--device", "RTX 4090", "--ram", "64G"],
        [short, "--device", "RTX 4090", "--engine", "all"],
        [SAMPLE, "--device", "m3-max-36"],
        [short, MOE, "none.gguf", "--ram", "8G"],
        [SAMPLE, "--device", "2x RTX 3090", "--ram", "64G"],
    )
    for words in sampled(screens, each=2):
        _, out, _ = ask(capsys, *words)
        body = out.split("\nRun")[0]  # the command's words are not cut either
        assert max(map(len, body.splitlines())) <= min(columns, 100), words


@pytest.mark.parametrize(
    "words", [[SAMPLE, "--ram", "64G"], [SAMPLE, MOE, "--ram", "64G"], [MOE, "--device", "RTX 3060"]]
)  # fmt: skip
def test_an_output_that_knows_only_ascii(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["check", *words]) in {0, 3}
    text = written.getvalue().decode("ascii")
    assert "?" not in text  # nothing was replaced
    if len(words) == 3:
        assert "[###" in text


def test_a_reader_that_has_seen_enough(llama: str) -> None:
    """A pipe, which gets no colour."""
    line = (
        f"{shlex.quote(sys.executable)} -m edgekit check {shlex.quote(llama)} --ram 24G | head -1"
    )
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=PATIENCE_S)  # fmt: skip
    assert done.stdout == "Runs on the CPU: 8.7 of 23.0 GiB at 32K, about 4.1 tokens/s\n"
    assert done.stderr == ""


# --- inside a limit


LIMITED = f"""
import resource, sys
from edgekit.cli import main
words = ["check", *sys.argv[1:], "--backend", "cpu"]
for limit, more in (({2**20 * GIB}, ["--json"]), ({4 * GIB}, ["--json"]), ({4 * GIB}, [])):
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    code = main([*words, *more])
    print("\\0", code, "\\0", sep="", end="")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_the_verdict_follows_the_limit(llama: str) -> None:
    """A process that may have more than there is, and then, as with ulimit -v, 4 GiB."""
    import psutil

    if psutil.virtual_memory().available < 9 * GIB:
        pytest.skip("the machine itself has no room for 6.7 GiB")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, llama], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    wide, wide_code, narrow, narrow_code, text, text_code, _ = done.stdout.split("\0")
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


# --- what is not so yet


@pytest.mark.parametrize("there", [["--ram", "8G"], ["--device", "m3-max-36"]])
def test_a_window_is_never_longer_than_the_models_own(
    there: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 100}))
    assert ask_json(capsys, str(tmp_path), *there)["context_tokens"] == 100


@pytest.mark.parametrize("device", ["RTX 4090", "m3-max-36"])
def test_zero_is_the_native_window_on_every_engine(
    device: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask_json(capsys, folder, "--device", device, "-c", "0", "--window-budget", "1M")
    assert (answer["context_tokens"], answer["context_asked"]) == (8_192, True)


def test_a_job_that_is_cut_is_told(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, llama, "--ram", "64G", "--job", "100k+100k")
    assert " at 128K (the model's limit, shorter than the job)" in " ".join(out.split())


def test_a_job_and_a_context_are_one_too_many(
    llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(capsys, llama, "--ram", "64G", "--job", "6000+800", "-c", "8k")[0] == 2


def test_no_less_than_was_asked_for(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, llama, "--ram", "64G", "--min-context", "200k", "--quiet")[0] == 3


def test_a_comma_is_no_decimal_point(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    """1,5G would be 15 GiB to us, and a tenth of it to half of the world."""
    assert ask(capsys, llama, "--ram", "1,5G")[0] == 2


def test_any_context_will_do(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, llama, "--ram", "4G", "--min-context", "0", "--quiet")[0] == 3


def test_a_pipe_gets_no_colour(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, llama, "--ram", "24G")
    assert (code, err) == (0, "")
    assert not {"\x1b", "\r"} & set(out)


def test_every_layer_on_the_card_is_tried_where_the_next_way_needs_more_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With its experts on the host the model needs less of the card than with its head there too."""
    machine = ("--device", "RTX 4060", "--ram", "16G", "-ub", "2048", "--llama-version", "0.6")
    words = ("gemma-4-26b-a4b", "--mix", "IQ4_XS", "-c", "115712", *machine)
    answer = ask_json(capsys, *words, "--quiet")
    assert answer["status"] == "warning"
    assert answer["way"] == "all but the experts on RTX 4060"


@pytest.mark.parametrize(
    ("cards", "engine", "message"),
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
def test_the_command_keeps_to_the_cards_that_were_judged(
    cards: str, engine: str, message: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask_json(
        capsys, folder, "--engine", engine, "--vram", cards, "--ram", "64G", "-c", "2k"
    )
    assert answer["command"].startswith(message)


def test_a_name_with_a_nul_does_not_end_the_list(
    llama: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"~a\0b\n{llama}\n".encode())))
    code, out, _ = ask(capsys, "-", "--ram", "64G")
    assert code == 2
    assert "contains control characters" in out
    assert "fits" in out


def test_for_another_program(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ("--device", "RTX 4060", "--ram", "32G")
    code, out, _ = ask(capsys, "qwen3-8b", *machine, "--for", "Ollama")
    assert code == 0
    assert out.splitlines()[-1] == "ollama run hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"
    answer = ask_json(capsys, "qwen3-8b", *machine, "--for", "llama-cli")
    assert answer["command"].startswith("llama-cli -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 16384 -np 1 ")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--for", "vllm"), ", or add --engine vllm"),
        (("--for", "llama-server", "--engine", "vllm"), ", or add --engine llama.cpp"),
        (("--for", "llama.cpp"), "ollama, lm-studio"),  # an engine, not a program
    ],
)
def test_for_a_program_of_another_engine_names_the_engine(
    words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ask(capsys, "qwen3-8b", "--device", "RTX 4090", "--ram", "32G", *words)
    assert code == 2
    assert err.splitlines()[-1].endswith(hint)


@pytest.mark.parametrize("words", [("qwen3-8b", "qwen3-4b"), ("qwen3-8b", "--engine", "all")])
def test_for_needs_one_answer(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ask(capsys, *words, "--ram", "32G", "--for", "ollama")
    assert (code, "--for prints the command of one model and one engine" in err) == (2, True)


def test_flags_that_were_given_are_in_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--context-shift", "-cram", "100", "-ctxcp", "2", "--repack")
    for command in ("check", "plan"):
        main([command, "qwen3-8b", "--ram", "32G", "-c", "8k", *given, "--json"])
        output = json.loads(capsys.readouterr().out)["estimate"]["command"]
        assert output.endswith(" -dev none --context-shift --repack -cram 100 -ctxcp 2")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gemma-3-1b", "-hfd ggml-org/gemma-3-1b-it-GGUF"),
        ("Gemma 3 1B", "-hfd ggml-org/gemma-3-1b-it-GGUF"),
    ],
)
def test_check_with_a_draft_model_of_the_catalog_runs_its_repository(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "gemma-3-27b", "-md", name, "--device", "RTX 4090", "--json"])
    assert words in json.loads(capsys.readouterr().out)["command"]


def test_a_draft_model_is_counted_at_the_quantisation_it_is_named_with(
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


def notes_of(command: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([command, *words]) == 0
    shown = capsys.readouterr().out.split("\nNote ")[1].split("\n\n")[0]
    return " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["qwen3-8b", "-c", "128k", "--device", "rtx-4090"], "the native context is 40,960 tokens: beyond it"),
        (["qwen3-8b", "--engine", "mlx", "--device", "m2-16"], "accepts requests of any length"),
        (["gemma-3-12b", "--device", "rtx-4090"], "approximate: config.json does not state context"),
        (["gemma-3-27b", "--device", "rtx-4090"], "text only: without --no-mmproj llama.cpp also loads the image"),
        (["qwen3-8b", "--ram", "16G"], "counts all of its memory as free; leave more"),
        (["qwen3-8b", "--device", "rtx-4090", "--ram", "32G"], "assumes the machine is otherwise idle"),
    ],
)  # fmt: skip
def test_check_and_plan_have_the_same_notes(
    words: list[str], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = notes_of("check", capsys, *words)
    assert note in result
    assert notes_of("plan", capsys, *words) == result


@pytest.mark.parametrize(
    "words",
    [
        ["qwen3-8b", "--ram", "16G"],
        ["qwen3-8b", "--ram", "16G", "--engine", "stream"],
        ["qwen3-8b", "--device", "m2-16", "--engine", "mlx"],
        ["qwen3-8b", "--device", "m2-16"],
        ["qwen3-0.6b", "--ram", "2G", "--engine", "stream", "--max-use", "95%"],
    ],
)
def test_what_a_note_suggests_is_accepted(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    note = notes_of("check", capsys, *words)
    suggested = re.findall(r"with (--reserve|--max-use) (\S+)", note)
    assert suggested or "otherwise idle" in note
    for flag in suggested:
        assert flag[0] not in words
        code, _, err = ask(capsys, *words, *flag)
        assert (code, err) in {(0, ""), (3, "")}


def test_the_projector_of_a_catalog_model_has_no_known_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = ask(capsys, "gemma-3-27b", "--device", "rtx-4090", "--mmproj", "auto")
    assert code == 2
    assert "download it and give its path with --mmproj FILE" in err


def test_a_draft_model_without_a_known_repository_says_what_to_replace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = ask(capsys, "qwen3-8b", "-md", "qwen3-0.6b:F16", "-c", "8k", "--device", "RTX 4090")
    assert "-md DRAFT.gguf" in out
    assert "replace DRAFT.gguf with the file of qwen3-0.6b:F16" in out


def test_shares_that_llama_cpp_cannot_read_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ask(capsys, "qwen3-8b", "-ts", "1e-320,1", "--device", "2x RTX 3060")
    assert (code, "is not a list of shares" in err) == (2, True)
