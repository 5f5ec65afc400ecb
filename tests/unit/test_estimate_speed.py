"""The benchmark of estimates: a row that EdgeKit refuses is not measured."""

from __future__ import annotations

import pytest
from estimate_speed import batch, batches
from tests.thoroughness import costly


@costly
@pytest.mark.parametrize("engine", ["llama.cpp cuda", "llama.cpp cpu", "vllm", "mlx"])
def test_the_rows_of_a_batch_are_accepted(engine: str) -> None:
    assert batch(dict(batches())[engine][:2]) > 0
