"""Files built to cost: each is read under a limit of 64 MB, and takes less than a second of CPU."""

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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit is set as Linux does it")

MEMORY_BYTES = 64 * 1024**2
CPU_S = 1.0  # on a machine, and at a moment, where victim.pace_s() is victim.PACE_S or less
MB = 1_000_000


@cache
def lots_of_tensors() -> list[bytes]:
    """As many as allowed, with names as long as allowed."""
    count = limits.TENSORS_PER_FILE
    return [entry(f"{n:0{limits.NAME_BYTES}}", [1, 1, 1, 1], UINT8, 32 * n) for n in range(count)]


def strings(count: int) -> bytes:
    return (
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, STRING, count) + bytes(8 * count)
    )


def same_arrays(element: int, values: list[Any]) -> list[bytes]:
    """As many keys as allowed, all of one array."""
    array = key("", ARRAY, (element, values)).removeprefix(text(""))
    return [text(f"{n}") + array for n in range(limits.KEYS)]


def zero_tensor(n: int) -> bytes:
    return b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n


def named_tensor(n: int) -> bytes:
    return b'"%0256x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n


def header(*content: bytes) -> list[bytes]:
    return unended(b"{", *content, b"}")


def one(*entry_bytes: bytes) -> list[bytes]:
    return header(b'"a":', *entry_bytes)


def unended(*content: bytes) -> list[bytes]:
    """A safetensors header of these pieces."""
    return [struct.pack("<Q", sum(map(len, content))), *content]


def megabytes(count: int, piece: bytes) -> list[bytes]:
    """The same piece again and again. It is written so often, and held once: ninety are in no time in a file."""
    return [piece * (MB // len(piece))] * count


def million(piece: Callable[[int], bytes], count: int = MB) -> bytes:
    """So many pieces with numbers of their own; all but the last four digits are put in for ten thousand at once."""
    some = b",".join(map(piece, range(10_000, 20_000)))
    assert some.count(b'"1') == 10_000
    return b",".join(some.replace(b'"1', b'"%d' % n) for n in range(100, 100 + count // 10_000))


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


def deep(**more: Any) -> bytes:
    """A config.json with as many layers as allowed."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 512,
        "hidden_size": 64,
        "num_attention_heads": 4,
    }
    return json.dumps({**config, "intermediate_size": 8, "vocab_size": 9, **more}).encode()


def whole(name: Callable[[int], str]) -> bytes:
    """A model with as many tensors as allowed, whose names are as long as allowed."""
    count = limits.TENSORS_PER_FILE
    tensors = [entry(name(n), [1, 1, 1, 1], 0, 32 * n) for n in range(count)]
    return gguf(model_keys(), tensors, data_bytes=32 * count)


def lettered(n: int) -> str:
    digits = f"{n:x}".translate(str.maketrans("0123456789", "ghijklmnop"))
    return digits.rjust(limits.NAME_BYTES, "x")


def alluring(n: int) -> str:
    return (lettered(n)[-8:] + ".blk.layers.h.experts.norm.attn.ffn." * 7)[: limits.NAME_BYTES]


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
        lambda: header(million(zero_tensor, 1_500_000)),
    ),
    "90 MB of blanks": ("safetensors", lambda: header(*megabytes(90, b" "))),
    "90 MB of brackets": ("safetensors", lambda: one(*megabytes(90, b"["))),
    "90 MB of braces": ("safetensors", lambda: one(*megabytes(90, b'{"a":'))),
    "90 MB in a name": ("safetensors", lambda: header(b'"', *megabytes(90, b"n"), b'":1')),
    "90 MB in a text": ("safetensors", lambda: one(b'"', *megabytes(90, b"n"), b'"')),
    "90 MB that never end": ("safetensors", lambda: unended(b'{"a":"', *megabytes(90, b"n"))),
    "90 MB of zeros": ("safetensors", lambda: unended(b"{", *megabytes(90, b"\0"))),
    "a shape of 45 million": (
        "safetensors",
        lambda: one(b'{"shape":[', *megabytes(90, b"1,"), b"1]}"),
    ),
    "a shape just within an entry": (
        "safetensors",
        lambda: one(b'{"dtype":"U8","shape":[' + b"1," * 32_000 + b'1],"data_offsets":[0,1]}'),
    ),
    "numbers of 4,000 digits": (
        "safetensors",
        lambda: one(b'{"shape":[' + (b"9" * 4_000 + b",") * 15 + b"1]}"),
    ),
    "a number of 90 MB": ("safetensors", lambda: one(*megabytes(90, b"9"))),
    "metadata of a million pairs": (
        "safetensors",
        lambda: header(b'"__metadata__":{', million(lambda n: b'"%d":""' % n), b"}"),
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
        lambda: header(b'"__metadata__":{"a":"', *megabytes(90, b"x"), b'"}'),
    ),
    # index
    "an index of as many as allowed": ("index", lambda: index(limits.TENSORS)),
    "an index of a million": (
        "index",
        lambda: [b'{"weight_map":{', million(lambda n: b'"%d":"m-1"' % n), b'},"metadata":{}}'],
    ),
    "an index of brackets": ("index", lambda: [b'{"metadata":', *megabytes(60, b"[")]),
    "an index of one text": (
        "index",
        lambda: [b'{"weight_map":{"a":"', *megabytes(60, b"x"), b'"}}'],
    ),
    "an index of other things": (
        "index",
        lambda: [b'{"x":{', *megabytes(60, b'"a":1,'), b'"a":1}}'],
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
    # the whole way to the report
    "names without a number in them": ("whole", lambda: whole(lettered)),
    "names that look like every role": ("whole", lambda: whole(alluring)),
    "a model of 512 layers": ("whole", lambda: gguf(model_keys(layers=512))),
    "a list where a number is asked for in every layer": (
        "whole",
        lambda: deep(head_dim=[16] * 200_000),
    ),
    "settings for a hundred thousand layers": (
        "whole",
        lambda: deep(per_layer_config={str(10**6 + n): 1 for n in range(100_000)}),
    ),
    "settings for a layer of 5,000 digits": (
        "whole",
        lambda: deep(per_layer_config={"9" * 5_000: {"head_dim": 8}}),
    ),
    "two hundred thousand layers without experts": (
        "whole",
        lambda: deep(
            model_type="qwen3_moe",
            num_experts=4,
            num_experts_per_tok=1,
            moe_intermediate_size=8,
            mlp_only_layers=[5_000] * 200_000,
        ),
    ),
    "a width of 4,000 digits": ("whole", lambda: deep(head_dim=int("9" * 4_000))),
    "a negative width of 4,000 digits": ("whole", lambda: deep(head_dim=-int("9" * 4_000))),
}
# The heaviest that are still read: everything else is refused.
READ = {
    "names without a number in them",
    "names that look like every role",
    "a model of 512 layers",
    "a list where a number is asked for in every layer",
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
    """The other end of victim.py's pipes."""

    def __init__(self, process: subprocess.Popen[str], told: Path) -> None:
        self._process, self._told = process, told

    def attack(self, kind: str, path: Path) -> dict[str, Any]:
        request, answers = self._process.stdin, self._process.stdout
        assert request is not None
        assert answers is not None
        request.write(json.dumps([kind, str(path), MEMORY_BYTES, CPU_S]) + "\n")
        request.flush()
        assert select.select([answers], [], [], 60)[0], "no answer within a minute"
        line = answers.readline()
        assert line, self._told.read_text()[-2_000:]
        result: dict[str, Any] = json.loads(line)
        assert "died" not in result, (result, self._told.read_text()[-2_000:])
        return result


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    answer = tmp_path_factory.mktemp("victim") / "stderr"
    command = [sys.executable, str(Path(__file__).with_name("victim.py"))]
    with (
        answer.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        yield Victim(process, answer)
        process.kill()  # one that is still at work would be waited for


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
    for _ in range(2):  # a busy machine can only add to it: the lowest of three is nearest
        if result["cpu_s"] >= CPU_S:
            result = victim.attack(kind, path)
    path.unlink()
    print(
        f"{name}: {result['cpu_s']:.2f} s, {result['grown_bytes'] / MB:.1f} MB, {result['message']}"
    )
    assert result["cpu_s"] < CPU_S
    assert result["grown_bytes"] < MEMORY_BYTES
    assert (result["error"] == "") == (name in READ), result["message"]
    assert "\n" not in result["message"]
    assert len(result["message"]) < 500


def test_memory_limit_is_enforced(tmp_path: Path) -> None:
    """A reader that took the whole file would not survive: the measure is one that can fail."""
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
