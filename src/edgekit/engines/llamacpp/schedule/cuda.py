"""CUDA as the scheduler and the allocator see it: ggml-cuda.cu, fattn.cu @ 0c1e570, for tensor-core GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgekit.engines.llamacpp.graph.dims import Size, value
from edgekit.engines.llamacpp.graph.llama.feed_forward import PRECISE
from edgekit.engines.llamacpp.graph.tensor import GraphTensor
from edgekit.engines.llamacpp.graph.trace import Buffer
from edgekit.engines.llamacpp.placement import SCAN_STATES
from edgekit.engines.llamacpp.schedule.types import strided_bytes
from edgekit.engines.llamacpp.types import has_flash_kernel

ALIGNMENT = 128
ROW_PADDING = 512
OFFLOAD_BATCH = 32  # GGML_OP_OFFLOAD_MIN_BATCH

FLASH_TYPES = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})


def buffer(name: str = "CUDA0") -> Buffer:
    return Buffer(name=name, alignment=ALIGNMENT, extra=extra_bytes)


def extra_bytes(tensor: GraphTensor) -> Size:
    """What ggml_backend_cuda_buffer_type_get_alloc_size adds to a tensor's own bytes."""
    if tensor.op == "FLASH_ATTN_EXT":
        return _flash_bytes(tensor) - tensor.bytes
    kind, row = tensor.type, tensor.ne[0]
    if kind.block_elements == 1 and tensor.strides is None:
        return 0
    extra = strided_bytes(tensor)
    if kind.block_elements > 1 and isinstance(row, int) and row % ROW_PADDING:
        extra = extra + (-row % ROW_PADDING) * kind.block_bytes // kind.block_elements
    return extra


def _flash_bytes(node: GraphTensor) -> Size:
    """The result, and f16 copies of K and V where they are of another type."""
    _, k, v = node.src[:3]
    size = node.bytes
    if k.type.name != "F16":
        size = _padded(size) + 2 * k.elements
    shared = v.view_src is not None and v.view_src is k.view_src  # MLA: V is a part of K
    if v.type.name != "F16" and not shared:
        size = _padded(size) + 2 * v.elements
    return size


def _padded(size: Size) -> Size:
    """To 128 bytes; a polynomial whose rest is not known is taken one unit up."""
    if isinstance(size, int):
        return -(-size // ALIGNMENT) * ALIGNMENT
    return size if all(not factor % ALIGNMENT for factor in size.terms.values()) else size + 127


def supports(node: GraphTensor) -> bool:
    """ggml_backend_cuda_device_supports_op, as far as graphs of language models reach its limits."""
    rule = _RULES.get(node.op)
    return rule is None or rule(node)


def _supports_flash(node: GraphTensor) -> bool:
    q, k, v = node.src[:3]
    if not {k.type.name, v.type.name} <= FLASH_TYPES:
        return False
    numbers = (k.ne[0], v.ne[0], q.ne[2], k.ne[2])
    keys, values, heads, kv_heads = (one if isinstance(one, int) else 0 for one in numbers)
    return has_flash_kernel(keys, values, heads // max(1, kv_heads))


def _supports_scan(node: GraphTensor) -> bool:
    state, a, b = node.src[0], node.src[3], node.src[4]
    if a.ne[0] == 1:
        return state.ne[0] in SCAN_STATES and _divides(16, state.ne[1])
    return state.ne[0] == 16 and state.ne[1] == 1 and _divides(128, state.ne[2]) and b.ne[1] == 1


def _divides(by: int, size: Size) -> bool:
    return isinstance(size, int) and size % by == 0


_RULES: dict[str, Callable[[GraphTensor], bool]] = {
    "FLASH_ATTN_EXT": _supports_flash,
    "MUL_MAT_ID": lambda node: node.name != PRECISE,
    "SSM_SCAN": _supports_scan,
    "SSM_CONV": lambda node: _divides(128, node.src[0].ne[1]),
}


def wants(values: Mapping[str, int]) -> Callable[[GraphTensor], bool]:
    """Whether a node with weights on the host is worth copying them: batches of 32 and more."""
    return lambda node: value(_batch(node), values) >= OFFLOAD_BATCH


def _batch(node: GraphTensor) -> Size:
    match node.op:
        case "GET_ROWS":
            return 0
        case "MUL_MAT":
            return node.ne[1]
        case "MUL_MAT_ID" | "ROPE":
            return node.ne[2]
        case _:
            return node.ne[1] * node.ne[2] * node.ne[3]
