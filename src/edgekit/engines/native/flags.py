"""The built-in engine's flags: the table of everything that can be set."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.engines import flags as common
from edgekit.engines.flags import (
    LARGEST,
    CacheFlags,
    Control,
    Flag,
    Meaning,
    Page,
    Whole,
    number,
    one_of,
    text,
    yes_no,
)
from edgekit.errors import UsageError
from edgekit.units import parse_size

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import CacheType

TITLE = "stream, the built-in engine"
ALL, NONE = "all", "none"
_TYPES = ("f32", "f16", "q8_0")  # stream_plan.CACHE_TYPES: --help must be instant


def _keep(text: str) -> str | int:
    return text.lower() if text.lower() in {ALL, NONE} else parse_size(text)


def _row_keep(name: str, value: Any) -> str | int:
    """A number of bytes, a size such as "2G", "all" or "none"."""
    if isinstance(value, str):
        return value if value in {ALL, NONE} else parse_size(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise UsageError(f"{name} {value!r:.60} is not a size such as 2G, all or none")
    return value


def _cache_field(name: str) -> CacheType:
    from edgekit.bill.types import cache_type

    return cache_type(name)


_CACHE = Meaning(_cache_field, lambda kind: kind.name)
KEPT = Meaning(
    lambda kept: {ALL: None, NONE: 0}.get(kept, kept),
    lambda kept_bytes: ALL if kept_bytes is None else kept_bytes or NONE,
)
_SHOWN = ("f16", "q8_0", "f32")
CONTEXT = common.CONTEXT._replace(option="context_tokens")
FLAGS: tuple[Flag, ...] = (
    Flag(("--keep",), "keep", "weights to keep in memory: 2G, all or none (default: as many as fit; none in estimate)", "SIZE", _keep, field="keep_bytes",
         meaning=KEPT, row=_row_keep, control=Control("Weights kept in memory", (ALL, NONE), "as much as fits", is_wide=True)),
    Flag(("--rolling",), "rolling", "drop the oldest tokens of a full context and continue", row=yes_no, control=Control("Rolling window")),
    Flag(("--sinks",), "sinks", "first tokens that a rolling context never drops", "N", Whole(), row=number),
    Flag(("--chunk",), "chunk", "prompt tokens computed together (default 64)", "N", Whole(1), field="microbatch_tokens",
         row=number, option="chunk_tokens", control=Control("Prefill chunk (tokens)", fact="chunk_tokens")),
    Flag(("--resident",), "resident_tokens", "tokens of a context past 64k to keep in memory; the rest goes to disk", "N", Whole(512), row=number),
    Flag(("--threads",), "threads", "CPU threads (default: one per core, up to 8)", "N", Whole(1, 1024), row=number, control=Control("Threads", fact="threads")),
    Flag(("-ctk", "--cache-type-k"), "type_k", "KV cache type of the keys: f32, f16 (default) or q8_0", "TYPE", one_of(*_TYPES), shared=True, group="cache",
         field="cache_k", meaning=_CACHE, row=text, control=Control("KV cache (K)", _SHOWN, "f16", place=0)),
    Flag(("-ctv", "--cache-type-v"), "type_v", "KV cache type of the values: f32, f16 (default) or q8_0", "TYPE", one_of(*_TYPES), shared=True, group="cache",
         field="cache_v", meaning=_CACHE, row=text, control=Control("KV cache (V)", _SHOWN, "f16", place=0)),
)  # fmt: skip
# Only rows of a batch have these: there is no flag.
ROW_ONLY = (
    Flag((), "sequences", "", "N", row=number),
    Flag((), "full_window", "", row=yes_no),
)
TABLE = (CONTEXT, *FLAGS, *ROW_ONLY)
PAGE = Page(
    "EdgeKit streaming",
    "EdgeKit streaming",
    CacheFlags(("type_k", "type_v"), "f16"),
    is_compared=False,
    runs=True,
)
