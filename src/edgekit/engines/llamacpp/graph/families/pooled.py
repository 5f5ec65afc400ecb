"""Attention to pools of cells that an indexer selects, next to delta nets: GLM 5 Next and Qwen 4 exp.

Every pool of a few cells has one pooled key, kept in the indexer's cache next to the keys of the cells. The graph is
reserved as if the cache were full (llama-memory-hybrid-idx.cpp @ b11549).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    attend_k,
    input_k,
    side_cache,
    store_rows,
)
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams, Routing
from edgekit.engines.llamacpp.graph.families.compressed import (
    StreamMix,
    hc_post,
    hc_pre,
    stream_count,
)
from edgekit.engines.llamacpp.graph.families.delta_net import DeltaNet, linear_attention
from edgekit.engines.llamacpp.graph.families.hyper import output_streams, split_streams
from edgekit.engines.llamacpp.graph.families.kimi import low_rank_delta
from edgekit.engines.llamacpp.graph.families.mamba import convolution_input
from edgekit.engines.llamacpp.graph.families.transformer import (
    Transformer,
    four_positions,
    plain_routing,
    sigmoid_routing,
)
from edgekit.engines.llamacpp.graph.layers import (
    Norm,
    logits,
    normalize,
    results,
)
from edgekit.engines.llamacpp.graph.tensor import (
    F16,
    F32,
    I32,
    I64,
    GraphTensor,
    MissingTensorError,
    Size,
    number,
    shape,
)
from edgekit.formats.dtype import TensorType

POOL_PADDING = 64  # llama-memory-hybrid-idx.cpp: kpool_pad


def present(tensor: GraphTensor | None) -> GraphTensor:
    """An input that this architecture has."""
    if tensor is None:
        raise MissingTensorError("an input of another architecture")
    return tensor


def empty(kind: TensorType, *dims: Size) -> GraphTensor:
    """A tensor that an operation fills."""
    return GraphTensor(op="NONE", type=kind, ne=shape(*dims), name="empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Sizes and inputs shared by all layers that select pools (build_inp_kpool)."""

    size: int  # cells per pool
    count: int  # pools, padded
    top: int  # selected pools
    chosen: int  # selected cells, with those of the unfinished pool
    tail: bool  # the unfinished pool is always selected
    width: int
    heads: int
    parts: int  # rows of a key's width per cell: its key, what else, and the pooled key
    k_idxs: GraphTensor
    cells: GraphTensor
    members: GraphTensor
    mask: GraphTensor
    tail_members: GraphTensor
    alive: GraphTensor | None  # which selected cells exist (GLM 5 Next)
    new_members: GraphTensor
    new_cells: GraphTensor
    new_pos: GraphTensor | None  # Qwen 4 exp rotates pooled keys

    @classmethod
    def of(cls, build: Build, size: int, *, parts: int) -> Pools:
        """Reads the sizes from the file and creates the inputs, of which some are allocated at once."""
        hparams, sizes, tokens = build.hparams, build.sizes, number(build.n_tokens)
        new = number(sizes.n_kv) // size * number(sizes.n_seqs)
        count = max(POOL_PADDING, -(-(new + 1) // POOL_PADDING) * POOL_PADDING)
        new = max(new, 1)
        top = min(count, hparams.integer("attention.indexer.top_k") // size)
        by_order = parts == 2  # qwen4exp.cpp: without the key kpool_select_tail
        tail = by_order or hparams.flag("attention.indexer.kpool_select_tail")
        chosen = size * top + (size - 1 if tail else 0)
        pools = cls(
            size=size,
            count=count,
            top=top,
            chosen=chosen,
            tail=tail,
            width=hparams.integer("attention.indexer.key_length"),
            heads=hparams.integer("attention.indexer.head_count"),
            parts=parts,
            k_idxs=ggml.graph_input(I64, tokens, name="attn_inp_k_idxs"),
            cells=ggml.graph_input(I32, count, name="pool_cells"),
            members=ggml.graph_input(I32, size, count, name="pool_idxs"),
            mask=ggml.graph_input(F16, count, tokens, name="pool_mask"),
            tail_members=ggml.graph_input(I32, size - 1, tokens, name="tail_idxs"),
            alive=None
            if by_order
            else ggml.graph_input(F32, chosen, 1, 1, tokens, name="sel_mask"),
            new_members=ggml.graph_input(I32, size, new, name="new_pool_idxs"),
            new_cells=ggml.graph_input(I64, new, name="new_pool_rep"),
            new_pos=ggml.graph_input(I32, 4 * new, name="new_pool_pos") if by_order else None,
        )
        for tensor in (pools.cells, pools.members, pools.mask, pools.tail_members, pools.alive):
            if tensor is not None:
                build.expand(tensor)
        return pools

    @property
    def new(self) -> int:
        """Pools that a batch may complete."""
        return number(self.new_cells.ne[0])

    def store(self, layer: GraphLayer, keys: GraphTensor) -> None:
        """Writes the keys of the batch, with room for pooled keys, to the indexer's cache."""
        build, tokens = layer.build, layer.build.n_tokens
        room = ggml.fill(empty(F32, self.width, tokens))
        packed = ggml.reshape(ggml.concat(keys, room, 0), self.parts * self.width, 1, tokens)
        store_rows(build, self._cache(layer), packed, self.k_idxs)

    def members_of_new(self, layer: GraphLayer) -> GraphTensor:
        """The cached keys of the pools that the batch completes: [parts x width, cells of a pool, pools]."""
        width = (self.parts - 1) * self.width
        rows = ggml.get_rows(
            self._rows(layer, width), ggml.reshape(self.new_members, self.size * self.new)
        )
        return ggml.reshape(rows, width, self.size, self.new)

    def store_pooled(self, layer: GraphLayer, pooled: GraphTensor) -> GraphTensor:
        """Writes the keys of the new pools, and returns the keys of all pools."""
        rows = self._rows(layer, self.width)
        layer.build.expand(ggml.set_rows(rows, pooled, self.new_cells))
        keys = ggml.get_rows(self._rows(layer, self.width), self.cells)
        return ggml.reshape(keys, self.width, 1, self.count)

    def cells_of(self, build: Build, selected: GraphTensor) -> GraphTensor:
        """The cells of the selected pools, and of the unfinished one."""
        tokens = build.n_tokens
        cells = ggml.get_rows(self.members, ggml.reshape(selected, self.top * tokens))
        cells = ggml.reshape(cells, self.size * self.top, tokens)
        if self.tail:
            cells = ggml.concat(cells, self.tail_members, 0)
        build.expand(cells)
        return cells

    def open(
        self, mask: GraphTensor, cells: GraphTensor, live: GraphTensor, spare: GraphTensor
    ) -> GraphTensor:
        """A mask of a row per token that is open for the cells that are `live`.

        The others open one of the `spare` places after the cells.
        """
        tokens, places = cells.ne[1], mask.ne[0] + self.chosen
        closed = ggml.repeat(ggml.fill(empty(mask.type, places)), places, tokens, 1, 1)
        closed = ggml.reshape(closed, 1, places, tokens)
        zeros = ggml.repeat(ggml.fill(empty(mask.type, self.chosen)), self.chosen, tokens, 1, 1)
        zeros = ggml.reshape(zeros, 1, self.chosen, tokens)
        where = ggml.mul(ggml.sub(ggml.cast(cells, F32), spare), live)
        where = ggml.cast(ggml.add(where, spare), I32)
        return ggml.set_rows(closed, zeros, ggml.reshape(where, self.chosen, tokens, 1))

    def _cache(self, layer: GraphLayer) -> GraphTensor:
        return side_cache(layer, "idx", self.parts * self.width, layer.build.sizes.n_kv)

    def _rows(self, layer: GraphLayer, width: int) -> GraphTensor:
        """A part of each row of the indexer's cache, in all streams."""
        cache = self._cache(layer)
        return ggml.view(cache, width, cache.ne[1] * cache.ne[2], strides=(cache.nb[1],))


class Glm5Next(Transformer):
    """GLM 5 Next: delta attention, and latent attention to selected pools; several residual streams."""

    def variant(self, hparams: Hparams, il: int) -> bool:
        """True if the layer has an indexer; others use the cells selected before."""
        return bool(hparams.per_layer("attention.indexer.types", 1)[il])

    def build(self, build: Build) -> None:
        sizes, hparams = build.sizes, build.hparams
        if not build.only_numbers(build.n_tokens, sizes.n_seqs, sizes.n_kv):
            return
        embd = build.input_embd()
        build.inputs = self.layer_inputs(build)
        pools = Pools.of(build, hparams.integer("attention.indexer.kpool"), parts=3)
        streams, visible = split_streams(build, embd), None
        for layer in build.layers():
            mixed = hc_pre(layer, streams, "attn")
            cur = self.apply_norm(layer, mixed.cur, "attn_norm")
            build.expand(cur)
            if layer.facts.is_recr:
                cur = low_rank_delta(layer, cur)
            else:
                cur, visible = self.sparse_attention(layer, pools, cur, visible)
            streams = distribute(build, cur, streams, mixed)
            mixed = hc_pre(layer, streams, "ffn")
            cur = self.feed_forward(layer, self.apply_norm(layer, mixed.cur, "ffn_norm"))
            streams = distribute(build, cur, streams, mixed)
        streams = output_streams(build, streams)
        width, count, rows, _ = streams.ne
        parts = [
            ggml.view(streams, width, rows, strides=(streams.nb[2],)) for _ in range(number(count))
        ]
        cur = parts[0]
        for part in parts[1:]:
            cur = ggml.add(cur, part)
        results(build, normalize(ggml.scale(cur), build["output_norm"]))

    def sparse_attention(
        self, layer: GraphLayer, pools: Pools, cur: GraphTensor, visible: GraphTensor | None
    ) -> tuple[GraphTensor, GraphTensor]:
        """Attention, and the mask of the selected cells. `visible`: the mask of the layer before."""
        facts, tokens = layer.facts, layer.build.n_tokens
        mask = layer.inputs.attn.base.mask
        qr = normalize(ggml.mul_mat(layer["attn_q_a"], cur), layer["attn_q_a_norm"])
        q = ggml.mul_mat(layer["attn_q_b"], qr)
        q = ggml.reshape(q, q.ne[0] // facts.n_head, facts.n_head, tokens)
        latent = normalize(ggml.mul_mat(layer["attn_kv_a_mqa"], cur), layer["attn_kv_a_norm"])
        latent = ggml.reshape(latent, latent.ne[0], 1, tokens)
        q = ggml.mul_mat(layer["attn_k_b"], ggml.permute(q, 0, 2, 1, 3))
        q = ggml.permute(q, 0, 2, 1, 3)
        if visible is None or self.variant(layer.hparams, layer.index):
            visible = _select_by_gate(layer, pools, cur, qr)
        out = attend_k(
            layer, (q, latent, latent), mask=ggml.reshape(visible, *mask.ne), project=False
        )
        return ggml.mul_mat(layer["attn_output"], out), visible


def distribute(
    build: Build, cur: GraphTensor, streams: GraphTensor, mixed: StreamMix
) -> GraphTensor:
    """build_hc_post of glm5-next.cpp: one operation, or many.

    llama.cpp does not use the fused one if it runs on another device than the layer's other operations, as after the
    last layer on the host.
    """
    if not build.options.divided:
        return hc_post(cur, streams, mixed)
    width, count, tokens, _ = streams.ne
    post, comb = mixed.post, mixed.comb
    parts: list[GraphTensor] = []
    for _ in range(number(count)):
        part = ggml.mul(cur, ggml.view(post, 1, tokens, strides=(post.nb[1],)))
        for _ in range(number(count)):
            stream = ggml.view(streams, width, tokens, strides=(streams.nb[2],))
            weight = ggml.view(comb, 1, tokens, strides=(comb.nb[2],))
            part = ggml.add(part, ggml.mul(stream, weight))
        parts.append(ggml.reshape(part, width, 1, tokens))
    return reduce(lambda left, right: ggml.concat(left, right, 1), parts)


def _select_by_gate(
    layer: GraphLayer, pools: Pools, cur: GraphTensor, qr: GraphTensor
) -> GraphTensor:
    """build_kpool_select of glm5-next.cpp: the mask of the selected cells. A pool's key is a gated sum of its keys."""
    build, tokens, width = layer.build, layer.build.n_tokens, pools.width
    q = ggml.reshape(ggml.mul_mat(layer["indexer.attn_q_b"], qr), width, pools.heads, tokens)
    key = normalize(
        ggml.mul_mat(layer["indexer.attn_k"], cur),
        layer["indexer.k_norm"],
        layer.bias("indexer.k_norm"),
        kind=Norm.LAYER,
    )
    gate = ggml.mul_mat(layer["indexer_compressor_gate"], cur)
    pools.store(layer, ggml.concat(key, gate, 0))
    rows = pools.members_of_new(layer)
    keys, gates = (
        ggml.view(rows, width, pools.size, pools.new, strides=rows.nb[1:3]) for _ in range(2)
    )
    gates = ggml.add(gates, layer["indexer_compressor_ape"])
    gates = ggml.cont(ggml.permute(gates, 1, 0, 2, 3))
    probs = ggml.soft_max(ggml.reshape(gates, pools.size, width * pools.new))
    probs = ggml.reshape(probs, pools.size, width, pools.new)
    keys = ggml.cont(ggml.permute(keys, 1, 0, 2, 3))
    pooled = ggml.reshape(ggml.sum_rows(ggml.mul(probs, keys)), width, pools.new)
    pooled = pools.store_pooled(layer, pooled)
    weights = ggml.scale(ggml.mul_mat(layer["indexer.proj"], cur))
    score = ggml.lightning_indexer(q, pooled, weights, pools.mask)
    selected = ggml.top_k(score, pools.top)
    # the selection in the order of its scores
    scores = ggml.get_rows(ggml.reshape(score, 1, pools.count, tokens), selected)
    scores = ggml.reshape(scores, pools.top, tokens)
    order = ggml.new("ARGSORT", I32, scores.ne, scores)
    ranked = ggml.reshape(ggml.cast(selected, F32), 1, pools.top, tokens)
    ranked = ggml.reshape(ggml.get_rows(ranked, order), pools.top, tokens)
    cells = pools.cells_of(build, ggml.cast(ggml.cont(ranked), I32))
    live = ggml.unary(ggml.reshape(present(pools.alive), pools.chosen, tokens))
    spare = ggml.new("ARANGE", F32, shape(pools.chosen))
    mask = layer.inputs.attn.base.mask
    opened = pools.open(mask, cells, live, spare)
    opened = ggml.view(opened, mask.ne[0], tokens, strides=(opened.nb[2],))
    return ggml.add(opened, ggml.reshape(mask, mask.ne[0], tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen4Exp(DeltaNet):
    """Qwen 4 exp: gated delta nets, attention to selected pools, several residual streams, n-gram embeddings."""

    pools: Pools | None = None  # while a graph is built

    def variant(self, hparams: Hparams, il: int) -> tuple[bool, bool]:
        """Whether the layer selects pools, and whether it adds n-gram embeddings."""
        return bool(_ratios(hparams)[il]), il in _ngram_layers(hparams)

    def build(self, build: Build) -> None:
        sizes, hparams = build.sizes, build.hparams
        if not build.only_numbers(build.n_tokens, sizes.n_seqs, sizes.n_kv):
            return
        ngrams = _ngrams(build) if _ngram_layers(hparams) else None
        embd = build.input_embd()
        ratio = max(_ratios(hparams))
        pools = Pools.of(build, ratio, parts=2) if ratio else None
        family = replace(self, pools=pools)
        build.inputs = self.layer_inputs(build)
        streams = split_streams(build, embd)
        build.expand(streams)
        for layer in build.layers():
            if ngrams is not None and layer.index in _ngram_layers(hparams):
                streams = _add_ngrams(layer, ngrams, streams)
            normed = _norm_streams(streams, layer["hc_attn_norm"])
            cur, inject = _mix(layer, normed, "attn")
            build.expand(cur)
            cur = family.attention(layer, cur)
            if layer.facts.is_last:
                cur = ggml.get_rows(cur, build.inputs.out_ids)
                inject = ggml.get_rows(inject, build.inputs.out_ids)
                streams = output_streams(build, streams)
            streams = _inject(cur, streams, inject)
            normed = _norm_streams(streams, layer["hc_ffn_norm"])
            cur, inject = _mix(layer, normed, "ffn")
            streams = _inject(self.feed_forward(layer, cur), streams, inject)
        width, count, rows, _ = streams.ne
        last = ggml.reshape(streams, width * count, rows)  # t_h_nextn
        build.output(last)
        build.expand(last)
        cur = _merge(build, _norm_streams(streams, build["output_hc_norm"]), number(count))
        build.output_embd(cur)
        cur = logits(build, cur)
        build.output(cur)
        build.expand(cur)

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return self.mixer(layer, cur) if layer.facts.is_recr else self.full_attention(layer, cur)

    def mask_of(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor | None:
        if self.pools is None or not _ratios(layer.hparams)[layer.index]:
            return None
        mask = layer.inputs.attn.base.mask
        return ggml.reshape(_select_by_mean(layer, self.pools, cur), *mask.ne)


def scaled_routing(hparams: Hparams) -> Routing:
    """Soft-max over all experts; the weights may have a scale."""
    return replace(
        plain_routing(hparams), scaled=hparams.real("expert_weights_scale") not in {0.0, 1.0}
    )


def _ratios(hparams: Hparams) -> tuple[int, ...]:
    """Cells per pool in each layer; 0 in layers without."""
    return hparams.per_layer("attention.compress_ratios", 0)


def _ngram_layers(hparams: Hparams) -> tuple[int, ...]:
    listed = hparams.key("ple.layers")
    return tuple(il for il in listed if isinstance(il, int)) if isinstance(listed, tuple) else ()


def _select_by_mean(layer: GraphLayer, pools: Pools, cur: GraphTensor) -> GraphTensor:
    """build_qsa_sel: the mask of the selected cells. A pool's key is the mean of its keys, then normed and rotated."""
    build, tokens, width = layer.build, layer.build.n_tokens, pools.width
    pools.store(layer, ggml.mul_mat(layer["indexer.k_proj"], cur))
    rows = pools.members_of_new(layer)
    parts = [ggml.view(rows, width, pools.new, strides=(rows.nb[2],)) for _ in range(pools.size)]
    pooled = ggml.cont(parts[0])
    for part in parts[1:]:
        pooled = ggml.add(pooled, part)
    pooled = normalize(ggml.scale(pooled), layer["indexer.k_norm"])
    pooled = ggml.rope(ggml.reshape(pooled, width, 1, pools.new), present(pools.new_pos))
    pooled = pools.store_pooled(layer, ggml.reshape(pooled, width, pools.new))
    q = ggml.reshape(ggml.mul_mat(layer["indexer.q_proj"], cur), width, pools.heads, tokens)
    q = ggml.rope(normalize(q, layer["indexer.q_norm"]), layer.inputs.pos)
    weights = ggml.fill(empty(F32, pools.heads, tokens))
    score = ggml.lightning_indexer(q, pooled, weights, pools.mask)
    selected = ggml.top_k(score, pools.top)
    cells = pools.cells_of(build, selected)
    scores = ggml.get_rows(ggml.reshape(score, 1, pools.count, tokens), selected)
    live = ggml.repeat(ggml.clamp(ggml.scale(scores)), pools.size, pools.top, tokens, 1)
    live = ggml.reshape(live, pools.size * pools.top, tokens)
    live_tail = ggml.clamp(ggml.scale(ggml.cast(pools.tail_members, F32)))
    live = ggml.concat(live, live_tail, 0)
    ones = ggml.fill(live)
    spare = ggml.scale(ggml.new("CUMSUM", F32, ones.ne, ones))
    mask = layer.inputs.attn.base.mask
    opened = pools.open(mask, cells, live, spare)
    cells_per_row, rows_per_stream, one, streams = mask.ne
    row = opened.nb[2]
    strides = (row, row * rows_per_stream, row * rows_per_stream * one)
    opened = ggml.view(opened, cells_per_row, rows_per_stream, one, streams, strides=strides)
    return ggml.add(opened, mask)


def _norm_streams(streams: GraphTensor, weight: GraphTensor) -> GraphTensor:
    """Every stream normalised by itself: [width x streams, tokens]."""
    width, count, tokens, _ = streams.ne
    return ggml.reshape(ggml.mul(ggml.rms_norm(streams), weight), width * count, tokens)


def _mix(layer: GraphLayer, normed: GraphTensor, part: str) -> tuple[GraphTensor, GraphTensor]:
    """build_hc_mix: the input of a sublayer, and the weights that distribute its output."""
    width, count = layer.hparams.n_embd, stream_count(layer.build)
    tokens = normed.ne[1]
    low = ggml.mul_mat(layer[f"hc_{part}_down"], normed)
    gate = ggml.mul_mat(layer[f"hc_{part}_up"], ggml.unary(ggml.scale(low)))
    streams = ggml.reshape(normed, width, count, tokens)
    gates = ggml.reshape(gate, width, count, tokens)
    mixed = ggml.new("DSV4_HC_PRE", F32, shape(width, tokens), streams, gates)
    return mixed, ggml.mul_mat(layer[f"hc_{part}_inject"], normed)


def _inject(cur: GraphTensor, streams: GraphTensor, inject: GraphTensor) -> GraphTensor:
    """build_hc_combine: the streams after adding the output of a sublayer."""
    weights = ggml.scale(ggml.unary(ggml.scale(inject)))
    return ggml.new("DSV4_HC_POST", F32, streams.ne, cur, streams, weights)


def _merge(build: Build, normed: GraphTensor, count: int) -> GraphTensor:
    """build_hc_mix after the last layer: the mean of the gated streams."""
    width, tokens = build.hparams.n_embd, normed.ne[1]
    low = ggml.mul_mat(build["output_hc_down"], normed)
    gate = ggml.mul_mat(build["output_hc_up"], ggml.unary(ggml.scale(low)))
    gated = ggml.reshape(ggml.mul(normed, ggml.unary(gate)), width, count, tokens)
    parts = [ggml.view(gated, width, tokens, strides=(gated.nb[2],)) for _ in range(count)]
    total = ggml.cont(parts[0])
    for part in parts[1:]:
        total = ggml.add(total, part)
    return ggml.scale(total)


def _ngrams(build: Build) -> GraphTensor:
    """build_inp_ple: the embeddings of the n-grams that end at each token."""
    hparams = build.hparams
    heads = (hparams.integer("ple.ngram_size") - 1) * hparams.integer("ple.heads_per_ngram")
    rows = ggml.graph_input(I32, heads * build.n_tokens, name="ple_rows")
    table = build["per_layer_token_embd"]
    embd = ggml.reshape(ggml.get_rows(table, rows), table.ne[0] * heads, build.n_tokens)
    build.expand(embd)
    return embd


def _add_ngrams(layer: GraphLayer, embd: GraphTensor, streams: GraphTensor) -> GraphTensor:
    """build_ple: the streams plus the n-gram embeddings, which are gated and pass through a convolution."""
    hparams, sizes = layer.hparams, layer.build.sizes
    width, count, tokens, _ = streams.ne
    key, value = ggml.mul_mat(layer["ple_key"], embd), ggml.mul_mat(layer["ple_value"], embd)

    def norm(cur: GraphTensor, name: str) -> GraphTensor:
        cur = ggml.reshape(cur, width, count, tokens)
        return ggml.mul(ggml.rms_norm(cur), layer[name])

    dots = ggml.mul(norm(key, "ple_norm_key"), norm(streams, "ple_norm_query"))
    dots = ggml.scale(ggml.sum_rows(dots))
    size = ggml.sqrt(ggml.clamp(ggml.unary(dots)))
    gate = ggml.unary(ggml.mul(ggml.unary(dots), size))
    value = ggml.repeat(ggml.reshape(value, width, 1, tokens), width, count, tokens, 1)
    gated = ggml.mul(value, gate)
    flat = norm(ggml.reshape(gated, width * count, tokens), "ple_norm_conv")
    flat = ggml.reshape(flat, width * count, tokens)
    flat = ggml.reshape(flat, width * count, sizes.n_seq_tokens, sizes.n_seqs)
    taps, step = hparams.integer("ple.conv_kernel"), hparams.integer("ple.ngram_size")
    padded = convolution_input(layer, ggml.transpose(flat), (taps - 1) * step, twice=True, side="p")
    kernel, terms = layer["ple_conv1d"], list[GraphTensor]()
    for _ in range(taps):
        view = ggml.view(
            padded, sizes.n_seq_tokens, width * count, sizes.n_seqs, strides=padded.nb[1:3]
        )
        shifted = ggml.cont(ggml.transpose(view))
        weights = ggml.cont(ggml.view(kernel, 1, width * count, strides=(kernel.nb[1],)))
        weights = ggml.reshape(weights, width * count)
        if weights.type is not F32:
            weights = ggml.cast(weights, F32)
        terms.append(ggml.mul(shifted, weights))
    total = reduce(ggml.add, terms)
    convolved = ggml.reshape(ggml.cont(ggml.unary(total)), width, count, tokens)
    return ggml.add(streams, ggml.add(gated, convolved))


POOLED: Mapping[str, Transformer] = {
    "glm5-next": Glm5Next(attn_input=input_k, routing=sigmoid_routing),
    "qwen4exp": Qwen4Exp(
        mixer=partial(linear_attention, twice=True),
        n_pos=four_positions,
        routing=scaled_routing,
    ),
}
