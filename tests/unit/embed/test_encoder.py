"""The streamed forward pass against a straight one: float64, one text at a time, nothing joined."""

from __future__ import annotations

import math
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

from edgekit.embed.budget import EncoderPlan, plan_encoder
from edgekit.embed.encoder import open_encoder
from edgekit.embed.file import WeightFile
from edgekit.embed.kernels import choose
from edgekit.embed.monitor import Monitor
from edgekit.embed.types import Encoder, Floats, Limits, Pooling
from edgekit.embed.walk import walk
from edgekit.errors import MemoryPressureError, SourceError, TextError, UsageError, WeightsError

Wide = NDArray[np.float64]
KERNELS = choose("numpy")
ARCHITECTURES = ("bert", "nomic-bert", "jina-bert-v2", "qwen2", "qwen3", "llama")
TEXTS = [[5, 9, 11], [7], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29], [8, 8]]


@contextmanager
def opened(path: Path, **wishes: Any) -> Iterator[tuple[Encoder, EncoderPlan, Monitor]]:
    wishes.setdefault("pooling", Pooling.MEAN)
    limits = wishes.pop("limits", Limits())
    with WeightFile(path, limits) as file:
        walked = walk(file)
        plan = plan_encoder(walked, kernels=KERNELS, limits=limits, **wishes)
        monitor = Monitor(budget_bytes=plan.budget_bytes)
        encoder = open_encoder(file, walked, kernels=KERNELS, monitor=monitor, plan=plan)
        try:
            yield encoder, plan, monitor
        finally:
            encoder.close()


def encoded(path: Path, texts: Sequence[Sequence[int]], **wishes: Any) -> Floats:
    with opened(path, **wishes) as (encoder, _, _):
        into = np.empty((len(texts), encoder.width), np.float32)
        encoder.encode(texts, into, lambda _share: None)
    return into


class Straight:
    """A model as the papers have it. Reads the file with gguf's own reader."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.architecture = self.keys["general.architecture"]
        self.tensors = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv", self.heads)
        width = self.key("embedding_length")
        self.head_dim = self.key("attention.key_length", width // self.heads)
        self.is_bert = "bert" in self.architecture
        norm = "layer_norm_epsilon" if self.is_bert else "layer_norm_rms_epsilon"
        self.epsilon = self.key(f"attention.{norm}")
        self.causal = self.key("attention.causal", not self.is_bert)

    def key(self, name: str, otherwise: Any = None) -> Any:
        return self.keys.get(f"{self.architecture}.{name}", otherwise)

    def vectors(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> Wide:
        pools = {
            Pooling.MEAN: lambda x: x.mean(0),
            Pooling.CLS: lambda x: x[0],
            Pooling.LAST: lambda x: x[-1],
        }
        return np.stack([pools[pooling](self.tokens(list(text))) for text in texts])

    def tokens(self, text: list[int]) -> Wide:
        x = self.tensors["token_embd.weight"][text]
        if "token_types.weight" in self.tensors:
            x = x + self.tensors["token_types.weight"][0]
        if "position_embd.weight" in self.tensors:
            x = x + self.tensors["position_embd.weight"][: len(text)]
        if self.is_bert:
            x = self.norm("token_embd_norm", x)
        for place in range(self.key("block_count")):
            x = self.layer(f"blk.{place}.", x)
        return x if self.is_bert else self.norm("output_norm", x)

    def layer(self, at: str, x: Wide) -> Wide:
        if not self.is_bert:
            x = x + self.attention(at, self.norm(f"{at}attn_norm", x))
            return x + self.feed_forward(at, self.norm(f"{at}ffn_norm", x))
        between = self.norm(f"{at}attn_output_norm", self.attention(at, x) + x)
        if f"{at}attn_norm_2.weight" in self.tensors:
            between = self.norm(f"{at}attn_norm_2", between + x)
        return self.norm(f"{at}layer_output_norm", self.feed_forward(at, between) + between)

    def attention(self, at: str, x: Wide) -> Wide:
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if f"{at}attn_qkv.weight" in self.tensors:
            q, k, v = np.split(self.linear(f"{at}attn_qkv", x), [query, query + key], axis=1)
        else:
            q, k, v = (self.linear(f"{at}attn_{one}", x) for one in "qkv")
        q, k = self.head_norm(f"{at}attn_q_norm", q), self.head_norm(f"{at}attn_k_norm", k)
        out = np.empty_like(q)
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            own = slice(head * self.head_dim, (head + 1) * self.head_dim)
            theirs = slice(shared * self.head_dim, (shared + 1) * self.head_dim)
            scores = self.turned(q[:, own]) @ self.turned(k[:, theirs]).T / math.sqrt(self.head_dim)
            scores += self.leaning(head, len(x))
            if self.causal:
                scores[np.triu_indices(len(x), 1)] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            out[:, own] = weights / weights.sum(1, keepdims=True) @ v[:, theirs]
        return self.linear(f"{at}attn_output", out)

    def turned(self, x: Wide) -> Wide:
        """Pairs of values as complex numbers that turn with the place."""
        if self.architecture in {"bert", "jina-bert-v2"}:
            return x
        rotary = self.key("rope.dimension_count", self.head_dim)
        speeds = self.key("rope.freq_base", 10_000.0) ** (-np.arange(0, rotary, 2) / rotary)
        speeds = speeds / self.tensors.get("rope_freqs.weight", 1.0)
        turn = np.exp(1j * np.arange(len(x))[:, None] * speeds)
        x = x.copy()
        half = rotary // 2
        one, other = (
            (slice(0, rotary, 2), slice(1, rotary, 2))
            if self.architecture == "llama"
            else (slice(0, half), slice(half, rotary))
        )
        there = (x[:, one] + 1j * x[:, other]) * turn
        x[:, one], x[:, other] = there.real, there.imag
        return x

    def leaning(self, head: int, tokens: int) -> Wide:
        if self.architecture != "jina-bert-v2":
            return np.zeros((tokens, tokens))
        assert self.heads in {2, 4}, "a power of two, so that the plain formula holds"
        places = np.arange(tokens)
        slope: float = 2.0 ** (-8 * (head + 1) / self.heads)
        return np.asarray(-slope * np.abs(places[:, None] - places))

    def head_norm(self, name: str, x: Wide) -> Wide:
        if f"{name}.weight" not in self.tensors:
            return x
        width = len(self.tensors[f"{name}.weight"])
        return self.norm(name, x.reshape(-1, width)).reshape(x.shape)

    def feed_forward(self, at: str, x: Wide) -> Wide:
        up = self.linear(f"{at}ffn_up", x)
        inner = self.key("feed_forward_length")
        if f"{at}ffn_gate.weight" in self.tensors:
            gate: Wide | None = self.linear(f"{at}ffn_gate", x)
        elif up.shape[1] == 2 * inner:
            gate, up = up[:, :inner], up[:, inner:]
        else:
            gate = None
        gelu = self.architecture in {"bert", "jina-bert-v2"}
        active = up if gate is None else gate
        erf = np.vectorize(math.erf)
        active = (
            active * (1 + erf(active / math.sqrt(2))) / 2
            if gelu
            else active / (1 + np.exp(-active))
        )
        return self.linear(f"{at}ffn_down", active if gate is None else active * up)

    def linear(self, name: str, x: Wide) -> Wide:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0)

    def norm(self, name: str, x: Wide) -> Wide:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias", 0.0)
        if self.is_bert:
            x = x - x.mean(1, keepdims=True)
        size: Wide = np.sqrt((x * x).mean(1, keepdims=True) + self.epsilon)
        return x / size * weight + bias


SMALL = {"width": 64, "inner": 96, "heads": 4, "head_dim": 16, "layers": 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "bert, joined qkv": ("bert", {"joined_qkv": True}),
    "bert without biases": ("bert", {"biases": False}),
    "nomic-bert, half of a head turns": ("nomic-bert", {"rope_dims": 8}),
    "jina-bert-v2, gate in up": ("jina-bert-v2", {"joined_gate": True}),
    "jina-bert-v2, norms of code": ("jina-bert-v2", {"query_norm": True, "joined_gate": True}),
    "qwen2, not causal": ("qwen2", {"causal": False}),
    "qwen2, one key head": ("qwen2", {"kv_heads": 1}),
    "qwen3, wide heads": ("qwen3", {"head_dim": 48, "heads": 2}),
    "llama, factors": ("llama", {"rope_factors": True}),
    "llama, own output": ("llama", {"tied": False, "rope_dims": 8}),
    "odd sizes": ("qwen2", {"width": 36, "inner": 100, "heads": 6, "kv_heads": 3, "head_dim": 6}),
}


def written(folder: Path, architecture: str, **shape: Any) -> Path:
    asked = {**SMALL, "kind": "F32", **shape}
    asked.setdefault(
        "kv_heads", 2 if architecture in {"qwen2", "qwen3", "llama"} else asked["heads"]
    )
    return write_model(folder / f"{architecture}.gguf", architecture, **asked)


def assert_close(ours: Floats, straight: Wide) -> None:
    assert np.abs(ours - straight).max() < 1e-5 * np.abs(straight).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_is_the_straight_model(variant: str, tmp_path: Path) -> None:
    architecture, shape = VARIANTS[variant]
    path = written(tmp_path, architecture, **shape)
    straight = Straight(path)
    for pooling in Pooling:
        ours = encoded(path, TEXTS, pooling=pooling)
        assert_close(ours, straight.vectors(TEXTS, pooling))


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("architecture", ["nomic-bert", "qwen2"])
def test_packed_weights_are_unpacked_as_gguf_does(
    kind: str, architecture: str, tmp_path: Path
) -> None:
    path = written(tmp_path, architecture, kind=kind, width=256, inner=512, head_dim=64)
    ours = encoded(path, TEXTS)
    assert_close(ours, Straight(path).vectors(TEXTS, Pooling.MEAN))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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
def test_any_geometry_any_batch_any_budget(  # noqa: PLR0917 - hypothesis gives them by name
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
    path = written(
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
    ours = encoded(path, texts, threads=threads, limits=limits, budget_bytes=budget)
    assert_close(ours, Straight(path).vectors(texts, Pooling.MEAN))


def floor_bytes(path: Path, threads: int = 2, limits: Limits | None = None) -> int:
    """The smallest budget that a plan accepts, by halving."""
    with WeightFile(path, limits or Limits()) as file:
        walked = walk(file)
    low, high = 0, 1 << 33
    while high - low > 1:
        middle = (low + high) // 2
        try:
            plan_encoder(
                walked,
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


def test_a_batch_is_its_texts(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen2")
    together = encoded(path, TEXTS)
    alone = np.concatenate([encoded(path, [text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-5


def test_more_texts_than_a_pass_holds(tmp_path: Path) -> None:
    path = written(tmp_path, "bert")
    texts = TEXTS * 9
    wide = encoded(path, texts)
    narrow = encoded(path, texts, limits=Limits(tokens=10), batch_tokens=1)
    assert np.abs(wide - narrow).max() < 1e-5


def test_no_texts_are_no_work(tmp_path: Path) -> None:
    assert encoded(written(tmp_path, "bert"), []).shape == (0, 64)


def test_many_callers_share_one_encoder(tmp_path: Path) -> None:
    path = written(tmp_path, "llama")
    expected = encoded(path, TEXTS)
    with opened(path, threads=2) as (encoder, _, _):
        found = [np.empty((len(TEXTS), encoder.width), np.float32) for _ in range(6)]
        callers = [
            threading.Thread(target=encoder.encode, args=(TEXTS, into, lambda _share: None))
            for into in found
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert all(np.array_equal(into, expected) for into in found)


# --- progress, and being called off


class CalledOffError(Exception):
    pass


def test_progress_rises_to_one(tmp_path: Path) -> None:
    shares: list[float] = []
    with opened(written(tmp_path, "qwen2", layers=6), budget_bytes=8_000_000) as (encoder, _, _):
        encoder.encode(TEXTS, np.empty((4, 64), np.float32), shares.append)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert shares[0] >= 0.0


@pytest.mark.parametrize("threads", [1, 3])
def test_a_call_that_is_called_off_leaves_a_usable_encoder(threads: int, tmp_path: Path) -> None:
    path = written(tmp_path, "qwen2")
    calls = 0

    def call_off(_share: float) -> None:
        nonlocal calls
        calls += 1
        raise CalledOffError

    into = np.empty((len(TEXTS), 64), np.float32)
    with opened(path, threads=threads) as (encoder, _, _):
        with pytest.raises(CalledOffError):
            encoder.encode(TEXTS, into, call_off)
        assert calls == 1
        encoder.encode(TEXTS, into, lambda _share: None)
    assert_close(into, Straight(path).vectors(TEXTS, Pooling.MEAN))


def test_an_encoder_that_was_closed_says_so(tmp_path: Path) -> None:
    with opened(written(tmp_path, "bert"), threads=3) as (encoder, _, monitor):
        assert any(thread.name == "edgekit-tiles" for thread in threading.enumerate())
        encoder.close()
        assert monitor.reserved_bytes == 0
        assert not any(thread.name == "edgekit-tiles" for thread in threading.enumerate())
        with pytest.raises(UsageError, match="closed"):
            encoder.encode(TEXTS, np.empty((4, 64), np.float32), lambda _share: None)


# --- texts and weights that will not do


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ([], "text 1: it has no tokens"),
        ([1_000_000], "text 1: token 1000000 is not one of the model's"),
        ([-1], "text 1: token -1"),
        ([5] * 513, r"text 1: 513 tokens are over the limit of 512 \(the model's context length\)"),
    ],
)
def test_texts_that_cannot_be_run(text: list[int], said: str, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=said):
        encoded(written(tmp_path, "bert"), [[5], text])


def test_a_text_over_the_limit_names_the_limit(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"9 tokens are over the limit of 8 \(Limits.tokens\)"):
        encoded(written(tmp_path, "bert"), [[5] * 9], limits=Limits(tokens=8))


@pytest.mark.parametrize(
    "name", ["blk.1.ffn_up.weight", "blk.0.attn_norm.weight", "token_embd.weight"]
)
@pytest.mark.parametrize("budget", [None, 9_000_000])
def test_weights_that_are_no_numbers_are_named(
    name: str, budget: int | None, tmp_path: Path
) -> None:
    path = written(tmp_path, "qwen2")
    tensor = next(found for found in gguf.GGUFReader(path).tensors if found.name == name)
    row = 0 if name.endswith("norm.weight") else 7
    with path.open("r+b") as file:
        file.seek(tensor.data_offset + row * 64 * 4)
        file.write(np.array([np.nan], np.float32).tobytes())
    with pytest.raises(WeightsError, match=rf"tensor {name}, row {row}: .* not a finite number"):
        encoded(path, [[7]], budget_bytes=budget, threads=2)


def test_a_file_that_is_written_to_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen2")
    with opened(path, budget_bytes=floor_bytes(path), threads=2) as (encoder, plan, _):
        assert plan.streams
        with path.open("ab") as file:
            file.write(b"more")
        with pytest.raises(SourceError, match="written to"):
            encoder.encode(TEXTS, np.empty((4, 64), np.float32), lambda _share: None)


def test_a_file_that_is_truncated_in_a_pass_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen2", layers=6)

    def cut(_share: float) -> None:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)

    with (
        opened(path, budget_bytes=floor_bytes(path), threads=2) as (encoder, _, _),
        pytest.raises(SourceError, match="truncated"),
    ):
        encoder.encode(TEXTS, np.empty((4, 64), np.float32), cut)


def test_a_reservation_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    path = written(tmp_path, "bert")
    before = threading.active_count()
    with WeightFile(path, Limits()) as file:
        walked = walk(file)
        plan = plan_encoder(walked, kernels=KERNELS, pooling=Pooling.MEAN, threads=2)
        monitor = Monitor(budget_bytes=plan.size_bytes // 2)
        with pytest.raises(MemoryPressureError, match="memory budget"):
            open_encoder(file, walked, kernels=KERNELS, monitor=monitor, plan=plan)
    assert monitor.reserved_bytes == 0
    assert threading.active_count() == before
