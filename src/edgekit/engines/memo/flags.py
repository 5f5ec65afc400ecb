"""The table of a tier's flags."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from edgekit.bill.spill import Purpose
from edgekit.bill.types import cache_type
from edgekit.engines.flags import (
    CONTEXT,
    CacheFlags,
    Flag,
    Meaning,
    Page,
    number,
    one_of,
    text,
    yes_no,
)

_CACHE = Meaning(cache_type, lambda kind: kind.name)
FLAGS: tuple[Flag, ...] = (
    Flag(("--prefer-accurate-kv",), "prefer_accurate_kv", "accuracy of the cache before length of the context", row=yes_no),
    Flag(("--no-drafter",), "no_drafter", "do not look for a draft model", field="may_draft", meaning=Meaning(lambda given: not given, lambda may: not may), row=yes_no),
    Flag(("--latency",), "latency", "longest wait for spilled cache pages: text or voice", "FOR", one_of("text", "voice"), field="purpose",
         meaning=Meaning(Purpose, lambda purpose: purpose.value), row=text),
)  # fmt: skip
# Settable only in batch rows and in Python.
ROW_ONLY = (
    Flag((), "type_k", "", "TYPE", field="cache_k", meaning=_CACHE, row=text),
    Flag((), "type_v", "", "TYPE", field="cache_v", meaning=_CACHE, row=text),
    Flag((), "sequences", "", "N", row=number),
    Flag((), "unified", "", row=yes_no),
)
TABLE = (CONTEXT, *FLAGS, *ROW_ONLY)
PAGE = Page("Tiers", "", CacheFlags(("type_k", "type_v"), "f16"), is_compared=False)
