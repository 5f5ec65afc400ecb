"""--kv-bits -> whether a cache is quantised, or where mlx-lm breaks off (generate.py:305, maybe_quantize_kv_cache)."""

from __future__ import annotations

from collections.abc import Iterable

from edgekit.engines.mlx.caches import Growth, Holding, Slot
from edgekit.engines.mlx.growth import MlxSession
from edgekit.engines.mlx.models import MlxModel
from edgekit.engines.mlx.packing import GROUP_SIZES, WEIGHT_BITS
from edgekit.engines.mlx.types import MlxSetup, PackingMode
from edgekit.errors import RefusedError


def is_quantized(one: Slot, session: MlxSession, setup: MlxSetup) -> bool:
    """A KVCache becomes a quantised one after the step that brings it to --quantized-kv-start tokens."""
    reached = session.tokens >= setup.quantized_kv_start and session.tokens > 0
    return setup.kv_bits is not None and reached and one.quantizable and one.growth is Growth.FULL


def check(
    holdings: Iterable[Holding], model: MlxModel, session: MlxSession, setup: MlxSetup
) -> None:
    """Raises RefusedError with mlx-lm's own last words."""
    if setup.kv_bits is None or session.tokens < max(setup.quantized_kv_start, 1):
        return
    for one in holdings:
        if isinstance(one, Slot) and one.quantizable:
            _check_slot(one, setup)
            _check_use(one, model, session, setup)


def _check_slot(one: Slot, setup: MlxSetup) -> None:
    if one.growth is Growth.ROTATING:
        raise _refused("NotImplementedError: RotatingKVCache Quantization NYI")
    if one.growth is Growth.CHUNKED:
        return
    bits, group = setup.kv_bits, setup.kv_group_size
    if group not in GROUP_SIZES[PackingMode.AFFINE]:
        raise _refused(f"group size {group} is not supported: use 32, 64 or 128")
    if bits not in WEIGHT_BITS:
        raise _refused(f"{bits} bits are not supported: use 1, 2, 3, 4, 5, 6 or 8")
    for width in (one.key_dim, one.value_dim):
        if width % group:
            raise _refused(
                f"the last dimension of the cache ({width}) must be divisible by the "
                f"group size {group}"
            )


def _check_use(one: Slot, model: MlxModel, session: MlxSession, setup: MlxSetup) -> None:
    """The step after: a cache quantised by the last token is never read."""
    if one.growth is not Growth.FULL or session.tokens - 1 < max(setup.quantized_kv_start, 1):
        return
    if model.fails_quantized:
        raise _refused(model.fails_quantized)
    if one.queries > one.heads and one.key_dim != one.value_dim:  # base.py:112, mx.reshape
        raise _refused("a quantised cache needs keys and values of the same width")


def _refused(reason: str) -> RefusedError:
    return RefusedError(f"mlx-lm with kv_bits: {reason}")
