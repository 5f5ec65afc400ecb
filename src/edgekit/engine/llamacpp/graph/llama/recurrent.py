"""States of recurrent layers: which rows are read, and how they are carried over (build_rs of llama-graph.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgekit.engine.llamacpp.graph import ggml
from edgekit.engine.llamacpp.graph.dims import Size
from edgekit.engine.llamacpp.graph.llama.build import Build, Layer
from edgekit.engine.llamacpp.graph.tensor import F32, I32, Tensor

GetRows = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInput:
    """Rows of the sequences in the batch, and of those that are only moved: none when all are in it."""

    main: Tensor
    extra: Tensor


def input_rs(build: Build) -> StateInput:
    """build_rs_inp."""
    count = build.sizes.n_seqs
    copy = ggml.graph_input(I32, count, name="rs_s_copy")
    return StateInput(main=ggml.view(copy, count), extra=ggml.view(copy, 0))


def state(build: Build, layer: Layer, side: str, width: Size) -> Tensor:
    """The cache of a layer's states: "r" of the convolution, "s" of the recurrence."""
    return build.cache(f"cache_{side}_l{layer.index}", F32, width, build.sizes.n_seqs)


def read_states(
    build: Build,
    given: StateInput,
    cache: Tensor,
    width: Size,
    *,
    get_rows: GetRows = ggml.get_rows,
) -> Tensor:
    """build_rs: one row is cleared, those of the batch are read, the others are written back."""
    rows = ggml.reshape(cache, width, cache.ne[1])
    build.expand(ggml.scale_inplace(ggml.view(rows, width)))
    found = get_rows(rows, given.main)
    build.expand(found)
    others = ggml.get_rows(rows, given.extra)
    build.expand(ggml.cpy(others, ggml.view(cache, width, 0, strides=(cache.nb[1],))))
    return found
