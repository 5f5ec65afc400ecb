"""Floats of scratch that a thread's kernels need, whichever kernels are installed.

The bill stands before a kernel is chosen, so it counts the larger need. The kernels say their own
in `scratch_floats` and `attend_floats`; tests/unit/embed/test_cache_kernels.py holds them below these.
"""

from __future__ import annotations

from edgekit.formats.dtype import TensorType

TILE_FLOATS = 64 * 1024  # weights that numpy unpacks before it multiplies; the C ones need less
UNPACKED_FLOATS = 16 * 1024  # of keys, and of values, that numpy unpacks at a time: or one cell
MOST_CELLS = 512  # whose scores are held at a time
QUERY_ROWS = 32  # that score them together
ROW_FLOATS = 3  # of each: the largest score, its sum, and what the sum before shrinks by


def multiply_floats(kind: TensorType, columns: int) -> int:
    """For rows of so many columns; HeaderError where they do not end on a block."""
    kind.row_bytes(columns)
    return max(TILE_FLOATS, columns)


def attend_floats(rows: int, head_dim: int) -> int:
    """For so many queries over any number of cells. Queries go some at a time, so few need as much."""
    del rows
    unpacked = 2 * max(UNPACKED_FLOATS, head_dim)
    return unpacked + QUERY_ROWS * (MOST_CELLS + head_dim + ROW_FLOATS)
