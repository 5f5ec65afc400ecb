"""The GGUF that a model in another format, or at another mix, would become: its keys and tensors."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from edgekit.engines.llamacpp.architectures import conversion_of, known_architecture
from edgekit.engines.llamacpp.flags import USUAL_MIXES
from edgekit.engines.llamacpp.gguf_tensors import (
    ROPE_TABLES,
    gguf_tensor_count,
    gguf_tensors,
    rotary_dim,
)
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.quantization import (
    WITHIN,
    Converted,
    MixedModel,
    SourceModel,
    directory_tensors,
    facts_of_geometry,
    facts_of_header,
    in_order,
)
from edgekit.errors import HeaderError, RefusedError
from edgekit.formats.mixes import stated_mix
from edgekit.formats.types import GgufTensor, ModelHeader, Tensor, Value
from edgekit.model.hyperparameters import config_keys, dig, text_section
from edgekit.model.tensor_recipes import switches, tensor_recipe
from edgekit.model.types import (
    Attention,
    Cell,
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
    """The mix stated by the file's key or name, unless the file is too small for it; else the nearest by size."""
    size, tag = model.header.file_bytes, quant_tag(model.header.name)
    stated = stated_mix(model.header.keys) or (tag if tag in USUAL_MIXES else None)
    if stated is not None and (size is None or _tensor_bytes(model, stated) <= size * (1 + WITHIN)):
        return stated
    if size is None:
        raise HeaderError(
            "neither the quantisation nor the size of the file is known: read its whole header",
            file=model.header.name,
        )
    # The largest mix that is not larger than the file; the difference becomes a separate line.
    place = bisect_left(USUAL_MIXES, -size, key=lambda name: -_tensor_bytes(model, name))
    return USUAL_MIXES[min(place, len(USUAL_MIXES) - 1)]


def _tensor_bytes(model: Model, mix: str) -> int:
    return mixed_model(_with_head(model, mix), mix).tensor_bytes


def mixed_model(model: Model, mix: str) -> MixedModel:
    """The model at that mix. The input of llama-quantize is computed once for all mixes."""
    source = prepare(model).source_model.get(lambda: source_model(model.header, model.geometry))
    return source.at_mix(mix)


def convert(model: Model, mix: str) -> Converted:
    """Raises RefusedError for a model_type that llama.cpp's converter does not have."""
    name = model.geometry.architecture
    is_gguf = model.header.container is Container.GGUF
    if not is_gguf and conversion_of(name).unsupported:
        raise RefusedError(
            f"llama.cpp's converter does not support {name}, so there is no GGUF of it to run"
        )
    unread = is_gguf and model.header.tensors is None
    if unread:
        model = _with_head(model, mix)
    mixed = mixed_model(model, mix)
    tensors = tuple(
        Tensor(name=one.name, type=one.type, shape=one.shape, size_bytes=one.size_bytes, offset=0)
        for one in mixed.tensors
    )
    geometry = model.geometry if is_gguf else _in_llama_cpp(model.geometry)
    header = replace(
        model.header,
        keys=model.header.keys or gguf_keys(geometry, model.header.config),
        container=Container.GGUF,
        tensors=tensors,
        tensor_count=len(tensors),
        tensor_bytes=sum(tensor.size_bytes for tensor in tensors),
    )
    return Converted(
        model=Model(header=header, geometry=geometry),
        mixed=mixed,
        file_bytes=model.header.file_bytes if unread else None,
    )


def _with_head(model: Model, mix: str) -> Model:
    """Decides by file size whether the output head is a separate matrix: the keys do not state it."""
    if model.geometry.tied_embeddings is not None:
        return model
    apart, tied = prepare(model).apart_and_tied.get(
        lambda: (
            replace(model, geometry=replace(model.geometry, tied_embeddings=False)),
            replace(model, geometry=replace(model.geometry, tied_embeddings=True)),
        )
    )
    size = model.header.file_bytes
    if size is None:
        return apart

    def misfit(one: Model) -> tuple[bool, bool, int]:
        """Sort key: whether the size differs, whether the tensor count differs, and by how many bytes."""
        mixed = mixed_model(one, mix)
        away = abs(size - mixed.tensor_bytes)
        other = len(mixed.tensors) != (model.header.tensor_count or len(mixed.tensors))
        return away > LONGEST_HEADER + size // 200, other, away

    return prepare(model).likely_heads.get(mix, lambda: min((apart, tied), key=misfit))


def _in_llama_cpp(geometry: ModelGeometry) -> ModelGeometry:
    """The geometry as llama.cpp loads it from a config.json."""
    name = geometry.architecture
    conversion, full_heads = conversion_of(name), known_architecture(name).full_heads
    spans: dict[str, Any] = {} if conversion.keeps_windows else {"span": Span.ALL, "span_tokens": 0}

    def changed(kind: LayerKind) -> LayerKind:
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
    return replace(
        geometry,
        architecture="nemotron_h_moe" if name == "nemotron_h" and has_experts else conversion.to,
        layers=tuple(replace(layer, mixer=changed(layer.mixer)) for layer in geometry.layers),
        mtp_layers=0 if conversion.drops_prediction else geometry.mtp_layers,
    )


def source_model(header: ModelHeader, geometry: ModelGeometry) -> SourceModel:
    """From the tensors in a GGUF's header, else from the tensors that its geometry implies. Raises
    UnknownArchitectureError if they cannot be derived.
    """
    if header.keys and header.tensors:
        laid = directory_tensors(header)
        return SourceModel(
            tensors=in_order(laid),
            facts=facts_of_header(header),
            basis=Basis.EXACT,
            because=f"{len(laid):,} tensors, with the types that llama-quantize assigns",
        )
    laid = _counted(geometry, config_keys(header), header.tensor_count if header.keys else None)
    facts = facts_of_geometry(geometry, conversion_of(geometry.architecture).to)
    named = geometry.architecture.replace("{", "{{").replace("}", "}}")
    because = (
        f"{len(laid):,} tensors of a {named} model, with the types that llama-quantize assigns"
    )
    return SourceModel(tensors=in_order(laid), facts=facts, basis=Basis.MODELLED, because=because)


def _counted(
    geometry: ModelGeometry, words: Mapping[str, Any], count: int | None
) -> tuple[GgufTensor, ...]:
    """A GGUF's keys do not state every switch or rope table: the tensor count reveals them. If no two switches explain
    the difference, assumes the tensors that most files of the architecture have.
    """
    first = gguf_tensors(geometry, words)
    if count is None or len(first) == count:
        return first
    usual = switches(tensor_recipe(geometry.architecture))
    bare = replace(geometry, mtp_layers=0)  # a file may lack the prediction blocks
    for one in dict.fromkeys((geometry, bare)):
        for turned in (few for size in range(3) for few in combinations(usual, size)):
            section = {**words, **{word: not words.get(word, usual[word]) for word in turned}}
            left = count - gguf_tensor_count(one, section)
            if left in {0, 1, 2}:
                return gguf_tensors(one, {**section, ROPE_TABLES: left})
    return first


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
    "attention.clamp_kqv": ("clip_qkv", "attn_config.clip_qkv"),
    "attention.indexer.block_size": ("sparse_attention_config.sparse_block_size",),
    "attention.indexer.head_count": (
        "index_n_heads",
        "sparse_attention_config.sparse_num_index_heads",
    ),
    "attention.indexer.top_k": ("index_topk", "sparse_attention_config.sparse_topk_blocks"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.output_group_count": ("o_groups",),
    "attention.output_lora_rank": ("o_lora_rank",),
    "attention.temperature_scale": ("rope_parameters.llama_4_scaling_beta",),
    "embedding_scale": ("embedding_multiplier", "scale_emb"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_norm": ("norm_topk_prob", "route_norm", "norm_expert_weight"),
    "expert_weights_scale": (
        "routed_scaling_factor",
        "route_scale",
        "moe_router_scaling_factor",
        "router_scaling_factor",
    ),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "hash_layer_count": ("num_hash_layers",),
    "hyper_connection.count": ("hc_mult",),
    "logit_scale": ("logit_scale", "logits_scaling", "dim_model_base"),
    "residual_scale": (
        "residual_multiplier",
        "scale_depth",
        "layernorm_full_attention_alpha",
        "full_attn_alpha_factor",
    ),
    "swin_norm": ("swin_norm",),
    "use_parallel_residual": ("use_parallel_residual",),
}


def gguf_keys(geometry: ModelGeometry, config: Mapping[str, Any]) -> dict[str, Value]:
    """The keys by name. `geometry`: as llama.cpp would read it, with the GGUF name of the architecture."""
    section = text_section(config)
    found = {
        **dict(_model_keys(geometry, section)),
        **dict(_attention_keys(geometry)),
        **dict(_layer_keys(geometry, section)),
    }
    name = geometry.architecture
    return {"general.architecture": name, **{f"{name}.{key}": one for key, one in found.items()}}


def _model_keys(geometry: ModelGeometry, section: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    for key, spellings in _STATED.items():
        values = (dig(section, spelling) for spelling in spellings)
        value = next((one for one in values if isinstance(one, (bool, int, float))), None)
        if value is not None:
            yield key, value
    yield "block_count", len(geometry.layers) // geometry.loops + geometry.mtp_layers
    yield "embedding_length", geometry.hidden
    halves = (layer.dense or layer.experts for layer in geometry.layers)
    yield "feed_forward_length", _for_all(0 if half is None else half.width for half in halves)
    yield "embedding_length_per_layer_input", geometry.per_layer_embedding
    yield "rope.dimension_count", rotary_dim(geometry, section)
    if geometry.trained_context is not None:
        yield "context_length", geometry.trained_context
    if "position_embedding_type" in section:  # Granite
        yield "rope.scaling.finetuned", section["position_embedding_type"] == "rope"
    sections = known_architecture(geometry.architecture).rope_sections
    for path in ("rope_parameters.mrope_section", "rope_scaling.mrope_section"):
        stated = dig(section, path)
        if isinstance(stated, list) and all(isinstance(one, int) for one in stated):
            sections = (*stated, 0, 0, 0, 0)[:4]
            break
    if sections:
        yield "rope.dimension_sections", sections


def _attention_keys(geometry: ModelGeometry) -> Iterator[tuple[str, Value]]:
    layers = [attention_of(layer.mixer) for layer in geometry.layers]
    found = [one for one in layers if one is not None]
    if not found:
        yield "attention.head_count", 0
        return
    # One number if all layers with attention agree, else a list with 0 for recurrent layers.
    heads = {one.heads for one in found}
    listed = tuple(0 if one is None else one.heads for one in layers)
    yield "attention.head_count", heads.pop() if len(heads) == 1 else listed
    yield "attention.head_count_kv", _for_all(map(_kv_heads, layers))
    whole = next((one for one in found if one.span is Span.ALL), found[0])
    key, value = whole.key_dim, whole.value_dim
    if isinstance(whole, LatentAttention):
        if whole.absorbed:
            yield "attention.key_length_mla", key
            yield "attention.value_length_mla", value
            key, value = whole.latent_dim + whole.rope_dim, whole.latent_dim
        yield "attention.kv_lora_rank", whole.latent_dim
        yield "attention.q_lora_rank", whole.query_rank
    yield "attention.key_length", key
    yield "attention.value_length", value
    sliding = next((one for one in found if one.span is not Span.ALL), None)
    if isinstance(sliding, Attention):
        yield "attention.key_length_swa", sliding.key_dim
        yield "attention.value_length_swa", sliding.value_dim
    if index_dim := max(one.index_dim for one in found):
        yield "attention.indexer.key_length", index_dim


def _kv_heads(attention: Attention | LatentAttention | None) -> int:
    if isinstance(attention, LatentAttention):
        return 1 if attention.absorbed else attention.heads
    return 0 if attention is None else attention.kv_heads


def _layer_keys(geometry: ModelGeometry, section: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """The keys of experts and of recurrences."""
    first = next((layer for layer in geometry.layers if layer.experts), None)
    if first is not None and first.experts is not None:
        yield "expert_count", first.experts.count
        yield "expert_used_count", first.experts.used
        yield "expert_feed_forward_length", first.experts.width
        yield "leading_dense_block_count", first.index
        stated = next((one for key in _GATING_KEYS if (one := section.get(key))), None)
        if isinstance(stated, str) and stated in _GATING:
            yield "expert_gating_func", _GATING[stated]
        elif tensor_recipe(geometry.architecture).correction.holds(section):
            yield "expert_gating_func", _GATING["sigmoid"]  # routing with a selection bias uses it
    mixers = (layer.mixer for layer in geometry.layers)
    kinds = (one.recurrent if isinstance(one, HybridLayer) else one for one in mixers)
    kind = next((one for one in kinds if isinstance(one, Recurrent)), None)
    if kind is None:
        return
    if kind.cell is Cell.SHORT_CONV:
        yield "shortconv.l_cache", kind.conv_kernel
        return
    if kind.cell is Cell.KIMI_DELTA:
        yield "kda.head_dim", kind.state_size
    yield "ssm.conv_kernel", kind.conv_kernel
    yield "ssm.inner_size", kind.inner
    yield "ssm.state_size", kind.state_size
    yield "ssm.time_step_rank", kind.rank if kind.cell is Cell.MAMBA else kind.heads
    yield "ssm.group_count", kind.groups


def _for_all(numbers: Iterable[int]) -> Value:
    """One number if all are equal, else the list."""
    listed = tuple(numbers)
    return listed[0] if len(set(listed)) == 1 else listed
