"""Laws that every bill of llama.cpp obeys."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.recorded import engine_models
from tests.thoroughness import LONG

from edgekit.bill.types import CACHES, Load, MemoryEstimate, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup, LlamaMode
from edgekit.errors import RefusedError
from edgekit.model.types import Model

MODELS = (
    ("llama-3.2-1b", "Q4_K_M"),
    ("gemma-3-4b", "Q4_K_M"),
    ("qwen3-30b-a3b", "Q4_K_M"),
    ("deepseek-v2-lite", "Q4_K_M"),
    ("falcon-h1-1.5b", "Q4_K_M"),
    ("qwen3.5-9b", "Q4_K_M"),
    ("mamba-2.8b", "Q4_K_M"),
    ("all-minilm-l6-v2", "F16"),
)
models = st.sampled_from(MODELS)
types = st.sampled_from(("f32", "f16", "bf16", "q8_0", "q4_0", "q5_1")).map(cache_type)
contexts = st.integers(1, 2**18)
setups = st.builds(
    LlamaCppSetup,
    mode=st.sampled_from(LlamaMode),
    backend=st.sampled_from((Backend.CPU, Backend.CUDA)),
    n_gpu_layers=st.sampled_from((0, 1, 7, 999)),
    cpu_moe=st.booleans(),
    offload_kqv=st.booleans(),
)
loads = st.builds(
    Load,
    context_tokens=contexts,
    sequences=st.sampled_from((None, 1, 2, 3, 4, 8)),
    microbatch_tokens=st.sampled_from((None, 1, 31, 64, 512)),
    cache_k=types,
    flash_attention=st.sampled_from((None, True, False)),
    unified=st.booleans(),
    full_window=st.booleans(),
)


def _estimate(name: tuple[str, str], load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
    try:
        return llamacpp.estimate(engine_models()[name], load, setup)
    except RefusedError:
        assume(False)
        raise


@settings(max_examples=100 if LONG else 10, deadline=None)
@given(name=models, load=loads, setup=setups)
def test_totals_are_sums_over_the_lines(
    name: tuple[str, str], load: Load, setup: LlamaCppSetup
) -> None:
    bill = _estimate(name, load, setup)
    assert bill.total_bytes == sum(line.size_bytes for line in bill.lines if line.reserved)
    assert bill.total_bytes == bill.weights_bytes + bill.kv_cache_bytes + bill.overhead_bytes
    by_pool = [
        sum(line.size_bytes for line in bill.lines if line.reserved and line.pool == pool)
        for pool in bill.pools
    ]
    assert bill.total_bytes == sum(by_pool)
    assert all(line.size_bytes >= 0 and line.because for line in bill.lines)


@settings(max_examples=60 if LONG else 6, deadline=None)
@given(name=models, load=loads, setup=setups, more=st.integers(0, 2**17))
def test_longer_context_never_shrinks_the_cache(
    name: tuple[str, str], load: Load, setup: LlamaCppSetup, more: int
) -> None:
    longer = replace(load, context_tokens=(load.context_tokens or 0) + more)
    assert _cache(_estimate(name, longer, setup)) >= _cache(_estimate(name, load, setup))


@settings(max_examples=60 if LONG else 6, deadline=None)
@given(name=models, load=loads, setup=setups, more=st.integers(1, 8))
def test_more_sequences_never_shrink_the_cache(
    name: tuple[str, str], load: Load, setup: LlamaCppSetup, more: int
) -> None:
    """In a unified cache. Separate caches may shrink: 768 cells are 2 x 512 for two sequences and 3 x 256 for three."""
    few = replace(load, sequences=load.sequences or 1, unified=True)
    many = replace(few, sequences=(few.sequences or 1) + more)
    assert _cache(_estimate(name, many, setup)) >= _cache(_estimate(name, few, setup))


@settings(max_examples=60 if LONG else 6, deadline=None)
@given(name=models, load=loads, setup=setups)
def test_answer_does_not_depend_on_earlier_requests(
    name: tuple[str, str], load: Load, setup: LlamaCppSetup
) -> None:
    """A cached structure gives the same bill as a new one."""
    cached = _estimate(name, load, setup)
    model = engine_models()[name]
    fresh = Model(header=model.header, geometry=model.geometry)
    assert cached.lines == llamacpp.estimate(fresh, load, setup).lines


def _cache(bill: MemoryEstimate) -> int:
    return bill.of(*CACHES)
