"""Derives the tensors of a model from its geometry, its recipe and the config.json keys that the recipe refers to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

from edgekit.errors import HeaderError, UnknownArchitectureError
from edgekit.model.hyperparameters import text_section
from edgekit.model.tensor_recipes import (
    ExpectedTensor,
    Rows,
    Streams,
    Switch,
    TensorFamily,
    TensorKind,
    TensorRole,
    Width,
    array,
    linear,
    norm,
    tensor_recipe,
)
from edgekit.model.types import (
    Attention,
    Cell,
    CompressedAttention,
    CrossAttention,
    Experts,
    HybridLayer,
    LatentAttention,
    Layer,
    LayerKind,
    ModelGeometry,
    NoCache,
    Recurrent,
    SharedCache,
    Span,
    stored_layers,
)

MAX_TABLES = 1_024  # n-gram tables; LongCat has 12


def expected_tensors(
    geometry: ModelGeometry, config: Mapping[str, object] | None = None
) -> tuple[ExpectedTensor, ...]:
    """All tensors except towers and prediction blocks. Raises UnknownArchitectureError if they cannot be derived."""
    family = _family(geometry, config)
    in_layers = (
        row for layer in stored_layers(geometry) for row in layer_tensors(layer, geometry, config)
    )
    return (*_input_rows(geometry, family), *in_layers, *_output_rows(geometry, family))


def outer_tensors(
    geometry: ModelGeometry, config: Mapping[str, object] | None = None
) -> tuple[ExpectedTensor, ...]:
    """The tensors outside the layers, without towers."""
    family = _family(geometry, config)
    return (*_input_rows(geometry, family), *_output_rows(geometry, family))


def layer_tensors(
    layer: Layer, geometry: ModelGeometry, config: Mapping[str, object] | None = None
) -> tuple[ExpectedTensor, ...]:
    """The tensors of one layer, each with the layer's index."""
    rows = _layer_rows(layer, geometry, _family(geometry, config))
    return tuple(replace(row, layer=layer.index) for row in rows)


def prediction_tensors(
    geometry: ModelGeometry, config: Mapping[str, object] | None = None
) -> tuple[ExpectedTensor, ...]:
    """Blocks that predict further tokens: a copy of the last layer, a matrix that joins token and state, and norms."""
    family = _family(geometry, config)
    attending = [layer for layer in geometry.layers if not isinstance(layer.mixer, Recurrent)]
    last_layer = (attending or geometry.layers)[-1]
    rows: list[ExpectedTensor] = []
    first_block = len(geometry.layers)
    for index in range(first_block, first_block + geometry.mtp_layers):
        rows += layer_tensors(replace(last_layer, index=index), geometry, config)
        joins = linear(TensorRole.PREDICTION, family.hidden, 2 * family.hidden)
        norms = [row for _ in range(3) for row in norm(family)]
        rows += [replace(row, layer=index) for row in (*joins, *norms)]
    return tuple(rows)


def _family(geometry: ModelGeometry, config: Mapping[str, object] | None) -> TensorFamily:
    """The recipe of the model's architecture, with the keys of its config.json."""
    if geometry.vocabulary is None or geometry.tied_embeddings is None:
        missing = "vocabulary" if geometry.vocabulary is None else "output head"
        raise UnknownArchitectureError(
            f"the {missing} is unknown: read the whole header, or give a config.json"
        )
    return TensorFamily(
        name=geometry.architecture,
        recipe=tensor_recipe(geometry.architecture),
        section=text_section(config or {}),
        hidden=geometry.hidden,
    )


def _input_rows(geometry: ModelGeometry, family: TensorFamily) -> Rows:
    """The tensors before the first layer: embeddings, and matrices that set up the residual streams."""
    hidden, recipe, width = family.hidden, family.recipe, family.embedding
    rows = (geometry.vocabulary or 0) + recipe.embedding_rows
    yield array(TensorRole.EMBEDDING, TensorKind.EMBEDDING, rows, width)
    if recipe.start_state:
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, hidden)
    if recipe.streams is Streams.SCALED:
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, hidden)
        yield array(TensorRole.RESIDUAL, TensorKind.BIAS, hidden)
    if width != hidden:
        yield from linear(TensorRole.EMBEDDING_IN, hidden, width)
    if recipe.ngrams:
        yield from _ngram_tables(geometry, family)
    if recipe.positions is not None:
        rows = (geometry.trained_context or 0) + recipe.positions
        yield array(TensorRole.POSITION, TensorKind.EMBEDDING, rows, hidden)
    if recipe.token_types:
        token_types = family.number("type_vocab_size", recipe.token_types)
        if token_types:
            yield array(TensorRole.SEGMENT, TensorKind.EMBEDDING, token_types, hidden)
    if recipe.embedding_norm:
        yield from norm(family)
    if layer_width := geometry.per_layer_embedding:
        # Gemma 3n and 4: one table for all layers, and a projection of the hidden state into it.
        tokens = family.number("vocab_size_per_layer_input", geometry.vocabulary)
        table_width = layer_width * len(geometry.layers)
        yield array(TensorRole.LAYER_EMBEDDING, TensorKind.EMBEDDING, tokens, table_width)
        yield from linear(TensorRole.LAYER_EMBEDDING_IN, table_width, hidden)
        yield array(TensorRole.LAYER_EMBEDDING_IN, TensorKind.NORM, layer_width)
    if family.has(recipe.block_residual):
        yield from _block_residual(family)
    if recipe.streams is Streams.ALTERNATING:
        other_streams = family.number("altup_num_inputs", 4) - 1
        for _ in ("into the other streams", "out of them"):
            for row in linear(TensorRole.RESIDUAL, hidden, hidden):
                yield replace(row, count=other_streams)
    if recipe.streams in (Streams.HYPER, Streams.HYPER_GATED):
        streams = family.number("hc_mult")
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, streams, streams * hidden)
        yield array(TensorRole.RESIDUAL, TensorKind.BIAS, streams)
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, 1)


def _ngram_tables(geometry: ModelGeometry, family: TensorFamily) -> Rows:
    """LongCat: hash tables for sequences of two to four tokens, and their projections into the hidden state."""
    parts, longest = family.number("emb_split_num", 4), family.number("emb_neighbor_num", 4)
    rows = family.number("ngram_vocab_size_ratio", 78) * (geometry.vocabulary or 0)
    count = parts * max(longest - 1, 0)
    if count > min(MAX_TABLES, family.hidden):
        raise HeaderError(f"{count} n-gram tables are more than the limit", file="config.json")
    for index in range(count):
        width = family.hidden // count
        yield array(TensorRole.NGRAM, TensorKind.EMBEDDING, rows + 2 * index + 1, width)
        yield from linear(TensorRole.NGRAM, family.hidden, width)


def _output_rows(geometry: ModelGeometry, family: TensorFamily) -> Rows:
    """The tensors after the last layer: the final norm and the output head."""
    recipe = family.recipe
    if recipe.streams is Streams.HYPER_LOW_RANK:
        yield from _low_rank_mixer(family)
    if family.has(recipe.final_norm):
        yield from norm(family)
    if recipe.embedding_out and family.embedding != family.hidden:
        yield from linear(TensorRole.EMBEDDING_OUT, family.embedding, family.hidden)
    if recipe.head_scale:
        yield array(TensorRole.SCALE, TensorKind.RAW, 1)
    bias = family.has(recipe.head_bias)
    if not geometry.tied_embeddings:
        rows = family.number("unpadded_vocab_size", geometry.vocabulary)
        width = family.embedding if recipe.embedding_out else family.hidden
        yield from linear(TensorRole.HEAD, rows, width, bias=bias)
    elif bias:
        yield array(TensorRole.HEAD, TensorKind.BIAS, geometry.vocabulary or 0)


def _layer_rows(layer: Layer, geometry: ModelGeometry, family: TensorFamily) -> Rows:
    """Norms, mixer, feed-forward, experts and scales of a layer, not yet marked with its index."""
    recipe, dense, experts = family.recipe, layer.dense, layer.experts
    if recipe.shared_blocks:
        yield from _zamba_layer(layer, geometry, family)
        return
    for _ in range(_norm_count(layer, family)):
        yield from norm(family)
    if recipe.norm_rank:
        # A.X K2: a low-rank gate on the norm before attention, and another on the norm before experts.
        rank = family.number(recipe.norm_rank)
        for _ in range(1 if experts is None else 2):
            yield from linear(TensorRole.NORM, rank, family.hidden)
            yield from linear(TensorRole.NORM, family.hidden, rank)
    yield from _mixer(layer.mixer, family)
    if layer.index and recipe.value_rank:
        yield from _low_rank(family.number(recipe.value_rank), family.hidden)
    if dense is not None:
        yield from _feed_forward(_DENSE, dense.width, family, gated=dense.gated)
        if recipe.sub_norms:
            yield array(TensorRole.DOWN, TensorKind.NORM, dense.width)
        for _ in range(recipe.activation):
            yield array(TensorRole.SCALE, TensorKind.RAW, 1)
    if experts is not None:
        yield from _experts(experts, family, layer.index)
        if recipe.picture_experts and (width := family.second("moe_intermediate_size")):
            count = family.second("moe_num_experts") or experts.count
            pictures = replace(experts, width=width, count=count, shared_width=0)
            yield from _experts(pictures, family, layer.index)
    if width := geometry.per_layer_embedding:
        yield from linear(TensorRole.LAYER_GATE, width, family.hidden)
        yield from linear(TensorRole.LAYER_OUT, family.hidden, width)
        yield array(TensorRole.LAYER_OUT, TensorKind.NORM, family.hidden)
    for _ in range(recipe.layer_scales):
        yield array(TensorRole.SCALE, TensorKind.RAW, 1)
    if recipe.layer_ngrams:
        yield from _layer_ngrams(layer, family)
    yield from _residual_streams(family)


def _layer_ngrams(layer: Layer, family: TensorFamily) -> Rows:
    """Qwen4-Exp: one table for all hashes of the last tokens, whose sizes are consecutive primes; projections of the
    embedding into a key for each stream and a value, norms, and a convolution.
    """
    section, hidden = family.section, family.hidden
    numbers = section.get(family.recipe.layer_ngrams)
    listed = sorted({i for i in numbers if isinstance(i, int)}) if isinstance(numbers, list) else []
    if layer.index + 1 not in listed:
        return
    heads = (family.number("ngram_size", 3) - 1) * family.number("heads_per_ngram", 8)
    width = family.number("ple_embed_dim", hidden)
    before = listed.index(layer.index + 1) * heads
    if heads < 1 or before + heads > MAX_TABLES:
        raise HeaderError(f"{heads} n-gram tables in a layer", file="config.json")
    primes = _primes_from(family.number("ngram_vocab_size_base", 20_000_000), before + heads)
    multiple = max(family.number("make_ngram_vocab_size_divisible_by", 128), 1)
    rows = -(-sum(primes[before:]) // multiple) * multiple
    streams = family.number("hc_count", 4) * hidden
    yield array(TensorRole.NGRAM, TensorKind.EMBEDDING, rows, width // heads)
    yield from linear(TensorRole.NGRAM, streams, width)
    yield from linear(TensorRole.NGRAM, hidden, width)
    for _ in ("key", "query", "convolution"):
        yield array(TensorRole.NGRAM, TensorKind.NORM, streams)
    yield array(TensorRole.CONV, TensorKind.CONV, streams, family.number("ple_conv_kernel_size", 4))


@lru_cache(maxsize=16)
def _primes_from(start: int, count: int) -> tuple[int, ...]:
    """The first `count` primes that are at least `start`."""
    primes: list[int] = []
    candidate = max(start, 2)
    while len(primes) < count:
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return tuple(primes)


def _is_prime(number: int) -> bool:
    """Miller and Rabin's test, which is exact below 3,215,031,751 for these bases, and for 11 below 2**40."""
    bases = (2, 3, 5, 7, 11)
    if number in bases or any(number % base == 0 for base in bases):
        return number in bases
    shift = ((number - 1) & (1 - number)).bit_length() - 1  # factors of 2 in number - 1
    for base in bases:
        power = pow(base, (number - 1) >> shift, number)
        squares = {pow(power, 1 << step, number) for step in range(shift)}
        if power != 1 and number - 1 not in squares:
            return False
    return number > 1


def _norm_count(layer: Layer, family: TensorFamily) -> int:
    """The number of norms of the hidden width in this layer."""
    recipe = family.recipe
    if layer.index == 0 and recipe.first_norms is not None:
        return recipe.first_norms
    has_mixer = not isinstance(layer.mixer, NoCache) or layer.mixer.attention is not None
    has_feed_forward = layer.dense is not None or layer.experts is not None
    plain_norms = recipe.norms if has_mixer and has_feed_forward else min(recipe.norms, 1)
    switched_norms = sum(family.has(switch) for switch in recipe.more_norms)
    expert_norms = recipe.expert_norms if layer.experts is not None else 0
    return plain_norms + switched_norms + expert_norms


def _residual_streams(family: TensorFamily) -> Rows:
    """The tensors in one layer that combine residual streams, or the outputs of earlier blocks."""
    hidden, streams = family.hidden, family.recipe.streams
    if family.has(family.recipe.block_residual):
        yield from _block_residual(family)  # before attention
        yield from _block_residual(family)  # before the feed-forward
    if streams is Streams.ALTERNATING:
        # Gemma 3n: alternating updates of four streams, and a low-rank bypass (LAuReL).
        count, rank = family.number("altup_num_inputs", 4), family.number("laurel_rank", 64)
        yield from linear(TensorRole.RESIDUAL, count, hidden)
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, count, count)
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, count * count, count)
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, hidden)
        yield array(TensorRole.RESIDUAL, TensorKind.NORM, hidden)
        yield from linear(TensorRole.RESIDUAL, rank, hidden)
        yield from linear(TensorRole.RESIDUAL, hidden, rank)
        yield array(TensorRole.RESIDUAL, TensorKind.NORM, hidden)
    if streams is Streams.HYPER_LOW_RANK:
        for _ in ("attention", "feed-forward"):
            yield from _low_rank_mixer(family)
            yield array(
                TensorRole.RESIDUAL, TensorKind.RAW, family.number("hc_count", 4), _streams(family)
            )
    if streams in (Streams.HYPER, Streams.HYPER_SUMMED, Streams.HYPER_GATED):
        # DeepSeek-V4: hyper-connections before attention and before the feed-forward: how much of each stream is
        # read, how much is written, and (not in Hy 4) how the streams are mixed.
        count = family.number("hc_mult")
        is_mixed = streams is not Streams.HYPER_GATED
        mixes = (2 + count * is_mixed) * count
        for _ in ("attention", "feed-forward"):
            yield array(TensorRole.RESIDUAL, TensorKind.RAW, mixes, count * hidden)
            yield array(TensorRole.RESIDUAL, TensorKind.BIAS, mixes)
            yield array(TensorRole.RESIDUAL, TensorKind.RAW, 2 + is_mixed)
    if streams is Streams.SCALED:
        # Zaya: of the output and of the residual, after attention and after the feed-forward.
        for _ in range(4):
            yield array(TensorRole.RESIDUAL, TensorKind.RAW, hidden)
            yield array(TensorRole.RESIDUAL, TensorKind.BIAS, hidden)


def _streams(family: TensorFamily) -> int:
    """The width of all residual streams of Qwen4-Exp."""
    return family.number("hc_count", 4) * family.hidden


def _low_rank_mixer(family: TensorFamily) -> Rows:
    """Qwen4-Exp: weighs the residual streams, normalised, by two matrices of low rank."""
    width, rank = _streams(family), family.number("hc_lowrank", 320)
    yield array(TensorRole.RESIDUAL, TensorKind.NORM, width)
    yield from linear(TensorRole.RESIDUAL, rank, width)
    yield from linear(TensorRole.RESIDUAL, width, rank)


def _block_residual(family: TensorFamily) -> Rows:
    """Kimi K3: weights for the outputs of earlier blocks, computed from a normalised state."""
    yield array(TensorRole.RESIDUAL, TensorKind.RAW, 1, family.hidden)
    yield array(TensorRole.RESIDUAL, TensorKind.NORM, family.hidden)


def _mixer(kind: LayerKind, family: TensorFamily) -> Rows:
    """The tensors of the attention or recurrence of a layer."""
    match kind:
        case Attention():
            yield from _attention(kind, family)
        case SharedCache():
            borrows = not family.has(family.recipe.borrowed_keys)
            yield from _attention(kind.attention, family, borrows=borrows)
        case NoCache() if kind.attention is not None:
            yield from _attention(kind.attention, family)
        case CrossAttention():
            yield from _attention(kind.attention, family)
            for role in (TensorRole.QUERY, TensorRole.KEY):
                yield array(role, TensorKind.NORM, kind.attention.key_dim)
            for _ in ("attention", "feed-forward"):  # gates, one number each
                yield array(TensorRole.SCALE, TensorKind.RAW, 1)
        case HybridLayer():
            yield from _attention(kind.attention, family)
            yield from _CELLS[kind.recurrent.cell](kind.recurrent, family)
        case LatentAttention():
            yield from _latent_attention(kind, family)
        case CompressedAttention():
            yield from _compressed_attention(kind, family)
        case Recurrent():
            yield from _CELLS[kind.cell](kind, family)
        case _:
            return


# -- attention -------------------------------------------------------------------------------


def _attention(kind: Attention, family: TensorFamily, *, borrows: bool = False) -> Rows:
    """Multi-head attention. `borrows`: it reads another layer's keys and values and has no matrices for them."""
    recipe = family.recipe
    bias = family.has(recipe.qkv_bias)
    queries = kind.heads * kind.key_dim * (2 if kind.gated else 1)
    yield from linear(TensorRole.QUERY, queries, family.hidden, bias=bias)
    if not borrows:
        values = 0 if kind.values_are_keys else kind.kv_heads * kind.value_dim
        yield from linear(TensorRole.KEY, kind.kv_heads * kind.key_dim, family.hidden, bias=bias)
        yield from linear(TensorRole.VALUE, values, family.hidden, bias=bias)
        if recipe.cache_scales:
            yield array(TensorRole.SCALE, TensorKind.RAW, 1)
            yield array(TensorRole.SCALE, TensorKind.RAW, 1)
    yield from _attention_output(kind.heads * kind.value_dim, family)
    yield from _head_norms(kind, family, borrows=borrows)
    if recipe.gate is not None and family.has(recipe.gate_if):
        yield from _gate(recipe.gate, kind, family)
    if recipe.relative:
        width = family.number("d_rel", 16)
        reach = kind.span_tokens or family.number("rel_extent", 1024)
        yield from linear(TensorRole.QUERY, kind.heads * width, family.hidden)
        yield array(TensorRole.SCALE, TensorKind.RAW, width, reach)
    if recipe.query_gain:
        yield array(TensorRole.SCALE, TensorKind.RAW, kind.heads)
    if recipe.round_gate:
        yield array(TensorRole.ATTENTION_GATE, TensorKind.RAW, kind.heads, kind.key_dim)
        yield array(TensorRole.ATTENTION_GATE, TensorKind.BIAS, kind.heads)
    sinks = recipe.sinks
    if kind.span is Span.WINDOW and recipe.window_sinks is not None:
        sinks = recipe.window_sinks
    if family.has(sinks):
        yield array(TensorRole.SINKS, TensorKind.RAW, kind.heads)
    if width := kind.index_dim:  # MiniMax-M3: queries and one key that choose blocks
        heads = family.number("indexer_n_heads", family.number("index_n_heads", 4))
        yield from linear(TensorRole.INDEX_QUERY, heads * width, family.hidden)
        yield from linear(TensorRole.INDEX_KEY, width, family.hidden)
        yield array(TensorRole.INDEX_QUERY, TensorKind.NORM, width)
        yield array(TensorRole.INDEX_KEY, TensorKind.NORM, width)


def _zamba_layer(layer: Layer, geometry: ModelGeometry, family: TensorFamily) -> Rows:
    """Zamba 2: Mamba-2 in every layer. Hybrid layers first run one of a few shared transformer blocks, each with its
    own low-rank adapters and projection.

    A shared block is counted in the first layer that runs it.
    """
    mixer, hidden, recipe = layer.mixer, family.hidden, family.recipe
    state = mixer.recurrent if isinstance(mixer, HybridLayer) else mixer
    yield from norm(family)
    if isinstance(state, Recurrent):
        yield from _mamba2(state, family)
    if not isinstance(mixer, HybridLayer) or layer.dense is None:
        return
    yield from linear(TensorRole.STATE_LOW_OUT, hidden, hidden)
    inner, width = 2 * hidden, layer.dense.width
    adapted = [(inner, inner)] * 3 if family.has(_ATTENTION_ADAPTERS) else []
    for into, out in (*adapted, (hidden, 2 * width)):
        rank = family.number("adapter_rank", 128)
        yield from linear(TensorRole.GATE, rank, into)
        yield from linear(TensorRole.GATE, out, rank)
    hybrids = [item.index for item in geometry.layers if isinstance(item.mixer, HybridLayer)]
    if hybrids.index(layer.index) >= family.number(recipe.shared_blocks, 1):
        return
    queries = mixer.attention.heads * mixer.attention.key_dim
    keys = mixer.attention.kv_heads * mixer.attention.key_dim
    for role, out in (
        (TensorRole.QUERY, queries),
        (TensorRole.KEY, keys),
        (TensorRole.VALUE, keys),
    ):
        yield from linear(role, out, inner)
    yield from linear(TensorRole.OUTPUT, hidden, queries)
    yield from _feed_forward(_DENSE, width, family, gated=True)
    yield array(TensorRole.NORM, TensorKind.NORM, inner)
    yield array(TensorRole.NORM, TensorKind.NORM, hidden)


_ATTENTION_ADAPTERS = Switch(("use_shared_attention_adapter",))


def _attention_output(values: int, family: TensorFamily) -> Rows:
    """The output matrix of attention, and its norm if the recipe has one."""
    bias = family.has(family.recipe.output_bias)
    yield from linear(TensorRole.OUTPUT, family.hidden, values, bias=bias)
    if family.recipe.sub_norms:
        yield array(TensorRole.OUTPUT, TensorKind.NORM, values)


def _head_norms(kind: Attention, family: TensorFamily, *, borrows: bool) -> Rows:
    """The norms of queries and keys."""
    recipe = family.recipe
    if recipe.head_norm is None or not family.has(recipe.head_norm_if):
        return
    kinds = (TensorKind.NORM, TensorKind.BIAS) if recipe.head_norm_bias else (TensorKind.NORM,)
    normed = [(TensorRole.QUERY, kind.heads)]
    if not borrows:
        normed.append((TensorRole.KEY, kind.kv_heads))
    for role, heads in normed:
        shape: tuple[int, ...] = (kind.key_dim,)
        if recipe.head_norm is Width.EACH:
            shape = (heads, kind.key_dim)
        elif recipe.head_norm is Width.ALL:
            shape = (heads * kind.key_dim,)
        for tensor_kind in kinds:
            yield array(role, tensor_kind, *shape)


def _latent_attention(kind: LatentAttention, family: TensorFamily) -> Rows:
    """MLA: queries, perhaps compressed; keys and values from a shared latent; a sparse indexer."""
    hidden, rank, queries = family.hidden, kind.query_rank, kind.heads * kind.key_dim
    bias = family.has(family.recipe.qkv_bias)
    gate = kind.heads * kind.value_dim if family.recipe.gate is Width.ALL else 0
    if rank:
        yield from linear(TensorRole.QUERY_DOWN, rank, hidden, bias=bias)
        yield array(TensorRole.QUERY_DOWN, TensorKind.NORM, rank)
        # A.X K2 computes queries and gate in one matrix, from two copies of the compressed query.
        yield from linear(TensorRole.QUERY_UP, queries + gate, rank * (2 if gate else 1))
    else:
        yield from linear(TensorRole.QUERY, queries, hidden)
    yield from linear(TensorRole.LATENT_DOWN, kind.latent_dim + kind.rope_dim, hidden, bias=bias)
    yield array(TensorRole.LATENT_DOWN, TensorKind.NORM, kind.latent_dim)
    if family.recipe.rope_norm:
        yield array(TensorRole.LATENT_DOWN, TensorKind.NORM, kind.rope_dim)
    keys_and_values = kind.heads * (kind.key_dim - kind.rope_dim + kind.value_dim)
    yield from linear(TensorRole.LATENT_UP, keys_and_values, kind.latent_dim)
    yield from _attention_output(kind.heads * kind.value_dim, family)
    if family.recipe.latent_gate is not None and family.has(family.recipe.latent_gate_if):
        yield from _gate(family.recipe.latent_gate, kind, family)
    if family.has(family.recipe.sinks):
        yield array(TensorRole.SINKS, TensorKind.RAW, kind.heads)
    if family.recipe.head_temperature:
        yield array(TensorRole.SCALE, TensorKind.RAW, kind.heads)
        yield array(TensorRole.SCALE, TensorKind.BIAS, kind.heads)
    if width := kind.index_dim:
        # DeepSeek-V3.2: queries from the compressed ones, one key, a weight for each head.
        heads = family.number("index_n_heads")
        yield from linear(TensorRole.INDEX_QUERY, heads * width, rank or hidden)
        yield from linear(TensorRole.INDEX_KEY, width, hidden)
        yield array(TensorRole.INDEX_KEY, TensorKind.NORM, width)
        yield array(TensorRole.INDEX_KEY, TensorKind.BIAS, width)
        yield from linear(TensorRole.INDEX_WEIGHTS, heads, hidden)
        if family.recipe.head_temperature:
            for tensor_kind in (TensorKind.NORM, TensorKind.BIAS):
                yield array(TensorRole.INDEX_QUERY, tensor_kind, hidden)
            yield array(TensorRole.INDEX_WEIGHTS, TensorKind.RAW, heads)
            yield array(TensorRole.INDEX_WEIGHTS, TensorKind.BIAS, heads)
        if family.recipe.index_pool:  # gates and positions of the tokens that share a key
            pool = family.number(family.recipe.index_pool)
            yield array(TensorRole.INDEX_KEY, TensorKind.RAW, pool, width)
            yield array(TensorRole.INDEX_KEY, TensorKind.RAW, width, hidden)


def _gate(width: Width, kind: Attention | LatentAttention, family: TensorFamily) -> Rows:
    """The gate on the attention's output, as wide as one number per head or as all values."""
    gates = kind.heads * kind.value_dim if width is Width.ALL else kind.heads
    yield from linear(TensorRole.ATTENTION_GATE, gates, family.hidden)


def _compressed_attention(kind: CompressedAttention, family: TensorFamily) -> Rows:
    """DeepSeek-V4: low-rank queries, one key for all heads, an output in groups of low rank."""
    hidden, width = family.hidden, kind.key_dim
    rank, groups = family.number("q_lora_rank"), family.number("o_groups")
    output_rank = groups * family.number("o_lora_rank")
    yield from linear(TensorRole.QUERY_DOWN, rank, hidden)
    yield array(TensorRole.QUERY_DOWN, TensorKind.NORM, rank)
    yield from linear(TensorRole.QUERY_UP, kind.heads * width, rank)
    yield from linear(TensorRole.KEY, width, hidden)
    yield array(TensorRole.KEY, TensorKind.NORM, width)
    yield from linear(TensorRole.OUTPUT_DOWN, output_rank, kind.heads * width // max(groups, 1))
    yield from linear(TensorRole.OUTPUT, hidden, output_rank)
    yield array(TensorRole.SINKS, TensorKind.RAW, kind.heads)
    if not kind.overlapping:
        yield from _shared_compressor(kind, family)
        return
    if kind.ratio:
        yield from _compressor(width, kind.ratio, family)
    if kind.ratio and kind.index_dim:
        heads = family.number("index_n_heads")
        yield from _compressor(kind.index_dim, kind.ratio, family)
        yield from linear(TensorRole.INDEX_QUERY, heads * kind.index_dim, rank)
        yield from linear(TensorRole.INDEX_WEIGHTS, heads, hidden)


def _shared_compressor(kind: CompressedAttention, family: TensorFamily) -> Rows:
    """DeepSeek-V4.1: compresses keys for later layers too; index keys are made from the compressed ones."""
    hidden, width = family.hidden, kind.key_dim
    if family.section.get("engram_layer_ids"):
        raise UnknownArchitectureError("the tensors of engram memory are not known yet")
    if kind.ratio:
        yield from linear(TensorRole.COMPRESSOR_KEY, width, hidden)
        if kind.ratio > 1:
            yield from linear(TensorRole.COMPRESSOR_GATE, width, hidden)
        yield array(TensorRole.COMPRESSOR_KEY, TensorKind.NORM, width)
    if kind.selects:
        heads = family.number("index_n_heads")
        rows = heads * family.number("index_head_dim")
        yield from linear(TensorRole.INDEX_QUERY, rows, family.number("q_lora_rank"))
        yield from linear(TensorRole.INDEX_WEIGHTS, heads, hidden)
    if kind.index_dim:
        yield from linear(TensorRole.INDEX_KEY, kind.index_dim, width)
        yield array(TensorRole.INDEX_KEY, TensorKind.NORM, kind.index_dim)


def _compressor(width: int, ratio: int, family: TensorFamily) -> Rows:
    """Compresses `ratio` keys of this width into one, by gates and learned positions."""
    overlapped = 2 * width if ratio == 4 else width  # only blocks of 4 tokens overlap
    yield from linear(TensorRole.COMPRESSOR_KEY, overlapped, family.hidden)
    yield from linear(TensorRole.COMPRESSOR_GATE, overlapped, family.hidden)
    yield array(TensorRole.COMPRESSOR_GATE, TensorKind.RAW, ratio, overlapped)
    yield array(TensorRole.COMPRESSOR_KEY, TensorKind.NORM, width)


# -- feed-forward -----------------------------------------------------------------------------

_DENSE = (TensorRole.GATE, TensorRole.UP, TensorRole.DOWN)
_SHARED = (TensorRole.SHARED_GATE, TensorRole.SHARED_UP, TensorRole.SHARED_DOWN)


def _feed_forward(
    roles: tuple[TensorRole, TensorRole, TensorRole],
    width: int,
    family: TensorFamily,
    *,
    gated: bool,
) -> Rows:
    """A dense feed-forward: gate, up and down."""
    gate, up, down = roles
    bias = family.has(family.recipe.ffn_bias)
    if gated:
        yield from linear(gate, width, family.hidden, bias=bias)
    yield from linear(up, width, family.hidden, bias=bias)
    yield from linear(down, family.hidden, width, bias=bias)


def _experts(experts: Experts, family: TensorFamily, layer: int) -> Rows:
    """The router, the routed experts and the shared experts of a layer."""
    recipe, hidden = family.recipe, family.hidden
    routes = experts.count + family.number("zero_expert_num", 0)  # LongCat: experts that do nothing
    kind = TensorKind.RAW if recipe.router_is_raw else TensorKind.LINEAR
    if recipe.router_width:  # Zaya: one expert more, which does nothing
        width, routes = family.number(recipe.router_width, 256), routes + 1
        yield from linear(TensorRole.ROUTER, width, hidden, bias=True)
        yield array(TensorRole.ROUTER, TensorKind.NORM, width)
        for _ in range(2):
            yield from linear(TensorRole.ROUTER, width, width, bias=True)
        yield from linear(TensorRole.ROUTER, routes, width)
        if layer:
            yield array(TensorRole.ROUTER, TensorKind.RAW, width)
    else:
        shared = experts.shared_width // max(experts.width, 1) if recipe.routes_shared else 0
        yield array(TensorRole.ROUTER, kind, routes + shared, hidden)
    if family.has(recipe.router_bias):
        yield array(TensorRole.ROUTER, TensorKind.BIAS, routes)
    if family.has(recipe.correction) and not chooses_by_token(family.section, layer):
        yield array(TensorRole.ROUTER, TensorKind.BIAS, routes)
    if recipe.router_scales:
        yield array(TensorRole.SCALE, TensorKind.RAW, hidden)
        yield array(TensorRole.SCALE, TensorKind.RAW, experts.count)
    expert_hidden = experts.latent or hidden
    if experts.latent:
        yield from linear(TensorRole.EXPERTS_IN, expert_hidden, hidden)
        yield from linear(TensorRole.EXPERTS_OUT, hidden, expert_hidden)
        has_norms = family.has(recipe.latent_norms_if)
        for _ in range(recipe.latent_norms if has_norms else 0):
            yield array(TensorRole.EXPERTS_IN, TensorKind.NORM, expert_hidden)
    yield from _expert_matrices(
        experts.count, experts.width, expert_hidden, family, gated=experts.gated
    )
    if experts.shared_width:
        yield from _feed_forward(_SHARED, experts.shared_width, family, gated=experts.gated)
        if family.has(recipe.shared_switch):
            yield from linear(TensorRole.SHARED_SWITCH, 1, hidden)
        if recipe.shared_mix:
            yield from linear(TensorRole.SHARED_SWITCH, 2, hidden, bias=True)
    if recipe.small_experts:
        width = family.number(recipe.small_experts, 128)  # conversion/grovemoe.py @ 0c1e570
        yield from _expert_matrices(experts.count // 2, width, hidden, family, gated=True)


def chooses_by_token(section: Mapping[str, object], layer: int) -> bool:
    """DeepSeek-V4 chooses the experts of its first layers by a hash of the token. config.json lists or counts them."""
    kinds, count = section.get("mlp_layer_types"), section.get("num_hash_layers")
    if isinstance(kinds, list):
        return layer < len(kinds) and kinds[layer] == "hash_moe"
    return isinstance(count, int) and layer < count


def _expert_matrices(
    count: int, width: int, hidden: int, family: TensorFamily, *, gated: bool
) -> Rows:
    """Gate, up and down matrices of `count` experts, with biases if the recipe has them."""
    shapes = {TensorRole.EXPERT_GATE: (width, hidden)} if gated else {}
    shapes |= {TensorRole.EXPERT_UP: (width, hidden), TensorRole.EXPERT_DOWN: (hidden, width)}
    for role, shape in shapes.items():
        yield ExpectedTensor(role=role, kind=TensorKind.EXPERT, shape=shape, count=count)
        if family.has(family.recipe.expert_bias):
            yield ExpectedTensor(role=role, kind=TensorKind.BIAS, shape=shape[:1], count=count)


# -- recurrences ------------------------------------------------------------------------------


def _mamba(kind: Recurrent, family: TensorFamily) -> Rows:
    """Mamba: x and gate from one matrix; dt, B and C from x."""
    inner, state, rank, steps = kind.inner, kind.state_size, kind.rank, kind.inner
    decay_shape: tuple[int, ...] = (inner, state)
    if kind.cell is Cell.MAMBA2:  # PLaMo 2 has one dt, A and D for each head
        rank, steps, decay_shape = max(64, family.hidden // 16), kind.heads, (kind.heads,)
    yield from _state_in(2 * inner, family)
    yield from _convolution(inner, kind, family)
    yield from linear(TensorRole.STATE_X, rank + 2 * state, inner)
    yield from linear(TensorRole.STATE_DT, steps, rank, bias=True)
    if family.recipe.step_norms:
        for width in (rank, state, state):
            yield array(TensorRole.STATE_NORM, TensorKind.NORM, width)
    yield array(TensorRole.STATE_A, TensorKind.RAW, *decay_shape)
    yield array(TensorRole.STATE_D, TensorKind.RAW, steps)
    yield from _state_out(inner, family)


def _mamba2(kind: Recurrent, family: TensorFamily) -> Rows:
    """Mamba-2: one projection yields gate, x, B, C and dt; A and D are one number per head."""
    if family.recipe.step_norms:  # PLaMo 2
        yield from _mamba(kind, family)
        return
    inner, keys = kind.inner, kind.groups * kind.state_size
    yield from _state_in(2 * inner + 2 * keys + kind.heads, family)
    yield from _convolution(inner + 2 * keys, kind, family)
    yield array(TensorRole.STATE_DT, TensorKind.BIAS, kind.heads)
    yield array(TensorRole.STATE_A, TensorKind.RAW, kind.heads)
    yield array(TensorRole.STATE_D, TensorKind.RAW, kind.heads)
    if family.has(family.recipe.state_norm):
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, inner)
    yield from _state_out(inner, family)


def _gated_delta(kind: Recurrent, family: TensorFamily) -> Rows:
    """Gated DeltaNet of Qwen3-Next."""
    inner, keys = kind.inner, kind.groups * kind.state_size
    yield from linear(TensorRole.STATE_IN, 2 * keys + inner, family.hidden)
    yield from linear(TensorRole.STATE_GATE, inner, family.hidden)
    yield from linear(TensorRole.STATE_BETA, 2 * kind.heads, family.hidden)
    yield from _convolution(inner + 2 * keys, kind, family)
    yield array(TensorRole.STATE_DT, TensorKind.BIAS, kind.heads)
    yield array(TensorRole.STATE_A, TensorKind.RAW, kind.heads)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, inner // max(kind.heads, 1))
    yield from linear(TensorRole.STATE_OUT, family.hidden, inner)


def _kimi_delta(kind: Recurrent, family: TensorFamily) -> Rows:
    """Kimi Delta Attention. Its forget and output gates are full matrices or of low rank."""
    inner, width = kind.inner, kind.state_size
    yield from linear(TensorRole.STATE_IN, 3 * inner, family.hidden)
    yield from _convolution(3 * inner, kind, family)
    yield from linear(TensorRole.STATE_BETA, kind.heads, family.hidden)
    for full_gate in (family.recipe.whole_forget, family.recipe.whole_output):
        if family.has(full_gate):
            yield from linear(TensorRole.STATE_GATE, inner, family.hidden)
        else:
            yield from linear(TensorRole.STATE_LOW, width, family.hidden)
            yield from linear(TensorRole.STATE_LOW, inner, width)
    yield array(TensorRole.STATE_DT, TensorKind.BIAS, inner)
    yield array(TensorRole.STATE_A, TensorKind.RAW, kind.heads)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, width)
    yield from linear(TensorRole.STATE_OUT, family.hidden, inner)


def _lightning(kind: Recurrent, family: TensorFamily) -> Rows:
    """Lightning attention: queries, keys and values from one matrix, and an output gate."""
    yield from _state_in(3 * kind.inner, family)
    yield from linear(TensorRole.STATE_GATE, kind.inner, family.hidden)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.inner)
    if family.has(family.recipe.state_head_norms):
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.state_size)
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.state_size)
    yield from _state_out(kind.inner, family)


def _gated_linear(kind: Recurrent, family: TensorFamily) -> Rows:
    """GLA of flash-linear-attention: queries, keys, values and output gate, and a forget gate of rank 16."""
    keys, rank = kind.heads * kind.state_size, family.number("gate_low_rank_dim", 16)
    yield from linear(TensorRole.STATE_IN, 2 * keys + kind.inner, family.hidden)
    yield from linear(TensorRole.STATE_GATE, kind.inner, family.hidden)
    yield from linear(TensorRole.STATE_LOW, rank, family.hidden)
    yield from linear(TensorRole.STATE_LOW, keys, rank, bias=True)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.inner // max(kind.heads, 1))
    yield from linear(TensorRole.STATE_OUT, family.hidden, kind.inner)


def _short_conv(kind: Recurrent, family: TensorFamily) -> Rows:
    """LFM2: three projections, a short convolution, and an output matrix."""
    bias = family.has(family.recipe.conv_bias)
    yield from linear(TensorRole.STATE_IN, 3 * kind.inner, family.hidden, bias=bias)
    yield from _convolution(kind.inner, kind, family)
    yield from linear(TensorRole.STATE_OUT, family.hidden, kind.inner, bias=bias)


def _gated_conv(kind: Recurrent, family: TensorFamily) -> Rows:
    """Gear: queries, keys and values as in attention; keys and values pass through a convolution."""
    keys, bias = kind.groups * kind.state_size, family.has(family.recipe.qkv_bias)
    yield from linear(TensorRole.QUERY, kind.inner, family.hidden, bias=bias)
    for role in (TensorRole.KEY, TensorRole.VALUE):
        yield from linear(role, keys, family.hidden, bias=bias)
        yield from _convolution(keys, kind, family)
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.state_size)
    yield from linear(TensorRole.OUTPUT, family.hidden, kind.inner, bias=bias)


def _four_convs(kind: Recurrent, family: TensorFamily) -> Rows:
    """Inkling: of keys, of values, and of the outputs of attention and feed-forward."""
    cached = kind.conv_elements // max(kind.conv_kernel - 1, 1) - 2 * family.hidden
    for channels in (cached // 2, cached // 2, family.hidden, family.hidden):
        yield from _convolution(channels, kind, family)


def _key_conv(kind: Recurrent, _: TensorFamily) -> Rows:
    """Baichuan-M1: a convolution kernel for each KV head, for keys and for values."""
    for role in (TensorRole.KEY, TensorRole.VALUE):
        yield array(role, TensorKind.RAW, kind.groups, kind.conv_kernel)


def _query_key_conv(kind: Recurrent, _: TensorFamily) -> Rows:
    """Zaya: a convolution of each channel, then one of each head, and a temperature for each KV head."""
    width = kind.state_size
    for shape in ((kind.inner, 1, kind.conv_kernel), (kind.inner, width, kind.rank)):
        yield array(TensorRole.CONV, TensorKind.CONV, *shape)
        yield array(TensorRole.CONV, TensorKind.BIAS, kind.inner)
    yield array(TensorRole.SCALE, TensorKind.RAW, kind.groups)


def _mlstm(kind: Recurrent, family: TensorFamily) -> Rows:
    """xLSTM: queries, keys, values and an output gate; input and forget gates of one number per head."""
    keys, hidden = kind.heads * kind.state_size, family.hidden
    for out in (keys, keys, kind.inner):
        yield from _state_in(out, family)
    bias = family.has(family.recipe.state_bias)
    yield from linear(TensorRole.STATE_GATE, kind.inner, hidden, bias=bias)
    for _ in ("input", "forget"):
        yield from linear(TensorRole.STATE_BETA, kind.heads, hidden, bias=True)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.inner)
    yield from _state_out(kind.inner, family)


def _rwkv(kind: Recurrent, family: TensorFamily) -> Rows:
    """RWKV-7: six mixes with the previous token, four matrices, and low-rank gates."""
    if family.name != "rwkv7":
        raise UnknownArchitectureError(
            f"the tensors of {kind.label} layers are not known yet: upgrade edgekit, or add "
            "a function to model/tensors.py"
        )
    hidden = kind.inner
    for _ in "rwkvag":
        yield array(TensorRole.STATE_X, TensorKind.RAW, hidden)
    yield array(TensorRole.STATE_X, TensorKind.RAW, hidden)  # the feed-forward's mix
    for _ in ("k_k", "k_a", "r_k"):
        yield array(TensorRole.STATE_D, TensorKind.RAW, hidden)
    for role in (TensorRole.STATE_IN, TensorRole.KEY, TensorRole.VALUE, TensorRole.STATE_OUT):
        yield from linear(role, hidden, hidden)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, hidden)
    yield array(TensorRole.STATE_NORM, TensorKind.BIAS, hidden)
    for key in ("decay_low_rank_dim", "a_low_rank_dim", "gate_low_rank_dim"):
        yield from _low_rank(family.number(key), hidden, bias=key != "gate_low_rank_dim")


def _low_rank(rank: int, hidden: int, *, bias: bool = True) -> Rows:
    """A matrix as the product of two of this rank."""
    yield from linear(TensorRole.STATE_LOW, rank, hidden)
    yield from linear(TensorRole.STATE_LOW_OUT, hidden, rank, bias=bias)


def _rg_lru(kind: Recurrent, family: TensorFamily) -> Rows:
    """Griffin's RG-LRU: two input matrices, one output matrix, and two block-diagonal gates with a block per head."""
    inner, heads = kind.inner, family.number("num_attention_heads")
    block = inner // max(heads, 1)
    yield from _state_in(inner, family)
    yield from linear(TensorRole.STATE_GATE, inner, family.hidden, bias=True)
    yield from _convolution(inner, kind, family)
    for _ in ("input", "recurrent"):
        yield array(TensorRole.STATE_X, TensorKind.RAW, heads, block, block)
        yield array(TensorRole.STATE_X, TensorKind.BIAS, heads, block)
    yield array(TensorRole.STATE_A, TensorKind.RAW, inner)
    yield from _state_out(inner, family)


def _state_in(out: int, family: TensorFamily) -> Rows:
    """The matrix from the hidden state into the recurrence."""
    bias = family.has(family.recipe.state_bias)
    yield from linear(TensorRole.STATE_IN, out, family.hidden, bias=bias)


def _state_out(inner: int, family: TensorFamily) -> Rows:
    """The matrix from the recurrence back to the hidden state."""
    bias_switch = family.recipe.state_out_bias or family.recipe.state_bias
    yield from linear(TensorRole.STATE_OUT, family.hidden, inner, bias=family.has(bias_switch))


def _convolution(channels: int, kind: Recurrent, family: TensorFamily) -> Rows:
    """A short convolution over this many channels."""
    yield array(TensorRole.CONV, TensorKind.CONV, channels, kind.conv_kernel)
    if family.has(family.recipe.conv_bias):
        yield array(TensorRole.CONV, TensorKind.BIAS, channels)


_CELLS: Mapping[Cell, Callable[[Recurrent, TensorFamily], Rows]] = {
    Cell.MAMBA: _mamba,
    Cell.MAMBA2: _mamba2,
    Cell.GATED_DELTA: _gated_delta,
    Cell.KIMI_DELTA: _kimi_delta,
    Cell.LIGHTNING: _lightning,
    Cell.GATED_LINEAR: _gated_linear,
    Cell.SHORT_CONV: _short_conv,
    Cell.GATED_CONV: _gated_conv,
    Cell.KEY_CONV: _key_conv,
    Cell.RWKV: _rwkv,
    Cell.RG_LRU: _rg_lru,
    Cell.MLSTM: _mlstm,
    Cell.FOUR_CONVS: _four_convs,
    Cell.QUERY_KEY_CONV: _query_key_conv,
}
