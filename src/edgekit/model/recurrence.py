"""Builders of recurrent layers: the size of a state from the hyper-parameters.

GGUF names are llama.cpp's (d_inner = ssm.inner_size ...); the state sizes equal those of
llama-hparams.cpp n_embd_r and n_embd_s @ b21e4de.
"""

from __future__ import annotations

from collections.abc import Callable

from edgekit.errors import HeaderError
from edgekit.model.hyperparameters import Hyper
from edgekit.model.types import Attention, Cell, Recurrent

RecurrentBuilder = Callable[[Hyper], Recurrent]


def mamba(hyper: Hyper) -> Recurrent:
    return _state_space(hyper, Cell.MAMBA, groups=0)  # the first Mamba has no groups


def pure_mamba(hyper: Hyper) -> Recurrent:
    """A model of nothing else states its inner width where others have a feed-forward."""
    stated = None if hyper.gguf else hyper.number("feed_forward")
    return _state_space(hyper, Cell.MAMBA, groups=0, inner=stated)


def mamba2(hyper: Hyper) -> Recurrent:
    groups = hyper.number("state_groups")
    return _state_space(hyper, Cell.MAMBA2, groups=1 if groups is None else groups)


def _state_space(hyper: Hyper, cell: Cell, *, groups: int, inner: int | None = None) -> Recurrent:
    kernel = _kernel(hyper)
    inner = inner or _inner(hyper)
    state = hyper.need("state_size")
    auto = hyper.text("time_step_rank") is not None  # "auto"
    rank = None if auto else hyper.number("time_step_rank")
    return Recurrent(
        cell=cell,
        conv_elements=(kernel - 1) * (inner + 2 * groups * state),
        state_elements=state * inner,
        inner=inner,
        state_size=state,
        groups=groups,
        heads=_state_heads(hyper, cell),
        conv_kernel=kernel,
        rank=-(-hyper.need("hidden") // 16) if rank is None else rank,
    )


def _inner(hyper: Hyper) -> int:
    if stated := hyper.number("inner"):
        return stated
    heads, width = hyper.number("state_heads"), hyper.number("state_head_dim")
    if heads and width:
        return heads * width
    expand = hyper.ratio("expand") or 2
    return int(expand * hyper.need("hidden"))


def _state_heads(hyper: Hyper, cell: Cell) -> int:
    if cell is Cell.MAMBA:
        return 0
    if hyper.gguf:
        return hyper.number("time_step_rank") or 0  # Mamba-2 files keep the head count there
    return hyper.number("state_heads") or hyper.number("heads") or 0


def gated_delta(hyper: Hyper) -> Recurrent:
    """Qwen3-Next and Qwen3.5: Q and K of every key head and V of every value head pass a short convolution."""
    kernel = _kernel(hyper)
    if hyper.gguf:
        inner, state = hyper.need("inner"), hyper.need("state_size")
        groups, heads = hyper.need("state_groups"), hyper.need("time_step_rank")
    else:
        heads, groups = hyper.need("linear_value_heads"), hyper.need("linear_key_heads")
        inner, state = heads * hyper.need("linear_value_dim"), hyper.need("linear_key_dim")
    return Recurrent(
        cell=Cell.GATED_DELTA,
        conv_elements=(kernel - 1) * (inner + 2 * groups * state),
        state_elements=state * inner,
        inner=inner,
        state_size=state,
        groups=groups,
        heads=heads,
        conv_kernel=kernel,
    )


def kimi_delta(hyper: Hyper, *, width: int | None = None) -> Recurrent:
    """Kimi Linear: a head_dim x head_dim state per head, three convolutions of their own."""
    kernel = _kernel(hyper)
    heads = hyper.number("kda_heads") or _most_heads(hyper)
    width = width or hyper.need("kda_head_dim")
    return Recurrent(
        cell=Cell.KIMI_DELTA,
        conv_elements=3 * (kernel - 1) * heads * width,
        state_elements=heads * width * width,
        inner=heads * width,
        state_size=width,
        heads=heads,
        conv_kernel=kernel,
    )


def _most_heads(hyper: Hyper) -> int:
    listed = hyper.per_layer("heads", hyper.need("layers"))
    if not listed:
        raise hyper.missing("heads")
    return max(listed)


def lightning(hyper: Hyper) -> Recurrent:
    heads = hyper.need("heads")
    width = hyper.number("key_dim") or hyper.need("hidden") // max(heads, 1)
    return Recurrent(
        cell=Cell.LIGHTNING,
        state_elements=heads * width * width,
        inner=heads * width,
        state_size=width,
        heads=heads,
    )


def gated_linear(hyper: Hyper) -> Recurrent:
    """GLA: expand_k x hidden keys against expand_v x hidden values, shared out over the heads."""
    heads, hidden = hyper.need("heads"), hyper.need("hidden")
    key = int(hidden * (hyper.ratio("expand_k") or 0.5)) // max(heads, 1)
    value = int(hidden * (hyper.ratio("expand_v") or 1.0)) // max(heads, 1)
    return Recurrent(
        cell=Cell.GATED_LINEAR,
        state_elements=heads * key * value,
        inner=heads * value,
        state_size=key,
        heads=heads,
    )


def short_conv(hyper: Hyper) -> Recurrent:
    kernel, hidden = _kernel(hyper), hyper.need("hidden")
    return Recurrent(
        cell=Cell.SHORT_CONV, conv_elements=hidden * (kernel - 1), inner=hidden, conv_kernel=kernel
    )


def gated_conv(hyper: Hyper) -> Recurrent:
    """Gear: keys and values of all KV heads, each through a convolution of its own."""
    heads, width, kernel = hyper.need("heads"), hyper.need("key_dim"), _kernel(hyper)
    groups = hyper.number("kv_heads") or heads
    return Recurrent(
        cell=Cell.GATED_CONV,
        conv_elements=2 * (kernel - 1) * groups * width,
        inner=heads * width,
        state_size=width,
        groups=groups,
        heads=heads,
        conv_kernel=kernel,
    )


def key_conv(hyper: Hyper, attention: Attention) -> Recurrent:
    """Baichuan-M1: the last keys and values of one attention layer, before its convolution."""
    kernel, groups = _kernel(hyper), attention.kv_heads
    both = groups * (attention.key_dim + attention.value_dim)
    return Recurrent(
        cell=Cell.KEY_CONV, conv_elements=(kernel - 1) * both, groups=groups, conv_kernel=kernel
    )


def bailing(hyper: Hyper) -> Recurrent:
    """One model_type, two generations: Ling 2.5 is Lightning, Ling 3 has a convolution and is Kimi's."""
    if not hyper.states("conv_kernel"):
        return lightning(hyper)
    return kimi_delta(hyper, width=hyper.number("kda_head_dim") or hyper.need("key_dim"))


def rwkv(hyper: Hyper) -> Recurrent:
    hidden, head = hyper.need("hidden"), hyper.need("wkv_head_size")
    shift = hyper.number("token_shift") or 2
    return Recurrent(
        cell=Cell.RWKV,
        conv_elements=shift * hidden,
        state_elements=hidden * head,
        inner=hidden,
        state_size=head,
        heads=hidden // max(head, 1),
    )


def rg_lru(hyper: Hyper) -> Recurrent:
    width = hyper.number("lru_width") or hyper.need("hidden")
    kernel = hyper.number("conv_kernel") or 4
    return Recurrent(
        cell=Cell.RG_LRU,
        conv_elements=(kernel - 1) * width,
        state_elements=width,
        inner=width,
        conv_kernel=kernel,
    )


def _kernel(hyper: Hyper) -> int:
    kernel = hyper.need("conv_kernel")
    if kernel < 1:
        raise HeaderError(f"{hyper.spelled('conv_kernel')} is {kernel}", file=hyper.header.name)
    return kernel
