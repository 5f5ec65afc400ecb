"""A plan -> the bill that it rests on, as other reports tell one."""

from __future__ import annotations

from edgekit.app.answers import EstimateAnswer
from edgekit.engines import engine_named
from edgekit.plan.plan import Plan


def bill_of(plan: Plan, command: str = "") -> EstimateAnswer:
    """`command` starts the engine so; "" where none is known."""
    result, sequences = plan.result, plan.load.sequences
    many = f" for {sequences} sequences" if sequences is not None and sequences > 1 else ""
    return EstimateAnswer(
        label=plan.task.label,
        reference=plan.variant.reference or plan.task.label,
        version=engine_named(result.engine).version(result.way.setup),
        asked=f"{result.context_tokens:,} tokens of context{many}",
        command=command,
        estimate=result.estimate,
        geometry=plan.variant.model.geometry,
    )
