"""TABLE of vLLM's cache dtypes -> bytes of one token's key and value in one head.

Names are config/cache.py CacheDType, sizes utils/torch_utils.py and the backends' customize_spec, all @ 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.engines.vllm.types import DTYPE_BYTES
from edgekit.errors import UsageError

SCALE_BYTES = 4  # an f32 beside each key and each value
PACKED_LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}  # mla_attention.py get_kv_cache_spec


def _plain(element_bytes: int) -> Callable[[int, int], int]:
    return lambda key, value: (key + value) * element_bytes


def _scaled(key: int, value: int) -> int:
    return key + value + 2 * SCALE_BYTES  # triton_attn.py customize_spec


def _scaled_halves(key: int, value: int) -> int:
    return key // 2 + value // 2 + 2 * SCALE_BYTES


def _turbo(key_bits: int, value_bits: int) -> Callable[[int, int], int]:
    """turboquant/config.py slot_size_aligned: fp8 keys bare, others with a norm; values with scale and zero."""

    def size(key: int, _value: int) -> int:
        keys = key if key_bits == 8 else -(-key * key_bits // 8) + 2
        slot = keys + -(-key * value_bits // 8) + 4
        return slot + slot % 2

    return size


def _nvfp4(key: int, value: int) -> int:
    return sum(width // 2 + width // 16 for width in (key, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDtype:
    name: str
    head_bytes: Callable[[int, int], int]  # widths of a key and a value -> bytes of both
    quantized: bool = True

    @property
    def packs_boundaries(self) -> bool:
        """The first and last layers of a model without recurrences stay as they are."""
        return self.name.startswith("turboquant_")


def _row(name: str, head_bytes: Callable[[int, int], int], *, quantized: bool = True) -> CacheDtype:
    return CacheDtype(name=name, head_bytes=head_bytes, quantized=quantized)


TABLE: tuple[CacheDtype, ...] = (
    *(_row(name, _plain(size), quantized=False) for name, size in DTYPE_BYTES.items()),
    _row("fp8", _plain(1)),
    _row("fp8_e4m3", _plain(1)),
    _row("fp8_e5m2", _plain(1)),
    _row("fp8_inc", _plain(1)),
    _row("fp8_ds_mla", _plain(1)),
    _row("nvfp4_ds_mla", _plain(1)),
    _row("turboquant_k8v4", _turbo(8, 4)),
    _row("turboquant_4bit_nc", _turbo(4, 4)),
    _row("turboquant_k3v4_nc", _turbo(3, 4)),
    _row("turboquant_3bit_nc", _turbo(3, 3)),
    _row("ultraquant_4bit", _plain(1)),
    _row("int4_per_token_head", _scaled_halves),
    _row("int8_per_token_head", _scaled),
    _row("fp8_per_token_head", _scaled),
    _row("nvfp4", _nvfp4),
    _row("nvfp4_4over6", _nvfp4),
)
BY_NAME: Mapping[str, CacheDtype] = {row.name: row for row in TABLE}
NAMES = ("auto", *(row.name for row in TABLE if row.name != "float32"))


def check_name(name: str) -> None:
    if name not in NAMES:
        raise UsageError(f"unknown cache dtype {name[:40]!r}; choose one of {', '.join(NAMES)}")


def resolve_auto(config: Mapping[str, Any], *, latent: bool) -> str:
    """What "auto" means for a checkpoint: "auto" itself, or the scheme it was calibrated for.

    torch_utils.py get_kv_cache_quant_algo_string (ModelOpt), attention.py Attention.__init__ (compressed-tensors).
    """
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return "auto"
    method = str(quantization.get("quant_method") or "")
    if method.startswith("modelopt"):
        return _modelopt(quantization)
    stated = isinstance(quantization.get("kv_cache_scheme"), Mapping)
    if method == "compressed-tensors" and stated and not latent:
        return "fp8"
    return "auto"


def _modelopt(quantization: Mapping[str, Any]) -> str:
    nested = quantization.get("quantization")
    inner = nested if isinstance(nested, Mapping) else quantization
    places = (
        (part, key)
        for key in ("kv_cache_scheme", "kv_cache_quant_algo")
        for part in (inner, quantization)
    )
    stated = next((part[key] for part, key in places if part.get(key)), None)
    if isinstance(stated, Mapping):
        stated = _scheme(stated)
    known = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
    return known.get(str(stated).lower(), "auto")


def _scheme(scheme: Mapping[str, Any]) -> str:
    if scheme.get("type") != "float":
        return ""
    if scheme.get("num_bits") == 8 and scheme.get("dynamic") is False:
        return "fp8"
    return "nvfp4" if scheme.get("num_bits") == 4 else ""
