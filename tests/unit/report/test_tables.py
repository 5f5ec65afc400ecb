"""Verdicts on many models, or of all engines on one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.report.verdicts import LINES, TOO_LARGE, line, made, recorded

from edgekit.app.check import Answer as Found
from edgekit.app.check import Check, Unanswered
from edgekit.bill.types import Component, Status
from edgekit.errors import EdgekitError, HardwareError, HeaderError, NotFoundError, RefusedError
from edgekit.machine.types import HOST
from edgekit.report.tables import (
    FIRST_ROWS,
    check_table,
    counts,
    outcome_of,
    summary,
    table_pieces,
)
from edgekit.report.text import ASCII, Screen
from edgekit.units import GIB

TIGHT = made((*LINES, line(Component.WEIGHTS, 12 * GIB, HOST)))


def named(check: Check, name: str, engine: str = "llama.cpp") -> Check:
    estimate = replace(check.bill.estimate, engine=engine)
    bill = replace(check.bill, label=name, reference=f"./{name}", estimate=estimate)
    return replace(check, bill=bill, result=replace(check.result, engine=engine))


def unread(name: str, shown: str = "it breaks off") -> Unanswered:
    return Unanswered(reference=name, engine=None, error=HeaderError(shown))


MANY: tuple[Found, ...] = (
    named(made(), "one.gguf"),
    named(made(max_context=1_048_576), "two-Q8_0.gguf"),
    named(TIGHT, "three.gguf"),
    named(TOO_LARGE, "four.gguf"),
    unread("./five.gguf"),
)
TABLE = """\
llama.cpp 1.0  ·  this machine

              model          context  max      GiB used  tokens/s
fits          one.gguf           32K  72K  11.5 of 23.0         ?
fits          two-Q8_0.gguf      32K   1M  11.5 of 23.0         ?
tight         three.gguf         32K  72K  13.5 of 15.0         ?
does not fit  four.gguf          32K    -  24.0 of 15.0         -
not read      ./five.gguf          -    -             -         -

./five.gguf: it breaks off

2 fit, 1 is tight, 1 does not fit, 1 could not be read
"""
ENGINES: tuple[Found, ...] = (
    named(made(), "one.gguf"),
    Unanswered(reference="./one.gguf", engine="vllm", error=RefusedError("vLLM loads no GGUF")),
    Unanswered(reference="./one.gguf", engine="mlx", error=HardwareError("no Apple silicon here")),
)
ALL_ENGINES = """\
one.gguf  ·  this machine

            engine     context  max      GiB used  tokens/s
fits        llama.cpp      32K  72K  11.5 of 23.0         ?
cannot run  vllm             -    -             -         -
cannot run  mlx              -    -             -         -

vllm: vLLM loads no GGUF
mlx: no Apple silicon here

1 fits, 2 cannot run
"""
NARROW = """\
llama.cpp 1.0  ·  this machine

fits  one.gguf
  32K (max 72K), 11.5 of 23.0
  GiB
does not fit  four.gguf
  32K, 24.0 of 15.0 GiB
not read  ./five.gguf

./five.gguf: it breaks off

1 fits, 1 does not fit, 1 could
not be read
"""


def test_check_table_of_many_models() -> None:
    assert check_table(MANY) == TABLE
    assert check_table(MANY, screen=Screen(glyphs=ASCII)) == TABLE.replace("·", "-")


def test_check_table_of_all_engines() -> None:
    assert check_table(ENGINES) == ALL_ENGINES


def test_check_table_on_a_narrow_screen_has_several_lines_per_model() -> None:
    assert check_table((MANY[0], MANY[3], MANY[4]), screen=Screen(width=32)) == NARROW


@pytest.mark.parametrize("width", [1, 20, 40, 60, 70, 80, 100, 200])
def test_check_table_fits_the_width(width: int) -> None:
    long = "an-organisation/a-model-with-a-very-long-name-Instruct-2507-GGUF:Q4_K_M"
    rows = (*MANY, *ENGINES, named(TIGHT, long), unread("x" * 300, "word " * 50))
    lines = check_table(rows, screen=Screen(width=width)).splitlines()
    assert max(map(len, lines)) <= max(width, 20)


def test_table_pieces_shows_each_row_before_the_next_is_known() -> None:
    asked = 0

    def rows() -> Iterator[Found]:
        nonlocal asked
        for number in range(FIRST_ROWS + 5):
            asked += 1
            yield named(made(), f"{number:02}.gguf")

    pieces = table_pieces(rows())
    first = next(pieces)
    assert asked == FIRST_ROWS
    assert [line.split()[1] for line in first.splitlines()[3:]] == [
        f"{number:02}.gguf" for number in range(FIRST_ROWS)
    ]
    for number in range(FIRST_ROWS, FIRST_ROWS + 5):
        line = next(pieces)
        assert asked == number + 1
        assert line == first.splitlines()[3].replace("00.gguf", f"{number:02}.gguf") + "\n"
    assert list(pieces) == [f"\n{FIRST_ROWS + 5} fit\n"]


@pytest.mark.parametrize("width", [1, 20, 40, 60, 70, 80, 100, 200])
def test_check_table_later_rows_fit_the_width(width: int) -> None:
    later = (named(made(max_context=1_048_576), "x" * 300), unread("y" * 300), named(TIGHT, "z" * 60, "mlx"))  # fmt: skip
    lines = check_table((*[MANY[0]] * FIRST_ROWS, *later), screen=Screen(width=width)).splitlines()
    assert max(map(len, lines)) <= max(width, 20)


def test_check_table_later_row_of_another_engine_names_it() -> None:
    shown = check_table((*[MANY[0], MANY[1]] * FIRST_ROWS, named(made(), "last", "mlx")))
    assert "last (mlx)" in shown


def test_check_table_keeps_the_ends_of_a_long_name() -> None:
    rows = (named(made(), "meta-llama-3.1-70b-instruct-Q4_K_M.gguf"), MANY[0])
    shown = check_table(rows, screen=Screen(width=70)).splitlines()
    assert shown[3] == "fits  meta-llama-...-Q4_K_M.gguf      32K  72K  11.5 of 23.0         ?"
    assert max(map(len, shown)) == 70


def test_check_table_shows_cache_weights_and_users() -> None:
    check = named(made(), "a")
    chosen = replace(check.result, quantization="Q4_K_M", cache="q8_0")
    shared = replace(check.result, quantization="MXFP4_MOE", streams=4)
    shown = check_table((replace(check, result=chosen), replace(check, result=shared))).splitlines()
    assert shown[2:5] == [
        "      weights   context  max      GiB used  tokens/s",
        "fits  Q4_K_M   32K q8_0  72K  11.5 of 23.0         ?",
        "fits  MXFP4      4 x 8K  72K  11.5 of 23.0         ?",
    ]


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (80, "      model           engine     GiB  context  max      GiB used  tokens/s"),
        (70, "      model           engine     context  max      GiB used  tokens/s"),
        (66, "      model           engine     context      GiB used  tokens/s"),
        (60, "      model           engine     context      GiB used"),
        (50, "fits  model-one.gguf  llama.cpp"),
    ],
)
def test_check_table_on_a_narrow_screen_has_fewer_columns(width: int, head: str) -> None:
    rows = (named(made(), "model-one.gguf"), named(made(), "model-two.gguf", "mlx"))
    assert check_table(rows, screen=Screen(width=width), sizes=True).splitlines()[2] == head


def test_check_table_of_a_context_beyond_the_native_one() -> None:
    shown = check_table((named(made(context_tokens=262_144), "a"), MANY[0]))
    assert [row.split()[2:4] for row in shown.splitlines()[3:5]] == [
        ["256K", "256K"],
        ["32K", "72K"],
    ]


def test_check_table_has_each_reason_once() -> None:
    none_here = HardwareError("MLX needs a Mac with Apple silicon")
    rows = [
        result
        for name in ("a", "b", "c", "d")
        for result in (
            named(made(), name),
            Unanswered(reference=f"./{name}", engine="mlx", error=none_here),
        )
    ]
    assert "\n4 models on mlx: MLX needs a Mac with Apple silicon\n" in check_table(rows)
    assert "\na, b on mlx: MLX needs a Mac with Apple silicon\n" in check_table(rows[:4])


def test_check_table_has_reasons_that_the_figures_do_not_show() -> None:
    blocked = named(recorded("vllm blocked"), "qwen", "vllm")
    short = named(made(status=Status.FAILED, reasons=("at most 4,096 tokens fit",)), "short.gguf")
    shown = check_table((blocked, short, named(TOO_LARGE, "four.gguf")), screen=Screen(width=200))
    assert "\nqwen on vllm: vLLM does not start: it reserves 22.08 GiB of RTX 4090" in shown
    assert "\nshort.gguf on llama.cpp: at most 4,096 tokens fit\n" in shown
    assert "four.gguf on" not in shown


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (HardwareError("x"), "cannot run"),
        (RefusedError("x"), "cannot run"),
        (HeaderError("x"), "not read"),
        (NotFoundError("x"), "not read"),
    ],
)
def test_outcome_of_an_error(error: EdgekitError, outcome: str) -> None:
    assert outcome_of(Unanswered(reference="x", engine=None, error=error)) == outcome


def test_counts() -> None:
    assert counts(MANY) == {
        "fits": 2,
        "tight": 1,
        "does not fit": 1,
        "cannot run": 0,
        "not read": 1,
    }
    assert summary(MANY * 2) == "4 fit, 2 are tight, 2 do not fit, 2 could not be read"
    assert summary(()) == "no models"
    assert check_table(()) == "no models\n"
    assert (
        check_table([unread("x")])
        == "          model  context  max  GiB used  tokens/s\nnot read  x            -    -         -         -\n\n"
        "x: it breaks off\n\n1 could not be read\n"
    )


def test_check_table_has_no_control_characters() -> None:
    evil = "a\x1b[2J\r\x07b"
    shown = check_table((named(made(), evil), unread(evil, evil), MANY[0]))
    assert all(c == "\n" or c.isprintable() for c in shown)
