"""StreamedEncoder compared with tests/reference_model.py: float64, one text at a time, nothing batched."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.embed_models import write_model
from tests.reference_model import ReferenceModel
from tests.thoroughness import LONG
from tests.threads import running, started_since

from edgekit.embed.types import Encoder
from edgekit.engines.native.encoder import StreamedEncoder
from edgekit.engines.native.encoder_plan import EncoderPlan, plan_encoder
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import MemoryPressureError, SourceError, TextError, UsageError, WeightsError
from edgekit.machine.monitor import Monitor

Wide = NDArray[np.float64]
KERNELS = choose_kernels("numpy")
ARCHITECTURES = ("bert", "nomic-bert", "jina-bert-v2", "qwen2", "qwen3", "llama")
TEXTS = [[5, 9, 11], [7], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29], [8, 8]]


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[tuple[Encoder, EncoderPlan, Monitor]]:
    options.setdefault("pooling", Pooling.MEAN)
    limits = options.pop("limits", Limits())
    with WeightFile(path, limits) as file:
        header = scan_header(file)
        plan = plan_encoder(header, kernels=KERNELS, limits=limits, **options)
        monitor = Monitor(budget_bytes=plan.budget_bytes)
        encoder = StreamedEncoder(file, header, kernels=KERNELS, monitor=monitor, plan=plan)
        try:
            yield encoder, plan, monitor
        finally:
            encoder.close()


def encode(path: Path, texts: Sequence[Sequence[int]], **options: Any) -> Floats:
    with opened(path, **options) as (encoder, _, _):
        into = np.empty((len(texts), encoder.width), np.float32)
        encoder.encode(texts, into, lambda _share: None)
    return into


SMALL = {"width": 64, "inner": 96, "heads": 4, "head_dim": 16, "layers": 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "bert, joined qkv": ("bert", {"joined_qkv": True}),
    "bert without biases": ("bert", {"biases": False}),
    "nomic-bert, rope on half of each head": ("nomic-bert", {"rope_dims": 8}),
    "jina-bert-v2, gate in up": ("jina-bert-v2", {"joined_gate": True}),
    "jina-bert-v2 for code: query and key norms": (
        "jina-bert-v2",
        {"query_norm": True, "joined_gate": True},
    ),
    "qwen2, not causal": ("qwen2", {"causal": False}),
    "qwen2, one key head": ("qwen2", {"kv_heads": 1}),
    "qwen3, wide heads": ("qwen3", {"head_dim": 48, "heads": 2}),
    "llama, rope factors": ("llama", {"rope_factors": True}),
    "llama, untied output": ("llama", {"tied": False, "rope_dims": 8}),
    "odd sizes": ("qwen2", {"width": 36, "inner": 100, "heads": 6, "kv_heads": 3, "head_dim": 6}),
}


def small_model(folder: Path, architecture: str, **shape: Any) -> Path:
    sizes = {**SMALL, "kind": "F32", **shape}
    sizes.setdefault(
        "kv_heads", 2 if architecture in {"qwen2", "qwen3", "llama"} else sizes["heads"]
    )
    return write_model(folder / f"{architecture}.gguf", architecture, **sizes)


def assert_close(actual: Floats, expected: Wide) -> None:
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_encoder_equals_the_reference_model_in_every_family(variant: str, tmp_path: Path) -> None:
    architecture, shape = VARIANTS[variant]
    path = small_model(tmp_path, architecture, **shape)
    reference = ReferenceModel(path)
    for pooling in Pooling:
        actual = encode(path, TEXTS, pooling=pooling)
        assert_close(actual, reference.vectors(TEXTS, pooling))


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("architecture", ["nomic-bert", "qwen2"])
def test_encoder_with_packed_weights_equals_the_reference_model(
    kind: str, architecture: str, tmp_path: Path
) -> None:
    path = small_model(tmp_path, architecture, kind=kind, width=256, inner=512, head_dim=64)
    actual = encode(path, TEXTS)
    assert_close(actual, ReferenceModel(path).vectors(TEXTS, Pooling.MEAN))


@settings(
    max_examples=25 if LONG else 6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    head_dim=st.integers(1, 9).map(lambda half: 2 * half),
    kv_heads=st.integers(1, 3),
    shared=st.sampled_from([1, 2]),
    inner=st.integers(1, 70),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    threads=st.integers(1, 3),
    tight=st.booleans(),
)
def test_encoder_equals_the_reference_model_for_any_shape_batch_and_budget(  # noqa: PLR0917 - hypothesis gives them by name
    tmp_path: Path,
    architecture: str,
    head_dim: int,
    kv_heads: int,
    shared: int,
    inner: int,
    lengths: list[int],
    threads: int,
    tight: bool,  # noqa: FBT001 - hypothesis gives it by name
) -> None:
    is_bert = "bert" in architecture
    heads = {1: 2, 2: 4, 3: 4}[kv_heads] if is_bert else kv_heads * shared
    path = small_model(
        tmp_path,
        architecture,
        heads=heads,
        kv_heads=heads if is_bert else kv_heads,
        head_dim=head_dim,
        width=heads * head_dim,
        inner=inner,
        layers=1 + inner % 3,
    )
    random = np.random.default_rng(inner)
    texts = [random.integers(3, 60, length).tolist() for length in lengths]
    limits = Limits(tokens=40)
    budget = floor_bytes(path, threads, limits) if tight else None
    actual = encode(path, texts, threads=threads, limits=limits, budget_bytes=budget)
    assert_close(actual, ReferenceModel(path).vectors(texts, Pooling.MEAN))


def floor_bytes(path: Path, threads: int = 2, limits: Limits | None = None) -> int:
    """The smallest budget that a plan accepts, by bisection."""
    with WeightFile(path, limits or Limits()) as file:
        header = scan_header(file)
    low, high = 0, 1 << 33
    while high - low > 1:
        middle = (low + high) // 2
        try:
            plan_encoder(
                header,
                kernels=KERNELS,
                budget_bytes=middle,
                threads=threads,
                limits=limits,
                pooling=Pooling.MEAN,
            )
            high = middle
        except MemoryPressureError:
            low = middle
    return high


# --- batches


def test_encoder_vectors_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    path = small_model(tmp_path, "qwen2")
    together = encode(path, TEXTS)
    alone = np.concatenate([encode(path, [text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-5


def test_encoder_splits_texts_into_passes(tmp_path: Path) -> None:
    path = small_model(tmp_path, "bert")
    texts = TEXTS * 9
    one_pass = encode(path, texts)
    many_passes = encode(path, texts, limits=Limits(tokens=10), batch_tokens=1)
    assert np.abs(one_pass - many_passes).max() < 1e-5


def test_encoder_without_texts(tmp_path: Path) -> None:
    assert encode(small_model(tmp_path, "bert"), []).shape == (0, 64)


def test_encoder_may_be_called_from_several_threads(tmp_path: Path) -> None:
    path = small_model(tmp_path, "llama")
    expected = encode(path, TEXTS)
    with opened(path, threads=2) as (encoder, _, _):
        results = [np.empty((len(TEXTS), encoder.width), np.float32) for _ in range(6)]
        callers = [
            threading.Thread(target=encoder.encode, args=(TEXTS, into, lambda _share: None))
            for into in results
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert all(np.array_equal(into, expected) for into in results)


# --- progress and cancellation


class StoppedError(Exception):
    pass


def test_encoder_progress_rises_to_one(tmp_path: Path) -> None:
    shares: list[float] = []
    with opened(small_model(tmp_path, "qwen2", layers=6), budget_bytes=8_000_000) as (
        encoder,
        _,
        _,
    ):
        encoder.encode(TEXTS, np.empty((4, 64), np.float32), shares.append)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert shares[0] >= 0.0


@pytest.mark.parametrize("threads", [1, 3])
def test_encoder_is_usable_after_a_cancelled_call(threads: int, tmp_path: Path) -> None:
    path = small_model(tmp_path, "qwen2")
    calls = 0

    def stop(_share: float) -> None:
        nonlocal calls
        calls += 1
        raise StoppedError

    into = np.empty((len(TEXTS), 64), np.float32)
    with opened(path, threads=threads) as (encoder, _, _):
        with pytest.raises(StoppedError):
            encoder.encode(TEXTS, into, stop)
        assert calls == 1
        encoder.encode(TEXTS, into, lambda _share: None)
    assert_close(into, ReferenceModel(path).vectors(TEXTS, Pooling.MEAN))


def test_encoder_refuses_calls_after_close(tmp_path: Path) -> None:
    with opened(small_model(tmp_path, "bert"), threads=3) as (encoder, _, monitor):
        assert any(thread.name == "edgekit-tiles" for thread in threading.enumerate())
        encoder.close()
        assert monitor.reserved_bytes == 0
        assert not any(thread.name == "edgekit-tiles" for thread in threading.enumerate())
        with pytest.raises(UsageError, match="closed"):
            encoder.encode(TEXTS, np.empty((4, 64), np.float32), lambda _share: None)


# --- texts and weights that cannot be used


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ([], "text 1: it has no tokens"),
        ([1_000_000], "text 1: token 1000000 is not one of the model's"),
        ([-1], "text 1: token -1"),
        ([5] * 513, r"text 1: 513 tokens; the limit is 512 \(the model's context length\)"),
    ],
)
def test_encoder_refuses_invalid_texts(text: list[int], message: str, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=message):
        encode(small_model(tmp_path, "bert"), [[5], text])


def test_encoder_names_the_limit_of_a_text_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"9 tokens; the limit is 8 \(Limits.tokens\)"):
        encode(small_model(tmp_path, "bert"), [[5] * 9], limits=Limits(tokens=8))


@pytest.mark.parametrize(
    "name", ["blk.1.ffn_up.weight", "blk.0.attn_norm.weight", "token_embd.weight"]
)
@pytest.mark.parametrize("budget", [None, 9_000_000])
def test_encoder_names_weights_that_are_not_finite(
    name: str, budget: int | None, tmp_path: Path
) -> None:
    path = small_model(tmp_path, "qwen2")
    tensor = next(item for item in gguf.GGUFReader(path).tensors if item.name == name)
    row = 0 if name.endswith("norm.weight") else 7
    with path.open("r+b") as file:
        file.seek(tensor.data_offset + row * 64 * 4)
        file.write(np.array([np.nan], np.float32).tobytes())
    with pytest.raises(WeightsError, match=rf"tensor {name}, row {row}: .* not a finite number"):
        encode(path, [[7]], budget_bytes=budget, threads=2)


def test_encoder_notices_a_file_that_is_written_to(tmp_path: Path) -> None:
    path = small_model(tmp_path, "qwen2")
    with opened(path, budget_bytes=floor_bytes(path), threads=2) as (encoder, plan, _):
        assert plan.streams
        with path.open("ab") as file:
            file.write(b"more")
        with pytest.raises(SourceError, match="written to"):
            encoder.encode(TEXTS, np.empty((4, 64), np.float32), lambda _share: None)


def test_encoder_notices_a_file_truncated_during_a_pass(tmp_path: Path) -> None:
    path = small_model(tmp_path, "qwen2", layers=6)

    def cut(_share: float) -> None:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)

    with (
        opened(path, budget_bytes=floor_bytes(path), threads=2) as (encoder, _, _),
        pytest.raises(SourceError, match="truncated"),
    ):
        encoder.encode(TEXTS, np.empty((4, 64), np.float32), cut)


def test_encoder_releases_everything_if_memory_is_refused(tmp_path: Path) -> None:
    path = small_model(tmp_path, "bert")
    before = running()
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        plan = plan_encoder(header, kernels=KERNELS, pooling=Pooling.MEAN, threads=2)
        monitor = Monitor(budget_bytes=plan.size_bytes // 2)
        with pytest.raises(MemoryPressureError, match="memory budget"):
            StreamedEncoder(file, header, kernels=KERNELS, monitor=monitor, plan=plan)
    assert monitor.reserved_bytes == 0
    assert started_since(before) == 0
