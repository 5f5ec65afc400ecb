"""report/cards.py: recommendations as text and JSON."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.thoroughness import sampled
from tests.unit.report.plans import (
    SPEED,
    at_speed,
    cpu,
    experts_in_ram,
    gguf,
    mac,
    nothing_fits,
    one_card,
    planned,
    two_cards,
)

from edgekit.app.candidates import complete
from edgekit.app.recommend import Recommendation, find_best
from edgekit.index import read_index
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import Device, HostMemory, Machine, System, Vendor
from edgekit.machine.what_if import requested_machine
from edgekit.plan.plan import Plan
from edgekit.plan.recommend import Suggestion
from edgekit.report.cards import (
    cards_headline,
    cards_json,
    cards_text,
    machine_words,
    parameters_words,
)
from edgekit.report.json import json_text
from edgekit.report.text import ASCII, Screen
from edgekit.request import Request
from edgekit.units import GIB, Basis

GEMMA = Entry(
    id="gemma-3-27b",
    family="gemma-3",
    architecture="gemma3",
    parameters=27_009_002_240,
    active_parameters=27_009_002_240,
    native_context=131_072,
    kinds=(ModelPurpose.CHAT, ModelPurpose.VISION),
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


def suggestion(plan: Plan, entry: Entry) -> Suggestion:
    return Suggestion(entry=entry, plan=plan, task=ModelPurpose.CHAT)


def recommendation(*suggestions: Suggestion, **more: Any) -> Recommendation:
    request = more.pop("request", None) or Request(machine=suggestions[0].plan.task.machine)
    return Recommendation(request=complete(request), suggestions=suggestions, **more)


def best_two() -> Recommendation:
    plan, speed = experts_in_ram(), replace(SPEED, decode=(1.4, 8.2), basis=Basis.ASSUMED)
    slow = at_speed(plan, speed, steady_tokens_per_s=3.4)
    over = (("too large", 26), ("with too short a context", 1))
    return recommendation(suggestion(one_card(), GEMMA), suggestion(slow, MOE), passed_over=over)


def none_fits() -> Recommendation:
    plan = nothing_fits()
    request = Request(machine=plan.task.machine)
    return recommendation(
        request=request, nearest=suggestion(plan, GEMMA), passed_over=(("too large", 90),)
    )


@cache
def best_of_the_catalog(device: str) -> Recommendation:
    machine = requested_machine(devices=(device,), ram="32G")
    return find_best(sampled(read_index().entries, each=3), Request(machine=machine))


TABLE = """\
Best for chat on RTX 4090 + 64 GiB RAM: gemma-3-27b
Runs on your RTX 4090 at Q4_K_M, just: 20.5 of 22.5 GiB at 32K, about 36
tokens/s (25-53)

   model          weights  download  context   GiB  tokens/s  quality    runs on
1  gemma-3-27b    Q4_K_M    16.5 GB      32K  20.5        36   ~44-66        GPU
2  qwen3-30b-a3b  Q4_K_M    18.6 GB      32K  10.5       3.4   ~45-67  GPU + CPU

skipped: 26 too large, 1 with too short a context

Note     ~ quality estimated from size, age and related models: no scores for
           this task
         assumes the machine is otherwise idle

Next     edgekit plan gemma-3-27b --device 'RTX 4090' --ram 64G
"""
DETAILS = """\
qwen3-30b-a3b (31B with 3.4B active)
Runs with the experts of 31 layers in RAM at Q4_K_M, just: 10.5 of 10.5 GiB VRAM
and 10.6 of 63.0 GiB RAM at 32K, about 3.4 tokens/s (1.4-8.2)
RTX 3060  [############################################|.....]  10.5 of 10.5 GiB
RAM       [#########.......................................|.]  10.6 of 63.0 GiB
"""


def test_cards_text_is_a_table_of_the_best_with_the_next_command() -> None:
    assert (
        cards_text(best_two(), screen=Screen(width=80), words="--device 'RTX 4090' --ram 64G")
        == TABLE
    )


def test_cards_text_with_why_has_the_headline_and_the_bars_of_each() -> None:
    text = cards_text(best_two(), screen=Screen(width=80, glyphs=ASCII), why=True)
    assert set(DETAILS.splitlines()) <= set(text.splitlines())
    assert "quality for chat: about " in text
    assert "gemma-3-27b (27B, released 2025-03, licence gemma)\n" in text
    assert "Basis    memory modelled; speed modelled for 1, assumed for 2; quality " in text


def test_cards_text_if_nothing_fits_has_the_nearest_and_what_would_help() -> None:
    text = cards_text(none_fits(), screen=Screen(width=80, glyphs=ASCII))
    assert text.startswith(
        "Nothing fits for chat on 8 GiB RAM; nearest: gemma-3-27b\n"
        "Does not fit your 8 GiB RAM at Q4_K_M, even at 16K with an 8-bit cache: needs\n"
    )
    assert " of free RAM (8.00 GiB now)" in text
    assert "skipped: 90 too large\n" in text
    assert text.endswith("Next     edgekit plan gemma-3-27b --why\n")


def test_cards_text_of_this_machine_suggests_run_next() -> None:
    plan = one_card()
    machine = replace(plan.task.machine, what_if=False)
    text = cards_text(recommendation(suggestion(plan, GEMMA), request=Request(machine=machine)))
    assert text.endswith("Next     edgekit run gemma-3-27b\n         edgekit plan gemma-3-27b\n")


def test_cards_text_fits_80_columns_and_24_lines() -> None:
    result = best_of_the_catalog("RTX 3060")
    lines = cards_text(
        result, screen=Screen(width=80), words="--device 'RTX 3060' --ram 32G"
    ).splitlines()
    assert len(result.suggestions) == 5
    assert max(map(len, lines)) <= 80
    assert len(lines) < 24


def test_cards_headline_if_the_engine_runs_nothing() -> None:
    result = recommendation(
        request=Request(
            machine=requested_machine(ram="8G"), engines=("mlx",), purpose=ModelPurpose.CODE
        )
    )
    assert cards_headline(result) == "No known model for code runs with mlx on 8 GiB RAM"
    assert "Next" not in cards_text(result)


@pytest.mark.parametrize("width", [1, 20, 30, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("result", [best_two, none_fits, lambda: best_of_the_catalog("RTX 3060")])
@pytest.mark.parametrize("why", [False, True])
def test_cards_text_fits_the_width(result: Any, width: int, why: bool) -> None:  # noqa: FBT001 - a table
    text = cards_text(result(), screen=Screen(width=width), why=why)
    before_next = text.partition("\nNext")[0]  # commands are not wrapped to the width
    assert max(map(len, before_next.splitlines())) <= min(max(width, 20), 100)
    assert "".join(before_next.split()).startswith("".join(cards_headline(result()).split()))


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("result", [best_two, none_fits, lambda: best_of_the_catalog("RTX 3060")])
def test_cards_text_with_colour_and_in_ascii(result: Any, width: int) -> None:
    painted = cards_text(result(), screen=Screen(width=width, colour=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == cards_text(
        result(), screen=Screen(width=width)
    )
    assert painted.startswith("\x1b[1m")
    assert cards_text(result(), screen=Screen(width=width, glyphs=ASCII)).isascii()


def test_cards_text_next_command_can_be_pasted_as_one() -> None:
    words = "--device '2x RTX 4090, RTX 3060' --users 4"
    after = cards_text(best_two(), screen=Screen(width=40), words=words).partition("\nNext")[2]
    command = after.replace("\\\n", " ")
    assert shlex.split(command) == ["edgekit", "plan", "gemma-3-27b", *shlex.split(words)]


def test_cards_text_shows_the_note_of_a_damaged_entry() -> None:
    text = cards_text(replace(best_two(), notes=("entry 'x' is damaged: skipped",)))
    assert "entry 'x' is damaged: skipped" in text


# Parts.


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
def test_parameters_words(count: int, active: int | None, words: str) -> None:
    assert parameters_words(count, active) == words


def this_machine(*devices: Device, cores: int | None = 2) -> Machine:
    host = HostMemory(total_bytes=32 * GIB, free_bytes=24 * GIB)
    return Machine(
        name="this machine", system=System.LINUX, cores=cores, host=host, devices=devices
    )


def test_machine_words_of_a_detected_machine() -> None:
    card = Device(name="RTX 4090", vendor=Vendor.NVIDIA, total_bytes=24 * GIB, free_bytes=23 * GIB)
    gpu = replace(card, name="M3 Max", vendor=Vendor.APPLE, unified=True)
    assert machine_words(this_machine()) == "this machine (2 cores, 24.0 GiB free)"
    words = "this machine (RTX 4090 with 23.0 GiB free, 1 core, 24.0 GiB of RAM free)"
    assert machine_words(this_machine(card, cores=1)) == words
    assert (
        machine_words(this_machine(gpu)) == "this machine (M3 Max, 2 cores, 24.0 GiB of RAM free)"
    )
    assert machine_words(replace(this_machine(card), what_if=True)) == "this machine"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "Best for chat on "),
        ({"purpose": ModelPurpose.EMBEDDING}, "Best for embeddings on "),
        ({"context": 16384}, "Best for chat at 16,384 tokens on "),
        ({"context": 16384, "users": 4}, "Best for chat at 16,384 tokens for each of 4 users on "),
        ({"users": 4}, "Best for chat with 4 users at once on "),
    ],
)  # fmt: skip
def test_cards_headline_repeats_the_request(more: dict[str, Any], words: str) -> None:
    request = Request(machine=one_card().task.machine, **more)
    assert cards_headline(
        recommendation(suggestion(one_card(), GEMMA), request=request)
    ).startswith(words)


def test_cards_headline_says_that_the_best_is_slow() -> None:
    for typical, end in ((2.0, ", but slower than reading speed"), (7.9, ", but slower than reading speed"), (7.96, "")):  # fmt: skip
        speed = replace(SPEED, decode=(typical, typical))
        first = at_speed(one_card(), speed, steady_tokens_per_s=9.0)
        assert cards_headline(recommendation(suggestion(first, GEMMA))).endswith(
            f": gemma-3-27b{end}"
        )


def cells(plan: Plan, entry: Entry = GEMMA) -> list[str]:
    text = cards_text(recommendation(suggestion(plan, entry)), screen=Screen(width=100))
    return re.split(r"  +", next(row for row in text.splitlines() if row.startswith("1  ")))


def test_cards_text_of_an_embedding_model_has_its_reading_speed() -> None:
    embedder = replace(GEMMA, kinds=(ModelPurpose.EMBEDDING,))
    assert cells(one_card(), embedder)[-3] == "1,900"  # the geometric mean of 940 and 3,721
    without_prefill = at_speed(one_card(), replace(SPEED, prefill=None))
    assert cells(without_prefill, embedder)[-3] == "?"
    assert cells(at_speed(one_card(), None))[-3] == "?"


def test_cards_text_shows_cache_type_and_users() -> None:
    plan = one_card()
    with_q8_0 = replace(plan, result=replace(plan.result, cache="q8_0"))
    assert cells(with_q8_0)[4] == "32K q8_0"
    for_four_users = replace(
        plan, task=replace(plan.task, users=4), result=replace(plan.result, streams=4)
    )
    assert cells(for_four_users)[4] == "4 x 8K"


@pytest.mark.parametrize("name", ["llama-3.1-nemotron-8b-ultra", "qwen3-coder-30b-a3b-instruct"])
def test_cards_text_cuts_no_name_at_80_columns(name: str) -> None:
    """Other columns are left out: parameters, usable memory, the download, the memory.

    Quality and where it runs are always shown.
    """
    text = cards_text(
        recommendation(suggestion(experts_in_ram(), replace(MOE, id=name))), screen=Screen(width=80)
    )
    row = next(line for line in text.splitlines() if line.startswith(f"1  {name}  Q4_K_M "))
    assert row.endswith("  GPU + CPU")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("plan", "where"),
    [
        (one_card, "GPU"),
        (two_cards, "2 GPUs"),
        (experts_in_ram, "GPU + CPU"),
        (lambda: planned(gguf("qwen3-0.6b"), cpu(8)), "CPU"),
        (lambda: planned(gguf("qwen3-0.6b"), mac(8, 3)), "GPU"),
    ],
)
def test_cards_text_shows_where_a_model_runs(plan: Any, where: str) -> None:
    assert cells(plan(), MOE)[-1] == where


def test_cards_text_marks_a_quality_that_does_not_rest_on_the_models_own_scores() -> None:
    measured = replace(GEMMA, id="phi-4", repository="microsoft/phi-4", family="phi-4")
    note = "~ quality estimated from size, age and related models"
    for entry, is_marked in ((measured, False), (GEMMA, True)):
        text = cards_text(recommendation(suggestion(one_card(), entry)), screen=Screen(width=100))
        assert (note in text) is is_marked
        assert cells(one_card(), entry)[-2].startswith("~") is is_marked


@pytest.mark.parametrize(
    ("released", "not_before", "age"),
    [  # 1.19 years after the start of 2024: 12 * (2.5 - 1.19)
        ("2025-03-12", None, "-15.7 age,"),
        (None, "2025-03-12", "-15.7 age,"),
        (None, None, "-12.0 age (release unknown, assumed mid-2025),"),
    ],
)
def test_cards_text_with_why_says_if_the_age_is_assumed(
    released: str | None, not_before: str | None, age: str
) -> None:
    entry = replace(GEMMA, id="xylograph-27b", family="xylograph", released=released)
    entry = replace(entry, not_before=not_before)
    text = cards_text(recommendation(suggestion(one_card(), entry)), why=True)
    assert age in " ".join(text.split())
    assert ("released 2025-03 or later" in text) is (not_before is not None)


# JSON.


def test_cards_json_has_the_plan_of_each() -> None:
    document = json.loads(json_text(cards_json(replace(best_two(), notes=("a problem",)))))
    assert (document["schema"], document["task"], document["engine"]) == (1, "chat", "llama.cpp")
    assert [suggestion["id"] for suggestion in document["suggestions"]] == [
        "gemma-3-27b",
        "qwen3-30b-a3b",
    ]
    first, second = document["suggestions"]
    assert first["plan"]["estimate"]["total_bytes"] == one_card().result.estimate.total_bytes
    assert first["plan"]["variant"]["name"] == "Q4_K_M"
    assert (first["is_quick"], second["is_quick"]) == (True, False)
    assert (first["entry"]["licence"], second["entry"]["licence"]) == ("gemma", None)
    assert document["passed_over"][0] == {"because": "too large", "count": 26}
    assert document["nearest"] is None
    assert "a problem" in document["notes"]


def test_cards_json_without_suggestions_has_the_nearest() -> None:
    document = json.loads(json_text(cards_json(none_fits())))
    assert document["suggestions"] == []
    assert document["nearest"]["plan"]["can_load"] is False
    assert document["nearest"]["plan"]["to_fit"]
