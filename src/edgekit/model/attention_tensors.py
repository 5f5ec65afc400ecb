"""Attention of one layer -> its tensors."""

from __future__ import annotations

from edgekit.model.tensor_family import Rows, TensorFamily, array, linear
from edgekit.model.tensor_roles import TensorKind, TensorRole
from edgekit.model.tensor_rows import Width
from edgekit.model.types import Attention, CompressedAttention, LatentAttention, Span


def attention(kind: Attention, family: TensorFamily, *, borrows: bool = False) -> Rows:
    """`borrows`: keys and values are another layer's, in the file too."""
    recipe = family.recipe
    bias = family.says(recipe.qkv_bias)
    queries = kind.heads * kind.key_dim * (2 if kind.gated else 1)
    yield from linear(TensorRole.QUERY, queries, family.hidden, bias=bias)
    if not borrows:
        yield from _keys_and_values(kind, family, bias=bias)
    yield from _output(kind.heads * kind.value_dim, family)
    yield from _head_norms(kind, family, borrows=borrows)
    yield from _gates(kind, family)
    sliding = recipe.sinks if recipe.window_sinks is None else recipe.window_sinks
    if family.says(sliding if kind.span is Span.WINDOW else recipe.sinks):
        yield array(TensorRole.SINKS, TensorKind.RAW, kind.heads)
    if kind.index_dim:
        yield from _block_indexer(kind.index_dim, family)


def _keys_and_values(kind: Attention, family: TensorFamily, *, bias: bool) -> Rows:
    values = 0 if kind.values_are_keys else kind.kv_heads * kind.value_dim
    yield from linear(TensorRole.KEY, kind.kv_heads * kind.key_dim, family.hidden, bias=bias)
    yield from linear(TensorRole.VALUE, values, family.hidden, bias=bias)
    if family.recipe.cache_scales:
        yield array(TensorRole.SCALE, TensorKind.RAW, 1)
        yield array(TensorRole.SCALE, TensorKind.RAW, 1)


def _gates(kind: Attention, family: TensorFamily) -> Rows:
    recipe = family.recipe
    if recipe.gate is not None and family.says(recipe.gate_said):
        wide = kind.heads * kind.value_dim if recipe.gate is Width.ALL else kind.heads
        yield from linear(TensorRole.ATTENTION_GATE, wide, family.hidden)
    if recipe.query_gain:
        yield array(TensorRole.SCALE, TensorKind.RAW, kind.heads)
    if recipe.round_gate:
        yield array(TensorRole.ATTENTION_GATE, TensorKind.RAW, kind.heads, kind.key_dim)
        yield array(TensorRole.ATTENTION_GATE, TensorKind.BIAS, kind.heads)


def _output(values: int, family: TensorFamily) -> Rows:
    bias = family.says(family.recipe.output_bias)
    yield from linear(TensorRole.OUTPUT, family.hidden, values, bias=bias)
    if family.recipe.sub_norms:
        yield array(TensorRole.OUTPUT, TensorKind.NORM, values)


def _head_norms(kind: Attention, family: TensorFamily, *, borrows: bool) -> Rows:
    recipe = family.recipe
    if recipe.head_norm is None or not family.says(recipe.head_norm_said):
        return
    kinds = (TensorKind.NORM, TensorKind.BIAS) if recipe.head_norm_bias else (TensorKind.NORM,)
    both = ((TensorRole.QUERY, kind.heads), (TensorRole.KEY, kind.kv_heads))
    for role, heads in both[:1] if borrows else both:
        shape = (heads, kind.key_dim) if recipe.head_norm is Width.EACH else (kind.key_dim,)
        if recipe.head_norm is Width.ALL:
            shape = (heads * kind.key_dim,)
        for one in kinds:
            yield array(role, one, *shape)


def _block_indexer(width: int, family: TensorFamily) -> Rows:
    """MiniMax-M3: queries and one key that choose blocks."""
    heads = family.number("index_n_heads", 4)
    yield from linear(TensorRole.INDEX_QUERY, heads * width, family.hidden)
    yield from linear(TensorRole.INDEX_KEY, width, family.hidden)
    yield array(TensorRole.INDEX_QUERY, TensorKind.NORM, width)
    yield array(TensorRole.INDEX_KEY, TensorKind.NORM, width)


def latent(kind: LatentAttention, family: TensorFamily) -> Rows:
    hidden, rank, queries = family.hidden, kind.query_rank, kind.heads * kind.key_dim
    bias = family.says(family.recipe.qkv_bias)
    gate = kind.heads * kind.value_dim if family.recipe.gate is Width.ALL else 0
    if rank:
        yield from linear(TensorRole.QUERY_DOWN, rank, hidden, bias=bias)
        yield array(TensorRole.QUERY_DOWN, TensorKind.NORM, rank)
        # A.X K2 makes queries and gate of two copies of the rank at once.
        yield from linear(TensorRole.QUERY_UP, queries + gate, rank * (2 if gate else 1))
    else:
        yield from linear(TensorRole.QUERY, queries, hidden)
    yield from linear(TensorRole.LATENT_DOWN, kind.latent_dim + kind.rope_dim, hidden, bias=bias)
    yield array(TensorRole.LATENT_DOWN, TensorKind.NORM, kind.latent_dim)
    unpacked = kind.heads * (kind.key_dim - kind.rope_dim + kind.value_dim)
    yield from linear(TensorRole.LATENT_UP, unpacked, kind.latent_dim)
    yield from _output(kind.heads * kind.value_dim, family)
    yield from _latent_gate(kind, family)
    if kind.index_dim:
        yield from _token_indexer(kind.index_dim, rank or hidden, family)


def _latent_gate(kind: LatentAttention, family: TensorFamily) -> Rows:
    gate = family.recipe.latent_gate
    if gate is not None and family.says(family.recipe.latent_gate_said):
        wide = kind.heads * kind.value_dim if gate is Width.ALL else kind.heads
        yield from linear(TensorRole.ATTENTION_GATE, wide, family.hidden)


def _token_indexer(width: int, rank: int, family: TensorFamily) -> Rows:
    """DeepSeek-V3.2: queries from the compressed ones, one key, a weight for each head."""
    heads = family.number("index_n_heads")
    yield from linear(TensorRole.INDEX_QUERY, heads * width, rank)
    yield from linear(TensorRole.INDEX_KEY, width, family.hidden)
    yield array(TensorRole.INDEX_KEY, TensorKind.NORM, width)
    yield array(TensorRole.INDEX_KEY, TensorKind.BIAS, width)
    yield from linear(TensorRole.INDEX_WEIGHTS, heads, family.hidden)


def compressed(kind: CompressedAttention, family: TensorFamily) -> Rows:
    """DeepSeek-V4: low-rank queries, one key for all heads, an output in groups of low rank."""
    hidden, width = family.hidden, kind.key_dim
    rank, groups = family.number("q_lora_rank"), family.number("o_groups")
    within = groups * family.number("o_lora_rank")
    yield from linear(TensorRole.QUERY_DOWN, rank, hidden)
    yield array(TensorRole.QUERY_DOWN, TensorKind.NORM, rank)
    yield from linear(TensorRole.QUERY_UP, kind.heads * width, rank)
    yield from linear(TensorRole.KEY, width, hidden)
    yield array(TensorRole.KEY, TensorKind.NORM, width)
    yield from linear(TensorRole.OUTPUT_DOWN, within, kind.heads * width // max(groups, 1))
    yield from linear(TensorRole.OUTPUT, hidden, within)
    yield array(TensorRole.SINKS, TensorKind.RAW, kind.heads)
    if kind.ratio:
        yield from _compressor(width, kind.ratio, family)
    if kind.ratio and kind.index_dim:
        heads = family.number("index_n_heads")
        yield from _compressor(kind.index_dim, kind.ratio, family)
        yield from linear(TensorRole.INDEX_QUERY, heads * kind.index_dim, rank)
        yield from linear(TensorRole.INDEX_WEIGHTS, heads, hidden)


def _compressor(width: int, ratio: int, family: TensorFamily) -> Rows:
    wide = width * (2 if ratio == 4 else 1)  # windows of 4 tokens overlap, those of 128 do not
    yield from linear(TensorRole.COMPRESSOR_KEY, wide, family.hidden)
    yield from linear(TensorRole.COMPRESSOR_GATE, wide, family.hidden)
    yield array(TensorRole.COMPRESSOR_GATE, TensorKind.RAW, ratio, wide)
    yield array(TensorRole.COMPRESSOR_KEY, TensorKind.NORM, width)
