"""Granite Switch: adapters for every matrix, which the tokens themselves switch on.

A router, one head of attention after the last layer, finds the adapter that was switched on last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.families.transformer import (
    Transformer,
    always,
    nonzero,
    trained_rope,
)
from edgekit.engines.llamacpp.graph.layers import QKV, split_heads
from edgekit.engines.llamacpp.graph.tensor import F32, I32, GraphTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteSwitch(Transformer):
    adapters: tuple[GraphTensor, ...] = ()  # that of each token, while a graph is built

    def build(self, build: Build) -> None:
        tokens = build.n_tokens
        ids = ggml.graph_input(I32, tokens, name="sub_tokens")
        signals = [
            ggml.graph_input(F32, tokens, name=f"router_{side}") for side in ("q", "ksig", "vval")
        ]
        cur = ggml.get_rows(build["token_embd"], ids)
        if build.hparams.real("embedding_scale"):
            cur = ggml.scale(cur)
        build.inputs = self.layer_inputs(build)
        adapters = _route(build, signals)
        for layer in build.layers():
            family = replace(self, adapters=(adapters,))
            stream = cur
            cur = family.attention(layer, self.apply_norm(layer, stream, "attn_norm"))
            if layer.facts.is_last:
                out_ids = build.inputs.out_ids
                cur, stream = ggml.get_rows(cur, out_ids), ggml.get_rows(stream, out_ids)
                rows = ggml.get_rows(ggml.reshape(adapters, 1, adapters.ne[0]), out_ids)
                family = replace(self, adapters=(ggml.reshape(rows, out_ids.ne[0]),))
            cur = family.after_attention(layer, cur, stream)
        self.head(build, cur)

    def qkv(self, layer: GraphLayer, cur: GraphTensor) -> QKV:
        facts, tokens = layer.facts, layer.build.n_tokens
        fused = ggml.mul_mat(layer["attn_qkv"], cur)
        q, k, v = (
            ggml.add(
                ggml.cont(ggml.view(fused, width * heads, tokens, strides=(fused.nb[1],))),
                self.adapt(layer, f"attn_{side}", cur),
            )
            for side, width, heads in (
                ("q", facts.n_embd_head_k, facts.n_head),
                ("k", facts.n_embd_head_k, facts.n_head_kv),
                ("v", facts.n_embd_head_v, facts.n_head_kv),
            )
        )
        return split_heads(layer, (q, k, v))

    def attend(self, layer: GraphLayer, _cur: GraphTensor, heads: QKV) -> GraphTensor:
        return self.project(layer, "attn_output", attend(layer, *heads, project=False))

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        gate, up = (self.project(layer, name, cur) for name in ("ffn_gate", "ffn_up"))
        return self.project(layer, "ffn_down", ggml.mul(ggml.unary(gate), up))

    def project(self, layer: GraphLayer, name: str, cur: GraphTensor) -> GraphTensor:
        """build_switched_lora_mm: a product, plus what the token's adapter adds."""
        return ggml.add(ggml.mul_mat(layer[name], cur), self.adapt(layer, name, cur))

    def adapt(self, layer: GraphLayer, name: str, cur: GraphTensor) -> GraphTensor:
        """build_switched_lora_delta: what the token's adapter adds to a product."""
        (adapters,) = self.adapters
        width, tokens, *_ = cur.ne
        ids = ggml.reshape(adapters, 1, tokens)
        cur = ggml.reshape(cur, width, 1, tokens)
        for side in ("lora_a", "lora_b"):
            cur = ggml.mul_mat_id(layer.required(f"{name}.{side}"), cur, ids)
        return ggml.reshape(cur, cur.ne[0], tokens)


def _route(build: Build, signals: list[GraphTensor]) -> GraphTensor:
    """The adapter of each token, from the attention of one head to the signals of the tokens before."""
    hparams, tokens = build.hparams, build.n_tokens
    facts = replace(build.facts[0], n_head=1, n_head_kv=1, shapes=())
    router = GraphLayer(build, hparams.n_layer, facts)
    q, k, v = (
        ggml.pad(ggml.reshape(signal, 1, 1, tokens), hparams.n_embd_head_k_full - 1)
        for signal in signals
    )
    slots = attend(router, q, k, v, project=False)
    slots = ggml.cont(ggml.view(slots, 1, tokens, strides=(slots.nb[1],)))
    slots = ggml.unary(ggml.clamp(ggml.reshape(slots, tokens)))
    return ggml.cast(slots, I32)


SWITCHED: Mapping[str, Transformer] = {
    "graniteswitch": GraniteSwitch(
        rope=trained_rope, residual_scale=nonzero("residual_scale"), logit_scale=always
    ),
}
