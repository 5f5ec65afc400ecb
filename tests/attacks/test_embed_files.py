"""Invalid files and the embedder: an error that names the fault, within limits of memory and time."""

from __future__ import annotations

import errno
import os
import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.victim import at_usual_pace_s
from tests.embed_tables import TABLE, random_row, write_later, write_table
from tests.header_files import (
    ARCHITECTURE,
    ARRAY,
    F32,
    FLOAT64,
    INT32,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    entry,
    gguf,
    key,
    text,
)
from tests.recorded import header_bytes
from tests.thoroughness import LONG, sampled

from edgekit.engines.native import file as file_module
from edgekit.engines.native.file import FileHeader, Limits, WeightFile, scan_header
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.token_mean import TokenMean
from edgekit.errors import EdgekitError, HeaderError, HeaderLimitError, SourceError
from edgekit.formats import limits
from edgekit.formats.dtype import by_name
from edgekit.machine.monitor import Monitor
from edgekit.units import KIB

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="open files are locked there")

MB = 10**6
MEMORY_BYTES = 100 * KIB  # a real header takes less than 64 KiB
CPU_S = 1.5  # when pace_s() is at most PACE_S


def scan(path: Path) -> FileHeader:
    with WeightFile(path, Limits()) as file:
        return scan_header(file, selects=lambda name: name == TABLE)


def array_head(name: str, element: int, count: int) -> bytes:
    return text(name) + struct.pack("<IIQ", ARRAY, element, count)


def many_tensors(count: int = limits.TENSORS_PER_FILE) -> list[bytes]:
    return [entry(f"{n:0{limits.NAME_BYTES}}", [1, 1, 1, 1], UINT8, 32 * n) for n in range(count)]


def empty_strings(count: int) -> bytes:
    """`count` empty tokens."""
    return array_head("tokenizer.ggml.tokens", STRING, count) + bytes(8 * count)


def model_of(keys: Sequence[bytes]) -> bytes:
    return gguf([*ARCHITECTURE, *keys])


Build = Callable[[], bytes]
# A file built to cost memory and time, and words of its error (None: the header is read).
BOMBS: dict[str, tuple[Build, str | None]] = {
    "as many tensors as allowed": (
        lambda: gguf([], many_tensors(), data_bytes=32 * limits.TENSORS_PER_FILE),
        None,
    ),
    "one tensor more": (
        lambda: gguf([], tensor_count=limits.TENSORS_PER_FILE + 1),
        "number of tensors",
    ),
    "2**64 - 1 tensors": (lambda: gguf([], tensor_count=2**64 - 1), "number of tensors"),
    "2**64 - 1 keys": (lambda: gguf([], key_count=2**64 - 1), "number of keys"),
    "keys of a megabyte": (lambda: model_of([key("x" * MB, UINT8, 0)]), "length of a key"),
    "9,000 keys outside of the model": (
        lambda: model_of([key(f"{n:01024}", UINT8, 0) for n in range(9_000)]),
        None,
    ),
    "9,000 keys of the model": (
        lambda: model_of([key(f"llama.{n}", UINT8, 0) for n in range(9_000)]),
        "keys of the model",
    ),
    "9,000 keys of the model with long names": (
        lambda: model_of([key(f"llama.{n:01000}", UINT8, 0) for n in range(9_000)]),
        "keys of the model",
    ),
    "9,000 texts of the model": (
        lambda: model_of([key(f"llama.{n}", STRING, "x" * 2_000) for n in range(9_000)]),
        "keys of the model",
    ),
    "9,000 wide texts of the model": (
        lambda: model_of(
            [key(f"llama.{n}", STRING, "x" * 2_000 + "\U0001f600") for n in range(9_000)]
        ),
        "keys of the model",
    ),
    "texts of 60 KB in 1,500 keys": (
        lambda: model_of([key(f"tokenizer.{n}", STRING, "x" * 60_000) for n in range(1_500)]),
        "keys of the model",
    ),
    "a text of 90 MB": (
        lambda: model_of([key("tokenizer.chat_template", STRING, "x" * 90 * MB)]),
        None,
    ),
    "arrays of numbers": (
        lambda: model_of([key(f"llama.{n}", ARRAY, (FLOAT64, [0.1] * 512)) for n in range(1_000)]),
        "keys of the model",
    ),
    "arrays of strings": (
        lambda: model_of(
            [key(f"llama.{n}", ARRAY, (STRING, ["x" * 200] * 64)) for n in range(1_000)]
        ),
        "keys of the model",
    ),
    "an architecture that comes last": (
        lambda: gguf([*(key(f"any.{n}", UINT8, 0) for n in range(9_000)), ARCHITECTURE[0]]),
        "keys of the model",
    ),
    "as many strings as allowed": (
        lambda: model_of([empty_strings(limits.STRINGS_WALKED)]),
        None,
    ),
    "strings that jump": (
        lambda: model_of(
            [
                array_head("tokenizer.ggml.tokens", STRING, 300)
                + (struct.pack("<Q", 300_000) + bytes(300_000)) * 300
            ]
        ),
        None,
    ),
    "2**63 strings": (
        lambda: model_of([array_head("tokenizer.ggml.tokens", STRING, 2**63)]),
        "array length",
    ),
    "2**63 numbers": (
        lambda: model_of([array_head("tokenizer.ggml.scores", UINT64, 2**63)]),
        "truncated",
    ),
    "a string beyond the file": (
        lambda: model_of([text("tokenizer.x") + struct.pack("<IQ", STRING, 2**63)]),
        "truncated",
    ),
    "an array in an array": (
        lambda: model_of([array_head("tokenizer.x", ARRAY, 1) + array_head("", ARRAY, 1)]),
        "arrays of arrays",
    ),
    "a tensor larger than the file": (
        lambda: gguf([], [entry(TABLE, [3_584, 152_064], 12, 0)], data_bytes=MB),
        "truncated: tensor 'token_embd.weight'",
    ),
    "a tensor at offset 2**64 - 32": (
        lambda: gguf([], [entry(TABLE, [32], F32, 2**64 - 32)], data_bytes=MB),
        "truncated: tensor 'token_embd.weight'",
    ),
    "a tensor of 2**66 elements": (
        lambda: gguf([], [entry(TABLE, [2**33, 2**33], F32, 0)], data_bytes=MB),
        "elements overflow an int64",
    ),
}


# Smaller files for tracing, which is ten times slower. One byte per tensor or string would still exceed MEMORY_BYTES.
TRACED: dict[str, Build] = {
    "as many tensors as allowed": lambda: gguf([], many_tensors(12_800), data_bytes=32 * 12_800),
    "as many strings as allowed": lambda: model_of([empty_strings(110_000)]),
}


@pytest.mark.parametrize("name", sampled(tuple(BOMBS), each=2))
def test_bomb_is_read_or_refused_within_the_limits(name: str, tmp_path: Path) -> None:
    build, words = BOMBS[name]
    path = tmp_path / "bomb.gguf"
    if name in TRACED and not LONG:
        path.write_bytes(TRACED[name]())
        traced, peak = traced_outcome(path)
        assert (traced == "") == (words is None), traced
        path.write_bytes(build())
        message, cpu_s = timed_outcome(path)
    else:
        path.write_bytes(build())
        traced, peak = traced_outcome(path)
        message, cpu_s = timed_outcome(path)
        assert message == traced
    if cpu_s >= CPU_S:  # a busy machine only adds time, so the lower of two counts
        cpu_s = min(cpu_s, timed_outcome(path)[1])
    path.unlink()
    print(f"{name}: {peak / KIB:.1f} KiB, {cpu_s:.2f} s, {message}")
    assert (message == "") == (words is None), message
    assert (words or "") in message
    assert len(message) < 500
    assert "\n" not in message
    assert peak < MEMORY_BYTES
    assert cpu_s < CPU_S


def outcome(path: Path) -> str:
    try:
        scan(path)
    except EdgekitError as error:
        return str(error)
    return ""


def traced_outcome(path: Path) -> tuple[str, int]:
    """The error message, and the peak of traced memory."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    message = outcome(path)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return message, peak


def timed_outcome(path: Path) -> tuple[str, float]:
    begin = time.process_time()
    message = outcome(path)
    return message, at_usual_pace_s(time.process_time() - begin, CPU_S)


@pytest.mark.parametrize("name", ["all-minilm-l6-v2.F16", "lfm2-1.2b.Q4_K_M"])
def test_header_truncated_at_every_position(name: str, tmp_path: Path) -> None:
    header = header_bytes(f"{name}.novocab.gguf.head.gz")
    path = tmp_path / "model.gguf"
    for end in {*range(0, len(header), 97), *range(64), len(header)}:
        path.write_bytes(header[:end])
        with pytest.raises(HeaderError):
            scan(path)


def test_header_with_any_byte_changed(tmp_path: Path) -> None:
    """The header is read, or refused with an EdgekitError, within MEMORY_BYTES."""
    header = header_bytes("lfm2-1.2b.Q4_K_M.novocab.gguf.head.gz")
    path = tmp_path / "model.gguf"
    path.write_bytes(header)
    with path.open("r+b") as file:
        file.truncate(4 * 10**9)
    rng = random.Random(5)
    refused, peak = 0, 0
    tracemalloc.start()
    times = 300 if LONG else 60
    for _ in range(times):
        at, value = rng.randrange(len(header)), rng.randrange(256)
        write_later(path, bytes([value]), at)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        refused += outcome(path) != ""
        peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
        write_later(path, header[at : at + 1], at)
    tracemalloc.stop()
    assert 0 < refused < times
    assert peak < MEMORY_BYTES


# --- files that change while they are read

WIDTH = 1_024


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    rng = np.random.default_rng(0)
    rows = {n: random_row(by_name("Q8_0"), WIDTH, rng) for n in range(100)}
    write_table(path, "Q8_0", (100, WIDTH), rows, others=3)
    return path


def encode_during(path: Path, event: Callable[[], object]) -> None:
    """Encodes 2,000 tokens; `event` happens at the first checkpoint."""
    todo = [event]

    def checkpoint(_: float) -> None:
        if todo:
            todo.pop()()

    with WeightFile(path, Limits()) as file:
        mean = _mean(file)
        mean.encode([list(range(100)) * 20], np.empty((1, WIDTH), np.float32), checkpoint)


def _mean(file: WeightFile) -> TokenMean:
    result = scan_header(file, selects=lambda name: name == TABLE)
    return TokenMean(
        file, result, kernels=choose_kernels("numpy"), monitor=Monitor(critical_bytes=0)
    )


def _replace(path: Path) -> None:
    other = path.with_name("other.gguf")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


EVENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated inside the table": (lambda path: os.truncate(path, 50_000), "truncated"),
    "truncated to nothing": (lambda path: os.truncate(path, 0), "truncated"),
    "truncated after the table": (
        lambda path: os.truncate(path, path.stat().st_size - 1),
        "truncated",
    ),
    "written to": (lambda path: write_later(path, b"\0\0", 70_000), "written to"),
    "grown": (_append, "written to"),
    "replaced": (_replace, "replaced by another file"),
    "removed": (Path.unlink, "no such file"),
}


@pytest.mark.parametrize("name", EVENTS)
def test_file_changes_while_open_are_detected(name: str, model: Path) -> None:
    event, words = EVENTS[name]
    with pytest.raises(SourceError, match=words) as caught:
        encode_during(model, lambda: event(model))
    assert str(model) in str(caught.value)


def test_unchanged_file_is_read_without_errors(model: Path) -> None:
    encode_during(model, lambda: None)


def test_disk_that_fails_during_a_read_is_an_error(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        def broken(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(file_module, "_READ", broken)

    with pytest.raises(SourceError, match=rf"Input/output error \({TABLE}, at byte [\d,]+\)"):
        encode_during(model, fail)


def test_file_truncated_inside_a_tensor_is_refused_by_its_header(model: Path) -> None:
    os.truncate(model, model.stat().st_size - 1)
    with pytest.raises(
        HeaderError, match=r"truncated: tensor 'blk\.2\.ffn_up\.weight' ends at byte"
    ):
        scan(model)


def test_header_truncated_between_two_reads_is_an_error(tmp_path: Path) -> None:
    """The vocabulary is read in windows; the file is truncated between two of them."""
    path = tmp_path / "model.gguf"
    tokens = key("tokenizer.ggml.tokens", ARRAY, (STRING, [f"token{n}" for n in range(20_000)]))
    types = key("tokenizer.ggml.token_type", ARRAY, (INT32, [1] * 20_000))
    path.write_bytes(
        gguf([*ARCHITECTURE, tokens, types], [entry("t", [32], F32, 0)], data_bytes=128)
    )

    class Changing(WeightFile):
        def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
            if offset > 100_000:
                os.truncate(path, 90_000)
            return super().read(offset, length, ahead=ahead)

    with (
        Changing(path, Limits()) as file,
        pytest.raises(SourceError, match="was truncated while"),
    ):
        scan_header(file)


def test_file_of_five_terabytes_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(gguf([*ARCHITECTURE, key("llama.embedding_length", UINT32, 8)]))
        file.truncate(5 * 10**12)
    with pytest.raises(HeaderLimitError, match="size of the file in bytes"):
        scan(path)
