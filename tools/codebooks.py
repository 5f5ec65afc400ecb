"""Writes src/edgekit/engines/native/kernels/codebooks.bin: the codebooks of the IQ types, from the gguf package.

Usage: python tools/codebooks.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import quants

from edgekit.engines.native.kernels.codebooks import CODEBOOKS, FILE

PATH = Path(__file__).parents[1] / "src/edgekit/engines/native/kernels" / FILE


def points(name: str) -> bytes:
    """The points of one codebook as signed bytes, in the order of their codes."""
    kind = getattr(quants, name)
    kind.init_grid()
    grid = np.asarray(kind.grid)
    book = CODEBOOKS[name]
    if grid.shape[-2:] != (book.points, book.width):
        raise SystemExit(f"{name} is {grid.shape[-2:]} in gguf, not what codebooks.py says")
    return grid.astype(np.int8).tobytes()


def all_points() -> bytes:
    return b"".join(points(name) for name in CODEBOOKS)


if __name__ == "__main__":
    written = PATH.write_bytes(all_points())
    print(f"{PATH.name}: {written:,} bytes")
