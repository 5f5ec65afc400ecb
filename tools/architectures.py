"""Formats model/architectures.json: a record begins with its names, and has a line for each section.

Usage: python tools/architectures.py            formats the file
       python tools/architectures.py --check    exit code 1 if the file is not formatted
       python tools/architectures.py --library  also updates "library" from the installed transformers
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from edgekit.model.architectures import architecture_of
from edgekit.model.hyperparameters import SPELLINGS
from edgekit.model.mixers import encoder

FILE = Path(__file__).parents[1] / "src/edgekit/model/architectures.json"
WIDTH = 120
NAMES = ("gguf", "config", "like")
PARTS = (
    *NAMES, "note", "not_a_language_model", "layers", "gguf_layers", "constants", "gguf_constants", "tensors",
    "gguf_tensors", "tied_by_default", "library", "conversion", "llamacpp", "mlx", "vllm",
)  # fmt: skip

# Hyper-parameters whose default means nothing, or is computed from others.
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
_NOT_TEXT = frozenset({"pixtral"})  # in transformers a vision encoder
_FIRST = ("layers", "hidden", "heads", "kv_heads", "feed_forward", "vocabulary", "context")


def main(arguments: list[str]) -> int:
    text = FILE.read_text(encoding="utf-8")
    data = json.loads(text)
    if "--library" in arguments:
        _take_library(data["records"])
    written = laid_out(data)
    if "--check" in arguments:
        return int(written != text)
    FILE.write_text(written, encoding="utf-8")
    return 0


def laid_out(data: Mapping[str, Any]) -> str:
    sources = json.dumps(data["sources"], indent=2).replace("\n", "\n  ")
    records = ",\n".join(map(_record, data["records"]))
    return f'{{\n  "sources": {sources},\n  "records": [\n{records}\n  ]\n}}\n'


def _record(record: Mapping[str, Any]) -> str:
    first = [f'"{part}": {json.dumps(record[part])}' for part in NAMES if part in record]
    lines = [", ".join(first)] if first else []
    lines += [
        _section(part, record[part]) for part in PARTS if part in record and part not in NAMES
    ]
    return "    {" + ",\n     ".join(lines) + "}"


def _section(part: str, value: Any) -> str:
    """In one line, or with line breaks between the items of an object."""
    single_line = f'"{part}": {json.dumps(value)}'
    if len(single_line) + 7 <= WIDTH or not isinstance(value, dict):
        return single_line
    items = [f"{json.dumps(key)}: {json.dumps(item_value)}" for key, item_value in value.items()]
    lines, line = [], f'"{part}": {{'
    for item in (*(f"{item_value}," for item_value in items[:-1]), f"{items[-1]}}}"):
        if len(line) + len(item) + 7 > WIDTH and not line.endswith("{"):
            lines.append(line.rstrip())
            line = "   "
        line += item if line.endswith("{") else f" {item}"
    return "\n     ".join([*lines, line])


def _take_library(records: list[dict[str, Any]]) -> None:
    """Sets "library" to the defaults of transformers' config classes under our names; encoders have none."""
    classes: Mapping[str, Any] = import_module("transformers").CONFIG_MAPPING
    for record in records:
        for name in classes.keys() & record.get("config", ()) - _NOT_TEXT:
            row = architecture_of(name, gguf=False)
            if row is not None and row.attend is not encoder:
                record["library"] = _defaults(classes[name])
        if not record.get("library", True):
            del record["library"]


def _defaults(config_class: Any) -> dict[str, int]:
    fields = _fields(config_class)
    values = {
        word: next((value for s in key.config if isinstance(value := fields.get(s), int)), None)
        for word, key in SPELLINGS.items()
        if word not in _LEFT_OUT
    }
    result = {word: value for word, value in values.items() if value}
    if result.get("moe_step") == 1:
        del result["moe_step"]
    result = _dense_lead(config_class) | result
    return {word: result[word] for word in dict.fromkeys((*_FIRST, *result)) if word in result}


def _fields(config_class: Any) -> dict[str, Any]:
    """The defaults of a class under all names of its attributes; of its language model if it has several parts."""
    result = {f.name: f.default for f in dataclasses.fields(config_class)}
    text = getattr(config_class, "sub_configs", {}).get("text_config")
    if text is not None and dataclasses.is_dataclass(text) and "num_hidden_layers" not in result:
        return _fields(text)
    return result | {a: result[b] for a, b in config_class.attribute_map.items() if b in result}


def _dense_lead(config_class: Any) -> dict[str, int]:
    """The number of layers before the first with experts, if the class lists the types of its layers."""
    try:
        layer_types = config_class().get_text_config().mlp_layer_types
    except (AttributeError, ValueError):
        return {}
    lead = layer_types.index("sparse") if layer_types and "sparse" in layer_types else 0
    return {"leading_dense": lead} if lead else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
