"""-ot, -sm and --rpc against what llama.cpp b11549 reserved on two RPC servers, each on a CPU.

Recorded by its dry run; -sm tensor by real loads, because its dry run counts whole tensors. A CPU aligns to 32 bytes and
pads no rows; a card aligns to 128 and pads quantised rows to 512 elements. PADDING allows for that difference.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import engine_models, rows

from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    Backend,
    DeviceSlot,
    LlamaCppSetup,
    Override,
    SplitMode,
    read_version,
)
from edgekit.machine.types import HOST, Pool, PoolKind

ROWS = list(rows("placements_06.jsonl.gz"))
COLUMNS = {
    Component.WEIGHTS: 0,
    Component.KV_CACHE: 1,
    Component.SLIDING_KV_CACHE: 1,
    Component.STATE: 1,
    Component.COMPUTE: 2,
}
PADDING = 1.0005


def setup_of(options: dict[str, Any]) -> LlamaCppSetup:
    servers = tuple(DeviceSlot(rpc=f"RPC{i}") for i in range(options["servers"]))
    mode = SplitMode(options.get("sm", "layer"))
    main_gpu = options.get("mg", 0)
    words = (entry.split("=") for entry in options.get("ot", "").split(",") if entry)
    return LlamaCppSetup(
        backend=Backend.CUDA,
        devices=servers[main_gpu : main_gpu + 1] if mode is SplitMode.NONE else servers,
        n_gpu_layers=options.get("ngl", ALL_LAYERS),
        tensor_split=tuple(float(word) for word in options.get("ts", "").split(",") if word),
        split_mode=mode,
        main_gpu=main_gpu,
        overrides=tuple(Override(pattern=pattern, buffer=buffer) for pattern, buffer in words),
        use_mmap=False,
        **read_version("0.6")._asdict(),
    )


def load_of(options: dict[str, Any]) -> Load:
    return Load(
        context_tokens=options.get("n_ctx", 4096),
        sequences=1,
        batch_tokens=2048,
        microbatch_tokens=options.get("n_ubatch", 512),
        flash_attention=options.get("fa", "on") == "on",
        unified=True,
    )


def buffers(estimate: MemoryEstimate, pool: Pool) -> list[int]:
    sums = [0, 0, 0]
    for line in estimate.lines:
        if line.pool == pool and line.component in COLUMNS:
            sums[COLUMNS[line.component]] += line.size_bytes
    return sums


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['options']}")
def test_buffers_equal_those_of_the_engine(row: dict[str, Any]) -> None:
    model = engine_models()[row["model"], row["quant"]]
    bill = llamacpp.estimate(model, load_of(row["options"]), setup_of(row["options"]))
    # The recorded weights are the whole mapped file.
    skips_weights = row["options"].get("sm") == "tensor"
    assert buffers(bill, HOST)[skips_weights:] == row["host"][skips_weights:]
    for i, recorded in enumerate(row["devices"]):
        billed = buffers(bill, Pool(PoolKind.DEVICE, i))
        assert all(a <= b <= PADDING * a for a, b in zip(recorded, billed, strict=True)), (
            recorded,
            billed,
        )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['options']}")
def test_held_bytes_are_the_weights_and_caches_of_the_bill(row: dict[str, Any]) -> None:
    model = engine_models()[row["model"], row["quant"]]
    load, setup = load_of(row["options"]), setup_of(row["options"])
    held_bytes = llamacpp.held_bytes(model, load, setup)
    bill = llamacpp.estimate(model, load, setup)
    assert {pool: size for pool, size in held_bytes.items() if size} == {
        pool: sum(buffers(bill, pool)[:2]) for pool in held_bytes if sum(buffers(bill, pool)[:2])
    }
