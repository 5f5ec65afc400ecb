"""Caches beside the one of keys and values: one narrow key for each token, or for each of some tokens."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.dims import Size
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCache:
    name: str
    width: int
    cells: Size

    def _tensor(self, build: Build, layer: GraphLayer) -> GraphTensor:
        name, streams = f"cache_k_{self.name}_l{layer.index}", build.sizes.n_stream
        return build.cache(name, build.options.type_k, self.width, self.cells, streams)

    def store(self, build: Build, layer: GraphLayer, k: GraphTensor, idxs: GraphTensor) -> None:
        """`k` is [width, 1, rows]. Indices count through all streams."""
        into = self._tensor(build, layer)
        if build.options.streams:
            into = ggml.reshape(into, self.width, self.cells * build.sizes.n_stream)
        rows = ggml.view(k, self.width, k.ne[2], strides=(k.nb[2],))
        build.expand(ggml.set_rows(into, rows, idxs))

    def read(self, build: Build, layer: GraphLayer) -> GraphTensor:
        """All of it, as [width, 1, cells, streams]."""
        cache = self._tensor(build, layer)
        row = row_bytes(cache.type, self.width)
        strides = (row, row, row * self.cells)
        return ggml.view(cache, self.width, 1, self.cells, build.sizes.n_stream, strides=strides)
