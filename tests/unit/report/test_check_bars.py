"""report/check.py: bars_json has the estimate by memory and component."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.unit.report.verdicts import card

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine, Usage
from edgekit.engines.llamacpp.placements import budgets_with as llamacpp_budgets
from edgekit.engines.vllm.placements import budgets_at as vllm_budgets
from edgekit.machine.types import DEVICE, HOST, Budget, Pool, PoolKind
from edgekit.machine.what_if import what_if_machine
from edgekit.models import model_preflight
from edgekit.report.check import bars_json
from edgekit.units import GIB

MACHINES: list[dict[str, Any]] = [
    {"device": "RTX 4090", "ram": "64G"},
    {"device": "2x RTX 3090", "ram": "64G"},
    {"device": "m3-max-36"},
    {"ram": "64G"},
    {"ram": "2G"},
]


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_bars_json_parts_add_up_to_required_bytes(machine: dict[str, Any]) -> None:
    result = model_preflight("sample:gemma-3-27b", "llama.cpp", context=8192, **machine)
    bars = bars_json(result.uses, result.estimate)
    order = [component.value for component in Component]
    for bar, use in zip(bars, result.uses, strict=True):
        names = [part["component"] for part in bar["parts"]]
        assert sum(part["bytes"] for part in bar["parts"]) == bar["required_bytes"]
        assert bar["required_bytes"] == use.required_bytes
        assert names == sorted(names, key=order.index)
        assert all(part["bytes"] > 0 for part in bar["parts"])
    json.dumps(bars, allow_nan=False)


def test_bars_json_numbers_cards_of_the_same_name() -> None:
    result = model_preflight("sample:gemma-3-27b", "llama.cpp", device="2x RTX 3090", ram="64G")
    names = [bar["memory"] for bar in bars_json(result.uses, result.estimate)]
    assert names == ["RTX 3090 #0", "RTX 3090 #1", "RAM"]


def line(component: Component, size: int, pool: Pool, *, reserved: bool = True) -> MemoryLine:
    return MemoryLine(component=component, size_bytes=size, pool=pool, reserved=reserved)


def test_bars_json_of_unified_memory_is_one_bar_of_reserved_lines() -> None:
    estimate = MemoryEstimate(
        engine="llama.cpp",
        backend="metal",
        lines=(
            line(Component.COMPUTE, 30, DEVICE),
            line(Component.WEIGHTS, 140, DEVICE),
            line(Component.WEIGHTS, 10, HOST),
            line(Component.KV_CACHE, 0, DEVICE),
            line(Component.PROMPT_CACHE, 999, HOST, reserved=False),
            line(Component.WEIGHTS, 7, Pool(PoolKind.DEVICE, 1)),
        ),
    )
    budget = Budget(
        name="unified memory",
        pools=frozenset({DEVICE, HOST}),
        total_bytes=300,
        free_bytes=250,
        reserve_bytes=50,
        because="for everything else",
    )
    (bar,) = bars_json([Usage(budget=budget, required_bytes=180)], estimate)
    assert bar == {
        "memory": "unified memory",
        "total_bytes": 300,
        "free_bytes": 250,
        "reserve_bytes": 50,
        "available_bytes": 200,
        "required_bytes": 180,
        "utilization": 0.9,
        "share": "90 %",
        "status": "warning",
        "because": "for everything else",
        "blocked": None,
        "parts": [
            {"component": "weights", "bytes": 150},
            {"component": "compute", "bytes": 30},
        ],
    }


def test_bars_json_shows_a_gpu_limit_as_reserve() -> None:
    """36 GiB free, of which the GPU may use 27."""
    hardware = what_if_machine(devices=["m3-max-36"])
    (budget,) = llamacpp_budgets(hardware, hardware.devices)
    estimate = MemoryEstimate(engine="llama.cpp", backend="metal", lines=())
    (bar,) = bars_json([Usage(budget=budget, required_bytes=0)], estimate)
    assert (bar["available_bytes"], bar["reserve_bytes"]) == (27 * GIB, 9 * GIB)
    assert bar["because"] == budget.limit_because


@pytest.mark.parametrize(
    ("required", "status", "share"),
    [
        (3, "passed", "<1 %"),
        (850, "passed", "85 %"),
        (851, "warning", "85.1 %"),
        (1000, "warning", "100 %"),
        (1001, "failed", "100.1 %"),
        (26_000, "failed", "2,600 %"),
    ],
)
def test_bars_json_share_is_share_words(required: int, status: str, share: str) -> None:
    budget = Budget(
        name="RAM",
        pools=frozenset({HOST}),
        total_bytes=1000,
        free_bytes=1000,
        reserve_bytes=0,
        because="",
    )
    lines = (line(Component.WEIGHTS, required, HOST),)
    estimate = MemoryEstimate(engine="llama.cpp", backend="cpu", lines=lines)
    (bar,) = bars_json([Usage(budget=budget, required_bytes=required)], estimate)
    assert (bar["status"], bar["share"]) == (status, share)


def test_bars_json_of_a_blocked_memory() -> None:
    (budget,) = vllm_budgets((card("T4", 16, free_bytes=0),), 0.9)
    estimate = MemoryEstimate(
        engine="vllm", backend="cuda", lines=(line(Component.WEIGHTS, 5, DEVICE),)
    )
    use = Usage(budget=budget, required_bytes=5)
    (bar,) = bars_json([use], estimate)
    assert math.isinf(use.utilization)
    assert bar["utilization"] is bar["share"] is None
    assert bar["status"] == "failed"
    assert bar["blocked"].startswith("vLLM does not start")
