"""A start, an answer, an end -> the few lines that are told of them beside what the model says."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.app.answers import Check
from edgekit.engines.chat import Written
from edgekit.engines.comparison import ComparedRow
from edgekit.engines.llamacpp.versions import answered_version, version_name
from edgekit.report.headline import headline
from edgekit.report.lines import counted
from edgekit.report.verify_text import beside_lines


def verdict_text(check: Check) -> str:
    """What was promised, and why this context."""
    result = check.result
    return f"{headline(result)}\ncontext {result.context_tokens:,} tokens: {result.window or 'as requested'}"


def beside_text(rows: Sequence[ComparedRow], version: str) -> str:
    """The bill beside what the engine has allocated."""
    outside = [row.part for row in rows if not row.within]
    told = "as predicted"
    if outside:
        told = f"OUTSIDE BOUNDS: {', '.join(outside)}"
    elif any(row.difference_bytes for row in rows):
        rules = version_name(*answered_version(version))
        told = f"within the bounds of the estimate, which follows the rules of {rules}"
    return "\n".join([f"llama.cpp {version} is up, {told}", *beside_lines(rows)])


def written_text(written: Written, *, asked: int | None) -> str:
    """How much was read and written, and how fast."""
    told = [_paced(written.prompt_tokens, "read", written.prefill_tokens_per_s)]
    told.append(_paced(written.new_tokens, "written", written.decode_tokens_per_s))
    if written.finish == "length":
        full = asked is None or written.new_tokens < asked
        told.append("cut: the context is full" if full else f"cut after --max-tokens {asked:,}")
    return "; ".join(told)


def _paced(tokens: int, verb: str, per_s: float | None) -> str:
    what = f"{counted(tokens, 'token')} {verb}"
    return what if not per_s else f"{what} at {per_s:,.1f} tokens/s"
