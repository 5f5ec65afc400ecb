"""The keys of a rotary embedding -> Rope, and a Rope -> tables of cosines and sines.

As llama.cpp computes it: llama-model.cpp (load_hparams), llama-context.cpp:150-215,
ggml-cpu/ops.cpp (rope_yarn) and ggml.c (ggml_rope_yarn_corr_dims) @ b21e4de.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgekit.embed.encoder.keys import Keys
from edgekit.embed.encoder.types import Rope
from edgekit.embed.types import Floats
from edgekit.header.quoting import quoted

_BASE = 10_000.0
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
# Of these llama.cpp takes its own numbers for our families, whatever the file says.
_FIXED: Mapping[str, float] = {
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": _BETA_FAST,
    "yarn_beta_slow": _BETA_SLOW,
}
_ROWS = 64  # places whose angles are worked out at a time


def read_rope(keys: Keys, *, rotary: int, context_tokens: int) -> Rope:
    base = keys.number("rope.freq_base", otherwise=_BASE)
    if base <= 1:
        raise keys.error(f"{keys.architecture}.rope.freq_base is {base}, not more than 1")
    scaling = keys.get("rope.scaling.type")
    if scaling not in {None, "none", "linear", "yarn"}:
        raise keys.error(
            f"rope scaling {quoted(scaling)} is not known to the built-in encoder (none, linear and"
            " yarn are): add it to embed/encoder/rope.py, or use engine llama.cpp"
        )
    factor = keys.number(
        "rope.scaling.factor", otherwise=keys.number("rope.scale_linear", otherwise=0)
    )
    factor = 1.0 if scaling == "none" or factor == 0 else factor
    magnitude = keys.number("rope.scaling.attn_factor", otherwise=1.0)
    if scaling != "yarn":
        return Rope(
            base=base, interpolate=1 / factor, yarn_from=None, yarn_to=0.0, magnitude=magnitude
        )
    _refuse_other_yarn(keys)
    trained = keys.whole(
        "rope.scaling.original_context_length", most=2**31, otherwise=context_tokens
    )
    first, last = _yarn_pairs(rotary, trained, base)
    return Rope(
        base=base,
        interpolate=1 / factor,
        yarn_from=first,
        yarn_to=last,
        magnitude=magnitude * (1 + 0.1 * math.log(max(factor, 1.0))),
    )


def fill_tables(rope: Rope, factors: Floats | None, cos: Floats, sin: Floats) -> None:
    """Row p of cos and sin [places, pairs] for place p, p = 0, 1, ..."""
    pairs = cos.shape[1]
    slow = 1.0 if factors is None else factors.astype(np.float64)
    speeds = rope.base ** (-np.arange(pairs, dtype=np.float64) / pairs) / slow
    speeds *= _blend(rope, pairs)
    for first in range(0, len(cos), _ROWS):
        places = np.arange(first, min(first + _ROWS, len(cos)), dtype=np.float64)
        angles = places[:, None] * speeds
        cos[first : first + _ROWS] = np.cos(angles) * rope.magnitude
        sin[first : first + _ROWS] = np.sin(angles) * rope.magnitude


def _blend(rope: Rope, pairs: int) -> NDArray[np.float64]:
    """What each pair's speed is multiplied with: fast pairs keep theirs, slow ones are interpolated."""
    if rope.yarn_from is None:
        return np.full(pairs, rope.interpolate)
    span = max(0.001, rope.yarn_to - rope.yarn_from)
    kept: NDArray[np.float64] = 1 - np.clip((np.arange(pairs) - rope.yarn_from) / span, 0, 1)
    return np.asarray(rope.interpolate * (1 - kept) + kept)


def _yarn_pairs(rotary: int, trained_tokens: int, base: float) -> tuple[float, float]:
    def pair(turns: float) -> float:
        """The pair that turns so often within the trained context."""
        return rotary * math.log(trained_tokens / (turns * 2 * math.pi)) / (2 * math.log(base))

    return (
        max(0.0, math.floor(pair(_BETA_FAST))),
        min(rotary - 1.0, math.ceil(pair(_BETA_SLOW))),
    )


def _refuse_other_yarn(keys: Keys) -> None:
    for name, value in _FIXED.items():
        told = keys.get(f"rope.scaling.{name}")
        if told is not None and told != value:
            raise keys.error(
                f"{keys.architecture}.rope.scaling.{name} is {quoted(told)}: llama.cpp takes {value}"
                " whatever the file says, and other engines do not; the built-in encoder refuses"
            )
