"""Opens a model by its reference: reads the header, and builds the geometry by the rules in architectures.json."""

from __future__ import annotations

import enum
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from edgekit.errors import (
    HeaderError,
    HeaderLimitError,
    PrivateAddressError,
    RemoteInspectError,
    UnknownArchitectureError,
    UsageError,
)
from edgekit.formats import open_header, read_header
from edgekit.formats.types import Depth, ModelHeader, Tensor
from edgekit.model.architectures import STANDARD, Architecture, architecture_of, section_by_name
from edgekit.model.hyperparameters import (
    MAX_LAYERS,
    MAX_NUMBER,
    TOWER_HIDDEN,
    TOWER_LAYERS,
    TOWER_SECTIONS,
    Hyper,
)
from edgekit.model.layers import LayerType, Types, feed_forwards
from edgekit.model.mixers import encoder
from edgekit.model.types import (
    Attention,
    HybridLayer,
    Layer,
    LayerKind,
    Model,
    ModelGeometry,
    NoCache,
    Rope,
    SharedCache,
    Span,
    Tower,
)
from edgekit.sources.types import Container, ModelFiles, Reach
from edgekit.units import Basis

if TYPE_CHECKING:
    from edgekit.sources.download import Download


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A model and its source."""

    label: str
    model: Model = field(repr=False)
    files: ModelFiles | None = field(default=None, repr=False)  # None: from a config or the catalog
    repository: str = ""  # on the hub, of a model without files
    mix: str = ""  # the quantisation that was chosen for a model without files
    # Opens the model with its tensors; None if the tensors were already read or the model has none.
    whole: Callable[[], OpenModel] | None = field(default=None, repr=False, compare=False)


def open_model(
    reference: str | os.PathLike[str],
    *,
    depth: Depth = Depth.TENSORS,
    reach: Reach | None = None,
    confirm: Callable[[Download], bool] | None = None,
) -> OpenModel:
    """Reads the header of a path, hub id, URL or name. Raises EdgekitError; never reads weights.

    A hub model that cannot be read by ranges is downloaded first, if `confirm` allows it. If reading timed out, listing
    the files to download gets at least LISTING_TIMEOUT_S more.
    """
    reach = reach or Reach()
    deadline = time.monotonic() + reach.total_timeout_s
    try:
        try:
            opened = _open(*open_header(reference, depth=depth, reach=reach))
        except (HeaderError, UnknownArchitectureError):
            if depth is Depth.TENSORS:
                raise
            opened = _open(*open_header(reference, reach=reach))  # the first range was not enough
    except PrivateAddressError:
        raise  # a download would contact the same address
    except RemoteInspectError as error:
        from edgekit.sources.download import LISTING_TIMEOUT_S, download_model

        left_s = max(deadline - time.monotonic(), LISTING_TIMEOUT_S)
        rest = replace(reach, total_timeout_s=left_s)
        fetched = download_model(os.fspath(reference), error, reach=rest, confirm=confirm)
        return _open(fetched, read_header(fetched))
    files, header = opened.files, opened.model.header
    if files is None or header.tensors is not None or depth is not Depth.ARCHITECTURE:
        return opened
    if not files.origin.is_remote or not files.weights:
        return opened

    @cache
    def whole() -> OpenModel:
        """Reads the rest of the header, or all of it again if the server does not allow ranges."""
        try:
            return _open(files, read_header(files))
        except PrivateAddressError:
            raise
        except RemoteInspectError:
            return open_model(reference, reach=reach, confirm=confirm)

    return replace(opened, whole=whole)


def _open(files: ModelFiles, header: ModelHeader) -> OpenModel:
    """The model of a header that was read from these files."""
    return OpenModel(label=files.label, model=_language_model(header), files=files)


def open_config(config: Mapping[str, object], *, label: str = "config.json") -> OpenModel:
    """A model from a config.json that was already read."""
    from edgekit.formats.quantization import read_quantization

    header = ModelHeader(
        name=label,
        container=Container.CONFIG,
        config=config,
        quantization=read_quantization(config),
    )
    return OpenModel(label=label, model=_language_model(header))


def _language_model(header: ModelHeader) -> Model:
    """The model of this header. Raises UsageError if it is not a language model."""
    other = not_a_language_model(header)
    if other is not None:
        raise UsageError(
            f"{header.name} is {other}; memory can only be estimated for a language model"
        )
    return Model(header=header, geometry=read_geometry(header))


# -- the geometry ---------------------------------------------------------------------------------

# Hyper-parameters of layers that cannot be read without a record in architectures.json.
_HINTS = (
    "conv_kernel",
    "state_size",
    "kda_head_dim",
    "compress_ratios",
    "window_latent_dim",
    "loop_window",
)
_POOLING = ("none", "mean", "cls", "last", "rank")  # llama.h LLAMA_POOLING_TYPE_*

# Rope types that do not extend the stated context, because it is already the extended one.
_UNSCALED = frozenset(
    {"llama3", "su", "longrope", "mrope", "default", "none", "proportional", "gptj", "xdrope"}
)


def not_a_language_model(header: ModelHeader) -> str | None:
    """A phrase for what the file is instead of a language model; None if it may be one."""
    if header.keys.get("general.type") == "adapter":
        return "a LoRA adapter: it changes a base model and does not run alone"
    if header.config.get("is_encoder_decoder") is True:
        return "an encoder-decoder model: its cross-attention cache is not modelled"
    name = header.keys.get("general.architecture") or header.config.get("model_type")
    return section_by_name("not_a_language_model").get(name) if isinstance(name, str) else None


def read_geometry(header: ModelHeader) -> ModelGeometry:
    """The layers and widths of a model. Unknown architectures are read by standard keys and marked ASSUMED."""
    hyper = Hyper(header)
    record = architecture_of(hyper.architecture, gguf=hyper.gguf)
    architecture = record or STANDARD
    hyper.defaults = architecture.defaults(nested=hyper.nested)
    mtp_layers = hyper.number("mtp_layers") or 0
    stored, loops = architecture.rounds(hyper, _layer_count(hyper, mtp_layers))
    types = architecture.arrange(hyper, stored * architecture.sublayers)
    vocabulary = _vocabulary(hyper)
    if record is None:
        if LayerType.RECURRENT in types or any(hyper.raw(name) is not None for name in _HINTS):
            raise _unknown_layers(hyper)
        if vocabulary is None and not hyper.gguf:
            raise hyper.missing("vocabulary")
    rope = _read_rope(hyper)
    trained = hyper.number("context")
    usable = None if trained is None else max(trained - architecture.unused_positions, 0) or None
    layers = _layers(hyper, architecture, types, loops)
    causal = hyper.flag("causal")
    if causal is None:
        causal = architecture.attend is not encoder and not _is_embedder(hyper)
    is_yarn = rope is not None and rope.type == "yarn"
    pooling = hyper.number("pooling")
    basis, because = _basis(hyper, record)  # after the layers, which record the defaults they used
    return ModelGeometry(
        architecture=hyper.architecture,
        layers=layers,
        hidden=hyper.need("hidden"),
        vocabulary=vocabulary,
        trained_context=trained,
        native_context=native_context(
            usable, rope, scaled=architecture.context_is_scaled or (hyper.gguf and not is_yarn)
        ),
        rope=rope,
        loops=loops,
        per_layer_embedding=hyper.number("per_layer_embedding") or 0,
        mtp_layers=mtp_layers,
        tied_embeddings=_tied_embeddings(hyper, record),
        causal=causal,
        pooling=_POOLING[pooling] if pooling is not None and pooling < len(_POOLING) else None,
        towers=towers_of(header),
        basis=basis,
        because=because,
    )


# -- layers


def _layer_count(hyper: Hyper, mtp_layers: int) -> int:
    """The number of layers without MTP blocks: as stated, else the length of the file's list of layers."""
    stated = hyper.number("layers")
    if stated is None:  # Nemotron 3 Ultra
        is_cycle = hyper.named("layer_types") == "block_types"  # RecurrentGemma repeats it
        listed = (None if is_cycle else hyper.items("layer_types")) or hyper.text("pattern_text")
        if not listed or len(listed) > MAX_LAYERS:
            raise hyper.missing("layers")
        stated = len(listed)
    if stated + mtp_layers > MAX_LAYERS:
        raise HeaderLimitError(
            f"{hyper.named('layers')} with {hyper.named('mtp_layers')}",
            value=stated + mtp_layers,
            limit=MAX_LAYERS,
            file=hyper.header.name,
        )
    # A GGUF counts MTP blocks, a config.json does not. llama.cpp subtracts them from block_count even if the file does
    # not have them (n_layer, llama-hparams.cpp @ 0c1e570).
    count = stated - mtp_layers if hyper.gguf else stated
    if count < 1:
        raise HeaderError(
            f"{count} layers are left after {mtp_layers} for token prediction (MTP)",
            file=hyper.header.name,
        )
    return count


def _layers(
    hyper: Hyper, architecture: Architecture, types: Types, loops: int
) -> tuple[Layer, ...]:
    """The layers of all rounds: a looped model runs its layers several times, with a cache for every round."""
    mixers = _with_shared_caches(hyper, architecture, _mixers(hyper, architecture, types))
    if _is_embedder(hyper):
        mixers = tuple(
            NoCache(attention=mixer) if isinstance(mixer, Attention) else mixer for mixer in mixers
        )
    stated_pairs = feed_forwards(
        hyper,
        types,
        gated=architecture.gated or "glu" in (hyper.text("ffn_kind") or ""),
        dense_and_experts=architecture.dense_and_experts or bool(hyper.flag("dense_and_experts")),
        alternating=architecture.alternating,
        width=architecture.width,
    )
    pairs = [architecture.adjust(hyper, pair) for pair in stated_pairs]
    if architecture.feeds_with_attention:
        pairs = [
            (None, None) if kind is LayerType.RECURRENT else pair
            for kind, pair in zip(types, pairs, strict=True)
        ]
    window = hyper.number("loop_window") or 0
    count = len(mixers) * loops
    if count > MAX_LAYERS:
        raise HeaderLimitError(
            hyper.spelled("loops"), value=count, limit=MAX_LAYERS, file=hyper.header.name
        )
    layers = []
    for i in range(count):
        mixer = mixers[i % len(mixers)]
        dense, experts = pairs[i % len(mixers)]
        if i >= len(mixers) and window and isinstance(mixer, Attention):
            # IQuest's second round attends to a short window, and to the first round's cache.
            mixer = replace(mixer, span=Span.WINDOW, span_tokens=window)
        layers.append(Layer(index=i, mixer=mixer, dense=dense, experts=experts))
    return tuple(layers)


_WITH_BOTH = (LayerType.BOTH, LayerType.BOTH_WINDOW)


def _mixers(hyper: Hyper, architecture: Architecture, types: Types) -> tuple[LayerKind, ...]:
    """The attention or recurrence of each layer, by its type."""
    without_attention = {LayerType.RECURRENT, LayerType.NONE, LayerType.EXPERTS}
    has_attention = not without_attention.issuperset(types)
    attentions = architecture.attend(hyper, types) if has_attention else (None,) * len(types)
    recurrent = None
    pairs = tuple(zip(types, attentions, strict=True))
    if any(
        kind is LayerType.RECURRENT
        or (kind in _WITH_BOTH and not isinstance(attention, HybridLayer))
        for kind, attention in pairs
    ):
        if architecture.recur is None:
            raise _unknown_layers(hyper)
        recurrent = architecture.recur(hyper)
    mixers: list[LayerKind] = []
    for kind, attention in pairs:
        if kind is LayerType.RECURRENT and recurrent is not None:
            mixers.append(attention or recurrent)
        elif kind in _WITH_BOTH and not isinstance(attention, HybridLayer):
            if recurrent is None or not isinstance(attention, Attention):
                raise _unknown_layers(hyper)
            mixers.append(HybridLayer(attention=attention, recurrent=recurrent))
        else:
            mixers.append(attention or NoCache())
    return tuple(mixers)


def _with_shared_caches(
    hyper: Hyper, architecture: Architecture, mixers: tuple[LayerKind, ...]
) -> tuple[LayerKind, ...]:
    """Replaces attention that reads another layer's cache.

    Hunyuan: the first of every `share_factor` layers has a cache, which the others read. Gemma 3n and 4: the last
    layers read the cache of the last layer of their kind that has one.
    """
    factor = hyper.number("share_factor") if hyper.flag("share_caches") else None
    sources: dict[int, int] = {}  # layer -> the layer whose cache it reads
    if factor is not None and factor > 1:
        sources = {i: i - i % factor for i in range(len(mixers)) if i % factor}
    else:
        borrowers = hyper.number("shared_cache_layers") or 0
        if architecture.cache_owners:
            borrowers = max(len(mixers) - architecture.cache_owners, 0)
        owners = len(mixers) - borrowers
        if owners < 1:
            raise HeaderError(
                "every layer shares another layer's KV cache, and none has its own",
                file=hyper.header.name,
            )
        last_owner = {mixer.label: i for i, mixer in enumerate(mixers[:owners])}
        for i in range(owners, len(mixers)):
            if mixers[i].label in last_owner:
                sources[i] = last_owner[mixers[i].label]
    return tuple(
        SharedCache(attention=mixer, source_layer=sources[i])
        if i in sources and isinstance(mixer, Attention)
        else mixer
        for i, mixer in enumerate(mixers)
    )


def _is_embedder(hyper: Hyper) -> bool:
    """Whether it is a decoder turned into an encoder, which has no cache. A model with a tower still generates text."""
    return hyper.raw("bidirectional") is True and not hyper.nested


def _unknown_layers(hyper: Hyper) -> UnknownArchitectureError:
    return UnknownArchitectureError(
        f"{hyper.header.name}: unknown architecture: {hyper.architecture!r} has a kind of "
        "layer that edgekit does not know yet; upgrade edgekit, or add a record to "
        "model/architectures.json"
    )


def _basis(hyper: Hyper, record: Architecture | None) -> tuple[Basis, str]:
    """The basis of the geometry, and why it is not EXACT."""
    if record is None:
        return Basis.ASSUMED, (
            f"unknown architecture {hyper.architecture!r}: read by its standard keys (no "
            "record in model/architectures.json)"
        )
    if hyper.gguf and hyper.number("mtp_layers") and hyper.header.tensors is None:
        return Basis.MODELLED, (
            "not checked whether the file includes the layers for token prediction "
            "(MTP): the layer count may be off by one"
        )
    defaulted = sorted(hyper.defaulted - record.constants.keys())
    if defaulted and not hyper.gguf:
        return Basis.MODELLED, (
            f"config.json does not state {', '.join(defaulted)}: used the library's "
            f"defaults for {hyper.architecture}"
        )
    return Basis.EXACT, ""


# -- outside the layers


def _vocabulary(hyper: Hyper) -> int | None:
    """The number of tokens: of the tokenizer, else as stated, else the rows of the embedding."""
    tokens = hyper.header.arrays.get("tokenizer.ggml.tokens")
    if tokens is not None and tokens.count:
        return tokens.count
    if (stated := hyper.number("vocabulary")) is not None:
        return stated
    for tensor in hyper.header.tensors or ():
        if tensor.name == "token_embd.weight":
            return tensor.shape[0] if tensor.shape else None
    return None


def _tied_embeddings(hyper: Hyper, record: Architecture | None) -> bool | None:
    """From config.json, else from the absence of an output head, else the architecture's default."""
    stated = hyper.header.config.get("tie_word_embeddings")
    if not isinstance(stated, bool):
        stated = hyper.raw("tied")
    if isinstance(stated, bool):
        return stated
    if hyper.header.tensors:
        return not has_output_head(hyper.header.tensors)
    return None if record is None or hyper.gguf else record.tied_by_default


def towers_of(header: ModelHeader) -> tuple[Tower, ...]:
    """The encoders of images and sound, from sections of a config.json or the keys of an mmproj GGUF."""
    thinker = header.config.get("thinker_config")
    configs = (header.config, thinker) if isinstance(thinker, Mapping) else (header.config,)
    towers: dict[str, Tower] = {}
    for config in configs:
        for section, kind in TOWER_SECTIONS:
            part = config.get(section)
            if isinstance(part, Mapping) and part:
                towers.setdefault(kind, _tower(kind, part, TOWER_LAYERS, TOWER_HIDDEN))
    for kind in ("vision", "audio"):
        prefix = f"clip.{kind}."
        part = {
            key.removeprefix(prefix): value
            for key, value in header.keys.items()
            if key.startswith(prefix)
        }
        if part:
            towers[kind] = _tower(kind, part, ("block_count",), ("embedding_length",))
    return tuple(towers.values())


def _tower(
    kind: str, part: Mapping[str, object], layers: tuple[str, ...], hidden: tuple[str, ...]
) -> Tower:
    """The encoder that this section describes; sizes under unknown keys are None."""

    def first_size(spellings: tuple[str, ...]) -> int | None:
        values = (part.get(spelling) for spelling in spellings)
        sizes = (value for value in values if type(value) is int and 0 < value <= MAX_NUMBER)
        return next(sizes, None)

    return Tower(kind=kind, layers=first_size(layers), hidden=first_size(hidden))


def _read_rope(hyper: Hyper) -> Rope | None:
    """The rope scaling of a GGUF or config.json; None if the file has none."""
    if hyper.gguf:
        kind, factor = hyper.text("rope_type"), hyper.ratio("rope_factor")
        original = hyper.number("rope_original")
        # llama.cpp treats a missing type as "linear" and a missing factor as no scaling.
        if kind in {None, "none"} and factor in {None, 0.0, 1.0} and original is None:
            return None
        return Rope(type=kind or "linear", factor=factor, original_context=original)
    scaling = hyper.raw("rope_scaling")
    if isinstance(scaling, Mapping) and isinstance(scaling.get("full_attention"), Mapping):
        scaling = scaling["full_attention"]  # an entry per layer type
    if not isinstance(scaling, Mapping):
        return None
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if not isinstance(kind, str) or kind == "default":
        return None
    original = scaling.get("original_max_position_embeddings")
    if type(original) is not int or not 0 < original < 2**31:
        original = hyper.number("rope_original")
    factor = scaling.get("factor")
    if factor is not None:
        factor = hyper.real("the rope scaling's factor", factor)
    return Rope(type=kind, factor=factor, original_context=original)


def native_context(trained: int | None, rope: Rope | None, *, scaled: bool) -> int | None:
    """The context length after rope scaling. `scaled`: the stated length already includes it."""
    if trained is None or scaled or rope is None or rope.type in _UNSCALED:
        return trained
    factor = rope.factor
    if factor is None or not 1 <= factor <= 1e6:
        return trained
    if rope.type in {"yarn", "deepseek_yarn"} and rope.original_context:
        return max(trained, int(rope.original_context * factor))
    return int(trained * factor)


# -- the role of a tensor, by its name in a GGUF or in safetensors ---------------------------------


class Role(enum.Enum):
    EMBEDDING = "embedding"
    OUTPUT = "output head"
    ATTENTION = "attention"
    FEED_FORWARD = "feed-forward"
    EXPERTS = "experts"
    ROUTER = "router"
    RECURRENT = "recurrence"
    NORM = "norms"
    MTP = "token prediction (MTP)"
    TOWER = "vision and audio"
    OTHER = "other"


# '#' matches any number: digits are replaced before names are matched. The first row that matches counts.
_PATTERNS = (
    (Role.MTP, r"\.nextn\.|(^|\.)mtp[._]|(^|\.)eh_proj"),
    (Role.TOWER, r"^(v|a|mm|vpm|apm)\.|visual|vision|image_newline|audio|multi_modal_projector|mm_projector|vit\."),
    (Role.TOWER, r"^(model\.)?(talker|token2wav|sam_model|mlp1|connector|patch_merger)\b|aligner|resampler"),
    (Role.EXPERTS, r"_(ch)?exps\b|\.experts\.|experts\.#|\.experts_|switch_mlp|switch_glu|\.moe\.(gate|up|down)_proj"),
    (Role.EXPERTS, r"ffn_(gate|up|down)\.#\.|block_sparse_moe\.(in|out)put_linear|\.experts$"),
    (Role.ROUTER, r"ffn_gate_inp|\.router\b|\.gate\.(weight|wg|e_score)|block_sparse_moe\.gate|mlp\.gate\.|exp_probs"),
    (Role.ROUTER, r"e_score_correction|shared_expert_gate|expert_bias"),
    (Role.EMBEDDING, r"^(token_embd|position_embd|token_types|per_layer_token_embd|per_layer_model_proj)|embed_tokens"),
    (Role.EMBEDDING, r"word_embeddings|\bwte\b|\bwpe\b|tok_embeddings|embed_in|position_embeddings"),
    (Role.EMBEDDING, r"token_type_embeddings|embedding\."),
    (Role.OUTPUT, r"^output\.|lm_head|embed_out|output_layer|^cls\b|^cls\.|^(model\.)?head\.weight"),
    (Role.ATTENTION, r"Wqkv|norm_attn_norm\.attn"),
    (Role.NORM, r"norm|ln_[f#]|layer_norm|\bln\b|LayerNorm"),
    (Role.RECURRENT, r"ssm_|shortconv|time_mix|channel_mix|linear_attn|mamba"),
    (Role.RECURRENT, r"\.mixer\.(A_log|D|dt|conv|in_proj|out_proj|x_proj)|\.conv\.|A_log|dt_bias|rg_lru|kda"),
    (Role.RECURRENT, r"temporal_block"),
    (Role.ATTENTION, r"attn|attention|self_attn|\.wq|\.wk|\.wv|\.wo\b|query_key_value|indexer|\.mixer\.[qkvo]_proj"),
    (Role.FEED_FORWARD, r"ffn_|mlp|feed_forward|shared?_expert|ffn\.|\.fc#|\.w#\.|intermediate\.dense|output\.dense"),
    (Role.FEED_FORWARD, r"dense_h|mixer\.(up|down)_proj|laurel|altup|per_layer"),
)  # fmt: skip
_RULES = tuple((role, re.compile(pattern.replace("#", "#+"))) for role, pattern in _PATTERNS)
_NUMBERS = str.maketrans("0123456789", "#" * 10)
# Every name that matches the pattern of the output head contains one of these.
_HEAD_WORDS = ("head", "output", "embed_out", "cls")
_BLOCK = re.compile(r"(?:^|\.)(?:blk|layers?|h|blocks)\.(\d{1,9})\.")

# A real file has a few hundred names that differ in more than their digits. Names beyond the limit get Role.OTHER.
_MOST_NAMES = 1_024


def roles_of(tensors: Iterable[Tensor], *, layers: int | None = None) -> tuple[Role, ...]:
    """The role of each tensor. Blocks beyond `layers` predict further tokens (MTP)."""
    role_of: dict[str, Role] = {}
    roles = []
    for tensor in tensors:
        name = tensor.name.translate(_NUMBERS)
        role = role_of.get(name)
        if role is None:
            rules = _RULES if len(role_of) < _MOST_NAMES else ()
            role = next((role for role, rule in rules if rule.search(name)), Role.OTHER)
            role_of[name] = role
        if layers is not None and role is not Role.TOWER and name != tensor.name:
            block = block_of(tensor.name)
            role = Role.MTP if block is not None and block >= layers else role
        roles.append(role)
    return tuple(roles)


def block_of(name: str) -> int | None:
    """The index of the layer that a tensor belongs to; None if it is outside the layers."""
    match = _BLOCK.search(name)
    return int(match[1]) if match is not None else None


def has_output_head(tensors: Iterable[Tensor]) -> bool:
    """Whether one of the tensors is an output head."""
    candidates = (tensor for tensor in tensors if any(word in tensor.name for word in _HEAD_WORDS))
    return Role.OUTPUT in roles_of(candidates)
