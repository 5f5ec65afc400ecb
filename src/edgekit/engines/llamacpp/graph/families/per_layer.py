"""Gemma 3n and 4: layers that read a cache of others, and an embedding table that every layer has for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.heads import output_rows, results, rows_after_norm
from edgekit.engines.llamacpp.graph.families.transformer import Shared, Transformer, rope_factors
from edgekit.engines.llamacpp.graph.llama.attention import attend
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.feed_forward import experts, feed_forward
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.llama.matrices import normalize, project
from edgekit.engines.llamacpp.graph.tensor import I32, GraphTensor
from edgekit.engines.llamacpp.versions import Rules
from edgekit.model.types import SharedCache


def slice_2d(cur: GraphTensor) -> GraphTensor:
    """One of the matrices that lie behind each other."""
    return ggml.view(cur, *cur.ne[:2], strides=(cur.nb[1],))


def looked_up(build: Build) -> GraphTensor:
    """build_inp_per_layer."""
    ids = ggml.graph_input(I32, build.n_tokens, name="inp_tokens")
    return ggml.get_rows(build["per_layer_token_embd"], ids)


def per_layer_inputs(
    build: Build, embd: GraphTensor, width: int, before: GraphTensor | None = None
) -> GraphTensor:
    """project_per_layer_inputs: [width, tokens, layers]. `before`: what was looked up before all else."""
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
    """The layer whose cache is read, where it is not this one."""
    mixer = hparams.geometry.layers[il].mixer
    return mixer.source_layer if isinstance(mixer, SharedCache) else None


def attended(
    build: Build,
    layer: GraphLayer,
    shared: Shared,
    parts: Sequence[GraphTensor],
    factors: GraphTensor | None,
) -> GraphTensor:
    """Queries alone where the layer has no cache. Values are normalised too."""
    index = layer.index
    q = normalize(parts[0], layer["attn_q_norm"], layer=index)
    q = ggml.rope(q, shared.pos, factors)
    if not layer.facts.has_kv:
        return attend(build, layer, shared.attn, q, None, None, owner=owner(build.hparams, index))
    k = normalize(parts[1], layer["attn_k_norm"], layer=index)
    v = ggml.rms_norm(parts[2])
    return attend(build, layer, shared.attn, q, ggml.rope(k, shared.pos, factors), v)


def projected(build: Build, layer: GraphLayer, cur: GraphTensor) -> list[GraphTensor]:
    """Queries, keys and values in heads. Without a matrix for values they are the keys."""
    width = layer.facts.n_embd_head_k
    counts = (layer.facts.n_head, layer.facts.n_head_kv, layer.facts.n_head_kv)
    if "attn_qkv" in layer:
        made = _cut(build, layer, [width * count for count in counts], cur)
    else:
        names = [name for name in ("attn_q", "attn_k", "attn_v") if name in layer]
        made = [project(layer[name], cur, scale=layer.scale(name)) for name in names]
    if len(made) == 2:
        made = [*made, made[1]]
    return [
        ggml.reshape(one, width, count, build.n_tokens)
        for one, count in zip(made, counts, strict=False)
    ]


def _cut(build: Build, layer: GraphLayer, widths: list[int], cur: GraphTensor) -> list[GraphTensor]:
    fused = project(layer["attn_qkv"], cur, scale=layer.scale("attn_qkv"))
    return [
        ggml.cont(ggml.view(fused, width, build.n_tokens, strides=(fused.nb[1],)))
        for width in widths
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4(Transformer):
    def build(self, build: Build) -> None:
        width = build.hparams.whole("embedding_length_per_layer_input", 0)
        before = looked_up(build) if width and build.options.rules >= Rules.V0_6 else None
        if before is not None:
            build.expand(before)
        cur = build.scaled_embd(build.input_embd())
        shared = self.shared(build)
        per_layer = per_layer_inputs(build, cur, width, before) if width else None
        for layer in build.layers():
            cur = self.block(build, layer, shared, cur)
            cur = self.embedded(build, layer, shared, cur, per_layer)
        cur = rows_after_norm(build, cur, shared.out_ids)
        results(build, cur, softcap=self.logit_softcap(build.hparams))

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        factors = None if layer.facts.is_swa else rope_factors(build)
        return attended(build, layer, shared, projected(build, layer, cur), factors)

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        cur = self.normalized(layer, stream, "attn_norm")
        cur = self.attention(build, layer, shared, cur)
        if layer.facts.is_last:
            cur, stream = output_rows(build, (cur, stream), shared.out_ids)
        stream = ggml.add(self.normalized(layer, cur, "post_attention_norm"), stream)
        cur = self.feed_forward(build, layer, shared, stream)
        return ggml.add(normalize(cur, layer["post_ffw_norm"]), stream)

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        """A dense one, and experts beside it where the layer has them."""
        dense = feed_forward(layer, self.normalized(layer, cur, "ffn_norm"))
        if "ffn_gate_inp" not in layer:
            return dense
        dense = self.normalized(layer, dense, "post_ffw_norm_1")
        moe = self.normalized(layer, cur, "pre_ffw_norm_2")
        logits = ggml.mul(ggml.scale(ggml.rms_norm(cur)), layer.need("ffn_gate_inp.scale"))
        logits = ggml.mul_mat(layer["ffn_gate_inp"], logits)
        moe = experts(build, layer, moe, shared.routing, probs_in=logits)
        return ggml.add(dense, self.normalized(layer, moe, "post_ffw_norm_2"))

    def embedded(
        self,
        build: Build,
        layer: GraphLayer,
        shared: Shared,
        cur: GraphTensor,
        per_layer: GraphTensor | None,
    ) -> GraphTensor:
        if per_layer is not None:
            gate = ggml.unary(ggml.mul_mat(layer["inp_gate"], cur))
            own = slice_2d(per_layer)
            if layer.facts.is_last:
                (own,) = output_rows(build, (own,), shared.out_ids)
            made = ggml.mul_mat(layer["proj"], ggml.mul(gate, own))
            cur = ggml.add(cur, normalize(made, layer["post_norm"], layer=layer.index))
        scale = layer.weight("layer_output_scale")
        return cur if scale is None else ggml.mul(cur, scale)
