"""Allocations, frees and reused blocks in graphs of a few nodes."""

from __future__ import annotations

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.allocator import (
    CPU,
    Buffer,
    Log,
    PlacedGraph,
    high_water,
    trace,
)
from edgekit.engines.llamacpp.graph.plan import all_layers, fold
from edgekit.engines.llamacpp.graph.tensor import (
    F32,
    Graph,
    GraphTensor,
    Home,
    Size,
    shape,
    variable,
)

T = variable("T")


def leaf(*dims: Size) -> GraphTensor:
    return ggml.graph_input(F32, *dims, name="x")


def weight(*dims: int) -> GraphTensor:
    return GraphTensor(op="NONE", type=F32, ne=shape(*dims), home=Home.WEIGHTS)


def traced(*tensors: GraphTensor, buffer: Buffer = CPU) -> Log:
    graph = Graph()
    for tensor in tensors:
        graph.expand(tensor)
    (log,) = trace(PlacedGraph.in_one(graph, buffer), graph.same)
    return log


def events(log: Log) -> list[str]:
    """ "+N": block N is allocated; "-N": it is freed."""
    return [f"{'-' if kind else '+'}{slot}" for kind, slot, *_ in log.parts[0]]


def test_elementwise_op_overwrites_its_source() -> None:
    assert events(traced(ggml.unary(ggml.scale(leaf(8, T))))) == ["+0"]


def test_other_ops_take_a_new_block_and_free_the_old_one() -> None:
    assert events(traced(ggml.norm(ggml.norm(leaf(8, T))))) == ["+0", "+1", "-0", "+2", "-1"]


def test_weights_are_not_allocated() -> None:
    assert events(traced(ggml.mul_mat(weight(8, 4), leaf(8, T)))) == ["+0", "+1", "-0"]


def test_source_with_a_second_reader_is_not_overwritten() -> None:
    x = ggml.norm(leaf(8, T))
    assert events(traced(ggml.add(ggml.scale(x), x))) == ["+0", "+1", "-0", "+2", "-1"]


def test_source_with_a_view_is_not_overwritten_and_stays_alive() -> None:
    x = ggml.norm(leaf(8, T))
    scaled = ggml.scale(ggml.reshape(x, 4, 2, T))
    assert events(traced(scaled)) == ["+0", "+1", "-0", "+2", "-1"]


def test_source_of_another_shape_is_not_overwritten() -> None:
    assert events(traced(ggml.mul(ggml.norm(leaf(8, 1)), leaf(8, T)))) == [
        *("+0", "+1", "+2", "-0"),
        "-1",
    ]


def test_outputs_are_never_freed() -> None:
    x = ggml.norm(leaf(8, T))
    x.is_output = True
    assert events(traced(ggml.scale(x))) == ["+0", "+1", "-0", "+2"]


def test_unread_inputs_stay_allocated() -> None:
    unused = leaf(8, T)
    assert events(traced(unused, ggml.norm(leaf(8, T)))) == ["+0", "+1", "+2", "-1"]


def test_inputs_are_allocated_first() -> None:
    """Also the mask, which only the last node reads."""
    mask = leaf(4, T)
    log = traced(ggml.soft_max(ggml.norm(ggml.norm(leaf(4, T))), mask))
    assert events(log) == ["+0", "+1", "+2", "-0", "+3", "-2", "-1"]


def test_tail_of_a_reused_larger_block_is_freed() -> None:
    """As for flash attention on a GPU, which allocates more bytes than its result needs."""
    buffer = Buffer(
        name="GPU", alignment=128, extra_bytes=lambda item: 1000 if item.op == "NORM" else 0
    )
    log = traced(ggml.scale(ggml.norm(leaf(32, T))), buffer=buffer)
    (_, allocated_slot, full, _), (_, freed_slot, _, tail) = log.parts[0][1], log.parts[0][-1]
    assert (events(log), log.sizes[full], log.sizes[tail]) == (
        ["+0", "+1", "-0", "-1"],
        128 * T + 1000,
        128 * T,
    )
    assert freed_slot == allocated_slot
    outline = fold(log, all_layers(0))
    assert outline is not None
    # T = 1: 32 * 4 = 128 bytes of input; 128 + 1000 are rounded up to 1,152
    assert high_water(outline.bind(all_layers(0), {}), {"T": 1}) == 128 + 1152


def test_nodes_in_two_buffers() -> None:
    x = leaf(8, 4)
    first, second = ggml.norm(x), ggml.norm(x)
    graph = Graph()
    graph.expand(ggml.add(first, second))
    placed = PlacedGraph(
        nodes=graph.nodes,
        leafs=graph.leafs,
        node_buffers=(0, 1, 0),
        leaf_buffers=(0,),
        buffers=(CPU, Buffer(name="GPU", alignment=128)),
    )
    host, device = trace(placed, graph.same)
    assert events(host) == ["+0", "+1", "-0"]
    assert events(device) == ["+0", "-0"]


def test_layer_without_nodes_has_an_empty_part() -> None:
    graph = Graph()
    for part in (ggml.norm(leaf(8, T)), None, ggml.norm(leaf(8, T)), None):
        graph.mark()
        if part is not None:
            graph.expand(part)
    (log,) = trace(PlacedGraph.in_one(graph, CPU), graph.same)
    assert [len(part) for part in log.parts] == [2, 2, 0, 2, 0]
