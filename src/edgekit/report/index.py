"""Entries of the catalog as text and as JSON (docs/catalog.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edgekit.errors import EdgekitError
from edgekit.index.database import header_of
from edgekit.index.records import header_json
from edgekit.index.repositories import repositories_of
from edgekit.index.types import NO_HEADER, Entry, Index
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
from edgekit.units import format_bytes, format_count

FOUR_BIT_MIXES = ("MXFP4_MOE", "Q4_K_M")  # the model's own 4-bit format, else the most common one
_COLUMNS = ("model", "parameters", "4-bit", "context", "for", "from", "active")
_WORD_COLUMNS = frozenset({"model", "for", "from"})
_UNKNOWN = "-"


def catalog_text(entries: Sequence[Entry], catalog: Index, screen: Screen = PLAIN) -> str:
    """The table, and the entries that could not be read."""

    def lines(screen: Screen) -> list[str]:
        rows = []
        for entry in entries:
            size = next(filter(None, map(entry.size, FOUR_BIT_MIXES)), None)
            rows.append(
                (
                    entry.id,
                    _count(entry.parameters),
                    _UNKNOWN if size is None else format_bytes(size.tensor_bytes),
                    _tokens(entry.native_context),
                    _kinds(entry),
                    "you" if entry.is_users else "",
                    _active(entry),
                )
            )
        used = [i for i in range(len(_COLUMNS)) if i == 0 or any(row[i] for row in rows)]
        head = [_COLUMNS[i] for i in used]
        left = [i for i, name in enumerate(head) if name in _WORD_COLUMNS]
        return fitted_table(head, [[row[i] for i in used] for row in rows], screen.width, left)

    sections: Sections = [("", lines if entries else ()), ("Note", catalog.problems)]
    return render(f"{len(entries)} of {len(catalog.entries)} models", sections, screen)


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else format_count(number)


def _tokens(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _kinds(entry: Entry) -> str:
    return ", ".join(kind.value for kind in entry.kinds) or _UNKNOWN


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


def entry_text(entry: Entry, screen: Screen = PLAIN) -> str:
    """Everything that is known about one model, with sources."""

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
        f"family {entry.family}, architecture {entry.architecture}",
        f"repository {entry.repository or 'unknown'}",
        f"vocabulary {_tokens(entry.vocabulary)}",
        f"released {released}, licence {entry.licence or 'unknown'}",
        *([f"you added it from {entry.reference}"] if entry.reference else []),
    ]
    runs_on = ["llama.cpp, from its GGUF header"] if "gguf" in entry.forms else []
    if "config" in entry.forms:
        engines = "vLLM and MLX" if runs_on else "llama.cpp, vLLM and MLX, if they support it"
        runs_on.append(f"{engines}, from its config.json")
    downloads = []
    for repository in () if entry.is_users else repositories_of(entry.id):
        usual = "" if repository.listed else "usually "
        quants = f": {usual}{', '.join(repository.quants)}" if repository.quants else ""
        downloads.append(
            f"{repository.form.value} {repository.name}{quants} ({', '.join(repository.sources)})"
        )
    speeds = [
        f"{speed.tokens_per_s:g} tokens/s on {speed.device}, {speed.setting}: {speed.source}"
        for speed in entry.speeds
    ]
    by_source: dict[tuple[str, str], list[str]] = {}
    for fact, source in entry.sources.items():
        by_source.setdefault((source.text, source.basis.value), []).append(fact.replace("_", " "))
    sources = [f"{', '.join(of)} ({basis}): {text}" for (text, basis), of in by_source.items()]
    sections: Sections = [
        ("Model", facts),
        ("Runs on", runs_on),
        ("Sizes", size_lines if entry.sizes else ()),
        ("Download", downloads),
        ("Speed", speeds),
        ("Sources", sources),
    ]
    return render(_headline(entry), sections, screen)


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


def catalog_json(entries: Sequence[Entry], catalog: Index) -> Json:
    models = [entry_json(entry) for entry in entries]
    return {"schema": SCHEMA, "models": models, "problems": list(catalog.problems)}


def entry_json(entry: Entry, *, whole: bool = False) -> Json:
    """One model; `whole` adds its repositories and the keys and tensors that it is rebuilt from."""
    answer: Json = {
        **fields(entry, "id repository family architecture parameters active_parameters"),
        **fields(entry, "native_context vocabulary"),
        "kinds": [kind.value for kind in entry.kinds],
        **fields(entry, "licence released not_before reference?"),
        "forms": list(entry.forms),
        "sizes": [fields(size, "mix tensor_bytes basis") for size in entry.sizes],
        "speeds": [fields(speed, "device tokens_per_s setting source") for speed in entry.speeds],
        "sources": {
            fact: {"source": source.text, "basis": source.basis.value}
            for fact, source in entry.sources.items()
        },
    }
    if not whole:
        return answer
    return {
        **answer,
        "repositories": [
            {
                **fields(repository, "form name"),
                "quantisations": list(repository.quants),
                **fields(repository, "listed sources"),
            }
            for repository in (() if entry.is_users else repositories_of(entry.id))
        ],
        **header_json(header_of(entry) if entry.has_geometry else NO_HEADER),
    }


def outcomes_json(
    verb: str, done: Iterable[Json], failed: Iterable[tuple[str, EdgekitError]]
) -> Json:
    """The outcome for every reference or id: {verb: [...], "failed": [...]}."""
    failures = [{"name": name, "error": error_json(error)} for name, error in failed]
    return {"schema": SCHEMA, verb: list(done), "failed": failures}
