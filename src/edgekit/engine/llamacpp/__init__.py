"""What llama.cpp allocates."""

from __future__ import annotations

from edgekit.basis import Basis
from edgekit.engine.llamacpp import weights
from edgekit.engine.llamacpp.as_gguf import as_known, converted
from edgekit.engine.llamacpp.caches import cache_lines
from edgekit.engine.llamacpp.compute import compute_lines
from edgekit.engine.llamacpp.context import resolve
from edgekit.engine.llamacpp.names import ARCHITECTURES
from edgekit.engine.llamacpp.output import output_line
from edgekit.engine.llamacpp.placement import Placement, missing_blocks, place
from edgekit.engine.llamacpp.prediction import prediction_lines
from edgekit.engine.llamacpp.runtime import overhead_notes, runtime_lines, server_lines
from edgekit.engine.llamacpp.shift import shift_lines
from edgekit.engine.llamacpp.types import Backend, Context, LlamaCppSetup, Rules
from edgekit.engine.types import Model
from edgekit.errors import RefusedError
from edgekit.memory.types import (
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    PoolKind,
    no_better_than,
    weakest,
)

MEASURED_BACKENDS = frozenset({Backend.CPU, Backend.CUDA})
UNMEASURED_WITHIN = 0.02  # other alignments than CUDA's
NAME = "llama.cpp"
VERSION = Rules.V0_5.value


def estimate(model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
    """The bill: of a GGUF as it is, of another format (or at `setup.mix`) as it would be after a conversion.

    Raises RefusedError where llama.cpp would not come up.
    """
    found = converted(model, setup.mix)
    if found is None:
        return _estimate(model, load, setup)
    return as_known(_estimate(found.model, load, setup), found)


def cache_bytes(model: Model, load: Load, setup: LlamaCppSetup) -> int:
    """The caches and states of the bill alone. Raises RefusedError like it."""
    found = converted(model, setup.mix)
    own = model if found is None else found.model
    lines = cache_lines(own, resolve(own, load, setup), _placed(own, setup))
    return sum(line.size_bytes for line in lines)


def repacked_bytes(model: Model, setup: LlamaCppSetup) -> int:
    """What a build that rearranges weights for its CPU holds more on the host."""
    found = converted(model, setup.mix)
    own = model if found is None else found.model
    return weights.repacked_bytes(own, _placed(own, setup), setup)


def _placed(model: Model, setup: LlamaCppSetup) -> Placement:
    return model.keep(("placement", setup), lambda: place(model, setup))


def _estimate(model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
    _check_architecture(model)
    context = resolve(model, load, setup)
    placement = _placed(model, setup)
    caches = cache_lines(model, context, placement)
    compute = compute_lines(model, context, placement, setup)
    lines = (
        *weights.weight_lines(model, placement, setup),
        *caches,
        output_line(model, context),
        *compute,
        *shift_lines(model, context, placement, setup, compute),
        *prediction_lines(model, context, placement, setup, compute),
        *runtime_lines(model, context, placement, setup),
        *server_lines(context, setup, caches),
    )
    if setup.backend in MEASURED_BACKENDS and model.geometry.basis is Basis.EXACT:
        known = lines
    else:
        known = tuple(_as_known(line, model, setup) for line in lines)
    return MemoryEstimate(
        engine=NAME,
        backend=setup.backend.value,
        lines=known,
        facts=_facts(context),
        notes=tuple(overhead_notes(setup)),
    )


def _check_architecture(model: Model) -> None:
    name = model.geometry.architecture
    if model.header.keys and name not in ARCHITECTURES:
        raise RefusedError(
            f"llama.cpp {VERSION} has no architecture {name[:60]!r}; a newer version may have it"
        )
    missing = model.keep("missing blocks", lambda: missing_blocks(model))
    if missing:
        raise RefusedError(f"llama.cpp would not load it: {missing}")


def _as_known(line: MemoryLine, model: Model, setup: LlamaCppSetup) -> MemoryLine:
    """No better than the layers are known; no better than modelled on a backend that was not measured."""
    basis = model.geometry.basis
    if (
        line.component is Component.WEIGHTS
    ):  # they are read from the directory, whatever the layers are
        basis = Basis.EXACT
    if setup.backend not in MEASURED_BACKENDS and line.pool.kind is PoolKind.DEVICE:
        basis = weakest((basis, Basis.MODELLED))
    return no_better_than(line, basis, UNMEASURED_WITHIN)


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
