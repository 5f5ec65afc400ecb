"""Rope scaling and the stated window -> the context a model may be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.model.hyper import Hyper
from edgekit.model.types import Rope

# Types whose stated window already is the long one, or that stretch nothing.
_UNSCALED = frozenset(
    {"llama3", "su", "longrope", "mrope", "default", "none", "proportional", "gptj", "xdrope"}
)


def read_rope(hyper: Hyper) -> Rope | None:
    if hyper.gguf:
        kind, factor = hyper.text("rope_type"), hyper.ratio("rope_factor")
        original = hyper.number("rope_original")
        # llama.cpp reads "linear" where no type is written, and no factor means none.
        if kind in {None, "none"} and factor in {None, 0.0, 1.0} and original is None:
            return None
        return Rope(type=kind or "linear", factor=factor, original_context=original)
    scaling = hyper.raw("rope_scaling")
    if not isinstance(scaling, Mapping):
        return None
    full = scaling.get("full_attention")  # one entry for each layer type
    return _from_config(full if isinstance(full, Mapping) else scaling, hyper)


def _from_config(scaling: Mapping[str, Any], hyper: Hyper) -> Rope | None:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if not isinstance(kind, str) or kind == "default":
        return None
    original = scaling.get("original_max_position_embeddings")
    if not _whole(original):
        original = hyper.number("rope_original")
    factor = scaling.get("factor")
    known = None if factor is None else hyper.real("the rope scaling's factor", factor)
    return Rope(type=kind, factor=known, original_context=original)


def native_context(trained: int | None, rope: Rope | None, *, scaled: bool) -> int | None:
    """The window after scaling; `scaled`: the stated one counts it already."""
    if trained is None or scaled or rope is None or rope.type in _UNSCALED:
        return trained
    factor = rope.factor
    if factor is None or not 1 <= factor <= 1e6:
        return trained
    if rope.type in {"yarn", "deepseek_yarn"} and rope.original_context:
        return max(trained, int(rope.original_context * factor))
    return int(trained * factor)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
