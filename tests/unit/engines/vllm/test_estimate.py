"""vLLM's rules one by one, on a model small enough for paper."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import config_header, gguf_header
from tests.thoroughness import LONG

from edgekit.bill.types import F16, Component, Load, MemoryEstimate, cache_type
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.caches import HEAD_BYTES
from edgekit.engines.vllm.expected import stages
from edgekit.engines.vllm.models import VllmModel, vllm_model
from edgekit.engines.vllm.schemes import ListedModules
from edgekit.engines.vllm.setups import read_row, values
from edgekit.engines.vllm.types import Gpu, VllmSetup
from edgekit.errors import EdgekitError, RefusedError, UsageError
from edgekit.formats.dtype import by_safetensors
from edgekit.formats.types import Tensor
from edgekit.model import read_geometry
from edgekit.model.architectures import section_by_name
from edgekit.model.tensor_recipes import TensorRole
from edgekit.model.types import Model
from edgekit.units import GIB, MIB, Basis

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
WINDOWS = {
    **CONFIG,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "sliding_window": 128,
    "sliding_window_pattern": 6,
}
HYBRID = {
    **CONFIG,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
PAGE = 16 * 4 * (64 + 64) * 2  # tokens x KV heads x (key + value) x bytes
BLOCK = 4 * PAGE  # of four layers
# q, k, v, o and two norms; gate, up, down
LAYER = 2 * (512 * 512 + 2 * 256 * 512 + 512 * 512 + 2 * 512 + 3 * 512 * 1024)
VOCABULARY = 2 * 1024 * 512  # 1000 padded to 1024
WEIGHTS = 4 * LAYER + 2 * VOCABULARY + 2 * 512


def model(config: dict[str, Any] | None = None) -> Model:
    header = config_header(config or CONFIG)
    return Model(header=header, geometry=read_geometry(header))


def estimate(
    config: dict[str, Any] | None = None, tokens: int = 1000, **flags: Any
) -> MemoryEstimate:
    return vllm.estimate(model(config), Load(context_tokens=tokens), VllmSetup(**flags))


def facts(config: dict[str, Any] | None = None, tokens: int = 1000, **flags: Any) -> dict[str, Any]:
    return dict(estimate(config, tokens, **flags).facts)


# --- blocks and groups


def test_a_plain_model_has_one_group_of_pages() -> None:
    result = facts(kv_cache_memory_bytes=100 * BLOCK)
    assert result["block_size"] == 16
    assert result["groups"] == (4,)
    assert result["bytes_per_block"] == BLOCK
    assert result["blocks_per_group"] == (63,)  # 1000 tokens in blocks of 16
    assert result["request_bytes"] == 63 * BLOCK
    assert result["num_blocks"] == 100
    assert result["max_concurrency"] == 100 / 63


def test_one_block_is_never_given_out() -> None:
    assert facts(kv_cache_memory_bytes=64 * BLOCK)["num_blocks"] == 64
    refused = estimate(kv_cache_memory_bytes=63 * BLOCK)
    assert dict(refused.facts)["num_blocks"] is None
    assert "1,000 tokens" in str(dict(refused.facts)["refused"])
    assert refused.kv_cache_bytes == 63 * BLOCK  # what it would take


def test_the_pool_is_one_line() -> None:
    bill = estimate(kv_cache_memory_bytes=100 * BLOCK + 5)
    (line,) = [x for x in bill.lines if x.component is Component.KV_CACHE]
    assert line.size_bytes == 100 * BLOCK
    assert line.basis is Basis.EXACT


def test_without_a_card_the_line_is_what_requests_need() -> None:
    bill = vllm.estimate(model(), Load(context_tokens=1000, sequences=3), VllmSetup())
    assert bill.kv_cache_bytes == 3 * 63 * BLOCK
    assert dict(bill.facts)["num_blocks"] is None


def test_windows_and_full_layers_are_grouped_by_the_fewest() -> None:
    result = facts(WINDOWS, tokens=8192, max_num_batched_tokens=512)
    assert result["groups"] == (1, 1, 1, 1, 1, 1)
    assert result["bytes_per_block"] == PAGE
    # 127 tokens of the window and two steps of 512 in flight, and a block for a window that starts inside one
    assert result["blocks_per_group"] == (-(-(127 + 1024) // 16) + 1,) * 5 + (512,)


def test_without_the_hybrid_manager_windows_hold_all_tokens() -> None:
    result = facts(WINDOWS, disable_hybrid_kv_cache_manager=True)
    assert result["groups"] == (6,)
    assert result["blocks_per_group"] == (63,)


def test_a_state_is_padded_to_the_page_of_attention() -> None:
    result = facts(HYBRID, enable_prefix_caching=False)
    state = 3 * (4 * 64 + 2 * 2 * 64) * 2 + 4 * 64 * 64 * 2
    token = 4 * 128 * 2
    assert result["block_size"] == 16 * -(-state // (16 * token))
    assert result["groups"] == (1, 1, 1, 1)
    assert result["bytes_per_block"] == result["block_size"] * token
    assert result["blocks_per_group"][:3] == (1, 1, 1)


def test_prefix_caching_keeps_a_second_state() -> None:
    assert facts(HYBRID)["blocks_per_group"][:3] == (2, 2, 2)


def test_the_states_dtype_is_its_own() -> None:
    wide = facts(HYBRID, mamba_ssm_cache_dtype="float32")
    assert wide["block_size"] > facts(HYBRID)["block_size"]


def test_recurrences_need_the_hybrid_manager() -> None:
    with pytest.raises(RefusedError, match="hybrid cache manager"):
        estimate(HYBRID, disable_hybrid_kv_cache_manager=True)


# --- cache dtypes


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bfloat16", 512),
        ("fp8", 256),
        ("int8_per_token_head", 264),
        ("fp8_per_token_head", 264),
        ("int4_per_token_head", 136),
        ("turboquant_k8v4", 128 + 64 + 4),
        ("turboquant_4bit_nc", 64 + 2 + 64 + 4),
        ("turboquant_k3v4_nc", 48 + 2 + 64 + 4),
        ("turboquant_3bit_nc", 48 + 2 + 48 + 4),
        ("nvfp4", 2 * (64 + 8)),
    ],
)
def test_bytes_of_a_head_of_128(name: str, size: int) -> None:
    assert HEAD_BYTES[name](128, 128) == size


def test_an_unknown_cache_dtype_lists_the_known() -> None:
    with pytest.raises(UsageError, match="turboquant_k8v4"):
        estimate(kv_cache_dtype="q8_0")


def test_a_load_may_name_the_cache_type() -> None:
    half = vllm.estimate(model(), Load(context_tokens=1000, cache_k=cache_type("fp8")), VllmSetup())
    assert half.kv_cache_bytes == 63 * BLOCK // 2
    with pytest.raises(UsageError, match="q4_0"):
        vllm.estimate(model(), Load(cache_k=cache_type("q4_0")), VllmSetup())
    with pytest.raises(RefusedError, match="one dtype"):
        vllm.estimate(model(), Load(cache_k=F16, cache_v=cache_type("fp8")), VllmSetup())


def test_a_calibrated_checkpoint_decides_what_auto_means() -> None:
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    config = {
        **CONFIG,
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "kv_cache_scheme": scheme,
        },
    }
    assert facts(config)["kv_cache_dtype"] == "fp8_e4m3"
    assert facts(config)["bytes_per_block"] == BLOCK // 2
    assert facts(config, kv_cache_dtype="bfloat16")["bytes_per_block"] == BLOCK


def test_packed_dtypes_leave_the_first_and_last_layers_alone() -> None:
    deep = {**CONFIG, "num_hidden_layers": 8}
    result = facts(deep, kv_cache_dtype="turboquant_k8v4")
    assert result["block_size"] == 32
    assert result["bytes_per_block"] == 32 * 4 * (4 * 256 + 4 * (64 + 32 + 4))


# --- refusals


@pytest.mark.parametrize(
    ("config", "flags", "reason"),
    [
        ({}, {"tensor_parallel_size": 3}, "8 attention heads are not divisible"),
        ({}, {"pipeline_parallel_size": 5}, "4 layers cannot be split"),
        ({"architectures": ["QWenLMHeadModel"]}, {}, "until 0.23.0"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, {}, "does not support"),
        ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, {}, "deprecated"),
        ({"quantization_config": {"bits": 4, "group_size": 64}}, {}, "MLX"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, {}, "3 bits"),
        ({}, {"quantization": "bitsandbytes"}, "does not support"),
        ({}, {"kv_cache_dtype": "fp8", "gpu": Gpu(name="A100", capability=(8, 0))}, "8.9"),
        ({}, {"kv_cache_dtype": "nvfp4"}, "no attention backend"),
        ({}, {"block_size": 24}, "no attention backend"),
        ({}, {"dtype": "bfloat16", "gpu": Gpu(name="T4", capability=(7, 5))}, "bfloat16"),
    ],
)
def test_what_vllm_refuses_is_refused(
    config: dict[str, Any], flags: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        estimate({**CONFIG, **config}, **flags)


def test_windows_do_not_go_with_packed_caches() -> None:
    with pytest.raises(RefusedError, match="turboquant_4bit_nc"):
        estimate({**WINDOWS, "num_hidden_layers": 12}, kv_cache_dtype="turboquant_4bit_nc")


def test_a_context_beyond_the_window_is_refused() -> None:
    with pytest.raises(RefusedError, match="8,192"):
        estimate(tokens=8193)
    assert facts({**CONFIG, "model_max_length": 16384}, tokens=16384)["max_model_len"] == 16384
    with pytest.raises(UsageError, match="at least 1"):
        estimate(tokens=0)


def test_gguf_is_refused() -> None:
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


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 0},
        {"gpu_memory_utilization": 1.5},
        {"max_num_batched_tokens": 0},
        {"mamba_ssm_cache_dtype": "int8"},
        {"dtype": "int4"},
    ],
)
def test_nonsense_is_a_usage_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        estimate(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": "H100"},
        {"gpu": {"capability": [9]}},
        {"gpu": {"capability": [9, 0.5]}},
        {"max_model_len": "long"},
        {"block_size": True},
        {"block_size": 2**70},
        {"dtype": 16},
        {"enable_prefix_caching": "yes"},
        {"gpu_memory_utilization": "0.9"},
    ],
)
def test_a_row_of_the_wrong_type_is_a_usage_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_row(options)


# --- cards


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA B200", 180, (16384, 1024)),
        ("NVIDIA H100 80GB HBM3", 80, (8192, 1024)),
        ("NVIDIA A100-SXM4-80GB", 80, (2048, 256)),
        ("NVIDIA L4", 24, (2048, 256)),
    ],
)
def test_batch_defaults_depend_on_the_gpu(name: str, gib: int, expected: tuple[int, int]) -> None:
    result = facts(gpu=Gpu(name=name, memory_bytes=gib * GIB), tokens=8192)
    assert (result["max_num_batched_tokens"], result["max_num_seqs"]) == expected
    assert result["max_in_flight_tokens"] == 2 * expected[0]


def test_block_size_of_wide_heads_on_blackwell() -> None:
    wide = {**CONFIG, "head_dim": 256}
    blackwell = Gpu(name="B200", capability=(10, 0))
    assert facts(wide, gpu=blackwell)["block_size"] == 128
    assert facts(wide, gpu=blackwell, kv_cache_dtype="fp8")["block_size"] == 16
    assert facts(wide, gpu=blackwell, flashinfer=True)["block_size"] == 16
    assert facts(wide)["block_size"] == 16


def test_dtype_is_float16_on_turing() -> None:
    assert facts(gpu=Gpu(name="Tesla T4", capability=(7, 5)))["dtype"] == "float16"
    assert facts(WINDOWS, gpu=Gpu(name="Tesla T4", capability=(7, 5)))["dtype"] == "float32"


def test_pool_is_what_weights_and_overhead_leave_free() -> None:
    card = Gpu(name="card", memory_bytes=16 * GIB)
    bill = estimate(gpu=card, gpu_memory_utilization=0.5)
    held = bill.total_bytes - bill.kv_cache_bytes
    result = dict(bill.facts)
    assert result["available_kv_bytes"] == 8 * GIB - held
    assert result["num_blocks"] == (8 * GIB - held) // BLOCK
    (pool,) = [x for x in bill.lines if x.component is Component.KV_CACHE]
    assert pool.basis is Basis.MODELLED


def test_pool_without_memory_is_refused() -> None:
    result = facts(gpu=Gpu(name="card", memory_bytes=512 * MIB))
    assert result["refused"] == "no memory is left for the KV cache"


# --- ranks


def test_kv_heads_are_split_and_then_copied() -> None:
    assert facts(tensor_parallel_size=2)["bytes_per_block"] == BLOCK // 2
    assert facts(tensor_parallel_size=4)["bytes_per_block"] == BLOCK // 4
    assert facts(tensor_parallel_size=8)["bytes_per_block"] == BLOCK // 4


@pytest.mark.parametrize(
    ("layers", "count", "sizes"),
    [
        (8, 2, (4, 4)),
        (61, 4, (15, 15, 16, 15)),
        (10, 4, (2, 3, 3, 2)),
        (11, 4, (3, 3, 3, 2)),
        (4, 1, (4,)),
    ],
)
def test_stages_put_remaining_layers_before_the_last(
    layers: int, count: int, sizes: tuple[int, ...]
) -> None:
    cut = stages(layers, count)
    assert tuple(map(len, cut)) == sizes
    assert [i for stage in cut for i in stage] == list(range(layers))


def test_stage_has_its_layers_and_the_table_at_its_end() -> None:
    bill = estimate(pipeline_parallel_size=2)
    assert (
        bill.weights_bytes == 2 * LAYER + VOCABULARY + 2 * 512
    )  # the last stage: head and final norm
    assert dict(bill.facts)["bytes_per_block"] == BLOCK // 2
    assert dict(bill.facts)["max_in_flight_tokens"] == 3 * 2048  # one a stage, one more


def test_tied_embedding_is_on_the_first_and_the_last_stage() -> None:
    tied = {**CONFIG, "tie_word_embeddings": True}
    assert estimate(tied).weights_bytes == WEIGHTS - VOCABULARY
    assert (
        estimate(tied, pipeline_parallel_size=2).weights_bytes == 2 * LAYER + VOCABULARY + 2 * 512
    )


# --- weights


def test_weights_from_the_config() -> None:
    bill = estimate()
    assert bill.weights_bytes == WEIGHTS
    assert {x.layer for x in bill.lines if x.component is Component.WEIGHTS} == {None, 0, 1, 2, 3}


def test_weights_of_a_rank_are_a_share_and_all_norms() -> None:
    norms = 2 * (4 * 2 * 512 + 512)
    assert estimate(tensor_parallel_size=2).weights_bytes == norms + (WEIGHTS - norms) // 2


def quantised(**settings: Any) -> int:
    return estimate({**CONFIG, "quantization_config": settings}).weights_bytes


MATRICES = 4 * (2 * 512 * 512 + 2 * 256 * 512 + 3 * 512 * 1024)
PLAIN = WEIGHTS - 2 * MATRICES


def test_weights_in_fp8_have_a_scale_per_block() -> None:
    scales = 4 * 4 * (4 * 4 + 2 * 2 * 4 + 4 * 4 + 3 * 4 * 8)
    result = quantised(quant_method="fp8", weight_block_size=[128, 128])
    assert result == PLAIN + MATRICES + scales + 4 * 4 * 2  # four numbers beside each attention


def test_weights_in_gptq_have_scales_and_zeros_per_group() -> None:
    groups = MATRICES // 128
    result = quantised(quant_method="gptq", bits=4, group_size=128)
    assert result == PLAIN + MATRICES // 2 + groups * 2 + groups // 2


def test_weights_of_ignored_modules_are_not_quantised() -> None:
    everything = quantised(quant_method="fp8", activation_scheme="dynamic")
    spared = quantised(
        quant_method="fp8",
        activation_scheme="dynamic",
        modules_to_not_convert=["model.layers.0.mlp"],
    )
    assert spared - everything == 3 * 512 * 1024 - 3 * 4


def test_mxfp4_experts_are_padded_for_marlin() -> None:
    config = {
        **CONFIG,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 288,
        "intermediate_size": 96,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    hopper = estimate(config).weights_bytes
    marlin = estimate(config, gpu=Gpu(name="L4", capability=(8, 9))).weights_bytes

    def experts(width: int, hidden: int) -> int:
        packed = 3 * width * hidden // 2 + 3 * width * hidden // 32
        return 4 * 4 * (packed + 2 * (2 * width + hidden))

    assert marlin - hopper == experts(128, 512) - experts(128, 288)


@pytest.mark.parametrize(
    ("pattern", "role", "layer", "covered"),
    [
        ("lm_head", TensorRole.QUERY, 0, False),
        ("model.layers.3.mlp.gate", TensorRole.ROUTER, 3, True),
        ("model.layers.3.mlp.gate", TensorRole.ROUTER, 4, False),
        ("model.layers.3.mlp.gate", TensorRole.GATE, 3, False),
        ("re:.*self_attn.*", TensorRole.OUTPUT, 7, True),
        ("re:.*mlp\\.gate$", TensorRole.ROUTER, 7, True),
        ("model.language_model.layers.0.self_attn*", TensorRole.KEY, 0, True),
        ("*.mlp.experts.*", TensorRole.EXPERT_UP, 2, True),
        ("gate", TensorRole.ROUTER, 1, True),
        ("gate", TensorRole.GATE, 1, False),
        ("", TensorRole.GATE, 1, False),
    ],
)
def test_module_names(pattern: str, role: TensorRole, layer: int, *, covered: bool) -> None:
    assert ListedModules([pattern], "llama").covers(role, layer) is covered


# --- the tensor directory


def tensor(name: str, *shape: int, dtype: str = "BF16") -> Tensor:
    kind = by_safetensors(dtype)
    elements = 1
    for size in shape:
        elements *= size
    return Tensor(name=name, type=kind, shape=shape, size_bytes=kind.row_bytes(elements), offset=0)


def directory(*more: Tensor) -> Model:
    tensors = [tensor("model.embed_tokens.weight", 1000, 512), tensor("lm_head.weight", 1000, 512)]
    tensors.append(tensor("model.norm.weight", 512))
    for i in range(4):
        shapes = {
            "self_attn.q_proj": (512, 512),
            "self_attn.k_proj": (256, 512),
            "self_attn.v_proj": (256, 512),
            "self_attn.o_proj": (512, 512),
            "mlp.gate_proj": (1024, 512),
            "mlp.up_proj": (1024, 512),
            "mlp.down_proj": (512, 1024),
            "input_layernorm": (512,),
            "post_attention_layernorm": (512,),
        }
        tensors += [
            tensor(f"model.layers.{i}.{name}.weight", *shape) for name, shape in shapes.items()
        ]
    header = replace(config_header(CONFIG), tensors=(*tensors, *more))
    return Model(header=header, geometry=read_geometry(header))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_weights_from_the_files_equal_weights_from_the_config(ranks: int) -> None:
    setup = VllmSetup(tensor_parallel_size=ranks)
    stored = vllm.estimate(directory(), Load(context_tokens=1000), setup)
    assert stored.weights_bytes == estimate(tensor_parallel_size=ranks).weights_bytes
    lines = [x for x in stored.lines if x.component is Component.WEIGHTS]
    assert {x.basis for x in lines} == {Basis.EXACT}


@pytest.mark.parametrize("ranks", [1, 2])
def test_online_fp8_from_the_files_equals_online_fp8_from_the_config(ranks: int) -> None:
    flags: dict[str, Any] = {"tensor_parallel_size": ranks, "quantization": "fp8"}
    stored = vllm.estimate(directory(), Load(context_tokens=1000), VllmSetup(**flags))
    assert stored.weights_bytes == estimate(**flags).weights_bytes
    # Seven matrices a layer become a byte a number and a scale of four; the tables stay as they are.
    plain = estimate(tensor_parallel_size=ranks).weights_bytes
    assert plain - stored.weights_bytes == MATRICES // ranks - 4 * 7 * 4
    assert stored.basis is Basis.MODELLED


def test_online_fp8_only_quantises_linear_layers() -> None:
    tower = tensor("vision_tower.embed.weight", 1000, 100)
    setup = VllmSetup(quantization="fp8")
    load = Load(context_tokens=1000)
    more = vllm.estimate(directory(tower), load, setup).weights_bytes
    assert more - vllm.estimate(directory(), load, setup).weights_bytes == 1000 * 100 * 2


def test_weights_exclude_what_vllm_does_not_load() -> None:
    more = (
        tensor("model.layers.4.eh_proj.weight", 512, 1024),  # a layer past the last predicts tokens
        tensor("model.layers.0.self_attn.rotary_emb.inv_freq", 32, dtype="F32"),
    )
    assert vllm.estimate(directory(*more), Load(), VllmSetup()).weights_bytes == WEIGHTS


def test_weights_are_in_the_models_dtype() -> None:
    wide = vllm.estimate(directory(), Load(), VllmSetup(dtype="float32"))
    assert wide.weights_bytes == 2 * WEIGHTS


# --- laws


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([CONFIG, WINDOWS, HYBRID]),
    st.integers(1, 8191),
    st.integers(1, 8191),
    st.integers(1, 9000),
)
def test_more_context_never_needs_less(
    config: dict[str, Any], one: int, other: int, step: int
) -> None:
    small, large = sorted((one, other))
    bills = [facts(config, tokens=n, max_num_batched_tokens=step) for n in (small, large)]
    assert bills[0]["request_bytes"] <= bills[1]["request_bytes"]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([CONFIG, WINDOWS, HYBRID]), st.integers(1, 200 * GIB), st.integers(1, 8192))
def test_total_is_the_sum_and_within_the_gpu(
    config: dict[str, Any], memory: int, tokens: int
) -> None:
    bill = estimate(config, tokens, gpu=Gpu(name="card", memory_bytes=memory))
    assert bill.total_bytes == sum(x.size_bytes for x in bill.lines)
    if dict(bill.facts)["num_blocks"] is not None:
        assert bill.total_bytes <= memory


_JUNK = st.recursive(
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
_KEYS = (
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
    st.dictionaries(st.sampled_from(_KEYS), _JUNK, max_size=4),
    _JUNK,
)
def test_malformed_quantization_config_is_answered_or_refused(
    method: str, settings_: dict[str, Any], group: Any
) -> None:
    stated = {**settings_, "quant_method": method}
    if isinstance(group, dict):
        stated["config_groups"] = {"group_0": {"weights": group, "targets": ["Linear"]}}
    try:
        bill = estimate({**CONFIG, "quantization_config": stated})
    except EdgekitError:
        return
    assert bill.weights_bytes > 0


def test_values_of_a_gpu_known_by_size_have_no_name() -> None:
    """As a machine with --vram 24G has it."""
    card = Gpu(name="24 GiB GPU", memory_bytes=None, total_bytes=24 * 2**30)
    assert "gpu" not in values(Load(), VllmSetup(gpu=card))
    named = VllmSetup(gpu=Gpu(name="H100", capability=(9, 0)))
    assert values(Load(), named)["gpu"].name == "H100"


def test_every_section_of_the_records_can_be_read_and_every_field_is_used() -> None:
    sections = section_by_name("vllm", ("config",))
    for name in sections:
        vllm_model(name)
    used = {key for section in sections.values() for key in section}
    assert used - {"classes", "dropped"} == {item.name for item in fields(VllmModel)}
