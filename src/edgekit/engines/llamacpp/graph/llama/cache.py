"""The key and value cache in a graph: rows are written at indices and read back as views (llama-kv-cache.cpp)."""

from __future__ import annotations

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.dims import Size
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, row_bytes


def _keys(build: Build, layer: GraphLayer, cells: Size, owner: int) -> GraphTensor:
    width = layer.facts.n_embd_head_k * layer.facts.n_head_kv
    return build.cache(
        f"cache_k_l{owner}", build.options.type_k, width, cells, build.sizes.n_stream
    )


def _values(build: Build, layer: GraphLayer, cells: Size, owner: int) -> GraphTensor:
    """Without flash attention they are stored transposed, every layer as wide as the widest."""
    width = layer.facts.n_embd_head_v * layer.facts.n_head_kv
    if build.options.v_trans:
        width = build.hparams.n_embd_v_gqa_max
    return build.cache(
        f"cache_v_l{owner}", build.options.type_v, width, cells, build.sizes.n_stream
    )


def get_k(build: Build, layer: GraphLayer, cells: Size, owner: int) -> GraphTensor:
    k, facts = _keys(build, layer, cells, owner), layer.facts
    row = row_bytes(k.type, k.ne[0])
    strides = (row_bytes(k.type, facts.n_embd_head_k), row, row * cells)
    return ggml.view(
        k, facts.n_embd_head_k, facts.n_head_kv, cells, build.sizes.n_stream, strides=strides
    )


def get_v(build: Build, layer: GraphLayer, cells: Size, owner: int) -> GraphTensor:
    v, facts = _values(build, layer, cells, owner), layer.facts
    heads, head, streams = facts.n_head_kv, facts.n_embd_head_v, build.sizes.n_stream
    if not build.options.v_trans:
        row = row_bytes(v.type, v.ne[0])
        strides: tuple[Size, ...] = (row_bytes(v.type, head), row, row * cells)
        return ggml.view(v, head, heads, cells, streams, strides=strides)
    column = row_bytes(v.type, cells)
    strides = (column * head, column, column * v.ne[0])
    return ggml.view(v, cells, heads, head, streams, strides=strides)


def store_k(  # noqa: PLR0917 - in the order of the original
    build: Build,
    layer: GraphLayer,
    k_cur: GraphTensor,
    k_idxs: GraphTensor,
    cells: Size,
    owner: int,
) -> GraphTensor:
    k = _keys(build, layer, cells, owner)
    return ggml.set_rows(_one_stream(build, k, k_cur), _rows(k_cur), k_idxs)


def store_v(  # noqa: PLR0917 - in the order of the original
    build: Build,
    layer: GraphLayer,
    v_cur: GraphTensor,
    v_idxs: GraphTensor,
    cells: Size,
    owner: int,
) -> GraphTensor:
    v = _values(build, layer, cells, owner)
    if not build.options.v_trans:
        return ggml.set_rows(_one_stream(build, v, v_cur), _rows(v_cur), v_idxs)
    width = v_cur.ne[0] * v_cur.ne[1]
    if build.graph.same(row_bytes(v_cur.type, width), v_cur.nb[2]):
        v_cur = ggml.reshape(v_cur, width, v_cur.ne[2])
    else:
        v_cur = ggml.cont(v_cur, width, v_cur.ne[2])
    if not build.graph.same(width, v.ne[0]):
        v_cur = ggml.pad(v_cur, v.ne[0] - width)
    # Every number is a row of its own.
    cells_view = ggml.reshape(v, 1, v.elements)
    return ggml.set_rows(cells_view, ggml.reshape(v_cur, 1, v_cur.elements), v_idxs)


def _rows(cur: GraphTensor) -> GraphTensor:
    """All heads of a token in one row."""
    return ggml.view(cur, cur.ne[0] * cur.ne[1], cur.ne[2], strides=(cur.nb[2],))


def _one_stream(build: Build, cache: GraphTensor, cur: GraphTensor) -> GraphTensor:
    """Indices count through all streams."""
    if not build.options.streams:
        return cache
    return ggml.reshape(cache, cur.ne[0] * cur.ne[1], cache.ne[1] * cache.ne[2])
