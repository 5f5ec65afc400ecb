"""T5: positions are a bias on the scores, and the decoder cross-attends to the encoder's output.

llama_context reserves for the decoder; its cross-attention spans the model's trained context.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    Extras,
    attend,
    attend_now,
    input_kv,
    input_no_cache,
    mask_only,
)
from edgekit.engines.llamacpp.graph.build import AttnInput, Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.layers import QKV, normalize, results
from edgekit.engines.llamacpp.graph.tensor import F32, I32, GraphTensor, NoGraphError, Size
from edgekit.errors import RefusedError


class SideWeights:
    """The weights of one layer of the encoder ("enc") or the decoder ("dec")."""

    def __init__(self, build: Build, side: str, index: int) -> None:
        self.build, self.prefix = build, f"{side}.blk.{index}."

    def get(self, name: str) -> GraphTensor | None:
        return self.build.weight(self.prefix + name)

    def __getitem__(self, name: str) -> GraphTensor:
        return self.build[self.prefix + name]


def position_bias(layer: GraphLayer, side: str, buckets: GraphTensor) -> GraphTensor:
    """build_pos_bias: one value per head, token and cell. Layers without a table use the first layer's."""
    weights, first = (SideWeights(layer.build, side, index) for index in (layer.index, 0))
    table = weights.get("attn_rel_b") or first["attn_rel_b"]
    cells, tokens = buckets.ne[:2]
    bias = ggml.get_rows(table, ggml.reshape(buckets, cells * tokens))
    bias = ggml.reshape(bias, bias.ne[0], cells, tokens)
    return ggml.cont(ggml.permute(bias, 2, 0, 1, 3))


def project_qkv(
    layer: GraphLayer, weights: SideWeights, name: str, cur: GraphTensor, other: GraphTensor
) -> QKV:
    """Q from one input, K and V from another."""
    width, heads, kv_heads = layer.facts.n_embd_head_v, layer.facts.n_head, layer.facts.n_head_kv
    q, k, v = (
        ggml.reshape(ggml.mul_mat(weights[f"{name}_{side}"], source), width, count, source.ne[1])
        for side, source, count in (
            ("q", cur, heads),
            ("k", other, kv_heads),
            ("v", other, kv_heads),
        )
    )
    return q, k, v


def feed_forward(weights: SideWeights, stream: GraphTensor) -> GraphTensor:
    """Adds the feed-forward, which may have a gate, to the stream."""
    cur = normalize(stream, weights["ffn_norm"])
    up, gate = ggml.mul_mat(weights["ffn_up"], cur), weights.get("ffn_gate")
    cur = ggml.unary(up) if gate is None else ggml.glu(ggml.mul_mat(gate, cur), up)
    return ggml.add(ggml.mul_mat(weights["ffn_down"], cur), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Encoder:
    side: str = "enc"

    def variant(self, hparams: Hparams, il: int) -> Hashable:
        """The layer's weights, whose names do not begin with blk."""
        prefix = f"{self.side}.blk.{il}."
        return tuple(
            (name.removeprefix(prefix), tensor.shape)
            for name, tensor in hparams.globals.items()
            if name.startswith(prefix)
        )

    def build(self, build: Build) -> None:
        stream = build.input_embd()
        tokens, out_ids = build.n_tokens, build.input_out_ids()
        buckets = ggml.graph_input(I32, tokens, tokens, name="pos_bucket")
        attn = input_no_cache(build)
        for layer in build.layers():
            weights = SideWeights(build, "enc", layer.index)
            cur = normalize(stream, weights["attn_norm"])
            q, k, v = project_qkv(layer, weights, "attn", cur, cur)
            extras = Extras(kq_b=position_bias(layer, "enc", buckets))
            cur = attend_now(layer, q, k, v, inputs=attn, extras=extras, project=False)
            cur = ggml.mul_mat(weights["attn_o"], cur)
            if layer.facts.is_last:
                cur, stream = (ggml.get_rows(tensor, out_ids) for tensor in (cur, stream))
            stream = feed_forward(weights, ggml.add(cur, stream))
        stream = normalize(stream, build["enc.output_norm"])
        build.output_embd(stream)
        build.expand(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class T5(T5Encoder):
    side: str = "dec"

    def build(self, build: Build) -> None:
        layers = build.hparams.n_layer
        if build.hparams.integer("decoder_block_count", layers) != layers:
            raise NoGraphError("the decoder has not as many layers as the encoder")
        if build.options.streams:
            raise RefusedError(
                "llama.cpp aborts: T5's position bias does not work with separate caches "
                "for each sequence; use one cache for all (--kv-unified)"
            )
        # V is transposed as stored: in whole blocks if quantised.
        quantised = build.options.type_v.block_elements > 1
        if quantised and not build.only_numbers(build.sizes.n_kv):
            return
        stream, out_ids, attn = build.input_embd(), build.input_out_ids(), input_kv(build)
        buckets = ggml.graph_input(I32, build.sizes.n_kv, build.n_tokens, name="pos_bucket")
        cells: Size = build.hparams.integer("context_length")
        cross = AttnInput(base=mask_only(build, cells, "cross_kq_mask"))
        encoded = ggml.graph_input(F32, build.hparams.n_embd, cells, name="cross_embd")
        for layer in build.layers():
            weights = SideWeights(build, "dec", layer.index)
            cur = normalize(stream, weights["attn_norm"])
            q, k, v = project_qkv(layer, weights, "attn", cur, cur)
            extras = Extras(kq_b=position_bias(layer, "dec", buckets))
            cur = attend(layer, q, k, v, inputs=attn, extras=extras, project=False)
            stream = ggml.add(ggml.mul_mat(weights["attn_o"], cur), stream)
            cur = normalize(stream, weights["cross_attn_norm"])
            q, k, v = project_qkv(layer, weights, "cross_attn", cur, encoded)
            cur = attend_now(layer, q, k, v, inputs=cross, project=False)
            cur = ggml.mul_mat(weights["cross_attn_o"], cur)
            if layer.facts.is_last:
                cur, stream = (ggml.get_rows(tensor, out_ids) for tensor in (cur, stream))
            stream = feed_forward(weights, ggml.add(cur, stream))
        results(build, normalize(stream, build["dec.output_norm"]))


T5_FAMILIES: Mapping[str, T5Encoder] = {"t5": T5(), "t5encoder": T5Encoder()}
