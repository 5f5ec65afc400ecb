"""What tests of `edgekit calibrate` share: a folder for its results, quick measurements, and a way to run it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from edgekit.app.calibrate import calibrate
from edgekit.cli import main
from edgekit.engines.llamacpp.run.generated import Shape
from edgekit.engines.program import CalibrateOptions
from edgekit.units import MIB

RunEdgekit = Callable[..., tuple[int, str, str]]
QUICK = CalibrateOptions(
    read_bytes=16 * MIB,
    read_seconds=0.05,
    shape=Shape(layers=2, width=256, inner=512, heads=4, kv_heads=2, vocabulary=2048),
    pace_seconds=0.2,
    busy_share=1.0,
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("edgekit.cli.measure.calibrate", partial(calibrate, options=QUICK))
    return tmp_path / "data"


@pytest.fixture
def run_edgekit(capsys: pytest.CaptureFixture[str]) -> RunEdgekit:
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return run
