"""Latent attention to cells selected by an indexer: DeepSeek 3.2, GLM 5 and dots3-note."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    attend_k,
    input_k,
    input_k_windows,
    read_heads,
    side_cache,
    store_rows,
    widest_rotation,
)
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.latent import absorbed_qkv
from edgekit.engines.llamacpp.graph.families.transformer import (
    Transformer,
    file_routing,
    sigmoid_routing,
)
from edgekit.engines.llamacpp.graph.layers import Norm, normalize, project
from edgekit.engines.llamacpp.graph.tensor import (
    F16,
    F32,
    I64,
    GraphTensor,
    NoGraphError,
    Size,
    shape,
)
from edgekit.engines.llamacpp.types import CELL_PADDING
from edgekit.formats.dtype import TensorType

MOST_PICKED = 65_536  # cells; DeepSeek 3.2 selects 2,048


def at_most(build: Build, size: Size, limit: int) -> Size:
    """The smaller of a size and a limit. A symbolic size counts as larger; loads where it is not get another graph."""
    if isinstance(size, int):
        return min(size, limit)
    if limit > MOST_PICKED:
        raise NoGraphError(f"an indexer that picks {limit:,} cells")
    for fewer in range(CELL_PADDING, limit, CELL_PADDING):
        build.graph.same(size, fewer)
    return limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Sizes and inputs shared by the indexers of all layers. `rotation`: of their keys, for any cache type."""

    width: int
    heads: int
    top_k: int
    k_idxs: GraphTensor
    mask: GraphTensor
    rotation: GraphTensor | None

    @classmethod
    def of(cls, build: Build, *, rotated: bool = True) -> Indexer:
        """Reads the sizes from the file and creates the inputs."""
        hparams, sizes = build.hparams, build.sizes
        width = hparams.integer("attention.indexer.key_length")
        side, rows = widest_rotation(width), build.n_tokens // sizes.n_stream
        return cls(
            width=width,
            heads=hparams.integer("attention.indexer.head_count"),
            top_k=hparams.integer("attention.indexer.top_k"),
            k_idxs=ggml.graph_input(I64, build.n_tokens, name="attn_inp_k_idxs"),
            mask=ggml.graph_input(F16, sizes.n_kv, rows, 1, sizes.n_stream, name="lid_kq_mask"),
            rotation=ggml.graph_input(F32, side, side, name="attn_inp_k_rot") if rotated else None,
        )

    def top_cells(self, layer: GraphLayer, cur: GraphTensor, qr: GraphTensor) -> GraphTensor:
        """The highest-scoring cells for each token, by the indexer's queries and keys."""
        build, pos = layer.build, layer.inputs.pos
        tokens, streams = build.n_tokens, build.sizes.n_stream
        q = ggml.mul_mat(layer["indexer.attn_q_b"], qr)
        q = ggml.rope(ggml.reshape(q, self.width, self.heads, tokens), pos)
        k = ggml.mul_mat(layer["indexer.attn_k"], cur)
        bias = layer.bias("indexer.k_norm")
        k = normalize(k, layer["indexer.k_norm"], bias, kind=Norm.LAYER)
        k = ggml.rope(ggml.reshape(k, self.width, 1, tokens), pos)
        if self.rotation is not None:
            q, k = ggml.mul_mat(self.rotation, q), ggml.mul_mat(self.rotation, k)
        cache = side_cache(layer, "lid", self.width, build.sizes.n_kv)
        store_rows(build, cache, k, self.k_idxs)
        keys = read_heads(cache, self.width, heads=1)
        weights = ggml.mul_mat(layer["indexer.proj"], cur)
        rows = tokens // streams
        strides = (q.nb[1], q.nb[2], q.nb[3] // streams)
        q = ggml.view(q, self.width, self.heads, rows, streams, strides=strides)
        strides = (weights.nb[1], weights.nb[2] // streams, weights.nb[3] // streams)
        weights = ggml.view(weights, self.heads, rows, 1, streams, strides=strides)
        score = ggml.lightning_indexer(q, keys, ggml.scale(weights), self.mask)
        return ggml.cont(ggml.top_k(score, at_most(build, score.ne[0], self.top_k)))


def restrict_mask(mask: GraphTensor, selected: GraphTensor, kind: TensorType = F32) -> GraphTensor:
    """The mask restricted to the selected cells. `kind`: the type of the zeros that unmask them."""
    nb = mask.nb
    all_masked = ggml.fill(mask)
    ne = (1, mask.ne[0], mask.ne[1], mask.ne[3])
    all_masked = ggml.view(all_masked, *ne, strides=nb[:3])
    strides = (selected.nb[1], selected.nb[2], selected.ne[3] * selected.nb[3])
    rows = ggml.view(selected, selected.ne[0], selected.ne[1], selected.ne[3], 1, strides=strides)
    zeros = GraphTensor(op="NONE", type=kind, ne=shape(1, *rows.ne[:3]), name="zeros")
    opened = ggml.set_rows(all_masked, ggml.fill(zeros), rows)
    strides = (opened.nb[2], opened.nb[3], opened.nb[3])
    opened = ggml.view(opened, opened.ne[1], opened.ne[2], 1, opened.ne[3], strides=strides)
    return ggml.add(opened, mask)


def every_indexer(_hparams: Hparams, _il: int) -> bool:
    return True


# glm-dsa.cpp: GLM 5.2 files, with this many tokens, do not state which layers have an indexer.
LONG_CONTEXT = 1_048_576
INDEXED_LAYERS = 78
FIRST_BUILD = 10566  # the first build checked: earlier ones have no such indexer


def glm_indexer(hparams: Hparams, il: int) -> bool:
    """True if the layer has an indexer: as the file states, or by GLM 5.2's pattern."""
    stated = hparams.key("attention.indexer.types")
    if stated is not None:
        return bool(hparams.per_layer("attention.indexer.types", 1)[il])
    if hparams.integer("context_length") < LONG_CONTEXT:
        return True
    return il < 2 or (il < INDEXED_LAYERS and (il - 2) % 4 == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed(Transformer):
    """Latent attention to selected cells. Layers without an indexer use the selection of the layer before."""

    indexed: Callable[[Hparams, int], bool] = every_indexer

    def variant(self, hparams: Hparams, il: int) -> bool:
        return self.indexed(hparams, il)

    def build(self, build: Build) -> None:
        if build.options.rules < FIRST_BUILD:
            raise NoGraphError(f"builds before b{FIRST_BUILD} attend in another way")
        cur = build.input_embd()
        build.inputs = self.layer_inputs(build)
        indexer = Indexer.of(build)
        pos, mask, selected = build.inputs.pos, build.inputs.attn.base.mask, None
        for layer in build.layers():
            stream = cur
            normed = self.apply_norm(layer, stream, "attn_norm")
            qr = ggml.mul_mat(layer["attn_q_a"], normed)
            qr = normalize(qr, layer["attn_q_a_norm"])
            if selected is None or self.indexed(build.hparams, layer.index):
                selected = indexer.top_cells(layer, normed, qr)
            q = ggml.mul_mat(layer["attn_q_b"], qr)
            qkv = absorbed_qkv(layer, q, normed, lambda part: ggml.rope(part, pos))
            cur = attend_k(layer, qkv, mask=restrict_mask(mask, selected))
            cur, stream = self.output_rows(layer, cur, stream)
            cur = self.after_attention(layer, cur, stream)
        self.head(build, cur)


class Dots3Note(Transformer):
    """dots3-note: latent attention to selected cells in some layers, to a window in the others; gated by head."""

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        build.inputs = self.layer_inputs(build)
        indexer = Indexer.of(build)
        for layer in build.layers():
            stream = cur
            normed = self.apply_norm(layer, stream, "attn_norm")
            cur = self.gated_attention(layer, normed, indexer)
            cur, stream = self.output_rows(layer, cur, stream)
            cur = self.after_attention(layer, cur, stream)
        self.head(build, cur)

    def gated_attention(self, layer: GraphLayer, cur: GraphTensor, indexer: Indexer) -> GraphTensor:
        """Attention from the normed stream to its output projection."""
        build, heads, is_swa = layer.build, layer.facts.n_head, layer.facts.is_swa
        qr = normalize(ggml.mul_mat(layer["attn_q_a"], cur), layer["attn_q_a_norm"])
        selected = None if is_swa else indexer.top_cells(layer, cur, qr)
        q = ggml.mul_mat(layer["attn_q_b"], qr)
        qkv = absorbed_qkv(layer, q, cur, lambda part: ggml.rope(part, layer.inputs.pos))
        mask = selected and restrict_mask(layer.inputs.attn.base.mask, selected)
        out = attend_k(layer, qkv, mask=mask, project=False)
        gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
        width = out.ne[0] // heads
        out = ggml.reshape(out, width, heads, build.n_tokens)
        out = ggml.mul(out, ggml.reshape(gate, 1, heads, build.n_tokens))
        return project(layer, "attn_output", ggml.reshape(out, width * heads, build.n_tokens))


INDEXED: Mapping[str, Transformer] = {
    "dots3note": Dots3Note(attn_input=input_k_windows, routing=file_routing),
    "deepseek32": Indexed(attn_input=input_k, routing=file_routing),
    "glm-dsa": Indexed(attn_input=input_k, indexed=glm_indexer, routing=sigmoid_routing),
}
