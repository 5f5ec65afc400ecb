"""The what-if engine for tiers through the interface of all engines. The tests that need it listed list it themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.engines.memo.tier_tasks import planned, task_for
from tests.unit.plan.machines import cards, cpu
from tests.unit.plan.tasks import LLAMA, gguf

from edgekit import engines
from edgekit.bill.types import Component, Load, cache_type
from edgekit.cli import main
from edgekit.engines.memo import ENGINE
from edgekit.engines.memo.rules import MemoSetup, tier_model
from edgekit.errors import RefusedError, UsageError
from edgekit.index.tiers import find_layout, find_tier, tiers
from edgekit.machine.types import DEVICE, Machine
from edgekit.plan.choice import judge
from edgekit.plan.fit import (
    can_divide,
    first_placement,
    placements_of,
    whole_placements,
)
from edgekit.units import GIB, Basis

PACKAGE = "edgekit.engines.memo"


@pytest.fixture
def _memo_listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines, "LIST", (*engines.LIST, PACKAGE))
    engines._by_name.cache_clear()
    yield
    monkeypatch.undo()
    engines._by_name.cache_clear()


def test_memo_is_not_in_the_list_of_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert PACKAGE not in engines.LIST
    assert main(["check", "qwen3-0.6b", "--engine", "memo", "--ram", "8G"]) == 2
    assert "unknown engine 'memo'" in capsys.readouterr().err


def test_import_of_memo_loads_only_its_flags() -> None:
    code = f"import sys, {PACKAGE}; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = {name for name in process.stdout.split() if name.startswith(PACKAGE)}
    assert modules == {PACKAGE, f"{PACKAGE}.flags"}


@pytest.mark.usefixtures("_memo_listed")
@pytest.mark.parametrize("machine", [cpu(16), cards(24, ram=64), cards(24, ram=None)])
def test_only_the_first_placement_is_whole(machine: Machine) -> None:
    task = task_for(machine, "9B")
    first, *others = placements_of(task)
    assert whole_placements(task) == (first,)
    assert not any(placement.whole for placement in others)
    assert first_placement(task) == first
    assert can_divide(task) is bool(others)


@pytest.mark.usefixtures("_memo_listed")
@pytest.mark.parametrize("tier", [tier.name for tier in tiers()])
def test_judge_of_a_tier_has_the_bill_of_the_engine(tier: str) -> None:
    task = task_for(cards(24, ram=64), tier, context=8192, layout=find_layout("q8_0"))
    verdict = judge(task)
    bill = verdict.estimate
    assert (verdict.engine, verdict.can_load, verdict.cache) == ("memo", True, "q8_0")
    assert bill == ENGINE.estimate(task.model, verdict.load, MemoSetup(pool=DEVICE))
    assert {line.basis for line in bill.lines} == {Basis.ASSUMED}
    per_token = find_tier(tier).bytes_per_token(find_layout("q8_0"))
    assert bill.of(Component.KV_CACHE) == 8192 * per_token


@pytest.mark.usefixtures("_memo_listed")
def test_judge_and_plan_tier_have_the_same_bill_for_the_same_load() -> None:
    plan = planned(cards(24, ram=None), "27B")
    task = task_for(cards(24, ram=None), "27B")
    verdict = judge(replace(task, load=plan.verdict.load))
    assert verdict.estimate == plan.verdict.estimate
    assert verdict.required_bytes == plan.required_bytes


@pytest.mark.parametrize(
    ("tokens", "compressed"), [(None, "qjl1_256+q4_polar"), (8192, "qjl1_256+turbo3_0")]
)
def test_cache_choices_have_the_most_accurate_first(tokens: int | None, compressed: str) -> None:
    choices = ENGINE.cache_choices(task_for(cpu(16), "2B", context=tokens))
    assert [choice.name for choice in choices] == ["f16", "q8_0", compressed]
    for choice in choices:
        keys, values = choice.load["cache_k"], choice.load["cache_v"]
        load = Load(context_tokens=tokens, cache_k=keys, cache_v=values)
        assert ENGINE.cache_name(load, ENGINE.default_setup()) == choice.name


def test_cache_choices_have_only_a_given_layout() -> None:
    (given,) = ENGINE.cache_choices(task_for(cpu(16), "2B", layout=find_layout("polar")))
    assert (given.name, given.is_given) == ("qjl1_256+q4_polar", True)


def test_estimate_rejects_types_of_k_and_v_that_are_not_a_layout() -> None:
    mixed = Load(cache_k=cache_type("f16"), cache_v=cache_type("q8_0"))
    with pytest.raises(UsageError, match="not those of a cache layout: f16, q8_0"):
        ENGINE.estimate(tier_model(find_tier("2B")), mixed, MemoSetup())


def test_estimate_refuses_a_model_that_is_not_a_tier() -> None:
    with pytest.raises(RefusedError, match="is not a tier: write for example tier:27b"):
        ENGINE.estimate(gguf(LLAMA), Load(), MemoSetup())


def test_estimate_of_an_empty_load_is_the_whole_window_compressed() -> None:
    tier = find_tier("27B")
    bill = ENGINE.estimate(tier_model(tier), Load(), MemoSetup())
    assert bill.of(Component.KV_CACHE) == 131_072 * 13_568
    assert bill.weights_bytes == tier.weights_bytes == tier_model(tier).header.file_bytes
    text = "131,072 tokens of context, cache qjl1_256+q4_polar"
    assert ENGINE.describe(Load(), bill) == text


def test_load_for_users_gives_each_user_a_context() -> None:
    load = ENGINE.load_for_users(Load(context_tokens=4096), 3, 0)
    bill = ENGINE.estimate(tier_model(find_tier("2B")), load, MemoSetup())
    assert dict(bill.facts)["windows"] == 3
    assert "4,096 tokens of context for each of 3" in ENGINE.describe(load, bill)


def test_load_for_users_rejects_more_than_1024_users() -> None:
    with pytest.raises(UsageError, match="must be 1 to 1,024"):
        ENGINE.load_for_users(Load(), ENGINE.most_users + 1, 0)


def test_capacity_bytes_is_that_of_the_larger_card() -> None:
    assert ENGINE.capacity_bytes(cards(16, 8, ram=10)) == 16 * GIB


def test_devices_are_the_larger_card() -> None:
    (device,) = ENGINE.devices(cards(8, 16, ram=10))
    assert device.total_bytes == 16 * GIB
