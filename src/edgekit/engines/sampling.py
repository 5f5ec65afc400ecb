"""How the next token is chosen: llama.cpp's options and defaults (common/common.h @ b21e4de)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgekit.errors import UsageError
from edgekit.terminal import quoted

RECENT_TOKENS = 4_096  # that a repetition penalty may look back
RANDOM_SEED = 2**32 - 1  # what llama.cpp takes for "any": LLAMA_DEFAULT_SEED in llama.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen. The defaults are llama.cpp's. UsageError for what makes no sense."""

    temperature: float = 0.8  # 0: the likeliest, always
    top_k: int = 40  # 0: all
    top_p: float = 0.95  # 1: all
    min_p: float = 0.05  # 0: all
    repeat_penalty: float = 1.0  # 1: none
    repeat_last: int = 64  # tokens that the penalty looks back; 0: none
    seed: int | None = None  # None: another one each time

    def __post_init__(self) -> None:
        for name, (flag, holds, wanted) in _RULES.items():
            value = getattr(self, name)
            if not holds(value):
                raise UsageError(f"{name} (--{flag}) must be {wanted} (got {quoted(value)})")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        return self.repeat_last > 0 and self.repeat_penalty != 1


def _number(low: float, high: float) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        return type(value) in (int, float) and math.isfinite(value) and low <= value <= high

    return holds


def _whole(high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value <= high


def _seed(value: Any) -> bool:
    return value is None or _whole(RANDOM_SEED - 1)(value)


_PENALTY = 1e-6, 1e6  # 1.0 to 1.5 in use; a logit of 1,000 is a number still, however it is scaled
_RULES: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    "temperature": ("temp", _number(0, math.inf), "a number of at least 0"),
    "top_k": ("top-k", _whole(2**31 - 1), "a whole number of tokens, 0 for all"),
    "top_p": ("top-p", _number(0, 1), "a number from 0 to 1, 1 for all tokens"),
    "min_p": ("min-p", _number(0, 1), "a number from 0 to 1, 0 for all tokens"),
    "repeat_penalty": ("repeat-penalty", _number(*_PENALTY), "a number above 0, 1 for no penalty"),
    "repeat_last": (
        "repeat-last-n",
        _whole(RECENT_TOKENS),
        f"a whole number of tokens up to {RECENT_TOKENS:,}, 0 for none",
    ),
    "seed": ("seed", _seed, f"a whole number below {RANDOM_SEED:,}"),
}
