"""JSON in requests: what is refused before anything is built from it."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.gateway.errors import GatewayError
from edgekit.gateway.json_body import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_STRINGS,
    MAX_VALUES,
    read_object,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.text(), VALUES))
def test_objects_are_read_as_json_reads_them(value: dict[str, object]) -> None:
    assert read_object(json.dumps(value).encode()) == value
    assert read_object(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"a"', "must be a JSON object"),
        (b"\xff", "not UTF-8"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": Infinity}', "Infinity is not a number"),
        (b'{"a": 1e999}', "too large: 1e999"),
        (b'{"a": ' + b"9" * 400 + b"}", "a number in the body is too large"),
        (b'{"a": 9223372036854775808}', "a number in the body is too large"),
        (b'{"a": ' + b"[" * 200_000, "too many levels of nesting: the limit is 64"),
        (b'{"a":' * 50_000, "too many levels of nesting"),
        (b'{"a": [' + b"[]," * (MAX_CONTAINERS + 1) + b"0]}", "too many lists and objects"),
        (b'{"a": [' + b"1," * (MAX_VALUES + 1) + b"0]}", "too many values"),
        (b'{"a": [' + b'"",' * (MAX_STRINGS + 1) + b"0]}", "too many strings"),
        (b'{"a": "' + b'"' * 2 * MAX_STRINGS, "too many strings"),
        # A search for strings that tries again at every quote took hours for these.
        (b'"' + b'\\"' * 4_000_000, "the body is not JSON"),
        (b'{"a": "' + b"\\\\" * 4_000_000, "the body is not JSON"),
    ],
    ids=lambda value: str(value[:12]) if isinstance(value, bytes) else "",
)
def test_refused(raw: bytes, message: str) -> None:
    with pytest.raises(GatewayError, match=message) as caught:
        read_object(raw)
    assert caught.value.status == 400


def test_brackets_and_commas_in_texts_do_not_count() -> None:
    text = '[[{,"\\' * MAX_CONTAINERS
    assert read_object(json.dumps({"a": text}).encode()) == {"a": text}


def test_counting_needs_little_memory_for_a_body_that_is_refused() -> None:
    """Ten million strings, lists or escapes took one to two gigabytes before they were refused."""
    for item in (b'"",', b"[],", b"1,"):
        raw = b'{"a": [' + item * 4_000_000 + b"0]}"
        tracemalloc.start()
        try:
            with pytest.raises(GatewayError, match="too many"):
                read_object(raw)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 3 * len(raw)


@given(st.text(alphabet='"\\[]{},ab'))
def test_escapes_end_where_json_ends_them(text: str) -> None:
    """Every list after the text is counted, and nothing inside it."""
    raw = json.dumps({"a": text}).encode()[:-1]
    within, beyond = (
        raw + b', "b": ' + b"[" * n + b"]" * n + b"}" for n in (MAX_DEPTH - 1, MAX_DEPTH)
    )
    assert read_object(within)["a"] == text
    with pytest.raises(GatewayError, match="levels of nesting"):
        read_object(beyond)


def test_depth_up_to_the_limit() -> None:
    inner = MAX_DEPTH - 1
    assert read_object(b'{"a": ' + b"[" * inner + b"]" * inner + b"}")
    with pytest.raises(GatewayError):
        read_object(b'{"a": ' + b"[" * (inner + 1) + b"]" * (inner + 1) + b"}")
