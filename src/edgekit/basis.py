"""How a number is known. Every figure in an answer has one of these."""

from __future__ import annotations

import enum


class Basis(enum.Enum):
    EXACT = "exact"  # read from the file, or computed by a rule that is tested to the byte
    MODELLED = "modelled"  # a rule with a stated error
    ASSUMED = "assumed"  # a documented guess
