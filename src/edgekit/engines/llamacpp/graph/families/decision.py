"""Clef: a Qwen 3.5 without a cache, and a head that scores the options of the questions in a prompt.

The graph is reserved for one question with one option; a prompt with more of them needs more later.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend_now, input_no_cache
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.families.delta_net import DeltaNet, gates_of, split_convolved
from edgekit.engines.llamacpp.graph.families.mamba import Ssm
from edgekit.engines.llamacpp.graph.families.transformer import Transformer, four_positions
from edgekit.engines.llamacpp.graph.layers import QKV, Norm, normalize, project
from edgekit.engines.llamacpp.graph.tensor import (
    F32,
    I32,
    GraphTensor,
    row_bytes,
    shape,
)

QUESTIONS = OPTIONS = 1
QUESTION_TYPES = 3


def momentary_delta(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """build_layer_attn_linear of clef.cpp: a gated delta net over the batch, from states of zeros."""
    build = layer.build
    ssm = Ssm.of(build.hparams, grouped=True)
    heads, width, tokens = ssm.dt_rank, ssm.d_inner // ssm.dt_rank, build.n_tokens
    mixed = project(layer, "attn_qkv", cur)
    mixed = ggml.reshape(mixed, mixed.ne[0], tokens, 1)
    z = project(layer, "attn_gate", cur)
    gates = gates_of(layer, ssm, cur, sequences=1)
    conv = ggml.concat(_zeros(ssm.d_conv - 1, ssm.channels, 1), ggml.transpose(mixed), 0)
    conv = ggml.unary(ggml.ssm_conv(conv, layer["ssm_conv1d"]))
    q, k, v = split_convolved(layer, ssm, conv, sequences=1)
    result = ggml.gated_delta_net(q, k, v, *gates, _zeros(width, width, heads, 1))
    row = row_bytes(result.type, width)
    out = ggml.view(
        result, width, heads, tokens, 1, strides=(row, row * heads, row * heads * tokens)
    )
    out = normalize(out, layer["ssm_norm"])
    out = ggml.mul(out, ggml.unary(ggml.reshape(z, width, heads, tokens, 1)))
    cur = project(layer, "ssm_out", ggml.reshape(out, width * heads, tokens, 1))
    return ggml.reshape(cur, build.hparams.n_embd, tokens)


def _zeros(*dims: int) -> GraphTensor:
    return ggml.fill(GraphTensor(op="NONE", type=F32, ne=shape(*dims), name="zeros"))


class Clef(DeltaNet):
    def build(self, build: Build) -> None:
        cur = build.input_embd()
        build.inputs = self.layer_inputs(build)
        for layer in build.layers():
            cur = self.block(layer, cur)
        score = _score(build, normalize(cur, build["output_norm"]))
        tokens = build.n_tokens
        score = ggml.pad(score, 0, tokens - score.ne[1])
        score = ggml.add(score, ggml.graph_input(F32, 1, name="status"))
        build.output_embd(score)
        build.expand(score)

    def output_rows(self, _layer: GraphLayer, *tensors: GraphTensor) -> tuple[GraphTensor, ...]:
        return tensors

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return self.mixer(layer, cur) if layer.facts.is_recr else self.full_attention(layer, cur)

    def attend_masked(
        self, layer: GraphLayer, heads: QKV, _mask: GraphTensor | None
    ) -> GraphTensor:
        return attend_now(layer, *heads, project=False)


class Head:
    """The weights of the head."""

    def __init__(self, build: Build) -> None:
        self.build = build

    def norm(self, cur: GraphTensor, name: str) -> GraphTensor:
        bias = self.build.required(f"{name}.bias")
        return normalize(cur, self.build[name], bias, kind=Norm.LAYER)

    def linear(self, cur: GraphTensor, name: str) -> GraphTensor:
        return ggml.add(ggml.mul_mat(self.build[name], cur), self.build.required(f"{name}.bias"))

    def attend(self, queries: GraphTensor, memory: GraphTensor, name: str) -> GraphTensor:
        """build_head_attn: attention without a mask."""
        width, count, rows = queries.ne[0], queries.ne[1], memory.ne[1]
        heads = self.build.hparams.integer("decision.head_count")
        q = self.linear(queries, f"{name}_q")
        k, v = self.linear(memory, f"{name}_k"), self.linear(memory, f"{name}_v")
        q = ggml.permute(ggml.reshape(q, width // heads, heads, count), 0, 2, 1, 3)
        k = ggml.permute(ggml.reshape(k, width // heads, heads, rows), 0, 2, 1, 3)
        v = ggml.cont(ggml.permute(ggml.reshape(v, width // heads, heads, rows), 1, 2, 0, 3))
        cur = ggml.mul_mat(v, ggml.soft_max(ggml.mul_mat(k, q)))
        cur = ggml.cont(ggml.permute(cur, 0, 2, 1, 3), width, count)
        return self.linear(cur, f"{name}_o")

    def feed_forward(self, cur: GraphTensor, block: str) -> GraphTensor:
        cur = self.linear(self.norm(cur, f"{block}.ffn_norm"), f"{block}.ffn_up")
        return self.linear(ggml.unary(cur), f"{block}.ffn_down")


def _score(build: Build, hidden: GraphTensor) -> GraphTensor:
    """build_head: one score per option."""
    head, tokens, width = Head(build), build.n_tokens, build.hparams.n_embd
    ids = ggml.graph_input(I32, tokens, name="tokens")
    pool_q = ggml.graph_input(F32, tokens, QUESTIONS, name="pool_q")
    pool_o = ggml.graph_input(F32, tokens, OPTIONS, name="pool_o")
    question_type = ggml.graph_input(I32, QUESTIONS, name="question_type")
    owner = ggml.graph_input(I32, OPTIONS, name="option_question")
    option_mask = ggml.graph_input(F32, OPTIONS, QUESTIONS, name="option_mask")

    hidden = head.norm(hidden, "decision.hidden_norm")
    memory = ggml.mul_mat(build["decision.proj_memory"], hidden)
    last = ggml.view(hidden, width, 1, strides=(hidden.nb[1],))
    by_channel = ggml.cont(ggml.transpose(hidden))
    question = ggml.mul_mat(by_channel, pool_q)
    context = ggml.mul_mat(by_channel, pool_o)
    lexical = ggml.get_rows(build.weight("output") or build["token_embd"], ids)
    lexical = ggml.mul_mat(ggml.cont(ggml.transpose(lexical)), pool_o)
    options = ggml.mul_mat(build["decision.proj_option_context"], context)
    options = ggml.add(options, ggml.mul_mat(build["decision.proj_option_lexical"], lexical))
    of_question = ggml.mul_mat(build["decision.proj_option_question"], question)
    options = ggml.add(options, ggml.get_rows(of_question, owner))
    routing = build.hparams.integer("decision.routing_block_count")
    for i in range(routing):
        block = f"dec.blk.{i}"
        cur = head.attend(
            head.norm(options, f"{block}.cross_attn_norm"),
            head.norm(memory, f"{block}.cross_attn_norm_kv"),
            f"{block}.cross_attn",
        )
        options = ggml.add(options, cur)
        options = ggml.add(options, head.feed_forward(options, block))

    fields = ggml.mul_mat(build["decision.proj_question"], question)
    weights = ggml.scale(ggml.mul_mat(options, fields))
    weights = ggml.soft_max(ggml.add(weights, option_mask))
    summary = ggml.mul_mat(ggml.cont(ggml.transpose(options)), weights)
    fields = ggml.add(fields, head.norm(summary, "decision.option_summary_norm"))
    fields = ggml.add(fields, ggml.mul_mat(build["decision.proj_global"], last))
    fields = ggml.add(fields, ggml.get_rows(build["token_types"], question_type))
    for i in range(routing, routing + build.hparams.integer("decision.block_count")):
        block = f"dec.blk.{i}"
        cur = head.norm(fields, f"{block}.attn_norm")
        fields = ggml.add(fields, head.attend(cur, cur, f"{block}.attn"))
        cur = head.norm(fields, f"{block}.cross_attn_norm")
        fields = ggml.add(fields, head.attend(cur, memory, f"{block}.cross_attn"))
        fields = ggml.add(fields, head.feed_forward(fields, block))
    fields = head.norm(fields, "decision.field_norm")

    anchor = ggml.get_rows(ggml.l2_norm(ggml.add(question, last)), owner)
    prior = ggml.sum_rows(ggml.mul(ggml.l2_norm(lexical), anchor))
    options = head.norm(options, "decision.option_norm")
    field = ggml.get_rows(fields, owner)
    cosine = ggml.sum_rows(ggml.mul(ggml.l2_norm(field), ggml.l2_norm(options)))
    features = ggml.concat(field, options, 0)
    features = ggml.concat(features, ggml.mul(field, options), 0)
    features = ggml.concat(features, ggml.unary(ggml.sub(field, options)), 0)
    rest = ggml.unary(head.linear(features, "decision.scorer"))
    rest = head.linear(rest, "decision.scorer_out")

    def scale() -> GraphTensor:
        return ggml.view(build.required("decision.scales"), 1)

    joint = ggml.add(ggml.mul(cosine, scale()), rest)
    return ggml.add(ggml.mul(prior, scale()), ggml.mul(joint, scale()))


DECISION: Mapping[str, Transformer] = {
    "clef": Clef(
        attn_input=input_no_cache,
        mixer=momentary_delta,
        n_pos=four_positions,
        ffn_norm="post_attention_norm",
    ),
}
