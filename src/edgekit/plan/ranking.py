"""A known model -> where it stands among others before anybody has run it: a rule of thumb, never more."""

from __future__ import annotations

import math
import re
from datetime import date

from edgekit.catalog.types import Entry

# ASSUMED. A model with experts answers about as well as a dense one of the geometric mean of all its parameters and of
# those that work on a token. What a parameter achieves doubles with time (Xiao et al., Densing Law of LLMs, 2025: every
# 3.5 months); a slower pace lets size count as well.
DOUBLING_MONTHS = 6
FIRST = date(2023, 1, 1)  # before it nothing is recommended for its age
LAST = date(2050, 1, 1)  # whatever a file says
MOST_PARAMETERS = 10**15
UNKNOWN = date(2024, 1, 1)  # of a model that nobody dates
SMALL_PARAMETERS = 8e9
OUTDATED = date(2024, 7, 1)
_DAYS_A_MONTH = 365.25 / 12
_VERSION = re.compile(r"(?<=[a-z])-?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?=-|$)")


def rank_of(entry: Entry) -> float:
    """The larger, the better it is expected to answer. Nothing about memory or speed."""
    parameters = min(entry.parameters or 0, MOST_PARAMETERS)
    active = min(entry.active_parameters or parameters, MOST_PARAMETERS)
    is_later = bool(entry.not_before and not entry.released)  # than another one of that day
    days = (min(_dated(entry), LAST) - FIRST).days + is_later
    months = max(0.0, days / _DAYS_A_MONTH)
    return math.sqrt(parameters * active) / 1e9 * 2 ** (months / DOUBLING_MONTHS)


def is_minor(entry: Entry) -> bool:
    """Small or outdated: not to be preferred to a better model only because it is fast."""
    return (entry.parameters or 0) < SMALL_PARAMETERS or _dated(entry) < OUTDATED


def _dated(entry: Entry) -> date:
    try:
        return date.fromisoformat(entry.released or entry.not_before or "")
    except ValueError:
        return UNKNOWN


def version_of(name: str) -> tuple[str, tuple[int, ...]]:
    """'qwen3.6-27b' -> ('qwen-27b', (3, 6)): the model without its version, and the version."""
    found = _VERSION.search(name.lower())
    if found is None:
        return name.lower(), ()
    rest = name.lower()[: found.start()] + name.lower()[found.end() :]
    return rest, tuple(map(int, found[1].split(".")))


def root_of(family: str) -> str:
    """'qwen3-vl' -> 'qwen': whose line it is."""
    return re.split(r"[^a-z]", family.lower(), maxsplit=1)[0] or family
