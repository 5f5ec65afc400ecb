"""A resolved context -> the lines of the compute buffers (one for each pool a node of the graph runs in), of the output
buffer and of a context shift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.caches import shares_of
from edgekit.engines.llamacpp.graph import CPU_ONLY, NoGraphError, compute_bytes
from edgekit.engines.llamacpp.schedule.target import pools, spread
from edgekit.engines.llamacpp.tensor_placement import TensorPlacement
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


# -- the output buffer, in which logits and embeddings are handed over

FLOAT_BYTES = 4
ALWAYS_EMBEDS = frozenset({"t5"})  # llama-context.cpp: output_reserve
MOST_STREAMS = 64  # DeepSeek-V4 has 4
ASSUMED_VOCABULARY = 262_144  # Gemma's, about the largest there is


def output_line(model: Model, context: Context) -> MemoryLine:
    known = model.geometry.vocabulary
    vocabulary = ASSUMED_VOCABULARY if known is None else known
    embeds = context.embeddings or model.geometry.architecture in ALWAYS_EMBEDS
    hidden = model.geometry.hidden * _streams(model) if embeds else 0
    wide = f"{vocabulary} logits" + (f" + {hidden} embedding" if hidden else "")
    return MemoryLine(
        component=Component.OUTPUT,
        size_bytes=FLOAT_BYTES * context.n_seq_max * (vocabulary + hidden),
        pool=HOST,
        basis=Basis.EXACT if known is not None else Basis.ASSUMED,
        because=f"{context.n_seq_max} sequences x ({wide}) x {FLOAT_BYTES} bytes",
    )


def _streams(model: Model) -> int:
    """Hyper-connections (DeepSeek-V4) hand over every stream of the hidden state."""
    count = model.header.keys.get(f"{model.geometry.architecture}.hyper_connection.count")
    return count if isinstance(count, int) and 0 < count <= MOST_STREAMS else 1


# -- a window that rolls: what turning its keys takes beyond the compute buffer
#
# llama-kv-cache.cpp @ b21e4de, build_graph_shift: layer by layer the keys of all cells are turned, in their place. Keys
# that are quantised are unpacked for it, twice where they were multiplied by a rotation before they were stored. The
# allocator has not seen this graph when it reserves: the buffer grows with the first shift, and stays so.

SHIFT_COPIES = 2
SHIFT_WITHIN = 1.0  # an upper bound: nothing at all of it is taken before the window rolls


def shift_lines(
    model: Model,
    context: Context,
    placement: TensorPlacement,
    setup: LlamaCppSetup,
    compute: Sequence[MemoryLine],
) -> Iterator[MemoryLine]:
    """Nothing unless the window rolls and its keys are quantised."""
    if not setup.ctx_shift or not context.type_k.is_quantized:
        return
    cells = context.cells * context.streams
    for pool, elements in _widest(model, placement).items():
        size = cells * (SHIFT_COPIES * elements + 1) * FLOAT_BYTES
        reserved = sum(line.size_bytes for line in compute if line.pool == pool)
        if size > reserved:
            yield MemoryLine(
                component=Component.COMPUTE,
                size_bytes=size - reserved,
                pool=pool,
                basis=Basis.MODELLED,
                because=f"K cache unpacked for the context shift: {cells} cells x ({SHIFT_COPIES} x "
                f"{elements} floats + 1) x {FLOAT_BYTES} bytes, minus the {reserved} of "
                "the compute buffer",
                within=SHIFT_WITHIN,
            )


def _widest(model: Model, placement: TensorPlacement) -> dict[Pool, int]:
    """Numbers in a row of keys, of the layer that has most of them in each pool."""
    found: dict[Pool, int] = {}
    for layer in model.geometry.layers:
        widths = [stream.elements for stream in layer.mixer.streams if stream.name != "v"]
        for _, pool in shares_of(layer.mixer, layer.index, placement):
            found[pool] = max(found.get(pool, 0), *widths, 0)
    return found
