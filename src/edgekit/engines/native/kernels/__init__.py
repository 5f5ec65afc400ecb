"""The arithmetic of the built-in engine: a small C extension, or numpy with the same interface."""

from __future__ import annotations

import os

from edgekit.engines.native.kernels.types import Kernels
from edgekit.errors import UsageError

KERNELS = ("native", "numpy")  # best first
VARIABLE = "EDGEKIT_KERNELS"


def choose_kernels(name: str | None = None) -> Kernels:
    """The kernels of that name, or of EDGEKIT_KERNELS, or the best that is installed."""
    name = name or os.environ.get(VARIABLE) or None
    if name is not None and name not in KERNELS:
        raise UsageError(f"unknown kernels {name!r}: choose {' or '.join(KERNELS)} ({VARIABLE})")
    if name != "numpy":
        try:
            from edgekit.engines.native.kernels.native import NativeKernels

            return NativeKernels()
        except ImportError as error:
            if name == "native":
                raise UsageError(
                    "the native kernels are not installed: reinstall edgekit from a "
                    "wheel, or on a machine with a C compiler"
                ) from error
    from edgekit.engines.native.kernels.numpy_kernels import NumpyKernels

    return NumpyKernels()
