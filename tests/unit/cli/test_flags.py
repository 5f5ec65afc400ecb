"""A flag means the same in every command that has it; mistyped flags get a suggestion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgekit.cli import main
from edgekit.cli.console import open_session
from edgekit.cli.launch import read_request
from edgekit.cli.parser import build_parser
from edgekit.errors import UsageError

MODEL = "qwen3-0.6b"
CARD = ("--device", "RTX 4090")
COMMANDS_OF: dict[str, set[str]] = {
    "--device": {"check", "share", "plan", "recommend", "search", "compare", "estimate", "hardware"},
    "--gpu": {"check", "share", "plan", "recommend", "search", "compare", "estimate", "hardware"},
    "--vram": {"check", "share", "plan", "recommend", "search", "compare", "estimate", "hardware"},
    "--ram": {"check", "share", "plan", "recommend", "search", "compare", "hardware"},
    "--cpu": {"check", "share", "plan", "recommend", "search", "compare", "estimate", "hardware"},
    "--quant": {"check", "share", "plan", "search", "compare", "estimate", "inspect", "verify", "run", "serve"},
    "--users": {"check", "plan", "recommend", "search", "compare", "estimate", "serve"},
    "--min-context": {"check", "plan", "recommend", "search", "compare", "run", "serve"},
    "--min-speed": {"check", "share", "plan", "recommend", "search"},
    "--acceptance": {"check", "share", "plan"},
    "--job": {"check", "share", "plan", "recommend", "search"},
    "-c": {"check", "share", "plan", "recommend", "search", "compare", "estimate", "verify", "run", "serve"},
    "-ctk": {"check", "plan", "compare", "estimate", "verify", "run", "serve"},
    "-ctv": {"check", "plan", "compare", "estimate", "verify", "run", "serve"},
    "-ngl": {"check", "plan", "compare", "estimate", "verify", "run", "serve"},
    "--engine": {"check", "plan", "recommend", "search", "compare", "estimate", "run", "serve"},
    "--json": set(build_parser().commands) - {"index", "catalog", "conversations"},
    "--offline": {
        "check", "plan", "recommend", "search", "compare", "estimate", "inspect", "verify", "run", "serve", "web", "embed",
    },
}  # fmt: skip


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    main([*argv, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def usage_error(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("flag", COMMANDS_OF)
def test_flag_is_in_all_of_its_commands(flag: str) -> None:
    commands = {name for name, command in build_parser().commands.items() if flag in command.flags}
    assert commands >= COMMANDS_OF[flag]


def test_gpu_is_another_name_of_device(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("check", MODEL), ("compare", MODEL), ("hardware",)):
        answer = run_json(capsys, *command, "--gpu", "RTX 4090")
        assert answer == run_json(capsys, *command, *CARD)


def test_check_users_have_a_context_each(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "check", MODEL, *CARD, "--users", "4", "-c", "4k")
    assert answer["context_tokens"] == 4 * 4096
    assert "-np 4" in answer["command"]


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_users_cost_the_same_in_check_and_compare(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = (MODEL, "--users", "4", "-c", "4k")
    check = run_json(capsys, "check", *request, "--engine", engine, *CARD)
    compared = run_json(capsys, "compare", *request)["engines"][engine]

    def cache_bytes(answer: dict[str, Any]) -> int:
        lines = answer.get("estimate", answer)["lines"]
        return sum(line["bytes"] for line in lines if line["component"] == "kv cache")

    # 28 layers x 8 heads x (128 + 128) numbers of 2 bytes for 4 x 4,096 tokens
    assert cache_bytes(check) == 28 * 8 * 256 * 2 * 4 * 4096
    assert compared["kv_bytes"] == cache_bytes(check)


def test_users_and_slots_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "estimate", "serve"):
        assert main([command, MODEL, "--users", "2", "-np", "2"]) == UsageError.exit_code
        assert "give one of them" in capsys.readouterr().err


def test_serve_users_are_slots_with_a_context_each() -> None:
    arguments = build_parser("serve").parse_args(["serve", MODEL, "--users", "3", "-c", "2k"])
    with open_session(arguments, quiet=True) as session:
        _, request, _ = read_request(MODEL, arguments, "serve", session)
    values = request.values("llama.cpp")
    assert (values["parallel"], values["context"]) == (3, 3 * 2048)
    assert values["unified"] is False


def test_estimate_takes_cards_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "estimate", MODEL, "--device", "2x RTX 3090", "-c", "4k")
    assert {line["pool"] for line in answer["lines"]} >= {"device", "device 1"}
    answer = run_json(capsys, "estimate", MODEL, "--engine", "vllm", "--vram", "24G", "-c", "4k")
    assert answer["facts"]["max_concurrency"] is not None


def test_plan_job_sets_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "plan", MODEL, *CARD, "--job", "6000+800", "--no-drafter")
    assert answer["context_tokens"] == 6000 + 800 + 64


def test_compare_takes_cache_types(capsys: pytest.CaptureFixture[str]) -> None:
    request = ("compare", MODEL, "-c", "4k")
    f16 = run_json(capsys, *request)["engines"]["llama.cpp"]
    q8_0 = run_json(capsys, *request, "-ctk", "q8_0", "-ctv", "q8_0")["engines"]["llama.cpp"]
    assert q8_0["kv_bytes"] == f16["kv_bytes"] * 34 // 64


# --- mistakes


def test_unknown_flag_gets_a_suggestion_and_the_usage_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage, message = usage_error(capsys, "check", MODEL, "--devcie", "RTX 4090")
    assert usage.startswith("usage: edgekit check MODEL")
    assert message.startswith("edgekit check: error: unknown flag --devcie. Did you mean: --device")
    usage, message = usage_error(capsys, "plan", MODEL, "--quants=Q8_0")
    assert usage.startswith("usage: edgekit plan MODEL")
    assert "Did you mean: --quant," in message


def test_flag_of_other_commands_is_an_error_that_names_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage, message = usage_error(capsys, "run", MODEL, "--ram", "8G")
    assert usage.startswith("usage: edgekit run MODEL")
    assert message == (
        "edgekit run: error: run has no flag --ram; it is a flag of recommend, search, plan, check, share, together, compare, hardware"
    )


def test_unknown_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert usage_error(capsys, "chek", MODEL)[-1] == (
        "edgekit: error: unknown command 'chek'. Did you mean: check?"
    )
    assert usage_error(capsys, "index", "lst")[-1] == (
        "edgekit index: error: unknown action 'lst'. Did you mean: list?"
    )
    assert "choose one of recommend, search, plan" in usage_error(capsys, "xyzzy")[-1]


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        (("help",), "usage: edgekit COMMAND"),
        (("help", "check"), "usage: edgekit check MODEL"),
        (("help", "index", "list"), "usage: edgekit index list"),
    ],
)
def test_help_with_a_command_prints_its_usage(
    argv: tuple[str, ...], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(usage)
