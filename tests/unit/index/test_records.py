"""Entries as lines of JSON: the round trip, and every way in which a line can be damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thoroughness import sampled

from edgekit.errors import HeaderError, UnknownDtypeError
from edgekit.index import index_entries
from edgekit.index.database import header_of
from edgekit.index.records import MAX_RECORD_CHARS, is_id, read_record, record_of
from edgekit.index.tensor_runs import runs_of, tensors_of
from edgekit.index.types import (
    Entry,
    MeasuredSpeed,
    ModelPurpose,
    Size,
    Source,
    StoredHeader,
)
from edgekit.units import Basis

ENTRY = Entry(
    id="small",
    repository="org/small",
    family="small",
    architecture="llama",
    parameters=1000,
    native_context=2048,
    kinds=(ModelPurpose.CHAT, ModelPurpose.CODE),
    sizes=(Size(mix="F16", tensor_bytes=2000, basis=Basis.EXACT),),
    speeds=(
        MeasuredSpeed(device="RTX 4090", tokens_per_s=61.5, setting="Q4_K_M, 4k", source="me"),
    ),
    forms=("gguf",),
    header=StoredHeader(
        keys={"general.architecture": "llama", "llama.attention.head_count_kv": (2, 0, 2)},
        tensors=("blk.*.attn_q.weight 64x64 F16 0-1",),
    ),
    sources={"parameters": Source(text="its header", basis=Basis.EXACT)},
    reference="./small.gguf",
)


def test_record_round_trip() -> None:
    assert read_record(record_of(ENTRY), where="here") == ENTRY


def test_record_round_trip_of_packaged_headers() -> None:
    for entry in sampled([entry for entry in index_entries() if entry.forms], each=20):
        header = header_of(entry)
        stored = replace(ENTRY, header=header, forms=entry.forms)
        assert read_record(record_of(stored), where="here") == stored


def test_record_of_leaves_out_unknown_fields() -> None:
    assert "licence" not in json.loads(record_of(ENTRY))
    assert read_record(record_of(replace(ENTRY, parameters=None)), where="here").parameters is None


def broken(**changes: Any) -> str:
    return json.dumps({**json.loads(record_of(ENTRY)), **changes})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "[] is not an object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"id": NaN}', "NaN is not a number"),
        (None, "not a line of text"),
        (b"{}", "not a line of text"),
        (" " * (MAX_RECORD_CHARS + 1), "the limit is 1,048,576"),
        ("{}", "id: None is not a name"),
        (broken(id="../x y"), "id: '../x y' is not a name"),
        (broken(id="x" * 201), "is not a name"),
        (broken(family=7), "family: 7 is not a string"),
        (broken(parameters="many"), "parameters: 'many' is not a whole number"),
        (broken(parameters=True), "parameters: True is not a whole number"),
        (broken(parameters=-1), "parameters: -1 is not a whole number"),
        (broken(native_context=2**63), "native_context: 9223372036854775808 is not a whole"),
        (broken(kinds=["poetry"]), "kinds: 'poetry' is not one of chat, code, reasoning, embedding"),
        (broken(kinds="chat"), "kinds: 'chat' is not a list"),
        (broken(sizes={"F16": 7}), "sizes: 7 is not a list"),
        (broken(sizes={"F16": [7]}), "sizes: [7] is not a list of 2"),
        (broken(sizes={"F16": [7, []]}), "sizes: [] is not one of exact, asked, modelled, assumed"),
        (broken(sizes={"F16": [7, "sure"]}), "sizes: 'sure' is not one of exact, asked, modelled, assumed"),
        (broken(speeds=[["GPU", -1, "x", "y"]]), "speeds: -1 is not a number of tokens per second"),
        (broken(keys=[]), "keys: [] is not an object"),
        (broken(keys={"a": {}}), "keys: {} is not a valid GGUF value"),
        (broken(keys={}, config={}), "the model cannot be rebuilt from this"),
        (broken(tensors=["x 1x1x1x1x1 F16"]), "tensors: 'x 1x1x1x1x1 F16' is not a line"),
        (broken(tensors=["x 1 F16 all"]), "is not a line like"),
        (broken(tensors=["x -1 F16"]), "is not a line like"),
        (broken(tensors=[["x", [1], "F16"]]), "is not a line like"),
        (broken(sources=[["x", "exact"]]), "sources: ['x', 'exact'] is not a list of 3"),
    ],
)  # fmt: skip
def test_read_record_of_a_damaged_line_says_what_is_wrong(line: object, message: str) -> None:
    with pytest.raises(HeaderError) as raised:
        read_record(line, where="catalog.db, entry 'small'")
    assert str(raised.value).startswith("catalog.db, entry 'small': ")
    assert message in str(raised.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(json.loads(record_of(ENTRY)))), json_values)
def test_read_record_reads_or_rejects_any_value_of_a_field(field: str, value: Any) -> None:
    try:
        entry = read_record(broken(**{field: value}), where="here")
    except HeaderError:
        return
    assert read_record(record_of(entry), where="here") == entry


@given(
    st.sampled_from(
        [
            record_of(replace(ENTRY, header=header_of(entry), forms=entry.forms))
            for entry in sampled([entry for entry in index_entries() if entry.forms], each=40)
        ]
    ),
    st.data(),
)
def test_read_record_rejects_a_truncated_line(line: str, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(HeaderError):
        read_record(line[:end], where="here")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("x 64x64 F16", ["x"]),
        ("blk.*.x 64x64 F16 0", ["blk.0.x"]),
        ("blk.*.x 64x64 F16 0-2,7", ["blk.0.x", "blk.1.x", "blk.2.x", "blk.7.x"]),
        ("blk.*.x 64x64 F16 3,7,11-12", ["blk.3.x", "blk.7.x", "blk.11.x", "blk.12.x"]),
    ],
)
def test_tensor_runs_round_trip(line: str, names: list[str]) -> None:
    tensors = tensors_of((line,), name="small")
    assert [tensor.name for tensor in tensors] == names
    assert {(item.shape, item.size_bytes) for item in tensors} == {((64, 64), 64 * 64 * 2)}
    assert runs_of(tensors) == (line,)


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("x 1 Q9_9", UnknownDtypeError, "Q9_9"),
        ("x 7 Q8_0", HeaderError, "not a multiple"),
        ("x 1 F16 9-1", HeaderError, "small: '9-1': block numbers go from 0 to 511"),
        ("x 1 F16 0-512", HeaderError, "block numbers go from 0 to 511"),
        ("x", HeaderError, "small: 'x' is not a valid line of tensors"),
    ],
)
def test_tensors_of_rejects_invalid_lines(
    line: str, error: type[HeaderError], message: str
) -> None:
    with pytest.raises(error, match=message):
        tensors_of((line,), name="small")


def test_tensors_of_rejects_too_many_tensors() -> None:
    with pytest.raises(HeaderError, match="more than 49,152 tensors"):
        tensors_of(("blk.*.x 1 F32 0-511",) * 97, name="small")


def test_runs_of_rejects_a_name_with_a_space() -> None:
    (tensor,) = tensors_of(("x 1 F32",), name="small")
    with pytest.raises(HeaderError, match="cannot be stored"):
        runs_of((replace(tensor, name="a b"),))


@pytest.mark.parametrize("text", ["qwen3-8b", "a", "llama3.2:1b"])
def test_is_id(text: str) -> None:
    assert is_id(text)


@pytest.mark.parametrize("text", ["", "-a", "a/b", "a b", "a\n", "é"])
def test_is_id_rejects_other_text(text: str) -> None:
    assert not is_id(text)
