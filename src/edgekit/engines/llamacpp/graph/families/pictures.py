"""TABLE of decoders that see pictures: four positions for each token, and embeddings that enter at several layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.transformer import MROPE_SECTIONS, Transformer
from edgekit.engines.llamacpp.graph.llama.attention import input_kv
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams


def sections(_hparams: Hparams) -> int:
    return MROPE_SECTIONS


def deepstack(hparams: Hparams) -> int:
    return hparams.whole("n_deepstack_layers", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepStack(Transformer):
    """What the picture's encoder saw at several depths is added behind the first layers."""

    def more(self, hparams: Hparams, il: int) -> bool:
        return il < deepstack(hparams)

    def rotates(self, _layer: GraphLayer) -> bool:
        return True

    def build(self, build: Build) -> None:
        n_embd, depths = build.hparams.n_embd, deepstack(build.hparams)
        given = cur = build.input_embd(width=n_embd * (1 + depths) if depths else None)
        shared = self.shared(build)
        for layer in build.layers():
            cur = self.block(build, layer, shared, cur)
            if layer.facts.more is True:
                seen = ggml.view(given, n_embd, build.n_tokens, strides=(given.nb[1],))
                cur = ggml.add(cur, seen)
        self.head(build, cur)


PICTURES: Mapping[str, Transformer] = {
    "qwen2vl": Transformer(attn_input=input_kv, n_pos=sections),
    "qwen3vl": DeepStack(attn_input=input_kv, n_pos=sections),
}
