"""How MLX packs weights: packed sizes, the settings in config.json, and names of quantisations (MLX 0.32.4)."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from edgekit.errors import HeaderError, RefusedError, UsageError, unquoted
from edgekit.formats.types import Quantization
from edgekit.model.tensor_recipes import TensorRole as R


class PackingMode(enum.Enum):
    """How a group of weights is packed: --q-mode of mlx_lm.convert."""

    AFFINE = "affine"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"
    MXFP8 = "mxfp8"


class BitsRecipe(enum.Enum):
    """Mixtures of bits: --quant-predicate of mlx_lm.convert."""

    MIXED_2_6 = "mixed_2_6"
    MIXED_3_4 = "mixed_3_4"
    MIXED_3_6 = "mixed_3_6"
    MIXED_4_6 = "mixed_4_6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How one matrix is stored: bits per weight, and a scale for every group of a row."""

    bits: int
    group_size: int
    mode: PackingMode = PackingMode.AFFINE


FOUR_BIT = Packing(bits=4, group_size=64)  # the default of mlx_lm.convert -q


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantize:
    """The options of `mlx_lm.convert -q`."""

    packing: Packing = FOUR_BIT
    recipe: BitsRecipe | None = None
    experts: Packing | None = None  # of experts that are packed already (gpt-oss: mxfp4)
    rest: bool = True  # False: only those experts are packed


PLAIN = Quantize(rest=False)  # nothing is packed


class AsStored(enum.Enum):
    """Weights as the repository has them."""

    AS_STORED = "as stored"


AS_STORED = AsStored.AS_STORED


# utils.py:1038, defaults_for_mode: group size and bits of a mode that is named alone.
DEFAULTS = {
    PackingMode.AFFINE: (64, 4),
    PackingMode.MXFP4: (32, 4),
    PackingMode.NVFP4: (16, 4),
    PackingMode.MXFP8: (32, 8),
}
WEIGHT_BITS = (1, 2, 3, 4, 5, 6, 8)
GROUP_SIZES = {
    PackingMode.AFFINE: (32, 64, 128),
    PackingMode.MXFP4: (32,),
    PackingMode.NVFP4: (16,),
    PackingMode.MXFP8: (32,),
}


MXFP4 = Packing(bits=4, group_size=32, mode=PackingMode.MXFP4)
_NVFP4 = Packing(bits=4, group_size=16, mode=PackingMode.NVFP4)
_CONTAINERS = {  # utils.py:309, formats of compressed-tensors
    "nvfp4-pack-quantized": _NVFP4,
    "mxfp4-pack-quantized": MXFP4,
    "pack-quantized": Packing(bits=4, group_size=32),
}
# Model files whose sanitize unpacks fp8 blocks (weight_scale_inv).
_TAKES_FP8 = frozenset({
    "deepseek_v3", "deepseek_v32", "mimo_v2_flash", "minimax", "minimax_m3_vl", "ministral3", "mistral4",
})  # fmt: skip

# Names of quantisations, in lower case.
NAMES = ("8bit", "6bit", "5bit", "4bit", "3bit", "2bit", "mxfp4", "nvfp4", "mxfp8", "bf16")
_MODES = {mode.value: mode for mode in PackingMode}
_RECIPES = {recipe.value: recipe for recipe in BitsRecipe}
_PLAIN = frozenset({"bf16", "fp16", "f16", "none"})
_STORED = frozenset({"as stored", "as_stored", "stored"})
_PACKED_EXPERTS_ONLY = frozenset({"native_mxfp4_experts_rest_bf16", "mxfp4_experts"})
_AFFINE = re.compile(r"q(\d)(?:_g(\d{1,4}))?")  # q4_g64
_PACKED_EXPERTS = re.compile(r"mxfp4-q(\d)(?:_g(\d{1,4}))?")  # MXFP4-Q8_g64: gpt-oss on the hub

# The module at the end of a path -> the roles of the tensors in it.
# fmt: off
_MODULES: tuple[tuple[str, tuple[R, ...]], ...] = (
    (r"shared_?(experts?|mlp)\.gate_proj$", (R.SHARED_GATE,)),
    (r"shared_?(experts?|mlp)\.up_proj$", (R.SHARED_UP,)),
    (r"shared_?(experts?|mlp)\.down_proj$", (R.SHARED_DOWN,)),
    (r"(switch_mlp|switch_glu|experts)\.gate_proj$", (R.EXPERT_GATE,)),
    (r"(switch_mlp|switch_glu|experts)\.(up_proj|fc1)$", (R.EXPERT_UP,)),
    (r"(switch_mlp|switch_glu|experts)\.(down_proj|fc2)$", (R.EXPERT_DOWN,)),
    (r"shared_expert_gate$", (R.SHARED_SWITCH,)),
    (r"(mlp|moe|feed_forward)\.gate(\.gate|\.proj|\.gate_proj)?$|\brouter(\.\w+)?$|classifier$", (R.ROUTER,)),
    (r"embed_tokens_per_layer$", (R.LAYER_EMBEDDING,)),
    (r"embed_tokens$|word_embeddings$|tok_embeddings$|\bwte$|\bembeddings$|embed_in$", (R.EMBEDDING,)),
    (r"lm_head$|embed_out$|^output$", (R.HEAD,)),
    (r"linear_attn\.in_proj_qkvz$", (R.STATE_IN, R.STATE_GATE)),
    (r"linear_attn\.in_proj_(qkv|q|k|v)$|(mamba|mixer|conv)\.in_proj$", (R.STATE_IN,)),
    (r"linear_attn\.in_proj_z$", (R.STATE_GATE,)),
    (r"linear_attn\.in_proj_(ba|a|b)$", (R.STATE_BETA,)),
    (r"(linear_attn|mamba|mixer|conv)\.out_proj$", (R.STATE_OUT,)),
    (r"x_proj$", (R.STATE_X,)),
    (r"dt_proj$", (R.STATE_DT,)),
    (r"q_a_proj$", (R.QUERY_DOWN,)),
    (r"q_b_proj$", (R.QUERY_UP,)),
    (r"kv_a_proj_with_mqa$", (R.LATENT_DOWN,)),
    (r"kv_b_proj$|embed_q$|unembed_out$", (R.LATENT_UP,)),
    (r"qkv_proj$|query_key_value$|\bWqkv$|c_attn$", (R.QUERY, R.KEY, R.VALUE)),
    (r"q_proj$", (R.QUERY,)),
    (r"k_proj$", (R.KEY,)),
    (r"v_proj$", (R.VALUE,)),
    (r"o_proj$|attn\.(out_proj|dense)$", (R.OUTPUT,)),
    (r"gate_up_proj$", (R.GATE, R.UP)),
    (r"gate_proj$|\bw1$", (R.GATE,)),
    (r"up_proj$|\bw3$|c_fc$|fc1$", (R.UP,)),
    (r"down_proj$|\bw2$|c_proj$|fc2$", (R.DOWN,)),
)
# fmt: on
_MODULE_RULES = tuple((re.compile(pattern), roles) for pattern, roles in _MODULES)
_LAYER = re.compile(r"\b(?:layers|h|blocks)\.(\d{1,6})\b")

Overrides = Mapping[tuple[int | None, R], Packing | None]


def packed_bytes(elements: int, packing: Packing, item_bytes: int) -> int:
    """Bytes of the weights, and for each group of a scale and a bias (affine) or a one-byte scale (other modes)."""
    group_bytes = 2 * item_bytes if packing.mode is PackingMode.AFFINE else 1
    return elements * packing.bits // 8 + elements // packing.group_size * group_bytes


def packing_words(packing: Packing) -> str:
    """'4 bits, group 64', or the name of another mode than affine: 'mxfp4'."""
    if packing.mode is PackingMode.AFFINE:
        return f"{packing.bits} bits, group {packing.group_size}"
    return str(packing.mode.value)


def stated_quantize(quantization: Quantization | None, name: str) -> Quantize:
    """The stored quantisation as options of mlx_lm.convert; PLAIN for fp8, which is unpacked.

    Raises RefusedError for a quantisation that the model file `name` does not load.
    """
    if quantization is None:
        return PLAIN
    if quantization.mlx:
        return Quantize(packing=_default_packing(quantization))
    method, layout = quantization.method, quantization.format
    if method == "mxfp4":  # gpt-oss: its experts
        return Quantize(experts=MXFP4, rest=False)
    if method in {"awq", "gptq"}:
        return Quantize(packing=Packing(bits=4, group_size=quantization.group_size or 128))
    if method == "mxfp8":
        return Quantize(packing=Packing(bits=8, group_size=32, mode=PackingMode.MXFP8))
    if method == "modelopt" and layout == "NVFP4":
        return Quantize(packing=_NVFP4)
    if method == "compressed-tensors" and layout in _CONTAINERS:
        return Quantize(packing=_CONTAINERS[layout])
    if method == "bitnet" or (method == "fp8" and name in _TAKES_FP8):
        return PLAIN
    shown = f"{method} ({layout})" if layout else method
    raise RefusedError(f"mlx-lm: {name} does not load weights quantised with {unquoted(shown)}")


def stated_overrides(quantization: Quantization | None) -> Overrides:
    """How the modules that config.json lists are packed; None: not packed.

    A setting in config.json is False for not packed, True for packed like the rest, or has mode, bits and group size.
    """
    overrides: dict[tuple[int | None, R], Packing | None] = {}
    if quantization is None or not quantization.mlx:
        return overrides
    for path, setting in quantization.overrides:
        index = _LAYER.search(path)
        layer = None if index is None else int(index[1])
        roles = _roles(path if index is None else path[index.end() :])
        packing: Packing | None = None
        if isinstance(setting, Mapping):
            mode = setting.get("mode", "affine")
            packing = _stated_packing(mode, setting.get("bits"), setting.get("group_size"))
        elif setting:
            packing = _default_packing(quantization)
        overrides.update({(layer, role): packing for role in roles})
    return overrides


@lru_cache(maxsize=1024)
def _roles(tail: str) -> tuple[R, ...]:
    """Roles of the tensors in the module at the end of a path; none for an unknown module."""
    return next((roles for rule, roles in _MODULE_RULES if rule.search(tail)), ())


def _default_packing(quantization: Quantization) -> Packing:
    return _stated_packing(quantization.method, quantization.bits, quantization.group_size)


def _stated_packing(mode: object, bits: object, group_size: object) -> Packing:
    """The packing that config.json states. Raises HeaderError for one that MLX does not have."""
    kind = _MODES.get(mode) if isinstance(mode, str) else None
    if kind is None:
        raise HeaderError(f"config.json: MLX has no quantisation mode {str(mode)[:40]!r}")
    usual_group, usual_bits = DEFAULTS[kind]
    group_size = usual_group if group_size is None else group_size
    bits = usual_bits if bits is None else bits
    if not isinstance(bits, (int, float)) or bits not in WEIGHT_BITS:
        raise HeaderError(f"config.json: MLX does not support {str(bits)[:20]}-bit weights")
    if not isinstance(group_size, int) or group_size not in GROUP_SIZES[kind]:
        raise HeaderError(f"config.json: MLX does not support groups of {str(group_size)[:20]}")
    return Packing(bits=int(bits), group_size=group_size, mode=kind)


def read_quantize(
    named: str, *, bits: int | None = None, group_size: int | None = None
) -> Quantize | AsStored:
    """q4_g64, mxfp4, mixed_3_6, MXFP4-Q8_g64, bf16 -> options of mlx_lm.convert. Raises UsageError."""
    name = named.lower()
    if name in _STORED:
        return AS_STORED
    if name in _PLAIN:
        return PLAIN
    if name in _PACKED_EXPERTS_ONLY:
        return Quantize(experts=MXFP4, rest=False)
    if match := _PACKED_EXPERTS.fullmatch(name):
        return Quantize(packing=_affine_packing(match[1], match[2]), experts=MXFP4)
    if match := _AFFINE.fullmatch(name):
        return Quantize(packing=_affine_packing(match[1], match[2] or group_size))
    if name in _RECIPES:
        return Quantize(packing=_affine_packing(4, group_size), recipe=_RECIPES[name])
    if name in _MODES:
        return Quantize(packing=_requested_packing(_MODES[name], bits, group_size))
    choices = ", ".join(["bf16", "q4_g64", *_MODES, *_RECIPES])
    raise UsageError(f"unknown quantisation {named[:40]!r}; choose one of {choices}")


def _affine_packing(bits: str | int, group_size: str | int | None) -> Packing:
    return _requested_packing(
        PackingMode.AFFINE, int(bits), None if group_size is None else int(group_size)
    )


def _requested_packing(mode: PackingMode, bits: int | None, group_size: int | None) -> Packing:
    """The packing that a user requested. Raises UsageError for one that MLX does not have."""
    usual_group, usual_bits = DEFAULTS[mode]
    group, width = group_size or usual_group, bits or usual_bits
    widths = WEIGHT_BITS if mode is PackingMode.AFFINE else (usual_bits,)
    if group not in GROUP_SIZES[mode] or width not in widths:
        raise UsageError(
            f"MLX does not support {width} bits in groups of {group} with mode {mode.value}"
        )
    return Packing(bits=width, group_size=group, mode=mode)


def quantize_name(quantize: Quantize | AsStored) -> str:
    """The shortest name that `read_quantize` reads as this quantisation."""
    if isinstance(quantize, AsStored):
        return "stored"
    packing = quantize.packing
    if not quantize.rest:
        return "bf16" if quantize.experts is None else "mxfp4_experts"
    if quantize.recipe is not None:
        return str(quantize.recipe.value)
    if packing.mode is not PackingMode.AFFINE:
        return str(packing.mode.value)
    is_default_group = packing.group_size == DEFAULTS[PackingMode.AFFINE][0]
    group = "" if is_default_group else f"_g{packing.group_size}"
    experts = "" if quantize.experts is None else "mxfp4-"
    return f"{experts}q{packing.bits}{group}"
