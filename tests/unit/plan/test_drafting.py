"""Draft models that would fit as well: the model's own blocks, or a smaller model with the same vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import LLAMA, from_config, gguf, one_file, rated

from edgekit.bill.types import CACHES, Drafter, Task
from edgekit.bill.verdict import Lever
from edgekit.catalog.names import find_entry
from edgekit.catalog.types import Entry, ModelPurpose
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.choices import at_mixes
from edgekit.machine.types import Machine
from edgekit.plan.plan import (
    OWN_BLOCKS,
    Plan,
    catalog_drafters,
    make_plan,
    own_drafter,
    with_drafter,
)

SMALL = Drafter(name="small", model=gguf("llama-3.2-1b"), because="the same words")
OWN = "qwen3.6-27b"  # of the catalog: one block for further tokens


def with_own(machine: Machine, context: int | None = None, **more: Any) -> Task:
    model = open_entry(find_entry(OWN), "llama.cpp").model
    (usual,) = at_mixes(model, ("Q4_K_M",))
    task = one_file(LLAMA, machine, context, **more)
    return replace(
        task, label=OWN, model=usual.model, variants=(usual,), drafters=own_drafter(model)
    )


def drafting_bytes(plan: Plan) -> int:
    lines = plan.result.estimate.lines
    return sum(line.size_bytes for line in lines if line.part in {"drafter", "prediction"})


def chosen(plan: Plan) -> str:
    decision = plan.decision(Lever.DRAFTER)
    return "" if decision is None else decision.value


# --- its own prediction layers


def test_some_models_bring_their_own() -> None:
    (own,) = own_drafter(open_entry(find_entry(OWN), "llama.cpp").model)
    assert (own.name, own.model) == (OWN_BLOCKS, None)
    assert own_drafter(gguf(LLAMA)) == ()


def test_own_blocks_are_proposed_and_not_counted() -> None:
    task = with_own(rated(cards(32)), 32_768)
    plan, plain = make_plan(task), make_plan(replace(task, drafters=()))
    assert chosen(plan) == OWN_BLOCKS
    assert plan.result == plain.result
    assert drafting_bytes(plan) == 0


def test_own_blocks_that_do_not_leave_the_window_stay_out() -> None:
    plan = make_plan(with_own(rated(cards(24))))
    assert chosen(plan) == "none"
    assert plan.drafter is None
    assert not plan.result.way.setup.load_mtp
    assert drafting_bytes(plan) == 0


# --- a smaller model


def test_a_smaller_model_is_judged_with_its_own_cache() -> None:
    task = one_file(LLAMA, rated(cards(24)), 32_768, drafters=(SMALL,))
    plain = make_plan(replace(task, drafters=()))
    assert make_plan(task).drafter is SMALL
    asked = with_drafter(task, SMALL)
    assert asked.bill is not None
    bill = asked.bill(plain.load, replace(plain.result.way.setup, draft_max=3))
    caches = sum(line.size_bytes for line in bill.lines if line.part and line.component in CACHES)
    assert caches == 32_768 * 16 * 2 * 8 * 64 * 2  # 16 layers, K and V of 8 heads of 64, 16 bit
    weights = bill.weights_bytes - plain.result.estimate.weights_bytes
    # llama-3.2-1b at Q4_K_M, and its embedding once more on the card as the output: Q6_K, 210 bytes for 256
    assert weights == 799_862_912 + 128_256 * 2048 * 210 // 256


@pytest.mark.parametrize("gib", [9, 10, 11, 12, 16])
def test_it_is_taken_exactly_where_it_leaves_the_window(gib: int) -> None:
    task = one_file(LLAMA, rated(cards(gib)), 16_384, drafters=(SMALL,))
    plan, plain = make_plan(task), make_plan(replace(task, drafters=()))
    assert (plan.context_tokens, plan.load) == (plain.context_tokens, plain.load)
    room = plain.result.uses[0].budget.available_bytes  # less where it is comfortable without
    room = room * 85 // 100 if plain.result.passed else room
    # 0.74 GiB of weights, 16,384 x 32 KiB of cache at f16, and 0.2 of buffers at most
    cache = 16_384 * 32 * 1024 * (plain.load.cache_k.bits if plain.load.cache_k else 16) / 16
    least = plain.result.uses[0].required_bytes + 799_862_912 * 0.7 + cache
    if plan.drafter is None:
        assert least + 0.4 * 2**30 > room
    else:
        assert least <= room


def test_cards_above_stand_on_both_sides() -> None:
    taken = {gib: make_plan(one_file(LLAMA, rated(cards(gib)), 16_384, drafters=(SMALL,))).drafter for gib in (9, 16)}  # fmt: skip
    assert (taken[9], taken[16]) == (None, SMALL)


def test_the_first_that_fits_is_taken() -> None:
    large = Drafter(name="large", model=gguf("gemma-3-27b"), because="the same words")
    plan = make_plan(one_file(LLAMA, rated(cards(24)), 32_768, drafters=(large, SMALL)))
    decision = plan.decision(Lever.DRAFTER)
    assert decision is not None
    assert [(one.value, one.taken) for one in decision.tried] == [("large", False), ("small", True)]
    assert "does not fit at 32,768 tokens" in decision.tried[0].told


def test_one_with_a_bill_that_nobody_knows_is_passed_over() -> None:
    strange = Drafter(name="strange", model=gguf(LLAMA), changes={"mix": "Q9_Z"}, because="")
    plan = make_plan(one_file(LLAMA, rated(cards(24)), 16_384, drafters=(strange, SMALL)))
    assert plan.drafter is SMALL


# --- where none is looked for


@pytest.mark.parametrize("users", [1, 4])
def test_none_with_users(users: int) -> None:
    plan = make_plan(one_file(LLAMA, rated(cards(48)), 8192, users=users, drafters=(SMALL,)))
    assert plan.drafter is None
    assert plan.decision(Lever.DRAFTER) is None


def test_none_where_the_model_is_divided() -> None:
    plan = make_plan(one_file(LLAMA, rated(cards(6)), drafters=(SMALL,)))
    assert plan.drafter is None
    assert chosen(plan) == "none"


@pytest.mark.parametrize(("engine", "machine"), [("vllm", cards(48)), ("mlx", mac(64, 48))])
def test_none_for_other_engines(engine: str, machine: Machine) -> None:
    plan = make_plan(from_config("qwen3-8b", machine, engine, 8192, drafters=(SMALL,)))
    assert plan.drafter is None
    assert plan.decision(Lever.DRAFTER) is None


def test_on_the_processor_too() -> None:
    assert make_plan(one_file(LLAMA, rated(cpu(32)), 16_384, drafters=(SMALL,))).drafter is SMALL


# --- of the catalog


def entry(name: str, parameters: int, **more: Any) -> Entry:
    """A real one, under another name and size."""
    return replace(find_entry("qwen3-0.6b"), id=name, parameters=parameters, active_parameters=None, **more)  # fmt: skip


BIG = entry("big", 32_000)
CASES = {
    "same": entry("same", 4000),  # an eighth
    "smaller": entry("smaller", 1000),
    "too near": entry("too near", 4001),
    "other family": entry("other family", 1000, family="llama"),
    "a few words more": entry("a few words more", 1000, vocabulary=151_936 + 128),
    "more words": entry("more words", 1000, vocabulary=151_936 + 129),
    "fewer words": entry("fewer words", 1000, vocabulary=151_936 - 129),
    "unknown words": entry("unknown words", 1000, vocabulary=None),
    "unknown size": replace(entry("unknown size", 1), parameters=None),
    "embedding": entry("embedding", 1000, kinds=(ModelPurpose.EMBEDDING,)),
}


@pytest.mark.parametrize(
    ("name", "drafts"),
    [(name, name in {"same", "smaller", "a few words more"}) for name in CASES],
)
def test_the_same_family_and_as_many_words(name: str, *, drafts: bool) -> None:
    found = catalog_drafters(BIG, (BIG, CASES[name]))
    assert [one.name for one in found] == ([f"{name} at Q4_K_M"] if drafts else [])


def test_the_largest_first() -> None:
    found = catalog_drafters(BIG, CASES.values())
    assert [one.name.partition(" at ")[0] for one in found] == ["same", "smaller", "a few words more"]  # fmt: skip
    assert all(one.changes == {"mix": "Q4_K_M"} and one.model is not None for one in found)


def test_a_model_with_experts_is_measured_by_those_that_work() -> None:
    sparse = replace(BIG, active_parameters=3000)  # 3,000 of 32,000 work on a token
    assert catalog_drafters(sparse, (CASES["same"], CASES["smaller"])) == ()
    assert len(catalog_drafters(sparse, (entry("tiny", 375),))) == 1


def test_no_words_known_no_drafter() -> None:
    assert catalog_drafters(replace(BIG, vocabulary=None), CASES.values()) == ()
