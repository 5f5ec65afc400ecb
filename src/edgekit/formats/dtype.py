"""Tensor types: the ids and names that files use, and the block sizes. One table for all formats.

GGML packs weights in blocks. A row lists the fields of a block, so that its size can be checked by
hand: Q4_0 is 2 + 16 bytes for 32 weights. The fields are those of the structs in
ggml/src/ggml-common.h, the ids those of enum ggml_type in ggml/include/ggml.h, llama.cpp @ b21e4de.
Names and widths of the others: safetensors 0.8, safetensors/src/tensor.rs, enum Dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgekit.errors import HeaderError, UnknownDtypeError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """The layout of a block of weights, and its names in the file formats."""

    name: str
    block_elements: int
    fields: tuple[tuple[str, int], ...]  # of one block: (field, bytes)
    ggml_id: int | None = None
    safetensors: str | None = None
    block_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_bytes", sum(size for _, size in self.fields))

    @property
    def bits_per_weight(self) -> float:
        return self.block_bytes * 8 / self.block_elements

    def row_bytes(self, elements: int) -> int:
        """Bytes of one row, or of a tensor without padding. HeaderError if it does not end with a block."""
        blocks, rest = divmod(elements, self.block_elements)
        if rest:
            raise HeaderError(
                f"{elements:,} elements are not a multiple of {self.name}'s block of"
                f" {self.block_elements}"
            )
        return blocks * self.block_bytes


def _row(name: str, ggml_id: int, block_elements: int = 1, **fields: int) -> TensorType:
    """A type that only GGML has."""
    return TensorType(
        name=name, block_elements=block_elements, fields=tuple(fields.items()), ggml_id=ggml_id
    )


def _number(
    name: str, size_bytes: int, *, ggml_id: int | None = None, per_block: int = 1
) -> TensorType:
    """A plain number, which has the same name in safetensors."""
    return TensorType(
        name=name,
        block_elements=per_block,
        fields=(("value", size_bytes),),
        ggml_id=ggml_id,
        safetensors=name,
    )


TENSOR_TYPES: tuple[TensorType, ...] = (
    # Numbers that both formats know.
    _number("F32", 4, ggml_id=0),
    _number("F16", 2, ggml_id=1),
    _number("BF16", 2, ggml_id=30),
    _number("F64", 8, ggml_id=28),
    _number("I8", 1, ggml_id=24),
    _number("I16", 2, ggml_id=25),
    _number("I32", 4, ggml_id=26),
    _number("I64", 8, ggml_id=27),
    # Numbers that only safetensors knows.
    _number("BOOL", 1),
    _number("U8", 1),
    _number("U16", 2),
    _number("U32", 4),
    _number("U64", 8),
    _number("C64", 8),
    _number("F8_E4M3", 1),
    _number("F8_E4M3FNUZ", 1),
    _number("F8_E5M2", 1),
    _number("F8_E5M2FNUZ", 1),
    _number("F8_E8M0", 1),
    # Less than a byte each: the block is the smallest group that fills whole bytes.
    _number("F6_E2M3", 3, per_block=4),
    _number("F6_E3M2", 3, per_block=4),
    _number("F4", 1, per_block=2),
    # GGML blocks: 32 weights with a scale (d) and perhaps a minimum (m).
    _row("Q4_0", 2, 32, d=2, qs=16),
    _row("Q4_1", 3, 32, d=2, m=2, qs=16),
    _row("Q5_0", 6, 32, d=2, qh=4, qs=16),
    _row("Q5_1", 7, 32, d=2, m=2, qh=4, qs=16),
    _row("Q8_0", 8, 32, d=2, qs=32),
    _row("Q8_1", 9, 32, d=2, s=2, qs=32),  # gguf-py says 4 + 4 + 32: d and s became halves in 2024
    _row("Q1_0", 41, 128, d=2, qs=16),
    _row("Q2_0", 42, 64, d=2, qs=16),
    # Super-blocks of 256: scales of scales.
    _row("Q2_K", 10, 256, scales=16, qs=64, d=2, dmin=2),
    _row("Q3_K", 11, 256, hmask=32, qs=64, scales=12, d=2),
    _row("Q4_K", 12, 256, d=2, dmin=2, scales=12, qs=128),
    _row("Q5_K", 13, 256, d=2, dmin=2, scales=12, qh=32, qs=128),
    _row("Q6_K", 14, 256, ql=128, qh=64, scales=16, d=2),
    _row("Q8_K", 15, 256, d=4, qs=256, bsums=32),
    # Codebooks.
    _row("IQ1_S", 19, 256, d=2, qs=32, qh=16),
    _row("IQ1_M", 29, 256, qs=32, qh=16, scales=8),
    _row("IQ2_XXS", 16, 256, d=2, qs=64),
    _row("IQ2_XS", 17, 256, d=2, qs=64, scales=8),
    _row("IQ2_S", 22, 256, d=2, qs=64, qh=8, scales=8),
    _row("IQ3_XXS", 18, 256, d=2, qs=96),
    _row("IQ3_S", 21, 256, d=2, qs=64, qh=8, signs=32, scales=4),
    _row("IQ4_NL", 20, 32, d=2, qs=16),
    _row("IQ4_XS", 23, 256, d=2, scales_h=2, scales_l=4, qs=128),
    # Ternary.
    _row("TQ1_0", 34, 256, qs=48, qh=4, d=2),
    _row("TQ2_0", 35, 256, qs=64, d=2),
    # Four-bit floats with shared exponents or scales.
    _row("MXFP4", 39, 32, e=1, qs=16),
    _row("NVFP4", 40, 64, d=4, qs=32),
)

# Files with these ids exist, but no current engine loads them.
REMOVED_GGML_IDS: Mapping[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

_BY_NAME = {row.name: row for row in TENSOR_TYPES}
_BY_GGML_ID = {row.ggml_id: row for row in TENSOR_TYPES if row.ggml_id is not None}
_BY_SAFETENSORS = {row.safetensors: row for row in TENSOR_TYPES if row.safetensors is not None}


def by_ggml_id(ggml_id: int) -> TensorType:
    """The type with this id in GGML. Raises UnknownDtypeError, with advice for an id that GGML has removed."""
    row = _BY_GGML_ID.get(ggml_id)
    if row is not None:
        return row
    if ggml_id in REMOVED_GGML_IDS:
        raise UnknownDtypeError(
            f"tensor type {ggml_id} ({REMOVED_GGML_IDS[ggml_id]}) was removed from ggml;"
            " requantise the file"
        )
    raise _unknown(f"tensor type {ggml_id}")


def by_safetensors(name: str) -> TensorType:
    row = _BY_SAFETENSORS.get(name)
    if row is None:
        raise _unknown(f"safetensors dtype {name[:40]!r}")
    return row


def by_name(name: str) -> TensorType:
    row = _BY_NAME.get(name)
    if row is None:
        raise _unknown(f"tensor type {name[:40]!r}")
    return row


def _unknown(what: str) -> UnknownDtypeError:
    return UnknownDtypeError(
        f"{what} is unknown to this version of edgekit; upgrade it, or add a row to formats/dtype.py"
    )
