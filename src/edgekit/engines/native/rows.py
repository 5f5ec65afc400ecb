"""Options as the built-in engine names them -> a load and a setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.bill.cache_types import CacheType, cache_type
from edgekit.bill.types import Load
from edgekit.engines.native.setup import StreamSetup
from edgekit.engines.row_options import LARGEST, flag, text, whole
from edgekit.errors import UsageError
from edgekit.units import parse_size


def read_row(options: Mapping[str, Any]) -> tuple[Load, StreamSetup]:
    """`keep` is a number of bytes, a size such as "2G", "all" or "none"; the others are as in Load and StreamSetup."""
    load = Load(
        context_tokens=whole(options, "context_tokens"),
        sequences=whole(options, "sequences"),
        microbatch_tokens=whole(options, "chunk_tokens"),
        cache_k=_cache_type(options, "type_k"),
        cache_v=_cache_type(options, "type_v"),
        full_window=flag(options, "full_window") or False,
    )
    setup = StreamSetup(
        threads=whole(options, "threads"),
        keep_bytes=_keep_bytes(options),
        sinks=whole(options, "sinks") or 0,
        rolling=flag(options, "rolling") or False,
        resident_tokens=whole(options, "resident_tokens"),
    )
    return load, setup


def _keep_bytes(options: Mapping[str, Any]) -> int | None:
    kept = options.get("keep", "none")
    if kept in {"all", "none"}:
        return None if kept == "all" else 0
    if isinstance(kept, str):
        return parse_size(kept)
    if isinstance(kept, bool) or not isinstance(kept, int) or not 0 <= kept <= LARGEST:
        raise UsageError(f"keep {kept!r:.60} is not a size such as 2G, all or none")
    return kept


def _cache_type(options: Mapping[str, Any], name: str) -> CacheType | None:
    value = text(options, name)
    return None if value is None else cache_type(value)
