"""Metal maps the file: the GPU's buffer is the span from its first tensor to its last, with the host's in between.

Follows llama-model-loader.cpp (get_mapping_range), llama-model.cpp (load_tensors) and ggml-metal-device.m
(ggml_metal_buffer_map). A buffer counts in full against the GPU's working set. The CPU reads the same pages, so what
is inside a span is billed once, on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.llamacpp.context import pad
from edgekit.engines.llamacpp.placement import PlacedTensor, block_number
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup
from edgekit.formats.types import Tensor
from edgekit.machine.types import Pool, PoolKind
from edgekit.units import KIB

PAGE_BYTES = 16 * KIB  # Apple silicon
FILE_ALIGNMENT = 32  # general.alignment of nearly every file

_Extent = tuple[int, int, int]  # shard, first byte, end


def maps_spans(setup: LlamaCppSetup) -> bool:
    return setup.backend is Backend.METAL and setup.use_mmap


def mapped(
    placed: Sequence[PlacedTensor], tensors: Iterable[Tensor], setup: LlamaCppSetup
) -> tuple[tuple[PlacedTensor, ...], tuple[MemoryLine, ...]]:
    """The tensors that keep a line of their own, and a line for the rest of each device's spans."""
    extents = _extents(tensors)
    groups: dict[tuple[Pool, int], dict[str, Tensor]] = {}
    for one in placed:
        if one.pool.kind is PoolKind.DEVICE:
            shard = extents[one.tensor.name][0]
            groups.setdefault((one.pool, shard), {})[one.tensor.name] = one.tensor
    spans = {key: _span(group, extents) for key, group in groups.items()}
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
    """What Metal allocates for a span: whole pages. Beyond the longest buffer of the device it is cut into views
    that overlap by the largest tensor, so that every tensor is whole in one of them.
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
    cut = sum(range(whole, views))  # each of these ends with the span
    return whole * max_buffer_bytes + (views - whole) * size - step * cut


def _span(names: Iterable[str], extents: dict[str, _Extent]) -> tuple[int, int]:
    found = [extents[name] for name in names]
    return min(first for _, first, _ in found), max(end for _, _, end in found)


def _extents(tensors: Iterable[Tensor]) -> dict[str, _Extent]:
    """Where each tensor is in its file. A file that does not exist yet (all offsets are 0) is laid out as
    llama-quantize writes it: tensors outside of blocks first, then block by block, by name.
    """
    found = tuple(tensors)
    if any(tensor.offset for tensor in found):
        return {one.name: (one.shard, one.offset, one.offset + one.size_bytes) for one in found}
    extents: dict[str, _Extent] = {}
    position = 0
    for one in sorted(found, key=_quantizer_order):
        extents[one.name] = (0, position, position + one.size_bytes)
        position += pad(one.size_bytes, FILE_ALIGNMENT)
    return extents


def _quantizer_order(tensor: Tensor) -> tuple[int, str]:
    block = block_number(tensor.name)
    return -1 if block is None else block, tensor.name
