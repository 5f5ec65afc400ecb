"""engines/entries.py: catalog entries opened as models."""

from __future__ import annotations

import pytest

from edgekit.engines import engine_names
from edgekit.engines.entries import open_entry
from edgekit.errors import RefusedError, UsageError
from edgekit.index.names import find_entry


def test_open_entry_of_a_gguf_header_is_refused_for_vllm() -> None:
    entry = find_entry("mamba-2.8b")
    assert open_entry(entry, "llama.cpp").model.header.keys
    with pytest.raises(RefusedError, match="which vllm cannot load"):
        open_entry(entry, "vllm")


def test_open_entry_of_a_config_serves_every_engine() -> None:
    entry = find_entry("qwen3-32b")
    assert entry.forms == ("config",)
    assert {open_entry(entry, engine).label for engine in engine_names()} == {"qwen3-32b"}


def test_open_entry_rejects_an_unknown_engine() -> None:
    with pytest.raises(UsageError, match="unknown engine"):
        open_entry(find_entry("llama-2-7b"), "ollama-rs")
