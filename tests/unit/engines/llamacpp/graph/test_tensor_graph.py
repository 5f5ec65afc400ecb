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


def test_expanding_twice_adds_a_node_once() -> None:
    a = leaf("a")
    shared = ggml.scale(a)
    graph = Graph()
    graph.expand(shared)
    graph.expand(shared)
    graph.expand(ggml.add(ggml.unary(a), shared))
    assert [node.op for node in graph.nodes] == ["SCALE", "UNARY", "ADD"]
    assert graph.leafs == [a]


def test_a_long_chain() -> None:
    """As in a model that only expands its last layer."""
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


def test_dimension_of_one_element_may_have_any_stride() -> None:
    wide = ggml.graph_input(F32, 96, 1, name="qkv")
    assert Graph().is_contiguous(ggml.view(wide, 8, 4, 1, strides=(32, 384)))


def test_polynomials_assumed_to_differ_are_recorded() -> None:
    graph = Graph()
    assert graph.same(T * 4, 4 * T)
    assert not graph.same(8, 9)
    assert graph.unequal == set()
    assert not graph.same(T, 8)
    assert graph.unequal == {(T, 8)}
