"""Hybrid models such as LFM 2: some layers use attention, others are recurrent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    AttnInput,
    StateInput,
    attend,
    input_kv,
    input_kv_iswa,
    input_rs,
)
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.transformer import Shared, Transformer, never
from edgekit.engines.llamacpp.graph.layers import (
    experts,
    feed_forward,
    logits,
    normalize,
    output_rows,
    qkv,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, NoGraphError

Mixer = Callable[[Build, GraphLayer, StateInput, GraphTensor], GraphTensor]


def residual_scale(hparams: Hparams) -> bool:
    return bool(hparams.real("residual_scale"))


def logit_scale(hparams: Hparams) -> bool:
    return bool(hparams.real("logit_scale"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(Transformer):
    """`mixer` builds the recurrent layers."""

    mixer: Mixer
    residual_scale: Callable[[Hparams], bool] = never
    stream_first: bool = False  # stream + result, not result + stream

    def shared(self, build: Build) -> Shared:
        return replace(Transformer.shared(self, build), rs=input_rs(build))

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        if layer.facts.is_recr:
            return self.recur(build, layer, shared, cur)
        return Transformer.attention(self, build, layer, shared, cur)

    def recur(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        return self.mixer(build, layer, shared.rs or input_rs(build), cur)

    def after_attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        stream = self.joined(build, cur, stream)
        if self.ffn_norm is None:
            return stream
        cur = self.normalized(layer, stream, self.ffn_norm)
        cur = self.feed_forward(build, layer, shared, cur)
        return self.joined(build, cur, stream)

    def joined(self, build: Build, cur: GraphTensor, stream: GraphTensor) -> GraphTensor:
        if self.residual_scale(build.hparams):
            cur = ggml.scale(cur)
        return ggml.add(stream, cur) if self.stream_first else ggml.add(cur, stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide(Hybrid):
    """Falcon H1: every layer has attention and a recurrent part, whose outputs are added."""

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        normed = self.normalized(layer, stream, "attn_norm")
        attended = Transformer.attention(self, build, layer, shared, normed)
        normed = self.normalized(layer, stream, "attn_norm")  # computed twice
        carried = self.recur(build, layer, shared, normed)
        stream = ggml.add(ggml.add(attended, carried), stream)
        if layer.facts.is_last:
            stream = ggml.get_rows(stream, shared.out_ids)
        cur = normalize(
            stream, layer.required("ffn_norm"), layer=layer.index
        )  # not ffn_norm.weight
        return ggml.add(self.feed_forward(build, layer, shared, cur), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEach(Hybrid):
    """Nemotron H: each layer is either attention, recurrent or a feed-forward. `layer.facts.variant`: it is a
    feed-forward.
    """

    def variant(self, hparams: Hparams, il: int) -> bool:
        return hparams.per_layer("feed_forward_length", 0)[il] != 0

    norm_first: bool = True

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        cur = self.normalized(layer, stream, "attn_norm")
        kind = self.feed_forward if layer.facts.variant is True else self.attention
        cur = kind(build, layer, shared, cur)
        if layer.facts.is_last:
            cur, stream = output_rows(build, (cur, stream), shared.out_ids)
        return ggml.add(cur, stream)

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        if layer.facts.is_recr:
            return self.recur(build, layer, shared, cur)
        return attend(build, layer, shared.attn, *qkv(build, layer, cur))

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        """Experts may have their own input width; the router uses the hidden width."""
        if "ffn_gate_inp" not in layer:
            return feed_forward(layer, cur, act=self.act, gated=False)
        narrow, wide = layer.weight("ffn_latent_down"), layer.weight("ffn_latent_up")
        latent = cur if narrow is None else ggml.mul_mat(narrow, cur)
        router = ggml.mul_mat(layer["ffn_gate_inp"], cur)
        result = experts(build, layer, latent, shared.routing, probs_in=router)
        result = result if wide is None else ggml.mul_mat(wide, result)
        return ggml.add(result, shared_expert(layer, cur, act=self.act))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plamo2(Hybrid):
    """PLaMo 2: post norms, whose names have no .weight suffix."""

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        if layer.facts.is_recr:
            return self.recur(build, layer, shared, cur)
        q, k, v = qkv(build, layer, cur)
        q, k = self.norm_qk(layer, q, k)
        q, k = ggml.rope(q, shared.pos), ggml.rope(k, shared.pos)
        return attend(build, layer, shared.attn, q, k, v)

    def after_attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        cur = normalize(cur, layer.required("post_attention_norm"), layer=layer.index)
        stream = ggml.add(cur, stream)
        cur = self.normalized(layer, stream, "ffn_norm")
        cur = self.feed_forward(build, layer, shared, cur)
        cur = normalize(cur, layer.required("post_ffw_norm"), layer=layer.index)
        return ggml.add(cur, stream)


def input_lfm2(build: Build) -> AttnInput:
    """build_inp_mem_hybrid, or build_inp_mem_hybrid_iswa, which has no rotations."""
    if build.hparams.has_swa:
        return input_kv_iswa(build, rotate=False)
    if build.hparams.arch == "lfm2" and build.hparams.integer("attention.sliding_window", 0):
        raise NoGraphError(
            "LFM 2 with a window"
        )  # the geometry does not state which layers have it
    return input_kv(build)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(Hybrid):
    def head(self, build: Build, cur: GraphTensor) -> None:
        cur = normalize(cur, build["token_embd_norm"])
        build.embd = cur
        build.output(cur)
        if not build.options.embeddings:
            cur = logits(build, cur)
            build.output(cur)
        build.expand(cur)
