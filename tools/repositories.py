"""DATA's repositories and Ollama tags -> rows of the index's table of repositories (used by tools/index.py).

A repository is taken when a source with a licence states which model it has, or when it belongs to a known maker who
names repositories after the model and its name is exactly that; and when it is known to exist: seen on the hub by
llmfit, in the registry of xinference, in LocalAI's gallery with its file, or named by two projects. Lists of
quantisations count only where a source with a licence gives them; otherwise the row has the quantisations that nearly
all repositories of that maker have.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgekit.index.repositories import MAKERS, Form
from edgekit.index.tables import as_json
from edgekit.index.types import Entry, Source

# Makers whose repositories have nearly always these quantisations.
USUAL_QUANTS = {
    "unsloth": "Q8_0,Q6_K,Q5_K_M,Q4_K_M",
    "bartowski": "Q8_0,Q6_K,Q5_K_M,Q4_K_M,IQ4_XS,Q3_K_M,Q2_K",
    "lmstudio-community": "Q8_0,Q6_K,Q4_K_M",
    "mradermacher": "Q5_K_M,Q4_K_M,IQ4_XS,Q3_K_M,Q2_K",
    "thebloke": "Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q3_K_M,Q2_K",
}
OWN_QUANTS = {"qwen": "Q8_0,Q6_K,Q5_K_M,Q4_K_M"}
MOST = {
    Form.GGUF: 6,
    Form.MLX: 12,
    Form.FP8: 3,
    Form.AWQ: 3,
    Form.GPTQ: 3,
    Form.NVFP4: 3,
}  # of one model

# Quantisations that llama.cpp has, as repositories spell them, the largest first.
QUANTS = (
    "BF16", "F16", "Q8_0", "Q6_K_L", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0",
    "IQ4_NL", "IQ4_XS", "MXFP4", "Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "Q2_K_L", "Q2_K",
    "Q2_K_S", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "Q8_K_XL", "Q6_K_XL", "Q5_K_XL", "Q4_K_XL",
    "Q3_K_XL", "Q2_K_XL", "TQ1_0",
)  # fmt: skip
ENDINGS = {
    Form.GGUF: re.compile(r"[-_.]gguf$", re.IGNORECASE),
    Form.MLX: re.compile(r"-(?:mlx-)?(?P<bits>[2-8]bit|bf16|mxfp4|mxfp8)$", re.IGNORECASE),
    Form.FP8: re.compile(r"-fp8(?:-dynamic|-block)?$", re.IGNORECASE),
    Form.AWQ: re.compile(r"-awq(?:-int4|-4bit)?$", re.IGNORECASE),
    Form.GPTQ: re.compile(r"-gptq(?:-int4|-int8|-4bit)?$", re.IGNORECASE),
    Form.NVFP4: re.compile(r"-nvfp4$", re.IGNORECASE),
}

Licensed = Callable[[Iterable[Mapping[str, str]]], list[Source]]
# model, form, name, quantisations as JSON, whether they are listed, downloads, sources
Row = tuple[str, str, str, str, int, int | None, list[Source]]


def repository_rows(
    data: Path,
    by_repository: Mapping[str, Entry],
    licensed: Licensed,
) -> Iterator[Row]:
    """The rows for all models. `by_repository`: the entry of every hub id in lower case."""
    by_base = defaultdict(list)
    for row in _rows(data, "repos"):
        if row["base"]:
            by_base[current_name(row["base"])].append(row)
    library = {row["tag"]: row for row in ollama_tags(data)}
    tags = defaultdict(list)
    for row in library.values():
        if row["hub_id"] and licensed([row]):
            tags[current_name(row["hub_id"])].append(row)
    originals = {repository.lower() for repository in by_repository}
    for key, entry in by_repository.items():
        original = entry.repository or key
        own = [entry.sources["repository"]] if "repository" in entry.sources else []
        yield entry.id, Form.ORIGINAL.value, original, "{}", 1, None, own
        rows = [
            row
            for row in by_base[current_name(original)]
            if row["repo"].lower() not in originals and _exists(row, licensed(row["sources"]))
        ]
        for form in ENDINGS:
            yield from _of_form(entry, original, form, rows, licensed)
        for quant, tag in _ollama(original, tags[current_name(original)], entry, library).items():
            yield (
                entry.id,
                Form.OLLAMA.value,
                tag["tag"],
                as_json({quant: None}),
                1,
                None,
                licensed([tag]),
            )


def _of_form(
    entry: Entry, original: str, form: Form, rows: list[dict[str, Any]], licensed: Licensed
) -> Iterator[Row]:
    """The repositories of one form: the publisher's own, then known makers, then those that a source states."""
    owner, ending = original.partition("/")[0].lower(), ENDINGS[form]
    results = []
    for row in rows:
        publisher = row["publisher"].lower()
        is_known = publisher == owner or publisher in MAKERS
        named_after = _is_named_after(row, original, ending)
        stated = "stated" in row["base_from"] or _in_registry(row)
        if row["format"] == form.value and (named_after and (is_known or stated)):
            place = (
                -1 if publisher == owner else MAKERS.index(publisher) if is_known else len(MAKERS)
            )
            results.append((place, -(row["hf_downloads"] or 0), row["repo"], row))
    for *_, row in sorted(results, key=lambda result: result[:3])[: MOST[form]]:
        sources = licensed(row["sources"])[:3]
        quants, listed = _quants(row, form, owner, ending)
        if quants or form not in {Form.GGUF, Form.MLX}:
            sizes = dict.fromkeys(quants)
            # JSON with its keys in this order, the largest quantisation first
            text = json.dumps(sizes, separators=(",", ":"))
            yield entry.id, form.value, row["repo"], text, int(listed), row["hf_downloads"], sources


def _quants(
    row: Mapping[str, Any], form: Form, owner: str, ending: re.Pattern[str]
) -> tuple[list[str], bool]:
    """The quantisations of a repository, and whether a source lists them."""
    if form is Form.MLX:
        bits = ending.search(row["repo"])
        return ([bits["bits"].lower()] if bits else []), True
    if form is not Form.GGUF:
        return [form.value.upper()], True
    listed = _listed(row)
    publisher = row["publisher"].lower()
    usual = (OWN_QUANTS if publisher == owner else USUAL_QUANTS).get(publisher, "")
    if len(listed) > 2 or not usual:  # a catalog of single files names one quantisation of many
        return listed, True
    return list(dict.fromkeys([*usual.split(","), *listed])), False


def _listed(row: Mapping[str, Any]) -> list[str]:
    """Quantisations that a source with a licence lists; llmfit writes Q4_K_M for unknown."""
    unlicensed = any("model-catalog" in source["source"] for source in row["sources"])
    tags = {tag for tag in row["quants"] if tag.upper().removeprefix("UD-") in QUANTS}
    others = [source for source in row["sources"] if source["licence"] != "none stated"]
    states_lists = any(
        "llmfit" in source["source"]
        or "xinference" in source["source"]
        or "inference@" in source["source"]
        for source in others
    )
    if (unlicensed and not states_lists) or (tags == {"Q4_K_M"} and not row["files"]):
        return []

    def place(tag: str) -> tuple[int, bool]:
        return QUANTS.index(tag.upper().removeprefix("UD-")), tag.upper().startswith("UD-")

    best: dict[int, str] = {}
    for tag in sorted(tags, key=lambda tag: (place(tag), tag)):  # one spelling, always the same
        best.setdefault(place(tag)[0], tag)
    return list(best.values())


def _rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def ollama_tags(data: Path) -> list[dict[str, Any]]:
    """DATA's Ollama tags. A tag without a model of its own has that of a tag with the same files: 'aya:latest'."""
    tags = list(_rows(data, "ollama_tags"))
    by_digest = {row["digest"]: row["hub_id"] for row in tags if row["hub_id"]}
    return [{**row, "hub_id": row["hub_id"] or by_digest.get(row["digest"])} for row in tags]


RENAMED = {"CohereForAI": "CohereLabs", "THUDM": "zai-org"}  # publishers


def current_id(repository: str) -> str:
    """The repository with the name that its publisher has today."""
    owner, _, name = repository.partition("/")
    return f"{RENAMED.get(owner, owner)}/{name}"


def earlier_ids(repository: str) -> list[str]:
    """The repository with the names that its publisher had before."""
    owner, _, name = repository.partition("/")
    return [f"{old}/{name}" for old, new in RENAMED.items() if new == owner]


def current_name(repository: str) -> str:
    """The name in lower case, as it is today. Meta renamed Meta-Llama-3.1-8B to Llama-3.1-8B."""
    return current_id(repository).lower().replace("meta-llama/meta-llama", "meta-llama/llama")


def _in_registry(row: Mapping[str, Any]) -> bool:
    return any("llm_family.json" in source["source"] for source in row["sources"])


def _exists(row: Mapping[str, Any], sources: list[Source]) -> bool:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]*[A-Za-z0-9]", row["repo"]):
        return False
    projects = {source["source"].partition("@")[0] for source in row["sources"]}
    in_gallery = bool(row["files"]) and any("LocalAI" in source.text for source in sources)
    seen = row["hf_downloads"] is not None or "stated" in row["base_from"] or _in_registry(row)
    return bool(sources) and (seen or in_gallery or len(projects) > 1)


def _is_named_after(row: Mapping[str, Any], original: str, ending: re.Pattern[str]) -> bool:
    """'unsloth/Qwen3-8B-GGUF', 'bartowski/Qwen_Qwen3-8B-GGUF' after 'Qwen/Qwen3-8B'."""
    owner, _, name = original.lower().partition("/")
    repository = row["repo"].partition("/")[2].lower()
    match = ending.search(repository)
    if match is None:
        return False
    plain = name.removeprefix("meta-").removesuffix("-hf")
    starts = {name, plain, f"meta-{plain}", f"{owner}_{name}", f"{owner}_{plain}"}
    # mradermacher's second set of a model, made with an importance matrix
    stem = repository[: match.start()].removesuffix(".i1").removesuffix("-i1")
    return stem in starts


def _ollama(
    original: str, rows: list[dict[str, Any]], entry: Entry, library: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """A tag for each quantisation. One that names none is the 4-bit form if its size on the library page says so."""
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (len(row["tag"]), row["tag"])):
        quant = (row["quant"] or "").upper().replace("FP16", "F16")
        dated = re.search(r"-(\d{4})(?=-)", row["tag"])
        if quant in QUANTS and (dated is None or dated[1] in original):
            best.setdefault(quant, row)
    four = entry.size("Q4_K_M")
    for row in sorted(rows, key=lambda row: (len(row["tag"]), row["tag"])):
        is_short = not row["quant"] and ":" in row["tag"] and not row["tag"].endswith(":latest")
        if four is None or not is_short or not _is_still(row, original, library):
            continue
        if _is_size(row["bytes"], four.tensor_bytes):
            best["Q4_K_M"] = row
            break
    order = {quant: place for place, quant in enumerate(QUANTS)}
    return {quant: best[quant] for quant in sorted(best, key=order.__getitem__)}


def _is_still(row: Mapping[str, Any], original: str, library: Mapping[str, Any]) -> bool:
    """Short tags move to newer models: qwen3:4b is now Qwen3-4B-Thinking-2507."""
    same = [item for item in library.values() if item["digest"] == row["digest"]]
    dates = {date for item in same for date in re.findall(r"-(\d{4})(?=-|$)", item["tag"])}
    ids = {current_name(item["hub_id"]) for item in same if item["hub_id"]}
    return ids == {current_name(original)} and all(item in original for item in dates)


def _is_size(rounded: int | None, tensor_bytes: int) -> bool:
    """Library pages round to two digits; a file has a header of up to 16 MB."""
    if not rounded:
        return False
    step: int = 10 ** (len(str(rounded)) - 2)
    return rounded - step / 2 <= tensor_bytes + 16e6 and tensor_bytes <= rounded + step / 2
