"""A resolved context -> lines for the compute buffers (one per pool), the output buffer, a context shift and
multi-token prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from edgekit.bill.types import F16, Component, MemoryLine
from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.context import head_sizes, layer_cache_bytes, shares_of
from edgekit.engines.llamacpp.graph.plan import CPU_ONLY, compute_bytes
from edgekit.engines.llamacpp.graph.scheduler import pools, spread
from edgekit.engines.llamacpp.graph.tensor import NoGraphError
from edgekit.engines.llamacpp.types import (
    NEWEST,
    Backend,
    Context,
    LlamaCppSetup,
    Rules,
    TensorPlacement,
    is_newer,
)
from edgekit.engines.llamacpp.weights import HEAD, placed_tensors
from edgekit.errors import RefusedError
from edgekit.machine.types import HOST, Pool
from edgekit.model.hyperparameters import MAX_NUMBER
from edgekit.model.types import (
    HybridLayer,
    LatentAttention,
    Layer,
    Model,
    Recurrent,
    attention_of,
)
from edgekit.units import Basis


class _Certainty(NamedTuple):
    basis: Basis
    within: float | None
    because: str


BOUND_WITHIN = 1.0  # of the line: an upper bound, down to nothing
FLOAT_BYTES = 4
MOST_STREAMS = 64  # DeepSeek-V4 has 4
ASSUMED_VOCABULARY = 262_144  # Gemma's, among the largest
SHIFT_COPIES = 2
SHIFT_WITHIN = 1.0  # an upper bound: nothing is allocated before the first shift
INPUT_COPIES = 4  # ggml-backend.cpp: GGML_SCHED_MAX_COPIES, with several devices
SMALL_INPUTS = 2**20  # rotations of quantised caches, indices of states
PREDICTION = "prediction"
PREDICTION_WITHIN = 1.0


def compute_lines(
    model: Model, context: Context, placement: TensorPlacement, setup: LlamaCppSetup
) -> list[MemoryLine]:
    """The compute buffer of each pool: simulated from the graph, or an upper bound if the graph is not known."""
    graph_pools = pools(len(setup.devices)) if setup.has_device else (HOST,)
    try:
        target = spread(context, placement, setup.devices) if setup.has_device else CPU_ONLY
        sizes = compute_bytes(model, context, target)
        sizes = (*sizes[:1] * (placement.ranks - 1), *sizes)
        certainty = _certainty(placement, setup)
    except NoGraphError as error:
        on_host = (bound_bytes(model, context),)
        sizes = pool_bounds(model, context, placement, setup) if setup.has_device else on_host
        because = f"upper bound: everything alive at once in the largest step of a layer ({error})"
        certainty = _Certainty(Basis.MODELLED, BOUND_WITHIN, because)
    return [
        MemoryLine(component=Component.COMPUTE, size_bytes=size, pool=pool, **certainty._asdict())
        for pool, size in zip(graph_pools, sizes, strict=True)
    ]


def bounding_lines(
    model: Model, context: Context, placement: TensorPlacement, setup: LlamaCppSetup
) -> list[MemoryLine]:
    """Upper bounds of the compute buffers, as certain as the buffers themselves: without simulating the graph."""
    certainty = _certainty(placement, setup)
    on_host = (bound_bytes(model, context),)
    sizes = pool_bounds(model, context, placement, setup) if setup.has_device else on_host
    graph_pools = pools(len(setup.devices)) if setup.has_device else (HOST,)
    return [
        MemoryLine(component=Component.COMPUTE, size_bytes=size, pool=pool, **certainty._asdict())
        for pool, size in zip(graph_pools, sizes, strict=True)
    ]


def _certainty(placement: TensorPlacement, setup: LlamaCppSetup) -> _Certainty:
    """How well a simulated compute buffer is known: exact where the engine's own figures were recorded."""
    graph = "llama.cpp's largest compute graph"
    if setup.has_device:
        if setup.backend is not Backend.CUDA:
            because = f"{graph}, placed as the CUDA backend would place it"
            return _Certainty(Basis.MODELLED, 0.2, because)
        if placement.ranks > 1:
            # llama.cpp plans the graph for full tensors and allocates that much on every device
            # (ggml-backend-meta.cpp).
            because = "the engine's largest graph with whole tensors, which every device reserves"
            return _Certainty(Basis.MODELLED, 0.1, because)
        if len(setup.devices) > 1 or setup.devices[0].rpc:
            because = f"{graph} over several GPUs, with four copies of its inputs"
            return _Certainty(Basis.MODELLED, 0.1, because)
        if not placement.together:
            # Exact on every recorded row, but recorded on one GPU generation only.
            because = f"{graph}, split between GPU and CPU as llama.cpp splits it"
            return _Certainty(Basis.MODELLED, 0.05, because)
    if setup.load_mtp:
        # Up to 3 % on the models compared: the last layer then computes all tokens, not only the output rows.
        because = f"{graph}, without the states saved for token prediction (MTP)"
        return _Certainty(Basis.MODELLED, 0.05, because)
    if setup.rules not in (Rules.V0_5, NEWEST) or is_newer(setup.version):
        # Between two recorded builds: the rounded log agreed on the CPU for every header tried.
        because = f"{graph}, checked against the log of this build only"
        return _Certainty(Basis.MODELLED, 0.05, because)
    return _Certainty(Basis.EXACT, None, f"{graph}, simulated node by node with its own allocator")


def output_line(model: Model, context: Context) -> MemoryLine:
    """The output buffer: logits, and embeddings if requested, for each sequence."""
    stated = model.geometry.vocabulary
    vocabulary = ASSUMED_VOCABULARY if stated is None else stated
    name = model.geometry.architecture
    facts = known_architecture(name)
    hidden = 0
    if context.embeddings or facts.always_embeds:
        stated_width = model.header.keys.get(f"{name}.embedding_length_out")
        hidden = model.geometry.hidden
        if isinstance(stated_width, int) and 0 < stated_width <= MAX_NUMBER:
            hidden = stated_width
        count = model.header.keys.get(f"{name}.hyper_connection.count")
        if facts.embeds_streams and isinstance(count, int) and 0 < count <= MOST_STREAMS:
            hidden = model.geometry.hidden * count
        if facts.embeds_scores:
            hidden = 1
    wide = f"{vocabulary} logits" + (f" + {hidden} embedding" if hidden else "")
    return MemoryLine(
        component=Component.OUTPUT,
        size_bytes=FLOAT_BYTES * context.n_seq_max * (vocabulary + hidden),
        pool=HOST,
        basis=Basis.EXACT if stated is not None else Basis.ASSUMED,
        because=f"{context.n_seq_max} sequences x ({wide}) x {FLOAT_BYTES} bytes",
    )


def shift_lines(
    model: Model, context: Context, placement: TensorPlacement, compute: Sequence[MemoryLine]
) -> Iterator[MemoryLine]:
    """Memory for a context shift beyond the compute buffer; none unless K is quantised.

    llama-kv-cache.cpp @ b21e4de, build_graph_shift: rotates the K cache in place, layer by layer. Quantised K is
    dequantised for it, twice if it was stored rotated. llama.cpp does not reserve this graph: the buffer grows at the
    first shift and keeps that size.
    """
    if not context.type_k.is_quantized:
        return
    widest_rows: dict[Pool, int] = {}
    for layer in model.geometry.layers:
        widths = [stream.elements for stream in layer.mixer.streams if stream.name != "v"]
        for _, pool in shares_of(layer.mixer, layer.index, placement):
            widest_rows[pool] = max(widest_rows.get(pool, 0), *widths, 0)
    cells = context.kv_cells * context.kv_streams
    for pool, elements in widest_rows.items():
        size = cells * (SHIFT_COPIES * elements + 1) * FLOAT_BYTES
        reserved = sum(line.size_bytes for line in compute if line.pool == pool)
        if size > reserved:
            yield MemoryLine(
                component=Component.COMPUTE,
                size_bytes=size - reserved,
                pool=pool,
                basis=Basis.MODELLED,
                because=f"K cache unpacked for the context shift: {cells} cells x ({SHIFT_COPIES} x "
                f"{elements} floats + 1) x {FLOAT_BYTES} bytes, minus the {reserved} of "
                "the compute buffer",
                within=SHIFT_WITHIN,
            )


def prediction_lines(
    model: Model, context: Context, placement: TensorPlacement, compute: Sequence[MemoryLine]
) -> Iterator[MemoryLine]:
    """The second context that drafts with the model's own prediction blocks (server-context.cpp, common.cpp @ 0c1e570).

    It has a cache for those blocks only, an output and a compute buffer. Raises RefusedError for a model without such
    blocks.
    """
    count, layers = model.geometry.mtp_layers, len(model.geometry.layers)
    if not count:
        raise RefusedError("llama.cpp: this model has no layers for multi-token prediction (MTP)")
    # speculative.cpp @ b21e4de: its cache has the types of a drafter, f16 by default.
    context = replace(context, type_k=F16, type_v=F16)
    attending = next(
        (layer for layer in reversed(model.geometry.layers) if layer.mixer.streams), None
    )
    for block in range(layers, layers + count):
        shares = shares_of(attending.mixer, block, placement) if attending is not None else ()
        for mixer, pool in shares:
            yield MemoryLine(
                component=Component.KV_CACHE,
                size_bytes=layer_cache_bytes(model, mixer, context, pool),
                pool=pool,
                layer=block,
                basis=Basis.MODELLED,
                because="a cache like that of the last layer with attention",
                within=PREDICTION_WITHIN,
                part=PREDICTION,
            )
    because = "one layer and the output head: never more than the main graph"
    for line in (
        output_line(model, context),
        *(replace(compute_line, because=because) for compute_line in compute),
    ):
        yield replace(line, part=PREDICTION, basis=Basis.MODELLED, within=PREDICTION_WITHIN)


def bound_bytes(model: Model, context: Context) -> int:
    """An upper bound of the compute buffer, for models without a known graph.

    Counts what is alive in the widest step of a layer, in floats per token, and what is always alive: mask, inputs,
    logits. Never too low on the recorded CPU and CUDA rows (tests/truth/test_closed.py); sparse families, for which it
    would be, have graphs.
    """
    geometry = model.geometry
    tokens, hidden = context.n_tokens, geometry.hidden
    always = _always_bytes(model, context)
    widest = max((_widest_step(layer, hidden, context) for layer in geometry.layers), default=0)
    # Gemma 3n: four residual streams and a slice per layer
    gemma3n_floats = geometry.per_layer_embedding * len(geometry.layers)
    gemma3n_floats += 8 * hidden if geometry.per_layer_embedding else 0
    body = always + FLOAT_BYTES * tokens * (widest + 5 * hidden + gemma3n_floats)
    has_head = geometry.causal or not geometry.pooling
    vocabulary = (geometry.vocabulary or ASSUMED_VOCABULARY) if has_head else 0
    logits = FLOAT_BYTES * (context.n_outputs * (vocabulary + 2 * hidden) + 2 * tokens * hidden)
    return max(body, always + logits) * 5 // 4  # fragmentation


def pool_bounds(
    model: Model, context: Context, placement: TensorPlacement, setup: LlamaCppSetup
) -> tuple[int, ...]:
    """Upper bounds for each device and, last, for the host.

    The graph is charged where it runs. With every block on devices, the host holds only the inputs. Host data that a
    device computes with is copied there: the matrices of one block, and the caches of two.
    """
    geometry, devices = model.geometry, len(setup.devices)
    layers = geometry.layers
    graph = bound_bytes(model, context)
    # tokens, positions, masks, and embedding rows looked up on the host
    looked_up = 2 * geometry.hidden + 2 * geometry.per_layer_embedding * len(layers)
    inputs = _always_bytes(model, context) + FLOAT_BYTES * context.n_tokens * looked_up
    inputs = inputs * 5 // 4 + SMALL_INPUTS
    caches = {layer.index: layer_cache_bytes(model, layer.mixer, context, HOST) for layer in layers}
    host_caches = (size for i, size in caches.items() if placement.cache_pool(i) is HOST)
    copied_bytes = _host_weights_bytes(model, placement, setup)
    copied_bytes += 2 * max(host_caches, default=0)
    extra_inputs = (INPUT_COPIES - 1) * inputs if devices > 1 else 0
    on_device = graph + copied_bytes + extra_inputs
    if context.type_k.is_quantized or context.type_v.is_quantized:
        # K and V of one layer at f16, to which a quantised cache is converted
        widths = (sum(stream.elements for stream in layer.mixer.streams) for layer in layers)
        on_device += 2 * max(widths, default=0) * context.kv_cells * context.kv_streams
    together = placement.together
    if not together and not context.flash_attn:
        # attention scores, one per head and cell, and a copy of them
        attentions = (attention_of(layer.mixer) for layer in layers)
        heads = (attention.heads for attention in attentions if attention)
        cells = max(context.kv_cells, context.kv_swa_cells)
        on_device += FLOAT_BYTES * context.n_tokens * max(heads, default=0) * cells
    on_host = (inputs if together else max(graph, inputs)) + extra_inputs
    if context.flash_attn and not head_sizes(model).flashes:  # attention runs on the host
        on_host += graph + max(caches.values(), default=0)
    return (*(on_device,) * devices, on_host)


def _host_weights_bytes(model: Model, placement: TensorPlacement, setup: LlamaCppSetup) -> int:
    """The most bytes that one block copies from the host: its three largest matrices there."""
    blocks: dict[int | None, list[int]] = {}
    for placed in placed_tensors(model, placement, setup):
        outside = placed.block is None and placed.tensor.name != HEAD
        if placed.pool is HOST and not outside:
            blocks.setdefault(placed.block, []).append(placed.size_bytes)
    return max((sum(sorted(sizes)[-3:]) for sizes in blocks.values()), default=0)


def _always_bytes(model: Model, context: Context) -> int:
    """Bytes that are alive during the whole graph: the mask, and the indices of cache writes."""
    layers, size = model.geometry.layers, 0
    if any(attention_of(layer.mixer) for layer in layers):
        cached = any(layer.mixer.streams for layer in layers)
        cells = context.kv_cells + context.kv_swa_cells if cached else context.n_tokens
        cell_bytes = 2 if context.flash_attn else FLOAT_BYTES
        if context.flash_attn and context.rules < Rules.F16_MASK:
            cell_bytes += FLOAT_BYTES  # an f32 mask, and its copy in f16
        size = context.n_tokens * cells * cell_bytes
    if context.flash_attn:
        return size + 64 * context.n_tokens  # an index for each row
    # an index for each element of V, and a contiguous copy of the latent as V
    copies = 2 if context.kv_swa_cells else 1
    size += 8 * context.n_tokens * head_sizes(model).widest_value * copies
    latents = (
        layer.mixer.latent_dim
        for layer in layers
        if isinstance(layer.mixer, LatentAttention) and layer.mixer.absorbed
    )
    return size + FLOAT_BYTES * context.kv_cells * context.kv_streams * max(latents, default=0)


def _widest_step(layer: Layer, hidden: int, context: Context) -> int:
    """Floats alive per token in the widest step of a layer: mixing tokens, or feeding forward."""
    mixed = 0
    forward = 3 * layer.dense.width if layer.dense else 0
    attention = attention_of(layer.mixer)
    if attention is not None:
        heads = attention.heads
        forward += heads * attention.value_dim
        mixed = 3 * heads * attention.key_dim + 2 * heads * attention.value_dim
        if isinstance(attention, LatentAttention):
            mixed += heads * (4 * attention.latent_dim + 2 * attention.rope_dim)
        if not context.flash_attn:
            cells = max(context.kv_cells, context.kv_swa_cells)
            mixed += heads * (cells if layer.mixer.streams else context.n_tokens)
    mixer = layer.mixer.recurrent if isinstance(layer.mixer, HybridLayer) else layer.mixer
    if isinstance(mixer, Recurrent):
        taps = max(1, mixer.conv_kernel - 1)
        inner = mixer.inner + 2 * mixer.groups * mixer.state_size
        convolved = max(inner, mixer.conv_elements // taps)
        states = 2 * (mixer.conv_elements + mixer.state_elements) * context.n_seq_max
        mixed += 5 * convolved + 6 * mixer.inner + 2 * mixer.rank + -(-states // context.n_tokens)
    if layer.experts:
        experts = layer.experts
        within = experts.latent or hidden
        forward += (
            experts.used * (3 * experts.width + within)
            + 3 * experts.shared_width
            + 4 * experts.count
        )
    return max(mixed, forward)
