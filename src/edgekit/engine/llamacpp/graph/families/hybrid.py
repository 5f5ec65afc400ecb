"""Models in which some layers attend and others carry a state: what stands around both kinds of layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgekit.engine.llamacpp.graph import ggml
from edgekit.engine.llamacpp.graph.families.transformer import Shared, Transformer, never
from edgekit.engine.llamacpp.graph.llama.build import Build, Layer
from edgekit.engine.llamacpp.graph.llama.hparams import Hparams
from edgekit.engine.llamacpp.graph.llama.matrices import normalize
from edgekit.engine.llamacpp.graph.llama.recurrent import StateInput, input_rs
from edgekit.engine.llamacpp.graph.tensor import Tensor

Mixer = Callable[[Build, Layer, StateInput, Tensor], Tensor]


def residual_scale(hparams: Hparams) -> bool:
    return bool(hparams.real("residual_scale"))


def logit_scale(hparams: Hparams) -> bool:
    return bool(hparams.real("logit_scale"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(Transformer):
    """`mixer` is what a recurrent layer does in place of attention."""

    mixer: Mixer
    residual_scale: Callable[[Hparams], bool] = never
    stream_first: bool = False  # results are added to the stream, not the stream to them

    def shared(self, build: Build) -> Shared:
        return replace(Transformer.shared(self, build), rs=input_rs(build))

    def attention(self, build: Build, layer: Layer, shared: Shared, cur: Tensor) -> Tensor:
        if layer.facts.is_recr:
            return self.recur(build, layer, shared, cur)
        return Transformer.attention(self, build, layer, shared, cur)

    def recur(self, build: Build, layer: Layer, shared: Shared, cur: Tensor) -> Tensor:
        assert shared.rs is not None, "shared() makes it"
        return self.mixer(build, layer, shared.rs, cur)

    def after_attention(
        self, build: Build, layer: Layer, shared: Shared, cur: Tensor, stream: Tensor
    ) -> Tensor:
        stream = self.joined(build, cur, stream)
        if self.ffn_norm is None:
            return stream
        cur = self.normalized(layer, stream, self.ffn_norm)
        cur = self.feed_forward(build, layer, shared, cur)
        return self.joined(build, cur, stream)

    def joined(self, build: Build, cur: Tensor, stream: Tensor) -> Tensor:
        if self.residual_scale(build.hparams):
            cur = ggml.scale(cur)
        return ggml.add(stream, cur) if self.stream_first else ggml.add(cur, stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide(Hybrid):
    """Falcon H1: every layer attends and carries a state, and both results are added up."""

    def block(self, build: Build, layer: Layer, shared: Shared, stream: Tensor) -> Tensor:
        normed = self.normalized(layer, stream, "attn_norm")
        attended = Transformer.attention(self, build, layer, shared, normed)
        normed = self.normalized(layer, stream, "attn_norm")  # computed twice
        carried = self.recur(build, layer, shared, normed)
        stream = ggml.add(ggml.add(attended, carried), stream)
        if layer.facts.is_last:
            stream = ggml.get_rows(stream, shared.out_ids)
        cur = normalize(stream, layer.need("ffn_norm"), layer=layer.index)  # not ffn_norm.weight
        return ggml.add(self.feed_forward(build, layer, shared, cur), stream)
