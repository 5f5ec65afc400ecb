"""Bills of vLLM for any context, GPU and quantization_config, and the records of its models."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import gguf_header
from tests.thoroughness import LONG
from tests.unit.engines.vllm.small_models import CONFIG, HYBRID, WINDOWS, estimate, facts

from edgekit.bill.types import Load
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.models import VllmModel, vllm_model
from edgekit.engines.vllm.types import Gpu, VllmSetup
from edgekit.errors import EdgekitError, RefusedError
from edgekit.model import read_geometry
from edgekit.model.architectures import section_by_name
from edgekit.model.types import Model
from edgekit.units import GIB


def test_estimate_refuses_gguf() -> None:
    keys = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.context_length": 512,
        "llama.vocab_size": 100,
    }
    header = gguf_header(keys)
    with pytest.raises(RefusedError, match="GGUF"):
        vllm.estimate(Model(header=header, geometry=read_geometry(header)), Load(), VllmSetup())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([CONFIG, WINDOWS, HYBRID]),
    st.integers(1, 8191),
    st.integers(1, 8191),
    st.integers(1, 9000),
)
def test_longer_request_never_needs_fewer_bytes(
    config: dict[str, Any], one: int, other: int, step: int
) -> None:
    short, long = (
        facts(config, tokens=tokens, max_num_batched_tokens=step) for tokens in sorted((one, other))
    )
    assert short["request_bytes"] <= long["request_bytes"]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([CONFIG, WINDOWS, HYBRID]), st.integers(1, 200 * GIB), st.integers(1, 8192))
def test_total_is_the_sum_and_within_the_gpu(
    config: dict[str, Any], memory: int, tokens: int
) -> None:
    bill = estimate(config, tokens, gpu=Gpu(name="card", memory_bytes=memory))
    assert bill.total_bytes == sum(line.size_bytes for line in bill.lines)
    if dict(bill.facts)["num_blocks"] is not None:
        assert bill.total_bytes <= memory


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**40)
    | st.text(max_size=8)
    | st.floats(allow_nan=True),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = (
    "bits",
    "group_size",
    "weight_block_size",
    "config_groups",
    "ignore",
    "quant_algo",
    "kv_cache_scheme",
    "format",
)


@settings(max_examples=150 if LONG else 60, deadline=None)
@given(
    st.sampled_from(["fp8", "gptq", "awq", "compressed-tensors", "modelopt", "mxfp4", "quark", ""]),
    st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=4),
    JUNK,
)
def test_malformed_quantization_config_is_billed_or_refused(
    method: str, keys: dict[str, Any], group: Any
) -> None:
    quantization = {**keys, "quant_method": method}
    if isinstance(group, dict):
        quantization["config_groups"] = {"group_0": {"weights": group, "targets": ["Linear"]}}
    try:
        bill = estimate({**CONFIG, "quantization_config": quantization})
    except EdgekitError:
        return
    assert bill.weights_bytes > 0


def test_vllm_model_reads_every_section_and_every_field_is_used() -> None:
    sections = section_by_name("vllm", ("config",))
    for name in sections:
        vllm_model(name)
    keys = {key for section in sections.values() for key in section}
    assert keys - {"classes", "dropped"} == {field.name for field in fields(VllmModel)}
