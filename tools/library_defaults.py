"""transformers' config classes -> the rows of geometry/library_defaults.py.

Usage: python tools/library_defaults.py (where transformers is installed), and put what it prints between the marks.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from edgekit.geometry.architectures import BY_CONFIG
from edgekit.geometry.keys import BY_WORD

# Words whose default says nothing, or is worked out from others when the class is made.
_LEFT_OUT = frozenset(
    "tied causal bidirectional pooling loops mtp_layers window_from rope_layer_step wkv_head_size kda_head_dim "
    "rope_original expand".split()
)
_FIRST = ("layers", "hidden", "heads", "kv_heads", "feed_forward", "vocabulary", "context")


def main() -> None:
    from transformers import CONFIG_MAPPING  # noqa: PLC0415: only where this tool runs

    rows = {name: _row(_fields(CONFIG_MAPPING[name])) for name in BY_CONFIG if name in CONFIG_MAPPING}
    for name in sorted(name for name, row in rows.items() if row):
        print(f'    "{name}": _of({_arguments(rows[name])}),')


def _fields(made: Any) -> dict[str, Any]:
    """A class's own defaults, under every name it goes by; those of its language model where it has several."""
    found = {f.name: f.default for f in dataclasses.fields(made)}
    text = getattr(made, "sub_configs", {}).get("text_config")
    if text is not None and dataclasses.is_dataclass(text) and "num_hidden_layers" not in found:
        return _fields(text)
    return found | {a: found[b] for a, b in made.attribute_map.items() if b in found}


def _row(fields: Mapping[str, Any]) -> dict[str, int]:
    found = {word: _first(fields, key.config) for word, key in BY_WORD.items() if word not in _LEFT_OUT}
    told = {word: value for word, value in found.items() if value}
    return told if told.get("moe_step") != 1 else {w: v for w, v in told.items() if w != "moe_step"}


def _first(fields: Mapping[str, Any], spellings: tuple[str, ...]) -> int | None:
    values = (fields.get(spelling) for spelling in spellings)
    return next((value for value in values if isinstance(value, int) and value is not True), None)


def _arguments(row: Mapping[str, int]) -> str:
    leading = [str(row.get(word)) for word in _FIRST]
    further = [f"{word}={value}" for word, value in row.items() if word not in _FIRST]
    return ", ".join((*leading, *further))


if __name__ == "__main__":
    sys.exit(main())
