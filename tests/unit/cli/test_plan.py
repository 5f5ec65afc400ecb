"""`edgekit plan`: headlines, JSON, requested options, errors and tiers. HF_ENDPOINT is a closed port."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_estimate import write_model

from edgekit.cli import main

MODEL = "qwen3-8b"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("llama"), "llama-3.1-8b"))


def run_plan(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(["plan", *argv])
    except SystemExit as end:  # argparse
        code = int(str(end.code))
    out, err = capsys.readouterr()
    return code, out, err


def plan_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    _, out, err = run_plan(capsys, *argv, "--json")
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


# --- the answer


@pytest.mark.parametrize(
    ("argv", "code", "begins"),
    [
        (["--ram", "16G"], 0, "Runs on the CPU at Q4_K_M: 9.3 of 15.0 GiB at 32K"),
        (["--ram", "16G", "-c", "16k"], 0, "Runs on the CPU at Q4_K_M: 7.0 of 15.0 GiB at 16K"),
        (["--ram", "2G"], 3, "Does not fit your 2 GiB RAM at Q4_K_M, even at 16K"),
        (
            ["--device", "RTX 4090", "--ram", "64G"],
            0,
            "Runs fully on your RTX 4090 at Q6_K: 12.1 of 22.5 GiB at 40K",
        ),
        (
            ["--device", "RTX 4090", "--engine", "vllm"],
            0,
            "Starts on your RTX 4090: room for one request of 32K tokens",
        ),
        (["--device", "m4-max-64", "--engine", "mlx"], 0, "Runs fully on your M4 Max 64GB"),
    ],
)
def test_headline_is_the_first_line(
    argv: list[str], code: int, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out, err = run_plan(capsys, MODEL, *argv)
    assert (result, err) == (code, "")
    assert out.startswith(begins)
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 100 or "llama-server" in out


def test_why_has_every_decision_and_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_plan(capsys, MODEL, "--ram", "16G", "--why")
    for part in ("weights", "placement", "context", "cache", "drafter", "sequences", "llama-server"):  # fmt: skip
        assert part in out


def test_plan_that_does_not_fit_suggests_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_plan(capsys, MODEL, "--ram", "2G")
    answer = " ".join(out.split())
    assert code == 3
    assert "To fit" in answer
    assert "GiB of free RAM (2.00 GiB now)" in answer
    assert "the smallest current GPU that holds the whole model" in answer
    assert "llama-server" not in answer


def test_why_lists_every_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [MODEL, "--ram", "9G"]
    _, brief, _ = run_plan(capsys, *argv)
    _, out, _ = run_plan(capsys, *argv, "--why")
    assert len(out) > len(brief)
    text = " ".join(out.split())
    for attempt in (
        "Q4_K_M, 32,768 tokens, f16 cache needs ",
        "* Q4_K_M, 32,768 tokens, q8_0 cache fits",
    ):
        assert attempt in text


# --- JSON


@pytest.mark.parametrize(
    ("argv", "fits"), [(["--ram", "16G"], True), (["--ram", "2G"], False), (["--device", "RTX 4090"], True)]
)  # fmt: skip
def test_json_answer_of_a_plan(
    argv: list[str], capsys: pytest.CaptureFixture[str], *, fits: bool
) -> None:
    answer = plan_json(capsys, MODEL, *argv)
    assert answer["can_load"] is fits
    assert answer["model"] == MODEL
    assert {decision["lever"] for decision in answer["decisions"]} >= {"weights"}
    assert answer["required_bytes"] <= answer["available_bytes"] or not fits


def test_json_is_deterministic(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [MODEL, "--device", "RTX 4090, RTX 3060", "--ram", "64G"]
    assert plan_json(capsys, *argv) == plan_json(capsys, *argv)


def test_json_error_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_plan(capsys, MODEL, "--ram", "16G", "--nodes", "2", "--json")
    assert code == 2
    assert json.loads(out)["error"]["type"] == "UsageError"
    assert "only works with vLLM, not with llama.cpp" in err


# --- requested options


def test_users_have_a_context_each(capsys: pytest.CaptureFixture[str]) -> None:
    answer = plan_json(capsys, MODEL, "--users", "4", "-c", "8k", "--ram", "32G")
    assert (answer["context_tokens"], answer["total_context_tokens"], answer["users"]) == (8192, 32_768, 4)  # fmt: skip


def test_prefer_accurate_kv_shortens_the_context(
    llama_8b: str, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = plan_json(capsys, llama_8b, "--ram", "8G")
    accurate = plan_json(capsys, llama_8b, "--ram", "8G", "--prefer-accurate-kv")
    assert (longest["context_tokens"], longest["cache"]["name"]) == (32_768, "q8_0")
    assert (accurate["context_tokens"], accurate["cache"]["name"]) == (16_384, "f16")


def test_requested_cache_types_are_used(llama_8b: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = plan_json(capsys, llama_8b, "--ram", "64G", "-ctk", "q8_0", "-ctv", "q8_0")
    assert (answer["cache"]["type_k"], answer["cache"]["type_v"]) == ("q8_0", "q8_0")


def test_requested_mix_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_plan(capsys, MODEL, "--ram", "64G", "--mix", "Q6_K", "--no-drafter", "--why")
    assert "6.26 GiB" in out  # 8.19 billion at 6.56 bits


def test_no_drafter_leaves_out_the_draft_model(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [MODEL, "--ram", "64G", "-c", "16k"]
    assert "drafter" in {decision["lever"] for decision in plan_json(capsys, *argv)["decisions"]}
    assert "drafter" not in {decision["lever"] for decision in plan_json(capsys, *argv, "--no-drafter")["decisions"]}  # fmt: skip


def test_requested_gpu_layers_are_used(llama_8b: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_plan(capsys, llama_8b, "--device", "RTX 4090", "--ram", "64G", "-ngl", "20", "-c", "16k", "--for", "llama-server")  # fmt: skip
    assert code == 0
    line = shlex.split(out)
    assert line[line.index("-ngl") + 1] == "20"


def test_two_nodes_of_eight_gpus_use_pipeline_parallelism(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["llama-3.1-405b", "--engine", "vllm", "--device", "8x H100", "--nodes", "2", "-c", "16k"]  # fmt: skip
    code, out, _ = run_plan(capsys, *argv)
    assert code == 0
    answer = " ".join(out.replace("\\\n", " ").split())
    assert "-tp 8 -pp 2" in answer
    assert "ray start --head" in answer


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("users", "context"), [((), "50K"), (("--users", "2"), "50K for each of 2 users")]
)
def test_context_beyond_the_native_one_is_planned_and_marked(
    users: tuple[str, ...], context: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = plan_json(capsys, MODEL, "--ram", "32G", "-c", "50k", *users)
    assert answer["context_tokens"] == 51_200
    assert f" at {context} (beyond the model's native 40K)" in answer["headline"]


def test_acceptance_shows_the_speed_with_the_proposed_draft_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("qwen3-32b", "--device", "H100", "--ram", "64G")
    _, out, _ = run_plan(capsys, *argv, "--why")
    assert "--acceptance 70% shows the speed if 70 % are" in " ".join(out.split())
    _, out, _ = run_plan(capsys, *argv)
    assert "--acceptance" not in out
    _, out, _ = run_plan(capsys, *argv, "--acceptance", "0.7")
    assert "as the draft model at 70 % acceptance about " in " ".join(out.split())
    _, out, _ = run_plan(capsys, *argv, "--acceptance", "0.7", "--json")
    speed = json.loads(out)["speed"]
    assert speed["typical"] < speed["speculative"]["typical"] < 4 * speed["typical"]
    _, out, _ = run_plan(
        capsys, "qwen3-32b", "--device", "RTX 3060", "--ram", "64G", "--acceptance", "0.7"
    )
    assert "no draft model fits next to the model, so --acceptance changes nothing" in out
    code, _, err = run_plan(capsys, "qwen3-0.6b", *argv[1:], "--acceptance", "0.7")
    assert code == 2
    assert (
        "no draft model is known for qwen3-0.6b: name one with edgekit check MODEL -md MODEL" in err
    )
    code, _, err = run_plan(capsys, *argv, "--engine", "vllm", "--acceptance", "0.7")
    assert code == 2
    assert "no draft model is proposed for vllm: leave it out" in err


# --- errors


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["-c", "-5"], 2, ""),
        (["-c", "many"], 2, "-c/--ctx-size"),
        (["--users", "0"], 2, "--users: must be at least 1 (got 0)"),
        (["--users", "x"], 2, "--users"),
        (["--nodes", "2"], 2, "--nodes only works with vLLM, not with llama.cpp"),
        (["--nodes", "0"], 2, "--nodes"),
        (["--engine", "nobody"], 2, "nobody"),
        (["--engine", "vllm", "-ngl", "3"], 2, "is a flag of llama.cpp"),
        (["--min-context", "-1"], 2, "--min-context"),
        (["--min-speed", "nan"], 2, "--min-speed takes tokens per second above 0"),
        (["--acceptance", "1.1"], 2, "--acceptance takes a share from 0 to 100%"),
        (["--acceptance", "70%", "--no-drafter"], 2, "--no-drafter leaves out the draft model: give one of the two"),
        (["--acceptance", "70%", "--users", "2"], 2, "leave out --users"),
        (["--prompt", "0"], 2, "--prompt: must be at least 1 (got 0)"),
        (["--mmproj", "x.gguf"], 2, "use edgekit check MODEL --mmproj FILE, which counts"),
        (["--for", "nobody"], 2, "--for: no command for 'nobody'"),
        (["--for", "mlx"], 2, "lm-studio, or add --engine mlx"),  # LM Studio runs both engines
        (["--plot", "nowhere/x.svg"], 2, "cannot be written"),
        (["--plot", "x.gif"], 2, ".svg or .png"),
        (["-ctk", "q9"], 2, "q9"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("empty_folder")
def test_usage_error_leaves_no_output_or_files(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out, err = run_plan(capsys, MODEL, "--ram", "16G", *argv)
    assert (result, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["-tp", "3", "--engine", "vllm", "--device", "4x RTX 4090"], 2, "not divisible by tensor parallel size 3"),
        (["-tp", "8", "--engine", "vllm", "--device", "4x RTX 4090"], 3, "should use 8 GPUs"),
        (["--engine", "vllm", "--ram", "64G"], 3, "NVIDIA"),
        (["--engine", "mlx", "--device", "RTX 4090"], 3, "Apple"),
        (["--device", "nobody"], 2, "unknown device 'nobody'"),
    ],
)  # fmt: skip
def test_engine_that_the_machine_cannot_run_is_an_error(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out, err = run_plan(capsys, MODEL, *argv)
    assert (result, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("no-such-model", 4, "model not found: 'no-such-model'"),
        ("catalog:no-such-model", 4, "is not in the index"),
        ("acme/no-such-model", 4, "cannot reach"),
    ],
)
def test_unknown_model_is_an_error(
    name: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out, err = run_plan(capsys, name, "--ram", "16G")
    assert (result, out) == (code, "")
    assert message in err


def test_damaged_gguf_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    code, out, err = run_plan(capsys, str(path), "--ram", "16G")
    assert (code, out) == (5, "")
    assert err.startswith("edgekit: ")


# --- unreachable repositories


def test_unreachable_repository_in_the_catalog_is_planned_with_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = plan_json(capsys, "Qwen/Qwen3-8B", "--ram", "16G", "--timeout", "2")
    assert answer["can_load"]
    assert "from EdgeKit's index" in answer["headline"]
    assert any("answered from the index" in note for note in answer["notes"])
    by_name = plan_json(capsys, MODEL, "--ram", "16G")
    assert not any("answered from the index" in note for note in by_name["notes"])


# --- output for one program


def test_for_ollama_prints_a_modelfile(llama_8b: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_plan(capsys, llama_8b, "--ram", "16G", "--for", "ollama")
    assert code == 0
    assert f"FROM {llama_8b}\n" in out
    assert "PARAMETER num_ctx 32768" in out
    assert "llama-server" not in out


def test_for_llama_server_prints_its_command(
    llama_8b: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_plan(capsys, llama_8b, "--ram", "16G", "-c", "16k", "--for", "llama-server")
    line = shlex.split(out)
    assert line[:5] == ["llama-server", "-m", llama_8b, "-c", "16384"]
    assert line[line.index("-dev") + 1] == "none"


def test_plot_writes_an_svg(
    llama_8b: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "memory.svg"
    code, out, err = run_plan(capsys, llama_8b, "--ram", "16G", "--plot", str(path))
    assert (code, err) == (0, "")
    assert out.startswith("Runs on the CPU: 8.7 of 15.0 GiB at 32K")
    assert path.read_text().lstrip().startswith(("<?xml", "<svg"))


# --- tiers


def test_tier_is_planned_with_the_what_if_engine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_plan(capsys, "tier:27b", "--ram", "32G")
    assert code == 0
    assert out.startswith("Fits: 27B with 131,072 tokens")
    assert "what-if engine" in out
    assert plan_json(capsys, "tier:27b", "--ram", "32G")["tier"]["name"] == "27B"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["tier:27b", "--ram", "8G"], 3, ""),
        (["tier:3b", "--ram", "8G"], 2, "3b"),
        (["tier:27b", "--ram", "32G", "-ngl", "3"], 2, "what-if engine"),
        (["tier:27b", "--ram", "32G", "--engine", "llama.cpp"], 2, "compressed caches"),
        (["tier:27b", "--ram", "32G", "--engine", "mlx"], 2, "compressed caches"),
        (["tier:27b", "--ram", "32G", "--latency", "soon"], 2, "--latency"),
        (["tier:27b", "--ram", "32G", "--users", "0"], 2, "--users"),
        (["tier:27b", "--ram", "64G", "--reserve", "40G"], 2, "--reserve does not apply to a tier"),
        (["tier:27b", "--ram", "64G", "--max-use", "20%"], 2, "--max-use does not apply to a tier"),
    ],
)
def test_tier_that_does_not_fit_or_is_misused_is_an_error(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _, err = run_plan(capsys, *argv)
    assert result == code
    assert message in err


def test_help_leaves_out_flags_that_plan_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    output = capsys.readouterr().out
    assert "-ngl N" in output
    for flag in ("-np", "--mmproj FILE", "--lora", "--max-num-seqs"):
        assert flag not in output
    assert main(["plan", "qwen3-8b", "-np", "4"]) == 2
    assert "plan does not take -np: use --users N" in capsys.readouterr().err
