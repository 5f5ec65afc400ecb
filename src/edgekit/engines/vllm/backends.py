"""A card, a dtype and a head width -> the attention backend vLLM picks, as far as memory depends on it.

Order and conditions: platforms/cuda.py _get_backend_priorities and the backends' own checks (validate_configuration,
fa_utils.py get_flash_attn_version) @ 0.32.0. A backend matters for the block sizes its kernels take and for refusals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from edgekit.engines.vllm.caches import BY_NAME
from edgekit.errors import RefusedError

DEFAULT_BLOCK = 16  # config/cache.py DEFAULT_BLOCK_SIZE
UNQUANTIZED = frozenset({"auto", "float16", "bfloat16"})
FLASH_FP8 = frozenset({"fp8", "fp8_e4m3"})
TRITON_ONLY = frozenset(
    {"fp8_e5m2", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"}
)
LATENT_WIDTHS = frozenset({320, 512, 576})  # mla_attention.py get_supported_head_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeds:
    """What a layer wants of a backend."""

    capability: tuple[int, int]
    dtype: str
    cache_dtype: str
    head_dim: int  # of the layer
    model_head_dim: int = 0  # the widest of the model: some choices are made once for all layers
    block_size: int | None = None  # as the user set it
    sliding: bool = False
    sinks: bool = False
    softcap: bool = False
    bidirectional: bool = False  # pictures in a prompt see each other
    sparse: bool = False
    flashinfer: bool = False

    @property
    def major(self) -> int:
        return self.capability[0]

    @property
    def quantized(self) -> bool:
        return self.cache_dtype not in UNQUANTIZED and BY_NAME[self.cache_dtype].quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackend:
    name: str
    unit: int  # blocks must be a multiple of it
    window_block: int = 0  # the only block its kernel has for a sliding layer, where not 0


Candidate = Callable[[AttentionNeeds], int]  # the unit, 0 where the backend does not do it


def choose(ask: AttentionNeeds, *, latent: bool) -> AttentionBackend:
    """The first that takes all of it. Raises RefusedError where none does."""
    for name, takes in _latent_order(ask) if latent else _order(ask):
        unit = takes(ask)
        if unit and (ask.block_size is None or ask.block_size % unit == 0):
            _check_native(ask, name)
            fixed = _kernel_block(ask, ask.head_dim) if name == "FLASH_ATTN" else 0
            return AttentionBackend(name=name, unit=unit, window_block=fixed)
    raise RefusedError(
        f"no attention backend of vLLM takes head size {ask.head_dim}, {ask.dtype}, cache {ask.cache_dtype}"
        f"{f', blocks of {ask.block_size}' if ask.block_size else ''} on compute capability "
        f"{ask.capability[0]}.{ask.capability[1]}"
    )


def _check_native(ask: AttentionNeeds, name: str) -> None:
    """triton_attn.py, triton_mla.py: these kernels have no way around a dtype the card lacks."""
    if not name.startswith("TRITON"):
        return
    card = f"{ask.capability[0]}.{ask.capability[1]}"
    if ask.cache_dtype.startswith("fp8") and ask.capability < (8, 9):
        raise RefusedError(
            f"an fp8 cache needs compute capability 8.9 or higher here (this GPU has {card})"
        )
    if ask.cache_dtype == "bfloat16" and ask.capability < (8, 0):
        raise RefusedError(
            f"a bfloat16 cache needs compute capability 8.0 or higher (this GPU has {card})"
        )


def common_unit(backends: tuple[AttentionBackend, ...]) -> int:
    """What blocks must be a multiple of when layers have different backends."""
    return math.lcm(*(backend.unit for backend in backends))


def default_block(unit: int) -> int:
    return DEFAULT_BLOCK if DEFAULT_BLOCK % unit == 0 else unit


def _order(ask: AttentionNeeds) -> tuple[tuple[str, Candidate], ...]:
    flash, infer = ("FLASH_ATTN", _flash), ("FLASHINFER", _flashinfer)
    rest = (("TRITON_ATTN", _triton), ("FLEX_ATTENTION", _flex), ("TURBOQUANT", _turboquant))
    if ask.bidirectional and ask.major == 9:
        return (("TRITON_FLASH_ATTN", _shared), infer, *rest)
    return (infer, flash, *rest) if ask.major == 10 else (flash, infer, *rest)


def _latent_order(ask: AttentionNeeds) -> tuple[tuple[str, Candidate], ...]:
    triton = ("TRITON_MLA", _triton_latent)
    if ask.sparse:
        flashmla = ("FLASHMLA_SPARSE", _flashmla_sparse)
        infer = ("FLASHINFER_MLA_SPARSE", _flashinfer_sparse)
        first = (infer, flashmla) if ask.quantized else (flashmla, infer)
        return first if ask.major == 10 else (("FLASH_ATTN_MLA_SPARSE", _flash_sparse), flashmla)
    if ask.major == 10:
        return (
            ("FLASHINFER_MLA", _flashinfer_latent),
            ("CUTLASS_MLA", _cutlass),
            ("FLASHMLA", _flashmla),
            triton,
        )
    if ask.major == 12:
        return (triton,)
    return (("FLASH_ATTN_MLA", _flash_latent), ("FLASHMLA", _flashmla), triton)


def _flash(ask: AttentionNeeds) -> int:
    if ask.capability < (8, 0) or ask.dtype == "float32" or ask.head_dim % 8 or ask.bidirectional:
        return 0
    newest = ask.major in {9, 10, 11}  # where FlashAttention 4 runs
    if ask.head_dim > (512 if newest else 256):
        return 0
    if ask.sinks and ask.major not in {9, 10}:
        return 0
    if ask.quantized and not _flash_takes_fp8(ask):
        return 0
    return _kernel_block(ask, ask.model_head_dim or ask.head_dim) or DEFAULT_BLOCK


def _shared(ask: AttentionNeeds) -> int:
    """Pictures go to Triton, the rest to FlashAttention: both must take the block."""
    return _flash(replace(ask, bidirectional=False))


def _kernel_block(ask: AttentionNeeds, head_dim: int) -> int:
    """FlashAttention 4 has kernels of its own for wide heads, with one size of page; 0 where any will do.

    flash_attn.py _get_sm90_fa4_fp8_kv_block_size, _get_fa4_hd256_block_size.
    """
    if ask.major == 9 and ask.quantized and head_dim == 512:
        return 64
    plain = not (ask.sinks or ask.softcap or ask.quantized or ask.bidirectional)
    return 128 if head_dim == 256 and ask.major == 10 and plain else 0


def _flash_takes_fp8(ask: AttentionNeeds) -> bool:
    if ask.cache_dtype not in FLASH_FP8 or ask.major not in {9, 10}:
        return False
    if ask.major == 9:
        return ask.head_dim <= 256 or ask.head_dim == 512
    return ask.head_dim <= 128


def _triton(ask: AttentionNeeds) -> int:
    taken = UNQUANTIZED | FLASH_FP8 | TRITON_ONLY
    return DEFAULT_BLOCK if ask.head_dim >= 32 and ask.cache_dtype in taken else 0


def _flex(ask: AttentionNeeds) -> int:
    return DEFAULT_BLOCK if ask.cache_dtype in UNQUANTIZED and not ask.sinks else 0


def _turboquant(ask: AttentionNeeds) -> int:
    if ask.dtype == "float32" or ask.sinks or ask.sliding:
        return 0
    return DEFAULT_BLOCK if ask.cache_dtype.startswith("turboquant_") else 0


def _flashinfer(ask: AttentionNeeds) -> int:
    known = ask.cache_dtype in UNQUANTIZED | FLASH_FP8 | {"fp8_e5m2"}
    usable = ask.flashinfer and ask.dtype != "float32" and ask.capability >= (7, 5)
    if not usable or ask.head_dim not in {64, 128, 256} or (ask.sinks and ask.major != 10):
        return 0
    fp4 = ask.cache_dtype.startswith("nvfp4") and ask.cache_dtype != "nvfp4_ds_mla"
    return DEFAULT_BLOCK if known or (fp4 and ask.major == 10) else 0


def _flash_latent(ask: AttentionNeeds) -> int:
    fits = ask.major == 9 and ask.head_dim in LATENT_WIDTHS and ask.dtype != "float32"
    return DEFAULT_BLOCK if fits and ask.cache_dtype in UNQUANTIZED else 0


def _flashmla(ask: AttentionNeeds) -> int:
    taken = ask.cache_dtype in UNQUANTIZED | FLASH_FP8 and ask.dtype != "float32"
    return 64 if taken and ask.major in {9, 10} and ask.head_dim in LATENT_WIDTHS else 0


def _cutlass(ask: AttentionNeeds) -> int:
    taken = ask.cache_dtype in UNQUANTIZED | FLASH_FP8 and ask.dtype != "float32"
    return 128 if taken and ask.major == 10 and ask.head_dim in LATENT_WIDTHS else 0


def _flashinfer_latent(ask: AttentionNeeds) -> int:
    taken = ask.cache_dtype in UNQUANTIZED | FLASH_FP8 and ask.dtype != "float32"
    return 32 if taken and ask.flashinfer and ask.head_dim in LATENT_WIDTHS else 0


def _triton_latent(ask: AttentionNeeds) -> int:
    taken = ask.cache_dtype in UNQUANTIZED | FLASH_FP8 and ask.dtype != "float32"
    return DEFAULT_BLOCK if taken else 0


def _flash_sparse(ask: AttentionNeeds) -> int:
    taken = ask.cache_dtype in UNQUANTIZED and ask.dtype != "float32"
    return 64 if taken and ask.major == 9 else 0


def _flashmla_sparse(ask: AttentionNeeds) -> int:
    taken = ask.cache_dtype in {"auto", "bfloat16", "fp8", "fp8_ds_mla"}
    return 64 if taken and ask.major in {9, 10} and ask.head_dim == 576 else 0


def _flashinfer_sparse(ask: AttentionNeeds) -> int:
    """Chosen whether or not the package is there."""
    return 32 if ask.cache_dtype in UNQUANTIZED | FLASH_FP8 and ask.head_dim in {512, 576} else 0
