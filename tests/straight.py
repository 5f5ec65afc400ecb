"""Models as the papers have them, in float64 and nothing joined: what the streamed passes are held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.families import Pooling

Wide = NDArray[np.float64]


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
        self.rope_base = self.key("rope.freq_base", 10_000.0)

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
            mixed = self.attention(at, self.norm(f"{at}attn_norm", x))
            x = x + self.maybe_norm(f"{at}post_attention_norm", mixed)
            made = self.feed_forward(at, self.norm(f"{at}ffn_norm", x))
            return x + self.maybe_norm(f"{at}post_ffw_norm", made)
        between = self.norm(f"{at}attn_output_norm", self.attention(at, x) + x)
        if f"{at}attn_norm_2.weight" in self.tensors:
            between = self.norm(f"{at}attn_norm_2", between + x)
        return self.norm(f"{at}layer_output_norm", self.feed_forward(at, between) + between)

    def attention(self, at: str, x: Wide) -> Wide:
        q, k, v = self.heads_of(at, x)
        out = np.empty_like(q)
        for head in range(self.heads):
            own, theirs = self.own(head), self.own(head // (self.heads // self.kv_heads))
            scores = self.turned(q[:, own]) @ self.turned(k[:, theirs]).T / math.sqrt(self.head_dim)
            scores += self.leaning(head, len(x))
            if self.causal:
                scores[np.triu_indices(len(x), 1)] = -np.inf
            out[:, own] = softened(scores) @ v[:, theirs]
        return self.linear(f"{at}attn_output", out)

    def heads_of(self, at: str, x: Wide) -> tuple[Wide, Wide, Wide]:
        """Queries, keys and values, not turned yet."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if f"{at}attn_qkv.weight" in self.tensors:
            q, k, v = np.split(self.linear(f"{at}attn_qkv", x), [query, query + key], axis=1)
        else:
            q, k, v = (self.linear(f"{at}attn_{item}", x) for item in "qkv")
        return self.head_norm(f"{at}attn_q_norm", q), self.head_norm(f"{at}attn_k_norm", k), v

    def own(self, head: int) -> slice:
        return slice(head * self.head_dim, (head + 1) * self.head_dim)

    def turned(self, x: Wide, first: int = 0) -> Wide:
        """Pairs of values as complex numbers that turn with the place: `first` and on."""
        if self.architecture in {"bert", "jina-bert-v2"}:
            return x
        rotary = self.key("rope.dimension_count", self.head_dim)
        speeds = self.rope_base ** (-np.arange(0, rotary, 2) / rotary)
        speeds = speeds / self.tensors.get("rope_freqs.weight", 1.0)
        turn = np.exp(1j * (first + np.arange(len(x)))[:, None] * speeds)
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
        active = up if gate is None else gate
        if self.architecture in {"bert", "jina-bert-v2"}:
            active = active * (1 + np.vectorize(math.erf)(active / math.sqrt(2))) / 2
        elif self.architecture == "gemma3":
            inner_part = math.sqrt(2 / math.pi) * (active + 0.044715 * active**3)
            active = active * (1 + np.tanh(inner_part)) / 2
        else:
            active = active / (1 + np.exp(-active))
        return self.linear(f"{at}ffn_down", active if gate is None else active * up)

    def linear(self, name: str, x: Wide) -> Wide:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0)

    def maybe_norm(self, name: str, x: Wide) -> Wide:
        return self.norm(name, x) if f"{name}.weight" in self.tensors else x

    def norm(self, name: str, x: Wide) -> Wide:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias", 0.0)
        if self.is_bert:
            x = x - x.mean(1, keepdims=True)
        size: Wide = np.sqrt((x * x).mean(1, keepdims=True) + self.epsilon)
        return x / size * weight + bias


class Session(Straight):
    """A decoder that has read tokens one after another, and forgot as StreamingLLM does.

    All keys are kept, not turned. A query sees the first tokens and the last ones, which stand in its window as if they
    were all there is: it turns by the places in the window, not in the text.
    """

    def __init__(self, path: Path, *, window: int, sinks: int = 0, rolling: bool = False) -> None:
        super().__init__(path)
        self.window, self.sinks, self.rolling = window, sinks, rolling

    def logits(self, tokens: Sequence[int]) -> Wide:
        """Of the token after each."""
        scale = math.sqrt(self.key("embedding_length")) if self.architecture == "gemma3" else 1.0
        x = self.tensors["token_embd.weight"][list(tokens)] * scale
        for place in range(self.key("block_count")):
            x = self.layer(f"blk.{place}.", x)
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return np.asarray(self.norm("output_norm", x) @ head.T)

    def attention(self, at: str, x: Wide) -> Wide:
        q, k, v = self.heads_of(at, x)
        local = self.local_window(int(at.split(".")[1]))
        wide_base = self.rope_base
        self.rope_base = wide_base if local is None else self.key("rope.freq_base_swa", 10_000.0)
        out = np.empty_like(q)
        for place in range(len(x)):
            seen = self.seen(place, local)
            for head in range(self.heads):
                own, theirs = self.own(head), self.own(head // (self.heads // self.kv_heads))
                query = self.turned(q[place : place + 1, own], first=len(seen) - 1)
                scores = query @ self.turned(k[seen, theirs]).T / math.sqrt(self.head_dim)
                out[place, own] = (softened(scores) @ v[seen, theirs])[0]
        self.rope_base = wide_base
        return self.linear(f"{at}attn_output", out)

    def local_window(self, layer: int) -> int | None:
        window, period = (
            self.key("attention.sliding_window"),
            self.key("attention.sliding_window_pattern", 6),
        )
        return window if window and layer % period < period - 1 else None

    def seen(self, place: int, local: int | None) -> list[int]:
        """The tokens that a query at `place` looks at, the oldest first."""
        if local is not None and local < self.window:
            return list(range(max(0, place + 1 - local), place + 1))
        if not self.rolling or place < self.window:
            return list(range(place + 1))
        return [*range(self.sinks), *range(place + 1 - (self.window - self.sinks), place + 1)]


def softened(scores: Wide) -> Wide:
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))
