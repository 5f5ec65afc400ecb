"""report/tier.py: the plan of a tier as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.documented import documented
from tests.unit.engines.memo.tier_tasks import card, planned, ram, recommended

from edgekit.index.tiers import find_layout
from edgekit.report.text import Screen
from edgekit.report.tier import tier_headline, tier_json, tier_text
from edgekit.units import GIB

DOCS = Path(__file__).parents[3] / "docs" / "tiers.md"
PLANS = {
    "fits": recommended(ram(48 * GIB)),
    "tight": recommended(card(24 * GIB, name="24 GB card")),
    "nothing fits": recommended(ram(2 * GIB)),
    "spilled": planned(card(6 * GIB, host_bytes=32 * GIB), "4B", context=131_072),
    "users": planned(card(24 * GIB), "2B", users=4),
    "real engine": planned(card(16 * GIB), "9B", engine="llama.cpp", layout=find_layout("q8_0")),
}


@pytest.mark.parametrize("width", [20, 40, 80, 100])
@pytest.mark.parametrize("name", PLANS)
def test_tier_text_fits_the_width(name: str, width: int) -> None:
    widest = len("  drafter working set    1.50 GiB")  # a row of figures is not cut
    assert max(map(len, tier_text(PLANS[name], Screen(width=width)).splitlines())) <= max(
        width, widest
    )


@pytest.mark.parametrize("name", PLANS)
def test_tier_text_says_that_figures_are_assumed(name: str) -> None:
    text = " ".join(tier_text(PLANS[name]).split())
    assert "assumed: the figures of a tier come from elizaOS's memo" in text
    is_what_if = name != "real engine"
    assert ("not in llama.cpp, vLLM or MLX" in text) is is_what_if
    assert tier_json(PLANS[name])["basis"] == "assumed"


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("fits", "Fits: 27B with 131,072 tokens, cache qjl1_256+q4_polar, 9B as draft model, 8 sequences: 30.25 GiB of 46.50 GiB"),
        ("tight", "Tight: 27B with 131,072 tokens, cache qjl1_256+q4_polar, 8 sequences: 22.13 GiB of 24.00 GiB"),
        ("nothing fits", "Does not fit: 0.8B with 16,384 tokens, cache qjl1_256+q4_polar: 1.46 GiB of 512.00 MiB"),
        ("users", "Fits: 2B with 131,072 tokens for each of 4, cache qjl1_256+q4_polar, 4 sequences: 13.59 GiB of 24.00 GiB"),
    ],
)  # fmt: skip
def test_tier_text_begins_with_the_headline(name: str, headline: str) -> None:
    assert tier_headline(PLANS[name]) == headline
    assert " ".join(tier_text(PLANS[name]).split()).startswith(headline)


def test_tier_text_says_how_much_memory_to_add() -> None:
    assert "To fit   add 1005.00 MiB of memory to RAM\n" in tier_text(PLANS["nothing fits"])


def test_tier_text_escapes_control_characters() -> None:
    assert "\x1b" not in tier_text(recommended(card(0, name="\x1b[2Jcard")))


def test_docs_show_the_tier_text() -> None:
    assert tier_text(PLANS["tight"]) in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PLANS)
def test_tier_json(name: str) -> None:
    plan = PLANS[name]
    document = json.loads(json.dumps(tier_json(plan)))
    assert document["holds"] is plan.verdict.can_load
    spilled_bytes = sum(
        line["size_bytes"] for line in document["lines"] if line["part"] == "spilled"
    )
    assert (
        sum(line["size_bytes"] for line in document["lines"])
        == document["required_bytes"] + spilled_bytes
    )
    assert (document["spill"] is not None) is (name == "spilled")
    assert [step["lever"] for step in document["steps"]][:3] == ["weights", "context", "cache"]


def test_docs_list_every_key_of_tier_json() -> None:
    names = {name for plan in PLANS.values() for name in tier_json(plan)}
    assert names <= documented("tiers")
