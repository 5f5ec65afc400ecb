"""Granite: numbers that scale embeddings, residuals and logits; pictures may enter below the first layers."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.transformer import Shared, Transformer
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.feed_forward import Act, experts, feed_forward
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.tensor import GraphTensor


def if_trained(hparams: Hparams, _il: int) -> bool:
    """rope.scaling.finetuned is said of models that were trained without positions at all."""
    return hparams.flag("rope.scaling.finetuned", default=True)


def as_stated(hparams: Hparams, il: int) -> bool:
    stated = hparams.key("attention.rope_pattern")
    return not isinstance(stated, tuple) or il >= len(stated) or bool(stated[il])


def deepstack(hparams: Hparams) -> tuple[int, ...]:
    """Which of the pictures' embeddings each layer adds; none where it is negative."""
    stated = hparams.key("deepstack_mapping")
    numbers = stated if isinstance(stated, tuple) else ()
    return tuple(one for one in numbers[: hparams.n_layer] if isinstance(one, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class Granite(Transformer):
    fused_shared: bool = False  # gate and up of the shared expert are halves of one matrix
    pictures: bool = True  # the loader reads deepstack_mapping

    def more(self, hparams: Hparams, il: int) -> tuple[bool, bool]:
        """Whether it rotates, and whether it adds embeddings of a picture."""
        mapping = deepstack(hparams) if self.pictures else ()
        return self.rope(hparams, il), 0 < il < len(mapping) and mapping[il] >= 0

    def build(self, build: Build) -> None:
        hparams = build.hparams
        count = len({one for one in deepstack(hparams) if one >= 0}) if self.pictures else 0
        width = hparams.n_embd * (1 + count) if count else None
        cur = build.input_embd(scaled=bool(hparams.real("embedding_scale")), width=width)
        shared = self.shared(build)
        for layer in build.layers():
            cur = self.block(build, layer, shared, self.with_picture(build, layer, cur))
        self.head(build, cur)

    def with_picture(self, build: Build, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        given, more = build.inp_embd, layer.facts.more
        if given is None or not isinstance(more, tuple) or not more[1]:
            return cur
        return ggml.add(cur, ggml.view(given, *given.ne[:2], strides=(given.nb[1],)))

    def rotates(self, layer: GraphLayer) -> bool:
        return isinstance(layer.facts.more, tuple) and bool(layer.facts.more[0])

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        if not self.fused_shared or "ffn_up_shexp" not in layer:
            return Transformer.feed_forward(self, build, layer, shared, cur)
        result = experts(build, layer, cur, shared.routing)
        return ggml.add(result, feed_forward(layer, cur, act=Act.FUSED, suffix="_shexp"))
