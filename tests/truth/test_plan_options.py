"""Plans from recorded headers: the bill of the printed options is that of the plan, to the byte.

Some plans for the CPU are also compared with a dry run of real llama.cpp.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.recorded import gguf_files, header_bytes, models
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import GEMMA, LLAMA, MOE, any_mix, gguf, one_file, rated

from edgekit.bill.types import Load, MemoryEstimate, Start
from edgekit.cli.parser import build_parser
from edgekit.engines.flags import COMMON, CONTEXT, given_flags, read_flags
from edgekit.engines.llamacpp.choices import at_mixes
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.flags import FLAGS
from edgekit.engines.llamacpp.setups import setup as llamacpp_setup
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode, Rules
from edgekit.plan.commands import ready_commands
from edgekit.plan.plan import Plan, make_plan
from edgekit.sources.types import ModelFiles

# Flags without an effect on the bill -> the number of words of each.
_ELSEWHERE = {"-m": 2, "-hf": 2, "-nr": 1}

ON_THE_HOST = Start(
    setup=LlamaCppSetup(mode=LlamaMode.SERVER, offload_kqv=False, rules=Rules.V0_5),
    fixed_flags=frozenset({"offload_kqv"}),
)

PLANS: dict[str, Callable[[], Plan]] = {
    # CPU
    "processor": lambda: make_plan(one_file(LLAMA, cpu(16))),
    "processor, given context": lambda: make_plan(one_file(LLAMA, cpu(16), 32_768)),
    "processor, users": lambda: make_plan(one_file("gemma-3-4b", cpu(16), 16_384, users=3)),
    "processor, latent": lambda: make_plan(one_file("deepseek-v2-lite", cpu(14))),
    "processor, experts": lambda: make_plan(one_file("granite-4-h-tiny", cpu(8))),
    # one card
    "card": lambda: make_plan(one_file(LLAMA, cards(12))),
    "card, given context": lambda: make_plan(one_file("smollm3-3b", cards(8), 65_536)),
    "card, layers": lambda: make_plan(one_file("llama-3.1-70b", rated(cards(24)))),
    "card, cache on the host": lambda: make_plan(
        one_file(LLAMA, rated(cards(8)), 131_072, start=ON_THE_HOST)
    ),
    "card, mix": lambda: make_plan(any_mix(LLAMA, rated(cards(24)))),
    "card, low bits": lambda: make_plan(any_mix(LLAMA, rated(cards(6, ram=6)))),
    "card, users": lambda: make_plan(one_file("qwen2.5-7b", cards(16), 16_384, users=4)),
    # two unequal cards
    "cards": lambda: make_plan(one_file(GEMMA, cards(16, 8), 16_384)),
    "cards, smaller first": lambda: make_plan(one_file(GEMMA, cards(8, 16), 16_384)),
    "cards, nearly alike": lambda: make_plan(one_file(GEMMA, cards(16, 12), 16_384)),
    "cards, layers": lambda: make_plan(one_file("llama-3.1-70b", rated(cards(24, 10)), 16_384)),
    # experts in RAM
    "experts": lambda: make_plan(one_file(MOE, rated(cards(12)))),
    "experts, first layers": lambda: make_plan(
        one_file("deepseek-v2-lite", rated(cards(10)), 16_384)
    ),
    "experts, none on the card": lambda: make_plan(one_file(MOE, rated(cards(5)))),
    "experts, two cards": lambda: make_plan(one_file("mixtral-8x7b", rated(cards(12, 8)), 16_384)),
    "experts, Mac": lambda: make_plan(any_mix(MOE, rated(mac(32, 24)))),
}


@cache
def plan_of(name: str) -> Plan:
    return PLANS[name]()


def billed_again(plan: Plan) -> MemoryEstimate:
    """The bill from the printed command and the devices of the plan."""
    (text,) = (command.text for command in ready_commands(plan) if command.name == "llama-server")
    words = shlex.split(text)
    values = flags_of(words[words.index("llama-server") + 1 :])
    load, setup = llamacpp_setup(values)
    planned = LlamaCppSetup.of(plan.result.way.setup)
    request = replace(setup, devices=planned.devices, mix=planned.mix)
    if planned.has_device:
        request = replace(request, backend=planned.backend)
    return estimate(plan.variant.model, load, request)


def flags_of(words: list[str]) -> dict[str, Any]:
    bill_words: list[str] = []
    skip = 0
    for word in words:
        skip = skip or _ELSEWHERE.get(word, 0)
        if skip:
            skip -= 1
        else:
            bill_words.append(word)
    parsed = given_flags(build_parser().parse_args(["estimate", "MODEL", *bill_words]))
    flags = {**parsed.get(COMMON, {}), **parsed.get("llama.cpp", {})}
    return read_flags((CONTEXT, *FLAGS), flags)


@pytest.mark.parametrize("name", sampled(tuple(PLANS), each=2))
def test_printed_options_give_the_plans_bill(name: str) -> None:
    plan = plan_of(name)
    assert plan.fits
    bill = billed_again(plan)
    assert bill.total_bytes == plan.result.estimate.total_bytes
    for use in plan.result.uses:
        assert bill.in_pools(use.budget.pools) == use.required_bytes + use.covered_bytes
        assert use.required_bytes <= use.budget.available_bytes


def test_plans_of_every_kind_are_covered() -> None:
    assert setup_of("cards").tensor_split
    assert not setup_of("card, cache on the host").offload_kqv
    assert setup_of("experts").overrides
    assert setup_of("experts, first layers").n_cpu_moe
    assert setup_of("experts, none on the card").cpu_moe
    assert 0 < setup_of("card, layers").n_gpu_layers < 80


def setup_of(name: str) -> LlamaCppSetup:
    setup = plan_of(name).result.way.setup
    assert isinstance(setup, LlamaCppSetup)
    return setup


# --- the engine itself


def recorded(name: str) -> ModelFiles:
    recorded_model = next(m for m in models() if (m["model"], m["quant"]) == (name, "Q4_K_M"))
    file = recorded_model["header_without_vocabulary"]
    return gguf_files(file, header_bytes(file), recorded_model["data_section_bytes"])


@pytest.mark.parametrize(
    ("name", "gib", "context", "users"),
    [
        ("llama-3.2-1b", 3, None, None),  # the longest context that fits, with a quantised cache
        ("gemma-3-4b", 8, 16_384, 2),  # sliding layers, separate caches
        ("deepseek-v2-lite", 14, None, None),  # latent attention, experts
        ("granite-4-h-tiny", 8, 16_384, None),  # recurrent layers
    ],
)
def test_llama_cpp_allocates_what_was_planned(
    name: str, gib: int, context: int | None, users: int | None
) -> None:
    pytest.importorskip("xllamacpp")
    from edgekit.engines.llamacpp.run import binding
    from edgekit.engines.llamacpp.run.verification import verify_model

    plan = make_plan(one_file(name, cpu(gib), context, users=users))
    assert plan.fits
    load, setup = read_back(plan)
    result = verify_model(recorded(name), load, setup, method=binding.METHODS[0])
    assert result.notes == ()
    assert result.within, result.rows
    for row in result.rows:
        if row.part != "compute":
            assert row.difference_bytes == 0, row
    assert result.estimate.kv_cache_bytes == plan.result.estimate.kv_cache_bytes


def read_back(plan: Plan) -> tuple[Load, LlamaCppSetup]:
    (text,) = (command.text for command in ready_commands(plan) if command.name == "llama-server")
    return llamacpp_setup(flags_of(shlex.split(text)[1:]))


def test_planned_quantisation_is_billed_like_the_file() -> None:
    """llama-3.1-8b converted to Q4_K_M, compared with the file of llama-quantize."""
    (q4_k_m,) = at_mixes(gguf(LLAMA, "F16"), ("Q4_K_M",))
    planned = make_plan(replace(one_file(LLAMA, cards(12), 16_384), variants=(q4_k_m,)))
    real = make_plan(one_file(LLAMA, cards(12), 16_384))
    assert planned.result.estimate.total_bytes == real.result.estimate.total_bytes
