"""The tiers and cache layouts of the context-scaling memo: our arithmetic gives its tables, to the printed digit."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import edgekit.index
from edgekit.errors import RefusedError, UsageError
from edgekit.index.tiers import (
    WHAT_IF,
    check_engine,
    find_layout,
    find_tier,
    layout_for,
    layouts,
    tiers,
)
from edgekit.units import GIB

# Tier: kB per token in each of LAYOUTS.
BYTES_PER_TOKEN = {
    "0.8B": ("114.7", "60.9", "20.2", "23.7"),
    "2B": ("114.7", "60.9", "20.2", "23.7"),
    "4B": ("147.5", "78.3", "25.9", "30.5"),
    "9B": ("32.8", "17.4", "5.8", "6.8"),
    "27B": ("65.5", "34.8", "11.5", "13.6"),
}
LAYOUTS = ("f16", "q8_0", "turbo3", "polar")


@pytest.mark.parametrize("name", BYTES_PER_TOKEN)
def test_bytes_per_token_are_those_of_the_memo(name: str) -> None:
    sizes = [find_tier(name).bytes_per_token(find_layout(layout)) for layout in LAYOUTS]
    assert tuple(f"{size / 1000:.1f}" for size in sizes) == BYTES_PER_TOKEN[name]


def test_bytes_per_token_are_layers_x_heads_x_width_x_bits() -> None:
    assert find_tier("27B").bytes_per_token(find_layout("f16")) == 16 * 4 * 256 * (16 + 16) // 8
    assert find_tier("4B").bytes_per_token(find_layout("q8_0")) == 36 * 8 * 128 * 17 // 8
    assert find_tier("0.8B").bytes_per_token(find_layout("turbo3")) == 28 * 1024 * 45 // 64  # 5.625
    assert find_tier("9B").bytes_per_token(find_layout("polar")) == 8 * 1024 * 53 // 64  # 6.625


def test_cache_of_32768_tokens_of_the_0_8b() -> None:
    """The memo has 0.6 to 0.7 GiB compressed and 3.5 GiB in f16."""
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
def test_layout_for_a_context_is_turbo3_up_to_8192_tokens(tokens: int, name: str) -> None:
    assert layout_for(tokens) == find_layout(name)


def test_bits_of_keys_and_values_in_each_layout() -> None:
    bits = {layout.name: (layout.keys.bits, layout.values.bits) for layout in layouts()}
    assert bits == {
        "f16": (16, 16),
        "q8_0": (8.5, 8.5),
        "qjl1_256+q4_polar": (2.125, 4.5),
        "qjl1_256+turbo3_0": (2.125, 3.5),
    }
    assert 7.5 < 16 / 2.125 < 7.53  # the ratio for keys that the memo measured


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "mlx"])
@pytest.mark.parametrize("layout", ["polar", "turbo3"])
def test_check_engine_refuses_compressed_layouts_of_real_engines(engine: str, layout: str) -> None:
    with pytest.raises(RefusedError, match="only the what-if engine for tiers has it"):
        check_engine(engine, find_layout(layout))
    check_engine(WHAT_IF, find_layout(layout))


def test_check_engine_rejects_an_unknown_engine() -> None:
    with pytest.raises(UsageError, match="unknown engine 'exllama'"):
        check_engine("exllama", find_layout("f16"))


def test_windows_in_headers_and_in_the_catalog() -> None:
    native = {tier.name: tier.native_window for tier in tiers()}
    assert native == {"0.8B": 262_144, "2B": 262_144, "4B": 262_144, "9B": 131_072, "27B": 131_072}
    assert {tier.catalog_window for tier in tiers()} == {131_072}


@pytest.mark.parametrize("text", ["27B", "27b", "tier:27b", " tier:27B ", "eliza-1-27b"])
def test_find_tier_accepts_several_spellings(text: str) -> None:
    assert find_tier(text).line == "eliza-1-27b"


def test_find_tier_accepts_an_underscore_for_the_point() -> None:
    assert find_tier("0_8b") == find_tier("0.8B") == find_tier("eliza-1-0_8b")


@pytest.mark.parametrize("find", [find_tier, find_layout])
def test_unknown_name_of_tier_or_layout_lists_the_names(find: object) -> None:
    with pytest.raises(UsageError, match="choose one of"):
        find("q" * 10_000)  # type: ignore[operator]


def test_every_fact_of_a_tier_has_a_source() -> None:
    file = Path(edgekit.index.__path__[0], "tier_data", "tiers.json")
    data = json.loads(file.read_text(encoding="utf-8"))
    facts = set(data["tiers"][0]) - {"name", "line", "base_model", "min_ram_source"}
    geometry = {"cache_layers", "kv_heads", "head_dim"}
    assert facts == set(data["sources"]) - {"geometry"} | geometry | {"min_ram_gb"}


def test_tiers_are_ordered_by_size() -> None:
    assert all(one.weights_bytes < other.weights_bytes for one, other in pairwise(tiers()))
