"""vLLM compared with vLLM 0.32.0: blocks, groups, pools and weights, from config.json alone."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tests.recorded import config_header, rows

from edgekit.bill.types import MemoryEstimate
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.setups import read_row
from edgekit.model import read_geometry
from edgekit.model.types import Model

Row = dict[str, Any]
SCALARS = ("block_size", "bytes_per_block", "request_bytes", "num_blocks", "max_concurrency")
TUPLES = ("groups", "blocks_per_group")


@cache
def spec_rows() -> tuple[Row, ...]:
    return tuple(row for row in rows("vllm.jsonl.gz") if row["kind"] == "spec")


@cache
def model(config: str) -> Model:
    header = config_header(json.loads(config))
    return Model(header=header, geometry=read_geometry(header))


def estimate(row: Row, **more: Any) -> MemoryEstimate:
    load, setup = read_row({**row["options"], **more})
    return vllm.estimate(model(json.dumps(row["config"])), load, setup)


def differences(row: Row, **more: Any) -> list[str]:
    facts: dict[str, Any] = dict(estimate(row, **more).facts)
    actual = row["actual"]
    wrong = [name for name in SCALARS if facts[name] != actual[name]]
    return wrong + [name for name in TUPLES if list(facts[name]) != actual[name]]


def lost_option(row: Row) -> dict[str, Any]:
    """The option that seven rows were recorded with and do not list.

    Four have the inputs of four others (DeepSeek-V3, all defaults) and the answers of --block-size 64; three name 8 GiB
    in their refusal and 20 GiB in their options.
    """
    if row["model"] == "deepseek-v3" and row["actual"]["specs"][0]["page_size_bytes"] == 64 * 1152:
        return {"block_size": 64}
    if "(8.0 GiB)" in row["actual"].get("refused", ""):
        return {"available_kv_bytes": 8 * 2**30}
    return {}


def test_recorded_rows_are_exact() -> None:
    wrong = [
        (row["model"], row["options"], result)
        for row in spec_rows()
        if (result := differences(row, **lost_option(row)))
    ]
    assert wrong == []


def test_seven_rows_lack_an_option() -> None:
    lost = [row for row in spec_rows() if lost_option(row)]
    assert len(lost) == 7
    assert all(differences(row) for row in lost)


def test_weights_are_exact() -> None:
    wrong = [
        (row["model"], row["options"])
        for row in spec_rows()
        if estimate(row, **lost_option(row)).weights_bytes != row["actual"]["weights_param_bytes"]
    ]
    assert wrong == []


def test_request_that_does_not_fit_is_an_answer() -> None:
    refused = [row for row in spec_rows() if "refused" in row["actual"]]
    assert len(refused) == 9
    for row in refused:
        facts = dict(estimate(row, **lost_option(row)).facts)
        assert facts["refused"]
        assert facts["num_blocks"] is None


def test_pool_is_what_the_engine_allocated() -> None:
    for row in rows("vllm.jsonl.gz"):
        for length, at in row["actual"].get("at_len", {}).items():
            if at.get("kv_tensor_bytes") is None:
                continue
            options = {**sim_options(row), "available_kv_bytes": at["avail_bytes"]}
            load, setup = read_row({**options, "max_model_len": int(length)})
            bill = vllm.estimate(sim_model(row), load, setup)
            assert bill.kv_cache_bytes == at["kv_tensor_bytes"]


def sim_model(row: Row) -> Model:
    config = row.get("config")
    if config is None:
        config = next(item["config"] for item in spec_rows() if item["model"] == row["model"])
    return model(json.dumps(config))


def sim_options(row: Row) -> dict[str, Any]:
    copied = ("dtype", "max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching")
    options = {name: row["options"][name] for name in (*copied, "mamba_ssm_cache_dtype")}
    card = row["options"]["platform"]
    gpu = {"name": card["name"], "memory_bytes": card["mem"], "capability": card["capability"]}
    return {**options, "gpu": gpu}
