"""benchmarks/estimate_speed.py: EdgeKit accepts the rows that it measures."""

from __future__ import annotations

import pytest
from estimate_speed import batch, batches
from tests.thoroughness import costly


@costly
@pytest.mark.parametrize("engine", ["llama.cpp cuda", "llama.cpp cpu", "vllm", "mlx"])
def test_rows_of_a_batch_are_accepted(engine: str) -> None:
    assert batch(dict(batches())[engine][:2]) > 0
