"""The built-in engine's flags: the table of everything that can be set -> a load and a setup, and back."""

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
    number,
    one_of,
    text,
    whole,
    yes_no,
)
from edgekit.errors import UsageError
from edgekit.units import format_bytes, parse_size

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.cache_types import CacheType
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.native.stream_plan import StreamSetup

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
    from edgekit.bill.cache_types import cache_type

    return cache_type(name)


_CACHE = Meaning(_cache_field, lambda kind: kind.name)
_KEPT = Meaning(
    lambda kept: {ALL: None, NONE: 0}.get(kept, kept),
    lambda kept_bytes: ALL if kept_bytes is None else kept_bytes or NONE,
)
_SHOWN = ("f16", "q8_0", "f32")
CONTEXT = common.CONTEXT._replace(option="context_tokens")
FLAGS: tuple[Flag, ...] = (
    Flag(("--keep",), "keep", "weights to keep in memory: 2G, all or none (default: as many as fit; none in estimate)", "SIZE", _keep, field="keep_bytes",
         meaning=_KEPT, row=_row_keep, control=Control("Weights kept in memory", (ALL, NONE), "as much as fits", is_wide=True)),
    Flag(("--rolling",), "rolling", "drop the oldest tokens of a full context and continue", row=yes_no, control=Control("Rolling window")),
    Flag(("--sinks",), "sinks", "first tokens that a rolling context never drops", "N", whole(), row=number),
    Flag(("--chunk",), "chunk", "prompt tokens computed together (default 64)", "N", whole(1), field="microbatch_tokens",
         row=number, option="chunk_tokens", control=Control("Prefill chunk (tokens)", fact="chunk_tokens")),
    Flag(("--resident",), "resident_tokens", "tokens of a context past 64k to keep in memory; the rest goes to disk", "N", whole(512), row=number),
    Flag(("--threads",), "threads", "CPU threads (default: one per core, up to 8)", "N", whole(1, 1024), row=number, control=Control("Threads", fact="threads")),
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


def default_setup() -> StreamSetup:
    from edgekit.engines.native.stream_plan import StreamSetup

    return StreamSetup()


def read_quant(name: str) -> str | None:
    raise UsageError(
        f"--quant {name[:40]}: the built-in engine runs a GGUF file as it is; name a file or a repository "
        "with that quantisation"
    )


def placement(setup: StreamSetup) -> dict[str, Any]:
    """What was chosen for the machine: how many weights stay in memory, and the number of threads."""
    given = {"keep": _KEPT.value_of(setup.keep_bytes), "threads": setup.threads}
    return {key: value for key, value in given.items() if value is not None}


def describe(_load: Load, estimate: MemoryEstimate) -> str:
    """What was asked for, as the engine resolved it."""
    facts: dict[str, Any] = dict(estimate.facts)
    kinds = dict.fromkeys((facts["cache_k"], facts["cache_v"]))
    rolling = ""
    if facts["rolling"]:
        sinks = f", the first {facts['sinks']} stay" if facts["sinks"] else ""
        rolling = f" that roll{sinks}"
    return (
        f"{facts['window']:,} tokens of context{rolling}, cache {' and '.join(kinds)},"
        f" {facts['chunk_tokens']} tokens at once, {facts['threads']} threads;"
        f" {_weights(facts['kept_bytes'], facts['streamed_bytes'])}"
    )


def _weights(kept_bytes: int, streamed_bytes: int) -> str:
    if not streamed_bytes:
        return "all weights in memory"
    read = f"{format_bytes(streamed_bytes)} of weights read from the file for every token"
    return f"{format_bytes(kept_bytes)} of weights in memory, {read}" if kept_bytes else read
