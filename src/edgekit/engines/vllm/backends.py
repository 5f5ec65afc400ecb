"""A card, a dtype and a head width -> the attention backend vLLM picks, as far as memory depends on it.

Order and conditions: platforms/cuda.py _get_backend_priorities and the backends' own checks (validate_configuration,
fa_utils.py get_flash_attn_version) @ 0.32.0. A backend matters for the block sizes its kernels take and for refusals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from edgekit.engines.vllm.caches import BY_NAME
from edgekit.errors import RefusedError

DEFAULT_BLOCK = 16  # config/cache.py DEFAULT_BLOCK_SIZE
UNQUANTIZED = frozenset({"auto", "float16", "bfloat16"})
FLASH_FP8 = frozenset({"fp8", "fp8_e4m3"})
PLAIN_OR_FP8 = UNQUANTIZED | FLASH_FP8
TRITON_ONLY = frozenset(
    {"fp8_e5m2", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"}
)
LATENT_WIDTHS = frozenset({320, 512, 576})  # mla_attention.py get_supported_head_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeds:
    """What a layer needs from a backend."""

    capability: tuple[int, int]
    dtype: str
    cache_dtype: str
    head_dim: int  # of the layer
    model_head_dim: int = 0  # the widest of the model: some kernels are chosen once for all layers
    block_size: int | None = None  # as the user set it
    sliding: bool = False
    sinks: bool = False
    softcap: bool = False
    bidirectional: bool = False  # image tokens attend to each other both ways
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
    window_block: int = 0  # the only block size of its kernel for sliding layers; 0: any


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentBackend:
    """A backend of latent attention (MLA), and what it supports."""

    unit: int
    cache_dtypes: frozenset[str]
    majors: frozenset[int] | None = None  # of the compute capability; None: any
    head_dims: frozenset[int] | None = None  # None: any
    float32: bool = False
    needs_flashinfer: bool = False


LATENT_BACKENDS = {
    "FLASH_ATTN_MLA": LatentBackend(
        unit=16, cache_dtypes=UNQUANTIZED, majors=frozenset({9}), head_dims=LATENT_WIDTHS
    ),
    "FLASHMLA": LatentBackend(
        unit=64, cache_dtypes=PLAIN_OR_FP8, majors=frozenset({9, 10}), head_dims=LATENT_WIDTHS
    ),
    "CUTLASS_MLA": LatentBackend(
        unit=128, cache_dtypes=PLAIN_OR_FP8, majors=frozenset({10}), head_dims=LATENT_WIDTHS
    ),
    "FLASHINFER_MLA": LatentBackend(
        unit=32, cache_dtypes=PLAIN_OR_FP8, head_dims=LATENT_WIDTHS, needs_flashinfer=True
    ),
    "TRITON_MLA": LatentBackend(unit=16, cache_dtypes=PLAIN_OR_FP8),
    "FLASH_ATTN_MLA_SPARSE": LatentBackend(
        unit=64, cache_dtypes=UNQUANTIZED, majors=frozenset({9})
    ),
    "FLASHMLA_SPARSE": LatentBackend(
        unit=64,
        cache_dtypes=frozenset({"auto", "bfloat16", "fp8", "fp8_ds_mla"}),
        majors=frozenset({9, 10}),
        head_dims=frozenset({576}),
        float32=True,
    ),
    "FLASHINFER_MLA_SPARSE": LatentBackend(  # chosen even if the package is missing
        unit=32, cache_dtypes=PLAIN_OR_FP8, head_dims=frozenset({512, 576}), float32=True
    ),
}


def choose(needs: AttentionNeeds, *, latent: bool) -> AttentionBackend:
    """The first backend that supports everything. Raises RefusedError if there is none."""
    card = f"{needs.capability[0]}.{needs.capability[1]}"
    for name in _latent_order(needs) if latent else _order(needs):
        unit = _latent_unit(LATENT_BACKENDS[name], needs) if latent else _unit(name, needs)
        if not unit or (needs.block_size is not None and needs.block_size % unit):
            continue
        if name.startswith("TRITON"):  # triton_attn.py, triton_mla.py: no fallback for a dtype
            if needs.cache_dtype.startswith("fp8") and needs.capability < (8, 9):
                raise RefusedError(
                    f"an fp8 cache needs compute capability 8.9 or higher here (this GPU has {card})"
                )
            if needs.cache_dtype == "bfloat16" and needs.capability < (8, 0):
                raise RefusedError(
                    f"a bfloat16 cache needs compute capability 8.0 or higher (this GPU has {card})"
                )
        fixed = _kernel_block(needs, needs.head_dim) if name == "FLASH_ATTN" else 0
        return AttentionBackend(name=name, unit=unit, window_block=fixed)
    blocks = f", blocks of {needs.block_size}" if needs.block_size else ""
    raise RefusedError(
        f"no attention backend of vLLM takes head size {needs.head_dim}, {needs.dtype}, "
        f"cache {needs.cache_dtype}{blocks} on compute capability {card}"
    )


def common_unit(backends: tuple[AttentionBackend, ...]) -> int:
    """What blocks must be a multiple of if layers have different backends."""
    return math.lcm(*(backend.unit for backend in backends))


def default_block(unit: int) -> int:
    return DEFAULT_BLOCK if DEFAULT_BLOCK % unit == 0 else unit


def _order(needs: AttentionNeeds) -> tuple[str, ...]:
    rest = ("TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
    if needs.bidirectional and needs.major == 9:
        return ("TRITON_FLASH_ATTN", "FLASHINFER", *rest)
    if needs.major == 10:
        return ("FLASHINFER", "FLASH_ATTN", *rest)
    return ("FLASH_ATTN", "FLASHINFER", *rest)


def _latent_order(needs: AttentionNeeds) -> tuple[str, ...]:
    if needs.sparse and needs.major == 10:
        order = ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")
        return order[::-1] if needs.quantized else order
    if needs.sparse:
        return ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE")
    if needs.major == 10:
        return ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA")
    if needs.major == 12:
        return ("TRITON_MLA",)
    return ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")


def _latent_unit(backend: LatentBackend, needs: AttentionNeeds) -> int:
    """What blocks must be a multiple of; 0 if the backend does not support the layer."""
    supported = (
        needs.cache_dtype in backend.cache_dtypes
        and (backend.float32 or needs.dtype != "float32")
        and (backend.majors is None or needs.major in backend.majors)
        and (backend.head_dims is None or needs.head_dim in backend.head_dims)
        and (needs.flashinfer or not backend.needs_flashinfer)
    )
    return backend.unit if supported else 0


def _unit(name: str, needs: AttentionNeeds) -> int:
    """What blocks must be a multiple of; 0 if the backend does not support the layer."""
    cache_dtype = needs.cache_dtype
    match name:
        case "FLASH_ATTN":
            return _flash(needs)
        case "TRITON_FLASH_ATTN":  # images go to Triton, the rest to FlashAttention
            return _flash(replace(needs, bidirectional=False))
        case "FLASHINFER":
            supported = _flashinfer_supports(needs)
        case "TRITON_ATTN":
            supported = needs.head_dim >= 32 and cache_dtype in PLAIN_OR_FP8 | TRITON_ONLY
        case "FLEX_ATTENTION":
            supported = cache_dtype in UNQUANTIZED and not needs.sinks
        case _:  # TURBOQUANT
            plain = needs.dtype != "float32" and not needs.sinks and not needs.sliding
            supported = plain and cache_dtype.startswith("turboquant_")
    return DEFAULT_BLOCK if supported else 0


def _flash(needs: AttentionNeeds) -> int:
    head_dim, major = needs.head_dim, needs.major
    if needs.capability < (8, 0) or needs.dtype == "float32" or needs.bidirectional:
        return 0
    has_fa4 = major in {9, 10, 11}
    if head_dim % 8 or head_dim > (512 if has_fa4 else 256):
        return 0
    if needs.sinks and major not in {9, 10}:
        return 0
    if needs.quantized:
        fits = head_dim <= 256 or head_dim == 512 if major == 9 else head_dim <= 128
        if needs.cache_dtype not in FLASH_FP8 or major not in {9, 10} or not fits:
            return 0
    return _kernel_block(needs, needs.model_head_dim or head_dim) or DEFAULT_BLOCK


def _kernel_block(needs: AttentionNeeds, head_dim: int) -> int:
    """The only block size of FlashAttention 4's kernels for wide heads; 0 if any size will do.

    flash_attn.py _get_sm90_fa4_fp8_kv_block_size, _get_fa4_hd256_block_size.
    """
    if needs.major == 9 and needs.quantized and head_dim == 512:
        return 64
    plain = not (needs.sinks or needs.softcap or needs.quantized or needs.bidirectional)
    return 128 if head_dim == 256 and needs.major == 10 and plain else 0


def _flashinfer_supports(needs: AttentionNeeds) -> bool:
    cache_dtype = needs.cache_dtype
    if not needs.flashinfer or needs.dtype == "float32" or needs.capability < (7, 5):
        return False
    if needs.head_dim not in {64, 128, 256} or (needs.sinks and needs.major != 10):
        return False
    fp4 = cache_dtype.startswith("nvfp4") and cache_dtype != "nvfp4_ds_mla"
    return cache_dtype in PLAIN_OR_FP8 | {"fp8_e5m2"} or (fp4 and needs.major == 10)
