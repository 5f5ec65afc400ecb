"""`edgekit recommend` as a person or a program meets it, without a network."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from edgekit.catalog import read_catalog
from edgekit.cli import main


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "100")


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["recommend", *words])
    out, err = capsys.readouterr()
    return code, out, err


def ask_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    _, out, err = ask(capsys, *words, "--json")
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


def ids(told: dict[str, Any]) -> list[str]:
    return [suggestion["id"] for suggestion in told["suggestions"]]


def test_a_few_for_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, "--ram", "8G", "--limit", "2")
    assert (code, err) == (0, "")
    assert out.startswith("Best for chat on 8 GiB RAM: ")
    assert out.splitlines()[1].startswith("Runs on the CPU at ")
    assert "edgekit plan " in out
    assert "\nskipped: " in out
    assert "\x1b" not in out


def test_what_comes_next_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ram", "8G", "-c", "8k", "--users", "2", "--prefer-accurate-kv", "--limit", "1"]
    _, out, _ = ask(capsys, *words)
    (line,) = (item for item in out.splitlines() if "edgekit plan " in item)
    typed = shlex.split(line[line.index("edgekit plan") :])
    assert main(typed[1:]) == 0
    output = capsys.readouterr().out
    assert " at 8K for each of 2 users" in output


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "--ram", "8G", "--limit", "3")
    assert len(answer["suggestions"]) == 3
    assert (answer["task"], answer["engine"]) == ("chat", "llama.cpp")
    worths = [
        (suggestion["is_preferred"], suggestion["worth"]) for suggestion in answer["suggestions"]
    ]
    assert worths == sorted(worths, reverse=True)
    for suggestion in answer["suggestions"]:
        assert 0 < suggestion["worth"] <= 2 * suggestion["rank"]
        assert suggestion["plan"]["can_load"]
        assert suggestion["plan"]["variant"]["is_good"]
        assert suggestion["plan"]["required_bytes"] <= suggestion["plan"]["available_bytes"]


@pytest.mark.parametrize(
    ("word", "kind"),
    [("embed", "embedding"), ("Embeddings", "embedding"), ("code", "code"), ("vision", "vision"), ("reason", "reasoning")],
)  # fmt: skip
def test_a_task(word: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "--ram", "8G", "--task", word, "--limit", "1")
    assert answer["task"] == kind
    known = {entry.id: entry for entry in read_catalog().entries}
    assert ids(answer)
    for name in ids(answer):
        assert kind in {item.value for item in known[name].kinds}


def test_several_of_a_family(capsys: pytest.CaptureFixture[str]) -> None:
    families = [
        suggestion["entry"]["family"]
        for suggestion in ask_json(capsys, "--ram", "8G", "--limit", "3")["suggestions"]
    ]
    assert len(set(families)) == len(families) == 3
    every = [suggestion["entry"]["family"] for suggestion in ask_json(capsys, "--ram", "24G", "--all-sizes")["suggestions"]]  # fmt: skip
    assert len(set(every)) < len(every) == 5


def test_a_context_for_users(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, "--ram", "16G", "--ctx", "8k", "--users", "4", "--limit", "2")
    for suggestion in answer["suggestions"]:
        assert (suggestion["plan"]["context_tokens"], suggestion["plan"]["users"]) == (8192, 4)


@pytest.mark.parametrize(
    ("words", "engine"),
    [(["--device", "RTX 4090", "--engine", "vllm"], "vllm"), (["--device", "m4-max-64", "--engine", "mlx"], "mlx")],
)  # fmt: skip
def test_another_engine(words: list[str], engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask_json(capsys, *words, "--limit", "1")
    assert answer["suggestions"][0]["plan"]["engine"]["name"] == engine


# --- nothing fits


def test_a_machine_that_holds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, "--ram", "1G")
    assert (code, err) == (3, "")
    first = out.splitlines()[0]
    assert first.startswith("Nothing fits for chat on 1 GiB RAM; nearest: ")
    nearest = first.split()[-1]
    chat = [
        entry for entry in read_catalog().entries if "chat" in {kind.value for kind in entry.kinds}
    ]
    sizes = {item.id: min(size.tensor_bytes for size in item.sizes if size.mix.startswith(("Q4", "IQ4"))) for item in chat}  # fmt: skip
    assert sizes[nearest] == min(sizes.values())
    answer = " ".join(out.split())
    assert "To fit" in answer
    assert "GiB of free RAM (1.00 GiB now)" in answer
    assert ask_json(capsys, "--ram", "1G")["suggestions"] == []


# --- what cannot be


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--task", "nope"], 2, "--task must be one of chat, code, reasoning, embed, vision (got 'nope')"),
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
    ],
)  # fmt: skip
def test_contradictions(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out, err = ask(capsys, "--ram", "8G", *words)
    assert (result, out) == (code, "")
    assert told in err


@pytest.mark.parametrize("ram", ["no", "-1G", ""])
def test_no_memory_at_all(ram: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, f"--ram={ram}")
    assert (code, out) == (2, "")
    assert err.startswith("edgekit: ")


# --- tiers


@pytest.mark.parametrize(
    ("ram", "code", "begins"),
    [("32G", 0, "Fits: 27B"), ("16G", 0, "Fits: 9B"), ("1G", 3, "")],
)
def test_tiers(ram: str, code: int, begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    result, out, _ = ask(capsys, "--tiers", "--ram", ram)
    assert result == code
    assert out.startswith(begins)


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_tiers_of_a_real_engine_are_refused(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _, err = ask(capsys, "--tiers", "--ram", "32G", "--engine", engine)
    assert result == 2
    assert f"{engine} does not have the compressed caches" in err


def test_tiers_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask_json(capsys, "--tiers", "--ram", "16G")["tier"]["name"] == "9B"


# --- a catalog is damaged


def test_what_cannot_be_read_of_the_users_catalog_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path))
    (tmp_path / "catalog.db").write_bytes(b"no database" * 100)
    code, out, _ = ask(capsys, "--ram", "8G", "--limit", "1")
    assert code == 0
    assert "catalog.db" in out
    notes = ask_json(capsys, "--ram", "8G", "--limit", "1")["notes"]
    assert any("catalog.db" in note for note in notes)
