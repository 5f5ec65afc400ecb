"""ggml's operations on tensors without data: the shapes, types, sources and views of ggml.c @ 0c1e570.

Only what the graph allocator sees is modelled: no operation parameters, and shapes are checked only where a damaged
file would otherwise give a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable

from edgekit.engines.llamacpp.graph.tensor import (
    F32,
    I32,
    GraphTensor,
    Shape,
    ShapeError,
    Size,
    product,
    shape,
)
from edgekit.formats.dtype import TensorType


def _check_fit(a: GraphTensor, b: GraphTensor) -> None:
    """Raises ShapeError if the rows of two factors differ in length."""
    if a.ne[0] != b.ne[0]:
        raise ShapeError(f"{a.name or a.op} {a.ne} does not fit {b.name or b.op} {b.ne}")


def new(op: str, kind: TensorType, ne: Shape, *src: GraphTensor | None) -> GraphTensor:
    """A contiguous tensor; sources that are None are left out."""
    return GraphTensor(
        op=op, type=kind, ne=ne, src=tuple(tensor for tensor in src if tensor is not None)
    )


def graph_input(kind: TensorType, *dims: Size, name: str) -> GraphTensor:
    """A leaf that the allocator places and the caller fills."""
    return GraphTensor(op="NONE", type=kind, ne=shape(*dims), is_input=True, name=name)


def _like(op: str, a: GraphTensor, *others: GraphTensor | None) -> GraphTensor:
    """A result with the type and shape of the first source."""
    return new(op, a.type, a.ne, a, *others)


def _view(
    op: str, a: GraphTensor, ne: Shape, strides: Shape | None, *src: GraphTensor
) -> GraphTensor:
    return GraphTensor(
        op=op, type=a.type, ne=ne, src=src, strides=strides, view_src=a.view_src or a
    )


def _unary(op: str) -> Callable[[GraphTensor], GraphTensor]:
    """An op of one source; the result has its type and shape."""
    return lambda a: _like(op, a)


def _binary(op: str) -> Callable[[GraphTensor, GraphTensor], GraphTensor]:
    """An op of two sources; the result has the type and shape of the first."""
    return lambda a, b: _like(op, a, b)


scale = _unary("SCALE")
clamp = _unary("CLAMP")
unary = _unary("UNARY")  # silu, gelu, relu, tanh, sigmoid, softplus, exp, neg, abs, ...
sqr = _unary("SQR")
sqrt = _unary("SQRT")
norm = _unary("NORM")
rms_norm = _unary("RMS_NORM")
l2_norm = _unary("L2_NORM")
fill = _unary("FILL")
dup = _unary("DUP")
add = _binary("ADD")
sub = _binary("SUB")
mul = _binary("MUL")
div = _binary("DIV")
rope_back = _binary("ROPE_BACK")  # the second source: positions


def scale_inplace(a: GraphTensor) -> GraphTensor:
    return _view("SCALE", a, a.ne, a.strides, a)


def cont(a: GraphTensor, *dims: Size) -> GraphTensor:
    """ggml_cont, or ggml_cont_Nd if dimensions are given."""
    return new("CONT", a.type, shape(*dims) if dims else a.ne, a)


def cast(a: GraphTensor, kind: TensorType) -> GraphTensor:
    """ggml_cast: a copy whose second source is itself."""
    result = new("CPY", kind, a.ne, a)
    result.src = (a, result)
    return result


def add_inplace(a: GraphTensor, b: GraphTensor) -> GraphTensor:
    return _view("ADD", a, a.ne, a.strides, a, b)


def add_id(a: GraphTensor, b: GraphTensor, ids: GraphTensor) -> GraphTensor:
    return _like("ADD_ID", a, b, ids)


def mul_mat(a: GraphTensor, b: GraphTensor) -> GraphTensor:
    _check_fit(a, b)
    return new("MUL_MAT", F32, (a.ne[1], b.ne[1], b.ne[2], b.ne[3]), a, b)


def mul_mat_id(experts: GraphTensor, b: GraphTensor, ids: GraphTensor) -> GraphTensor:
    _check_fit(experts, b)
    return new("MUL_MAT_ID", F32, (experts.ne[1], ids.ne[0], b.ne[2], 1), experts, b, ids)


def concat(a: GraphTensor, b: GraphTensor, dim: int) -> GraphTensor:
    ne = list(a.ne)
    ne[dim] = a.ne[dim] + b.ne[dim]
    return new("CONCAT", a.type, shape(*ne), a, b)


def get_rows(a: GraphTensor, rows: GraphTensor) -> GraphTensor:
    kind = I32 if a.type is I32 else F32
    return new("GET_ROWS", kind, (a.ne[0], rows.ne[0], rows.ne[1], rows.ne[2]), a, rows)


def set_rows(a: GraphTensor, values: GraphTensor, rows: GraphTensor) -> GraphTensor:
    """A view of `a`, with the sources in ggml's order."""
    return _view("SET_ROWS", a, a.ne, a.strides, values, rows, a)


def cpy(a: GraphTensor, into: GraphTensor) -> GraphTensor:
    return _view("CPY", into, into.ne, into.strides, a, into)


def glu(gate: GraphTensor, up: GraphTensor | None = None) -> GraphTensor:
    """swiglu, geglu, reglu, ...: two inputs if `up` is given, else the two halves of each row."""
    ne = gate.ne if up is not None else (gate.ne[0] // 2, *gate.ne[1:])
    return new("GLU", gate.type, ne, gate, up)


def soft_max(
    a: GraphTensor, mask: GraphTensor | None = None, sinks: GraphTensor | None = None
) -> GraphTensor:
    return _like("SOFT_MAX", a, mask, sinks)


def rope(a: GraphTensor, positions: GraphTensor, factors: GraphTensor | None = None) -> GraphTensor:
    return _like("ROPE", a, positions, factors)


# Reductions and rearrangements.


def sum_rows(a: GraphTensor) -> GraphTensor:
    return new("SUM_ROWS", a.type, (1, *a.ne[1:]), a)


def mean(a: GraphTensor) -> GraphTensor:
    return new("MEAN", F32, (1, *a.ne[1:]), a)


def argsort_top_k(a: GraphTensor, count: int) -> GraphTensor:
    """Sorts everything; the result is a view of the first `count`."""
    order = new("ARGSORT", I32, a.ne, a)
    return view(order, count, *order.ne[1:], strides=order.nb[1:])


def top_k(a: GraphTensor, count: Size) -> GraphTensor:
    return new("TOP_K", I32, (count, *a.ne[1:]), a)


def repeat(a: GraphTensor, *dims: Size) -> GraphTensor:
    return new("REPEAT", a.type, shape(*dims), a)


def pad(a: GraphTensor, *padding: Size) -> GraphTensor:
    """`padding`: elements added to each dimension, the sum of both ends."""
    extra = shape(*padding, *(0,) * (4 - len(padding)))
    ne = [size + added for size, added in zip(a.ne, extra, strict=True)]
    return new("PAD", a.type, shape(*ne), a)


def pool_rows(a: GraphTensor, width: int) -> GraphTensor:
    """ggml_pool_2d along the first dimension: one value per `width` elements."""
    return new("POOL_2D", F32, (a.ne[0] // width, *a.ne[1:]), a)


# Views.


def reshape(a: GraphTensor, *dims: Size) -> GraphTensor:
    ne = shape(*dims)
    if product(ne) != a.elements:
        raise ShapeError(f"{a.name or a.op} of shape {a.ne} cannot become {ne}")
    return _view("RESHAPE", a, ne, None, a)


def view(a: GraphTensor, *dims: Size, strides: tuple[Size, ...] = ()) -> GraphTensor:
    """ggml_view_Nd: `strides` start at nb1; missing outer ones follow from the shape."""
    ne = shape(*dims)
    if not strides:
        return _view("VIEW", a, ne, None, a)
    nb = [a.type.block_bytes, *strides]
    while len(nb) < 4:
        nb.append(nb[-1] * ne[len(nb) - 1])
    return _view("VIEW", a, ne, shape(*nb), a)


def permute(a: GraphTensor, *axes: int) -> GraphTensor:
    """Dimension i of `a` becomes dimension axes[i]."""
    ne: list[Size] = [1] * 4
    nb: list[Size] = [1] * 4
    for axis, size, stride in zip(axes, a.ne, a.nb, strict=True):
        ne[axis], nb[axis] = size, stride
    return _view("PERMUTE", a, shape(*ne), shape(*nb), a)


def transpose(a: GraphTensor) -> GraphTensor:
    nb = a.nb
    ne = (a.ne[1], a.ne[0], a.ne[2], a.ne[3])
    return _view("TRANSPOSE", a, ne, (nb[1], nb[0], nb[2], nb[3]), a)


# Attention and recurrences.


def flash_attn_ext(
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    mask: GraphTensor | None,
    sinks: GraphTensor | None = None,
) -> GraphTensor:
    ne = (v.ne[0], q.ne[2], q.ne[1], q.ne[3])
    return new("FLASH_ATTN_EXT", F32, ne, q, k, v, mask, sinks)


def ssm_conv(window: GraphTensor, kernel: GraphTensor) -> GraphTensor:
    tokens = window.ne[0] - kernel.ne[0] + 1
    return new("SSM_CONV", F32, shape(kernel.ne[1], tokens, window.ne[2]), window, kernel)


def ssm_scan(
    states: GraphTensor, x: GraphTensor, *src: GraphTensor, ids: GraphTensor
) -> GraphTensor:
    """Outputs and final states in one row. `src`: dt, A, B and C."""
    final = product(states.ne[:3]) * ids.ne[0]
    return new("SSM_SCAN", F32, shape(x.elements + final), states, x, *src, ids)


def gated_delta_net(
    q: GraphTensor, k: GraphTensor, v: GraphTensor, *src: GraphTensor
) -> GraphTensor:
    """Outputs and final states. `src`: gate, beta and states."""
    width, heads, tokens, sequences = v.ne
    rows = tokens * sequences + width * sequences
    return new("GATED_DELTA_NET", F32, shape(width * heads, rows), q, k, v, *src)


def linear_attention(op: str, k: GraphTensor, state: GraphTensor, *src: GraphTensor) -> GraphTensor:
    """RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN: outputs and new states in one tensor; `src` in ggml's order."""
    width, heads, tokens, _ = k.ne
    return new(op, F32, shape(width * heads, tokens + width * state.ne[1]), *src)


def lightning_indexer(
    q: GraphTensor, k: GraphTensor, weights: GraphTensor, mask: GraphTensor
) -> GraphTensor:
    ne = (k.ne[2], q.ne[2], 1, q.ne[3])
    return new("LIGHTNING_INDEXER", F32, ne, q, k, weights, mask)
