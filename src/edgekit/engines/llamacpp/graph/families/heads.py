"""How graphs end: from the last states to logits."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.llama.build import Build
from edgekit.engines.llamacpp.graph.llama.matrices import Norm, normalize, project
from edgekit.engines.llamacpp.graph.tensor import GraphTensor


def logits(build: Build, cur: GraphTensor) -> GraphTensor:
    """Files without an output matrix use the embeddings for it."""
    matrix = build.weight("output") or build["token_embd"]
    return project(matrix, cur, scale=build.tensor("output.scale"))


def softcapped(cur: GraphTensor) -> GraphTensor:
    return ggml.scale(ggml.unary(ggml.scale(cur)))


def results(build: Build, embd: GraphTensor, *, scale: bool = False, softcap: bool = False) -> None:
    """t_embd and t_logits."""
    build.embd = embd
    build.output(embd)
    cur = logits(build, embd)
    cur = ggml.scale(cur) if scale else cur
    cur = softcapped(cur) if softcap else cur
    build.output(cur)
    build.expand(cur)


def output_rows(
    build: Build, tensors: Sequence[GraphTensor], out_ids: GraphTensor
) -> list[GraphTensor]:
    """The output rows of what leaves attention in the last layer, where rows are chosen there already."""
    if not build.crops_early:
        return list(tensors)
    return [ggml.get_rows(one, out_ids) for one in tensors]


def rows_after_norm(
    build: Build, cur: GraphTensor, out_ids: GraphTensor, *, kind: Norm = Norm.RMS
) -> GraphTensor:
    """The last norm, a result for blocks that predict further tokens (t_h_nextn), and the output rows of it."""
    cur = normalize(cur, build["output_norm"], kind=kind)
    if build.predicts:
        build.output(cur)
    return cur if build.crops_early else ggml.get_rows(cur, out_ids)
