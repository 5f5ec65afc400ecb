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

# What a file may ask for, and what the largest real models have.
MAX_WIDTH = 65_536  # 16,384 in Llama 3.1 405B
MAX_INNER = 1_048_576  # 53,248
MAX_HEADS = 1_024  # 128
MAX_HEAD_DIM = 1_024  # 256 in Gemma
MAX_CONTEXT_TOKENS = 2**31  # only shown and compared, never allocated
MAX_VOCABULARY = 4_194_304  # 262,144 in Gemma 3
MAX_WINDOW_TOKENS = 2**31  # never more than the session's own
MAX_TEXT_WINDOW_TOKENS = 2**62  # only shown and compared

# Of {architecture}.attention.* and {architecture}.rope.*: the keys that are understood here. Any other would change
# the result. llama-arch.cpp:246-315 @ b21e4de.
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
        "rope.scaling.finetuned",  # for people: no engine uses it
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)
UNDERSTOOD_WITH_WINDOWS = frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"})
# Other keys that change the result, and the value at which they do not (0 and False never do).
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
# Keys that change the next token, but not a vector.
CHANGING_TOKENS: Mapping[str, Value | None] = {"final_logit_softcapping": None, "logit_scale": 1.0}

_BLOCK = re.compile(r"blk\.(\d{1,4})\.(.+)")
_MAX_NAMES = 6  # tensors that a message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Every number that a shape is made of."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    vocabulary: int
    rotary: int  # values of a head that are rotated; 0 without rotary positions

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRope:
    """How fast which pair of values rotates, and how large it is afterwards."""

    base: float
    interpolate: float  # a position is multiplied by this: 1 / factor
    yarn_from: float | None  # the pair where interpolation begins; None: no YaRN
    yarn_to: float
    magnitude: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeModel:
    """One file's model, checked and complete. Nothing of its weights has been read."""

    family: NativeFamily
    dimensions: Dimensions
    epsilon: float
    causal: bool
    rope: NativeRope | None
    outside: Mapping[str, Tensor]
    layers: tuple[Mapping[str, Tensor], ...]  # by name without "blk.N."
    window_tokens: int | None  # a longer text to embed would need a sliding window
    use: ModelUse = ModelUse.EMBED
    windows: tuple[int | None, ...] = ()  # when generating: how many tokens each layer sees
    local_rope: NativeRope | None = None  # of the layers with a window
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
    """Raises UnknownArchitectureError, HeaderError or WeightsError for a model that would not be computed correctly."""
    family = family_of(header.keys.get("general.architecture"), use)
    keys = _ModelKeys(header.keys, family.architecture, header.name, use)
    _refuse_unknown_keys(keys, with_windows=family.window_period is not None)
    dimensions = _dimensions(keys, family, header.tensors.get("token_embd.weight"))
    outside, layers = _by_layer(header, dimensions.layers)
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
    shares_scale = family.shared_scale_layers == dimensions.layers
    scaled_by = dimensions.width // dimensions.heads if shares_scale else dimensions.head_dim
    return NativeModel(
        family=family,
        dimensions=dimensions,
        epsilon=epsilon,
        causal=causal,
        rope=read_rope(keys, rotary=dimensions.rotary, context_tokens=dimensions.context_tokens)
        if family.position.is_rotary
        else None,
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


def _dimensions(keys: _ModelKeys, family: NativeFamily, embedding: Tensor | None) -> Dimensions:
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
    of_width = width // heads
    head_dim = keys.whole("attention.key_length", least=1, most=MAX_HEAD_DIM, default=of_width)
    if keys.get("attention.key_length") is None and width % heads:
        raise keys.error(f"the width {width:,} is not a multiple of {heads} heads")
    value_dim = keys.whole("attention.value_length", least=1, most=MAX_HEAD_DIM, default=of_width)
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
    """How many tokens each layer sees when generating; None: all of them, as the last layer of every period does.

    set_swa_pattern in llama-hparams.cpp:8-18 @ b21e4de: with a period of 0 every layer has a window. Families without
    windows ignore the key, as llama.cpp does.
    """
    period = family.window_period
    stated_tokens = keys.get("attention.sliding_window")
    if keys.use is not ModelUse.GENERATE or period is None or not stated_tokens:
        return (None,) * layers
    tokens = keys.whole("attention.sliding_window", least=1, most=MAX_WINDOW_TOKENS)
    stated = keys.get("attention.sliding_window_pattern")
    if isinstance(stated, tuple):  # llama.cpp ignores a list: correct if it states the usual period
        usual = [place % period < period - 1 for place in range(layers)]
        if [bool(is_local) for is_local in stated] != usual:
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
        tokens if period == 0 or place % period < period - 1 else None for place in range(layers)
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
    base = _base(keys, "rope.freq_base")
    scaling = keys.get("rope.scaling.type")
    if scaling not in {None, "none", "linear", "yarn"}:
        raise keys.error(
            f"rope scaling {quoted(scaling)} is not supported by {keys.use.engine} (only "
            "none, linear and yarn): use engine llama.cpp, or add it to "
            "engines/native/model.py"
        )
    factor = keys.number("rope.scaling.factor", default=keys.number("rope.scale_linear", default=0))
    factor = 1.0 if scaling == "none" or factor == 0 else factor
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
        """The pair that makes this many turns within the trained context."""
        return rotary * math.log(trained_tokens / (turns * 2 * math.pi)) / (2 * math.log(base))

    return NativeRope(
        base=base,
        interpolate=1 / factor,
        yarn_from=max(0.0, math.floor(pair(_BETA_FAST))),
        yarn_to=min(rotary - 1.0, math.ceil(pair(_BETA_SLOW))),
        magnitude=magnitude * (1 + 0.1 * math.log(max(factor, 1.0))),
    )


def read_local_rope(keys: _ModelKeys) -> NativeRope:
    """Of layers with a window: nothing is interpolated. llama-model.cpp:2081-2087 @ b21e4de."""
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

_Layers = tuple[dict[str, Tensor], ...]
_Group = tuple[str, tuple[TensorRule, ...], dict[str, Tensor]]  # with the prefix of their names


def _by_layer(header: FileHeader, count: int) -> tuple[dict[str, Tensor], _Layers]:
    """The tensors outside the layers, and those of each layer."""
    outside: dict[str, Tensor] = {}
    layers: _Layers = tuple({} for _ in range(count))
    beyond = []
    for name, tensor in header.tensors.items():
        found = _BLOCK.fullmatch(name)
        if found is None:
            outside[name] = tensor
        elif int(found[1]) < count and found[1] == str(int(found[1])):
            layers[int(found[1])][found[2]] = tensor
        else:
            beyond.append(name)
    if beyond:
        raise WeightsError(
            f"the file states {count} layers, but has tensors beyond them: {_listed(beyond)}",
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
    groups += [(f"blk.{place}.", family.layer, layer) for place, layer in enumerate(layers)]
    missing, unknown = [], []
    for prefix, rules, tensors in groups:
        needed = [rule.name for rule in rules if rule.need is Need.REQUIRED]
        known = {rule.name for rule in rules}
        # A bias without its weight is not used.
        known -= {
            name
            for name in known
            if name.endswith(".bias") and f"{name.removesuffix('.bias')}.weight" not in tensors
        }
        if "attn_qkv.weight" in tensors:
            known -= {f"attn_{one}.{part}" for one in "qkv" for part in ("weight", "bias")}
        elif prefix:
            needed += ["attn_q.weight", "attn_k.weight", "attn_v.weight"]
        missing += [prefix + name for name in needed if name not in tensors]
        unknown += [prefix + name for name in tensors if name not in known]
    if missing:
        raise WeightsError(
            f"{len(missing)} tensors are missing, so this is not {use.value} of "
            f"architecture {family.architecture}: {_listed(missing)}",
            file=file,
        )
    if unknown:
        raise WeightsError(
            f"tensors that {use.engine} does not know, so its results would be wrong: "
            f"{_listed(unknown)} ({TABLE}); engine llama.cpp may know them",
            file=file,
        )
    _check_shapes(file, groups, dimensions)
    for place, layer in enumerate(layers):
        _check_layer(file, place, layer, layers[0])


def _check_shapes(file: str, groups: list[_Group], size: Dimensions) -> None:
    lengths: Mapping[str, tuple[int, ...]] = {  # that a word of tensors.tsv allows; none: any
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
    """All layers have the same tensors in the same shapes, so that one plan is right for all."""
    here = {name: tensor.shape for name, tensor in layer.items()}
    there = {name: tensor.shape for name, tensor in first.items()}
    if here != there:
        differ = [name for name in {*here, *there} if here.get(name) != there.get(name)]
        raise WeightsError(
            f"layer {place} differs from layer 0 in its tensors: {_listed(sorted(differ))}",
            file=file,
        )
    for name in layer:
        stem, _, part = name.rpartition(".")
        if part == "bias" and layer[name].shape != layer[f"{stem}.weight"].shape[:1]:
            raise WeightsError(
                f"blk.{place}.{name} and its weight have different lengths", file=file
            )
    if "ffn_gate.weight" in layer and here["ffn_up.weight"] != here["ffn_gate.weight"]:
        raise WeightsError(
            f"blk.{place}.ffn_up.weight has the shape of gate and up combined, but there "
            "is also an ffn_gate.weight",
            file=file,
        )


def _listed(names: list[str]) -> str:
    listed = ", ".join(quoted(name) for name in names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f"{listed} and {more} more" if more > 0 else listed


def _shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "of a single number"
