"""How mlx-lm is started, in the names of its own flags."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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

DEFAULT_PREFILL_STEP = 2048  # generate.py:323, mlx-lm 0.32.2, as are all sources below
DEFAULT_QUANTIZED_KV_START = 5000  # generate.py: DEFAULT_QUANTIZED_KV_START
DEFAULT_KV_GROUP = 64
MAX_KV_SIZE_KEEP = 4  # cache.py:36: the first tokens, which a --max-kv-size cache never drops


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxSetup:
    """The flags of mlx_lm.generate, and how the weights are stored.

    `max_tokens` are the last ones of the load's context: a context of 4096 with 96 new tokens is a prompt of 4000. With
    `quantize` None an unquantised repository is estimated as it would be after conversion to 4 bits, group 64.
    """

    max_tokens: int = 0
    max_kv_size: int | None = None
    kv_bits: int | None = None
    kv_group_size: int = DEFAULT_KV_GROUP
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START
    prefill_step_size: int = DEFAULT_PREFILL_STEP
    quantize: Quantize | AsStored | None = None
