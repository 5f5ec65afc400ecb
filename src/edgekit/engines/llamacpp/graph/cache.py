"""KV caches and recurrent states in a graph: rows are written by index and read back as views.

Follows llama-kv-cache.cpp, and build_rs of llama-graph.cpp for the states of recurrent layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.dims import Size
from edgekit.engines.llamacpp.graph.tensor import F32, I32, GraphTensor, row_bytes
from edgekit.engines.llamacpp.versions import Rules


def _keys(build: Build, layer: GraphLayer, cells: Size, owner: int) -> GraphTensor:
    width = layer.facts.n_embd_head_k * layer.facts.n_head_kv
    return build.cache(
        f"cache_k_l{owner}", build.options.type_k, width, cells, build.sizes.n_stream
    )


def _values(build: Build, layer: GraphLayer, cells: Size, owner: int) -> GraphTensor:
    """The V cache. Without flash attention it is transposed, and as wide as the widest layer."""
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
    # Each element is a row.
    cells_view = ggml.reshape(v, 1, v.elements)
    return ggml.set_rows(cells_view, ggml.reshape(v_cur, 1, v_cur.elements), v_idxs)


def _rows(cur: GraphTensor) -> GraphTensor:
    """Reshapes all heads of a token into one row."""
    return ggml.view(cur, cur.ne[0] * cur.ne[1], cur.ne[2], strides=(cur.nb[2],))


def _one_stream(build: Build, cache: GraphTensor, cur: GraphTensor) -> GraphTensor:
    """The cache with all streams in one: write indices are global."""
    if not build.options.streams:
        return cache
    return ggml.reshape(cache, cur.ne[0] * cur.ne[1], cache.ne[1] * cache.ne[2])


GetRows = Callable[[GraphTensor, GraphTensor], GraphTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInput:
    """State rows of the sequences in the batch, and of the others, which are only copied."""

    copy: GraphTensor
    main: GraphTensor
    extra: GraphTensor


def input_rs(build: Build) -> StateInput:
    """build_rs_inp."""
    count = build.sizes.n_seqs
    copy = ggml.graph_input(I32, count, name="rs_s_copy")
    others = 0 if build.options.rules < Rules.V0_6 else count - 1
    return StateInput(copy=copy, main=ggml.view(copy, count), extra=ggml.view(copy, others))


def state(build: Build, layer: GraphLayer, side: str, width: Size) -> GraphTensor:
    """The state cache of a layer: "r" for the convolution, "s" for the recurrence."""
    return build.cache(f"cache_{side}_l{layer.index}", F32, width, build.sizes.n_seqs)


def read_states(
    build: Build,
    given: StateInput,
    cache: GraphTensor,
    width: Size,
    *,
    get_rows: GetRows | None = None,
) -> GraphTensor:
    """build_rs: clears one row, reads the rows of the batch, writes the others back."""
    rows = ggml.reshape(cache, width, cache.ne[1])
    build.expand(ggml.scale_inplace(ggml.view(rows, width)))
    find = _find_apart if build.options.rules < Rules.V0_6 else _find
    found, others = find(build, given, rows, get_rows)
    build.expand(ggml.cpy(others, ggml.view(cache, width, 0, strides=(cache.nb[1],))))
    return found


def _find_apart(
    build: Build, given: StateInput, rows: GraphTensor, get_rows: GetRows | None
) -> tuple[GraphTensor, GraphTensor]:
    """0.5: a separate lookup for the other rows, of which there are none."""
    found = (get_rows or ggml.get_rows)(rows, given.main)
    build.expand(found)
    return found, ggml.get_rows(rows, given.extra)


def _find(
    build: Build, given: StateInput, rows: GraphTensor, get_rows: GetRows | None
) -> tuple[GraphTensor, GraphTensor]:
    """0.6: one lookup of all rows, with views of the batch's rows and the others. So the graph is the same for any
    number of sequences in a batch.
    """
    count = build.sizes.n_seqs
    if get_rows is None:
        every = ggml.get_rows(rows, given.copy)
        found = ggml.view(every, rows.ne[0], count, strides=(every.nb[1],))
    else:
        found = get_rows(rows, given.main)
    build.expand(found)
    if get_rows is not None:
        every = ggml.get_rows(rows, given.extra)
    return found, ggml.view(every, rows.ne[0], 0, strides=(every.nb[1],))


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCache:
    name: str
    width: int
    cells: Size

    def _tensor(self, build: Build, layer: GraphLayer) -> GraphTensor:
        name, streams = f"cache_k_{self.name}_l{layer.index}", build.sizes.n_stream
        return build.cache(name, build.options.type_k, self.width, self.cells, streams)

    def store(self, build: Build, layer: GraphLayer, k: GraphTensor, idxs: GraphTensor) -> None:
        """`k` is [width, 1, rows]. Write indices are global over all streams."""
        into = self._tensor(build, layer)
        if build.options.streams:
            into = ggml.reshape(into, self.width, self.cells * build.sizes.n_stream)
        rows = ggml.view(k, self.width, k.ne[2], strides=(k.nb[2],))
        build.expand(ggml.set_rows(into, rows, idxs))

    def read(self, build: Build, layer: GraphLayer) -> GraphTensor:
        """The whole cache as [width, 1, cells, streams]."""
        cache = self._tensor(build, layer)
        row = row_bytes(cache.type, self.width)
        strides = (row, row, row * self.cells)
        return ggml.view(cache, self.width, 1, self.cells, build.sizes.n_stream, strides=strides)
