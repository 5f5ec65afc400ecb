"""What llama.cpp allocates."""

from __future__ import annotations

from edgekit.engine.llamacpp.as_gguf import as_known, converted
from edgekit.engine.llamacpp.caches import cache_lines
from edgekit.engine.llamacpp.compute import compute_lines
from edgekit.engine.llamacpp.context import resolve
from edgekit.engine.llamacpp.output import output_line
from edgekit.engine.llamacpp.placement import place
from edgekit.engine.llamacpp.runtime import runtime_lines, server_lines
from edgekit.engine.llamacpp.types import Context, LlamaCppSetup
from edgekit.engine.llamacpp.weights import weight_lines
from edgekit.engine.types import Model
from edgekit.memory.types import Load, MemoryEstimate

NAME = "llama.cpp"
VERSION = "0.5.0-dev (0c1e570)"


def estimate(model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
    """The bill: of a GGUF as it is, of another format (or at `setup.mix`) as it would be after a conversion.

    Raises RefusedError where llama.cpp would not come up.
    """
    found = converted(model, setup.mix)
    if found is None:
        return _estimate(model, load, setup)
    return as_known(_estimate(found.model, load, setup), found.mixed)


def _estimate(model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
    context = resolve(model, load, setup)
    placement = model.keep(("placement", setup), lambda: place(model, setup))
    caches = cache_lines(model, context, placement)
    lines = (
        *weight_lines(model, placement, setup),
        *caches,
        output_line(model, context),
        *compute_lines(model, context, placement, setup),
        *runtime_lines(model, context, placement, setup),
        *server_lines(context, setup, caches),
    )
    return MemoryEstimate(
        engine=NAME, backend=setup.backend.value, lines=lines, facts=_facts(context)
    )


def _facts(context: Context) -> tuple[tuple[str, object], ...]:
    return (
        ("n_ctx", context.n_ctx),
        ("n_ctx_seq", context.n_ctx_seq),
        ("n_seq_max", context.n_seq_max),
        ("n_batch", context.n_batch),
        ("n_ubatch", context.n_ubatch),
        ("n_outputs_max", context.n_outputs_max),
        ("flash_attn", context.flash_attn),
        ("kv_cells", context.cells),
        ("kv_swa_cells", context.swa_cells),
        ("kv_streams", context.streams),
    )
