"""The bill compared with what a started engine reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime_engines import SERVER, ask, launch_of, model_of, small_model

from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.companions import bill_with_drafter
from edgekit.engines.llamacpp.run.engine import start
from edgekit.engines.llamacpp.run.engine_log import LoggedAllocations
from edgekit.engines.llamacpp.run.program import compare_reported, logged_part
from edgekit.engines.program import MeasuredBytes
from edgekit.machine.types import HOST
from edgekit.units import MIB

pytest.importorskip("xllamacpp")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "small.gguf")


Q8 = cache_type("q8_0")
F16 = cache_type("f16")


def test_bill_of_an_8_bit_cache_and_a_draft_model_is_what_the_engine_reports(
    model: Path, tmp_path: Path
) -> None:
    main = small_model(tmp_path / "main.gguf", layers=3, context_tokens=8192)
    load = Load(context_tokens=8192, sequences=2, unified=True, cache_k=Q8, cache_v=Q8)
    drafter_load = replace(load, cache_k=F16, cache_v=Q8)
    setup = replace(SERVER, draft_max=4)
    bill = bill_with_drafter(
        llamacpp.estimate(model_of(main), load, setup), model_of(model), drafter_load, setup
    )
    launch = launch_of(
        main, load=load, setup=setup, drafter=model, drafter_load=drafter_load, alias="two"
    )
    with start(launch) as running:
        rows = compare_reported(bill, running.allocations, running.files.size_bytes)
        assert [row.part for row in rows if row.part != "compute" and not row.within] == []
        q8_row = 128 // 32 * 34  # 128 numbers: 34 bytes for each block of 32
        assert bill.of(Component.KV_CACHE) == 8192 * (3 * (q8_row + q8_row) + 128 * 2 + q8_row)
        request = {"prompt": "the quick", "n_predict": 16, "temperature": 0, "ignore_eos": True}
        _, answer = ask(running.address, "/completion", request)
        assert answer["tokens_predicted"] == 16
        assert answer["timings"]["draft_n"] > 0  # the draft model was used


def test_bill_of_sliding_layers_is_what_the_engine_reports(tmp_path: Path) -> None:
    path = small_model(
        tmp_path / "g.gguf",
        "gemma3",
        layers=4,
        window=256,
        window_period=2,
        context_tokens=4096,
    )
    load = Load(context_tokens=4096, sequences=1)
    bill = llamacpp.estimate(model_of(path), load, SERVER)
    with start(launch_of(path, load=load)) as running:
        parts = {
            row.part: row
            for row in compare_reported(bill, running.allocations, running.files.size_bytes)
        }
    for name in ("weights", "kv cache", "sliding kv cache", "output"):
        assert parts[name].within, parts[name]
    assert parts["sliding kv cache"].predicted_bytes > 0


def test_logged_part_leaves_out_adapters_and_projector() -> None:
    def line(part: str) -> MemoryLine:
        return MemoryLine(component=Component.WEIGHTS, size_bytes=1, pool=HOST, part=part)

    bill = MemoryEstimate(
        engine="llama.cpp",
        backend="cpu",
        lines=tuple(map(line, ("", "drafter", "adapter", "projector"))),
    )
    assert [item.part for item in logged_part(bill).lines] == ["", "drafter"]


@pytest.mark.parametrize(
    ("files_mib", "most_mib"),
    [(9000, 4400 + 334), (100, 4400 + 100)],  # no more of a file can be mapped than it has
)
def test_weights_next_to_a_mapped_range_are_at_most_both(files_mib: int, most_mib: int) -> None:
    copied, mapped = (
        MeasuredBytes(low_bytes=mib * MIB, high_bytes=mib * MIB) for mib in (4400, 334)
    )
    logged = LoggedAllocations(
        parts={Component.WEIGHTS: copied + mapped},
        weights=(("CUDA0", copied), ("CPU_Mapped", mapped)),
        resolved={},
    )
    line = MemoryLine(component=Component.WEIGHTS, size_bytes=4500 * MIB, pool=HOST)
    bill = MemoryEstimate(engine="llama.cpp", backend="cuda", lines=(line,))
    row, *_ = compare_reported(bill, logged, files_mib * MIB)
    assert row.part == Component.WEIGHTS.value
    assert row.measured == MeasuredBytes(low_bytes=4400 * MIB, high_bytes=most_mib * MIB)
