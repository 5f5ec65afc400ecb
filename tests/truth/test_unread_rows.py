"""Compute buffers of llama.cpp from the keys of a GGUF, and from config.json: 0 bytes off, without the directory.

The normal run takes some rows of each model in one of the four tables (except one model, which has CPU rows only);
EDGEKIT_LONG=1 takes all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import models, rows
from tests.thoroughness import LONG
from tests.unread import WITHOUT_CONFIG, configs, from_config, from_keys

from edgekit.bill.types import Component, MemoryEstimate
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.setups import read_row
from edgekit.errors import RefusedError
from edgekit.machine.types import PoolKind

Row = dict[str, Any]
HOST_BUFFERS = ("CUDA_Host", "CPU", "CPU_Mapped")


def recorded(file: str, *, each: int, table: int) -> Iterator[Row]:
    by_model: dict[str, list[Row]] = {}
    for row in rows(file):
        if "error" not in row.get("actual", {}) and row.get("tag") != "real":
            by_model.setdefault(row["model"], []).append(row)
    for turn, model in enumerate(sorted({item["model"] for item in models()})):
        model_rows = by_model.get(model, [])
        if LONG:
            yield from model_rows
        elif model_rows and turn % (2 if model in WITHOUT_CONFIG else TABLES) == table:
            yield from model_rows[turn % min(each, len(model_rows)) :: each]


def compute(bill: MemoryEstimate, kind: PoolKind) -> int:
    parts = (line for line in bill.lines if line.component is Component.COMPUTE)
    return sum(part.size_bytes for part in parts if part.pool.kind is kind)


def check(row: Row, bill: MemoryEstimate) -> None:
    case = (row["model"], row["quant"], row["options"])
    if "breakdown" not in row:
        assert compute(bill, PoolKind.HOST) == row["actual"]["compute_bytes"], case
        return
    device = row["breakdown"]["CUDA0"][2]
    host = sum(row["breakdown"].get(name, [0, 0, 0])[2] for name in HOST_BUFFERS)
    assert compute(bill, PoolKind.DEVICE) == device, case
    assert compute(bill, PoolKind.HOST) == host, case


TABLES = 4  # from keys on the CPU and with CUDA, from config.json the same
FILES = [("llama_cpp_cpu.jsonl.gz", "cpu", 30), ("llama_cpp_cuda.jsonl.gz", "cuda", 50)]


@pytest.mark.parametrize(("file", "backend", "each"), FILES)
def test_compute_from_the_keys_is_exact(file: str, backend: str, each: int) -> None:
    for row in recorded(file, each=each, table=0 if backend == "cpu" else 1):
        if backend == "cuda" and row.get("breakdown") is None:
            continue
        load, setup = read_row(row["options"], backend)
        check(row, llamacpp.estimate(from_keys(row["model"], row["quant"]), load, setup))


@pytest.mark.parametrize(("file", "backend", "each"), FILES)
def test_compute_from_the_config_is_exact(file: str, backend: str, each: int) -> None:
    for row in recorded(file, each=each, table=2 if backend == "cpu" else 3):
        if row["model"] in WITHOUT_CONFIG or (backend == "cuda" and row.get("breakdown") is None):
            continue
        load, setup = read_row(row["options"], backend)
        setup = replace(setup, mix=row["quant"])
        bill = llamacpp.estimate(from_config(row["model"]), load, setup)
        check(row, bill)
        if backend == "cpu":
            assert bill.weights_bytes == row["actual"]["model_buffer_bytes"], row["model"]


def test_every_recorded_model_except_those_listed_has_a_config() -> None:
    assert {model["model"] for model in models()} - configs().keys() == WITHOUT_CONFIG


def test_engine_refusals_are_known_from_the_keys() -> None:
    refused = [row for row in rows("llama_cpp_cpu.jsonl.gz") if "error" in row["actual"]]
    for row in refused if LONG else refused[::8]:
        model = from_keys(row["model"], row["quant"])
        with pytest.raises(RefusedError):
            llamacpp.estimate(model, *read_row(row["options"], "cpu"))
