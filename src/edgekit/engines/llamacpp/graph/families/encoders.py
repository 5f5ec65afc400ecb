"""Encoders: no cache; all tokens of a batch attend to each other; the last hidden states are the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import input_no_cache
from edgekit.engines.llamacpp.graph.build import Act, AttnInput, Build, GraphLayer, Routing
from edgekit.engines.llamacpp.graph.families.dense import Diffusion
from edgekit.engines.llamacpp.graph.families.transformer import no_layer
from edgekit.engines.llamacpp.graph.layers import Norm, experts, feed_forward, normalize
from edgekit.engines.llamacpp.graph.tensor import GraphTensor


def input_encoder(build: Build) -> AttnInput:
    return input_no_cache(build, swa=build.hparams.has_swa)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreNormEncoder(Diffusion):
    """Encoders with norms before attention and feed-forward."""

    attn_input: Callable[[Build], AttnInput] = input_encoder
    last_norm: str | None = "output_norm"

    def head(self, build: Build, cur: GraphTensor) -> None:
        if self.last_norm is not None:
            cur = normalize(cur, build[self.last_norm], kind=self.norm)
        build.output_embd(cur)
        build.expand(cur)


def plain_ffn(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    return feed_forward(layer, cur, gated=False)


def bare_ffn(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """A gated feed-forward; biases are loaded but not added."""
    up = ggml.mul_mat(layer["ffn_up"], cur)
    cur = ggml.glu(ggml.mul_mat(layer["ffn_gate"], cur), up)
    return ggml.mul_mat(layer["ffn_down"], cur)


def jina_ffn(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """Up and gate are two matrices or one; there may be no gate."""
    width = layer.hparams.integer("feed_forward_length")
    fused = "ffn_gate" not in layer and layer["ffn_up"].ne[1] != width
    return feed_forward(layer, cur, act=Act.FUSED if fused else Act.UNARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bert(PreNormEncoder):
    """BERT: norms after attention and feed-forward."""

    norm: Norm = Norm.LAYER
    norm_across_heads: bool = True
    last_norm: str | None = None
    dense: Callable[[GraphLayer, GraphTensor], GraphTensor] = plain_ffn
    positions: bool = False  # learned position embeddings are added

    def embed(self, build: Build) -> GraphTensor:
        cur = build.input_embd()
        if (types := build.weight("token_types")) is not None:
            cur = ggml.add(cur, ggml.view(types, build.hparams.n_embd))
        if self.positions:
            cur = ggml.add(ggml.get_rows(build["position_embd"], build.inputs.pos), cur)
        return self.norm_embd(build, cur)

    def after_attention(
        self, layer: GraphLayer, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        cur = self.apply_norm(layer, ggml.add(cur, stream), "attn_output_norm")
        if "attn_norm_2" in layer:
            cur = self.apply_norm(layer, ggml.add(cur, stream), "attn_norm_2")
        cur = ggml.add(self.feed_forward(layer, cur), cur)
        return self.apply_norm(layer, cur, "layer_output_norm")

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        if "ffn_gate_inp" in layer:
            return experts(layer, cur)
        return self.dense(layer, cur)


ENCODERS: Mapping[str, PreNormEncoder] = {
    "bert": Bert(rope=no_layer, positions=True),
    "nomic-bert": Bert(dense=bare_ffn),
    "nomic-bert-moe": Bert(routing=lambda _hparams: Routing(norm_w=False)),
    "jina-bert-v2": Bert(rope=no_layer, dense=jina_ffn),
    "jina-bert-v3": Bert(),
    "modern-bert": PreNormEncoder(norm=Norm.LAYER, embd_norm=True, act=Act.FUSED, gated=False),
    "neo-bert": PreNormEncoder(act=Act.FUSED, gated=False, last_norm="enc.output_norm"),
    "eurobert": PreNormEncoder(),
    "llama-embed": PreNormEncoder(attn_input=input_no_cache),
    "gemma-embedding": PreNormEncoder(scaled_embd=True, scaled_q=True, post_norms=True),
}
