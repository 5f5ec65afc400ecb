"""tools/golden_text.py: different answers must have different recorded texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG
from tools.golden_text import (
    LONG_ANSWER,
    SHOWN,
    brief,
    hashed,
    hashed_texts,
    json_text,
    lengthened,
    shortened,
    with_short_bars,
    with_short_lists,
)

# Words that look like the notation.
SIGNS = (
    "",
    "-",
    "-a",
    "#",
    "= .a",
    "a.b",
    "a[0]",
    "a: b",
    "a, b",
    "a; b",
    "a | b",
    "else a",
    "{a: 1}",
    "[]",
    '"a"',
)
NUMBERS = ("null", "true", "0", "1.0")
WORDS = st.sampled_from(["a", "b", " a", "a  b", "\n", "long words " * 8, *SIGNS, *NUMBERS])
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, 1, -1, 0.0, 1.0, 10**12]) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(WORDS, inner, max_size=4)
        | st.lists(st.dictionaries(st.sampled_from("abc"), inner), min_size=2, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300 if LONG else 20)
@given(VALUES, VALUES)
def test_json_text_differs_for_different_values(first: Any, second: Any) -> None:
    assume(json.dumps(first, sort_keys=True) != json.dumps(second, sort_keys=True))
    assert json_text(first) != json_text(second)


@settings(max_examples=300 if LONG else 20)
@given(VALUES, st.data())
def test_json_text_changes_with_every_part(value: Any, data: st.DataObject) -> None:
    places = list(_places(value))
    assume(places)
    parent, key = data.draw(st.sampled_from(places))
    before, text = json.dumps(value, sort_keys=True), json_text(value)
    parent[key] = data.draw(VALUES)
    assume(json.dumps(value, sort_keys=True) != before)
    assert json_text(value) != text


PART, OTHER = [f"one {'part' * 20}"], [f"another {'part' * 20}"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": {"b": PART}, "a.b": OTHER, "c": PART}, {"a": {"b": PART}, "a.b": OTHER, "c": OTHER}),
        ({"a": [PART], "a[0]": OTHER, "c": PART}, {"a": [PART], "a[0]": OTHER, "c": OTHER}),
        ({"": "a"}, {"a": ""}),
    ],
    ids=["a dot in a key", "brackets in a key", "an empty key"],
)
def test_json_text_quotes_keys_that_look_like_notation(first: Any, second: Any) -> None:
    assert json_text(first) != json_text(second)


def _places(value: Any) -> Any:
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


LINES = st.lists(
    st.sampled_from(["a", "ab", "  -x  one", "  -x  two", "", "      deeper", "b" * 60, "b" * 70]),
    max_size=12,
)


@given(LINES, LINES)
def test_shortened_text_can_be_read_back(lines: list[str], base: list[str]) -> None:
    text, known = ("".join(f"{line}\n" for line in part_lines) for part_lines in (lines, base))
    assert lengthened(shortened(text, known), known) == text


def test_shortened_names_the_first_and_last_repeated_line() -> None:
    base = "one\n  -x  what x does\n        in two lines\n  -y  what y does\nend\n"
    text = base.replace("one", "two").replace("end", "another end")
    assert shortened(text, base) == "two\n= -x  what x does .. -y  what y does\nanother end\n"


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ({"name": "RAM", "bytes": 1, "because": "of this" * 20}, {"bytes": 2}),
        ({"name": "RAM", "bytes": None, "because": "of this" * 20}, {"bytes": 0}),
    ],
)
def test_hash_in_brief_changes_with_the_hashed_part(part: dict[str, Any], change: Any) -> None:
    more = ["x" * 50] * (LONG_ANSWER // 50)
    first, second = (
        brief({"machine": part, "more": more}),
        brief({"machine": part | change, "more": more}),
    )
    assert first["machine"].startswith("RAM #")
    assert first["machine"] != second["machine"]
    assert brief({"machine": part}) == {"machine": part}, "a short answer is recorded in full"


def test_hashed_shows_the_start_of_a_sentence() -> None:
    assert hashed("one two three", head=7).startswith('"one two"… #')
    assert hashed("one two three", head=7) != hashed("one two four", head=7)


def test_hashed_texts_shows_the_text_of_each_new_hash() -> None:
    sentence, part = "one two three", {"name": "RAM", "bytes": 2}
    hashes = [hashed(item).rpartition(" ")[2] for item in (sentence, part)]
    text = f"a: {hashes[1]}; b: {hashes[0]}\nagain {hashes[0]}\nnot from here: #00000000\n"
    assert list(hashed_texts("", text)) == [
        f'{hashes[1]}: {{"name": "RAM", "bytes": 2}}',
        f"{hashes[0]}: one two three",
    ]
    assert list(hashed_texts(f"- {hashes[1]}", text)) == [f"{hashes[0]}: one two three"]


def test_hashed_texts_shows_the_start_of_a_long_text() -> None:
    (line,) = hashed_texts("", hashed("ab" * 1000))
    assert line.endswith(f": {'ab' * (SHOWN // 2)}… ({SHOWN} of 2000 characters)")


def test_with_short_bars_counts_repeated_characters() -> None:
    assert with_short_bars(f"RAM [{'█' * 12}{'·' * 3}|{'·' * 4}]") == "RAM [█*12···|·*4]"


def test_with_short_lists_keeps_lines_and_hashes_their_columns() -> None:
    lines = [f"{name:<8}1" for name in range(300)]
    wider = [*lines[:-1], f"{lines[-1][:-1]} 1"]
    first, second = (
        with_short_lists("\n".join(part_lines)).splitlines() for part_lines in (lines, wider)
    )
    assert first[:-1] == second[:-1] == [*lines[:100], *(f"{name}  1" for name in range(100, 300))]
    assert first[-1] != second[-1]
