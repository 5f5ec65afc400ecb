"""A tiny image projector (mmproj) that llama.cpp loads, of Gemma 3's kind, and tiny images."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import gguf
import numpy as np

from edgekit.engines.llamacpp.projectors import projector_of

_CONFIG = {
    "model_type": "gemma3",
    "vision_config": {
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "image_size": 112,  # 8 x 8 patches, of which 4 x 4 become a token
        "patch_size": 14,
    },
}
IMAGE_TOKENS = 4


def write_projector(path: Path, hidden: int) -> Path:
    """A projector with small random weights, for a model of this width."""
    header = projector_of(_CONFIG, hidden)
    assert header is not None
    writer = gguf.GGUFWriter(path, "clip")
    random = np.random.default_rng(0)
    for name, value in header.keys.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif name != "general.architecture":
            writer.add_string(name, str(value))
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_bool("clip.use_gelu", True)
    for tensor in header.tensors or ():
        kind = np.float32 if tensor.size_bytes == 4 * int(np.prod(tensor.shape)) else np.float16
        writer.add_tensor(tensor.name, random.normal(0, 0.1, tensor.shape).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def png(width: int = 8, height: int = 8, grey: int = 128) -> bytes:
    """A PNG of one colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    rows = (b"\0" + bytes([grey]) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
