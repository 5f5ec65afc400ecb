"""Hyper-connections: several residual streams, mixed into one input for each sublayer. HY 4."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend_k, input_k
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.compressed import stream_count
from edgekit.engines.llamacpp.graph.families.indexed import Indexer, restrict_mask
from edgekit.engines.llamacpp.graph.families.latent import absorbed_qkv
from edgekit.engines.llamacpp.graph.families.transformer import Transformer, file_routing
from edgekit.engines.llamacpp.graph.layers import normalize, project, results
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor, number


def split_streams(build: Build, embd: GraphTensor) -> GraphTensor:
    """The embeddings as [width, streams, tokens]: every stream begins as a copy of them."""
    width, tokens, *_ = embd.ne
    return ggml.repeat(ggml.reshape(embd, width, 1, tokens), width, stream_count(build), tokens, 1)


def output_streams(build: Build, streams: GraphTensor) -> GraphTensor:
    """The streams of the output rows."""
    width, count, tokens, _ = streams.ne
    flat = ggml.get_rows(ggml.reshape(streams, width * count, tokens), build.inputs.out_ids)
    return ggml.reshape(flat, width, count, build.sizes.n_outputs)


class Independent(NamedTuple):
    """An input mixed from the streams of HY 4, and the weights that distribute the output."""

    cur: GraphTensor
    post: GraphTensor


def mix(layer: GraphLayer, streams: GraphTensor, part: str) -> Independent:
    """build_hc_pre of hy-v4.cpp: one weight per stream, and no weights between streams."""
    _, count, tokens, _ = streams.ne
    mixes = _mixes(streams, layer[f"hc_{part}_fn"])
    scale, base = layer[f"hc_{part}_scale"], layer[f"hc_{part}_base"]
    pre, post = (
        ggml.unary(
            ggml.add(
                ggml.mul(
                    ggml.view(mixes, count, tokens, strides=(mixes.nb[1],)), ggml.view(scale, 1)
                ),
                ggml.view(base, count),
            )
        )
        for _ in range(2)
    )
    return Independent(_reduce(streams, ggml.scale(pre)), ggml.scale(ggml.scale(post)))


def _mixes(streams: GraphTensor, matrix: GraphTensor) -> GraphTensor:
    width, count, tokens, _ = streams.ne
    flat = ggml.rms_norm(ggml.reshape(streams, width * count, tokens))
    return ggml.mul_mat(matrix, flat)


def _reduce(streams: GraphTensor, weights: GraphTensor) -> GraphTensor:
    """hy_v4_hc_reduce: the weighted sum of the streams."""
    width, count, tokens, _ = streams.ne
    streams = ggml.cast(streams, F32)
    parts = [
        ggml.mul(
            ggml.view(streams, width, tokens, strides=(streams.nb[2],)),
            ggml.view(weights, 1, tokens, strides=(weights.nb[1],)),
        )
        for _ in range(number(count))
    ]
    return ggml.cast(reduce(ggml.add, parts), F32)


def distribute(cur: GraphTensor, streams: GraphTensor, post: GraphTensor) -> GraphTensor:
    """build_hc_post of hy-v4.cpp: every stream, plus the output times its weight."""
    width, count, tokens, _ = streams.ne
    cur, post, streams = (ggml.cast(tensor, F32) for tensor in (cur, post, streams))
    parts: list[GraphTensor] = []
    for _ in range(number(count)):
        stream = ggml.view(streams, width, tokens, strides=(streams.nb[2],))
        weight = ggml.view(post, 1, tokens, strides=(post.nb[1],))
        part = ggml.add(stream, ggml.mul(cur, weight))
        parts.append(ggml.reshape(part, width, 1, tokens))
    return ggml.cast(reduce(lambda left, right: ggml.concat(left, right, 1), parts), F32)


class HyV4(Transformer):
    """HY 4: latent attention with sinks and a gate; in some files to cells that an indexer selects."""

    def variant(self, hparams: Hparams, il: int) -> bool:
        """True if the layer has an indexer."""
        return bool(hparams.per_layer("attention.indexer.types", 1)[il])

    def build(self, build: Build) -> None:
        streams = split_streams(build, build.input_embd())
        build.inputs = self.layer_inputs(build)
        is_indexed = build.hparams.integer("attention.indexer.top_k", 0) > 0
        indexer = Indexer.of(build, rotated=False) if is_indexed else None
        selected: GraphTensor | None = None
        for layer in build.layers():
            mixed = mix(layer, streams, "attn")
            cur = self.apply_norm(layer, mixed.cur, "attn_norm")
            qr = normalize(ggml.mul_mat(layer["attn_q_a"], cur), layer["attn_q_a_norm"])
            if indexer is not None and (selected is None or "indexer.proj" in layer):
                selected = indexer.top_cells(layer, cur, qr)
            cur = self.gated_attention(layer, cur, qr, selected)
            streams = distribute(cur, streams, mixed.post)
            mixed = mix(layer, streams, "ffn")
            cur = self.apply_norm(layer, mixed.cur, "ffn_norm")
            streams = distribute(self.feed_forward(layer, cur), streams, mixed.post)
        streams = output_streams(build, streams)
        weights = ggml.mul(_mixes(streams, build["output_hc_fn"]), build["output_hc_scale"])
        weights = ggml.scale(ggml.unary(ggml.add(weights, build["output_hc_base"])))
        results(build, normalize(_reduce(streams, weights), build["output_norm"]))

    def gated_attention(
        self, layer: GraphLayer, cur: GraphTensor, qr: GraphTensor, selected: GraphTensor | None
    ) -> GraphTensor:
        """Attention from the normed input to its output projection. `selected`: cells, if not all."""
        q = ggml.mul_mat(layer["attn_q_b"], qr)
        qkv = absorbed_qkv(layer, q, cur, lambda part: ggml.rope(part, layer.inputs.pos))
        mask = selected and restrict_mask(layer.inputs.attn.base.mask, selected)
        out = attend_k(layer, qkv, mask=mask, sinks=layer["attn_sinks"], project=False)
        gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
        return project(layer, "attn_output", ggml.mul(out, gate))


HYPER: Mapping[str, Transformer] = {
    "hy_v4": HyV4(attn_input=input_k, routing=file_routing),
}
