"""Shapes, types and views of the results of operations, as in ggml.c."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.tensor import (
    F16,
    F32,
    I32,
    Graph,
    GraphTensor,
    Home,
    Shape,
    ShapeError,
    Size,
    shape,
    variable,
)
from edgekit.formats.dtype import TensorType, by_name

T = variable("T")
Build = Callable[[], GraphTensor]


def leaf(*dims: Size, kind: TensorType = F32) -> GraphTensor:
    return ggml.graph_input(kind, *dims, name="x")


def weight(*dims: Size, kind: TensorType = F16) -> GraphTensor:
    return GraphTensor(op="NONE", type=kind, ne=shape(*dims), home=Home.WEIGHTS, name="w")


@pytest.mark.parametrize(
    ("build", "ne"),
    [
        (lambda: ggml.mul_mat(weight(64, 128), leaf(64, T)), (128, T, 1, 1)),
        (lambda: ggml.mul_mat(weight(64, 32, 8), leaf(64, T, 8)), (32, T, 8, 1)),
        (
            lambda: ggml.mul_mat_id(weight(64, 128, 8), leaf(64, 1, T), leaf(2, T, kind=I32)),
            (128, 2, T, 1),
        ),
        (lambda: ggml.add(leaf(64, T), weight(64)), (64, T, 1, 1)),
        (lambda: ggml.concat(leaf(512, 1, T), leaf(64, 1, T), 0), (576, 1, T, 1)),
        (lambda: ggml.get_rows(weight(64, 1000), leaf(T, kind=I32)), (64, T, 1, 1)),
        (lambda: ggml.glu(leaf(128, T)), (64, T, 1, 1)),
        (lambda: ggml.glu(leaf(128, T), leaf(128, T)), (128, T, 1, 1)),
        (lambda: ggml.sum_rows(leaf(8, T)), (1, T, 1, 1)),
        (lambda: ggml.mean(leaf(8, T)), (1, T, 1, 1)),
        (lambda: ggml.argsort_top_k(leaf(8, T), 2), (2, T, 1, 1)),
        (lambda: ggml.top_k(leaf(8, T), 2), (2, T, 1, 1)),
        (lambda: ggml.repeat(leaf(8, 1, T), 8, 4, T), (8, 4, T, 1)),
        (lambda: ggml.pad(leaf(8, T), 4, 1), (12, T + 1, 1, 1)),
        (lambda: ggml.permute(leaf(8, 4, T), 0, 2, 1, 3), (8, T, 4, 1)),
        (lambda: ggml.permute(leaf(8, 4, T), 2, 0, 1, 3), (4, T, 8, 1)),
        (lambda: ggml.transpose(leaf(8, T)), (T, 8, 1, 1)),
        (lambda: ggml.cont(ggml.transpose(leaf(8, T))), (T, 8, 1, 1)),
        (lambda: ggml.cont(leaf(8, 4, T), 32, T), (32, T, 1, 1)),
        (lambda: ggml.reshape(leaf(32, T), 8, 4, T), (8, 4, T, 1)),
        (
            lambda: ggml.flash_attn_ext(
                leaf(128, T, 32), leaf(128, 256, 8), leaf(64, 256, 8), None
            ),
            (64, 32, T, 1),
        ),
        (lambda: ggml.ssm_conv(leaf(T + 3, 16), weight(4, 16)), (16, T, 1, 1)),
        (
            lambda: ggml.ssm_scan(
                leaf(16, 8, 4, 2), leaf(8, 4, T, 2), *(leaf(1),) * 4, ids=leaf(2, kind=I32)
            ),
            (8 * 4 * 2 * T + 16 * 8 * 4 * 2, 1, 1, 1),
        ),
        (
            lambda: ggml.gated_delta_net(*(leaf(1),) * 2, leaf(128, 4, T, 2), *(leaf(1),) * 3),
            (512, 2 * T + 256, 1, 1),
        ),
        (
            lambda: ggml.linear_attention("RWKV_WKV6", leaf(64, 4, T), leaf(64 * 64 * 4, 2)),
            (256, T + 128, 1, 1),
        ),
        (
            lambda: ggml.lightning_indexer(
                leaf(128, 8, T), leaf(128, 1, 256), leaf(8, T), leaf(256, T)
            ),
            (256, T, 1, 1),
        ),
    ],
)
def test_shape_of_a_result(build: Build, ne: Shape) -> None:
    assert build().ne == ne


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda: ggml.mul_mat(weight(64, 128, kind=by_name("Q8_0")), leaf(64, T)), "F32"),
        (lambda: ggml.get_rows(weight(64, 9, kind=by_name("Q4_K")), leaf(T, kind=I32)), "F32"),
        (lambda: ggml.get_rows(leaf(1, 9, kind=I32), leaf(T, kind=I32)), "I32"),
        (lambda: ggml.argsort_top_k(leaf(8, T), 2), "I32"),
        (lambda: ggml.cast(leaf(8, T), F16), "F16"),
        (lambda: ggml.cont(leaf(8, T, kind=F16)), "F16"),
        (lambda: ggml.mean(leaf(8, T, kind=F16)), "F32"),
    ],
)
def test_type_of_a_result(build: Build, kind: str) -> None:
    assert build().type.name == kind


ELEMENTWISE = (
    *(ggml.scale, ggml.clamp, ggml.unary, ggml.sqr, ggml.sqrt, ggml.norm, ggml.rms_norm),
    *(ggml.l2_norm, ggml.fill, ggml.dup, ggml.cont, ggml.soft_max),
)


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.__name__)
def test_elementwise_result_has_the_shape_of_its_source(
    op: Callable[[GraphTensor], GraphTensor],
) -> None:
    x = leaf(8, T)
    result = op(x)
    assert (result.ne, result.type, result.src, result.view_src) == (x.ne, F32, (x,), None)


def test_view_of_a_view_views_the_original() -> None:
    x = leaf(32, T)
    view = ggml.transpose(ggml.reshape(x, 8, 4, T))
    assert view.view_src is x
    assert view.nb == (32, 4, 128, 128 * T)
    assert ggml.scale_inplace(view).view_src is x


def test_outer_strides_of_a_view_follow_from_its_shape() -> None:
    x = leaf(96, T)
    assert ggml.view(x, 32, T, strides=(x.nb[1],)).nb == (4, 384, 384 * T, 384 * T)
    assert ggml.view(x, 32).nb == (4, 128, 128, 128)


def test_set_rows_and_cpy_are_views_of_their_destination() -> None:
    cache, rows = weight(64, 256), leaf(64, T)
    indexes = leaf(T, kind=I32)
    assert ggml.set_rows(cache, rows, indexes).src == (rows, indexes, cache)
    assert ggml.set_rows(cache, rows, indexes).view_src is cache
    assert ggml.cpy(rows, cache).src == (rows, cache)
    assert ggml.cpy(rows, cache).view_src is cache


def test_cast_is_its_own_second_source() -> None:
    x = leaf(8, T)
    result = ggml.cast(x, F16)
    assert result.src == (x, result)
    graph = Graph()
    graph.expand(result)
    assert graph.nodes == [result]


def test_bytes_of_tensors_and_views() -> None:
    assert leaf(8, T, 2).bytes == 4 * 8 * 2 * T
    assert weight(256, 3, kind=by_name("Q4_K")).bytes == 3 * 144
    x = leaf(96, 10)
    assert ggml.view(x, 32, 10, strides=(384,)).bytes == 9 * 384 + 32 * 4
    q = weight(256, 4, kind=by_name("Q8_0"))
    assert ggml.view(q, 128, 4, strides=(272,)).bytes == 3 * 272 + 136


def test_incompatible_shapes_raise() -> None:
    with pytest.raises(ShapeError, match=r"w .* does not fit x"):
        ggml.mul_mat(weight(64, 128), leaf(32, T))
    with pytest.raises(ShapeError, match="does not fit"):
        ggml.mul_mat_id(weight(64, 128, 4), leaf(32, 1, T), leaf(2, T, kind=I32))
    with pytest.raises(ShapeError, match="cannot become"):
        ggml.reshape(leaf(64, T), 7, T)
