"""Buffers of fourteen releases of llama.cpp, April to October 2026: each is billed by the rules of its build.

Recorded by tools/compare_engine.py from the wheels of xllamacpp, with the precision of the engine's log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.recorded import DATA, gguf_files, header_bytes, rows
from tests.thoroughness import LONG

from edgekit.bill.types import MemoryEstimate
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.run.binding import COMPARED
from edgekit.engines.llamacpp.setups import read_row
from edgekit.engines.llamacpp.types import LlamaMode
from edgekit.errors import RefusedError
from edgekit.formats import read_header
from edgekit.model import read_geometry
from edgekit.model.types import Model

ROWS = list(rows("llama_cpp_builds.jsonl.gz"))
LOADS = {str(row["options"]) for row in ROWS}
WHEELS = list(dict.fromkeys(row["wheel"] for row in ROWS))
# A model for each rule that changed, and one for which none did.
SOME = (
    "gemma-3-4b", "gemma-3n-e4b", "glm-4.5-air", "gpt-oss-20b", "granite-4-h-tiny", "llama-3.2-1b",
    "minicpm3-4b", "phi-3-medium-4k", "qwen3-next-80b-a3b", "qwen3.5-9b",
)  # fmt: skip


@cache
def model(file: str) -> Model:
    folder = DATA / (
        "headers" if (DATA / "headers" / f"{file}.head.gz").exists() else "headers_more"
    )
    header = read_header(gguf_files(file, header_bytes(f"{file}.head.gz", folder), 2**50))
    return Model(header=header, geometry=read_geometry(header))


def bill(row: dict[str, Any]) -> MemoryEstimate:
    options = row["options"]
    load, setup = read_row({**options, "llama_version": row["wheel"]}, "cpu")
    load = replace(load, unified=options.get("kv_unified"))
    return llamacpp.estimate(model(row["file"]), load, replace(setup, mode=LlamaMode.SERVER))


def differences(row: dict[str, Any]) -> Iterator[str]:
    result = bill(row)
    for component in COMPARED:
        low, high = row["parts"][component.value]
        ours = result.of(component)
        if not low <= ours <= high:
            yield f"{row['file']} {row['options']}: {component.value} {ours} not in {low}..{high}"


def test_all_wheels_are_recorded() -> None:
    assert len(WHEELS) == 14
    assert len({row["file"] for row in ROWS}) == 49


@pytest.mark.parametrize("wheel", WHEELS)
def test_every_buffer_is_that_of_the_wheel(wheel: str) -> None:
    chosen = [row for row in ROWS if row["wheel"] == wheel and "parts" in row]
    if not LONG:
        chosen = [row for row in chosen if row["file"].startswith(SOME)][:: len(LOADS) // 2]
    assert [line for row in chosen for line in differences(row)] == []


def test_loads_that_crash_a_wheel_are_refused() -> None:
    crashed = [row for row in ROWS if "died" in row]
    assert {(row["wheel"], row["file"].partition(".")[0]) for row in crashed} == {
        ("2026.4.8672", "phi-3-medium-4k"),
        ("2026.4.8672.1", "phi-3-medium-4k"),
        ("2026.4.8929", "phi-3-medium-4k"),
    }
    for row in crashed:
        with pytest.raises(RefusedError, match=r"llama\.cpp aborts"):
            bill(row)
