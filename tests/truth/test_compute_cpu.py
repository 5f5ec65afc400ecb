"""The compute buffer of every recorded CPU row whose architecture has a graph: 0 bytes off."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import engine_models, rows
from tests.thoroughness import sampled_rows

from edgekit.engines.llamacpp.context import resolve
from edgekit.engines.llamacpp.graph.plan import compute_bytes, family_of
from edgekit.engines.llamacpp.setups import read_row
from edgekit.errors import RefusedError


def _by_model() -> list[Any]:
    result: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows("llama_cpp_cpu.jsonl.gz"):
        if family_of(row["arch"]) is not None:
            result.setdefault((row["model"], row["quant"]), []).append(row)
    chosen = sampled_rows(result.values(), each=3, always=lambda row: "error" in row["actual"])
    return [
        pytest.param(name, model_rows, id="-".join(name))
        for name, model_rows in zip(result, chosen, strict=True)
    ]


@pytest.mark.parametrize(("name", "recorded"), _by_model())
def test_recorded_compute_buffers_are_exact(
    name: tuple[str, str], recorded: list[dict[str, Any]]
) -> None:
    model = engine_models()[name]
    for row in recorded:
        load, setup = read_row(row["options"], "cpu")
        if "error" in row["actual"]:
            with pytest.raises(RefusedError):
                compute_bytes(model, resolve(model, load, setup))
        else:
            (predicted,) = compute_bytes(model, resolve(model, load, setup))
            assert predicted == row["actual"]["compute_bytes"], row["options"]


def test_every_recorded_architecture_has_a_graph() -> None:
    recorded = {row["arch"] for row in rows("llama_cpp_cpu.jsonl.gz")}
    assert [item for item in recorded if family_of(item) is None] == []
