"""benchmarks/recommendations.tsv: `tools/recommendation_table.py --check` compares all of it with today's answers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from edgekit.app.recommend import recommend
from edgekit.index.names import find_entry
from edgekit.index.quality import is_base_model
from edgekit.index.types import ModelPurpose
from edgekit.request import Request

TABLE = Path(__file__).parents[3] / "benchmarks" / "recommendations.tsv"
with TABLE.open(encoding="utf-8", newline="") as file:
    ROWS = {(row["machine"], row["task"]): row for row in csv.DictReader(file, delimiter="\t")}


@pytest.mark.parametrize("row", ROWS.values(), ids=["-".join(key) for key in ROWS])
def test_no_base_model_and_no_old_model_is_recommended(row: dict[str, str]) -> None:
    """An embedding model of 2023 may still be the best small one."""
    names = row["after"].split(", ")
    assert 3 <= len(names) <= 5
    for entry in map(find_entry, names):
        assert not is_base_model(entry.repository or entry.id)
        if row["task"] != "embed":
            assert (entry.released or entry.not_before or "2026") >= "2024-09"


@pytest.mark.parametrize(
    ("machine", "device", "ram", "task"),
    [
        ("RTX 4090 + 64G", "RTX 4090", 64, ModelPurpose.CHAT),
        ("RTX 3060 + 32G", "RTX 3060", 32, ModelPurpose.CODE),
    ],
)
def test_table_has_the_answers_of_recommend(
    machine: str, device: str, ram: int, task: ModelPurpose
) -> None:
    request = Request(devices=(device,), ram=f"{ram}G", purpose=task)
    found = recommend(request).suggestions
    names = ", ".join(suggestion.entry.id for suggestion in found)
    assert names == ROWS[machine, task.value]["after"]
