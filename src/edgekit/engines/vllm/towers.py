"""A config's vision and audio sections -> how large the towers beside the language model are, modelled.

A transformer block has four square matrices and two or three of the feed-forward; the way into the language model is
two matrices. Compared with vLLM's own classes for 25 models: 2 % to 9 % over, the odd one 10 % under.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgekit.model.hyperparameters import TOWER_HIDDEN, TOWER_LAYERS, TOWER_SECTIONS

UNKNOWN_TOWER_PARAMETERS = 450_000_000  # SigLIP so400m, the one that most models have
SMALL_TABLES = 1.09  # patches, positions, norms, biases
WITHIN = 0.15
_THREE_MATRICES = frozenset({"qwen2_5_vl", "gemma4", "pixtral", "mistral3"})
_HOPPED = "spatial_merge_size"  # Qwen: so many patches by so many are joined before they go in


def tower_parameters(config: Mapping[str, Any], hidden: int) -> int:
    """0 without towers."""
    return sum(_tower(config, section, hidden) for section in _sections(config))


def _sections(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name, _ in TOWER_SECTIONS:
        section = config.get(name)
        if isinstance(section, Mapping) and section:
            yield section


def _tower(config: Mapping[str, Any], section: Mapping[str, Any], hidden: int) -> int:
    layers = _number(section, TOWER_LAYERS)
    own = _number(section, ("embed_dim", *TOWER_HIDDEN))
    if not layers or not own:
        return UNKNOWN_TOWER_PARAMETERS
    width = _number(section, ("intermediate_size", "ffn_dim", "encoder_ffn_dim")) or 4 * own
    matrices = 3 if str(config.get("model_type")) in _THREE_MATRICES else 2
    blocks = layers * (4 * own * own + matrices * own * width)
    return int((blocks + _way_in(section, own, hidden)) * SMALL_TABLES)


def _way_in(section: Mapping[str, Any], own: int, hidden: int) -> int:
    merged = own * (_number(section, (_HOPPED,)) or 1) ** 2
    deep = section.get("deepstack_visual_indexes")
    ways = 1 + (len(deep) if isinstance(deep, list) else 0)
    return ways * merged * (merged + hidden)


def _number(section: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    found = (section.get(key) for key in keys)
    sizes = (x for x in found if isinstance(x, int) and not isinstance(x, bool) and 0 < x < 2**20)
    return next(sizes, None)
