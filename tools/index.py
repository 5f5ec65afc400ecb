"""Everything known about models -> src/edgekit/index/index.sqlite.

Usage: python tools/index.py DATA [--built 2026-11-18] [--output FILE]

DATA has names, repos, aliases, ollama_tags, quality and quant_loss (.jsonl.gz), each row with its sources and their
licences. tools/index_data has what was read from models' own headers:

- recorded.jsonl: models whose GGUF header or config.json was recorded, with the source of every fact; originals.tsv:
  their repositories
- geometries.jsonl.gz: configs of other models (tools/geometries.py), and which models are proved equal to them

Only rows of which at least one source has a licence are written. A model's geometry is "exact" if its own header or
config is at hand, or that of a model with equal numbers which a source states to be its base or a variant of it.
Otherwise it is put together from the partial numbers of DATA and a config of the same architecture ("assumed"), if the
parameters that follow are those of the model; or there is none.

Rows of DATA that are not models are left out: see `is_model`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tools.header_configs import OWN_CONFIG, config_of, model_type_of
from tools.repositories import current_id, current_name, earlier_ids, ollama_tags

from edgekit.app.index import facts_of
from edgekit.errors import EdgekitError
from edgekit.formats.mixes import mix_by_name
from edgekit.index.database import PACKAGED
from edgekit.index.ids import family_of, id_of
from edgekit.index.names import spellings
from edgekit.index.quality import is_base_model
from edgekit.index.records import forms_of, header_json, is_id, read_record
from edgekit.index.tables import Cell, as_json, write_sqlite
from edgekit.index.typed import read_name
from edgekit.index.types import NO_HEADER, SCHEMA, Entry, ModelPurpose, Size, Source, StoredHeader
from edgekit.model import open_config
from edgekit.model.tensors import expected_tensors
from edgekit.plan.assumed import from_name
from edgekit.units import Basis

ROOT = Path(__file__).parents[1]
OWN_DATA = ROOT / "tools" / "index_data"
READ_ON = "2026-11-16"  # when the facts of DATA were gathered
NO_LICENCE = "none stated"
PURPOSES = {
    "chat": ModelPurpose.CHAT,
    "code": ModelPurpose.CODE,
    "reason": ModelPurpose.REASONING,
    "vision": ModelPurpose.VISION,
    "embedding": ModelPurpose.EMBEDDING,
}
# Models whose config was copied for its text alone: it names an encoder that the released model does not have.
WITHOUT_ENCODER = {"google/gemma-4-12b-it"}
WRONG_PARAMETERS = {
    "xai-org/grok-1",
    "hpcai-tech/grok-1",
}  # DATA has 36 B; the publisher says 314 B
# Relations of geometries.jsonl.gz that only a name tells: the base is not stated anywhere.
GUESSED = {"its name says that its weights are an edit", "a copy under the same name"}
# Mixes whose sizes are estimated for a model of which only the number of parameters is known.
USUAL_MIXES = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "Q2_K")


# --- sources


@dataclass
class Sources:
    """The table of sources: each has a number, in the order of first use."""

    numbers: dict[tuple[str, str, str | None, str | None], int] = field(default_factory=dict)

    def number(self, source: Source) -> int:
        key = (source.text, source.basis.value, source.licence, source.date)
        return self.numbers.setdefault(key, len(self.numbers) + 1)

    def rows(self) -> Iterator[tuple[Cell, ...]]:
        for (text, basis, licence, day), number in self.numbers.items():
            yield number, text, licence, day, basis


def licensed(rows: Iterable[Mapping[str, str]]) -> list[Source]:
    """The sources that may be shipped, without commit hashes: 'owner/repo:path'."""
    return [
        Source(
            text=re.sub(r"@[0-9a-f]{7,40}", "", row["source"]),
            basis=Basis.EXACT,
            licence=row["licence"],
            date=READ_ON,
        )
        for row in rows
        if not row["licence"].startswith(NO_LICENCE)
    ]


def source_of(label: str | None, sources: list[Source]) -> Source | None:
    """The source that a label such as 'llmfit (hub card)' or 'gpustack (rounded)' means; None if it has no licence."""
    word = (label or "").partition(" ")[0].lower()
    if word in {"hub", "older"}:
        word = "llmfit"
    if word == "xinference":
        word = "xorbitsai"  # its account
    if word in {"name", ""}:
        return None
    basis = (
        Basis.MODELLED
        if "rounded" in (label or "") or "approximate" in (label or "")
        else Basis.EXACT
    )
    return next((replace(row, basis=basis) for row in sources if word in row.text.lower()), None)


# --- models


@dataclass
class Known:
    """A model of the index while it is built."""

    entry: Entry
    hub_id: str
    aliases: list[tuple[str, str, Source]] = field(default_factory=list)  # (name, scheme, source)
    named: Mapping[str, Any] = field(default_factory=dict)  # its row of DATA's names


def recorded() -> list[Entry]:
    """The models whose own headers were recorded."""
    lines = (OWN_DATA / "recorded.jsonl").read_text(encoding="utf-8").splitlines()
    return [read_record(line, where=f"recorded.jsonl, line {n}") for n, line in enumerate(lines, 1)]


@cache
def originals() -> Mapping[str, str]:
    """Recorded model -> the repository that people run."""
    lines = (OWN_DATA / "originals.tsv").read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines if not line.startswith("#"))


def models_of(data: Path) -> list[Known]:
    """All models, the most used first."""
    by_hub_id = names_of(data)
    by_name = {current_name(hub_id): row for hub_id, row in by_hub_id.items()}
    known: dict[str, Known] = {}  # by hub id in lower case
    for entry in recorded():
        wanted = originals().get(entry.id) or entry.repository or _named_like(entry, by_hub_id)
        row = by_name.get(current_name(wanted), {})
        hub_id = row.get("hub_id") or wanted
        known[(hub_id or entry.id).lower()] = _with_repository(
            _merged(Known(entry=entry, hub_id=hub_id), row)
        )
    taken = {item.entry.id for item in known.values()}
    gathered = read_geometries()
    with_files = {current_name(row["base"]) for row in rows_of(data, "repos") if row["base"]}
    official = {spellings(item.hub_id)[0]: item.hub_id for item in known.values()}
    for key, row in by_hub_id.items():  # ranked by use
        if key in known or not licensed(row["sources"]) or is_family_name(key, by_hub_id):
            continue
        if not is_model(row, has_files=current_name(row["hub_id"]) in with_files):
            continue
        spelling, owner = spellings(row["hub_id"])[0], key.partition("/")[0]
        first = official.setdefault(spelling, row["hub_id"])
        is_copy = first.partition("/")[0].lower() != owner
        name = new_id(row["hub_id"], taken, is_base=is_base_model(key), is_copy=is_copy)
        if name is None:
            continue
        taken.add(name)
        known[key] = _merged(
            Known(
                entry=Entry(id=name, family=family_of(name), architecture=""), hub_id=row["hub_id"]
            ),
            row,
        )
    templates = templates_of(known, gathered)
    for item in known.values():
        if item.entry.header is not None and not item.entry.header.config:
            item.entry = with_config(item, gathered, templates)
    without = [item for item in known.values() if item.entry.header is None]
    work = Geometries(gathered=gathered, known=known, templates=templates)
    _JOB[:] = [work, without]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:  # a second or so for each
        entries = pool.map(_entry_of_job, range(len(without)), chunksize=8)
        for item, entry in zip(without, entries, strict=True):
            item.entry = entry
    for key, item in known.items():
        item.entry = with_kinds(item, is_base=is_base_model(key))
    return sorted(known.values(), key=lambda item: (-item.entry.uses, item.entry.id))


def names_of(data: Path) -> dict[str, dict[str, Any]]:
    """DATA's names by hub id in lower case, and the models that only its Ollama tags name.

    Of a repository that was renamed, only the name that is used more.
    """
    names: dict[str, dict[str, Any]] = {}
    for row in (*rows_of(data, "names"), *ollama_names(data)):  # the most used first
        today = {**row, "hub_id": current_id(row["hub_id"])}
        names.setdefault(current_name(today["hub_id"]), today)
    return {row["hub_id"].lower(): row for row in names.values()}


# What nothing is known of for a model that only an Ollama tag names.
UNKNOWN = (
    "publisher", "parameters", "parameters_from", "active_parameters", "active_from", "native_context", "context_from",
    "licence", "licence_from", "released", "released_from", "geometry_llmfit", "hf_downloads", "ollama_pulls", "doubts",
)  # fmt: skip


def ollama_names(data: Path) -> Iterator[dict[str, Any]]:
    """The models of Ollama tags, as rows of DATA's names about which little is known."""
    tags = [row for row in ollama_tags(data) if row["hub_id"] and licensed([row])]
    sizes = {
        row["hub_id"]: size
        for row in tags
        if (size := _stated_size(row["tag"].replace(":", "-"))) is not None
    }
    for hub_id, tag in {row["hub_id"]: row for row in tags}.items():
        sees = re.search("llava|vision|-vl", hub_id.lower()) is not None
        yield {
            **dict.fromkeys(UNKNOWN),
            "hub_id": hub_id,
            "parameters": sizes.get(hub_id),
            "parameters_from": "ollama (rounded)",
            "kinds": ["vision", "chat"] if sees else ["chat"],
            "score": 0.0,
            "names": [{"name": tag["tag"], "scheme": "ollama"}],
            "sources": [{"source": tag["source"], "licence": tag["licence"]}],
        }


def _named_like(entry: Entry, by_hub_id: Mapping[str, Mapping[str, Any]]) -> str:
    """The hub id with this entry's name and number of parameters; empty if there is none."""
    for row in by_hub_id.values():
        if id_of(row["hub_id"]) != entry.id or not row["parameters"] or not entry.parameters:
            continue
        if abs(row["parameters"] / entry.parameters - 1) < 0.01:
            return str(row["hub_id"])
    return ""


def is_family_name(key: str, by_hub_id: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the row names a family, not a model: 'deepseek-ai/DeepSeek-V4', of which only Flash and Pro exist."""
    row = by_hub_id[key]
    if row["parameters"] or row["geometry_llmfit"] or re.search(r"\d[bm](?:-|$)", key):
        return False
    longer = [other for name, other in by_hub_id.items() if name.startswith(f"{key}-")]
    used = [other for other in longer if other["parameters"] and other["score"] > row["score"]]
    return len(used) > 1


# What generates images, sound or video, encodes them without text, or only cuts text up: no engine here loads it.
NO_LANGUAGE_MODEL = re.compile(
    r"(?:^|[-_])(?:image(?:-edit)?(?:-turbo|-\d+)?$|ltx|cosmos3|tokenizer|siglip2?|dinov[23]|clip-vit|c-radio|phikon"
    r"|mimi$|data2vec-audio|unispeech|cosyvoice|w2v|voiceclap|blip-image)",
    re.IGNORECASE,
)
SIZE_IN_NAME = re.compile(
    r"(?<![a-z0-9])(?:\d+x)?\d+(?:[._]\d+)?b(?![a-z0-9])|(?<![a-z0-9])\d{2,4}m(?![a-z0-9])"
)
REGISTRIES = {"ollama", "xinference", "gpustack", "display"}  # their names are names of models
KINDS_OF_A_REGISTRY = {"embedding", "reranker", "vision"}


def is_model(row: Mapping[str, Any], *, has_files: bool) -> bool:
    """Whether the row is a language or embedding model, not a dataset, page or program that is named like one.

    Of a model something is known besides its name: its parameters, layers, licence, date, files or use. Where nothing
    is, it counts if its name has a size ("EleutherAI/gpt-j-6b"), a registry of models lists it, or it is a base model.
    """
    name = row["hub_id"].rpartition("/")[2]
    if NO_LANGUAGE_MODEL.search(name):
        return False
    facts = ("geometry_llmfit", "licence", "released", "hf_downloads", "ollama_pulls")
    has_size = bool(row["parameters"]) and row.get("parameters_from") != "name"
    if (
        has_files
        or has_size
        or any(row[fact] for fact in facts)
        or is_base_model(row["hub_id"].lower())
    ):
        return True
    is_listed = bool(REGISTRIES & {item["scheme"] for item in row["names"]})
    is_of_a_kind = bool(KINDS_OF_A_REGISTRY & set(row["kinds"]))
    return is_listed or is_of_a_kind or SIZE_IN_NAME.search(name.lower()) is not None


def new_id(hub_id: str, taken: set[str], *, is_base: bool, is_copy: bool = False) -> str | None:
    """The name of the repository; with '-base' or '@publisher' if another model has it.

    `is_copy`: a more used model of another publisher has the same name, in another spelling.
    """
    name = id_of(hub_id)
    owner = id_of(hub_id.partition("/")[0])
    if is_copy:
        return f"{name}@{owner}" if is_id(f"{name}@{owner}") else None
    for candidate in (name, f"{name}-base" if is_base else name, f"{name}@{owner}"):
        if candidate not in taken and is_id(candidate):
            return candidate
    return None


def _merged(item: Known, row: Mapping[str, Any]) -> Known:
    """The model with what DATA's row says about it. Facts that were read from its own header stay."""
    if not row:
        return item
    sources = licensed(row["sources"])
    entry, facts = item.entry, dict(item.entry.sources)
    changes: dict[str, Any] = {}

    def add(name: str, value: Any, label: str | None) -> None:
        source = source_of(label, sources)
        if value is None or source is None or getattr(entry, name) is not None:
            return
        changes[name] = value
        facts[name] = source

    doubts = " ".join(row["doubts"] or ())
    if "parameters" not in doubts and row["hub_id"] not in WRONG_PARAMETERS:
        add("parameters", row["parameters"], row["parameters_from"])
        add("active_parameters", row["active_parameters"], row["active_from"])
    if "context" not in doubts:
        add("native_context", row["native_context"], row["context_from"])
    add("licence", row["licence"], row["licence_from"])
    if row["released"] and not str(row["released_from"]).startswith("older"):
        add("released", _day(row["released"]), row["released_from"])
    is_known = entry.active_parameters is not None or "active_parameters" in changes
    if changes.get("parameters") and not is_known and not _has_experts(row):
        changes["active_parameters"] = changes["parameters"]
        facts["active_parameters"] = facts["parameters"]
    if sources:
        facts["repository"] = sources[0]
        changes |= {"repository": row["hub_id"], "uses": float(row["score"])}
        if row["publisher"]:
            changes["publisher"] = row["publisher"]
            facts["publisher"] = sources[0]
    item.entry = replace(entry, **changes, sources=facts)
    item.named = row
    return item


def _with_repository(item: Known) -> Known:
    """The model with the repository of originals.tsv, if DATA has no source for one."""
    if item.entry.repository is None and item.hub_id:
        source = Source(text="EdgeKit's list of publishers' repositories", basis=Basis.EXACT)
        sources = {**item.entry.sources, "repository": source}
        item.entry = replace(item.entry, repository=item.hub_id, sources=sources)
    return item


def _day(text: str) -> str:
    """'2025-04' -> '2025-04-01'."""
    return {4: f"{text}-01-01", 7: f"{text}-01"}.get(len(text), text[:10])


def _has_experts(row: Mapping[str, Any]) -> bool:
    geometry = row["geometry_llmfit"] or {}
    if re.search(r"-a\d+(?:\.\d+)?b|moe|mixtral|\dx\d", row["hub_id"].lower()):
        return True
    return bool(geometry.get("num_experts") or row["active_parameters"]) or "moe" in str(
        geometry.get("architecture", "")
    )


def with_kinds(item: Known, *, is_base: bool) -> Entry:
    """The entry with its purposes. A base model has none that needs an answer."""
    entry = item.entry
    kinds = set(entry.kinds)
    if not kinds and item.named:
        kinds = {PURPOSES[kind] for kind in item.named["kinds"] if kind in PURPOSES}
        if "reranker" in item.named["kinds"]:
            kinds = set()
        if ModelPurpose.EMBEDDING in kinds:
            kinds = {ModelPurpose.EMBEDDING}
    if is_base and entry.id not in originals():
        kinds -= {ModelPurpose.CHAT, ModelPurpose.REASONING, ModelPurpose.VISION}
    sources = dict(entry.sources)
    sources.setdefault(
        "kinds", Source(text="its name, and what its header says it is", basis=Basis.ASSUMED)
    )
    sources.setdefault("family", Source(text="its name", basis=Basis.ASSUMED))
    return replace(
        entry, kinds=tuple(kind for kind in ModelPurpose if kind in kinds), sources=sources
    )


# --- geometries


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The rows of geometries.jsonl.gz."""

    configs: Mapping[str, Mapping[str, Any]]  # models' own configs, by hub id as it is today
    siblings: Mapping[str, Mapping[str, Any]]  # models that are like another one, likewise
    defaults: Mapping[str, Mapping[str, Any]]  # of configuration classes, by model_type


def read_geometries() -> Gathered:
    path = OWN_DATA / "geometries.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    configs = {
        current_name(row["hub_id"]): row for row in rows if "config" in row and "hub_id" in row
    }
    for name in WITHOUT_ENCODER & configs.keys():
        configs[name]["config"].pop("vision_config", None)
    return Gathered(
        configs=configs,
        siblings={current_name(row["hub_id"]): row for row in rows if "like" in row},
        defaults={row["template"]: row for row in rows if "template" in row},
    )


@dataclass(frozen=True, kw_only=True)
class Template:
    """A config from which the geometry of a model of the same architecture may be put together."""

    config: Mapping[str, Any]
    text: str  # whose it is
    parameters: int | None = None  # of that model


@dataclass(frozen=True, kw_only=True)
class Geometries:
    """Where geometries are taken from."""

    gathered: Gathered
    known: Mapping[str, Known]
    templates: Mapping[str, list[Template]]  # model_type -> configs

    def of(self, item: Known) -> Entry:
        """The entry with its own geometry, that of an equal model, one put together, or none, in this order."""
        key = current_name(item.hub_id)
        own = self.gathered.configs.get(key)
        if own is not None:
            basis = Basis(own.get("basis", Basis.EXACT.value))
            full = with_stated_context(item, own["config"])
            return _from_config(item, full, own["source"], own["licence"], basis)
        sibling = self.gathered.siblings.get(key)
        if sibling is None:
            return _assumed(item, self.templates)
        text = f"{sibling['relation_source']}: {sibling['relation']} ({sibling['like']}), whose numbers are equal"
        base_row = self.gathered.configs.get(current_name(sibling["like"]), {})
        is_guessed = sibling["relation"] in GUESSED or "basis" in base_row
        basis = Basis.ASSUMED if is_guessed else Basis.EXACT
        config = self._config(sibling["like"])
        if config and contradicts(item, config):
            return _assumed(item, self.templates)
        if config:
            changed = with_stated_context(item, merged(config, sibling.get("differs") or {}))
            return _from_config(item, changed, text, sibling.get("licence"), basis)
        base = self.known.get(sibling["like"].lower())
        if base is None or base.entry.header is None or sibling.get("differs"):
            return _assumed(item, self.templates)
        return _with_header_of(item, base.entry, text, sibling.get("licence"), basis)

    def _config(self, hub_id: str) -> Mapping[str, Any]:
        """The config of this model; empty if none was recorded."""
        row, item = self.gathered.configs.get(current_name(hub_id)), self.known.get(hub_id.lower())
        if row is not None:
            return dict(row["config"])
        return {} if item is None or item.entry.header is None else item.entry.header.config


def with_config(item: Known, gathered: Gathered, templates: Mapping[str, list[Template]]) -> Entry:
    """The entry with a config.json next to its GGUF header, if one is proved equal."""
    entry = item.entry
    header = entry.header or NO_HEADER
    width = int(str(header.keys.get(f"{entry.architecture}.embedding_length", 0)))

    def difference(template: Template) -> tuple[bool, int]:
        hidden = _inner(template.config).get("hidden_size") or 0
        return template.text.startswith("pypi:"), abs(hidden - width)  # defaults last

    others = sorted(templates.get(model_type_of(entry), []), key=difference)
    own = gathered.configs.get(current_name(item.hub_id))
    found = config_of(
        entry,
        None if own is None else with_stated_context(item, own["config"]),
        [(template.config, template.text) for template in others],
        _inner,
    )
    if found is None:
        return entry
    config, text = found
    basis = Basis.MODELLED  # windows and image encoders may differ
    if own is not None and text == OWN_CONFIG:
        text, basis = own["source"], Basis.EXACT
    else:
        text = f"the numbers of its GGUF header, the rest as in {text}"
    return replace(
        entry,
        header=replace(header, config=config),
        forms=("gguf", "config"),
        sources={**entry.sources, "config": Source(text=text, basis=basis, date=READ_ON)},
    )


def with_stated_context(item: Known, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the context that DATA states for the model, if it has none or a shorter one.

    Copies of a config are often shortened for a device ("512" of Yi-6B-Chat). One with scaled positions stays.
    """
    stated = item.entry.native_context
    inner = _inner(config)
    names = [name for name in CONTEXT_KEYS if type(inner.get(name)) is int]
    is_longer = not names or inner[names[0]] < (stated or 0)
    if stated is None or inner.get("rope_scaling") or not is_longer:
        return dict(config)
    changed = {**inner, (names[0] if names else CONTEXT_KEYS[0]): stated}
    return next(
        ({**config, name: changed} for name, value in config.items() if value is inner), changed
    )


def contradicts(item: Known, config: Mapping[str, Any]) -> bool:
    """Whether DATA has another number than this config, or fewer parameters. Vocabularies may be padded."""
    partial = (item.named or {}).get("geometry_llmfit") or {}
    inner = _inner(config)
    names = {name: _key_in(inner, keys) for name, keys in PARTIAL.items() if name != "vocab_size"}
    pairs = ((partial.get(name), inner.get(key)) for name, key in names.items())
    published = item.entry.parameters or 0
    is_larger = bool(published) and _counted(config) > published * 1.001
    return is_larger or any(known and stated and known != stated for known, stated in pairs)


def _key_in(config: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The key that this config uses; the usual one if it has none of them."""
    return next((key for key in keys if config.get(key) is not None), keys[0])


def _with_header_of(
    item: Known, base: Entry, text: str, licence: str | None, basis: Basis
) -> Entry:
    """The entry with the recorded header of a model with equal numbers, and the facts that follow."""
    origin = Source(text=text, basis=basis, licence=licence, date=READ_ON)
    shared = (
        "architecture",
        "header",
        "forms",
        "sizes",
        "vocabulary",
        "native_context",
        "active_parameters",
    )
    changes: dict[str, Any] = {name: getattr(base, name) for name in shared}
    header = base.header or NO_HEADER
    changes["header"] = replace(header, keys=dict(header.keys), config=dict(header.config))
    if basis is Basis.ASSUMED:
        changes["sizes"] = tuple(replace(size, basis=basis) for size in base.sizes)
    if item.entry.parameters is None:
        changes["parameters"] = base.parameters
    facts = {"geometry", "sizes", *changes} & ({"geometry"} | base.sources.keys())
    sources = {**item.entry.sources, **dict.fromkeys(facts, origin)}
    return replace(item.entry, **changes, basis=basis, sources=sources)


_JOB: list[Any] = []  # Geometries and the models without one, for the processes that are forked


def _entry_of_job(number: int) -> Entry:
    work, items = _JOB
    entry: Entry = work.of(items[number])
    return entry


def _from_config(
    item: Known, config: Mapping[str, Any], text: str, licence: str | None, basis: Basis
) -> Entry:
    """The entry with the facts of this config."""
    entry = replace(item.entry, header=StoredHeader(config=config), forms=("config",))
    facts = _facts(json.dumps(config, sort_keys=True), entry.id if not item.named else "x", text)
    origin = Source(text=text, basis=basis, licence=licence, date=READ_ON)
    sources = dict(entry.sources)
    changes: dict[str, Any] = {"architecture": facts["architecture"]}
    for name in ("parameters", "active_parameters", "native_context", "vocabulary"):
        value = facts[name]
        is_part = basis is Basis.EXACT and (value or 0) > (entry.parameters or 0) * 1.001
        if value is None or (name == "parameters" and entry.parameters is not None and not is_part):
            continue  # DATA's count includes encoders, unless it is of a part of the files
        is_stated = basis is Basis.ASSUMED or value == entry.native_context
        if name == "native_context" and entry.native_context is not None and is_stated:
            continue
        if (
            name == "active_parameters"
            and entry.active_parameters is not None
            and basis is Basis.ASSUMED
        ):
            continue
        changes[name] = value
        sources[name] = replace(
            origin,
            basis=facts["sources"].get(name, origin).basis if basis is Basis.EXACT else basis,
        )
    sizes = facts["sizes"]
    if basis is Basis.ASSUMED:
        sizes = tuple(replace(size, basis=basis) for size in sizes)
    sources |= {
        "geometry": origin,
        "sizes": replace(facts["sources"].get("sizes", origin), licence=licence, date=READ_ON),
    }
    kinds = entry.kinds
    if not item.named:
        kinds = facts["kinds"]
    return replace(
        entry,
        **changes,
        kinds=kinds,
        sizes=sizes,
        basis=basis,
        sources=sources,
    )


@lru_cache(maxsize=4096)
def _facts(config: str, name: str, text: str) -> dict[str, Any]:
    """The facts of a config. Many models share one."""
    return facts_of(open_config(json.loads(config)).model, name, found=text, with_header=False)


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The config with `changes` merged into it recursively; a None removes the key."""
    result = dict(config)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


# DATA's partial geometry -> keys of a config.json, the usual one first
PARTIAL = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "vocab_size": ("vocab_size",),
}
LAYERS = "num_hidden_layers"
WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff")
# Architecture -> that of the language model inside, or of the model that it is in all but name
INNER_ARCHITECTURES = {
    "aquila": "llama",
    "dots_ocr": "qwen2",
    "Dream": "qwen2",
    "llama_bidirec": "llama",
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    "llava_qwen2": "qwen2",
    "nvembed": "mistral",
}
# Their releases have language models of different architectures: one is no template for another.
SHELLS = {"internvl_chat"}
MOST_TEMPLATES = 3
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
LAYER_LISTS = (
    "layer_types",
    "mlp_layer_types",
    "no_rope_layers",
    "sliding_window_pattern_list",
    "block_types",
)
USUAL_TOWER = 0.5e9  # parameters of the image encoders of most models
TOWER = 1.2e9  # parameters of the largest usual image encoder, which configs of the language model leave out
MOST_OFF = 0.03  # a geometry that was put together may be this far from the model's parameters
MOST_OFF_STATED = 0.15  # and from the size in its name: a 7B has 6.5 to 8 billion


def templates_of(known: Mapping[str, Known], gathered: Gathered) -> dict[str, list[Template]]:
    """model_type -> configs of models of that architecture, and the defaults of its configuration class."""
    result: dict[str, list[Template]] = defaultdict(list)
    by_name = {current_name(item.hub_id): item for item in known.values()}
    rows = {key: (row["config"], row["hub_id"]) for key, row in gathered.configs.items()}
    for key, item in by_name.items():
        if item.entry.header is not None and item.entry.header.config:
            rows.setdefault(key, (item.entry.header.config, item.hub_id or item.entry.id))
    for key, (config, text) in rows.items():
        if config.get("model_type") in SHELLS:
            continue
        parameters = by_name[key].named.get("parameters") if key in by_name else None
        template = Template(config=config, text=text, parameters=parameters)
        result[str(config.get("model_type"))].append(template)
    for name, row in gathered.defaults.items():
        result[name].append(Template(config=row["config"], text=row["source"]))
    for name, inner in INNER_ARCHITECTURES.items():
        result[name] += result[inner]
    return result


def _assumed(item: Known, templates: Mapping[str, list[Template]]) -> Entry:
    """A geometry from DATA's partial numbers and a config of the architecture, if its parameters are right."""
    partial = (item.named or {}).get("geometry_llmfit") or {}
    llmfit = source_of("llmfit", licensed(item.named["sources"])) if item.named else None
    if not partial or llmfit is None:
        return _without_geometry(item.entry)
    candidates = templates.get(str(partial.get("architecture")), [])
    same = [row for row in candidates if row.parameters and row.parameters == item.entry.parameters]
    near = sorted(
        candidates,
        key=lambda template: abs(
            (_inner(template.config).get("hidden_size") or 0) - (partial.get("hidden_size") or 0)
        ),
    )
    sees = "vision" in item.named["kinds"]
    best: tuple[float, dict[str, Any], Template] | None = None
    stated: tuple[dict[str, Any], Template] | None = None
    for template in (*same, *near[:MOST_TEMPLATES]):
        for tied in (None, True, False):
            config = _filled(template.config, partial, tied=tied)
            off = _difference(config, template, item, sees=sees)
            if off <= MOST_OFF and (best is None or off < best[0]):
                best = (off, config, template)
            if stated is None and _has_stated_size(config, item):
                stated = (config, template)
    if best is None and stated is not None:
        item = replace(item, entry=replace(item.entry, parameters=None, active_parameters=None))
        best = (MOST_OFF, *stated)
    if best is not None:
        _, config, template = best
        text = f"{llmfit.text} has its layers and widths; the rest as in {template.text}"
        with suppress(EdgekitError):
            return _from_config(item, config, text, llmfit.licence, Basis.ASSUMED)
    return _without_geometry(item.entry)


def _difference(config: Mapping[str, Any], template: Template, item: Known, *, sees: bool) -> float:
    """How far the parameters that the config implies are from the model's, 0.01 for 1 %; infinite without any.

    A model's count may include its image encoder, its prediction layers, or the attention masks of old repositories.
    """
    counted, parameters = _counted(config), item.entry.parameters or item.named["parameters"]
    if not counted or not parameters:
        return float("inf")
    if template.parameters == parameters and config == template.config:
        return 0.0  # all the same, down to the image encoder
    inner = _inner(config)
    partial = item.named["geometry_llmfit"]
    layers, hidden = (
        inner.get(_key_in(inner, PARTIAL[key])) or 0 for key in (LAYERS, "hidden_size")
    )
    vocabulary = hidden * (inner.get("vocab_size") or 0)
    masks = layers * (inner.get("max_position_embeddings") or inner.get("n_positions") or 0) ** 2
    extras = [0, masks] if abs(counted + masks - parameters) < parameters * 1e-5 else [0]
    if partial.get("num_experts"):  # a prediction layer, with or without embeddings of its own
        layer = (counted - 2 * vocabulary) // max(layers, 1) + 2 * hidden * hidden
        extras += [layer, layer + 2 * vocabulary]
    best = min(abs((counted + extra) / parameters - 1) for extra in extras)
    is_whole = bool(partial.get("hidden_size") and partial.get(LAYERS))
    tower = TOWER if is_whole or config == template.config else USUAL_TOWER
    if sees and 0 < parameters - counted <= min(tower, counted / 2):
        best = min(best, MOST_OFF)
    return best


def _has_stated_size(config: Mapping[str, Any], item: Known) -> bool:
    """Whether all of DATA's numbers are known and the parameters that follow are those that the name states.

    DATA's count is then that of a part of the model's files ('deepseek-llm-7b-chat', 5.1 B), or there is none.
    """
    partial = item.named["geometry_llmfit"]
    stated, counted = _stated_size(item.hub_id), _counted(config)
    if stated is None or not all(partial.get(name) for name in PARTIAL):
        return False
    off, off_now = (abs(count - stated) for count in (counted, item.entry.parameters or 0))
    return counted > (item.entry.parameters or 0) and off < min(off_now, MOST_OFF_STATED * stated)


def _stated_size(hub_id: str) -> int | None:
    """The number of parameters that the name states: 'deepseek-llm-7b-chat' -> 7,000,000,000."""
    with suppress(EdgekitError):
        stated = from_name(hub_id.rpartition("/")[2])
        return None if stated.has_experts else stated.parameters
    return None


def _counted(config: Mapping[str, Any]) -> int:
    """The parameters that the config implies; 0 if it does not describe a model."""
    return _count(json.dumps(config, sort_keys=True, default=dict))


@lru_cache(maxsize=4096)
def _count(text: str) -> int:
    config = json.loads(text)
    try:
        geometry = open_config(config).model.geometry
        return sum(tensor.elements for tensor in expected_tensors(geometry, config))
    except (EdgekitError, TypeError, ValueError, ArithmeticError):
        return 0


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    for name in ("text_config", "language_config", "llm_config", "thinker_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping) and inner:
            return inner
    return config


def _filled(
    template: Mapping[str, Any], partial: Mapping[str, Any], *, tied: bool | None
) -> dict[str, Any]:
    """The template with the model's own numbers. Lists of layers of another length are left out."""
    inner_name = next((name for name, value in template.items() if value is _inner(template)), None)
    inner = dict(_inner(template))
    for name, keys in PARTIAL.items():
        if partial.get(name) and (name != "head_dim" or _has_own_width(inner, partial)):
            inner[_key_in(inner, keys)] = partial[name]
    experts = partial.get("num_experts")
    width = partial.get("moe_intermediate_size") or partial.get("feed_forward_or_expert_size")
    if experts:
        for key in ("num_experts", "num_local_experts", "n_routed_experts"):
            if key in inner:
                inner[key] = experts
        for key in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"):
            if key in inner and partial.get("active_experts"):
                inner[key] = partial["active_experts"]
        if width and "moe_intermediate_size" in inner:
            inner["moe_intermediate_size"] = width
    elif width:
        inner[_key_in(inner, WIDTHS)] = width
    for key in LAYER_LISTS:
        if isinstance(inner.get(key), list) and len(inner[key]) != inner.get("num_hidden_layers"):
            del inner[key]
    config = dict(template)
    if inner_name is None:
        config = inner
    else:
        config[inner_name] = inner
    if tied is not None:
        config["tie_word_embeddings"] = tied
    return config


def _has_own_width(inner: Mapping[str, Any], partial: Mapping[str, Any]) -> bool:
    """Whether the width of a head is a number of its own: DATA divides where a config states none."""
    heads, hidden = partial.get("num_attention_heads"), partial.get("hidden_size")
    return "head_dim" in inner or bool(heads and hidden and partial["head_dim"] != hidden // heads)


def _without_geometry(entry: Entry) -> Entry:
    """Only sizes by rule of thumb: parameters x bits of the mix, plus 5 % for experts.

    If no source has the number of parameters, it is the one in the name.
    """
    if not entry.parameters:
        name = re.sub(r"(?<=\d)_(?=\d+b(?:-|$))", ".", (entry.repository or entry.id).lower())
        try:
            named = from_name(name.rpartition("/")[2])
        except EdgekitError:
            return replace(entry, basis=Basis.ASSUMED)
        origin = Source(text="its name", basis=Basis.ASSUMED)
        entry = replace(
            entry,
            parameters=named.parameters,
            active_parameters=None if named.has_experts else named.parameters,
            sources={**entry.sources, "parameters": origin, "active_parameters": origin},
        )
    parameters = entry.parameters or 0
    factor = 1.0 if entry.active_parameters == parameters else 1.05
    sizes = []
    for mix in USUAL_MIXES:
        known = mix_by_name(mix)
        if known is not None:
            size = round(parameters * known.bits_per_weight / 8 * factor)
            sizes.append(Size(mix=mix, tensor_bytes=size, basis=Basis.ASSUMED))
    source = Source(text="parameters x bits of the quantisation", basis=Basis.ASSUMED)
    return replace(
        entry, basis=Basis.ASSUMED, sizes=tuple(sizes), sources={**entry.sources, "sizes": source}
    )


# --- rows


def rows_of(data: Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def build(data: Path, built: str) -> dict[str, list[tuple[Cell, ...]]]:
    """The rows of every table."""
    from tools.quality import evidence_rows, loss_rows  # tools/quality.py
    from tools.repositories import repository_rows  # tools/repositories.py

    models = models_of(data)
    sources, headers = Sources(), dict[str, int]()
    tables: dict[str, list[tuple[Cell, ...]]] = defaultdict(list)
    for item in models:
        tables["models"].append(
            _model_row(item.entry, sources, _geometry(item.entry, headers, tables))
        )
        tables["names"] += _name_rows(item)
    by_repository = {item.hub_id.lower(): item.entry for item in models if item.hub_id}
    by_name = {current_name(hub_id): entry for hub_id, entry in by_repository.items()}
    aliases = _aliases(data, by_name, sources)
    tables["names"] = sorted({*tables["names"], *aliases}, key=str)
    tables["names"] = _without_repeats(tables["names"])
    tables["repositories"] = [
        (model, form, name, quants, listed, downloads, as_json(sorted(map(sources.number, found))))
        for model, form, name, quants, listed, downloads, found in repository_rows(
            data, by_repository, licensed
        )
    ]
    for row in evidence_rows(data):
        entry = by_name.get(current_name(row["model"]))
        if entry is not None:
            cells = (entry.id, row["benchmark"], float(row["score"]), row["date"], row["setting"])
            number = sources.number(_published(row))
            tables["evidence"].append((*cells, row["measured_by"], number))
    for row in loss_rows(data):
        cells = (row["what"], row["scheme"], row["model"], row["measure"], float(row["value"]))
        number = sources.number(_published(row))
        tables["losses"].append((*cells, row["error"], row["corpus"], row["date"], number))
    tables["sources"] = list(sources.rows())
    tables["meta"] = [("schema", str(SCHEMA)), ("built", built), ("tool", "tools/index.py")]
    return tables


def _published(row: Mapping[str, Any]) -> Source:
    """The source of a score or a loss."""
    (source,) = licensed([row])
    return source


def _geometry(
    entry: Entry, headers: dict[str, int], tables: dict[str, list[tuple[Cell, ...]]]
) -> int | None:
    """The number of the entry's header in the table of geometries, which gets a row for a new one."""
    if entry.header is None and not entry.sizes:
        return None
    content = header_json(entry.header) if entry.header is not None else {}
    sizes = {size.mix: [size.tensor_bytes, size.basis.value] for size in entry.sizes}
    text = json.dumps([content, sizes], sort_keys=True, separators=(",", ":"))
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    if fingerprint not in headers:
        headers[fingerprint] = len(headers) + 1
        packed = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 9)
        forms = ",".join(forms_of(entry.header)) if entry.header is not None else ""
        ordered = json.dumps(sizes, separators=(",", ":"))
        tables["geometries"].append((headers[fingerprint], fingerprint, packed, ordered, forms))
    return headers[fingerprint]


def _model_row(entry: Entry, sources: Sources, geometry: int | None) -> tuple[Cell, ...]:
    facts: dict[str, list[str]] = defaultdict(list)
    for fact, source in sorted(entry.sources.items()):
        facts[str(sources.number(source))].append(fact)
    return (
        entry.id, entry.repository, entry.publisher, entry.family, ",".join(kind.value for kind in entry.kinds),
        entry.architecture, entry.parameters, entry.active_parameters, entry.native_context, entry.vocabulary,
        entry.licence, entry.released, entry.not_before, entry.base_model, entry.uses, geometry, entry.basis.value,
        as_json(facts),
    )  # fmt: skip


def _name_rows(item: Known) -> list[tuple[Cell, ...]]:
    """The spellings of the id and of the repository's name."""
    rows: list[tuple[Cell, ...]] = []
    for text in {
        item.entry.id,
        item.hub_id.rpartition("/")[2],
        *([item.entry.repository] if item.entry.repository else []),
        *earlier_ids(item.entry.repository or ""),
    }:
        rows += _spelling_rows(text, item.entry.id, None, None)
    return rows


def _spelling_rows(
    text: str, model: str, scheme: str | None, source: int | None
) -> list[tuple[Cell, ...]]:
    """The spellings of a name, each at the tightest level at which it occurs."""
    found: dict[str, int] = {}
    for level, spelling in enumerate(spellings(text), 1):
        if spelling:
            found.setdefault(spelling, level)
    return [(spelling, model, scheme, source, level) for spelling, level in found.items()]


# Tools whose names for models are of use to people who type them.
SCHEMES = {"ollama", "lmstudio", "gpustack", "xinference", "ramalama", "docker", "display"}


# A version or a date in a tag: "v0.1", "2407", not the size "3.8b".
_VERSION = re.compile(r"(?<![a-z0-9.])v?(\d+\.\d+|\d{4})(?![\d.]*[bmk])")


def has_other_version(tag: str, entry: Entry) -> bool:
    """Whether the tag names another version than the model: "command-r:35b-v0.1" is not command-r-08-2024."""
    names = f"{entry.id} {entry.repository or ''}".lower()
    return any(version not in names for version in _VERSION.findall(tag))


def shorter_tags(tags: Iterable[Mapping[str, Any]], models: Mapping[str, str]) -> dict[str, str]:
    """What people leave out of a tag: 'aya' is 'aya:latest', 'aya:8b' is 'aya:8b-23-q8_0' if all 8b are one model."""
    found: dict[str, set[str | None]] = defaultdict(set)
    for row in tags:
        tag = row["tag"].lower()
        name, _, rest = tag.partition(":")
        if rest == "latest":
            found[name].add(models.get(tag))
        elif "-" in rest and SIZE_IN_NAME.fullmatch(rest.partition("-")[0]):
            found[f"{name}:{rest.partition('-')[0]}"].add(models.get(tag))
    only = {tag: next(iter(named)) for tag, named in found.items() if len(named) == 1}
    return {tag: model for tag, model in only.items() if model is not None}


def _aliases(data: Path, by_name: Mapping[str, Entry], sources: Sources) -> list[tuple[Cell, ...]]:
    """Names that other programs use: exact ones, and those without a tag in other spellings."""
    rows: list[tuple[Cell, ...]] = []
    ollama = [row for row in ollama_tags(data) if not row["licence"].startswith(NO_LICENCE)]
    number = sources.number(licensed(ollama[:1])[0])
    by_spelling = {spellings(name)[0]: entry for name, entry in by_name.items()}
    models_by_tag: dict[str, str] = {}
    for row in ollama:
        entry = by_name.get(current_name(row["hub_id"] or ""))
        # "qwen3:30b-a3b-thinking-2507-q8_0" states its model, whatever the source takes it for
        entry = (
            by_spelling.get(spellings(read_name(row["tag"]).plain)[0], entry)
            if "-" in row["tag"]
            else entry
        )
        if entry is not None and not has_other_version(row["tag"].lower(), entry):
            models_by_tag[row["tag"].lower()] = entry.id
    stated = {name["name"].lower() for row in rows_of(data, "names") for name in row["names"]}
    shorter = {
        tag: model
        for tag, model in shorter_tags(ollama, models_by_tag).items()
        if tag not in stated
    }
    for tag, model in {**shorter, **models_by_tag}.items():
        rows.append((tag, model, "ollama", number, 0))
    for row in rows_of(data, "names"):
        entry = by_name.get(current_name(row["hub_id"]))
        labels = licensed(row["sources"])
        for name in row["names"]:
            if entry is None or name["scheme"] not in SCHEMES:
                continue
            source = (
                source_of(name["scheme"], labels)
                or source_of("llmfit", labels)
                or (labels[0] if labels else None)
            )
            if source is None:
                continue
            rows.append((name["name"].lower(), entry.id, name["scheme"], sources.number(source), 0))
            if name["scheme"] in {"display", "gpustack", "lmstudio"}:
                rows += _spelling_rows(
                    name["name"], entry.id, name["scheme"], sources.number(source)
                )
    return rows


def _without_repeats(rows: list[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """One row per spelling and model, at its tightest level; an exact name stays in addition."""
    best: dict[tuple[Cell, Cell, bool], tuple[Cell, ...]] = {}
    for row in sorted(rows, key=lambda row: (row[4], row[2] is None, str(row))):
        best.setdefault((row[0], row[1], row[4] == 0), row)
    return list(best.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--built", default=date.today().isoformat())  # noqa: DTZ011 - a day is enough
    parser.add_argument("--output", type=Path, default=PACKAGED)
    arguments = parser.parse_args()
    tables = build(arguments.data, arguments.built)
    write_sqlite(arguments.output, tables)
    for name, rows in tables.items():
        print(f"{name}: {len(rows):,} rows")
    models = [row for row in tables["models"] if row[16] == "exact"]
    print(
        f"{len(models):,} models with an exact geometry, {arguments.output.stat().st_size:,} bytes"
    )


if __name__ == "__main__":
    main()
