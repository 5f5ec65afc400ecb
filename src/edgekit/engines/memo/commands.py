"""There is no program that runs a tier, so there are no commands: only the flags that give the same plan again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.bill.types import MemoryEstimate
from edgekit.bill.verdict import Verdict
from edgekit.engines.flags import given_values
from edgekit.engines.memo.flags import TABLE
from edgekit.model.open import Opened


def settle(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, Any]:
    return {**given, **given_values(TABLE, verdict.load, verdict.way.setup)}


def estimate_words(
    _values: Mapping[str, Any], _estimate: MemoryEstimate, _opened: Opened
) -> list[str]:
    return []
