"""A model and a context -> the bytes of llama.cpp's compute buffers: its largest graph in ggml's allocator."""

from __future__ import annotations

from edgekit.engines.llamacpp.graph.allocator import high_water
from edgekit.engines.llamacpp.graph.plan import CPU_ONLY, Target, plan_for
from edgekit.engines.llamacpp.graph.tensor import NoGraphError
from edgekit.engines.llamacpp.types import Context
from edgekit.model.types import Model

__all__ = ["CPU_ONLY", "NoGraphError", "Target", "compute_bytes"]


def compute_bytes(model: Model, context: Context, target: Target = CPU_ONLY) -> tuple[int, ...]:
    """Compute buffer sizes, one per buffer of the target. Raises NoGraphError; RefusedError where llama.cpp aborts."""
    plan, values = plan_for(model, context, target)
    return tuple(high_water(program, values) for program in plan.programs)
