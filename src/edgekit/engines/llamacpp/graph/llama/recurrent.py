"""States of recurrent layers: which rows are read, and how they are carried over (build_rs of llama-graph.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.dims import Size
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.tensor import F32, I32, GraphTensor
from edgekit.engines.llamacpp.versions import Rules

GetRows = Callable[[GraphTensor, GraphTensor], GraphTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInput:
    """Rows of the sequences in the batch, and of those that are only moved: none when all are in it."""

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
    """The cache of a layer's states: "r" of the convolution, "s" of the recurrence."""
    return build.cache(f"cache_{side}_l{layer.index}", F32, width, build.sizes.n_seqs)


def read_states(
    build: Build,
    given: StateInput,
    cache: GraphTensor,
    width: Size,
    *,
    get_rows: GetRows | None = None,
) -> GraphTensor:
    """build_rs: one row is cleared, those of the batch are read, the others are written back."""
    rows = ggml.reshape(cache, width, cache.ne[1])
    build.expand(ggml.scale_inplace(ggml.view(rows, width)))
    find = _find_apart if build.options.rules < Rules.V0_6 else _find
    found, others = find(build, given, rows, get_rows)
    build.expand(ggml.cpy(others, ggml.view(cache, width, 0, strides=(cache.nb[1],))))
    return found


def _find_apart(
    build: Build, given: StateInput, rows: GraphTensor, get_rows: GetRows | None
) -> tuple[GraphTensor, GraphTensor]:
    """0.5: the others are looked up by themselves, and there are none."""
    found = (get_rows or ggml.get_rows)(rows, given.main)
    build.expand(found)
    return found, ggml.get_rows(rows, given.extra)


def _find(
    build: Build, given: StateInput, rows: GraphTensor, get_rows: GetRows | None
) -> tuple[GraphTensor, GraphTensor]:
    """0.6: all rows are looked up, or all but one where the operation finds its own; the others are seen in them.

    So the graph is the same for any number of sequences in a batch.
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
