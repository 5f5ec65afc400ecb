"""The bound for models without a graph: above every recorded compute buffer of the CPU."""

from __future__ import annotations

from tests.recorded import engine_models, rows

from edgekit.engine.llamacpp.closed import WITHIN, bound_bytes
from edgekit.engine.llamacpp.context import resolve
from edgekit.engine.llamacpp.rows import read_row


def test_never_below_and_within_what_it_says() -> None:
    for row in rows("llama_cpp_cpu.jsonl.gz"):
        if "error" in row["actual"]:
            continue
        model = engine_models()[row["model"], row["quant"]]
        bound = bound_bytes(model, resolve(model, *read_row(row["options"], "cpu")))
        measured = row["actual"]["compute_bytes"]
        assert measured <= bound <= (1 + WITHIN) * measured, row["options"]
