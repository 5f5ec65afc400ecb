"""What type of number a model computes in: its caches and unquantised weights have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from edgekit.formats.types import ModelHeader

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float": 4, "half": 2}
_FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")


def item_bytes(header: ModelHeader) -> int:
    """As most of the tensors that are plain numbers have it, or as config.json says; 2 where nobody does."""
    if header.tensors:
        plain = Counter(t.type.name for t in header.tensors if t.type.name in _FLOATS)
        if plain:
            return _FLOATS[plain.most_common(1)[0][0]]
    return _stated(header.config) or 2


def _stated(config: Mapping[str, Any]) -> int | None:
    inner = (config.get(name) for name in _SECTIONS)
    for section in (config, *(part for part in inner if isinstance(part, Mapping))):
        for key in ("torch_dtype", "dtype"):
            value = section.get(key)
            if isinstance(value, str) and value.removeprefix("torch.") in _BYTES:
                return _BYTES[value.removeprefix("torch.")]
    return None
