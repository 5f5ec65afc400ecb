"""Gemma 3n and 4, EmbeddingGemma 2: layers that read the cache of others, and embeddings for every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend, attend_now, input_kv_iswa
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams, Routing
from edgekit.engines.llamacpp.graph.families.encoders import input_encoder
from edgekit.engines.llamacpp.graph.families.transformer import Transformer, nonzero, rope_factors
from edgekit.engines.llamacpp.graph.layers import (
    experts,
    feed_forward,
    normalize,
    project,
    qkv,
    results,
)
from edgekit.engines.llamacpp.graph.tensor import I32, GraphTensor
from edgekit.engines.llamacpp.types import Rules
from edgekit.model.types import SharedCache

# llama-hparams.h and models.h @ 0c1e570: n_altup, n_embd_altup, n_layer_sparsity
STREAMS = 4
PER_LAYER = 256
SPARSE_LAYERS = 10


def slice_2d(cur: GraphTensor) -> GraphTensor:
    """The first matrix of a stacked tensor; memory does not depend on which one."""
    return ggml.view(cur, *cur.ne[:2], strides=(cur.nb[1],))


def per_layer_lookup(build: Build) -> GraphTensor:
    """build_inp_per_layer: the embeddings of all layers for each token."""
    ids = ggml.graph_input(I32, build.n_tokens, name="inp_tokens")
    return ggml.get_rows(build["per_layer_token_embd"], ids)


def per_layer_inputs(
    build: Build, embd: GraphTensor, width: int, looked_up: GraphTensor | None = None
) -> GraphTensor:
    """project_per_layer_inputs: [width, tokens, layers]. `looked_up`: the embeddings, if the graph already has them."""
    layers, tokens = build.hparams.n_layer, build.n_tokens
    if looked_up is None:
        embeddings = ggml.scale(ggml.reshape(per_layer_lookup(build), width, layers, tokens))
        if build.options.rules >= Rules.PER_LAYER_FIRST:
            build.expand(embeddings)
    else:
        embeddings = ggml.reshape(ggml.scale(looked_up), width, layers, tokens)
    projected_embd = ggml.scale(ggml.mul_mat(build["per_layer_model_proj"], embd))
    projected_embd = normalize(
        ggml.reshape(projected_embd, width, layers, tokens), build["per_layer_proj_norm"]
    )
    return ggml.cont(ggml.permute(ggml.scale(ggml.add(projected_embd, embeddings)), 0, 2, 1, 3))


def gemma_attention(
    layer: GraphLayer, projected: Sequence[GraphTensor], factors: GraphTensor | None
) -> GraphTensor:
    """Attention to the layer's own cache, or to that of an earlier layer: then only Q was projected.

    V is normalised too.
    """
    pos = layer.inputs.pos
    q = ggml.rope(normalize(projected[0], layer["attn_q_norm"]), pos, factors)
    if not layer.facts.has_kv:
        mixer = layer.hparams.geometry.layers[layer.index].mixer
        source_layer = mixer.source_layer if isinstance(mixer, SharedCache) else None
        return attend(layer, q, None, None, owner=source_layer)
    k = ggml.rope(normalize(projected[1], layer["attn_k_norm"]), pos, factors)
    return attend(layer, q, k, ggml.rms_norm(projected[2]))


def project_qkv(layer: GraphLayer, cur: GraphTensor) -> list[GraphTensor]:
    """Q, K and V in heads. Without a V matrix, V is K."""
    width, tokens = layer.facts.n_embd_head_k, layer.build.n_tokens
    counts = (layer.facts.n_head, layer.facts.n_head_kv, layer.facts.n_head_kv)
    if "attn_qkv" in layer:
        fused = project(layer, "attn_qkv", cur)
        sides = [
            ggml.cont(ggml.view(fused, width * count, tokens, strides=(fused.nb[1],)))
            for count in counts
        ]
    else:
        names = [name for name in ("attn_q", "attn_k", "attn_v") if name in layer]
        sides = [project(layer, name, cur) for name in names]
    if len(sides) == 2:
        sides = [*sides, sides[1]]
    return [
        ggml.reshape(side, width, count, layer.build.n_tokens)
        for side, count in zip(sides, counts, strict=False)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4(Transformer):
    norm_first: bool = True
    post_norms: bool = True
    ffn_norm: str | None = None  # feed_forward has several

    def build(self, build: Build) -> None:
        width = build.hparams.integer("embedding_length_per_layer_input", 0)
        looked_up = per_layer_lookup(build) if width and build.options.rules >= Rules.V0_6 else None
        if looked_up is not None:
            build.expand(looked_up)
        cur = build.scale_embd(build.input_embd())
        build.inputs = self.layer_inputs(build)
        per_layer = per_layer_inputs(build, cur, width, looked_up) if width else None
        for layer in build.layers():
            cur = self.block(layer, cur)
            if per_layer is not None:
                cur = self.add_layer_embeddings(layer, cur, slice_2d(per_layer))
            if (scale := layer.weight("layer_output_scale")) is not None:
                cur = ggml.mul(cur, scale)
        self.finish(build, cur)

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        factors = None if layer.facts.is_swa else rope_factors(layer.build)
        return gemma_attention(layer, project_qkv(layer, cur), factors)

    def add_layer_embeddings(
        self, layer: GraphLayer, cur: GraphTensor, embeddings: GraphTensor
    ) -> GraphTensor:
        """Adds the token embeddings that only this layer has, gated by the stream."""
        gate = ggml.unary(ggml.mul_mat(layer["inp_gate"], cur))
        (embeddings,) = self.output_rows(layer, embeddings)
        gated = ggml.mul_mat(layer["proj"], ggml.mul(gate, embeddings))
        return ggml.add(cur, normalize(gated, layer["post_norm"]))

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        """A dense feed-forward, and experts in parallel if the layer has them."""
        dense = feed_forward(layer, self.apply_norm(layer, cur, "ffn_norm"))
        if "ffn_gate_inp" not in layer:
            return dense
        dense = self.apply_norm(layer, dense, "post_ffw_norm_1")
        moe = self.apply_norm(layer, cur, "pre_ffw_norm_2")
        logits = ggml.mul(ggml.scale(ggml.rms_norm(cur)), layer.required("ffn_gate_inp.scale"))
        logits = ggml.mul_mat(layer["ffn_gate_inp"], logits)
        moe = experts(layer, moe, probs_in=logits)
        return ggml.add(dense, self.apply_norm(layer, moe, "post_ffw_norm_2"))


class Gemma3n(Transformer):
    def variant(self, _hparams: Hparams, il: int) -> bool:
        """Whether the gate keeps only its largest values."""
        return il < SPARSE_LAYERS

    def build(self, build: Build) -> None:
        cur = build.scale_embd(build.input_embd())
        build.inputs = self.layer_inputs(build)
        per_layer = per_layer_inputs(build, cur, PER_LAYER)
        # One stream is expanded to all of them, rescaled to equal magnitude.
        other_streams = ggml.repeat(cur, *cur.ne[:2], STREAMS - 1, 1)
        other_streams = ggml.mul_mat(build["altup_proj"], other_streams)
        streams = ggml.concat(cur, _rescale(other_streams, _magnitude(cur)), 2)
        for layer in build.layers():
            streams = self.update_streams(layer, streams, per_layer)
        other_streams = ggml.mul_mat(build["altup_unembd_proj"], _other_streams(streams))
        other_streams = _rescale(other_streams, _magnitude(slice_2d(streams)))
        cur = slice_2d(streams)
        for _ in range(STREAMS - 1):
            cur = ggml.add(cur, slice_2d(other_streams))
        cur = ggml.get_rows(ggml.scale(cur), build.inputs.out_ids)
        results(build, normalize(cur, build["output_norm"]), softcap=True)

    def update_streams(
        self, layer: GraphLayer, streams: GraphTensor, per_layer: GraphTensor
    ) -> GraphTensor:
        """The streams after the layer: only the first runs it, and the others are predicted and corrected."""
        predicted = _predict_streams(layer, streams)
        active = slice_2d(predicted)
        cur = self.active_layer(layer, active)
        corrected = _correct_streams(layer, predicted, cur)
        first = ggml.mul(slice_2d(corrected), layer["altup_correct_scale"])
        first = ggml.unary(ggml.mul_mat(layer["inp_gate"], first))
        first = ggml.mul_mat(layer["proj"], ggml.mul(first, slice_2d(per_layer)))
        first = self.apply_norm(layer, first, "post_norm")
        return ggml.concat(slice_2d(corrected), ggml.add(_other_streams(corrected), first), 2)

    def active_layer(self, layer: GraphLayer, active: GraphTensor) -> GraphTensor:
        """An ordinary layer with a low-rank path parallel to attention (LAuReL)."""
        normed = self.apply_norm(layer, active, "attn_norm")
        laurel = ggml.mul_mat(layer["laurel_r"], ggml.mul_mat(layer["laurel_l"], normed))
        laurel = ggml.add(self.apply_norm(layer, laurel, "laurel_post_norm"), normed)
        split = qkv if layer.facts.has_kv else project_qkv
        cur = gemma_attention(layer, split(layer, normed), None)
        cur = ggml.add(self.apply_norm(layer, cur, "post_attention_norm"), active)
        stream = ggml.scale(ggml.add(cur, laurel))
        cur = self.apply_norm(layer, stream, "ffn_norm")
        up, gate = ggml.mul_mat(layer["ffn_up"], cur), ggml.mul_mat(layer["ffn_gate"], cur)
        if layer.index < SPARSE_LAYERS:
            gate = _keep_largest(gate)
        cur = ggml.mul_mat(layer["ffn_down"], ggml.mul(up, ggml.unary(gate)))
        return ggml.add(normalize(cur, layer["post_ffw_norm"]), stream)


def _magnitude(cur: GraphTensor) -> GraphTensor:
    """calc_magnitude: the Euclidean norm of each row."""
    return ggml.sqrt(ggml.sum_rows(ggml.sqr(cur)))


def _rescale(cur: GraphTensor, magnitude: GraphTensor) -> GraphTensor:
    """Scales each row to this magnitude."""
    return ggml.div(ggml.mul(cur, magnitude), _magnitude(cur))


def _other_streams(streams: GraphTensor) -> GraphTensor:
    """All streams except the first."""
    return ggml.view(streams, *streams.ne[:2], STREAMS - 1, strides=streams.nb[1:3])


def _modalities(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """altup_compute_router_modalities: how strongly each stream counts."""
    cur = normalize(cur, layer["altup_router_norm"])
    return ggml.unary(ggml.mul_mat(layer["altup_router"], ggml.scale(cur)))


def _predict_streams(layer: GraphLayer, streams: GraphTensor) -> GraphTensor:
    """altup_predict: what the layer is expected to add to each stream."""
    modalities = _modalities(layer, slice_2d(streams))
    factors = ggml.mul_mat(layer["altup_predict_coef"], modalities)
    factors = ggml.reshape(factors, STREAMS, STREAMS, layer.build.n_tokens)
    by_stream = ggml.cont(ggml.permute(streams, 1, 2, 0, 3))
    predicted = ggml.mul_mat(by_stream, factors)
    return ggml.add(ggml.cont(ggml.permute(predicted, 0, 2, 1, 3)), streams)


def _correct_streams(layer: GraphLayer, predicted: GraphTensor, cur: GraphTensor) -> GraphTensor:
    """altup_correct: the predicted streams, corrected by the output of the active one."""
    modalities = _modalities(layer, cur)
    innovation = ggml.sub(cur, slice_2d(predicted))
    factors = ggml.scale(ggml.mul_mat(layer["altup_correct_coef"], modalities))
    factors = ggml.cont(ggml.transpose(factors), 1, layer.build.n_tokens, STREAMS)
    innovation = ggml.repeat(innovation, *cur.ne[:2], STREAMS, 1)
    return ggml.add(ggml.mul(innovation, factors), predicted)


def _keep_largest(cur: GraphTensor) -> GraphTensor:
    """gaussian_topk: values below a quantile of their row become zero."""
    mean = ggml.mean(cur)
    spread = ggml.scale(ggml.sum_rows(ggml.sqr(ggml.sub(cur, mean))))
    cutoff = ggml.add(mean, ggml.scale(ggml.sqrt(spread)))
    return ggml.unary(ggml.sub(cur, cutoff))


class GemmaEmbedding2(Gemma4):
    """EmbeddingGemma 2: an encoder whose embeddings for each layer are made of the token embeddings.

    The output matrix makes the embedding, not logits.
    """

    def build(self, build: Build) -> None:
        cur = build.scale_embd(build.input_embd())
        build.inputs = self.layer_inputs(build)
        width = build.hparams.integer("embedding_length_per_layer_input")
        layers, tokens = build.hparams.n_layer, build.n_tokens
        per_layer = ggml.scale(ggml.mul_mat(build["per_layer_model_proj"], cur))
        per_layer = ggml.reshape(per_layer, width, layers, tokens)
        per_layer = normalize(per_layer, build["per_layer_proj_norm"])
        per_layer = ggml.cont(ggml.permute(per_layer, 0, 2, 1, 3))
        for layer in build.layers():
            cur = self.add_layer_embeddings(layer, self.block(layer, cur), slice_2d(per_layer))
            cur = ggml.mul(cur, layer["layer_output_scale"])
        self.head(build, cur)

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        q, k, v = project_qkv(layer, cur)
        q, k = self.rope_qk(layer, *self.norm_qk(layer, q, k))
        return attend_now(layer, q, k, ggml.rms_norm(v))

    def selects_rows(self, _build: Build) -> bool:
        return True

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return feed_forward(layer, self.apply_norm(layer, cur, "ffn_norm"))

    def head(self, build: Build, cur: GraphTensor) -> None:
        cur = ggml.mul_mat(build["output"], normalize(cur, build["output_norm"]))
        build.output_embd(cur)
        build.expand(cur)


GEMMA: Mapping[str, Transformer] = {
    "gemma-embedding2": GemmaEmbedding2(attn_input=input_encoder),
    "gemma3n": Gemma3n(attn_input=input_kv_iswa),
    "gemma4": Gemma4(
        attn_input=input_kv_iswa,
        routing=lambda _hparams: Routing(),
        logit_softcap=nonzero("final_logit_softcapping"),
    ),
}
