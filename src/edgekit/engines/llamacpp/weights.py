"""Placed tensors -> the weight lines, one per block and pool; Metal maps spans of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.context import pad
from edgekit.engines.llamacpp.placement import (
    EMBEDDING,
    HEAD,
    PlacedTensor,
    block_number,
    placed_sums,
    placed_tensors,
    sums_of,
    tied_pool,
)
from edgekit.engines.llamacpp.prepared import WeightsKey, prepare
from edgekit.engines.llamacpp.types import Backend, Cpu, LlamaCppSetup, TensorPlacement
from edgekit.formats.types import Tensor
from edgekit.machine.types import HOST, Pool, PoolKind
from edgekit.model.types import Model
from edgekit.units import KIB

# ggml-cpu/repack.cpp @ 0c1e570: what x86 with AVX2 and ARM with dot products rearrange.
REPACKED_TYPES = {
    Cpu.X86: frozenset({"Q2_K", "Q4_0", "Q4_K", "IQ4_NL"}),
    Cpu.ARM: frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL"}),
}
REPACK_WITHIN = 0.5  # depends on further CPU features and on row counts divisible by 8
PAGE_BYTES = 16 * KIB  # Apple silicon
FILE_ALIGNMENT = 32  # general.alignment of nearly every file
_Extent = tuple[int, int, int]  # shard, first byte, end


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
    if not setup.repack and not maps_spans(setup):  # sums are enough
        return tuple(_block_lines(placed_sums(model, placement, setup)))
    placed = placed_tensors(model, placement, setup)
    repacked = tuple(_repacked(model, placement, placed, setup)) if setup.repack else ()
    if not maps_spans(setup):
        return (*_block_lines(sums_of(placed)), *repacked)
    own, between = mapped(placed, model.header.tensors or (), setup)
    return (*_block_lines(sums_of(own)), *between, *repacked)


def repacked_bytes(model: Model, placement: TensorPlacement, setup: LlamaCppSetup) -> int:
    """Extra host memory of a build that repacks weights: the originals in a mapped file are not read again, and the
    system drops them when memory is short.
    """
    setup = replace(setup, use_mmap=False)
    key = weights_key(placement, replace(setup, repack=True))

    def compute() -> int:
        placed = placed_tensors(model, placement, setup)
        return sum(line.size_bytes for line in _repacked(model, placement, placed, setup))

    return prepare(model).repacked_bytes.get(key, compute)


def _block_lines(sums: Mapping[tuple[int | None, Pool], tuple[int, int]]) -> Iterator[MemoryLine]:
    """Weight lines by block and pool; tensors outside the blocks come first."""

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
    """Copies on the host, repacked for the CPU. The originals of a mapped file stay in memory until it runs short.

    With a CUDA or Vulkan device there are none: its host buffer type has priority (llama-model.cpp @ b21e4de:
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
    has_tied_head = (
        HEAD not in names and not known_architecture(model.geometry.architecture).without_head
    )
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


def maps_spans(setup: LlamaCppSetup) -> bool:
    return setup.backend is Backend.METAL and setup.use_mmap


def mapped(
    placed: Sequence[PlacedTensor], tensors: Iterable[Tensor], setup: LlamaCppSetup
) -> tuple[tuple[PlacedTensor, ...], tuple[MemoryLine, ...]]:
    """The tensors with their own lines, and one line for the rest of each device's spans.

    Metal maps the file: the GPU's buffer is the span from its first tensor to its last, including the host's in between
    (llama-model-loader.cpp: get_mapping_range; llama-model.cpp: load_tensors; ggml-metal-device.m:
    ggml_metal_buffer_map). A buffer counts in full against the GPU's working set. The CPU reads the same pages, so
    what is inside a span is billed once, on the device.
    """
    extents = _extents(tensors)
    groups: dict[tuple[Pool, int], dict[str, Tensor]] = {}
    for one in placed:
        if one.pool.kind is PoolKind.DEVICE:
            shard = extents[one.tensor.name][0]
            groups.setdefault((one.pool, shard), {})[one.tensor.name] = one.tensor
    spans: dict[tuple[Pool, int], tuple[int, int]] = {}
    for key, group in groups.items():
        ends = [extents[name] for name in group]
        spans[key] = min(first for _, first, _ in ends), max(end for _, _, end in ends)
    own: dict[tuple[str, Pool], PlacedTensor] = {}  # a second copy in one pool is the same pages
    inside = 0
    for one in placed:
        shard, first, end = extents[one.tensor.name]
        on_device = one.pool.kind is PoolKind.DEVICE
        if not on_device and any(
            file == shard and low <= first and end <= high
            for (_, file), (low, high) in spans.items()
        ):
            inside += 1
        else:
            own[one.tensor.name, one.pool] = replace(one, mapped=on_device)
    because = (
        f"Metal maps the file from the GPU's first tensor to its last: {inside} CPU "
        "tensors in between, padding and whole pages"
    )
    rest: dict[Pool, int] = {}
    for (pool, shard), group in groups.items():
        device = setup.devices[pool.index]
        sizes = [tensor.size_bytes for tensor in group.values()]
        size = buffer_bytes(*spans[pool, shard], max(sizes), device.max_buffer_bytes)
        rest[pool] = rest.get(pool, 0) + size - sum(sizes)
    lines = tuple(
        MemoryLine(component=Component.WEIGHTS, size_bytes=size, pool=pool, because=because)
        for pool, size in rest.items()
    )
    return tuple(own.values()), lines


def buffer_bytes(first: int, end: int, largest_bytes: int, max_buffer_bytes: int | None) -> int:
    """What Metal allocates for a span: whole pages. Beyond the device's maximum buffer length it is split into views
    that overlap by the largest tensor, so that every tensor is complete in one of them.
    """
    size = pad(end - first + first % PAGE_BYTES, PAGE_BYTES)
    if max_buffer_bytes is None or size <= max_buffer_bytes:
        return size
    overlap = pad(largest_bytes, PAGE_BYTES) + PAGE_BYTES
    step = max_buffer_bytes - overlap
    if step <= 0:
        return size  # no view holds the largest tensor: llama.cpp fails, and the span exceeds the limit anyway
    views = -(-size // step)
    whole = min(views, max(0, (size - max_buffer_bytes) // step + 1))
    cut = sum(range(whole, views))  # shorter views, which end with the span
    return whole * max_buffer_bytes + (views - whole) * size - step * cut


def _extents(tensors: Iterable[Tensor]) -> dict[str, _Extent]:
    """The position of each tensor in its file. A file that does not exist yet (all offsets are 0) is laid out as
    llama-quantize writes it: tensors outside the blocks, then block by block, by name.
    """
    found = tuple(tensors)
    if any(tensor.offset for tensor in found):
        return {one.name: (one.shard, one.offset, one.offset + one.size_bytes) for one in found}

    def quantizer_order(tensor: Tensor) -> tuple[int, str]:
        block = block_number(tensor.name)
        return -1 if block is None else block, tensor.name

    extents: dict[str, _Extent] = {}
    position = 0
    for one in sorted(found, key=quantizer_order):
        extents[one.name] = (0, position, position + one.size_bytes)
        position += pad(one.size_bytes, FILE_ALIGNMENT)
    return extents
