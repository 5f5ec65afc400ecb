"""An embedder's plan, vectors, and a bulk job -> the documented JSON (docs/embed.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgekit.embed.bulk.job import Finished
    from edgekit.embed.plan import EmbedPlan
    from edgekit.engines.native.arrays import Floats

SCHEMA = 1


def plan_json(plan: EmbedPlan) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **_model(plan),
        "engine": plan.engine,
        "kernels": plan.kernels,
        "threads": plan.threads,
        "budget_bytes": plan.budget_bytes,
        "budget_because": plan.budget_because,
        "total_bytes": plan.total_bytes,
        "lines": [
            {
                "what": line.what,
                "size_bytes": line.size_bytes,
                "basis": line.basis.value,
                "because": line.because,
            }
            for line in plan.lines
        ],
        "pass_tokens": plan.pass_tokens,
        "text_tokens": plan.text_tokens,
        "text_tokens_because": plan.text_tokens_because,
        "read_bytes": plan.read_bytes,
        "notes": list(plan.notes),
    }


def vectors_json(
    plan: EmbedPlan, tokens: Sequence[int], vectors: Floats, *, prefix: str
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **_model(plan),
        "prefix": prefix,
        "vectors": [
            {"tokens": count, "vector": shortest(vector)}
            for count, vector in zip(tokens, vectors, strict=True)
        ],
    }


def done_json(found: Finished) -> dict[str, Any]:
    done = found.done
    return {
        "schema": SCHEMA,
        "model": found.model,
        "input": found.source,
        "output": found.output,
        "skipped_list": found.skipped,
        "dimensions": found.dimensions,
        "rows": done.mark.number,
        "vectors": done.mark.kept,
        "skipped": done.mark.skipped,
        "tokens": done.mark.tokens,
        "resumed_rows": done.begun.number,
        "seconds": round(done.seconds, 3),
    }


def shortest(vector: Floats) -> list[float]:
    """The fewest digits that give the same float32: 0.1 and not 0.10000000149011612."""
    return [float(number) for number in vector.astype("U16").tolist()]


def _model(plan: EmbedPlan) -> dict[str, Any]:
    return {
        "model": plan.label,
        "mode": plan.mode.value,
        "dimensions": plan.dimensions,
        "pooling": None if plan.pooling is None else plan.pooling.label,
    }
