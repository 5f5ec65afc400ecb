"""Entries of the index as text and as JSON (docs/index.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from edgekit.errors import EdgekitError
from edgekit.index.database import header_of
from edgekit.index.ids import kinds_of
from edgekit.index.quality import Quality
from edgekit.index.records import header_json
from edgekit.index.repositories import Form, model_at, names_of, repositories_of
from edgekit.index.titles import publisher_of, title_of
from edgekit.index.types import NO_HEADER, Entry, Index, ModelPurpose, Size, Source
from edgekit.plan.recommend import entry_quality
from edgekit.report.json import SCHEMA, Json, error_json, fields
from edgekit.report.text import (
    PLAIN,
    Screen,
    Sections,
    clamp_width,
    fitted_table,
    fold,
    render,
    table,
)
from edgekit.units import Basis, format_bytes, format_count, format_download

if TYPE_CHECKING:
    from edgekit.app.index_update import IndexUpdate
    from edgekit.sources.hub import FoundRepository

FOUR_BIT_MIXES = ("MXFP4_MOE", "Q4_K_M")  # the model's own 4-bit format, else the most common one
_COLUMNS = ("model", "parameters", "4-bit", "context", "for", "from", "geometry", "licence")
_WORD_COLUMNS = frozenset({"model", "for", "from", "geometry", "licence"})
_UNKNOWN = "-"
MAX_ID_COLUMNS = 26  # of a table; ids have up to 79 characters
SHOWN_SCORES = 6  # of one task
# What EdgeKit knows of a model's layers and widths.
EXACT, ASSUMED, UNKNOWN = "exact", "assumed", "unknown"


def geometry_basis(entry: Entry) -> str:
    """EXACT: the model's own geometry, or proved equal. ASSUMED: put together from partial numbers. Else UNKNOWN."""
    if not entry.has_geometry:
        return UNKNOWN
    return EXACT if entry.basis is Basis.EXACT else ASSUMED


def index_text(
    entries: Sequence[Entry], matching: int, index: Index, screen: Screen = PLAIN
) -> str:
    """The table of the first of `matching` models, and the entries that could not be read."""

    def lines(screen: Screen) -> list[str]:
        rows = []
        narrow = screen.width < 100
        for entry in entries:
            size = next(filter(None, map(entry.size, FOUR_BIT_MIXES)), None)
            active = "" if narrow or _active(entry) in {"", _UNKNOWN} else f" ({_active(entry)})"
            is_long = narrow and len(entry.id) > MAX_ID_COLUMNS
            rows.append(
                (
                    f"{entry.id[: MAX_ID_COLUMNS - 2]}.." if is_long else entry.id,
                    f"{_count(entry.parameters)}{active}",
                    _UNKNOWN
                    if size is None
                    else f"{_about(size)}{format_bytes(size.tensor_bytes)}",
                    _tokens(entry.native_context),
                    _other_kinds(entry) if narrow else _kinds(entry),
                    "you" if entry.is_users else "",
                    geometry_basis(entry),
                    entry.licence or _UNKNOWN,
                )
            )
        used = [i for i in range(len(_COLUMNS)) if i == 0 or any(row[i] for row in rows)]
        head = [_COLUMNS[i] for i in used]
        left = [i for i, name in enumerate(head) if name in _WORD_COLUMNS]
        return fitted_table(head, [[row[i] for i in used] for row in rows], screen.width, left)

    total = f"{len(index.entries):,} models"
    first = f"{matching:,} of {total}"
    if len(entries) < matching:
        is_filtered = matching < len(index.entries)
        of = f"{matching:,} matching models ({total} in all)" if is_filtered else total
        first = f"the {len(entries):,} most used of {of}"
    more = ["--all lists all of them"] if len(entries) < matching else []
    sections: Sections = [
        ("", lines if entries else ()),
        ("Note", (*more, *index.problems)),
    ]
    return render(first, sections, screen)


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else format_count(number)


def _about(size: Size) -> str:
    """'~' in front of a size that only the number of parameters tells."""
    return "~" if size.basis is Basis.ASSUMED else ""


def _tokens(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _kinds(entry: Entry) -> str:
    return ", ".join(kind.value for kind in entry.kinds) or _UNKNOWN


def _other_kinds(entry: Entry) -> str:
    """Without chat, which goes without saying for most models; chat if it is the only one."""
    others = [kind.value for kind in entry.kinds if kind is not ModelPurpose.CHAT]
    return ", ".join(others) or _kinds(entry)


def _active(entry: Entry) -> str:
    return "" if entry.active_parameters == entry.parameters else _count(entry.active_parameters)


def _headline(entry: Entry) -> str:
    """'qwen3-8b: 8.19 B parameters, 40,960 tokens, for chat'."""
    parts = []
    if entry.parameters is not None:
        active = f", {_active(entry)} active" if _active(entry) else ""
        parts.append(f"{format_count(entry.parameters)} parameters{active}")
    if entry.native_context is not None:
        parts.append(f"{entry.native_context:,} tokens")
    if entry.kinds:
        parts.append(f"for {_kinds(entry)}")
    return f"{entry.id}: {', '.join(parts)}".rstrip(": ")


def entry_text(entry: Entry, screen: Screen = PLAIN, *, notes: tuple[str, ...] = ()) -> str:
    """Everything that is known about one model, with sources. `notes`: how its name was understood, for instance."""

    def size_lines(screen: Screen) -> list[str]:
        rows = [
            (
                size.mix,
                format_bytes(size.tensor_bytes),
                f"{size.tensor_bytes:,} bytes",
                size.basis.value,
            )
            for size in entry.sizes
        ]
        lines = table(("quant", "weights", "", ""), rows)
        if max(map(len, lines)) > screen.width:
            return table(("quant", "weights"), [row[:2] for row in rows])
        return lines

    released = entry.released or "unknown"
    if entry.released is None and entry.not_before is not None:
        released = f"not before {entry.not_before}"
    facts = [
        f"publisher {entry.publisher or 'unknown'}, licence {entry.licence or 'unknown'}",
        f"released {released}",
        f"repository {entry.repository or 'unknown'}",
        *([f"base model {entry.base_model}"] if entry.base_model else []),
        f"family {entry.family}, architecture {entry.architecture or 'unknown'}",
        f"vocabulary {_tokens(entry.vocabulary)}",
        f"geometry {_geometry_words(entry)}",
        *([f"you added it from {entry.reference}"] if entry.reference else []),
    ]
    runs_on = ["llama.cpp, from its GGUF header"] if "gguf" in entry.forms else []
    if "config" in entry.forms:
        engines = "vLLM and MLX" if runs_on else "llama.cpp, vLLM and MLX, if they support it"
        runs_on.append(f"{engines}, from its config.json")
    downloads, tags = [], []
    for repository in () if entry.is_users else repositories_of(entry.id):
        usual = "" if repository.listed else "usually "
        quants = [
            tag if size is None else f"{tag} {format_download(size)}"
            for tag, size in repository.sizes.items()
        ]
        listed = f": {usual}{', '.join(quants)}" if quants else ""
        if repository.form is Form.OLLAMA:
            tags.append(f"{repository.name}{listed}")
        else:
            makers = ", ".join(dict.fromkeys(map(_short_source, repository.sources)))
            downloads.append(f"{repository.form.value} {repository.name}{listed} ({makers})")
    by_scheme: dict[str, list[str]] = {}
    for name in () if entry.is_users else names_of(entry.id):
        if name.scheme != Form.OLLAMA.value:  # those are the tags
            by_scheme.setdefault(name.scheme, []).append(name.spelling)
    names = [f"{scheme} {', '.join(spelled)}" for scheme, spelled in by_scheme.items()]
    speeds = [
        f"{speed.tokens_per_s:g} tokens/s on {speed.device}, {speed.setting}: {speed.source}"
        for speed in entry.speeds
    ]
    by_source: dict[Source, list[str]] = {}
    for fact, source in entry.sources.items():
        by_source.setdefault(source, []).append(fact.replace("_", " "))
    sources = []
    for source, about in by_source.items():
        terms = ", ".join(filter(None, (source.licence, source.date and f"read {source.date}")))
        sources.append(
            f"{', '.join(about)} ({source.basis.value}): {source.text}{terms and f' ({terms})'}"
        )
    sections: Sections = [
        ("Note", notes),
        ("Model", facts),
        ("Runs on", runs_on),
        ("Sizes", size_lines if entry.sizes else ()),
        ("Download", downloads),
        ("Ollama", tags),
        ("Names", names),
        ("Scores", list(_score_lines(entry))),
        ("Speed", speeds),
        ("Sources", sources),
    ]
    return render(_headline(entry), sections, screen)


def _geometry_words(entry: Entry) -> str:
    """How the model's layers and widths are known, and from what."""
    basis = geometry_basis(entry)
    source = entry.sources.get("geometry") or entry.sources.get("parameters")
    if basis == UNKNOWN:
        return "unknown"
    words = "exact" if basis == EXACT else "put together from partial numbers"
    return words if source is None else f"{words}: {source.text}"


def _short_source(text: str) -> str:
    """'pypi:llmfit==1.1.17 (...)' -> 'llmfit', 'mudler/LocalAI:gallery/index.yaml' -> 'mudler/LocalAI'."""
    return re.split(r"[:=@ ]", text.removeprefix("pypi:"), maxsplit=1)[0]


def _qualities(entry: Entry) -> tuple[Quality, ...]:
    """The model's quality at each of its tasks."""
    return tuple(entry_quality(entry, kind) for kind in entry.kinds)


def _score_lines(entry: Entry) -> Iterator[str]:
    """A line for each task: what is expected in its reference benchmark, and the published scores behind it."""
    for quality in _qualities(entry):
        scores = [
            f"{score.benchmark} {score.score:g} ({', '.join(filter(None, (score.date, score.measured_by)))})"
            for score in quality.scores[:SHOWN_SCORES]
        ]
        more = len(quality.scores) - len(scores)
        listed = ": " + ", ".join(scores) if scores else ""
        others = f" and {more} more" if more else ""
        yield (
            f"{quality.task.value} {quality.value:.0f} of 100 ({quality.low:.0f} to {quality.high:.0f}),"
            f" {quality.basis.value}{listed}{others}"
        )


def added_text(entry: Entry, *, new: bool, shadows: bool) -> str:
    first = f"{'added' if new else 'read again'}: {_headline(entry)}"
    return f"{first}\nit replaces the built-in entry of the same name" if shadows else first


def changes_text(name: str, changes: Mapping[str, tuple[object, object]]) -> str:
    """The facts of an entry that changed, with their old and new values."""
    if not changes:
        return f"{name}: unchanged"
    lines = [f"{name}: changed"]
    for field, pair in changes.items():
        values = "changed"
        if all(isinstance(value, int | str | None) for value in pair):
            values = " -> ".join(map(_value, pair))
        lines.append(f"  {field.replace('_', ' ')}: {values}")
    return "\n".join(lines)


NAMED = 10  # models that are listed by name


def merged_text(update: IndexUpdate) -> str:
    """What the merge of a published index changed."""
    merged = update.merged
    counts = f"{len(merged.added):,} models added, {len(merged.changed):,} changed"
    if merged.removed:
        counts += f", {len(merged.removed):,} removed"
    lines = [f"index of {merged.built}: {counts}, {merged.unchanged:,} unchanged"]
    for verb in ("added", "changed", "removed"):
        if names := getattr(merged, verb):
            more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
            lines.append(f"  {verb}: {', '.join(names[:NAMED])}{more}")
    if update.address is not None:
        signed = "" if update.signed_by is None else f", signed by {update.signed_by}"
        lines.append(f"  from {update.address} of {update.built}, SHA-256 {update.sha256}{signed}")
    lines.append(f"  saved in {update.path}")
    if update.moved_aside is not None:
        lines.append(f"  your old copy could not be read: it is now {update.moved_aside}")
    return "\n".join(lines)


def merged_json(update: IndexUpdate | None) -> Json | None:
    """The same; None if no index was merged."""
    if update is None:
        return None
    return {
        **fields(update, "from=address published=built sha256 signed_by"),
        **fields(
            update,
            "built=merged.built added=merged.added changed=merged.changed removed=merged.removed",
        ),
        "unchanged": update.merged.unchanged,
        "path": str(update.path),
    }


def _value(value: object) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else str(value)


def lines_text(lines: Iterable[str], screen: Screen = PLAIN) -> str:
    """Sentences, each folded; an indent of two spaces is preserved."""
    width, rows = clamp_width(screen.width), []
    for line in "\n".join(lines).split("\n"):
        indent = "  " if line.startswith("  ") else ""
        rows += [indent + row for row in fold(line.strip(), width - len(indent))]
    return "\n".join(rows) + "\n"


def completion_json(text: str, entries: Iterable[Entry]) -> Json:
    """The models that what was typed may mean, the best first."""
    models = [
        {
            "id": entry.id,
            "title": title_of(entry),
            "publisher": publisher_of(entry),
            **fields(entry, "parameters active_parameters"),
            "kinds": [kind.value for kind in entry.kinds],
            "repository": entry.repository,
        }
        for entry in entries
    ]
    return {"schema": SCHEMA, "query": text, "models": models}


# The hub's names of tasks that EdgeKit's models have.
_EMBEDDING_TASKS = frozenset({"feature-extraction", "sentence-similarity"})
_VISION_TASKS = frozenset({"image-text-to-text", "image-to-text", "any-to-any"})
_CHAT_TASKS = frozenset({"text-generation", *_VISION_TASKS})


def hub_search_json(text: str, found: Iterable[FoundRepository]) -> Json:
    """The repositories that the hub found. `model`: the id of the index, if it knows the repository."""
    models = []
    for repository in found:
        task, known = repository.pipeline, model_at(repository.id)
        kinds = kinds_of(
            repository.id.rpartition("/")[2].lower(),
            causal=task not in _EMBEDDING_TASKS,
            pooled=task in _EMBEDDING_TASKS,
            sees=task in _VISION_TASKS,
        )
        is_known_task = task in _CHAT_TASKS | _EMBEDDING_TASKS
        models.append({
            **fields(repository, "id downloads likes"),
            "kinds": [kind.value for kind in kinds] if is_known_task else [],
            "model": None if known is None else known[0],
        })  # fmt: skip
    return {"schema": SCHEMA, "query": text, "models": models}


def index_json(entries: Sequence[Entry], index: Index) -> Json:
    models = [entry_json(entry) for entry in entries]
    return {
        "schema": SCHEMA,
        "models": models,
        "count": len(index.entries),
        "problems": list(index.problems),
    }


def entry_json(entry: Entry, *, whole: bool = False) -> Json:
    """One model; `whole` adds its repositories, names and scores, and the keys and tensors it is rebuilt from."""
    answer: Json = {
        "title": title_of(entry),
        **fields(entry, "id repository publisher family architecture parameters active_parameters"),
        **fields(entry, "native_context vocabulary"),
        "kinds": [kind.value for kind in entry.kinds],
        **fields(entry, "licence released not_before base_model reference?"),
        "geometry": geometry_basis(entry),
        "forms": list(entry.forms),
        "sizes": [fields(size, "mix tensor_bytes basis") for size in entry.sizes],
        "speeds": [fields(speed, "device tokens_per_s setting source") for speed in entry.speeds],
        "sources": {
            fact: {
                "source": source.text,
                "basis": source.basis.value,
                **fields(source, "licence date"),
            }
            for fact, source in entry.sources.items()
        },
    }
    if not whole:
        return answer
    is_known = not entry.is_users
    return {
        **answer,
        "repositories": [
            {
                **fields(repository, "form name"),
                "quantisations": list(repository.quants),
                "file_bytes": dict(repository.sizes),
                **fields(repository, "listed sources"),
            }
            for repository in (repositories_of(entry.id) if is_known else ())
        ],
        "names": [
            fields(name, "spelling scheme") for name in (names_of(entry.id) if is_known else ())
        ],
        "quality": [
            {
                **fields(quality, "task value low high basis"),
                "scores": [
                    fields(score, "benchmark score date setting measured_by source")
                    for score in quality.scores
                ],
            }
            for quality in _qualities(entry)
        ],
        **header_json(header_of(entry) if entry.has_geometry else NO_HEADER),
    }


def outcomes_json(
    verb: str, done: Iterable[Json], failed: Iterable[tuple[str, EdgekitError]]
) -> Json:
    """The outcome for every reference or id: {verb: [...], "failed": [...]}."""
    failures = [{"name": name, "error": error_json(error)} for name, error in failed]
    return {"schema": SCHEMA, verb: list(done), "failed": failures}
