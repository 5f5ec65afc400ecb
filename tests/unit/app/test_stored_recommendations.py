"""Stored recommendations: the same request gets the same answer, and damaged files are ignored."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu, host

from edgekit.app.recommend import (
    MOST_FILES,
    STEP_BYTES,
    Recommendation,
    recommend,
    with_rounded_memory,
)
from edgekit.catalog import read_catalog
from edgekit.catalog.types import Catalog
from edgekit.machine.types import Machine, MemoryLimit
from edgekit.report.cards import cards_json
from edgekit.request import Request
from edgekit.units import GIB

NAMES = ("qwen3-0.6b", "gemma-3-1b", "qwen3-30b-a3b")


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(entries=tuple(entry for entry in read_catalog().entries if entry.id in NAMES))


@pytest.fixture
def one(catalog: Catalog) -> Catalog:
    return Catalog(entries=tuple(entry for entry in catalog.entries if entry.id == "qwen3-0.6b"))


def folder() -> Path:
    return Path(os.environ["EDGEKIT_CACHE"]) / "recommended"


def answer(catalog: Catalog, machine: Machine, **more: Any) -> Recommendation:
    return recommend(Request(machine=machine, **more), catalog=catalog)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_named_pipe_instead_of_a_stored_answer_does_not_block(one: Catalog) -> None:
    first = answer(one, cpu(8))
    (path,) = folder().iterdir()
    path.unlink()
    os.mkfifo(path)
    assert cards_json(answer(one, cpu(8))) == cards_json(first)
    assert path.is_file()  # written anew


@pytest.mark.parametrize(
    "machine",
    sampled(
        [
            pytest.param(cpu(8), id="cpu"),
            pytest.param(cards(6), id="card"),
            pytest.param(cards(8, 4), id="two"),
            pytest.param(cards(10, ram=32), id="divided"),
        ],
        each=2,
        turn=1,
    ),
)
def test_stored_answer_equals_the_first(
    catalog: Catalog, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answer(catalog, machine)
    assert first.suggestions
    monkeypatch.setattr("edgekit.app.recommend.find_best", None)  # there must be no second search
    assert cards_json(answer(catalog, machine)) == cards_json(first)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda told: told.update(picks=["gone"]),
        lambda told: told.update(picks=[["qwen3-0.6b"]]),
        lambda told: told.update(picks=[]),
        lambda told: told.pop("picks"),
        lambda told: told.update(passed_over=7),
    ],
)
def test_damaged_answer_is_searched_again(
    one: Catalog, spoil: Callable[[dict[str, Any]], object]
) -> None:
    first = answer(one, cpu(8))
    (path,) = folder().glob("*.json")
    told = json.loads(path.read_text())
    spoil(told)
    path.write_text(json.dumps(told))
    assert cards_json(answer(one, cpu(8))) == cards_json(first)


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[" * 100_000, b"[]", b"{}", b" " * 100_000])
def test_garbage_is_searched_again(one: Catalog, body: bytes) -> None:
    first = answer(one, cpu(8))
    (path,) = folder().glob("*.json")
    path.write_bytes(body)
    assert cards_json(answer(one, cpu(8))) == cards_json(first)


def test_changed_catalog_is_searched_again(catalog: Catalog) -> None:
    answer(catalog, cpu(8))
    shorter = [
        replace(entry, native_context=2048) if entry.id == "gemma-3-1b" else entry
        for entry in catalog.entries
    ]
    result = answer(Catalog(entries=tuple(shorter)), cpu(8))
    assert "gemma-3-1b" not in [suggestion.entry.id for suggestion in result.suggestions]


def test_unwritable_folder_is_ignored(
    one: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path / "file"))
    assert answer(one, cpu(8)).suggestions


def test_oldest_answers_are_removed(one: Catalog) -> None:
    answer(one, cpu(8))
    for place in range(MOST_FILES + 5):
        old = folder() / f"{place}.json"
        old.write_text("{}")
        os.utime(old, (place, place))
    answer(one, cpu(9))
    assert len(list(folder().glob("*.json"))) == MOST_FILES


@pytest.mark.parametrize("is_asked_before", [False, True])
def test_plan_uses_the_memory_that_is_free_now(*, is_asked_before: bool, one: Catalog) -> None:
    """To the byte, also where the same list was kept with a little more or less free."""
    free = 8 * GIB + STEP_BYTES // 3
    machine = replace(cpu(16), what_if=False, host=replace(host(16), free_bytes=free))
    if is_asked_before:
        less = replace(machine, host=replace(host(16), free_bytes=8 * GIB))
        answer(one, less)
        assert len(list(folder().iterdir())) == 1
    (result,) = answer(one, machine).suggestions
    assert len(list(folder().iterdir())) == 1  # one question
    assert result.plan.result.tightest.budget.free_bytes == free


def test_free_memory_is_rounded_for_the_key() -> None:
    limit = MemoryLimit(name="a cgroup", limit_bytes=5 * GIB + 7, used_bytes=GIB)
    free = 8 * GIB + STEP_BYTES - 1
    machine = replace(cpu(16), host=replace(host(16), free_bytes=free, limits=(limit,)))
    result = with_rounded_memory(machine).host
    assert result is not None
    assert (result.free_bytes, result.limits[0].left_bytes) == (8 * GIB, 4 * GIB)
    wished = replace(machine, what_if=True)
    assert with_rounded_memory(wished) is wished
