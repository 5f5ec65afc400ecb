"""A resolved context -> an upper bound of the compute buffer, for models whose graph is not known node by node.

What is alive at once in the widest step of a layer, counted in floats per token, and what is alive all along: the
mask, the inputs, the rows of logits. Never below on the recorded rows of CPUs and of CUDA (tests/truth/test_closed.py);
sparse families, for which it would be too low, have graphs.
"""

from __future__ import annotations

from edgekit.engines.llamacpp.caches import layer_cache_bytes
from edgekit.engines.llamacpp.context import head_sizes
from edgekit.engines.llamacpp.placement import HEAD, placed_tensors
from edgekit.engines.llamacpp.tensor_placement import TensorPlacement
from edgekit.engines.llamacpp.types import Context, LlamaCppSetup
from edgekit.engines.llamacpp.versions import Rules
from edgekit.machine.types import HOST
from edgekit.model.types import (
    HybridLayer,
    LatentAttention,
    Layer,
    Model,
    ModelGeometry,
    Recurrent,
    attention_of,
)

FLOAT_BYTES = 4
ASSUMED_VOCABULARY = 262_144
INPUT_COPIES = 4  # ggml-backend.cpp: GGML_SCHED_MAX_COPIES, over several devices
SMALL_INPUTS = 2**20  # rotations of quantised caches, indices of states


def bound_bytes(model: Model, context: Context) -> int:
    """Above what the engine reserves."""
    geometry = model.geometry
    tokens, hidden = context.n_tokens, geometry.hidden
    always = _mask_bytes(geometry, context) + _index_bytes(model, context)
    widest = max((_layer_floats(layer, geometry, context) for layer in geometry.layers), default=0)
    aside = geometry.per_layer_embedding * len(geometry.layers) + (
        8 * hidden if geometry.per_layer_embedding else 0
    )  # Gemma 3n keeps four streams of the hidden state and a slice for every layer
    body = always + FLOAT_BYTES * tokens * (widest + 5 * hidden + aside)
    has_head = geometry.causal or not geometry.pooling
    vocabulary = (geometry.vocabulary or ASSUMED_VOCABULARY) if has_head else 0
    logits = FLOAT_BYTES * (context.n_outputs * (vocabulary + 2 * hidden) + 2 * tokens * hidden)
    return max(body, always + logits) * 5 // 4  # blocks do not fit each other exactly


def pool_bounds(
    model: Model, context: Context, placement: TensorPlacement, setup: LlamaCppSetup
) -> tuple[int, ...]:
    """Of each device and, last, of the host: above what the engine reserves there.

    The graph is charged where it runs. With every block on devices the host holds no more than the inputs. What a
    device works on without holding it is copied there: the matrices of a block on the host, and caches of two.
    """
    devices = len(setup.devices)
    graph, inputs = bound_bytes(model, context), _inputs_bytes(model, context)
    caches = {
        layer.index: layer_cache_bytes(model, layer.mixer, context, HOST)
        for layer in model.geometry.layers
    }
    brought = _host_weights_bytes(model, placement, setup) + 2 * max(
        (size for il, size in caches.items() if placement.cache_pool(il) is HOST), default=0
    )
    several = (INPUT_COPIES - 1) * inputs if devices > 1 else 0
    on_device = graph + _widened_bytes(model.geometry, context) + brought + several
    together = placement.together
    if not together:
        on_device += _scores_bytes(model.geometry, context)  # once here, once for a copy
    on_host = (inputs if together else max(graph, inputs)) + several
    heads = head_sizes(model)
    if context.flash_attn and not heads.flashes:  # attention runs on the host, with what it reads
        on_host += graph + max(caches.values(), default=0)
    return (*(on_device,) * devices, on_host)


def _scores_bytes(geometry: ModelGeometry, context: Context) -> int:
    """Without flash attention: what every head makes of every cell."""
    if context.flash_attn:
        return 0
    heads = (found.heads for layer in geometry.layers if (found := attention_of(layer.mixer)))
    cells = max(context.cells, context.swa_cells)
    return FLOAT_BYTES * context.n_tokens * max(heads, default=0) * cells


def _inputs_bytes(model: Model, context: Context) -> int:
    """Tokens, positions, masks, and the rows that are looked up in tables on the host."""
    geometry = model.geometry
    always = _mask_bytes(geometry, context) + _index_bytes(model, context)
    aside = geometry.per_layer_embedding * len(geometry.layers)
    looked_up = FLOAT_BYTES * context.n_tokens * (2 * geometry.hidden + 2 * aside)
    return (always + looked_up) * 5 // 4 + SMALL_INPUTS


def _widened_bytes(geometry: ModelGeometry, context: Context) -> int:
    """A quantised cache is read at 16 bits: keys and values of one layer."""
    if not (context.type_k.is_quantized or context.type_v.is_quantized):
        return 0
    widest = max(
        (sum(stream.elements for stream in layer.mixer.streams) for layer in geometry.layers),
        default=0,
    )
    return 2 * widest * context.cells * context.streams


def _host_weights_bytes(model: Model, placement: TensorPlacement, setup: LlamaCppSetup) -> int:
    """The three largest matrices on the host that one block works with."""
    blocks: dict[int | None, list[int]] = {}
    for placed in placed_tensors(model, placement, setup):
        outside = placed.block is None and placed.tensor.name != HEAD
        if placed.pool is HOST and not outside:
            blocks.setdefault(placed.block, []).append(placed.size_bytes)
    return max((sum(sorted(sizes)[-3:]) for sizes in blocks.values()), default=0)


def _mask_bytes(geometry: ModelGeometry, context: Context) -> int:
    if not any(attention_of(layer.mixer) for layer in geometry.layers):
        return 0
    cached = any(layer.mixer.streams for layer in geometry.layers)
    cells = context.cells + context.swa_cells if cached else context.n_tokens
    cell_bytes = 2 if context.flash_attn else FLOAT_BYTES
    if context.flash_attn and context.rules < Rules.F16_MASK:
        cell_bytes += FLOAT_BYTES  # an f32 mask, and its copy in f16
    return context.n_tokens * cells * cell_bytes


def _index_bytes(model: Model, context: Context) -> int:
    """Where rows go in the cache; without flash attention V is scattered number by number."""
    if context.flash_attn:
        return 64 * context.n_tokens
    heads = head_sizes(model)
    scattered = 8 * context.n_tokens * heads.widest_value * (2 if context.swa_cells else 1)
    return scattered + _latent_copy_bytes(model.geometry, context)


def _latent_copy_bytes(geometry: ModelGeometry, context: Context) -> int:
    """Without flash attention the latent of all cells is laid out once more, as V."""
    widths = (
        layer.mixer.latent_dim
        for layer in geometry.layers
        if isinstance(layer.mixer, LatentAttention) and layer.mixer.absorbed
    )
    return FLOAT_BYTES * context.cells * context.streams * max(widths, default=0)


def _layer_floats(layer: Layer, geometry: ModelGeometry, context: Context) -> int:
    """Numbers alive per token in the widest step of a layer."""
    mixing = _attention_floats(layer, context) + _recurrent_floats(layer, context)
    return max(mixing, _forward_floats(layer, geometry))


def _attention_floats(layer: Layer, context: Context) -> int:
    attention = attention_of(layer.mixer)
    if attention is None:
        return 0
    heads = attention.heads
    widths = 3 * heads * attention.key_dim + 2 * heads * attention.value_dim
    if isinstance(attention, LatentAttention):
        widths += heads * (4 * attention.latent_dim + 2 * attention.rope_dim)
    if context.flash_attn:
        return widths
    seen = max(context.cells, context.swa_cells) if layer.mixer.streams else context.n_tokens
    return widths + heads * seen


def _recurrent_floats(layer: Layer, context: Context) -> int:
    mixer = layer.mixer.recurrent if isinstance(layer.mixer, HybridLayer) else layer.mixer
    if not isinstance(mixer, Recurrent):
        return 0
    taps = max(1, mixer.conv_kernel - 1)
    convolved = max(mixer.inner + 2 * mixer.groups * mixer.state_size, mixer.conv_elements // taps)
    states = 2 * (mixer.conv_elements + mixer.state_elements) * context.n_seq_max
    return 5 * convolved + 6 * mixer.inner + 2 * mixer.rank + -(-states // context.n_tokens)


def _forward_floats(layer: Layer, geometry: ModelGeometry) -> int:
    floats = 3 * layer.dense.width if layer.dense else 0
    if layer.experts:
        one = layer.experts
        within = one.latent or geometry.hidden
        floats += one.used * (3 * one.width + within) + 3 * one.shared_width + 4 * one.count
    attention = attention_of(layer.mixer)
    return floats + (attention.heads * attention.value_dim if attention else 0)
