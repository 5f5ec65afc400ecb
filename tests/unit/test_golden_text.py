"""The notation of the recorded answers: what differs must look different."""

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

# Words that look like the notation's own signs.
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
def test_two_values_have_two_texts(one: Any, other: Any) -> None:
    assume(json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True))
    assert json_text(one) != json_text(other)


@settings(max_examples=300 if LONG else 20)
@given(VALUES, st.data())
def test_a_changed_part_changes_the_text(value: Any, data: st.DataObject) -> None:
    places = list(_places(value))
    assume(places)
    parent, key = data.draw(st.sampled_from(places))
    before, text = json.dumps(value, sort_keys=True), json_text(value)
    parent[key] = data.draw(VALUES)
    assume(json.dumps(value, sort_keys=True) != before)
    assert json_text(value) != text


PART, OTHER = [f"one {'part' * 20}"], [f"another {'part' * 20}"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": {"b": PART}, "a.b": OTHER, "c": PART}, {"a": {"b": PART}, "a.b": OTHER, "c": OTHER}),
        ({"a": [PART], "a[0]": OTHER, "c": PART}, {"a": [PART], "a[0]": OTHER, "c": OTHER}),
        ({"": "a"}, {"a": ""}),
    ],
    ids=["a dot in a key", "brackets in a key", "an empty key"],
)
def test_a_key_that_looks_like_the_notation_is_quoted(one: Any, other: Any) -> None:
    assert json_text(one) != json_text(other)


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
def test_a_text_that_repeats_another_can_be_read_back(lines: list[str], base: list[str]) -> None:
    text, known = ("".join(f"{line}\n" for line in some) for some in (lines, base))
    assert lengthened(shortened(text, known), known) == text


def test_a_text_that_repeats_another_names_the_first_and_the_last_line() -> None:
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
def test_a_hash_changes_with_what_it_stands_for(part: dict[str, Any], change: Any) -> None:
    more = ["x" * 50] * (LONG_ANSWER // 50)
    one, other = (
        brief({"machine": part, "more": more}),
        brief({"machine": part | change, "more": more}),
    )
    assert one["machine"].startswith("RAM #")
    assert one["machine"] != other["machine"]
    assert brief({"machine": part}) == {"machine": part}, "a short answer is recorded in full"


def test_a_hashed_sentence_shows_how_it_begins() -> None:
    assert hashed("one two three", head=7).startswith('"one two"… #')
    assert hashed("one two three", head=7) != hashed("one two four", head=7)


def test_hashed_texts_shows_what_each_new_hash_stands_for() -> None:
    sentence, part = "one two three", {"name": "RAM", "bytes": 2}
    hashes = [hashed(item).rpartition(" ")[2] for item in (sentence, part)]
    text = f"a: {hashes[1]}; b: {hashes[0]}\nagain {hashes[0]}\nnot from here: #00000000\n"
    assert list(hashed_texts("", text)) == [
        f'{hashes[1]}: {{"name": "RAM", "bytes": 2}}',
        f"{hashes[0]}: one two three",
    ]
    assert list(hashed_texts(f"- {hashes[1]}", text)) == [f"{hashes[0]}: one two three"]


def test_hashed_texts_shows_how_a_long_text_begins() -> None:
    (line,) = hashed_texts("", hashed("ab" * 1000))
    assert line.endswith(f": {'ab' * (SHOWN // 2)}… ({SHOWN} of 2000 characters)")


def test_a_bar_is_written_as_the_number_of_its_characters() -> None:
    assert with_short_bars(f"RAM [{'█' * 12}{'·' * 3}|{'·' * 4}]") == "RAM [█*12···|·*4]"


def test_a_long_list_keeps_every_line_and_a_hash_of_its_columns() -> None:
    lines = [f"{name:<8}1" for name in range(300)]
    wider = [*lines[:-1], f"{lines[-1][:-1]} 1"]
    one, other = (with_short_lists("\n".join(some)).splitlines() for some in (lines, wider))
    assert one[:-1] == other[:-1] == [*lines[:100], *(f"{name}  1" for name in range(100, 300))]
    assert one[-1] != other[-1]
