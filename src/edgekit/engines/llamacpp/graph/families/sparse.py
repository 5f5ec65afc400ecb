"""TABLE of decoders with experts, and those of them that are built differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.heads import results, rows_after_norm
from edgekit.engines.llamacpp.graph.families.transformer import (
    QKV,
    Shared,
    Transformer,
    not_each,
    sliding_layers,
    stated_routing,
)
from edgekit.engines.llamacpp.graph.llama.attention import attend, input_kv, input_kv_iswa
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.feed_forward import (
    Gating,
    Routing,
    experts,
    feed_forward,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.llama.matrices import Norm, project
from edgekit.engines.llamacpp.graph.tensor import F32, I32, GraphTensor


def soft_max_routing(hparams: Hparams) -> Routing:
    """Normalised and scaled as the file says."""
    return replace(stated_routing(hparams), gating=Gating.SOFTMAX)


def deepseek_routing(hparams: Hparams) -> Routing:
    return replace(soft_max_routing(hparams), norm_w=False)


def sigmoid_routing(hparams: Hparams) -> Routing:
    """Sigmoids, unless the file says otherwise."""
    return stated_routing(hparams, Gating.SIGMOID)


def slides_or_leads(hparams: Hparams, il: int) -> bool:
    return hparams.swa[il] or il < hparams.whole("leading_dense_block_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Afmoe(Transformer):
    """What the heads saw is gated; the norm behind attention comes before rows are chosen."""

    def attended(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor, heads: QKV
    ) -> GraphTensor:
        gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
        cur = ggml.mul(attend(build, layer, shared.attn, *heads, output=None), gate)
        cur = project(layer["attn_output"], cur, scale=layer.scale("attn_output"))
        return self.normalized(layer, cur, "post_attention_norm")

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        return self.normalized(layer, cur, name) if name == "post_ffw_norm" else cur


@dataclass(frozen=True, slots=True, kw_only=True)
class Arctic(Transformer):
    """Experts stand beside the whole layer: they see what attention saw."""

    def after_attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        after = ggml.add(cur, stream)
        dense = feed_forward(layer, self.normalized(layer, after, "ffn_norm"))
        cur = self.normalized(layer, stream, "ffn_norm_exps")
        cur = experts(build, layer, cur, shared.routing)
        return ggml.add(cur, ggml.add(dense, after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grok(Transformer):
    """Norms behind attention and feed-forward, and a dense feed-forward beside the experts."""

    def build(self, build: Build) -> None:
        cur = build.input_embd(scaled=bool(build.hparams.real("embedding_scale", 1.0)))
        shared = self.shared(build)
        for layer in build.layers():
            cur = self.block(build, layer, shared, cur)
        self.head(build, cur)

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        other = "layer_output_norm" if name == "post_ffw_norm" else "attn_output_norm"
        return self.normalized(layer, cur, other if other in layer else name)

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        result = experts(build, layer, cur, shared.routing)
        if "ffn_up" not in layer:
            return result
        return ggml.scale(ggml.add(feed_forward(layer, cur), result))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroveMoe(Transformer):
    """Experts in groups, and a smaller one for each group that sees what they gave."""

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        logits = ggml.mul_mat(layer["ffn_gate_inp"], cur)
        cur = experts(
            build, layer, cur, shared.routing, probs_in=logits, selected=_selected(layer, logits)
        )
        numbers = ggml.scale(ggml.cast(_selected(layer, logits), F32))
        added = experts(
            build,
            layer,
            cur,
            shared.routing,
            probs_in=logits,
            selected=ggml.cast(numbers, I32),
            suffix="_chexps",
        )
        return ggml.add(cur, ggml.scale(added))


def _selected(layer: GraphLayer, logits: GraphTensor) -> GraphTensor:
    """Weighed by a soft-max, but chosen by sigmoids."""
    return ggml.argsort_top_k(ggml.unary(logits), layer.facts.n_expert_used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicting(Transformer):
    """The last norm is a result for blocks that predict further tokens; 0.5 keeps all rows up to there."""

    predicts: bool = True

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        shared = self.shared(build)
        for layer in build.layers():
            cur = self.block(build, layer, shared, cur)
        cur = rows_after_norm(build, cur, shared.out_ids, kind=self.norm)
        results(build, cur, scale=self.logit_scale(build.hparams))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohere2Moe(Predicting):
    """Experts and the shared one are averaged."""

    def build(self, build: Build) -> None:
        rms = bool(build.hparams.real("attention.layer_norm_rms_epsilon"))
        Predicting.build(replace(self, norm=Norm.RMS if rms else Norm.LAYER), build)

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        if "ffn_up_shexp" not in layer:
            return Transformer.feed_forward(self, build, layer, shared, cur)
        result = experts(build, layer, cur, shared.routing)
        return ggml.scale(ggml.add(result, shared_expert(layer, cur)))


SPARSE: Mapping[str, Transformer] = {
    "afmoe": Afmoe(
        attn_input=input_kv_iswa, scaled_embd=True, rope=not_each(4), routing=sigmoid_routing
    ),
    "arctic": Arctic(attn_input=input_kv),
    "bailingmoe": Transformer(attn_input=input_kv, routing=soft_max_routing),
    "cohere2moe": Cohere2Moe(
        attn_input=input_kv_iswa,
        parallel=True,
        rope=slides_or_leads,
        routing=sigmoid_routing,
        logit_scale=lambda hparams: bool(hparams.real("logit_scale")),
    ),
    "dbrx": Transformer(attn_input=input_kv, norm=Norm.LAYER, ffn_norm="attn_output_norm"),
    "deepseek": Transformer(attn_input=input_kv, routing=deepseek_routing),
    "dots1": Transformer(attn_input=input_kv, routing=stated_routing),
    "exaone-moe": Transformer(
        attn_input=input_kv_iswa, rope=sliding_layers, routing=stated_routing
    ),
    "grok": Grok(
        attn_input=input_kv,
        softcap=1,
        logit_scale=lambda _hparams: True,
        logit_softcap=lambda hparams: bool(hparams.real("final_logit_softcapping")),
    ),
    "grovemoe": GroveMoe(attn_input=input_kv),
    "hy_v3": Predicting(attn_input=input_kv, routing=sigmoid_routing),
}
