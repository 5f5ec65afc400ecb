"""The flag of the dummy engine."""

from __future__ import annotations

from edgekit.engines import flags as common
from edgekit.engines.flags import Control, Flag, number

FLAGS = (
    Flag(
        ("--dummy-spare",),
        "dummy_spare",
        "memory to allocate for nothing: 512M",
        "SIZE",
        common.size,
        field="spare_bytes",
        row=number,
        control=Control("Spare memory"),
    ),
)
TABLE = (common.CONTEXT, *FLAGS)
