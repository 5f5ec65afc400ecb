"""The tables of the index from a journal. Read in the order of names, so equal journals make equal tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from edgekit.app.crawl.journal import Journal
from edgekit.app.crawl.plan import OWN, bytes_of, form_of, gguf_sets, left_out, quants_of
from edgekit.app.crawl.types import Listed, Outcome, Status, TaskKind
from edgekit.index.ids import family_of, id_of, kinds_of
from edgekit.index.names import spellings
from edgekit.index.repositories import MAX_TAGS, is_tag
from edgekit.index.tables import Column, Kind, Row, Table, as_json
from edgekit.index.types import SCHEMA, uses_of_downloads
from edgekit.units import Basis

# Repositories of the listing that have no row, and models without a geometry. Not a table of an index: only a crawl
# has it, as a Parquet file.
PROBLEMS = Table(
    name="problems",
    columns=(
        Column(name="repository", kind=Kind.TEXT, required=True),
        Column(name="status", kind=Kind.TEXT, required=True),
        Column(name="detail", kind=Kind.TEXT, required=True),
    ),
)

# Sources by number: what they are, and how the facts from them are known.
LISTING, CONFIG, GGUF, FILES, QUANTISATION, NAME = range(1, 7)
_SOURCES = {
    LISTING: ("{hub}/api/models", Basis.EXACT),
    CONFIG: ("{hub}/REPOSITORY/resolve/main/config.json", Basis.EXACT),
    GGUF: ("{hub}/REPOSITORY/resolve/main/FILE.gguf, its header", Basis.EXACT),
    FILES: ("{hub}/api/models/REPOSITORY?blobs=true", Basis.EXACT),
    QUANTISATION: ("the header of a file that is stated to be a quantisation of it", Basis.ASSUMED),
    NAME: ("its name, and what its header says it is", Basis.ASSUMED),
}
_FROM_HEADER = ("parameters", "active_parameters", "native_context", "vocabulary")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A model of the index: its repositories, and what was read of its geometry."""

    name: str
    group: tuple[Listed, ...]  # without those that are left out
    outcome: Outcome

    @property
    def own(self) -> Listed | None:
        return next((item for item in self.group if item.name == self.name), None)

    @property
    def downloads(self) -> int:
        return sum(item.downloads for item in self.group)

    @property
    def is_converted(self) -> bool:
        """Whether it has only GGUFs, so that it is probably not where the model was published first."""
        return self.own is None or not any(
            path == "config.json" for path, _ in self.own.files or ()
        )


class Rows:
    """The rows of every table, each table read once from the journal."""

    def __init__(self, journal: Journal, hub: str, built: str, tool: str) -> None:
        self._journal = journal
        self._hub, self._built, self._tool = hub, built, tool
        self._ids: dict[
            str, tuple[bool, int, str]
        ] = {}  # short id -> rank of the model that has it
        used = set()
        for model in self._models():
            short = id_of(model.name)
            rank = (model.is_converted, -model.downloads, model.name)
            self._ids[short] = min(rank, self._ids.get(short, rank))
            if (fingerprint := _fingerprint(model.outcome)) is not None:
                used.add(fingerprint)
        self._geometries = {fingerprint: i for i, fingerprint in enumerate(sorted(used), 1)}

    def tables(self) -> dict[str, Iterator[Row]]:
        return {
            "models": (self._model_row(model) for model in self._models()),
            "geometries": self._geometry_rows(),
            "repositories": (
                row for model in self._models() for row in self._repository_rows(model)
            ),
            "names": (row for model in self._models() for row in self._name_rows(model)),
            "sources": self._source_rows(),
            "meta": iter(
                [
                    ("schema", str(SCHEMA)),
                    ("built", self._built),
                    ("tool", self._tool),
                    ("hub", self._hub),
                ]
            ),
            "problems": self._problem_rows(),
        }

    def _models(self) -> Iterator[_Model]:
        for name, items in self._journal.repositories_of_models():
            outcome = self._journal.outcome(TaskKind.GEOMETRY, name)
            group = tuple(
                item for item in items if left_out(item, is_own=item.name == name) is None
            )
            if outcome is not None and group and outcome.status is not Status.NOT_A_MODEL:
                yield _Model(name=name, group=group, outcome=outcome)

    def id_of(self, model: _Model) -> str:
        """'qwen3-8b' for the model that has the short id, 'qwen3-8b-gguf@owner' for another."""
        short = id_of(model.name)
        if self._ids[short][2] == model.name:
            return short
        owner, _, base = model.name.lower().rpartition("/")
        return f"{base}@{owner}"

    def _model_row(self, model: _Model) -> Row:
        own, name = model.own, self.id_of(model)
        fingerprint = _fingerprint(model.outcome)
        facts: dict[str, Any] = {} if fingerprint is None else self._journal.facts(fingerprint)
        found = json.loads(model.outcome.found)
        is_own = found.get("repository") == model.name
        base = None if own is None else _base_model(own)
        by: dict[int, list[str]] = {LISTING: ["repository", "uses"]}
        by[LISTING] += ["licence"] if own is not None and own.licence else []
        by[LISTING] += ["not_before"] if own is not None and own.created else []
        by[LISTING] += ["base_model"] if base is not None else []
        by[NAME] = ["family"]
        kinds = ""
        if facts:
            header = CONFIG if found.get("path") == "config.json" else GGUF
            by[header if is_own else QUANTISATION] = [
                "architecture", "sizes", *(fact for fact in _FROM_HEADER if facts[fact] is not None),
            ]  # fmt: skip
            by[NAME].append("kinds")
            purposes = kinds_of(
                name, causal=facts["causal"], pooled=facts["pooled"], sees=facts["sees"]
            )
            kinds = ",".join(kind.value for kind in purposes)
        is_exact = bool(facts) and is_own and facts["basis"] == Basis.EXACT.value
        return (
            name,
            model.name,
            model.name.rpartition("/")[0] or None,
            family_of(name.partition("@")[0].lower()),
            kinds,
            facts.get("architecture"),
            *(facts.get(fact) for fact in _FROM_HEADER),
            None if own is None else own.licence,
            None,  # when it was released: the hub only knows when the repository was created
            None if own is None else own.created,
            base,
            uses_of_downloads(model.downloads),
            None if fingerprint is None else self._geometries[fingerprint],
            (Basis.EXACT if is_exact else Basis.ASSUMED).value,
            as_json({str(number): sorted(names) for number, names in by.items()}),
        )

    def _geometry_rows(self) -> Iterator[Row]:
        for fingerprint, header, facts in self._journal.geometries():
            number = self._geometries.get(fingerprint)
            if number is not None:
                largest_first = sorted(facts["sizes"].items(), key=lambda size: (-size[1][0], size))
                sizes = json.dumps(dict(largest_first), separators=(",", ":"))
                yield number, fingerprint, header, sizes, ",".join(facts["forms"])

    def _repository_rows(self, model: _Model) -> Iterator[Row]:
        name = self.id_of(model)
        for item in model.group:
            is_own = item.name == model.name
            fetched = self._journal.outcome(TaskKind.FILES, item.name)
            sources = [LISTING]
            if fetched is not None and fetched.status is Status.DONE:
                sources.append(FILES)
            forms: dict[str, dict[str, int | None]] = {}
            if sets := gguf_sets(item):
                forms["gguf"] = {}
                for group in sets:
                    forms["gguf"].setdefault(group.tag or "", bytes_of(group))
            has_weights = any(
                path.endswith((".safetensors", ".bin")) for path, _ in item.files or ()
            )
            form = form_of(item, is_own=is_own)
            if has_weights and (form is not None or is_own):
                kind = OWN if form is None else form.name
                forms[kind] = quants_of(item, kind)
            for kind, sizes in forms.items():
                # Without files that name no quantisation, and safetensors whose types are not known.
                tags = islice(filter(is_tag, sizes), MAX_TAGS)
                quants = {tag: sizes[tag] for tag in tags}
                yield name, kind, item.name, as_json(quants), 1, item.downloads, as_json(sources)

    def _name_rows(self, model: _Model) -> Iterator[Row]:
        """The spellings of the id and of the repository, each at the tightest level at which it occurs."""
        name = self.id_of(model)
        found: dict[str, int] = {}
        for text in (name, model.name.rpartition("/")[2], model.name):
            for level, spelling in enumerate(spellings(text), 1):
                if spelling:
                    found[spelling] = min(level, found.get(spelling, level))
        for spelling, level in found.items():
            yield spelling, name, None, NAME, level

    def _source_rows(self) -> Iterator[Row]:
        for number, (name, basis) in _SOURCES.items():
            yield number, name.format(hub=self._hub), None, self._built, basis.value

    def _problem_rows(self) -> Iterator[Row]:
        yield from self._journal.skipped()
        for model, items in self._journal.repositories_of_models():
            outcome = self._journal.outcome(TaskKind.GEOMETRY, model)
            for item in items:
                why = left_out(item, is_own=item.name == model)
                if why is not None:
                    yield item.name, why[0].value, why[1]
            if outcome is not None and outcome.status is not Status.DONE:
                yield model, outcome.status.value, outcome.detail


def _fingerprint(outcome: Outcome) -> str | None:
    if outcome.status is not Status.DONE:
        return None
    fingerprint: str = json.loads(outcome.found)["fingerprint"]
    return fingerprint


def _base_model(item: Listed) -> str | None:
    """The one model it was made from by training or merging, if that is stated."""
    bases = {base for relation, base in item.bases if relation != "adapter"}
    return bases.pop() if len(bases) == 1 else None
