"""Turns tensors into the number of weights they stand for: packed ones hold several in a number."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from edgekit.header.types import Quantization, Tensor

# Scales and the like: (how the name ends, how the packed weight it belongs to ends instead). A tensor
# is one of these only if that weight is there; without one it is a parameter like any other.
_COMPANIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (".scales", (".weight", ".qweight")),  # MLX; GPTQ and AWQ
    (".biases", (".weight",)),  # MLX
    (".qzeros", (".qweight",)),
    (".g_idx", (".qweight",)),
    ("_scales", ("_blocks",)),  # gpt-oss
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


def count_parameters(tensors: Iterable[Tensor], quantization: Quantization | None) -> int:
    """The weights of a model: packed ones unpacked, their scales left out. None: nothing is packed."""
    if quantization is None:
        return sum(tensor.elements for tensor in tensors)
    tensors = tuple(tensors)
    names = {tensor.name for tensor in tensors}
    overrides = dict(quantization.overrides)
    return sum(
        _unpacked(tensor, quantization, overrides)
        for tensor in tensors
        if not is_companion(tensor.name, names)
    )


def logical_elements(tensor: Tensor, quantization: Quantization | None) -> int:
    """How many weights one tensor stands for."""
    if quantization is None:
        return tensor.elements
    return _unpacked(tensor, quantization, dict(quantization.overrides))


def is_companion(name: str, names: Collection[str]) -> bool:
    """Whether a tensor only serves to unpack another one of `names`."""
    if not name.endswith(_ENDS):
        return False
    return name.endswith(_CACHE_SCALES) or any(
        name.endswith(end) and any(name.removesuffix(end) + other in names for other in others)
        for end, others in _COMPANIONS
    )


_Overrides = dict[str, "Mapping[str, Any] | bool"]


def _unpacked(tensor: Tensor, quantization: Quantization, overrides: _Overrides) -> int:
    bits = _packed_bits(tensor, quantization, overrides)
    return tensor.elements if bits is None else tensor.size_bytes * 8 // bits


def _packed_bits(tensor: Tensor, quantization: Quantization, overrides: _Overrides) -> int | None:
    """Bits of one weight in a packed tensor; None for a tensor of plain numbers."""
    if tensor.type.name not in {"U32", "I32"}:
        return _BITS_IN_A_BYTE.get((tensor.type.name, quantization.method))
    module, _, last = tensor.name.rpartition(".")
    if last not in {"weight", "qweight", "weight_packed"}:
        return None
    setting = overrides.get(module)
    own = setting if isinstance(setting, dict) else {}
    bits = own.get("bits", quantization.bits)
    return bits if isinstance(bits, int) and 0 < bits <= 32 else None
