"""Gemma 3n: four streams of which one is worked on and the others are predicted and corrected (AltUp)."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.heads import results
from edgekit.engines.llamacpp.graph.families.per_layer import (
    attended,
    per_layer_inputs,
    projected,
    slice_2d,
)
from edgekit.engines.llamacpp.graph.families.transformer import Shared, Transformer
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.llama.matrices import normalize
from edgekit.engines.llamacpp.graph.llama.qkv import qkv
from edgekit.engines.llamacpp.graph.tensor import GraphTensor

# llama-hparams.h and models.h @ 0c1e570: n_altup, n_embd_altup, n_layer_sparsity
STREAMS = 4
PER_LAYER = 256
SPARSE_LAYERS = 10


def sparse(_hparams: Hparams, il: int) -> bool:
    return il < SPARSE_LAYERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3n(Transformer):
    """`layer.facts.more`: the gate keeps only its largest numbers."""

    def more(self, hparams: Hparams, il: int) -> bool:
        return sparse(hparams, il)

    def build(self, build: Build) -> None:
        cur = build.scaled_embd(build.input_embd())
        shared = self.shared(build)
        per_layer = per_layer_inputs(build, cur, PER_LAYER)
        streams = _spread(build, cur)
        for layer in build.layers():
            streams = self.streams_after(build, layer, shared, streams, per_layer)
        cur = ggml.get_rows(_gathered(build, streams), shared.out_ids)
        results(build, normalize(cur, build["output_norm"]), softcap=True)

    def streams_after(
        self,
        build: Build,
        layer: GraphLayer,
        shared: Shared,
        streams: GraphTensor,
        per_layer: GraphTensor,
    ) -> GraphTensor:
        predicted = _predicted(build, layer, streams)
        active = slice_2d(predicted)
        cur = self.worked(build, layer, shared, active)
        corrected = _corrected(build, layer, predicted, cur)
        first = ggml.mul(slice_2d(corrected), layer["altup_correct_scale"])
        first = ggml.unary(ggml.mul_mat(layer["inp_gate"], first))
        first = ggml.mul_mat(layer["proj"], ggml.mul(first, slice_2d(per_layer)))
        first = self.normalized(layer, first, "post_norm")
        kept = slice_2d(corrected)
        return ggml.concat(kept, ggml.add(_rest(corrected), first), 2)

    def worked(
        self, build: Build, layer: GraphLayer, shared: Shared, active: GraphTensor
    ) -> GraphTensor:
        """What an ordinary layer does, with a low-rank path beside attention (LAuReL)."""
        normed = self.normalized(layer, active, "attn_norm")
        laurel = ggml.mul_mat(layer["laurel_r"], ggml.mul_mat(layer["laurel_l"], normed))
        laurel = ggml.add(self.normalized(layer, laurel, "laurel_post_norm"), normed)
        split = qkv if layer.facts.has_kv else projected
        cur = attended(build, layer, shared, split(build, layer, normed), None)
        cur = ggml.add(self.normalized(layer, cur, "post_attention_norm"), active)
        stream = ggml.scale(ggml.add(cur, laurel))
        cur = _fed_forward(layer, self.normalized(layer, stream, "ffn_norm"))
        return ggml.add(normalize(cur, layer["post_ffw_norm"]), stream)


def _fed_forward(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    up = ggml.mul_mat(layer["ffn_up"], cur)
    gate = ggml.mul_mat(layer["ffn_gate"], cur)
    if layer.facts.more is True:
        gate = _largest(gate)
    return ggml.mul_mat(layer["ffn_down"], ggml.mul(up, ggml.unary(gate)))


def _magnitude(cur: GraphTensor) -> GraphTensor:
    return ggml.sqrt(ggml.sum_rows(ggml.sqr(cur)))


def _as_large(cur: GraphTensor, magnitude: GraphTensor) -> GraphTensor:
    own = _magnitude(cur)
    return ggml.div(ggml.mul(cur, magnitude), own)


def _spread(build: Build, cur: GraphTensor) -> GraphTensor:
    """One stream -> all of them, equally large."""
    magnitude = _magnitude(cur)
    others = ggml.repeat(cur, *cur.ne[:2], STREAMS - 1, 1)
    others = ggml.mul_mat(build["altup_proj"], others)
    return ggml.concat(cur, _as_large(others, magnitude), 2)


def _gathered(build: Build, streams: GraphTensor) -> GraphTensor:
    magnitude = _magnitude(slice_2d(streams))
    others = ggml.mul_mat(build["altup_unembd_proj"], _rest(streams))
    others = _as_large(others, magnitude)
    cur = slice_2d(streams)
    for _ in range(STREAMS - 1):
        cur = ggml.add(cur, slice_2d(others))
    return ggml.scale(cur)


def _rest(streams: GraphTensor) -> GraphTensor:
    """All but the first."""
    return ggml.view(streams, *streams.ne[:2], STREAMS - 1, strides=streams.nb[1:3])


def _modalities(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    cur = normalize(cur, layer["altup_router_norm"], layer=layer.index)
    return ggml.unary(ggml.mul_mat(layer["altup_router"], ggml.scale(cur)))


def _predicted(build: Build, layer: GraphLayer, streams: GraphTensor) -> GraphTensor:
    modalities = _modalities(layer, slice_2d(streams))
    factors = ggml.mul_mat(layer["altup_predict_coef"], modalities)
    factors = ggml.reshape(factors, STREAMS, STREAMS, build.n_tokens)
    turned = ggml.cont(ggml.permute(streams, 1, 2, 0, 3))
    predicted = ggml.mul_mat(turned, factors)
    return ggml.add(ggml.cont(ggml.permute(predicted, 0, 2, 1, 3)), streams)


def _corrected(
    build: Build, layer: GraphLayer, predicted: GraphTensor, cur: GraphTensor
) -> GraphTensor:
    modalities = _modalities(layer, cur)
    news = ggml.sub(cur, slice_2d(predicted))
    factors = ggml.scale(ggml.mul_mat(layer["altup_correct_coef"], modalities))
    factors = ggml.cont(ggml.transpose(factors), 1, build.n_tokens, STREAMS)
    news = ggml.repeat(news, *cur.ne[:2], STREAMS, 1)
    return ggml.add(ggml.mul(news, factors), predicted)


def _largest(cur: GraphTensor) -> GraphTensor:
    """gaussian_topk: numbers below a quantile of their row become zero."""
    mean = ggml.mean(cur)
    spread = ggml.scale(ggml.sum_rows(ggml.sqr(ggml.sub(cur, mean))))
    cutoff = ggml.add(mean, ggml.scale(ggml.sqrt(spread)))
    return ggml.unary(ggml.sub(cur, cutoff))
