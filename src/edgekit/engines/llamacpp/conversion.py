"""The GGUF that a model in another format, or at another mix, would become: its keys and tensors."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations
from typing import Any

from edgekit.engines.llamacpp.architectures import conversion_of, known_architecture
from edgekit.engines.llamacpp.flags import USUAL_MIXES
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.quantization import (
    EXPERT_TYPE,
    MXFP4_MIX,
    WITHIN,
    Converted,
    MixedModel,
    SourceModel,
    directory_tensors,
    facts_of_geometry,
    facts_of_header,
    in_order,
    quantize,
)
from edgekit.errors import HeaderError, RefusedError
from edgekit.formats.dtype import by_name
from edgekit.formats.mixes import stated_mix
from edgekit.formats.records import damaged, load_records
from edgekit.formats.types import GgufTensor, ModelHeader, Tensor, Value
from edgekit.model.hyperparameters import MAX_NUMBER, config_keys, dig, text_section
from edgekit.model.tensor_recipes import (
    ExpectedTensor,
    Streams,
    TensorKind,
    TensorRecipe,
    TensorRole,
    switches,
    tensor_recipe,
)
from edgekit.model.tensors import chooses_by_token, layer_tensors, outer_tensors, prediction_tensors
from edgekit.model.types import (
    Attention,
    Cell,
    CompressedAttention,
    HybridLayer,
    LatentAttention,
    LayerKind,
    Model,
    ModelGeometry,
    Recurrent,
    SharedCache,
    Span,
    attention_of,
)
from edgekit.sources.filenames import quant_tag
from edgekit.sources.types import Container
from edgekit.units import MIB, Basis

LONGEST_HEADER = 16 * MIB  # Gemma's vocabulary of 262,144 tokens: 15.8 MB


def likely_mix(model: Model) -> str:
    """The mix that the file's key or name states, unless the file is too small for it; else the largest mix that is
    not larger than the file.
    """
    size, tag = model.header.file_bytes, quant_tag(model.header.name)
    stated = stated_mix(model.header.keys) or (tag if tag in USUAL_MIXES else None)
    if stated is not None and (size is None or _tensor_bytes(model, stated) <= size * (1 + WITHIN)):
        return stated
    if size is None:
        raise HeaderError(
            "neither the quantisation nor the size of the file is known: read its whole header",
            file=model.header.name,
        )
    # The difference in size becomes a separate line of the bill.
    index = bisect_left(USUAL_MIXES, -size, key=lambda name: -_tensor_bytes(model, name))
    return USUAL_MIXES[min(index, len(USUAL_MIXES) - 1)]


def _tensor_bytes(model: Model, mix: str) -> int:
    return mixed_model(_with_head(model, mix), mix).tensor_bytes


def mixed_model(model: Model, mix: str) -> MixedModel:
    """The model at that mix. The input of llama-quantize is computed once for all mixes."""
    source = prepare(model).source_model.get(lambda: source_model(model.header, model.geometry))
    return source.at_mix(mix)


def convert(model: Model, mix: str) -> Converted:
    """The GGUF that the model becomes at that mix. Raises RefusedError for a model_type that llama.cpp's converter does
    not support.
    """
    name = model.geometry.architecture
    is_gguf = model.header.container is Container.GGUF
    if not is_gguf and conversion_of(name).unsupported:
        raise RefusedError(
            f"llama.cpp's converter does not support {name}, so there is no GGUF of it to run"
        )
    is_unread = is_gguf and model.header.tensors is None
    if is_unread:
        model = _with_head(model, mix)
    mixed = mixed_model(model, mix)
    tensors = tuple(
        Tensor(
            name=tensor.name,
            type=tensor.type,
            shape=tensor.shape,
            size_bytes=tensor.size_bytes,
            offset=0,
        )
        for tensor in mixed.tensors
    )
    geometry = model.geometry if is_gguf else _in_llama_cpp(model.geometry, model.header.config)
    header = replace(
        model.header,
        keys=model.header.keys or gguf_keys(geometry, model.header.config),
        container=Container.GGUF,
        tensors=tensors,
        tensor_count=len(tensors),
        tensor_bytes=mixed.tensor_bytes,
    )
    return Converted(
        model=Model(header=header, geometry=geometry),
        mixed=mixed,
        file_bytes=model.header.file_bytes if is_unread else None,
    )


def _with_head(model: Model, mix: str) -> Model:
    """The model with or without a separate output head, whichever is nearer to the file's size: the keys do not state
    it.
    """
    if model.geometry.tied_embeddings is not None:
        return model
    untied, tied = prepare(model).apart_and_tied.get(
        lambda: (
            replace(model, geometry=replace(model.geometry, tied_embeddings=False)),
            replace(model, geometry=replace(model.geometry, tied_embeddings=True)),
        )
    )
    size = model.header.file_bytes
    if size is None:
        return untied

    def misfit(candidate: Model) -> tuple[bool, bool, int]:
        """Sort key: whether the size differs, whether the tensor count differs, and by how many bytes."""
        mixed = mixed_model(candidate, mix)
        difference_bytes = abs(size - mixed.tensor_bytes)
        has_other_count = len(mixed.tensors) != (model.header.tensor_count or len(mixed.tensors))
        return difference_bytes > LONGEST_HEADER + size // 200, has_other_count, difference_bytes

    return prepare(model).likely_heads.get(mix, lambda: min((untied, tied), key=misfit))


def _in_llama_cpp(geometry: ModelGeometry, config: Mapping[str, Any]) -> ModelGeometry:
    """The geometry as llama.cpp loads it from a config.json."""
    name = geometry.architecture
    conversion, full_heads = conversion_of(name), known_architecture(name).full_heads
    spans: dict[str, Any] = {} if conversion.keeps_windows else {"span": Span.ALL, "span_tokens": 0}

    def loaded(kind: LayerKind) -> LayerKind:
        match kind:
            case LatentAttention():
                return replace(kind, **spans, absorbed=kind.absorbed and not full_heads)
            case Attention():
                return replace(kind, **spans)
            case HybridLayer() | SharedCache():
                return replace(kind, attention=replace(kind.attention, **spans))
            case _:
                return kind

    has_experts = any(layer.experts for layer in geometry.layers)
    architecture = conversion.to
    if name == "nemotron_h" and has_experts:
        architecture = "nemotron_h_moe"
    if name == "kimi_linear" and text_section(config).get("attn_res_block_size"):
        architecture = "kimi-k3"
    return replace(
        geometry,
        architecture=architecture,
        layers=tuple(replace(layer, mixer=loaded(layer.mixer)) for layer in geometry.layers),
        mtp_layers=0 if conversion.drops_prediction else geometry.mtp_layers,
    )


def source_model(header: ModelHeader, geometry: ModelGeometry) -> SourceModel:
    """The input of llama-quantize: the tensors in a GGUF's header, else those that the geometry implies. Raises
    UnknownArchitectureError if the geometry implies none.

    Of a model that was released in MXFP4, the converter copies the experts unchanged.
    """
    has_released_mix = known_architecture(geometry.architecture).default_mix == MXFP4_MIX
    if header.keys and header.tensors:
        tensors = directory_tensors(header)
        return SourceModel(
            tensors=in_order(tensors),
            facts=facts_of_header(header),
            basis=Basis.EXACT,
            because=f"{len(tensors):,} tensors, with the types that llama-quantize assigns",
            keeps_experts=has_released_mix,
        )
    tensors = _tensors_by_count(
        geometry, config_keys(header), header.tensor_count if header.keys else None
    )
    facts = facts_of_geometry(geometry, conversion_of(geometry.architecture).to)
    escaped_name = geometry.architecture.replace("{", "{{").replace("}", "}}")
    because = f"{len(tensors):,} tensors of a {escaped_name} model, with the types that llama-quantize assigns"
    sources = in_order(tensors)
    is_packed = has_released_mix and header.quantization is not None
    if is_packed:
        released = quantize(sources, MXFP4_MIX, facts)
        sources = tuple(
            source._replace(tensor=tensor) if tensor.type.name == EXPERT_TYPE else source
            for source, tensor in zip(sources, released, strict=True)
        )
    return SourceModel(
        tensors=sources,
        facts=facts,
        basis=Basis.MODELLED,
        because=because,
        keeps_experts=is_packed,
    )


def _tensors_by_count(
    geometry: ModelGeometry, words: Mapping[str, Any], count: int | None
) -> tuple[GgufTensor, ...]:
    """The tensors of a model whose tensor directory was not read. Keys do not state every switch and rope table, so up
    to two switches are flipped until the tensor count is right. If it never is, the model is assumed to have the
    tensors that most files of its architecture have.
    """
    usual_tensors = gguf_tensors(geometry, words)
    if count is None or len(usual_tensors) == count:
        return usual_tensors
    defaults = switches(tensor_recipe(geometry.architecture))
    without_prediction = replace(geometry, mtp_layers=0)  # a file may lack the prediction blocks
    for variant in dict.fromkeys((geometry, without_prediction)):
        for names in chain.from_iterable(combinations(defaults, size) for size in range(3)):
            flipped = {name: not words.get(name, defaults[name]) for name in names}
            section = {**words, **flipped}
            extra = count - gguf_tensor_count(variant, section)
            if extra in {0, 1, 2}:  # rope tables
                return gguf_tensors(variant, {**section, ROPE_TABLES: extra})
    return usual_tensors


# -- keys, as llama.cpp's converter writes them (conversion/ @ 0c1e570): base.py for all models, a file per family

_GATING = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}  # llama-hparams.h
_GATING_KEYS = (
    "score_function",
    "scoring_func",
    "score_func",
    "moe_router_activation",
    "moe_router_activation_func",
    "expert_selection_fn",
)

# A GGUF key -> the keys of config.json that state its value.
_STATED = {
    "activation.situ_linear_beta": ("activation_situ_linear_beta",),
    "attn_res.block_size": ("attn_res_block_size",),
    "attention.clamp_kqv": ("clip_qkv", "attn_config.clip_qkv"),
    "attention.indexer.block_size": ("sparse_attention_config.sparse_block_size",),
    "attention.indexer.head_count": (
        "index_n_heads",
        "sparse_attention_config.sparse_num_index_heads",
        "indexer_n_heads",
    ),
    "attention.indexer.kpool": ("index_kpool",),
    "attention.indexer.top_k": (
        "index_topk",
        "sparse_attention_config.sparse_topk_blocks",
        "indexer_budget",
    ),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.output_group_count": ("o_groups",),
    "attention.output_lora_rank": ("o_lora_rank",),
    "attention.temperature_scale": ("rope_parameters.llama_4_scaling_beta",),
    "embedding_scale": ("embedding_multiplier", "scale_emb"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_norm": (
        "norm_topk_prob",
        "route_norm",
        "norm_expert_weight",
        "moe_renormalize",
    ),
    "expert_weights_scale": (
        "routed_scaling_factor",
        "route_scale",
        "moe_router_scaling_factor",
        "router_scaling_factor",
    ),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "hash_layer_count": ("num_hash_layers",),
    "hrm.h_cycles": ("H_cycles",),
    "hrm.l_cycles": ("L_cycles",),
    "hrm.layers_per_stack": ("num_layers_per_stack", "num_hidden_layers"),
    "hyper_connection.count": ("hc_mult", "hc_count"),
    "kda.gate_lower_bound": ("linear_attn_config.gate_lower_bound",),
    "logit_scale": ("logit_scale", "logits_scaling", "dim_model_base"),
    "residual_scale": (
        "residual_multiplier",
        "scale_depth",
        "layernorm_full_attention_alpha",
        "full_attn_alpha_factor",
    ),
    "ple.conv_kernel": ("ple_conv_kernel_size",),
    "ple.heads_per_ngram": ("heads_per_ngram",),
    "ple.ngram_size": ("ngram_size",),
    "swin_norm": ("swin_norm",),
    "use_parallel_residual": ("use_parallel_residual",),
}


def gguf_keys(geometry: ModelGeometry, config: Mapping[str, Any]) -> dict[str, Value]:
    """The keys that llama.cpp's converter would write. `geometry` has the GGUF name of the architecture."""
    section = text_section(config)
    keys = {
        **dict(_model_keys(geometry, section)),
        **dict(_attention_keys(geometry)),
        **dict(_layer_keys(geometry, section)),
    }
    name = geometry.architecture
    return {"general.architecture": name, **{f"{name}.{key}": value for key, value in keys.items()}}


def _model_keys(geometry: ModelGeometry, section: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """The keys that apply to the model as a whole."""
    for key, spellings in _STATED.items():
        for spelling in spellings:
            value = dig(section, spelling)
            if isinstance(value, (bool, int, float)):
                yield key, value
                break
    yield "block_count", len(geometry.layers) // geometry.loops + geometry.mtp_layers
    yield "embedding_length", geometry.hidden
    halves = (layer.dense or layer.experts for layer in geometry.layers)
    yield "feed_forward_length", _one_or_list(0 if half is None else half.width for half in halves)
    yield "embedding_length_per_layer_input", geometry.per_layer_embedding
    yield "rope.dimension_count", rotary_dim(geometry, section)
    if geometry.trained_context is not None:
        yield "context_length", geometry.trained_context
    if "position_embedding_type" in section:  # Granite
        yield "rope.scaling.finetuned", section["position_embedding_type"] == "rope"
    sections = known_architecture(geometry.architecture).rope_sections
    for path in ("rope_parameters.mrope_section", "rope_scaling.mrope_section"):
        stated = dig(section, path)
        if isinstance(stated, list) and all(isinstance(number, int) for number in stated):
            sections = (*stated, 0, 0, 0, 0)[:4]
            break
    if sections:
        yield "rope.dimension_sections", sections


def _attention_keys(geometry: ModelGeometry) -> Iterator[tuple[str, Value]]:
    """The keys of attention: heads, and the widths of K and V in layers with full and with sliding attention."""
    by_layer = [attention_of(layer.mixer) for layer in geometry.layers]  # None: a recurrence
    attentions = [attention for attention in by_layer if attention is not None]
    if not attentions:
        yield "attention.head_count", 0
        return
    # One number if all layers with attention agree, else a list with 0 for recurrent layers.
    different_heads = {attention.heads for attention in attentions}
    heads_by_layer = tuple(0 if attention is None else attention.heads for attention in by_layer)
    is_one_number = len(different_heads) == 1
    yield "attention.head_count", attentions[0].heads if is_one_number else heads_by_layer
    yield "attention.head_count_kv", _one_or_list(map(_kv_heads, by_layer))
    full = next(
        (attention for attention in attentions if attention.span is Span.ALL), attentions[0]
    )
    key, value = full.key_dim, full.value_dim
    if isinstance(full, LatentAttention):
        if full.absorbed:
            yield "attention.key_length_mla", key
            yield "attention.value_length_mla", value
            key, value = full.latent_dim + full.rope_dim, full.latent_dim
        yield "attention.kv_lora_rank", full.latent_dim
        yield "attention.q_lora_rank", full.query_rank
    yield "attention.key_length", key
    yield "attention.value_length", value
    sliding = next((attention for attention in attentions if attention.span is not Span.ALL), None)
    if isinstance(sliding, Attention):
        yield "attention.key_length_swa", sliding.key_dim
        yield "attention.value_length_swa", sliding.value_dim
    if index_dim := max(attention.index_dim for attention in attentions):
        yield "attention.indexer.key_length", index_dim
        marks = tuple(int(bool(kind is not None and kind.index_dim)) for kind in by_layer)
        latents = (kind for kind in attentions if isinstance(kind, LatentAttention))
        if any(not kind.index_dim for kind in latents):
            yield "attention.indexer.types", marks


def _kv_heads(attention: Attention | LatentAttention | None) -> int:
    """The KV heads that a GGUF states for a layer; None: a layer without attention."""
    if isinstance(attention, LatentAttention):
        return 1 if attention.absorbed else attention.heads
    return 0 if attention is None else attention.kv_heads


def _layer_keys(geometry: ModelGeometry, section: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """The keys of experts and of recurrences."""
    expert_layer = next((layer for layer in geometry.layers if layer.experts), None)
    if expert_layer is not None and expert_layer.experts is not None:
        yield "expert_count", expert_layer.experts.count
        yield "expert_used_count", expert_layer.experts.used
        yield "expert_feed_forward_length", expert_layer.experts.width
        yield "leading_dense_block_count", expert_layer.index
        gating_names = (section[key] for key in _GATING_KEYS if section.get(key))
        gating_name = next(gating_names, None)
        if isinstance(gating_name, str) and gating_name in _GATING:
            yield "expert_gating_func", _GATING[gating_name]
        elif tensor_recipe(geometry.architecture).correction.holds(section):
            yield "expert_gating_func", _GATING["sigmoid"]  # routing with a selection bias uses it
    ratio = section.get("indexer_compress_ratio")
    if isinstance(ratio, int):  # Qwen 4 exp
        attends = (attention_of(layer.mixer) is not None for layer in geometry.layers)
        yield "attention.compress_ratios", tuple(ratio if on else 0 for on in attends)
    listed = section.get("ple_layer_ids")
    if isinstance(listed, list) and listed:
        yield "ple.layers", tuple(layer - 1 for layer in listed if isinstance(layer, int))
    mixers = (layer.mixer for layer in geometry.layers)
    recurrences = (kind for kind in map(_recurrence, mixers) if kind is not None)
    recurrent = next(recurrences, None)
    if recurrent is None:
        return
    if recurrent.cell is Cell.SHORT_CONV:
        yield "shortconv.l_cache", recurrent.conv_kernel
        return
    if recurrent.cell is Cell.KIMI_DELTA:
        yield "kda.head_dim", recurrent.state_size
    yield "ssm.conv_kernel", recurrent.conv_kernel
    yield "ssm.inner_size", recurrent.inner
    yield "ssm.state_size", recurrent.state_size
    yield "ssm.time_step_rank", recurrent.rank if recurrent.cell is Cell.MAMBA else recurrent.heads
    yield "ssm.group_count", recurrent.groups


def _one_or_list(numbers: Iterable[int]) -> Value:
    """The value of a key that has a number for each layer: one number if all are equal, else the list."""
    listed = tuple(numbers)
    return listed[0] if len(set(listed)) == 1 else listed


# -- tensors at F16: names are in gguf_tensor_names.json, exceptions in the architectures' records (`gguf_names`,
# `gguf_fused`); types are those of prepare_tensors in conversion/base.py, llama.cpp @ 0c1e570

_F32, _F16 = by_name("F32"), by_name("F16")

Names = Mapping[TensorRole, Sequence[str]]


@cache
def _tensor_names() -> Mapping[str, Mapping[str, Names]]:
    """gguf_tensor_names.json: by part (outside, layer, the cell of a recurrence), then by kind of tensor."""
    file = "gguf_tensor_names.json"
    try:
        return {
            record["part"]: {
                kind: {TensorRole[role.upper()]: listed for role, listed in names.items()}
                for kind, names in record.items()
                if kind != "part"
            }
            for record in load_records("edgekit.engines.llamacpp", file)
        }
    except (KeyError, AttributeError) as error:
        raise damaged(f"{file}: {error}") from error


# Names of a layer's norms of hidden width, by their number.
_HIDDEN_NORMS = {
    1: ["attn_norm"],
    2: ["attn_norm", "ffn_norm"],
    3: ["attn_norm", "ffn_norm", "ffn_norm_exps"],
    4: ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"],
    7: [
        "attn_norm",
        "post_attention_norm",
        "ffn_norm",
        "post_ffw_norm",
        "post_ffw_norm_1",
        "pre_ffw_norm_2",
        "post_ffw_norm_2",
    ],
}
_FEEDS = frozenset({TensorRole.DOWN, TensorRole.EXPERT_DOWN})
_PREDICTION_NORMS = ["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"]
_ROUTER_SCALES = ["ffn_gate_inp.scale", "ffn_down_exps.scale", "layer_output_scale.weight"]
_HYPER_ARRAYS = [f"hc_{part}_{what}.weight" for part in ("attn", "ffn") for what in ("fn", "scale")]
_HYPER_BIASES = ["hc_attn_base.weight", "hc_ffn_base.weight"]
_HYPER = (Streams.HYPER, Streams.HYPER_SUMMED, Streams.HYPER_GATED)
_LOW_RANK = [f"hc_{part}_{what}" for part in ("attn", "ffn") for what in ("down", "up")]
_LOW_RANK_NORMS = ["hc_attn_norm", "hc_ffn_norm"]
_INJECTIONS = ["hc_attn_inject.weight", "hc_ffn_inject.weight"]
_OUTER_LOW_RANK = ["output_hc_down", "output_hc_up"]
NGRAM_TABLE = "per_layer_token_embd.weight"  # outside the blocks, although one layer reads it
_STEP_NORMS = ["ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"]

_AS_MATRIX = frozenset({TensorKind.LINEAR, TensorKind.EXPERT, TensorKind.EMBEDDING})
_AT_F32 = frozenset(
    {TensorRole.ROUTER, TensorRole.POSITION, TensorRole.SEGMENT, TensorRole.INDEX_WEIGHTS}
)
# conversion/minimax.py
_NAMES_AT_F32 = frozenset({"indexer.q_proj.weight", "indexer.k_proj.weight"})
# Matrices that some architectures store fused.
_FUSED = (
    (("attn_q", "attn_k", "attn_v"), "attn_qkv"),
    (("ffn_gate", "ffn_up"), "ffn_up"),
    (("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps"),
)
# Not a real key: the number of rope tables, if inferred from the tensor count.
ROPE_TABLES = "edgekit rope tables"
_ROPE_TABLES = {1: ("rope_freqs",), 2: ("rope_factors_long", "rope_factors_short")}
_TABLES_BY_ROPE = {"llama3": 1, "longrope": 2, "proportional": 1, "su": 2}


def gguf_tensors(
    geometry: ModelGeometry, config: Mapping[str, Any] | None = None
) -> tuple[GgufTensor, ...]:
    """The tensors that the converter would write at F16, including multi-token prediction blocks."""
    return tuple(
        tensor
        if block is None
        else GgufTensor(name=f"blk.{block}.{tensor.name}", shape=tensor.shape, type=tensor.type)
        for block, tensors in _blocks(geometry, config)
        for tensor in tensors
    )


def gguf_tensor_count(geometry: ModelGeometry, config: Mapping[str, Any] | None = None) -> int:
    """The number of tensors that the converter would write."""
    return sum(len(tensors) for _, tensors in _blocks(geometry, config))


def _blocks(
    geometry: ModelGeometry, config: Mapping[str, Any] | None
) -> Iterator[tuple[int | None, Sequence[GgufTensor]]]:
    """Each block with its tensors, and None with those outside the blocks. Equal layers are computed once."""
    name, section = geometry.architecture, text_section(config or {})
    recipe = tensor_recipe(name)
    yield None, _convert_tensors(outer_tensors(geometry, config), None, name, recipe)
    # Rope frequency factors: one table for Llama 3, two for LongRoPE.
    count = section.get(ROPE_TABLES)
    if not isinstance(count, int):
        count = _TABLES_BY_ROPE.get("" if geometry.rope is None else geometry.rope.type, 0)
    if tables := _ROPE_TABLES.get(count, ()):
        factors = (rotary_dim(geometry, section) // 2,)
        yield (
            None,
            [GgufTensor(name=f"{stem}.weight", shape=factors, type=_F32) for stem in tables],
        )
    laid_out: dict[object, Sequence[GgufTensor]] = {}
    for layer in geometry.layers[: len(geometry.layers) // geometry.loops]:
        hashed = recipe.streams is Streams.HYPER and chooses_by_token(section, layer.index)
        key = (layer.mixer, layer.dense, layer.experts, layer.index == 0, hashed)
        if key not in laid_out:
            laid_out[key] = _convert_tensors(
                layer_tensors(layer, geometry, config), layer.mixer, name, recipe
            )
            if hashed:  # DeepSeek-V4: the experts of every token in the first layers
                used = layer.experts.used if layer.experts is not None else 0
                shape = (geometry.vocabulary or 0, used)
                table = GgufTensor(name="ffn_gate_tid2eid.weight", shape=shape, type=by_name("I32"))
                laid_out[key] = (*laid_out[key], table)
        ngrams = [tensor for tensor in laid_out[key] if tensor.name == NGRAM_TABLE]
        if ngrams:
            yield None, ngrams
        yield layer.index, [tensor for tensor in laid_out[key] if tensor.name != NGRAM_TABLE]
    left_out = conversion_of(name).drops_prediction or known_architecture(name).dense_prediction
    if geometry.mtp_layers and not left_out:
        expected = prediction_tensors(replace(geometry, mtp_layers=1), config)
        tensors = _convert_tensors(expected, geometry.layers[-1].mixer, name, recipe)
        for block in range(len(geometry.layers), len(geometry.layers) + geometry.mtp_layers):
            yield block, tensors


def rotary_dim(geometry: ModelGeometry, section: Mapping[str, Any]) -> int:
    """Rotated dimensions of a head in a layer with full attention."""
    stated = section.get("rotary_dim")
    if isinstance(stated, int) and 0 < stated <= MAX_NUMBER:
        return stated
    attentions = [attention_of(layer.mixer) for layer in geometry.layers]
    for attention in attentions:
        if isinstance(attention, LatentAttention):
            return attention.rope_dim
    width = max((attention.key_dim for attention in attentions if attention), default=0)
    share = section.get("partial_rotary_factor")
    if share is None:
        share = dig(section, "rope_parameters.partial_rotary_factor")
    return int(width * share) if isinstance(share, (int, float)) and 0 < share <= 1 else width


def _convert_tensors(
    tensors: Sequence[ExpectedTensor],
    kind: LayerKind | None,
    architecture: str,
    recipe: TensorRecipe,
) -> Sequence[GgufTensor]:
    """The tensors of a layer as the GGUF has them. `kind`: None for tensors outside the layers."""
    naming = _Naming(_outer_names(recipe) if kind is None else _layer_names(recipe, tensors, kind))
    converted: list[GgufTensor] = []
    for tensor in tensors:
        name = naming.name(tensor)
        stem, dot, ending = name.rpartition(".")  # gguf_names: full names, or names without ending
        name = recipe.gguf_names.get(name, recipe.gguf_names.get(stem, stem) + dot + ending)
        if not name:
            continue
        for part, shape in _file_shapes(tensor, name, kind, architecture):
            at_f32 = tensor.role in _AT_F32 or part in _NAMES_AT_F32
            is_matrix = tensor.kind in _AS_MATRIX and len(shape) > 1
            type_ = _F16 if is_matrix and not at_f32 else _F32
            converted.append(GgufTensor(name=part, shape=shape, type=type_))
    for parts, fused_name in _FUSED:
        if fused_name in recipe.gguf_fused:
            converted = _fuse(converted, parts, fused_name)
    return converted


def _outer_names(recipe: TensorRecipe) -> Mapping[str, Names]:
    """The names of tensors outside the layers, by kind of tensor and role."""
    names = _tensor_names()["outside"]
    if recipe.streams is Streams.HYPER_LOW_RANK:
        matrices = {**names["matrices"], TensorRole.RESIDUAL: _OUTER_LOW_RANK}
        norms = {**names["norms"], TensorRole.RESIDUAL: ["output_hc_norm"]}
        return {**names, "matrices": matrices, "norms": norms}
    if not recipe.embedding_norm:
        return names
    norms = {**names["norms"], TensorRole.NORM: ["token_embd_norm", "output_norm"]}
    return {**names, "norms": norms}


def _layer_names(
    recipe: TensorRecipe, tensors: Sequence[ExpectedTensor], kind: LayerKind
) -> Mapping[str, Names]:
    """The names of a layer's tensors, by kind of tensor and role."""
    recurrent = _recurrence(kind)
    names = _tensor_names()
    cell = "" if recurrent is None else recurrent.cell.name.lower()
    cell_names = names[cell]["names"] if cell in names else {}
    layer = names["layer"]
    matrices = {**layer["matrices"], **cell_names}
    norms, biases = {**layer["norms"]}, {**layer["biases"]}
    arrays = {**layer["arrays"], **cell_names}
    roles = {tensor.role for tensor in tensors}
    count = sum(
        tensor.kind is TensorKind.NORM and tensor.role is TensorRole.NORM for tensor in tensors
    )
    if TensorRole.PREDICTION in roles:
        count -= len(_PREDICTION_NORMS)
    if count == 1 and recipe.norms > 1 and roles & _FEEDS:
        hidden_norms = ["ffn_norm"]  # a layer that only feeds forward
    else:
        hidden_norms = _HIDDEN_NORMS.get(count, ["norm"] * count)
    norms[TensorRole.NORM] = [*hidden_norms, *_PREDICTION_NORMS]
    if recurrent is not None and recurrent.cell is Cell.LIGHTNING:
        norms[TensorRole.STATE_NORM] = ["attn_norm_2"]
    if recipe.step_norms:
        norms[TensorRole.STATE_NORM] = _STEP_NORMS
    if recipe.router_scales and TensorRole.ROUTER in roles:
        arrays[TensorRole.SCALE] = _ROUTER_SCALES
    if recipe.streams in _HYPER:
        arrays[TensorRole.RESIDUAL], biases[TensorRole.RESIDUAL] = _HYPER_ARRAYS, _HYPER_BIASES
    if recipe.streams is Streams.HYPER_LOW_RANK:
        matrices[TensorRole.RESIDUAL], norms[TensorRole.RESIDUAL] = _LOW_RANK, _LOW_RANK_NORMS
        arrays[TensorRole.RESIDUAL] = _INJECTIONS
    is_kimi = recurrent is not None and recurrent.cell is Cell.KIMI_DELTA
    if is_kimi and TensorRole.STATE_LOW in roles:  # Kimi K3: only the output gate is of full rank
        matrices[TensorRole.STATE_GATE] = ["ssm_g"]
    return {"matrices": matrices, "norms": norms, "arrays": arrays, "biases": biases}


class _Naming:
    """Names the tensors of a layer one after another. A role that occurs several times has a list of names."""

    def __init__(self, names: Mapping[str, Names]) -> None:
        self.names = names
        self.counts = Counter[tuple[str, TensorRole]]()
        self.latest: dict[TensorRole, str] = {}

    def name(self, tensor: ExpectedTensor) -> str:
        """The name of the next tensor. A bias is named after the latest matrix of its role."""
        role = tensor.role
        if tensor.kind is TensorKind.BIAS:
            if role in self.names["biases"]:
                return self._next("biases", role)
            latest = self.latest.get(role) or self._next("matrices", role)
            return latest.removesuffix(".weight") + ".bias"
        if tensor.kind is TensorKind.NORM:
            name = self._next("norms", role) + ".weight"
        elif tensor.kind in _AS_MATRIX:
            name = self._next("matrices", role) + ".weight"
        else:
            name = self._next("arrays", role)
        self.latest[role] = name
        return name

    def _next(self, kind: str, role: TensorRole) -> str:
        """The next name; the role itself if llama.cpp has no name for the tensor."""
        place, names = self.counts[kind, role], self.names[kind].get(role, ())
        self.counts[kind, role] += 1
        return names[place] if place < len(names) else f"{role.name.lower()}_{place}"


def _file_shapes(
    tensor: ExpectedTensor, name: str, kind: LayerKind | None, architecture: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape of a tensor in the file; several of them if llama.cpp splits the tensor."""
    shape = tensor.shape
    if tensor.kind is TensorKind.EXPERT or tensor.count > 1:
        shape = (tensor.count, *shape)
    if tensor.role is TensorRole.LATENT_UP and isinstance(kind, LatentAttention):
        if known_architecture(architecture).full_heads or not kind.absorbed:
            yield "attn_kv_b.weight", shape
        else:
            plain = kind.key_dim - kind.rope_dim
            yield "attn_k_b.weight", (kind.heads, kind.latent_dim, plain)
            yield "attn_v_b.weight", (kind.heads, kind.value_dim, kind.latent_dim)
        return
    if len(shape) == 2 and shape[0] == 1:
        shape = shape[1:]  # a matrix of one row is a vector
    recurrent = _recurrence(kind)
    if recurrent is not None:
        shape = _state_shape(tensor, shape, recurrent)
    if tensor.role is TensorRole.OUTPUT_DOWN and isinstance(kind, CompressedAttention):
        groups = kind.heads * kind.key_dim // shape[1]
        shape = (groups, shape[0] // groups, shape[1])
    stem, dot, ending = name.rpartition(".")
    parts = stem.split("+")
    if len(parts) == 1:
        yield name, shape
        return
    axis = next(index for index, length in enumerate(shape) if length > 1)
    part_shape = (*shape[:axis], shape[axis] // len(parts), *shape[axis + 1 :])
    yield from ((part + dot + ending, part_shape) for part in parts)


def _state_shape(
    tensor: ExpectedTensor, shape: tuple[int, ...], kind: Recurrent
) -> tuple[int, ...]:
    """The shape that a recurrent layer's tensor has in the file: Mamba-2 writes vectors as one column and its norm by
    groups; Kimi writes four dimensions.
    """
    if kind.cell is Cell.MAMBA2 and kind.groups:
        if tensor.role in {TensorRole.STATE_A, TensorRole.STATE_D}:
            return (*shape, 1)
        if tensor.role is TensorRole.STATE_NORM:
            return (kind.groups, shape[0] // kind.groups)
    if kind.cell is Cell.KIMI_DELTA:
        if tensor.role is TensorRole.STATE_A:
            return (1, 1, *shape, 1)
        if tensor.role is TensorRole.CONV:
            return (1, shape[0], 1, shape[1])
    return shape


def _fuse(tensors: Sequence[GgufTensor], parts: Sequence[str], fused_name: str) -> list[GgufTensor]:
    """The tensors with the matrices named in `parts` joined row by row into one, and their biases too."""
    fused: list[GgufTensor] = []
    for ending in (".weight", ".bias"):
        names = {part + ending for part in parts}
        matrices = [tensor for tensor in tensors if tensor.name in names]
        if matrices:
            first_matrix = matrices[0]
            axis = 0 if len(first_matrix.shape) < 3 else 1  # experts come first
            rows = sum(tensor.shape[axis] for tensor in matrices)
            shape = (*first_matrix.shape[:axis], rows, *first_matrix.shape[axis + 1 :])
            fused.append(GgufTensor(name=fused_name + ending, shape=shape, type=first_matrix.type))
            tensors = [tensor for tensor in tensors if tensor.name not in names]
    return [*tensors, *fused]


def _recurrence(kind: LayerKind | None) -> Recurrent | None:
    """The recurrent part of a layer; None if it has none."""
    if isinstance(kind, HybridLayer):
        return kind.recurrent
    return kind if isinstance(kind, Recurrent) else None
