"""Load and flags -> what goes into the caches. Raises UsageError for what mlx-lm could not be told."""

from __future__ import annotations

from edgekit.bill.types import Load
from edgekit.engines.mlx.growth import MlxSession
from edgekit.engines.mlx.types import MlxSetup
from edgekit.errors import UsageError
from edgekit.model.types import ModelGeometry

UNKNOWN_CONTEXT = 32_768  # a window that no file states

_LEAST = (
    ("max_tokens", 0),
    ("max_kv_size", 1),
    ("kv_bits", 1),
    ("kv_group_size", 1),
    ("quantized_kv_start", 0),
    ("prefill_step_size", 1),
)


def read_session(geometry: ModelGeometry, load: Load, setup: MlxSetup) -> MlxSession:
    """A session that has been filled to the context: its last `max_tokens` are new, the rest is prompt."""
    for name, least in _LEAST:
        value = getattr(setup, name)
        if value is not None and value < least:
            raise UsageError(f"{name} must be at least {least} (got {value})")
    if load.cache_k is not None or load.cache_v is not None:
        raise UsageError("mlx-lm has no cache types: use kv_bits to quantise its cache")
    context = load.context_tokens
    if context is None:
        context = max(geometry.native_context or UNKNOWN_CONTEXT, setup.max_tokens + 1)
    if context <= setup.max_tokens:
        raise UsageError(
            f"a context of {context} tokens leaves no room for a prompt before "
            f"{setup.max_tokens} new tokens"
        )
    if load.sequences is not None and load.sequences < 1:
        raise UsageError(f"{load.sequences} sequences")
    return MlxSession(
        prompt_tokens=context - setup.max_tokens,
        new_tokens=setup.max_tokens,
        step=setup.prefill_step_size,
    )
