"""The context-scaling document's engine, asked as every other engine is. It is added to the list only here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.engines.tier_tasks import planned, task_for
from tests.unit.plan.machines import cards, cpu
from tests.unit.plan.tasks import LLAMA, gguf

from edgekit import engines
from edgekit.bill.types import Component, Load, cache_type
from edgekit.catalog.tiers import find_layout, find_tier, tiers
from edgekit.cli import main
from edgekit.engines.memo import ENGINE
from edgekit.engines.memo.rules import MemoSetup, tier_model
from edgekit.errors import RefusedError, UsageError
from edgekit.machine.types import DEVICE, Machine
from edgekit.plan.choice import judge
from edgekit.plan.fit import (
    can_divide,
    first_placement,
    placements_of,
    whole_placements,
)
from edgekit.units import GIB, Basis

FOLDER = "edgekit.engines.memo"


@pytest.fixture
def _listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engines, "LIST", (*engines.LIST, FOLDER))
    engines._by_name.cache_clear()
    yield
    monkeypatch.undo()
    engines._by_name.cache_clear()


def test_memo_is_not_in_the_list_of_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert FOLDER not in engines.LIST
    assert main(["check", "qwen3-0.6b", "--engine", "memo", "--ram", "8G"]) == 2
    assert "unknown engine 'memo'" in capsys.readouterr().err


def test_importing_memo_imports_no_rules() -> None:
    code = f"import sys, {FOLDER}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    result = {name for name in done.stdout.split() if name.startswith(FOLDER)}
    assert result == {FOLDER, f"{FOLDER}.flags"}


@pytest.mark.usefixtures("_listed")
@pytest.mark.parametrize("machine", [cpu(16), cards(24, ram=64), cards(24, ram=None)])
def test_placements_begin_with_the_whole_one(machine: Machine) -> None:
    task = task_for(machine, "9B")
    every, whole = tuple(placements_of(task)), whole_placements(task)
    assert whole == every[:1]
    assert not any(item.whole for item in every[1:])
    assert first_placement(task) == every[0]
    assert can_divide(task) is (len(every) > 1)


@pytest.mark.usefixtures("_listed")
@pytest.mark.parametrize("tier", [tier.name for tier in tiers()])
def test_judge_of_a_tier_has_the_engines_bill(tier: str) -> None:
    task = task_for(cards(24, ram=64), tier, context=8192, layout=find_layout("q8_0"))
    result = judge(task)
    setup = MemoSetup(pool=DEVICE)
    assert (result.engine, result.can_load, result.cache) == ("memo", True, "q8_0")
    assert result.estimate == ENGINE.estimate(task.model, result.load, setup)
    assert {line.basis for line in result.estimate.lines} == {Basis.ASSUMED}
    assert result.estimate.of(Component.KV_CACHE) == 8192 * find_tier(tier).bytes_per_token(
        find_layout("q8_0")
    )


@pytest.mark.usefixtures("_listed")
def test_judge_and_a_tiers_plan_have_the_same_bill_for_the_same_load() -> None:
    plan = planned(cards(24, ram=None), "27B")
    task = task_for(cards(24, ram=None), "27B")
    result = judge(replace(task, load=plan.verdict.load))
    assert result.estimate == plan.verdict.estimate
    assert result.required_bytes == plan.required_bytes


def test_cache_choices_have_the_most_accurate_first() -> None:
    for tokens, compressed in ((None, "qjl1_256+q4_polar"), (8192, "qjl1_256+turbo3_0")):
        choices = ENGINE.cache_choices(task_for(cpu(16), "2B", context=tokens))
        assert [item.name for item in choices] == ["f16", "q8_0", compressed]
        for choice in choices:
            keys, values = choice.load["cache_k"], choice.load["cache_v"]
            load = Load(context_tokens=tokens, cache_k=keys, cache_v=values)
            assert ENGINE.cache_name(load, ENGINE.default_setup()) == choice.name
    (given,) = ENGINE.cache_choices(task_for(cpu(16), "2B", layout=find_layout("polar")))
    assert (given.name, given.is_given) == ("qjl1_256+q4_polar", True)


def test_layout_of_rejects_k_and_v_that_do_not_match() -> None:
    mixed = Load(cache_k=cache_type("f16"), cache_v=cache_type("q8_0"))
    with pytest.raises(UsageError, match="not those of a cache layout: f16, q8_0"):
        ENGINE.estimate(tier_model(find_tier("2B")), mixed, MemoSetup())


def test_estimate_refuses_a_model_that_is_not_a_tier() -> None:
    with pytest.raises(RefusedError, match="is not a tier: write for example tier:27b"):
        ENGINE.estimate(gguf(LLAMA), Load(), MemoSetup())


def test_estimate_without_a_load_is_the_whole_context_compressed() -> None:
    tier = find_tier("27B")
    bill = ENGINE.estimate(tier_model(tier), Load(), MemoSetup())
    assert bill.of(Component.KV_CACHE) == 131_072 * 13_568
    assert bill.weights_bytes == tier.weights_bytes == tier_model(tier).header.file_bytes
    words = "131,072 tokens of context, cache qjl1_256+q4_polar"
    assert ENGINE.describe(Load(), bill) == words


def test_load_for_users_gives_each_a_context() -> None:
    load = ENGINE.load_for_users(Load(context_tokens=4096), 3, 0)
    bill = ENGINE.estimate(tier_model(find_tier("2B")), load, MemoSetup())
    assert dict(bill.facts)["windows"] == 3
    assert "4,096 tokens of context for each of 3" in ENGINE.describe(load, bill)
    with pytest.raises(UsageError, match="must be 1 to 1,024"):
        ENGINE.load_for_users(Load(), ENGINE.most_users + 1, 0)


def test_capacity_bytes_is_of_one_memory() -> None:
    assert ENGINE.capacity_bytes(cards(16, 8, ram=10)) == 16 * GIB
    assert ENGINE.devices(cards(8, 16, ram=10))[0].total_bytes == 16 * GIB
