"""`edgekit together`: the text, JSON, and the configurations for llama-swap and llama-server's router."""

from __future__ import annotations

import configparser
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.runnable import write_chatting

from edgekit.cli import main

PC = ("--device", "RTX 4090", "--ram", "64G", "--offline")
THREE = ("qwen3-8b", "gemma-3-27b", "phi-4")  # the first and the last fit


def together(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["together", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_text_says_which_fit_and_the_totals(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = together(capsys, "qwen3-8b", "llama-3.1-8b", *PC)
    assert code == 0
    assert out.startswith("Both models fit your RTX 4090 + 64 GiB RAM at the same time at 32K: ")
    assert "edgekit serve" not in out  # not on another machine
    code, out, _ = together(capsys, *THREE, *PC)
    assert code == 3
    assert out.startswith("2 of 3 models fit your RTX 4090")
    assert "next to the others gemma-3-27b would be" in out


def test_command_for_this_machine_has_the_flags_that_were_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_chatting(tmp_path / name)
    monkeypatch.chdir(tmp_path)

    def shown(*flags: str) -> str:
        _, out, _ = together(capsys, "a.gguf", "b.gguf", *flags)
        return " ".join(out.replace("\\\n", " ").split())

    command = f"edgekit serve {tmp_path / 'a.gguf'} {tmp_path / 'b.gguf'}"
    flags = ("-c", "1k", "--users", "2", "--max-use", "90%", "--reserve", "100M")
    assert f"Run {command} Next" in shown()
    assert f"Run {command} {' '.join(flags)} Next" in shown(*flags)
    for only_here in (("-c", "1k,512"), ("--min-speed", "0.1"), ("--ram", "64G")):
        text = shown(*only_here)
        assert "--for llama-swap" in text
        assert "edgekit serve" not in text


def test_model_that_is_left_alone_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = together(capsys, "gemma-3-27b", "qwen3-32b", *PC)
    start = "No two of the 2 models fit your RTX 4090 + 64 GiB RAM at the same time; only"
    assert f"{start} gemma-3-27b is loaded at" in " ".join(out.split())


def test_json_has_every_model_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = together(capsys, *THREE, *PC, "--json")
    answer = json.loads(out)
    assert code == 3
    assert not answer["all_fit"]
    assert [model["fits_with_others"] for model in answer["models"]] == [True, False, True]
    memories = {memory["name"]: memory for memory in answer["memories"]}
    for name, memory in memories.items():
        taken = (model["bytes"][name] for model in answer["models"] if model["fits_with_others"])
        assert sum(taken) >= memory["required_bytes"] > 0
    assert answer["models"][1]["check"]["can_load"]


def swap_file(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    code, out, _ = together(capsys, *argv, "--for", "llama-swap")
    assert code == 0
    result: dict[str, Any] = yaml.safe_load(out)
    return result


def test_llama_swap_keeps_the_models_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    config = swap_file(capsys, *THREE, *PC)
    assert set(config["models"]) == set(THREE)
    groups = config["groups"]
    assert groups["together"] == {
        "swap": False,
        "exclusive": True,
        "members": ["qwen3-8b", "phi-4"],
    }
    assert groups["alone"] == {"swap": True, "exclusive": True, "members": ["gemma-3-27b"]}
    for name, model in config["models"].items():
        words = shlex.split(model["cmd"])
        assert words[0] == "llama-server"
        assert words[-4:] == ["--host", "127.0.0.1", "--port", "${PORT}"]
        assert model["proxy"] == "http://127.0.0.1:${PORT}"
        assert bool(model["ttl"]) == (name == "gemma-3-27b")


def test_llama_swap_starts_what_check_would(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone on the machine, gemma-3-27b is started as `check` says."""
    config = swap_file(capsys, *THREE, *PC)
    main(["check", "gemma-3-27b", "-c", "32k", *PC, "--quant", "Q4_K_M", "--for", "llama-server"])
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert shlex.split(config["models"]["gemma-3-27b"]["cmd"])[: len(command)] == command


def test_llama_swap_sends_the_name_that_the_server_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("qwen3-8b", "phi-4", "--engine", "mlx", "--device", "m3-max-64", "--offline")
    models = swap_file(capsys, *argv)["models"]
    for model in models.values():
        words = shlex.split(model["cmd"])
        assert model["useModelName"] == words[words.index("--model") + 1]


def test_llama_swap_selects_cards_by_environment(capsys: pytest.CaptureFixture[str]) -> None:
    """A card with 2 GB is not used: the environment of the command hides it."""
    machine = ("--vram", "24G,2G", "--ram", "64G", "--offline")
    for model in swap_file(capsys, "qwen3-8b", "llama-3.1-8b", *machine)["models"].values():
        assert "CUDA_VISIBLE_DEVICES=0" in model["env"]
        assert model["cmd"].startswith("llama-server ")


def test_router_presets_have_the_flags_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = together(capsys, *THREE, *PC, "--for", "llama-server-router")
    assert code == 0
    assert out.startswith("; save as models.ini, then: llama-server --models-preset models.ini ")
    assert "--models-max 1" in out.splitlines()[0]  # not any two fit
    assert "without the other sections --models-max 2 keeps all of qwen3-8b and phi-4" in out
    presets = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    presets.optionxform = str  # type: ignore[assignment,method-assign]  # keys are case-sensitive
    presets.read_string("[start]\n" + out)
    assert presets.sections() == ["start", *THREE]
    config = swap_file(capsys, *THREE, *PC)
    for name in THREE:
        words = shlex.split(config["models"][name]["cmd"])[1:-4]
        again = [word for key, value in presets[name].items() for word in (f"-{key}", value)]
        assert [word.lstrip("-") for word in again if word != "true"] == [
            word.lstrip("-") for word in words
        ]


def test_router_of_models_that_all_fit_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("qwen3-8b", "llama-3.1-8b", *PC, "--for", "llama-server router")
    assert "--models-max 2\n" in together(capsys, *argv)[1]


def test_files_are_named_by_path_and_models_by_file_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    for path in (tmp_path / "a b.gguf", tmp_path / "other" / "a b.gguf"):
        write_chatting(path)
    monkeypatch.chdir(tmp_path)
    models = swap_file(capsys, "a b.gguf", "other/a b.gguf", "-c", "512", *PC)["models"]
    assert list(models) == ["a b", "a b-2"]
    assert shlex.split(models["a b"]["cmd"])[2] == str(tmp_path / "a b.gguf")


def test_names_with_emoji_are_valid_yaml(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = [write_chatting(tmp_path / f"{name}.gguf") for name in ("\N{LLAMA}", "b")]
    config = swap_file(capsys, *map(str, paths), "-c", "512", *PC)
    assert list(config["models"]) == ["\N{LLAMA}", "b"]
    assert config["groups"]["together"]["members"] == ["\N{LLAMA}", "b"]
    assert str(paths[0]) in config["models"]["\N{LLAMA}"]["cmd"]


def test_path_that_a_configuration_cannot_hold(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    odd, plain = write_chatting(tmp_path / "a#${b}.gguf"), write_chatting(tmp_path / "c.gguf")
    for program, mark in (("llama-swap", "${"), ("llama-server-router", "no #")):
        argv = (str(odd), str(plain), "-c", "512", *PC, "--for", program)
        code, out, err = together(capsys, *argv)
        assert (code, out) == (2, "")
        assert mark in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("qwen3-8b",), "name 2 to 8 models"),
        (("qwen3-8b", "phi-4", "-c", "8k,many"), "-c"),
        (("qwen3-8b", "phi-4", "--for", "ollama"), "llama-swap or llama-server-router"),
        (("qwen3-8b", "phi-4", "--engine", "all"), "one engine"),
        (
            ("qwen3-8b", "phi-4", "--engine", "mlx", "--for", "llama-server-router"),
            "use --for llama-swap",
        ),
    ],
)
def test_wrong_use(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str) -> None:
    machine = ("--device", "m3-max-64", "--offline")
    code, out, err = together(capsys, *argv, *machine)
    assert (code, out) == (2, "")
    assert message in err
