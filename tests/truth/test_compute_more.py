"""Buffers of further architectures, whose headers llama.cpp 0c1e57098 loaded: 0 bytes off.

Every file in the normal run, each with every sixth of its rows; `make test-all` takes all rows.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import further_model, rows
from tests.thoroughness import sampled_rows

from edgekit.bill.types import CACHES, Component
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.context import resolve
from edgekit.engines.llamacpp.graph.plan import compute_bytes
from edgekit.engines.llamacpp.setups import read_row


def _by_file() -> list[Any]:
    result: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows("llama_cpp_more.jsonl.gz"):
        result.setdefault((row["arch"], row["file"]), []).append(row)
    names = sorted(result)
    chosen = sampled_rows((result[name] for name in names), each=6)
    return [
        pytest.param(file, file_rows, id=f"{arch}-{file}")
        for (arch, file), file_rows in zip(names, chosen, strict=True)
    ]


@pytest.mark.parametrize(("file", "recorded"), _by_file())
def test_recorded_buffers_are_exact(file: str, recorded: list[dict[str, Any]]) -> None:
    model = further_model(file, recorded[0]["data_bytes"])
    for row in recorded:
        load, setup = read_row(row["options"], "cpu")
        (predicted,) = compute_bytes(model, resolve(model, load, setup))
        assert predicted == row["actual"]["compute_bytes"], row["options"]
        bill = llamacpp.estimate(model, load, setup)
        for name, components in (
            ("model_buffer_bytes", {Component.WEIGHTS}),
            ("context_bytes", CACHES),
            ("output_bytes", {Component.OUTPUT}),
        ):
            predicted = sum(line.size_bytes for line in bill.lines if line.component in components)
            assert predicted == row["actual"][name], (name, row["options"])
