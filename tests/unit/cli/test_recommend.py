"""`edgekit recommend`, without a network."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from edgekit.cli import main
from edgekit.index import index_entries, read_index
from edgekit.index.types import ModelPurpose
from edgekit.plan.recommend import is_notable, ranked_for, smallest_bytes


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "100")


def run_recommend(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["recommend", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def recommend_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    _, out, err = run_recommend(capsys, *argv, "--json")
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


def ids(answer: dict[str, Any]) -> list[str]:
    return [suggestion["id"] for suggestion in answer["suggestions"]]


def test_text_begins_with_the_best_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_recommend(capsys, "--ram", "8G", "--limit", "2")
    assert (code, err) == (0, "")
    assert out.startswith("Best for chat on 8 GiB RAM: ")
    assert out.splitlines()[1].startswith("Runs on the CPU at ")
    assert "edgekit plan " in out
    assert "\nskipped: " in out
    assert "\x1b" not in out


def test_suggested_plan_command_works(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--ram", "8G", "-c", "8k", "--users", "2", "--prefer-accurate-kv", "--limit", "1"]
    _, out, _ = run_recommend(capsys, *argv)
    (line,) = (item for item in out.splitlines() if "edgekit plan " in item)
    command = shlex.split(line[line.index("edgekit plan") :])
    assert main(command[1:]) == 0
    assert " at 8K for each of 2 users" in capsys.readouterr().out


def test_json_suggestions_are_ordered_and_fit(capsys: pytest.CaptureFixture[str]) -> None:
    answer = recommend_json(capsys, "--ram", "8G", "--limit", "3")
    assert len(answer["suggestions"]) == 3
    assert (answer["task"], answer["engine"]) == ("chat", "llama.cpp")
    worths = [
        (suggestion["is_notable"], suggestion["worth"]) for suggestion in answer["suggestions"]
    ]
    assert worths == sorted(worths, reverse=True)
    for suggestion in answer["suggestions"]:
        assert suggestion["worth"] <= 2 * suggestion["rank"]
        assert suggestion["plan"]["can_load"]
        assert suggestion["plan"]["variant"]["is_good"]
        assert suggestion["plan"]["required_bytes"] <= suggestion["plan"]["available_bytes"]


@pytest.mark.parametrize(
    ("task", "kind"),
    [("embed", "embedding"), ("Embeddings", "embedding"), ("code", "code"), ("vision", "vision"), ("reason", "reasoning")],
)  # fmt: skip
def test_task_selects_models_for_it(
    task: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = recommend_json(capsys, "--ram", "8G", "--task", task, "--limit", "1")
    assert answer["task"] == kind
    suited = {entry.id for entry in ranked_for(ModelPurpose(kind), read_index().entries)}
    assert ids(answer)
    assert set(ids(answer)) <= suited


def test_all_sizes_shows_several_models_of_a_family(capsys: pytest.CaptureFixture[str]) -> None:
    families = [
        suggestion["entry"]["family"]
        for suggestion in recommend_json(capsys, "--ram", "8G", "--limit", "3")["suggestions"]
    ]
    assert len(set(families)) == len(families) == 3
    families_of_all_sizes = [suggestion["entry"]["family"] for suggestion in recommend_json(capsys, "--ram", "24G", "--all-sizes", "--limit", "9")["suggestions"]]  # fmt: skip
    assert len(set(families_of_all_sizes)) < len(families_of_all_sizes) == 9


def test_context_and_users_are_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    answer = recommend_json(capsys, "--ram", "16G", "--ctx", "8k", "--users", "4", "--limit", "2")
    for suggestion in answer["suggestions"]:
        assert (suggestion["plan"]["context_tokens"], suggestion["plan"]["users"]) == (8192, 4)


@pytest.mark.parametrize(
    ("argv", "engine"),
    [(["--device", "RTX 4090", "--engine", "vllm"], "vllm"), (["--device", "m4-max-64", "--engine", "mlx"], "mlx")],
)  # fmt: skip
def test_engine_flag_selects_the_engine(
    argv: list[str], engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = recommend_json(capsys, *argv, "--limit", "1")
    assert answer["suggestions"][0]["plan"]["engine"]["name"] == engine


# --- nothing fits


def test_nothing_fits_names_the_smallest_model_and_what_to_add(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run_recommend(capsys, "--ram", "1G")
    assert (code, err) == (3, "")
    first = out.splitlines()[0]
    assert first.startswith("Nothing fits for chat on 1 GiB RAM; nearest: ")
    nearest = first.split()[-1]
    chat = ModelPurpose.CHAT
    notable = [entry for entry in ranked_for(chat, index_entries()) if is_notable(entry, chat)]
    sizes = {entry.id: smallest_bytes(entry) for entry in notable}
    assert sizes[nearest] == min(sizes.values())
    answer = " ".join(out.split())
    assert "To fit" in answer
    assert "GiB of free RAM (1.00 GiB now)" in answer
    assert recommend_json(capsys, "--ram", "1G")["suggestions"] == []


# --- a requested speed


def test_min_speed_leaves_out_slower_models(capsys: pytest.CaptureFixture[str]) -> None:
    answer = recommend_json(capsys, "--device", "RTX 4090", "--min-speed", "90", "--limit", "3")
    speeds = [suggestion["plan"]["speed"]["typical"] for suggestion in answer["suggestions"]]
    assert len(speeds) == 3
    assert min(speeds) >= 90
    assert answer["min_speed"] == 90
    assert "slower than 90 tokens/s" in {row["because"] for row in answer["passed_over"]}
    assert answer["fastest"] is None


def test_speed_out_of_reach_names_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--device", "RTX 4090", "--min-speed", "1e6")
    code, out, _ = run_recommend(capsys, *argv)
    assert code == 3
    assert "reaches 1,000,000 tokens/s; fastest: " in " ".join(out.split())
    answer = recommend_json(capsys, *argv)
    assert (answer["suggestions"], answer["nearest"]) == ([], None)
    assert answer["fastest"]["plan"]["is_fast_enough"] is False


def test_min_speed_leaves_out_models_of_unknown_speed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_recommend(capsys, "--vram", "24G", "--min-speed", "20")
    assert code == 3
    words = " ".join(out.split())
    assert "is known to reach 20 tokens/s, because speeds are unknown: name the GPU" in words
    assert "Runs" not in words
    assert "edgekit plan" not in words
    assert " of unknown speed" in words


# --- errors


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--task", "nope"], 2, "--task must be one of chat, code, reasoning, embed, vision (got 'nope')"),
        (["--limit", "3000"], 2, "--limit: must be at most 100 (got 3000)"),
        (["--users", "0"], 2, "--users: must be at least 1 (got 0)"),
        (["--limit", "0"], 2, "--limit"),
        (["--limit", "many"], 2, "--limit: 'many' is not a whole number (write for example 8)"),
        (["--ctx", "many"], 2, "ctx-size"),
        (["--engine", "nobody"], 2, "nobody"),
        (["--engine", "vllm"], 3, "NVIDIA"),
        (["--engine", "vllm", "--ram", "32G"], 3, "vLLM needs an NVIDIA GPU; none given (add --device or --vram)"),
        (["--engine", "mlx", "--device", "iphone-16"], 3, "MLX needs a Mac with Apple silicon; this is: iPhone 16"),
        (["--engine", "mlx"], 3, "Apple"),
        (["--min-context", "x"], 2, "--min-context"),
        (["--min-speed", "fast"], 2, "--min-speed takes tokens per second above 0"),
    ],
)  # fmt: skip
def test_error_message_and_exit_code(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out, err = run_recommend(capsys, "--ram", "8G", *argv)
    assert (result, out) == (code, "")
    assert message in err


@pytest.mark.parametrize("ram", ["no", "-1G", ""])
def test_invalid_ram_is_an_error(ram: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_recommend(capsys, f"--ram={ram}")
    assert (code, out) == (2, "")
    assert err.startswith("edgekit: ")


# --- tiers


@pytest.mark.parametrize(
    ("ram", "code", "begins"),
    [("32G", 0, "Fits: 27B"), ("16G", 0, "Fits: 9B"), ("1G", 3, "")],
)
def test_tiers_chooses_the_largest_tier_that_fits(
    ram: str, code: int, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out, _ = run_recommend(capsys, "--tiers", "--ram", ram)
    assert result == code
    assert out.startswith(begins)


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_tiers_with_a_real_engine_are_an_error(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _, err = run_recommend(capsys, "--tiers", "--ram", "32G", "--engine", engine)
    assert result == 2
    assert f"{engine} does not have the compressed caches" in err


def test_tiers_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert recommend_json(capsys, "--tiers", "--ram", "16G")["tier"]["name"] == "9B"


# --- damaged catalog


def test_damaged_user_catalog_is_a_note(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path))
    (tmp_path / "catalog.db").write_bytes(b"no database" * 100)
    code, out, _ = run_recommend(capsys, "--ram", "8G", "--limit", "1")
    assert code == 0
    assert "catalog.db" in out
    notes = recommend_json(capsys, "--ram", "8G", "--limit", "1")["notes"]
    assert any("catalog.db" in note for note in notes)
