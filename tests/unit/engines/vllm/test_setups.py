"""Rows of a batch are read, and the values of a setup written."""

from __future__ import annotations

from typing import Any

import pytest

from edgekit.bill.types import Load
from edgekit.engines.vllm.setups import read_row, values
from edgekit.engines.vllm.types import Gpu, VllmSetup
from edgekit.errors import UsageError


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": "H100"},
        {"gpu": {"capability": [9]}},
        {"gpu": {"capability": [9, 0.5]}},
        {"max_model_len": "long"},
        {"block_size": True},
        {"block_size": 2**70},
        {"dtype": 16},
        {"enable_prefix_caching": "yes"},
        {"gpu_memory_utilization": "0.9"},
    ],
)
def test_read_row_rejects_a_value_of_the_wrong_type(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_row(options)


def test_values_leave_out_a_gpu_of_which_only_the_size_is_known() -> None:
    """Such as that of --vram 24G."""
    gpu = Gpu(name="24 GiB GPU", memory_bytes=None, total_bytes=24 * 2**30)
    assert "gpu" not in values(Load(), VllmSetup(gpu=gpu))
    named = VllmSetup(gpu=Gpu(name="H100", capability=(9, 0)))
    assert values(Load(), named)["gpu"].name == "H100"
