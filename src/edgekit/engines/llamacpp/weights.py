"""Placed tensors -> the lines of the weights, one for each block and pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.mapping import mapped, maps_spans
from edgekit.engines.llamacpp.placement import (
    EMBEDDING,
    HEAD,
    WITHOUT_HEAD,
    PlacedTensor,
    placed_sums,
    placed_tensors,
    sums_of,
    tied_pool,
)
from edgekit.engines.llamacpp.prepared import WeightsKey, prepare
from edgekit.engines.llamacpp.tensor_placement import TensorPlacement
from edgekit.engines.llamacpp.types import Backend, Cpu, LlamaCppSetup
from edgekit.machine.types import HOST, Pool
from edgekit.model.types import Model

# ggml-cpu/repack.cpp @ 0c1e570: what x86 with AVX2 and ARM with dot products rearrange.
REPACKED_TYPES = {
    Cpu.X86: frozenset({"Q2_K", "Q4_0", "Q4_K", "IQ4_NL"}),
    Cpu.ARM: frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL"}),
}
REPACK_WITHIN = (
    0.5  # which of them depends on the CPU's further abilities and on rows that divide by 8
)


def weight_lines(
    model: Model, placement: TensorPlacement, setup: LlamaCppSetup
) -> tuple[MemoryLine, ...]:
    key = weights_key(placement, setup)
    return prepare(model).weights.get(key, lambda: _lines(model, placement, setup))


def weights_key(placement: TensorPlacement, setup: LlamaCppSetup) -> WeightsKey:
    cpu = setup.cpu if setup.repack else None
    devices = setup.devices if maps_spans(setup) else None
    return WeightsKey(placement, setup.load_mtp, setup.rules, setup.use_mmap, cpu, devices)


def _lines(
    model: Model, placement: TensorPlacement, setup: LlamaCppSetup
) -> tuple[MemoryLine, ...]:
    if not setup.repack and not maps_spans(setup):  # no tensor is looked at by itself
        return tuple(_block_lines(placed_sums(model, placement, setup)))
    placed = placed_tensors(model, placement, setup)
    repacked = tuple(_repacked(model, placement, placed, setup)) if setup.repack else ()
    if not maps_spans(setup):
        return (*_block_lines(sums_of(placed)), *repacked)
    own, between = mapped(placed, model.header.tensors or (), setup)
    return (*_block_lines(sums_of(own)), *between, *repacked)


def repacked_bytes(model: Model, placement: TensorPlacement, setup: LlamaCppSetup) -> int:
    """What a build that repacks weights needs more of the host: the originals in a mapped file are not read again, and
    the system drops them from memory when it runs short.
    """
    setup = replace(setup, use_mmap=False)
    key = weights_key(placement, replace(setup, repack=True))
    return prepare(model).repacked_bytes.get(key, lambda: _repacked_bytes(model, placement, setup))


def _repacked_bytes(model: Model, placement: TensorPlacement, setup: LlamaCppSetup) -> int:
    placed = placed_tensors(model, placement, setup)
    return sum(line.size_bytes for line in _repacked(model, placement, placed, setup))


def _block_lines(sums: Mapping[tuple[int | None, Pool], tuple[int, int]]) -> Iterator[MemoryLine]:
    """What belongs to no block first."""

    def place(item: tuple[tuple[int | None, Pool], tuple[int, int]]) -> tuple[int, str]:
        block, pool = item[0]
        return -1 if block is None else block, pool.label

    for (block, pool), (size, count) in sorted(sums.items(), key=place):
        tensors = "1 tensor" if count == 1 else f"{count} tensors"
        yield MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=size,
            pool=pool,
            layer=block,
            because=f"{tensors} from the file, padded to the buffer alignment",
        )


def _repacked(
    model: Model, placement: TensorPlacement, placed: Sequence[PlacedTensor], setup: LlamaCppSetup
) -> Iterator[MemoryLine]:
    """Copies on the host, repacked for the CPU. Of a mapped file the originals stay in memory too, until it runs short.

    With a CUDA or Vulkan device there are none: its buffer type for the host comes first (llama-model.cpp @ b21e4de:
    make_cpu_buft_list). Metal has no such buffer type.
    """
    if setup.has_device and setup.backend is not Backend.METAL:
        return
    types = REPACKED_TYPES[setup.cpu]
    sizes = [
        one.size_bytes
        for one in placed
        if one.pool == HOST
        and one.tensor.type.name in types
        and len(one.tensor.shape) > 1
        and one.tensor.name != EMBEDDING
    ]
    if setup.use_mmap and sizes:
        yield MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=sum(sizes),
            pool=HOST,
            basis=Basis.MODELLED,
            because=(
                f"copy of {len(sizes)} matrices repacked for the CPU, in addition to the "
                "mapped file"
            ),
            within=REPACK_WITHIN,
        )
    names = {one.tensor.name: one for one in placed}
    tied = names.get(EMBEDDING)
    has_tied_head = HEAD not in names and model.geometry.architecture not in WITHOUT_HEAD
    on_host = tied_pool(placement) == HOST  # the embedding may be there, and its copy elsewhere
    if tied is not None and tied.tensor.type.name in types and has_tied_head and on_host:
        yield MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=tied.size_bytes,
            pool=HOST,
            basis=Basis.MODELLED,
            because="second copy of the token embedding, repacked as the output head",
            within=REPACK_WITHIN,
        )
