"""The tensor types that the kernels unpack, native or numpy: known before either is loaded."""

from __future__ import annotations

from collections.abc import Iterable

from edgekit.errors import UnknownDtypeError
from edgekit.formats.types import Tensor
from edgekit.terminal import unquoted

# tests/unit/engines/test_stream_plan.py holds it against both kernels.
UNPACKED = frozenset({
    "F32", "F16", "BF16",
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4",
})  # fmt: skip


def check_types(tensors: Iterable[Tensor]) -> None:
    """UnknownDtypeError for the first that cannot be unpacked."""
    for tensor in tensors:
        if tensor.type.name not in UNPACKED:
            raise UnknownDtypeError(
                f"tensor {unquoted(tensor.name)}: the built-in engine does not support "
                f"the type {tensor.type.name} (engines/native/kernels has no row for it); engine "
                "llama.cpp may"
            )
