"""The flag of the dummy engine."""

from __future__ import annotations

from edgekit.engines import flags as common
from edgekit.engines.flags import Control, Flag, number
from edgekit.units import parse_size

FLAGS = (
    Flag(
        ("--dummy-spare",),
        "dummy_spare",
        "memory to allocate for nothing: 512M",
        "SIZE",
        parse_size,
        field="spare_bytes",
        row=number,
        control=Control("Spare memory"),
    ),
)
TABLE = (common.CONTEXT, *FLAGS)
