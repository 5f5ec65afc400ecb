"""MLX compared with allocations of mlx-lm: caches, refusals, weights of every quantisation, to the byte."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import pytest
from tests.calls import calls_of
from tests.recorded import config_header, rows
from tests.thoroughness import sampled_rows

from edgekit.bill.types import Component, Load
from edgekit.engines.mlx.caches import CacheSettings, layer_caches, read_session
from edgekit.engines.mlx.compute import BOUND, compute_lines, read_work
from edgekit.engines.mlx.estimate import estimate
from edgekit.engines.mlx.models import mlx_model
from edgekit.engines.mlx.setups import MlxSetup, read_row
from edgekit.errors import RefusedError
from edgekit.model import read_geometry
from edgekit.model.types import Model

BF16_BYTES = 2


@cache
def recorded(kind: str) -> tuple[dict[str, Any], ...]:
    return tuple(row for row in rows("mlx.jsonl.gz") if row["kind"] == kind)


def model_of(config: dict[str, Any]) -> Model:
    header = config_header(config)
    return Model(header=header, geometry=read_geometry(header))


@cache
def named_models() -> dict[str, Model]:
    result: dict[str, Model] = {}
    for row in rows("mlx.jsonl.gz"):
        if row["model"] not in result:
            result[row["model"]] = model_of(row["config"])
    return result


def cache_bytes(row: dict[str, Any]) -> int | str:
    options = {name: value for name, value in row["options"].items() if name != "weights"}
    try:
        bill = estimate(named_models()[row["model"]], *read_row(options))
    except RefusedError:
        return "refused"
    facts = dict(bill.facts)
    assert facts["cache_bytes"] == bill.kv_cache_bytes
    return int(str(facts["cache_bytes"]))


def test_caches_and_refusals_are_exact() -> None:
    wrong = [
        (row["model"], row["options"], cache_bytes(row))
        for row in recorded("cache")
        if cache_bytes(row) != row["actual"].get("cache_bytes", "refused")
    ]
    assert wrong == []
    assert len(recorded("cache")) == 434


def test_caches_of_recorded_sessions_are_exact() -> None:
    for row in recorded("generate"):
        assert cache_bytes(row) == row["actual"]["cache_nbytes"], (row["model"], row["options"])


@pytest.mark.parametrize(("kind", "key"), [("weights", "bytes"), ("file", "param_bytes")])
def test_weights_of_every_quantisation_are_exact(kind: str, key: str) -> None:
    by_model: dict[str, list[dict[str, Any]]] = {}
    for row in recorded(kind):
        by_model.setdefault(row["model"], []).append(row)
    for row in chain.from_iterable(sampled_rows(by_model.values(), each=3)):
        bill = estimate(named_models()[row["model"]], *read_row(row["options"]))
        assert bill.weights_bytes == row["actual"][key], (row["model"], row["options"])


def test_weights_follow_from_the_config_that_the_converter_wrote() -> None:
    """Overrides for single modules included: 8-bit routers, and recipes that list every module."""
    converted = [row for row in recorded("file") if row["actual"]["config_quantization"]]
    for row in converted:
        quantization = row["actual"]["config_quantization"]
        model = model_of({**row["config"], "quantization": quantization})
        bill = estimate(model, Load(context_tokens=64), MlxSetup())
        assert bill.weights_bytes == row["actual"]["param_bytes"], (row["model"], row["options"])
    assert len(converted) == 66


@pytest.mark.parametrize(
    "index",
    [i for i, row in enumerate(recorded("generate")) if row["options"]["prompt_tokens"] > 99],
)
def test_peak_of_the_prompt_has_the_measured_size(index: int) -> None:
    """On the CPU, which holds one layer at a time, fuses no attention and computes norms in several steps."""
    row = recorded("generate")[index]
    model = named_models()[row["model"]]
    load, setup = read_row({k: v for k, v in row["options"].items() if k != "weights"})
    session = read_session(model.geometry, load, setup)
    work = read_work(model.geometry)
    work = replace(work, layers=1, heads=tuple(replace(heads, width=0) for heads in work.heads))
    file = mlx_model(model.header.config)
    caches = layer_caches(model.geometry, file, setup, BF16_BYTES, listed=False)
    settings = CacheSettings(session=session, setup=setup, item_bytes=BF16_BYTES, sequences=1)
    lines = compute_lines(work, caches, settings, words_per_weight=0)
    predicted = sum(line.size_bytes for line in lines)
    measured = row["actual"]["peak_delta"] - row["actual"]["cache_nbytes"]
    assert measured < (1 + BOUND) * predicted < (1 + BOUND) * 1.75 * measured


def test_second_estimate_takes_few_calls() -> None:
    """Less than a millisecond on a quiet machine: what depends on the model alone is cached."""
    model = named_models()["llama-3.1-70b"]
    estimate(model, Load(context_tokens=1_000), MlxSetup())
    assert calls_of(lambda: estimate(model, Load(context_tokens=2_000), MlxSetup())) < 6_000


def test_estimate_has_a_line_for_every_layer() -> None:
    bill = estimate(named_models()["gemma-3-1b"], Load(context_tokens=4096), MlxSetup())
    layers = [
        line.layer
        for line in bill.lines
        if line.component in {Component.KV_CACHE, Component.SLIDING_KV_CACHE}
    ]
    assert layers == list(range(26))
    assert bill.total_bytes == sum(line.size_bytes for line in bill.lines)
