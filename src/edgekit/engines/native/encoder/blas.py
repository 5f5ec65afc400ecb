"""numpy's own threads, held back while ours multiply: two crews on the same cores get in each other's way.

Measured with numpy 2.4 and OpenBLAS on two busy cores: 0.5 s of processor time with one thread of
BLAS, 2.5 s with its own choice.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# Where numpy's wheels have their OpenBLAS: Linux and Windows, macOS on Intel.
_PLACES = ("../numpy.libs/*openblas*", ".dylibs/*openblas*")


class _Blas(NamedTuple):
    get: Any
    set: Any


class _Holds:
    """How many passes hold it back, and what it was before the first."""

    lock = threading.Lock()
    count = 0
    threads = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """While in it, numpy multiplies in the thread that calls it. Nothing happens where its BLAS is another."""
    blas = _find()
    if blas is None:
        yield
        return
    with _Holds.lock:
        if not _Holds.count:
            _Holds.threads = blas.get()
            blas.set(1)
        _Holds.count += 1
    try:
        yield
    finally:
        with _Holds.lock:
            _Holds.count -= 1
            if not _Holds.count:
                blas.set(_Holds.threads)


@functools.cache
def _find() -> _Blas | None:
    folder = Path(np.__file__).parent
    for place in _PLACES:
        for path in sorted(folder.glob(place)):
            try:
                library = ctypes.CDLL(str(path))  # numpy has loaded it already
                return _Blas(
                    library.scipy_openblas_get_num_threads64_,
                    library.scipy_openblas_set_num_threads64_,
                )
            except (OSError, AttributeError):  # another build, with other names
                continue
    return None
