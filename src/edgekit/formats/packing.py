"""Turns tensors into the number of weights they stand for: packed ones hold several in a number."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from edgekit.formats.quantization import whole_bits
from edgekit.formats.types import Quantization, Tensor

# Scales and the like: (how the name ends, how the packed weight it belongs to ends instead). A tensor
# is one of these only if that weight is there; without one it is a parameter like any other.
_COMPANIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (".scales", (".weight", ".qweight")),  # MLX; GPTQ and AWQ
    (".biases", (".weight",)),  # MLX
    (".qzeros", (".qweight",)),
    (".g_idx", (".qweight",)),
    ("_scales", ("_blocks",)),  # gpt-oss
    ("_scales", ("",)),  # EETQ: weight_scales
    ("_scale", ("", "_packed")),  # fp8, ModelOpt, compressed-tensors: weight_scale
    ("_scale_2", ("",)),
    ("_scale_inv", ("",)),
    ("_global_scale", ("", "_packed")),
    ("_zero_point", ("", "_packed")),
    ("_shape", ("_packed",)),
    ("_g_idx", ("_packed",)),
    (".scale", (".weight",)),  # DeepSeek's own names
    (".input_scale", (".weight",)),
    (".input_global_scale", (".weight", ".weight_packed")),
    (".input_scale_ub", (".weight",)),
    (".output_scale", (".weight", ".weight_packed")),
    (".pre_quant_scale", (".weight",)),
    (".activation_scale", (".weight",)),
    (".SCB", (".weight",)),  # bitsandbytes, 8 bits
    (".weight_format", (".weight",)),
    (".absmax", ("",)),  # bitsandbytes, 4 bits
    (".quant_map", ("",)),
    (".nested_absmax", ("",)),
    (".nested_quant_map", ("",)),
    (".quant_state.bitsandbytes__nf4", ("",)),
    (".quant_state.bitsandbytes__fp4", ("",)),
)
_CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale")  # of the KV cache: they belong to no weight

_ENDS = tuple(end for end, _ in _COMPANIONS) + _CACHE_SCALES

# Methods that put weights into bytes, and how many bits one takes there.
_BITS_IN_A_BYTE: Mapping[tuple[str, str], int] = {
    ("U8", "bitnet"): 2,
    ("U8", "bitsandbytes"): 4,
    ("U8", "compressed-tensors"): 4,
    ("U8", "fp8"): 4,  # beside fp8 tensors: experts in NVFP4
    ("I8", "fp8"): 4,  # experts in MXFP4 (transformers, integrations/deepgemm.py)
    ("U8", "fp_quant"): 4,
    ("U8", "modelopt"): 4,
    ("U8", "mxfp4"): 4,
    ("U8", "nvfp4"): 4,
    ("U8", "quark"): 4,
}


# Methods whose tensors are told apart above and below. Others pack weights in ways of their own.
_KNOWN_METHODS = frozenset(
    {
        "affine",
        "auto-round",
        "awq",
        "bitnet",
        "bitsandbytes",
        "compressed-tensors",
        "eetq",
        "fbgemm_fp8",
        "fp8",
        "fp_quant",
        "gptq",
        "modelopt",
        "mxfp4",
        "mxfp8",
        "nvfp4",
        "quark",
        "torchao",
    }
)
_WHOLE_NUMBERS = frozenset({"U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


def count_weights(tensors: Iterable[Tensor], quantization: Quantization | None) -> int | None:
    """The weights of a model: packed ones unpacked, their scales left out.

    `quantization` None: nothing is packed. The answer is None where it cannot be told how many weights
    a packed tensor holds.
    """
    if quantization is None:
        return sum(tensor.elements for tensor in tensors)
    named = {tensor.name: tensor for tensor in tensors}
    overrides = dict(quantization.overrides)
    counts = [
        _unpacked(tensor, quantization, overrides, named)
        for tensor in named.values()
        if not is_companion(tensor.name, named)
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def is_companion(name: str, names: Collection[str]) -> bool:
    """Whether a tensor only serves to unpack another one of `names`."""
    if not name.endswith(_ENDS):
        return False
    return name.endswith(_CACHE_SCALES) or any(
        name.endswith(end) and any(name.removesuffix(end) + other in names for other in others)
        for end, others in _COMPANIONS
    )


_Overrides = dict[str, "Mapping[str, Any] | bool"]


def _unpacked(
    tensor: Tensor, quantization: Quantization, overrides: _Overrides, named: Mapping[str, Tensor]
) -> int | None:
    """How many weights one tensor stands for; None for a packing that is not known."""
    kind = tensor.type.name
    if kind not in _WHOLE_NUMBERS:
        return tensor.elements
    if quantization.method not in _KNOWN_METHODS:
        return None
    module, _, last = tensor.name.rpartition(".")
    if kind in {"U32", "I32"} and last in {"weight", "qweight", "weight_packed"}:
        bits = _bits_of(module, quantization, overrides)
        return tensor.size_bytes * 8 // bits if bits else _scaled(module, quantization, named)
    in_a_byte = _BITS_IN_A_BYTE.get((kind, quantization.method))
    return tensor.elements if in_a_byte is None else tensor.size_bytes * 8 // in_a_byte


def _scaled(module: str, quantization: Quantization, named: Mapping[str, Tensor]) -> int | None:
    """By the scales beside it: one for each group of weights."""
    scales = named.get(f"{module}.scales") or named.get(f"{module}.weight_scale")
    if scales is None or quantization.group_size is None or quantization.mlx:
        return None
    return scales.elements * quantization.group_size


def _bits_of(module: str, quantization: Quantization, overrides: _Overrides) -> int | None:
    setting = overrides.get(module)
    own = setting if isinstance(setting, dict) else {}
    bits = whole_bits(own.get("bits", quantization.bits))
    return bits if bits is not None and bits <= 32 else None
