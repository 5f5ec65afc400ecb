"""llama.cpp's own vocabularies and test vectors, which are not part of the project, and models with them.

They are in the source package of llama-cpp-python. Tests look in the folder that
EDGEKIT_VOCABULARIES names, then in the user's cache, and then download the package once from the
index that pip is configured for, without running any of its code. If that fails, the tests are skipped.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import pytest

from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.kinds import pre_tokenizers
from edgekit.engines.native.tokenizer.text import TextTokenizer
from edgekit.engines.native.tokenizer.vocabulary import Vocabulary, read_vocabulary
from edgekit.sources.cache import cache_folder

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
_MEMBER = re.compile(r".*/vendor/llama\.cpp/models/(ggml-vocab-[\w.-]+)")
_LINK = re.compile(
    rf"(\S+/{PACKAGE.replace('-', '[-_]')}-{re.escape(VERSION)}\.tar\.gz)(?:#sha256=(\w+))?"
)
_U64 = struct.Struct("<Q")
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MARK = "__ggml_vocab_test__"
# Read when tests are collected, because each test has its own HOME and cache.
_ENVIRONMENT = dict(os.environ)
_HEADER_CACHE = cache_folder() or Path(tempfile.gettempdir()) / "edgekit" / "headers"


class UnavailableError(Exception):
    """The vocabularies are not on this machine and could not be downloaded."""


def vocabulary_names() -> list[str]:
    return sorted(path.stem.removeprefix("ggml-vocab-") for path in _folder().glob("*.gguf"))


def find_vocabulary(name: str) -> Path:
    """The path of a vocabulary. Skips the calling test, with the reason, if it is not available."""
    try:
        path = _folder() / f"ggml-vocab-{name}.gguf"
    except UnavailableError as error:
        pytest.skip(str(error))
    if not path.is_file():
        pytest.skip(f"no vocabulary {name} in {path.parent}")
    return path


def vectors(name: str) -> list[tuple[str, list[int]]]:
    """llama.cpp's own pairs of a text and its tokens, without special tokens."""
    path = find_vocabulary(name)
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(f"\n{_MARK}\n")
    token_lines = path.with_suffix(".gguf.out").read_text().split("\n")
    return [
        (text, [int(token) for token in line.split()])
        for text, line in zip(texts, token_lines, strict=False)
    ]


@cache
def recorded_tokens() -> dict[str, Any]:
    """Tokens by llama.cpp, and by BERT's own tokenizer, as recorded by tools/tokenizer_vectors.py."""
    packed = (Path(__file__).parent / "data" / "tokenizers.json.gz").read_bytes()
    recorded: dict[str, Any] = json.loads(gzip.decompress(packed))
    return recorded


def _folder() -> Path:
    result = _find_folder()
    if isinstance(result, UnavailableError):
        raise result
    return result


@cache
def _find_folder() -> Path | UnavailableError:
    if configured := os.environ.get("EDGEKIT_VOCABULARIES"):
        return Path(configured)
    folder = _HEADER_CACHE.parent / f"vocabularies-{VERSION}"
    try:
        if not folder.is_dir():
            _download(folder)
    except (UnavailableError, OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        return UnavailableError(
            f"llama.cpp's vocabularies ({PACKAGE} {VERSION}) are not available: {error}. A folder with"
            " them can be named by EDGEKIT_VOCABULARIES"
        )
    return folder


def _download(folder: Path) -> None:
    """Fills the folder completely or not at all; if two processes do so at once, the first one wins."""
    link, digest = _find_link()
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".vocabularies-", dir=folder.parent))
    try:
        with urllib.request.urlopen(link, timeout=60, context=_trust(link)) as response:
            _unpack(response, digest, part)
        with contextlib.suppress(OSError):
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _find_link() -> tuple[str, str | None]:
    """The link and its sha256 from `pip index versions`, because `pip download` would build the package first."""
    pip = ("pip", "index", "versions", PACKAGE, "--no-binary", ":all:", "-vv")
    if not (result := _LINK.search(_output_of(*pip))):
        raise UnavailableError(f"pip finds no source package of {PACKAGE} {VERSION}")
    return urllib.parse.urldefrag(result[1]).url, result[2]


def _trust(link: str) -> ssl.SSLContext | None:
    if not link.startswith("https:"):
        return None
    certificate = (
        _ENVIRONMENT.get("PIP_CERT") or _output_of("pip", "config", "get", "global.cert").strip()
    )
    return ssl.create_default_context(cafile=certificate or None)


def _output_of(*module: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *module],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=60,
        env=_ENVIRONMENT,
    ).stdout


class _DigestedReader(io.RawIOBase):
    """Reads from a source and computes its sha256."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = cast("bytes", self._source.read(size))
        self.digest.update(chunk)
        return chunk


def _unpack(response: Any, digest: str | None, folder: Path) -> None:
    source = _DigestedReader(response)
    with tarfile.open(fileobj=source, mode="r|gz") as package:
        for member in package:
            if (match := _MEMBER.fullmatch(member.name)) and (
                content := package.extractfile(member)
            ):
                with (folder / match[1]).open("wb") as out:
                    shutil.copyfileobj(content, out)
    while source.read(1 << 20):
        pass
    if digest is not None and source.digest.hexdigest() != digest:
        raise UnavailableError("the sha256 of the package is not that of the index")
    if not list(folder.glob("*.gguf")):
        raise UnavailableError("the package has no vocabularies")


# --- models with a vocabulary, small enough for llama.cpp to load in a moment


def write_model_around(vocabulary: Path, path: Path) -> None:
    """A model with this vocabulary, one tiny layer, and zeros as weights."""
    keys = read_keys(vocabulary)
    write_model(path, {name: value for name, value in keys.items() if _is_wanted(name)})


def _is_wanted(name: str) -> bool:
    return name.startswith("tokenizer.ggml.") or name == "general.name"


def read_keys(path: Path) -> dict[str, Any]:
    """All keys of a GGUF file, arrays too. gguf-py's reader takes 13 s for 150,000 tokens."""
    raw = path.read_bytes()
    keys: dict[str, Any] = {}
    offset = 4 + 4 + 8 + 8
    for _ in range(_U64.unpack_from(raw, 16)[0]):
        name, offset = _text(raw, offset)
        (kind,) = struct.unpack_from("<I", raw, offset)
        keys[name.decode()], offset = _value(raw, offset + 4, kind)
    return keys


def _text(raw: bytes, offset: int) -> tuple[bytes, int]:
    end = offset + 8 + _U64.unpack_from(raw, offset)[0]
    return raw[offset + 8 : end], end


def _value(raw: bytes, offset: int, kind: int) -> tuple[Any, int]:
    if kind == 8:
        text, offset = _text(raw, offset)
        return text.decode(), offset
    if kind != 9:
        code = f"<{_CODES[kind]}"
        return struct.unpack_from(code, raw, offset)[0], offset + struct.calcsize(code)
    element, count = struct.unpack_from("<IQ", raw, offset)
    offset += 12
    if element != 8:
        code = f"<{count}{_CODES[element]}"
        return list(struct.unpack_from(code, raw, offset)), offset + struct.calcsize(code)
    texts = []
    for _ in range(count):
        text, offset = _text(raw, offset)
        texts.append(text.decode())
    return texts, offset


def write_model(path: Path, keys: dict[str, Any], architecture: str = "llama") -> None:
    """`keys` are tokenizer.ggml.* and general.name; their lists have strings, integers or floats."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, architecture)
    width = 32
    for name, value in {
        "context_length": 512,
        "embedding_length": width,
        "block_count": 1,
        "feed_forward_length": width,
        "attention.head_count": 1,
        "attention.head_count_kv": 1,
        "rope.dimension_count": width,
    }.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in keys.items():
        _add(writer, name, value)
    tokens = len(keys["tokenizer.ggml.tokens"])
    layer = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (tokens, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ffn_norm.weight": (width,),
        **{f"blk.0.{name}.weight": (width, width) for name in layer},
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float16 if len(shape) > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, name: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case str():
            writer.add_string(name, value)
        case _ if name.endswith("charsmap"):
            writer.add_array(name, bytes(number & 255 for number in value))
        case _:
            writer.add_array(name, list(value))


def pairs_keys(pre: str) -> dict[str, Any]:
    """Keys of a vocabulary in which any two neighbouring bytes of a word are one token.

    Two pairs that share a byte are merged in the order of a hash, so a word that begins or ends one
    letter further has other tokens. Some words are tokens that no merge leads to.
    """
    raw = pre in ("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace")
    letters = _raw_letters() if raw else _byte_letters()
    pairs = [(a, b) for a in letters for b in letters]
    pairs.sort(key=lambda pair: hashlib.md5(f"{pair[0]} {pair[1]}".encode()).digest())
    if raw:
        pairs = pairs[:40_000]
    words = ["hello", "\u0120hello", "world", "\u0120world", "1234", "\u010a\u010a\u010a"]
    if raw:
        words = ["hello", "world", "\n\n\n", "\n" * 5]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if raw else []
    tokens = [*byte_tokens, *letters, *(a + b for a, b in pairs)]
    tokens += [word for word in words if word not in set(tokens)]
    return {
        "tokenizer.ggml.model": "whitespace" if pre == "whitespace" else "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [6] * len(byte_tokens)
        + [1] * (len(tokens) - len(byte_tokens)),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairs],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }


def _byte_letters() -> list[str]:
    """GPT-2's letters for the 256 bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return [chr(byte) for byte in shown] + [chr(256 + index) for index in range(len(hidden))]


def _raw_letters() -> list[str]:
    letters = [chr(code) for code in range(0x21, 0x7F)]
    return [
        *letters,
        "\u2581",
        "\n",
        "\t",
        *"\u00e9\u00df\u4e2d\u56fd\u6f22\u5b57\u304b\u30ab\ud55c\u0430\u0431\u03b1\u0928\u0e01\u3002\uff0c\u00bd",
    ]


def write_pairs_model(path: Path, pre: str) -> None:
    write_model(path, pairs_keys(pre))


@lru_cache(maxsize=6)
def tokenizer_of(name: str) -> TextTokenizer:
    """The tokenizer of one of llama.cpp's vocabularies."""
    with WeightFile(find_vocabulary(name), Limits()) as file:
        return build_tokenizer(read_vocabulary(file, scan_header(file)), cache=_scratch())


@lru_cache(maxsize=6)
def pairs_tokenizer(pre: str) -> TextTokenizer:
    """A tokenizer with the vocabulary of `pairs_keys`, which pre-tokenizers share unless they work on raw text."""
    row = pre_tokenizers()[pre]
    vocabulary = _pairs_vocabulary(pre if row.raw else "gpt-2")
    return build_tokenizer(replace(vocabulary, pre=row), cache=_scratch())


@cache
def _pairs_vocabulary(pre: str) -> Vocabulary:
    path = _scratch() / f"{pre}.gguf"
    write_pairs_model(path, pre)
    with WeightFile(path, Limits()) as file:
        return read_vocabulary(file, scan_header(file))


@cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="edgekit-pairs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
