"""A resolved context -> an upper bound of the compute buffer, for models whose graph is not known node by node.

What is alive at once in the widest step of a layer, counted in floats per token, and what is alive all along: the
mask, the inputs, the rows of logits. Never below on the recorded rows of the CPU (tests/truth/test_closed.py); sparse
families, for which it would be too low, have graphs.
"""

from __future__ import annotations

from edgekit.engine.llamacpp.context import Heads
from edgekit.engine.llamacpp.types import Context
from edgekit.engine.types import Model
from edgekit.geometry.types import (
    HybridLayer,
    LatentAttention,
    Layer,
    ModelGeometry,
    Recurrent,
    attention_of,
)

FLOAT_BYTES = 4
WITHIN = 3.5  # how far above the engine's own figure it may lie (small encoders; decoders 0.3 in the middle)
ASSUMED_VOCABULARY = 262_144


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


def _mask_bytes(geometry: ModelGeometry, context: Context) -> int:
    if not any(attention_of(layer.mixer) for layer in geometry.layers):
        return 0
    cached = any(layer.mixer.streams for layer in geometry.layers)
    cells = context.cells + context.swa_cells if cached else context.n_tokens
    return context.n_tokens * cells * (2 if context.flash_attn else FLOAT_BYTES)


def _index_bytes(model: Model, context: Context) -> int:
    """Where rows go in the cache; without flash attention V is scattered number by number."""
    if context.flash_attn:
        return 64 * context.n_tokens
    heads = model.keep("heads", lambda: Heads.of(model.geometry))
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
