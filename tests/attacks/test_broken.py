"""Truncated files and false counts, at every byte: always an EdgekitError, never another exception."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.header_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    INT32,
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
from tests.thoroughness import LONG, sampled

from edgekit.errors import EdgekitError, HeaderError
from edgekit.formats import read_header
from edgekit.formats.bounded_json import read_config
from edgekit.formats.gguf import read_gguf
from edgekit.formats.safetensors import read_safetensors, walk_index
from edgekit.formats.types import Depth
from edgekit.sources.types import ByteSource

SMALL = header_bytes("all-minilm-l6-v2.F16.novocab.gguf.head.gz")
HYBRID = header_bytes("lfm2-1.2b.Q4_K_M.novocab.gguf.head.gz")
LARGE = header_bytes("deepseek-v3.Q4_K_M.novocab.gguf.head.gz")


def cut_offsets(header: bytes) -> Iterator[int]:
    """Where to cut: at each byte of the keys and of some tensors, and at every 31st of the similar tensors between.

    For HYBRID at every fifth byte instead of each; with LONG at each byte everywhere.
    """
    dense_end = header.find(b"blk.0.") + 800
    yield from range(0, dense_end, 5 if header is HYBRID and not LONG else 1)
    yield from range(dense_end, len(header) - 200, 1 if LONG else 31)
    yield from range(len(header) - 200, len(header))


@pytest.mark.parametrize("header", [SMALL, HYBRID], ids=["bert", "lfm2"])
def test_gguf_truncated_at_every_byte(header: bytes) -> None:
    for end in cut_offsets(header):
        with pytest.raises(HeaderError):
            read_gguf(BytesSource(header[:end]))


def test_large_gguf_truncated_at_many_bytes() -> None:
    for end in random.Random(1).sample(range(len(LARGE)), 60 if LONG else 20):
        with pytest.raises(HeaderError):
            read_gguf(BytesSource(LARGE[:end]))


def test_gguf_truncated_in_its_vocabulary() -> None:
    tokens = key("tokenizer.ggml.tokens", ARRAY, (STRING, [f"token {n}" for n in range(20_000)]))
    types = key("tokenizer.ggml.token_type", ARRAY, (INT32, [1] * 20_000))
    file_bytes = gguf([*ARCHITECTURE, tokens, types], [entry("t", [32], 0, 0)], data_bytes=128)
    for end in random.Random(2).sample(range(len(file_bytes)), 60 if LONG else 20):
        for source in (BytesSource(file_bytes[:end]), GrowingSource(file_bytes[:end])):
            with pytest.raises(HeaderError, match=r"truncated|empty"):
                read_gguf(source)


def test_remote_gguf_truncated_at_every_64th_byte() -> None:
    for end in range(0, len(SMALL), 64):
        for depth in Depth:
            with pytest.raises(HeaderError):
                read_gguf(GrowingSource(SMALL[:end]), depth)


def test_complete_header_without_weights_names_what_is_missing() -> None:
    """The header is complete, and the weights are missing: the error names a tensor and the missing bytes."""
    with pytest.raises(
        HeaderError, match=r"truncated: tensor .* ends at byte .* interrupted download"
    ):
        read_gguf(BytesSource(SMALL))


FILE = safetensors(
    {
        "__metadata__": {"format": "pt"},
        "a": tensor("F16", [3], 0, 6),
        "b.ü": tensor("F4", [2], 6, 7),
    },
    data_bytes=7,
)
INDEX = b'{"metadata": {"total_size": 7.0}, "weight_map": {"a": "1", "b": "2"}}'
CONFIG = '{"model_type": "lläma", "rope": {"factor": 8.0}, "layers": [1, 2]}'.encode()


def walk(source: ByteSource) -> object:
    return walk_index(source, lambda tensor, file: None)


@pytest.mark.parametrize(
    ("file_bytes", "read"), [(FILE, read_safetensors), (INDEX, walk), (CONFIG, read_config)]
)
def test_json_truncated_at_every_byte(
    file_bytes: bytes, read: Callable[[ByteSource], object]
) -> None:
    read(BytesSource(file_bytes))
    for end in range(len(file_bytes)):
        with pytest.raises(HeaderError):
            read(BytesSource(file_bytes[:end]))


def test_safetensors_header_with_a_wrong_length() -> None:
    (true_length,) = struct.unpack("<Q", FILE[:8])
    for length in (
        *range(true_length),
        true_length + 1,
        true_length + 7,
        true_length + 8,
        2**32,
        2**63 - 1,
        2**64 - 1,
    ):
        with pytest.raises(HeaderError):
            read_safetensors(BytesSource(struct.pack("<Q", length) + FILE[8:]))


NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1)


def test_gguf_with_any_number_replaced() -> None:
    """Eight bytes at each position of a real header replaced: most are lengths, counts and offsets.

    With LONG by each of NUMBERS, otherwise by one of them in turn.
    """
    size = len(SMALL) + 10**8
    for at in range(4, 1_200):
        for number in sampled(NUMBERS, each=len(NUMBERS), turn=at):
            changed = SMALL[:at] + struct.pack("<Q", number) + SMALL[at + 8 :]
            with suppress(
                EdgekitError
            ):  # some changes are harmless; no other exception may be raised
                read_gguf(BytesSource(changed, size_bytes=size))


class ShrinkingSource(BytesSource):
    """A file that gets shorter while it is read: it has less than its stated size."""

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        return self.data[offset : offset + length]


@pytest.mark.parametrize("end", [0, 3, 10, 30, 200, 2_000])
def test_file_that_shrinks_while_it_is_read(end: int) -> None:
    with pytest.raises(HeaderError):
        read_gguf(ShrinkingSource(SMALL[:end], size_bytes=10**9))
    with pytest.raises(HeaderError):
        read_safetensors(ShrinkingSource(FILE[: min(end, 60)], size_bytes=len(FILE)))


HOSTILE = "\x1b[2J\n" + "long" * 100


@pytest.mark.parametrize(
    "data",
    [
        gguf([key(HOSTILE, BOOL, 7)]),
        gguf([key(HOSTILE, UINT32, 7)] * 2),
        gguf([key("general.alignment", STRING, HOSTILE * 100)]),
        gguf([key("split.count", STRING, HOSTILE * 100)]),
        gguf([key("split.count", ARRAY, (STRING, [HOSTILE[:200]] * 60))]),
        gguf([], [entry(HOSTILE[:200], [1], 99, 0)]),
        gguf([], [entry(HOSTILE[:200], [1], 0, 0)] * 2),
    ],
)
def test_errors_are_one_line_without_escapes(data: bytes) -> None:
    """Text from a file is escaped and shortened in errors."""
    with pytest.raises(HeaderError) as caught:
        read_header(model_files(BytesSource(data)))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
