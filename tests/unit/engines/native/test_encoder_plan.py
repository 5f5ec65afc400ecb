"""plan_encoder: its lines by hand, budgets it refuses, and that neither the monitor nor numpy sees more memory."""

from __future__ import annotations

import gc
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.embed_models import write_model
from tests.thoroughness import LONG

from edgekit.engines.native.buffers import matrices, usable_cores
from edgekit.engines.native.encoder import StreamedEncoder
from edgekit.engines.native.encoder_plan import EncoderPlan, PlanLine, plan_encoder
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.file import FileHeader, Limits, WeightFile, scan_header
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import Kernels
from edgekit.errors import HeaderError, HeaderLimitError, MemoryPressureError, UsageError
from edgekit.formats.dtype import by_name
from edgekit.formats.types import Tensor, Value
from edgekit.machine.monitor import Monitor
from edgekit.units import Basis, parse_size

KERNELS = choose_kernels("numpy")
ARCHITECTURES = ("bert", "nomic-bert", "jina-bert-v2", "qwen2", "qwen3", "llama")
MIB = 1024**2


def header_of(path: Path) -> FileHeader:
    with WeightFile(path, Limits()) as file:
        return scan_header(file)


def make_plan(header: FileHeader, **options: Any) -> EncoderPlan:
    options.setdefault("pooling", Pooling.MEAN)
    options.setdefault("threads", 2)
    return plan_encoder(header, kernels=options.pop("kernels", KERNELS), **options)


def header_of_7b(tokens: int = 151_936) -> FileHeader:
    """The header of a Qwen2-7B in Q4_K, without a file."""
    q4_k, q6_k, f32 = by_name("Q4_K"), by_name("Q6_K"), by_name("F32")
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "token_embd.weight": (q4_k, (tokens, 3584)),
        "output.weight": (q6_k, (tokens, 3584)),
        "output_norm.weight": (f32, (3584,)),
    }
    for layer in range(28):
        prefix = f"blk.{layer}."
        shapes |= {
            f"{prefix}attn_norm.weight": (f32, (3584,)),
            f"{prefix}ffn_norm.weight": (f32, (3584,)),
            f"{prefix}attn_q.weight": (q4_k, (3584, 3584)),
            f"{prefix}attn_q.bias": (f32, (3584,)),
            f"{prefix}attn_k.weight": (q4_k, (512, 3584)),
            f"{prefix}attn_k.bias": (f32, (512,)),
            f"{prefix}attn_v.weight": (q6_k, (512, 3584)),
            f"{prefix}attn_v.bias": (f32, (512,)),
            f"{prefix}attn_output.weight": (q4_k, (3584, 3584)),
            f"{prefix}ffn_gate.weight": (q4_k, (18944, 3584)),
            f"{prefix}ffn_up.weight": (q4_k, (18944, 3584)),
            f"{prefix}ffn_down.weight": (q6_k, (3584, 18944)),
        }
    tensors, offset = {}, 0
    for name, (kind, shape) in shapes.items():
        size = kind.row_bytes(shape[-1]) * (shape[0] if len(shape) == 2 else 1)
        tensors[name] = Tensor(name=name, type=kind, shape=shape, size_bytes=size, offset=offset)
        offset += size
    keys: dict[str, Value] = {
        "general.architecture": "qwen2",
        "qwen2.block_count": 28,
        "qwen2.context_length": 32_768,
        "qwen2.embedding_length": 3584,
        "qwen2.feed_forward_length": 18944,
        "qwen2.attention.head_count": 28,
        "qwen2.attention.head_count_kv": 4,
        "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen2.rope.freq_base": 1e6,
        "qwen2.pooling_type": 3,
    }
    return FileHeader(
        name="seven-billion.gguf",
        keys=keys,
        arrays={},
        tensors=tensors,
        tensor_count=len(tensors),
        first_names=tuple(tensors)[:8],
        file_bytes=offset,
    )


# --- lines of the plan


def test_plan_of_7b_line_by_line() -> None:
    plan = make_plan(header_of_7b(), budget_bytes=100 * MIB, pooling=None)
    lines = {line.what: line for line in plan.lines}
    assert plan.pooling is Pooling.LAST
    assert plan.pass_tokens == plan.text_tokens == 2048
    assert lines["tokens"].size_bytes == 2048 * 3584 * 4
    assert lines["queries"].size_bytes == 2048 * 28 * 128 * 4
    arena = max(2048 * 2 * 4 * 128, plan.chunk_tokens * 18944)
    assert lines["keys and values, then feed-forward"].size_bytes == arena * 4
    assert lines["chunk"].size_bytes == plan.chunk_tokens * 3584 * 4
    assert lines["rotary tables"].size_bytes == (2048 + 2048) * 128 * 4
    vectors = 3584 + 28 * (3 * 3584 + 2 * 512)
    assert lines["norms and biases"].size_bytes == vectors * 4
    assert lines["norms and biases"].basis is Basis.EXACT
    assert lines["threads"].basis is Basis.MODELLED
    assert plan.total_bytes <= 100 * MIB * 85 // 100
    assert not plan.unpacked
    assert plan.streams


def test_plan_of_7b_with_a_short_token_limit_needs_little_memory() -> None:
    plan = make_plan(header_of_7b(), budget_bytes=40 * MIB, pooling=None, limits=Limits(tokens=512))
    assert plan.pass_tokens == 512
    assert plan.total_bytes <= 34 * MIB


def test_plan_with_more_budget_keeps_at_least_as_many_weights() -> None:
    header = header_of_7b()
    kept_bytes = -1
    for mib in (100, 200, 400, 800, 2_000, 5_000, 20_000, 40_000):
        plan = make_plan(header, budget_bytes=mib * MIB)
        assert plan.total_bytes <= mib * MIB * 85 // 100
        size = sum(line.size_bytes for line in plan.lines if line.what.startswith("weights"))
        assert size >= kept_bytes
        kept_bytes = size
    assert not plan.streams
    assert {tensor.name for tensor in matrices(plan.model)} - plan.unpacked == {"token_embd.weight"}


def test_plan_unpacks_weights_only_if_all_are_kept() -> None:
    header = header_of_7b()
    packed = sum(tensor.size_bytes for tensor in matrices(make_plan(header).model))
    plan = make_plan(header, budget_bytes=packed)
    assert plan.kept
    assert not plan.unpacked
    plan = make_plan(header, budget_bytes=2 * packed)
    assert len(plan.kept) == len(list(matrices(plan.model)))
    assert plan.unpacked


def test_plan_without_a_budget_uses_at_most_a_quarter(tmp_path: Path) -> None:
    small = header_of(write_model(tmp_path / "small.gguf", "bert"))
    small_plan = make_plan(small, available_bytes=64 * 1024 * MIB)
    assert small_plan.budget_bytes < 200 * MIB
    assert not small_plan.streams
    assert {tensor.name for tensor in matrices(small_plan.model)} - small_plan.unpacked == {
        "token_embd.weight",
        "position_embd.weight",
    }
    large_plan = make_plan(header_of_7b(), available_bytes=400 * MIB)
    assert large_plan.budget_bytes == 100 * MIB
    large_plan = make_plan(header_of_7b(), available_bytes=64 * 1024 * MIB)
    assert large_plan.kept == frozenset(), "the page cache already holds the file"


def test_plan_counts_other_lines(tmp_path: Path) -> None:
    header = header_of(write_model(tmp_path / "model.gguf", "bert"))
    line = PlanLine(what="tokenizer", size_bytes=10 * MIB, basis=Basis.MODELLED, because="x")
    budget = 20 * MIB
    alone, with_tokenizer = (
        make_plan(header, budget_bytes=budget),
        make_plan(header, budget_bytes=budget, other_lines=[line]),
    )
    assert with_tokenizer.total_bytes <= budget * 85 // 100
    assert with_tokenizer.size_bytes == with_tokenizer.total_bytes - 10 * MIB
    assert with_tokenizer.size_bytes < alone.size_bytes
    assert with_tokenizer.other_lines == (line,)


# --- refusals


def sizes_in(message: str) -> list[int]:
    return [parse_size(item) for item in re.findall(r"[\d.]+ [KMG]iB", message)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plan_names_the_least_budget_that_works(architecture: str, tmp_path: Path) -> None:
    header = header_of(write_model(tmp_path / "model.gguf", architecture))
    with pytest.raises(MemoryPressureError, match="at least") as caught:
        make_plan(header, budget_bytes=MIB)
    budget, floor, one_thread, short_texts, both = sizes_in(str(caught.value))
    assert budget == MIB
    make_plan(header, budget_bytes=floor)
    make_plan(header, budget_bytes=one_thread, threads=1)
    make_plan(header, budget_bytes=short_texts, limits=Limits(tokens=256))
    make_plan(header, budget_bytes=both, threads=1, limits=Limits(tokens=256))
    with pytest.raises(MemoryPressureError):
        make_plan(header, budget_bytes=floor * 99 // 100)
    assert both < min(one_thread, short_texts) <= max(one_thread, short_texts) < floor


def test_plan_of_7b_accepts_the_budget_that_the_message_names() -> None:
    with pytest.raises(MemoryPressureError, match="at least") as caught:
        make_plan(header_of_7b(), budget_bytes=50 * MIB)
    _, floor, *_ = sizes_in(str(caught.value))
    make_plan(header_of_7b(), budget_bytes=floor)


def test_plan_refuses_a_vector_over_the_limit(tmp_path: Path) -> None:
    header = header_of(write_model(tmp_path / "model.gguf", "bert"))
    with pytest.raises(HeaderLimitError, match="must be held whole"):
        make_plan(header, limits=Limits(held_tensor_bytes=256 * 4))


def test_plan_ignores_or_refuses_a_sliding_window(tmp_path: Path) -> None:
    for window, tokens in ((64, 64), (4096, 2048), (0, 2048)):
        path = write_model(
            tmp_path / "w.gguf", "llama", keys={"llama.attention.sliding_window": window}
        )
        assert make_plan(header_of(path), limits=Limits(tokens=tokens)).text_tokens == min(
            tokens, 512
        )
    path = write_model(tmp_path / "w.gguf", "llama", keys={"llama.attention.sliding_window": 64})
    with pytest.raises(HeaderError, match="--max-tokens 64"):
        make_plan(header_of(path))


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"limits": Limits(tokens=0)}, {"pooling": None}], ids=str
)
def test_plan_refuses_invalid_settings(options: dict[str, Any], tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "qwen2")
    with pytest.raises(UsageError):
        make_plan(header_of(path), **options)


def test_plan_names_the_tensor_of_an_unknown_type(tmp_path: Path) -> None:
    header = header_of(write_model(tmp_path / "model.gguf", "qwen2"))
    tensors = dict(header.tensors)
    name = "blk.1.ffn_up.weight"
    tensors[name] = replace(tensors[name], type=by_name("Q8_1"))
    with pytest.raises(
        HeaderError, match=r"tensor blk.1.ffn_up.weight: .* does not support the type Q8_1"
    ):
        make_plan(replace(header, tensors=tensors))


def test_plan_uses_at_most_eight_threads(tmp_path: Path) -> None:
    header = header_of(write_model(tmp_path / "model.gguf", "bert"))
    assert make_plan(header, threads=None).threads == min(8, usable_cores())


# --- measured memory


@settings(
    max_examples=20 if LONG else 4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    kind=st.sampled_from(["F32", "F16", "Q8_0"]),
    kernels=st.sampled_from([KERNELS, choose_kernels()]),
    heads=st.sampled_from([2, 4]),
    head_dim=st.sampled_from([16, 32, 64]),
    inner=st.integers(1, 24).map(lambda blocks: 32 * blocks),
    tokens=st.integers(8, 150),
    threads=st.integers(1, 4),
    spare=st.floats(0, 1.5),
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=8),
)
def test_encoder_allocates_no_more_than_planned(  # noqa: PLR0917 - hypothesis gives them by name
    tmp_path: Path,
    architecture: str,
    kind: str,
    kernels: Kernels,
    heads: int,
    head_dim: int,
    inner: int,
    tokens: int,
    threads: int,
    spare: float,
    lengths: list[int],
) -> None:
    path = write_model(
        tmp_path / "model.gguf",
        architecture,
        kind=kind,
        heads=heads,
        kv_heads=heads if "bert" in architecture else 2,
        head_dim=head_dim,
        width=heads * head_dim,
        inner=inner,
        layers=2,
    )
    limits = Limits(tokens=tokens)
    header = header_of(path)
    with pytest.raises(MemoryPressureError) as caught:
        make_plan(header, budget_bytes=1000, threads=threads, limits=limits, kernels=kernels)
    floor = sizes_in(str(caught.value))[0]
    budget = floor + int(spare * 4 * MIB)
    texts = [[5] * min(length, tokens) for length in lengths]
    into = np.empty((len(texts), heads * head_dim), np.float32)
    with WeightFile(path, limits) as file:
        import edgekit.engines.native.encoder  # noqa: F401 - so that importing it is not measured

        Monitor()  # imports psutil
        gc.collect()
        tracemalloc.start()
        try:
            plan = make_plan(
                header, budget_bytes=budget, threads=threads, limits=limits, kernels=kernels
            )
            monitor = Monitor(budget_bytes=budget)
            encoder = StreamedEncoder(file, header, kernels=kernels, monitor=monitor, plan=plan)
            for _ in range(2):
                encoder.encode(texts, into, lambda _share: None)
            _, peak = tracemalloc.get_traced_memory()
            encoder.close()
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert plan.total_bytes <= budget * 85 // 100
    assert monitor.peak_reserved_bytes == plan.size_bytes
    assert monitor.reserved_bytes == 0
    assert peak <= plan.size_bytes
    del plan, encoder
    assert left < 600_000
