"""ggml's operations on tensors without data: the shapes, types, sources and views of ggml.c @ 0c1e570.

Only what the graph allocator sees is kept: no parameters of operations, and shapes are checked only where a file with
wrong ones would give a wrong number.
"""

from __future__ import annotations

from edgekit.engines.llamacpp.graph.dims import Size, product
from edgekit.engines.llamacpp.graph.tensor import F32, I32, Shape, Tensor, shape
from edgekit.engines.llamacpp.graph.types import ShapeError
from edgekit.formats.dtype import TensorType


def _check_fit(a: Tensor, b: Tensor) -> None:
    if a.ne[0] != b.ne[0]:
        raise ShapeError(f"{a.name or a.op} {a.ne} does not fit {b.name or b.op} {b.ne}")


def new(op: str, kind: TensorType, ne: Shape, *src: Tensor | None) -> Tensor:
    return Tensor(op=op, type=kind, ne=ne, src=tuple(one for one in src if one is not None))


def graph_input(kind: TensorType, *dims: Size, name: str) -> Tensor:
    """A leaf that the allocator places and the caller fills."""
    return Tensor(op="NONE", type=kind, ne=shape(*dims), is_input=True, name=name)


def _like(op: str, a: Tensor, *more: Tensor | None) -> Tensor:
    return new(op, a.type, a.ne, a, *more)


def _view(op: str, a: Tensor, ne: Shape, strides: Shape | None, *src: Tensor) -> Tensor:
    return Tensor(
        op=op, type=a.type, ne=ne, src=src, strides=strides, view_src=a.view_src or a, layer=None
    )


# One source, the result like it.


def scale(a: Tensor) -> Tensor:
    return _like("SCALE", a)


def scale_inplace(a: Tensor) -> Tensor:
    return _view("SCALE", a, a.ne, a.strides, a)


def clamp(a: Tensor) -> Tensor:
    return _like("CLAMP", a)


def unary(a: Tensor) -> Tensor:
    """silu, gelu, relu, tanh, sigmoid, softplus, exp, neg, abs, ...: one op for the allocator."""
    return _like("UNARY", a)


def sqr(a: Tensor) -> Tensor:
    return _like("SQR", a)


def sqrt(a: Tensor) -> Tensor:
    return _like("SQRT", a)


def log(a: Tensor) -> Tensor:
    return _like("LOG", a)


def sin(a: Tensor) -> Tensor:
    return _like("SIN", a)


def cos(a: Tensor) -> Tensor:
    return _like("COS", a)


def norm(a: Tensor) -> Tensor:
    return _like("NORM", a)


def rms_norm(a: Tensor) -> Tensor:
    return _like("RMS_NORM", a)


def group_norm(a: Tensor) -> Tensor:
    return _like("GROUP_NORM", a)


def l2_norm(a: Tensor) -> Tensor:
    return _like("L2_NORM", a)


def cumsum(a: Tensor) -> Tensor:
    return _like("CUMSUM", a)


def fill(a: Tensor) -> Tensor:
    return _like("FILL", a)


def dup(a: Tensor) -> Tensor:
    return _like("DUP", a)


def cont(a: Tensor, *dims: Size) -> Tensor:
    """ggml_cont, or ggml_cont_Nd where dimensions are given."""
    return new("CONT", a.type, shape(*dims) if dims else a.ne, a)


def cast(a: Tensor, kind: TensorType) -> Tensor:
    """A copy that has itself as its second source, as ggml_cast makes it."""
    result = new("CPY", kind, a.ne, a)
    result.src = (a, result)
    return result


# Two sources.


def add(a: Tensor, b: Tensor) -> Tensor:
    return _like("ADD", a, b)


def add_inplace(a: Tensor, b: Tensor) -> Tensor:
    return _view("ADD", a, a.ne, a.strides, a, b)


def sub(a: Tensor, b: Tensor) -> Tensor:
    return _like("SUB", a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    return _like("MUL", a, b)


def div(a: Tensor, b: Tensor) -> Tensor:
    return _like("DIV", a, b)


def add_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    return _like("ADD_ID", a, b, ids)


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    _check_fit(a, b)
    return new("MUL_MAT", F32, (a.ne[1], b.ne[1], b.ne[2], b.ne[3]), a, b)


def mul_mat_id(experts: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    _check_fit(experts, b)
    return new("MUL_MAT_ID", F32, (experts.ne[1], ids.ne[0], b.ne[2], 1), experts, b, ids)


def concat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    ne = list(a.ne)
    ne[dim] = a.ne[dim] + b.ne[dim]
    return new("CONCAT", a.type, shape(*ne), a, b)


def get_rows(a: Tensor, rows: Tensor) -> Tensor:
    kind = I32 if a.type is I32 else F32
    return new("GET_ROWS", kind, (a.ne[0], rows.ne[0], rows.ne[1], rows.ne[2]), a, rows)


def set_rows(a: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """A view of `a`; the order of its sources is ggml's."""
    return _view("SET_ROWS", a, a.ne, a.strides, values, rows, a)


def cpy(a: Tensor, into: Tensor) -> Tensor:
    return _view("CPY", into, into.ne, into.strides, a, into)


def glu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """swiglu, geglu, reglu, ...: split where `up` is given, else the halves of one row."""
    ne = gate.ne if up is not None else (gate.ne[0] // 2, *gate.ne[1:])
    return new("GLU", gate.type, ne, gate, up)


def soft_max(a: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None) -> Tensor:
    return _like("SOFT_MAX", a, mask, sinks)


def rope(a: Tensor, positions: Tensor, factors: Tensor | None = None) -> Tensor:
    return _like("ROPE", a, positions, factors)


def rope_back(a: Tensor, positions: Tensor) -> Tensor:
    return _like("ROPE_BACK", a, positions)


# Reductions and rearrangements.


def sum_rows(a: Tensor) -> Tensor:
    return new("SUM_ROWS", a.type, (1, *a.ne[1:]), a)


def mean(a: Tensor) -> Tensor:
    return new("MEAN", F32, (1, *a.ne[1:]), a)


def argmax(a: Tensor) -> Tensor:
    return new("ARGMAX", I32, shape(a.ne[1]), a)


def argsort(a: Tensor) -> Tensor:
    return new("ARGSORT", I32, a.ne, a)


def argsort_top_k(a: Tensor, count: int) -> Tensor:
    """All are sorted; the result is a view of the first ones."""
    order = argsort(a)
    return view(order, count, *order.ne[1:], strides=order.nb[1:])


def top_k(a: Tensor, count: Size) -> Tensor:
    return new("TOP_K", I32, (count, *a.ne[1:]), a)


def arange(count: Size) -> Tensor:
    return new("ARANGE", F32, shape(count))


def repeat(a: Tensor, *dims: Size) -> Tensor:
    return new("REPEAT", a.type, shape(*dims), a)


def pad(a: Tensor, *more: Size) -> Tensor:
    """So many more elements in each dimension, before and after together."""
    ne = [
        have + extra
        for have, extra in zip(a.ne, shape(*more, *(0,) * (4 - len(more))), strict=True)
    ]
    return new("PAD", a.type, shape(*ne), a)


def pool_rows(a: Tensor, width: int) -> Tensor:
    """ggml_pool_2d along the first dimension: one number for each `width` of them."""
    return new("POOL_2D", F32, (a.ne[0] // width, *a.ne[1:]), a)


# Views.


def reshape(a: Tensor, *dims: Size) -> Tensor:
    ne = shape(*dims)
    if product(ne) != a.elements:
        raise ShapeError(f"{a.name or a.op} of shape {a.ne} cannot become {ne}")
    return _view("RESHAPE", a, ne, None, a)


def view(a: Tensor, *dims: Size, strides: tuple[Size, ...] = ()) -> Tensor:
    """ggml_view_Nd: `strides` are those from nb1 on; where they end, the outer ones follow from the shape."""
    ne = shape(*dims)
    if not strides:
        return _view("VIEW", a, ne, None, a)
    nb = [a.type.block_bytes, *strides]
    while len(nb) < 4:
        nb.append(nb[-1] * ne[len(nb) - 1])
    return _view("VIEW", a, ne, shape(*nb), a)


def permute(a: Tensor, *axes: int) -> Tensor:
    """Dimension i of `a` becomes dimension axes[i]."""
    ne: list[Size] = [1] * 4
    nb: list[Size] = [1] * 4
    for axis, have, stride in zip(axes, a.ne, a.nb, strict=True):
        ne[axis], nb[axis] = have, stride
    return _view("PERMUTE", a, shape(*ne), shape(*nb), a)


def transpose(a: Tensor) -> Tensor:
    nb = a.nb
    ne = (a.ne[1], a.ne[0], a.ne[2], a.ne[3])
    return _view("TRANSPOSE", a, ne, (nb[1], nb[0], nb[2], nb[3]), a)


# Attention and recurrences.


def flash_attn_ext(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None = None
) -> Tensor:
    ne = (v.ne[0], q.ne[2], q.ne[1], q.ne[3])
    return new("FLASH_ATTN_EXT", F32, ne, q, k, v, mask, sinks)


def ssm_conv(window: Tensor, kernel: Tensor) -> Tensor:
    tokens = window.ne[0] - kernel.ne[0] + 1
    return new("SSM_CONV", F32, shape(kernel.ne[1], tokens, window.ne[2]), window, kernel)


def ssm_scan(  # noqa: PLR0917 - in the order of ggml_ssm_scan
    states: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    ids: Tensor,
    kept: int = 1,
) -> Tensor:
    """Outputs and the last states in one row."""
    after = kept * product(states.ne[:3]) * ids.ne[0]
    return new("SSM_SCAN", F32, shape(x.elements + after), states, x, dt, a, b, c, ids)


def gated_delta_net(  # noqa: PLR0917 - in the order of ggml_gated_delta_net
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor, kept: int = 1
) -> Tensor:
    width, heads, tokens, sequences = v.ne
    rows = tokens * sequences + kept * width * sequences
    return new("GATED_DELTA_NET", F32, shape(width * heads, rows), q, k, v, gate, beta, state)


def linear_attention(op: str, k: Tensor, state: Tensor, *src: Tensor) -> Tensor:
    """RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN: tokens and new states in one; `src` in ggml's order."""
    width, heads, tokens, _ = k.ne
    return new(op, F32, shape(width * heads, tokens + width * state.ne[1]), *src)


def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    ne = (k.ne[2], q.ne[2], 1, q.ne[3])
    return new("LIGHTNING_INDEXER", F32, ne, q, k, weights, mask)
