"""What config.json says of packed weights -> how every matrix is stored, when no tensor directory tells it."""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.engines.mlx.packing import DEFAULTS, GROUP_SIZES, WEIGHT_BITS
from edgekit.engines.mlx.paths import module_of
from edgekit.engines.mlx.types import Packing, PackingMode, Quantize
from edgekit.errors import HeaderError, RefusedError
from edgekit.formats.types import Quantization
from edgekit.model.tensor_recipes import TensorRole
from edgekit.terminal import unquoted

Overrides = Mapping[tuple[int | None, TensorRole], Packing | None]

_MODES = {mode.value: mode for mode in PackingMode}
# Files whose sanitize takes fp8 blocks apart (weight_scale_inv).
_TAKES_FP8 = frozenset(
    {
        "deepseek_v3",
        "deepseek_v32",
        "mimo_v2_flash",
        "minimax",
        "minimax_m3_vl",
        "ministral3",
        "mistral4",
    }
)
_CONTAINERS = {  # utils.py:309, formats of compressed-tensors
    "nvfp4-pack-quantized": Packing(bits=4, group_size=16, mode=PackingMode.NVFP4),
    "mxfp4-pack-quantized": Packing(bits=4, group_size=32, mode=PackingMode.MXFP4),
    "pack-quantized": Packing(bits=4, group_size=32),
}
MXFP4 = Packing(bits=4, group_size=32, mode=PackingMode.MXFP4)
_MXFP8 = Packing(bits=8, group_size=32, mode=PackingMode.MXFP8)


def stated_quantize(quantization: Quantization | None, name: str) -> Quantize | None:
    """None: plain numbers (or fp8, which becomes them). Raises RefusedError for what mlx-lm does not load."""
    if quantization is None:
        return None
    if quantization.mlx:
        return Quantize(packing=_read(quantization))
    method, layout = quantization.method, quantization.format
    if method == "mxfp4":  # gpt-oss: its experts
        return Quantize(experts=MXFP4, rest=False)
    if method in {"awq", "gptq"}:
        return Quantize(packing=Packing(bits=4, group_size=quantization.group_size or 128))
    if method == "mxfp8":
        return Quantize(packing=_MXFP8)
    if method == "modelopt" and layout == "NVFP4":
        return Quantize(packing=_CONTAINERS["nvfp4-pack-quantized"])
    if method == "compressed-tensors" and layout in _CONTAINERS:
        return Quantize(packing=_CONTAINERS[layout])
    if method == "bitnet" or (method == "fp8" and name in _TAKES_FP8):
        return None
    told = f"{method} ({layout})" if layout else method
    raise RefusedError(f"mlx-lm: {name} does not load weights quantised with {unquoted(told)}")


def stated_overrides(quantization: Quantization | None) -> Overrides:
    """Modules with a setting of their own."""
    found: dict[tuple[int | None, TensorRole], Packing | None] = {}
    if quantization is not None and quantization.mlx:
        for path, setting in quantization.overrides:
            layer, roles = module_of(path)
            packing = _own(setting, quantization)
            found.update({(layer, role): packing for role in roles})
    return found


def _own(setting: object, quantization: Quantization) -> Packing | None:
    """False: not packed; True: like the rest; or a setting."""
    if not isinstance(setting, Mapping):
        return _read(quantization) if setting else None
    return _packing(setting.get("mode", "affine"), setting.get("bits"), setting.get("group_size"))


def _read(quantization: Quantization) -> Packing:
    return _packing(quantization.method, quantization.bits, quantization.group_size)


def _packing(mode: object, bits: object, group_size: object) -> Packing:
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
