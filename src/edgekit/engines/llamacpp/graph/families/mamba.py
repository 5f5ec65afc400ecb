"""Selective state spaces: the layers of Mamba and Mamba 2 (mamba-base.cpp), and the short convolution of LFM 2."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import read_states, state, write_states
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.layers import normalize, project
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, Size
from edgekit.engines.llamacpp.types import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssm:
    """The ssm.* keys, with llama.cpp's names."""

    d_conv: int
    d_inner: int
    d_state: int
    dt_rank: int
    n_group: int = 0

    @classmethod
    def of(cls, hparams: Hparams, *, grouped: bool) -> Ssm:
        return cls(
            d_conv=hparams.integer("ssm.conv_kernel"),
            d_inner=hparams.integer("ssm.inner_size"),
            d_state=hparams.integer("ssm.state_size"),
            dt_rank=hparams.integer("ssm.time_step_rank"),
            n_group=hparams.integer("ssm.group_count") if grouped else 0,
        )

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.d_inner + 2 * self.n_group * self.d_state

    @property
    def n_embd_r(self) -> int:
        return (self.d_conv - 1) * self.channels

    @property
    def n_embd_s(self) -> int:
        return self.d_state * self.d_inner


def slice_heads(cur: GraphTensor, *dims: Size) -> GraphTensor:
    """A slice of each row, as [width, heads, tokens, sequences]."""
    head = cur.type.block_bytes * dims[0]
    return ggml.view(cur, *dims, strides=(head, *cur.nb[1:3]))


def slice_rows(cur: GraphTensor, width: Size) -> GraphTensor:
    """A slice of each row, as [width, tokens, sequences]."""
    return ggml.view(cur, width, *cur.ne[1:3], strides=cur.nb[1:3])


def convolution_input(
    layer: GraphLayer,
    cur: GraphTensor,
    kept_tokens: int,
    *,
    flat: bool = False,
    twice: bool = False,
    side: str = "r",
) -> GraphTensor:
    """The input of a convolution: the last `kept_tokens` earlier tokens, then `cur` [tokens, channels, sequences].

    Also stores the last tokens for the next batch. `flat`: copied as one row; `twice`: made contiguous first.
    `side`: the state cache.
    """
    build, channels, seqs = layer.build, cur.ne[1], layer.build.sizes.n_seqs
    cache = state(layer, side, kept_tokens * channels)
    before = ggml.reshape(read_states(build, cache), kept_tokens, channels, seqs)
    conv_input = ggml.concat(before, cur, 0)
    store_tail(build, cache, conv_input, kept_tokens, flat=flat, twice=twice)
    return conv_input


def store_tail(
    build: Build,
    cache: GraphTensor,
    conv_input: GraphTensor,
    kept_tokens: int,
    *,
    flat: bool = False,
    twice: bool = False,
) -> None:
    """Writes the last tokens of a convolution's input to the cache, for the next batch."""
    tail = ggml.view(conv_input, kept_tokens, *conv_input.ne[1:3], strides=conv_input.nb[1:3])
    width, seqs = kept_tokens * conv_input.ne[1], build.sizes.n_seqs
    rows = ggml.view(cache, width, seqs, strides=(cache.nb[1],))
    into = ggml.view(cache, width * seqs) if flat else rows
    build.expand(ggml.cpy(ggml.cont(tail) if twice else tail, into))


def scan(
    layer: GraphLayer, cache: GraphTensor, d_state: int, x: GraphTensor, *src: GraphTensor
) -> GraphTensor:
    """A selective scan over the cached states: outputs and new states in one tensor. `src`: dt, A, B and C."""

    def scan_rows(states: GraphTensor, ids: GraphTensor) -> GraphTensor:
        states = ggml.reshape(states, d_state, *x.ne[:2], cache.ne[1])
        return ggml.ssm_scan(states, x, *src, ids=ids)

    return read_states(layer.build, cache, get_rows=scan_rows)


def mamba(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """build_mamba_layer: dt, B and C are projected from x; every channel is a head."""
    build = layer.build
    ssm = Ssm.of(build.hparams, grouped=False)
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    xz = project(layer, "ssm_in", ggml.reshape(cur, cur.ne[0], tokens, seqs))
    x, z = slice_rows(xz, ssm.d_inner), slice_rows(xz, ssm.d_inner)
    x = _convolve(layer, convolution_input(layer, ggml.transpose(x), ssm.d_conv - 1, flat=True))
    dt_b_c = ggml.mul_mat(layer["ssm_x"], x)
    dt = slice_rows(dt_b_c, ssm.dt_rank)
    b, c = (slice_heads(dt_b_c, ssm.d_state, 1, tokens, seqs) for _ in range(2))
    names = ("ssm_dt_norm", "ssm_b_norm", "ssm_c_norm")
    if build.hparams.flag("ssm.dt_b_c_rms") or all(name in layer for name in names):
        dt, b, c = (
            normalize(tensor, layer.weight(name))
            for tensor, name in zip((dt, b, c), names, strict=True)
        )
    else:
        dt = ggml.cont(dt)
    dt = ggml.add(ggml.mul_mat(layer["ssm_dt"], dt), layer.required("ssm_dt.bias"))
    heads = ggml.reshape(x, 1, ssm.d_inner, tokens, seqs)
    cache = state(layer, "s", ssm.n_embd_s)
    result = scan(layer, cache, ssm.d_state, heads, dt, layer.required("ssm_a"), b, c)
    write_states(build, cache, result)
    y = ggml.view(result, ssm.d_inner, tokens, seqs, strides=heads.nb[2:4])
    y = ggml.add(y, ggml.mul(x, layer.required("ssm_d")))
    cur = project(layer, "ssm_out", ggml.glu(ggml.cont(z), y))
    return ggml.reshape(cur, cur.ne[0], build.n_tokens)


def _convolve(layer: GraphLayer, conv_input: GraphTensor) -> GraphTensor:
    cur = ggml.ssm_conv(conv_input, layer["ssm_conv1d"])
    return ggml.unary(ggml.add(cur, layer.required("ssm_conv1d.bias")))


def mamba2(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """build_mamba2_layer: heads of many channels with one decay each; B and C per group."""
    build = layer.build
    ssm = Ssm.of(build.hparams, grouped=True)
    heads, width = ssm.dt_rank, ssm.d_inner // ssm.dt_rank
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    flat = build.options.rules >= Rules.FLAT_MAMBA2
    if not flat:
        cur = ggml.reshape(cur, cur.ne[0], tokens, seqs)
    cur = project(layer, "ssm_in", cur)
    if flat:
        cur = ggml.reshape(cur, cur.ne[0], tokens, seqs)
    z = slice_heads(cur, width, heads, tokens, seqs)
    xbc, dt = slice_rows(cur, ssm.channels), slice_rows(cur, heads)
    xbc = _convolve(layer, convolution_input(layer, ggml.transpose(xbc), ssm.d_conv - 1))
    x = slice_heads(xbc, width, heads, tokens, seqs)
    b, c = (slice_heads(xbc, ssm.d_state, ssm.n_group, tokens, seqs) for _ in range(2))
    dt = ggml.add(ggml.cont(dt), layer.required("ssm_dt.bias"))
    cache = state(layer, "s", ssm.n_embd_s)
    result = scan(layer, cache, ssm.d_state, x, dt, layer.required("ssm_a"), b, c)
    row = result.type.block_bytes * ssm.n_embd_s
    after = ggml.view(result, ssm.n_embd_s, seqs, 1, strides=(row, row * seqs))
    into = (cache.nb[1], cache.ne[1] * row)
    build.expand(ggml.cpy(after, ggml.view(cache, ssm.n_embd_s, seqs, 1, strides=into)))
    head = x.nb[1]
    strides = (head, heads * head, tokens * heads * head)
    y = ggml.view(result, width, heads, tokens, seqs, strides=strides)
    y = ggml.glu(ggml.cont(z), ggml.add(y, ggml.mul(x, layer.required("ssm_d"))))
    if "ssm_norm" in layer:
        y = ggml.reshape(y, ssm.d_inner // ssm.n_group, ssm.n_group, tokens, seqs)
        y = normalize(y, layer["ssm_norm"])
    if flat:
        return project(layer, "ssm_out", ggml.reshape(y, ssm.d_inner, build.n_tokens))
    cur = project(layer, "ssm_out", ggml.reshape(y, ssm.d_inner, tokens, seqs))
    return ggml.reshape(cur, cur.ne[0], build.n_tokens)


PLAMO2_LEAST_STEP = 64  # plamo2.cpp: dt_dim


def plamo2_mamba(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """build_plamo2_mamba_layer: heads as in Mamba 2; dt, B and C projected from x as in Mamba 1."""
    build = layer.build
    ssm = Ssm.of(build.hparams, grouped=True)
    heads, width = ssm.dt_rank, ssm.d_inner // ssm.dt_rank
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    zx = ggml.mul_mat(layer["ssm_in"], ggml.reshape(cur, cur.ne[0], tokens, seqs))
    zx = ggml.cont(ggml.permute(zx, 0, 2, 1, 3), 2 * width, heads, tokens, seqs)
    x, z = (ggml.view(zx, width, heads, tokens, seqs, strides=zx.nb[1:]) for _ in range(2))
    x = ggml.transpose(ggml.cont(x, ssm.d_inner, tokens, seqs))
    conv_input = convolution_input(layer, x, ssm.d_conv - 1, flat=True)
    cur = ggml.unary(ggml.ssm_conv(conv_input, layer["ssm_conv1d"]))
    b_c_dt = ggml.mul_mat(layer["ssm_x"], cur)
    rank = max(PLAMO2_LEAST_STEP, build.hparams.n_embd // 16)
    b, c, dt = (
        normalize(slice_rows(b_c_dt, count), layer.required(f"ssm_{side}_norm"))
        for side, count in (("b", ssm.d_state), ("c", ssm.d_state), ("dt", rank))
    )
    dt = ggml.add(ggml.mul_mat(layer["ssm_dt"], dt), layer.required("ssm_dt.bias"))
    decay = ggml.reshape(layer.required("ssm_a"), 1, heads)
    head = cur.type.block_bytes * width
    strides = (head, head * heads, head * heads * tokens)
    x = ggml.view(cur, width, heads, tokens, seqs, strides=strides)
    b, c = (slice_heads(tensor, ssm.d_state, 1, tokens, seqs) for tensor in (b, c))
    cache = state(layer, "s", ssm.n_embd_s)
    result = scan(layer, cache, ssm.d_state, x, dt, decay, b, c)
    write_states(build, cache, result)
    y = ggml.view(result, width, heads, tokens, seqs, strides=strides)
    y = ggml.add(y, ggml.mul(x, ggml.reshape(layer.required("ssm_d"), 1, heads)))
    y = ggml.glu(ggml.cont(z), y)
    y = ggml.view(y, ssm.d_inner, tokens, seqs, strides=y.nb[2:4])
    cur = ggml.mul_mat(layer["ssm_out"], y)
    return ggml.reshape(cur, cur.ne[0], build.n_tokens)


def short_convolution(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """build_shortconv_block of LFM 2."""
    build = layer.build
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    kept_tokens, width = build.hparams.integer("shortconv.l_cache") - 1, build.hparams.n_embd
    cur = ggml.reshape(cur, cur.ne[0], tokens, seqs)
    bcx = ggml.mul_mat(layer["shortconv.in_proj"], cur)
    b, c, x = (slice_rows(bcx, bcx.ne[0] // 3) for _ in range(3))
    bx = ggml.transpose(ggml.mul(b, x))
    cache = state(layer, "r", kept_tokens * width)
    before = ggml.reshape(read_states(build, cache), kept_tokens, width, seqs)
    if build.hparams.geometry.causal:
        conv_input = ggml.concat(before, bx, 0)
    else:  # the convolution is centred
        side = kept_tokens // 2
        left = ggml.cont(ggml.view(before, side, width, seqs, strides=before.nb[1:3]))
        conv_input = ggml.pad(ggml.concat(left, bx, 0), side)
    store_tail(build, cache, conv_input, kept_tokens)
    y = ggml.mul(c, ggml.ssm_conv(conv_input, layer["shortconv.conv"]))
    y = ggml.mul_mat(layer["shortconv.out_proj"], y)
    return ggml.reshape(y, y.ne[0], build.n_tokens)
