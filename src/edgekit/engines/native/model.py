"""A file's keys and tensor directory -> Model: every number in its bounds, every tensor in its place."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from edgekit.engines.native.families import family_of
from edgekit.engines.native.keys import Keys
from edgekit.engines.native.types import (
    Dimensions,
    FileFacts,
    ModelUse,
    NativeFamily,
    NativeModel,
    NativeRope,
    Need,
    TensorRule,
)
from edgekit.errors import WeightsError
from edgekit.formats.types import Tensor
from edgekit.terminal import quoted

# What a file may ask for, beside what the largest real models have.
LAYERS = 512  # LLAMA_MAX_LAYERS; Llama-3.1-405B has 126
WIDTH = 65_536  # 16,384 in the same
INNER = 1_048_576  # 53,248
HEADS = 1_024  # 128
HEAD_DIM = 1_024  # 256 in Gemma
CONTEXT_TOKENS = 2**31  # told, never allocated
VOCABULARY = 4_194_304  # 262,144 in Gemma 3
WINDOW = 2**62  # told, never allocated

_NAMED = 6  # tensors that a message names
_BLOCK = re.compile(r"blk\.(\d{1,4})\.(.+)")
Shelves = tuple[dict[str, Tensor], tuple[dict[str, Tensor], ...]]


def read_model(walked: FileFacts, use: ModelUse = ModelUse.EMBED) -> NativeModel:
    """UnknownArchitectureError, HeaderError or WeightsError for what cannot be run as it should."""
    family = family_of(walked.keys.get("general.architecture"), use)
    keys = Keys(walked.name, family.architecture, walked.keys, use)
    keys.refuse_unknown(windows=family.window_period is not None)
    dimensions = _dimensions(keys, family, walked.tensors.get("token_embd.weight"))
    outside, layers = _shelved(walked, dimensions.layers)
    sizes = _sizes(dimensions)
    _check_all(keys, family, (outside, layers), sizes)
    windows = read_windows(keys, family, dimensions.layers)
    return NativeModel(
        family=family,
        dimensions=dimensions,
        epsilon=keys.number(family.norm.value),
        causal=_causal(keys, family),
        rope=read_rope(keys, rotary=dimensions.rotary, context_tokens=dimensions.context_tokens)
        if family.position.turns
        else None,
        outside=outside,
        layers=layers,
        window_tokens=_text_window(keys),
        use=use,
        windows=windows,
        local_rope=read_local_rope(keys) if any(windows) else None,
        embedding_scale=math.sqrt(dimensions.width) if family.scales_tokens else 1.0,
        query_scale=1 / math.sqrt(_scaled_by(family, dimensions)),
    )


def _text_window(keys: Keys) -> int | None:
    """What an embedding must not exceed. Who generates does as llama.cpp: a family has windows, or none."""
    window = keys.get("attention.sliding_window")
    if keys.use is not ModelUse.EMBED or not window:
        return None
    return keys.whole("attention.sliding_window", most=WINDOW)


def _scaled_by(family: NativeFamily, size: Dimensions) -> int:
    """Scores are divided by its root. gemma3.cpp:33-36 @ b21e4de."""
    shared = family.shared_scale_layers == size.layers
    return size.width // size.heads if shared else size.head_dim


def _causal(keys: Keys, family: NativeFamily) -> bool:
    causal = keys.flag("attention.causal", otherwise=family.causal)
    if keys.use is ModelUse.GENERATE and not causal:
        raise keys.error(
            "attention.causal is false: the model reads text in both directions and "
            "cannot generate any"
        )
    if causal and not family.causal:  # llama.cpp would not do so either, whatever the file says
        raise keys.error(
            f"attention.causal is true, but {family.architecture} reads text in both directions"
        )
    return causal


def _dimensions(keys: Keys, family: NativeFamily, embedding: Tensor | None) -> Dimensions:
    width = keys.whole("embedding_length", most=WIDTH)
    if keys.get("embedding_length_out") not in (None, 0, width):
        raise keys.error(
            "embedding_length_out differs from embedding_length, which is not supported; "
            "engine llama.cpp may support it"
        )
    heads = keys.whole("attention.head_count", most=HEADS)
    kv_heads = keys.whole("attention.head_count_kv", most=HEADS, otherwise=heads)
    if heads % kv_heads:
        raise keys.error(
            f"{heads} attention heads cannot be divided evenly among {kv_heads} key heads"
        )
    head_dim = keys.whole("attention.key_length", most=HEAD_DIM, otherwise=width // heads)
    if keys.get("attention.key_length") is None and width % heads:
        raise keys.error(f"the width {width:,} is not a multiple of {heads} heads")
    value_dim = keys.whole("attention.value_length", most=HEAD_DIM, otherwise=width // heads)
    if value_dim != head_dim:
        raise keys.error(
            f"keys have {head_dim} dimensions and values {value_dim}: {keys.use.engine} "
            "needs them to be equal"
        )
    return Dimensions(
        layers=keys.whole("block_count", most=LAYERS),
        width=width,
        inner=keys.whole("feed_forward_length", most=INNER),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_tokens=keys.whole("context_length", most=CONTEXT_TOKENS),
        vocabulary=_vocabulary(keys, embedding),
        rotary=_rotary(keys, head_dim) if family.position.turns else 0,
    )


def _rotary(keys: Keys, head_dim: int) -> int:
    rotary = keys.whole("rope.dimension_count", most=head_dim, otherwise=head_dim)
    if rotary % 2:
        raise keys.error(f"rope.dimension_count is {rotary}, but must be even")
    return rotary


def _vocabulary(keys: Keys, embedding: Tensor | None) -> int:
    if embedding is None:
        raise WeightsError(
            f"token_embd.weight is missing, so this is not {keys.use.value}", file=keys.file
        )
    rows = embedding.shape[0] if len(embedding.shape) == 2 else 0
    if not 0 < rows <= VOCABULARY:
        raise WeightsError(
            f"token_embd.weight has the shape {_told(embedding.shape)}: it must have one "
            f"row per token, and at most {VOCABULARY:,}",
            file=keys.file,
        )
    return rows


def _sizes(dimensions: Dimensions) -> Mapping[str, tuple[int, ...]]:
    """The words of a Rule's shape -> the numbers that may stand there; none: any."""
    return {
        "width": (dimensions.width,),
        "inner": (dimensions.inner,),
        "up": (dimensions.inner, 2 * dimensions.inner),
        "query": (dimensions.query,),
        "key": (dimensions.key,),
        "qkv": (dimensions.query + 2 * dimensions.key,),
        "head": (dimensions.head_dim,),
        "pairs": (dimensions.rotary // 2,),
        "vocabulary": (dimensions.vocabulary,),
        "context": (dimensions.context_tokens,),
        "types": (),
    }


def _shelved(walked: FileFacts, count: int) -> Shelves:
    """The tensors of each layer, and the others."""
    outside: dict[str, Tensor] = {}
    layers: tuple[dict[str, Tensor], ...] = tuple({} for _ in range(count))
    beyond = []
    for name, tensor in walked.tensors.items():
        found = _BLOCK.fullmatch(name)
        if found is None:
            outside[name] = tensor
        elif int(found[1]) < count and found[1] == str(int(found[1])):
            layers[int(found[1])][found[2]] = tensor
        else:
            beyond.append(name)
    if beyond:
        raise WeightsError(
            f"the file states {count} layers, but has tensors beyond them: {_list(beyond)}",
            file=walked.name,
        )
    return outside, layers


def _check_all(
    keys: Keys, family: NativeFamily, found: Shelves, sizes: Mapping[str, tuple[int, ...]]
) -> None:
    file, use = keys.file, keys.use
    outside, layers = found
    shelves = [("", family.outside_for(use), outside)]
    shelves += [(f"blk.{place}.", family.layer, layer) for place, layer in enumerate(layers)]
    missing = [name for shelf in shelves for name in _missing(*shelf)]
    if missing:
        raise WeightsError(
            f"{len(missing)} tensors are missing, so this is not {use.value} of "
            f"architecture {family.architecture}: {_list(missing)}",
            file=file,
        )
    unknown = [name for shelf in shelves for name in _unknown(*shelf)]
    if unknown:
        raise WeightsError(
            f"tensors that {use.engine} does not know, so its results would be wrong: "
            f"{_list(unknown)} (engines/native/families.py); engine llama.cpp may know them",
            file=file,
        )
    for prefix, rules, shelf in shelves:
        for rule in rules:
            if rule.name in shelf and rule.need is not Need.UNUSED:
                _check_shape(file, prefix, rule, shelf[rule.name], sizes)
    for place, layer in enumerate(layers):
        _check_alike(file, place, layer, layers[0])


def _missing(
    prefix: str, rules: tuple[TensorRule, ...], shelf: Mapping[str, Tensor]
) -> Iterable[str]:
    yield from (
        prefix + rule.name for rule in rules if rule.need is Need.YES and rule.name not in shelf
    )
    if prefix and "attn_qkv.weight" not in shelf:
        three = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
        yield from (prefix + name for name in three if name not in shelf)


def _unknown(
    prefix: str, rules: tuple[TensorRule, ...], shelf: Mapping[str, Tensor]
) -> Iterable[str]:
    known = {rule.name for rule in rules}
    known -= {name for name in known if _lacks_weight(name, shelf)}
    if "attn_qkv.weight" in shelf:
        known -= {f"attn_{one}.{part}" for one in "qkv" for part in ("weight", "bias")}
    return (prefix + name for name in shelf if name not in known)


def _lacks_weight(name: str, shelf: Mapping[str, Tensor]) -> bool:
    stem, _, part = name.rpartition(".")
    return part == "bias" and f"{stem}.weight" not in shelf


def _check_shape(
    file: str, prefix: str, rule: TensorRule, tensor: Tensor, sizes: Mapping[str, tuple[int, ...]]
) -> None:
    wanted = [sizes[word] for word in rule.shape]
    fits = len(tensor.shape) == len(wanted) and all(
        length > 0 and (not may or length in may)
        for length, may in zip(tensor.shape, wanted, strict=True)
    )
    if not fits:
        told = " x ".join("any" if not may else " or ".join(map(str, may)) for may in wanted)
        raise WeightsError(
            f"tensor {quoted(prefix + rule.name)} has the shape {_told(tensor.shape)}, "
            f"not {told}: the keys and the tensors of this file do not match",
            file=file,
        )


def _check_alike(
    file: str, place: int, layer: Mapping[str, Tensor], first: Mapping[str, Tensor]
) -> None:
    """Layers have the same tensors in the same shapes, so that one plan is right for all."""
    here = {name: tensor.shape for name, tensor in layer.items()}
    there = {name: tensor.shape for name, tensor in first.items()}
    if here != there:
        differ = [name for name in {*here, *there} if here.get(name) != there.get(name)]
        raise WeightsError(
            f"layer {place} differs from layer 0 in its tensors: {_list(sorted(differ))}", file=file
        )
    for name in layer:
        stem, _, part = name.rpartition(".")
        if part == "bias" and layer[name].shape != layer[f"{stem}.weight"].shape[:1]:
            raise WeightsError(
                f"blk.{place}.{name} and its weight have different lengths", file=file
            )
    if (
        "ffn_gate.weight" in layer
        and layer["ffn_up.weight"].shape != layer["ffn_gate.weight"].shape
    ):
        raise WeightsError(
            f"blk.{place}.ffn_up.weight has the shape of gate and up combined, but there "
            "is also an ffn_gate.weight",
            file=file,
        )


def _list(names: list[str]) -> str:
    told = ", ".join(quoted(name) for name in names[:_NAMED])
    return told if len(names) <= _NAMED else f"{told} and {len(names) - _NAMED} more"


def _told(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "of a single number"


_BASE = 10_000.0
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
# Of these llama.cpp takes its own numbers for our families, whatever the file says.
_FIXED: Mapping[str, float] = {
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": _BETA_FAST,
    "yarn_beta_slow": _BETA_SLOW,
}


def read_rope(keys: Keys, *, rotary: int, context_tokens: int) -> NativeRope:
    base = _base(keys, "rope.freq_base")
    scaling = keys.get("rope.scaling.type")
    if scaling not in {None, "none", "linear", "yarn"}:
        raise keys.error(
            f"rope scaling {quoted(scaling)} is not supported by {keys.use.engine} (only "
            "none, linear and yarn): use engine llama.cpp, or add it to "
            "engines/native/rope.py"
        )
    factor = keys.number(
        "rope.scaling.factor", otherwise=keys.number("rope.scale_linear", otherwise=0)
    )
    factor = 1.0 if scaling == "none" or factor == 0 else factor
    magnitude = keys.number("rope.scaling.attn_factor", otherwise=1.0)
    if scaling != "yarn":
        return NativeRope(
            base=base, interpolate=1 / factor, yarn_from=None, yarn_to=0.0, magnitude=magnitude
        )
    _refuse_other_yarn(keys)
    trained = keys.whole(
        "rope.scaling.original_context_length", most=2**31, otherwise=context_tokens
    )
    first, last = _yarn_pairs(rotary, trained, base)
    return NativeRope(
        base=base,
        interpolate=1 / factor,
        yarn_from=first,
        yarn_to=last,
        magnitude=magnitude * (1 + 0.1 * math.log(max(factor, 1.0))),
    )


def read_local_rope(keys: Keys) -> NativeRope:
    """Of layers with a window: nothing is interpolated. llama-model.cpp:2081-2087 @ b21e4de."""
    if keys.get("rope.scaling.type") == "yarn":
        raise keys.error(
            f"yarn in sliding-window layers is not supported by {keys.use.engine}: use "
            "engine llama.cpp, or add it to engines/native/rope.py"
        )
    base = _base(keys, "rope.freq_base_swa")
    magnitude = keys.number("rope.scaling.attn_factor", otherwise=1.0)
    return NativeRope(base=base, interpolate=1.0, yarn_from=None, yarn_to=0.0, magnitude=magnitude)


def _base(keys: Keys, name: str) -> float:
    base = keys.number(name, otherwise=_BASE)
    if base <= 1:
        raise keys.error(f"{keys.architecture}.{name} is {base}, but must be more than 1")
    return base


def _yarn_pairs(rotary: int, trained_tokens: int, base: float) -> tuple[float, float]:
    def pair(turns: float) -> float:
        """The pair that turns so often within the trained context."""
        return rotary * math.log(trained_tokens / (turns * 2 * math.pi)) / (2 * math.log(base))

    return (
        max(0.0, math.floor(pair(_BETA_FAST))),
        min(rotary - 1.0, math.ceil(pair(_BETA_SLOW))),
    )


def _refuse_other_yarn(keys: Keys) -> None:
    for name, value in _FIXED.items():
        told = keys.get(f"rope.scaling.{name}")
        if told is not None and told != value:
            raise keys.error(
                f"{keys.architecture}.rope.scaling.{name} is {quoted(told)}, which "
                f"llama.cpp ignores (it uses {value}) and other engines do not; "
                f"{keys.use.engine} refuses to guess"
            )


WINDOW_TOKENS = 2**31  # told, and never more than the session's own


def read_windows(keys: Keys, family: NativeFamily, layers: int) -> tuple[int | None, ...]:
    """Of each layer; None where it sees all. Of `period` layers the last one does.

    set_swa_pattern in llama-hparams.cpp:8-18 @ b21e4de: with a period of 0 none does. Families without windows ignore
    the key, as llama.cpp does.
    """
    window = keys.get("attention.sliding_window")
    if keys.use is not ModelUse.GENERATE or family.window_period is None or not window:
        return (None,) * layers
    tokens = keys.whole("attention.sliding_window", most=WINDOW_TOKENS)
    period = _period(keys, family.window_period, layers)
    return tuple(
        tokens if period == 0 or place % period < period - 1 else None for place in range(layers)
    )


def _period(keys: Keys, usual: int, layers: int) -> int:
    told = keys.get("attention.sliding_window_pattern")
    if told is None:
        return usual
    if isinstance(told, tuple):  # llama.cpp passes over it: right if it says what is usual
        if [bool(one) for one in told] != [place % usual < usual - 1 for place in range(layers)]:
            raise keys.error(
                "attention.sliding_window_pattern is not one full layer in every "
                f"{usual}, which llama.cpp does not support either; {keys.use.engine} "
                "refuses it"
            )
        return usual
    if isinstance(told, bool) or not isinstance(told, int) or not 0 <= told <= WINDOW_TOKENS:
        raise keys.error(
            f"attention.sliding_window_pattern is {quoted(told)}, which is not a valid period"
        )
    return told
