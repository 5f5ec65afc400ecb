"""A small model, and llama.cpp running it, for the tests of how an engine is watched and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.runtime_engines import launch_of, small_model

from edgekit.engines.llamacpp.run.engine import EngineProcess, start


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that ends in order is not killed for taking long on a busy machine."""
    monkeypatch.setattr(EngineProcess.stop, "__kwdefaults__", {"grace_s": PATIENCE_S})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.gguf")


@pytest.fixture
def running(model: Path) -> Iterator[EngineProcess]:
    with start(launch_of(model)) as running:
        yield running
