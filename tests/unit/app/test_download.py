"""`edgekit download`: what is downloaded for a name; without the network, the error names the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgekit.cli import main


@pytest.fixture(autouse=True)
def empty_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EDGEKIT_DATA", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.mark.parametrize("name", ["magistral-small-2506", "magistral-small-2506:Q5_K_M"])
def test_model_of_unknown_layers_and_size_is_downloaded_from_its_known_repository(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download", name, "--offline"]) == 4
    message = capsys.readouterr().err
    assert (
        "bartowski/mistralai_Magistral-Small-2506-GGUF is not in the Hugging Face cache" in message
    )


@pytest.mark.parametrize("name", ["gpt-4o", "gpt-4o:Q4_K_M", "openai/gpt-4o-mini:4bit"])
def test_closed_model_is_not_downloaded_and_the_error_says_why(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download", name, "--offline"]) == 4
    assert "is a closed model: OpenAI does not publish its weights" in capsys.readouterr().err
