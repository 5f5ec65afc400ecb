"""Named mixes of tensor types: "Q4_K_M" or general.file_type 15 -> average bits per weight.

For models of which only a name is known. A mix gives some tensors more bits than others, so the average
depends on the model: real Q4_K_M files have 4.69 to 6.40 bits. If the tensor directory was read,
add up the tensors instead. Ids: enum llama_ftype in include/llama.h, llama.cpp @ b21e4de.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.formats.dtype import by_name
from edgekit.sources.filenames import SHORT_MIXES


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    name: str
    file_type: int
    bits_per_weight: float


def _average(name: str, file_type: int, bits_per_weight: float) -> Mix:
    """A mix of several types: the average over real files."""
    return Mix(name=name, file_type=file_type, bits_per_weight=bits_per_weight)


def _mostly(name: str, file_type: int, tensor_type: str = "") -> Mix:
    """A mix with one type for nearly all tensors: the bits of that type.

    Embedding and head often get more, so small models are above it: Q2_K is 2.625 by its layout, and
    llama.cpp's tools/quantize/README.md measured 3.16 on Llama-3.1-8B.
    """
    bits_per_weight = by_name(tensor_type or name).bits_per_weight
    return Mix(name=name, file_type=file_type, bits_per_weight=bits_per_weight)


MIXES: tuple[Mix, ...] = (
    _mostly("F32", 0),
    _mostly("F16", 1),
    _mostly("BF16", 32),
    _mostly("Q4_0", 2),
    _mostly("Q4_1", 3),
    _mostly("Q5_0", 8),
    _mostly("Q5_1", 9),
    _mostly("Q8_0", 7),
    _mostly("Q1_0", 40),
    _mostly("Q2_0", 41),
    _mostly("Q2_K", 10),
    _mostly("Q2_K_S", 21, "Q2_K"),
    _mostly("Q3_K_S", 11, "Q3_K"),
    _average("Q3_K_M", 12, 3.91),
    _average("Q3_K_L", 13, 4.27),
    _average("Q4_K_S", 14, 4.58),
    _average("Q4_K_M", 15, 4.85),
    _average("Q5_K_S", 16, 5.54),
    _average("Q5_K_M", 17, 5.69),
    _mostly("Q6_K", 18),
    _mostly("IQ1_S", 24),
    _mostly("IQ1_M", 31),
    _mostly("IQ2_XXS", 19),
    _mostly("IQ2_XS", 20),
    _mostly("IQ2_S", 28),
    _average("IQ2_M", 29, 2.7),  # this and the next two: tools/quantize/quantize.cpp
    _average("IQ3_XS", 22, 3.3),
    _average("IQ3_M", 27, 3.66),
    _mostly("IQ3_XXS", 23),
    _mostly("IQ3_S", 26),
    _mostly("IQ4_NL", 25),
    _mostly("IQ4_XS", 30),
    _mostly("TQ1_0", 36),
    _mostly("TQ2_0", 37),
    _mostly("MXFP4_MOE", 38, "MXFP4"),
    _mostly("NVFP4", 39),
)

_GUESSED = 1024  # LLAMA_FTYPE_GUESSED: added if the tool guessed the type
_BY_NAME = {mix.name: mix for mix in MIXES}
_BY_FILE_TYPE = {mix.file_type: mix for mix in MIXES}


def mix_by_name(name: str) -> Mix | None:
    """None if the name is not a mix; it may still be a tensor type."""
    name = name.upper()
    return _BY_NAME.get(SHORT_MIXES.get(name, name))


def mix_by_file_type(file_type: int) -> Mix | None:
    """The mix of `general.file_type`; None for an unknown id."""
    return _BY_FILE_TYPE.get(file_type & ~_GUESSED)
