"""The tensors of a recurrence in one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgekit.errors import UnknownArchitectureError
from edgekit.model.tensor_recipes import Rows, TensorFamily, TensorKind, TensorRole, array, linear
from edgekit.model.types import Cell, Recurrent


def recurrent(kind: Recurrent, family: TensorFamily) -> Rows:
    yield from _CELLS[kind.cell](kind, family)


def _mamba(kind: Recurrent, family: TensorFamily) -> Rows:
    inner, state, rank = kind.inner, kind.state_size, kind.rank
    yield from _into(2 * inner, family)
    yield from _conv(inner, kind, family)
    yield from linear(TensorRole.STATE_X, rank + 2 * state, inner)
    yield from linear(TensorRole.STATE_DT, inner, rank, bias=True)
    if family.recipe.step_norms:
        for width in (rank, state, state):
            yield array(TensorRole.STATE_NORM, TensorKind.NORM, width)
    yield array(TensorRole.STATE_A, TensorKind.RAW, inner, state)
    yield array(TensorRole.STATE_D, TensorKind.RAW, inner)
    yield from _out_of(inner, family)


def _mamba2(kind: Recurrent, family: TensorFamily) -> Rows:
    if family.recipe.step_norms:
        yield from _stepped(kind, family)
        return
    inner, keys = kind.inner, kind.groups * kind.state_size
    yield from _into(2 * inner + 2 * keys + kind.heads, family)
    yield from _conv(inner + 2 * keys, kind, family)
    yield array(TensorRole.STATE_DT, TensorKind.BIAS, kind.heads)
    yield array(TensorRole.STATE_A, TensorKind.RAW, kind.heads)
    yield array(TensorRole.STATE_D, TensorKind.RAW, kind.heads)
    if family.has(family.recipe.state_norm):
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, inner)
    yield from _out_of(inner, family)


def _stepped(kind: Recurrent, family: TensorFamily) -> Rows:
    """PLaMo 2: dt, B and C are projected as in Mamba, heads are as in Mamba-2."""
    inner, state, rank = kind.inner, kind.state_size, max(64, family.hidden // 16)
    yield from _into(2 * inner, family)
    yield from _conv(inner, kind, family)
    yield from linear(TensorRole.STATE_X, rank + 2 * state, inner)
    yield from linear(TensorRole.STATE_DT, kind.heads, rank, bias=True)
    for width in (rank, state, state):
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, width)
    yield array(TensorRole.STATE_A, TensorKind.RAW, kind.heads)
    yield array(TensorRole.STATE_D, TensorKind.RAW, kind.heads)
    yield from _out_of(inner, family)


def _gated_delta(kind: Recurrent, family: TensorFamily) -> Rows:
    inner, keys = kind.inner, kind.groups * kind.state_size
    yield from linear(TensorRole.STATE_IN, 2 * keys + inner, family.hidden)
    yield from linear(TensorRole.STATE_GATE, inner, family.hidden)
    yield from linear(TensorRole.STATE_BETA, 2 * kind.heads, family.hidden)
    yield from _conv(inner + 2 * keys, kind, family)
    yield array(TensorRole.STATE_DT, TensorKind.BIAS, kind.heads)
    yield array(TensorRole.STATE_A, TensorKind.RAW, kind.heads)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, inner // max(kind.heads, 1))
    yield from linear(TensorRole.STATE_OUT, family.hidden, inner)


def _kimi_delta(kind: Recurrent, family: TensorFamily) -> Rows:
    inner, width = kind.inner, kind.state_size
    yield from linear(TensorRole.STATE_IN, 3 * inner, family.hidden)
    yield from _conv(3 * inner, kind, family)
    yield from linear(TensorRole.STATE_BETA, kind.heads, family.hidden)
    for whole in (family.recipe.whole_forget, family.recipe.whole_output):
        if family.has(whole):
            yield from linear(TensorRole.STATE_GATE, inner, family.hidden)
        else:
            yield from linear(TensorRole.STATE_LOW, width, family.hidden)
            yield from linear(TensorRole.STATE_LOW, inner, width)
    yield array(TensorRole.STATE_DT, TensorKind.BIAS, inner)
    yield array(TensorRole.STATE_A, TensorKind.RAW, kind.heads)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, width)
    yield from linear(TensorRole.STATE_OUT, family.hidden, inner)


def _lightning(kind: Recurrent, family: TensorFamily) -> Rows:
    yield from _into(3 * kind.inner, family)
    yield from linear(TensorRole.STATE_GATE, kind.inner, family.hidden)
    yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.inner)
    if family.has(family.recipe.state_head_norms):
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.state_size)
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.state_size)
    yield from _out_of(kind.inner, family)


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
    bias = family.has(family.recipe.conv_bias)
    yield from linear(TensorRole.STATE_IN, 3 * kind.inner, family.hidden, bias=bias)
    yield from _conv(kind.inner, kind, family)
    yield from linear(TensorRole.STATE_OUT, family.hidden, kind.inner, bias=bias)


def _gated_conv(kind: Recurrent, family: TensorFamily) -> Rows:
    """Gear: queries, keys and values as attention has them, keys and values convolved."""
    keys, bias = kind.groups * kind.state_size, family.has(family.recipe.qkv_bias)
    yield from linear(TensorRole.QUERY, kind.inner, family.hidden, bias=bias)
    for role in (TensorRole.KEY, TensorRole.VALUE):
        yield from linear(role, keys, family.hidden, bias=bias)
        yield from _conv(keys, kind, family)
        yield array(TensorRole.STATE_NORM, TensorKind.NORM, kind.state_size)
    yield from linear(TensorRole.OUTPUT, family.hidden, kind.inner, bias=bias)


def _key_conv(kind: Recurrent, _: TensorFamily) -> Rows:
    for role in (TensorRole.KEY, TensorRole.VALUE):
        yield array(role, TensorKind.RAW, kind.groups, kind.conv_kernel)


def _rwkv(kind: Recurrent, family: TensorFamily) -> Rows:
    """RWKV-7: six mixes with the token before, four matrices, four gates of low rank."""
    if family.name != "rwkv7":
        raise UnknownArchitectureError(
            f"the tensors of {kind.label} layers are not known yet: upgrade edgekit, or add "
            "a function to model/recurrent_tensors.py"
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
    for word in ("decay_low_rank_dim", "a_low_rank_dim", "gate_low_rank_dim"):
        yield from low_rank(family.number(word), hidden, bias=word != "gate_low_rank_dim")


def low_rank(rank: int, hidden: int, *, bias: bool = True) -> Rows:
    yield from linear(TensorRole.STATE_LOW, rank, hidden)
    yield from linear(TensorRole.STATE_LOW_OUT, hidden, rank, bias=bias)


def _rg_lru(kind: Recurrent, family: TensorFamily) -> Rows:
    """Griffin's RG-LRU: two input matrices, one output matrix, and two block-diagonal gates with a block per head."""
    inner, heads = kind.inner, family.number("num_attention_heads")
    block = inner // max(heads, 1)
    yield from _into(inner, family)
    yield from linear(TensorRole.STATE_GATE, inner, family.hidden, bias=True)
    yield from _conv(inner, kind, family)
    for _ in ("input", "recurrent"):
        yield array(TensorRole.STATE_X, TensorKind.RAW, heads, block, block)
        yield array(TensorRole.STATE_X, TensorKind.BIAS, heads, block)
    yield array(TensorRole.STATE_A, TensorKind.RAW, inner)
    yield from _out_of(inner, family)


def _into(out: int, family: TensorFamily) -> Rows:
    bias = family.has(family.recipe.state_bias)
    yield from linear(TensorRole.STATE_IN, out, family.hidden, bias=bias)


def _out_of(inner: int, family: TensorFamily) -> Rows:
    bias_switch = family.recipe.state_out_bias or family.recipe.state_bias
    yield from linear(TensorRole.STATE_OUT, family.hidden, inner, bias=family.has(bias_switch))


def _conv(channels: int, kind: Recurrent, family: TensorFamily) -> Rows:
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
}
