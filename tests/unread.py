"""Recorded models without their tensor directory: from the keys of the GGUF, or from config.json."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from tests.recorded import DATA, config_header, gguf_files, header_bytes, models, rows

from edgekit.formats import read_header
from edgekit.formats.types import Depth
from edgekit.model import read_geometry
from edgekit.model.types import Model

SAME_CONFIG = {"qwen3.5-9b": "qwen3.5-9b-text", "qwen3.5-27b": "qwen3.5-27b-text"}
# Fields of these configs that the recorded headers were made without: expert groups, and the prediction block (which
# -ngl counts).
NOT_IN_HEADER: dict[str, dict[str, Any]] = {
    "deepseek-v3": {"n_group": None, "topk_group": None},
    "qwen3.5-9b": {"mtp_num_hidden_layers": 0},
    "qwen3.5-27b": {"mtp_num_hidden_layers": 0},
}
# The pooling of an encoder is not in config.json; the legacy header is that of an old converter.
WITHOUT_CONFIG = {
    "all-minilm-l6-v2",
    "nomic-embed-code",
    "nomic-embed-text-v1.5",
    "deepseek-v2-lite-legacy",
}


@cache
def configs() -> dict[str, dict[str, Any]]:
    result = {
        row["model"]: row["config"] for file in ("mlx", "vllm") for row in rows(f"{file}.jsonl.gz")
    }
    result |= {model: result[other] for model, other in SAME_CONFIG.items()}
    result |= json.loads((DATA / "configs.json").read_text(encoding="utf-8"))
    for model, fields in NOT_IN_HEADER.items():
        result[model] = {**result[model], **fields}
    return result


@lru_cache(maxsize=1)
def from_keys(model: str, quant: str) -> Model:
    recorded = next(item for item in models() if (item["model"], item["quant"]) == (model, quant))
    file = recorded["header_without_vocabulary"]
    files = gguf_files(file, header_bytes(file), recorded["data_section_bytes"])
    header = read_header(files, depth=Depth.ARCHITECTURE)
    header = replace(header, tensors=None, tensor_bytes=None)
    return Model(header=header, geometry=read_geometry(header))


@lru_cache(maxsize=1)
def from_config(model: str) -> Model:
    header = config_header(configs()[model])
    return Model(header=header, geometry=read_geometry(header))
