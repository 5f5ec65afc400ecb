"""A plan as a person reads it, and as a program does."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thoroughness import sampled
from tests.unit.report.plans import cards, gguf, mac, planned, qwen

from edgekit.basis import Basis
from edgekit.estimation import open_model
from edgekit.hardware import this_or_wished
from edgekit.hardware.types import System
from edgekit.memory.types import Load
from edgekit.plan.making import make_plan
from edgekit.plan.planned import Decision, Lever, Plan, Speed, Tried, Wish
from edgekit.plan.variants import at_mixes
from edgekit.report.as_json import json_text
from edgekit.report.bars import ASCII, BLOCKS
from edgekit.report.commands import Ready, ready_commands
from edgekit.report.plan_json import plan_json
from edgekit.report.plan_run import by_program, continued, program_of
from edgekit.report.plan_text import plan_answer, plan_text
from edgekit.report.speed_words import is_slow, rate_words, speed_row

GEMMA, QWEN_MOE = "sample:gemma-3-27b", "sample:qwen3-30b-a3b"
# As if: what is told of a speed does not hang on how it is found.
SPEED = Speed(decode=(24.6, 52.9), prefill=(940.0, 3721.0), because="a token reads 15.40 GiB")


@cache
def sample(name: str, device: str, ram: str, context: int | None = None) -> Plan:
    model = open_model(name).model
    machine = this_or_wished(devices=(device,) if device else (), ram=ram)
    wish = Wish(
        label=name,
        variants=at_mixes(model),
        engine="llama.cpp",
        machine=replace(machine, system=System.LINUX),
        load=Load(context_tokens=context),
    )
    plan = make_plan(wish)
    return replace(plan, speed=SPEED, steady_tokens_per_s=36.0) if plan.fits else plan


def one_card() -> Plan:
    return sample(GEMMA, "RTX 4090", "64G", 32768)


def experts_on_the_host() -> Plan:
    return sample(QWEN_MOE, "RTX 3060", "64G")


def nothing_fits() -> Plan:
    return sample(GEMMA, "", "8G")


def two_cards() -> Plan:
    return sample(QWEN_MOE, "RTX 4090, RTX 3060", "64G")


def one_vllm() -> Plan:
    return planned(qwen(), cards(24), engine="vllm")


def one_mlx() -> Plan:
    return planned(qwen(), mac(32, 24), engine="mlx")


PLANS: dict[str, Callable[[], Plan]] = {
    "one card": one_card,
    "experts on the host": experts_on_the_host,
    "two cards": two_cards,
    "nothing fits": nothing_fits,
    "cpu": lambda: sample(GEMMA, "", "64G"),
    "mac": lambda: planned(gguf("qwen3-0.6b"), mac(32, 24)),
    "vllm": one_vllm,
    "mlx": one_mlx,
}

ONE_CARD = """\
Tight: Q4_K_M with 32,768 tokens, all of it on RTX 4090, 25 to 53 tokens a second
sample:gemma-3-27b  ·  llama.cpp 0.5.0-dev (0c1e570)  ·  RTX 4090 + 64 GiB RAM

Memory   RTX 4090  [█████████████████████████████████████▓▓▓▓▓▓▒░|·········]  18.6 of 22.5 GiB  83 %
         RAM       [█············································|·········]   1.1 of 63.0 GiB   2 %
         █ model 16.48 GiB  ▓ context 2.30 GiB  ▒ compute 387.35 MiB  ░ other 623.00 MiB  | 85 %
         RTX 4090: 23.48 GiB free less 1 GiB for everything else
         RAM: 64.00 GiB free less 1 GiB for everything else

Plan     weights    Q4_K_M: the usual accuracy
         placement  all of it on RTX 4090, it fits as a whole: 18.64 GiB of 22.48 GiB in RTX 4090
         context    32,768 tokens: as asked
         cache      q8_0: the most accurate that holds the context
                      f16 does not hold 32,768 tokens
         sequences  1: llama-server's 4 share the window; no second one has room
         speed      25 to 53 tokens a second, prompts at 940 to 3,700; modelled: a token reads
                      15.40 GiB

Later    up to 8.00 GiB of prompt cache and 31.08 GiB of checkpoints may grow on the host, where
         52.41 GiB are left

Basis    exact: weights, kv cache, sliding kv cache, output, compute
         modelled, within 50 %: runtime
         modelled, within 5.0 %: prompt cache, checkpoints

Note     assumes the machine is otherwise idle
         as if it were a GGUF at Q4_K_M: 808 tensors of the file, each at the type Q4_K_M gives it
"""
EXPERTS = """\
Tight: Q4_K_M with 40,960 tokens, all but the experts of 39 of 48 layers on RTX
3060, 25 to 53 tokens a second
sample:qwen3-30b-a3b  -  llama.cpp 0.5.0-dev (0c1e570)  -  RTX 3060 + 64 GiB RAM

Memory   RTX 3060  [#############============+~~|......]   8.6 of 10.5 GiB  82 %
         RAM       [########....................|......]  13.4 of 63.0 GiB  21 %
         # model 17.28 GiB  = context 3.75 GiB  + compute 305.52 MiB
         ~ other 709.32 MiB  | 85 %
         RTX 3060: 11.52 GiB free less 1 GiB for everything else
         RAM: 64.00 GiB free less 1 GiB for everything else

Plan     weights    Q4_K_M: with more bits even less of it would lie on the
                      device
                        Q4_K_M  does not fit as a whole
                        IQ4_XS  does not fit as a whole
                      * Q4_K_M  17.28 GiB of weights
"""
NOTHING = """\
Does not fit: 10.8 of 7.0 GiB (155 %),
no context fits; Q2_K is the smallest
that was looked at
sample:gemma-3-27b
llama.cpp 0.5.0-dev (0c1e570)
8 GiB RAM

Memory
  RAM: 10.8 of 7.0 GiB, 155 %
  [##################|####]##########==+
  # model 9.78 GiB  = context 886.50 MiB
  + compute 194.18 MiB  ~ other 4.00 MiB
  | 85 %
  8.00 GiB free less 1 GiB for
  everything else

Plan
  weights Q2_K, nothing fits: this is
    the smallest there is

Why
  16,384 tokens need 10.84 GiB of the
  7.00 GiB available in RAM (154.8 %);
  weights and overhead alone take 9.90
  GiB of the 7.00 GiB available in RAM
  (141.4 %)

To fit
  13.8 GiB of free memory, where 8.00
    GiB are
"""


def decided(plan: Plan, *decisions: Decision) -> Plan:
    """With these words: how a planner puts it is its own matter."""
    mine = {one.lever for one in decisions}
    return replace(
        plan, decisions=(*decisions, *(one for one in plan.decisions if one.lever not in mine))
    )


def test_the_answer_first_then_the_memory_then_every_decision() -> None:
    plan = decided(
        one_card(),
        Decision(lever=Lever.WEIGHTS, value="Q4_K_M", because="the usual accuracy"),
        Decision(
            lever=Lever.PLACEMENT,
            value="all of it on RTX 4090",
            because="it fits as a whole: 18.64 GiB of 22.48 GiB in RTX 4090",
        ),
        Decision(lever=Lever.CONTEXT, value="32,768 tokens", because="as asked"),
        Decision(
            lever=Lever.CACHE,
            value="q8_0",
            because="the most accurate that holds the context",
            tried=(Tried(value="f16", told="does not hold 32,768 tokens"),),
        ),
        Decision(
            lever=Lever.SEQUENCES,
            value="1",
            because="llama-server's 4 share the window; no second one has room",
        ),
    )
    assert plan_text(plan, width=100) == ONE_CARD


def test_why_tells_everything_that_was_tried() -> None:
    tried = (
        Tried(value="Q4_K_M", told="does not fit as a whole"),
        Tried(value="IQ4_XS", told="does not fit as a whole"),
        Tried(value="Q4_K_M", told="17.28 GiB of weights", taken=True),
    )
    weights = Decision(
        lever=Lever.WEIGHTS,
        value="Q4_K_M",
        because="with more bits even less of it would lie on the device",
        tried=tried,
    )
    plan = decided(experts_on_the_host(), weights)
    text = plan_text(plan, width=80, glyphs=ASCII, why=True)
    assert text.startswith(EXPERTS)


def test_what_does_not_fit_has_numbers_and_a_way_out_but_no_command() -> None:
    run = Ready(name="llama-server", kind="command", text="llama-server -m x.gguf")
    because = "nothing fits: this is the smallest there is"
    weights = Decision(lever=Lever.WEIGHTS, value="Q2_K", because=because)
    plan = decided(nothing_fits(), weights)
    text = plan_text(plan, ready=(run,), width=40, glyphs=ASCII)
    assert text.startswith(NOTHING)
    assert "Run" not in text
    assert "llama-server" not in text
    assert all(
        " ".join(change.told.split()) in " ".join(text.split()) for change in nothing_fits().to_fit
    )


def told_by(plan: Plan, **more: Any) -> str:
    return plan_text(plan, ready=ready_commands(plan) if plan.fits else (), **more)


@pytest.mark.parametrize("why", [False, True])
@pytest.mark.parametrize("width", sampled((1, 20, 40, 60, 80, 100, 200), each=3))
@pytest.mark.parametrize("name", PLANS)
def test_nothing_is_wider_than_the_screen(name: str, width: int, why: bool) -> None:  # noqa: FBT001 - a table
    plan = PLANS[name]()
    page = told_by(plan, width=width, why=why).partition("\nRun")[0]
    assert max(map(len, page.splitlines())) <= min(max(width, 20), 100)
    assert "".join(page.split()).startswith("".join(plan_answer(plan).split()))


@pytest.mark.parametrize("name", PLANS)
def test_colour_only_decorates_and_ascii_is_enough(name: str) -> None:
    plan = PLANS[name]()
    coloured = told_by(plan, width=80, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == told_by(plan, width=80)
    assert coloured.startswith("\x1b[1;")
    assert told_by(plan, width=80, glyphs=ASCII).isascii()


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_every_decision_and_everything_tried_is_told(name: str, glyphs: Any) -> None:
    plan = PLANS[name]()
    flat = " ".join(plan_text(plan, width=100, glyphs=glyphs, why=True).split())
    for decision in plan.decisions:
        assert f"{decision.lever.value} {decision.value}" in flat
        for tried in decision.tried:
            assert f"{'* ' if tried.taken else ''}{tried.value} {tried.told}" in flat


def test_levers_stand_in_their_order_whatever_the_order_of_the_decisions() -> None:
    plan = one_card()
    turned = replace(plan, decisions=plan.decisions[::-1])
    assert plan_text(turned) == plan_text(plan)


def test_other_caches_are_worth_a_word_without_asking_why() -> None:
    tried = (
        Tried(value="f16", told="up to 14,336 tokens"),
        Tried(value="q8_0", told="up to 42,240 tokens"),
        Tried(value="q4_0", told="up to 84,480 tokens", taken=True),
    )
    cache_ = Decision(lever=Lever.CACHE, value="q4_0", because="so long a window", tried=tried)
    text = plan_text(replace(one_card(), decisions=(cache_,)))
    assert "f16 up to 14,336 tokens, q8_0 up to 42,240\n" in text
    refused = tuple(replace(one, told="does not hold 65,536 tokens") for one in tried[:2])
    text = plan_text(replace(one_card(), decisions=(replace(cache_, tried=refused),)))
    assert "f16 does not hold 65,536 tokens, nor q8_0\n" in text


def test_users_have_a_window_each() -> None:
    plan = one_card()
    wish = replace(plan.wish, users=4)
    result = replace(plan.result, streams=4)
    shared = replace(plan, wish=wish, result=result)
    assert plan_answer(shared).startswith("Tight: Q4_K_M with 8,192 tokens for each of 4 users, ")


def test_an_unknown_speed_is_said_and_never_made_up() -> None:
    plan = replace(one_card(), speed=None)
    assert plan_answer(plan) == "Tight: Q4_K_M with 32,768 tokens, all of it on RTX 4090"
    assert "speed      not known\n" in plan_text(plan)


# What to run.


def commands_in(text: str, label: str = "Run") -> str:
    return text.partition(f"\n{label}")[2].partition("\n\n")[0]


def test_the_main_command_in_full_and_the_others_by_name() -> None:
    plan = one_card()
    ready = ready_commands(plan)
    text = plan_text(plan, ready=ready, width=60)
    server = next(one for one in ready if one.name == "llama-server")
    assert shlex.split(commands_in(text).replace("\\\n", " ")) == shlex.split(server.text)
    told = " ".join(commands_in(text, "Or").split())
    assert told == "--for llama-cli, --for ollama, --for lm-studio: the same plan for that program"
    assert " ".join(server.notes[0].split()) in " ".join(text.split())


def test_one_program_alone_is_given_in_full() -> None:
    plan = one_card()
    ollama = by_program(ready_commands(plan))["ollama"]
    text = plan_text(plan, ready=ollama)
    assert "\nOr" not in text
    run = text.partition("\nRun")[2]
    for one in ollama:
        assert f"{one.name}:" in run
        for line in one.text.splitlines():
            assert " ".join(line.split()) in " ".join(run.replace(" \\\n", " ").split())


def test_steps_of_one_program_follow_each_other() -> None:
    plan = planned(qwen(), cards(24, 24), engine="vllm", nodes=2, tensor_parallel_size=2, pipeline_parallel_size=2, settled=("tensor_parallel_size", "pipeline_parallel_size"))  # fmt: skip
    text = told_by(plan)
    steps = [line.strip() for line in commands_in(text).splitlines()]
    assert steps[:4:2] == ["ray, on the first machine:", "ray, on the other machine:"]
    assert [step.split()[:2] for step in steps[1:4:2]] == [["ray", "start"], ["ray", "start"]]
    assert steps[4].startswith("vllm serve ")
    assert "2 machines of cards" in text
    assert "\nOr" not in text


def test_a_limit_of_the_system_is_not_what_runs_the_model() -> None:
    limit = Ready(name="GPU memory limit", kind="command", text="sudo sysctl x=1")
    server = Ready(name="mlx_lm.server", kind="command", text="mlx_lm.server --model x")
    text = plan_text(one_mlx(), ready=(limit, server))
    assert commands_in(text).strip() == server.text
    assert "sysctl" not in text
    assert program_of(limit) == "limit"


@pytest.mark.parametrize(
    ("command", "width", "mark", "lines"),
    [
        ("a -b 1 -c 2", 80, "\\", ["a -b 1 -c 2"]),
        ("a -b 1 -c 2", 8, "\\", ["a -b 1 \\", "-c 2"]),
        ("a 'b c' \"d e\"", 9, "\\", ["a 'b c' \\", '"d e"']),
        ("$env:A='1,2'; a -b 'it''s'", 15, "`", ["$env:A='1,2'; `", "a -b 'it''s'"]),
        ("a 'never closed", 4, "\\", ["a 'never closed"]),
        ("a  b", 3, "\\", ["a  b"]),
    ],
)
def test_a_shell_reads_the_lines_as_one(
    command: str, width: int, mark: str, lines: list[str]
) -> None:
    assert continued(command, width, mark) == lines


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8), st.integers(4, 40))
def test_no_word_is_lost_or_cut(words: list[str], width: int) -> None:
    command = shlex.join([word for word in words if word.isprintable()] or ["a"])
    lines = continued(command, width, "\\")
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)


# Speeds.


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((34.6, 61.2), "35 to 61 tokens a second"),
        ((3.46, 6.0), "3.5 to 6.0 tokens a second"),
        ((0.44, 0.96), "0.4 to 1.0 tokens a second"),
        ((0.01, 0.3), "0.0 to 0.3 tokens a second"),
        ((0.01, 0.02), "less than 0.1 tokens a second"),
        ((9.96, 99.6), "10 to 100 tokens a second"),
        ((941.0, 12_345.0), "940 to 12,000 tokens a second"),
        ((35.1, 35.2), "about 35 tokens a second"),
    ],
)
def test_a_speed_has_no_more_than_two_digits(rates: tuple[float, float], words: str) -> None:
    assert rate_words(rates) == words


@given(st.floats(0.05, 1e6), st.floats(1, 10))
def test_what_is_told_is_near(slow: float, times: float) -> None:
    told = re.findall(r"[\d,.]+", rate_words((slow, slow * times)))
    assert float(told[-1].replace(",", "")) == pytest.approx(slow * times, rel=0.051, abs=0.051)
    assert all(len(one.replace(",", "").replace(".", "").strip("0")) <= 2 for one in told)


def test_slow_is_said_where_people_read_faster() -> None:
    speed = replace(SPEED, decode=(2.0, 7.9), prefill=None, basis=Basis.ASSUMED)
    slow = replace(one_card(), speed=speed, steady_tokens_per_s=4.0)
    told = "2.0 to 7.9 tokens a second, slower than people read; assumed: a token reads 15.40 GiB"
    assert speed_row(slow) == told
    assert not is_slow(replace(slow, steady_tokens_per_s=5.0))
    assert not is_slow(replace(slow, steady_tokens_per_s=None))


# For programs.


@pytest.mark.parametrize("name", PLANS)
def test_json_says_what_the_text_says(name: str) -> None:
    plan = PLANS[name]()
    ready = ready_commands(plan) if plan.fits else ()
    told = json.loads(json_text(plan_json(plan, ready=ready, notes=("a note",))))
    assert told["schema"] == 1
    assert told["status"] == plan.result.status.value
    assert told["can_load"] is plan.fits
    assert told["context_tokens"] == plan.context_tokens
    assert [one["lever"] for one in told["decisions"]] == [d.lever.value for d in plan.decisions]
    assert [one["text"] for one in told["commands"]] == [one.text for one in ready]
    assert [one["told"] for one in told["to_fit"]] == [one.told for one in plan.to_fit]
    assert [one["required_bytes"] for one in told["budgets"]] == [
        use.required_bytes for use in plan.result.uses
    ]
    estimate = told["estimate"]
    reserved = sum(line["bytes"] for line in estimate["lines"] if line["reserved"])
    assert reserved == estimate["total_bytes"] == plan.result.estimate.total_bytes
    assert "a note" in told["notes"]


def test_json_has_nulls_for_what_is_not_known() -> None:
    plan = replace(one_card(), speed=None)
    told = plan_json(plan)
    assert (told["speed"], told["drafter"], told["users"]) == (None, None, None)
    assert told["cache"] == {"name": "q8_0", "type_k": "q8_0", "type_v": "q8_0"}
    assert told["estimate"]["command"] is None
    assert plan_json(one_card())["speed"] == {
        "decode": [24.6, 52.9], "prefill": [940.0, 3721.0], "steady": 36.0, "basis": "modelled",
        "because": "a token reads 15.40 GiB",
    }  # fmt: skip
