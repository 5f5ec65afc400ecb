"""report/run.py: what is printed when an engine has started."""

from __future__ import annotations

from typing import Any

import pytest

from edgekit.engines.program import ComparedRow, MeasuredBytes, RunningEngine
from edgekit.report.run import comparison_text, engine_text


@pytest.mark.parametrize(
    ("predicted", "outcome"),
    [
        (100, "as predicted"),
        (101, "within the bounds of the estimate, which follows the rules of b2"),
        (103, "OUTSIDE BOUNDS: weights"),
    ],
)
def test_comparison_text_says_whether_memory_is_as_predicted(predicted: int, outcome: str) -> None:
    generator: Any = None
    measured = MeasuredBytes(low_bytes=100, high_bytes=100)
    row = ComparedRow(part="weights", predicted_bytes=predicted, measured=measured, allowed_bytes=1)
    running = RunningEngine(generator=generator, version="b1", rules_version="b2", rows=(row,))
    first, *rows = comparison_text("some engine", running).splitlines()
    assert first == f"some engine b1 is up, {outcome}"
    assert "weights" in rows[-1]


def test_engine_text_names_the_program_that_has_the_engine_inside() -> None:
    generator: Any = None
    running = RunningEngine(generator=generator, version="0.14.0", program="Ollama")
    assert engine_text("llama.cpp", running) == "llama.cpp in Ollama 0.14.0"
