"""Entries of the catalog as text and as JSON (docs/catalog.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from edgekit.catalog.repositories import repositories_of
from edgekit.catalog.types import Catalog, Entry
from edgekit.errors import EdgekitError
from edgekit.report.json import SCHEMA
from edgekit.report.text import MOST_WIDTH, figures, folded, placed, row_width, section, within
from edgekit.units import format_bytes, format_count

FOUR_BITS = ("MXFP4_MOE", "Q4_K_M")  # its own 4-bit form, else what most people run
_UNKNOWN = "-"


class _Column(NamedTuple):
    head: str
    cell: Callable[[Entry], str]


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else format_count(number)


def _tokens(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _kinds(entry: Entry) -> str:
    return ", ".join(kind.value for kind in entry.kinds) or _UNKNOWN


def _active(entry: Entry) -> str:
    return "" if entry.active_parameters == entry.parameters else _count(entry.active_parameters)


def _usual(entry: Entry) -> str:
    size = next(filter(None, map(entry.size, FOUR_BITS)), None)
    return _UNKNOWN if size is None else format_bytes(size.tensor_bytes)


# The last go first where the screen is narrow.
_COLUMNS = (
    _Column("model", lambda entry: entry.id),
    _Column("parameters", lambda entry: _count(entry.parameters)),
    _Column("4-bit", _usual),
    _Column("context", lambda entry: _tokens(entry.native_context)),
    _Column("for", _kinds),
    _Column("from", lambda entry: "you" if entry.is_users else ""),
    _Column("active", _active),
)


def catalog_text(
    entries: Sequence[Entry], catalog: Catalog, *, width: int = 100, bold: bool = False
) -> str:
    """The table, and what could not be read."""
    width = max(within(width), 20)
    first = f"{len(entries)} of {len(catalog.entries)} models"
    lines = [f"\x1b[1m{first}\x1b[0m" if bold else first]
    if entries:
        lines += ["", *_table(entries, width)]
    lines += section("Note", catalog.problems, width)
    return "\n".join(lines) + "\n"


def _table(entries: Sequence[Entry], width: int) -> list[str]:
    rows = [[column.cell(entry) for column in _COLUMNS] for entry in entries]
    used = [i for i, column in enumerate(_COLUMNS) if i < 1 or any(row[i] for row in rows)]
    while True:
        table = _laid([_COLUMNS[i].head for i in used], [[row[i] for i in used] for row in rows])
        if len(used) == 1 or max(map(len, table)) <= width:
            return table
        used.pop()


def _laid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Numbers to the right, words to the left: what a model is for comes last, so it may be ragged."""
    words = {"for", "from"}
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    padded = [
        [
            f"{cell:<{size}}" if title in words else cell
            for cell, title, size in zip(row, head, widths, strict=True)
        ]
        for row in (head, *rows)
    ]
    return figures(padded[0], padded[1:])


def entry_text(entry: Entry, *, width: int = 100, bold: bool = False) -> str:
    """Everything that is known of one model, and from where."""
    width = within(width)
    first = folded(_answer(entry), width)
    lines = [f"\x1b[1m{line}\x1b[0m" for line in first] if bold else first
    lines += section("Model", _facts(entry), width)
    lines += section("Runs on", _engines(entry), width)
    lines += placed("Sizes", _sizes(entry, row_width(width)), width)
    lines += section("Download", _repositories(entry), width)
    lines += section("Speed", _speeds(entry), width)
    lines += section("Sources", _sources(entry), width)
    return "\n".join(lines) + "\n"


def _answer(entry: Entry) -> str:
    parts = []
    if entry.parameters is not None:
        active = f", {_active(entry)} active" if _active(entry) else ""
        parts.append(f"{format_count(entry.parameters)} parameters{active}")
    if entry.native_context is not None:
        parts.append(f"{entry.native_context:,} tokens")
    parts.append(f"for {_kinds(entry)}" if entry.kinds else "")
    return f"{entry.id}: {', '.join(filter(None, parts))}".rstrip(": ")


def _facts(entry: Entry) -> Iterator[str]:
    yield f"family {entry.family}, architecture {entry.architecture}"
    yield f"repository {entry.repository or 'unknown'}"
    yield f"vocabulary {_tokens(entry.vocabulary)}"
    yield f"released {_when(entry)}, licence {entry.licence or 'unknown'}"
    if entry.reference:
        yield f"you added it from {entry.reference}"


def _engines(entry: Entry) -> Iterator[str]:
    if entry.keys:
        yield "llama.cpp, from its GGUF header"
    if entry.config:
        engines = "vLLM and MLX" if entry.keys else "llama.cpp, vLLM and MLX, if they support it"
        yield f"{engines}, from its config.json"


def _sizes(entry: Entry, width: int) -> list[str]:
    rows = [
        (
            size.mix,
            format_bytes(size.tensor_bytes),
            f"{size.tensor_bytes:,} bytes",
            size.basis.value,
        )
        for size in entry.sizes
    ]
    if not rows:
        return []
    table = figures(("quant", "weights", "", ""), rows)
    return (
        table
        if max(map(len, table)) <= width
        else figures(("quant", "weights"), [r[:2] for r in rows])
    )


def _repositories(entry: Entry) -> Iterator[str]:
    """Where it can be had in each form, with the quantisations and who says so."""
    for one in () if entry.is_users else repositories_of(entry.id):
        usual = "" if one.listed else "usually "
        quants = f": {usual}{', '.join(one.quants)}" if one.quants else ""
        yield f"{one.form.value} {one.name}{quants} ({', '.join(one.sources)})"


def _speeds(entry: Entry) -> Iterator[str]:
    for one in entry.speeds:
        yield f"{one.tokens_per_s:g} tokens/s on {one.device}, {one.setting}: {one.source}"


def _sources(entry: Entry) -> Iterator[str]:
    """Facts of one source together."""
    told: dict[tuple[str, str], list[str]] = {}
    for fact, source in entry.sources.items():
        told.setdefault((source.text, source.basis.value), []).append(fact.replace("_", " "))
    for (text, basis), facts in told.items():
        yield f"{', '.join(facts)} ({basis}): {text}"


def added_text(entry: Entry, *, new: bool, shadows: bool) -> str:
    first = f"{'added' if new else 'read again'}: {_answer(entry)}"
    return f"{first}\nit replaces the built-in entry of the same name" if shadows else first


def changes_text(name: str, changes: Mapping[str, tuple[Any, Any]]) -> str:
    if not changes:
        return f"{name}: unchanged"
    told = (f"  {field.replace('_', ' ')}: {_both(*pair)}" for field, pair in changes.items())
    return "\n".join((f"{name}: changed", *told))


def _both(old: Any, new: Any) -> str:
    plain = (int, str, type(None))
    if isinstance(old, plain) and isinstance(new, plain):
        return f"{_plain(old)} -> {_plain(new)}"
    return "changed"


def _plain(value: int | str | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else value


def lines_text(lines: Iterable[str], *, width: int = MOST_WIDTH) -> str:
    """Sentences, each folded; one that is indented stays so."""
    told = [line for text in lines for line in text.split("\n")]
    return "\n".join(row for line in told for row in _folded(line, within(width))) + "\n"


def _folded(line: str, width: int) -> list[str]:
    indent = "  " if line.startswith("  ") else ""
    return [indent + row for row in folded(line.strip(), width - len(indent))]


def _when(entry: Entry) -> str:
    if entry.released is None and entry.not_before is not None:
        return f"not before {entry.not_before}"
    return entry.released or "unknown"


def catalog_json(entries: Sequence[Entry], catalog: Catalog) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "models": [entry_json(entry) for entry in entries],
        "problems": list(catalog.problems),
    }


def entry_json(entry: Entry, *, whole: bool = False) -> dict[str, Any]:
    """One model; `whole` adds its repositories and what it is rebuilt from."""
    told: dict[str, Any] = {
        "id": entry.id,
        "repository": entry.repository,
        "family": entry.family,
        "architecture": entry.architecture,
        "parameters": entry.parameters,
        "active_parameters": entry.active_parameters,
        "native_context": entry.native_context,
        "vocabulary": entry.vocabulary,
        "kinds": [kind.value for kind in entry.kinds],
        "licence": entry.licence,
        "released": entry.released,
        "not_before": entry.not_before,
        "reference": entry.reference or None,
        "forms": [name for name, held in (("gguf", entry.keys), ("config", entry.config)) if held],
        "sizes": [
            {"mix": size.mix, "tensor_bytes": size.tensor_bytes, "basis": size.basis.value}
            for size in entry.sizes
        ],
        "speeds": [
            {
                "device": speed.device,
                "tokens_per_s": speed.tokens_per_s,
                "setting": speed.setting,
                "source": speed.source,
            }
            for speed in entry.speeds
        ],
        "sources": {
            fact: {"source": source.text, "basis": source.basis.value}
            for fact, source in entry.sources.items()
        },
    }
    return {**told, **_rebuilding(entry)} if whole else told


def _rebuilding(entry: Entry) -> dict[str, Any]:
    return {
        "repositories": [
            {
                "form": one.form.value,
                "name": one.name,
                "quantisations": list(one.quants),
                "listed": one.listed,
                "sources": list(one.sources),
            }
            for one in (() if entry.is_users else repositories_of(entry.id))
        ],
        "keys": dict(entry.keys),
        "tensors": list(entry.tensors),
        "config": dict(entry.config),
    }


def done_json(
    word: str, done: Iterable[dict[str, Any]], failed: Iterable[tuple[str, EdgekitError]]
) -> dict[str, Any]:
    """What became of every reference or id: {word: [...], "failed": [...]}."""
    return {
        "schema": SCHEMA,
        word: list(done),
        "failed": [
            {"name": name, "error": {"type": type(error).__name__, "message": str(error)}}
            for name, error in failed
        ],
    }


def changes_json(name: str, changes: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {"id": name, "changed": sorted(changes)}
