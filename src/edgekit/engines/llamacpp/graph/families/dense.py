"""Dense decoders: TABLE of switches, and the rarer layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    attend,
    attend_now,
    input_auto,
    input_kv_iswa,
    input_no_cache,
)
from edgekit.engines.llamacpp.graph.build import Act, Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.latent import Latent
from edgekit.engines.llamacpp.graph.families.transformer import (
    Transformer,
    always,
    attention_then_stream,
    four_positions,
    no_layer,
    nonzero,
    rope_sections,
    trained_rope,
)
from edgekit.engines.llamacpp.graph.layers import (
    QKV,
    Norm,
    feed_forward,
    normalize,
    project,
    project_biased,
    results,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor, NoGraphError, shape
from edgekit.errors import RefusedError

IMAGE_TOKENS = 8192  # chameleon.cpp: image tokens, whose logits are suppressed


def baichuan_rope(hparams: Hparams, _il: int) -> bool:
    """The 13B model, recognised by its layer count, uses ALiBi instead of rope (baichuan.cpp)."""
    return hparams.n_layer == 32


def exaone4_rope(hparams: Hparams, il: int) -> bool:
    """Only sliding-window layers, if there are any."""
    return hparams.swa[il] or not hparams.has_swa


class CodeShell(Transformer):
    """Old CodeShell files have one matrix for embeddings and logits, named output."""

    def embed(self, build: Build) -> GraphTensor:
        return build.input_embd(table=build.weight("token_embd") or build["output"])


class Falcon(Transformer):
    """Falcon: attention and feed-forward may have separate norms."""

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        normed = self.apply_norm(layer, stream, "attn_norm")
        has_second_norm = "attn_norm_2" in layer
        cur = self.apply_norm(layer, stream, "attn_norm_2") if has_second_norm else normed
        cur = self.attention(layer, cur)
        cur, stream, normed = self.output_rows(layer, cur, stream, normed)
        return self.parallel_sum(self.feed_forward(layer, normed), stream, cur)


class GptNeoX(Transformer):
    """GPT-NeoX: optionally, feed-forward and attention run in parallel, each with its own norm."""

    def after_attention(
        self, layer: GraphLayer, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        if not layer.hparams.flag("use_parallel_residual"):
            return Transformer.after_attention(self, layer, cur, stream)
        result = self.apply_norm(layer, stream, "ffn_norm")
        result = self.feed_forward(layer, result)
        return ggml.add(ggml.add(result, stream), cur)


class BitNet(Transformer):
    """BitNet: norms before the output projections of attention and feed-forward."""

    def attend(self, layer: GraphLayer, _cur: GraphTensor, heads: QKV) -> GraphTensor:
        cur = attend(layer, *heads, project=False)
        cur = self.apply_norm(layer, cur, "attn_sub_norm")
        return project_biased(layer, "attn_output", cur)

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        up, gate = (project(layer, name, cur) for name in ("ffn_up", "ffn_gate"))
        cur = self.apply_norm(layer, ggml.glu(gate, up), "ffn_sub_norm")
        return project(layer, "ffn_down", cur)


class Deci(Transformer):
    """Deci: layers may replace attention by a linear layer, or lack attention or the feed-forward."""

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        heads = layer.facts.n_head
        cur = self.apply_norm(layer, stream, "attn_norm") if heads else stream
        cur = self.attention(layer, cur) if heads else cur
        before = stream
        cur, stream = self.output_rows(layer, cur, stream)
        if "ffn_norm" not in layer:
            return before  # deci.cpp skips to the next layer and drops the attention output
        stream = ggml.add(cur, stream) if heads else cur
        cur = self.apply_norm(layer, stream, "ffn_norm")
        return ggml.add(self.feed_forward(layer, cur), stream)

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        if not layer.facts.n_head_kv:
            return ggml.mul_mat(layer["attn_output"], cur)
        return Transformer.attention(self, layer, cur)


class Chameleon(Transformer):
    """Chameleon: Q and K have their own kind of norm; the 34B model applies layer norms after attention and
    feed-forward.
    """

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        swin = layer.hparams.flag("swin_norm")
        cur = stream if swin else self.apply_norm(layer, stream, "attn_norm")
        cur = self.attention(layer, cur)
        cur, stream = self.output_rows(layer, cur, stream)
        cur = self.apply_norm(layer, cur, "attn_norm") if swin else cur
        stream = ggml.add(cur, stream)
        cur = cur if swin else self.apply_norm(layer, stream, "ffn_norm")
        cur = feed_forward(layer, cur)
        cur = self.apply_norm(layer, cur, "ffn_norm") if swin else cur
        return ggml.add(cur, stream)

    def apply_norm(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        heads = name in {"attn_q_norm", "attn_k_norm"}
        kind = Norm.LAYER if heads else self.norm
        return normalize(cur, layer[name], layer.bias(name), kind=kind)

    def head(self, build: Build, cur: GraphTensor) -> None:
        cur = normalize(cur, build["output_norm"])
        build.output_embd(cur)
        cur = ggml.mul_mat(build.weight("output") or build["token_embd"], cur)
        suppressed = ggml.clamp(ggml.new("NONE", F32, shape(IMAGE_TOKENS)))
        cur = ggml.new("SET", cur.type, cur.ne, cur, suppressed)
        build.output(cur)
        build.expand(cur)


class CogVlm(Transformer):
    """CogVLM: logits for every token; no output rows are selected."""

    def selects_rows(self, _build: Build) -> bool:
        return False


class Diffusion(Transformer):
    """Diffusion models: no cache; all tokens of a batch attend to each other."""

    def attend(self, layer: GraphLayer, _cur: GraphTensor, heads: QKV) -> GraphTensor:
        return attend_now(layer, *heads)


def rope_pattern(hparams: Hparams, il: int) -> bool:
    """True if the file's rope pattern has rope for the layer, or ends before it."""
    pattern = hparams.key("attention.rope_pattern")
    return not isinstance(pattern, tuple) or il >= len(pattern) or bool(pattern[il])


def deepstack_mapping(hparams: Hparams) -> tuple[int, ...]:
    """For each layer, the index of the image embeddings it adds; negative for none."""
    mapping = hparams.key("deepstack_mapping")
    numbers = mapping if isinstance(mapping, tuple) else ()
    return tuple(number for number in numbers[: hparams.n_layer] if isinstance(number, int))


def image_embd(build: Build) -> GraphTensor:
    """The image embeddings of one depth. They follow the token embedding in each row of the input."""
    embd = build.inp_embd
    if embd is None:
        raise NoGraphError("images without an input for them")
    return ggml.view(embd, *embd.ne[:2], strides=(embd.nb[1],))


@dataclass(frozen=True, slots=True, kw_only=True)
class Granite(Transformer):
    fused_shared: bool = False  # gate and up of the shared expert are one matrix
    images: bool = True  # the loader reads deepstack_mapping

    def variant(self, hparams: Hparams, il: int) -> tuple[bool, bool]:
        return self.rope(hparams, il), self.adds_image(hparams, il)

    def adds_image(self, hparams: Hparams, il: int) -> bool:
        """True if image embeddings are added to the layer's input."""
        mapping = deepstack_mapping(hparams) if self.images else ()
        return 0 < il < len(mapping) and mapping[il] >= 0

    def embed(self, build: Build) -> GraphTensor:
        hparams = build.hparams
        mapping = deepstack_mapping(hparams) if self.images else ()
        count = len({index for index in mapping if index >= 0})
        width = hparams.n_embd * (1 + count) if count else None
        return build.input_embd(scaled=bool(hparams.real("embedding_scale")), width=width)

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        if self.adds_image(layer.hparams, layer.index):
            stream = ggml.add(stream, image_embd(layer.build))
        return Transformer.block(self, layer, stream)

    def shared_expert(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        act = Act.FUSED if self.fused_shared else Act.UNARY
        return shared_expert(layer, cur, act=act)


class Olmo(Transformer):
    """OLMo: norms without weights."""

    def apply_norm(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        if name in {"attn_norm", "ffn_norm"}:
            return normalize(cur, None, kind=self.norm)
        return Transformer.apply_norm(self, layer, cur, name)


class StableLm(Transformer):
    """StableLM: a feed-forward without its own norm shares attention's."""

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        normed = self.apply_norm(layer, stream, "attn_norm")
        cur = self.attention(layer, normed)
        cur, stream, normed = self.output_rows(layer, cur, stream, normed)
        stream = ggml.add(cur, stream)
        has_ffn_norm = "ffn_norm" in layer
        cur = self.apply_norm(layer, stream, "ffn_norm") if has_ffn_norm else normed
        return ggml.add(self.feed_forward(layer, cur), stream)


class Mpt(Transformer):
    """MPT: Q and K are normalised across heads; activations may be divided by scales."""

    def norm_qk(
        self, layer: GraphLayer, q: GraphTensor, k: GraphTensor
    ) -> tuple[GraphTensor, GraphTensor]:
        if "attn_q_norm" in layer and not layer.build.graph.is_contiguous(q):
            raise RefusedError("llama.cpp aborts: MPT with query and key norms")
        return Transformer.norm_qk(self, layer, q, k)

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return feed_forward(layer, cur, gated=False, scales=layer.tensor("ffn_act.scales"))


class Nanbeige(Transformer):
    """Nanbeige: blocks may be looped over, with the final norm between two loops."""

    def variant(self, hparams: Hparams, il: int) -> tuple[bool, int]:
        """Whether the final norm follows the layer, and a number that makes all layers of a looped model differ."""
        ends_loop = (il + 1) % hparams.n_block == 0 and il + 1 < hparams.n_layer
        normed = ends_loop and not hparams.flag("skip_loop_final_norm")
        return normed, il if hparams.n_block < hparams.n_layer else 0

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        cur = Transformer.block(self, layer, stream)
        normed, _ = self.variant(layer.hparams, layer.index)
        return normalize(cur, layer.build["output_norm"]) if normed else cur


class HrmText(Transformer):
    """HRM Text: two stacks of blocks, a low and a high one, run in turn on two states; norms without weights."""

    def variant(self, _hparams: Hparams, il: int) -> int:
        return il  # a layer runs the blocks of another: none stands for the next

    def build(self, build: Build) -> None:
        hparams = build.hparams
        size, low_runs = hparams.integer("hrm.layers_per_stack"), hparams.integer("hrm.l_cycles")
        high = build.input_embd(scaled=bool(hparams.real("embedding_scale")))
        low = build.required("hrm.z_l_init")
        build.inputs = self.layer_inputs(build)
        cur = high
        for layer in build.layers():
            if layer.index % size == 0:
                cur = ggml.add(high, low)
            cur = self.block(layer, cur)
            if (layer.index + 1) % size == 0:
                cur = ggml.rms_norm(cur)
                is_high = layer.index // size % (low_runs + 1) == low_runs
                high, low = (cur, low) if is_high else (high, cur)
        results(build, ggml.get_rows(high, build.inputs.out_ids))

    def output_rows(self, _layer: GraphLayer, *tensors: GraphTensor) -> tuple[GraphTensor, ...]:
        return tensors

    def apply_norm(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        if name in {"attn_norm", "ffn_norm"}:
            return ggml.rms_norm(cur)
        return Transformer.apply_norm(self, layer, cur, name)

    def attend(self, layer: GraphLayer, cur: GraphTensor, heads: QKV) -> GraphTensor:
        result = attend(layer, *heads, project=False)
        gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
        return project(layer, "attn_output", ggml.mul(result, gate))


class OpenElm(Transformer):
    """OpenELM: one projection, split into heads and then into Q, K and V."""

    def qkv(self, layer: GraphLayer, cur: GraphTensor) -> QKV:
        facts, tokens = layer.facts, layer.build.n_tokens
        width, counts = facts.n_embd_head_k, (facts.n_head, facts.n_head_kv, facts.n_head_kv)
        cur = ggml.mul_mat(layer["attn_qkv"], cur)
        cur = ggml.reshape(cur, width, sum(counts), tokens)
        q, k, v = (ggml.view(cur, width, count, tokens, strides=cur.nb[1:3]) for count in counts)
        return q, k, v


class Plamo3(Transformer):
    """PLaMo 3: the names of post norms have no .weight suffix."""

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        return normalize(cur, layer.required(name))


class Plm(Latent):
    """PLM passes V with two dimensions, so llama.cpp treats all tokens as one."""

    def build(self, build: Build) -> None:
        if build.options.flash_attn and build.n_tokens != 1:
            raise RefusedError("llama.cpp aborts: PLM works only without flash attention (-fa off)")
        Latent.build(self, build)


class Talkie(Transformer):
    """Talkie: norms without weights; every layer adds the normalised embeddings, times a number of its own."""

    def build(self, build: Build) -> None:
        build.inputs = self.layer_inputs(build)
        cur = skip = ggml.rms_norm(self.embed(build))
        for layer in build.layers():
            stream = cur
            cur = self.attention(layer, ggml.rms_norm(cur))
            cur, stream, skip = self.output_rows(layer, cur, stream, skip)
            stream = ggml.add(cur, stream)
            cur = ggml.add(self.feed_forward(layer, ggml.rms_norm(stream)), stream)
            cur = ggml.add(cur, ggml.mul(skip, layer["layer_output_scale"]))
        self.head(build, cur)

    def norm_qk(
        self, layer: GraphLayer, q: GraphTensor, k: GraphTensor
    ) -> tuple[GraphTensor, GraphTensor]:
        return normalize(q, layer["attn_q_norm"]), ggml.rms_norm(k)


def attention_first(result: GraphTensor, stream: GraphTensor, attended: GraphTensor) -> GraphTensor:
    return ggml.add(ggml.add(attended, result), stream)


def deepstack_layers(hparams: Hparams) -> int:
    return hparams.integer("n_deepstack_layers", 0)


class DeepStack(Transformer):
    """DeepStack: image features of several encoder depths are added after the first layers."""

    def variant(self, hparams: Hparams, il: int) -> bool:
        return il < deepstack_layers(hparams)

    def embed(self, build: Build) -> GraphTensor:
        n_embd, depths = build.hparams.n_embd, deepstack_layers(build.hparams)
        return build.input_embd(width=n_embd * (1 + depths) if depths else None)

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        cur = Transformer.block(self, layer, stream)
        if self.variant(layer.hparams, layer.index):
            cur = ggml.add(cur, image_embd(layer.build))
        return cur


DENSE: Mapping[str, Transformer] = {
    "apertus": Transformer(gated=False),
    "arcee": Transformer(act=Act.SQUARED, gated=False),
    "baichuan": Transformer(rope=baichuan_rope),
    "bitnet": BitNet(),
    "bloom": Transformer(norm=Norm.LAYER, embd_norm=True, rope=no_layer, gated=False),
    "chameleon": Chameleon(),
    "chatglm": Transformer(act=Act.FUSED, gated=False),
    "codeshell": CodeShell(norm=Norm.LAYER, gated=False),
    "cogvlm": CogVlm(),
    "deci": Deci(),
    "dream": Diffusion(attn_input=input_no_cache),
    "exaone4": Transformer(
        attn_input=input_auto, rope=exaone4_rope, post_norms=True, ffn_norm=None
    ),
    "falcon": Falcon(norm=Norm.LAYER, parallel_sum=attention_then_stream, gated=False),
    "gemma": Transformer(scaled_embd=True, scaled_q=True),
    "gpt2": Transformer(norm=Norm.LAYER, positions_added=True, rope=no_layer, gated=False),
    "gptneox": GptNeoX(norm=Norm.LAYER, gated=False),
    "granite": Granite(
        rope=trained_rope, residual_scale=nonzero("residual_scale"), logit_scale=always
    ),
    "granitemoe": Granite(
        images=False, residual_scale=nonzero("residual_scale"), logit_scale=always
    ),
    "granite_swa": Granite(
        attn_input=input_kv_iswa,
        rope=rope_pattern,
        fused_shared=True,
        residual_scale=nonzero("residual_scale"),
        logit_scale=always,
    ),
    "hrm_text": HrmText(),
    "hunyuan-dense": Transformer(late_qk_norm=True),
    "hunyuan_vl": Transformer(n_pos=rope_sections, late_qk_norm=True),
    "jais": Transformer(norm=Norm.LAYER, rope=no_layer),
    "minicpm": Transformer(
        scaled_embd=True,
        residual_scale=lambda hparams: hparams.real("residual_scale", 1.0) != 0,
        logit_scale=always,
    ),
    "mistral3": Transformer(temperature=nonzero("attention.temperature_scale")),
    "mpt": Mpt(norm=Norm.LAYER, positions_added=True, rope=no_layer, norm_across_heads=True),
    "nanbeige": Nanbeige(),
    "nemotron": Transformer(norm=Norm.LAYER, act=Act.SQUARED, gated=False),
    "olmo": Olmo(norm=Norm.LAYER),
    "openelm": OpenElm(stream_first=True),
    "orion": Transformer(norm=Norm.LAYER),
    "phi2": Transformer(
        norm=Norm.LAYER, scaled_q=True, parallel=True, parallel_sum=attention_first, gated=False
    ),
    "plamo": Transformer(parallel=True, parallel_sum=attention_then_stream),
    "plamo3": Plamo3(attn_input=input_auto, act=Act.FUSED, gated=False),
    "plm": Plm(act=Act.SQUARED, gated=False),
    "refact": Transformer(rope=no_layer),
    "seed_oss": Transformer(ffn_norm="post_attention_norm"),
    "stablelm": StableLm(norm=Norm.LAYER),
    "talkie": Talkie(late_qk_norm=True, logit_scale=always),
    "qwen2vl": Transformer(n_pos=four_positions),
    "qwen3vl": DeepStack(n_pos=four_positions),
}
