"""The best few for a machine as cards, and as a program reads them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.thoroughness import sampled
from tests.unit.report.plans import cards, gguf, mac, planned, qwen
from tests.unit.report.test_plan_text import (
    SPEED,
    experts_on_the_host,
    nothing_fits,
    one_card,
    two_cards,
)

from edgekit.basis import Basis
from edgekit.catalog import read_catalog
from edgekit.catalog.types import Entry, Kind
from edgekit.hardware import this_or_wished
from edgekit.hardware.types import Accelerator, HostMemory, Machine, System, Vendor
from edgekit.plan.planned import Plan
from edgekit.plan.recommending import Ask, Recommendation, Suggestion, recommend
from edgekit.report.as_json import json_text
from edgekit.report.bars import ASCII
from edgekit.report.cards import cards_answer, cards_text, machine_words, parameters_words
from edgekit.report.cards_json import cards_json
from edgekit.units import GIB

GEMMA = Entry(
    id="gemma-3-27b",
    family="gemma-3",
    architecture="gemma3",
    parameters=27_009_002_240,
    active_parameters=27_009_002_240,
    native_context=131_072,
    kinds=(Kind.CHAT, Kind.VISION),
    licence="gemma",
    released="2025-03-12",
)
MOE = Entry(
    id="qwen3-30b-a3b",
    family="qwen3",
    architecture="qwen3moe",
    parameters=30_532_122_624,
    active_parameters=3_353_032_704,
)


def suggested(plan: Plan, entry: Entry, rank: float = 1.0) -> Suggestion:
    return Suggestion(entry=entry, plan=plan, rank=rank)


def made(*shown: Suggestion, **more: Any) -> Recommendation:
    ask = more.pop("ask", None) or Ask(machine=shown[0].plan.wish.machine)
    return Recommendation(ask=ask, suggestions=shown, **more)


def best_two() -> Recommendation:
    slow = replace(
        experts_on_the_host(),
        speed=replace(SPEED, decode=(1.4, 8.2), basis=Basis.ASSUMED),
        steady_tokens_per_s=3.4,
    )
    over = (("too large", 26), ("made for too short a context", 1))
    return made(suggested(one_card(), GEMMA), suggested(slow, MOE), passed_over=over)


def none_fits() -> Recommendation:
    plan = nothing_fits()
    ask = Ask(machine=plan.wish.machine)
    return made(ask=ask, nearest=suggested(plan, GEMMA), passed_over=(("too large", 90),))


@cache
def of_the_catalog(device: str) -> Recommendation:
    machine = this_or_wished(devices=(device,), ram="32G")
    return recommend(sampled(read_catalog().entries, each=3), Ask(machine=machine), most=3)


CARDS = """\
For chat on RTX 4090 + 64 GiB RAM: gemma-3-27b at Q4_K_M is the best that fits

1  gemma-3-27b  ·  27B  ·  on RTX 4090  ·  released 2025-03  ·  licence gemma
   Tight  Q4_K_M, 16.48 GiB  32,768 tokens in q8_0  25 to 53 tokens a second
   RTX 4090  [█████████████████████████████████████████▓▓▓▓▓▓▓░░·|·········]  18.6 of 22.5 GiB  83 %

2  qwen3-30b-a3b  ·  31B with 3.4B active  ·  all but the experts of 39 of 48 layers on RTX 3060
   Tight  Q4_K_M, 17.28 GiB  40,960 tokens in f16   1.4 to 8.2 tokens a second, slow
   RTX 3060  [███████████████████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒░░░░·|·········]   8.6 of 10.5 GiB  82 %
   RAM       [█████████████······································|·········]  13.4 of 63.0 GiB  21 %

█ model  ▓ context  ▒ compute  ░ other  ·  | 85 %: no load goes beyond

Basis    memory modelled; speed modelled for 1, assumed for 2; order a rule of thumb from parameters
         and age

Note     assumes the machine is otherwise idle
         passed over on the way: 26 too large, 1 made for too short a context

Next     edgekit plan gemma-3-27b --device 'RTX 4090' --ram 64G
         the whole plan of a model: reasons, and commands to paste
"""
NONE = """\
For chat on 8 GiB RAM: nothing fits;
gemma-3-27b comes nearest

   gemma-3-27b  -  27B  -  on the CPU
   released 2025-03  -  licence gemma
   Does not fit  -  Q2_K, 9.78 GiB
   16,384 tokens  -  speed not known
   RAM: 10.8 of 7.0 GiB, 155 %
   [#################|####]##########==+

# model  = context  + compute  ~ other
| 85 %: no load goes beyond

Why
"""


def test_the_answer_first_then_a_card_for_each_then_what_is_next() -> None:
    assert cards_text(best_two(), words="--device 'RTX 4090' --ram 64G") == CARDS


def test_where_nothing_fits_the_nearest_and_what_would_help() -> None:
    text = cards_text(none_fits(), width=40, glyphs=ASCII)
    assert text.startswith(NONE)
    flat = " ".join(text.split())
    for change in nothing_fits().to_fit:
        assert change.told in flat
    assert "passed over on the way: 90 too large" in flat
    assert "edgekit plan gemma-3-27b --why what was tried" in flat


def test_where_the_engine_runs_nothing_there_is_no_card() -> None:
    found = made(ask=Ask(machine=this_or_wished(ram="8G"), engine="mlx", task=Kind.CODE))
    assert cards_answer(found) == "For code on 8 GiB RAM: no known model that mlx runs"
    assert "Next" not in cards_text(found)


@pytest.mark.parametrize("width", [1, 20, 30, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("found", [best_two, none_fits, lambda: of_the_catalog("RTX 3060")])
def test_nothing_is_wider_than_the_screen(found: Any, width: int) -> None:
    text = cards_text(found(), width=width)
    page, _, after = text.partition("\nNext")
    assert max(map(len, page.splitlines())) <= min(max(width, 20), 100)
    told = re.search(r"^ *(the whole plan|what was tried).*", after, re.MULTILINE | re.DOTALL)
    assert told is not None  # words of a command are not cut
    assert max(map(len, told[0].splitlines())) <= min(max(width, 20), 100)
    assert "".join(page.split()).startswith("".join(cards_answer(found()).split()))


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("found", [best_two, none_fits, lambda: of_the_catalog("RTX 3060")])
def test_colour_only_decorates_and_ascii_is_enough(found: Any, width: int) -> None:
    painted = cards_text(found(), width=width, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == cards_text(found(), width=width)
    assert painted.startswith("\x1b[1m")
    assert cards_text(found(), width=width, glyphs=ASCII).isascii()


def test_a_card_says_all_that_is_known_of_each() -> None:
    found = of_the_catalog("RTX 3060")
    flat = " ".join(cards_text(found).split())
    assert found.suggestions
    for one in found.suggestions:
        plan = one.plan
        parts = [one.entry.id, plan.variant.name, f"{plan.context_tokens:,} tokens"]
        parts += [
            plan.result.way.because.removeprefix("all of it "),
            (one.entry.released or "")[:7],
        ]
        assert all(part in flat for part in parts)
    assert f"edgekit plan {found.suggestions[0].entry.id}" in flat


def test_the_words_of_the_next_command_are_one_command() -> None:
    words = "--device '2x RTX 4090, RTX 3060' --users 4"
    after = cards_text(best_two(), width=40, words=words).partition("\nNext")[2]
    command = after.partition("the whole plan")[0].replace("\\\n", " ")
    assert shlex.split(command) == ["edgekit", "plan", "gemma-3-27b", *shlex.split(words)]


def test_a_damaged_entry_is_named() -> None:
    text = cards_text(best_two(), problems=("entry 'x' is damaged: skipped",))
    assert "entry 'x' is damaged: skipped" in text


# Words.


@pytest.mark.parametrize(
    ("count", "active", "words"),
    [
        (11_907_350_320, 11_907_350_320, "12B"),
        (122_111_526_912, 9_771_288_576, "122B with 9.8B active"),
        (7_241_732_096, None, "7.2B"),
        (9_960_000_000, None, "10B"),
        (999_885_952, None, "1.0B"),
        (22_565_376, None, "23M"),
        (1_026_408_232_448, 32_861_500_928, "1.0T with 33B active"),
        (120_000, None, "120000"),
    ],
)
def test_parameters_as_people_name_models(count: int, active: int | None, words: str) -> None:
    assert parameters_words(count, active) == words


def here(*devices: Accelerator, cores: int | None = 2) -> Machine:
    host = HostMemory(total_bytes=32 * GIB, free_bytes=24 * GIB)
    return Machine(
        name="this machine", system=System.LINUX, cores=cores, host=host, devices=devices
    )


def test_a_machine_that_was_found_says_what_is_free() -> None:
    card = Accelerator(
        name="RTX 4090", vendor=Vendor.NVIDIA, total_bytes=24 * GIB, free_bytes=23 * GIB
    )
    gpu = replace(card, name="M3 Max", vendor=Vendor.APPLE, unified=True)
    assert machine_words(here()) == "this machine (2 cores, 24.0 GiB free)"
    told = "this machine (RTX 4090 with 23.0 GiB free, 1 core, 24.0 GiB of RAM free)"
    assert machine_words(here(card, cores=1)) == told
    assert machine_words(here(gpu)) == "this machine (M3 Max, 2 cores, 24.0 GiB of RAM free)"
    assert machine_words(replace(here(card), what_if=True)) == "this machine"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "For chat on "),
        ({"task": Kind.EMBEDDING}, "For embeddings on "),
        ({"context_tokens": 16384}, "For chat with 16,384 tokens on "),
        ({"context_tokens": 16384, "users": 4}, "For chat with 16,384 tokens for each of 4 users on "),
        ({"users": 4}, "For chat of 4 users at once on "),
    ],
)  # fmt: skip
def test_the_answer_repeats_the_question(more: dict[str, Any], words: str) -> None:
    ask = Ask(machine=one_card().wish.machine, **more)
    assert cards_answer(made(suggested(one_card(), GEMMA), ask=ask)).startswith(words)


def test_a_best_one_that_is_slow_is_called_so_at_once() -> None:
    slow = replace(one_card(), steady_tokens_per_s=2.0)
    assert cards_answer(made(suggested(slow, GEMMA))).endswith("the best that fits, but it is slow")


def test_an_embedder_is_judged_by_how_fast_it_reads() -> None:
    ask = Ask(machine=one_card().wish.machine, task=Kind.EMBEDDING)
    text = cards_text(made(suggested(one_card(), GEMMA), ask=ask))
    assert "reads 940 to 3,700 tokens a second" in text
    unread = replace(one_card(), speed=replace(SPEED, prefill=None))
    assert "speed not known" in cards_text(made(suggested(unread, GEMMA), ask=ask))


def test_weights_that_vllm_shares_are_those_of_a_card() -> None:
    plan = planned(
        qwen(), cards(24, 24), engine="vllm", tensor_parallel_size=2, settled=("tensor_parallel_size",)
    )  # fmt: skip
    assert " GiB a card  " in cards_text(made(suggested(plan, MOE)))
    assert "a card" not in cards_text(made(suggested(two_cards(), MOE)))


def test_unified_memory_has_one_bar_up_to_the_limit_of_its_gpu() -> None:
    plan = planned(gguf("qwen3-0.6b"), mac(8, 6))
    text = cards_text(made(suggested(plan, MOE)))
    assert text.count(" of 6.0 GiB") == 1
    assert "GPU share" not in text


# For programs.


def test_json_has_the_plan_of_each() -> None:
    told = json.loads(json_text(cards_json(best_two(), problems=("a problem",))))
    assert (told["schema"], told["task"], told["engine"]) == (1, "chat", "llama.cpp")
    assert [one["id"] for one in told["suggestions"]] == ["gemma-3-27b", "qwen3-30b-a3b"]
    first, second = told["suggestions"]
    assert first["plan"]["estimate"]["total_bytes"] == one_card().result.estimate.total_bytes
    assert first["plan"]["variant"]["name"] == "Q4_K_M"
    assert (first["is_quick"], second["is_quick"]) == (True, False)
    assert (first["entry"]["licence"], second["entry"]["licence"]) == ("gemma", None)
    assert told["passed_over"][0] == {"because": "too large", "count": 26}
    assert told["nearest"] is None
    assert "a problem" in told["notes"]


def test_json_of_nothing_has_the_nearest() -> None:
    told = json.loads(json_text(cards_json(none_fits())))
    assert told["suggestions"] == []
    assert told["nearest"]["plan"]["can_load"] is False
    assert told["nearest"]["plan"]["to_fit"]
