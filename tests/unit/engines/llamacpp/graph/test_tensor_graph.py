"""The order of a graph's nodes and leafs, contiguous tensors, and polynomials assumed to differ."""

from __future__ import annotations

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.tensor import F32, Graph, GraphTensor, variable

T = variable("T")


def leaf(name: str) -> GraphTensor:
    return ggml.graph_input(F32, 8, T, name=name)


def test_expand_adds_sources_first_from_left_to_right() -> None:
    a, b, c = leaf("a"), leaf("b"), leaf("c")
    left, right = ggml.scale(b), ggml.unary(a)
    top = ggml.add(left, ggml.mul(right, c))
    graph = Graph()
    graph.expand(top)
    assert [node.op for node in graph.nodes] == ["SCALE", "UNARY", "MUL", "ADD"]
    assert [item.name for item in graph.leafs] == ["b", "a", "c"]


def test_expand_adds_a_node_once() -> None:
    a = leaf("a")
    shared = ggml.scale(a)
    graph = Graph()
    graph.expand(shared)
    graph.expand(shared)
    graph.expand(ggml.add(ggml.unary(a), shared))
    assert [node.op for node in graph.nodes] == ["SCALE", "UNARY", "ADD"]
    assert graph.leafs == [a]


def test_expand_a_chain_of_10_000_nodes() -> None:
    """As when a model expands only its last layer: expand does not recurse."""
    tensor = leaf("a")
    for _ in range(10_000):
        tensor = ggml.scale(tensor)
    graph = Graph()
    graph.expand(tensor)
    assert len(graph.nodes) == 10_000


def test_is_contiguous() -> None:
    graph, x = Graph(), leaf("a")
    assert graph.is_contiguous(x)
    assert graph.is_contiguous(ggml.reshape(x, 4, 2, T))
    assert graph.is_contiguous(ggml.view(x, 8, T, strides=(32,)))
    assert not graph.is_contiguous(ggml.view(x, 4, T, strides=(32,)))
    assert not graph.is_contiguous(ggml.transpose(x))


def test_is_contiguous_with_any_stride_of_a_dimension_of_one() -> None:
    wide = ggml.graph_input(F32, 96, 1, name="qkv")
    assert Graph().is_contiguous(ggml.view(wide, 8, 4, 1, strides=(32, 384)))


def test_same_records_polynomials_assumed_to_differ() -> None:
    graph = Graph()
    assert graph.same(T * 4, 4 * T)
    assert not graph.same(8, 9)
    assert graph.unequal == set()
    assert not graph.same(T, 8)
    assert graph.unequal == {(T, 8)}
