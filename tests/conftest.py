"""No test sees this machine's tokens, caches or models."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_environment(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path_factory.mktemp("home")
    for name in (
        "HF_TOKEN",
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "HF_HUB_CACHE",
        "COLUMNS",
        "NO_COLOR",
        "OLLAMA_MODELS",
        "XDG_DATA_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(home / "huggingface"))
    monkeypatch.setenv("EDGEKIT_CACHE", str(home / "edgekit-cache"))
    monkeypatch.setenv("EDGEKIT_DATA", str(home / "edgekit-data"))
