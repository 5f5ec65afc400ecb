"""Entries of a hub's listing: every field is checked, and a wrong one costs only itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.app.crawl.listing import MAX_FILES, MAX_TAGS, read_entry, read_files
from edgekit.app.crawl.types import Listed

ENTRY = {
    "id": "maker/Model-8B-GGUF",
    "downloads": 1234,
    "createdAt": "2025-04-28T03:03:11.000Z",
    "gated": "manual",
    "library_name": "gguf",
    "pipeline_tag": "text-generation",
    "tags": ["GGUF", "license:apache-2.0", "base_model:lab/Model-8B", "base_model:quantized:lab/Model-8B", "region:us"],
    "cardData": {"license": "other", "license_name": "qwen", "base_model": ["lab/Model-8B"]},
    "config": {"model_type": "llama", "quantization_config": {"quant_method": "awq"}},
    "safetensors": {"parameters": {"BF16": 8, "I32": 5}, "total": 13},
    "siblings": [
        {"rfilename": "README.md"},
        {"rfilename": "b.Q8_0.gguf", "size": 130, "lfs": {"size": 9_000}},
        {"rfilename": "a.Q4_K_M.gguf"},
    ],
}  # fmt: skip


def read(**changes: Any) -> Listed:
    listed = read_entry({**ENTRY, **changes})
    assert isinstance(listed, Listed)
    return listed


def test_read_entry_of_a_repository() -> None:
    assert read() == Listed(
        name="maker/Model-8B-GGUF",
        downloads=1234,
        created="2025-04-28",
        gated=True,
        licence="qwen",
        library="gguf",
        task="text-generation",
        tags=("gguf",),
        bases=(("quantized", "lab/Model-8B"),),
        model_type="llama",
        quantisation="awq",
        dtypes=(("BF16", 8), ("I32", 5)),
        files=(("a.Q4_K_M.gguf", None), ("b.Q8_0.gguf", 9_000)),
    )


@pytest.mark.parametrize(
    "name",
    ["", "a/b/c", "../etc", "a/..b", "a/b\n", "\x1b[31m/x", "a/" + "b" * 97, 3, None, "a b/c", "-a/b", "a/\u202eb"],
)  # fmt: skip
def test_entry_with_an_odd_name_is_left_out(name: Any) -> None:
    text = read_entry({**ENTRY, "id": name})
    assert isinstance(text, str)
    assert text.isprintable()
    assert text.isascii()


@pytest.mark.parametrize(
    ("changes", "bases"),
    [
        ({"tags": [], "cardData": {"base_model": "lab/A"}}, (("", "lab/A"),)),
        (
            {"tags": [], "cardData": {"base_model": "lab/A", "base_model_relation": "quantized"}},
            (("quantized", "lab/A"),),
        ),
        (
            {"tags": ["base_model:finetune:lab/A"], "cardData": {"base_model": "lab/A"}},
            (("finetune", "lab/A"),),
        ),
        ({"tags": ["base_model:lab/B"], "cardData": {"base_model": ["lab/A", 3]}}, (("", "lab/A"), ("", "lab/B"))),
        ({"tags": ["base_model:quantized:../x"], "cardData": {"base_model": {"a": 1}}}, ()),
    ],
)  # fmt: skip
def test_bases_of_card_and_tags(
    changes: dict[str, Any], bases: tuple[tuple[str, str], ...]
) -> None:
    assert read(**changes).bases == bases


def test_date_before_the_hub_recorded_dates_is_unknown() -> None:
    assert read(createdAt="2022-03-02T23:29:04.000Z").created is None


def test_files_without_a_list_are_unknown_and_odd_paths_left_out() -> None:
    assert read(siblings=None).files is None
    siblings = [
        {"rfilename": path} for path in ("../x.gguf", "a//b.gguf", "x\n.gguf", 3, "ok.gguf")
    ]
    assert read_files(siblings) == (("ok.gguf", None),)


def test_long_lists_are_cut() -> None:
    listed = read(
        tags=["x" * i for i in range(1, 150)] * 10,
        siblings=[{"rfilename": f"{i}.gguf"} for i in range(MAX_FILES + 10)],
    )
    assert len(listed.files or ()) == MAX_FILES
    assert len(listed.tags) <= MAX_TAGS


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(field=st.sampled_from(sorted(ENTRY)), value=ANY_JSON)
def test_no_value_of_a_field_breaks_the_entry(field: str, value: Any) -> None:
    result = read_entry({**ENTRY, field: value})
    if isinstance(result, Listed):
        json.dumps(result.tags)
        assert all(isinstance(base, str) for _, base in result.bases)
    else:
        assert field == "id"
