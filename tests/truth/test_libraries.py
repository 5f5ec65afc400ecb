"""Geometry compared with the classes of transformers and mlx-lm: the cache of each layer, the number of weights.

Recorded by running the classes without data. Left out because the two sides count differently: indexer keys (only mlx-lm
stores them with the others), states of transformers (it keeps one more token of a convolution), and the weights of
projectors, of layers that read another's cache, of experts that do nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.recorded import config_header, rows

from edgekit.bill.types import Load
from edgekit.engines.mlx.estimate import estimate
from edgekit.engines.mlx.quantization import PLAIN, Quantize
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.model import read_geometry
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import Model, ModelGeometry


def cache_shapes(geometry: ModelGeometry) -> Counter[tuple[int, int]]:
    """(elements per token, window) -> number of layers."""
    result: Counter[tuple[int, int]] = Counter()
    for layer in geometry.layers:
        streams = [stream for stream in layer.mixer.streams if stream.name != "index"]
        if streams:
            result[sum(stream.elements for stream in streams), streams[0].span_tokens] += 1
    return result


def compare(row: dict[str, Any]) -> None:
    config, name = row["config"], row["config"]["model_type"]
    geometry = read_geometry(config_header(config))
    if row["layers"] is not None:
        expected_caches = {(per_token, window): count for count, per_token, window in row["layers"]}
        assert cache_shapes(geometry) == expected_caches, name
    if row["parameters"] is not None:
        expected = sum(tensor.elements for tensor in expected_tensors(geometry, config))
        assert expected == row["parameters"], name
    if "states" in row:
        states = sum(state.elements for layer in geometry.layers for state in layer.mixer.states)
        assert states == row["states"], name


def test_layers_and_weights_are_those_of_the_libraries() -> None:
    checked = set()
    for row in rows("libraries.jsonl.gz"):
        compare(row)
        checked.add(row["config"]["model_type"])
    assert len(checked) == 214


def test_mlx_bytes_equal_those_of_the_library() -> None:
    """Unquantised weights, weights at 4 bits in groups of 64, the cache after a prompt of 1000 tokens."""
    checked = 0
    for row in rows("libraries.jsonl.gz"):
        if "bytes" not in row:
            continue
        header = config_header(row["config"])
        model = Model(header=header, geometry=read_geometry(header))
        for kind, size_bytes in row["bytes"].items():
            assert mlx_bytes(model, kind) == size_bytes, (row["config"]["model_type"], kind)
            checked += 1
    assert checked == 261


def mlx_bytes(model: Model, kind: str) -> int:
    setup = MlxSetup(quantize=Quantize() if kind == "four_bit" else PLAIN)
    bill = estimate(model, Load(context_tokens=1000), setup)
    return bill.kv_cache_bytes if kind == "cache_1000" else bill.weights_bytes
