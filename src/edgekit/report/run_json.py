"""A start, an answer, an end -> the documented JSON (docs/run.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgekit.app.answers import Check
from edgekit.engines.chat import Written
from edgekit.engines.comparison import ComparedRow
from edgekit.report.check_json import check_json
from edgekit.report.verify_json import row_json

SCHEMA = 1


def answer_json(
    check: Check, text: str, written: Written, *, rows: Sequence[ComparedRow] = ()
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": check.bill.label,
        "engine": check.result.engine,
        "text": text,
        "finish": written.finish or None,
        "prompt_tokens": written.prompt_tokens,
        "new_tokens": written.new_tokens,
        "prefill_tokens_per_s": written.prefill_tokens_per_s,
        "decode_tokens_per_s": written.decode_tokens_per_s,
        "context_tokens": check.result.context_tokens,
        "reported": [row_json(row) for row in rows],
        "plan": check_json(check),
    }


def ready_json(
    check: Check,
    *,
    address: str,
    pid: int,
    version: str,
    idle_bytes: int | None,
    rows: Sequence[ComparedRow],
) -> dict[str, Any]:
    """The line that says where the server is."""
    return {
        "event": "ready",
        "schema": SCHEMA,
        "address": address,
        "openai_base_url": f"{address}/v1",
        "pid": pid,
        "engine_version": version,
        "context_tokens": check.result.context_tokens,
        "required_bytes": check.result.required_bytes,
        "idle_bytes": idle_bytes,  # of the process, before anything was loaded
        "available_bytes": check.result.available_bytes,
        "reported": [row_json(row) for row in rows],
        "within": all(row.within for row in rows),
    }


def ended_json(
    *, why: str, exit_code: int | None, signal: str | None, last_words: str
) -> dict[str, Any]:
    return {
        "event": "ended",
        "schema": SCHEMA,
        "why": why,
        "exit_code": exit_code,
        "signal": signal,
        "last_words": last_words or None,
    }
