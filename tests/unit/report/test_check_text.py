"""A verdict as a person reads it."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from tests.unit.report.verdicts import (
    LINES,
    MACHINE,
    RECORDED,
    TOO_LARGE,
    card,
    line,
    machine,
    made,
    recorded,
)

from edgekit.hardware.types import MemoryLimit
from edgekit.memory.types import Component
from edgekit.report.bars import ASCII, BLOCKS
from edgekit.report.check import Check
from edgekit.report.check_text import check_text, quiet_text
from edgekit.units import GIB

FITS = """\
Fits: 11.5 of 23.0 GiB (50 %) in RTX 4090, up to 74,240 tokens
tiny.gguf  ·  llama.cpp 1.0  ·  this machine, all of it on RTX 4090
32,768 tokens of context for 1 sequence

Context  judged for 32,768 tokens, as asked
         up to 74,240 fit, 59,392 recommended; the model was made for 131,072

Memory   RTX 4090  [███████████████████▓▓▓▓▒▒▒░··················|·········]  11.5 of 23.0 GiB  50 %
         RAM       [████░░·······································|·········]   1.5 of 15.0 GiB  10 %
         █ model 9.00 GiB  ▓ context 2.00 GiB  ▒ compute 1.00 GiB  ░ other 1.00 GiB  | 85 %
         RTX 4090: 24.00 GiB free less 1 GiB for everything else
         RAM: 16.00 GiB free less 1 GiB for everything else

Later    up to 8.00 GiB of prompt cache may grow on the host, where 11.25 GiB are left

Basis    exact: weights, kv cache, output
         modelled, within 10 %: compute
         assumed: runtime
         modelled: prompt cache

Note     a note of the model
         a note of the bill

Run      llama-server -m tiny.gguf -c 32768 -ngl all
"""
DOES_NOT_FIT = """\
Does not fit: 24.0 of 15.0 GiB (160 %), no context fits
tiny.gguf  -  llama.cpp 1.0
this machine, all of it on the CPU
32,768 tokens of context for 1 sequence

Context  judged for 32,768 tokens, the least that is of
           use
         no context fits; the model was made for 131,072

Memory   RAM: 24.0 of 15.0 GiB, 160 %
         [#########################|#####]##########========
         # model 20.00 GiB  = context 4.00 GiB  | 85 %
         16.00 GiB free less 1 GiB for everything else

Why      32,768 tokens need 24.00 GiB of the 15.00 GiB
         available

To fit   -ctk q8_0 -ctv q8_0: fits, up to 131,072 tokens

Basis    exact: weights, kv cache

Note     a note of the model
         a note of the bill
"""
NARROW = """\
Does not fit: 24.0 of 15.0 GiB (160 %),
no context fits
"""


def test_the_answer_first_then_the_memory_then_the_command() -> None:
    assert check_text(made(), width=100) == FITS


def test_why_it_does_not_fit_and_what_would_without_a_command() -> None:
    assert check_text(TOO_LARGE, width=60, glyphs=ASCII) == DOES_NOT_FIT
    assert check_text(TOO_LARGE, width=40).startswith(NARROW)


def test_quiet_is_the_answer_alone() -> None:
    assert quiet_text(made()) == FITS.splitlines()[0] + "\n"
    assert quiet_text(TOO_LARGE) == DOES_NOT_FIT.splitlines()[0] + "\n"


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("name", RECORDED)
def test_nothing_is_wider_than_the_screen(name: str, width: int) -> None:
    text = check_text(recorded(name), width=width)
    page, _, command = text.partition("Run")
    assert max(map(len, page.splitlines())) <= min(max(width, 20), 100)
    assert "".join(text.split()).startswith("".join(quiet_text(recorded(name)).split()))
    given = recorded(name).bill.command
    assert shlex.split(command.replace("\\\n", " ")) == (
        shlex.split(given) if recorded(name).result.can_load else []
    )


@pytest.mark.parametrize("name", RECORDED)
def test_colour_only_decorates(name: str) -> None:
    check = recorded(name)
    painted = check_text(check, width=80, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == check_text(check, width=80)
    shade = {"passed": 32, "warning": 33, "failed": 31}[check.result.status.value]
    assert painted.startswith(f"\x1b[1;{shade}m")
    assert "\x1b" not in check_text(check, width=80)


@pytest.mark.parametrize("name", RECORDED)
def test_a_narrow_encoding_is_enough(name: str) -> None:
    check_text(recorded(name), width=80, glyphs=ASCII).encode("ascii")
    assert not check_text(recorded(name), width=80, glyphs=BLOCKS).isascii()


def test_names_do_not_steer_the_terminal() -> None:
    evil = "RTX\x1b]0;owned\x07 4090\n\x9b31m"
    check = made(on=machine(card(evil, 24), ram_gib=16, notes=(evil,)))
    bill = replace(check.bill, label=evil, notes=(evil,), command=f"run '{evil}'", asked=evil)
    told = check_text(replace(check, bill=bill), width=100)
    assert not any(c in told for c in "\x1b\x07\x9b")
    assert all(c == "\n" or c.isprintable() for c in told)
    assert quiet_text(replace(check, bill=bill)).count("\n") == 1


def test_a_host_that_is_not_known_is_not_judged() -> None:
    told = check_text(made(on=machine(card("RTX 4090", 24), ram_gib=None)), width=100)
    assert told.startswith("Fits: 11.5 of 23.0 GiB (50 %), up to")
    assert "1.50 GiB on the host are not judged: its memory is not known (--ram)" in told
    assert "█ model 8.00 GiB  ▓ context 2.00 GiB" in told  # of the card alone
    assert "up to 8.00 GiB of prompt cache may grow on the host, whose memory is not known" in told


def test_the_limit_of_a_container_is_named() -> None:
    assert MACHINE.host is not None
    limit = MemoryLimit(name="cgroup v2 /c/memory.max", limit_bytes=8 * GIB, used_bytes=GIB)
    told = check_text(made(on=replace(MACHINE, host=replace(MACHINE.host, limits=(limit,)))))
    assert "RAM: 7.00 GiB free within cgroup v2 /c/memory.max, less 1 GiB" in told
    assert "RTX 4090: 24.00 GiB free less 1 GiB" in told


def test_cards_of_one_name_are_told_apart_only_where_they_differ() -> None:
    alike = check_text(made(on=machine(card("T4", 24), card("T4", 24))))
    assert "T4 #0  " in alike
    assert "T4 #1  " in alike
    assert "         T4: 24.00 GiB free less 1 GiB for everything else" in alike
    unlike = check_text(made(on=machine(card("T4", 24), card("T4", 24, free_bytes=20 * GIB))))
    assert "         T4 #0: 24.00 GiB free less" in unlike
    assert "         T4 #1: 20.00 GiB free less" in unlike


def test_what_the_model_was_made_for_may_be_unknown() -> None:
    assert "recommended; the model does not say its own" in check_text(made(native_context=None))


def test_nothing_is_said_of_later_where_it_does_not_load() -> None:
    small = made((*LINES, line(Component.WEIGHTS, 40 * GIB)))
    assert small.result.failed
    assert "Later" not in check_text(small)


def test_a_check_without_changes_or_notes_has_no_empty_sections() -> None:
    bare = made(LINES[:1], machine(card("RTX 4090", 24), ram_gib=None))
    estimate = replace(bare.bill.estimate, notes=())
    check = Check(
        bill=replace(bare.bill, notes=(), command="", estimate=estimate), result=bare.result
    )
    labels = [row.split()[0] for row in check_text(check).splitlines()[4:] if row[:1].isalpha()]
    assert labels == ["Context", "Memory", "Basis"]


def test_a_context_beyond_the_models_own_that_fits() -> None:
    told = check_text(
        made(context_tokens=262_144, max_context=131_072, recommended_context=104_857)
    )
    assert "so many fit, 104,857 recommended; the model was made for 131,072" in told
