"""Entries of the catalog -> the documented JSON (docs/catalog.md): whole numbers, stable names, null for unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgekit.catalog.repositories import repositories_of
from edgekit.catalog.types import Catalog, Entry
from edgekit.errors import EdgekitError

SCHEMA = 1


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
