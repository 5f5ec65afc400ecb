"""The memo's two tables come out of our arithmetic, to the digits it prints."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import edgekit.catalog
from edgekit.catalog.tiers import (
    WHAT_IF,
    check_engine,
    find_layout,
    find_tier,
    layout_for,
    layouts,
    tiers,
)
from edgekit.engines.memo.rules import largest_context
from edgekit.errors import RefusedError, UsageError
from edgekit.units import GIB

# tier: f16, q8_0, qjl+turbo3, qjl+polarq4, in thousands of bytes
BYTES_PER_TOKEN = {
    "0.8B": ("114.7", "60.9", "20.2", "23.7"),
    "2B": ("114.7", "60.9", "20.2", "23.7"),
    "4B": ("147.5", "78.3", "25.9", "30.5"),
    "9B": ("32.8", "17.4", "5.8", "6.8"),
    "27B": ("65.5", "34.8", "11.5", "13.6"),
}
LAYOUTS = ("f16", "q8_0", "turbo3", "polar")

# (tier, layout): device in GiB -> what is printed; "" where the memo has a dash
CONTEXTS = {
    ("0.8B", "f16"): {4: "27k", 8: "65k", 16: "139k", 24: "214k"},
    ("0.8B", "q8_0"): {16: "263k", 24: "404k"},
    ("0.8B", "polar"): {4: "131k", 8: "312k", 16: "674k", 24: "1.0M"},
    ("2B", "f16"): {4: "19k", 8: "56k", 16: "131k", 24: "206k"},
    ("2B", "polar"): {4: "90k", 8: "271k", 16: "633k", 24: "995k"},
    ("4B", "f16"): {4: "", 8: "32k", 16: "90k", 24: "149k"},
    ("4B", "polar"): {4: "14k", 8: "155k", 16: "436k", 24: "718k"},
    ("9B", "f16"): {16: "298k", 24: "560k"},
    ("9B", "polar"): {4: "", 8: "174k", 16: "1.4M", 24: "2.7M"},
    ("27B", "f16"): {16: "", 24: "77k"},
    ("27B", "q8_0"): {16: "", 24: "145k"},
    ("27B", "polar"): {16: "", 24: "372k"},
}


@pytest.mark.parametrize("name", BYTES_PER_TOKEN)
def test_bytes_per_token_as_printed(name: str) -> None:
    results = [find_tier(name).bytes_per_token(find_layout(layout)) for layout in LAYOUTS]
    assert tuple(f"{size / 1000:.1f}" for size in results) == BYTES_PER_TOKEN[name]


def test_bytes_per_token_by_hand() -> None:
    assert find_tier("27B").bytes_per_token(find_layout("f16")) == 16 * 4 * 256 * (16 + 16) // 8
    assert find_tier("4B").bytes_per_token(find_layout("q8_0")) == 36 * 8 * 128 * 17 // 8
    assert find_tier("0.8B").bytes_per_token(find_layout("turbo3")) == 28 * 1024 * 45 // 64  # 5.625
    assert find_tier("9B").bytes_per_token(find_layout("polar")) == 8 * 1024 * 53 // 64  # 6.625


def printed(tokens: int) -> str:
    return f"{tokens / 1e6:.1f}M" if tokens >= 10**6 else f"{tokens / 1000:.0f}k"


@pytest.mark.parametrize(
    ("name", "layout", "gib", "cell"),
    [(*key, gib, cell) for key, row in CONTEXTS.items() for gib, cell in row.items() if cell],
)
def test_largest_context(name: str, layout: str, gib: int, cell: str) -> None:
    assert printed(largest_context(find_tier(name), find_layout(layout), gib * GIB)) == cell


@pytest.mark.parametrize(
    ("name", "layout", "gib"),
    [(*key, gib) for key, row in CONTEXTS.items() for gib, cell in row.items() if not cell],
)
def test_largest_context_where_the_memo_has_a_dash(name: str, layout: str, gib: int) -> None:
    """The 4B would hold 2,912 tokens of f16 in 4 GiB; the others have no room for their weights."""
    assert largest_context(find_tier(name), find_layout(layout), gib * GIB) in {0, 2912}


def test_cache_of_32k_tokens_of_the_0_8b() -> None:
    """The memo: 0.6 to 0.7 GiB compressed, not 3.5 GiB."""
    tier = find_tier("0.8B")
    assert f"{32_768 * tier.bytes_per_token(find_layout('polar')) / GIB:.1f}" == "0.7"
    assert 32_768 * tier.bytes_per_token(find_layout("f16")) == 7 * GIB // 2


def test_cache_of_131072_tokens_of_the_27b() -> None:
    size = 131_072 * find_tier("27B").bytes_per_token(find_layout("polar"))
    assert f"{size / GIB:.1f}" == "1.7"


@pytest.mark.parametrize(
    ("tokens", "name"),
    [(1, "turbo3"), (8192, "turbo3"), (8193, "polar"), (131_072, "polar")],
)
def test_layout_for_a_context(tokens: int, name: str) -> None:
    assert layout_for(tokens) == find_layout(name)


def test_key_and_value_bits() -> None:
    bits = {layout.name: (layout.keys.bits, layout.values.bits) for layout in layouts()}
    assert bits == {
        "f16": (16, 16),
        "q8_0": (8.5, 8.5),
        "qjl1_256+q4_polar": (2.125, 4.5),
        "qjl1_256+turbo3_0": (2.125, 3.5),
    }
    assert 7.5 < 16 / 2.125 < 7.53  # the memo's realised ratio of the keys


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "mlx"])
@pytest.mark.parametrize("layout", ["polar", "turbo3"])
def test_check_engine_refuses_compressed_layouts(engine: str, layout: str) -> None:
    with pytest.raises(RefusedError, match="only the what-if engine for tiers has it"):
        check_engine(engine, find_layout(layout))
    check_engine(WHAT_IF, find_layout(layout))


def test_check_engine_of_an_unknown_engine() -> None:
    with pytest.raises(UsageError, match="unknown engine 'exllama'"):
        check_engine("exllama", find_layout("f16"))


def test_windows() -> None:
    native = {tier.name: tier.native_window for tier in tiers()}
    small, large = (
        dict.fromkeys(("0.8B", "2B", "4B"), 262_144),
        dict.fromkeys(("9B", "27B"), 131_072),
    )
    assert native == small | large
    assert {tier.catalog_window for tier in tiers()} == {131_072}


@pytest.mark.parametrize("text", ["27B", "27b", "tier:27b", " tier:27B ", "eliza-1-27b"])
def test_find_tier_spellings(text: str) -> None:
    assert find_tier(text).line == "eliza-1-27b"


def test_find_tier_of_0_8b() -> None:
    assert find_tier("0_8b") == find_tier("0.8B") == find_tier("eliza-1-0_8b")


@pytest.mark.parametrize("find", [find_tier, find_layout])
def test_find_lists_the_names(find: object) -> None:
    with pytest.raises(UsageError, match="choose one of"):
        find("q" * 10_000)  # type: ignore[operator]


def test_every_fact_has_a_source() -> None:
    file = Path(edgekit.catalog.__path__[0], "tier_data", "tiers.json")
    read = json.loads(file.read_text(encoding="utf-8"))
    facts = set(read["tiers"][0]) - {"name", "line", "base_model", "min_ram_source"}
    answer = set(read["sources"]) - {"geometry"} | {
        "cache_layers",
        "kv_heads",
        "head_dim",
        "min_ram_gb",
    }
    assert facts == answer
    assert all(one.weights_bytes < other.weights_bytes for one, other in pairwise(tiers()))
