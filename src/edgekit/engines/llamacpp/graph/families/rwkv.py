"""RWKV 6 and 7: time mix, then channel mix or a Qwen 2 feed-forward (rwkv6-base.cpp, rwkv7-base.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import StateInput, input_rs, read_states, state
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.layers import Norm, feed_forward, normalize, results
from edgekit.engines.llamacpp.graph.tensor import GraphTensor

TOKEN_SHIFTS = 2  # llama-hparams.h @ 0c1e570: token_shift_count
# The normed state, the shifted state and the first layer's values -> the output and those values.
TimeMix = Callable[
    [GraphLayer, StateInput, GraphTensor, GraphTensor, GraphTensor | None],
    tuple[GraphTensor, GraphTensor | None],
]
ChannelMix = Callable[[GraphLayer, GraphTensor, GraphTensor], GraphTensor]
MIXES = 5  # w, k, v, r, g


class LayerPlace(NamedTuple):
    """How layers differ: whether it is the first, and whether its output is halved."""

    first: bool
    halved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Passed from layer to layer; `first`: the values of the first layer."""

    stream: GraphTensor
    first: GraphTensor | None = None


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
        rs, out_ids = input_rs(build), build.input_out_ids()
        carried = Carried(stream=cur)
        for layer in build.layers():
            carried = self.block(layer, rs, out_ids, carried)
        bias = build.tensor("output_norm.bias")
        results(build, normalize(carried.stream, build["output_norm"], bias, kind=self.norm))

    def normalized(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        bias = layer.bias(name)
        return normalize(cur, layer[name], bias, kind=self.norm)

    def block(
        self,
        layer: GraphLayer,
        rs: StateInput,
        out_ids: GraphTensor,
        carried: Carried,
    ) -> Carried:
        cur, shift = _shaped(layer.build, carried.stream), _load_shift(layer, rs)
        normed = self.normalized(layer, cur, "attn_norm")
        before = _before(shift, normed)
        mixed, first = self.time_mix(layer, rs, normed, before, carried.first)
        _store_shift(layer, _one_token(normed))
        stream = _flat(layer.build, ggml.add(mixed, cur))
        if layer.facts.is_last:
            stream = ggml.get_rows(stream, out_ids)
        cur = feed_forward(layer, self.normalized(layer, stream, "ffn_norm"))
        return Carried(stream=ggml.add(cur, stream), first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMixed(Rwkv):
    """Time mix and channel mix, each with its own shift."""

    channel_mix: ChannelMix
    rescales: bool = False

    def block(
        self,
        layer: GraphLayer,
        rs: StateInput,
        out_ids: GraphTensor,
        carried: Carried,
    ) -> Carried:
        cur, shift = _shaped(layer.build, carried.stream), _load_shift(layer, rs)
        shifts = [_one_token(shift) for _ in range(2)]
        normed = self.normalized(layer, cur, "attn_norm")
        before = _before(shifts[0], normed)
        mixed, first = self.time_mix(layer, rs, normed, before, carried.first)
        stream = ggml.add(mixed, cur)
        again = self.normalized(layer, stream, "attn_norm_2")
        before = _before(shifts[1], again)
        _store_shift(layer, ggml.concat(_one_token(normed), _one_token(again), 1))
        rows = [_flat(layer.build, one) for one in (stream, again, before)]
        if layer.facts.is_last:
            rows = [ggml.get_rows(one, out_ids) for one in rows]
        cur = ggml.add(self.channel_mix(layer, rows[1], rows[2]), rows[0])
        if self.rescales and self.variant(layer.build.hparams, layer.index).halved:
            cur = ggml.scale(cur)
        return Carried(stream=cur, first=first)


def _shaped(build: Build, cur: GraphTensor) -> GraphTensor:
    return ggml.reshape(cur, build.hparams.n_embd, build.sizes.n_seq_tokens, build.sizes.n_seqs)


def _one_token(cur: GraphTensor) -> GraphTensor:
    """One token of each sequence."""
    return ggml.view(cur, cur.ne[0], 1, cur.ne[2], strides=cur.nb[1:3])


def _before(shift: GraphTensor, cur: GraphTensor) -> GraphTensor:
    """The previous token's state for every token; for the first token it comes from the cache."""
    others = ggml.view(cur, cur.ne[0], cur.ne[1] - 1, cur.ne[2], strides=cur.nb[1:3])
    return ggml.concat(shift, others, 1)


def _shift_cache(layer: GraphLayer) -> tuple[GraphTensor, int]:
    count = layer.build.hparams.integer("token_shift_count", TOKEN_SHIFTS)
    return state(layer, "r", count * layer.build.hparams.n_embd), count


def _load_shift(layer: GraphLayer, rs: StateInput) -> GraphTensor:
    """build_rwkv_token_shift_load."""
    build = layer.build
    cache, count = _shift_cache(layer)
    found = read_states(build, rs, cache, cache.ne[0])
    return ggml.reshape(found, build.hparams.n_embd, count, build.sizes.n_seqs)


def _store_shift(layer: GraphLayer, shift: GraphTensor) -> None:
    """build_rwkv_token_shift_store."""
    cache, _ = _shift_cache(layer)
    size = cache.ne[0] * layer.build.sizes.n_seqs
    layer.build.expand(ggml.cpy(ggml.view(shift, size), ggml.view(cache, size)))


def channel_mix_6(layer: GraphLayer, cur: GraphTensor, before: GraphTensor) -> GraphTensor:
    change = ggml.sub(before, cur)
    keys, gates = (
        ggml.add(ggml.mul(change, layer[f"channel_mix_lerp_{side}"]), cur) for side in ("k", "r")
    )
    gate = ggml.unary(ggml.mul_mat(layer["channel_mix_receptance"], gates))
    key = ggml.sqr(ggml.unary(ggml.mul_mat(layer["channel_mix_key"], keys)))
    return ggml.mul(gate, ggml.mul_mat(layer["channel_mix_value"], key))


def channel_mix_7(layer: GraphLayer, cur: GraphTensor, before: GraphTensor) -> GraphTensor:
    change = ggml.sub(before, cur)
    key = ggml.add(ggml.mul(change, layer["channel_mix_lerp_k"]), cur)
    key = ggml.sqr(ggml.unary(ggml.mul_mat(layer["channel_mix_key"], key)))
    return ggml.mul_mat(layer["channel_mix_value"], key)


def time_mix_6(
    layer: GraphLayer,
    rs: StateInput,
    cur: GraphTensor,
    before: GraphTensor,
    _first: GraphTensor | None,
) -> tuple[GraphTensor, None]:
    """build_rwkv6_time_mix. Without time_mix_first it is QRWKV's gated linear attention."""
    build = layer.build
    is_qrwkv = "time_mix_first" not in layer
    w, k, v, r, g = _mixed_6(layer, cur, before)
    r, k, v = (
        _biased(layer, name, one) for name, one in (("receptance", r), ("key", k), ("value", v))
    )
    g = ggml.unary(ggml.mul_mat(layer["time_mix_gate"], g))
    k, v = _heads(layer, k), _heads(layer, v)
    r, w = _cut(build, r), _cut(build, _decay_6(layer, w))
    if is_qrwkv:
        k = ggml.sub(k, ggml.mul(k, w))
    memory = _memory(layer, rs)
    if is_qrwkv:
        out = ggml.linear_attention("GATED_LINEAR_ATTN", k, memory, k, v, r, w, memory)
    else:
        own = layer["time_mix_first"]
        out = ggml.linear_attention("RWKV_WKV6", k, memory, k, v, r, own, w, memory)
    cur = _remembered(layer, out)
    cur = _flat(build, cur) if is_qrwkv else _normed(layer, cur)
    return _projected(layer, ggml.mul(cur, g)), None


def _mixed_6(layer: GraphLayer, cur: GraphTensor, before: GraphTensor) -> list[GraphTensor]:
    """Five mixtures of each token with the previous one."""
    build = layer.build
    width, tokens = build.hparams.n_embd, build.n_tokens
    change, cur = _flat(build, ggml.sub(before, cur)), _flat(build, cur)
    mix = ggml.add(ggml.mul(change, layer["time_mix_lerp_x"]), cur)
    w1, w2 = layer["time_mix_w1"], layer["time_mix_w2"]
    mix = ggml.unary(ggml.mul_mat(w1, mix))
    mix = ggml.reshape(mix, w1.ne[1] // MIXES, 1, MIXES, tokens)
    mix = ggml.cont(ggml.permute(mix, 0, 1, 3, 2))
    mix = ggml.mul_mat(ggml.reshape(w2, w2.ne[0], w2.ne[1], 1, MIXES), mix)
    if (fused := layer.weight("time_mix_lerp_fused")) is not None:
        change, cur = (ggml.reshape(one, width, 1, tokens) for one in (change, cur))
        mix = ggml.add(ggml.mul(ggml.add(mix, fused), change), cur)
        return [ggml.view(mix, width, tokens, strides=(mix.nb[1],)) for _ in range(MIXES)]
    views = [ggml.view(mix, width, tokens, strides=(mix.nb[1],)) for _ in range(MIXES)]
    return [
        ggml.add(ggml.mul(ggml.add(one, layer[f"time_mix_lerp_{side}"]), change), cur)
        for side, one in zip("wkvrg", views, strict=True)
    ]


def _biased(layer: GraphLayer, name: str, cur: GraphTensor) -> GraphTensor:
    cur = ggml.mul_mat(layer[f"time_mix_{name}"], cur)
    bias = layer.bias(f"time_mix_{name}")
    return cur if bias is None else ggml.add(cur, bias)


def _heads(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """Splits into heads; repeats KV heads if there are fewer."""
    build = layer.build
    size, kv_heads = _head_size(build), layer.facts.n_head_kv
    heads = build.hparams.n_embd // size
    if kv_heads not in {0, heads}:
        cur = ggml.reshape(cur, size, 1, kv_heads, build.n_tokens)
        cur = ggml.repeat(cur, size, heads // kv_heads, kv_heads, build.n_tokens)
    return _cut(build, cur)


def _decay_6(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    cur = ggml.unary(ggml.mul_mat(layer["time_mix_decay_w1"], cur))
    cur = ggml.add(ggml.mul_mat(layer["time_mix_decay_w2"], cur), layer["time_mix_decay"])
    return ggml.unary(ggml.unary(ggml.unary(cur)))


def time_mix_7(
    layer: GraphLayer,
    rs: StateInput,
    cur: GraphTensor,
    before: GraphTensor,
    first: GraphTensor | None,
) -> tuple[GraphTensor, GraphTensor]:
    """build_rwkv7_time_mix."""
    build = layer.build
    r, w, k, v, a, *g = _mixed_7(layer, cur, before)
    r = ggml.mul_mat(layer["time_mix_receptance"], r)
    w = ggml.unary(ggml.scale(ggml.unary(_low_rank(layer, "w", w, curved=True))))
    k = ggml.mul_mat(layer["time_mix_key"], k)
    v, first = _values_7(layer, v, first)
    gate = [_gate_7(layer, one) for one in g]
    a = ggml.unary(_low_rank(layer, "a", a))
    turned = ggml.l2_norm(_cut(build, ggml.mul(k, layer["time_mix_k_k"])))
    scaled = ggml.mul(k, layer["time_mix_k_a"])
    k = ggml.add(k, ggml.sub(ggml.mul(a, scaled), scaled))
    r, w, k, v, a = (_cut(build, one) for one in (r, w, k, v, a))
    memory = _memory(layer, rs)
    changes = (ggml.unary(turned), ggml.mul(turned, a))
    out = ggml.linear_attention("RWKV_WKV7", k, memory, r, w, k, v, *changes, memory)
    cur = _remembered(layer, out)
    has_norm = "time_mix_ln" in layer and layer.bias("time_mix_ln") is not None
    cur = _normed(layer, cur) if has_norm else _flat(build, cur)
    own = ggml.reshape(layer["time_mix_r_k"], _head_size(build), k.ne[1])
    bonus = ggml.sum_rows(ggml.mul(ggml.mul(k, r), own))
    cur = ggml.add(cur, _flat(build, ggml.mul(v, bonus)))
    for one in gate:
        cur = ggml.mul(cur, one)
    return _projected(layer, cur), first


def _mixed_7(layer: GraphLayer, cur: GraphTensor, before: GraphTensor) -> list[GraphTensor]:
    """Five mixtures, and a sixth if there is a gate."""
    gated = "time_mix_g1" in layer and "time_mix_g2" in layer
    count = MIXES + gated
    change = ggml.repeat(ggml.sub(before, cur), *cur.ne[:3], count)
    mix = ggml.add(ggml.mul(change, layer["time_mix_lerp_fused"]), cur)
    return [
        ggml.view(mix, cur.ne[0], layer.build.n_tokens, strides=(mix.nb[1],)) for _ in range(count)
    ]


def _low_rank(
    layer: GraphLayer, side: str, cur: GraphTensor, *, curved: bool = False
) -> GraphTensor:
    cur = ggml.mul_mat(layer[f"time_mix_{side}1"], cur)
    cur = ggml.mul_mat(layer[f"time_mix_{side}2"], ggml.unary(cur) if curved else cur)
    return ggml.add(cur, layer[f"time_mix_{side}0"])


def _values_7(
    layer: GraphLayer, cur: GraphTensor, first: GraphTensor | None
) -> tuple[GraphTensor, GraphTensor]:
    """Values, interpolated with those of the first layer."""
    values = ggml.mul_mat(layer["time_mix_value"], cur)
    if first is None:
        return values, values
    pull = ggml.unary(_low_rank(layer, "v", cur))
    return ggml.add(values, ggml.mul(ggml.sub(first, values), pull)), first


def _gate_7(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    cur = ggml.unary(ggml.mul_mat(layer["time_mix_g1"], cur))
    return ggml.mul_mat(layer["time_mix_g2"], cur)


def _head_size(build: Build) -> int:
    return build.hparams.integer("wkv.head_size")


def _cut(build: Build, cur: GraphTensor) -> GraphTensor:
    size = _head_size(build)
    return ggml.reshape(cur, size, build.hparams.n_embd // size, build.n_tokens)


def _flat(build: Build, cur: GraphTensor) -> GraphTensor:
    return ggml.reshape(cur, build.hparams.n_embd, build.n_tokens)


def _memory(layer: GraphLayer, rs: StateInput) -> GraphTensor:
    build = layer.build
    width = build.hparams.n_embd * _head_size(build)
    return read_states(build, rs, state(layer, "s", width), width)


def _remembered(layer: GraphLayer, out: GraphTensor) -> GraphTensor:
    """Writes new states to the cache and returns the token outputs."""
    build = layer.build
    width, seqs = build.hparams.n_embd * _head_size(build), build.sizes.n_seqs
    cache = state(layer, "s", width)
    tokens = ggml.view(out, build.hparams.n_embd * build.n_tokens)
    build.expand(ggml.cpy(ggml.view(out, width * seqs), ggml.view(cache, width * seqs)))
    return tokens


def _normed(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    cur = _flat(layer.build, ggml.norm(_cut(layer.build, cur)))
    return ggml.add(ggml.mul(cur, layer["time_mix_ln"]), layer.required("time_mix_ln.bias"))


def _projected(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    cur = ggml.mul_mat(layer["time_mix_output"], cur)
    sizes = layer.build.sizes
    return ggml.reshape(cur, layer.build.hparams.n_embd, sizes.n_seq_tokens, sizes.n_seqs)


RWKV: Mapping[str, Rwkv] = {
    "rwkv6": ChannelMixed(
        norm=Norm.LAYER, time_mix=time_mix_6, channel_mix=channel_mix_6, rescales=True
    ),
    "rwkv6qwen2": Rwkv(norm=Norm.RMS, time_mix=time_mix_6),
    "rwkv7": ChannelMixed(norm=Norm.LAYER, time_mix=time_mix_7, channel_mix=channel_mix_7),
    "arwkv7": Rwkv(norm=Norm.RMS, time_mix=time_mix_7),
}
