"""RWKV 6 and 7, with their own channel mix or a feed-forward of Qwen 2 (rwkv6-base.cpp, rwkv7-base.cpp)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.heads import results
from edgekit.engines.llamacpp.graph.families.time_mix import (
    ChannelMix,
    TimeMix,
    channel_mix_6,
    channel_mix_7,
    time_mix_6,
    time_mix_7,
)
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.feed_forward import feed_forward
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.llama.matrices import Norm, normalize
from edgekit.engines.llamacpp.graph.llama.recurrent import StateInput, input_rs, read_states, state
from edgekit.engines.llamacpp.graph.tensor import GraphTensor

TOKEN_SHIFTS = 2  # llama-hparams.h @ 0c1e570: token_shift_count


class LayerPlace(NamedTuple):
    """What makes layers differ: whether it is the first one, and whether its result is halved."""

    first: bool
    halved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What goes from layer to layer; `first` are the values of the first one."""

    stream: GraphTensor
    first: GraphTensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv:
    """Time mix, and a feed-forward of Qwen."""

    norm: Norm
    time_mix: TimeMix

    def more(self, hparams: Hparams, il: int) -> LayerPlace:
        period = hparams.whole("rescale_every_n_layers", 0)
        return LayerPlace(il == 0, period != 0 and (il + 1) % period == 0)

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        if (norm := build.weight("token_embd_norm")) is not None:
            bias = build.tensor("token_embd_norm.bias")
            cur = normalize(cur, norm, bias, kind=self.norm, layer=0)
        rs, out_ids = input_rs(build), build.input_out_ids()
        carried = Carried(stream=cur)
        for layer in build.layers():
            carried = self.block(build, layer, rs, out_ids, carried)
        bias = build.tensor("output_norm.bias")
        results(build, normalize(carried.stream, build["output_norm"], bias, kind=self.norm))

    def normalized(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        bias = layer.bias(name)
        return normalize(cur, layer[name], bias, kind=self.norm, layer=layer.index)

    def block(
        self,
        build: Build,
        layer: GraphLayer,
        rs: StateInput,
        out_ids: GraphTensor,
        carried: Carried,
    ) -> Carried:
        cur, shift = _shaped(build, carried.stream), _load_shift(build, layer, rs)
        normed = self.normalized(layer, cur, "attn_norm")
        before = _before(shift, normed)
        mixed, first = self.time_mix(build, layer, rs, normed, before, carried.first)
        _store_shift(build, layer, _one_token(normed))
        stream = _flat(build, ggml.add(mixed, cur))
        if layer.facts.is_last:
            stream = ggml.get_rows(stream, out_ids)
        cur = feed_forward(layer, self.normalized(layer, stream, "ffn_norm"))
        return Carried(stream=ggml.add(cur, stream), first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMixed(Rwkv):
    """Time mix and channel mix, each with a shift of its own."""

    channel_mix: ChannelMix
    rescales: bool = False

    def block(
        self,
        build: Build,
        layer: GraphLayer,
        rs: StateInput,
        out_ids: GraphTensor,
        carried: Carried,
    ) -> Carried:
        cur, shift = _shaped(build, carried.stream), _load_shift(build, layer, rs)
        shifts = [_one_token(shift) for _ in range(2)]
        normed = self.normalized(layer, cur, "attn_norm")
        before = _before(shifts[0], normed)
        mixed, first = self.time_mix(build, layer, rs, normed, before, carried.first)
        stream = ggml.add(mixed, cur)
        again = self.normalized(layer, stream, "attn_norm_2")
        before = _before(shifts[1], again)
        _store_shift(build, layer, ggml.concat(_one_token(normed), _one_token(again), 1))
        rows = [_flat(build, one) for one in (stream, again, before)]
        if layer.facts.is_last:
            rows = [ggml.get_rows(one, out_ids) for one in rows]
        cur = ggml.add(self.channel_mix(layer, rows[1], rows[2]), rows[0])
        place = layer.facts.more
        if self.rescales and isinstance(place, LayerPlace) and place.halved:
            cur = ggml.scale(cur)
        return Carried(stream=cur, first=first)


def _shaped(build: Build, cur: GraphTensor) -> GraphTensor:
    return ggml.reshape(cur, build.hparams.n_embd, build.sizes.n_seq_tokens, build.sizes.n_seqs)


def _flat(build: Build, cur: GraphTensor) -> GraphTensor:
    return ggml.reshape(cur, build.hparams.n_embd, build.n_tokens)


def _one_token(cur: GraphTensor) -> GraphTensor:
    """Of each sequence."""
    return ggml.view(cur, cur.ne[0], 1, cur.ne[2], strides=cur.nb[1:3])


def _before(shift: GraphTensor, cur: GraphTensor) -> GraphTensor:
    """For every token the one before it; the first one's is remembered."""
    others = ggml.view(cur, cur.ne[0], cur.ne[1] - 1, cur.ne[2], strides=cur.nb[1:3])
    return ggml.concat(shift, others, 1)


def _shift_cache(build: Build, layer: GraphLayer) -> tuple[GraphTensor, int]:
    count = build.hparams.whole("token_shift_count", TOKEN_SHIFTS)
    return state(build, layer, "r", count * build.hparams.n_embd), count


def _load_shift(build: Build, layer: GraphLayer, rs: StateInput) -> GraphTensor:
    """build_rwkv_token_shift_load."""
    cache, count = _shift_cache(build, layer)
    found = read_states(build, rs, cache, cache.ne[0])
    return ggml.reshape(found, build.hparams.n_embd, count, build.sizes.n_seqs)


def _store_shift(build: Build, layer: GraphLayer, shift: GraphTensor) -> None:
    """build_rwkv_token_shift_store."""
    cache, _ = _shift_cache(build, layer)
    size = cache.ne[0] * build.sizes.n_seqs
    build.expand(ggml.cpy(ggml.view(shift, size), ggml.view(cache, size)))


RWKV: Mapping[str, Rwkv] = {
    "rwkv6": ChannelMixed(
        norm=Norm.LAYER, time_mix=time_mix_6, channel_mix=channel_mix_6, rescales=True
    ),
    "rwkv6qwen2": Rwkv(norm=Norm.RMS, time_mix=time_mix_6),
    "rwkv7": ChannelMixed(norm=Norm.LAYER, time_mix=time_mix_7, channel_mix=channel_mix_7),
    "arwkv7": Rwkv(norm=Norm.RMS, time_mix=time_mix_7),
}
