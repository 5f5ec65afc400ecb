"""A start, an answer, an end -> the few lines that are printed about them, besides what the model writes."""

from __future__ import annotations

from edgekit.app.answers import Check
from edgekit.engines.chat import Written
from edgekit.engines.program import Up
from edgekit.report.headline import headline
from edgekit.report.lines import counted
from edgekit.report.verify_text import beside_lines


def verdict_text(check: Check) -> str:
    """What was promised, and why this context."""
    result = check.result
    return f"{headline(result)}\ncontext {result.context_tokens:,} tokens: {result.window or 'as requested'}"


def comparison_text(engine: str, up: Up) -> str:
    """The bill next to what the engine has allocated."""
    outside = [row.part for row in up.rows if not row.within]
    outcome = "as predicted"
    if outside:
        outcome = f"OUTSIDE BOUNDS: {', '.join(outside)}"
    elif any(row.difference_bytes for row in up.rows):
        outcome = (
            f"within the bounds of the estimate, which follows the rules of {up.rules_version}"
        )
    return "\n".join([f"{engine} {up.version} is up, {outcome}", *beside_lines(up.rows)])


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
