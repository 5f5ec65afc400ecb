"""transformers' config classes -> the rows of model/library_defaults.py.

Usage: python tools/library_defaults.py (where transformers is installed), and put what it prints between the marks.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from textwrap import fill
from typing import Any

from edgekit.model.architectures import BY_CONFIG
from edgekit.model.attention import encoder
from edgekit.model.hyperparameters import SPELLINGS

# Words whose default says nothing, or is worked out from others when the class is made.
_LEFT_OUT = frozenset(
    {
        "bidirectional",
        "causal",
        "expand",
        "loops",
        "mtp_layers",
        "pooling",
        "rope_layer_step",
        "rope_original",
        "tied",
        "window_from",
        "wkv_head_size",
    }
)
_NOT_TEXT = frozenset({"pixtral"})  # there the name of a picture encoder
_WIDTH = 120
_FIRST = ("layers", "hidden", "heads", "kv_heads", "feed_forward", "vocabulary", "context")


def main() -> None:
    made: Mapping[str, Any] = import_module("transformers").CONFIG_MAPPING
    names: dict[str, list[str]] = defaultdict(list)
    for name in sorted(BY_CONFIG.keys() & set(made) - _NOT_TEXT):
        if BY_CONFIG[name].attend is not encoder:
            row = _row(_fields(made[name]))
            names[_arguments(_dense_lead(made[name]) | row)].append(name)
    for arguments, same in names.items():
        print(_wrapped(f'_row("{" ".join(same)}", {arguments}),'))


def _wrapped(row: str) -> str:
    return fill(row, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 9)


def _fields(made: Any) -> dict[str, Any]:
    """A class's own defaults, under every name it goes by; those of its language model where it has several."""
    found = {f.name: f.default for f in dataclasses.fields(made)}
    text = getattr(made, "sub_configs", {}).get("text_config")
    if text is not None and dataclasses.is_dataclass(text) and "num_hidden_layers" not in found:
        return _fields(text)
    return found | {a: found[b] for a, b in made.attribute_map.items() if b in found}


def _dense_lead(made: Any) -> dict[str, int]:
    """How many layers come before the first with experts, where the class lists them by itself."""
    try:
        listed = made().get_text_config().mlp_layer_types
    except (AttributeError, ValueError):
        return {}
    lead = listed.index("sparse") if listed and "sparse" in listed else 0
    return {"leading_dense": lead} if lead else {}


def _row(fields: Mapping[str, Any]) -> dict[str, int]:
    found = {w: _first(fields, key.config) for w, key in SPELLINGS.items() if w not in _LEFT_OUT}
    told = {word: value for word, value in found.items() if value}
    return told if told.get("moe_step") != 1 else {w: v for w, v in told.items() if w != "moe_step"}


def _first(fields: Mapping[str, Any], spellings: tuple[str, ...]) -> int | None:
    values = (fields.get(spelling) for spelling in spellings)
    return next((value for value in values if isinstance(value, int)), None)


def _arguments(row: Mapping[str, int]) -> str:
    leading = [str(row.get(word)) for word in _FIRST]
    further = [f"{word}={value}" for word, value in row.items() if word not in _FIRST]
    return ", ".join((*leading, *further))


if __name__ == "__main__":
    main()
