"""Mutated headers: a valid result or an EdgekitError, and no other exception."""

from __future__ import annotations

import json
import math
import struct
from contextlib import suppress
from typing import Any

import safetensors as official
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.header_files import (
    ARCHITECTURE,
    ARRAY,
    STRING,
    UINT32,
    BytesSource,
    GrowingSource,
    entry,
    gguf,
    key,
    model_files,
    safetensors,
    tensor,
)
from tests.recorded import header_bytes
from tests.thoroughness import LONG

from edgekit.errors import EdgekitError
from edgekit.formats import read_header
from edgekit.formats.bounded_json import read_config
from edgekit.formats.dtype import by_safetensors
from edgekit.formats.gguf import read_gguf
from edgekit.formats.quantization import count_weights, read_quantization
from edgekit.formats.safetensors import read_safetensors, walk_index
from edgekit.formats.types import Depth
from edgekit.sources.types import Container

_DESERIALIZE: Any = official.deserialize  # untyped
MANY = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=300 if LONG else 30,
)

GGUFS = [
    header_bytes("all-minilm-l6-v2.F16.novocab.gguf.head.gz"),
    header_bytes("lfm2-1.2b.Q4_K_M.novocab.gguf.head.gz"),
    gguf(
        [
            *ARCHITECTURE,
            key("general.tags", ARRAY, (STRING, ["a", "b"])),
            key("tokenizer.ggml.tokens", ARRAY, (STRING, ["x", "yy", "zzz"])),
            key("llama.attention.head_count_kv", ARRAY, (UINT32, [8, 0])),
        ],
        [entry("a", [32, 2], 0, 0), entry("b", [256], 12, 256)],
        data_bytes=400,
    ),
    gguf([key("general.architecture", STRING, "bert", ">")], order=">"),
]
SAFETENSORS = [
    safetensors(
        {
            "__metadata__": {"format": "pt", "note": "ü"},
            "model.layers.0.mlp.down_proj.weight": tensor("U32", [4, 8], 0, 128),
            "model.layers.0.mlp.down_proj.scales": tensor("BF16", [4, 1], 128, 136),
            "f4": tensor("F4", [3, 2], 136, 139),
        },
        data_bytes=139,
    ),
    safetensors({"a": tensor("F8_E4M3", [0], 0, 0), "b": tensor("F32", [], 0, 4)}, data_bytes=4),
]
CONFIGS = [
    b'{"model_type": "llama", "quantization": {"group_size": 64, "bits": 4, "a.b": {"bits": 8}}}',
    b'{"text_config": {"quantization_config": {"quant_method": "fp8", "config_groups": {"g": {}}}}}',
]
INDEXES = [b'{"metadata": {"total_size": 139.0}, "weight_map": {"a": "m-1", "b": "m-2"}}']

PIECES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from((0, 1, 255, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)).map(
        lambda number: struct.pack("<Q", number)
    ),
    st.sampled_from(
        (b"{", b"}", b"[" * 50, b'"', b",", b":", b"null", b"-1", b"1e999", b"\\ud800")
    ),
)
# (position as a fraction of the file, bytes to remove, bytes to insert)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 16), PIECES), min_size=1, max_size=6)
Edits = list[tuple[float, int, bytes]]


def mutated(data: bytes, edits: Edits) -> bytes:
    for where, cut, piece in edits:
        at = int(where * len(data))
        data = data[:at] + piece + data[at + cut :]
    return data


def outcome(source: BytesSource, depth: Depth) -> str:
    """The tensors, or the error."""
    try:
        file = read_gguf(source, depth)
    except EdgekitError as error:
        return str(error)
    for item in file.tensors or ():
        assert 0 <= item.offset <= item.offset + item.size_bytes <= source.size_bytes
    return repr(file.tensors)


@MANY
@given(st.sampled_from(GGUFS), EDITS, st.sampled_from((0, 10**9)))
def test_mutated_gguf_reads_the_same_locally_and_remotely(
    data: bytes, edits: Edits, more: int
) -> None:
    data = mutated(data, edits)
    size = len(data) + more
    local = outcome(BytesSource(data, size_bytes=size), Depth.TENSORS)
    remote = outcome(GrowingSource(data, name="model", size_bytes=size), Depth.TENSORS)
    assert local == remote
    outcome(GrowingSource(data, size_bytes=size), Depth.ARCHITECTURE)


@MANY
@given(st.sampled_from(GGUFS), st.floats(0, 1), st.sampled_from(GGUFS), st.floats(0, 1))
def test_spliced_ggufs_are_read_or_refused(
    first: bytes, cut: float, second: bytes, seam: float
) -> None:
    data = first[: int(cut * len(first))] + second[int(seam * len(second)) :]
    with suppress(EdgekitError):
        read_header(model_files(BytesSource(data, size_bytes=10**9)))


@MANY
@given(st.sampled_from(SAFETENSORS), EDITS)
def test_mutated_safetensors_is_read_only_if_the_library_reads_it(
    data: bytes, edits: Edits
) -> None:
    data = mutated(data, edits)
    try:
        file = read_safetensors(BytesSource(data))
    except EdgekitError:
        return
    expected = {name: (info["dtype"], tuple(info["shape"])) for name, info in _DESERIALIZE(data)}
    assert {
        item.name: (item.type.safetensors, item.shape) for item in file.tensors or ()
    } == expected


@MANY
@given(st.sampled_from(SAFETENSORS), EDITS)
def test_mutated_safetensors_header_is_read_or_refused(data: bytes, edits: Edits) -> None:
    """The length is corrected, so that the mutated JSON itself is read."""
    (length,) = struct.unpack("<Q", data[:8])
    raw = mutated(data[8 : 8 + length], edits)
    with suppress(EdgekitError):
        read_safetensors(BytesSource(safetensors(raw, data_bytes=len(data) - 8 - length)))


KINDS = st.sampled_from(("F32", "BF16", "F4", "F6_E2M3", "U8", "BOOL", "F8_E8M0", "C64"))
SHAPES = st.lists(st.integers(0, 6), max_size=3)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """A valid file, or one with one number slightly off."""
    header: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(st.text(max_size=4), max_size=4, unique=True)):
        kind, shape = draw(KINDS), draw(SHAPES)
        row = by_safetensors(kind)
        size = -(-math.prod(shape) * row.block_bytes // row.block_elements)
        header[name] = tensor(kind, shape, end, end + size)
        end += size
    ascii_only, is_wrong = draw(st.tuples(st.booleans(), st.booleans()))
    if header and is_wrong:
        wrong = header[draw(st.sampled_from(sorted(header)))]
        place = wrong[draw(st.sampled_from(("shape", "data_offsets")))]
        if place:
            place[draw(st.integers(0, len(place) - 1))] += draw(st.integers(-2, 2))
    raw = json.dumps(header, ensure_ascii=ascii_only).encode()
    return safetensors(raw, data_bytes=max(0, end + draw(st.sampled_from((0, 0, 0, -1, 1)))))


@MANY
@given(headers())
def test_valid_headers_are_those_of_the_safetensors_library(data: bytes) -> None:
    try:
        expected: Any = {name for name, _ in _DESERIALIZE(data)}
    except official.SafetensorError:
        expected = None
    try:
        actual: Any = {item.name for item in read_safetensors(BytesSource(data)).tensors or ()}
    except EdgekitError:
        actual = None
    assert actual == expected


@MANY
@given(st.sampled_from(CONFIGS + INDEXES), EDITS)
def test_mutated_json_is_read_or_refused(data: bytes, edits: Edits) -> None:
    data = mutated(data, edits)
    for read in (read_config, walk_index, lambda source: walk_index(source, lambda a, b: None)):
        with suppress(EdgekitError):
            read(BytesSource(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
WORDS = st.sampled_from(
    ("quant_method", "quant_algo", "bits", "group_size", "mode", "config_groups", "weights", "num_bits",
     "quantized_layers", "global_quant_config", "weight", "dtype", "load_in_4bit", "format", "w_bit")
)  # fmt: skip
SETTINGS = st.recursive(
    JSON | st.sampled_from(("fp8", "gptq", "mxfp4", "affine", "NVFP4", "modelopt", 4, 8, 64)),
    lambda inner: st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=20,
)


@MANY
@given(SETTINGS, SETTINGS, st.sampled_from(("quantization", "quantization_config", "text_config")))
def test_any_quantization_config_is_read_and_counted(settings: Any, extra: Any, place: str) -> None:
    result = read_quantization({place: settings}, extra if isinstance(extra, dict) else None)
    tensors = read_safetensors(BytesSource(SAFETENSORS[0])).tensors or ()
    assert (count_weights(tensors, result) or 0) >= 0
    header = read_header(
        model_files(
            container=Container.CONFIG, config=BytesSource(json.dumps({place: settings}).encode())
        )
    )
    assert header.quantization is None or header.quantization.method
