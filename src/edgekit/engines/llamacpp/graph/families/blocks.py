"""MiniMax M3: attention to blocks of cells selected by an indexer (MSA).

The graph is reserved with an empty cache, so it ranks only the blocks of the first 256 positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    read_heads,
    side_cache,
    store_and_read,
    store_rows,
)
from edgekit.engines.llamacpp.graph.build import AttnInput, Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.transformer import Transformer, file_routing
from edgekit.engines.llamacpp.graph.layers import QKV, hadamard, normalize, project
from edgekit.engines.llamacpp.graph.tensor import (
    F16,
    F32,
    I32,
    I64,
    GraphTensor,
    NoGraphError,
    Size,
)

RANKED_POSITIONS = 256  # llama-kv-cache-msa.cpp @ 0c1e570: get_n_pos of an empty cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Sizes and inputs shared by all sparse layers."""

    width: int
    heads: int
    size: int  # cells per block
    count: int  # ranked blocks
    top_k: int
    k_idxs: GraphTensor
    bias: GraphTensor
    pos_mask: GraphTensor
    pos_slot: GraphTensor
    cell_block: GraphTensor
    mask: GraphTensor  # f32

    @classmethod
    def of(cls, build: Build, attn: AttnInput) -> Blocks:
        hparams, sizes = build.hparams, build.sizes
        size = hparams.integer("attention.indexer.block_size")
        count = -(-RANKED_POSITIONS // size)
        tokens, streams, ranked = build.n_tokens, sizes.n_stream, count * size
        return cls(
            width=hparams.integer("attention.indexer.key_length"),
            heads=hparams.integer("attention.indexer.head_count"),
            size=size,
            count=count,
            top_k=min(hparams.integer("attention.indexer.top_k"), count),
            k_idxs=ggml.graph_input(I64, tokens, name="attn_inp_k_idxs"),
            bias=ggml.graph_input(F32, count, tokens, name="msa_bias"),
            pos_mask=ggml.graph_input(F32, ranked, tokens, name="msa_pos_mask"),
            pos_slot=ggml.graph_input(I32, ranked, streams, name="msa_pos_slot_i"),
            cell_block=ggml.graph_input(I32, sizes.n_kv, streams, name="msa_cell_blk"),
            mask=ggml.cast(attn.base.mask, F32),
        )

    def mask_of(self, q: GraphTensor, keys: GraphTensor, rows: Size) -> GraphTensor:
        """The mask of one stream: the cells that each head group attends to, [cells, rows, 1, heads]."""
        cells, ranked = keys.ne[2], self.count * self.size
        q = ggml.view(q, self.width, self.heads, rows, strides=q.nb[1:3])
        keys = ggml.view(keys, self.width, cells, strides=(keys.nb[2],))
        slots = ggml.view(self.pos_slot, ranked)
        step = self.pos_mask.nb[1]
        visible = ggml.view(self.pos_mask, ranked, 1, rows, strides=(step, step))
        step = self.bias.nb[1]
        bias = ggml.view(self.bias, self.count, 1, rows, strides=(step, step))
        keys = ggml.get_rows(keys, slots)
        score = ggml.mul_mat(keys, ggml.reshape(q, self.width, self.heads * rows))
        score = ggml.add_inplace(ggml.reshape(score, ranked, self.heads, rows), visible)
        score = ggml.add(ggml.pool_rows(score, self.size), bias)
        block_mask = self.block_mask(ggml.top_k(score, self.top_k), bias, rows)
        cell_mask = ggml.get_rows(block_mask, ggml.view(self.cell_block, cells))
        cell_mask = ggml.reshape(ggml.cont(ggml.transpose(cell_mask)), cells, rows, self.heads)
        strides = (self.mask.nb[1], self.mask.nb[3])
        mask = ggml.add_inplace(cell_mask, ggml.view(self.mask, cells, rows, 1, strides=strides))
        return ggml.cast(ggml.reshape(mask, cells, rows, 1, self.heads), F16)

    def block_mask(self, selected: GraphTensor, bias: GraphTensor, rows: Size) -> GraphTensor:
        """A mask with one value per block, which is zero for selected blocks: [rows x heads, blocks]."""
        mask_rows = self.heads * rows
        all_masked = ggml.cast(ggml.scale(bias), F16)
        all_masked = ggml.repeat(all_masked, self.count, self.heads, rows, 1)
        zeros = ggml.scale(ggml.cast(selected, F32))
        mask = ggml.set_rows(
            ggml.reshape(all_masked, 1, self.count, mask_rows),
            ggml.reshape(zeros, 1, self.top_k, mask_rows),
            ggml.reshape(selected, self.top_k, mask_rows),
        )
        mask = ggml.reshape(mask, self.count, self.heads, rows)
        mask = ggml.cont(ggml.permute(mask, 0, 2, 1, 3))
        return ggml.cont(ggml.transpose(ggml.reshape(mask, self.count, mask_rows)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniMaxM3(Transformer):
    """Some layers have an indexer, which is used only with flash attention and separate caches."""

    blocks: Blocks | None = None  # while a graph is built

    def variant(self, hparams: Hparams, il: int) -> bool:
        return il >= hparams.integer("leading_dense_block_count", 0)

    def build(self, build: Build) -> None:
        sparse = build.options.flash_attn and (
            build.options.streams or build.graph.same(build.sizes.n_seqs, 1)
        )
        if sparse and not build.only_numbers(build.sizes.n_stream):
            return
        cur = build.input_embd()
        build.inputs = self.layer_inputs(build)
        blocks = Blocks.of(build, build.inputs.attn) if sparse else None
        family = replace(self, blocks=blocks)
        for layer in build.layers():
            cur = family.block(layer, cur)
        self.head(build, cur)

    def attend(self, layer: GraphLayer, cur: GraphTensor, heads: QKV) -> GraphTensor:
        build, blocks = layer.build, self.blocks
        if blocks is None or not self.variant(build.hparams, layer.index):
            return Transformer.attend(self, layer, cur, heads)
        q, k, v = heads
        index_q, index_k = self.index_qk(layer, blocks, cur)
        inputs = layer.inputs.attn.base
        cache = side_cache(layer, "idx", blocks.width, inputs.n_kv)
        store_rows(build, cache, index_k, blocks.k_idxs)
        index_keys = read_heads(cache, blocks.width, heads=1)
        if inputs.k_rot is not None:
            q, k = hadamard(build, q, inputs.k_rot), hadamard(build, k, inputs.k_rot)
        if inputs.v_rot is not None:
            v = hadamard(build, v, inputs.v_rot)
        for tensor in (q, k, v):
            build.expand(tensor)
        keys, values = store_and_read(layer, inputs, k, v, layer.index)
        cur = _attend_by_stream(build, blocks, (q, keys, values), (index_q, index_keys))
        if inputs.v_rot is not None:
            cur = hadamard(build, cur, inputs.v_rot)
        return project(layer, "attn_output", cur)

    def index_qk(
        self, layer: GraphLayer, blocks: Blocks, cur: GraphTensor
    ) -> tuple[GraphTensor, GraphTensor]:
        """The indexer's queries and keys."""
        q, k = (
            ggml.reshape(
                project(layer, f"indexer.{side}_proj", cur),
                blocks.width,
                count,
                layer.build.n_tokens,
            )
            for side, count in (("q", blocks.heads), ("k", 1))
        )
        q = normalize(q, layer["indexer.q_norm"])
        k = normalize(k, layer["indexer.k_norm"])
        return ggml.rope(q, layer.inputs.pos), ggml.rope(k, layer.inputs.pos)


def _attend_by_stream(
    build: Build, blocks: Blocks, qkv: QKV, index: tuple[GraphTensor, GraphTensor]
) -> GraphTensor:
    """Computes each stream separately and concatenates the results (build_attn_msa_fa). `index`: the indexer's queries
    and keys.
    """
    q, *cached_kv = qkv
    width, heads, *_ = q.ne
    streams = build.sizes.n_stream
    rows = build.n_tokens // streams
    if not isinstance(streams, int) or rows == 1:
        raise NoGraphError("one token for each sequence")
    outputs: list[GraphTensor] = []
    for _ in range(streams):
        stream_q = ggml.view(q, width, heads, rows, strides=q.nb[1:3])
        mask = blocks.mask_of(*index, rows)  # one per head group
        k, v = (
            ggml.permute(ggml.view(tensor, *tensor.ne[:3], 1, strides=tensor.nb[1:]), 0, 3, 1, 2)
            for tensor in cached_kv
        )
        groups = k.ne[3]
        stream_q = ggml.reshape(stream_q, width, heads // groups, groups, rows)
        cur = ggml.flash_attn_ext(ggml.permute(stream_q, 0, 2, 3, 1), k, v, mask)
        cur = ggml.permute(cur, 0, 1, 3, 2)
        cur = cur if build.graph.is_contiguous(cur) else ggml.cont(cur)
        outputs.append(ggml.reshape(cur, width * heads, rows))
    return reduce(lambda left, right: ggml.concat(left, right, 1), outputs)


BLOCKS: Mapping[str, MiniMaxM3] = {"minimax-m3": MiniMaxM3(routing=file_routing)}
