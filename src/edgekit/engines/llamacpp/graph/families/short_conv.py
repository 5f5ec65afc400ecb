"""LFM 2: short convolutions beside attention, and no logits where embeddings are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines.llamacpp.graph.families.heads import logits
from edgekit.engines.llamacpp.graph.families.hybrid import Hybrid
from edgekit.engines.llamacpp.graph.llama.attention import AttnInput, input_kv, input_kv_iswa
from edgekit.engines.llamacpp.graph.llama.build import Build
from edgekit.engines.llamacpp.graph.llama.matrices import normalize
from edgekit.engines.llamacpp.graph.tensor import GraphTensor
from edgekit.engines.llamacpp.graph.types import NoGraphError


def input_lfm2(build: Build) -> AttnInput:
    """build_inp_mem_hybrid, or build_inp_mem_hybrid_iswa, which rotates nothing."""
    if build.hparams.has_swa:
        return input_kv_iswa(build, rotate=False)
    if build.hparams.arch == "lfm2" and build.hparams.whole("attention.sliding_window", 0):
        raise NoGraphError("LFM 2 with a window")  # the geometry does not tell its layers
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
