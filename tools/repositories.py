"""Published lists of hub repositories and Ollama tags -> src/edgekit/index/repositories.tsv.

Usage: python tools/repositories.py FOLDER

FOLDER has names.jsonl.gz (hub ids), repos.jsonl.gz (repositories with base model, quantisations and sources) and
ollama_tags.jsonl.gz. A repository becomes a row when its base model is stated, or when it belongs to a publisher who
names repositories after the base model and its name is exactly that; and when it is known to exist: seen on the hub by
llmfit, in the registry of xinference, in LocalAI's gallery with its file, or named by two projects. Lists of
quantisations count only where a source with a licence gives them; otherwise the row has the quantisations that nearly
all repositories of that publisher have.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgekit.index.repositories import PATH, Form
from edgekit.index.store import packaged_entries
from edgekit.index.types import Entry

# The usual repository of entries that have none, or that of the base model.
ORIGINALS = {
    "all-minilm-l6-v2": "sentence-transformers/all-MiniLM-L6-v2",
    "baichuan2-7b-chat": "baichuan-inc/Baichuan2-7B-Chat",
    "codellama-34b-instruct": "codellama/CodeLlama-34b-Instruct-hf",
    "command-r-35b": "CohereLabs/c4ai-command-r-v01",
    "command-r7b": "CohereLabs/c4ai-command-r7b-12-2024",
    "dbrx": "databricks/dbrx-instruct",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite-Chat",
    "falcon-180b-chat": "tiiuae/falcon-180B-chat",
    "falcon-40b": "tiiuae/falcon-40b-instruct",
    "gemma-2-2b": "google/gemma-2-2b-it",
    "gemma-2-9b": "google/gemma-2-9b-it",
    "gemma-3-1b": "google/gemma-3-1b-it",
    "gemma-3-27b": "google/gemma-3-27b-it",
    "gemma-3-4b": "google/gemma-3-4b-it",
    "gemma-4-26b-a4b": "google/gemma-4-26B-A4B-it",
    "gemma-4-31b-it": "google/gemma-4-31B-it",
    "gemma-7b": "google/gemma-7b-it",
    "granite-3.1-1b-a400m-instruct": "ibm-granite/granite-3.1-1b-a400m-instruct",
    "granite-3b-code-instruct-128k": "ibm-granite/granite-3b-code-instruct-128k",
    "granite-4-h-tiny": "ibm-granite/granite-4.0-h-tiny",
    "gte-qwen2-7b-instruct": "Alibaba-NLP/gte-Qwen2-7B-instruct",
    "gte-small": "thenlper/gte-small",
    "jamba-1.5-mini": "ai21labs/AI21-Jamba-1.5-Mini",
    "jina-embeddings-v2-base-en": "jinaai/jina-embeddings-v2-base-en",
    "lfm2.5-vl-1.6b": "LiquidAI/LFM2.5-VL-1.6B",
    "llama-2-70b": "meta-llama/Llama-2-70b-chat-hf",
    "llama-2-7b": "meta-llama/Llama-2-7b-chat-hf",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama-3.1-405b": "meta-llama/Llama-3.1-405B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
    "mistral-7b-v0.1": "mistralai/Mistral-7B-Instruct-v0.1",
    "mistral-nemo-instruct-2407": "mistralai/Mistral-Nemo-Instruct-2407",
    "mistral-small-24b": "mistralai/Mistral-Small-24B-Instruct-2501",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "nomic-embed-code": "nomic-ai/nomic-embed-code",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B-Instruct",
    "phi-3-medium-4k": "microsoft/Phi-3-medium-4k-instruct",
    "phi-3-mini-128k": "microsoft/Phi-3-mini-128k-instruct",
    "phi-3-mini-4k": "microsoft/Phi-3-mini-4k-instruct",
    "phi-3-small-8k-instruct": "microsoft/Phi-3-small-8k-instruct",
    "qwen-7b": "Qwen/Qwen-7B-Chat",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B-Instruct",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-72b": "Qwen/Qwen2.5-72B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-vl-32b-instruct": "Qwen/Qwen2.5-VL-32B-Instruct",
    "qwen3-14b": "Qwen/Qwen3-14B",
    "qwen3-embedding-8b": "Qwen/Qwen3-Embedding-8B",
    "qwen3-next-80b-a3b": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "qwen3-vl-235b-a22b-instruct": "Qwen/Qwen3-VL-235B-A22B-Instruct",
    "smollm-1.7b": "HuggingFaceTB/SmolLM-1.7B-Instruct",
    "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "yi-34b": "01-ai/Yi-34B-Chat",
}

# Publishers of many quantised models named after the original, in the order in which they are offered, after the
# publisher of the model itself. The quantisations are those in over 85 % of their listed repositories.
GGUF_PUBLISHERS = {
    "ggml-org": "",
    "unsloth": "Q8_0,Q6_K,Q5_K_M,Q4_K_M",
    "bartowski": "Q8_0,Q6_K,Q5_K_M,Q4_K_M,IQ4_XS,Q3_K_M,Q2_K",
    "lmstudio-community": "Q8_0,Q6_K,Q4_K_M",
    "mradermacher": "Q5_K_M,Q4_K_M,IQ4_XS,Q3_K_M,Q2_K",
    "TheBloke": "Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q3_K_M,Q2_K",
}
OWN_GGUF = {"Qwen": "Q8_0,Q6_K,Q5_K_M,Q4_K_M"}
MLX_PUBLISHERS = ("mlx-community", "lmstudio-community")
FP8_PUBLISHERS = ("RedHatAI", "nvidia")
MOST_GGUF = 4  # repositories of one model

# Quantisations that a plan may choose, as repositories spell them.
QUANTS = (
    "BF16", "F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K", "MXFP4",
)  # fmt: skip
_MLX = re.compile(r"-(?:mlx-)?(?P<bits>[2-8]bit|bf16)$", re.IGNORECASE)
_EIGHT_BITS = re.compile(r"-fp8(?:-dynamic)?$", re.IGNORECASE)
_AWQ = re.compile(r"-awq$", re.IGNORECASE)
# Origin of a source -> its name in the table. Sources without a licence give no row.
SOURCES = {
    "pypi:llmfit": "llmfit",
    "AlexsJones/llmfit": "llmfit",
    "xorbitsai/inference": "xinference",
    "mudler/LocalAI": "localai",
    "containers/ramalama": "ramalama",
    "unslothai/unsloth": "unsloth",
    "ggml-org/llama.cpp": "llama.cpp",
    "gpustack/gpustack": "gpustack",
    "raullenchai/Rapid-MLX": "rapid-mlx",
    "ml-explore/": "mlx",
    "vllm-project/": "vllm",
    "NVIDIA/Model-Optimizer": "modelopt",
    "huggingface/transformers": "transformers",
    "D3rhami/ollama_gallery": "ollama_gallery",
}

HEADER = """\
# Made by tools/repositories.py: where models of the catalog can be downloaded. Existence was not checked on the hub.
# model, form, repository or tag, quantisations, "listed" (a source lists them) or "usual" (most repositories of that
# publisher have them), sources: llmfit 1.1.17, localai, ramalama, llama.cpp, mlx (MIT), xinference, unsloth, gpustack,
# rapid-mlx, vllm, modelopt, transformers (Apache-2.0), ollama_gallery (MIT), names: the publisher's name for the model
"""


def main(folder: Path) -> None:
    named = {row["hub_id"].lower(): row for row in _rows(folder, "names")}
    library = {row["tag"]: row for row in _rows(folder, "ollama_tags")}
    by_base = defaultdict(list)
    for row in _rows(folder, "repos"):
        if row["base"]:
            by_base[_key(row["base"])].append(row)
    tags = defaultdict(list)
    for row in _rows(folder, "ollama_tags"):
        if row["hub_id"] and row["licence"] == "MIT":
            tags[_key(row["hub_id"])].append(row)
    lines = []
    for entry in packaged_entries():
        wanted = ORIGINALS.get(entry.id) or entry.repository if isinstance(entry, Entry) else None
        if isinstance(entry, Entry) and wanted:
            row = named.get(wanted.lower(), {"hub_id": wanted, "names": ()})
            original = row["hub_id"]
            short = [library[name["name"]] for name in row["names"] if name["name"] in library]
            short = [item for item in short if _is_still(item, original, library)]
            lines.append((entry.id, Form.ORIGINAL, original, "", "listed", "names"))
            rows = [row for row in by_base[_key(original)] if _exists(row)]
            for form, repository, quants, known, source in (
                *_gguf(original, rows),
                *_mlx(original, rows),
                *_for_vllm(original, rows),
                *_ollama(original, tags[_key(original)], entry, short),
            ):
                lines.append((entry.id, form, repository, quants, known, source))
    text = "".join("\t".join((line[0], line[1].value, *line[2:])) + "\n" for line in lines)
    PATH.write_text(HEADER + text, encoding="utf-8")
    print(f"{len(lines)} rows for {len({line[0] for line in lines})} models, {len(text):,} bytes")


def _rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _key(repository: str) -> str:
    """Meta renamed its repositories from Meta-Llama-3.1-8B to Llama-3.1-8B."""
    return repository.lower().replace("meta-llama/meta-llama", "meta-llama/llama")


def _licensed(row: Mapping[str, Any]) -> list[str]:
    result = (
        name
        for source in row["sources"]
        for start, name in SOURCES.items()
        if source["source"].startswith(start) and source["licence"] != "none stated"
    )
    return list(dict.fromkeys(result))


def _in_registry(row: Mapping[str, Any]) -> bool:
    return any("llm_family.json" in source["source"] for source in row["sources"])


def _exists(row: Mapping[str, Any]) -> bool:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]*[A-Za-z0-9]", row["repo"]):
        return False
    projects = {source["source"].partition("@")[0] for source in row["sources"]}
    in_gallery = bool(row["files"]) and "localai" in _licensed(row)
    seen = row["hf_downloads"] is not None or "stated" in row["base_from"] or _in_registry(row)
    seen = seen or in_gallery
    return bool(_licensed(row)) and (seen or len(projects) > 1)


def _is_named_after(row: Mapping[str, Any], original: str, ending: str) -> bool:
    """'unsloth/Qwen3-8B-GGUF', 'bartowski/Qwen_Qwen3-8B-GGUF' after 'Qwen/Qwen3-8B'."""
    owner, _, name = original.lower().partition("/")
    repository = row["repo"].partition("/")[2].lower()
    plain = name.removeprefix("meta-").removesuffix("-hf")
    starts = (name, plain, f"meta-{plain}", f"{owner}_{name}", f"{owner}_{plain}")
    return any(re.fullmatch(re.escape(start) + ending, repository) for start in starts)


def _gguf(original: str, rows: list[dict[str, Any]]) -> Iterator[tuple[Form, str, str, str, str]]:
    owner = original.partition("/")[0]
    usual = {owner: OWN_GGUF.get(owner, ""), **GGUF_PUBLISHERS}
    order = list(usual)
    results = [
        row
        for row in rows
        if row["format"] == "gguf"
        and row["publisher"] in usual
        and _is_named_after(row, original, "-gguf")
    ]
    count = 0
    for row in sorted(results, key=lambda row: order.index(row["publisher"])):
        listed, usual_quants = _listed(row), usual[row["publisher"]]
        # A catalog of single files names one quantisation of many.
        is_whole = listed.count(",") > 1 or not usual_quants
        quants = (
            listed
            if is_whole
            else ",".join(
                dict.fromkeys([*usual_quants.split(","), *filter(None, listed.split(","))])
            )
        )
        if quants and count < MOST_GGUF:
            count += 1
            known = "listed" if is_whole else "usual"
            yield Form.GGUF, row["repo"], quants, known, ",".join(_licensed(row)[:3])


def _listed(row: Mapping[str, Any]) -> str:
    """Quantisations that a source with a licence lists; llmfit writes Q4_K_M for unknown."""
    unlicensed = any("model-catalog" in source["source"] for source in row["sources"])
    tags = {tag for tag in row["quants"] if tag.upper().removeprefix("UD-") in QUANTS}
    if (unlicensed and len(tags) > 1) or (tags == {"Q4_K_M"} and not row["files"]):
        return ""

    def place(tag: str) -> tuple[int, bool]:
        return QUANTS.index(tag.upper().removeprefix("UD-")), tag.upper().startswith("UD-")

    best: dict[int, str] = {}
    for tag in sorted(tags, key=place):
        best.setdefault(place(tag)[0], tag)
    return ",".join(best.values())


def _mlx(original: str, rows: list[dict[str, Any]]) -> Iterator[tuple[Form, str, str, str, str]]:
    order = (original.partition("/")[0], *MLX_PUBLISHERS)
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        bits = _MLX.search(row["repo"])
        if row["format"] != "mlx" or row["publisher"] not in order or bits is None:
            continue
        name, place = bits["bits"].lower(), order.index(row["publisher"])
        if _is_named_after(row, original, _MLX.pattern[:-1]) and (
            name not in best or place < order.index(best[name]["publisher"])
        ):
            best[name] = row
    for name in sorted(best):
        yield Form.MLX, best[name]["repo"], name, "listed", ",".join(_licensed(best[name])[:3])


def _for_vllm(
    original: str, rows: list[dict[str, Any]]
) -> Iterator[tuple[Form, str, str, str, str]]:
    owner = original.partition("/")[0]
    for form, ending, publishers in (
        (Form.FP8, _EIGHT_BITS, (owner, *FP8_PUBLISHERS)),
        (Form.AWQ, _AWQ, (owner,)),
    ):
        results = [
            row
            for row in rows
            if row["format"] == form.value
            and _is_named_after(row, original, ending.pattern[:-1])
            and (row["publisher"] in publishers or _in_registry(row))
        ]
        order = (*publishers, *(row["publisher"] for row in results))
        for row in sorted(results, key=lambda row: order.index(row["publisher"]))[:1]:
            yield form, row["repo"], "", "listed", ",".join(_licensed(row)[:3])


def _ollama(
    original: str, rows: list[dict[str, Any]], entry: Entry, short: list[dict[str, Any]]
) -> Iterator[tuple[Form, str, str, str, str]]:
    """A tag for each quantisation. One that names none is the 4-bit form if its size on the library page says so."""
    best: dict[str, str] = {}
    for row in rows:
        quant = (row["quant"] or "").upper().replace("FP16", "F16")
        dated = re.search(r"-(\d{4})(?=-)", row["tag"])
        if quant in QUANTS and (dated is None or dated[1] in original):
            best.setdefault(quant, row["tag"])
    four = entry.size("Q4_K_M")
    for row in short:
        if four is not None and _is_size(row["bytes"], four.tensor_bytes):
            best.setdefault("Q4_K_M", row["tag"])
    for name in sorted(best, key=QUANTS.index):
        yield Form.OLLAMA, best[name], name, "listed", "ollama_gallery"


def _is_still(row: Mapping[str, Any], original: str, library: Mapping[str, Any]) -> bool:
    """Short tags move to newer models: qwen3:4b is now Qwen3-4B-Thinking-2507."""
    same = [item for item in library.values() if item["digest"] == row["digest"]]
    dates = {date for item in same for date in re.findall(r"-(\d{4})(?=-|$)", item["tag"])}
    ids = {_key(item["hub_id"]) for item in same if item["hub_id"]}
    return ":" in row["tag"] and ids == {_key(original)} and all(item in original for item in dates)


def _is_size(rounded: int, tensor_bytes: int) -> bool:
    """Library pages round to two digits; a file has a header of up to 16 MB."""
    step: int = 10 ** (len(str(rounded)) - 2)
    return rounded - step / 2 <= tensor_bytes + 16e6 and tensor_bytes <= rounded + step / 2


if __name__ == "__main__":
    main(Path(sys.argv[1]))
