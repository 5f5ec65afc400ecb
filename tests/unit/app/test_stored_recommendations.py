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
from tests.unit.plan.tasks import rated

from edgekit.app.candidates import MOST_FILES, STEP_BYTES, with_rounded_memory
from edgekit.app.recommend import Recommendation, recommend
from edgekit.index import read_index
from edgekit.index.types import Index
from edgekit.machine.types import Machine, MemoryLimit
from edgekit.report.cards import cards_json
from edgekit.request import Request
from edgekit.units import GIB

NAMES = ("qwen3-0.6b", "gemma-3-1b", "qwen3-30b-a3b")


@pytest.fixture
def catalog() -> Index:
    return Index(entries=tuple(entry for entry in read_index().entries if entry.id in NAMES))


@pytest.fixture
def single_model(catalog: Index) -> Index:
    return Index(entries=tuple(entry for entry in catalog.entries if entry.id == "qwen3-0.6b"))


def assert_same(actual: Recommendation, expected: Recommendation) -> None:
    assert cards_json(actual) == cards_json(expected)
    assert actual.passed_over == expected.passed_over
    for suggestion, expected_suggestion in zip(
        actual.suggestions, expected.suggestions, strict=True
    ):
        assert suggestion.entry.id == expected_suggestion.entry.id
        for name in ("decisions", "load", "speed", "drafter"):
            assert getattr(suggestion.plan, name) == getattr(expected_suggestion.plan, name)
        assert suggestion.plan.result.way == expected_suggestion.plan.result.way
        assert suggestion.plan.result.estimate == expected_suggestion.plan.result.estimate


def folder() -> Path:
    return Path(os.environ["EDGEKIT_CACHE"]) / "recommended"


def recommend_from(catalog: Index, machine: Machine, **more: Any) -> Recommendation:
    return recommend(Request(machine=machine, **more), catalog=catalog)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_named_pipe_instead_of_a_stored_answer_does_not_block(single_model: Index) -> None:
    first = recommend_from(single_model, cpu(8))
    (path,) = folder().iterdir()
    path.unlink()
    os.mkfifo(path)
    assert cards_json(recommend_from(single_model, cpu(8))) == cards_json(first)
    assert path.is_file()  # written again


@pytest.mark.parametrize(
    "machine",
    sampled(
        [
            pytest.param(cpu(8), id="cpu"),
            pytest.param(cards(6), id="gpu"),
            pytest.param(rated(cpu(12)), id="cpu-of-known-speed"),
            pytest.param(cards(8, 4), id="two-gpus"),
            pytest.param(cards(10, ram=32), id="gpu-and-ram"),
            pytest.param(rated(cards(16, 8), card=1000), id="two-gpus-of-known-speed"),
        ],
        each=2,
        turn=1,
    ),
)
def test_stored_answer_equals_the_first(
    catalog: Index, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recommend_from(catalog, machine)
    assert first.suggestions
    with monkeypatch.context() as patch:
        patch.setattr("edgekit.app.recommend.find_best", None)  # there must be no second search
        assert_same(recommend_from(catalog, machine), first)
    (path,) = folder().glob("*.json")
    path.unlink()
    assert_same(recommend_from(catalog, machine), first)


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored.update(picks=["gone"]),
        lambda stored: stored.update(picks=[["qwen3-0.6b"]]),
        lambda stored: stored.update(picks=[]),
        lambda stored: stored.pop("picks"),
        lambda stored: stored.update(passed_over=7),
        lambda stored: stored.update(passed_over=[["too slow", float("inf")]]),
    ],
)
def test_damaged_answer_is_replaced_by_a_new_search(
    single_model: Index, damage: Callable[[dict[str, Any]], object]
) -> None:
    first = recommend_from(single_model, cpu(8))
    (path,) = folder().glob("*.json")
    stored = json.loads(path.read_text())
    damage(stored)
    path.write_text(json.dumps(stored))
    assert cards_json(recommend_from(single_model, cpu(8))) == cards_json(first)


GARBAGE = (
    b"", b"\xff\xfe", b"{", b"[]", b"{}", b"[" * 100_000, b" " * 200_000, b'{"picks": [], "passed_over": []}',
    b'{"picks": [{"id": "qwen3-0.6b"}], "passed_over": []}', b'{"picks": [3, null, []], "passed_over": [[]]}',
)  # fmt: skip


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_replaced_by_a_new_search(single_model: Index, body: bytes) -> None:
    first = recommend_from(single_model, cpu(8))
    (path,) = folder().glob("*.json")
    path.write_bytes(body)
    assert cards_json(recommend_from(single_model, cpu(8))) == cards_json(first)


def test_changed_catalog_is_searched_again(catalog: Index) -> None:
    recommend_from(catalog, cpu(8))
    shorter = [
        replace(entry, native_context=2048) if entry.id == "gemma-3-1b" else entry
        for entry in catalog.entries
    ]
    result = recommend_from(Index(entries=tuple(shorter)), cpu(8))
    assert "gemma-3-1b" not in [suggestion.entry.id for suggestion in result.suggestions]


def test_other_quality_data_is_searched_again(
    single_model: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommend_from(single_model, cpu(8))
    recommend_from(single_model, cpu(8))
    assert len(list(folder().glob("*.json"))) == 1
    monkeypatch.setattr("edgekit.app.candidates.data_stamp", lambda: "of an update")
    recommend_from(single_model, cpu(8))
    assert len(list(folder().glob("*.json"))) == 2


def test_unwritable_folder_is_ignored(
    single_model: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path / "file"))
    assert recommend_from(single_model, cpu(8)).suggestions


def test_oldest_answers_are_removed(single_model: Index) -> None:
    recommend_from(single_model, cpu(8))
    for age in range(MOST_FILES + 5):
        old = folder() / f"{age}.json"
        old.write_text("{}")
        os.utime(old, (age, age))
    recommend_from(single_model, cpu(9))
    assert len(list(folder().glob("*.json"))) == MOST_FILES


def test_plan_uses_the_memory_that_is_free_now(single_model: Index) -> None:
    """To the byte, although the same stored answer serves for a little more or less free memory."""
    for free in (8 * GIB + STEP_BYTES // 3, 8 * GIB, 8 * GIB + 1):
        machine = replace(cpu(16), what_if=False, host=replace(host(16), free_bytes=free))
        (suggestion,) = recommend_from(single_model, machine).suggestions
        assert suggestion.plan.result.tightest.budget.free_bytes == free
    assert len(list(folder().iterdir())) == 1


def test_free_memory_is_rounded_for_the_key() -> None:
    limit = MemoryLimit(name="a cgroup", limit_bytes=5 * GIB + 7, used_bytes=GIB)
    free = 8 * GIB + STEP_BYTES - 1
    machine = replace(cpu(16), host=replace(host(16), free_bytes=free, limits=(limit,)))
    result = with_rounded_memory(machine).host
    assert result is not None
    assert (result.free_bytes, result.limits[0].left_bytes) == (8 * GIB, 4 * GIB)
    described = replace(machine, what_if=True)
    assert with_rounded_memory(described) is described
