"""Attention over a cache: inputs, what is stored, what is read, and the product (build_attn* of llama-graph.cpp).

Which input a graph makes decides the order in which queries, keys and values are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.cache import get_k, get_v, store_k, store_v
from edgekit.engines.llamacpp.graph.dims import Size
from edgekit.engines.llamacpp.graph.matrices import hadamard, project
from edgekit.engines.llamacpp.graph.tensor import F16, F32, I64, GraphTensor, NoGraphError
from edgekit.engines.llamacpp.versions import Rules
from edgekit.formats.dtype import TensorType


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInput:
    """Inputs for one cache: write indices, mask, and the rotation matrices for quantised K and V."""

    n_kv: Size
    mask: GraphTensor
    k_idxs: GraphTensor
    v_idxs: GraphTensor | None = None
    k_rot: GraphTensor | None = None
    v_rot: GraphTensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttnInput:
    """Attention inputs. `swa` is None if no layer has a sliding window."""

    base: CacheInput
    swa: CacheInput | None = None

    def of(self, layer: GraphLayer) -> CacheInput:
        return self.swa if self.swa is not None and layer.facts.is_swa else self.base


def mask_type(build: Build) -> TensorType:
    return F16 if build.options.flash_attn else F32


def attention_mask(build: Build, *dims: Size, name: str) -> GraphTensor:
    """The mask in the type that the kernel reads. Before b9410 the f16 mask was a copy of an f32 mask."""
    if build.options.flash_attn and build.options.rules < Rules.F16_MASK:
        return ggml.cast(ggml.graph_input(F32, *dims, name=name), F16)
    return ggml.graph_input(mask_type(build), *dims, name=name)


def _cache_input(build: Build, n_kv: Size, *, values: bool) -> CacheInput:
    sizes = build.sizes
    transposed = build.options.v_trans
    width = build.hparams.n_embd_v_gqa_max if transposed else 1
    per_stream = sizes.n_tokens // sizes.n_stream
    return CacheInput(
        n_kv=n_kv,
        k_idxs=ggml.graph_input(I64, sizes.n_tokens, name="attn_inp_k_idxs"),
        v_idxs=ggml.graph_input(I64, sizes.n_tokens * width, name="attn_inp_v_idxs")
        if values
        else None,
        mask=attention_mask(build, n_kv, per_stream, 1, sizes.n_stream, name="attn_inp_kq_mask"),
    )


def _rotated(build: Build, given: CacheInput, *, swa: bool | None) -> CacheInput:
    """Adds Hadamard matrices for quantised caches, which store rotated K and V if all heads have one width."""
    k_rot = _rotation(build, "k", swa=swa)
    v_rot = _rotation(build, "v", swa=swa) if given.v_idxs is not None else None
    return CacheInput(
        n_kv=given.n_kv,
        mask=given.mask,
        k_idxs=given.k_idxs,
        v_idxs=given.v_idxs,
        k_rot=_matrix(k_rot, "attn_inp_k_rot"),
        v_rot=_matrix(v_rot, "attn_inp_v_rot"),
    )


def _matrix(width: int | None, name: str) -> GraphTensor | None:
    return None if width is None else ggml.graph_input(F32, width, width, name=name)


SMALLEST_ROTATION = 64  # llama-kv-cache.cpp:1447


def _rotation(build: Build, side: str, *, swa: bool | None) -> int | None:
    """Width of the rotation matrix; None if there is none. `swa` restricts it to layers with or without a window."""
    kind = build.options.type_k if side == "k" else build.options.type_v
    dims = build.hparams.cached_heads(side, swa=swa)
    first = build.hparams.head_dim(side, 0)
    if kind.block_elements == 1 or len(dims) != 1 or first % SMALLEST_ROTATION:
        return None
    if build.options.rules < Rules.ROTATION_PER_CACHE and build.hparams.varies(side):
        return None
    if side == "v":
        return SMALLEST_ROTATION
    (dim,) = dims
    return widest_rotation(dim)


def widest_rotation(width: int) -> int:
    """The largest power of two that divides the head width; at least 64."""
    if width < 1:
        raise NoGraphError("heads without a width")
    return max(width & -width, SMALLEST_ROTATION)


def input_kv(build: Build, *, rotate: bool = True) -> AttnInput:
    """build_attn_inp_kv."""
    base = _cache_input(build, build.sizes.n_kv, values=True)
    return AttnInput(base=_rotated(build, base, swa=None) if rotate else base)


def input_kv_iswa(build: Build, *, rotate: bool = True) -> AttnInput:
    """build_attn_inp_kv_iswa: one cache for sliding-window layers, one for the others."""
    base = _cache_input(build, build.sizes.n_kv, values=True)
    swa = _cache_input(build, build.sizes.n_kv_swa, values=True)
    if rotate and build.options.rules < Rules.ROTATION_PER_CACHE:
        base = _rotated(build, base, swa=None)
        swa = replace(swa, k_rot=base.k_rot, v_rot=base.v_rot)
    elif rotate:
        base, swa = _rotated(build, base, swa=False), _rotated(build, swa, swa=True)
    return AttnInput(base=base, swa=swa)


def input_auto(build: Build) -> AttnInput:
    """As graph<iswa>: two caches if the model has a sliding window."""
    return input_kv_iswa(build) if build.hparams.has_swa else input_kv(build)


def input_k(build: Build) -> AttnInput:
    """build_attn_inp_k: a K cache only; V is part of K."""
    return AttnInput(base=_cache_input(build, build.sizes.n_kv, values=False))


def input_no_cache(build: Build, *, swa: bool = False) -> AttnInput:
    """build_attn_inp_no_cache: all tokens of the batch see each other."""
    n = build.n_tokens
    base = _mask_only(build, n, "self_kq_mask")
    return AttnInput(base=base, swa=_mask_only(build, n, "self_kq_mask_swa") if swa else None)


def _mask_only(build: Build, n_kv: Size, name: str) -> CacheInput:
    mask = attention_mask(build, n_kv, build.n_tokens, 1, 1, name=name)
    return CacheInput(n_kv=n_kv, mask=mask, k_idxs=mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Optional parts of an attention layer."""

    kq_b: GraphTensor | None = None
    sinks: GraphTensor | None = None
    v_mla: GraphTensor | None = None
    softcap: int = (
        0  # number of softcap passes (scale, tanh, scale) over the scores without flash attention
    )


PLAIN = Extras()


def attend(  # noqa: PLR0917 - q, k and v, as build_attn takes them
    build: Build,
    layer: GraphLayer,
    given: AttnInput,
    q: GraphTensor,
    k: GraphTensor | None,
    v: GraphTensor | None,
    *,
    extras: Extras = PLAIN,
    owner: int | None = None,
    output: str | None = "attn_output",
) -> GraphTensor:
    """build_attn with a K and a V cache. `owner`: the layer whose cache is read, if not this one.

    `output` names the output projection; None: no projection.
    """
    used = given.of(layer)
    if used.k_rot is not None:
        q = hadamard(build, q, used.k_rot)
        k = k and hadamard(build, k, used.k_rot)
    if used.v_rot is not None:
        v = v and hadamard(build, v, used.v_rot)
    for tensor in (q, v, k) if given.swa is None else (q, k, v):
        if tensor is not None:
            build.expand(tensor)
    where = layer.index if owner is None else owner
    if k is not None:
        build.expand(store_k(build, layer, k, used.k_idxs, used.n_kv, where))
    if v is not None and used.v_idxs is not None:
        build.expand(store_v(build, layer, v, used.v_idxs, used.n_kv, where))
    keys = get_k(build, layer, used.n_kv, where)
    values = get_v(build, layer, used.n_kv, where)
    transposed = build.options.v_trans
    cur = product(build, q, keys, values, used.mask, extras, transposed=transposed)
    if used.v_rot is not None:
        cur = hadamard(build, cur, used.v_rot)
    return _output(layer, cur, output)


def attend_k(  # noqa: PLR0917 - q, k and v, as build_attn takes them
    build: Build,
    layer: GraphLayer,
    given: AttnInput,
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    *,
    extras: Extras = PLAIN,
    output: str | None = "attn_output",
) -> GraphTensor:
    """build_attn with a K cache only (MLA): V is the first part of each K row."""
    used = given.of(layer)
    for tensor in (q, v, k):
        build.expand(tensor)
    build.expand(store_k(build, layer, k, used.k_idxs, used.n_kv, layer.index))
    keys = get_k(build, layer, used.n_kv, layer.index)
    values = ggml.view(keys, v.ne[0], *keys.ne[1:], strides=keys.nb[1:])
    cur = product(build, q, keys, values, used.mask, extras, transposed=False)
    return _output(layer, cur, output)


def attend_now(  # noqa: PLR0917 - q, k and v, as build_attn takes them
    build: Build,
    layer: GraphLayer,
    given: AttnInput,
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    *,
    extras: Extras = PLAIN,
    output: str | None = "attn_output",
) -> GraphTensor:
    """build_attn without a cache, and cross-attention to an encoder."""
    for tensor in (q, k, v):
        build.expand(tensor)
    cur = product(build, q, k, v, given.of(layer).mask, extras, transposed=False)
    return _output(layer, cur, output)


def _output(layer: GraphLayer, cur: GraphTensor, name: str | None) -> GraphTensor:
    if name is not None and name in layer:
        cur = project(layer[name], cur, scale=layer.scale(name))
        if (bias := layer.bias(name)) is not None:
            cur = ggml.add(cur, bias)
    return cur


def product(  # noqa: PLR0917 - q, k and v, as build_attn takes them
    build: Build,
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    mask: GraphTensor | None,
    extras: Extras,
    *,
    transposed: bool,
) -> GraphTensor:
    """build_attn_mha. `transposed`: each V row holds one channel of all tokens."""
    n_stream = k.ne[3]
    per_stream = q.ne[2] // n_stream
    strides = (q.nb[1], q.nb[2], q.nb[2] * per_stream)
    q = ggml.view(q, q.ne[0], q.ne[1], per_stream, n_stream, strides=strides)
    q, k, v = (ggml.permute(one, 0, 2, 1, 3) for one in (q, k, v))
    if build.options.flash_attn and extras.kq_b is None:
        cur = _flash(q, k, v, mask, extras, transposed=transposed)
    else:
        cur = _soft_max(q, k, v, mask, extras, transposed=transposed)
        cur.name = "kqv_out"  # runs where the cache is, when the cache stays on the host
    build.expand(cur)
    return cur


def _flash(
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    mask: GraphTensor | None,
    extras: Extras,
    *,
    transposed: bool,
) -> GraphTensor:
    if transposed:
        v = ggml.transpose(v)
    k, v = (ggml.cast(one, F16) if one.type is F32 else one for one in (k, v))
    cur = ggml.flash_attn_ext(q, k, v, mask, extras.sinks)
    if extras.v_mla is not None:
        cur = ggml.mul_mat(extras.v_mla, ggml.permute(cur, 0, 2, 1, 3))
        cur = ggml.cont(ggml.permute(cur, 0, 2, 1, 3))
    return ggml.reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])


def _soft_max(
    q: GraphTensor,
    k: GraphTensor,
    v: GraphTensor,
    mask: GraphTensor | None,
    extras: Extras,
    *,
    transposed: bool,
) -> GraphTensor:
    kq = ggml.mul_mat(k, q)
    for _ in range(extras.softcap):
        kq = ggml.scale(ggml.unary(ggml.scale(kq)))
    if extras.kq_b is not None:
        kq = ggml.add(kq, extras.kq_b)
    kq = ggml.soft_max(kq, mask, extras.sinks)
    if not transposed:
        v = ggml.cont(ggml.transpose(v))
    kqv = ggml.mul_mat(v, kq)
    if extras.v_mla is not None:
        kqv = ggml.mul_mat(extras.v_mla, kqv)
    cur = ggml.permute(kqv, 0, 2, 1, 3)
    return ggml.cont(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
