"""Hybrid models such as LFM 2: some layers use attention, others are recurrent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import AttnInput, attend, input_kv, input_kv_iswa
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.transformer import Transformer
from edgekit.engines.llamacpp.graph.layers import (
    experts,
    feed_forward,
    logits,
    normalize,
    qkv,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, NoGraphError

Mixer = Callable[[GraphLayer, GraphTensor], GraphTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(Transformer):
    """`mixer` builds the recurrent layers."""

    mixer: Mixer

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        if layer.facts.is_recr:
            return self.mixer(layer, cur)
        return self.full_attention(layer, cur)

    def full_attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        """Layers that are not recurrent."""
        return Transformer.attention(self, layer, cur)


class RecurrentOnly(Hybrid):
    """Mamba: layers without a feed-forward."""

    def after_attention(
        self, _layer: GraphLayer, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        return ggml.add(cur, stream)


class SideBySide(Hybrid):
    """Falcon H1: every layer has attention and a recurrent part, whose outputs are added."""

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        normed = self.apply_norm(layer, stream, "attn_norm")
        attended = Transformer.attention(self, layer, normed)
        normed = self.apply_norm(layer, stream, "attn_norm")  # computed twice
        recurrent = self.mixer(layer, normed)
        stream = ggml.add(ggml.add(attended, recurrent), stream)
        (stream,) = self.output_rows(layer, stream)
        cur = normalize(stream, layer.required("ffn_norm"))  # not ffn_norm.weight
        return ggml.add(self.feed_forward(layer, cur), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEach(Hybrid):
    """Nemotron H: each layer is either attention, recurrent or a feed-forward. `layer.facts.variant`: it is a
    feed-forward.
    """

    def variant(self, hparams: Hparams, il: int) -> bool:
        return hparams.per_layer("feed_forward_length", 0)[il] != 0

    norm_first: bool = True

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        cur = self.apply_norm(layer, stream, "attn_norm")
        sublayer = self.feed_forward if layer.facts.variant is True else self.attention
        cur = sublayer(layer, cur)
        cur, stream = self.output_rows(layer, cur, stream)
        return ggml.add(cur, stream)

    def full_attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return attend(layer, *qkv(layer, cur))

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        """Experts may have their own input width; the router uses the hidden width."""
        if "ffn_gate_inp" not in layer:
            return feed_forward(layer, cur, act=self.act, gated=False)
        narrow, wide = layer.weight("ffn_latent_down"), layer.weight("ffn_latent_up")
        latent = cur if narrow is None else ggml.mul_mat(narrow, cur)
        router = ggml.mul_mat(layer["ffn_gate_inp"], cur)
        result = experts(layer, latent, probs_in=router)
        result = result if wide is None else ggml.mul_mat(wide, result)
        return ggml.add(result, shared_expert(layer, cur, act=self.act))


class Plamo2(Hybrid):
    """PLaMo 2: post norms, whose names have no .weight suffix."""

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        return normalize(cur, layer.required(name))


def input_lfm2(build: Build) -> AttnInput:
    """build_inp_mem_hybrid, or build_inp_mem_hybrid_iswa, which has no rotations."""
    if build.hparams.has_swa:
        return input_kv_iswa(build, rotate=False)
    if build.hparams.arch == "lfm2" and build.hparams.integer("attention.sliding_window", 0):
        # The geometry does not state which layers have it.
        raise NoGraphError("LFM 2 with a window")
    return input_kv(build)


class ShortConvolution(Hybrid):
    def head(self, build: Build, cur: GraphTensor) -> None:
        cur = normalize(cur, build["token_embd_norm"])
        build.output_embd(cur)
        if not build.options.embeddings:
            cur = logits(build, cur)
            build.output(cur)
        build.expand(cur)
