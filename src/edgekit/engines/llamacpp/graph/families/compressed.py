"""DeepSeek 4: a window of raw keys, next to keys that represent 4 or 128 tokens each.

Every sequence has separate caches, even with a unified cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    MIN_ROTATION,
    Extras,
    attn_mha,
    mask_type,
    read_heads,
    side_cache,
    store_rows,
    widest_rotation,
)
from edgekit.engines.llamacpp.graph.build import (
    AttnInput,
    Build,
    CacheInput,
    GraphLayer,
    Hparams,
    weight,
)
from edgekit.engines.llamacpp.graph.families.indexed import restrict_mask
from edgekit.engines.llamacpp.graph.families.transformer import Transformer, file_routing
from edgekit.engines.llamacpp.graph.layers import (
    experts,
    hadamard,
    normalize,
    project,
    results,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.tensor import (
    F16,
    F32,
    I32,
    I64,
    GraphTensor,
    NoGraphError,
    number,
    shape,
)
from edgekit.engines.llamacpp.types import CELL_PADDING, Rules

# llama-kv-cache-dsv4.cpp @ 0c1e570: DSV4_CSA_RATIO, DSV4_HCA_RATIO
CSA_RATIO = 4  # tokens per compressed key
HCA_RATIO = 128
MAX_STREAMS = 64  # DeepSeek 4 has 4


class LayerVariety(NamedTuple):
    """What distinguishes a layer: how many tokens its compressed keys represent, and how it selects experts."""

    ratio: int
    hashed: bool  # experts are looked up by token, not routed

    @classmethod
    def of(cls, hparams: Hparams, il: int) -> LayerVariety:
        ratios = hparams.per_layer("attention.compress_ratios", 0)
        return cls(ratios[il], il < hparams.integer("hash_layer_count"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Blocks of `ratio` tokens, each compressed to one key: inputs (dsv4_build_comp_inputs) and the cache's size."""

    name: str
    ratio: int
    width: int
    cells: int  # keys in the cache
    state_rows: int
    state_pos: GraphTensor
    persist_src: GraphTensor
    persist_dst: GraphTensor
    read_idxs: GraphTensor
    write_idxs: GraphTensor
    write_pos: GraphTensor
    mask: GraphTensor
    k_rot: GraphTensor | None
    halves: int  # of a row of the state: 2 if each block includes the one before it, else 1

    @classmethod
    def of(cls, build: Build, name: str, ratio: int, width: int) -> Compression:
        """The sizes that llama.cpp reserves for this compression (dsv4_build_reserve_comp_plan)."""
        sizes, tokens = build.sizes, number(build.n_tokens)
        streams, cells = number(sizes.n_stream), number(sizes.n_kv)
        halves = 2 if ratio == CSA_RATIO else 1
        blocks = tokens // ratio + number(sizes.n_seqs)
        state_rows = halves * ratio * streams
        persisted = min(tokens, state_rows)
        packed = max(1, -(-cells // ratio))
        packed = -(-packed // CELL_PADDING) * CELL_PADDING
        is_indexer = name == "lid"
        shape = (packed, tokens // streams, 1, streams)
        return cls(
            name=name,
            ratio=ratio,
            width=width,
            cells=packed,
            state_rows=state_rows,
            state_pos=ggml.graph_input(I32, tokens, name=f"{name}_state_pos"),
            persist_src=ggml.graph_input(I32, persisted, name=f"{name}_state_persist_src"),
            persist_dst=ggml.graph_input(I32, persisted, name=f"{name}_state_persist_dst"),
            read_idxs=ggml.graph_input(I32, halves * ratio * blocks, name=f"{name}_state_read"),
            write_idxs=ggml.graph_input(I64, blocks, name=f"{name}_state_write"),
            write_pos=ggml.graph_input(I32, blocks, name=f"{name}_state_write_pos"),
            mask=ggml.graph_input(
                F16 if is_indexer else mask_type(build), *shape, name=f"{name}_mask"
            ),
            k_rot=rotation(build, width, always=is_indexer),
            halves=halves,
        )

    def cache(self, layer: GraphLayer) -> GraphTensor:
        """The layer's cache of compressed keys."""
        return side_cache(layer, self.name, self.width, self.cells)

    def all_keys(self, layer: GraphLayer) -> GraphTensor:
        """The keys in that cache, as a view of a view like llama.cpp's."""
        keys = read_heads(self.cache(layer), self.width, heads=1)
        return ggml.view(keys, *keys.ne, strides=keys.nb[1:])

    def update(self, layer: GraphLayer, cur: GraphTensor, prefix: str) -> None:
        """Adds new tokens to the state, and full blocks to the cache."""
        kv = ggml.mul_mat(layer[f"{prefix}_kv"], cur)
        score = ggml.mul_mat(layer[f"{prefix}_gate"], cur)
        score = ggml.add(score, ggml.get_rows(layer[f"{prefix}_ape"], self.state_pos))
        states: list[GraphTensor] = []
        for side, new in (("kv", kv), ("score", score)):
            state = self._state(layer, side)
            rows = ggml.view(state, *state.ne[:2], strides=(state.nb[1],))
            states.append(ggml.concat(rows, new, 1))
        # The mean of a block's values, weighted by their scores.
        values, scores = (
            ggml.cont(ggml.permute(self._blocks(state), 1, 0, 2, 3)) for state in states
        )
        comp = ggml.sum_rows(ggml.mul(values, ggml.soft_max(scores)))
        comp = ggml.cont(ggml.permute(comp, 1, 0, 2, 3))
        comp = ggml.rope(normalize(comp, layer[f"{prefix}_norm"]), self.write_pos)
        comp = comp if self.k_rot is None else hadamard(layer.build, comp, self.k_rot)
        store_rows(layer.build, self.cache(layer), comp, self.write_idxs)
        for side, new in (("kv", kv), ("score", score)):
            rows = ggml.get_rows(new, self.persist_src)
            into = self._state(layer, side)
            layer.build.expand(ggml.set_rows(into, rows, self.persist_dst))

    def _state(self, layer: GraphLayer, side: str) -> GraphTensor:
        """The rows of unfinished blocks in all streams (get_kv_all, get_score_all). `side`: "kv" or "score"."""
        name, width = f"{self.name}_state_{side}_l{layer.index}", self.halves * self.width
        streams = number(layer.build.sizes.n_stream)
        state = layer.build.cache(name, F32, width, self.state_rows // streams, streams)
        return ggml.view(state, width, self.state_rows, strides=(state.nb[1],))

    def _blocks(self, states: GraphTensor) -> GraphTensor:
        """The rows of each block that is written, as [width, rows of a block, blocks]."""
        count = self.write_pos.ne[0]
        if self.halves == 1:
            rows = ggml.get_rows(states, self.read_idxs)
            return ggml.reshape(rows, self.width, self.ratio, count)
        empty = ggml.scale(ggml.view(states, states.ne[0]))
        states = ggml.concat(states, ggml.reshape(empty, states.ne[0], 1), 1)
        rows = ggml.get_rows(states, self.read_idxs)
        halves = [
            ggml.cont(ggml.view(rows, self.width, self.ratio * count, strides=(rows.nb[1],)))
            for _ in range(2)
        ]
        previous, current = (ggml.reshape(half, self.width, self.ratio, count) for half in halves)
        return ggml.concat(previous, current, 1)


def rotation(build: Build, width: int, *, always: bool = False) -> GraphTensor | None:
    """The matrix that rotates keys of this width; None if the cache is not quantised."""
    quantised = build.options.type_k.block_elements > 1 and width % MIN_ROTATION == 0
    if not (quantised or always):
        return None
    side = widest_rotation(width)
    return ggml.graph_input(F32, side, side, name="attn_inp_k_rot")


class Compressions(NamedTuple):
    """The three caches of compressed keys, which all layers share. Names are llama.cpp's."""

    csa: Compression
    hca: Compression
    lid: Compression  # keys of the indexer

    @classmethod
    def of(cls, build: Build) -> Compressions:
        hparams = build.hparams
        width = hparams.n_embd_head_k_full
        indexer_width = hparams.integer("attention.indexer.key_length")
        return cls(
            csa=Compression.of(build, "csa", CSA_RATIO, width),
            hca=Compression.of(build, "hca", HCA_RATIO, width),
            lid=Compression.of(build, "lid", CSA_RATIO, indexer_width),
        )


def input_window(build: Build) -> AttnInput:
    """The inputs of the window of raw keys."""
    sizes, cells = build.sizes, build.sizes.n_kv_swa
    mask = (cells, build.n_tokens // sizes.n_stream, 1, sizes.n_stream)
    window = CacheInput(
        n_kv=cells,
        mask=ggml.graph_input(mask_type(build), *mask, name="raw_kq_mask"),
        k_idxs=ggml.graph_input(I64, build.n_tokens, name="raw_k_idxs"),
        k_rot=rotation(build, build.hparams.n_embd_head_k_full),
    )
    return AttnInput(base=window)


class DeepSeek4(Transformer):
    def variant(self, hparams: Hparams, il: int) -> LayerVariety:
        return LayerVariety.of(hparams, il)

    def build(self, build: Build) -> None:
        sizes = build.sizes
        if not build.only_numbers(build.n_tokens, sizes.n_seqs, sizes.n_kv, sizes.n_kv_swa):
            return
        embd = build.input_embd()
        build.inputs = self.layer_inputs(build)
        caches = Compressions.of(build)
        build.expand(build.inputs.attn.base.mask)
        width, tokens = build.hparams.n_embd, build.n_tokens
        count = stream_count(build)
        streams = ggml.repeat(ggml.reshape(embd, width, 1, tokens), width, count, tokens, 1)
        for layer in build.layers():
            streams = self.update_streams(layer, caches, embd.src[1], streams)
        if build.options.rules >= Rules.V0_6:  # t_h_nextn, whether it is read or not
            build.output(streams)
        flat = ggml.reshape(streams, width * count, tokens)
        flat = ggml.get_rows(flat, build.inputs.out_ids)
        cur = hc_head(build, ggml.reshape(flat, width, count, build.sizes.n_outputs))
        results(build, normalize(cur, build["output_norm"]))

    def update_streams(
        self, layer: GraphLayer, caches: Compressions, tokens: GraphTensor, streams: GraphTensor
    ) -> GraphTensor:
        """The residual streams after the layer."""
        mixed = hc_pre(layer, streams, "attn")
        cur = self.apply_norm(layer, mixed.cur, "attn_norm")
        cur = _attention(layer, caches, cur)
        streams = hc_post(cur, streams, mixed)
        mixed = hc_pre(layer, streams, "ffn")
        for tensor in (streams, mixed.post, mixed.comb):
            layer.build.expand(tensor)
        cur = self.apply_norm(layer, mixed.cur, "ffn_norm")
        chosen: GraphTensor | None = None
        if LayerVariety.of(layer.hparams, layer.index).hashed:
            table = layer.weight("ffn_gate_tid2eid")
            chosen = None if table is None else ggml.get_rows(table, tokens)
        moe = experts(layer, cur, selected=chosen)
        return hc_post(ggml.add(moe, shared_expert(layer, cur)), streams, mixed)


def _attention(layer: GraphLayer, caches: Compressions, cur: GraphTensor) -> GraphTensor:
    """Attention over the window's keys followed by the compressed keys; keys also serve as values."""
    build, window = layer.build, layer.inputs.attn.base
    width, heads = layer.facts.n_embd_head_k, layer.facts.n_head
    qr = normalize(project(layer, "attn_q_a", cur), layer["attn_q_a_norm"])
    q = ggml.reshape(project(layer, "attn_q_b", qr), width, heads, build.n_tokens)
    q = ggml.rope(ggml.rms_norm(q), layer.inputs.pos)
    kv = normalize(ggml.mul_mat(layer["attn_kv"], cur), layer["attn_kv_a_norm"])
    kv = ggml.rope(ggml.reshape(kv, width, 1, build.n_tokens), layer.inputs.pos)
    ratio = LayerVariety.of(build.hparams, layer.index).ratio
    compressed = caches.csa if ratio == CSA_RATIO else caches.hca
    selected: GraphTensor | None = None
    if ratio in {CSA_RATIO, HCA_RATIO}:
        compressed.update(layer, cur, "attn_compressor")
    if ratio == CSA_RATIO:
        caches.lid.update(layer, cur, "indexer_compressor")
        selected = _top_keys(layer, caches.lid, qr, cur)
    if window.k_rot is not None:
        q, kv = hadamard(build, q, window.k_rot), hadamard(build, kv, window.k_rot)
    build.expand(q)
    build.expand(kv)
    raw_width = build.hparams.n_embd_head_k_full
    raw = side_cache(layer, "raw", raw_width, window.n_kv)
    store_rows(build, raw, kv, window.k_idxs)
    keys, mask = read_heads(raw, raw_width, heads=1), window.mask
    if ratio:
        keys = ggml.concat(keys, compressed.all_keys(layer), 2)
        visible = compressed.mask
        if selected is not None:
            visible = restrict_mask(visible, selected, mask_type(build))
        mask = ggml.concat(mask, visible, 0)
    extras = Extras(sinks=layer["attn_sinks"])
    out = attn_mha(build, q, keys, keys, mask, extras, transposed=False)
    if window.k_rot is not None:
        out = hadamard(build, out, window.k_rot)
    out = ggml.reshape(out, width, heads, build.n_tokens)
    return _output(layer, ggml.rope_back(out, layer.inputs.pos))


def _top_keys(
    layer: GraphLayer, index: Compression, qr: GraphTensor, cur: GraphTensor
) -> GraphTensor:
    """build_lid_top_k: the highest-scoring compressed keys for each token. `qr`: the low-rank queries."""
    build = layer.build
    heads = build.hparams.integer("attention.indexer.head_count")
    tokens, streams = build.n_tokens, build.sizes.n_stream
    q = ggml.mul_mat(layer["indexer.attn_q_b"], qr)
    q = ggml.rope(ggml.reshape(q, index.width, heads, tokens), layer.inputs.pos)
    if index.k_rot is not None:
        q = hadamard(build, q, index.k_rot)
    weights = ggml.scale(ggml.mul_mat(layer["indexer.proj"], cur))
    keys = index.all_keys(layer)
    rows = tokens // streams
    q = ggml.view(
        q, index.width, heads, rows, streams, strides=(q.nb[1], q.nb[2], q.nb[3] // streams)
    )
    strides = (weights.nb[1], weights.nb[2] // streams, weights.nb[3] // streams)
    weights = ggml.view(weights, heads, rows, 1, streams, strides=strides)
    score = ggml.lightning_indexer(q, keys, weights, index.mask)
    count = min(number(score.ne[0]), build.hparams.integer("attention.indexer.top_k"))
    return ggml.cont(ggml.top_k(score, count))


def _output(layer: GraphLayer, out: GraphTensor) -> GraphTensor:
    """The output projection: per head group first, then all together."""
    width, heads, tokens, _ = out.ne
    groups = layer.hparams.integer("attention.output_group_count")
    rank = layer.hparams.integer("attention.output_lora_rank")
    first, group = layer["attn_output_a"], number(width) * number(heads) // groups
    if first.ne[2] != groups:  # TENSOR_ALLOW_RESHAPE
        first = weight(first.name, first.type, (group, rank, groups))
    out = ggml.permute(ggml.reshape(out, group, groups, tokens), 0, 2, 1, 3)
    out = ggml.permute(ggml.mul_mat(first, out), 0, 2, 1, 3)
    out = ggml.cont(out, rank * groups, tokens)
    return project(layer, "attn_output_b", out)


class StreamMix(NamedTuple):
    """One input mixed from several residual streams, and the weights that distribute the output back to them."""

    cur: GraphTensor
    post: GraphTensor
    comb: GraphTensor


def stream_count(build: Build) -> int:
    """The number of residual streams. NoGraphError if the file states an impossible one."""
    count = build.hparams.integer("hyper_connection.count")
    if not 0 < count <= MAX_STREAMS:
        raise NoGraphError(f"{count:,} streams are not between 1 and {MAX_STREAMS}")
    return count


def _affine(cur: GraphTensor, scale: GraphTensor, base: GraphTensor) -> GraphTensor:
    return ggml.add(ggml.mul(cur, scale), base)


def _flat_mixes(streams: GraphTensor, matrix: GraphTensor) -> GraphTensor:
    """The mixing weights of each token: a product of `matrix` and all its normalised streams."""
    width, count, tokens, _ = streams.ne
    flat = ggml.rms_norm(ggml.reshape(streams, width * count, tokens))
    return ggml.mul_mat(matrix, flat)


def hc_pre(layer: GraphLayer, streams: GraphTensor, part: str) -> StreamMix:
    """build_hc_pre: mixes the residual streams into one input, with ggml's fused operations."""
    _, count, tokens, _ = streams.ne
    scale, base = layer[f"hc_{part}_scale"], layer[f"hc_{part}_base"]
    mixes = _flat_mixes(streams, layer[f"hc_{part}_fn"])
    gates: list[GraphTensor] = []  # of `pre` and `post`
    for _ in range(2):
        mix = ggml.view(mixes, count, tokens, strides=(mixes.nb[1],))
        gate = _affine(mix, ggml.view(scale, 1), ggml.view(base, count))
        gates.append(ggml.scale(ggml.unary(gate)))
    pre, post = gates
    comb = ggml.new("DSV4_HC_COMB", F32, shape(count, count, tokens), mixes, scale, base)
    cur = ggml.new("DSV4_HC_PRE", F32, shape(streams.ne[0], tokens), streams, pre)
    return StreamMix(cur, post, comb)


def hc_post(cur: GraphTensor, streams: GraphTensor, mixed: StreamMix) -> GraphTensor:
    """build_hc_post: the residual streams after adding the output `cur` of attention or the feed-forward."""
    return ggml.new("DSV4_HC_POST", F32, streams.ne, cur, streams, mixed.post, mixed.comb)


def hc_head(build: Build, streams: GraphTensor) -> GraphTensor:
    """build_hc_head: merges the streams into one."""
    width, _, tokens, _ = streams.ne
    mixes = _flat_mixes(streams, build["output_hc_fn"])
    pre = _affine(mixes, build["output_hc_scale"], build["output_hc_base"])
    pre = ggml.scale(ggml.unary(pre))
    # One product per stream. Offsets of views and constants are left out: memory depends on shapes alone.
    parts = [
        ggml.mul(
            ggml.view(streams, width, tokens, strides=(streams.nb[2],)),
            ggml.view(pre, 1, tokens, strides=(pre.nb[1],)),
        )
        for _ in range(stream_count(build))
    ]
    return reduce(ggml.add, parts)


COMPRESSED: Mapping[str, DeepSeek4] = {
    "deepseek4": DeepSeek4(attn_input=input_window, routing=file_routing)
}
