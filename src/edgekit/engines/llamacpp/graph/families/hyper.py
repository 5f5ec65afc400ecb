"""Hyper-connections of DeepSeek 4: several streams that are mixed before and after each part of a layer."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor, shape
from edgekit.engines.llamacpp.graph.types import NoGraphError

MAX_STREAMS = 64  # DeepSeek 4 has 4


class StreamMix(NamedTuple):
    """One stream out of several, and how its result goes back to them."""

    cur: GraphTensor
    post: GraphTensor
    comb: GraphTensor


def stream_count(build: Build) -> int:
    count = build.hparams.whole("hyper_connection.count")
    if not 0 < count <= MAX_STREAMS:
        raise NoGraphError(f"{count:,} streams are not between 1 and {MAX_STREAMS}")
    return count


def _affine(cur: GraphTensor, scale: GraphTensor, base: GraphTensor) -> GraphTensor:
    return ggml.add(ggml.mul(cur, scale), base)


def _flat_mixes(streams: GraphTensor, matrix: GraphTensor) -> GraphTensor:
    width, count, tokens, _ = streams.ne
    flat = ggml.rms_norm(ggml.reshape(streams, width * count, tokens))
    return ggml.mul_mat(matrix, flat)


def before(layer: GraphLayer, streams: GraphTensor, part: str) -> StreamMix:
    """build_hc_pre, with ggml's fused operations."""
    _, count, tokens, _ = streams.ne
    scale, base = layer[f"hc_{part}_scale"], layer[f"hc_{part}_base"]
    mixes = _flat_mixes(streams, layer[f"hc_{part}_fn"])
    pre, post = (
        ggml.scale(
            ggml.unary(
                _affine(
                    ggml.view(mixes, count, tokens, strides=(mixes.nb[1],)),
                    ggml.view(scale, 1),
                    ggml.view(base, count),
                )
            )
        )
        for _ in range(2)
    )
    comb = ggml.new("DSV4_HC_COMB", F32, shape(count, count, tokens), mixes, scale, base)
    cur = ggml.new("DSV4_HC_PRE", F32, shape(streams.ne[0], tokens), streams, pre)
    return StreamMix(cur, post, comb)


def after(cur: GraphTensor, streams: GraphTensor, mixed: StreamMix) -> GraphTensor:
    """build_hc_post."""
    return ggml.new("DSV4_HC_POST", F32, streams.ne, cur, streams, mixed.post, mixed.comb)


def gathered(build: Build, streams: GraphTensor) -> GraphTensor:
    """build_hc_head: one stream again, step by step."""
    width, _, tokens, _ = streams.ne
    mixes = _flat_mixes(streams, build["output_hc_fn"])
    pre = _affine(mixes, build["output_hc_scale"], build["output_hc_base"])
    pre = ggml.scale(ggml.unary(pre))
    parts = [
        ggml.mul(
            ggml.view(streams, width, tokens, strides=(streams.nb[2],)),
            ggml.view(pre, 1, tokens, strides=(pre.nb[1],)),
        )
        for _ in range(stream_count(build))
    ]
    return reduce(ggml.add, parts)
