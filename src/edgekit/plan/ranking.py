"""A known model -> where it stands among others before anybody has run it: a rule of thumb, never more."""

from __future__ import annotations

import math
from datetime import date

from edgekit.catalog.types import Entry

# ASSUMED. A model with experts answers about as well as a dense one of the geometric mean of all its parameters and of
# those that work on a token. What a parameter achieves doubles with time (Xiao et al., Densing Law of LLMs, 2025: every
# 3.5 months); a slower pace lets size count as well.
DOUBLING_MONTHS = 9
FIRST = date(2023, 1, 1)  # before it nothing is recommended for its age
UNKNOWN = date(2024, 1, 1)  # of a model that nobody dates
_DAYS_A_MONTH = 365.25 / 12


def rank_of(entry: Entry) -> float:
    """The larger, the better it is expected to answer. Nothing about memory or speed."""
    parameters = entry.parameters or 0
    active = entry.active_parameters or parameters
    months = max(0.0, (_dated(entry) - FIRST).days / _DAYS_A_MONTH)
    return math.sqrt(parameters * active) / 1e9 * 2 ** (months / DOUBLING_MONTHS)


def _dated(entry: Entry) -> date:
    try:
        return date.fromisoformat(entry.released or entry.not_before or "")
    except ValueError:
        return UNKNOWN
