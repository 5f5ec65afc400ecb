"""Gemma 3n and 4: layers that read the cache of others, and an embedding table for every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend, input_kv_iswa
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.transformer import (
    Shared,
    Transformer,
    nonzero,
    rope_factors,
)
from edgekit.engines.llamacpp.graph.layers import (
    Routing,
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
    """One matrix of a stacked tensor."""
    return ggml.view(cur, *cur.ne[:2], strides=(cur.nb[1],))


def looked_up(build: Build) -> GraphTensor:
    """build_inp_per_layer."""
    ids = ggml.graph_input(I32, build.n_tokens, name="inp_tokens")
    return ggml.get_rows(build["per_layer_token_embd"], ids)


def per_layer_inputs(
    build: Build, embd: GraphTensor, width: int, before: GraphTensor | None = None
) -> GraphTensor:
    """project_per_layer_inputs: [width, tokens, layers]. `before`: per-layer embeddings that were already looked up."""
    layers, tokens = build.hparams.n_layer, build.n_tokens
    if before is None:
        own = ggml.scale(ggml.reshape(looked_up(build), width, layers, tokens))
        if build.options.rules >= Rules.PER_LAYER_FIRST:
            build.expand(own)
    else:
        own = ggml.reshape(ggml.scale(before), width, layers, tokens)
    made = ggml.scale(ggml.mul_mat(build["per_layer_model_proj"], embd))
    made = normalize(ggml.reshape(made, width, layers, tokens), build["per_layer_proj_norm"])
    return ggml.cont(ggml.permute(ggml.scale(ggml.add(made, own)), 0, 2, 1, 3))


def owner(hparams: Hparams, il: int) -> int | None:
    """The layer whose cache is read, if not this one."""
    mixer = hparams.geometry.layers[il].mixer
    return mixer.source_layer if isinstance(mixer, SharedCache) else None


def attended(
    layer: GraphLayer,
    shared: Shared,
    parts: Sequence[GraphTensor],
    factors: GraphTensor | None,
) -> GraphTensor:
    """Attention; only queries are computed if the layer has no cache. V is normalised too."""
    q = normalize(parts[0], layer["attn_q_norm"])
    q = ggml.rope(q, shared.pos, factors)
    if not layer.facts.has_kv:
        return attend(
            layer, shared.attn, q, None, None, owner=owner(layer.build.hparams, layer.index)
        )
    k = normalize(parts[1], layer["attn_k_norm"])
    v = ggml.rms_norm(parts[2])
    return attend(layer, shared.attn, q, ggml.rope(k, shared.pos, factors), v)


def projected(layer: GraphLayer, cur: GraphTensor) -> list[GraphTensor]:
    """Q, K and V in heads. Without a V matrix, V is K."""
    width, tokens = layer.facts.n_embd_head_k, layer.build.n_tokens
    counts = (layer.facts.n_head, layer.facts.n_head_kv, layer.facts.n_head_kv)
    if "attn_qkv" in layer:
        fused = project(layer, "attn_qkv", cur)
        made = [
            ggml.cont(ggml.view(fused, width * count, tokens, strides=(fused.nb[1],)))
            for count in counts
        ]
    else:
        names = [name for name in ("attn_q", "attn_k", "attn_v") if name in layer]
        made = [project(layer, name, cur) for name in names]
    if len(made) == 2:
        made = [*made, made[1]]
    return [
        ggml.reshape(one, width, count, layer.build.n_tokens)
        for one, count in zip(made, counts, strict=False)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4(Transformer):
    norm_first: bool = True
    post_norms: bool = True
    ffn_norm: str | None = None  # feed_forward has several
    per_layer: GraphTensor | None = None  # embeddings of each layer, while a graph is built

    def build(self, build: Build) -> None:
        width = build.hparams.integer("embedding_length_per_layer_input", 0)
        before = looked_up(build) if width and build.options.rules >= Rules.V0_6 else None
        if before is not None:
            build.expand(before)
        cur = build.scaled_embd(build.input_embd())
        shared = self.shared(build)
        per_layer = per_layer_inputs(build, cur, width, before) if width else None
        family = replace(self, per_layer=per_layer)
        for layer in build.layers():
            cur = family.block(layer, shared, cur)
        self.finish(build, shared, cur)

    def attention(self, layer: GraphLayer, shared: Shared, cur: GraphTensor) -> GraphTensor:
        factors = None if layer.facts.is_swa else rope_factors(layer.build)
        return attended(layer, shared, projected(layer, cur), factors)

    def block(self, layer: GraphLayer, shared: Shared, stream: GraphTensor) -> GraphTensor:
        cur = Transformer.block(self, layer, shared, stream)
        if self.per_layer is not None:
            gate = ggml.unary(ggml.mul_mat(layer["inp_gate"], cur))
            (own,) = self.output_rows(layer, shared, slice_2d(self.per_layer))
            made = ggml.mul_mat(layer["proj"], ggml.mul(gate, own))
            cur = ggml.add(cur, normalize(made, layer["post_norm"]))
        scale = layer.weight("layer_output_scale")
        return cur if scale is None else ggml.mul(cur, scale)

    def feed_forward(self, layer: GraphLayer, shared: Shared, cur: GraphTensor) -> GraphTensor:
        """A dense feed-forward, and experts in parallel if the layer has them."""
        dense = feed_forward(layer, self.normalized(layer, cur, "ffn_norm"))
        if "ffn_gate_inp" not in layer:
            return dense
        dense = self.normalized(layer, dense, "post_ffw_norm_1")
        moe = self.normalized(layer, cur, "pre_ffw_norm_2")
        logits = ggml.mul(ggml.scale(ggml.rms_norm(cur)), layer.required("ffn_gate_inp.scale"))
        logits = ggml.mul_mat(layer["ffn_gate_inp"], logits)
        moe = experts(layer, moe, shared.routing, probs_in=logits)
        return ggml.add(dense, self.normalized(layer, moe, "post_ffw_norm_2"))


class Gemma3n(Transformer):
    def variant(self, _hparams: Hparams, il: int) -> bool:
        """Whether the gate keeps only its largest values."""
        return il < SPARSE_LAYERS

    def build(self, build: Build) -> None:
        cur = build.scaled_embd(build.input_embd())
        shared = self.shared(build)
        per_layer = per_layer_inputs(build, cur, PER_LAYER)
        # One stream is expanded to all of them, rescaled to equal magnitude.
        others = ggml.repeat(cur, *cur.ne[:2], STREAMS - 1, 1)
        others = ggml.mul_mat(build["altup_proj"], others)
        streams = ggml.concat(cur, _as_large(others, _magnitude(cur)), 2)
        for layer in build.layers():
            streams = self.streams_after(layer, shared, streams, per_layer)
        others = ggml.mul_mat(build["altup_unembd_proj"], _rest(streams))
        others = _as_large(others, _magnitude(slice_2d(streams)))
        cur = slice_2d(streams)
        for _ in range(STREAMS - 1):
            cur = ggml.add(cur, slice_2d(others))
        cur = ggml.get_rows(ggml.scale(cur), shared.out_ids)
        results(build, normalize(cur, build["output_norm"]), softcap=True)

    def streams_after(
        self,
        layer: GraphLayer,
        shared: Shared,
        streams: GraphTensor,
        per_layer: GraphTensor,
    ) -> GraphTensor:
        predicted = _predicted(layer, streams)
        active = slice_2d(predicted)
        cur = self.worked(layer, shared, active)
        corrected = _corrected(layer, predicted, cur)
        first = ggml.mul(slice_2d(corrected), layer["altup_correct_scale"])
        first = ggml.unary(ggml.mul_mat(layer["inp_gate"], first))
        first = ggml.mul_mat(layer["proj"], ggml.mul(first, slice_2d(per_layer)))
        first = self.normalized(layer, first, "post_norm")
        return ggml.concat(slice_2d(corrected), ggml.add(_rest(corrected), first), 2)

    def worked(self, layer: GraphLayer, shared: Shared, active: GraphTensor) -> GraphTensor:
        """An ordinary layer with a low-rank path parallel to attention (LAuReL)."""
        normed = self.normalized(layer, active, "attn_norm")
        laurel = ggml.mul_mat(layer["laurel_r"], ggml.mul_mat(layer["laurel_l"], normed))
        laurel = ggml.add(self.normalized(layer, laurel, "laurel_post_norm"), normed)
        split = qkv if layer.facts.has_kv else projected
        cur = attended(layer, shared, split(layer, normed), None)
        cur = ggml.add(self.normalized(layer, cur, "post_attention_norm"), active)
        stream = ggml.scale(ggml.add(cur, laurel))
        cur = self.normalized(layer, stream, "ffn_norm")
        up, gate = ggml.mul_mat(layer["ffn_up"], cur), ggml.mul_mat(layer["ffn_gate"], cur)
        if layer.index < SPARSE_LAYERS:
            gate = _largest(gate)
        cur = ggml.mul_mat(layer["ffn_down"], ggml.mul(up, ggml.unary(gate)))
        return ggml.add(normalize(cur, layer["post_ffw_norm"]), stream)


def _magnitude(cur: GraphTensor) -> GraphTensor:
    return ggml.sqrt(ggml.sum_rows(ggml.sqr(cur)))


def _as_large(cur: GraphTensor, magnitude: GraphTensor) -> GraphTensor:
    return ggml.div(ggml.mul(cur, magnitude), _magnitude(cur))


def _rest(streams: GraphTensor) -> GraphTensor:
    """All streams except the first."""
    return ggml.view(streams, *streams.ne[:2], STREAMS - 1, strides=streams.nb[1:3])


def _modalities(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    cur = normalize(cur, layer["altup_router_norm"])
    return ggml.unary(ggml.mul_mat(layer["altup_router"], ggml.scale(cur)))


def _predicted(layer: GraphLayer, streams: GraphTensor) -> GraphTensor:
    modalities = _modalities(layer, slice_2d(streams))
    factors = ggml.mul_mat(layer["altup_predict_coef"], modalities)
    factors = ggml.reshape(factors, STREAMS, STREAMS, layer.build.n_tokens)
    turned = ggml.cont(ggml.permute(streams, 1, 2, 0, 3))
    predicted = ggml.mul_mat(turned, factors)
    return ggml.add(ggml.cont(ggml.permute(predicted, 0, 2, 1, 3)), streams)


def _corrected(layer: GraphLayer, predicted: GraphTensor, cur: GraphTensor) -> GraphTensor:
    modalities = _modalities(layer, cur)
    news = ggml.sub(cur, slice_2d(predicted))
    factors = ggml.scale(ggml.mul_mat(layer["altup_correct_coef"], modalities))
    factors = ggml.cont(ggml.transpose(factors), 1, layer.build.n_tokens, STREAMS)
    news = ggml.repeat(news, *cur.ne[:2], STREAMS, 1)
    return ggml.add(ggml.mul(news, factors), predicted)


def _largest(cur: GraphTensor) -> GraphTensor:
    """gaussian_topk: values below a quantile of their row become zero."""
    mean = ggml.mean(cur)
    spread = ggml.scale(ggml.sum_rows(ggml.sqr(ggml.sub(cur, mean))))
    cutoff = ggml.add(mean, ggml.scale(ggml.sqrt(spread)))
    return ggml.unary(ggml.sub(cur, cutoff))


GEMMA: Mapping[str, Transformer] = {
    "gemma3n": Gemma3n(attn_input=input_kv_iswa),
    "gemma4": Gemma4(
        attn_input=input_kv_iswa,
        routing=lambda _hparams: Routing(),
        logit_softcap=nonzero("final_logit_softcapping"),
    ),
}
