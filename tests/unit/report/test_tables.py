"""report/tables.py: verdicts on many models, or of all engines on one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.report.verdicts import LINES, TOO_LARGE, check_from_lines, line, recorded

from edgekit.app.check import Answer, Check, Unanswered
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

TIGHT = check_from_lines((*LINES, line(Component.WEIGHTS, 12 * GIB, HOST)))


def named(check: Check, name: str, engine: str = "llama.cpp") -> Check:
    estimate = replace(check.bill.estimate, engine=engine)
    bill = replace(check.bill, label=name, reference=f"./{name}", estimate=estimate)
    return replace(check, bill=bill, result=replace(check.result, engine=engine))


def unreadable(name: str, message: str = "truncated file") -> Unanswered:
    return Unanswered(reference=name, engine=None, error=HeaderError(message))


MANY: tuple[Answer, ...] = (
    named(check_from_lines(), "one.gguf"),
    named(check_from_lines(max_context=1_048_576), "two-Q8_0.gguf"),
    named(TIGHT, "three.gguf"),
    named(TOO_LARGE, "four.gguf"),
    unreadable("./five.gguf"),
)
TABLE = """\
llama.cpp 1.0  ·  this machine

              model          context  max      GiB used  tokens/s
fits          one.gguf           32K  72K  11.5 of 23.0         ?
fits          two-Q8_0.gguf      32K   1M  11.5 of 23.0         ?
tight         three.gguf         32K  72K  13.5 of 15.0         ?
does not fit  four.gguf          32K    -  24.0 of 15.0         -
not read      ./five.gguf          -    -             -         -

./five.gguf: truncated file

2 fit, 1 is tight, 1 does not fit, 1 could not be read
"""
ENGINES: tuple[Answer, ...] = (
    named(check_from_lines(), "one.gguf"),
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

./five.gguf: truncated file

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
    rows = (*MANY, *ENGINES, named(TIGHT, long), unreadable("x" * 300, "word " * 50))
    lines = check_table(rows, screen=Screen(width=width)).splitlines()
    assert max(map(len, lines)) <= max(width, 20)


def test_table_pieces_shows_each_row_before_reading_the_next() -> None:
    rows_read = 0

    def rows() -> Iterator[Answer]:
        nonlocal rows_read
        for number in range(FIRST_ROWS + 5):
            rows_read += 1
            yield named(check_from_lines(), f"{number:02}.gguf")

    pieces = table_pieces(rows())
    first = next(pieces)
    assert rows_read == FIRST_ROWS
    assert [line.split()[1] for line in first.splitlines()[3:]] == [
        f"{number:02}.gguf" for number in range(FIRST_ROWS)
    ]
    for number in range(FIRST_ROWS, FIRST_ROWS + 5):
        line = next(pieces)
        assert rows_read == number + 1
        assert line == first.splitlines()[3].replace("00.gguf", f"{number:02}.gguf") + "\n"
    assert list(pieces) == [f"\n{FIRST_ROWS + 5} fit\n"]


@pytest.mark.parametrize("width", [1, 20, 40, 60, 70, 80, 100, 200])
def test_check_table_later_rows_fit_the_width(width: int) -> None:
    later = (named(check_from_lines(max_context=1_048_576), "x" * 300), unreadable("y" * 300), named(TIGHT, "z" * 60, "mlx"))  # fmt: skip
    lines = check_table((*[MANY[0]] * FIRST_ROWS, *later), screen=Screen(width=width)).splitlines()
    assert max(map(len, lines)) <= max(width, 20)


def test_check_table_later_row_names_another_engine() -> None:
    table = check_table(
        (*[MANY[0], MANY[1]] * FIRST_ROWS, named(check_from_lines(), "last", "mlx"))
    )
    assert "last (mlx)" in table


def test_check_table_shortens_a_long_name_in_the_middle() -> None:
    rows = (named(check_from_lines(), "meta-llama-3.1-70b-instruct-Q4_K_M.gguf"), MANY[0])
    table = check_table(rows, screen=Screen(width=70)).splitlines()
    assert table[3] == "fits  meta-llama-...-Q4_K_M.gguf      32K  72K  11.5 of 23.0         ?"
    assert max(map(len, table)) == 70


def test_check_table_shows_cache_weights_and_users() -> None:
    check = named(check_from_lines(), "a")
    chosen = replace(check.result, quantization="Q4_K_M", cache="q8_0")
    shared = replace(check.result, quantization="MXFP4_MOE", streams=4)
    table = check_table((replace(check, result=chosen), replace(check, result=shared))).splitlines()
    assert table[2:5] == [
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
def test_check_table_leaves_out_columns_on_a_narrow_screen(width: int, head: str) -> None:
    rows = (
        named(check_from_lines(), "model-one.gguf"),
        named(check_from_lines(), "model-two.gguf", "mlx"),
    )
    assert check_table(rows, screen=Screen(width=width), sizes=True).splitlines()[2] == head


def test_check_table_of_a_context_beyond_the_native_one_has_no_smaller_max() -> None:
    table = check_table((named(check_from_lines(context_tokens=262_144), "a"), MANY[0]))
    assert [row.split()[2:4] for row in table.splitlines()[3:5]] == [
        ["256K", "256K"],
        ["32K", "72K"],
    ]


def test_check_table_has_each_reason_once() -> None:
    none_here = HardwareError("MLX needs a Mac with Apple silicon")
    rows = [
        result
        for name in ("a", "b", "c", "d")
        for result in (
            named(check_from_lines(), name),
            Unanswered(reference=f"./{name}", engine="mlx", error=none_here),
        )
    ]
    assert "\n4 models on mlx: MLX needs a Mac with Apple silicon\n" in check_table(rows)
    assert "\na, b on mlx: MLX needs a Mac with Apple silicon\n" in check_table(rows[:4])


def test_check_table_has_reasons_that_the_figures_do_not_show() -> None:
    blocked = named(recorded("vllm blocked"), "qwen", "vllm")
    short = named(
        check_from_lines(status=Status.FAILED, reasons=("at most 4,096 tokens fit",)), "short.gguf"
    )
    table = check_table((blocked, short, named(TOO_LARGE, "four.gguf")), screen=Screen(width=200))
    assert "\nqwen on vllm: vLLM does not start: it reserves 22.08 GiB of RTX 4090" in table
    assert "\nshort.gguf on llama.cpp: at most 4,096 tokens fit\n" in table
    assert "four.gguf on" not in table


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


def test_counts_and_summary() -> None:
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
        check_table([unreadable("x")])
        == "          model  context  max  GiB used  tokens/s\nnot read  x            -    -         -         -\n\n"
        "x: truncated file\n\n1 could not be read\n"
    )


def test_check_table_has_no_control_characters() -> None:
    evil = "a\x1b[2J\r\x07b"
    table = check_table((named(check_from_lines(), evil), unreadable(evil, evil), MANY[0]))
    assert all(c == "\n" or c.isprintable() for c in table)
