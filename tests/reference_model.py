"""Models written as in their papers, in float64 and one text at a time: the reference of the built-in engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.families import Pooling

Doubles = NDArray[np.float64]


class ReferenceModel:
    """An encoder or decoder; reads the file with the reader of the gguf package."""

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

    def key(self, name: str, default: Any = None) -> Any:
        return self.keys.get(f"{self.architecture}.{name}", default)

    def vectors(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> Doubles:
        pools = {
            Pooling.MEAN: lambda x: x.mean(0),
            Pooling.CLS: lambda x: x[0],
            Pooling.LAST: lambda x: x[-1],
        }
        return np.stack([pools[pooling](self.tokens(list(text))) for text in texts])

    def tokens(self, text: list[int]) -> Doubles:
        x = self.tensors["token_embd.weight"][text]
        if "token_types.weight" in self.tensors:
            x = x + self.tensors["token_types.weight"][0]
        if "position_embd.weight" in self.tensors:
            x = x + self.tensors["position_embd.weight"][: len(text)]
        if self.is_bert:
            x = self.norm("token_embd_norm", x)
        for block in range(self.key("block_count")):
            x = self.layer(f"blk.{block}.", x)
        return x if self.is_bert else self.norm("output_norm", x)

    def layer(self, prefix: str, x: Doubles) -> Doubles:
        if not self.is_bert:
            attended = self.attention(prefix, self.norm(f"{prefix}attn_norm", x))
            x = x + self.maybe_norm(f"{prefix}post_attention_norm", attended)
            projected = self.feed_forward(prefix, self.norm(f"{prefix}ffn_norm", x))
            return x + self.maybe_norm(f"{prefix}post_ffw_norm", projected)
        normed = self.norm(f"{prefix}attn_output_norm", self.attention(prefix, x) + x)
        if f"{prefix}attn_norm_2.weight" in self.tensors:
            normed = self.norm(f"{prefix}attn_norm_2", normed + x)
        return self.norm(f"{prefix}layer_output_norm", self.feed_forward(prefix, normed) + normed)

    def attention(self, prefix: str, x: Doubles) -> Doubles:
        q, k, v = self.heads_of(prefix, x)
        out = np.empty_like(q)
        for head in range(self.heads):
            columns, kv_columns = self.columns_of(head), self.kv_columns_of(head)
            products = self.rotate(q[:, columns]) @ self.rotate(k[:, kv_columns]).T
            scores = products / math.sqrt(self.head_dim)
            scores += self.alibi_bias(head, len(x))
            if self.causal:
                scores[np.triu_indices(len(x), 1)] = -np.inf
            out[:, columns] = softmax(scores) @ v[:, kv_columns]
        return self.linear(f"{prefix}attn_output", out)

    def heads_of(self, prefix: str, x: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Queries, keys and values before the rotation."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if f"{prefix}attn_qkv.weight" in self.tensors:
            q, k, v = np.split(self.linear(f"{prefix}attn_qkv", x), [query, query + key], axis=1)
        else:
            q, k, v = (self.linear(f"{prefix}attn_{item}", x) for item in "qkv")
        q, k = self.head_norm(f"{prefix}attn_q_norm", q), self.head_norm(f"{prefix}attn_k_norm", k)
        return q, k, v

    def columns_of(self, head: int) -> slice:
        return slice(head * self.head_dim, (head + 1) * self.head_dim)

    def kv_columns_of(self, head: int) -> slice:
        return self.columns_of(head // (self.heads // self.kv_heads))

    def rotate(self, x: Doubles, first: int = 0) -> Doubles:
        """Rotary embedding: pairs as complex numbers, rotated by their position, which starts at `first`."""
        if self.architecture in {"bert", "jina-bert-v2"}:
            return x
        rotary = self.key("rope.dimension_count", self.head_dim)
        speeds = self.rope_base ** (-np.arange(0, rotary, 2) / rotary)
        speeds = speeds / self.tensors.get("rope_freqs.weight", 1.0)
        rotation = np.exp(1j * (first + np.arange(len(x)))[:, None] * speeds)
        x = x.copy()
        half = rotary // 2
        real, imaginary = (
            (slice(0, rotary, 2), slice(1, rotary, 2))
            if self.architecture == "llama"
            else (slice(0, half), slice(half, rotary))
        )
        rotated = (x[:, real] + 1j * x[:, imaginary]) * rotation
        x[:, real], x[:, imaginary] = rotated.real, rotated.imag
        return x

    def alibi_bias(self, head: int, tokens: int) -> Doubles:
        if self.architecture != "jina-bert-v2":
            return np.zeros((tokens, tokens))
        assert self.heads in {2, 4}, "a power of two, so that the plain formula holds"
        positions = np.arange(tokens)
        slope: float = 2.0 ** (-8 * (head + 1) / self.heads)
        return np.asarray(-slope * np.abs(positions[:, None] - positions))

    def head_norm(self, name: str, x: Doubles) -> Doubles:
        if f"{name}.weight" not in self.tensors:
            return x
        width = len(self.tensors[f"{name}.weight"])
        return self.norm(name, x.reshape(-1, width)).reshape(x.shape)

    def feed_forward(self, prefix: str, x: Doubles) -> Doubles:
        up = self.linear(f"{prefix}ffn_up", x)
        inner = self.key("feed_forward_length")
        if f"{prefix}ffn_gate.weight" in self.tensors:
            gate: Doubles | None = self.linear(f"{prefix}ffn_gate", x)
        elif up.shape[1] == 2 * inner:
            gate, up = up[:, :inner], up[:, inner:]
        else:
            gate = None
        active = up if gate is None else gate
        if self.architecture in {"bert", "jina-bert-v2"}:
            active = active * (1 + np.vectorize(math.erf)(active / math.sqrt(2))) / 2
        elif self.architecture == "gemma3":
            cubic = math.sqrt(2 / math.pi) * (active + 0.044715 * active**3)
            active = active * (1 + np.tanh(cubic)) / 2
        else:
            active = active / (1 + np.exp(-active))
        return self.linear(f"{prefix}ffn_down", active if gate is None else active * up)

    def linear(self, name: str, x: Doubles) -> Doubles:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0)

    def maybe_norm(self, name: str, x: Doubles) -> Doubles:
        return self.norm(name, x) if f"{name}.weight" in self.tensors else x

    def norm(self, name: str, x: Doubles) -> Doubles:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias", 0.0)
        if self.is_bert:
            x = x - x.mean(1, keepdims=True)
        deviation: Doubles = np.sqrt((x * x).mean(1, keepdims=True) + self.epsilon)
        return x / deviation * weight + bias


class ReferenceSession(ReferenceModel):
    """A decoder with a window of tokens, which drops the oldest as StreamingLLM does.

    It stores all keys unrotated. A query sees the first tokens (sinks) and the last ones; rotations use the positions
    in that window, not in the text.
    """

    def __init__(self, path: Path, *, window: int, sinks: int = 0, rolling: bool = False) -> None:
        super().__init__(path)
        self.window, self.sinks, self.rolling = window, sinks, rolling

    def logits(self, tokens: Sequence[int]) -> Doubles:
        """The logits after each token."""
        scale = math.sqrt(self.key("embedding_length")) if self.architecture == "gemma3" else 1.0
        x = self.tensors["token_embd.weight"][list(tokens)] * scale
        for block in range(self.key("block_count")):
            x = self.layer(f"blk.{block}.", x)
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return np.asarray(self.norm("output_norm", x) @ head.T)

    def attention(self, prefix: str, x: Doubles) -> Doubles:
        q, k, v = self.heads_of(prefix, x)
        local = self.local_window(int(prefix.split(".")[1]))
        wide_base = self.rope_base
        self.rope_base = wide_base if local is None else self.key("rope.freq_base_swa", 10_000.0)
        out = np.empty_like(q)
        for position in range(len(x)):
            visible = self.visible_tokens(position, local)
            for head in range(self.heads):
                columns, kv_columns = self.columns_of(head), self.kv_columns_of(head)
                query = self.rotate(q[position : position + 1, columns], first=len(visible) - 1)
                scores = query @ self.rotate(k[visible, kv_columns]).T / math.sqrt(self.head_dim)
                out[position, columns] = (softmax(scores) @ v[visible, kv_columns])[0]
        self.rope_base = wide_base
        return self.linear(f"{prefix}attn_output", out)

    def local_window(self, layer: int) -> int | None:
        window = self.key("attention.sliding_window")
        period = self.key("attention.sliding_window_pattern", 6)
        return window if window and layer % period < period - 1 else None

    def visible_tokens(self, position: int, local: int | None) -> list[int]:
        """The tokens that the query at `position` sees, the oldest first."""
        if local is not None and local < self.window:
            return list(range(max(0, position + 1 - local), position + 1))
        if not self.rolling or position < self.window:
            return list(range(position + 1))
        return [*range(self.sinks), *range(position + 1 - (self.window - self.sinks), position + 1)]


def softmax(scores: Doubles) -> Doubles:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))
