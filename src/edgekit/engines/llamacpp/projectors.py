"""The config of a vision model -> the header of its projector (mmproj), as llama.cpp's converter writes it at F16.

Names, shapes and types from conversion/*.py and tools/mtmd/clip.cpp @ b21e4de. Numbers that a config leaves out, or
that the index did not store, are the family's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edgekit.formats.dtype import by_name
from edgekit.formats.types import ModelHeader, Tensor, Value
from edgekit.sources.types import Container

_F16, _F32 = by_name("F16"), by_name("F32")
MAX_LAYERS = 256  # of an encoder; the longest known one has 63
MAX_WIDTH = 2**17  # so that no size of a stranger's config overflows

_Tensors = Iterator[Tensor]
_Number = Callable[[str], int]


def projector_of(config: Mapping[str, Any], hidden: int) -> ModelHeader | None:
    """The projector of the model with this config.json and width; None if its family is not known."""
    family = config.get("model_type")
    vision = config.get("vision_config")
    if not isinstance(family, str) or family not in _FAMILIES or not isinstance(vision, Mapping):
        return None
    kind, defaults, tensors = _FAMILIES[family]

    def number(key: str) -> int:
        value = vision.get(key)
        return value if type(value) is int and 0 < value <= MAX_WIDTH else defaults.get(key, 0)

    layers = number("layers") or number(_LAYERS[kind])
    width = number("embed_dim") or number("hidden_size")
    if not 0 < layers <= MAX_LAYERS or not width or not 0 < hidden <= MAX_WIDTH:
        return None
    deepstack = vision.get("deepstack_visual_indexes")
    keys: dict[str, Value] = {
        "general.architecture": "clip",
        "clip.projector_type": kind,
        "clip.has_vision_encoder": True,
        "clip.vision.embedding_length": width,
        "clip.vision.feed_forward_length": number("intermediate_size") or 4 * width,
        "clip.vision.block_count": layers,
        "clip.vision.attention.head_count": number("num_heads") or number("num_attention_heads"),
        "clip.vision.image_size": number("image_size"),
        "clip.vision.patch_size": number("patch_size"),
        "clip.vision.projection_dim": hidden,
    }
    if merge := number("spatial_merge_size"):
        keys["clip.vision.spatial_merge_size"] = merge
    if pattern := number("n_wa_pattern"):
        keys["clip.vision.n_wa_pattern"] = pattern
    made = list(tensors(number, layers, width, hidden))
    if isinstance(deepstack, list) and kind == "qwen3vl_merger":
        for index in deepstack[:MAX_LAYERS]:
            merged = 4 * width
            made += _with_bias(f"v.deepstack.{index}.norm", merged)
            made += _with_bias(f"v.deepstack.{index}.fc1", merged, merged)
            made += _with_bias(f"v.deepstack.{index}.fc2", hidden, merged)
    audio = config.get("audio_config")
    if kind == "gemma4v" and isinstance(audio, Mapping) and audio:
        made += _gemma4_audio(hidden)
        keys["clip.has_audio_encoder"] = True
    return ModelHeader(
        name=f"projector of {family}",
        container=Container.CONFIG,  # not read from a file
        keys=keys,
        tensors=tuple(made),
        tensor_count=len(made),
        tensor_bytes=sum(tensor.size_bytes for tensor in made),
    )


def _tensor(name: str, *shape: int, f32: bool = False) -> Tensor:
    """A tensor of the file: vectors, and those that llama.cpp wants so, at F32."""
    dtype = _F32 if f32 or len(shape) < 2 else _F16
    size = math.prod(shape) * (4 if dtype is _F32 else 2)
    return Tensor(name=name, type=dtype, shape=shape, size_bytes=size, offset=0)


def _with_bias(name: str, *shape: int) -> _Tensors:
    yield _tensor(f"{name}.weight", *shape)
    yield _tensor(f"{name}.bias", shape[0])


def _block(prefix: str, width: int, forward: int, *, gate: bool, bias: bool) -> _Tensors:
    """Attention and feed-forward matrices of a layer."""
    for name, shape in (
        *((f"attn_{part}", (width, width)) for part in ("q", "k", "v", "out")),
        *((("ffn_gate", (forward, width)),) if gate else ()),
        ("ffn_up", (forward, width)),
        ("ffn_down", (width, forward)),
    ):
        yield _tensor(f"{prefix}.{name}.weight", *shape)
        if bias:
            yield _tensor(f"{prefix}.{name}.bias", shape[0])


def _gemma3(number: _Number, layers: int, width: int, hidden: int) -> _Tensors:
    patch, side = number("patch_size"), number("image_size") // number("patch_size")
    yield _tensor("v.patch_embd.weight", width, 3, patch, patch, f32=True)
    yield _tensor("v.patch_embd.bias", width)
    yield _tensor("v.position_embd.weight", side * side, width, f32=True)
    for index in range(layers):
        prefix = f"v.blk.{index}"
        yield from _with_bias(f"{prefix}.ln1", width)
        yield from _with_bias(f"{prefix}.ln2", width)
        yield from _block(prefix, width, number("intermediate_size"), gate=False, bias=True)
    yield from _with_bias("v.post_ln", width)
    yield _tensor("mm.input_projection.weight", width, hidden)
    yield _tensor("mm.soft_emb_norm.weight", width)


def _gemma4(number: _Number, layers: int, width: int, hidden: int) -> _Tensors:
    patch = number("patch_size")
    yield _tensor("v.patch_embd.weight", width, 3, patch, patch)
    yield _tensor("v.position_embd.weight", 2, number("position_embedding_size"), width, f32=True)
    yield _tensor("v.std_bias", width)
    yield _tensor("v.std_scale", width)
    for index in range(layers):
        prefix = f"v.blk.{index}"
        for norm in ("ln1", "ln2", "attn_post_norm", "ffn_post_norm"):
            yield _tensor(f"{prefix}.{norm}.weight", width)
        for norm in ("attn_q_norm", "attn_k_norm"):
            yield _tensor(f"{prefix}.{norm}.weight", width // number("num_attention_heads"))
        yield from _block(prefix, width, number("intermediate_size"), gate=True, bias=False)
    yield _tensor("mm.input_projection.weight", hidden, width)


def _gemma4_audio(hidden: int) -> _Tensors:
    """The audio encoder of E2B and E4B, which is in the same file: twelve conformer layers."""
    width, out = 1024, 1536
    yield _tensor("a.conv1d.0.weight", 128, 1, 3, 3, f32=True)
    yield _tensor("a.conv1d.0.norm.weight", 128)
    yield _tensor("a.conv1d.1.weight", 32, 128, 3, 3, f32=True)
    yield _tensor("a.conv1d.1.norm.weight", 32)
    yield _tensor("a.input_projection.weight", width, 1024)
    for index in range(12):
        prefix = f"a.blk.{index}"
        for half in ("", "_1"):
            yield _tensor(f"{prefix}.ffn_norm{half}.weight", width)
            yield _tensor(f"{prefix}.ffn_up{half}.weight", 4 * width, width)
            yield _tensor(f"{prefix}.ffn_down{half}.weight", width, 4 * width)
            yield _tensor(f"{prefix}.ffn_post_norm{half}.weight", width)
        for part in ("q", "k", "v", "out", "k_rel"):
            yield _tensor(f"{prefix}.attn_{part}.weight", width, width)
        for norm in ("attn_pre_norm", "attn_post_norm", "norm_conv", "conv_norm", "ln2"):
            yield _tensor(f"{prefix}.{norm}.weight", width)
        yield _tensor(f"{prefix}.per_dim_scale.weight", width // 8)
        yield _tensor(f"{prefix}.conv_pw1.weight", 2 * width, width)
        yield _tensor(f"{prefix}.conv_dw.weight", width, 5, f32=True)
        yield _tensor(f"{prefix}.conv_pw2.weight", width, width)
    yield from _with_bias("a.pre_encode.out", out, width)
    yield _tensor("mm.a.input_projection.weight", hidden, out)


def _qwen2(number: _Number, layers: int, width: int, hidden: int) -> _Tensors:
    yield from _qwen_patches(number, width)
    for index in range(layers):
        prefix = f"v.blk.{index}"
        yield from _with_bias(f"{prefix}.ln1", width)
        yield from _with_bias(f"{prefix}.ln2", width)
        yield from _block(prefix, width, 4 * width, gate=False, bias=True)
    yield from _with_bias("v.post_ln", width)
    yield from _qwen_merger(width, hidden)


def _qwen25(number: _Number, layers: int, width: int, hidden: int) -> _Tensors:
    yield from _qwen_patches(number, width)
    for index in range(layers):
        prefix = f"v.blk.{index}"
        yield _tensor(f"{prefix}.ln1.weight", width)
        yield _tensor(f"{prefix}.ln2.weight", width)
        yield from _block(prefix, width, number("intermediate_size"), gate=True, bias=True)
    yield _tensor("v.post_ln.weight", width)
    yield from _qwen_merger(width, hidden)


def _qwen3(number: _Number, layers: int, width: int, hidden: int) -> _Tensors:
    yield from _qwen_patches(number, width)
    yield _tensor("v.patch_embd.bias", width)
    yield _tensor("v.position_embd.weight", number("num_position_embeddings"), width, f32=True)
    forward = number("intermediate_size")
    for index in range(layers):
        prefix = f"v.blk.{index}"
        yield from _with_bias(f"{prefix}.ln1", width)
        yield from _with_bias(f"{prefix}.ln2", width)
        yield from _with_bias(f"{prefix}.attn_qkv", 3 * width, width)
        yield from _with_bias(f"{prefix}.attn_out", width, width)
        yield from _with_bias(f"{prefix}.ffn_up", forward, width)
        yield from _with_bias(f"{prefix}.ffn_down", width, forward)
    yield from _with_bias("v.post_ln", width)
    yield from _qwen_merger(width, hidden)


def _qwen_patches(number: _Number, width: int) -> _Tensors:
    """One patch embedding for each of two images in time."""
    patch = number("patch_size")
    yield _tensor("v.patch_embd.weight", width, 3, patch, patch)
    yield _tensor("v.patch_embd.weight.1", width, 3, patch, patch)


def _qwen_merger(width: int, hidden: int) -> _Tensors:
    """Squares of four patches become one token."""
    yield from _with_bias("mm.0", 4 * width, 4 * width)
    yield from _with_bias("mm.2", hidden, 4 * width)


def _pixtral(number: _Number, layers: int, width: int, hidden: int) -> _Tensors:
    patch = number("patch_size")
    merge = number("spatial_merge_size")
    yield _tensor("v.patch_embd.weight", width, 3, patch, patch)
    yield _tensor("v.pre_ln.weight", width)
    for index in range(layers):
        prefix = f"v.blk.{index}"
        yield _tensor(f"{prefix}.ln1.weight", width)
        yield _tensor(f"{prefix}.ln2.weight", width)
        yield from _block(prefix, width, number("intermediate_size"), gate=True, bias=False)
    yield _tensor("mm.1.weight", hidden, width)
    yield _tensor("mm.2.weight", hidden, hidden)
    if merge:
        yield _tensor("mm.input_norm.weight", width)
        yield _tensor("mm.patch_merger.weight", width, merge * merge * width)
    yield _tensor("v.token_embd.img_break", hidden)


_SIGLIP = {
    "num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
    "image_size": 896, "patch_size": 14,
}  # fmt: skip
_GEMMA4 = {
    "num_attention_heads": 16,
    "patch_size": 16,
    "position_embedding_size": 10240,
    "image_size": 224,
}
_QWEN2 = {
    "depth": 32, "embed_dim": 1280, "num_heads": 16, "patch_size": 14, "image_size": 560, "spatial_merge_size": 2,
}  # fmt: skip
_QWEN25 = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3456, "num_heads": 16, "patch_size": 14, "image_size": 560,
    "spatial_merge_size": 2, "n_wa_pattern": 8,
}  # fmt: skip
_QWEN3 = {
    "num_heads": 16, "patch_size": 16, "image_size": 768, "spatial_merge_size": 2, "num_position_embeddings": 2304,
}  # fmt: skip
_PIXTRAL = {
    "num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
    "image_size": 1540, "patch_size": 14, "spatial_merge_size": 2,
}  # fmt: skip
_LAYERS = {
    "gemma3": "num_hidden_layers",
    "gemma4v": "num_hidden_layers",
    "pixtral": "num_hidden_layers",
    "qwen2vl_merger": "depth",
    "qwen2.5vl_merger": "depth",
    "qwen3vl_merger": "depth",
}

_Family = tuple[str, Mapping[str, int], Callable[[_Number, int, int, int], _Tensors]]
# model_type -> clip.projector_type, numbers that may be missing, tensors
_FAMILIES: Mapping[str, _Family] = {
    "gemma3": ("gemma3", _SIGLIP, _gemma3),
    "gemma4": ("gemma4v", _GEMMA4, _gemma4),
    "mistral3": ("pixtral", _PIXTRAL, _pixtral),
    "qwen2_vl": ("qwen2vl_merger", _QWEN2, _qwen2),
    "qwen2_5_vl": ("qwen2.5vl_merger", _QWEN25, _qwen25),
    **dict.fromkeys(
        ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), ("qwen3vl_merger", _QWEN3, _qwen3)
    ),
}
