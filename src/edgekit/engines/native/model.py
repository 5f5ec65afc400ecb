"""A file's keys and tensor directory -> NativeModel: every number within its limits, every tensor as it must be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from edgekit.engines.native.families import (
    TABLE,
    ModelUse,
    NativeFamily,
    Need,
    TensorRule,
    family_of,
)
from edgekit.engines.native.file import FileHeader
from edgekit.errors import HeaderError, WeightsError, quoted
from edgekit.formats.types import Tensor, Value
from edgekit.model.hyperparameters import MAX_LAYERS, GgufKeys

# Upper limits for the numbers in a file. The comments name the largest value in a real model.
MAX_WIDTH = 65_536  # 16,384 in Llama 3.1 405B
MAX_INNER = 1_048_576  # 53,248
MAX_HEADS = 1_024  # 128
MAX_HEAD_DIM = 1_024  # 256 in Gemma
MAX_CONTEXT_TOKENS = 2**31  # shown and compared; nothing is allocated by it
MAX_VOCABULARY = 4_194_304  # 262,144 in Gemma 3
MAX_WINDOW_TOKENS = 2**31  # cut to the session's context before anything is allocated
MAX_TEXT_WINDOW_TOKENS = 2**62  # only shown and compared

# The supported keys among {architecture}.attention.* and {architecture}.rope.*. A file with any other key is refused,
# because the key would change the result. llama-arch.cpp:246-315 @ b21e4de.
UNDERSTOOD = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon",
        "attention.causal",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",  # informational: no engine uses it
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)
UNDERSTOOD_WITH_WINDOWS = frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"})
# Other keys that change the result, each with its neutral value. 0 and False are neutral for every key.
CHANGING: Mapping[str, Value | None] = {
    "expert_count": None,
    "expert_used_count": None,
    "expert_shared_count": None,
    "moe_every_n_layers": None,
    "nextn_predict_layers": None,
    "attn_logit_softcapping": None,
    "use_parallel_residual": None,
    "swiglu_clamp_exp": None,
    "swiglu_clamp_shexp": None,
    "embedding_length_per_layer_input": None,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "dense_2_feat_out": None,
    "dense_3_feat_out": None,
}
# Keys that change the next token, but not an embedding; with their neutral values.
CHANGING_TOKENS: Mapping[str, Value | None] = {"final_logit_softcapping": None, "logit_scale": 1.0}

_BLOCK = re.compile(r"blk\.(\d{1,4})\.(.+)")
_MAX_NAMES = 6  # at most this many tensors are listed in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """The sizes that determine the shapes of all tensors."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    vocabulary: int
    rotary: int  # values of each head that are rotated; 0 without rotary positions

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRope:
    """Rotary positions: how fast each pair of values rotates, and a factor for the result."""

    base: float
    interpolate: float  # a position is multiplied by this: 1 / factor
    yarn_from: float | None  # the first pair that is interpolated; None: no YaRN
    yarn_to: float  # the first pair that is interpolated completely
    magnitude: float  # cosines and sines are multiplied by this


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeModel:
    """The model in one file, with all keys and tensor shapes checked. No weights have been read."""

    family: NativeFamily
    dimensions: Dimensions
    epsilon: float
    causal: bool
    rope: NativeRope | None
    outside: Mapping[str, Tensor]  # tensors that belong to no layer
    layers: tuple[Mapping[str, Tensor], ...]  # by name without "blk.N."
    window_tokens: int | None  # sliding window of an embedding model: longer texts are refused
    use: ModelUse = ModelUse.EMBED
    windows: tuple[int | None, ...] = ()  # tokens that each layer sees when generating; None: all
    local_rope: NativeRope | None = None  # for layers with a sliding window
    embedding_scale: float = 1.0  # a token's row is multiplied by this
    query_scale: float  # scores are multiplied by this

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has a gate, separate or in one tensor with up."""
        first = self.layers[0]
        return (
            "ffn_gate.weight" in first
            or first["ffn_up.weight"].shape[0] == 2 * self.dimensions.inner
        )


def read_model(header: FileHeader, use: ModelUse = ModelUse.EMBED) -> NativeModel:
    """The model that a file's header describes.

    Raises UnknownArchitectureError, HeaderError or WeightsError for a model that would not be computed correctly.
    """
    family = family_of(header.keys.get("general.architecture"), use)
    keys = _ModelKeys(header.keys, family.architecture, header.name, use)
    _refuse_unknown_keys(keys, with_windows=family.window_period is not None)
    dimensions = _read_dimensions(keys, family, header.tensors.get("token_embd.weight"))
    outside, layers = _group_by_layer(header, dimensions.layers)
    _check_tensors(keys, family, outside, layers, dimensions)
    windows = read_windows(keys, family, dimensions.layers)
    text_window = None
    if use is ModelUse.EMBED and keys.get("attention.sliding_window"):
        text_window = keys.whole("attention.sliding_window", least=1, most=MAX_TEXT_WINDOW_TOKENS)
    epsilon = keys.number(family.norm.value)
    causal = keys.flag("attention.causal", default=family.causal)
    if use is ModelUse.GENERATE and not causal:
        raise keys.error(
            "attention.causal is false: the model reads text in both directions and "
            "cannot generate any"
        )
    if causal and not family.causal:  # llama.cpp ignores the key for these families
        raise keys.error(
            f"attention.causal is true, but {family.architecture} reads text in both directions"
        )
    # gemma3.cpp:33-36 @ b21e4de
    scales_by_width = family.shared_scale_layers == dimensions.layers
    scaled_by = dimensions.width // dimensions.heads if scales_by_width else dimensions.head_dim
    rope = None
    if family.position.is_rotary:
        rope = read_rope(keys, rotary=dimensions.rotary, context_tokens=dimensions.context_tokens)
    return NativeModel(
        family=family,
        dimensions=dimensions,
        epsilon=epsilon,
        causal=causal,
        rope=rope,
        outside=outside,
        layers=layers,
        window_tokens=text_window,
        use=use,
        windows=windows,
        local_rope=read_local_rope(keys) if any(windows) else None,
        embedding_scale=math.sqrt(dimensions.width) if family.scales_tokens else 1.0,
        query_scale=1 / math.sqrt(scaled_by),
    )


# --- keys


@dataclass(frozen=True, slots=True)
class _ModelKeys(GgufKeys):
    use: ModelUse

    def missing(self, key: str) -> HeaderError:
        return self.error(f"key {self.name(key)} is missing, so this is not {self.use.value}")


def _refuse_unknown_keys(keys: _ModelKeys, *, with_windows: bool) -> None:
    """Raises HeaderError for a key that would change the result and is not understood."""
    understood = UNDERSTOOD | UNDERSTOOD_WITH_WINDOWS if with_windows else UNDERSTOOD
    changing = CHANGING if keys.use is ModelUse.EMBED else {**CHANGING, **CHANGING_TOKENS}
    for full_name, value in keys.all_keys.items():
        name = full_name.removeprefix(f"{keys.architecture}.")
        if name == full_name or not value:
            continue
        changes = name in changing and value != changing[name]
        if changes or (name.startswith(("attention.", "rope.")) and name not in understood):
            raise keys.error(
                f"key {quoted(full_name)} ({quoted(value)}) needs something that "
                f"{keys.use.engine} does not support (engines/native/model.py); engine "
                "llama.cpp may"
            )


def _read_dimensions(
    keys: _ModelKeys, family: NativeFamily, embedding: Tensor | None
) -> Dimensions:
    """Reads every size, from the keys and from the shape of the token embedding, and checks it against its limit."""
    width = keys.whole("embedding_length", least=1, most=MAX_WIDTH)
    if keys.get("embedding_length_out") not in (None, 0, width):
        raise keys.error(
            "embedding_length_out differs from embedding_length, which is not supported; "
            "engine llama.cpp may support it"
        )
    heads = keys.whole("attention.head_count", least=1, most=MAX_HEADS)
    kv_heads = keys.whole("attention.head_count_kv", least=1, most=MAX_HEADS, default=heads)
    if heads % kv_heads:
        raise keys.error(
            f"{heads} attention heads cannot be divided evenly among {kv_heads} key heads"
        )
    usual_head_dim = width // heads
    head_dim = keys.whole(
        "attention.key_length", least=1, most=MAX_HEAD_DIM, default=usual_head_dim
    )
    if keys.get("attention.key_length") is None and width % heads:
        raise keys.error(f"the width {width:,} is not a multiple of {heads} heads")
    value_dim = keys.whole(
        "attention.value_length", least=1, most=MAX_HEAD_DIM, default=usual_head_dim
    )
    if value_dim != head_dim:
        raise keys.error(
            f"keys have {head_dim} dimensions and values {value_dim}: {keys.use.engine} "
            "needs them to be equal"
        )
    rotary = 0
    if family.position.is_rotary:
        rotary = keys.whole("rope.dimension_count", least=1, most=head_dim, default=head_dim)
        if rotary % 2:
            raise keys.error(f"rope.dimension_count is {rotary}, but must be even")
    if embedding is None:
        raise WeightsError(
            f"token_embd.weight is missing, so this is not {keys.use.value}", file=keys.file
        )
    rows = embedding.shape[0] if len(embedding.shape) == 2 else 0
    if not 0 < rows <= MAX_VOCABULARY:
        raise WeightsError(
            f"token_embd.weight has the shape {_shape_text(embedding.shape)}: it must have one "
            f"row per token, and at most {MAX_VOCABULARY:,}",
            file=keys.file,
        )
    return Dimensions(
        layers=keys.whole("block_count", least=1, most=MAX_LAYERS),
        width=width,
        inner=keys.whole("feed_forward_length", least=1, most=MAX_INNER),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_tokens=keys.whole("context_length", least=1, most=MAX_CONTEXT_TOKENS),
        vocabulary=rows,
        rotary=rotary,
    )


def read_windows(keys: _ModelKeys, family: NativeFamily, layers: int) -> tuple[int | None, ...]:
    """How many tokens each layer sees when generating; None: all of them.

    The last layer of every period sees all tokens; with a period of 0 every layer has a window (set_swa_pattern in
    llama-hparams.cpp:8-18 @ b21e4de). Families without windows ignore the key, as llama.cpp does.
    """
    period = family.window_period
    stated_tokens = keys.get("attention.sliding_window")
    if keys.use is not ModelUse.GENERATE or period is None or not stated_tokens:
        return (None,) * layers
    tokens = keys.whole("attention.sliding_window", least=1, most=MAX_WINDOW_TOKENS)
    stated = keys.get("attention.sliding_window_pattern")
    if isinstance(stated, tuple):
        # llama.cpp ignores a list, which is harmless if the list states the usual period.
        usual_pattern = [number % period < period - 1 for number in range(layers)]
        if [bool(is_local) for is_local in stated] != usual_pattern:
            raise keys.error(
                "attention.sliding_window_pattern is not one full layer in every "
                f"{period}, which llama.cpp does not support either; {keys.use.engine} "
                "refuses it"
            )
    elif stated is not None:
        if type(stated) is not int or not 0 <= stated <= MAX_WINDOW_TOKENS:
            raise keys.error(
                f"attention.sliding_window_pattern is {quoted(stated)}, which is not a valid period"
            )
        period = stated
    return tuple(
        tokens if period == 0 or number % period < period - 1 else None for number in range(layers)
    )


# --- rotary positions, as llama.cpp computes them: llama-model.cpp (load_hparams), llama-context.cpp:150-215,
# --- ggml-cpu/ops.cpp (rope_yarn) and ggml.c (ggml_rope_yarn_corr_dims) @ b21e4de

_BASE = 10_000.0
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
# llama.cpp uses these numbers for our families, whatever the file says.
_FIXED_YARN: Mapping[str, float] = {
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": _BETA_FAST,
    "yarn_beta_slow": _BETA_SLOW,
}


def read_rope(keys: _ModelKeys, *, rotary: int, context_tokens: int) -> NativeRope:
    """Rotary positions of the layers without a sliding window."""
    base = _base(keys, "rope.freq_base")
    scaling = keys.get("rope.scaling.type")
    if scaling not in {None, "none", "linear", "yarn"}:
        raise keys.error(
            f"rope scaling {quoted(scaling)} is not supported by {keys.use.engine} (only "
            "none, linear and yarn): use engine llama.cpp, or add it to "
            "engines/native/model.py"
        )
    factor = keys.number("rope.scaling.factor", default=keys.number("rope.scale_linear", default=0))
    if scaling == "none" or factor == 0:
        factor = 1.0
    magnitude = keys.number("rope.scaling.attn_factor", default=1.0)
    if scaling != "yarn":
        return NativeRope(
            base=base, interpolate=1 / factor, yarn_from=None, yarn_to=0.0, magnitude=magnitude
        )
    for name, value in _FIXED_YARN.items():
        stated = keys.get(f"rope.scaling.{name}")
        if stated is not None and stated != value:
            raise keys.error(
                f"{keys.architecture}.rope.scaling.{name} is {quoted(stated)}, which "
                f"llama.cpp ignores (it uses {value}) and other engines do not; "
                f"{keys.use.engine} refuses to guess"
            )
    trained_tokens = keys.whole(
        "rope.scaling.original_context_length",
        least=1,
        most=MAX_CONTEXT_TOKENS,
        default=context_tokens,
    )

    def pair(turns: float) -> float:
        """The index of the pair that makes this many full turns within the trained context; rarely a whole number."""
        return rotary * math.log(trained_tokens / (turns * 2 * math.pi)) / (2 * math.log(base))

    return NativeRope(
        base=base,
        interpolate=1 / factor,
        yarn_from=max(0.0, math.floor(pair(_BETA_FAST))),
        yarn_to=min(rotary - 1.0, math.ceil(pair(_BETA_SLOW))),
        magnitude=magnitude * (1 + 0.1 * math.log(max(factor, 1.0))),
    )


def read_local_rope(keys: _ModelKeys) -> NativeRope:
    """Rotary positions of layers with a sliding window, which are never interpolated.

    llama-model.cpp:2081-2087 @ b21e4de.
    """
    if keys.get("rope.scaling.type") == "yarn":
        raise keys.error(
            f"yarn in sliding-window layers is not supported by {keys.use.engine}: use "
            "engine llama.cpp, or add it to engines/native/model.py"
        )
    base = _base(keys, "rope.freq_base_swa")
    magnitude = keys.number("rope.scaling.attn_factor", default=1.0)
    return NativeRope(base=base, interpolate=1.0, yarn_from=None, yarn_to=0.0, magnitude=magnitude)


def _base(keys: _ModelKeys, name: str) -> float:
    base = keys.number(name, default=_BASE)
    if base <= 1:
        raise keys.error(f"{keys.name(name)} is {base}, but must be more than 1")
    return base


# --- tensors

_Layers = tuple[dict[str, Tensor], ...]  # the tensors of each layer, by name without "blk.N."
_Group = tuple[str, tuple[TensorRule, ...], dict[str, Tensor]]  # name prefix, rules, tensors


def _group_by_layer(header: FileHeader, count: int) -> tuple[dict[str, Tensor], _Layers]:
    """The tensors outside the layers, and those of each layer."""
    outside: dict[str, Tensor] = {}
    layers: _Layers = tuple({} for _ in range(count))
    excess_names = []
    for name, tensor in header.tensors.items():
        match = _BLOCK.fullmatch(name)
        if match is None:
            outside[name] = tensor
        elif int(match[1]) < count and match[1] == str(int(match[1])):
            layers[int(match[1])][match[2]] = tensor
        else:
            excess_names.append(name)
    if excess_names:
        raise WeightsError(
            f"the file states {count} layers, but has tensors beyond them: {_format_names(excess_names)}",
            file=header.name,
        )
    return outside, layers


def _check_tensors(
    keys: _ModelKeys,
    family: NativeFamily,
    outside: dict[str, Tensor],
    layers: _Layers,
    dimensions: Dimensions,
) -> None:
    """Raises WeightsError unless the file has what the family needs and nothing that would change the result."""
    file, use = keys.file, keys.use
    groups: list[_Group] = [("", family.outside_for(use), outside)]
    groups += [(f"blk.{number}.", family.layer, layer) for number, layer in enumerate(layers)]
    missing, unknown = [], []
    for prefix, rules, tensors in groups:
        needed = [rule.name for rule in rules if rule.need is Need.REQUIRED]
        known = {rule.name for rule in rules}
        # A bias without its weight would not be used, so it counts as unknown.
        known -= {
            name
            for name in known
            if name.endswith(".bias") and f"{name.removesuffix('.bias')}.weight" not in tensors
        }
        if "attn_qkv.weight" in tensors:
            known -= {f"attn_{letter}.{part}" for letter in "qkv" for part in ("weight", "bias")}
        elif prefix:
            needed += ["attn_q.weight", "attn_k.weight", "attn_v.weight"]
        missing += [prefix + name for name in needed if name not in tensors]
        unknown += [prefix + name for name in tensors if name not in known]
    if missing:
        raise WeightsError(
            f"{len(missing)} tensors are missing, so this is not {use.value} of "
            f"architecture {family.architecture}: {_format_names(missing)}",
            file=file,
        )
    if unknown:
        raise WeightsError(
            f"tensors that {use.engine} does not know, so its results would be wrong: "
            f"{_format_names(unknown)} ({TABLE}); engine llama.cpp may know them",
            file=file,
        )
    _check_shapes(file, groups, dimensions)
    for number, layer in enumerate(layers):
        _check_layer(file, number, layer, layers[0])


def _check_shapes(file: str, groups: list[_Group], size: Dimensions) -> None:
    """Raises WeightsError for a tensor whose shape does not match the sizes in the keys."""
    # The lengths that each word of tensors.tsv allows. An empty tuple allows any.
    lengths: Mapping[str, tuple[int, ...]] = {
        "width": (size.width,),
        "inner": (size.inner,),
        "up": (size.inner, 2 * size.inner),
        "query": (size.query,),
        "key": (size.key,),
        "qkv": (size.query + 2 * size.key,),
        "head": (size.head_dim,),
        "pairs": (size.rotary // 2,),
        "vocabulary": (size.vocabulary,),
        "context": (size.context_tokens,),
        "types": (),
    }
    for prefix, rules, tensors in groups:
        for rule in rules:
            if rule.name not in tensors or rule.need is Need.UNUSED:
                continue
            shape, expected = tensors[rule.name].shape, [lengths[word] for word in rule.shape]
            fits = len(shape) == len(expected) and all(
                length > 0 and (not allowed or length in allowed)
                for length, allowed in zip(shape, expected, strict=True)
            )
            if not fits:
                words = " x ".join(" or ".join(map(str, allowed)) or "any" for allowed in expected)
                raise WeightsError(
                    f"tensor {quoted(prefix + rule.name)} has the shape {_shape_text(shape)}, "
                    f"not {words}: the keys and the tensors of this file do not match",
                    file=file,
                )


def _check_layer(
    file: str, place: int, layer: Mapping[str, Tensor], first: Mapping[str, Tensor]
) -> None:
    """Raises WeightsError unless a layer has the tensors and shapes of the first: one plan serves all layers."""
    shapes = {name: tensor.shape for name, tensor in layer.items()}
    first_shapes = {name: tensor.shape for name, tensor in first.items()}
    if shapes != first_shapes:
        different = [
            name for name in {*shapes, *first_shapes} if shapes.get(name) != first_shapes.get(name)
        ]
        raise WeightsError(
            f"layer {place} differs from layer 0 in its tensors: {_format_names(sorted(different))}",
            file=file,
        )
    for name in layer:
        stem, _, part = name.rpartition(".")
        if part == "bias" and layer[name].shape != layer[f"{stem}.weight"].shape[:1]:
            raise WeightsError(
                f"blk.{place}.{name} and its weight have different lengths", file=file
            )
    if "ffn_gate.weight" in layer and shapes["ffn_up.weight"] != shapes["ffn_gate.weight"]:
        raise WeightsError(
            f"blk.{place}.ffn_up.weight has the shape of gate and up combined, but there "
            "is also an ffn_gate.weight",
            file=file,
        )


def _format_names(names: list[str]) -> str:
    text = ", ".join(quoted(name) for name in names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f"{text} and {more} more" if more > 0 else text


def _shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "of a single number"
