"""Files built to cost memory and time: each is read within 64 MB and a second of CPU."""

from __future__ import annotations

import json
import select
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.header_files import (
    ARRAY,
    FLOAT64,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    entry,
    gguf,
    key,
    text,
)
from tests.patience import PATIENCE_S
from tests.thoroughness import sampled

from edgekit.formats import limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses Linux memory limits")

MEMORY_BYTES = 64 * 1024**2
CPU_S = 1.0  # when victim.pace_s() is at most victim.PACE_S
MB = 1_000_000


@cache
def lots_of_tensors() -> list[bytes]:
    """The largest number of tensors, with the longest names."""
    count = limits.TENSORS_PER_FILE
    return [entry(f"{n:0{limits.NAME_BYTES}}", [1, 1, 1, 1], UINT8, 32 * n) for n in range(count)]


def strings(count: int) -> bytes:
    return (
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, STRING, count) + bytes(8 * count)
    )


def same_arrays(element: int, values: list[Any]) -> list[bytes]:
    """The largest number of keys, each with the same array."""
    array = key("", ARRAY, (element, values)).removeprefix(text(""))
    return [text(f"{n}") + array for n in range(limits.KEYS)]


def zero_tensor(n: int) -> bytes:
    return b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n


def named_tensor(n: int) -> bytes:
    return b'"%0256x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n


def header(*content: bytes) -> list[bytes]:
    return raw_header(b"{", *content, b"}")


def single_entry(*entry_bytes: bytes) -> list[bytes]:
    return header(b'"a":', *entry_bytes)


def raw_header(*content: bytes) -> list[bytes]:
    """A safetensors header of these pieces, which need not be valid JSON."""
    return [struct.pack("<Q", sum(map(len, content))), *content]


def repeated(count: int, piece: bytes) -> list[bytes]:
    """`count` megabytes of the same piece. Only one of them is in memory."""
    return [piece * (MB // len(piece))] * count


def numbered(piece: Callable[[int], bytes], count: int = MB) -> bytes:
    """`count` pieces with consecutive numbers, made 10,000 at a time by replacing their leading digits."""
    block = b",".join(map(piece, range(10_000, 20_000)))
    assert block.count(b'"1') == 10_000
    return b",".join(block.replace(b'"1', b'"%d' % n) for n in range(100, 100 + count // 10_000))


def index(count: int) -> bytes:
    rows = b",".join(b'"%x":"m-1"' % n for n in range(count))
    return b'{"weight_map":{' + rows + b'},"metadata":{}}'


def model_keys(layers: int = 2) -> list[bytes]:
    return [
        key("general.architecture", STRING, "llama"),
        key("llama.block_count", UINT32, layers),
        key("llama.embedding_length", UINT32, 64),
        key("llama.attention.head_count", UINT32, 4),
    ]


def deep_config(**more: Any) -> bytes:
    """A config.json with the largest number of layers."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 512,
        "hidden_size": 64,
        "num_attention_heads": 4,
    }
    return json.dumps({**config, "intermediate_size": 8, "vocab_size": 9, **more}).encode()


def model_file(name: Callable[[int], str]) -> bytes:
    """A model with the largest number of tensors, with the longest names."""
    count = limits.TENSORS_PER_FILE
    tensors = [entry(name(n), [1, 1, 1, 1], 0, 32 * n) for n in range(count)]
    return gguf(model_keys(), tensors, data_bytes=32 * count)


def name_without_digits(n: int) -> str:
    digits = f"{n:x}".translate(str.maketrans("0123456789", "ghijklmnop"))
    return digits.rjust(limits.NAME_BYTES, "x")


def name_of_many_roles(n: int) -> str:
    return (name_without_digits(n)[-8:] + ".blk.layers.h.experts.norm.attn.ffn." * 7)[
        : limits.NAME_BYTES
    ]


Build = Callable[[], bytes | list[bytes]]
BOMBS: dict[str, tuple[str, Build]] = {
    # GGUF
    "as many tensors as allowed": ("gguf", lambda: gguf([], lots_of_tensors())),
    "one tensor more": ("gguf", lambda: gguf([], tensor_count=limits.TENSORS_PER_FILE + 1)),
    "as many strings as allowed": ("gguf", lambda: gguf([strings(limits.STRINGS_WALKED)])),
    "strings and tensors": (
        "gguf",
        lambda: gguf([strings(limits.STRINGS_WALKED)], lots_of_tensors()),
    ),
    "10,000 keys of 1 KiB": (
        "gguf",
        lambda: gguf([key(f"{n:01024}", UINT8, 0) for n in range(limits.KEYS)]),
    ),
    "1,500 texts of 64 KiB": (
        "gguf",
        lambda: gguf([key(f"{n}", STRING, bytes(65_536)) for n in range(1_500)]),
    ),
    "10,000 arrays of 1,024 numbers": (
        "gguf",
        lambda: gguf(same_arrays(FLOAT64, [0.5] * 1_024)),
    ),
    "10,000 arrays of 64 strings": (
        "gguf",
        lambda: gguf(same_arrays(STRING, ["x"] * 64)),
    ),
    "strings that jump": (
        "gguf",
        lambda: gguf(
            [
                text("tokenizer.t")
                + struct.pack("<IIQ", ARRAY, STRING, 300)
                + (struct.pack("<Q", 300_000) + bytes(300_000)) * 300
            ]
        ),
    ),
    "90 MB of numbers": (
        "gguf",
        lambda: gguf([text("a") + struct.pack("<IIQ", ARRAY, UINT64, 11_000_000) + bytes(88 * MB)]),
    ),
    # safetensors
    "tensors with the longest names": (
        "safetensors",
        lambda: header(b",".join(map(named_tensor, range(limits.TENSORS_PER_FILE)))),
    ),
    "1.5 million tensors": (
        "safetensors",
        lambda: header(numbered(zero_tensor, 1_500_000)),
    ),
    "90 MB of blanks": ("safetensors", lambda: header(*repeated(90, b" "))),
    "90 MB of brackets": ("safetensors", lambda: single_entry(*repeated(90, b"["))),
    "90 MB of braces": ("safetensors", lambda: single_entry(*repeated(90, b'{"a":'))),
    "90 MB in a name": ("safetensors", lambda: header(b'"', *repeated(90, b"n"), b'":1')),
    "90 MB in a text": ("safetensors", lambda: single_entry(b'"', *repeated(90, b"n"), b'"')),
    "90 MB that never end": ("safetensors", lambda: raw_header(b'{"a":"', *repeated(90, b"n"))),
    "90 MB of zeros": ("safetensors", lambda: raw_header(b"{", *repeated(90, b"\0"))),
    "a shape of 45 million": (
        "safetensors",
        lambda: single_entry(b'{"shape":[', *repeated(90, b"1,"), b"1]}"),
    ),
    "a shape just within an entry": (
        "safetensors",
        lambda: single_entry(
            b'{"dtype":"U8","shape":[' + b"1," * 32_000 + b'1],"data_offsets":[0,1]}'
        ),
    ),
    "numbers of 4,000 digits": (
        "safetensors",
        lambda: single_entry(b'{"shape":[' + (b"9" * 4_000 + b",") * 15 + b"1]}"),
    ),
    "a number of 90 MB": ("safetensors", lambda: single_entry(*repeated(90, b"9"))),
    "metadata of a million pairs": (
        "safetensors",
        lambda: header(b'"__metadata__":{', numbered(lambda n: b'"%d":""' % n), b"}"),
    ),
    "metadata of one wide text": (
        "safetensors",
        lambda: header(
            b'"__metadata__":{"a":"' + "\U0001f600".encode() * (4 * 1024**2 - 9) + b'"}'
        ),
    ),
    "metadata of escapes": (
        "safetensors",
        lambda: header(b'"__metadata__":{"a":"' + b"\\u00e9" * 650_000 + b'"}'),
    ),
    "metadata of 90 MB": (
        "safetensors",
        lambda: header(b'"__metadata__":{"a":"', *repeated(90, b"x"), b'"}'),
    ),
    # index
    "an index of as many as allowed": ("index", lambda: index(limits.TENSORS)),
    "an index of a million": (
        "index",
        lambda: [b'{"weight_map":{', numbered(lambda n: b'"%d":"m-1"' % n), b'},"metadata":{}}'],
    ),
    "an index of brackets": ("index", lambda: [b'{"metadata":', *repeated(60, b"[")]),
    "an index of one text": (
        "index",
        lambda: [b'{"weight_map":{"a":"', *repeated(60, b"x"), b'"}}'],
    ),
    "an index of other things": (
        "index",
        lambda: [b'{"x":{', *repeated(60, b'"a":1,'), b'"a":1}}'],
    ),
    # config.json
    "a config of lists": ("config", lambda: b'{"a":[' + b"[]," * 32_000 + b"[]]}"),
    "a config of keys": (
        "config",
        lambda: b"{" + b",".join(b'"%010x":1' % n for n in range(limits.CONFIG_VALUES)) + b"}",
    ),
    "a config of numbers": ("config", lambda: b'{"a":[' + b"1.5e9," * 262_000 + b"1]}"),
    "a config of one text": ("config", lambda: b'{"a":"' + b"\\u4e2d" * 690_000 + b'"}'),
    "a config of brackets": ("config", lambda: b"[" * 30_000),
    "a config of digits": ("config", lambda: b'{"a":' + b"9" * 4 * MB + b"}"),
    # from the file to the report
    "names without a number in them": ("whole", lambda: model_file(name_without_digits)),
    "names that look like every role": ("whole", lambda: model_file(name_of_many_roles)),
    "a model of 512 layers": ("whole", lambda: gguf(model_keys(layers=512))),
    "a list instead of a number for every layer": (
        "whole",
        lambda: deep_config(head_dim=[16] * 200_000),
    ),
    "settings for a hundred thousand layers": (
        "whole",
        lambda: deep_config(per_layer_config={str(10**6 + n): 1 for n in range(100_000)}),
    ),
    "settings for a layer of 5,000 digits": (
        "whole",
        lambda: deep_config(per_layer_config={"9" * 5_000: {"head_dim": 8}}),
    ),
    "two hundred thousand layers without experts": (
        "whole",
        lambda: deep_config(
            model_type="qwen3_moe",
            num_experts=4,
            num_experts_per_tok=1,
            moe_intermediate_size=8,
            mlp_only_layers=[5_000] * 200_000,
        ),
    ),
    "a width of 4,000 digits": ("whole", lambda: deep_config(head_dim=int("9" * 4_000))),
    "a negative width of 4,000 digits": ("whole", lambda: deep_config(head_dim=-int("9" * 4_000))),
}
# Bombs that are read; all others are refused.
ACCEPTED = {
    "names without a number in them",
    "names that look like every role",
    "a model of 512 layers",
    "a list instead of a number for every layer",
    "settings for a hundred thousand layers",
    "settings for a layer of 5,000 digits",
    "two hundred thousand layers without experts",
    "as many strings as allowed",
    "10,000 keys of 1 KiB",
    "1,500 texts of 64 KiB",
    "10,000 arrays of 1,024 numbers",
    "10,000 arrays of 64 strings",
    "strings that jump",
    "90 MB of numbers",
    "tensors with the longest names",
    "90 MB of blanks",
    "metadata of one wide text",
    "metadata of escapes",
    "an index of as many as allowed",
    "a config of lists",
    "a config of keys",
    "a config of numbers",
    "a config of one text",
}


class Victim:
    """Sends files to victim.py and reads what they cost."""

    def __init__(self, process: subprocess.Popen[str], stderr_path: Path) -> None:
        self._process, self._stderr_path = process, stderr_path

    def attack(self, kind: str, path: Path) -> dict[str, Any]:
        request, responses = self._process.stdin, self._process.stdout
        assert request is not None
        assert responses is not None
        request.write(json.dumps([kind, str(path), MEMORY_BYTES, CPU_S]) + "\n")
        request.flush()
        assert select.select([responses], [], [], 60)[0], "no answer within a minute"
        line = responses.readline()
        assert line, self._stderr_path.read_text()[-2_000:]
        result: dict[str, Any] = json.loads(line)
        assert "died" not in result, (result, self._stderr_path.read_text()[-2_000:])
        return result


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    stderr_path = tmp_path_factory.mktemp("victim") / "stderr"
    command = [sys.executable, str(Path(__file__).with_name("victim.py"))]
    with (
        stderr_path.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        yield Victim(process, stderr_path)
        process.kill()  # leaving the block would wait for it


@pytest.mark.parametrize("name", sampled(tuple(BOMBS), each=2))
def test_bomb_is_read_within_the_limits(name: str, victim: Victim, tmp_path: Path) -> None:
    kind, build = BOMBS[name]
    built = build()
    pieces = [built] if isinstance(built, bytes) else built
    path = tmp_path / ("config.json" if kind == "whole" and pieces[0].startswith(b"{") else "bomb")
    with path.open("wb") as file:
        file.writelines(pieces)
    del built, pieces
    result = victim.attack(kind, path)
    for _ in range(2):  # a busy machine only adds time, so the lowest of three counts
        if result["cpu_s"] >= CPU_S:
            result = victim.attack(kind, path)
    path.unlink()
    print(
        f"{name}: {result['cpu_s']:.2f} s, {result['grown_bytes'] / MB:.1f} MB, {result['message']}"
    )
    assert result["cpu_s"] < CPU_S
    assert result["grown_bytes"] < MEMORY_BYTES
    assert (result["error"] == "") == (name in ACCEPTED), result["message"]
    assert "\n" not in result["message"]
    assert len(result["message"]) < 500


def test_memory_limit_is_enforced(tmp_path: Path) -> None:
    """Allocating 90 MB under the limit fails, so a reader that loads such a file would fail."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import victim\n"
        "victim.set_limit(64 * 1024**2); bytes(90_000_000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "MemoryError" in done.stderr
