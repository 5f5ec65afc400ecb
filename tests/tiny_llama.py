"""A complete tiny llama model as GGUF: 2 layers, 64 wide, a vocabulary of bytes, all weights zero."""

from __future__ import annotations

from pathlib import Path

from tests.header_files import (
    ARRAY,
    F32,
    FLOAT32,
    INT32,
    STRING,
    UINT32,
    entry,
    gguf,
    key,
)

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, CONTEXT = 2, 64, 128, 4, 2, 512
KV_WIDTH = HIDDEN // HEADS * KV_HEADS
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
_TYPES = [2, 3, 3, *[6] * 256, 1]  # LLAMA_TOKEN_TYPE of llama.h: unknown, control, byte, normal


def keys(*more: bytes) -> list[bytes]:
    return [
        key("general.architecture", STRING, "llama"),
        key("llama.block_count", UINT32, LAYERS),
        key("llama.context_length", UINT32, CONTEXT),
        key("llama.embedding_length", UINT32, HIDDEN),
        key("llama.feed_forward_length", UINT32, FEED_FORWARD),
        key("llama.attention.head_count", UINT32, HEADS),
        key("llama.attention.head_count_kv", UINT32, KV_HEADS),
        key("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        key("llama.rope.dimension_count", UINT32, HIDDEN // HEADS),
        key("tokenizer.ggml.model", STRING, "llama"),
        key("tokenizer.ggml.tokens", ARRAY, (STRING, TOKENS)),
        key("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.0] * len(TOKENS))),
        key("tokenizer.ggml.token_type", ARRAY, (INT32, _TYPES)),
        key("tokenizer.ggml.bos_token_id", UINT32, 1),
        key("tokenizer.ggml.eos_token_id", UINT32, 2),
        key("tokenizer.ggml.unknown_token_id", UINT32, 0),
        *more,
    ]


def shapes() -> dict[str, list[int]]:
    """Each tensor's shape, innermost dimension first."""
    result = {
        "token_embd.weight": [HIDDEN, len(TOKENS)],
        "output.weight": [HIDDEN, len(TOKENS)],
        "output_norm.weight": [HIDDEN],
    }
    for block in range(LAYERS):
        block_shapes = {
            "attn_norm": [HIDDEN],
            "attn_q": [HIDDEN, HIDDEN],
            "attn_k": [HIDDEN, KV_WIDTH],
            "attn_v": [HIDDEN, KV_WIDTH],
            "attn_output": [HIDDEN, HIDDEN],
            "ffn_norm": [HIDDEN],
            "ffn_gate": [HIDDEN, FEED_FORWARD],
            "ffn_up": [HIDDEN, FEED_FORWARD],
            "ffn_down": [FEED_FORWARD, HIDDEN],
        }
        result |= {f"blk.{block}.{name}.weight": shape for name, shape in block_shapes.items()}
    return result


def tensor_bytes(shape: list[int]) -> int:
    size = 4
    for dimension in shape:
        size *= dimension
    return size


def model_bytes(names: list[str] | None = None, *more: bytes) -> bytes:
    """A GGUF file with the tensors of these names (None: all of them), and further keys."""
    tensors, offset = [], 0
    for name, shape in shapes().items():
        if names is None or name in names:
            tensors.append(entry(name, shape, F32, offset))
            offset += tensor_bytes(shape)
    return gguf(keys(*more), tensors, data_bytes=offset)


def write_model(folder: Path) -> Path:
    path = folder / "small.gguf"
    path.write_bytes(model_bytes())
    return path
