"""report/text.py: sections, tables, glyphs and commands as text."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.bill.types import Status
from edgekit.report.text import (
    ASCII,
    BLOCKS,
    Screen,
    Section,
    command_lines,
    fitted_table,
    glyphs_for,
    render,
    table,
)


def rendered(screen: Screen) -> str:
    sections: list[Section] = [
        (None, ["directly below"]),
        ("", lambda screen: ["=" * screen.width]),
        ("Note", ["first", "second"]),
        ("Empty", []),
        ("Run", lambda screen: ["-" * screen.width]),
    ]
    title = ("a model", "", "an engine")
    return render("Fits", sections, screen, title=title, status=Status.PASSED)


def test_render_of_sections() -> None:
    assert (
        rendered(Screen(width=50))
        == f"""\
Fits
a model  ·  an engine
directly below

{"=" * 50}

Note     first
         second

Run      {"-" * 41}
"""
    )


def test_render_on_a_narrow_screen_has_labels_above_their_rows() -> None:
    assert rendered(Screen(width=1)).endswith(f"\n\nRun\n  {'-' * 18}\n")


def test_render_with_colour_paints_the_headline() -> None:
    assert rendered(Screen(colour=True)).startswith("\x1b[1;32mFits\x1b[0m\na model")


def test_table_aligns_words_left_and_numbers_right() -> None:
    assert table(("name", "GiB"), [("a", "10.5"), ("longer", "9")]) == [
        "name     GiB",
        "a       10.5",
        "longer     9",
    ]


def test_fitted_table_leaves_out_columns_that_do_not_fit() -> None:
    rows = [("a", "10.5", "x" * 9)]
    assert fitted_table(("name", "GiB", "more"), rows, 12) == ["name   GiB", "a     10.5"]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf-8", BLOCKS), ("cp437", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no such", ASCII)],
)  # fmt: skip
def test_glyphs_for_an_encoding(encoding: str | None, expected: object) -> None:
    assert glyphs_for(encoding) is expected


@pytest.mark.parametrize(
    ("command", "width", "continuation", "lines"),
    [
        ("a -b 1 -c 2", 80, "\\", ["a -b 1 -c 2"]),
        ("a -b 1 -c 2", 8, "\\", ["a -b 1 \\", "-c 2"]),
        ("a 'b c' \"d e\"", 9, "\\", ["a 'b c' \\", '"d e"']),
        ("$env:A='1,2'; a -b 'it''s'", 15, "`", ["$env:A='1,2'; `", "a -b 'it''s'"]),
        ("a 'never closed", 4, "\\", ["a 'never closed"]),
        ("a  b", 3, "\\", ["a  b"]),
    ],
)
def test_command_lines(command: str, width: int, continuation: str, lines: list[str]) -> None:
    assert command_lines(command, width, continuation) == lines


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8), st.integers(4, 40))
def test_command_lines_keep_every_word(words: list[str], width: int) -> None:
    command = shlex.join([word for word in words if word.isprintable()] or ["a"])
    lines = command_lines(command, width, "\\")
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)
