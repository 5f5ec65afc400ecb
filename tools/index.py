"""Recorded headers and public configs -> src/edgekit/index/models.jsonl.

Usage: python tools/index.py [COLLECTION] [--docs FOLDER ...] [--versions FILE]

COLLECTION holds models.json with headers/, and configs/ with index.jsonl; the default is EDGEKIT_TRUTH. Folders
have pages that date families and name repositories: docs/source/en/model_doc of transformers, and one with
docs/models/supported_models.md and tests/models/registry.py of vLLM. FILE has a line "v4.47.0 2024-12-05" for every tag
of transformers: a config names the version that wrote it, and no model is older than its config. Without them
the present dates and repositories stay. Prints each model that is left out, with the reason.

Only the fields of a config that EdgeKit reads are stored. A header and a config that agree are one entry.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from edgekit.app.index import AS_STORED, facts_of
from edgekit.bill.types import Load, weakest
from edgekit.engines import engine_named, engine_names
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.conversion import source_model
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError
from edgekit.index.records import record_of
from edgekit.index.store import PATH, packaged_entries
from edgekit.index.tensor_runs import runs_of
from edgekit.index.types import Entry, ModelPurpose, Source
from edgekit.model import open_config, open_model
from edgekit.model.types import Model, ModelGeometry, attention_of
from edgekit.units import Basis

ROOT = Path(__file__).parents[1]
TRUTH = Path(os.environ.get("EDGEKIT_TRUTH", ROOT.parent / "shared" / "truth"))
SETUPS: Mapping[str, Any] = {
    "llama.cpp": LlamaCppSetup(mix="Q4_K_M"),
    "vllm": VllmSetup(),
    "mlx": MlxSetup(),
    "stream": StreamSetup(),
}

# Config of a published model -> its id. The others of the collection are fine-tunes, tests, models of unknown size,
# duplicates, configs changed by a project (executorch: other windows and model_types), and repositories of quantised
# weights that are marked only in another file, or whose original is here.
CONFIGS = {
    # the same model as a recorded header
    "CohereForAI__c4ai-command-r-v01": "command-r-35b",
    "HuggingFaceTB__SmolLM3-3B": "smollm3-3b",
    "LiquidAI__LFM2-1.2B": "lfm2-1.2b",
    "Qwen__Qwen3-0.6B": "qwen3-0.6b",
    "Qwen__Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen__Qwen3-8B": "qwen3-8b",
    "Qwen__Qwen3.5-27B": "qwen3.5-27b",
    "TinyLlama_v1.1": "tinyllama-1.1b",
    "deepseek-ai__DeepSeek-V3": "deepseek-v3",
    "deepseek-v2-lite": "deepseek-v2-lite",
    "gemma3": "gemma-3-27b",
    "gemma3_1b_it": "gemma-3-1b",
    "google__gemma-2-2b": "gemma-2-2b",
    "gpt-oss-20b": "gpt-oss-20b",
    "meta-llama__Llama-3.2-1B": "llama-3.2-1b",
    "meta-llama__Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "meta-llama__Meta-Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama__Meta-Llama-3.1-8B": "llama-3.1-8b",
    "mistralai__Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "olmo2_modular": "olmo-2-7b",
    "phi3.v2": "phi-3-mini-128k",
    "qwen2.5_0.5b": "qwen2.5-0.5b",
    "qwen2.5_1.5b": "qwen2.5-1.5b",
    "qwen2.5_7b": "qwen2.5-7b",
    # configs alone
    "Alibaba-NLP__gte-Qwen2-7B-instruct": "gte-qwen2-7b-instruct",
    "HuggingFaceTB__SmolLM-1.7B": "smollm-1.7b",
    "LFM2.5-VL-1.6B": "lfm2.5-vl-1.6b",
    "Meta-Llama-3-8B": "llama-3-8b",
    "MiniMaxAI__MiniMax-M2.5": "minimax-m2.5",
    "MiniMaxAI__MiniMax-M2.7": "minimax-m2.7",
    "MiniMaxAI__MiniMax-M3": "minimax-m3",
    "Mistral-7B-Instruct-v0.3": "mistral-7b-instruct-v0.3",
    "Qwen2-1.5B-Instruct": "qwen2-1.5b-instruct",
    "Qwen2-7B-Instruct": "qwen2-7b-instruct",
    "Qwen2.5-3B": "qwen2.5-3b",
    "Qwen2.5-VL-32B-Instruct": "qwen2.5-vl-32b-instruct",
    "Qwen2.5-VL-72B-Instruct": "qwen2.5-vl-72b-instruct",
    "Qwen3.6-27B": "qwen3.6-27b",
    "Qwen__Qwen-7B": "qwen-7b",
    "Qwen__Qwen3-1.7B": "qwen3-1.7b",
    "Qwen__Qwen3-235B-A22B-FP8": "qwen3-235b-a22b-fp8",
    "Qwen__Qwen3-32B": "qwen3-32b",
    "Qwen__Qwen3-Coder-480B-A35B-Instruct": "qwen3-coder-480b-a35b-instruct",
    "Qwen__Qwen3-VL-2B-Instruct": "qwen3-vl-2b-instruct",
    "Qwen__Qwen3-VL-30B-A3B-Instruct": "qwen3-vl-30b-a3b-instruct",
    "Qwen__Qwen3-VL-32B-Instruct": "qwen3-vl-32b-instruct",
    "Qwen__Qwen3-VL-4B-Instruct": "qwen3-vl-4b-instruct",
    "Qwen__Qwen3.5-122B-A10B": "qwen3.5-122b-a10b",
    "Qwen__Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "RedPajama-INCITE-7B-Base": "redpajama-incite-7b-base",
    "THUDM__chatglm3-6b.v2": "chatglm3-6b",
    "THUDM__glm-4-9b-chat": "glm-4-9b",  # its window is that of the base model
    "XiaomiMiMo__MiMo-V2-Flash": "mimo-v2-flash",
    "baichuan-inc__Baichuan2-7B-Chat.v2": "baichuan2-7b-chat",
    "bloom": "bloom",
    "codellama-34b-instruct-hf": "codellama-34b-instruct",
    "dbrx": "dbrx",
    "deepseek-ai__DeepSeek-R1": "deepseek-r1",
    "deepseek-ai__DeepSeek-V4-Flash": "deepseek-v4-flash",
    "deepseek-ai__DeepSeek-V4-Pro": "deepseek-v4-pro",
    "deepseek-ai__Janus-1.3B": "janus-1.3b",
    "deepseek-ai__deepseek-vl2-tiny": "deepseek-vl2-tiny",
    "falcon-180B-chat": "falcon-180b-chat",
    "gemma-4-12B-it": "gemma-4-12b-it",
    "gemma-4-31B-it": "gemma-4-31b-it",
    "gemma-4-E2B-it": "gemma-4-e2b-it",
    "glm45_rtp-llm": "glm-4.5",
    "google__gemma-4-26B-A4B": "gemma-4-26b-a4b",
    "google__gemma-7b": "gemma-7b",
    "granite-3.1-1b-a400m-instruct": "granite-3.1-1b-a400m-instruct",
    "granite-3b-code-instruct-128k": "granite-3b-code-instruct-128k",
    "gte-small": "gte-small",
    "internlm-20b": "internlm-20b",
    "internlm__internlm2-7b": "internlm2-7b",
    "intfloat__e5-mistral-7b-instruct": "e5-mistral-7b-instruct",
    "jina-embeddings-v2-base-en": "jina-embeddings-v2-base-en",
    "llama-7b-hf": "llama-7b",
    "llava-hf__llava-1.5-7b-hf": "llava-1.5-7b",
    "meta-llama__Llama-3.2-3B": "llama-3.2-3b",
    "meta-llama__Meta-Llama-3.1-405B": "llama-3.1-405b",
    "microsoft__Phi-3-small-8k-instruct": "phi-3-small-8k-instruct",
    "microsoft__Phi-3-vision-128k-instruct": "phi-3-vision-128k-instruct",
    "microsoft__Phi-3.5-MoE-instruct": "phi-3.5-moe-instruct",
    "microsoft__Phi-mini-MoE-instruct": "phi-mini-moe-instruct",
    "mistral-nemo-instruct-2407": "mistral-nemo-instruct-2407",
    "mistralai__Devstral-Small-2507": "devstral-small-2507",
    "mistralai__Mixtral-8x22B-v0.1": "mixtral-8x22b-v0.1",
    "moonshotai__Kimi-K2-Instruct": "kimi-k2-instruct",
    "moonshotai__Kimi-K3": "kimi-k3",
    "nvidia__Kimi-K2.6-NVFP4": "kimi-k2.6-nvfp4",
    "nvidia__Kimi-K2.7-Code-NVFP4": "kimi-k2.7-code-nvfp4",
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1": "llama-3.3-nemotron-super-49b-v1",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron-3-nano-30b-a3b",
    "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "nemotron-3-ultra-550b-a55b",
    "openai__gpt-oss-120b": "gpt-oss-120b",
    "openbmb__MiniCPM3-4B": "minicpm3-4b",
    "phi-4": "phi-4",
    "qwen2.5_14b": "qwen2.5-14b",
    "qwen2.5_32b": "qwen2.5-32b",
    "qwen2.5_72b": "qwen2.5-72b",
    "qwen2_5vl_3b": "qwen2.5-vl-3b-instruct",
    "qwen2_vl_2b": "qwen2-vl-2b-instruct",
    "qwen3-14b": "qwen3-14b",
    "qwen3_4b": "qwen3-4b",
    "qwen3_embedding_8b": "qwen3-embedding-8b",
    "qwen3_vl_235b": "qwen3-vl-235b-a22b-instruct",
    "stepfun-ai__Step-3.7-Flash": "step-3.7-flash",
    "tiiuae__falcon-40b": "falcon-40b",
    "xverse__XVERSE-7B": "xverse-7b",
    "yi-34b": "yi-34b",
    "zai-org__GLM-5.1": "glm-5.1",
    "zai-org__GLM-5.2": "glm-5.2",
}


class SameShape(NamedTuple):
    """A model with the shape of another entry: the differences, and the source of its numbers."""

    of: str
    repository: str
    released: str
    source: str
    keys: Mapping[str, Any] = {}  # of the GGUF, without the prefix of the architecture
    config: Mapping[str, Any] = {}
    forms: tuple[str, ...] = (
        "keys",
        "config",
    )  # of the other entry, if they describe this model too


_LLMFIT = "llmfit 1.1.17's table of hub models (MIT) has the numbers of {} for it"
_LONG: dict[str, Any] = {
    "keys": {"context_length": 262144},
    "config": {"max_position_embeddings": 262144},
}
_CODER: dict[str, Any] = {"config": {"max_position_embeddings": 32768}, "forms": ("config",)}
SAME_SHAPE = {
    "deepseek-r1-distill-llama-70b": SameShape(
        "llama-3.1-70b", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "2025-01-20", _LLMFIT
    ),
    "deepseek-r1-distill-llama-8b": SameShape(
        "llama-3.1-8b", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "2025-01-20", _LLMFIT
    ),
    "deepseek-r1-distill-qwen-14b": SameShape(
        "qwen2.5-14b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "2025-01-20", _LLMFIT
    ),
    "deepseek-r1-distill-qwen-32b": SameShape(
        "qwen2.5-32b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "2025-01-20", _LLMFIT
    ),
    "deepseek-r1-distill-qwen-7b": SameShape(
        "qwen2.5-7b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "2025-01-20",
        _LLMFIT,
        keys={"context_length": 131072},
    ),
    "gemma-3-12b": SameShape(
        "gemma-3-27b",
        "google/gemma-3-12b-it",
        "2025-03-12",
        "the numbers of the 12B in transformers' convert_gemma3_weights.py (Apache-2.0), the rest as in {}",
        config={
            "text_config": {
                "head_dim": 256,
                "hidden_size": 3840,
                "intermediate_size": 15360,
                "num_attention_heads": 16,
                "num_hidden_layers": 48,
                "num_key_value_heads": 8,
            }
        },
        forms=("config",),
    ),
    "llama-3.3-70b": SameShape(
        "llama-3.1-70b",
        "meta-llama/Llama-3.3-70B-Instruct",
        "2024-12-06",
        "litgpt's config.py (Apache-2.0) has the numbers of {} for it",
    ),
    "mistral-small-3.1-24b": SameShape(
        "mistral-small-24b",
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        "2025-03-11",
        _LLMFIT,
        keys={"context_length": 131072, "rope.freq_base": 1e9},
    ),
    "mistral-small-3.2-24b": SameShape(
        "mistral-small-24b",
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        "2025-06-20",
        "its publisher calls it an update of Mistral Small 3.1, which has the numbers of {}",
        keys={"context_length": 131072, "rope.freq_base": 1e9},
    ),
    "qwen2.5-coder-14b-instruct": SameShape(
        "qwen2.5-14b", "Qwen/Qwen2.5-Coder-14B-Instruct", "2024-11-06", _LLMFIT, **_CODER
    ),
    "qwen2.5-coder-32b-instruct": SameShape(
        "qwen2.5-32b", "Qwen/Qwen2.5-Coder-32B-Instruct", "2024-11-06", _LLMFIT, **_CODER
    ),
    "qwen2.5-coder-7b-instruct": SameShape(
        "qwen2.5-7b",
        "Qwen/Qwen2.5-Coder-7B-Instruct",
        "2024-09-17",
        _LLMFIT,
        config={"max_position_embeddings": 32768},
    ),
    "qwen3-30b-a3b-instruct-2507": SameShape(
        "qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-Instruct-2507", "2025-07-21", _LLMFIT, **_LONG
    ),
    "qwen3-30b-a3b-thinking-2507": SameShape(
        "qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-Thinking-2507", "2025-07-21", _LLMFIT, **_LONG
    ),
    "qwen3-4b-instruct-2507": SameShape(
        "qwen3-4b", "Qwen/Qwen3-4B-Instruct-2507", "2025-08-05", _LLMFIT, **_LONG
    ),
    "qwen3-4b-thinking-2507": SameShape(
        "qwen3-4b", "Qwen/Qwen3-4B-Thinking-2507", "2025-08-05", _LLMFIT, **_LONG
    ),
    "qwen3-coder-30b-a3b-instruct": SameShape(
        "qwen3-30b-a3b", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "2025-07-31", _LLMFIT, **_LONG
    ),
    "qwen3-coder-next": SameShape(
        "qwen3-next-80b-a3b", "Qwen/Qwen3-Coder-Next", "2026-02-03", _LLMFIT
    ),
    "qwq-32b": SameShape(
        "qwen2.5-32b",
        "Qwen/QwQ-32B",
        "2025-03-05",
        _LLMFIT,
        config={"max_position_embeddings": 40960},
    ),
}

PAPER, LIBRARY = "published in HF papers on", "contributed to Hugging Face Transformers on"
# Start of an id, page of transformers' documentation, and which of its two dates is near the release: the paper may be
# that of an older generation, and the library may add a model years later.
DATES = (
    ("llama-2-", "llama2", PAPER),
    ("llama-3-", "llama3", LIBRARY),
    ("llama-3.1-", "llama3", PAPER),
    ("llama-4-", "llama4", LIBRARY),
    ("llama-7b", "llama", PAPER),
    ("codellama-", "code_llama", PAPER),
    ("qwen2-vl-", "qwen2_vl", LIBRARY),
    ("qwen2.5-vl-", "qwen2_5_vl", LIBRARY),
    ("qwen2-", "qwen2", PAPER),
    ("qwen3-vl-", "qwen3_vl", LIBRARY),
    ("qwen3-next-", "qwen3_next", LIBRARY),
    ("qwen3-coder-", "", ""),
    ("qwen3-embedding-", "", ""),
    ("qwen3-", "qwen3", PAPER),
    ("qwen3.5-", "qwen3_5", LIBRARY),
    ("gemma-2-", "gemma2", LIBRARY),
    ("gemma-3-", "gemma3", LIBRARY),
    ("gemma-4-", "gemma4", LIBRARY),
    ("gemma-7b", "gemma", LIBRARY),
    ("gpt-oss-", "gpt_oss", LIBRARY),
    ("deepseek-v2-", "deepseek_v2", PAPER),
    ("deepseek-v3", "deepseek_v3", PAPER),
    ("deepseek-v4-", "deepseek_v4", LIBRARY),
    ("phi-3-", "phi3", PAPER),
    ("mistral-7b-v0.1", "mistral", LIBRARY),
    ("mixtral-8x7b", "mixtral", LIBRARY),
    ("olmo-2-7b", "olmo2", LIBRARY),
    ("lfm2-", "lfm2", LIBRARY),
    ("mamba-", "mamba", PAPER),
    ("smollm3-", "smollm3", LIBRARY),
    ("starcoder2-", "starcoder2", LIBRARY),
    ("command-r-35b", "cohere", LIBRARY),
    ("command-r7b", "cohere2", LIBRARY),
    ("glm-4.5", "glm4_moe", LIBRARY),
    ("mimo-v2-flash", "mimo_v2_flash", LIBRARY),
    ("step-3.7-", "step3p7", LIBRARY),
    ("dbrx", "dbrx", LIBRARY),
    ("bloom", "bloom", LIBRARY),
)


# Publishers of original models: a repository of another owner with the same name may contain anything.
OWNERS = (
    "01-ai", "Alibaba-NLP", "CohereForAI", "CohereLabs", "HuggingFaceTB", "LiquidAI", "MiniMaxAI", "Qwen", "THUDM",
    "TinyLlama", "XiaomiMiMo", "ai21labs", "allenai", "baichuan-inc", "bigcode", "bigscience", "codellama",
    "databricks", "deepseek-ai", "google", "ibm-granite", "internlm", "intfloat", "jinaai", "llava-hf", "meta-llama",
    "microsoft", "mistralai", "moonshotai", "nomic-ai", "nvidia", "openai", "openbmb", "sentence-transformers",
    "state-spaces", "stepfun-ai", "thenlper", "tiiuae", "togethercomputer", "zai-org",
)  # fmt: skip
_REPOSITORY = re.compile(rf"\b(?:{'|'.join(OWNERS)})/[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")
# Additions to a repository's name that do not make it another model.
_ADDED = re.compile(r"^meta-(?=llama)|-hf$")


class LeftOut(NamedTuple):
    """A model without an entry, and the reason."""

    name: str
    because: str


def main(collection: Path, docs: list[Path], versions: Path | None) -> None:
    results = list(entries_of(collection))
    left_out = [item for item in results if isinstance(item, LeftOut)]
    entries = documented([item for item in results if isinstance(item, Entry)], docs)
    if versions is not None:
        entries = succeeded(written(entries, collection, versions))
    entries += same_shape_entries(entries)
    lines = [record_of(entry) for entry in sorted(entries, key=lambda entry: entry.id)]
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for item in left_out:
        print(f"left out: {item.name}: {item.because}")
    print(f"{len(entries)} entries, {PATH.stat().st_size:,} bytes")


def entries_of(collection: Path, wanted: Container[str] | None = None) -> Iterator[Entry | LeftOut]:
    """An entry, or the reason why there is none, for every model of the collection (or those in `wanted`, by id)."""
    rows = json.loads((collection / "models.json").read_text(encoding="utf-8"))
    configs = _configs(collection)
    by_id = {CONFIGS[stem]: stem for stem in configs if stem in CONFIGS}
    names_with_header: set[str] = set()
    for name in dict.fromkeys(row["model"] for row in rows):
        if wanted is not None and name not in wanted:
            names_with_header.add(name)
            continue
        model_rows = [row for row in rows if row["model"] == name]
        if any("doubt" in row for row in model_rows):
            yield LeftOut(f"header of {name}", str(model_rows[0]["doubt"]))
            continue
        names_with_header.add(name)
        stem = by_id.get(name)
        yield from _checked(
            name, model_rows, collection / "headers", configs[stem] if stem else None
        )
    for stem, row in configs.items():
        if wanted is not None and CONFIGS.get(stem) not in wanted:
            continue
        if stem not in CONFIGS:
            yield LeftOut(f"config {stem}", "not the config of a published model, or a second one")
        elif CONFIGS[stem] not in names_with_header:
            yield from _checked(CONFIGS[stem], [], collection, row)


def _configs(collection: Path) -> dict[str, dict[str, Any]]:
    lines = (collection / "configs" / "index.jsonl").read_text(encoding="utf-8").splitlines()
    result = {}
    for row in map(json.loads, lines):
        text = (collection / row["file"]).read_text(encoding="utf-8")
        result[Path(row["file"]).stem] = {**row, "config": json.loads(text)}
    return result


def _checked(
    name: str, rows: list[dict[str, Any]], headers: Path, row: dict[str, Any] | None
) -> Iterator[Entry | LeftOut]:
    """The entry if it opens and at least one engine gives a bill; otherwise the reasons."""
    try:
        from_header = header_entry(name, rows, headers) if rows else None
        if (
            row is not None
            and from_header is not None
            and (differences := _contradictions(from_header, row["config"]))
        ):
            yield LeftOut(
                f"config {row['file']}", f"differs from the header of {name}: {differences}"
            )
            row = None
        entry = joined(name, from_header, config_entry(name, row) if row is not None else None)
        refused = refusals(entry)
    except EdgekitError as error:
        yield LeftOut(name, str(error))
        return
    yield (
        LeftOut(name, "; ".join(refused.values())) if len(refused) == len(engine_names()) else entry
    )


def refusals(entry: Entry) -> dict[str, str]:
    """Engine -> why it gives no bill."""
    reasons = {}
    for engine, setup in SETUPS.items():
        try:
            load = Load(context_tokens=min(entry.native_context or 2048, 2048))
            engine_named(engine).estimate(open_entry(entry, engine).model, load, setup)
        except EdgekitError as error:
            reasons[engine] = f"{engine}: {error}"
    return reasons


# --- headers


def header_entry(name: str, rows: list[dict[str, Any]], headers: Path) -> Entry:
    """From the tensor directory at F16, or computed from another one; compares the sizes of all files."""
    best = min(rows, key=lambda row: (row["quant"] != "F16", row["quant"] != "Q8_0"))
    model = read_recorded(best, headers)
    origin = f"a GGUF header that llama.cpp's loader accepted ({_confirmed(best)})"
    facts = facts_of(model, name, found=origin, also=tuple(row["quant"] for row in rows))
    if not best["confirmed_by_public_config"]:
        facts["sources"] = {field: _weaker(source) for field, source in facts["sources"].items()}
    facts["tensors"] = runs_of(source_model(model.header, model.geometry).at_mix("F16").tensors)
    entry = Entry(id=name, **facts)
    for row in rows:
        size = entry.size(row["quant"])
        if size is None or size.tensor_bytes != row["tensor_bytes"]:
            raise EdgekitError(f"{name} at {row['quant']}: {size} is not {row['tensor_bytes']:,}")
    return entry


def _weaker(source: Source) -> Source:
    """At most MODELLED: the header was not compared with the published model."""
    return replace(source, basis=weakest((Basis.MODELLED, source.basis)))


def _confirmed(row: Mapping[str, Any]) -> str:
    if row["confirmed_by_public_config"]:
        return "its numbers equal a public config.json"
    return "its numbers come from published descriptions"


def read_recorded(row: Mapping[str, Any], headers: Path) -> Model:
    """Reads the header as a sparse file without weights."""
    header = gzip.decompress((headers / row["header_without_vocabulary"]).read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{row['model']}.{row['quant']}.gguf"
        with path.open("wb") as file:
            file.write(header)
            file.truncate(-(-len(header) // 32) * 32 + row["data_section_bytes"])
        return open_model(path).model


# --- configs


def config_entry(name: str, row: Mapping[str, Any]) -> Entry:
    model = open_config(row["config"], label=name).model
    path = row["source"].partition("@")[0] + ":" + row["source"].rpartition(":")[2]
    entry = Entry(id=name, **facts_of(model, name, found=f"the config.json at {path}"))
    stated = row["claim_basis"] == "stated-in-path" or row["source"].startswith("fetchwiki/")
    if not stated or "/" not in row["claimed_model_id"]:
        return entry
    text = f"the path of its config, {path}"
    sources = {**entry.sources, "repository": Source(text=text, basis=Basis.EXACT)}
    return replace(entry, repository=row["claimed_model_id"], sources=sources)


def _contradictions(from_header: Entry, config: Mapping[str, Any]) -> str:
    """The differences between a header and a config; empty if they agree."""
    header = open_entry(from_header, "llama.cpp").model.geometry
    other = open_config(config).model.geometry
    pairs = zip(_shape(header), _shape(other), strict=True)
    return ", ".join(f"{a[0]} {a[1]} and {b[1]}" for a, b in pairs if a != b)


def _shape(geometry: ModelGeometry) -> list[tuple[str, Any]]:
    attention = [mixer for layer in geometry.layers if (mixer := attention_of(layer.mixer))]
    experts = [layer.experts for layer in geometry.layers if layer.experts]
    return [
        ("layers", len(geometry.layers)),
        ("hidden", geometry.hidden),
        ("vocabulary", _rounded(geometry.vocabulary)),
        ("heads", attention[0].heads if attention else 0),
        ("attention layers", len(attention)),
        ("experts", experts[0].count if experts else 0),
        ("tied", geometry.tied_embeddings),
    ]


def _rounded(vocabulary: int | None) -> int | None:
    """Rounded, because a converter may pad it: Gemma 3 has 262,144, or 262,208 with image tokens."""
    return None if vocabulary is None else vocabulary // 512


def joined(name: str, from_header: Entry | None, from_config: Entry | None) -> Entry:
    """One entry from both; facts of the header win."""
    if from_header is None or from_config is None:
        only = from_header or from_config
        if only is None:
            raise EdgekitError(f"{name}: neither a header nor a config")
        return only
    kinds = tuple(kind for kind in ModelPurpose if kind in {*from_header.kinds, *from_config.kinds})
    return replace(
        from_header,
        repository=from_config.repository,
        kinds=kinds,
        config=from_config.config,
        sources=dict(sorted({**from_config.sources, **from_header.sources}.items())),
    )


# --- models of the same shape


def same_shape_entries(entries: Iterable[Entry]) -> list[Entry]:
    """The models of SAME_SHAPE whose counterpart is among the entries."""
    known = {entry.id: entry for entry in entries}
    return [
        _same_shape(name, row, known[row.of]) for name, row in SAME_SHAPE.items() if row.of in known
    ]


def _same_shape(name: str, row: SameShape, other: Entry) -> Entry:
    source_text = row.source.format(row.of)
    config = _merged(other.config, row.config) if "config" in row.forms and other.config else {}
    has_keys = "keys" in row.forms and bool(other.keys)
    changed_keys = {
        f"{other.keys.get('general.architecture')}.{key}": value for key, value in row.keys.items()
    }
    keys = {**other.keys, **changed_keys} if has_keys else {}
    entry = replace(
        other,
        id=name,
        keys=keys,
        tensors=other.tensors if has_keys else (),
        config=config,
        sizes=(),
        not_before=None,
    )
    facts = facts_of(open_entry(entry, "llama.cpp").model, name, found=source_text)
    facts["sizes"] = tuple(size for size in facts["sizes"] if size.mix != AS_STORED)  # it is F16
    sources = {field: _weaker(source) for field, source in facts.pop("sources").items()}
    day = Source(
        text="the day of its repository or release, by llmfit, models.dev or the press: days off at most",
        basis=Basis.MODELLED,
    )
    sources |= {"released": day, "repository": Source(text=source_text, basis=Basis.EXACT)}
    if has_keys:  # facts_of a header has no config
        facts["config"] = config
    return replace(
        replace(entry, **facts),
        repository=row.repository,
        released=row.released,
        sources=dict(sorted(sources.items())),
    )


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The config with `changes` merged into it recursively."""
    deep = {
        key: _merged(config[key], value) if isinstance(value, Mapping) else value
        for key, value in changes.items()
    }
    return {**config, **deep}


# --- documentation


def documented(entries: list[Entry], docs: list[Path]) -> list[Entry]:
    """With dates and repositories from the documentation; without `docs`, those of the present file."""
    if docs:
        paths = [path for doc in docs for path in doc.iterdir() if path.suffix in {".md", ".py"}]
        pages = {path.name: path.read_text("utf-8") for path in paths}
        names = _repositories(pages)
        return [_named(_dated(entry, pages), names) for entry in entries]
    known = {item.id: item for item in packaged_entries() if isinstance(item, Entry)}
    return [_as_before(entry, known.get(entry.id)) for entry in entries]


def _as_before(entry: Entry, old: Entry | None) -> Entry:
    for field in ("released", "repository", "not_before"):
        value = getattr(old, field, None)
        if old is not None and value is not None and getattr(entry, field) is None:
            entry = _with(entry, field, value, old.sources[field])
    return entry


def _with(entry: Entry, field: str, value: str, source: Source) -> Entry:
    sources = dict(sorted({**entry.sources, field: source}.items()))
    changes: dict[str, Any] = {field: value, "sources": sources}
    return replace(entry, **changes)


def _dated(entry: Entry, pages: Mapping[str, str]) -> Entry:
    rows = ((page, word) for start, page, word in DATES if entry.id.startswith(start))
    page, word = next(rows, ("", ""))
    result = (
        re.search(rf"{word} (\d{{4}}-\d\d-\d\d)", pages.get(f"{page}.md", "")) if page else None
    )
    if result is None:
        return entry
    origin = "the family's paper" if word == PAPER else "transformers had it from that day"
    text = f"{origin}, says {page}.md of transformers' documentation: weeks off at most"
    return _with(entry, "released", result[1], Source(text=text, basis=Basis.MODELLED))


def written(entries: list[Entry], collection: Path, versions: Path) -> list[Entry]:
    """Entries without a date get the release day of the transformers that wrote their config."""
    days = dict(line.split() for line in versions.read_text("utf-8").splitlines())
    by_id = {CONFIGS[stem]: row for stem, row in _configs(collection).items() if stem in CONFIGS}
    return [_written(entry, by_id.get(entry.id, {}).get("config", {}), days) for entry in entries]


def _written(entry: Entry, config: Mapping[str, Any], days: Mapping[str, str]) -> Entry:
    text = config.get("text_config")
    version = config.get("transformers_version") or (text or {}).get("transformers_version") or ""
    day = days.get(f"v{_published(version)}")
    if entry.released is not None or day is None:
        return entry
    reason = f"its config.json was written by transformers {version}, which is no older"
    return _with(entry, "not_before", day, Source(text=reason, basis=Basis.EXACT))


def _published(version: str) -> str:
    """'4.45.0.dev0' -> '4.44.0', the release before it."""
    if ".dev" not in version:
        return version
    major, minor, *_ = version.split(".")
    return f"{major}.{int(minor) - 1}.0" if minor.isdigit() and int(minor) else ""


_VERSION = re.compile(r"(?P<line>[a-z-]*?)-?(?P<number>\d+(?:\.\d+)?)(?=$|-)")


def succeeded(entries: list[Entry]) -> list[Entry]:
    """No version of a line is older than the one before it: qwen3.6 came after qwen3.5."""
    known: dict[tuple[str, float], str] = {}
    for entry in entries:
        version, day = _version(entry), entry.released or entry.not_before
        if version is not None and day is not None:
            known[version] = min(day, known.get(version, day))
    return [_after(entry, known) for entry in entries]


def _version(entry: Entry) -> tuple[str, float] | None:
    result = _VERSION.match(entry.family)
    return None if result is None else (result["line"], float(result["number"]))


def _after(entry: Entry, known: Mapping[tuple[str, float], str]) -> Entry:
    version = _version(entry)
    if version is None or entry.released is not None:
        return entry
    before = [
        (day, older)
        for older, day in known.items()
        if older[0] == version[0] and older[1] < version[1]
    ]
    day, older = max(before, default=("", version))
    if day <= (entry.not_before or ""):
        return entry
    text = f"{older[0]} {older[1]:g}, the version before it, is of that day or later"
    return _with(entry, "not_before", day, Source(text=text, basis=Basis.MODELLED))


def _repositories(pages: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Id -> the repository with that name, and the first page that mentions it."""
    result: dict[str, tuple[str, str]] = {}
    for page in sorted(pages):
        for repository in _REPOSITORY.findall(pages[page]):
            name = _ADDED.sub("", repository.rpartition("/")[2].lower())
            result.setdefault(name, (repository, page))
    return result


def _named(entry: Entry, names: Mapping[str, tuple[str, str]]) -> Entry:
    if entry.repository is not None or entry.id not in names:
        return entry
    repository, page = names[entry.id]
    text = f"its name: {page} of transformers' documentation or of vLLM has a repository of it"
    return _with(entry, "repository", repository, Source(text=text, basis=Basis.ASSUMED))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("collection", nargs="?", type=Path, default=TRUTH)
    parser.add_argument("--docs", type=Path, action="append", default=[])
    parser.add_argument("--versions", type=Path)
    arguments = parser.parse_args(sys.argv[1:])
    main(arguments.collection, arguments.docs, arguments.versions)
