"""TABLE of further dense decoders, and the arrangements that only one of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.dense import Diffusion
from edgekit.engines.llamacpp.graph.families.latent import Latent
from edgekit.engines.llamacpp.graph.families.transformer import (
    Shared,
    Transformer,
    attention_then_stream,
    no_layer,
)
from edgekit.engines.llamacpp.graph.llama.attention import attend, input_kv, input_no_cache
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.feed_forward import Act, feed_forward
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.llama.matrices import Norm, normalize
from edgekit.engines.llamacpp.graph.llama.qkv import qkv
from edgekit.engines.llamacpp.graph.tensor import GraphTensor
from edgekit.errors import RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Olmo(Transformer):
    """Its norms have no weights."""

    def normalized(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        if name in {"attn_norm", "ffn_norm"}:
            return normalize(cur, None, kind=self.norm, layer=layer.index)
        return Transformer.normalized(self, layer, cur, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StableLm(Transformer):
    """A feed-forward without a norm of its own sees that of attention."""

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        normed = self.normalized(layer, stream, "attn_norm")
        cur = self.attention(build, layer, shared, normed)
        if layer.facts.is_last:
            cur, stream, normed = (
                ggml.get_rows(one, shared.out_ids) for one in (cur, stream, normed)
            )
        stream = ggml.add(cur, stream)
        has_own = "ffn_norm" in layer
        cur = self.normalized(layer, stream, "ffn_norm") if has_own else normed
        return ggml.add(self.feed_forward(build, layer, shared, cur), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpt(Transformer):
    """Queries and keys are normalised across heads, what is activated may be divided by scales."""

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        q, k, v = qkv(build, layer, cur)
        if "attn_q_norm" in layer:
            if not build.graph.is_contiguous(q):
                raise RefusedError("llama.cpp aborts: MPT with query and key norms")
            q, k = self.across_heads(layer, q, "q"), self.across_heads(layer, k, "k")
        return attend(build, layer, shared.attn, q, k, v)

    def across_heads(self, layer: GraphLayer, cur: GraphTensor, side: str) -> GraphTensor:
        width, heads, tokens, _ = cur.ne
        flat = ggml.reshape(cur, width * heads, tokens)
        flat = self.normalized(layer, flat, f"attn_{side}_norm")
        return ggml.reshape(flat, width, heads, tokens)

    def feed_forward(
        self, _build: Build, layer: GraphLayer, _shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        return feed_forward(layer, cur, gated=False, scales=layer.tensor("ffn_act.scales"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nanbeige(Transformer):
    """Its blocks may be run through several times; between two rounds stands the last norm."""

    def more(self, hparams: Hparams, il: int) -> tuple[bool, int]:
        """Whether a round ends with it. Weights that are used again set all layers apart."""
        ends = (il + 1) % hparams.n_block == 0 and il + 1 < hparams.n_layer
        normed = ends and not hparams.flag("skip_loop_final_norm")
        return normed, il if hparams.n_block < hparams.n_layer else 0

    def rotates(self, _layer: GraphLayer) -> bool:
        return True

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        cur = Transformer.block(self, build, layer, shared, stream)
        normed, _ = self.more(build.hparams, layer.index)
        return normalize(cur, build["output_norm"], layer=layer.index) if normed else cur


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenElm(Transformer):
    """One product is cut into heads, and those into queries, keys and values."""

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        facts, tokens = layer.facts, build.n_tokens
        width, counts = facts.n_embd_head_k, (facts.n_head, facts.n_head_kv, facts.n_head_kv)
        cur = ggml.mul_mat(layer["attn_qkv"], cur)
        cur = ggml.reshape(cur, width, sum(counts), tokens)
        q, k, v = (ggml.view(cur, width, one, tokens, strides=cur.nb[1:3]) for one in counts)
        q, k = self.normalized(layer, q, "attn_q_norm"), self.normalized(layer, k, "attn_k_norm")
        q, k = self.rotated(build, layer, shared, q, k)
        return attend(build, layer, shared.attn, q, k, v)

    def after_attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        stream = ggml.add(stream, cur)
        cur = self.normalized(layer, stream, "ffn_norm")
        return ggml.add(self.feed_forward(build, layer, shared, cur), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plamo3(Transformer):
    """The names of its post norms end without .weight."""

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        return normalize(cur, layer.need(name), layer=layer.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plm(Latent):
    """Hands over its values in two dimensions: llama.cpp takes all tokens for one."""

    def build(self, build: Build) -> None:
        if build.options.flash_attn and build.n_tokens != 1:
            raise RefusedError("llama.cpp aborts: PLM works only without flash attention (-fa off)")
        Latent.build(self, build)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaEmbedder(Diffusion):
    """Llama without logits: the last states are the result."""

    def head(self, build: Build, cur: GraphTensor) -> None:
        cur = normalize(cur, build["output_norm"])
        build.embd = cur
        build.output(cur)
        build.expand(cur)


def attention_first(result: GraphTensor, stream: GraphTensor, attended: GraphTensor) -> GraphTensor:
    return ggml.add(ggml.add(attended, result), stream)


DECODERS: Mapping[str, Transformer] = {
    "jais": Transformer(attn_input=input_kv, norm=Norm.LAYER, rope=no_layer),
    "llama-embed": LlamaEmbedder(attn_input=input_no_cache),
    "minicpm": Transformer(
        attn_input=input_kv,
        scaled_embd=True,
        residual_scale=lambda hparams: hparams.real("residual_scale", 1.0) != 0,
        logit_scale=lambda _hparams: True,
    ),
    "mistral3": Transformer(
        attn_input=input_kv,
        temperature=lambda hparams: bool(hparams.real("attention.temperature_scale")),
    ),
    "mpt": Mpt(attn_input=input_kv, norm=Norm.LAYER, positions_added=True),
    "nanbeige": Nanbeige(attn_input=input_kv),
    "nemotron": Transformer(attn_input=input_kv, norm=Norm.LAYER, act=Act.SQUARED, gated=False),
    "olmo": Olmo(attn_input=input_kv, norm=Norm.LAYER),
    "openelm": OpenElm(attn_input=input_kv),
    "orion": Transformer(attn_input=input_kv, norm=Norm.LAYER),
    "phi2": Transformer(
        attn_input=input_kv,
        norm=Norm.LAYER,
        scaled_q=True,
        parallel=True,
        parallel_sum=attention_first,
        gated=False,
    ),
    "plamo": Transformer(attn_input=input_kv, parallel=True, parallel_sum=attention_then_stream),
    "plamo3": Plamo3(act=Act.FUSED, gated=False),
    "plm": Plm(attn_input=input_kv, act=Act.SQUARED, gated=False),
    "refact": Transformer(attn_input=input_kv, rope=no_layer),
    "seed_oss": Transformer(attn_input=input_kv, ffn_norm="post_attention_norm"),
    "stablelm": StableLm(attn_input=input_kv, norm=Norm.LAYER),
}
