"""RWKV 6 and 7: time mix, then channel mix or a Qwen 2 feed-forward (rwkv6-base.cpp, rwkv7-base.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import read_states, state, write_states
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.layers import Norm, feed_forward, normalize, results
from edgekit.engines.llamacpp.graph.tensor import GraphTensor

TOKEN_SHIFTS = 2  # llama-hparams.h @ 0c1e570: token_shift_count
# The normed state, the previous token's state and the first layer's values -> the output and the first layer's values.
TimeMix = Callable[
    [GraphLayer, GraphTensor, GraphTensor, GraphTensor | None],
    tuple[GraphTensor, GraphTensor | None],
]
ChannelMix = Callable[[GraphLayer, GraphTensor, GraphTensor], GraphTensor]
MIXES = 5  # w, k, v, r, g


class LayerPlace(NamedTuple):
    """How a layer differs from others: it may be the first, and its output may be halved."""

    first: bool
    halved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv:
    """Time mix and a Qwen feed-forward."""

    norm: Norm
    time_mix: TimeMix

    def variant(self, hparams: Hparams, il: int) -> LayerPlace:
        period = hparams.integer("rescale_every_n_layers", 0)
        return LayerPlace(il == 0, period != 0 and (il + 1) % period == 0)

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        if (norm := build.weight("token_embd_norm")) is not None:
            bias = build.tensor("token_embd_norm.bias")
            cur = normalize(cur, norm, bias, kind=self.norm)
        out_ids = build.input_out_ids()
        first_values: GraphTensor | None = None
        for layer in build.layers():
            cur, first_values = self.block(layer, out_ids, cur, first_values)
        bias = build.tensor("output_norm.bias")
        results(build, normalize(cur, build["output_norm"], bias, kind=self.norm))

    def apply_norm(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        return normalize(cur, layer[name], layer.bias(name), kind=self.norm)

    def block(
        self,
        layer: GraphLayer,
        out_ids: GraphTensor,
        cur: GraphTensor,
        first_values: GraphTensor | None,
    ) -> tuple[GraphTensor, GraphTensor | None]:
        """The state after the layer, and the values of the first layer."""
        cur, shift = _split_sequences(layer.build, cur), _load_shift(layer)
        normed = self.apply_norm(layer, cur, "attn_norm")
        previous = _previous_states(shift, normed)
        mixed, first_values = self.time_mix(layer, normed, previous, first_values)
        write_states(layer.build, _shift_cache(layer)[0], _one_token(normed))
        stream = _flatten(layer.build, ggml.add(mixed, cur))
        if layer.facts.is_last:
            stream = ggml.get_rows(stream, out_ids)
        cur = feed_forward(layer, self.apply_norm(layer, stream, "ffn_norm"))
        return ggml.add(cur, stream), first_values


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMixed(Rwkv):
    """Time mix and channel mix, each with its own shift."""

    channel_mix: ChannelMix
    rescales: bool = False

    def block(
        self,
        layer: GraphLayer,
        out_ids: GraphTensor,
        cur: GraphTensor,
        first_values: GraphTensor | None,
    ) -> tuple[GraphTensor, GraphTensor | None]:
        cur, shift = _split_sequences(layer.build, cur), _load_shift(layer)
        shifts = [_one_token(shift) for _ in range(2)]
        normed = self.apply_norm(layer, cur, "attn_norm")
        previous = _previous_states(shifts[0], normed)
        mixed, first_values = self.time_mix(layer, normed, previous, first_values)
        stream = ggml.add(mixed, cur)
        channel_normed = self.apply_norm(layer, stream, "attn_norm_2")
        previous = _previous_states(shifts[1], channel_normed)
        shift = ggml.concat(_one_token(normed), _one_token(channel_normed), 1)
        write_states(layer.build, _shift_cache(layer)[0], shift)
        rows = [_flatten(layer.build, tensor) for tensor in (stream, channel_normed, previous)]
        if layer.facts.is_last:
            rows = [ggml.get_rows(tensor, out_ids) for tensor in rows]
        stream, channel_normed, previous = rows
        cur = ggml.add(self.channel_mix(layer, channel_normed, previous), stream)
        if self.rescales and self.variant(layer.hparams, layer.index).halved:
            cur = ggml.scale(cur)
        return cur, first_values


def _split_sequences(build: Build, cur: GraphTensor) -> GraphTensor:
    """Reshapes [width, tokens] to [width, tokens of a sequence, sequences]."""
    return ggml.reshape(cur, build.hparams.n_embd, build.sizes.n_seq_tokens, build.sizes.n_seqs)


def _one_token(cur: GraphTensor) -> GraphTensor:
    """One token of each sequence."""
    return ggml.view(cur, cur.ne[0], 1, cur.ne[2], strides=cur.nb[1:3])


def _previous_states(shift: GraphTensor, cur: GraphTensor) -> GraphTensor:
    """The previous token's state for every token; for the first token it comes from the cache."""
    earlier = ggml.view(cur, cur.ne[0], cur.ne[1] - 1, cur.ne[2], strides=cur.nb[1:3])
    return ggml.concat(shift, earlier, 1)


def _shift_cache(layer: GraphLayer) -> tuple[GraphTensor, int]:
    count = layer.hparams.integer("token_shift_count", TOKEN_SHIFTS)
    return state(layer, "r", count * layer.hparams.n_embd), count


def _load_shift(layer: GraphLayer) -> GraphTensor:
    """build_rwkv_token_shift_load: the last states of the previous batch, as [width, shifts, sequences]."""
    build = layer.build
    cache, count = _shift_cache(layer)
    states = read_states(build, cache)
    return ggml.reshape(states, build.hparams.n_embd, count, build.sizes.n_seqs)


def channel_mix_6(layer: GraphLayer, cur: GraphTensor, previous: GraphTensor) -> GraphTensor:
    """build_rwkv6_channel_mix: a squared feed-forward with a gate, on a mixture with the previous token."""
    change = ggml.sub(previous, cur)
    keys, gates = (
        ggml.add(ggml.mul(change, layer[f"channel_mix_lerp_{side}"]), cur) for side in ("k", "r")
    )
    gate = ggml.unary(ggml.mul_mat(layer["channel_mix_receptance"], gates))
    key = ggml.sqr(ggml.unary(ggml.mul_mat(layer["channel_mix_key"], keys)))
    return ggml.mul(gate, ggml.mul_mat(layer["channel_mix_value"], key))


def channel_mix_7(layer: GraphLayer, cur: GraphTensor, previous: GraphTensor) -> GraphTensor:
    """build_rwkv7_channel_mix: a squared feed-forward on a mixture with the previous token."""
    change = ggml.sub(previous, cur)
    key = ggml.add(ggml.mul(change, layer["channel_mix_lerp_k"]), cur)
    key = ggml.sqr(ggml.unary(ggml.mul_mat(layer["channel_mix_key"], key)))
    return ggml.mul_mat(layer["channel_mix_value"], key)


def time_mix_6(
    layer: GraphLayer, cur: GraphTensor, previous: GraphTensor, _first_values: GraphTensor | None
) -> tuple[GraphTensor, None]:
    """build_rwkv6_time_mix: linear attention with a decay; QRWKV's gated linear attention without time_mix_first."""
    build = layer.build
    w, k, v, r, g = _mixtures_6(layer, cur, previous)
    r, k, v = (
        _project_biased(layer, f"time_mix_{name}", mixture)
        for name, mixture in (("receptance", r), ("key", k), ("value", v))
    )
    g = ggml.unary(ggml.mul_mat(layer["time_mix_gate"], g))
    w = ggml.unary(ggml.mul_mat(layer["time_mix_decay_w1"], w))
    w = ggml.add(ggml.mul_mat(layer["time_mix_decay_w2"], w), layer["time_mix_decay"])
    w = ggml.unary(ggml.unary(ggml.unary(w)))
    k, v = _kv_heads(layer, k), _kv_heads(layer, v)
    r, w = _split_heads(build, r), _split_heads(build, w)
    if (first_weights := layer.weight("time_mix_first")) is None:
        k = ggml.sub(k, ggml.mul(k, w))
        cur = _flatten(build, _attend_states(layer, "GATED_LINEAR_ATTN", k, k, v, r, w))
    else:
        cur = _norm_heads(layer, _attend_states(layer, "RWKV_WKV6", k, k, v, r, first_weights, w))
    return _project_output(layer, ggml.mul(cur, g)), None


def _mixtures_6(layer: GraphLayer, cur: GraphTensor, previous: GraphTensor) -> list[GraphTensor]:
    """Five mixtures of each token with the previous one."""
    build = layer.build
    width, tokens = build.hparams.n_embd, build.n_tokens
    change, cur = _flatten(build, ggml.sub(previous, cur)), _flatten(build, cur)
    mix = ggml.add(ggml.mul(change, layer["time_mix_lerp_x"]), cur)
    w1, w2 = layer["time_mix_w1"], layer["time_mix_w2"]
    mix = ggml.unary(ggml.mul_mat(w1, mix))
    mix = ggml.reshape(mix, w1.ne[1] // MIXES, 1, MIXES, tokens)
    mix = ggml.cont(ggml.permute(mix, 0, 1, 3, 2))
    mix = ggml.mul_mat(ggml.reshape(w2, w2.ne[0], w2.ne[1], 1, MIXES), mix)
    if (fused := layer.weight("time_mix_lerp_fused")) is not None:
        change, cur = (ggml.reshape(tensor, width, 1, tokens) for tensor in (change, cur))
        mix = ggml.add(ggml.mul(ggml.add(mix, fused), change), cur)
        return [ggml.view(mix, width, tokens, strides=(mix.nb[1],)) for _ in range(MIXES)]
    views = [ggml.view(mix, width, tokens, strides=(mix.nb[1],)) for _ in range(MIXES)]
    return [
        ggml.add(ggml.mul(ggml.add(view, layer[f"time_mix_lerp_{side}"]), change), cur)
        for side, view in zip("wkvrg", views, strict=True)
    ]


def _project_biased(layer: GraphLayer, name: str, cur: GraphTensor) -> GraphTensor:
    cur = ggml.mul_mat(layer[name], cur)
    return cur if (bias := layer.bias(name)) is None else ggml.add(cur, bias)


def _kv_heads(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """Splits K or V into heads, and repeats them if there are fewer than heads of Q."""
    build = layer.build
    size, kv_heads = _head_size(build), layer.facts.n_head_kv
    heads = build.hparams.n_embd // size
    if kv_heads not in {0, heads}:
        cur = ggml.reshape(cur, size, 1, kv_heads, build.n_tokens)
        cur = ggml.repeat(cur, size, heads // kv_heads, kv_heads, build.n_tokens)
    return _split_heads(build, cur)


def time_mix_7(
    layer: GraphLayer, cur: GraphTensor, previous: GraphTensor, first_values: GraphTensor | None
) -> tuple[GraphTensor, GraphTensor]:
    """build_rwkv7_time_mix: linear attention with a decay, and values interpolated with those of the first layer."""
    build = layer.build
    # Five mixtures of each token with the previous one, and a sixth if there is a gate.
    gated = "time_mix_g1" in layer and "time_mix_g2" in layer
    count = MIXES + gated
    change = ggml.repeat(ggml.sub(previous, cur), *cur.ne[:3], count)
    mix = ggml.add(ggml.mul(change, layer["time_mix_lerp_fused"]), cur)
    r, w, k, v, a, *g = (
        ggml.view(mix, cur.ne[0], build.n_tokens, strides=(mix.nb[1],)) for _ in range(count)
    )
    r = ggml.mul_mat(layer["time_mix_receptance"], r)
    w = ggml.unary(ggml.scale(ggml.unary(_low_rank(layer, "w", w, activated=True))))
    k = ggml.mul_mat(layer["time_mix_key"], k)
    values = ggml.mul_mat(layer["time_mix_value"], v)
    if first_values is None:
        first_values = values
    else:  # interpolated with the values of the first layer
        share = ggml.unary(_low_rank(layer, "v", v))
        values = ggml.add(values, ggml.mul(ggml.sub(first_values, values), share))
    a = ggml.unary(_low_rank(layer, "a", a))
    kk = ggml.l2_norm(_split_heads(build, ggml.mul(k, layer["time_mix_k_k"])))
    scaled = ggml.mul(k, layer["time_mix_k_a"])
    k = ggml.add(k, ggml.sub(ggml.mul(a, scaled), scaled))
    r, w, k, v, a = (_split_heads(build, tensor) for tensor in (r, w, k, values, a))
    changes = (ggml.unary(kk), ggml.mul(kk, a))
    cur = _attend_states(layer, "RWKV_WKV7", k, r, w, k, v, *changes)
    has_norm = "time_mix_ln" in layer and layer.bias("time_mix_ln") is not None
    cur = _norm_heads(layer, cur) if has_norm else _flatten(build, cur)
    r_k = ggml.reshape(layer["time_mix_r_k"], _head_size(build), k.ne[1])
    bonus = ggml.sum_rows(ggml.mul(ggml.mul(k, r), r_k))
    cur = ggml.add(cur, _flatten(build, ggml.mul(v, bonus)))
    if gated:
        gate = ggml.unary(ggml.mul_mat(layer["time_mix_g1"], *g))
        cur = ggml.mul(cur, ggml.mul_mat(layer["time_mix_g2"], gate))
    return _project_output(layer, cur), first_values


def _low_rank(
    layer: GraphLayer, side: str, cur: GraphTensor, *, activated: bool = False
) -> GraphTensor:
    """A projection through two low-rank matrices, plus a bias. `activated`: with an activation in between."""
    cur = ggml.mul_mat(layer[f"time_mix_{side}1"], cur)
    cur = ggml.mul_mat(layer[f"time_mix_{side}2"], ggml.unary(cur) if activated else cur)
    return ggml.add(cur, layer[f"time_mix_{side}0"])


def _head_size(build: Build) -> int:
    return build.hparams.integer("wkv.head_size")


def _split_heads(build: Build, cur: GraphTensor) -> GraphTensor:
    """Reshapes [width, tokens] to [head size, heads, tokens]."""
    size = _head_size(build)
    return ggml.reshape(cur, size, build.hparams.n_embd // size, build.n_tokens)


def _flatten(build: Build, cur: GraphTensor) -> GraphTensor:
    """Reshapes heads or sequences to [width, tokens]."""
    return ggml.reshape(cur, build.hparams.n_embd, build.n_tokens)


def _attend_states(layer: GraphLayer, op: str, k: GraphTensor, *src: GraphTensor) -> GraphTensor:
    """Linear attention to the cached states, which it updates. `src`: in ggml's order, without the states."""
    build, width = layer.build, layer.hparams.n_embd
    cache = state(layer, "s", width * _head_size(build))
    states = read_states(build, cache)
    out = ggml.linear_attention(op, k, states, *src, states)
    tokens = ggml.view(out, width * build.n_tokens)
    write_states(build, cache, out)
    return tokens


def _norm_heads(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """Normalises each head, then scales by the weights of time_mix_ln."""
    cur = _flatten(layer.build, ggml.norm(_split_heads(layer.build, cur)))
    return ggml.add(ggml.mul(cur, layer["time_mix_ln"]), layer.required("time_mix_ln.bias"))


def _project_output(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """The output projection, split into sequences."""
    return _split_sequences(layer.build, ggml.mul_mat(layer["time_mix_output"], cur))


RWKV: Mapping[str, Rwkv] = {
    "rwkv6": ChannelMixed(
        norm=Norm.LAYER, time_mix=time_mix_6, channel_mix=channel_mix_6, rescales=True
    ),
    "rwkv6qwen2": Rwkv(norm=Norm.RMS, time_mix=time_mix_6),
    "rwkv7": ChannelMixed(norm=Norm.LAYER, time_mix=time_mix_7, channel_mix=channel_mix_7),
    "arwkv7": Rwkv(norm=Norm.RMS, time_mix=time_mix_7),
}
