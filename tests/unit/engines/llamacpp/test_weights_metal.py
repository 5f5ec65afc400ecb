"""Metal maps a span of the file, checked against two public logs of llama-server on an Apple M4 (April 2026).

gemma-4-E4B-it-Q8_0: github.com/acdtrx/llama-runner @ ac4543b, llama-server.log
gemma-4-E2B-it-Q4_K_M: github.com/coin1860/kb-agent, blob 62a68f5, llama_server.log
The tensors have the shapes and types of these files: their sizes add up to the logs' figures to 0.01 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from tests.recorded import engine_models

from edgekit.bill.types import Component, Load, MemoryEstimate, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import Backend, DeviceSlot, LlamaCppSetup
from edgekit.engines.llamacpp.weights import PAGE_BYTES, buffer_bytes
from edgekit.formats.dtype import by_name
from edgekit.formats.types import ModelHeader, Tensor, Value
from edgekit.machine.types import DEVICE, HOST, Pool
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import Container
from edgekit.units import GIB, MIB

METAL = LlamaCppSetup(backend=Backend.METAL)
VOCABULARY, PER_LAYER = 262_144, 256


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One log: shapes and types of the file, the load, and the sizes that llama-server printed."""

    hidden: int
    layers: int
    kv_heads: int
    full_every: int
    layers_with_cache: int
    feed_forward: Callable[[int], int]
    types: dict[str, str]
    load: Load
    mapped_mib: float  # MTL0_Mapped model buffer size
    cache_mib: float
    compute_mib: float


def _has_more_bits(layer: int, layers: int) -> bool:
    """True for the layers to which Q4_K_M gives more bits (use_more_bits of llama-quant.cpp)."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


E4B = Logged(
    hidden=2560,
    layers=42,
    kv_heads=2,
    full_every=6,
    layers_with_cache=24,
    feed_forward=lambda _layer: 10_240,
    types={"": "Q8_0", "token_embd": "Q8_0", "per_layer_token_embd": "Q8_0", "more": "Q8_0"},
    load=Load(context_tokens=65_536, sequences=1, microbatch_tokens=512),
    mapped_mib=7798.32,
    cache_mib=1064.0,
    compute_mib=517.5,
)
E2B = Logged(
    hidden=1536,
    layers=35,
    kv_heads=1,
    full_every=5,
    layers_with_cache=15,
    feed_forward=lambda layer: 6144 if layer < 15 else 12_288,
    types={"": "Q4_K", "token_embd": "Q4_K", "per_layer_token_embd": "Q5_K", "more": "Q6_K"},
    load=Load(
        context_tokens=32_768,
        sequences=1,
        batch_tokens=1024,
        microbatch_tokens=1024,
        cache_k=cache_type("q8_0"),
        cache_v=cache_type("q8_0"),
    ),
    mapped_mib=2947.73,
    cache_mib=111.56,
    compute_mib=1031.0,
)


def _shapes(log: Logged) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of each tensor, as llama-quantize orders them: those outside of blocks first."""
    base_type, larger_type = log.types[""], log.types["more"]
    width = log.layers * PER_LAYER
    yield "output_norm.weight", (log.hidden,), "F32"
    yield "per_layer_model_proj.weight", (width, log.hidden), "F16"
    yield "per_layer_proj_norm.weight", (PER_LAYER,), "F32"
    yield "per_layer_token_embd.weight", (VOCABULARY, width), log.types["per_layer_token_embd"]
    yield "rope_freqs.weight", (256,), "F32"
    yield "token_embd.weight", (VOCABULARY, log.hidden), log.types["token_embd"]
    for layer in range(log.layers):
        dim = 512 if layer % log.full_every == log.full_every - 1 else 256
        queries, keys = 8 * dim, log.kv_heads * dim
        inner = log.feed_forward(layer)
        value_type = larger_type if _has_more_bits(layer, log.layers) else base_type
        block = {
            "attn_k": ((keys, log.hidden), base_type),
            "attn_k_norm": ((dim,), "F32"),
            "attn_norm": ((log.hidden,), "F32"),
            "attn_output": ((log.hidden, queries), base_type),
            "attn_q": ((queries, log.hidden), base_type),
            "attn_q_norm": ((dim,), "F32"),
            "attn_v": ((keys, log.hidden), value_type),
            "ffn_down": ((log.hidden, inner), value_type),
            "ffn_gate": ((inner, log.hidden), base_type),
            "ffn_norm": ((log.hidden,), "F32"),
            "ffn_up": ((inner, log.hidden), base_type),
            "inp_gate": ((PER_LAYER, log.hidden), "F32"),
            "layer_output_scale": ((1,), "F32"),
            "post_attention_norm": ((log.hidden,), "F32"),
            "post_ffw_norm": ((log.hidden,), "F32"),
            "post_norm": ((log.hidden,), "F32"),
            "proj": ((log.hidden, PER_LAYER), "F32"),
        }
        for name, (shape, kind) in sorted(block.items()):
            yield f"blk.{layer}.{name}.weight", shape, kind


def _model(log: Logged) -> Model:
    tensors: list[Tensor] = []
    position = 15_800_000 // 32 * 32  # after a header with the vocabulary
    for name, shape, kind in _shapes(log):
        type_ = by_name(kind)
        elements = 1
        for length in shape:
            elements *= length
        size = elements // type_.block_elements * type_.block_bytes
        tensors.append(Tensor(name=name, type=type_, shape=shape, size_bytes=size, offset=position))
        position += -(-size // 32) * 32
    slides = tuple(layer % log.full_every < log.full_every - 1 for layer in range(log.layers))
    keys: dict[str, Value] = {
        "general.architecture": "gemma4",
        "gemma4.block_count": log.layers,
        "gemma4.context_length": 131_072,
        "gemma4.embedding_length": log.hidden,
        "gemma4.vocab_size": VOCABULARY,
        "gemma4.feed_forward_length": tuple(map(log.feed_forward, range(log.layers))),
        "gemma4.attention.head_count": 8,
        "gemma4.attention.head_count_kv": log.kv_heads,
        "gemma4.attention.key_length": 512,
        "gemma4.attention.value_length": 512,
        "gemma4.attention.key_length_swa": 256,
        "gemma4.attention.value_length_swa": 256,
        "gemma4.attention.sliding_window": 512,
        "gemma4.attention.sliding_window_pattern": slides,
        "gemma4.attention.shared_kv_layers": log.layers - log.layers_with_cache,
        "gemma4.embedding_length_per_layer_input": PER_LAYER,
        "gemma4.rope.dimension_count": 512,
        "gemma4.rope.dimension_count_swa": 256,
    }
    header = ModelHeader(
        name="gemma-4.gguf",
        container=Container.GGUF,
        keys=keys,
        tensors=tuple(tensors),
        tensor_count=len(tensors),
    )
    return Model(header=header, geometry=read_geometry(header))


def _bytes(bill: MemoryEstimate, pool: Pool, *components: Component) -> int:
    return bill.total(lambda line: line.pool == pool and line.component in components)


@pytest.mark.parametrize("log", [E4B, E2B], ids=["E4B", "E2B"])
def test_metal_maps_the_span_that_the_log_printed(log: Logged) -> None:
    bill = llamacpp.estimate(_model(log), log.load, METAL)
    weights = _bytes(bill, DEVICE, Component.WEIGHTS)
    assert log.mapped_mib - 0.005 <= weights / MIB <= log.mapped_mib + 0.005 + 2 * PAGE_BYTES / MIB
    # the CPU reads its tensors from the same span
    assert _bytes(bill, HOST, Component.WEIGHTS) == 0
    device = bill.total(
        lambda line: line.pool == DEVICE and line.component is not Component.RUNTIME
    )
    logged = log.mapped_mib + log.cache_mib + log.compute_mib
    assert logged <= device / MIB <= 1.03 * logged  # the graph of April 2026 is a little smaller


@pytest.mark.parametrize("log", [E4B, E2B], ids=["E4B", "E2B"])
def test_without_mmap_token_embeddings_are_in_ram(log: Logged) -> None:
    copied = llamacpp.estimate(_model(log), log.load, replace(METAL, use_mmap=False))
    embeddings = sum(
        tensor.size_bytes
        for tensor in _model(log).header.tensors or ()
        if tensor.name in {"token_embd.weight", "per_layer_token_embd.weight"}
    )
    assert _bytes(copied, HOST, Component.WEIGHTS) == embeddings
    mapped_mib = _bytes(copied, DEVICE, Component.WEIGHTS) / MIB
    assert mapped_mib < 0.7 * log.mapped_mib


def test_experts_on_the_cpu_stay_in_the_mapped_span() -> None:
    model = engine_models()["qwen3-30b-a3b", "Q4_K_M"]
    load = Load(context_tokens=8192)
    on_gpu = llamacpp.estimate(model, load, METAL)
    with_cpu_experts = llamacpp.estimate(model, load, replace(METAL, cpu_moe=True))
    ends = [tensor.offset + tensor.size_bytes for tensor in model.header.tensors or ()]
    for bill in (on_gpu, with_cpu_experts):
        assert _bytes(bill, DEVICE, Component.WEIGHTS) <= max(ends)
    mapped_all = _bytes(on_gpu, DEVICE, Component.WEIGHTS)
    mapped, in_ram = (_bytes(with_cpu_experts, pool, Component.WEIGHTS) for pool in (DEVICE, HOST))
    # of 16 GiB: at most the experts after the last tensor of the GPU
    assert mapped_all - mapped < GIB
    sizes = [tensor.size_bytes for tensor in model.header.tensors or ()]
    assert sum(sizes) <= mapped + in_ram <= sum(sizes) + 32 * len(sizes) + 2 * PAGE_BYTES


def test_tensors_without_offsets_are_laid_out_as_llama_quantize_writes_them() -> None:
    model = _model(E4B)
    without_offsets = tuple(replace(tensor, offset=0) for tensor in model.header.tensors or ())
    header = replace(model.header, tensors=tuple(reversed(without_offsets)))
    other = Model(header=header, geometry=model.geometry)
    mapped = [
        _bytes(llamacpp.estimate(item, E4B.load, METAL), DEVICE, Component.WEIGHTS)
        for item in (model, other)
    ]
    assert abs(mapped[0] - mapped[1]) <= PAGE_BYTES


def test_each_file_of_a_split_model_is_mapped_separately() -> None:
    """The second file begins with block 20: the gap before it is in no span."""
    model = _model(E4B)
    tensors = tuple(
        replace(tensor, shard=1, offset=tensor.offset + GIB)
        if tensor.name.startswith("blk.") and int(tensor.name.split(".")[1]) >= 20
        else tensor
        for tensor in model.header.tensors or ()
    )
    split = Model(header=replace(model.header, tensors=tensors), geometry=model.geometry)
    mapped = [
        _bytes(llamacpp.estimate(item, E4B.load, METAL), DEVICE, Component.WEIGHTS)
        for item in (model, split)
    ]
    assert abs(mapped[0] - mapped[1]) <= 2 * PAGE_BYTES


def test_buffer_bytes_of_views_that_overlap_by_the_largest_tensor() -> None:
    page = PAGE_BYTES
    assert buffer_bytes(0, 100 * page, 5 * page, 100 * page) == 100 * page
    # Each view of 60 pages starts 60 - (5 + 1) after the previous one: [0, 60) and [54, 100).
    assert buffer_bytes(0, 100 * page, 5 * page, 60 * page) == 60 * page + 46 * page
    # [0, 40), [34, 74), [68, 100)
    assert buffer_bytes(0, 100 * page, 5 * page, 40 * page) == (40 + 40 + 32) * page


def test_buffer_bytes_are_whole_pages() -> None:
    assert buffer_bytes(PAGE_BYTES - 1, PAGE_BYTES + 1, 1, None) == 2 * PAGE_BYTES


def test_max_buffer_of_the_gpu_splits_the_span() -> None:
    setup = replace(METAL, devices=(DeviceSlot(max_buffer_bytes=6 * GIB),))
    one_buffer, two_buffers = (
        _bytes(llamacpp.estimate(_model(E4B), E4B.load, item), DEVICE, Component.WEIGHTS)
        for item in (METAL, setup)
    )
    # per_layer_token_embd is in RAM, so the largest tensor on the GPU is the tied head.
    head_pages = -(-(262_144 * 2560 * 34 // 32) // PAGE_BYTES)
    assert two_buffers - one_buffer == (head_pages + 1) * PAGE_BYTES
