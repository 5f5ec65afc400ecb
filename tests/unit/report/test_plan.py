"""report/plan.py: a plan as text and JSON."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.thoroughness import sampled
from tests.unit.report.plans import (
    GEMMA,
    SPEED,
    at_speed,
    cards,
    experts_in_ram,
    gguf,
    mac,
    nothing_fits,
    one_card,
    planned,
    qwen,
    sample_plan,
    two_cards,
)

from edgekit.bill.types import Change, ChangeKind, Decision, Lever, Tried
from edgekit.engines.commands import Command
from edgekit.plan.commands import by_program, ready_commands
from edgekit.plan.plan import Plan
from edgekit.report.check import MAX_CHANGES, headline
from edgekit.report.json import json_text
from edgekit.report.plan import plan_json, plan_text
from edgekit.report.text import ASCII, BLOCKS, Screen


def vllm_plan() -> Plan:
    return planned(qwen(), cards(24), engine="vllm")


def mlx_plan() -> Plan:
    return planned(qwen(), mac(32, 24), engine="mlx")


PLANS: dict[str, Callable[[], Plan]] = {
    "one card": one_card,
    "experts in RAM": experts_in_ram,
    "two cards": two_cards,
    "nothing fits": nothing_fits,
    "cpu": lambda: sample_plan(GEMMA, "", "64G"),
    "mac": lambda: planned(gguf("qwen3-0.6b"), mac(32, 24)),
    "vllm": vllm_plan,
    "mlx": mlx_plan,
}

ONE_CARD = """\
Runs on your RTX 4090 at Q4_K_M, just: 20.5 of 22.5 GiB at 32K, about 36 tokens/s (25-53)
sample:gemma-3-27b  ·  llama.cpp  ·  max context 59,136

RTX 4090  [████████████████████████████████████████████████████████·····|···]  20.5 of 22.5 GiB
RAM       [██·····························································|·]   1.1 of 63.0 GiB

Run      llama-server -m x.gguf

Note     it has to be downloaded first
         assumes the machine is otherwise idle

Or       lets the GPU use more
         draft model gemma-3-1b: would fit as well

More     --why: the memory breakdown, the reasons, how each figure is known
"""
WHY = """\
Plan     weights    Q4_K_M: a larger one would push more layers off the GPU
                        Q5_K_M  does not fit
                      * Q4_K_M  17.28 GiB of weights
         placement  """


def decided(plan: Plan, *decisions: Decision) -> Plan:
    """The plan with these decisions instead of the planner's own."""
    levers = {decision.lever for decision in decisions}
    return replace(
        plan,
        decisions=(
            *decisions,
            *(decision for decision in plan.decisions if decision.lever not in levers),
        ),
    )


def test_plan_text_is_the_headline_the_bars_the_command_and_changes() -> None:
    run = Command(
        program="llama-server",
        name="llama-server",
        kind="command",
        text="llama-server -m x.gguf",
        notes=("it has to be downloaded first",),
    )
    plan = decided(
        one_card(),
        Decision(lever=Lever.DRAFTER, value="gemma-3-1b", because="would fit as well"),
    )
    limit = Change(kind=ChangeKind.MEMORY, value="limit", told="lets the GPU use more")
    plan = replace(plan, changes=(limit,))
    assert plan_text(plan, ready=(run,), screen=Screen(width=100)) == ONE_CARD
    none = Decision(lever=Lever.DRAFTER, value="none", because="the GPU is full")
    assert "draft model" not in plan_text(decided(one_card(), none))


def test_plan_text_with_why_shows_what_was_tried_for_the_weights() -> None:
    tried = (
        Tried(value="Q5_K_M", outcome="does not fit"),
        Tried(value="Q4_K_M", outcome="17.28 GiB of weights", taken=True),
    )
    weights = Decision(
        lever=Lever.WEIGHTS,
        value="Q4_K_M",
        because="a larger one would push more layers off the GPU",
        tried=tried,
    )
    text = plan_text(decided(experts_in_ram(), weights), screen=Screen(width=80), why=True)
    assert WHY in text
    assert text.startswith("Runs with the experts of 31 layers in RAM at Q4_K_M, just: ")
    assert "| usable" in text


def test_plan_text_if_nothing_fits_has_changes_and_no_command() -> None:
    run = Command(
        program="llama-server", name="llama-server", kind="command", text="llama-server -m x.gguf"
    )
    text = plan_text(nothing_fits(), ready=(run,), screen=Screen(width=80))
    assert text.startswith("Does not fit your 8 GiB RAM at Q4_K_M, even at 16K with an 8-bit cache: needs\n")  # fmt: skip
    assert "llama-server" not in text
    assert 0 < text.partition("To fit")[2].partition("\n\n")[0].count(":") <= MAX_CHANGES
    flat = " ".join(plan_text(nothing_fits(), why=True).split())
    assert all(" ".join(change.told.split()) in flat for change in nothing_fits().to_fit)


def with_commands(plan: Plan, *, why: bool = False, **more: Any) -> str:
    commands = ready_commands(plan) if plan.fits else ()
    return plan_text(plan, Screen(**more), ready=commands, why=why)


@pytest.mark.parametrize("why", [False, True])
@pytest.mark.parametrize("width", sampled((1, 20, 40, 60, 80, 100, 200), each=3))
@pytest.mark.parametrize("name", PLANS)
def test_plan_text_fits_the_width(name: str, width: int, why: bool) -> None:  # noqa: FBT001 - a table
    plan = PLANS[name]()
    page = with_commands(plan, width=width, why=why).partition("\nRun")[0]
    assert max(map(len, page.splitlines())) <= min(max(width, 20), 100)
    assert "".join(page.split()).startswith("".join(headline(plan.result).split()))


@pytest.mark.parametrize("name", PLANS)
def test_plan_text_with_colour_and_in_ascii(name: str) -> None:
    plan = PLANS[name]()
    coloured = with_commands(plan, width=80, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == with_commands(plan, width=80)
    assert coloured.startswith("\x1b[1;")
    assert with_commands(plan, width=80, glyphs=ASCII).isascii()


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_plan_text_with_why_has_every_decision_and_attempt(name: str, glyphs: Any) -> None:
    plan = PLANS[name]()
    flat = " ".join(plan_text(plan, screen=Screen(width=100, glyphs=glyphs), why=True).split())
    for decision in plan.decisions:
        assert f"{decision.lever.value} {decision.value}" in flat
        for tried in decision.tried:
            assert f"{'* ' if tried.taken else ''}{tried.value} {tried.told}" in flat


def test_plan_text_does_not_depend_on_the_order_of_decisions() -> None:
    plan = one_card()
    reordered = replace(plan, decisions=plan.decisions[::-1])
    assert plan_text(reordered) == plan_text(plan)


def test_plan_text_names_the_context_of_each_user() -> None:
    plan = one_card()
    text = plan_text(replace(plan, result=replace(plan.result, streams=4)))
    assert " GiB at 8K for each of 4 users" in text.splitlines()[0]


def test_plan_text_leaves_out_an_unknown_speed() -> None:
    plan = one_card()
    plan = at_speed(plan, None)
    assert "tokens/s" not in plan_text(plan)
    assert "speed      not known\n" in plan_text(plan, why=True)


# Commands.


def commands_in(text: str, label: str = "Run") -> str:
    return text.partition(f"\n{label}")[2].partition("\n\n")[0]


def test_plan_text_has_the_main_command_in_full_and_the_others_by_name() -> None:
    plan = one_card()
    ready = ready_commands(plan)
    text = plan_text(plan, ready=ready, screen=Screen(width=60))
    server = next(item for item in ready if item.name == "llama-server")
    assert shlex.split(commands_in(text).replace("\\\n", " ")) == shlex.split(server.text)
    others = " ".join(commands_in(text, "Also").split())
    assert others == "--for llama-cli | ollama | lm-studio: the same for another program"
    notes = " ".join(text.split())
    assert all(" ".join(note.split()) in notes for note in server.notes)


def test_plan_text_of_one_program_has_all_its_commands_in_full() -> None:
    plan = one_card()
    ollama = by_program(ready_commands(plan))["ollama"]
    text = plan_text(plan, ready=ollama)
    assert "\nAlso" not in text
    run = text.partition("\nRun")[2]
    for item in ollama:
        assert f"{item.name}:" in run
        for line in item.text.splitlines():
            assert " ".join(line.split()) in " ".join(run.replace(" \\\n", " ").split())


def test_plan_text_has_the_steps_of_a_program_in_order() -> None:
    plan = planned(qwen(), cards(24, 24), engine="vllm", nodes=2, tensor_parallel_size=2, pipeline_parallel_size=2, fixed_flags=("tensor_parallel_size", "pipeline_parallel_size"))  # fmt: skip
    text = with_commands(plan)
    steps = [line.strip() for line in commands_in(text).splitlines()]
    assert steps[:5:2] == ["# on the first machine", "# on the other machine", "# on the first machine"]  # fmt: skip
    assert [step.split()[:2] for step in steps[1:4:2]] == [["ray", "start"], ["ray", "start"]]
    assert steps[5].startswith("vllm serve ")
    assert "2 nodes of cards" in with_commands(plan, why=True)
    assert "\nAlso" not in text


def test_plan_text_does_not_show_the_gpu_limit_as_a_program() -> None:
    limit = Command(
        program="limit", name="GPU memory limit", kind="command", text="sudo sysctl x=1"
    )
    server = Command(
        program="mlx", name="mlx_lm.server", kind="command", text="mlx_lm.server --model x"
    )
    text = plan_text(mlx_plan(), ready=(limit, server))
    assert commands_in(text).strip() == server.text
    assert "sysctl" not in text


# Speeds.


def test_is_slow_only_if_the_speed_is_known() -> None:
    assert at_speed(one_card(), replace(SPEED, decode=(4.0, 4.0))).is_slow
    assert not at_speed(one_card(), replace(SPEED, decode=(8.0, 8.0))).is_slow
    assert not at_speed(one_card(), None).is_slow


# JSON.


@pytest.mark.parametrize("name", PLANS)
def test_plan_json_has_the_figures_of_the_plan(name: str) -> None:
    plan = PLANS[name]()
    ready = ready_commands(plan) if plan.fits else ()
    document = json.loads(json_text(plan_json(plan, ready=ready, notes=("a note",))))
    assert document["schema"] == 1
    assert document["status"] == plan.result.status.value
    assert document["can_load"] is plan.fits
    assert document["context_tokens"] == plan.context_tokens
    assert [decision["lever"] for decision in document["decisions"]] == [
        d.lever.value for d in plan.decisions
    ]
    assert [command["text"] for command in document["commands"]] == [item.text for item in ready]
    assert [item["told"] for item in document["to_fit"]] == [item.told for item in plan.to_fit]
    assert [budget["required_bytes"] for budget in document["budgets"]] == [
        use.required_bytes for use in plan.result.uses
    ]
    estimate = document["estimate"]
    reserved = sum(line["bytes"] for line in estimate["lines"] if line["reserved"])
    assert reserved == estimate["total_bytes"] == plan.result.estimate.total_bytes
    assert "a note" in document["notes"]


def test_plan_json_is_null_for_unknown_values() -> None:
    plan = at_speed(one_card(), None)
    document = plan_json(plan)
    assert (document["speed"], document["drafter"], document["users"]) == (None, None, None)
    assert document["cache"] == {"name": "f16", "type_k": None, "type_v": None}
    assert document["headline"].startswith("Runs on your RTX 4090 at Q4_K_M, just: ")
    assert document["estimate"]["command"] is None
    assert plan_json(one_card())["speed"] == {
        "typical": 36.07, "decode": [24.6, 52.9], "prefill": [940.0, 3721.0], "prefill_typical": 1870.22,
        "interval": 0.8, "steady": 36.0, "basis": "modelled", "because": "a token reads 15.40 GiB",
        "users": None, "speculative": None,
    }  # fmt: skip
