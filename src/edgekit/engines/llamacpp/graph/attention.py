"""KV caches, recurrent states, and attention over them.

Rows of a cache are written by index and read back as views (llama-kv-cache.cpp); build_rs and build_attn* are in
llama-graph.cpp @ 0c1e570. Which attention input a graph has decides the order in which Q, K and V are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.build import AttnInput, Build, CacheInput, GraphLayer
from edgekit.engines.llamacpp.graph.layers import QKV, hadamard, project_biased
from edgekit.engines.llamacpp.graph.tensor import (
    F16,
    F32,
    I64,
    GraphTensor,
    NoGraphError,
    Size,
    row_bytes,
)
from edgekit.engines.llamacpp.types import Rules
from edgekit.formats.dtype import TensorType


def _keys(layer: GraphLayer, cells: Size, owner: int) -> GraphTensor:
    """The K cache of layer `owner`."""
    build, width = layer.build, layer.facts.n_embd_head_k * layer.facts.n_head_kv
    streams = build.sizes.n_stream
    return build.cache(f"cache_k_l{owner}", build.options.type_k, width, cells, streams)


def _values(layer: GraphLayer, cells: Size, owner: int) -> GraphTensor:
    """The V cache of layer `owner`. Without flash attention it is transposed, and as wide as the widest layer."""
    build, width = layer.build, layer.facts.n_embd_head_v * layer.facts.n_head_kv
    if build.options.v_trans:
        width = build.hparams.n_embd_v_gqa_max
    streams = build.sizes.n_stream
    return build.cache(f"cache_v_l{owner}", build.options.type_v, width, cells, streams)


def side_cache(layer: GraphLayer, name: str, width: int, cells: Size) -> GraphTensor:
    """A layer's cache of keys next to the usual one, such as an indexer's: one row of this width per cell."""
    build, tensor = layer.build, f"cache_k_{name}_l{layer.index}"
    return build.cache(tensor, build.options.type_k, width, cells, build.sizes.n_stream)


def store_rows(
    build: Build, cache: GraphTensor, new: GraphTensor, row_numbers: GraphTensor
) -> None:
    """Writes [width, heads, tokens] to a cache, one row per token. The row numbers count across streams."""
    width, heads, tokens, _ = new.ne
    if build.options.streams:
        cache = ggml.reshape(cache, width * heads, cache.ne[1] * cache.ne[2])
    rows = ggml.view(new, width * heads, tokens, strides=(new.nb[2],))
    build.expand(ggml.set_rows(cache, rows, row_numbers))


def read_heads(cache: GraphTensor, width: int, heads: int) -> GraphTensor:
    """The whole cache as [width of a head, heads, cells, streams]."""
    row, (_, cells, streams, _) = row_bytes(cache.type, cache.ne[0]), cache.ne
    strides = (row_bytes(cache.type, width), row, row * cells)
    return ggml.view(cache, width, heads, cells, streams, strides=strides)


def store_and_read(
    layer: GraphLayer, cache: CacheInput, k: GraphTensor | None, v: GraphTensor | None, owner: int
) -> tuple[GraphTensor, GraphTensor]:
    """Stores new K and V in the cache of layer `owner`, and returns all keys and values of that cache."""
    build, facts = layer.build, layer.facts
    transposed = build.options.v_trans
    keys, values = _keys(layer, cache.n_kv, owner), _values(layer, cache.n_kv, owner)
    if k is not None:
        store_rows(build, keys, k, cache.k_idxs)
    if v is not None and cache.v_idxs is not None:
        store = _store_channels if transposed else store_rows
        store(build, values, v, cache.v_idxs)
    keys = read_heads(keys, facts.n_embd_head_k, facts.n_head_kv)
    if not transposed:
        return keys, read_heads(values, facts.n_embd_head_v, facts.n_head_kv)
    width, cells, streams, _ = values.ne
    head, channel = facts.n_embd_head_v, row_bytes(values.type, cells)
    strides = (channel * head, channel, channel * width)
    return keys, ggml.view(values, cells, facts.n_head_kv, head, streams, strides=strides)


def _store_channels(
    build: Build, cache: GraphTensor, new: GraphTensor, element_numbers: GraphTensor
) -> None:
    """Writes new values to a transposed V cache, where the tokens of a channel are adjacent: element by element."""
    head, heads, tokens, _ = new.ne
    width = head * heads
    if build.graph.same(row_bytes(new.type, width), new.nb[2]):
        new = ggml.reshape(new, width, tokens)
    else:
        new = ggml.cont(new, width, tokens)
    if not build.graph.same(width, cache.ne[0]):
        new = ggml.pad(new, cache.ne[0] - width)
    into, elements = ggml.reshape(cache, 1, cache.elements), ggml.reshape(new, 1, new.elements)
    build.expand(ggml.set_rows(into, elements, element_numbers))


GetRows = Callable[[GraphTensor, GraphTensor], GraphTensor]


def state(layer: GraphLayer, side: str, width: Size) -> GraphTensor:
    """The state cache of a layer: "r" for the convolution, "s" for the recurrence."""
    return layer.build.cache(f"cache_{side}_l{layer.index}", F32, width, layer.build.sizes.n_seqs)


def read_states(
    build: Build, cache: GraphTensor, *, get_rows: GetRows | None = None
) -> GraphTensor:
    """build_rs: clears one row, reads the rows of the batch, and writes the other rows back.

    0.5 looks up the other rows separately; in the reserved graph there are none. 0.6 looks up all rows at
    once, so its graph does not depend on the number of sequences in a batch. `get_rows` replaces the lookup.
    """
    rs, width = build.rs, cache.ne[0]
    rows = ggml.reshape(cache, width, cache.ne[1])
    build.expand(ggml.scale_inplace(ggml.view(rows, width)))
    is_before_0_6 = build.options.rules < Rules.V0_6
    if is_before_0_6 or get_rows is not None:
        states = (get_rows or ggml.get_rows)(rows, rs.main)
        build.expand(states)
        other_rows = ggml.get_rows(rows, rs.extra)
    else:
        other_rows = ggml.get_rows(rows, rs.copy)
        states = ggml.view(other_rows, width, build.sizes.n_seqs, strides=(other_rows.nb[1],))
        build.expand(states)
    if not is_before_0_6:
        other_rows = ggml.view(other_rows, width, 0, strides=(other_rows.nb[1],))
    build.expand(ggml.cpy(other_rows, ggml.view(cache, width, 0, strides=(cache.nb[1],))))
    return states


def write_states(build: Build, cache: GraphTensor, states: GraphTensor) -> None:
    """Replaces the states of all sequences by the first elements of `states`."""
    size = cache.ne[0] * build.sizes.n_seqs
    build.expand(ggml.cpy(ggml.view(states, size), ggml.view(cache, size)))


def mask_type(build: Build) -> TensorType:
    return F16 if build.options.flash_attn else F32


def attention_mask(build: Build, *dims: Size, name: str) -> GraphTensor:
    """The mask in the type that the kernel reads. Before b9410 the f16 mask was a copy of an f32 mask."""
    if build.options.flash_attn and build.options.rules < Rules.F16_MASK:
        return ggml.cast(ggml.graph_input(F32, *dims, name=name), F16)
    return ggml.graph_input(mask_type(build), *dims, name=name)


def _cache_input(build: Build, n_kv: Size, *, values: bool) -> CacheInput:
    """The inputs of a cache, without rotations. `values`: it also holds V."""
    sizes = build.sizes
    transposed = build.options.v_trans
    width = build.hparams.n_embd_v_gqa_max if transposed else 1
    per_stream = sizes.n_tokens // sizes.n_stream
    k_idxs = ggml.graph_input(I64, sizes.n_tokens, name="attn_inp_k_idxs")
    v_idxs: GraphTensor | None = None
    if values:
        v_idxs = ggml.graph_input(I64, sizes.n_tokens * width, name="attn_inp_v_idxs")
    return CacheInput(
        n_kv=n_kv,
        k_idxs=k_idxs,
        v_idxs=v_idxs,
        mask=attention_mask(build, n_kv, per_stream, 1, sizes.n_stream, name="attn_inp_kq_mask"),
    )


def _with_rotation(build: Build, inputs: CacheInput, *, swa: bool | None) -> CacheInput:
    """Adds Hadamard matrices for quantised caches, which store rotated K and V if all heads have one width."""
    k_rot, v_rot = (_rotation(build, side, swa=swa) for side in "kv")
    return replace(inputs, k_rot=k_rot, v_rot=v_rot)


MIN_ROTATION = 64  # llama-kv-cache.cpp:1447


def _rotation(build: Build, side: str, *, swa: bool | None) -> GraphTensor | None:
    """The rotation matrix of K or V, if there is one. `swa` restricts it to layers with or without a window."""
    kind = build.options.type_k if side == "k" else build.options.type_v
    head_dims = build.hparams.cached_heads(side, swa=swa)
    first_dim = build.hparams.head_dim(side, 0)
    # only for quantised caches whose heads all have one size
    if kind.block_elements == 1 or len(head_dims) != 1 or first_dim % MIN_ROTATION:
        return None
    if build.options.rules < Rules.ROTATION_PER_CACHE and build.hparams.varies(side):
        return None
    width = MIN_ROTATION if side == "v" else widest_rotation(*head_dims)
    return ggml.graph_input(F32, width, width, name=f"attn_inp_{side}_rot")


def widest_rotation(width: int) -> int:
    """The largest power of two that divides the head width; at least 64."""
    if width < 1:
        raise NoGraphError("heads without a width")
    return max(width & -width, MIN_ROTATION)


def input_kv(build: Build) -> AttnInput:
    """build_attn_inp_kv: one cache for all layers."""
    base = _cache_input(build, build.sizes.n_kv, values=True)
    return AttnInput(base=_with_rotation(build, base, swa=None))


def input_kv_iswa(build: Build, *, rotate: bool = True) -> AttnInput:
    """build_attn_inp_kv_iswa: one cache for sliding-window layers, one for the others."""
    base = _cache_input(build, build.sizes.n_kv, values=True)
    swa = _cache_input(build, build.sizes.n_kv_swa, values=True)
    if rotate and build.options.rules < Rules.ROTATION_PER_CACHE:
        base = _with_rotation(build, base, swa=None)
        swa = replace(swa, k_rot=base.k_rot, v_rot=base.v_rot)
    elif rotate:
        base, swa = _with_rotation(build, base, swa=False), _with_rotation(build, swa, swa=True)
    return AttnInput(base=base, swa=swa)


def input_auto(build: Build) -> AttnInput:
    """The inputs of graph<iswa>: two caches if the model has a sliding window."""
    return input_kv_iswa(build) if build.hparams.has_swa else input_kv(build)


def input_k(build: Build) -> AttnInput:
    """build_attn_inp_k: a K cache only; V is part of K."""
    return AttnInput(base=_cache_input(build, build.sizes.n_kv, values=False))


def input_k_windows(build: Build) -> AttnInput:
    """The same with a second cache for sliding-window layers."""
    base = _cache_input(build, build.sizes.n_kv, values=False)
    return AttnInput(base=base, swa=_cache_input(build, build.sizes.n_kv_swa, values=False))


def input_no_cache(build: Build, *, swa: bool = False) -> AttnInput:
    """build_attn_inp_no_cache: all tokens of the batch see each other."""
    n = build.n_tokens
    base = mask_only(build, n, "self_kq_mask")
    return AttnInput(base=base, swa=mask_only(build, n, "self_kq_mask_swa") if swa else None)


def mask_only(build: Build, n_kv: Size, name: str) -> CacheInput:
    """The inputs of attention without a cache: only a mask."""
    mask = attention_mask(build, n_kv, build.n_tokens, 1, 1, name=name)
    return CacheInput(n_kv=n_kv, mask=mask, k_idxs=mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Optional parts of an attention layer."""

    kq_b: GraphTensor | None = None
    sinks: GraphTensor | None = None
    v_mla: GraphTensor | None = None
    softcap: int = 0  # softcap passes (scale, tanh, scale) over the scores, without flash attention


NO_EXTRAS = Extras()


def attend(
    layer: GraphLayer,
    q: GraphTensor,
    k: GraphTensor | None,
    v: GraphTensor | None,
    *,
    inputs: AttnInput | None = None,
    extras: Extras = NO_EXTRAS,
    owner: int | None = None,
    mask: GraphTensor | None = None,
    project: bool = True,
) -> GraphTensor:
    """build_attn with a K and a V cache. `project`: through the output projection.

    `inputs`: if not those of all layers; `owner`: the layer whose cache is read, if not this one; `mask`: if not the
    cache's.
    """
    build, inputs = layer.build, inputs or layer.inputs.attn
    cache = inputs.of(layer)
    if cache.k_rot is not None:
        q = hadamard(build, q, cache.k_rot)
        k = k and hadamard(build, k, cache.k_rot)
    if cache.v_rot is not None:
        v = v and hadamard(build, v, cache.v_rot)
    for tensor in (q, v, k) if inputs.swa is None else (q, k, v):
        if tensor is not None:
            build.expand(tensor)
    keys, values = store_and_read(layer, cache, k, v, layer.index if owner is None else owner)
    transposed = build.options.v_trans
    cur = attn_mha(build, q, keys, values, mask or cache.mask, extras, transposed=transposed)
    if cache.v_rot is not None:
        cur = hadamard(build, cur, cache.v_rot)
    return project_output(layer, cur) if project else cur


def attend_k(
    layer: GraphLayer,
    qkv: QKV,
    *,
    mask: GraphTensor | None = None,
    sinks: GraphTensor | None = None,
    project: bool = True,
) -> GraphTensor:
    """build_attn with a K cache only (MLA): V is the first part of each K row. `mask`: if not the cache's."""
    build, (q, k, v) = layer.build, qkv
    cache = layer.inputs.attn.of(layer)
    for tensor in (q, v, k):
        build.expand(tensor)
    keys = _keys(layer, cache.n_kv, layer.index)
    store_rows(build, keys, k, cache.k_idxs)
    keys = read_heads(keys, layer.facts.n_embd_head_k, layer.facts.n_head_kv)
    values = ggml.view(keys, v.ne[0], *keys.ne[1:], strides=keys.nb[1:])
    extras = Extras(v_mla=layer["attn_v_b"], sinks=sinks)
    cur = attn_mha(build, q, keys, values, mask or cache.mask, extras, transposed=False)
    return project_output(layer, cur) if project else cur


def attend_now(
    layer: GraphLayer,
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    *,
    inputs: AttnInput | None = None,
    extras: Extras = NO_EXTRAS,
    project: bool = True,
) -> GraphTensor:
    """build_attn without a cache, and cross-attention to an encoder. `inputs`: if not those of all layers."""
    inputs = inputs or layer.inputs.attn
    for tensor in (q, k, v):
        layer.build.expand(tensor)
    cur = attn_mha(layer.build, q, k, v, inputs.of(layer).mask, extras, transposed=False)
    return project_output(layer, cur) if project else cur


def project_output(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    return project_biased(layer, "attn_output", cur) if "attn_output" in layer else cur


def attn_mha(  # noqa: PLR0917 - q, k and v, as build_attn takes them
    build: Build,
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    mask: GraphTensor | None,
    extras: Extras,
    *,
    transposed: bool,
) -> GraphTensor:
    """build_attn_mha. `transposed`: each V row holds one channel of all tokens."""
    n_stream = k.ne[3]
    per_stream = q.ne[2] // n_stream
    strides = (q.nb[1], q.nb[2], q.nb[2] * per_stream)
    q = ggml.view(q, q.ne[0], q.ne[1], per_stream, n_stream, strides=strides)
    q, k, v = (ggml.permute(side, 0, 2, 1, 3) for side in (q, k, v))
    if build.options.flash_attn and extras.kq_b is None:
        if transposed:
            v = ggml.transpose(v)
        k, v = (ggml.cast(side, F16) if side.type is F32 else side for side in (k, v))
        cur = ggml.flash_attn_ext(q, k, v, mask, extras.sinks)
        if extras.v_mla is not None:
            cur = ggml.mul_mat(extras.v_mla, ggml.permute(cur, 0, 2, 1, 3))
            cur = ggml.cont(ggml.permute(cur, 0, 2, 1, 3))
        cur = ggml.reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
    else:
        kq = ggml.mul_mat(k, q)
        for _ in range(extras.softcap):
            kq = ggml.scale(ggml.unary(ggml.scale(kq)))
        if extras.kq_b is not None:
            kq = ggml.add(kq, extras.kq_b)
        kq = ggml.soft_max(kq, mask, extras.sinks)
        if not transposed:
            v = ggml.cont(ggml.transpose(v))
        kqv = ggml.mul_mat(v, kq)
        if extras.v_mla is not None:
            kqv = ggml.mul_mat(extras.v_mla, kqv)
        cur = ggml.permute(kqv, 0, 2, 1, 3)
        cur = ggml.cont(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
        cur.name = "kqv_out"
    build.expand(cur)
    return cur
