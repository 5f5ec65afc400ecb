"""CUDA as the scheduler and the allocator see it: ggml-cuda.cu, fattn.cu @ 0c1e570, for tensor-core GPUs.

Fused nodes keep their sources alive until the last node of the fusion (ggml_backend_cuda_graph_optimize).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from edgekit.engines.llamacpp.graph.allocator import Buffer
from edgekit.engines.llamacpp.graph.layers import PRECISE
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, Home, Size, value
from edgekit.engines.llamacpp.types import Rules, has_flash_kernel
from edgekit.engines.llamacpp.weights import SCAN_STATES

ALIGNMENT = 128
ROW_PADDING = 512
OFFLOAD_BATCH = 32  # GGML_OP_OFFLOAD_MIN_BATCH

FLASH_TYPES = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})


def buffer(name: str = "CUDA0") -> Buffer:
    return Buffer(name=name, alignment=ALIGNMENT, extra_bytes=extra_bytes)


def extra_bytes(tensor: GraphTensor) -> Size:
    """Bytes that ggml_backend_cuda_buffer_type_get_alloc_size adds to a tensor's size."""
    if tensor.op == "FLASH_ATTN_EXT":  # K and V of other types are copied as f16
        _, k, v = tensor.src[:3]
        size = tensor.bytes
        if k.type.name != "F16":
            size = _pad(size) + 2 * k.elements
        shared = v.view_src is not None and v.view_src is k.view_src  # MLA: V is a part of K
        if v.type.name != "F16" and not shared:
            size = _pad(size) + 2 * v.elements
        return size - tensor.bytes
    kind, row = tensor.type, tensor.ne[0]
    if kind.block_elements > 1 and isinstance(row, int) and row % ROW_PADDING:
        return (-row % ROW_PADDING) * kind.block_bytes // kind.block_elements
    return 0


def _pad(size: Size) -> Size:
    """The size padded to a multiple of 128 bytes. A polynomial with an unknown remainder grows by 127 bytes."""
    if isinstance(size, int):
        return -(-size // ALIGNMENT) * ALIGNMENT
    return size if all(not factor % ALIGNMENT for factor in size.terms.values()) else size + 127


def supports(node: GraphTensor) -> bool:
    """ggml_backend_cuda_device_supports_op, limited to the cases that language models reach."""
    rule = _RULES.get(node.op)
    return rule is None or rule(node)


def _supports_flash(node: GraphTensor) -> bool:
    """True if there is a flash-attention kernel for these cache types and head widths."""
    q, k, v = node.src[:3]
    if not {k.type.name, v.type.name} <= FLASH_TYPES:
        return False
    sizes = (k.ne[0], v.ne[0], q.ne[2], k.ne[2])
    k_width, v_width, heads, kv_heads = (size if isinstance(size, int) else 0 for size in sizes)
    return has_flash_kernel(k_width, v_width, heads // max(1, kv_heads))


def _supports_scan(node: GraphTensor) -> bool:
    """True if the scan kernel supports the state: of Mamba 2 (one decay per head) or of Mamba."""
    state, a, b = node.src[0], node.src[3], node.src[4]
    if a.ne[0] == 1:
        return state.ne[0] in SCAN_STATES and _divides(16, state.ne[1])
    return state.ne[0] == 16 and state.ne[1] == 1 and _divides(128, state.ne[2]) and b.ne[1] == 1


def _divides(divisor: int, size: Size) -> bool:
    """True if the size is a number and a multiple of the divisor."""
    return isinstance(size, int) and size % divisor == 0


_RULES: dict[str, Callable[[GraphTensor], bool]] = {
    "FLASH_ATTN_EXT": _supports_flash,
    "MUL_MAT_ID": lambda node: node.name != PRECISE,
    "SSM_SCAN": _supports_scan,
    "SSM_CONV": lambda node: _divides(128, node.src[0].ne[1]),
}


def offloads(values: Mapping[str, int]) -> Callable[[GraphTensor], bool]:
    """A test whether CUDA copies weights from the host to run a node: it does for batches of at least 32."""

    def has_large_batch(node: GraphTensor) -> bool:
        match node.op:
            case "GET_ROWS":
                return False
            case "MUL_MAT":
                batch = node.ne[1]
            case "MUL_MAT_ID" | "ROPE":
                batch = node.ne[2]
            case _:
                batch = node.ne[1] * node.ne[2] * node.ne[3]
        return value(batch, values) >= OFFLOAD_BATCH

    return has_large_batch


MAX_SUMMED_EXPERTS = 15  # ggml-cuda.cu: MOE_WEIGHTED_REDUCTION_MAX_EXPERTS
EXPERT_COUNTS = frozenset({*(2**power for power in range(10)), 288, 576})  # topk-moe.cu

# A node -> the tensors that must stay alive until it has run.
KeepAlive = dict[GraphTensor, list[GraphTensor]]


# How many nodes of the graph read each tensor.
Readers = Mapping[GraphTensor, int]


def optimize_order(
    nodes: list[GraphTensor], readers: Readers, rules: int
) -> tuple[list[GraphTensor], KeepAlive]:
    """The nodes of a split in execution order, and the tensors to keep alive until certain nodes have run."""
    alive: KeepAlive = {}
    if rules >= Rules.V0_6:
        nodes = _move_shared_experts(nodes, readers, alive)
    i = 0
    while i < len(nodes):
        op = nodes[i].op
        if op == "MUL" and (weighted_sum := _weighted_sum(nodes, i, readers)) is not None:
            length, sources = weighted_sum
            _keep_alive(alive, nodes[i + length - 1], sources)
            i += length - 1
            op = nodes[i].op
        if op in {"UNARY", "SOFT_MAX"}:
            length = _expert_selection(nodes, i, readers)
            if length and i + length < len(nodes):
                for node in nodes[i : i + length]:
                    _keep_alive(alive, nodes[i + length], (node, *node.src))
                i += length - 1
        i += 1
    return nodes, alive


def _move_shared_experts(
    nodes: list[GraphTensor], readers: Readers, alive: KeepAlive
) -> list[GraphTensor]:
    """Gate, up and activation of a shared expert run right after those of the routed ones."""
    nodes = list(nodes)
    i = 0
    while i + 5 < len(nodes):
        shared = _shared_expert(nodes, i, readers)
        if shared is not None:
            nodes[i + 3 : shared + 3] = nodes[shared : shared + 3] + nodes[i + 3 : shared]
            _weight, *inputs = nodes[i + 2].src[1].src
            _keep_alive(alive, nodes[i + 5], inputs)
            i += 5
        i += 1
    return nodes


def _shared_expert(nodes: Sequence[GraphTensor], i: int, readers: Readers) -> int | None:
    """Where the nodes of a shared expert begin that can run with the routed experts at `i`; None if there are none."""
    if nodes[i].op != "MUL_MAT_ID":
        return None
    for j in range(i + 3, len(nodes) - 2):
        op = nodes[j].op
        if op == "MUL_MAT_ID" and nodes[j + 1].op == op:
            return None
        if op == "MUL_MAT" and _runs_with(nodes[i : i + 3], nodes[j : j + 3], readers):
            return j
    return None


def _runs_with(
    routed: Sequence[GraphTensor], shared: Sequence[GraphTensor], readers: Readers
) -> bool:
    """ggml_cuda_match_shared_expert: True if both have quantised weights of one type and the same input."""
    if not (_is_gated(routed, "MUL_MAT_ID") and _is_gated(shared, "MUL_MAT")):
        return False
    weight, routed_input = routed[0].src[:2]
    shared_weight, shared_input = shared[0].src
    return (
        weight.home is Home.WEIGHTS  # a copy of a weight has no buffer yet
        and weight.type.block_elements > 1
        and weight.type == shared_weight.type
        and weight.ne[:2] == shared_weight.ne[:2]
        and routed_input.op == "RESHAPE"
        and routed_input.src[0] is shared_input
        and _only_within((*routed, *shared), (routed[2], shared[2]), readers)
    )


def _is_gated(run: Sequence[GraphTensor], product: str) -> bool:
    """True for two products (op `product`) of equal weight shapes and inputs, followed by a gated activation."""
    first, second, activation = run
    if (first.op, second.op, activation.op) != (product, product, "GLU"):
        return False
    first_weight, second_weight = first.src[0], second.src[0]
    return (
        len(activation.src) == 2
        and set(activation.src) == {first, second}
        and first.src[1:] == second.src[1:]
        and first_weight.type == second_weight.type
        and first_weight.ne == second_weight.ne
    )


def _keep_alive(alive: KeepAlive, until: GraphTensor, tensors: Sequence[GraphTensor]) -> None:
    """Records that the tensors must stay alive until the node `until` has run."""
    listed = alive.setdefault(until, [])
    listed.extend(tensor for tensor in dict.fromkeys(tensors) if tensor not in listed)


def _weighted_sum(
    nodes: Sequence[GraphTensor], i: int, readers: Readers
) -> tuple[int, list[GraphTensor]] | None:
    """Matches the weighted sum of expert outputs: one or two products, a view per expert, and their sum.

    Returns the number of nodes and the tensors to keep alive; None if the nodes at `i` are not such a sum.
    """
    product = nodes[i]
    factors = _expert_product(product)
    if factors is None:
        return None
    weighted, products, sources = product, 1, list(factors)
    if i + 1 < len(nodes):
        next_factors = _expert_product(nodes[i + 1])
        if next_factors is not None and next_factors[0] is product:
            weighted, products = nodes[i + 1], 2
            sources = [factors[0], next_factors[1], factors[1]]
    experts = weighted.ne[1]
    if not isinstance(experts, int) or not 2 <= experts <= MAX_SUMMED_EXPERTS:
        return None
    length = 2 * experts + products - 1
    run = nodes[i : i + length]
    if len(run) < length or not _is_sum(run[products:], weighted, experts):
        return None
    return (length, sources) if _only_within(run, (run[-1],), readers) else None


def _expert_product(node: GraphTensor) -> tuple[GraphTensor, GraphTensor] | None:
    """The factors of a product of expert outputs and their weights, in this order; None if the node is not one."""
    if node.op != "MUL" or len(node.src) != 2:
        return None
    for full, weights in (node.src, node.src[::-1]):
        if full.ne == node.ne and weights.ne == (1, *node.ne[1:]):
            return full, weights
    return None


def _is_sum(run: Sequence[GraphTensor], weighted: GraphTensor, experts: int) -> bool:
    """True if the nodes are one view of `weighted` per expert, and additions of these views in order."""
    views: list[GraphTensor] = []
    total: GraphTensor | None = None
    added = 0
    for node in run:
        if node.op == "VIEW" and node.src[0] is weighted:
            views.append(node)
            continue
        if node.op != "ADD" or len(views) < 2 or added + 1 >= len(views):
            return False
        left = views[0] if total is None else total
        if node.src[0] is not left or node.src[1] is not views[added + 1]:
            return False
        total, added = node, added + 1
    return len(views) == experts and added == experts - 1


def _expert_selection(nodes: Sequence[GraphTensor], i: int, readers: Readers) -> int:
    """The number of nodes from `i` on that CUDA fuses to select experts; 0 if they are not fused.

    The nodes compute probabilities, their ranking, and the weights of the selected experts.
    """
    walk = _Walk(nodes, i + 1)
    if nodes[i].op == "UNARY":
        walk.take_if("SQRT", nodes[i])
    probabilities = walk.last
    if not walk.take_if("RESHAPE", probabilities):
        return 0
    reshaped = walk.last
    sorted_by = walk.last if walk.take_if("ADD", probabilities) else probabilities
    if not walk.take_if("ARGSORT", sorted_by):
        return 0
    ranking = walk.last
    if not walk.take_if("VIEW", ranking):
        return 0
    ids = walk.last
    if not walk.take_if("GET_ROWS", reshaped):
        return 0
    _take_norm(walk)
    walk.take_if("SCALE", walk.last)
    run = nodes[i : walk.position]
    if run[0].op == "SOFT_MAX" and len(run[0].src) > 1:
        return 0
    if ranking.ne[0] not in EXPERT_COUNTS:
        return 0
    return len(run) if _only_within(run, (ids, run[-1]), readers) else 0


def _take_norm(walk: _Walk) -> None:
    """Skips RESHAPE, SUM_ROWS, CLAMP, DIV, RESHAPE if all of them follow."""
    start = walk.position
    for op in ("RESHAPE", "SUM_ROWS", "CLAMP"):
        if not walk.take_if(op, walk.last):
            walk.position = start
            return
    summed = walk.nodes[start]
    if not (walk.take_if("DIV", summed) and walk.take_if("RESHAPE", walk.last)):
        walk.position = start


class _Walk:
    """A position in a list of nodes."""

    def __init__(self, nodes: Sequence[GraphTensor], position: int) -> None:
        self.nodes = nodes
        self.position = position

    @property
    def last(self) -> GraphTensor:
        """The node before the position."""
        return self.nodes[self.position - 1]

    def take_if(self, op: str, source: GraphTensor) -> bool:
        """Moves past the next node if it has this op and this first source."""
        if self.position == len(self.nodes):
            return False
        node = self.nodes[self.position]
        if node.op != op or node.src[:1] != (source,):
            return False
        self.position += 1
        return True


def _only_within(
    run: Sequence[GraphTensor], outputs: Sequence[GraphTensor], readers: Readers
) -> bool:
    """ggml_can_fuse_subgraph: True if no node outside `run` reads its results, except `outputs`."""
    readers_in_run = Counter(source for node in run for source in node.src)
    members = set(run)
    for node in members.difference(outputs):
        if node.is_output or readers_in_run[node] != readers.get(node, 0):
            return False
        viewed = node.view_src
        if viewed is not None and viewed not in members and viewed.home is None:
            return False
    return True
