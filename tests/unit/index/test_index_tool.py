"""tools/index.py makes the packaged entries from headers and configs."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.recorded import DATA, TRUTH, models
from tests.thoroughness import LONG

from edgekit.app.index import needed_config
from edgekit.bill.types import Load
from edgekit.engines import engine_named, engine_names
from edgekit.engines.entries import open_entry
from edgekit.errors import EdgekitError
from edgekit.index.names import find_entry
from edgekit.index.records import read_record, record_of
from edgekit.index.store import PATH, packaged_entries
from edgekit.index.types import Entry
from edgekit.model import open_config
from edgekit.model.types import Attention

ROOT = Path(__file__).parents[3]
SKIPPED = "the collection of headers and configs is not part of the project; set EDGEKIT_TRUTH"
FROM_HEADERS = ("sizes", "keys", "tensors", "parameters", "active_parameters", "native_context",
                "vocabulary", "family", "architecture")  # fmt: skip


@cache
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("catalog_tool", ROOT / "tools/index.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["qwen3-8b", "gpt-oss-20b", "deepseek-v2-lite", "granite-4-h-tiny", "qwen2.5-1.5b"]
)
def test_header_entry_equals_the_packaged_entry(name: str) -> None:
    rows = [row for row in models() if row["model"] == name]
    made, packaged = tool().header_entry(name, rows, DATA / "headers"), find_entry(name)
    for field in FROM_HEADERS:
        assert getattr(made, field) == getattr(packaged, field), field


def test_entries_of_makes_the_packaged_lines_again() -> None:
    """Every fortieth entry; in the long run every third."""
    if not (TRUTH / "models.json").exists():
        pytest.skip(SKIPPED)
    expected = {row["model"] for row in models() if "doubt" not in row} | set(
        tool().CONFIGS.values()
    )
    packaged = PATH.read_text(encoding="utf-8").splitlines()
    assert {read_record(line, where="").id for line in packaged} == expected | set(
        tool().SAME_SHAPE
    )
    sample = set(sorted(expected)[:: 3 if LONG else 40])
    made = [item for item in tool().entries_of(TRUTH, sample) if isinstance(item, Entry)]
    lines = [record_of(entry) for entry in tool().documented(made, [])]
    assert len(lines) == len(sample)
    assert set(lines) <= set(packaged)


def test_stored_part_of_a_config_has_the_bills_of_the_whole_config() -> None:
    """The geometry of every entry; the bills of every tenth, in the long run of all."""
    if not (TRUTH / "configs").exists():
        pytest.skip(SKIPPED)
    configs = tool()._configs(TRUTH)
    by_id = {name: stem for stem, name in tool().CONFIGS.items()}
    load, comparisons = Load(context_tokens=2048), 0
    for index, entry in enumerate(packaged_entries()):
        assert isinstance(entry, Entry)
        if not entry.config or entry.id in tool().SAME_SHAPE:
            continue
        whole = open_config(configs[by_id[entry.id]]["config"], label=entry.id).model
        assert open_entry(entry, "vllm").model.geometry == whole.geometry
        for engine in engine_names() if LONG or index % 10 == 0 else ():
            bills: list[object] = []
            for model in (whole, open_config(entry.config, label=entry.id).model):
                try:
                    setup = tool().SETUPS[engine]
                    bills.append(engine_named(engine).estimate(model, load, setup).lines)
                except EdgekitError as error:
                    bills.append(str(error))
            assert bills[0] == bills[1], (entry.id, engine)
            comparisons += 1
    assert comparisons > (300 if LONG else 30)


def test_same_shape_entries_are_the_packaged_entries() -> None:
    packaged = {item.id: item for item in packaged_entries() if isinstance(item, Entry)}
    made = tool().same_shape_entries(packaged.values())
    assert {entry.id for entry in made} == set(tool().SAME_SHAPE)
    for entry in made:
        assert record_of(entry) == record_of(packaged[entry.id])


def test_same_shape_entries_have_the_published_numbers() -> None:
    """The numbers that llmfit, litgpt and transformers publish for their configs: tests/data/README.md."""
    rows = json.loads((DATA / "alike.json").read_text(encoding="utf-8"))
    by_repository = {row.repository: name for name, row in tool().SAME_SHAPE.items()}
    assert by_repository.keys() - {row["repository"] for row in rows} == {
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506"
    }
    for row in rows:
        entry = find_entry(by_repository[row["repository"]])
        geometry = open_entry(entry, "llama.cpp").model.geometry
        attention = next(
            mixer for layer in geometry.layers if isinstance(mixer := layer.mixer, Attention)
        )
        result = {
            "context": entry.native_context,
            "layers": len(geometry.layers),
            "hidden": geometry.hidden,
            "heads": attention.heads,
            "kv_heads": attention.kv_heads,
            "head_dim": attention.key_dim,
            "vocabulary": geometry.vocabulary,
        }
        assert result == {key: row[key] for key in result}, entry.id
        if "vision" not in {kind.value for kind in entry.kinds}:  # towers are not counted here
            assert entry.parameters is not None
            extra = entry.parameters - row["parameters"]
            assert extra in {0, 64}, entry.id  # rope_freqs, which a GGUF of Llama 3.1 has


def test_needed_config_drops_keys_that_nothing_reads() -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
        "max_position_embeddings": 512, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "bos_token_id": 1, "transformers_version": "4.40.0", "initializer_range": 0.02, "_name_or_path": "/home/me",
    }  # fmt: skip
    needed = needed_config(config)
    assert config.keys() - needed.keys() == {
        "bos_token_id", "transformers_version", "initializer_range", "_name_or_path",
    }  # fmt: skip
    assert needed.items() <= config.items()
