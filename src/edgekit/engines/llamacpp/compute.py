"""A resolved context -> the lines of the compute buffers: one for each pool a node of the graph runs in."""

from __future__ import annotations

from typing import NamedTuple

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.graph import CPU_ONLY, NoGraphError, compute_bytes
from edgekit.engines.llamacpp.placement import TensorPlacement
from edgekit.engines.llamacpp.schedule.target import pools, spread
from edgekit.engines.llamacpp.types import Backend, Context, LlamaCppSetup
from edgekit.engines.llamacpp.versions import NEWEST, Rules, is_newer
from edgekit.machine.types import HOST, Pool
from edgekit.model.types import Model


class _Known(NamedTuple):
    basis: Basis
    within: float | None
    because: str


_EXACT = _Known(
    Basis.EXACT,
    None,
    "llama.cpp's largest compute graph, simulated node by node with its own allocator",
)
# Right to the byte on every recorded row too, but of one GPU generation only.
_SPLIT = _Known(
    Basis.MODELLED,
    0.05,
    "llama.cpp's largest compute graph, split between GPU and CPU as llama.cpp splits it",
)
_SEVERAL = _Known(
    Basis.MODELLED,
    0.1,
    "llama.cpp's largest compute graph over several GPUs, with four copies of its inputs",
)
# llama.cpp works the graph out for whole tensors and takes as much on every device (ggml-backend-meta.cpp).
_SLICED = _Known(
    Basis.MODELLED,
    0.1,
    "the engine's largest graph with whole tensors, which every device reserves",
)
# Up to 3 % on the models compared: the last layer works on all tokens then, not on the output rows alone.
_PREDICTING = _Known(
    Basis.MODELLED,
    0.05,
    "llama.cpp's largest compute graph, without the states saved for token prediction (MTP)",
)
# Builds between the two that are recorded: the log, which rounds, agreed on the CPU for every header that was asked.
_LOGGED = _Known(
    Basis.MODELLED,
    0.05,
    "llama.cpp's largest compute graph, checked against the log of this build only",
)
_OTHER = _Known(
    Basis.MODELLED,
    0.2,
    "llama.cpp's largest compute graph, placed as the CUDA backend would place it",
)
BOUND_WITHIN = 1.0  # of the line: all of it may be too much, none of it is missing
_BOUND = _Known(
    Basis.MODELLED,
    BOUND_WITHIN,
    "upper bound: everything alive at once in the largest step of a layer",
)


def compute_lines(
    model: Model, context: Context, placement: TensorPlacement, setup: LlamaCppSetup
) -> list[MemoryLine]:
    where = pools(len(setup.devices)) if setup.has_device else (HOST,)
    try:
        target = spread(context, placement, setup.devices) if setup.has_device else CPU_ONLY
        sizes = compute_bytes(model, context, target)
        sizes = (*sizes[:1] * (placement.ranks - 1), *sizes)
        known = _known(placement, setup)
    except NoGraphError as error:
        from edgekit.engines.llamacpp.closed import bound_bytes, pool_bounds

        on_host = (bound_bytes(model, context),)
        sizes = pool_bounds(model, context, placement, setup) if setup.has_device else on_host
        known = _BOUND._replace(because=f"{_BOUND.because} ({error})")
    return [_line(pool, size, known) for pool, size in zip(where, sizes, strict=True)]


def _known(placement: TensorPlacement, setup: LlamaCppSetup) -> _Known:
    recorded = setup.rules in (Rules.V0_5, NEWEST) and not is_newer(setup.version)
    whole_graph = _PREDICTING if setup.load_mtp else _EXACT if recorded else _LOGGED
    if not setup.has_device:
        return whole_graph
    if setup.backend is not Backend.CUDA:
        return _OTHER
    if placement.ranks > 1:
        return _SLICED
    if len(setup.devices) > 1 or setup.devices[0].rpc:
        return _SEVERAL
    return whole_graph if placement.together else _SPLIT


def _line(pool: Pool, size_bytes: int, known: _Known) -> MemoryLine:
    return MemoryLine(
        component=Component.COMPUTE,
        size_bytes=size_bytes,
        pool=pool,
        basis=known.basis,
        because=known.because,
        within=known.within,
    )
