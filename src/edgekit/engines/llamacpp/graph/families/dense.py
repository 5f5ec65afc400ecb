"""TABLE of dense decoders, and those of them that are built differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.granite import Granite, as_stated, if_trained
from edgekit.engines.llamacpp.graph.families.hybrid import residual_scale
from edgekit.engines.llamacpp.graph.families.transformer import (
    QKV,
    Shared,
    Transformer,
    no_layer,
    sections_if_stated,
)
from edgekit.engines.llamacpp.graph.llama.attention import (
    attend,
    attend_now,
    input_kv,
    input_kv_iswa,
    input_no_cache,
)
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.feed_forward import Act, feed_forward
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.llama.matrices import Norm, normalize, project
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor, shape


def always(_hparams: Hparams) -> bool:
    return True


def baichuan_rope(hparams: Hparams, _il: int) -> bool:
    """The 13B model has no positions but biases by distance; it is told by its layers (baichuan.cpp)."""
    return hparams.n_layer == 32


def where_it_slides(hparams: Hparams, il: int) -> bool:
    return hparams.swa[il] or not hparams.has_swa


@dataclass(frozen=True, slots=True, kw_only=True)
class Bloom(Transformer):
    """Embeddings are normalised before the first layer."""

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        shared = self.shared(build)
        bias = build.tensor("token_embd_norm.bias")
        cur = normalize(cur, build["token_embd_norm"], bias, kind=self.norm, layer=0)
        for layer in build.layers():
            cur = self.block(build, layer, shared, cur)
        self.head(build, cur)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeShell(Transformer):
    """Old files have one matrix for embeddings and logits, and call it output."""

    def build(self, build: Build) -> None:
        cur = build.input_embd(table=build.weight("token_embd") or build["output"])
        shared = self.shared(build)
        for layer in build.layers():
            cur = self.block(build, layer, shared, cur)
        self.head(build, cur)


@dataclass(frozen=True, slots=True, kw_only=True)
class Falcon(Transformer):
    """Attention may have a norm of its own beside that of the feed-forward."""

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        normed = self.normalized(layer, stream, "attn_norm")
        own = "attn_norm_2" in layer
        cur = self.normalized(layer, stream, "attn_norm_2") if own else normed
        cur = self.attention(build, layer, shared, cur)
        if layer.facts.is_last:
            cur, stream, normed = (
                ggml.get_rows(one, shared.out_ids) for one in (cur, stream, normed)
            )
        return ggml.add(ggml.add(self.feed_forward(build, layer, shared, normed), cur), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptNeoX(Transformer):
    """The feed-forward sees what attention saw, but normalised on its own, where the file says so."""

    def after_attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        if not build.hparams.flag("use_parallel_residual"):
            return Transformer.after_attention(self, build, layer, shared, cur, stream)
        result = self.normalized(layer, stream, "ffn_norm")
        result = self.feed_forward(build, layer, shared, result)
        return ggml.add(ggml.add(result, stream), cur)


@dataclass(frozen=True, slots=True, kw_only=True)
class BitNet(Transformer):
    """Norms before the last matrices of attention and feed-forward."""

    def attended(
        self, build: Build, layer: GraphLayer, shared: Shared, _cur: GraphTensor, heads: QKV
    ) -> GraphTensor:
        cur = attend(build, layer, shared.attn, *heads, output=None)
        cur = self.normalized(layer, cur, "attn_sub_norm")
        cur = project(layer["attn_output"], cur, scale=layer.scale("attn_output"))
        bias = layer.bias("attn_output")
        return cur if bias is None else ggml.add(cur, bias)

    def feed_forward(
        self,
        build: Build,  # noqa: ARG002
        layer: GraphLayer,
        shared: Shared,  # noqa: ARG002
        cur: GraphTensor,
    ) -> GraphTensor:
        up, gate = (
            project(layer[name], cur, scale=layer.scale(name)) for name in ("ffn_up", "ffn_gate")
        )
        cur = self.normalized(layer, ggml.glu(gate, up), "ffn_sub_norm")
        return project(layer["ffn_down"], cur, scale=layer.scale("ffn_down"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deci(Transformer):
    """Layers may lack attention, or have a matrix in its place, or lack the feed-forward."""

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        heads = layer.facts.n_head
        cur = self.normalized(layer, stream, "attn_norm") if heads else stream
        cur = self.attention(build, layer, shared, cur) if heads else cur
        before = stream
        if layer.facts.is_last:
            cur, stream = (ggml.get_rows(one, shared.out_ids) for one in (cur, stream))
        if "ffn_norm" not in layer:
            return before  # deci.cpp goes on to the next layer: what attention gave is lost
        stream = ggml.add(cur, stream) if heads else cur
        cur = self.normalized(layer, stream, "ffn_norm")
        return ggml.add(self.feed_forward(build, layer, shared, cur), stream)

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        if not layer.facts.n_head_kv:
            return ggml.mul_mat(layer["attn_output"], cur)
        return Transformer.attention(self, build, layer, shared, cur)


PICTURE_TOKENS = 8192  # chameleon.cpp: their logits are put out of reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Chameleon(Transformer):
    """The norm of queries and keys is another than that of layers, which stands behind them in the 34B model."""

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        swin = build.hparams.flag("swin_norm")
        cur = stream if swin else self.normalized(layer, stream, "attn_norm")
        cur = self.attention(build, layer, shared, cur)
        if layer.facts.is_last:
            cur, stream = (ggml.get_rows(one, shared.out_ids) for one in (cur, stream))
        cur = self.normalized(layer, cur, "attn_norm") if swin else cur
        stream = ggml.add(cur, stream)
        cur = cur if swin else self.normalized(layer, stream, "ffn_norm")
        cur = feed_forward(layer, cur)
        cur = self.normalized(layer, cur, "ffn_norm") if swin else cur
        return ggml.add(cur, stream)

    def normalized(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        heads = name in {"attn_q_norm", "attn_k_norm"}
        kind = Norm.LAYER if heads else self.norm
        return normalize(cur, layer[name], layer.bias(name), kind=kind, layer=layer.index)

    def head(self, build: Build, cur: GraphTensor) -> None:
        cur = normalize(cur, build["output_norm"])
        build.embd = cur
        build.output(cur)
        cur = project(build.weight("output") or build["token_embd"], cur)
        out_of_reach = ggml.clamp(ggml.new("NONE", F32, shape(PICTURE_TOKENS)))
        cur = ggml.new("SET", cur.type, cur.ne, cur, out_of_reach)
        build.output(cur)
        build.expand(cur)


@dataclass(frozen=True, slots=True, kw_only=True)
class CogVlm(Transformer):
    """Every token has its logits: no rows are chosen."""

    def crops(self, _build: Build) -> bool:
        return False

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        shared = self.shared(build)
        for layer in build.layers():
            cur = self.block(build, layer, shared, cur)
        self.head(build, cur)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diffusion(Transformer):
    """No cache: all tokens of a batch see each other."""

    def attended(
        self, build: Build, layer: GraphLayer, shared: Shared, _cur: GraphTensor, heads: QKV
    ) -> GraphTensor:
        return attend_now(build, layer, shared.attn, *heads)


DENSE: Mapping[str, Transformer] = {
    "apertus": Transformer(attn_input=input_kv, gated=False),
    "arcee": Transformer(attn_input=input_kv, act=Act.SQUARED, gated=False),
    "baichuan": Transformer(attn_input=input_kv, rope=baichuan_rope),
    "bitnet": BitNet(attn_input=input_kv),
    "bloom": Bloom(attn_input=input_kv, norm=Norm.LAYER, rope=no_layer, gated=False),
    "chameleon": Chameleon(attn_input=input_kv),
    "chatglm": Transformer(attn_input=input_kv, act=Act.FUSED, gated=False),
    "codeshell": CodeShell(attn_input=input_kv, norm=Norm.LAYER, gated=False),
    "cogvlm": CogVlm(attn_input=input_kv),
    "deci": Deci(attn_input=input_kv),
    "dream": Diffusion(attn_input=input_no_cache),
    "exaone4": Transformer(rope=where_it_slides, post_norms=True, ffn_norm=None),
    "falcon": Falcon(attn_input=input_kv, norm=Norm.LAYER, gated=False),
    "gemma": Transformer(attn_input=input_kv, scaled_embd=True, scaled_q=True),
    "gpt2": Transformer(
        attn_input=input_kv, norm=Norm.LAYER, positions_added=True, rope=no_layer, gated=False
    ),
    "gptneox": GptNeoX(attn_input=input_kv, norm=Norm.LAYER, gated=False),
    "granite": Granite(
        attn_input=input_kv, rope=if_trained, residual_scale=residual_scale, logit_scale=always
    ),
    "granitemoe": Granite(
        attn_input=input_kv, pictures=False, residual_scale=residual_scale, logit_scale=always
    ),
    "granite_swa": Granite(
        attn_input=input_kv_iswa,
        rope=as_stated,
        fused_shared=True,
        residual_scale=residual_scale,
        logit_scale=always,
    ),
    "hunyuan-dense": Transformer(attn_input=input_kv, late_qk_norm=True),
    "hunyuan_vl": Transformer(attn_input=input_kv, n_pos=sections_if_stated, late_qk_norm=True),
}
