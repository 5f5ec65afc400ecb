"""How a number is known. Every number that leaves EdgeKit carries one of these."""

from __future__ import annotations

import enum


class Basis(enum.Enum):
    EXACT = "exact"  # read from the file, or a rule that is checked to the byte
    MODELLED = "modelled"  # a rule with a stated error
    ASSUMED = "assumed"  # a guess that has a name
