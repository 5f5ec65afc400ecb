"""`index.resolve`: what a name refers to."""

from __future__ import annotations

import pytest

from edgekit.errors import RemoteInspectError
from edgekit.index.resolve import resolve


def test_resolve_gives_the_entry_of_a_name_and_reads_nothing() -> None:
    result = resolve("qwen3-8b", lambda source: pytest.fail(f"{source} was read"))
    assert result.entry is not None
    assert (result.entry.id, result.found) == ("qwen3-8b", None)


def test_resolve_reads_what_the_catalog_does_not_have() -> None:
    result = resolve("acme/model", lambda source: source.upper())
    assert (result.entry, result.found) == (None, "ACME/MODEL")


def test_resolve_takes_the_entry_of_a_repository_that_cannot_be_reached() -> None:
    def unreachable(_: str) -> str:
        raise RemoteInspectError("no network")

    result = resolve("Qwen/Qwen3-8B", unreachable)
    assert result.entry is not None
    assert result.notes == (
        "taken from the index (qwen3-8b), because Qwen/Qwen3-8B could not be read: no network",
    )
