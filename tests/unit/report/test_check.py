"""report/check.py: a verdict as text and JSON."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report.verdicts import (
    LINES,
    MACHINE,
    RECORDED,
    TOO_LARGE,
    card,
    check_from_lines,
    line,
    machine,
    recorded,
    with_change,
)

from edgekit.app.check import TENSORS_NOT_CHECKED, Check, Unanswered
from edgekit.bill.types import ChangeKind, Component, Speed
from edgekit.errors import NotFoundError
from edgekit.machine.types import MemoryLimit
from edgekit.report.check import check_json, check_text, quiet_text
from edgekit.report.tables import checks_json, unanswered_json
from edgekit.report.text import ASCII, BLOCKS, Screen
from edgekit.units import GIB

FITS = """\
Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K, about 38 tokens/s (24-60)
tiny.gguf  ·  llama.cpp  ·  max context 74,240

RTX 4090  [████████████████████████······················|···]  11.5 of 23.0 GiB
RAM       [█████········································|····]   1.5 of 15.0 GiB

Run      llama-server -m tiny.gguf -c 32768 -ngl all

Note     a note of the model

More     --why: the memory breakdown, the reasons, how each figure is known
"""
DOES_NOT_FIT = """\
Does not fit your RAM at 32K: needs 24.0 GiB, 15.0 usable
tiny.gguf  -  llama.cpp

RAM  [#####################|#]############  24.0 of 15.0 GiB

Note     a note of the model

To fit   -c 4096: fits
         -ctk q8_0 -ctv q8_0: fits, up to 131,072 tokens
         32.0 GiB of free RAM (16.00 GiB now)

More     --why: the memory breakdown, the reasons, how each
         figure is known
"""
WHY = """\
Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K, about 38 tokens/s (24-60)
tiny.gguf  ·  llama.cpp 1.0  ·  this machine, fully on RTX 4090
32,768 tokens of context for 1 sequence

Context  checked at 32,768 tokens: as requested
         max context 74,240, recommended 59,392; native context 131,072

Memory   RTX 4090  [████████████████████▓▓▓▓▓▒▒▒░····························|···]  11.5 of 23.0 GiB
         RAM       [████░░··················································|····]   1.5 of 15.0 GiB
         █ model 9.00 GiB  ▓ context 2.00 GiB  ▒ compute 1.00 GiB  ░ other 1.00 GiB  | usable
         RTX 4090: 24.00 GiB free minus 1 GiB reserve
         RAM: 16.00 GiB free minus 1 GiB reserve

Speed    about 38 tokens/s (24-60); modelled

Later    RAM use may grow by up to 8.00 GiB of prompt cache; 13.50 GiB is left

Basis    exact: weights, kv cache, output
         modelled, within 10 %: compute
         assumed: runtime
         modelled: prompt cache

Note     a note of the model
         a note of the bill

Run      llama-server -m tiny.gguf -c 32768 -ngl all
"""
SPEED = Speed(decode=(24.0, 60.0), prefill=None, because="")
TOO_LARGE_WITH_CHANGES = with_change(
    with_change(
        with_change(
            with_change(TOO_LARGE, "--engine stream: holds it, slowly", ChangeKind.ENGINE),
            "RTX 5090: the smallest current GPU that holds the whole model",
            ChangeKind.DEVICE,
        ),
        "32.0 GiB of free RAM (16.00 GiB now)",
        ChangeKind.MEMORY,
    ),
    "-c 4096: fits",
    ChangeKind.CONTEXT,
)


def test_check_text_is_the_headline_the_bars_the_command_and_notes() -> None:
    assert check_text(check_from_lines(speed=SPEED), screen=Screen(width=80)) == FITS


def test_check_text_if_it_does_not_fit_has_three_changes_and_no_command() -> None:
    assert check_text(TOO_LARGE_WITH_CHANGES, screen=Screen(width=60, glyphs=ASCII)) == DOES_NOT_FIT


def test_check_text_says_that_tensors_were_not_checked() -> None:
    check = check_from_lines()
    estimate = replace(check.bill.estimate, notes=("how it was billed", TENSORS_NOT_CHECKED))
    text = check_text(replace(check, bill=replace(check.bill, estimate=estimate)))
    assert TENSORS_NOT_CHECKED in " ".join(text.split())
    assert "how it was billed" not in text


def test_check_text_with_why_has_everything() -> None:
    assert check_text(check_from_lines(speed=SPEED), screen=Screen(width=100), why=True) == WHY
    text = check_text(TOO_LARGE_WITH_CHANGES, why=True)
    assert "Why      32,768 tokens need 24.00 GiB; RAM has" in text
    assert all(change.told in text for change in TOO_LARGE_WITH_CHANGES.changes)


def test_check_text_on_a_narrow_screen_has_bars_below_their_figures() -> None:
    lines = check_text(TOO_LARGE, screen=Screen(width=40)).splitlines()
    assert lines[:2] == ["Does not fit your RAM at 32K: needs 24.0", "GiB, 15.0 usable"]
    index = lines.index("RAM: 24.0 of 15.0 GiB")
    assert len(lines[index + 1]) == 40


def test_quiet_text_is_the_headline() -> None:
    assert quiet_text(check_from_lines(speed=SPEED)) == FITS.splitlines()[0] + "\n"
    assert quiet_text(replace(check_from_lines(), is_assumed=True)).endswith(
        " (rough estimate from the name alone)\n"
    )


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("why", [False, True])
def test_check_text_fits_the_width(name: str, width: int, why: bool) -> None:  # noqa: FBT001 - a table
    text = check_text(recorded(name), screen=Screen(width=width), why=why)
    before_run, _, command = text.partition("\nRun")
    command = command.partition("\n\n")[0]
    assert max(map(len, before_run.splitlines())) <= min(max(width, 20), 100)
    assert "".join(text.split()).startswith("".join(quiet_text(recorded(name)).split()))
    expected = recorded(name).bill.command
    assert shlex.split(command.replace("\\\n", " ")) == (
        shlex.split(expected) if recorded(name).result.can_load else []
    )


@pytest.mark.parametrize("name", RECORDED)
def test_check_text_with_colour_only_decorates(name: str) -> None:
    check = recorded(name)
    painted = check_text(check, screen=Screen(width=80, colour=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == check_text(check, screen=Screen(width=80))
    shade = {"passed": 32, "warning": 33, "failed": 31}[check.result.status.value]
    assert painted.startswith(f"\x1b[1;{shade}m")
    assert "\x1b" not in check_text(check, screen=Screen(width=80))


@pytest.mark.parametrize("name", RECORDED)
def test_check_text_in_ascii_and_in_blocks(name: str) -> None:
    check_text(recorded(name), screen=Screen(width=80, glyphs=ASCII)).encode("ascii")
    assert not check_text(recorded(name), screen=Screen(width=80, glyphs=BLOCKS)).isascii()


def test_check_text_has_no_control_characters() -> None:
    evil = "RTX\x1b]0;owned\x07 4090\n\x9b31m"
    check = check_from_lines(on=machine(card(evil, 24), ram_gib=16, notes=(evil,)))
    bill = replace(check.bill, label=evil, notes=(evil,), command=f"run '{evil}'", asked=evil)
    text = check_text(replace(check, bill=bill), screen=Screen(width=100))
    assert not any(c in text for c in "\x1b\x07\x9b")
    assert all(c == "\n" or c.isprintable() for c in text)
    assert quiet_text(replace(check, bill=bill)).count("\n") == 1


def test_check_text_says_that_ram_of_unknown_size_was_not_checked() -> None:
    check = check_from_lines(on=machine(card("RTX 4090", 24), ram_gib=None))
    assert "RAM" not in check_text(check, screen=Screen(width=100))
    why = check_text(check, screen=Screen(width=100), why=True)
    assert "1.50 GiB goes to system RAM, whose size is unknown and was not checked" in why
    assert "█ model 8.00 GiB  ▓ context 2.00 GiB" in why  # the card only
    assert (
        "RAM use may grow by up to 8.00 GiB of prompt cache, and the size of the RAM is unknown"
        in why
    )


def test_check_text_names_the_limit_of_a_container() -> None:
    assert MACHINE.host is not None
    limit = MemoryLimit(name="cgroup v2 /c/memory.max", limit_bytes=8 * GIB, used_bytes=GIB)
    check = check_from_lines(on=replace(MACHINE, host=replace(MACHINE.host, limits=(limit,))))
    why = check_text(check, why=True)
    assert "RAM: 7.00 GiB free within cgroup v2 /c/memory.max, minus 1 GiB" in why
    assert "RTX 4090: 24.00 GiB free minus 1 GiB" in why


def test_check_text_groups_cards_with_the_same_figures() -> None:
    equal = check_text(check_from_lines(on=machine(card("T4", 24), card("T4", 24))), why=True)
    assert "T4 #0  " in equal
    assert "T4 #1  " in equal
    assert "         T4: 24.00 GiB free minus 1 GiB reserve" in equal
    different = check_text(
        check_from_lines(on=machine(card("T4", 24), card("T4", 24, free_bytes=20 * GIB))), why=True
    )
    assert "         T4 #0: 24.00 GiB free minus" in different
    assert "         T4 #1: 20.00 GiB free minus" in different


def test_check_text_with_unknown_native_context() -> None:
    text = check_text(check_from_lines(native_context=None), why=True)
    assert "recommended 59,392; native context unknown" in text


def test_check_text_if_it_does_not_fit_has_no_later_section() -> None:
    check = check_from_lines((*LINES, line(Component.WEIGHTS, 40 * GIB)))
    assert check.result.failed
    assert "Later" not in check_text(check, why=True)


def test_check_text_has_no_empty_sections() -> None:
    bare = check_from_lines(LINES[:1], machine(card("RTX 4090", 24), ram_gib=None))
    estimate = replace(bare.bill.estimate, notes=())
    check = Check(
        bill=replace(bare.bill, notes=(), command="", estimate=estimate), result=bare.result
    )
    labels = [
        row.split()[0] for row in check_text(check, why=True).splitlines()[4:] if row[:1].isalpha()
    ]
    assert labels == ["Context", "Memory", "Basis"]


def test_check_text_beyond_the_native_context_has_no_maximum() -> None:
    check = check_from_lines(
        context_tokens=262_144, max_context=131_072, recommended_context=104_857
    )
    assert "max context" not in check_text(check)
    assert "recommended 104,857; native context 131,072" in check_text(check, why=True)


NAMES = [
    "schema", "model", "reference", "title", "headline", "status", "can_load", "context_tokens", "context_asked", "context_because",
    "max_context", "way_context", "recommended_context", "native_context",
    "quantization", "cache", "download_bytes", "parameters", "active_parameters", "loss", "step", "speed",
    "first_token_s", "load_s", "min_speed", "is_fast_enough", "fastest", "required_bytes", "available_bytes", "utilization",
    "engine", "machine", "budgets", "bars", "way", "place", "runs_on", "embeds", "doubt", "from_index", "flags", "reasons",
    "changes", "basis", "estimate", "command", "commands", "notes",
]  # fmt: skip
BUDGET = {
    "name", "pools", "total_bytes", "free_bytes", "reserve_bytes", "because", "blocked", "available_bytes",
    "limit_bytes", "limit_because", "required_bytes", "covered_bytes", "utilization", "status",
}  # fmt: skip
MISSING = Unanswered(
    reference="no/such", engine="vllm", error=NotFoundError("there is no such model")
)


def test_check_json_has_the_figures_of_the_tightest_memory() -> None:
    document = check_json(check_from_lines())
    assert list(document) == NAMES
    assert (document["status"], document["can_load"]) == ("passed", True)
    assert (document["required_bytes"], document["available_bytes"]) == (
        11 * GIB + GIB // 2,
        23 * GIB,
    )
    assert document["utilization"] == 0.5
    assert (document["context_tokens"], document["context_asked"], document["context_because"]) == (
        32_768,
        True,
        None,
    )
    assert (
        document["max_context"],
        document["recommended_context"],
        document["native_context"],
    ) == (
        74_240,
        59_392,
        131_072,
    )
    assert document["engine"] == {"name": "llama.cpp", "version": "1.0"}
    assert document["basis"] == "assumed"
    assert document["command"] == "llama-server -m tiny.gguf -c 32768 -ngl all"
    assert document["notes"] == ["a note of the model", "a note of the bill"]
    assert document["estimate"]["total_bytes"] == sum(
        item.size_bytes for item in LINES if item.reserved
    )


def test_check_json_has_the_headline_speed_and_choices() -> None:
    speed = Speed(decode=(24.0, 60.0), prefill=(900.0, 3600.0), because="a token reads 8 GiB")
    document = check_json(
        check_from_lines(speed=speed, quantization="Q4_K_M", cache="q8_0", step=2)
    )
    assert document["headline"].startswith("Runs fully on your RTX 4090: 11.5 of 23.0 GiB at 32K")
    assert (document["quantization"], document["cache"], document["step"]) == ("Q4_K_M", "q8_0", 2)
    assert document["speed"] == {
        "typical": 37.95, "decode": [24.0, 60.0], "prefill": [900.0, 3600.0], "prefill_typical": 1800.0,
        "interval": 0.8, "basis": "modelled", "because": "a token reads 8 GiB",
        "users": None, "speculative": None,
    }  # fmt: skip
    bare = check_json(check_from_lines())
    assert (bare["quantization"], bare["cache"], bare["speed"]) == (None, None, None)


def test_check_json_has_every_budget() -> None:
    card, host = check_json(check_from_lines())["budgets"]
    assert set(card) == BUDGET
    assert (card["name"], card["pools"], card["reserve_bytes"]) == ("RTX 4090", ["device"], GIB)
    assert (host["required_bytes"], host["available_bytes"]) == (GIB + GIB // 2, 15 * GIB)
    assert (host["utilization"], host["status"], host["blocked"]) == (0.1, "passed", None)


def test_check_json_if_it_does_not_fit_has_reasons_and_no_command() -> None:
    document = check_json(TOO_LARGE)
    assert (document["status"], document["can_load"], document["command"]) == (
        "failed",
        False,
        None,
    )
    assert document["reasons"] == ["32,768 tokens need 24.00 GiB; RAM has 15.00 GiB usable"]
    assert document["context_because"] == "the default minimum"
    assert document["changes"] == [
        {
            "kind": "cache",
            "value": "q8_0",
            "told": "-ctk q8_0 -ctv q8_0: fits, up to 131,072 tokens",
            "flags": {"type_k": "q8_0", "type_v": "q8_0"},
            "max_context": 131_072,
        }
    ]


def test_check_json_utilization_of_an_empty_budget_is_null() -> None:
    document = check_json(recorded("nothing free"))
    assert document["available_bytes"] == 0
    assert document["utilization"] is None
    assert document["budgets"][0]["utilization"] is None


@pytest.mark.parametrize("name", RECORDED)
def test_check_json_is_valid_with_whole_bytes(name: str) -> None:
    document = check_json(recorded(name))
    assert json.loads(json.dumps(document, allow_nan=False)) == document | {
        "estimate": json.loads(json.dumps(document["estimate"]))
    }
    for key, value in leaves(document):
        if key.endswith("_bytes"):
            assert value is None or type(value) is int, key


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            for name, item in value.items():
                yield from leaves(item, name)
        case list():
            for item in value:
                yield from leaves(item, key)
        case _:
            yield key, value


def test_checks_json_of_checks_and_errors() -> None:
    document = checks_json([check_from_lines(), MISSING, TOO_LARGE])
    assert document["schema"] == 1
    assert document["models"] == [
        check_json(check_from_lines()),
        unanswered_json(MISSING),
        check_json(TOO_LARGE),
    ]
    assert document["models"][1] == {
        "reference": "no/such",
        "engine": "vllm",
        "error": {"type": "NotFoundError", "message": "there is no such model"},
    }
    assert document["summary"] == {
        "fits": 1,
        "tight": 0,
        "does_not_fit": 1,
        "cannot_run": 0,
        "not_read": 1,
    }
