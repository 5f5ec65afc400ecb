"""The order of nodes and leafs, and what is contiguous."""

from __future__ import annotations

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.tensor import F32, Graph, GraphTensor, variable

T = variable("T")


def leaf(name: str) -> GraphTensor:
    return ggml.graph_input(F32, 8, T, name=name)


def test_sources_come_first_and_from_left_to_right() -> None:
    a, b, c = leaf("a"), leaf("b"), leaf("c")
    left, right = ggml.scale(b), ggml.unary(a)
    top = ggml.add(left, ggml.mul(right, c))
    graph = Graph()
    graph.expand(top)
    assert [node.op for node in graph.nodes] == ["SCALE", "UNARY", "MUL", "ADD"]
    assert [item.name for item in graph.leafs] == ["b", "a", "c"]


def test_what_is_there_already_stays_where_it_is() -> None:
    a = leaf("a")
    shared = ggml.scale(a)
    graph = Graph()
    graph.expand(shared)
    graph.expand(shared)
    graph.expand(ggml.add(ggml.unary(a), shared))
    assert [node.op for node in graph.nodes] == ["SCALE", "UNARY", "ADD"]
    assert graph.leafs == [a]


def test_a_long_chain() -> None:
    """As of a model whose layers are never expanded by themselves."""
    tensor = leaf("a")
    for _ in range(10_000):
        tensor = ggml.scale(tensor)
    graph = Graph()
    graph.expand(tensor)
    assert len(graph.nodes) == 10_000


def test_contiguous() -> None:
    graph, x = Graph(), leaf("a")
    assert graph.is_contiguous(x)
    assert graph.is_contiguous(ggml.reshape(x, 4, 2, T))
    assert graph.is_contiguous(ggml.view(x, 8, T, strides=(32,)))
    assert not graph.is_contiguous(ggml.view(x, 4, T, strides=(32,)))
    assert not graph.is_contiguous(ggml.transpose(x))


def test_one_row_may_lie_anywhere() -> None:
    wide = ggml.graph_input(F32, 96, 1, name="qkv")
    assert Graph().is_contiguous(ggml.view(wide, 8, 4, 1, strides=(32, 384)))


def test_sizes_that_may_meet_are_remembered() -> None:
    graph = Graph()
    assert graph.same(T * 4, 4 * T)
    assert not graph.same(8, 9)
    assert graph.unequal == set()
    assert not graph.same(T, 8)
    assert graph.unequal == {(T, 8)}
